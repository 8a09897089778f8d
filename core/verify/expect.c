/*
 * Accesses that a task must have: a table of rows for each kind of action; for the others they
 * follow from the tables of stages and layers. Where a buffer belongs to a layer for good, it is
 * that very buffer:
 *
 *   parameters of layer 3, iteration T  <-  frozen and weights[T mod versions] of row 3 of the
 * table
 *
 * So tasks and table cannot say two things.
 */
#include "core/verify/private.h"

#define FP32_BYTES 4

#define READ RP_ACCESS_READ
#define WRITE RP_ACCESS_WRITE
#define ADD (RP_ACCESS_READ | RP_ACCESS_WRITE)

/* How large a buffer must be for a stage. */
typedef enum {
    SIZE_PARAMETERS,
    SIZE_WORKSPACE,
    SIZE_INPUT,  /* input of its first layer */
    SIZE_OUTPUT, /* inputs of all layers that its forward sends on */
    SIZE_GRADIENT,
    SIZE_SENT, /* gradient of its input */
    SIZE_SUM,
    SIZE_LEAVING
} Size;

#define NOT_AT_ALL G_MAXUINT64

#define CATEGORY(name) (1U << RP_BUFFER_##name)
#define VALUES (CATEGORY(ACTIVATIONS) | CATEGORY(STASH))
#define F (1U << RP_TASK_FORWARD)
#define B (1U << RP_TASK_BACKWARD | 1U << RP_TASK_FUSED)
#define I (1U << RP_TASK_INPUT_GRADIENT)
#define W (1U << RP_TASK_WEIGHT_GRADIENT)

/* Accesses of actions, in one device's arena. */
static const struct {
    guint kinds; /* bits: actions that have it */
    guint8 role;
    guint8 mode;
    guint8 size;
    guint8 optional;
    guint categories;
} rows[] = {
    {F | B | I | W, RP_ROLE_PARAMETERS, READ, SIZE_PARAMETERS, FALSE, CATEGORY(PARAMETERS)},
    {F | B | I | W, RP_ROLE_WORKSPACE, WRITE, SIZE_WORKSPACE, FALSE, CATEGORY(WORKSPACE)},
    {F | B | I | W, RP_ROLE_INPUT, READ, SIZE_INPUT, FALSE, VALUES},
    {F, RP_ROLE_OUTPUT, WRITE, SIZE_OUTPUT, FALSE, VALUES},
    {B | I, RP_ROLE_GRADIENT, READ, SIZE_GRADIENT, FALSE, CATEGORY(ACTIVATIONS)},
    {B | I, RP_ROLE_OUTPUT, WRITE, SIZE_SENT, FALSE, CATEGORY(ACTIVATIONS)},
    {B | W, RP_ROLE_SUM, RP_MAY_ADD, SIZE_SUM, FALSE, CATEGORY(ACCUMULATORS)},
    {B | W, RP_ROLE_LEAVING, RP_MAY_ADD, SIZE_LEAVING, TRUE, CATEGORY(GRADIENTS)},
};

typedef struct {
    const RpVerifier *verifier;
    const RpTask *task;
    GArray *expected; /* RpExpected */
} Expectation;

static void
expect(Expectation *operands, const RpExpected *what)
{
    g_array_append_vals(operands->expected, what, 1);
}

/* A buffer of the table; a layer's may be named twice, where a matrix is tied. */
static void
expect_place(Expectation *operands, guint32 buffer, RpAccessRole role, guint16 mode)
{
    const RpExpected what = {.buffer = buffer, .role = role, .mode = mode};

    if (buffer == RP_NONE)
        return;
    for (guint i = 0; i < operands->expected->len; i++)
        if (g_array_index(operands->expected, RpExpected, i).buffer == buffer)
            return;
    expect(operands, &what);
}

static void
expect_value(Expectation *operands, RpAccessRole role, guint16 mode, gboolean device,
             guint categories, guint64 bytes)
{
    const RpExpected what = {.buffer = RP_NONE,
                             .role = role,
                             .mode = mode,
                             .device = device,
                             .optional = bytes == 0,
                             .categories = categories,
                             .bytes = bytes};

    if (bytes != NOT_AT_ALL)
        expect(operands, &what);
}

/* 0: needs none, may have one */
static guint64
size_of(const RpVerifier *verifier, const RpPlanStage *stage, Size size)
{
    const guint end = stage->layers.first + stage->layers.count;
    guint64 bytes = 0;

    switch (size) {
    case SIZE_PARAMETERS:
        return stage->parameter_bytes;
    case SIZE_WORKSPACE:
        return stage->workspace_bytes;
    case SIZE_INPUT:
        return rp_verifier_input_bytes(verifier, stage->layers.first);
    case SIZE_OUTPUT:
        for (guint i = 0; i < stage->n_boundaries; i++)
            bytes += rp_verifier_input_bytes(verifier, stage->boundaries[i]);
        return stage->n_boundaries > 0 ? bytes : NOT_AT_ALL;
    case SIZE_GRADIENT:
        return end < verifier->n_layers ? rp_verifier_input_bytes(verifier, end) : NOT_AT_ALL;
    case SIZE_SENT:
        return stage->layers.first > 0 ? rp_verifier_input_bytes(verifier, stage->layers.first)
                                       : NOT_AT_ALL;
    case SIZE_SUM:
        return stage->gradient_bytes > 0
                   ? stage->gradient_bytes / rp_verifier_leaving_element(verifier) * FP32_BYTES
                   : NOT_AT_ALL;
    case SIZE_LEAVING:
        return stage->gradient_bytes > 0 ? stage->gradient_bytes : NOT_AT_ALL;
    }
    g_assert_not_reached();
}

/* From I to W; or, in a plan that keeps forwards' results, from there on. */
static void
expect_kept(Expectation *operands, guint32 stage, RpTaskKind kind)
{
    const gboolean keeps = operands->verifier->promises->keeps;
    guint16 mode = 0;

    if (kind == RP_TASK_WEIGHT_GRADIENT || (keeps && kind == RP_TASK_BACKWARD))
        mode = READ;
    else if (kind == RP_TASK_INPUT_GRADIENT)
        mode = keeps ? ADD : WRITE;
    else if (keeps && kind == RP_TASK_FORWARD)
        mode = WRITE;
    if (mode != 0)
        expect_value(operands, RP_ROLE_KEPT, mode, TRUE, CATEGORY(WORKSPACE),
                     rp_plan_stage(operands->verifier->plan, stage)->kept_bytes);
}

/* @kind: the action's work for @stage */
static void
expect_rows(Expectation *operands, guint32 stage, RpTaskKind kind)
{
    const RpVerifier *verifier = operands->verifier;

    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        if ((rows[i].kinds >> kind & 1) == 0)
            continue;
        const guint64 bytes =
            size_of(verifier, rp_plan_stage(verifier->plan, stage), (Size)rows[i].size);
        const RpExpected what = {.buffer = RP_NONE,
                                 .role = rows[i].role,
                                 .mode = rows[i].mode,
                                 .device = TRUE,
                                 .optional = rows[i].optional || bytes == 0,
                                 .categories = rows[i].categories,
                                 .bytes = bytes};

        if (bytes != NOT_AT_ALL)
            expect(operands, &what);
    }
    expect_kept(operands, stage, kind);
}

/* The two parts of an overlapped action share the workspace and, of one stage, the parameters. */
static void
share(Expectation *operands)
{
    const RpTask *task = operands->task;
    gboolean second[RP_N_ACCESS_ROLES] = {FALSE};

    for (guint i = 0; i < operands->expected->len; i++) {
        RpExpected *what = &g_array_index(operands->expected, RpExpected, i);

        if (what->role != RP_ROLE_WORKSPACE &&
            (what->role != RP_ROLE_PARAMETERS || task->stage != task->backward_stage))
            continue;
        what->optional = what->optional || second[what->role];
        second[what->role] = TRUE;
    }
}

/* Expects the resident weights of @stage's layers on the task's device. */
static void
expect_stays(Expectation *operands, guint32 stage)
{
    const RpVerifier *verifier = operands->verifier;
    const RpInterval layers = rp_plan_stage(verifier->plan, stage)->layers;
    const guint32 device = rp_plan_lane_device(verifier->plan, operands->task->lane);

    for (guint l = layers.first; l < layers.first + layers.count; l++)
        expect_place(operands, rp_plan_resident(verifier->plan, device, l), RP_ROLE_RESIDENT, READ);
}

/* A fused action of a layerwise plan, or a piece of it. */
static void
expect_steps(Expectation *operands)
{
    const RpVerifier *verifier = operands->verifier;
    const RpTask *task = operands->task;
    const guint32 device = rp_plan_lane_device(verifier->plan, task->lane);
    const RpPlanStage *stage = rp_plan_stage(verifier->plan, task->stage);
    const RpInterval up = rp_task_upward(task, stage->layers);
    const RpInterval down = rp_task_downward(task, stage->layers);

    for (guint i = 0; i < up.count; i++)
        expect_place(operands, rp_plan_slot_layer(verifier->plan, device, up.first + i).parameters,
                     RP_ROLE_PARAMETERS, READ);
    for (guint i = 0; i < down.count; i++) {
        const RpPlanSlotLayer places = rp_plan_slot_layer(verifier->plan, device, down.first + i);
        const RpExpected leaving = {
            .buffer = places.leaving, .role = RP_ROLE_LEAVING, .mode = WRITE, .optional = TRUE};

        expect_place(operands, places.parameters, RP_ROLE_PARAMETERS, READ);
        if (places.leaving != RP_NONE)
            expect(operands, &leaving);
    }
    expect_value(operands, RP_ROLE_WORKSPACE,
                 rp_task_is_piece(task) && task->first_step > 0 ? ADD : WRITE, TRUE,
                 CATEGORY(WORKSPACE), stage->workspace_bytes);
    expect_value(operands, RP_ROLE_INPUT, READ, TRUE, VALUES, size_of(verifier, stage, SIZE_INPUT));
    if (down.count > 0)
        expect_value(operands, RP_ROLE_SUM, RP_MAY_ADD, TRUE, CATEGORY(ACCUMULATORS),
                     size_of(verifier, stage, SIZE_SUM));
}

static void
expect_action(Expectation *operands)
{
    const RpVerifier *verifier = operands->verifier;
    const RpTask *task = operands->task;

    if (task->kind == RP_TASK_OVERLAP) {
        expect_rows(operands, task->stage, RP_TASK_FORWARD);
        expect_rows(operands, task->backward_stage, RP_TASK_BACKWARD);
        share(operands);
    } else if (verifier->promises->layerwise && task->kind == RP_TASK_FUSED) {
        expect_steps(operands);
    } else {
        expect_rows(operands, task->stage, (RpTaskKind)task->kind);
    }
    if (!verifier->promises->packed)
        expect_stays(operands, task->stage);
    if (!verifier->promises->packed && task->kind == RP_TASK_OVERLAP)
        expect_stays(operands, task->backward_stage);
    if (verifier->promises->gated && rp_verifier_makes_loss(verifier, task))
        expect_place(operands, rp_plan_decision(verifier->plan, task->iteration), RP_ROLE_DECISION,
                     READ);
}

/* @frozen: weights that no step writes, too */
static void
expect_weights(Expectation *operands, guint layer, guint16 mode, gboolean frozen)
{
    const RpVerifier *verifier = operands->verifier;
    const RpPlanLayer *row = rp_plan_layer(verifier->plan, layer);
    const guint version = verifier->promises->double_weights ? operands->task->iteration % 2 : 0;

    if (frozen)
        expect_place(operands, row->frozen, RP_ROLE_HOST, mode);
    expect_place(operands, row->weights[version], RP_ROLE_HOST, mode);
}

/* Expects the gradients of all rounds. */
static void
expect_gradients(Expectation *operands, guint layer)
{
    const RpVerifier *verifier = operands->verifier;

    for (guint i = 0; i < rp_verifier_local_gradients(verifier); i++)
        expect_place(operands, rp_plan_layer(verifier->plan, layer)->gradients[i], RP_ROLE_HOST,
                     READ);
}

static void
expect_chunk(Expectation *operands)
{
    const RpVerifier *verifier = operands->verifier;
    const RpTask *task = operands->task;
    const RpPlanStage *stage = rp_plan_stage(verifier->plan, task->stage);
    const gboolean up = task->kind == RP_TASK_PARAMETER_UPLOAD;
    const RpChunks *chunks = up ? &stage->parameters : &stage->gradients;

    const RpPlanSlotLayer places =
        rp_plan_slot_layer(verifier->plan, rp_plan_lane_device(verifier->plan, task->lane),
                           chunks->segments[chunks->first_segment[task->chunk]].layer);
    if (verifier->promises->layerwise)
        expect_place(operands, up ? places.parameters : places.leaving,
                     up ? RP_ROLE_PARAMETERS : RP_ROLE_LEAVING, up ? WRITE : READ);
    else if (up)
        expect_value(operands, verifier->promises->packed ? RP_ROLE_PACKED : RP_ROLE_PARAMETERS,
                     WRITE, TRUE, CATEGORY(PARAMETERS), stage->upload_bytes);
    else
        expect_value(operands, RP_ROLE_LEAVING, READ, TRUE, CATEGORY(GRADIENTS),
                     stage->gradient_bytes);
    const gboolean staged = !up && rp_verifier_stages(verifier);
    if (staged)
        expect_value(operands, RP_ROLE_STAGING, WRITE, FALSE, CATEGORY(STAGING),
                     stage->gradient_bytes);
    for (guint i = chunks->first_segment[task->chunk]; i < chunks->first_segment[task->chunk + 1];
         i++) {
        const guint layer = chunks->segments[i].layer;
        const RpPlanLayer *row = rp_plan_layer(verifier->plan, layer);

        if (i > chunks->first_segment[task->chunk] && layer == chunks->segments[i - 1].layer)
            continue;
        if (!up && !staged)
            expect_place(operands,
                         row->gradients[verifier->promises->rounds_apart > 0 ? task->round : 0],
                         RP_ROLE_HOST, WRITE);
        if (!up)
            continue;
        expect_weights(operands, layer, READ, row->resident_bytes == 0);
        if (row->tied_to != RP_NONE && row->resident_bytes == 0)
            expect_weights(operands, row->tied_to, READ, TRUE);
    }
}

static void
expect_expand(Expectation *operands)
{
    const RpPlanStage *stage = rp_plan_stage(operands->verifier->plan, operands->task->stage);

    if (stage->upload_bytes > 0)
        expect_value(operands, RP_ROLE_PACKED, READ, TRUE, CATEGORY(PARAMETERS),
                     stage->upload_bytes);
    expect_stays(operands, operands->task->stage);
    expect_value(operands, RP_ROLE_PARAMETERS, WRITE, TRUE, CATEGORY(PARAMETERS),
                 stage->parameter_bytes);
}

static void
expect_resident(Expectation *operands)
{
    const RpVerifier *verifier = operands->verifier;
    const RpTask *task = operands->task;
    const RpPlanLayer *row = rp_plan_layer(verifier->plan, task->layer);

    expect_place(operands, row->frozen, RP_ROLE_HOST, READ);
    if (row->tied_to != RP_NONE)
        expect_place(operands, rp_plan_layer(verifier->plan, row->tied_to)->frozen, RP_ROLE_HOST,
                     READ);
    expect_place(operands,
                 rp_plan_resident(verifier->plan, rp_plan_lane_device(verifier->plan, task->lane),
                                  task->layer),
                 RP_ROLE_RESIDENT, WRITE);
}

static void
expect_sum(Expectation *operands)
{
    const RpVerifier *verifier = operands->verifier;
    const RpTask *task = operands->task;
    const RpPlanStage *stage = rp_plan_stage(verifier->plan, task->stage);
    const RpAccess *accesses = rp_plan_accesses(verifier->plan, task);

    /* how many rounds, and which, is for rule 4 */
    for (guint i = 0; i < task->access_count; i++)
        if (accesses[i].role == RP_ROLE_STAGING)
            expect_value(operands, RP_ROLE_STAGING, READ, FALSE, CATEGORY(STAGING),
                         stage->gradient_bytes);
    for (guint l = stage->layers.first; l < stage->layers.first + stage->layers.count; l++)
        expect_place(operands, rp_plan_layer(verifier->plan, l)->gradients[0], RP_ROLE_HOST,
                     RP_MAY_ADD);
}

/* Expects the update of the layer and of the layer that is tied to it. */
static void
expect_update(Expectation *operands)
{
    const RpVerifier *verifier = operands->verifier;
    const RpPlanPromises *promises = verifier->promises;
    const RpTask *task = operands->task;
    const guint layers[] = {task->layer, rp_plan_tied_from(verifier->plan, task->layer)};

    for (guint i = 0; i < G_N_ELEMENTS(layers); i++) {
        if (layers[i] == RP_NONE)
            continue;
        if (promises->gradient_copies)
            expect_place(operands, rp_plan_layer(verifier->plan, layers[i])->copied, RP_ROLE_HOST,
                         READ);
        else
            expect_gradients(operands, layers[i]);
    }
}

/* A step, or one that is early or late. */
static void
expect_step(Expectation *operands)
{
    const RpVerifier *verifier = operands->verifier;
    const RpPlanPromises *promises = verifier->promises;
    const RpTask *task = operands->task;
    const gboolean early = task->kind == RP_TASK_EARLY_STEP;
    const gboolean writes = rp_plan_layer(verifier->plan, task->layer)->early;

    expect_update(operands);
    if (!early || writes)
        expect_place(operands, rp_plan_layer(verifier->plan, task->layer)->optimizer, RP_ROLE_HOST,
                     early ? READ : ADD);
    if (!promises->parameter_copies && task->kind != RP_TASK_LATE_STEP && (!early || writes))
        expect_weights(operands, task->layer, writes && !early ? ADD : WRITE, FALSE);
    expect_place(operands, rp_plan_decision(verifier->plan, task->iteration), RP_ROLE_DECISION,
                 promises->gated && !early ? READ : ADD);
}

static void
expect_norm(Expectation *operands)
{
    const RpVerifier *verifier = operands->verifier;
    const gboolean reads = verifier->promises->gated && !verifier->promises->early_steps;

    for (guint l = 0; reads && l < verifier->n_layers; l++)
        expect_gradients(operands, l);
    expect_place(operands, rp_plan_decision(verifier->plan, operands->task->iteration),
                 RP_ROLE_DECISION, ADD);
}

/* A value and where it comes from or goes to; token ids come from the caller. */
static void
expect_transport(Expectation *operands, RpAccessRole role, gboolean up)
{
    const RpVerifier *verifier = operands->verifier;
    const guint layer = operands->task->layer;
    const RpPlanStage *stage = rp_plan_stage(verifier->plan, operands->task->stage);
    guint64 bytes = rp_verifier_input_bytes(verifier, layer);

    expect_value(operands, RP_ROLE_HOST, up ? READ : WRITE, FALSE, VALUES,
                 layer > 0 ? bytes : NOT_AT_ALL);
    if (operands->task->kind == RP_TASK_ACTIVATION_DOWNLOAD)
        bytes = size_of(verifier, stage, SIZE_OUTPUT);
    expect_value(operands, role, up ? WRITE : READ, TRUE, VALUES, bytes);
}

void
rp_verifier_expect(const RpVerifier *verifier, const RpTask *task, GArray *expected)
{
    Expectation made = {verifier, task, expected};
    Expectation *operands = &made;

    g_array_set_size(expected, 0);

    switch ((RpTaskKind)task->kind) {
    case RP_TASK_ACTIVATION_UPLOAD:
    case RP_TASK_STASH_UPLOAD:
        expect_transport(operands, RP_ROLE_INPUT, TRUE);
        break;
    case RP_TASK_ACTGRAD_UPLOAD:
        expect_transport(operands, RP_ROLE_GRADIENT, TRUE);
        break;
    case RP_TASK_ACTIVATION_DOWNLOAD:
    case RP_TASK_ACTGRAD_DOWNLOAD:
        expect_transport(operands, RP_ROLE_OUTPUT, FALSE);
        break;
    case RP_TASK_PARAMETER_UPLOAD:
    case RP_TASK_GRADIENT_DOWNLOAD:
        expect_chunk(operands);
        break;
    case RP_TASK_EXPAND:
        expect_expand(operands);
        break;
    case RP_TASK_RESIDENT_UPLOAD:
        expect_resident(operands);
        break;
    case RP_TASK_GRADIENT_ACCUMULATE:
        expect_sum(operands);
        break;
    case RP_TASK_NORM:
        expect_norm(operands);
        break;
    case RP_TASK_GRADIENT_COPY:
        expect_gradients(operands, task->layer);
        expect_place(operands, rp_plan_layer(verifier->plan, task->layer)->copied, RP_ROLE_HOST,
                     WRITE);
        break;
    case RP_TASK_EARLY_STEP:
    case RP_TASK_OPTIMIZER_STEP:
    case RP_TASK_LATE_STEP:
        expect_step(operands);
        break;
    case RP_TASK_PARAMETER_COPY:
        expect_place(operands, rp_plan_layer(verifier->plan, task->layer)->optimizer, RP_ROLE_HOST,
                     READ);
        expect_weights(operands, task->layer, WRITE, FALSE);
        break;
    default: /* tensors that layers save: expect-saved.c */
        if (rp_task_is_compute(task))
            expect_action(operands);
    }
}
