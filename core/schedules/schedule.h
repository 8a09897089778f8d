/**
 * Schedules: in which order each device runs its actions. One file a schedule in core/schedules/;
 * schedules.md defines each.
 */
#pragma once

#include <glib.h>

#include "core/partition/partition.h"

#define RP_SCHEDULE_ERROR (rp_schedule_error_quark())
GQuark rp_schedule_error_quark(void);

typedef enum {
    RP_SCHEDULE_ERROR_UNKNOWN,  /* no schedule of that name */
    RP_SCHEDULE_ERROR_SHAPE,    /* N, M, M_R or the stages do not suit the schedule */
    RP_SCHEDULE_ERROR_DEADLOCK, /* the order cannot run; names the two actions that wait */
    RP_SCHEDULE_ERROR_OWN       /* rp_schedule_add(): what is missing, or wrong in its order */
} RpScheduleError;

/* A number that would do. */
typedef struct {
    enum {
        RP_SHAPE_NOTHING,
        RP_SHAPE_GPUS,
        RP_SHAPE_MICRO_BATCHES,
        RP_SHAPE_STAGES,
        RP_SHAPE_ROUND,
        RP_SHAPE_GROUP,
        RP_SHAPE_LIVE,
        RP_SHAPE_SLICES
    } part;
    enum { RP_SHAPE_EXACTLY, RP_SHAPE_OR_MORE, RP_SHAPE_OR_LESS } bound;
    guint number;
} RpShapeRemedy;

/* Remedies of an RP_SCHEDULE_ERROR_SHAPE: one of the two would do; or none is known. */
typedef struct {
    RpShapeRemedy one;
    RpShapeRemedy other;
} RpScheduleErrorPrivate;

/* Returns: (nullable): the remedies, if @error is RP_SCHEDULE_ERROR_SHAPE and they are known */
const RpScheduleErrorPrivate *rp_schedule_error_remedies(GError *error);

/* Sets RP_SCHEDULE_ERROR_SHAPE. Returns: %FALSE */
gboolean rp_schedule_fail(GError **error, RpShapeRemedy one, RpShapeRemedy other,
                          const char *format, ...) G_GNUC_PRINTF(4, 5);
#define RP_SHAPE_NONE ((RpShapeRemedy){RP_SHAPE_NOTHING})
#define RP_SHAPE_USE(part, bound, number)                                                          \
    ((RpShapeRemedy){RP_SHAPE_##part, RP_SHAPE_##bound, (number)})

typedef enum {
    RP_ACTION_FORWARD,
    RP_ACTION_BACKWARD,
    RP_ACTION_FUSED,
    RP_ACTION_INPUT_GRADIENT,
    RP_ACTION_WEIGHT_GRADIENT,
    RP_ACTION_OVERLAP
} RpActionKind;

/* One slot x one micro-batch. @stage is s of a bound schedule, the slot of a dispatched one. */
typedef struct {
    guint32 stage;
    guint32 micro_batch;
    guint32 backward_stage; /* RP_ACTION_OVERLAP: its backward part; else RP_NONE */
    guint32 backward_micro_batch;
    guint8 kind;
    guint8 late; /* part of the iteration before: RpShape.flow */
} RpAction;

/* Appends an action to an order. @stage is below RpShape.stages, @micro_batch below
 * RpShape.micro_batches; @kind is no RP_ACTION_OVERLAP, which has two of both. */
static inline void
rp_order_push(GArray *order, RpActionKind kind, guint stage, guint micro_batch)
{
    const RpAction action = {stage, micro_batch, RP_NONE, RP_NONE, (guint8)kind, 0};

    g_array_append_val(order, action);
}

/* Products of an action: a row a kind. The last two of an overlap belong to its backward part. */
typedef struct {
    gboolean output;          /* F of the stage; the fused stage keeps it */
    gboolean input_gradient;  /* B or I */
    gboolean weight_gradient; /* B or W */
} RpActionProducts;

static inline const RpActionProducts *
rp_action_products(RpActionKind kind)
{
    static const RpActionProducts products[] = {
        [RP_ACTION_FORWARD] = {TRUE, FALSE, FALSE},
        [RP_ACTION_BACKWARD] = {FALSE, TRUE, TRUE},
        [RP_ACTION_FUSED] = {TRUE, TRUE, TRUE},
        [RP_ACTION_INPUT_GRADIENT] = {FALSE, TRUE, FALSE},
        [RP_ACTION_WEIGHT_GRADIENT] = {FALSE, FALSE, TRUE},
        [RP_ACTION_OVERLAP] = {TRUE, TRUE, TRUE},
    };

    return &products[kind];
}

static inline guint32
rp_action_backward_stage(const RpAction *action)
{
    return action->kind == RP_ACTION_OVERLAP ? action->backward_stage : action->stage;
}
static inline guint32
rp_action_backward_micro_batch(const RpAction *action)
{
    return action->kind == RP_ACTION_OVERLAP ? action->backward_micro_batch : action->micro_batch;
}

/* Whether it may recompute before its gradient arrives: B or I, alone. */
static inline gboolean
rp_action_leads(RpActionKind kind)
{
    const RpActionProducts *products = rp_action_products(kind);

    return products->input_gradient && !products->output;
}

/* Times of a stage's actions, ns. */
typedef struct {
    gint64 forward_ns;
    gint64 backward_ns; /* B or FB, recompute included */
    gint64 lead_ns;     /* leading part of backward_ns that does not need the gradient */
    gint64 weight_ns;   /* W */
    double attention;   /* share of attention in forwards, taken for all of them */
} RpStageTimes;

/* Time of slice @j of @K of a sequence whose whole takes @ns: attention's share grows with the
 * tokens before it and half of its own; the rest is divided evenly. The slices' sum is @ns. */
gint64 rp_slice_time_ns(gint64 ns, double attention, guint j, guint K);

/* Time of an action of @kind; @backward: the stage of its backward part. */
static inline gint64
rp_action_time_ns(RpActionKind kind, const RpStageTimes *times, const RpStageTimes *backward)
{
    static const struct {
        gint forward, backward, weight;
    } shares[] = {
        [RP_ACTION_FORWARD] = {1, 0, 0},         [RP_ACTION_BACKWARD] = {0, 1, 0},
        [RP_ACTION_FUSED] = {0, 1, 0},           [RP_ACTION_INPUT_GRADIENT] = {0, 1, -1},
        [RP_ACTION_WEIGHT_GRADIENT] = {0, 0, 1}, [RP_ACTION_OVERLAP] = {1, 1, 0},
    };

    return shares[kind].forward * times->forward_ns +
           shares[kind].backward * backward->backward_ns + shares[kind].weight * times->weight_ns;
}

/* The part of an iteration that an order without a flush has: all of it; all but its end, the first
 * time or behind the end of the iteration before; or only that end. */
typedef enum { RP_FLOW_ALONE, RP_FLOW_BEGIN, RP_FLOW_ON, RP_FLOW_REST } RpFlow;

/* The numbers an order is made from. */
typedef struct {
    guint gpus;                /* N */
    guint micro_batches;       /* M */
    guint stages;              /* S: bound stages, or slots of a round */
    guint round;               /* M_R; = M for bound schedules */
    guint forward_slots;       /* dispatched: S_f; slot S_f is the fused stage */
    guint first_gpu;           /* dispatched: g0 of the iteration's first round */
    guint group;               /* interleaved: G; 0 = N */
    gboolean reverse_backward; /* gpipe, looped-bfs, mobius: B from the last micro-batch on */
    guint gpus_per_root;       /* consecutive devices under one root complex; 0 = unknown */
    /* dispatched: equal groups of GPUs that share rounds out in rotation; 0 = 1; first_gpu is one
     * of each */
    guint replicas;
    guint slices; /* parts of a sequence, each counted as a micro-batch; 0 = 1 */
    guint turn;   /* forwards alone: devices by which a round begins further on; 0 = stages */
    gboolean forward_only; /* the order is rp_schedule_order_forward()'s */
    guint live;            /* limited: most activations alive on a device; 0 = as many as help */
    RpFlow flow;           /* asynchronous and unflushed; else alone */
} RpShape;

/* GPUs that a round is dispatched to, in rotation. */
static inline guint
rp_shape_group_gpus(const RpShape *shape)
{
    return shape->gpus / MAX(1, shape->replicas);
}

/* Orders of a file (core/schedules/given.h). */
typedef struct _RpGivenOrders RpGivenOrders;

#define RP_SLICES_AS_GPUS G_MAXUINT

typedef struct _RpScheduleOps RpScheduleOps;
struct _RpScheduleOps {
    const char *name;    /* "interleaved-1f1b" */
    const char *title;   /* "Interleaved 1F1B" */
    const char *summary; /* one line */
    gboolean dispatched; /* stages are not bound to devices */
    gboolean looped;     /* more than one stage per device is usual */
    gboolean folded;     /* stages r, 2N-1-r, 2N+r ... share device r (V shape, waves) */
    gboolean sliced;     /* runs slices of sequences, which count as micro-batches */
    guint slices;        /* sliced: number of slices if none is given; RP_SLICES_AS_GPUS: N */
    gboolean mirrored;   /* two copies of each stage: on s and, for the later half of the
                          micro-batches, on N-1-s */
    gboolean
        unflushed; /* asynchronous, the end of an iteration runs amid the next one's beginning */
    gboolean split_backward;   /* uses I and W: predicted, but not trained */
    gboolean grouped;          /* chunks change every G micro-batches (RpShape.group) */
    gboolean limited;          /* keeps to RpShape.live */
    gboolean reversible;       /* B may run from the last micro-batch on (reverse_backward) */
    gboolean offloads_weights; /* each stage's weights are uploaded before each slot */
    guint stages_per_gpu;      /* fixed number, or 0 = any multiple */
    /* Device of rank @stage mod N, where that is not the rank itself; may be %NULL. */
    guint (*gpu_of_rank)(const RpShape *shape, guint rank);
    /* Whether the numbers suit the schedule, beyond the checks of rp_schedule_check(); may be
     * %NULL. Errors: RP_SCHEDULE_ERROR_SHAPE */
    gboolean (*check)(const RpShape *shape, GError **error);
    /* Appends the actions of @gpu in one iteration to @order (element-type RpAction); %NULL where
     * they are given. */
    void (*order)(const RpShape *shape, guint gpu, GArray *order);
    const RpGivenOrders *given; /* %NULL: @order makes them */
};

/* Every schedule, %NULL-terminated, in the order in which tables list them. */
const RpScheduleOps *const *rp_schedules(void);

/**
 * rp_schedule_add:
 * @schedule: borrowed for good: a static const of the caller's program. It has a name of letters,
 *   digits and hyphens, a title, a summary and an order; its stages are bound to devices, and its
 *   iterations end with a flush. `given` is %NULL
 *
 * Adds a schedule to the table, at its end: from now on its name means it, in run files and in
 * rp_schedule_find(). Its orders are checked for each shape that is planned: every F once, every B or
 * I and W once, on the device of their stage. No other thread may use schedules meanwhile.
 *
 * Errors: RP_SCHEDULE_ERROR_OWN
 */
gboolean rp_schedule_add(const RpScheduleOps *schedule, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Whether a schedule has something. */
typedef gboolean (*RpScheduleHas)(const RpScheduleOps *schedule);
gboolean rp_schedule_is_sliced(const RpScheduleOps *schedule);
gboolean rp_schedule_is_dispatched(const RpScheduleOps *schedule);
gboolean rp_schedule_is_rotated(const RpScheduleOps *schedule); /* dispatched, by no file */
gboolean rp_schedule_is_grouped(const RpScheduleOps *schedule);
gboolean rp_schedule_is_limited(const RpScheduleOps *schedule);
gboolean rp_schedule_is_reversible(const RpScheduleOps *schedule);
gboolean rp_schedule_is_trained(const RpScheduleOps *schedule);
/* Slices of a sequence if none are given; 1: whole sequences. */
guint rp_schedule_default_slices(const RpScheduleOps *schedule, guint gpus);
/* With a row of its own in `full` fidelity: whole sequences, one copy and one version of weights. */
gboolean rp_schedule_has_full(const RpScheduleOps *schedule);

/* "gpipe, looped-bfs or mobius": the names of the schedules for which @has holds; %NULL = all.
 * (transfer full) */
char *rp_schedule_names(RpScheduleHas has);

/* Errors: RP_SCHEDULE_ERROR_UNKNOWN with the nearest name */
const RpScheduleOps *rp_schedule_find(const char *name, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Device of a stage (bound) or slot (dispatched: within round @round of the iteration). Mirrored:
 * the first copy's in round 0, else the second's. */
guint rp_schedule_gpu(const RpScheduleOps *schedule, const RpShape *shape, guint stage,
                      guint round);

/* The same of the round of a micro-batch of the iteration. */
guint rp_schedule_gpu_of(const RpScheduleOps *schedule, const RpShape *shape, guint stage,
                         guint micro_batch);

/* g0 of the iteration after the one whose shape is given. */
guint rp_schedule_next_first_gpu(const RpScheduleOps *schedule, const RpShape *shape);

/* Checks that hold for every schedule (N >= 1, M >= 1, whole rounds, S = vN ...), then its own. */
gboolean rp_schedule_check(const RpScheduleOps *schedule, const RpShape *shape,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Appends the actions of a dispatched @slot in round @round, wherever it runs; @split: backwards
 * are I, then W. With slices the fused slot runs a micro-batch's forwards, the last with its
 * backward, then the other backwards. */
void rp_schedule_append_slot(const RpShape *shape, guint slot, guint round, gboolean split,
                             GArray *order);

/* Appends the actions of @gpu in one iteration, made or given. */
void rp_schedule_append_order(const RpScheduleOps *schedule, const RpShape *shape, guint gpu,
                              GArray *order);

/**
 * rp_schedule_order_forward:
 * @shape: dispatched: its stages are those that run forward, the fused one last
 *
 * Appends the actions of @gpu in one iteration that only runs forward, under any schedule: slots in
 * turn where stages are dispatched; where they are bound, group after group of N micro-batches
 * through all stages, or of all M where each visit of a stage uploads its weights.
 *
 *   N = 2, S = 4 bound, M = 4     gpu 0  |0 of 0|0 of 1|2 of 0|2 of 1|0 of 2|0 of 3| ...
 *   stage of micro-batch          gpu 1         |1 of 0|1 of 1|3 of 0|3 of 1|1 of 2| ...
 */
void rp_schedule_order_forward(const RpScheduleOps *schedule, const RpShape *shape, guint gpu,
                               GArray *order);

/* Highest number of micro-batch activations alive on @gpu at once under the order, counted from an
 * F to its B (or W): the last column of schedules.md. In units of one stage's activations. */
guint rp_schedule_peak_live(const RpScheduleOps *schedule, const RpShape *shape, guint gpu);
