/**
 * The copies and host tasks that are moving bytes, and when the next of them is over; on shared
 * processors the actions, too, whose bytes are nanoseconds of work.
 *
 * Flows that use the same links with the same own limit form a class: they always have equal rates,
 * so a class counts the bytes that each of its flows has been served, and a flow is over when its
 * class has served so many bytes more than when it began.
 *
 *   served   0-----------1000-------1500----->
 *   flow A   |--1000------|                         begins at 0
 *   flow B            |--700--------|               begins at 800
 *
 * The classes of a direction with equal numbers of flows have the same rate, too, whichever root
 * complex they use: they form a group (flow-group.h). A change of rates is one step per group,
 * whatever the number of flows and of root complexes; a class whose number of flows changes goes
 * to another group.
 *
 * Where host memory has too little for all, the host's tasks get a machine's optimizer_weight times
 * as much as a copy: a weight for all tasks together, and never more than the optimizer moves
 * alone. A device that reads memory which the host's tasks keep busy waits longer for each answer,
 * and has only so many questions open: while such a task runs, a copy up has a lower limit of its
 * own, beside_optimizer_bytes_per_s, however few the copies are. Writes wait for nobody.
 * So it is with a link that carries less both ways at once than each way alone: beside_down_bytes_per_s is
 * the limit of a copy up if its device copies down. Flows of a class have one rate, so all copies up get
 * the mean of both limits, by the share of devices that copy down at the moment.
 *
 *   host 190, tasks 176 alone, copies 55, up 30 beside them:
 *   one copy up       30, tasks 160        one copy down     54, tasks 136 (weight 2.5)
 *
 * Messages between servers have the network to themselves, as a lane does one thing after the other, and
 * takes so much of host memory as a few copies (RP_REDUCE_TOUCHES, RP_GATHER_TOUCHES).
 *
 * Shared processors: every flow is a thread that takes one, whatever it waits for (memory or
 * arithmetic), and the system gives k threads on C < k processors C/k each. So each flow's own
 * limit, what it does alone, is multiplied by C/k first; what that leaves is shared as above.
 *
 * Parts of a card share its power: with all N at work an action takes the time that the profile gives, with
 * k of them N/k of its speed, at most alone_speed.
 *
 *   C = 2   action         |--------1--------|-2/3-|     three run: 2/3 each
 *           action              |------1-----|-2/3-|
 *           copy of 6 B/ns                   |--4--|
 */
#pragma once

#include <glib.h>

#include "sim/flows/event-heap.h"
#include "sim/flows/machine.h"

typedef enum { RP_FLOW_UP, RP_FLOW_DOWN } RpFlowDirection;

typedef struct _RpFlowSet RpFlowSet;

/**
 * rp_flow_set_new:
 * @machine: (nullable): %NULL = no limits
 * @n_lanes: a lane has at most one flow at a time
 */
RpFlowSet *rp_flow_set_new(const RpMachine *machine, guint gpus, guint n_lanes);
void rp_flow_set_free(RpFlowSet *set);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpFlowSet, rp_flow_set_free)

guint rp_flow_set_copy_class(const RpFlowSet *set, guint device, RpFlowDirection direction);
guint rp_flow_set_host_class(const RpFlowSet *set);
guint rp_flow_set_network_class(const RpFlowSet *set, gboolean gather);
/* Actions', where rp_machine_shares_actions(). */
guint rp_flow_set_action_class(const RpFlowSet *set);

/* Whether nothing limits the class: its flows take no time and never need to begin. */
gboolean rp_flow_set_unlimited(const RpFlowSet *set, guint class_id);

void rp_flow_set_begin(RpFlowSet *set, guint class_id, guint32 lane, guint64 bytes, gint64 now_ns);

guint rp_flow_set_n_groups(const RpFlowSet *set);

/* Ends the flow of @group that is over first. Returns: its lane */
guint32 rp_flow_set_end(RpFlowSet *set, guint group, gint64 now_ns);

/* Whether the next flow of @group is over, too. To be asked at the time of the last end. */
gboolean rp_flow_set_is_over(const RpFlowSet *set, guint group, gint64 now_ns);

/**
 * rp_flow_set_reshare:
 * @events: the group's slot is @first_slot + group
 *
 * Shares the links anew if flows have begun or ended, and sets the events of the groups to which
 * that made a difference: the end of their next flow, rounded up to a nanosecond.
 */
void rp_flow_set_reshare(RpFlowSet *set, gint64 now_ns, RpEventHeap *events, guint32 first_slot);
