/**
 * Shared by the verifier's files. Private to core/verify/.
 *
 *   verify.c      fields of tasks; the order of the steps, for a plan that is whole and one that grows
 *   violation.c   messages, ranks of rules, parts of actions
 *   stages.c      the table of stages and their chunks
 *   tables.c      rule 2: where layers, decisions and constants live
 *   reach.c       rule 3, then clocks: the order of any two tasks
 *   rows.c        accesses of each kind of task: the values that it demands and leaves
 *   atoms.c       arenas cut at the borders of their buffers
 *   sweep.c       one pass over all accesses: order, operands and values
 *   missing.c     which rule is broken where a value is missed, and by which two tasks
 *   ledger.c      the tasks of each iteration: everything once, nothing left out
 *   trace.c       traces
 *
 * Tasks are named by index: id - first_id.
 *
 * The proof is local. The values that a task leaves follow from its own fields, and so do those that
 * it demands of the buffers that it reads. If every task finds the values that it demands, in every
 * order that the plan allows, the plan computes the right result.
 */
#pragma once

#include "core/verify/verify.h"

#define RP_NO_TASK G_MAXUINT32
/* A task that a growing plan has left behind: it was there, and is older than all that are held. */
#define RP_OLD_TASK (G_MAXUINT32 - 1)

/* ---- values ---- */

/* Kinds of symbolic values; rp_values has a row for each. */
typedef enum {
    RP_VALUE_NONE,            /* scratch: nobody may rely on it */
    RP_VALUE_UNKNOWN,         /* left by a retired task */
    RP_VALUE_INITIAL,         /* nothing was written yet */
    RP_VALUE_OUTPUT,          /* of the forward of stage `of` */
    RP_VALUE_INPUT,           /* crosses boundary `of`; `n`: uploaded for which time */
    RP_VALUE_OUTPUT_GRADIENT, /* of the backward that begins at boundary `of` */
    RP_VALUE_INPUT_GRADIENT,  /* the same, once it has been uploaded */
    RP_VALUE_SAVED,           /* by the forward of layer `of`; `n`: 1; 2: uploaded */
    RP_VALUE_KEPT_FORWARD,    /* on the device, by the forward of stage `of` */
    RP_VALUE_KEPT_BACKWARD,   /* by I of stage `of`, for W */
    RP_VALUE_WORKSPACE,       /* after `n` steps of an action in pieces */
    RP_VALUE_PACKED,          /* `n` chunks of the parameters of stage `of`, packed */
    RP_VALUE_PARAMETERS,      /* `n` chunks of them */
    RP_VALUE_LAYER,           /* layerwise: the parameters of layer `of` */
    RP_VALUE_RESIDENT,        /* frozen parameters of layer `of` */
    RP_VALUE_SUM,             /* gradients of stage `of` after `n` actions of the slot */
    RP_VALUE_LEAVING,         /* gradients of a slot of stage `of` */
    RP_VALUE_LAYER_LEAVING,   /* layerwise: of layer `of` */
    RP_VALUE_STAGED,          /* on the host: `n` chunks of the gradients of stage `of` */
    RP_VALUE_GRADIENTS,       /* on the host: of layer `of`; `n` chunks, or `n` rounds summed */
    RP_VALUE_COPIED,          /* a copy of them */
    RP_VALUE_REDUCED,         /* of all servers */
    RP_VALUE_SQUARES,         /* several servers: sums of squares, of the norm */
    RP_VALUE_DECISION_PART,   /* `n` layers have added to the decision */
    RP_VALUE_OWN_DECISION,    /* of several servers: of this one's share */
    RP_VALUE_DECISION,        /* the decision on the iteration */
    RP_VALUE_EARLY_WEIGHTS,   /* weights of layer `of`, unless gradients are clipped */
    RP_VALUE_WEIGHT_SHARE,    /* several servers: new in this one's share */
    RP_VALUE_WEIGHTS,         /* weights of layer `of` that the iteration has made */
    RP_VALUE_HALF_STATE,      /* the optimizer's of layer `of`, before the late step */
    RP_VALUE_STATE,           /* the optimizer's of layer `of` after the iteration */
    RP_N_VALUES
} RpValueKind;

/* A value is of the layer (or boundary) or the stage of a task, and of one of its items; and the rule that
 * is broken where it is missed. */
typedef struct {
    enum { RP_OF_LAYER, RP_OF_STAGE, RP_OF_END, RP_OF_ITERATION } of;
    enum { RP_ONLY, RP_BY_MICRO_BATCH, RP_BY_ROUND, RP_BY_ITEM } by;
    RpRule rule;
    const char *name;
    const char *race; /* a sentence; NULL: the name, and that it is not sure to be there */
} RpValueInfo;
extern const RpValueInfo rp_values[RP_N_VALUES];

typedef struct {
    guint32 kind;
    guint32 of;        /* layer, stage or boundary */
    guint32 item;      /* micro-batch or round */
    guint32 iteration; /* as tasks have it */
    guint32 n;         /* how much of it is there; demanded: 0 = any */
    guint32 session;   /* parameters may come up twice a slot: which time; RP_NONE: any */
} RpSymbol;

/* An access that a task must have, or may; the value that it must find and the one that it leaves. */
typedef struct {
    guint32 buffer; /* this one; RP_NONE: any that fits */
    guint16 role;
    guint16 mode;       /* RpAccessMode, or RP_MAY_ADD */
    guint16 right_mode; /* the one that the value needs, of those that RP_MAY_ADD allows; 0: any */
    gboolean device;    /* in the task's device's arena, or the host's */
    gboolean optional;
    gboolean seen;
    gboolean again;   /* its place was named before */
    gboolean gathers; /* adds leaves.n to the part of that value that it finds */
    gboolean initial; /* the contents from before the plan will do, too */
    guint categories; /* bits */
    guint64 bytes;
    RpSymbol wants;   /* if it reads */
    RpSymbol instead; /* this will do, too */
    RpSymbol leaves;  /* if it writes */
} RpExpected;
#define RP_MAY_ADD 4 /* writes, or reads and writes */

/* More than any kind of task has rows; and the end of them. */
#define RP_MOST_ROWS 16
#define RP_NO_ROW 255

/* ---- accesses ---- */

typedef struct {
    guint32 arena;
    guint32 n_buffers;
    guint64 offset;
    RpTaskId writer;   /* the last; RP_TASK_NONE: nobody */
    guint32 through;   /* the buffer that was written then */
    guint32 n_readers; /* since, the last of each lane */
    RpTaskId *readers; /* has space for max_readers */
    guint32 max_readers;
} RpAtom;

/* A buffer: its atoms, and the value that was last written through it. It holds that as long as all
 * of them were last written through it. */
typedef struct {
    guint32 first;
    guint32 count;
    char *owner; /* a table names it: for what; NULL: a buffer that comes and goes */
    RpSymbol value;
} RpHolder;

typedef struct {
    guint n_buffers;
    RpHolder *holders; /* [buffer] */
    RpAtom *atoms;     /* by arena and offset; behind those of an arena one for the rest of it */
    guint32 n_atoms;
    GArray *expected; /* RpExpected of the task at hand */
} RpSweep;

/* ---- the verifier ---- */

/* A lane as far as it was seen, and the place of a task. Rows are clocks. */
typedef struct {
    guint32 dense;  /* its number among lanes that hold tasks; RP_NONE: it holds none */
    guint32 length; /* tasks so far */
    guint32 row;    /* when its last task ends */
} RpLaneState;
typedef struct {
    guint32 lane;      /* dense */
    guint32 position;  /* in its lane, from 1 */
    guint32 start_row; /* when it starts */
    guint32 end_row;   /* when it ends */
} RpTaskPlace;

/* A task that has left the window, but is the last that touched some buffer: tasks to come may wait
 * for it. */
typedef struct {
    RpTaskId id;
    RpTaskPlace place;
} RpOldTask;

/* A layer, as the stages and their chunks have it. */
typedef struct {
    guint32 stage_of[2]; /* [RpDirection] */
    guint64 parameter_bytes;
    guint64 gradient_bytes;
    guint gradient_parts; /* in how many chunks they travel */
} RpLayerFacts;
typedef enum { RP_FORWARD, RP_BACKWARD } RpDirection;

/* The tasks that an iteration has had: ledger.c. */
typedef struct _RpLedger RpLedger;

struct _RpVerifier {
    const RpPlan *plan;
    const RpPlanModes *modes;
    const RpPlanStorage *storage;
    gboolean evaluates;
    RpViolation *violation;
    guint rank; /* of the violation: 0 is the gravest; RP_NO_RANK: none */
    guint64 clock_bytes;
    RpTaskId first_id;
    const RpTask *tasks; /* the plan's; they lie one after the other */
    guint32 n_tasks;
    guint n_stages;
    guint n_layers;
    guint micro_batches;
    guint rounds;
    gboolean full;
    gboolean whole;                             /* nothing was retired, or all that was is known */
    guint when;                                 /* rows.c: bits of its modes */
    guint8 rows[RP_N_TASK_KINDS][RP_MOST_ROWS]; /* [kind] of the table in rows.c */

    /* a plan that grows; otherwise zeros: everything is new */
    const RpPlan *source; /* the plan that grows; `plan` holds its last iterations */
    RpPlan *window;       /* the same as `plan`, owned */
    guint32 first_new;    /* tasks before it have been seen */
    guint pending;        /* 1: the optimizer of the last iteration is yet to be appended */
    GArray *old;          /* RpOldTask, by id */
    gboolean open;        /* calls of the last iteration are yet to be appended */

    GPtrArray *ledgers;      /* RpLedger of iteration first_iteration + i */
    guint32 first_iteration; /* of them */
    guint32 complete_from;   /* first iteration of which nothing can have been retired */

    /* reachability */
    RpLaneState *lanes;  /* [lane of the plan] */
    guint n_lanes;       /* lanes that hold a task; growing: all */
    gsize stride;        /* guint32 per clock */
    RpTaskPlace *places; /* [task] */
    gsize max_tasks;     /* they have space for */
    guint32 *clocks;     /* [row * stride + lane] highest position that has ended */
    gsize n_rows;
    gsize max_rows;

    RpLayerFacts *layers; /* [layer] */
    guint *first_chunk;   /* [stage] number of its first chunk; [n_stages]: of all stages */
    gsize first_identity[RP_N_TASK_KINDS + 1]; /* in ledgers, by kind; the last: how many */
    guint n_stepped;                           /* layers */

    RpSweep *sweep;
};

/* Whether a step writes weights of the layer's own. */
static inline gboolean
rp_verifier_is_stepped(const RpVerifier *verifier, guint layer)
{
    return rp_plan_layer(verifier->plan, layer)->weights[0] != RP_NONE;
}

static inline const RpTask *
rp_verifier_task(const RpVerifier *verifier, guint32 task)
{
    return &verifier->tasks[task];
}

static inline guint32
rp_verifier_device(const RpVerifier *verifier, guint32 task)
{
    return rp_plan_lane_device(verifier->plan, rp_verifier_task(verifier, task)->lane);
}

/* Whether gradients that come down are to be added up, on the host. */
static inline gboolean
rp_verifier_stages(const RpVerifier *verifier)
{
    return verifier->modes->gradients == RP_GRADIENTS_SUMMED;
}

/* Bytes of a gradient as it is downloaded. */
static inline guint64
rp_verifier_leaving_element(const RpVerifier *verifier)
{
    return verifier->modes->gradients == RP_GRADIENTS_KEPT ? sizeof(float)
                                                           : verifier->storage->element_bytes;
}

/* The round of a slot: resident weights have one slot an iteration. */
static inline guint32
rp_verifier_slot_round(const RpVerifier *verifier, guint32 round)
{
    return rp_modes_upload_once(verifier->modes) ? 0 : round;
}

static inline guint32
rp_verifier_stage_of(const RpVerifier *verifier, guint layer, RpDirection direction)
{
    return verifier->layers[layer].stage_of[direction];
}

/* Whether a stage of the direction begins between @layer, > 0, and the layer before. */
static inline gboolean
rp_verifier_begins_stage(const RpVerifier *verifier, guint layer, RpDirection direction)
{
    return rp_verifier_stage_of(verifier, layer - 1, direction) !=
           rp_verifier_stage_of(verifier, layer, direction);
}

/* RP_NO_TASK: nobody; RP_OLD_TASK: one that is not held any more */
static inline guint32
rp_verifier_index(const RpVerifier *verifier, RpTaskId id)
{
    if (id == RP_TASK_NONE)
        return RP_NO_TASK;
    return id < verifier->first_id ? RP_OLD_TASK : (guint32)(id - verifier->first_id);
}

/* The place of a task that is old; %NULL: nothing is known of it. */
static inline const RpTaskPlace *
rp_verifier_old_place(const RpVerifier *verifier, RpTaskId id)
{
    guint low = 0, high = verifier->old != NULL ? verifier->old->len : 0;

    while (low < high) {
        const guint half = (low + high) / 2;
        const RpOldTask *old = &g_array_index(verifier->old, RpOldTask, half);

        if (old->id == id)
            return &old->place;
        if (old->id < id)
            low = half + 1;
        else
            high = half;
    }
    return NULL;
}

/* The same of any task that was appended. */
static inline const RpTaskPlace *
rp_verifier_place(const RpVerifier *verifier, RpTaskId id)
{
    return id >= verifier->first_id ? &verifier->places[id - verifier->first_id]
                                    : rp_verifier_old_place(verifier, id);
}

/* Whether the task @first has ended whenever @second starts or, @late, passes phase 1: its part after the
 * recompute. */
static inline gboolean
rp_verifier_before(const RpVerifier *verifier, const RpTaskPlace *first, guint32 second,
                   gboolean late)
{
    const RpTaskPlace *place = &verifier->places[second];
    const gsize row = late ? place->end_row : place->start_row;

    if (first->lane == place->lane)
        return first->position < place->position;
    return verifier->clocks[row * verifier->stride + first->lane] >= first->position;
}

/* ---- violation.c ---- */

/* The parts of an action: OVERLAP has two. */
enum { RP_PART_FORWARD, RP_PART_BACKWARD, RP_PART_WEIGHTS, RP_N_PARTS };
typedef struct {
    guint32 stage;
    guint32 micro_batch;
    gboolean runs[RP_N_PARTS]; /* F, FB; B, FB, I; that makes weight gradients: B, FB, W */
    gboolean begins;           /* the first piece of the action; usually both begins and ends */
    gboolean ends;
} RpActionPart;

/* Returns: how many of @parts are filled in, 0 if @task is not an action */
guint rp_action_parts(const RpVerifier *verifier, const RpTask *task, RpActionPart parts[2]);

#define RP_NO_RANK G_MAXUINT

/* Among several violations that of the lowest rank is reported, and of those the first: an operand that
 * is wrong, say, if no value that it ought to carry is missed. */
guint rp_rule_rank(RpRule rule);

/* Records a violation, unless one of a lower @rank is known. The tasks are described and placed after the
 * text. Returns: %FALSE */
gboolean rp_verifier_fail_at(RpVerifier *verifier, guint rank, RpRule rule, guint32 first,
                             guint32 second, const char *format, ...) G_GNUC_PRINTF(6, 7);
/* The same with the rule's own rank, and with one task, the second, or none. */
#define fail_tasks(verifier, rule, ...)                                                            \
    rp_verifier_fail_at(verifier, rp_rule_rank(rule), rule, __VA_ARGS__)
#define fail_task(verifier, rule, ...) fail_tasks(verifier, rule, RP_NO_TASK, __VA_ARGS__)
#define fail_plan(verifier, rule, ...) fail_task(verifier, rule, RP_NO_TASK, __VA_ARGS__)

/* ---- rows.c ---- */

/* Picks the rows of each kind of task that such a plan has. */
void rp_verifier_pick_rows(RpVerifier *verifier);
/* Fills @expected (RpExpected) for @task. */
void rp_verifier_expect(const RpVerifier *verifier, const RpTask *task, guint32 session,
                        GArray *expected);

/* ---- ledger.c ---- */

/* The fields by which tasks of a kind differ in one iteration: there is one task of each. */
typedef enum {
    RP_ALIKE,      /* there may be any */
    RP_PER_ACTION, /* stage and micro-batch; the other kinds of actions have these as their parts */
    RP_PER_VALUE,  /* layer, or boundary, and micro-batch */
    RP_PER_CHUNK,  /* round and chunk of a stage */
    RP_PER_SLOT,   /* round and stage; a sum of several rounds counts for each */
    RP_PER_DEVICE, /* device and layer */
    RP_PER_LAYER,
    RP_PER_ITERATION /* none */
} RpIdentity;
RpIdentity rp_verifier_identity(RpTaskKind kind);

/* Rounds that an accumulate task adds. */
guint rp_verifier_n_summed(const RpVerifier *verifier, const RpTask *task);

/* Once stages and chunks are known. */
void rp_ledger_number(RpVerifier *verifier);
/* Enters a task. @session: (out): how often the same has come up before. */
void rp_ledger_enter(RpVerifier *verifier, guint32 index, guint32 *session);
/* Checks that iterations have had by now all that they must. */
void rp_ledger_check(RpVerifier *verifier);
/* Whether the layer has tasks of a kind of the optimizer's or the network's. */
gboolean rp_ledger_has_kind(const RpVerifier *verifier, RpTaskKind kind, guint layer);
void rp_ledger_forget_before(RpVerifier *verifier, guint32 iteration);

/* ---- reach.c, atoms.c, sweep.c ---- */

/* Forgets the first @n tasks. */
void rp_verifier_forget_clocks(RpVerifier *verifier, guint32 n);
void rp_verifier_forget_touchers(RpVerifier *verifier, guint32 n);
/* Cuts all arenas, and begins the sweep. Where they were cut before, an atom inherits the history of that place. */
void rp_sweep_cut_arenas(RpVerifier *verifier);
void rp_sweep_free(RpSweep *sweep);

/* Whether both are the same value, as far as it is there. */
static inline gboolean
rp_symbol_is_same(const RpSymbol *a, const RpSymbol *b)
{
    return a->kind == b->kind && a->of == b->of && a->item == b->item &&
           a->iteration == b->iteration;
}

/* The value that stands in a buffer. @writer: (out): who wrote it, or part of it since */
RpSymbol rp_verifier_find_value(const RpVerifier *verifier, guint32 buffer, guint32 *writer);

/* ---- missing.c ---- */

/* Accesses that nothing orders. @wants: the value that the second reads, if it does */
void rp_verifier_fail_order(RpVerifier *verifier, guint32 first, guint32 second, guint32 buffer,
                            gboolean first_writes, gboolean second_writes, RpValueKind wants);
/* The last action of the layer's stage in that direction. @micro_batch: of this one; RP_NONE: of any. RP_NO_TASK:
 * there is none */
guint32 rp_verifier_find_action(const RpVerifier *verifier, guint32 iteration, guint32 micro_batch,
                                guint layer, RpDirection direction);
/* @index does not find @wants of @row. @buffer: where it looked, and found @found of @writer; RP_NONE:
 * nowhere */
void rp_verifier_fail_value(RpVerifier *verifier, guint32 index, const RpExpected *row,
                            RpSymbol wants, guint32 buffer, const RpSymbol *found, guint32 writer);

/* ---- the steps of the proof, in order ---- */

gboolean rp_verify_stages(RpVerifier *verifier);
gboolean rp_verify_deadlock(RpVerifier *verifier);
gboolean rp_verify_make_clocks(RpVerifier *verifier);
gboolean rp_verify_arenas(RpVerifier *verifier);
void rp_verify_tables(RpVerifier *verifier);
void rp_verify_sweep(RpVerifier *verifier);
