/**
 * A plan: tasks on in-order lanes with dependencies, made once and run by the simulator and by the
 * executor (design.md §3).
 *
 * It is an append-only stream. A planner (core/plan/planner.h) appends one iteration at a time;
 * staleness and device rotation are ordinary dependencies on earlier tasks. Finished iterations are
 * retired.
 *
 *   lane 0 (device 0 compute)   |--t0--|--t3--|
 *   lane 5 (device 1 compute)          |--t5--|      t5 depends on t0: an event
 *
 * Every lane runs its tasks in the order of their ids. A plan that can run has every dependency on
 * a smaller id; rp_verify_plan() (core/verify/verify.h) proves that and the rest.
 */
#pragma once

#include <glib.h>

#include "core/base/moments.h"
#include "core/partition/partition.h"
#include "core/profile/profile.h"

typedef guint64 RpTaskId;
#define RP_TASK_NONE G_MAXUINT64

/* `compute`: actions and a fixed time per hop. `full`: every transfer, buffer and optimizer task.
 */
typedef enum { RP_FIDELITY_COMPUTE, RP_FIDELITY_FULL } RpFidelity;

/* The five lanes of a device (§4.2.1), then those of the host. */
typedef enum {
    RP_LANE_COMPUTE,
    RP_LANE_ACTIVATION_UP,
    RP_LANE_ACTIVATION_DOWN,
    RP_LANE_PARAMETER_UP,
    RP_LANE_GRADIENT_DOWN,
    RP_LANES_PER_DEVICE
} RpLaneKind;

typedef enum {
    RP_HOST_LANE_OPTIMIZER, /* gradient copy, step, parameter copy; rule 5 of §4.3.1 is its order */
    RP_HOST_LANE_ACCUMULATE, /* sums the gradients of rounds */
    RP_HOST_LANE_NETWORK,    /* several servers' exchanges, in the same order on all */
    RP_HOST_LANES
} RpHostLaneKind;

typedef enum {
    /* compute actions: one stage x one micro-batch */
    RP_TASK_FORWARD,
    RP_TASK_BACKWARD,
    RP_TASK_FUSED,
    RP_TASK_INPUT_GRADIENT,  /* I of B = I + W; recompute belongs to it */
    RP_TASK_WEIGHT_GRADIENT, /* W */
    RP_TASK_OVERLAP,         /* F and B of two stages as one action (DualPipeV) */
    /* activation lanes; `layer` = the boundary: the value is the input of that layer */
    RP_TASK_ACTIVATION_DOWNLOAD, /* output of layer-1, device to host */
    RP_TASK_ACTIVATION_UPLOAD,   /* input of layer, host to device, for a forward */
    RP_TASK_STASH_UPLOAD,        /* the same value again, for a backward's recompute */
    RP_TASK_ACTGRAD_DOWNLOAD,    /* gradient of the input of layer, device to host */
    RP_TASK_ACTGRAD_UPLOAD,      /* the same, host to the device of the next backward stage */
    /* activation lanes; `layer`: its forward saved it (core/profile/profile.h) */
    RP_TASK_SAVED_DOWNLOAD,
    RP_TASK_SAVED_UPLOAD, /* for the layer's backward */
    /* parameter and gradient lanes; stage + chunk name the bytes (RpPlanStage) */
    RP_TASK_PARAMETER_UPLOAD,
    RP_TASK_RESIDENT_UPLOAD, /* once a run: resident weights of `layer` (rp_plan_resident()) */
    RP_TASK_GRADIENT_DOWNLOAD,
    /* compute lane; once a slot, if the plan's weights are packed */
    RP_TASK_EXPAND, /* makes the parameters of `stage` of its packed ones; no action */
    /* host lanes */
    RP_TASK_GRADIENT_ACCUMULATE, /* adds one stage's gradients of rounds, up to `round`, one after
                                    the other into the fp32 sum */
    RP_TASK_NORM,       /* global norm of all gradients of an iteration, and the decision that
                           follows from it (rp_plan_decision()) */
    RP_TASK_EARLY_STEP, /* squares of the gradients of `layer`, and (RpPlanLayer.early) the weights
                           that its step will write unless gradients are clipped */
    RP_TASK_GRADIENT_COPY,  /* G copy: 16-bit gradients of `layer` to the optimizer */
    RP_TASK_OPTIMIZER_STEP, /* update of `layer` (fused mode: reads gradients, writes weights) */
    RP_TASK_PARAMETER_COPY, /* P copy: new 16-bit weights of `layer` */
    RP_TASK_LATE_STEP,      /* the rest of `layer`'s update, where the early step's weights hold */
    RP_TASK_BARRIER,        /* no work: joins lanes (flush) */
    /* network lane, of several servers (docs/servers.md) */
    RP_TASK_REDUCE, /* gradients of `layer` to their owners, who add them */
    RP_TASK_AGREE,  /* sums of squares of all servers, and the decision that follows of them */
    RP_TASK_GATHER, /* new 16-bit weights of `layer` from their owners to all */
    RP_N_TASK_KINDS
} RpTaskKind;

/* How a task uses a buffer. Accumulating is READ | WRITE. */
typedef enum { RP_ACCESS_READ = 1, RP_ACCESS_WRITE = 2 } RpAccessMode;

/**
 * A buffer's role in a task: backends find their operands by it.
 *
 *   compute          PARAMETERS r, WORKSPACE w, INPUT r, OUTPUT w, GRADIENT r, and of those that
 *                    make gradients SUM (w: a new sum begins; r | w: adds) and, when the sum is
 *                    complete, LEAVING w (r | w: it is added to that of the rounds before, which
 *                    has stayed there); the head's backward DECISION r, in a gated plan; RESIDENT r
 *                    of each layer that stays on the device, unless that is packed; SAVED of each
 *                    layer that saves something, in the order of layers: a forward w, a backward r | w
 *   expand           PACKED r, RESIDENT r likewise, PARAMETERS w
 *   activations      device side INPUT, OUTPUT or GRADIENT; host side HOST (none: token ids)
 *   saved            device side SAVED; HOST
 *   parameters       device side PARAMETERS or, where they are packed, PACKED; HOST: the weights
 *                    of each layer that are read
 *   resident         device side RESIDENT; HOST: the layer's frozen weights
 *   gradients        device side LEAVING; host side STAGING where rounds are added up on the host,
 *                    else HOST (rounds apart: each round's own)
 *   host lanes       HOST (accumulate: w with the first round, else r | w); accumulate: STAGING r,
 *                    one for each round that is added, in order; norm and steps DECISION
 *                    (rp_modes_wait_for_norm())
 *   network lane     reduce HOST r gradients, w reduced; agree HOST r | w squares, DECISION r | w; gather
 *                    HOST r | w weights; moves in both directions: STAGING w
 *
 * OUTPUT: of a forward, the input of each of the stage's `boundaries`, one after the other; of a
 * backward, the gradient of its input.
 */
typedef enum {
    RP_ROLE_NONE,
    RP_ROLE_PARAMETERS,
    RP_ROLE_PACKED,
    RP_ROLE_WORKSPACE,
    RP_ROLE_INPUT,
    RP_ROLE_OUTPUT,
    RP_ROLE_GRADIENT,
    RP_ROLE_SUM,
    RP_ROLE_LEAVING,
    RP_ROLE_KEPT,
    RP_ROLE_STAGING,
    RP_ROLE_DECISION,
    RP_ROLE_HOST,
    RP_ROLE_RESIDENT,
    RP_ROLE_SAVED,
    RP_N_ACCESS_ROLES
} RpAccessRole;

typedef struct {
    guint32 buffer;
    guint16 mode; /* RpAccessMode flags */
    guint16 role; /* RpAccessRole */
} RpAccess;

/**
 * One edge: the task may not pass @phase before @task has ended and @hop_ns more have gone by.
 *
 *   phase 0   needed at the start
 *   phase 1   needed only after the task's first lead_ns (a recompute before its gradient arrives):
 *             start >= end(dependency) + hop_ns - lead_ns
 */
typedef struct {
    RpTaskId task;
    guint32 hop_ns;
    guint32 phase;
} RpDependency;

typedef struct {
    gint64 duration_ns; /* predicted; compute actions only, 0 if a link or the host sets it */
    gint64 lead_ns;     /* leading part of duration_ns that runs before phase-1 dependencies */
    guint64 bytes; /* transfers, network: payload in each direction; host: its memory traffic */
    guint64 first_dependency; /* set by rp_plan_append */
    guint64 first_access;     /* set by rp_plan_append */
    guint32 lane;
    guint32 iteration;
    guint32 micro_batch; /* within the iteration; RP_NONE if not of one */
    guint32 stage;       /* index of rp_plan_stage(); RP_NONE if not of one */
    union {
        guint32 layer; /* activation tasks: boundary; saved, optimizer, resident tasks: layer; else
                          RP_NONE */
        guint32 backward_stage; /* RP_TASK_OVERLAP: the stage of its backward part */
        guint32 first_step;     /* rp_task_is_piece() */
    };
    union {
        guint32 chunk; /* parameter and gradient tasks: index into the stage's chunks */
        guint32 backward_micro_batch; /* RP_TASK_OVERLAP */
        guint32 end_step;             /* rp_task_is_piece() */
    };
    guint16 dependency_count; /* set by rp_plan_append */
    guint16 access_count;     /* set by rp_plan_append */
    guint16 round;            /* within the iteration */
    guint8 kind;              /* RpTaskKind */
    guint8 reserved;
} RpTask;

/* A run of bytes of one layer's parameters (or gradients), offset from the layer's first byte. */
typedef struct {
    guint32 layer;
    guint32 reserved;
    guint64 offset;
    guint64 bytes;
} RpSegment;

/* Bytes of a stage, divided into the transfers that carry them (core/plan/transfer.h). */
typedef struct {
    guint n_chunks;
    guint *first_segment; /* n_chunks + 1 indices into segments */
    guint64 *chunk_bytes; /* n_chunks sums */
    RpSegment *segments;
} RpChunks;

/* A row of the table of stages. Owned by the plan. */
typedef struct {
    RpInterval layers;
    gboolean runs_forward;  /* F, or the forward part of the fused stage */
    gboolean runs_backward; /* B, I + W or FB */
    gboolean bound;         /* F and B of this one stage run on `device` */
    guint device;           /* where it is bound; RP_NONE if dispatched */
    gboolean
        mirrored; /* a second copy, on device N-1-device, has the later half of micro-batches */
    guint64 parameter_bytes; /* that its actions read, without resident ones */
    guint64 upload_bytes;    /* that go up for them; the same unless some are packed */
    guint64 gradient_bytes;
    guint64 workspace_bytes; /* `full`: scratch of its actions */
    guint64 kept_bytes;      /* `full`: kept between the two parts of a split backward */
    RpChunks parameters;     /* n_chunks = 0 in `compute` fidelity */
    RpChunks gradients;
    guint n_boundaries; /* `full`: layers whose input a forward of this stage sends on, in the */
    guint *boundaries;  /* order of its output buffer: its end, then those inside it */
} RpPlanStage;

#define RP_MOST_ROUNDS_APART 4 /* RP_GRADIENTS_APART */

/* `full`: where a layer lives in the host arena, as buffers. RP_NONE: it has none. */
typedef struct {
    guint32 frozen;                          /* weights that no step changes */
    guint32 weights[2];                      /* trained weights; [1] only with double weights */
    guint32 gradients[RP_MOST_ROUNDS_APART]; /* [1] and up only of rounds that stand apart */
    guint32 optimizer; /* full-precision weights and moments: rp_optimizer_state_bytes() */
    guint32 copied;    /* blocking: fp32 gradients */
    guint32 reference; /* the trained weights as the run began: RpPlanOptions.reference_copy */
    guint32 reduced;   /* several servers: the largest share of fp32 sums of their gradients, of the
                          layer's own and behind them of a tied matrix (rp_shard_most()) */
    gboolean early;    /* its early step writes weights, and a late step follows */
    guint32 tied_to;   /* layer that the last tied_bytes of this layer's weights belong to */
    guint64 tied_bytes;
    guint64 tied_gradient_bytes; /* at the end of its gradients, which that layer's step adds to its
                                    own, as wide as weights; 0: the matrix is frozen */
    guint64 resident_bytes; /* all of its frozen weights, tied ones too, if they stay on devices */
    guint64 input_bytes;    /* a micro-batch's, which cross the boundary before the layer */
    guint64 saved_bytes;    /* a micro-batch's, from its forward to its backward, which is another
                               action */
    guint32 saved_groups;   /* bits of RpSavedGroup: that */
} RpPlanLayer;

#define RP_BUFFER_ALIGNMENT 512 /* every buffer's place and size are multiples, bytes */

/* Categories of buffers: the rows of a memory report. */
typedef enum {
    RP_BUFFER_PARAMETERS,   /* device: weights of a stage, also packed; host: given weights */
    RP_BUFFER_GRADIENTS,    /* device: leaving gradients; host: the same, summed, or one for each
                               round (RpGradientPath) */
    RP_BUFFER_ACCUMULATORS, /* device: fp32 gradient sums of the running stage */
    RP_BUFFER_ACTIVATIONS,  /* inputs and outputs of actions, their gradients */
    RP_BUFFER_STASH,        /* stage inputs and saved tensors, kept from forward to backward */
    RP_BUFFER_WORKSPACE,    /* recomputed activations and scratch */
    RP_BUFFER_STAGING,      /* host: gradients of rounds before they are summed */
    RP_BUFFER_OPTIMIZER,    /* host: full-precision weights and moments, decisions */
    RP_N_BUFFER_CATEGORIES
} RpBufferCategory;

/* A planned piece of an arena. Arena g < gpus is device g's, arena gpus is the host's. */
typedef struct {
    guint32 arena;
    guint32 category; /* RpBufferCategory */
    guint64 offset;
    guint64 bytes;
} RpBuffer;

typedef struct _RpPlan RpPlan;

/* @n_layers and @micro_batches describe one iteration; the verifier counts against them. */
RpPlan *rp_plan_new(guint gpus, RpFidelity fidelity, guint n_layers, guint micro_batches);
/* A plan without tasks, with the tables, stages and buffers of @source, now and later. */
RpPlan *rp_plan_new_beside(const RpPlan *source);
void rp_plan_free(RpPlan *plan);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpPlan, rp_plan_free)

/* Devices that it is for. Their arenas are 0 to that less 1, the host's comes behind them. */
guint rp_plan_gpus(const RpPlan *plan);
guint rp_plan_n_lanes(const RpPlan *plan);
guint rp_plan_n_layers(const RpPlan *plan);
guint rp_plan_micro_batches(const RpPlan *plan);
RpFidelity rp_plan_fidelity(const RpPlan *plan);

guint32 rp_plan_lane(const RpPlan *plan, guint device, RpLaneKind kind);
guint32 rp_plan_host_lane(const RpPlan *plan, RpHostLaneKind kind);
/* Device of a lane; RP_NONE for a host lane. */
guint32 rp_plan_lane_device(const RpPlan *plan, guint32 lane);
/* RpLaneKind of a device lane, RP_LANES_PER_DEVICE + RpHostLaneKind of a host lane. */
guint rp_plan_lane_kind(const RpPlan *plan, guint32 lane);

/* ---- modes: the values that a plan's variants are; the verifier checks the plan against them ---- */

/* How a device gets the weights of a stage. Packed ones are expanded by the slot that reads them. Those
 * of frozen layers may come once a run, whatever the others do: RpPlanLayer.resident_bytes. */
typedef enum {
    RP_WEIGHTS_PER_SLOT,
    RP_WEIGHTS_PER_SLOT_PACKED,
    RP_WEIGHTS_PER_LAYER, /* `full`: one stage holds all layers, each device runs it in one round
                                 of an iteration at most, the first and the last action there in
                                 pieces */
    RP_WEIGHTS_PER_ITERATION, /* bound schedules */
    RP_WEIGHTS_PER_ITERATION_PACKED
} RpWeightPath;

/* How the gradients of rounds become those of an iteration. */
typedef enum {
    RP_GRADIENTS_ONE_ROUND,
    RP_GRADIENTS_KEPT, /* sums stay on the devices until the last round, and leave as fp32 */
    RP_GRADIENTS_APART, /* each round has buffers of its own on the host, which the norm and the steps add */
    RP_GRADIENTS_SUMMED /* the host adds each round to a sum in fp32 */
} RpGradientPath;

/* When a layer may be updated. */
typedef enum {
    RP_STEP_AT_ONCE,    /* as soon as its gradient is on the host */
    RP_STEP_AFTER_NORM, /* of all gradients */
    RP_STEP_EARLY       /* the same, but an early step of each layer runs as soon as its gradient is
                           on the host. It may write weights as if nothing were clipped; the step
                           writes them anew if need be, else a late step follows */
} RpStepPolicy;

/* Tasks between the host's weights and gradients and the optimizer. */
typedef enum {
    RP_COPIES_FUSED,   /* none: a step reads gradients and writes weights */
    RP_COPIES_LEAN,    /* a copy writes the weights, not the step */
    RP_COPIES_BLOCKING /* the same, and a step reads gradients that were copied */
} RpHostCopies;

typedef struct {
    RpWeightPath weights;
    RpGradientPath gradients;
    RpStepPolicy step;
    RpHostCopies copies;
    gboolean keeps;     /* forwards' results wait on the device for their backward */
    gboolean published; /* the fused stage's forward may start before its input, as published */
    guint staleness;    /* 0: every iteration reads the last one's weights; 1: those before them */
    guint rounds;       /* per iteration */
    guint slices;       /* parts of each sequence, counted as micro-batches; 1 = none */
    guint servers;      /* that run this plan: each keeps and steps a share of each layer
                           (core/base/shard.h) */
} RpPlanModes;
const RpPlanModes *rp_plan_modes(const RpPlan *plan);

static inline gboolean
rp_modes_pack(const RpPlanModes *modes)
{
    return modes->weights == RP_WEIGHTS_PER_SLOT_PACKED ||
           modes->weights == RP_WEIGHTS_PER_ITERATION_PACKED;
}
/* Weights are uploaded once an iteration, and a device has one slot in it. */
static inline gboolean
rp_modes_upload_once(const RpPlanModes *modes)
{
    return modes->weights >= RP_WEIGHTS_PER_ITERATION;
}
/* The gradients that steps read are sums of rounds, in fp32. */
static inline gboolean
rp_modes_sum(const RpPlanModes *modes)
{
    return modes->gradients == RP_GRADIENTS_KEPT || modes->gradients == RP_GRADIENTS_SUMMED;
}
/* Gradients leave a device once an iteration. */
static inline gboolean
rp_modes_leave_once(const RpPlanModes *modes)
{
    return modes->gradients == RP_GRADIENTS_KEPT || modes->rounds == 1;
}
/* How often gradients of a stage leave in an iteration. */
static inline guint
rp_modes_departures(const RpPlanModes *modes)
{
    return rp_modes_leave_once(modes) ? 1 : modes->rounds;
}
/* Buffers of a layer's gradients on the host. */
static inline guint
rp_modes_gradient_buffers(const RpPlanModes *modes)
{
    return modes->gradients == RP_GRADIENTS_APART ? modes->rounds : 1;
}
/* Layers may have a buffer of gradients in common: of several servers, one's are reduced before the other's
 * arrive on the host. */
static inline gboolean
rp_modes_share_gradients(const RpPlanModes *modes)
{
    return modes->servers > 1 && modes->staleness == 0 &&
           modes->gradients == RP_GRADIENTS_ONE_ROUND;
}
/* Heads and steps follow the norm's decision. */
static inline gboolean
rp_modes_wait_for_norm(const RpPlanModes *modes)
{
    return modes->step != RP_STEP_AT_ONCE;
}
/* Versions of the 16-bit weights on the host; iteration T writes version T mod that. */
static inline guint
rp_modes_versions(const RpPlanModes *modes)
{
    return modes->copies == RP_COPIES_FUSED ? 1 + modes->staleness : 1;
}
/* Decisions: one for each iteration that may be unfinished (rp_plan_decision()). */
static inline guint
rp_modes_decisions(const RpPlanModes *modes)
{
    return rp_modes_wait_for_norm(modes) ? 1 + modes->staleness : 1;
}

/* `full`: how values are stored. */
typedef struct {
    guint element_bytes;    /* of a weight or gradient */
    RpStateFormat form;     /* of the optimizer's state */
    guint64 constant_bytes; /* of rp_plan_constants() */
} RpPlanStorage;
const RpPlanStorage *rp_plan_storage(const RpPlan *plan);

/* Several servers: buffers of the host arena; RP_NONE of one. @squares: a double for each block of
 * every trained layer's own parameters (rp_shard_blocks()), one layer after the other, then
 * RP_EXCHANGE_EXTRA_BYTES for other values that all servers need. @space: message buffer: half
 * sends, half receives. */
typedef struct {
    guint32 squares;
    guint32 space;
} RpPlanExchange;

/* Buffers of a device for a layer; RP_NONE: it has none. Weights that stay there, unless the device never
 * runs the layer; and, of RP_WEIGHTS_PER_LAYER, one layer after the other, those that come and gradients
 * until they have left. */
typedef struct {
    guint32 resident;
    guint32 parameters;
    guint32 leaving;
} RpPlanSlotLayer;

/* All that a plan says of itself beside its stages, buffers and tasks. The planner writes it before the first
 * task, and all others ask for its parts. */
typedef struct {
    RpPlanModes modes;
    RpPlanStorage storage;
    guint32 first_iteration;
    guint evaluation;             /* rounds that run forward alone; 0: the plan trains */
    RpPlanLayer *layers;          /* [n_layers] */
    RpPlanSlotLayer *slot_layers; /* [gpus][n_layers] */
    guint32 *constants;           /* [gpus] */
    guint32 decisions[2];
    guint n_decisions;
    RpPlanExchange exchange;
} RpPlanTables;
RpPlanTables *rp_plan_tables(RpPlan *plan);

/* The first iteration that has actions: only copies may follow of earlier ones. */
guint32 rp_plan_first_iteration(const RpPlan *plan);
/* A plan that evaluates: every action is a forward, of the head up to its loss; no weight is written. Its
 * modes are those of the plan that trains beside it, but that nothing comes layer by layer or is stepped
 * early. */
gboolean rp_plan_evaluates(const RpPlan *plan);
/* Rounds of an iteration's actions. */
guint rp_plan_rounds(const RpPlan *plan);

/* Takes over the contents of @stage (its chunk tables). Returns: its index. */
guint32 rp_plan_add_stage(RpPlan *plan, RpPlanStage *stage);
guint rp_plan_n_stages(const RpPlan *plan);
const RpPlanStage *rp_plan_stage(const RpPlan *plan, guint32 stage);

const RpPlanLayer *rp_plan_layer(const RpPlan *plan, guint layer);
/* The layer (the last one) whose gradients of a tied matrix are added to those of @layer; RP_NONE. */
guint32 rp_plan_tied_from(const RpPlan *plan, guint layer);
/**
 * rp_plan_decision:
 *
 * `full`: the buffer of the host arena that holds the decision on @iteration: loss scale, clipping,
 * whether to step at all, and each layer's sum of squares. RP_NONE if there is none.
 *
 *   gated        norm T reads every gradient of T, and overwrites the decision that heads of T read
 *                with the one that steps of T read; heads of T + n read it too: n = 1 synchronous,
 *                n = 2 asynchronous, one buffer for each of n iterations. Early steps of T read the
 *                gradients in its place, and add their layer's sum
 *   otherwise    steps of T add their layer's sum, norm T stands behind all of them and closes the
 *                iteration; one buffer; heads read nothing: the scale is that of the run
 *
 * So a head reads the newest decision that the plan orders before it, the same on any number of
 * devices and under every schedule.
 */
guint32 rp_plan_decision(const RpPlan *plan, guint64 iteration);
guint rp_plan_n_decisions(const RpPlan *plan);
#define RP_DECISION_BYTES(n_layers) (64 + (guint64)(n_layers) * sizeof(double))
RpPlanExchange rp_plan_exchange(const RpPlan *plan);
#define RP_EXCHANGE_EXTRA_BYTES 4096
#define RP_EXCHANGE_SCRATCH(largest_bytes) MIN(4 * (largest_bytes), (guint64)256 << 20)
/* Buffer of a device for constants beside the plan's data; RP_NONE if none. */
guint32 rp_plan_constants(const RpPlan *plan, guint device);
guint32 rp_plan_resident(const RpPlan *plan, guint device, guint layer);
/* Where parameters of @layer come and gradients leave, one layer after the other: RP_WEIGHTS_PER_LAYER. */
RpPlanSlotLayer rp_plan_slot_layer(const RpPlan *plan, guint device, guint layer);
/* Bytes that stay on @device, over all layers. */
guint64 rp_plan_resident_bytes(const RpPlan *plan, guint device);

/**
 * rp_plan_add_buffer:
 * @bytes: rounded up to RP_BUFFER_ALIGNMENT
 *
 * Places a buffer at the end of @arena, after all that stand there. Buffers live as long as the
 * plan; their contents change, in the order that task accesses and dependencies fix.
 */
guint32 rp_plan_add_buffer(RpPlan *plan, guint32 arena, RpBufferCategory category, guint64 bytes);
/* Places a buffer by hand; it may share bytes with others that are never in use together. */
guint32 rp_plan_place_buffer(RpPlan *plan, const RpBuffer *buffer);
guint rp_plan_n_buffers(const RpPlan *plan);
const RpBuffer *rp_plan_buffer(const RpPlan *plan, guint32 buffer);
/* Size of an arena: the end of its last buffer. This is the predicted and the executed peak. */
guint64 rp_plan_arena_bytes(const RpPlan *plan, guint32 arena);
/* The device with the largest arena, the first of several. */
guint32 rp_plan_fullest_gpu(const RpPlan *plan);
/* Bytes of an arena that buffers of one category take. Bytes that several buffers share count for
 * the largest of them, so that the categories of an arena add up to its size. */
guint64 rp_plan_category_bytes(const RpPlan *plan, guint32 arena, RpBufferCategory category);

/**
 * rp_plan_append:
 * @task: copied; first_* and *_count are filled in
 * @dependencies: (array length=n_dependencies): may be %NULL if 0
 * @accesses: (array length=n_accesses): may be %NULL if 0
 *
 * Returns: the new task's id; ids are consecutive
 */
RpTaskId rp_plan_append(RpPlan *plan, const RpTask *task, const RpDependency *dependencies,
                        guint n_dependencies, const RpAccess *accesses, guint n_accesses);

/* Gives a task other times; 0 <= @lead_ns <= @duration_ns. */
void rp_plan_set_times(RpPlan *plan, RpTaskId id, gint64 duration_ns, gint64 lead_ns);

/* Ids that are held: [rp_plan_first_id, rp_plan_end_id). */
RpTaskId rp_plan_first_id(const RpPlan *plan);
RpTaskId rp_plan_end_id(const RpPlan *plan);
/* Valid until the next append or retire. Tasks lie one after the other in memory, and so do the
 * dependencies (accesses) of one task and of the next: engines may walk them. */
const RpTask *rp_plan_task(const RpPlan *plan, RpTaskId id);
const RpDependency *rp_plan_dependencies(const RpPlan *plan, const RpTask *task);
const RpAccess *rp_plan_accesses(const RpPlan *plan, const RpTask *task);

/* Forgets the tasks before @id. Later tasks may still name them as dependencies: they are done. */
void rp_plan_retire(RpPlan *plan, RpTaskId id);

/* Whether a task is a compute action; whether it runs (a part that is) forward or backward. */
static inline gboolean
rp_task_is_compute(const RpTask *task)
{
    return task->kind <= RP_TASK_OVERLAP;
}
static inline gboolean
rp_task_is_transfer(const RpTask *task)
{
    return task->kind >= RP_TASK_ACTIVATION_DOWNLOAD && task->kind <= RP_TASK_GRADIENT_DOWNLOAD;
}

/**
 * rp_task_is_piece:
 *
 * A fused action of n layers has 2 n steps, up through its layers and down again; a piece runs some of
 * them, first_step to end_step - 1, in memory that the piece before it has left:
 *
 *   compute       |up 0|up 1|up 2, 3, down 3, ... 0|--- ... ---|up 0, ... 3, down 3|down 2|down 1|down 0|
 *   parameter-up  |0|1|2|3|
 *   gradient-down                                                                  |3|    |2|    |1|    |0|
 */
static inline gboolean
rp_task_is_piece(const RpTask *task)
{
    return task->kind == RP_TASK_FUSED && task->end_step != RP_NONE;
}

/* The part of @layers that a fused action, or a piece of one, runs forward, and backward. */
static inline RpInterval
rp_task_upward(const RpTask *task, RpInterval layers)
{
    const guint first = rp_task_is_piece(task) ? MIN(task->first_step, layers.count) : 0;
    const guint end = rp_task_is_piece(task) ? MIN(task->end_step, layers.count) : layers.count;

    return (RpInterval){layers.first + first, end - first};
}
static inline RpInterval
rp_task_downward(const RpTask *task, RpInterval layers)
{
    const guint steps = 2 * layers.count;
    const guint first = rp_task_is_piece(task) ? MAX(task->first_step, layers.count) : layers.count;
    const guint end = rp_task_is_piece(task) ? MAX(task->end_step, layers.count) : steps;

    return (RpInterval){layers.first + steps - end, end - first};
}

/* Properties that all tasks of a kind share. */
typedef struct {
    const char *name;  /* "parameter-upload" */
    guint lane;        /* on which the planner places it: rp_plan_lane_kind() */
    guint lanes;       /* on which it may stand: bits of these */
    const char *title; /* in legends: kinds that look the same share one */
    guint32 colour;    /* 0xRRGGBB, from Okabe and Ito's set, safe for any colour vision */
} RpTaskKindInfo;
const RpTaskKindInfo *rp_task_kind(RpTaskKind kind);
const char *rp_task_kind_name(RpTaskKind kind); /* "forward", "parameter-upload", ... */
const char *rp_buffer_category_name(RpBufferCategory category);
const char *rp_access_role_name(RpAccessRole role);
const char *rp_lane_name(guint lane_kind); /* rp_plan_lane_kind() to "compute", ... */
/* One line naming a task for messages: "forward of stage 3, micro-batch 5, iteration 0 on gpu 2".
 */
char *rp_task_describe(const RpPlan *plan, RpTaskId id);

void rp_chunks_clear(RpChunks *chunks);
