/**
 * Kinds of flows and their limits: copies of a direction, the host's tasks, actions on shared
 * processors, what servers send each other.
 *
 *   cards alike     up, down                                     host, actions, reduce, gather
 *   several kinds   up, down of each root complex and card       host, actions, reduce, gather
 *
 * Copies up are even kinds, copies down odd ones.
 */
#pragma once

#include <glib.h>

#include "sim/flows/machine.h"

/* Links that groups of flows share (RpFlow.links); root complexes are none, but where there are several
 * kinds of cards: each is two then, up and down, from RP_FLOW_ROOTS on. */
enum { RP_FLOW_HOST, RP_FLOW_TASKS, RP_FLOW_ROOTS };

typedef struct {
    double alone_bytes_per_s; /* own limit of a flow that has a processor to itself */
    double cap_bytes_per_s;   /* of a flow at the moment */
    double root_bytes_per_s;  /* that a class's flows share */
    guint32 root_link;        /* the same, where other classes share it too; or 0 */
    guint32 first_group;      /* of classes with one flow, then with two, .. */
    guint32 n_groups;         /* 1: the number makes no difference */
} RpFlowKind;

typedef struct {
    const RpProfile *cards; /* of several kinds; or NULL */
    guint n_cards;          /* 1 where all are alike */
    guint gpus_per_root;    /* 1: without limits of root complexes each device is one */
    guint n_roots;
    guint n_copies; /* kinds of copies; then RP_FLOW_OTHERS */
    guint n_groups; /* of all kinds */
    RpFlowKind *kinds;
} RpFlowKinds;

void rp_flow_kinds_init(RpFlowKinds *kinds, const RpMachine *machine, guint gpus);
void rp_flow_kinds_clear(RpFlowKinds *kinds);

/* Rates of the links above: (transfer full). @n: (out): how many */
double *rp_flow_kinds_capacities(const RpFlowKinds *kinds, const RpMachine *machine, guint *n);

/* Links of the root complex and the card of @device for copies up: 2 for each. */
guint rp_flow_kinds_place(const RpFlowKinds *kinds, guint device);

static inline guint
rp_flow_kind_host(const RpFlowKinds *kinds)
{
    return kinds->n_copies;
}

static inline guint
rp_flow_kind_actions(const RpFlowKinds *kinds)
{
    return kinds->n_copies + 1;
}

static inline guint
rp_flow_kind_network(const RpFlowKinds *kinds, gboolean gather)
{
    return kinds->n_copies + (gather ? 3 : 2);
}
#define RP_FLOW_OTHERS 4

/* How often a byte of the kind touches host memory. */
static inline guint
rp_flow_kind_touches(const RpFlowKinds *kinds, guint k)
{
    return k == rp_flow_kind_actions(kinds)          ? 0
           : k == rp_flow_kind_network(kinds, FALSE) ? RP_REDUCE_TOUCHES
           : k == rp_flow_kind_network(kinds, TRUE)  ? RP_GATHER_TOUCHES
                                                     : 1;
}
