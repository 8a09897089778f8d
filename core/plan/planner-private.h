/**
 * What the planner's files share. Private to core/plan/planner*.c.
 *
 *   planner.c          checks, stages, calls and iterations
 *   planner-weave.c    weaves the devices' orders into one stream of actions
 *   planner-compute.c  an action in `compute` fidelity
 *   planner-full.c     an action in `full` fidelity: transfers, windows, buffers
 *   planner-host.c     slots: weights to the devices, gradients from them and on the host
 *   planner-optimizer.c  norm, steps and copies
 *   planner-memory.c   arenas and the memory check
 *   planner-build.c    a task under construction: accesses become dependencies
 */
#pragma once

#include "core/plan/planner.h"
#include "core/plan/transfer.h"

/* What a stage (bound) or slot (dispatched) costs and holds. Index = RpAction.stage. */
typedef struct {
    RpInterval layers;
    RpPhase phase; /* bound: RP_PHASE_FORWARD, and backward as well */
    gint64 forward_ns;
    gint64 backward_ns; /* B or FB, recompute included */
    gint64 lead_ns;     /* leading part of backward_ns that does not need the gradient */
    gint64 weight_ns;   /* W */
    guint device;       /* bound only */
    guint
        stash_stage; /* dispatched backward: forward slot which makes its input; RP_NONE: layer 0 */
    guint weight_stage; /* dispatched: backward slot that is last to make gradients of its layers */
    guint64 parameter_bytes;
    guint64 gradient_bytes;
} RpStageInfo;

/* A task that last touched a buffer. */
typedef struct {
    RpTaskId task;
    guint32 lane;
} RpTouch;

/* Accesses of one buffer so far: who must be waited for. */
typedef struct {
    RpTouch writer;  /* task = RP_TASK_NONE: never written */
    guint n_readers; /* since the last write; at most one a lane, the latest */
    guint max_readers;
    RpTouch *readers;
} RpBufferState;

/* A set of equal buffers that come and go. */
typedef struct {
    guint32 arena;
    RpBufferCategory category;
    guint64 bytes;
    GQueue free; /* buffer indices, oldest first */
} RpBufferPool;

/* `full`: one device. */
typedef struct {
    guint32 parameters[2][2]; /* [RpWay][turn]: the two slots; bound and resident: unused */
    guint parameter_turn;     /* which slot the running stage uses */
    guint32 accumulator[2];   /* [turn] fp32 sums of the running stage */
    guint32 leaving;          /* gradients on their way down, or kept for the next round's */
    guint32 input[2];
    guint32 gradient[2];
    guint32 output[2];
    guint32 workspace[2][2]; /* [RpWay][turn] */
    guint32 staging;         /* host: gradients of rounds; RP_NONE where none are added up there */
    guint input_turn, gradient_turn, output_turn;
    RpBufferPool stash;          /* bound: stage inputs until their backward */
    RpBufferPool kept;           /* split backward: activations from I to W */
    RpBufferPool local_gradient; /* gradients between stages of one device */
    /* the slot that runs */
    guint32 stage; /* RP_NONE before the first */
    guint32 round;
    guint32 iteration;
    gboolean backward;    /* the slot makes gradients */
    GArray *gates;        /* RpTaskId: activation upload of each window of the slot */
    GArray *old_gates;    /* the same of the slot before: windows of this slot's parameters */
    RpTaskId last_output; /* last activation-lane download */
    /* gradients that leave in this slot's windows */
    guint32 leaving_stage; /* RP_NONE: nothing */
    guint32 leaving_round;
    guint32 leaving_iteration;
    guint leaving_chunk; /* next to go */
} RpDeviceState;

/* Gradients of a round in a device's staging buffer, to be added to those of the stage. */
typedef struct {
    guint32 stage; /* RP_NONE: has been added */
    guint32 iteration;
    guint32 round;
    guint32 staging;
} RpSummand;

struct _RpPlanner {
    const RpProfile *profile;
    RpPartition *partition;
    RpPlanOptions options; /* defaults resolved */
    RpShape shape;
    RpPlan *plan;
    guint rounds;
    guint n_stages;
    RpStageInfo *stages;
    guint32 iteration;     /* the one being appended, or next */
    guint call;            /* of the iteration, being appended or next */
    guint64 rounds_before; /* since the first call */
    gboolean keeps_sums;   /* an iteration's sums stay on their devices from round to round */
    guint rounds_apart;    /* RpPlanPromises.rounds_apart */
    gboolean early;        /* recompute before the gradient arrives */
    gboolean early_fused;
    /* weave */
    GArray **orders; /* per device, RpAction */
    guint *cursors;
    RpTaskId *forward_task;              /* [stage * M + m] of this iteration */
    RpTaskId *backward_task;             /* B, FB or I */
    RpTaskId *previous_last_backward[2]; /* [stage] last backward of iterations T-1, T-2 */
    RpTaskId barrier; /* compute, synchronous: the flush before this iteration; full, blocking:
                         the copies before it */
    RpTaskId *last_compute; /* per device */
    /* a task under construction */
    RpTask task;
    GArray *dependencies;
    GArray *accesses;
    GArray *dependency_lanes; /* guint32, beside dependencies */
    /* full */
    GArray *buffer_states; /* RpBufferState, by buffer index */
    GArray *histories;     /* guint32, by buffer index: whose state says what it holds */
    RpDeviceState *devices;
    RpPlanLayer *layers;            /* as in the plan */
    guint32 *resident_parameters;   /* [stage] */
    guint32 *resident_accumulators; /* [stage] */
    guint *backwards_left;     /* [stage] until the slot's (bound: iteration's) sum is complete */
    guint32 *stash_of;         /* bound: [stage * M + m] device buffer of the input */
    guint32 *kept_of;          /* split: [stage * M + m] */
    guint32 *gradient_of;      /* bound: [stage * M + m] local gradient buffer, RP_NONE */
    guint n_boundaries;        /* host activation buffers */
    guint32 *boundary_index;   /* [layer] -> boundary number; RP_NONE */
    guint32 *host_activations; /* [(parity * n_boundaries + boundary) * M_R + m in round] */
    guint32 *host_gradients;   /* [(slot parity) * M_R + m]; bound: [stage * M + m] */
    guint parities;
    GArray **inner_boundaries; /* [stage] of layer numbers stashed inside a forward slot */
    /* optimizer protocol */
    guint gradients_left[2]; /* [iteration % 2] stage-rounds whose downloads are not all appended */
    guint32 next_step;       /* first iteration whose optimizer tasks are not appended */
    guint32 first_copy;      /* lean: first iteration that has parameter copies */
    guint32 *next_copy;     /* lean: [layer] first iteration whose parameter copy is not appended */
    guint *layer_left[2];   /* [iteration % 2][layer] stage-rounds whose gradients are not home */
    GArray *summands;       /* RpSummand: what has left and is yet to be added; rounds in order */
    guint trainable_stages; /* stage-rounds with gradients, one iteration */
};

/* planner-build.c */
/* A call's micro-batch as tasks name it: counted over all calls of the iteration. */
guint32 rp_planner_global_micro_batch(const RpPlanner *planner, guint32 micro_batch);
void rp_planner_begin_task(RpPlanner *planner, RpTaskKind kind, guint32 lane, guint32 stage,
                           guint32 micro_batch);
/* Waits for @task of @lane; implied and covered edges are left out when @hop_ns is 0. */
void rp_planner_depend(RpPlanner *planner, RpTaskId task, guint32 lane, guint32 hop_ns,
                       guint32 phase);
/* Declares an access: the dependencies that keep the buffer's history serial are added. */
void rp_planner_access(RpPlanner *planner, guint32 buffer, guint32 mode, RpAccessRole role,
                       guint32 phase);
RpTaskId rp_planner_end_task(RpPlanner *planner);
/* @buffer overlaps @with: what touches one of them touches both. */
void rp_planner_share_history(RpPlanner *planner, guint32 buffer, guint32 with);
void rp_planner_clear_buffer_states(RpPlanner *planner);

/* Round of a call's micro-batch, counted likewise; bound schedules have one. */
static inline guint32
rp_planner_round(const RpPlanner *planner, guint32 micro_batch)
{
    return planner->partition->dispatched
               ? planner->call * planner->rounds + micro_batch / planner->shape.round
               : 0;
}

/* Rounds of an iteration whose gradients leave one after the other. */
static inline guint
rp_planner_rounds_of_iteration(const RpPlanner *planner)
{
    return planner->partition->dispatched ? planner->rounds * planner->options.calls : 1;
}

/* How often gradients of a stage leave in an iteration. */
static inline guint
rp_planner_departures(const RpPlanner *planner)
{
    return planner->keeps_sums ? 1 : rp_planner_rounds_of_iteration(planner);
}

/* Where gradients leave for: home, or a staging buffer from which they are added up there. */
static inline gboolean
rp_planner_goes_home(const RpPlanner *planner)
{
    return rp_planner_departures(planner) == 1 || planner->rounds_apart > 0;
}

/* What stands on the host is the fp32 sum of several rounds. */
static inline gboolean
rp_planner_is_wide(const RpPlanner *planner)
{
    return rp_planner_rounds_of_iteration(planner) > 1 && planner->rounds_apart == 0;
}

/* Of one buffer of gradients on the host; @bytes: in the network's storage. */
static inline guint64
rp_planner_home_bytes(const RpPlanner *planner, guint64 bytes)
{
    return rp_planner_is_wide(planner) ? rp_profile_sum_bytes(planner->profile, bytes) : bytes;
}

/* Of gradients as they leave. */
static inline guint64
rp_planner_leaving_bytes(const RpPlanner *planner, guint64 bytes)
{
    return planner->keeps_sums ? rp_profile_sum_bytes(planner->profile, bytes) : bytes;
}

/* Micro-batches whose gradients a device sums before they leave. */
static inline guint
rp_planner_backwards(const RpPlanner *planner)
{
    return planner->shape.round * (planner->partition->dispatched ? 1 : planner->options.calls);
}

/* planner-compute.c */
RpTaskId rp_planner_compute_action(RpPlanner *planner, guint device, const RpAction *action);
/* Synchronous: the flush between two iterations. */
void rp_planner_compute_flush(RpPlanner *planner);

/* planner-full.c */
RpTaskId rp_planner_full_action(RpPlanner *planner, guint device, const RpAction *action);
/* The device buffer of the weights of @stage; RP_NONE if there are none. */
guint32 rp_planner_parameter_buffer(const RpPlanner *planner, guint device, guint32 stage);

/* Weights come up for each slot, instead of staying on their device. */
static inline gboolean
rp_planner_offloads(const RpPlanner *planner)
{
    return planner->partition->dispatched || planner->options.schedule->offloads_weights;
}

/* planner-host.c */
/* @device comes to @action: turns to its slot if that is another (@backward: one that makes
 * gradients), with its transfers. */
void rp_planner_enter(RpPlanner *planner, guint device, const RpAction *action, gboolean backward);
void rp_planner_begin_call_host(RpPlanner *planner);
/* Uploads the parameters of @stage in the windows of the slot before (or at once). */
void rp_planner_upload_parameters(RpPlanner *planner, guint device, guint32 stage,
                                  guint32 device_buffer, gboolean windows);
/* One more chunk of the gradients that leave @device, or all that are left. */
void rp_planner_download_gradients(RpPlanner *planner, guint device, gboolean all);
void rp_planner_leave_gradients(RpPlanner *planner, guint device, guint32 stage, guint32 round);
void rp_planner_end_iteration_host(RpPlanner *planner);
void rp_planner_flush_host(RpPlanner *planner);
void rp_planner_finish_host(RpPlanner *planner);

/* planner-optimizer.c */
/* Memory traffic of a fused step that takes as long as a pass over @parameters at @parameters_per_s
 * does, bytes. */
guint64 rp_planner_bytes_at_rate(const RpPlanner *planner, guint64 parameters,
                                 double parameters_per_s);
/* Gradients of one round of @stage have left. Returns: whether they were the stage's last */
gboolean rp_planner_note_home(RpPlanner *planner, guint32 stage, guint32 iteration);
/* All gradients of @stage are home and summed: what may be stepped now is (events). */
void rp_planner_append_optimizer(RpPlanner *planner, guint32 stage, guint32 iteration);
void rp_planner_append_blocking_optimizer(RpPlanner *planner);
/* Parameter copies that must stand before the next iteration (events); the last ones. */
void rp_planner_end_optimizer(RpPlanner *planner);
void rp_planner_finish_optimizer(RpPlanner *planner);

static inline gboolean
rp_planner_is_blocking(const RpPlanner *planner)
{
    return planner->options.consistency == RP_CONSISTENCY_BLOCKING;
}

/* planner-memory.c */
void rp_planner_lay_out(RpPlanner *planner);
guint32 rp_planner_pool_take(RpPlanner *planner, RpBufferPool *pool, gboolean spare);
void rp_planner_pool_return(RpBufferPool *pool, guint32 buffer);
void rp_planner_free_full(RpPlanner *planner);
guint32 rp_planner_host_activation(const RpPlanner *planner, guint32 layer, guint32 micro_batch);
guint32 rp_planner_host_gradient(const RpPlanner *planner, guint32 stage, guint32 micro_batch);

/* All actions of a call, in an order that can run. Errors: RP_PLANNER_ERROR_*, there is none */
gboolean rp_planner_append_actions(RpPlanner *planner, GError **error) G_GNUC_WARN_UNUSED_RESULT;
