/**
 * Memory that a device needs at most over the stages that come and go on it, and the layout of its
 * two slots. Private to core/plan/.
 *
 * A slot holds the parameters of one stage: the one that runs, or the next one arriving. A backward
 * stage is short but needs gradient sums and a large workspace; a forward stage is long and needs
 * neither. Where that pays, the sums or the workspace (or both) stand inside the slot's region, in
 * the space that only a forward stage would fill:
 *
 *   slot, forward stage   |------------- parameters -------------|
 *   slot, backward stage  |-- parameters --|---- gradient sums ---|
 *
 * Otherwise there is one of each beside the two slots.
 *
 * Slots of a device follow each other in a fixed order, so that a large stage may have small neighbours. Then the
 * two stand at the borders of one region, which is as long as any two neighbours:
 *
 *   |-------- fused stage --------|-next-|
 *   |-the one behind-|            |-next-|
 *   |-the one behind-|-------- fused stage --------|   (each stage at either end, if their number is odd)
 *
 * If weights are uploaded packed, there is one slot and a buffer for packed weights. The next stage
 * arrives there as soon as this one's has been expanded, and is expanded when this one has run:
 *
 *   packed     |--arrives--|e|------next arrives------|e|
 *   slot                   |e|--- actions of stage ---|e|-- of the next --
 */
#pragma once

#include <glib.h>

#include "core/partition/partition.h"
#include "core/profile/profile.h"

typedef enum { RP_DIRECTION_FORWARD, RP_DIRECTION_BACKWARD, RP_N_DIRECTIONS } RpDirection;

/* Bytes of the largest of each kind; backward includes the fused stage. */
typedef struct {
    gboolean is_packed; /* rp_profile_is_packed() */
    gboolean keeps;     /* activations have buffers of their own, from forward to backward */
    guint64 parameters[RP_N_DIRECTIONS];
    guint64
        neighbours; /* both slots' parameters, of stages that may follow each other on a device */
    guint64 packed; /* 0: actions read the uploaded bytes themselves */
    guint64 workspace[RP_N_DIRECTIONS];
    guint64 gradients; /* in the network's storage; 16-bit: their fp32 sums take twice as much */
    guint64 input;
    guint64 gradient; /* an output activation's */
    guint64 output;
    guint64 activations; /* a split backward's, from I to W; or kept */
    guint64 saved;       /* the most that one layer's forward saves */
    guint n_saved;       /* layers of a stage that save something */
} RpLargest;

typedef struct {
    gboolean single;  /* one slot, whose buffers serve both parities: packed, with both inside */
    gboolean at_ends; /* slots at the borders of a region of RpLargest.neighbours */
    gboolean accumulators_inside;
    gboolean workspace_inside;
    guint64 bytes; /* both slots, or the packed one, gradient sums and workspace */
} RpSlotLayout;

/* Whether the tensors that layers of a dispatched stage save stand in buffers of their own: not in
 * the fused stage, which keeps all, nor in bound ones. */
static inline gboolean
rp_stage_saves(const RpProfile *profile, RpInterval layers)
{
    return layers.first + layers.count < profile->n_layers;
}

/* The largest sizes over no stage yet. */
RpLargest rp_largest_new(const RpProfile *profile);
/* Takes a stage into account; a bound stage runs @forward and @backward. */
void rp_largest_note(RpLargest *largest, const RpProfile *profile, const RpPartition *partition,
                     RpInterval layers, gboolean forward, gboolean backward);
/* @step: rp_plan_slot_step() */
RpLargest rp_largest_dispatched(const RpProfile *profile, const RpPartition *partition, guint step);

/**
 * rp_partition_keeps_sums:
 *
 * In an iteration of several rounds: whether the next backward slot of every device is always the
 * same stage of the next round. Then its sum stays where it is, and nothing is staged:
 *
 *   gpu 0  |0F|2B| |0F|2B|     N = 2, S = 4: a stage stays on its device, and each device has one
 *   gpu 1  |1X|3B| |1X|3B|     backward stage, so not here (X, the fused stage, is one)
 *
 * Rounds are added up in their order wherever they were, so all of them stay or none.
 */
gboolean rp_partition_keeps_sums(const RpPartition *partition, guint gpus);

/* Arena of a device of a dispatched plan, without constants and resident weights. @kept_sums:
 * gradients leave as sums (RP_GRADIENTS_KEPT); @split: one micro-batch waits for its W */
guint64 rp_device_bytes(const RpProfile *profile, const RpLargest *largest, gboolean kept_sums,
                        gboolean split);

/* The layout that takes the least space. */
RpSlotLayout rp_slot_layout(const RpProfile *profile, const RpLargest *largest);
