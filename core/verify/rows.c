/*
 * Accesses of a task, the value that each must find, and the one that it leaves: one table has a row for
 * each. Here W are weights, A activations at a boundary, A' their gradients, G gradients, O optimizer
 * states and D decisions:
 *
 *   parameter-upload      W(l, T - staleness)        its chunk of the stage's parameters
 *   forward               parameters, A(in, m)       A(out, m), saved and kept tensors
 *   backward              parameters, A(in, m),      A'(in, m); the sum with m added; with the last
 *                         A'(out, m), saved, kept    action the gradients of the slot
 *   accumulate            sum of r rounds, G(s, r)   sum of r + 1 rounds
 *   reduce, copy          G(l, all rounds)           the same of all servers, or copied
 *   norm                  G(l, all) of all layers    D(T)
 *   step                  G(l, all), O(l, T - 1),    W(l, T), O(l, T)
 *                         D(T) if gated
 *   early, step, late     the same                   W(l, T) but for clipping; W(l, T); O(l, T)
 *   agree, gather         D(T) of a share, W(l, T)   D(T) and W(l, T) of all servers
 */
#include "core/verify/private.h"

#define FP32_BYTES 4

#define READ RP_ACCESS_READ
#define WRITE RP_ACCESS_WRITE
#define ADD (RP_ACCESS_READ | RP_ACCESS_WRITE)

#define NOT_AT_ALL G_MAXUINT64
#define NOTHING ((RpSymbol){.kind = RP_VALUE_NONE})

/* A task, or a part of it, and the data that it works on. */
typedef struct {
    const RpVerifier *verifier;
    const RpPlan *plan;
    const RpPlanModes *modes;
    const RpTask *task;
    RpTaskKind kind; /* of an overlapped action: F, or B */
    guint when;      /* bits: see below */
    const RpPlanStage *stage;
    guint32 index; /* of the stage */
    guint32 device;
    guint32 micro_batch;
    guint32 round;    /* of the slot */
    guint32 first;    /* layer, or boundary */
    guint32 end;      /* boundary behind its layers, or the same */
    guint32 item;     /* the buffer of gradients */
    guint32 n;        /* added to a sum; 1 for a chunk that is transferred */
    guint32 session;  /* of its parameters */
    gboolean second;  /* part of an overlapped action */
    GArray *expected; /* RpExpected */
} Subject;

/* ---- the table ---- */

/* The buffer of a row: any that fits, of those that come and go; or one that the plan's tables name. */
typedef enum {
    ANY,
    ANY_OF_LAYER, /* one for each layer; so are those up to SLOT_LEAVING */
    FROZEN,
    WEIGHTS,
    GRADIENTS, /* of each round that has its own */
    COPIED,
    REDUCED,
    OPTIMIZER,
    RESIDENT,
    SLOT_PARAMETERS,
    SLOT_LEAVING,
    DECISION,
    SQUARES,
    SPACE
} Place;

/* The size that a buffer must have which comes and goes. */
typedef enum {
    SIZE_PARAMETERS,
    SIZE_UPLOAD,
    SIZE_WORKSPACE,
    SIZE_KEPT,
    SIZE_INPUT,  /* of its first layer */
    SIZE_OUTPUT, /* of all layers whose input its forward sends on */
    SIZE_GRADIENT,
    SIZE_SENT, /* its input, but for token ids, which come from the caller; or the gradient of that */
    SIZE_SUM,
    SIZE_LEAVING,
    SIZE_SAVED
} Size;

/* How old the value is that is read in a place of the tables; and, but for NOW, it may be from before
 * the plan. */
typedef enum { NOW, THIS, LAST, STALE, KNOWN } Age;

/* In which plans, and for which layers and tasks, there is such an access. */
enum {
    KEEPS = 1,
    PACKED = 2,
    LAYERWISE = 4,
    STAGED = 8,
    SEVERAL = 16, /* servers */
    BLOCKING = 32,
    FUSED = 64,
    GATED = 128, /* steps wait for the norm */
    AFTER_NORM = 256,
    EVALUATES = 512,
    OF_PLAN = 1023,
    EARLY = 1024,   /* an early step writes the layer's weights */
    HELD = 2048,    /* the layer has resident weights */
    TIED = 4096,    /* the layer is another's, to which the task's is tied */
    RUNS = 8192,    /* layer by layer: the layer runs in the task */
    DOWN = 16384,   /* ... and backward */
    LOSS = 32768,   /* the loss is made in the action */
    FOLLOWS = 65536 /* the task finds the workspace as the piece before has left it */
};

#define CATEGORY(name) (1U << RP_BUFFER_##name)
#define VALUES (CATEGORY(ACTIVATIONS) | CATEGORY(STASH))
#define TASK(name) (1U << RP_TASK_##name)
#define F TASK(FORWARD)
#define B (TASK(BACKWARD) | TASK(FUSED))
#define I TASK(INPUT_GRADIENT)
#define W TASK(WEIGHT_GRADIENT)
#define UP (TASK(ACTIVATION_UPLOAD) | TASK(STASH_UPLOAD))
#define STEP TASK(OPTIMIZER_STEP)
#define BEFORE TASK(EARLY_STEP)
#define LATE TASK(LATE_STEP)
#define STEPS (BEFORE | STEP | LATE)
#define R(name) RP_ROLE_##name
#define V(name) RP_VALUE_##name
#define A CATEGORY(ACTIVATIONS)
#define P CATEGORY(PARAMETERS)
#define S CATEGORY(WORKSPACE)
#define G CATEGORY(GRADIENTS)
#define H CATEGORY(STASH)

/* Rows of one kind of task are in the order of its accesses: those of ANY buffer, those of layers, others.
 * Host buffers and staging lie on the host, all others that come and go on the task's device. */
static const struct {
    guint kinds;    /* bits */
    guint32 when;   /* all of these */
    guint32 unless; /* ... and none of these */
    guint8 place;
    guint8 size; /* of ANY buffer; else the Age of what it wants */
    guint8 role;
    guint8 mode;
    guint8 wants; /* RpValueKind */
    guint8 leaves;
    guint categories; /* bits; of ANY buffer */
} table[] = {
    {F | B | I | W, 0, LAYERWISE, ANY, SIZE_PARAMETERS, R(PARAMETERS), READ, V(PARAMETERS), 0, P},
    {F | B | I | W, 0, LAYERWISE, ANY, SIZE_WORKSPACE, R(WORKSPACE), WRITE, 0, 0, S},
    {B, LAYERWISE, FOLLOWS, ANY, SIZE_WORKSPACE, R(WORKSPACE), WRITE, 0, V(WORKSPACE), S},
    {B, LAYERWISE | FOLLOWS, 0, ANY, SIZE_WORKSPACE, R(WORKSPACE), ADD, V(WORKSPACE), V(WORKSPACE),
     S},
    {F | B | I | W, 0, 0, ANY, SIZE_INPUT, R(INPUT), READ, V(INPUT), 0, VALUES},
    {F, 0, 0, ANY, SIZE_OUTPUT, R(OUTPUT), WRITE, 0, V(OUTPUT), VALUES},
    {B | I, 0, 0, ANY, SIZE_GRADIENT, R(GRADIENT), READ, V(INPUT_GRADIENT), 0, A},
    {B | I, 0, 0, ANY, SIZE_SENT, R(OUTPUT), WRITE, 0, V(OUTPUT_GRADIENT), A},
    {B | W, 0, 0, ANY, SIZE_SUM, R(SUM), RP_MAY_ADD, V(SUM), V(SUM), CATEGORY(ACCUMULATORS)},
    {B | W, 0, LAYERWISE, ANY, SIZE_LEAVING, R(LEAVING), RP_MAY_ADD, V(LEAVING), V(LEAVING), G},
    /* from I to W; or from the forward on, of a plan that keeps its results */
    {F, KEEPS, 0, ANY, SIZE_KEPT, R(KEPT), WRITE, 0, V(KEPT_FORWARD), S},
    {TASK(BACKWARD), KEEPS, 0, ANY, SIZE_KEPT, R(KEPT), READ, V(KEPT_FORWARD), 0, S},
    {I, KEEPS, 0, ANY, SIZE_KEPT, R(KEPT), ADD, V(KEPT_FORWARD), V(KEPT_BACKWARD), S},
    {I, 0, KEEPS, ANY, SIZE_KEPT, R(KEPT), WRITE, 0, V(KEPT_BACKWARD), S},
    {W, 0, 0, ANY, SIZE_KEPT, R(KEPT), READ, V(KEPT_BACKWARD), 0, S},
    /* not in the fused stage, whose forward is its backward's */
    {F, 0, EVALUATES, ANY_OF_LAYER, SIZE_SAVED, R(SAVED), WRITE, 0, V(SAVED), A},
    {TASK(BACKWARD) | I | W, 0, EVALUATES, ANY_OF_LAYER, SIZE_SAVED, R(SAVED), ADD, V(SAVED),
     V(SAVED), A},
    {B, LAYERWISE | RUNS, 0, SLOT_PARAMETERS, NOW, R(PARAMETERS), READ, V(LAYER), 0, 0},
    {B, LAYERWISE | DOWN, 0, SLOT_LEAVING, NOW, R(LEAVING), WRITE, 0, V(LAYER_LEAVING), 0},
    {F | B | I | W, HELD, PACKED, RESIDENT, NOW, R(RESIDENT), READ, V(RESIDENT), 0, 0},
    {B | I, GATED | LOSS, 0, DECISION, KNOWN, R(DECISION), READ, V(DECISION), 0, 0},

    {TASK(ACTIVATION_DOWNLOAD), 0, 0, ANY, SIZE_OUTPUT, R(OUTPUT), READ, V(OUTPUT), 0, VALUES},
    {TASK(ACTIVATION_DOWNLOAD), 0, 0, ANY, SIZE_SENT, R(HOST), WRITE, 0, V(INPUT), VALUES},
    {UP, 0, 0, ANY, SIZE_SENT, R(HOST), READ, V(INPUT), 0, VALUES},
    {UP, 0, 0, ANY, SIZE_INPUT, R(INPUT), WRITE, 0, V(INPUT), VALUES},
    {TASK(ACTGRAD_DOWNLOAD), 0, 0, ANY, SIZE_INPUT, R(OUTPUT), READ, V(OUTPUT_GRADIENT), 0, VALUES},
    {TASK(ACTGRAD_DOWNLOAD), 0, 0, ANY, SIZE_SENT, R(HOST), WRITE, 0, V(INPUT_GRADIENT), VALUES},
    {TASK(ACTGRAD_UPLOAD), 0, 0, ANY, SIZE_SENT, R(HOST), READ, V(INPUT_GRADIENT), 0, VALUES},
    {TASK(ACTGRAD_UPLOAD), 0, 0, ANY, SIZE_INPUT, R(GRADIENT), WRITE, 0, V(INPUT_GRADIENT), VALUES},
    {TASK(SAVED_DOWNLOAD), 0, 0, ANY, SIZE_SAVED, R(SAVED), READ, V(SAVED), 0, A},
    {TASK(SAVED_DOWNLOAD), 0, 0, ANY, SIZE_SAVED, R(HOST), WRITE, 0, V(SAVED), H},
    {TASK(SAVED_UPLOAD), 0, 0, ANY, SIZE_SAVED, R(HOST), READ, V(SAVED), 0, H},
    {TASK(SAVED_UPLOAD), 0, 0, ANY, SIZE_SAVED, R(SAVED), WRITE, 0, V(SAVED), A},

    {TASK(PARAMETER_UPLOAD), PACKED, 0, ANY, SIZE_UPLOAD, R(PACKED), WRITE, 0, V(PACKED), P},
    {TASK(PARAMETER_UPLOAD), 0, PACKED | LAYERWISE, ANY, SIZE_UPLOAD, R(PARAMETERS), WRITE, 0,
     V(PARAMETERS), P},
    {TASK(PARAMETER_UPLOAD), LAYERWISE, TIED, SLOT_PARAMETERS, NOW, R(PARAMETERS), WRITE, 0,
     V(LAYER), 0},
    {TASK(PARAMETER_UPLOAD), 0, HELD, FROZEN, NOW, R(HOST), READ, 0, 0, 0},
    {TASK(PARAMETER_UPLOAD), 0, 0, WEIGHTS, STALE, R(HOST), READ, V(WEIGHTS), 0, 0},
    {TASK(RESIDENT_UPLOAD), 0, 0, FROZEN, NOW, R(HOST), READ, 0, 0, 0},
    {TASK(RESIDENT_UPLOAD), 0, TIED, RESIDENT, NOW, R(RESIDENT), WRITE, 0, V(RESIDENT), 0},
    {TASK(EXPAND), 0, 0, ANY, SIZE_UPLOAD, R(PACKED), READ, V(PACKED), 0, P},
    {TASK(EXPAND), 0, 0, ANY, SIZE_PARAMETERS, R(PARAMETERS), WRITE, 0, V(PARAMETERS), P},
    {TASK(EXPAND), HELD, 0, RESIDENT, NOW, R(RESIDENT), READ, V(RESIDENT), 0, 0},
    {TASK(GRADIENT_DOWNLOAD), 0, LAYERWISE, ANY, SIZE_LEAVING, R(LEAVING), READ, V(LEAVING), 0, G},
    {TASK(GRADIENT_DOWNLOAD), STAGED, 0, ANY, SIZE_LEAVING, R(STAGING), WRITE, 0, V(STAGED),
     CATEGORY(STAGING)},
    {TASK(GRADIENT_DOWNLOAD), LAYERWISE, 0, SLOT_LEAVING, NOW, R(LEAVING), READ, V(LAYER_LEAVING),
     0, 0},
    {TASK(GRADIENT_DOWNLOAD), 0, STAGED, GRADIENTS, NOW, R(HOST), WRITE, 0, V(GRADIENTS), 0},
    {TASK(GRADIENT_ACCUMULATE), 0, 0, ANY, SIZE_LEAVING, R(STAGING), READ, V(STAGED), 0,
     CATEGORY(STAGING)},
    {TASK(GRADIENT_ACCUMULATE), 0, 0, GRADIENTS, NOW, R(HOST), RP_MAY_ADD, V(GRADIENTS),
     V(GRADIENTS), 0},

    /* The tables name buffers to exchange only if there are several servers.
     * A norm that steps wait for reads all gradients, or the sums that early steps have added; another
     * stands behind all steps, which have added theirs */
    {STEPS, 0, 0, REDUCED, NOW, R(HOST), READ, V(REDUCED), 0, 0},
    {STEPS, BLOCKING, SEVERAL, COPIED, NOW, R(HOST), READ, V(COPIED), 0, 0},
    {STEPS, 0, BLOCKING | SEVERAL, GRADIENTS, NOW, R(HOST), READ, V(GRADIENTS), 0, 0},
    {TASK(NORM), AFTER_NORM, 0, REDUCED, NOW, R(HOST), READ, V(REDUCED), 0, 0},
    {TASK(NORM), AFTER_NORM, SEVERAL, GRADIENTS, NOW, R(HOST), READ, V(GRADIENTS), 0, 0},
    {TASK(GRADIENT_COPY) | TASK(REDUCE), 0, 0, GRADIENTS, NOW, R(HOST), READ, V(GRADIENTS), 0, 0},
    {TASK(GRADIENT_COPY), 0, 0, COPIED, NOW, R(HOST), WRITE, 0, V(COPIED), 0},
    {TASK(REDUCE), 0, 0, REDUCED, NOW, R(HOST), WRITE, 0, V(REDUCED), 0},
    {BEFORE, EARLY, TIED, OPTIMIZER, LAST, R(HOST), READ, V(STATE), 0, 0},
    {STEP, EARLY, TIED, OPTIMIZER, LAST, R(HOST), ADD, V(STATE), V(HALF_STATE), 0},
    {STEP, 0, EARLY | TIED, OPTIMIZER, LAST, R(HOST), ADD, V(STATE), V(STATE), 0},
    {LATE, 0, TIED, OPTIMIZER, THIS, R(HOST), ADD, V(HALF_STATE), V(STATE), 0},
    {TASK(PARAMETER_COPY), 0, 0, OPTIMIZER, THIS, R(HOST), READ, V(STATE), 0, 0},
    {BEFORE, FUSED | EARLY, TIED, WEIGHTS, NOW, R(HOST), WRITE, 0, V(EARLY_WEIGHTS), 0},
    {STEP, FUSED | EARLY, TIED, WEIGHTS, NOW, R(HOST), ADD, V(EARLY_WEIGHTS), V(WEIGHTS), 0},
    {STEP, FUSED, EARLY | TIED, WEIGHTS, NOW, R(HOST), WRITE, 0, V(WEIGHTS), 0},
    {TASK(PARAMETER_COPY), 0, 0, WEIGHTS, NOW, R(HOST), WRITE, 0, V(WEIGHTS), 0},
    {TASK(GATHER), 0, 0, WEIGHTS, NOW, R(HOST), ADD, V(WEIGHT_SHARE), V(WEIGHTS), 0},
    {STEPS, 0, GATED, SQUARES, NOW, R(HOST), ADD, 0, 0, 0},
    {TASK(AGREE), 0, 0, SQUARES, NOW, R(HOST), ADD, V(SQUARES), 0, 0},
    {STEP | LATE, GATED, 0, DECISION, NOW, R(DECISION), READ, V(DECISION), 0, 0},
    {STEP | LATE, 0, GATED, DECISION, NOW, R(DECISION), ADD, 0, V(DECISION_PART), 0},
    {BEFORE, 0, 0, DECISION, NOW, R(DECISION), ADD, 0, V(DECISION_PART), 0},
    {TASK(NORM), AFTER_NORM, 0, DECISION, NOW, R(DECISION), ADD, 0, V(DECISION), 0},
    {TASK(NORM), 0, AFTER_NORM, DECISION, NOW, R(DECISION), ADD, V(DECISION_PART), V(DECISION), 0},
    {TASK(NORM), 0, GATED, SQUARES, NOW, R(HOST), ADD, 0, V(SQUARES), 0},
    {TASK(NORM), GATED, 0, SQUARES, NOW, R(HOST), WRITE, 0, V(SQUARES), 0},
    {TASK(AGREE), 0, 0, DECISION, NOW, R(DECISION), ADD, V(OWN_DECISION), V(DECISION), 0},
    {TASK(REDUCE) | TASK(AGREE), 0, 0, SPACE, NOW, R(STAGING), WRITE, 0, 0, 0},
};
G_STATIC_ASSERT(G_N_ELEMENTS(table) < RP_NO_ROW && RP_N_TASK_KINDS <= 32);

static guint
bits_of(const RpVerifier *verifier)
{
    const RpPlanModes *modes = verifier->modes;

    return (modes->keeps ? KEEPS : 0) | (rp_modes_pack(modes) ? PACKED : 0) |
           (modes->weights == RP_WEIGHTS_PER_LAYER ? LAYERWISE : 0) |
           (modes->gradients == RP_GRADIENTS_SUMMED ? STAGED : 0) |
           (modes->servers > 1 ? SEVERAL : 0) |
           (modes->copies == RP_COPIES_BLOCKING ? BLOCKING : 0) |
           (modes->copies == RP_COPIES_FUSED ? FUSED : 0) |
           (rp_modes_wait_for_norm(modes) ? GATED : 0) |
           (modes->step == RP_STEP_AFTER_NORM ? AFTER_NORM : 0) |
           (verifier->evaluates ? EVALUATES : 0);
}

void
rp_verifier_pick_rows(RpVerifier *verifier)
{
    const guint when = bits_of(verifier);
    gboolean held = FALSE, saves = FALSE;

    for (guint l = 0; l < verifier->n_layers; l++) {
        held = held || rp_plan_layer(verifier->plan, l)->resident_bytes > 0;
        saves = saves || rp_plan_layer(verifier->plan, l)->saved_bytes > 0;
    }
    verifier->when = when;
    for (guint kind = 0; kind < RP_N_TASK_KINDS; kind++) {
        guint n = 0;

        for (guint i = 0; i < G_N_ELEMENTS(table); i++)
            if ((table[i].kinds >> kind & 1) != 0 && (table[i].when & OF_PLAN & ~when) == 0 &&
                (table[i].unless & when) == 0 && (held || (table[i].when & HELD) == 0) &&
                (saves || table[i].size != SIZE_SAVED || table[i].place != ANY_OF_LAYER))
                verifier->rows[kind][n++] = (guint8)i;
        g_assert(n < RP_MOST_ROWS);
        verifier->rows[kind][n] = RP_NO_ROW;
    }
}

/* 0: needs none, may have one */
static guint64
size_of(const Subject *at, Size size)
{
    const RpVerifier *verifier = at->verifier;
    const RpPlan *plan = at->plan;
    const RpPlanStage *stage = at->stage;
    guint64 bytes = 0;

    switch (size) {
    case SIZE_PARAMETERS:
        return stage->parameter_bytes;
    case SIZE_WORKSPACE:
        return stage->workspace_bytes;
    case SIZE_KEPT:
        return stage->kept_bytes;
    case SIZE_INPUT:
        return rp_plan_layer(plan, at->first)->input_bytes;
    case SIZE_SENT:
        return at->first > 0 ? rp_plan_layer(plan, at->first)->input_bytes : NOT_AT_ALL;
    case SIZE_OUTPUT:
        for (guint i = 0; i < stage->n_boundaries; i++)
            bytes += rp_plan_layer(plan, stage->boundaries[i])->input_bytes;
        return stage->n_boundaries > 0 ? bytes : NOT_AT_ALL;
    case SIZE_GRADIENT:
        return at->end < verifier->n_layers ? rp_plan_layer(plan, at->end)->input_bytes
                                            : NOT_AT_ALL;
    case SIZE_SUM:
        if (at->n > 0)
            bytes = stage->gradient_bytes / rp_verifier_leaving_element(verifier) * FP32_BYTES;
        break;
    case SIZE_LEAVING:
        bytes = stage->gradient_bytes;
        break;
    case SIZE_UPLOAD:
        bytes = stage->upload_bytes;
        break;
    case SIZE_SAVED:
        bytes = rp_plan_layer(plan, at->first)->saved_bytes;
        break;
    }
    return bytes > 0 ? bytes : NOT_AT_ALL;
}

/* ---- values ---- */

/* Chunks that are transferred at all. */
static guint
n_transferred(const RpChunks *chunks)
{
    guint n = 0;

    for (guint c = 0; c < chunks->n_chunks; c++)
        n += chunks->chunk_bytes[c] > 0;
    return n;
}

/* How much of the value that a row wants, or leaves, must be there. 0: any */
static guint
amount_of(const Subject *at, RpValueKind kind, guint role, gboolean leaves)
{
    const RpVerifier *verifier = at->verifier;

    switch (kind) {
    case RP_VALUE_INPUT: /* dispatched backwards have it brought up once more */
        return role != RP_ROLE_INPUT                                 ? 0
               : at->kind == RP_TASK_STASH_UPLOAD || at->session > 0 ? 2
                                                                     : 1;
    case RP_VALUE_SAVED: /* backwards find it uploaded again */
        return role != RP_ROLE_SAVED                                               ? 0
               : at->kind == RP_TASK_FORWARD || at->kind == RP_TASK_SAVED_DOWNLOAD ? 1
                                                                                   : 2;
    case RP_VALUE_PARAMETERS:
    case RP_VALUE_PACKED:
        return leaves ? at->n
               : rp_modes_pack(at->modes) && kind == RP_VALUE_PARAMETERS
                   ? 1
                   : n_transferred(&at->stage->parameters);
    case RP_VALUE_SUM:
        return leaves ? at->n : 0;
    case RP_VALUE_WORKSPACE: /* up to which step of the action */
        return leaves ? at->task->end_step : at->task->first_step;
    case RP_VALUE_STAGED:
        return leaves ? at->n : n_transferred(&at->stage->gradients);
    case RP_VALUE_GRADIENTS: /* all of them are read, at home; sums are of rounds before */
        if (at->kind == RP_TASK_GRADIENT_ACCUMULATE)
            return leaves ? at->round + at->n : at->round;
        return leaves                         ? at->n
               : rp_verifier_stages(verifier) ? verifier->rounds
                                              : verifier->layers[at->first].gradient_parts;
    case RP_VALUE_DECISION_PART:
        return leaves ? 1 : verifier->n_stepped;
    default:
        return 0;
    }
}

/* The value of a kind that @at has to do with. Several servers make parts of a value, until it is
 * exchanged. */
static RpSymbol
symbol_of(const Subject *at, RpValueKind kind, guint role, gboolean leaves)
{
    const gboolean action = rp_task_is_compute(at->task);
    const guint32 owners[] = {at->first, at->index, at->end, 0};
    const guint32 items[] = {0, at->micro_batch, at->round, at->item};
    const RpValueInfo *info = &rp_values[kind];
    RpSymbol made = {kind,
                     owners[info->of],
                     items[info->by],
                     at->task->iteration,
                     amount_of(at, kind, role, leaves),
                     0};

    if (kind == RP_VALUE_PARAMETERS || kind == RP_VALUE_PACKED)
        made.session = action && at->task->kind != RP_TASK_FORWARD ? RP_NONE : at->session;
    else if (kind == RP_VALUE_LEAVING && action && !leaves) /* it adds to the round before */
        made.item--;
    else if (kind == RP_VALUE_RESIDENT && !leaves)
        made.iteration = rp_plan_first_iteration(at->plan);
    else if (leaves && at->modes->servers > 1 && at->kind != RP_TASK_GATHER &&
             at->kind != RP_TASK_AGREE)
        made.kind = kind == RP_VALUE_WEIGHTS    ? RP_VALUE_WEIGHT_SHARE
                    : kind == RP_VALUE_DECISION ? RP_VALUE_OWN_DECISION
                                                : kind;
    if (!leaves && made.n == 0 &&
        (kind == RP_VALUE_PARAMETERS || kind == RP_VALUE_PACKED || kind == RP_VALUE_DECISION_PART))
        return NOTHING;
    return made;
}

/* ---- rows of a task ---- */

/* A buffer that comes and goes. */
static void
set_passing(const Subject *at, guint number, RpExpected *row)
{
    const RpTask *task = at->task;
    const guint role = row->role;

    row->device = role != RP_ROLE_HOST && role != RP_ROLE_STAGING;
    row->categories = table[number].categories;
    row->optional = row->bytes == 0;
    if (row->bytes == 0)
        row->wants = NOTHING; /* nothing travels */
    row->gathers = (role == RP_ROLE_SUM || role == RP_ROLE_STAGING || role == RP_ROLE_PACKED ||
                    role == RP_ROLE_PARAMETERS) &&
                   at->kind != RP_TASK_EXPAND;
    if (!rp_task_is_compute(task))
        return;
    if (role == RP_ROLE_INPUT && at->stage->bound && at->first > 0 && at->session == 0)
        row->instead = (RpSymbol){RP_VALUE_OUTPUT,
                                  rp_verifier_stage_of(at->verifier, at->first - 1, RP_FORWARD),
                                  at->micro_batch,
                                  task->iteration,
                                  0,
                                  0};
    if (role == RP_ROLE_GRADIENT && at->stage->bound)
        row->instead =
            (RpSymbol){RP_VALUE_OUTPUT_GRADIENT, at->end, at->micro_batch, task->iteration, 0, 0};
    /* the parts of an overlapped action share the workspace and, of one stage, the parameters */
    if (at->second &&
        (role == RP_ROLE_WORKSPACE || (role == RP_ROLE_PARAMETERS && task->stage == at->index)))
        row->optional = TRUE;
    if (role == RP_ROLE_LEAVING) {
        row->optional = TRUE;
        row->right_mode = at->modes->gradients == RP_GRADIENTS_KEPT && at->round > 0 ? ADD : WRITE;
    }
}

/* The buffer that the plan's tables name. */
static guint32
place_of(const Subject *at, Place place)
{
    const guint layer = at->first;
    const RpPlanLayer *of = place < DECISION ? rp_plan_layer(at->plan, layer) : NULL;
    const guint iteration = at->task->iteration;

    switch (place) {
    case FROZEN:
        return of->frozen;
    case WEIGHTS:
        return of->weights[rp_modes_versions(at->modes) == 2 ? iteration % 2 : 0];
    case GRADIENTS:
        return of->gradients[at->item];
    case COPIED:
        return of->copied;
    case REDUCED:
        return of->reduced;
    case OPTIMIZER:
        return of->optimizer;
    case RESIDENT:
        return rp_plan_resident(at->plan, at->device, layer);
    case SLOT_PARAMETERS:
        return rp_plan_slot_layer(at->plan, at->device, layer).parameters;
    case SLOT_LEAVING:
        return rp_plan_slot_layer(at->plan, at->device, layer).leaving;
    case DECISION:
        return rp_plan_decision(at->plan, iteration);
    case SQUARES:
        return rp_plan_exchange(at->plan).squares;
    default:
        return rp_plan_exchange(at->plan).space;
    }
}

/* The contents from before the plan will do, where it has not made the value that is wanted. A run that
 * is resumed begins with late copies of the iteration before it. */
static void
set_age(const Subject *at, RpExpected *row, Age age)
{
    const RpPlanModes *modes = at->modes;
    const guint ages[] = {0, 0, 1, 1 + modes->staleness, rp_plan_n_decisions(at->plan)};
    const guint32 now = at->task->iteration, first = rp_plan_first_iteration(at->plan);

    if (age == NOW)
        return;
    /* of an iteration that never was, if there is none: so that nothing but the initial one fits */
    row->wants.iteration = now < ages[age] ? RP_NONE : now - ages[age];
    row->initial = at->verifier->evaluates ||
                   (now < first + ages[age] &&
                    !(age == STALE && modes->staleness > 0 && modes->copies != RP_COPIES_FUSED &&
                      first > 0 && now > first));
}

static gboolean
is_named(const GArray *expected, guint32 buffer)
{
    for (guint i = 0; i < expected->len; i++)
        if (g_array_index(expected, RpExpected, i).buffer == buffer)
            return TRUE;
    return FALSE;
}

/* @number: of the row in the table. A layer's buffer may be named twice, where a matrix is tied. */
static void
add_row(const Subject *at, guint number)
{
    const gboolean passes = table[number].place <= ANY_OF_LAYER;
    const guint64 bytes = passes ? size_of(at, (Size)table[number].size) : 0;
    const guint32 buffer = passes ? RP_NONE : place_of(at, (Place)table[number].place);

    if (passes ? bytes == NOT_AT_ALL : buffer == RP_NONE || is_named(at->expected, buffer))
        return;
    g_array_set_size(at->expected, at->expected->len + 1);
    RpExpected *row = &g_array_index(at->expected, RpExpected, at->expected->len - 1);
    *row = (RpExpected){
        .buffer = buffer, .role = table[number].role, .mode = table[number].mode, .bytes = bytes};
    if (table[number].wants != RP_VALUE_NONE)
        row->wants = symbol_of(at, (RpValueKind)table[number].wants, row->role, FALSE);
    if (table[number].leaves != RP_VALUE_NONE)
        row->leaves = symbol_of(at, (RpValueKind)table[number].leaves, row->role, TRUE);
    if (passes) {
        set_passing(at, number, row);
        return;
    }
    set_age(at, row, (Age)table[number].size);
    row->optional = table[number].place == SLOT_LEAVING && rp_task_is_compute(at->task);
    row->gathers = row->leaves.kind == RP_VALUE_DECISION_PART ||
                   (row->leaves.kind == RP_VALUE_GRADIENTS && row->mode == WRITE);
    if (row->mode == RP_MAY_ADD)
        row->right_mode = at->round > 0 ? ADD : WRITE;
}

/* One for each round, of staging and of gradients that rounds have apart. */
static void
add_rounds(const Subject *at, guint number)
{
    const gboolean staging = table[number].role == RP_ROLE_STAGING && table[number].mode == READ;
    const guint n = staging ? at->n
                    : table[number].place == GRADIENTS && at->kind != RP_TASK_GRADIENT_DOWNLOAD
                        ? rp_modes_gradient_buffers(at->modes)
                        : 1;

    if ((table[number].when & ~at->when) != 0 || (table[number].unless & at->when) != 0)
        return;
    if (n == 1) {
        add_row(at, number);
        return;
    }
    Subject of = *at;
    for (guint i = 0; i < n; i++) {
        add_row(&of, number);
        of.round += staging;
        of.item += !staging;
    }
}

/* ---- layers of a task ---- */

static gboolean
holds(RpInterval layers, guint layer)
{
    return layer >= layers.first && layer < layers.first + layers.count;
}

/* The rows of a layer, and of one that is tied to it: those from @numbers on. */
static void
add_layer(const Subject *at, const guint8 *numbers, guint layer)
{
    const RpPlanLayer *row = rp_plan_layer(at->plan, layer);
    const RpTaskKind kind = (RpTaskKind)at->task->kind;
    const gboolean held = row->resident_bytes > 0;
    Subject of = *at;

    of.when |= (row->early ? EARLY : 0U) | (held ? HELD : 0U);
    if (rp_task_is_compute(at->task) && (of.when & LAYERWISE) != 0) {
        const gboolean down = holds(rp_task_downward(at->task, at->stage->layers), layer);
        const gboolean up = holds(rp_task_upward(at->task, at->stage->layers), layer);

        of.when |= (up || down ? RUNS : 0U) | (down ? DOWN : 0U);
    }
    for (of.first = layer; of.first != RP_NONE;) {
        for (const guint8 *number = numbers; *number != RP_NO_ROW; number++)
            if (table[*number].place < DECISION)
                add_rounds(&of, *number);
        if (of.first != layer)
            break;
        of.first = RP_NONE;
        if (kind == RP_TASK_RESIDENT_UPLOAD || (kind == RP_TASK_PARAMETER_UPLOAD && !held))
            of.first = row->tied_to;
        else if ((STEPS >> kind & 1) != 0)
            of.first = rp_plan_tied_from(at->plan, layer);
        of.when |= TIED;
    }
}

/* The layers of a task: those whose segments are in its chunk; all, of the norm; its own, or its stage's. */
static void
add_layers(const Subject *at, const guint8 *numbers)
{
    const RpTask *task = at->task;
    const gboolean up = task->kind == RP_TASK_PARAMETER_UPLOAD;
    RpInterval layers = {task->layer, 1};

    if (up || task->kind == RP_TASK_GRADIENT_DOWNLOAD) {
        const RpChunks *chunks = up ? &at->stage->parameters : &at->stage->gradients;
        const RpSegment *segments = chunks->segments;
        const guint first = chunks->first_segment[task->chunk];

        for (guint i = first; i < chunks->first_segment[task->chunk + 1]; i++)
            if (i == first || segments[i].layer != segments[i - 1].layer)
                add_layer(at, numbers, segments[i].layer);
        return;
    }
    if (task->kind == RP_TASK_NORM)
        layers = (RpInterval){0, at->verifier->n_layers};
    else if (at->stage != NULL)
        layers = at->stage->layers;
    for (guint l = layers.first; l < layers.first + layers.count; l++)
        add_layer(at, numbers, l);
}

static void
add_rows(const Subject *at)
{
    const guint8 *number = at->verifier->rows[at->kind];

    for (; *number != RP_NO_ROW && table[*number].place == ANY; number++)
        add_rounds(at, *number);
    if (*number != RP_NO_ROW && table[*number].place < DECISION)
        add_layers(at, number);
    for (; *number != RP_NO_ROW; number++)
        if (table[*number].place >= DECISION)
            add_rounds(at, *number);
}

/* ---- subjects ---- */

/* An action, or a part of one that is overlapped. */
static void
add_action(Subject at, guint32 stage, guint32 micro_batch, RpTaskKind kind)
{
    const RpVerifier *verifier = at.verifier;
    const RpInterval layers = rp_plan_stage(at.plan, stage)->layers;
    const RpInterval down = rp_task_downward(at.task, layers);

    at.kind = kind;
    at.stage = rp_plan_stage(at.plan, stage);
    at.index = stage;
    at.micro_batch = micro_batch;
    at.round = rp_verifier_slot_round(verifier,
                                      micro_batch / (verifier->micro_batches / verifier->rounds));
    at.first = layers.first;
    at.end = layers.first + layers.count;
    at.n = at.modes->weights == RP_WEIGHTS_PER_LAYER ? down.count : 1;
    at.session = kind != RP_TASK_FORWARD && kind != RP_TASK_FUSED && !at.stage->bound;
    if (holds(down, verifier->n_layers - 1))
        at.when |= LOSS;
    if (rp_task_is_piece(at.task) && at.task->first_step > 0)
        at.when |= FOLLOWS;
    add_rows(&at);
}

/* A slot's parameters or gradients: a chunk of them, all, or those of some rounds, its own last. */
static void
add_slot(Subject at, guint32 session)
{
    const RpTask *task = at.task;

    at.stage = rp_plan_stage(at.plan, task->stage);
    at.index = task->stage;
    at.round = rp_verifier_slot_round(at.verifier, task->round);
    at.session = session;
    at.n = 1;
    if (at.kind == RP_TASK_GRADIENT_ACCUMULATE) {
        at.n = rp_verifier_n_summed(at.verifier, task);
        at.round = task->round + 1U - at.n;
    } else if (at.kind == RP_TASK_PARAMETER_UPLOAD) {
        at.n = at.stage->parameters.chunk_bytes[task->chunk] > 0;
    } else if (at.kind == RP_TASK_GRADIENT_DOWNLOAD) {
        at.n = at.stage->gradients.chunk_bytes[task->chunk] > 0;
        at.item = at.modes->gradients == RP_GRADIENTS_APART ? task->round : 0;
        if (at.modes->gradients == RP_GRADIENTS_KEPT) /* they leave with the last round */
            at.round = rp_verifier_slot_round(at.verifier, at.modes->rounds - 1);
    }
    add_rows(&at);
}

void
rp_verifier_expect(const RpVerifier *verifier, const RpTask *task, guint32 session,
                   GArray *expected)
{
    Subject at = {.verifier = verifier,
                  .plan = verifier->plan,
                  .modes = verifier->modes,
                  .task = task,
                  .kind = (RpTaskKind)task->kind,
                  .device = rp_plan_lane_device(verifier->plan, task->lane),
                  .when = verifier->when,
                  .micro_batch = task->micro_batch,
                  .first = task->layer,
                  .end = task->layer,
                  .expected = expected};

    g_array_set_size(expected, 0);
    if (task->kind == RP_TASK_OVERLAP) {
        add_action(at, task->stage, task->micro_batch, RP_TASK_FORWARD);
        at.second = TRUE;
        add_action(at, task->backward_stage, task->backward_micro_batch, RP_TASK_BACKWARD);
    } else if (rp_task_is_compute(task)) {
        add_action(at, task->stage, task->micro_batch, at.kind);
    } else {
        const RpIdentity identity = rp_verifier_identity(at.kind);

        if (identity == RP_PER_CHUNK || identity == RP_PER_SLOT) {
            add_slot(at, session);
            return;
        }
        if (task->kind == RP_TASK_ACTIVATION_DOWNLOAD) { /* of the stage before */
            at.index = rp_verifier_stage_of(verifier, task->layer - 1, RP_FORWARD);
            at.stage = rp_plan_stage(verifier->plan, at.index);
        }
        add_rows(&at);
    }
}
