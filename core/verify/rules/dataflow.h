/**
 * Shared by the files of rule 1: the actions and transfers of one iteration.
 */
#pragma once

#include "core/verify/private.h"

/* In the order of their kinds of tasks. */
enum {
    RP_TRANSPORT_DOWN,
    RP_TRANSPORT_UP,
    RP_TRANSPORT_STASH_UP,
    RP_TRANSPORT_GRADIENT_DOWN,
    RP_TRANSPORT_GRADIENT_UP,
    RP_TRANSPORT_SAVED_DOWN,
    RP_TRANSPORT_SAVED_UP,
    RP_N_TRANSPORTS
};

typedef struct {
    RpVerifier *verifier;
    guint32 iteration; /* relative */
    gboolean complete; /* a task that is not there is missing */
    guint32 *forward;  /* [stage * M + micro-batch] */
    guint32 *backward;
    guint32 *weights;
    guint32 *transport[RP_N_TRANSPORTS]; /* [boundary * M + micro-batch]; saved: by layer */
} RpDataflow;

/* All that actions of one micro-batch read. */
gboolean rp_dataflow_check_values(RpDataflow *flow, guint32 micro_batch);
/* The tensors that layers save of one micro-batch. */
gboolean rp_dataflow_check_saved(RpDataflow *flow, guint32 micro_batch);
/* Overlapped actions make two values, in two buffers. */
gboolean rp_dataflow_check_overlaps(RpDataflow *flow);
