/**
 * The planner: profile + partition + schedule -> plan, one iteration at a time.
 */
#pragma once

#include <glib.h>

#include "core/partition/partition.h"
#include "core/plan/plan.h"
#include "core/profile/profile.h"
#include "core/schedules/schedule.h"

#define RP_PLANNER_ERROR (rp_planner_error_quark())
GQuark rp_planner_error_quark(void);

typedef enum {
    RP_PLANNER_ERROR_PARTITION, /* the partition's kind does not suit the schedule */
    RP_PLANNER_ERROR_SERVERS    /* several servers cannot have such a plan */
} RpPlannerError;

/* A recompute needs no gradient: it begins before that arrives, or waits for it. */
typedef enum { RP_RECOMPUTE_EARLY, RP_RECOMPUTE_GATED } RpRecompute;
/* Tensors that forwards save so that backwards need not recompute them (RpPlanOptions.saved): those
 * predicted to be fastest, none, or groups of tensors, whose bits are or-ed together. */
typedef enum {
    RP_SAVE_AUTO,
    RP_SAVE_NOTHING = 1 << RP_N_SAVED_GROUPS,
    RP_SAVE_ATTENTION = RP_SAVE_NOTHING | RP_SAVED(ATTENTION),
    RP_SAVE_QKV = RP_SAVE_NOTHING | RP_SAVED(QKV),
    RP_SAVE_RESIDUAL = RP_SAVE_NOTHING | RP_SAVED(RESIDUAL),
    RP_SAVE_MLP = RP_SAVE_NOTHING | RP_SAVED(MLP),
    RP_SAVE_ALL = 2 * RP_SAVE_NOTHING - 1
} RpSaveChoice;
typedef enum { RP_TRANSFERS_WINDOWS, RP_TRANSFERS_NAIVE } RpTransfers;
typedef enum { RP_CONSISTENCY_EVENTS, RP_CONSISTENCY_BLOCKING } RpConsistency;
/* One pass with two weight buffers (18 bytes/parameter), or a separate parameter copy (16). */
typedef enum { RP_OPTIMIZER_FUSED, RP_OPTIMIZER_LEAN } RpOptimizerMode;
/* Weights are written before the norm is known (RP_STEP_EARLY): never, where it is known how
 * fast the optimizer is, or always. Synchronous, gated, fused, by events, on one server; else never. */
typedef enum { RP_EARLY_OFF, RP_EARLY_AUTO, RP_EARLY_ON } RpEarlySteps;
/* Frozen weights stay on the devices (RpPlanOptions.resident_limit): where that is predicted not to be
 * slower, never, or as far as memory goes. */
typedef enum { RP_RESIDENT_AUTO, RP_RESIDENT_OFF, RP_RESIDENT_ON } RpResidentChoice;
/* Whether the fused stage's forward waits for its input (it must, in reality) or, in `compute` alone, is
 * treated like a recompute, as the published results do. */
typedef enum { RP_FUSED_PHYSICAL, RP_FUSED_PUBLISHED } RpFusedForward;

/* To which GPU a dispatched slot goes: to each in turn, or to the one that the plan says is free first. */
typedef enum { RP_DISPATCH_ROTATION, RP_DISPATCH_FREE } RpDispatch;

typedef struct {
    const RpScheduleOps *schedule;
    guint gpus;
    guint micro_batches;       /* in a call */
    guint calls;               /* in an iteration: gradient accumulation; 0 = 1 */
    guint round;               /* 0 = micro_batches */
    guint group;               /* interleaved: 0 = gpus */
    guint live;                /* zb-2p: activations of a stage at once; 0 = 2 gpus - 1 */
    gboolean reverse_backward; /* gpipe, looped-bfs, mobius: B from the last micro-batch on */
    gboolean async;
    RpFidelity fidelity;
    RpRecompute recompute;
    RpFusedForward fused_forward;
    RpTransfers transfers;
    RpConsistency consistency;
    RpOptimizerMode optimizer;
    RpEarlySteps early_steps;
    RpStateFormat form;    /* `full`: the optimizer's state */
    gboolean step_at_once; /* neither clipping nor skipping: a layer is stepped as soon as its
                              gradient is on the host. Events only */
    gboolean sum_rounds;   /* several rounds are added up as they arrive on the host even where it
                               is cheaper to keep them apart (RP_GRADIENTS_APART) */
    gboolean forward_only; /* `full`: evaluates: the plan's stages and arenas as otherwise, of which
                               iterations of one call run forward alone; nothing is trained */
    gboolean
        reference_copy; /* `full`: the host keeps trained weights as they were at first, which forwards of a
                                reference read (exec/train) */
    guint first_iteration; /* 0, or 1 for a run that is resumed: there are older weights */
    guint servers; /* `full`: that train together (RpPlanModes.servers); 0 = 1. Micro-batches are
                      those of one of them */
    RpSavedChoice
        saved; /* nothing: the choice of the profile's layers, where stages are dispatched. Bound
                  ones keep all on their device (any groups), or make all again */
    /* `full`: bytes of arenas up to which frozen weights stay on the devices; a bound schedule that
     * uploads once an iteration keeps all that are not packed; 0 = none stay */
    guint64 resident_limit;
    guint replicas;       /* dispatched: groups of GPUs that share rounds out in rotation; 0 = 1 */
    guint slices;         /* sliced: parts of a micro-batch's sequences; 0 = the schedule's own */
    gboolean even_slices; /* they take equal times: attention is shared out at no cost */
    RpDispatch dispatch;  /* free: placement of slots that no file places, if cards differ */
    guint dispatch_rule;  /* free: one of core/plan/planner/pace.h; 0 = the fastest of them */
} RpPlanOptions;

/* The copies that a plan of @options has. */
static inline RpHostCopies
rp_plan_copies(const RpPlanOptions *options)
{
    return options->consistency == RP_CONSISTENCY_BLOCKING ? RP_COPIES_BLOCKING
           : options->optimizer == RP_OPTIMIZER_LEAN       ? RP_COPIES_LEAN
                                                           : RP_COPIES_FUSED;
}

/* Micro-batches of the plan to one of the options: slices, where sequences are in slices. */
static inline guint
rp_plan_slices(const RpPlanOptions *options)
{
    return !options->schedule->sliced ? 1
           : options->slices > 0      ? options->slices
                                 : rp_schedule_default_slices(options->schedule, options->gpus);
}

/* The rule of the published results, which is not one for all: bound schedules gate their recompute,
 * dispatched ones do not, and in `compute` their fused forward does not wait. */
static inline void
rp_plan_follow_paper(RpPlanOptions *options)
{
    if (!options->schedule->dispatched)
        options->recompute = RP_RECOMPUTE_GATED;
    else if (options->fidelity == RP_FIDELITY_COMPUTE)
        options->fused_forward = RP_FUSED_PUBLISHED;
}

/* GPUs of a group, and its micro-batches: all that one round can have. */
static inline guint
rp_plan_group_gpus(const RpPlanOptions *options)
{
    return options->gpus / MAX(1, options->replicas);
}
static inline guint
rp_plan_whole_round(const RpPlanOptions *options)
{
    return options->micro_batches / MAX(1, options->replicas);
}

/* Bits of RpSavedGroup; RP_SAVE_AUTO has none yet. */
guint rp_save_groups(RpSaveChoice choice);
/* Whether forwards of @options keep their results on their device until the backward. */
static inline gboolean
rp_plan_keeps(const RpPlanOptions *options)
{
    return !options->schedule->dispatched && options->saved.groups != 0;
}
/* @profile with the times that its layers take when forwards save as @options say. Returns:
 * (transfer full) (nullable): %NULL: it has them */
RpProfile *rp_plan_saving_profile(const RpProfile *profile, const RpPlanOptions *options);
/* Whether any weights of its layers are not trained. */
gboolean rp_profile_has_frozen(const RpProfile *profile);
/* The bytes that the choice allows. @host_memory: devices' arenas are host memory, where resident
 * weights save no copy; @limit: bytes of an arena, 0 = unknown */
guint64 rp_resident_limit(RpResidentChoice choice, gboolean host_memory, guint64 limit);

/* The optimizer's state of a parameter: @options' form. bf16 weights are those that devices read if
 * the optimizer writes them in one pass in bf16. Early steps then write none, unless they must,
 * because no copy would be left to undo them from. */
RpStateFormat rp_planner_form(const RpProfile *profile, const RpPlanOptions *options);

/* Whether there are plans in `full` fidelity: they need whole sequences, and one copy and one
 * version of weights on a device. */
static inline gboolean
rp_planner_has_full(const RpPlanOptions *options)
{
    return rp_plan_slices(options) == 1 && !options->schedule->mirrored &&
           !(options->schedule->unflushed && options->async);
}

/* Whether the arenas of a new planner have all their buffers: those of dispatched stages do, but
 * for kept values between I and W. Others are laid out as iterations are planned. */
static inline gboolean
rp_planner_knows_buffers(const RpPlanOptions *options)
{
    return rp_schedule_is_rotated(options->schedule) && !options->schedule->split_backward;
}

/* The rule of free dispatch (RpPlanOptions.dispatch_rule) with the shortest iterations; the rotation, unless another
 * is better. */
guint rp_planner_choose_rule(const RpProfile *profile, const RpPartition *partition,
                             const RpPlanOptions *options);

typedef struct _RpPlanner RpPlanner;

/**
 * rp_planner_new:
 * @profile: borrowed; must outlive the planner
 * @partition: copied
 * @options: copied
 *
 * Checks that everything suits and lays out the arenas.
 *
 * Errors: RP_SCHEDULE_ERROR_SHAPE, RP_PLANNER_ERROR_PARTITION, RP_PLANNER_ERROR_SERVERS,
 *   RP_PROFILE_ERROR_FIDELITY
 */
RpPlanner *rp_planner_new(const RpProfile *profile, const RpPartition *partition,
                          const RpPlanOptions *options, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void rp_planner_free(RpPlanner *planner);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpPlanner, rp_planner_free)

/* Before anything is appended: options.first_iteration, where it is known only now. */
void rp_planner_set_first_iteration(RpPlanner *planner, guint iteration);

/* All calls of an iteration and its step; without its end if the order has no flush: that comes
 * with the next one or rp_planner_finish(). Errors: RP_SCHEDULE_ERROR_DEADLOCK */
gboolean rp_planner_append_iteration(RpPlanner *planner, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_planner_append_call:
 *
 * Forward and backward of the next call's micro-batches; options.calls of them, then the step. The
 * tasks of call c name micro-batches c M to (c + 1) M - 1. A plan that runs forward alone has: its
 * forward, and the head's loss.
 *
 * Errors: RP_SCHEDULE_ERROR_DEADLOCK
 */
gboolean rp_planner_append_call(RpPlanner *planner, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void rp_planner_append_step(RpPlanner *planner);

/* Appends the gradients and optimizer steps that are still pending. The weights that the next
 * iteration reads do not change by it. */
void rp_planner_flush(RpPlanner *planner);

/* Appends everything pending: the last gradients, optimizer steps and weight copies. Nothing may
 * follow. */
void rp_planner_finish(RpPlanner *planner);

/* Owned by the planner. */
RpPlan *rp_planner_plan(RpPlanner *planner);
/* Gives the plan away; the planner can only be freed afterwards. */
RpPlan *rp_planner_steal_plan(RpPlanner *planner);

/* All of the above at once: @iterations iterations, finished. */
RpPlan *rp_plan_make(const RpProfile *profile, const RpPartition *partition,
                     const RpPlanOptions *options, guint iterations,
                     GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The dispatched partition whose embedding and head are stages of their own and whose other stages
 * have @blocks blocks each, the last of them fewer. */
RpPartition *rp_partition_even(const RpProfile *profile, guint blocks);

/* The dispatched partition that needs the least device memory (rp_plan_dispatched_gpu_bytes()):
 * every layer a stage of its own, or (small models) all layers in one. */
RpPartition *rp_partition_least(const RpProfile *profile);

/* How far apart the slots of a device are in the row of all slots; 0: any may follow any there. */
guint rp_plan_slot_step(const RpProfile *profile, const RpPlanOptions *options);

/* Arena size of every device of a dispatched plan in `full` fidelity, without making the plan; one
 * round an iteration; @split: its schedule splits backwards; @step: rp_plan_slot_step(). */
guint64 rp_plan_dispatched_gpu_bytes(const RpProfile *profile, const RpPartition *partition,
                                     gboolean split, guint step);

/* Whether such a plan fits into arenas of @memory_bytes (0 = no limit): as it is, or with all frozen
 * weights on the devices, where they may stay. Then a device needs no space for two stages of them.
 */
gboolean rp_plan_dispatched_fits(const RpProfile *profile, const RpPartition *partition,
                                 const RpPlanOptions *options, guint64 memory_bytes);

/**
 * rp_plan_least_gpu_bytes:
 * @fused_first: first layer of the fused stage
 * @stage: one more stage, or %NULL; @phase: forward or backward
 *
 * Returns: bytes that the arena of every dispatched plan with these stages needs
 */
guint64 rp_plan_least_gpu_bytes(const RpProfile *profile, guint fused_first,
                                const RpInterval *stage, RpPhase phase);

/* Whether any partition that fuses layers from @fused_first on may fit in @memory_bytes (0: any), like
 * rp_plan_dispatched_fits(): with all frozen weights uploaded, or with all of them resident. */
gboolean rp_plan_least_fits(const RpProfile *profile, guint fused_first, const RpInterval *stage,
                            RpPhase phase, const RpPlanOptions *options, guint64 memory_bytes);

/* Changes that make a plan smaller. */
typedef enum {
    RP_REMEDY_NONE,
    RP_REMEDY_LEAN_OPTIMIZER,
    RP_REMEDY_MORE_STAGES,
    RP_REMEDY_SMALLER_BACKWARD_STAGES,
    RP_REMEDY_SMALLER_MICRO_BATCH, /* or shorter sequences */
    RP_REMEDY_SMALLER_WORKSPACE,   /* both of these */
    RP_REMEDY_SMALLER_ROUND,
    RP_REMEDY_ONE_ROUND,
    RP_REMEDY_STASH_ON_HOST, /* as dispatched schedules do */
    RP_REMEDY_FEWER_DEVICES,
    RP_REMEDY_PRECOMPUTED /* the reference's log-probabilities, in place of a copy of the weights */
} RpRemedy;

/* An arena that does not fit. */
typedef struct {
    guint32 arena; /* rp_plan_gpus(): the host's */
    gboolean host;
    guint64 need_bytes;
    guint64 limit_bytes;
    RpBufferCategory largest;
    guint64 largest_bytes;
    RpRemedy remedy; /* fewer devices: their arenas alone, need_bytes, fill host memory */
} RpShortage;

/**
 * rp_plan_find_shortage:
 * @gpu_bytes: memory of each GPU; 0 = no limit
 * @host_bytes: pinned host memory; 0 = no limit
 * @shared: arenas of GPUs come out of host memory, too
 * @shortage: (out): the first arena that does not fit
 *
 * Returns: whether there is one
 */
gboolean rp_plan_find_shortage(const RpPlan *plan, guint64 gpu_bytes, guint64 host_bytes,
                               gboolean shared, RpShortage *shortage);

/* The same of GPUs alone, each with the memory that @profile has for its card. */
gboolean rp_plan_find_card_shortage(const RpPlan *plan, const RpProfile *profile,
                                    RpShortage *shortage);

/* Where, by how many bytes, and which category is largest. (transfer full) */
char *rp_shortage_describe(const RpShortage *shortage);
