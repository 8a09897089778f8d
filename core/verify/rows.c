/*
 * Accesses of a task, the value that each must find, and the one that it leaves. A table has a row for
 * each access of actions and transfers; for other tasks the plan's tables of stages and layers say in
 * which buffer a value is. Here W are weights, A activations at a boundary, A' their gradients, G
 * gradients, O optimizer states and D decisions:
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

typedef struct {
    const RpVerifier *verifier;
    const RpPlan *plan;
    const RpPlanModes *modes;
    const RpTask *task;
    guint32 device;
    guint32 session;  /* of parameters */
    guint when;       /* bits of the plan's modes */
    GArray *expected; /* RpExpected */
} Rows;

/* The data that a task, or a part of it, works on. */
typedef struct {
    const RpPlanStage *stage;
    guint32 index; /* of the stage */
    guint32 micro_batch;
    guint32 round;   /* of the slot */
    guint32 first;   /* layer, or boundary */
    guint32 end;     /* boundary behind its layers, or the same */
    guint32 n;       /* added to a sum; 1 for a chunk that is transferred */
    guint32 session; /* of its parameters */
    gboolean second; /* part of an overlapped action */
} Subject;

/* ---- actions and transfers: the table ---- */

/* The size that a buffer must have. */
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

/* In which plans there is such an access, as bits. */
enum { ALWAYS = 0, KEEPS = 1, REMAKES = 2, PACKED = 4, WHOLE = 8, STAGED = 16, STAGEWISE = 32 };

#define CATEGORY(name) (1U << RP_BUFFER_##name)
#define VALUES (CATEGORY(ACTIVATIONS) | CATEGORY(STASH))
#define TASK(name) (1U << RP_TASK_##name)
#define F TASK(FORWARD)
#define B (TASK(BACKWARD) | TASK(FUSED))
#define I TASK(INPUT_GRADIENT)
#define W TASK(WEIGHT_GRADIENT)
#define UP (TASK(ACTIVATION_UPLOAD) | TASK(STASH_UPLOAD))
#define R(name) RP_ROLE_##name
#define V(name) RP_VALUE_##name
#define A CATEGORY(ACTIVATIONS)
#define P CATEGORY(PARAMETERS)
#define S CATEGORY(WORKSPACE)
#define G CATEGORY(GRADIENTS)
#define H CATEGORY(STASH)

/* Accesses of buffers that come and go. Host buffers and staging lie on the host, all others on the
 * task's device. */
static const struct {
    guint kinds; /* bits */
    guint8 when;
    guint8 role;
    guint8 mode;
    guint8 size;
    guint8 wants; /* RpValueKind */
    guint8 leaves;
    guint categories; /* bits */
} table[] = {
    {F | B | I | W, ALWAYS, R(PARAMETERS), READ, SIZE_PARAMETERS, V(PARAMETERS), 0, P},
    {F | B | I | W, ALWAYS, R(WORKSPACE), WRITE, SIZE_WORKSPACE, 0, 0, S},
    {F | B | I | W, ALWAYS, R(INPUT), READ, SIZE_INPUT, V(INPUT), 0, VALUES},
    {F, ALWAYS, R(OUTPUT), WRITE, SIZE_OUTPUT, 0, V(OUTPUT), VALUES},
    {B | I, ALWAYS, R(GRADIENT), READ, SIZE_GRADIENT, V(INPUT_GRADIENT), 0, A},
    {B | I, ALWAYS, R(OUTPUT), WRITE, SIZE_SENT, 0, V(OUTPUT_GRADIENT), A},
    {B | W, ALWAYS, R(SUM), RP_MAY_ADD, SIZE_SUM, V(SUM), V(SUM), CATEGORY(ACCUMULATORS)},
    {B | W, ALWAYS, R(LEAVING), RP_MAY_ADD, SIZE_LEAVING, V(LEAVING), V(LEAVING), G},
    /* from I to W; or from the forward on, of a plan that keeps its results */
    {F, KEEPS, R(KEPT), WRITE, SIZE_KEPT, 0, V(KEPT_FORWARD), S},
    {TASK(BACKWARD), KEEPS, R(KEPT), READ, SIZE_KEPT, V(KEPT_FORWARD), 0, S},
    {I, KEEPS, R(KEPT), ADD, SIZE_KEPT, V(KEPT_FORWARD), V(KEPT_BACKWARD), S},
    {I, REMAKES, R(KEPT), WRITE, SIZE_KEPT, 0, V(KEPT_BACKWARD), S},
    {W, ALWAYS, R(KEPT), READ, SIZE_KEPT, V(KEPT_BACKWARD), 0, S},

    {TASK(ACTIVATION_DOWNLOAD), ALWAYS, R(OUTPUT), READ, SIZE_OUTPUT, V(OUTPUT), 0, VALUES},
    {TASK(ACTIVATION_DOWNLOAD), ALWAYS, R(HOST), WRITE, SIZE_SENT, 0, V(INPUT), VALUES},
    {UP, ALWAYS, R(HOST), READ, SIZE_SENT, V(INPUT), 0, VALUES},
    {UP, ALWAYS, R(INPUT), WRITE, SIZE_INPUT, 0, V(INPUT), VALUES},
    {TASK(ACTGRAD_DOWNLOAD), ALWAYS, R(OUTPUT), READ, SIZE_INPUT, V(OUTPUT_GRADIENT), 0, VALUES},
    {TASK(ACTGRAD_DOWNLOAD), ALWAYS, R(HOST), WRITE, SIZE_SENT, 0, V(INPUT_GRADIENT), VALUES},
    {TASK(ACTGRAD_UPLOAD), ALWAYS, R(HOST), READ, SIZE_SENT, V(INPUT_GRADIENT), 0, VALUES},
    {TASK(ACTGRAD_UPLOAD), ALWAYS, R(GRADIENT), WRITE, SIZE_INPUT, 0, V(INPUT_GRADIENT), VALUES},
    {TASK(SAVED_DOWNLOAD), ALWAYS, R(SAVED), READ, SIZE_SAVED, V(SAVED), 0, A},
    {TASK(SAVED_DOWNLOAD), ALWAYS, R(HOST), WRITE, SIZE_SAVED, 0, V(SAVED), H},
    {TASK(SAVED_UPLOAD), ALWAYS, R(HOST), READ, SIZE_SAVED, V(SAVED), 0, H},
    {TASK(SAVED_UPLOAD), ALWAYS, R(SAVED), WRITE, SIZE_SAVED, 0, V(SAVED), A},
    {TASK(PARAMETER_UPLOAD), PACKED, R(PACKED), WRITE, SIZE_UPLOAD, 0, V(PACKED), P},
    {TASK(PARAMETER_UPLOAD), WHOLE, R(PARAMETERS), WRITE, SIZE_UPLOAD, 0, V(PARAMETERS), P},
    {TASK(EXPAND), ALWAYS, R(PACKED), READ, SIZE_UPLOAD, V(PACKED), 0, P},
    {TASK(EXPAND), ALWAYS, R(PARAMETERS), WRITE, SIZE_PARAMETERS, 0, V(PARAMETERS), P},
    {TASK(GRADIENT_DOWNLOAD), STAGEWISE, R(LEAVING), READ, SIZE_LEAVING, V(LEAVING), 0, G},
    {TASK(GRADIENT_DOWNLOAD), STAGED, R(STAGING), WRITE, SIZE_LEAVING, 0, V(STAGED),
     CATEGORY(STAGING)},
};

static guint
bits_of(const RpPlanModes *modes)
{
    return (modes->keeps ? KEEPS : REMAKES) | (rp_modes_pack(modes) ? PACKED : 0) |
           (!rp_modes_pack(modes) && modes->weights != RP_WEIGHTS_PER_LAYER ? WHOLE : 0) |
           (modes->gradients == RP_GRADIENTS_SUMMED ? STAGED : 0) |
           (modes->weights == RP_WEIGHTS_PER_LAYER ? 0 : STAGEWISE);
}

/* 0: needs none, may have one */
static guint64
size_of(const Rows *rows, const Subject *at, Size size)
{
    const RpVerifier *verifier = rows->verifier;
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
        return rp_verifier_input_bytes(verifier, at->first);
    case SIZE_SENT:
        return at->first > 0 ? rp_verifier_input_bytes(verifier, at->first) : NOT_AT_ALL;
    case SIZE_OUTPUT:
        for (guint i = 0; i < stage->n_boundaries; i++)
            bytes += rp_verifier_input_bytes(verifier, stage->boundaries[i]);
        return stage->n_boundaries > 0 ? bytes : NOT_AT_ALL;
    case SIZE_GRADIENT:
        return at->end < verifier->n_layers ? rp_verifier_input_bytes(verifier, at->end)
                                            : NOT_AT_ALL;
    case SIZE_SUM:
        bytes = stage->gradient_bytes / rp_verifier_leaving_element(verifier) * FP32_BYTES;
        break;
    case SIZE_LEAVING:
        bytes = stage->gradient_bytes;
        break;
    case SIZE_UPLOAD:
        bytes = stage->upload_bytes;
        break;
    case SIZE_SAVED:
        bytes = rp_plan_layer(rows->plan, at->first)->saved_bytes;
        break;
    }
    return bytes > 0 ? bytes : NOT_AT_ALL;
}

static RpSymbol
symbol(const Rows *rows, RpValueKind kind, guint32 of, guint32 item, guint32 n)
{
    return (RpSymbol){kind, of, item, rows->task->iteration, n, 0};
}

/* A value of a layer, or the only one of the iteration. */
static RpSymbol
single(const Rows *rows, RpValueKind kind, guint32 of)
{
    return symbol(rows, kind, of, 0, 0);
}

/* Chunks that are transferred at all. */
static guint
n_transferred(const RpChunks *chunks)
{
    guint n = 0;

    for (guint c = 0; c < chunks->n_chunks; c++)
        n += chunks->chunk_bytes[c] > 0;
    return n;
}

/* The value of a kind that @at has to do with. */
static RpSymbol
symbol_of(const Rows *rows, const Subject *at, RpValueKind kind, guint role, gboolean leaves)
{
    const RpTaskKind task = (RpTaskKind)rows->task->kind;
    const gboolean action = rp_task_is_compute(rows->task);
    RpSymbol made;

    switch (kind) {
    case RP_VALUE_NONE:
        return NOTHING;
    case RP_VALUE_INPUT:
        made = symbol(rows, kind, at->first, at->micro_batch, 0);
        if (role == RP_ROLE_INPUT) /* dispatched backwards have it brought up once more */
            made.n = task == RP_TASK_STASH_UPLOAD || (action && at->session > 0) ? 2 : 1;
        return made;
    case RP_VALUE_SAVED:
        return symbol(rows, kind, at->first, at->micro_batch,
                      role != RP_ROLE_SAVED          ? 0
                      : task == RP_TASK_SAVED_UPLOAD ? 2
                                                     : 1);
    case RP_VALUE_OUTPUT_GRADIENT:
        return symbol(rows, kind, at->first, at->micro_batch, 0);
    case RP_VALUE_INPUT_GRADIENT:
        return symbol(rows, kind, at->end, at->micro_batch, 0);
    case RP_VALUE_PARAMETERS:
    case RP_VALUE_PACKED:
        made = symbol(rows, kind, at->index, at->round, at->n);
        if (!leaves)
            made.n = rp_modes_pack(rows->modes) && kind == RP_VALUE_PARAMETERS
                         ? 1
                         : n_transferred(&at->stage->parameters);
        made.session = action && task != RP_TASK_FORWARD ? RP_NONE : at->session;
        return !leaves && made.n == 0 ? NOTHING : made;
    case RP_VALUE_SUM:
    case RP_VALUE_STAGED:
        return symbol(rows, kind, at->index, at->round, leaves ? at->n : 0);
    case RP_VALUE_LEAVING: /* an action adds to the round before */
        return symbol(rows, kind, at->index, at->round - (action && !leaves ? 1 : 0), 0);
    default:
        return symbol(rows, kind, at->index, at->micro_batch, 0);
    }
}

static RpExpected *
add(Rows *rows, RpAccessRole role, guint16 mode, RpSymbol wants, RpSymbol leaves)
{
    const RpExpected row = {
        .buffer = RP_NONE, .role = (guint16)role, .mode = mode, .wants = wants, .leaves = leaves};

    g_array_append_val(rows->expected, row);
    return &g_array_index(rows->expected, RpExpected, rows->expected->len - 1);
}

/* A buffer of the plan's tables. Returns: (nullable): %NULL if there is none, or it was named before: a
 * layer's may be named twice, where a matrix is tied. */
static RpExpected *
place(Rows *rows, guint32 buffer, RpAccessRole role, guint16 mode, RpSymbol wants, RpSymbol leaves)
{
    if (buffer == RP_NONE)
        return NULL;
    for (guint i = 0; i < rows->expected->len; i++)
        if (g_array_index(rows->expected, RpExpected, i).buffer == buffer)
            return NULL;
    RpExpected *row = add(rows, role, mode, wants, leaves);
    row->buffer = buffer;
    return row;
}

static RpExpected *
host(Rows *rows, guint32 buffer, guint16 mode, RpSymbol wants, RpSymbol leaves)
{
    return place(rows, buffer, RP_ROLE_HOST, mode, wants, leaves);
}

/* @number: of the row in the table */
static void
add_from_table(Rows *rows, const Subject *at, guint number)
{
    const guint role = table[number].role;
    const gboolean action = rp_task_is_compute(rows->task);
    const guint64 bytes = size_of(rows, at, (Size)table[number].size);

    if (bytes == NOT_AT_ALL)
        return;
    RpExpected *row = add(rows, (RpAccessRole)role, table[number].mode,
                          symbol_of(rows, at, (RpValueKind)table[number].wants, role, FALSE),
                          symbol_of(rows, at, (RpValueKind)table[number].leaves, role, TRUE));
    row->device = role != RP_ROLE_HOST && role != RP_ROLE_STAGING;
    row->categories = table[number].categories;
    row->bytes = bytes;
    row->optional = bytes == 0;
    if (bytes == 0)
        row->wants = NOTHING; /* nothing travels */
    row->gathers = (role == RP_ROLE_SUM || role == RP_ROLE_STAGING || role == RP_ROLE_PACKED ||
                    role == RP_ROLE_PARAMETERS) &&
                   rows->task->kind != RP_TASK_EXPAND;
    if (!action)
        return;
    if (role == RP_ROLE_INPUT && at->stage->bound && at->first > 0 && at->session == 0)
        row->instead = symbol(rows, RP_VALUE_OUTPUT, rows->verifier->forward_of[at->first - 1],
                              at->micro_batch, 0);
    if (role == RP_ROLE_GRADIENT && at->stage->bound)
        row->instead = symbol(rows, RP_VALUE_OUTPUT_GRADIENT, at->end, at->micro_batch, 0);
    /* the parts of an overlapped action share the workspace and, of one stage, the parameters */
    if (at->second && (role == RP_ROLE_WORKSPACE ||
                       (role == RP_ROLE_PARAMETERS && rows->task->stage == at->index)))
        row->optional = TRUE;
    if (role == RP_ROLE_LEAVING) {
        row->optional = TRUE;
        row->right_mode =
            rows->modes->gradients == RP_GRADIENTS_KEPT && at->round > 0 ? ADD : WRITE;
    }
}

/* Adds the rows of a kind of task. @roles: bits of them; G_MAXUINT: all */
static void
add_table(Rows *rows, const Subject *at, RpTaskKind kind, guint roles)
{
    for (guint i = 0; i < G_N_ELEMENTS(table); i++)
        if ((table[i].kinds >> kind & 1) != 0 && (roles >> table[i].role & 1) != 0 &&
            (table[i].when & ~rows->when) == 0)
            add_from_table(rows, at, i);
}

static const RpPlanLayer *
layer_of(const Rows *rows, guint layer)
{
    return rp_plan_layer(rows->plan, layer);
}

/* A place that holds a value of @age iterations before, or its contents from before the plan. */
static RpExpected *
place_earlier(Rows *rows, guint32 buffer, RpAccessRole role, guint16 mode, RpSymbol wants,
              guint age, RpSymbol leaves)
{
    const guint32 now = rows->task->iteration;

    /* of an iteration that never was, if there is none: so that nothing but the initial one fits */
    wants.iteration = now < age ? RP_NONE : now - age;
    RpExpected *row = place(rows, buffer, role, mode, wants, leaves);
    if (row != NULL)
        row->initial = rows->verifier->evaluates || now < rp_plan_first_iteration(rows->plan) + age;
    return row;
}

/* ---- actions ---- */

static Subject
part_of(const Rows *rows, guint32 stage, guint32 micro_batch, RpTaskKind kind)
{
    const RpPlanStage *of = rp_plan_stage(rows->plan, stage);
    const guint per_round = rows->verifier->micro_batches / rows->verifier->rounds;
    const gboolean again = kind != RP_TASK_FORWARD && kind != RP_TASK_FUSED && !of->bound;

    return (Subject){.stage = of,
                     .index = stage,
                     .micro_batch = micro_batch,
                     .round = rp_verifier_slot_round(rows->verifier, micro_batch / per_round),
                     .first = of->layers.first,
                     .end = of->layers.first + of->layers.count,
                     .n = 1,
                     .session = again};
}

/* Saved tensors: one buffer for each that saves something, neither in the fused stage, whose forward
 * is its backward's, nor where nothing is trained. */
static void
add_saved(Rows *rows, const Subject *at, RpTaskKind kind)
{
    for (guint l = at->first; l < at->end && !rows->verifier->evaluates; l++) {
        const RpSymbol saved = symbol(rows, RP_VALUE_SAVED, l, at->micro_batch,
                                      kind == RP_TASK_FORWARD ? 1 : 2); /* uploaded again */
        const guint64 bytes = layer_of(rows, l)->saved_bytes;
        RpExpected *row;

        if (bytes == 0 || kind == RP_TASK_FUSED)
            continue;
        row = add(rows, RP_ROLE_SAVED, kind == RP_TASK_FORWARD ? WRITE : ADD, saved, saved);
        row->device = TRUE;
        row->categories = CATEGORY(ACTIVATIONS);
        row->bytes = bytes;
    }
}

/* A fused action of a layerwise plan, or a piece of it. */
static void
add_steps(Rows *rows, Subject *at)
{
    const RpTask *task = rows->task;
    const RpInterval up = rp_task_upward(task, at->stage->layers);
    const RpInterval down = rp_task_downward(task, at->stage->layers);
    const gboolean goes_on = rp_task_is_piece(task) && task->first_step > 0;
    const guint workspace = rows->expected->len;

    add_table(rows, at, RP_TASK_FUSED, 1U << RP_ROLE_WORKSPACE | 1U << RP_ROLE_INPUT);
    RpExpected *row = &g_array_index(rows->expected, RpExpected, workspace);
    row->leaves = symbol(rows, RP_VALUE_WORKSPACE, at->index, at->micro_batch, task->end_step);
    if (goes_on) {
        row->optional = FALSE;
        row->mode = ADD;
        row->wants = row->leaves;
        row->wants.n = task->first_step;
    }
    at->n = down.count;
    if (down.count > 0)
        add_table(rows, at, RP_TASK_FUSED, 1U << RP_ROLE_SUM);
    for (guint i = 0; i < up.count + down.count; i++) {
        const guint layer = i < up.count ? up.first + i : down.first + i - up.count;
        const RpPlanSlotLayer places = rp_plan_slot_layer(rows->plan, rows->device, layer);

        place(rows, places.parameters, RP_ROLE_PARAMETERS, READ,
              symbol(rows, RP_VALUE_LAYER, layer, at->round, 0), NOTHING);
        row = i < up.count ? NULL
                           : place(rows, places.leaving, RP_ROLE_LEAVING, WRITE, NOTHING,
                                   symbol(rows, RP_VALUE_LAYER_LEAVING, layer, at->round, 0));
        if (row != NULL)
            row->optional = TRUE;
    }
}

/* Resident parameters of the layers of @stage on the task's device. */
static void
add_resident(Rows *rows, guint32 stage)
{
    const RpInterval layers = rp_plan_stage(rows->plan, stage)->layers;

    for (guint l = layers.first; l < layers.first + layers.count; l++) {
        RpSymbol wants = single(rows, RP_VALUE_RESIDENT, l);

        wants.iteration = rp_plan_first_iteration(rows->plan);
        if (layer_of(rows, l)->resident_bytes > 0)
            place(rows, rp_plan_resident(rows->plan, rows->device, l), RP_ROLE_RESIDENT, READ,
                  wants, NOTHING);
    }
}

static void
add_action(Rows *rows)
{
    const RpTask *task = rows->task;
    const gboolean two = task->kind == RP_TASK_OVERLAP;
    const RpTaskKind kind = two ? RP_TASK_FORWARD : (RpTaskKind)task->kind;
    Subject part = part_of(rows, task->stage, task->micro_batch, kind);

    if (rows->modes->weights == RP_WEIGHTS_PER_LAYER && kind == RP_TASK_FUSED) {
        add_steps(rows, &part);
    } else {
        add_table(rows, &part, kind, G_MAXUINT);
        add_saved(rows, &part, kind);
    }
    if (two) {
        part = part_of(rows, task->backward_stage, task->backward_micro_batch, RP_TASK_BACKWARD);
        part.second = TRUE;
        add_table(rows, &part, RP_TASK_BACKWARD, G_MAXUINT);
    }
    if (!rp_modes_pack(rows->modes))
        add_resident(rows, task->stage);
    if (!rp_modes_pack(rows->modes) && two)
        add_resident(rows, task->backward_stage);
    if (rp_modes_wait_for_norm(rows->modes) && rp_action_makes_loss(rows->verifier, task))
        place_earlier(rows, rp_plan_decision(rows->plan, task->iteration), RP_ROLE_DECISION, READ,
                      single(rows, RP_VALUE_DECISION, 0), rp_plan_n_decisions(rows->plan), NOTHING);
}

/* ---- transfers ---- */

static guint32
weights_of(const Rows *rows, guint layer)
{
    return layer_of(rows, layer)
        ->weights[rp_modes_versions(rows->modes) == 2 ? rows->task->iteration % 2 : 0];
}

/* Weights that an upload reads: those that the last iteration has made or, asynchronous, the one before. */
static void
add_weights(Rows *rows, guint layer, gboolean frozen)
{
    const RpPlanModes *modes = rows->modes;

    if (frozen)
        host(rows, layer_of(rows, layer)->frozen, READ, NOTHING, NOTHING);
    RpExpected *row =
        place_earlier(rows, weights_of(rows, layer), RP_ROLE_HOST, READ,
                      single(rows, RP_VALUE_WEIGHTS, layer), 1 + modes->staleness, NOTHING);
    /* a run that is resumed begins with late copies of the iteration before it */
    if (row != NULL && modes->staleness > 0 && modes->copies != RP_COPIES_FUSED &&
        rp_plan_first_iteration(rows->plan) > 0 &&
        rows->task->iteration > rp_plan_first_iteration(rows->plan))
        row->initial = rows->verifier->evaluates;
}

/* The host buffers that a layer's segments in a chunk are copied from, or to. */
static void
add_host_side(Rows *rows, const Subject *at, guint layer)
{
    const RpPlanLayer *of = layer_of(rows, layer);
    const guint32 apart = rows->modes->gradients == RP_GRADIENTS_APART ? rows->task->round : 0;

    if (rows->task->kind == RP_TASK_PARAMETER_UPLOAD) {
        add_weights(rows, layer, of->resident_bytes == 0);
        if (of->tied_to != RP_NONE && of->resident_bytes == 0)
            add_weights(rows, of->tied_to, TRUE);
    } else if (!rp_verifier_stages(rows->verifier)) {
        RpExpected *row = host(rows, of->gradients[apart], WRITE, NOTHING,
                               symbol(rows, RP_VALUE_GRADIENTS, layer, apart, at->n));

        if (row != NULL)
            row->gathers = TRUE;
    }
}

/* A chunk of parameters or gradients; or all parameters of a slot, which are expanded. */
static void
add_chunk(Rows *rows)
{
    const RpTask *task = rows->task;
    const gboolean up = task->kind == RP_TASK_PARAMETER_UPLOAD;
    const RpPlanStage *stage = rp_plan_stage(rows->plan, task->stage);
    const RpChunks *chunks = up ? &stage->parameters : &stage->gradients;
    const RpSegment *segments = chunks->segments;
    Subject at = {
        .stage = stage, .index = task->stage, .round = task->round, .session = rows->session};

    /* sums that stay on the device leave with the last round */
    if (task->kind == RP_TASK_GRADIENT_DOWNLOAD && rows->modes->gradients == RP_GRADIENTS_KEPT)
        at.round = rows->modes->rounds - 1;
    at.round = rp_verifier_slot_round(rows->verifier, at.round);
    if (task->kind == RP_TASK_EXPAND) {
        at.n = 1;
        add_table(rows, &at, RP_TASK_EXPAND, G_MAXUINT);
        add_resident(rows, task->stage);
        return;
    }
    const guint first = chunks->first_segment[task->chunk];
    const guint end = chunks->first_segment[task->chunk + 1];
    at.n = chunks->chunk_bytes[task->chunk] > 0;
    if (rows->modes->weights == RP_WEIGHTS_PER_LAYER) {
        const guint32 layer = segments[first].layer;
        const RpPlanSlotLayer places = rp_plan_slot_layer(rows->plan, rows->device, layer);

        if (up)
            place(rows, places.parameters, RP_ROLE_PARAMETERS, WRITE, NOTHING,
                  symbol(rows, RP_VALUE_LAYER, layer, at.round, 0));
        else
            place(rows, places.leaving, RP_ROLE_LEAVING, READ,
                  symbol(rows, RP_VALUE_LAYER_LEAVING, layer, at.round, 0), NOTHING);
    }
    add_table(rows, &at, (RpTaskKind)task->kind, G_MAXUINT);
    for (guint i = first; i < end; i++)
        if (i == first || segments[i].layer != segments[i - 1].layer)
            add_host_side(rows, &at, segments[i].layer);
}

static void
add_resident_upload(Rows *rows)
{
    const guint layer = rows->task->layer, tied_to = layer_of(rows, layer)->tied_to;

    host(rows, layer_of(rows, layer)->frozen, READ, NOTHING, NOTHING);
    if (tied_to != RP_NONE)
        host(rows, layer_of(rows, tied_to)->frozen, READ, NOTHING, NOTHING);
    place(rows, rp_plan_resident(rows->plan, rows->device, layer), RP_ROLE_RESIDENT, WRITE, NOTHING,
          single(rows, RP_VALUE_RESIDENT, layer));
}

/* An activation or a saved tensor on its way. */
static void
add_transport(Rows *rows)
{
    const RpTask *task = rows->task;
    Subject at = {.micro_batch = task->micro_batch, .first = task->layer, .end = task->layer};

    if (task->kind == RP_TASK_ACTIVATION_DOWNLOAD) { /* of the stage before */
        at.index = rows->verifier->forward_of[task->layer - 1];
        at.stage = rp_plan_stage(rows->plan, at.index);
    }
    add_table(rows, &at, (RpTaskKind)task->kind, G_MAXUINT);
}

/* ---- the optimizer ---- */

/* Gradients of all rounds, as they reach the host. */
static void
add_gradients_home(Rows *rows, guint layer)
{
    const RpVerifier *verifier = rows->verifier;
    const guint n =
        rp_verifier_stages(verifier) ? verifier->rounds : verifier->gradient_parts[layer];

    for (guint i = 0; i < rp_modes_gradient_buffers(rows->modes); i++)
        host(rows, layer_of(rows, layer)->gradients[i], READ,
             symbol(rows, RP_VALUE_GRADIENTS, layer, i, n), NOTHING);
}

/* A layer's gradients as the norm and the steps read them: with several servers their sum. */
static void
add_update(Rows *rows, guint layer, gboolean copied)
{
    const RpPlanLayer *of = layer_of(rows, layer);

    if (rows->modes->servers > 1)
        host(rows, of->reduced, READ, single(rows, RP_VALUE_REDUCED, layer), NOTHING);
    else if (copied)
        host(rows, of->copied, READ, single(rows, RP_VALUE_COPIED, layer), NOTHING);
    else
        add_gradients_home(rows, layer);
}

static RpValueKind
new_weights(const Rows *rows)
{
    return rows->modes->servers > 1 ? RP_VALUE_WEIGHT_SHARE : RP_VALUE_WEIGHTS;
}

/* A step, or one that is early or late; of the layer, and of the one that is tied to it. */
static void
add_step(Rows *rows)
{
    const RpPlanModes *modes = rows->modes;
    const guint layer = rows->task->layer;
    const guint tied = rp_plan_tied_from(rows->plan, layer);
    const RpPlanLayer *row = layer_of(rows, layer);
    const gboolean early = rows->task->kind == RP_TASK_EARLY_STEP;
    const gboolean late = rows->task->kind == RP_TASK_LATE_STEP;
    const RpSymbol half = single(rows, RP_VALUE_HALF_STATE, layer);
    const RpSymbol preview = single(rows, RP_VALUE_EARLY_WEIGHTS, layer);
    const guint32 decision = rp_plan_decision(rows->plan, rows->task->iteration);
    const RpSymbol state = single(rows, RP_VALUE_STATE, layer);

    add_update(rows, layer, modes->copies == RP_COPIES_BLOCKING);
    if (tied != RP_NONE)
        add_update(rows, tied, modes->copies == RP_COPIES_BLOCKING);
    if (!early || row->early)
        place_earlier(rows, row->optimizer, RP_ROLE_HOST, early ? READ : ADD, late ? half : state,
                      late ? 0 : 1, row->early && !late ? half : state);
    if (modes->copies == RP_COPIES_FUSED && !late && (!early || row->early))
        host(rows, weights_of(rows, layer), row->early && !early ? ADD : WRITE, preview,
             early ? preview : single(rows, new_weights(rows), layer));
    if (modes->servers > 1 && !rp_modes_wait_for_norm(modes))
        host(rows, rp_plan_exchange(rows->plan).squares, ADD, NOTHING, NOTHING);
    if (rp_modes_wait_for_norm(modes) && !early) {
        place(rows, decision, RP_ROLE_DECISION, READ, single(rows, RP_VALUE_DECISION, 0), NOTHING);
        return;
    }
    RpExpected *part = place(rows, decision, RP_ROLE_DECISION, ADD, NOTHING,
                             symbol(rows, RP_VALUE_DECISION_PART, 0, 0, 1));
    if (part != NULL)
        part->gathers = TRUE;
}

/* A norm that steps wait for reads all gradients, or the sums that early steps have added; another stands
 * behind all steps, which have added theirs. */
static void
add_norm(Rows *rows)
{
    const RpStepPolicy step = rows->modes->step;
    const gboolean several = rows->modes->servers > 1;
    const guint n = step != RP_STEP_AFTER_NORM ? rows->verifier->n_stepped : 0;

    for (guint l = 0; step == RP_STEP_AFTER_NORM && l < rows->verifier->n_layers; l++)
        add_update(rows, l, FALSE);
    place(rows, rp_plan_decision(rows->plan, rows->task->iteration), RP_ROLE_DECISION, ADD,
          n > 0 ? symbol(rows, RP_VALUE_DECISION_PART, 0, 0, n) : NOTHING,
          single(rows, several ? RP_VALUE_OWN_DECISION : RP_VALUE_DECISION, 0));
    if (several)
        host(rows, rp_plan_exchange(rows->plan).squares, step == RP_STEP_AT_ONCE ? ADD : WRITE,
             NOTHING, single(rows, RP_VALUE_SQUARES, 0));
}

/* It adds as many rounds as it reads staging buffers, its own round last. */
static void
add_accumulate(Rows *rows)
{
    const RpTask *task = rows->task;
    const RpPlanStage *stage = rp_plan_stage(rows->plan, task->stage);
    const guint n = rp_verifier_n_summed(rows->verifier, task);
    const guint first = task->round + 1U - n;

    for (guint i = 0; i < n; i++) {
        RpExpected *row = add(
            rows, RP_ROLE_STAGING, READ,
            symbol(rows, RP_VALUE_STAGED, task->stage, first + i, n_transferred(&stage->gradients)),
            NOTHING);

        row->categories = CATEGORY(STAGING);
        row->bytes = stage->gradient_bytes;
    }
    for (guint l = stage->layers.first; l < stage->layers.first + stage->layers.count; l++) {
        RpExpected *row = host(rows, layer_of(rows, l)->gradients[0], RP_MAY_ADD,
                               symbol(rows, RP_VALUE_GRADIENTS, l, 0, first),
                               symbol(rows, RP_VALUE_GRADIENTS, l, 0, task->round + 1U));

        if (row != NULL)
            row->right_mode = first > 0 ? ADD : WRITE;
    }
}

static void
add_copy(Rows *rows)
{
    const guint layer = rows->task->layer;

    if (rows->task->kind == RP_TASK_GRADIENT_COPY) {
        add_gradients_home(rows, layer);
        host(rows, layer_of(rows, layer)->copied, WRITE, NOTHING,
             single(rows, RP_VALUE_COPIED, layer));
        return;
    }
    place_earlier(rows, layer_of(rows, layer)->optimizer, RP_ROLE_HOST, READ,
                  single(rows, RP_VALUE_STATE, layer), 0, NOTHING);
    host(rows, weights_of(rows, layer), WRITE, NOTHING, single(rows, new_weights(rows), layer));
}

/* Tasks of the network lane, of several servers. */
static void
add_exchange(Rows *rows)
{
    const RpTask *task = rows->task;
    const RpPlanExchange exchange = rp_plan_exchange(rows->plan);

    if (rows->modes->servers <= 1)
        return;
    if (task->kind == RP_TASK_GATHER) {
        host(rows, weights_of(rows, task->layer), ADD,
             single(rows, RP_VALUE_WEIGHT_SHARE, task->layer),
             single(rows, RP_VALUE_WEIGHTS, task->layer));
        return;
    }
    if (task->kind == RP_TASK_REDUCE) {
        add_gradients_home(rows, task->layer);
        host(rows, layer_of(rows, task->layer)->reduced, WRITE, NOTHING,
             single(rows, RP_VALUE_REDUCED, task->layer));
    } else {
        host(rows, exchange.squares, ADD, single(rows, RP_VALUE_SQUARES, 0), NOTHING);
        place(rows, rp_plan_decision(rows->plan, task->iteration), RP_ROLE_DECISION, ADD,
              single(rows, RP_VALUE_OWN_DECISION, 0), single(rows, RP_VALUE_DECISION, 0));
    }
    place(rows, exchange.space, RP_ROLE_STAGING, WRITE, NOTHING, NOTHING);
}

void
rp_verifier_expect(const RpVerifier *verifier, const RpTask *task, guint32 session,
                   GArray *expected)
{
    static void (*const adds[RP_N_TASK_KINDS])(Rows * rows) = {
        [RP_TASK_PARAMETER_UPLOAD] = add_chunk,
        [RP_TASK_RESIDENT_UPLOAD] = add_resident_upload,
        [RP_TASK_GRADIENT_DOWNLOAD] = add_chunk,
        [RP_TASK_EXPAND] = add_chunk,
        [RP_TASK_GRADIENT_ACCUMULATE] = add_accumulate,
        [RP_TASK_NORM] = add_norm,
        [RP_TASK_EARLY_STEP] = add_step,
        [RP_TASK_GRADIENT_COPY] = add_copy,
        [RP_TASK_OPTIMIZER_STEP] = add_step,
        [RP_TASK_PARAMETER_COPY] = add_copy,
        [RP_TASK_LATE_STEP] = add_step,
        [RP_TASK_REDUCE] = add_exchange,
        [RP_TASK_AGREE] = add_exchange,
        [RP_TASK_GATHER] = add_exchange,
    };
    Rows rows = {.verifier = verifier,
                 .plan = verifier->plan,
                 .modes = verifier->modes,
                 .task = task,
                 .device = rp_plan_lane_device(verifier->plan, task->lane),
                 .session = session,
                 .when = bits_of(verifier->modes),
                 .expected = expected};

    g_array_set_size(expected, 0);
    if (rp_task_is_compute(task))
        add_action(&rows);
    else if (task->kind <= RP_TASK_SAVED_UPLOAD)
        add_transport(&rows);
    else if (adds[task->kind] != NULL)
        adds[task->kind](&rows);
}
