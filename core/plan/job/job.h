/**
 * The state that the planner's objects share: the request, everything that follows from it, and the
 * plan so far. job.c and planner.c write it, all others read it (docs/architecture.md lists them).
 */
#pragma once

#include "core/plan/builder.h"
#include "core/plan/planner.h"

typedef struct {
    const RpProfile *profile; /* its resident_bytes and saved_groups are the plan's */
    RpProfile *own_profile;   /* the same where any are set, else NULL */
    gboolean has_residents;
    RpPartition *partition;
    RpPlanOptions options; /* defaults resolved */
    RpShape shape;         /* the call's: first_gpu */
    RpPlan *plan;
    const RpPlanModes *modes; /* the plan's */
    const RpPlanStorage *storage;
    RpBuilder *builder;
    GPtrArray *memory;   /* owns all objects of the planner: it lives as long as they do */
    GPtrArray *arrays;   /* GArray, likewise */
    RpStageTimes *times; /* [card * n_stages + stage] */
    guint n_stages;
    guint rounds;          /* in a call */
    guint backwards;       /* micro-batches whose gradients a device sums before they leave */
    gboolean one_slot;     /* a device has one slot an iteration at most, and space for one */
    guint32 iteration;     /* the one being appended, or next */
    guint call;            /* number in the iteration, being appended or next */
    guint64 rounds_before; /* since the first call */
} RpPlanJob;

/* Errors: RP_SCHEDULE_ERROR_SHAPE, RP_PLANNER_ERROR_PARTITION, RP_PROFILE_ERROR_FIDELITY */
gboolean rp_job_init(RpPlanJob *job, const RpProfile *profile, const RpPartition *partition,
                     const RpPlanOptions *options, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void rp_job_clear(RpPlanJob *job);
void rp_job_set_first_iteration(RpPlanJob *job, guint iteration);

/* check.c: whether a request is consistent. Before defaults are resolved; errors:
 * RP_PLANNER_ERROR_PARTITION */
gboolean rp_job_check_dispatch(const RpPlanOptions *options, GError **error);
/* Errors: RP_PLANNER_ERROR_PARTITION, RP_PROFILE_ERROR_FIDELITY */
gboolean rp_job_check_partition(const RpPlanJob *job, GError **error);
/* Errors: RP_SCHEDULE_ERROR_SHAPE */
gboolean rp_job_check_calls(const RpPlanJob *job, GError **error);

/* Memory that is freed with the job; every byte is @fill. */
gpointer rp_job_alloc(const RpPlanJob *job, gsize n, gsize size, gint fill);
#define RP_JOB_NEW(job, Type, n) ((Type *)rp_job_alloc(job, n, sizeof(Type), 0))
/* RP_NONE or RP_TASK_NONE @n times. */
#define RP_JOB_NONE(job, Type, n) ((Type *)rp_job_alloc(job, n, sizeof(Type), 0xff))
GArray *rp_job_array(const RpPlanJob *job, guint element_size);

/* Begins a task that belongs to @stage and @micro_batch of the call. */
RpTask *rp_job_begin_task(const RpPlanJob *job, RpTaskKind kind, guint device, guint32 stage,
                          guint32 micro_batch);
/* The same on a lane of the host; @layer: RP_NONE: of all. */
RpTask *rp_job_begin_layer_task(const RpPlanJob *job, RpTaskKind kind, guint32 layer,
                                guint32 iteration);
/* Bytes that the host moves for a layer. */
typedef guint64 (*RpEarlyTime)(const RpPlanJob *job, guint layer);
/* Chooses the layers whose gradients are processed as soon as they reach the host; the others wait
 * until all have. @must is done at once for all chosen layers, and @may for those of them that
 * delay no later @must. */
void rp_early_choose(const RpPlanJob *job, RpEarlyTime must, RpEarlyTime may, gboolean *early);

/* The times of @action on @device. */
void rp_job_action_times(const RpPlanJob *job, guint device, const RpAction *action,
                         gint64 *duration_ns, gint64 *lead_ns);
/* Begins the compute task of an action, with its times. */
void rp_job_begin_action(const RpPlanJob *job, guint device, const RpAction *action);
/* The same of a piece of a fused action (rp_task_is_piece()). */
void rp_job_begin_piece(const RpPlanJob *job, guint device, const RpAction *action,
                        guint first_step, guint end_step);

/* A buffer at the end of @arena; RP_NONE if it would hold nothing. */
static inline guint32
rp_job_add_buffer(const RpPlanJob *job, guint32 arena, RpBufferCategory category, guint64 bytes)
{
    return bytes > 0 ? rp_plan_add_buffer(job->plan, arena, category, bytes) : RP_NONE;
}

/* Whether the layer has gradients on the host. */
static inline gboolean
rp_job_is_trained(const RpPlanJob *job, guint layer)
{
    return rp_plan_layer(job->plan, layer)->gradients[0] != RP_NONE;
}

/* A device's row of a layer, to be filled in. */
static inline RpPlanSlotLayer *
rp_job_slot_layer(const RpPlanJob *job, guint device, guint layer)
{
    return &rp_plan_tables(job->plan)->slot_layers[(gsize)device * job->profile->n_layers + layer];
}

/* Calls of an iteration that has actions. */
static inline guint
rp_job_calls(const RpPlanJob *job)
{
    return job->options.forward_only ? 1 : job->options.calls;
}

/* Round of a call's micro-batch, counted over the iteration; bound schedules have one. */
static inline guint32
rp_job_round(const RpPlanJob *job, guint32 micro_batch)
{
    return job->partition->dispatched ? job->call * job->rounds + micro_batch / job->shape.round
                                      : 0;
}

/* The stage whose backward makes the gradient that one of @stage reads. */
static inline guint32
rp_job_gradient_maker(const RpPlanJob *job, guint32 stage)
{
    return job->partition->dispatched ? stage - 1 : stage + 1;
}

/* Whether it runs forward and backward: as one action, or of slices in several. */
static inline gboolean
rp_job_is_fused(const RpPlanJob *job, guint32 stage)
{
    return job->partition->dispatched && stage == job->partition->n_forward;
}

/* Whether it recomputes before its gradient arrives. */
static inline gboolean
rp_job_leads(const RpPlanJob *job, const RpAction *action)
{
    return !rp_job_is_fused(job, action->stage) && job->options.recompute == RP_RECOMPUTE_EARLY &&
           rp_action_leads((RpActionKind)action->kind);
}

/* Bytes of gradients as they leave. */
static inline guint64
rp_job_leaving_bytes(const RpPlanJob *job, guint64 bytes)
{
    return job->modes->gradients == RP_GRADIENTS_KEPT ? rp_profile_sum_bytes(job->profile, bytes)
                                                      : bytes;
}

/* Bytes of one gradient buffer on the host; @bytes: in the network's storage. */
static inline guint64
rp_job_host_bytes(const RpPlanJob *job, guint64 bytes)
{
    return rp_modes_sum(job->modes) ? rp_profile_sum_bytes(job->profile, bytes) : bytes;
}
