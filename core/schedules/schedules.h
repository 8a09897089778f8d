/**
 * The list of schedules, and the parts that their orders share. Private to core/schedules/.
 */
#pragma once

#include <glib.h>

#include "core/schedules/schedule.h"

/* v of a schedule that binds its stages. */
static inline guint
rp_order_chunks(const RpShape *shape)
{
    return shape->stages / shape->gpus;
}

/**
 * rp_order_looped:
 *
 * For each chunk upwards F of all M, then for each chunk downwards B of all M. Looped BFS, and
 * GPipe when a device holds one stage.
 */
void rp_order_looped(const RpShape *shape, guint gpu, GArray *order);

/**
 * rp_order_interleaved:
 * @split: the backward is split into I and W
 *
 * Warm-up forwards, pairs of one forward and one backward, the remaining backwards. Chunks change
 * every G micro-batches.
 */
void rp_order_interleaved(const RpShape *shape, guint gpu, gboolean split, GArray *order);

/**
 * rp_order_check_groups:
 *
 * Whether chunks that change every G micro-batches can run: with several stages per device, G
 * divides M and G >= min(N, M). Anything else leaves the last group incomplete, or lets a device
 * wait for a micro-batch that its successor holds back: a deadlock.
 *
 * Errors: RP_SCHEDULE_ERROR_SHAPE
 */
gboolean rp_order_check_groups(const RpShape *shape, GError **error);

/* Whether two pipelines in opposite directions can run: N and M are even.
 *
 * Errors: RP_SCHEDULE_ERROR_SHAPE */
gboolean rp_order_check_mirrored(const RpShape *shape, GError **error);

/* The two stages of a device in a V: [0] = r on the first leg, [1] = 2N-1-r on the second. */
typedef struct {
    GArray *order;
    guint stage[2];
    guint first[2];      /* micro-batch that counts as 0 */
    guint micro_batches; /* actions of micro-batches from M on are counted, but left out */
    guint forwards[2];   /* micro-batch of the next F */
    guint backwards[2];  /* micro-batch of the next B or I */
    guint weights[2];    /* micro-batch of the next W */
} RpFold;

static inline RpFold
rp_fold(const RpShape *shape, guint gpu, GArray *order)
{
    return (RpFold){
        .order = order,
        .stage = {gpu, 2 * shape->gpus - 1 - gpu},
        .micro_batches = shape->micro_batches,
    };
}

static inline void
rp_fold_push(RpFold *fold, RpActionKind kind, guint half)
{
    guint *next = kind == RP_ACTION_FORWARD           ? fold->forwards
                  : kind == RP_ACTION_WEIGHT_GRADIENT ? fold->weights
                                                      : fold->backwards;
    guint micro_batch = next[half]++;

    if (micro_batch < fold->micro_batches)
        rp_order_push(fold->order, kind, fold->stage[half], fold->first[half] + micro_batch);
}

/* DualPipeV's order of device @r of @gpus. */
void rp_order_dualpipe(RpFold *fold, guint gpus, guint r);

/*
 * The schedules, one a file; everyone but core/schedules/ uses core/schedules/schedule.h.
 *
 * An `order` may count on a shape that rp_schedule_check() accepts. A %NULL `check` has nothing to
 * add to the checks that hold for every schedule.
 */

/* In the order in which tables list them: rp_schedule_gpipe, ... */
#define RP_SCHEDULES(row)                                                                          \
    row(gpipe) row(1f1b) row(seq_1f1b) row(slimpipe) row(interleaved_1f1b) row(looped_bfs)         \
        row(zb_h1) row(zb_2p) row(interleaved_zb) row(zb_v) row(v_half) row(v_min) row(dualpipe_v) \
            row(dualpipe) row(chimera) row(hanayo) row(pipedream_2bw) row(mobius) row(roundpipe)   \
                row(roundpipe_split)

/* Schedules of the caller's program, at most. */
#define RP_MOST_ADDED 64

/* From now on rp_schedule_check() checks the orders of @schedule: it is the caller's. */
void rp_schedule_distrust(const RpScheduleOps *schedule);

#define RP_DECLARE_SCHEDULE(name) extern const RpScheduleOps rp_schedule_##name;
RP_SCHEDULES(RP_DECLARE_SCHEDULE)

/*
 * Orders by time in units of F = B, as waves run down and up over the devices. Private to
 * core/schedules/.
 */

/* Actions with their times, of one device: no two at the same time. */
GArray *rp_wave_new(void);

/**
 * rp_wave_add:
 * @n_stages: S, stages that these micro-batches pass
 * @unit: micro-batches that enter, one every second unit of time, before others find a gap
 *
 * F and B of @stage for micro-batches @first to @first + @count - 1. The k-th of the u-th @unit has
 * F at 2Su + s + 2k, and B at 2Su + 2S-1-s + 2k.
 */
void rp_wave_add(GArray *wave, guint stage, guint n_stages, guint unit, guint first, guint count);

/* Appends them to @order by time, and frees @wave. */
void rp_wave_push(GArray *wave, GArray *order);

/*
 * Orders that repeat a building block in a V. Private to core/schedules/.
 */

/* Units of time of F, I and W. */
typedef struct {
    guint offsets[4]; /* from device to device: F down, F up, I down, I up */
    guint turns[3];   /* from one of these to the next, on one device */
} RpVBlock;

/**
 * rp_order_v_block:
 * @block: its four passes fall on different units of six on every device
 *
 * Every six units a micro-batch begins; W fill the two units that are left. Devices run the actions
 * in this order, each as soon as it can.
 *
 * Source: Qi et al., NeurIPS 2024, §3
 */
void rp_order_v_block(const RpShape *shape, guint gpu, const RpVBlock *block, GArray *order);
