/*
 * The tasks of each iteration: everything once, and in the end nothing left out.
 *
 * Rule 1 of actions: each stage runs each micro-batch once, a slot on one device, W after its I, slices
 * in their order. In `compute` fidelity there are no buffers to find values in; there the actions
 * themselves are compared:
 *
 *   forward    F(l-1) --> F(l)
 *   stash      F(l-1) --> B of the stage that begins at l
 *   gradient   B(l) --> B(l-1)             may come late (phase 1)
 *   staleness  synchronous    all of T-1  -->  all of T (the flush)
 *              asynchronous   backward of a layer in T-2  -->  forward of that layer in T
 *
 * A task that is left out is missed by those that need its value. Nobody needs the last tasks of the
 * optimizer; they are counted here.
 */
#include "core/verify/private.h"

/* The parts of an action: of a stage and a micro-batch. */
typedef enum { FORWARD, BACKWARD, WEIGHTS, N_PARTS } Part;
static const struct {
    const char *name, *twice;
} part_names[N_PARTS] = {{"forward", "a forward runs twice"},
                         {"backward", "a backward runs twice"},
                         {"weight gradient", "a weight gradient runs twice"}};

struct _RpLedger {
    RpTaskId base;             /* tasks are kept as id - base + 1; 0: none */
    guint32 *actions[N_PARTS]; /* [stage * M + micro-batch] */
    guint32 *first, *last; /* `compute`: [stage * n_lanes + lane] forward; that makes gradients */
    guint32 *done;         /* tasks of which there must be one: see identity_of() */
    guint n[RP_N_TASK_KINDS];
    guint32 last_step; /* one of the steps */
    gboolean checked;  /* its actions */
};

static void
free_ledger(gpointer data)
{
    RpLedger *ledger = data;

    for (guint p = 0; p < N_PARTS; p++)
        g_free(ledger->actions[p]);
    g_free(ledger->first);
    g_free(ledger->last);
    g_free(ledger->done);
    g_free(ledger);
}

guint
rp_verifier_n_summed(const RpVerifier *verifier, const RpTask *task)
{
    const RpAccess *accesses = rp_plan_accesses(verifier->plan, task);
    guint n = 0;

    for (guint i = 0; i < task->access_count; i++)
        n += accesses[i].role == RP_ROLE_STAGING && (accesses[i].mode & RP_ACCESS_READ) != 0;
    return n;
}

/* Which of the different tasks of a kind that an iteration may have a task is: one of rows x columns; two of
 * each if it may come twice. */
typedef struct {
    gsize rows, columns;
    gsize row, column;
    gsize copies;
} Identity;

/* Nothing of actions. @task: (nullable): %NULL: how many there are. A sum of several rounds is the first of
 * them. */
static Identity
identity_of(const RpVerifier *verifier, RpTaskKind kind, const RpTask *task)
{
    static const RpTask first = {.stage = 0};
    const RpTask *of = task != NULL ? task : &first;
    const gsize rounds = verifier->rounds, layers = verifier->n_layers;
    const gsize round = rp_verifier_slot_round(verifier, of->round);

    switch (kind) {
    case RP_TASK_PARAMETER_UPLOAD:
        return (Identity){rounds, verifier->first_parameter[verifier->n_stages], round,
                          verifier->first_parameter[of->stage] + of->chunk, 2};
    case RP_TASK_GRADIENT_DOWNLOAD:
        return (Identity){rounds, verifier->first_gradient[verifier->n_stages], round,
                          verifier->first_gradient[of->stage] + of->chunk, 1};
    case RP_TASK_EXPAND:
        return (Identity){rounds, verifier->n_stages, round, of->stage, 2};
    case RP_TASK_GRADIENT_ACCUMULATE:
        return (Identity){rounds, verifier->n_stages,
                          of->round + 1U - (task != NULL ? rp_verifier_n_summed(verifier, of) : 1),
                          of->stage, 1};
    case RP_TASK_RESIDENT_UPLOAD:
        return (Identity){rp_plan_gpus(verifier->plan), layers,
                          rp_plan_lane_device(verifier->plan, of->lane), of->layer, 1};
    case RP_TASK_NORM:
    case RP_TASK_AGREE:
        return (Identity){1, 1, 0, 0, 1};
    case RP_TASK_BARRIER:
        return (Identity){0, 0, 0, 0, 1};
    default: /* of a micro-batch, or of the optimizer */
        if (kind > RP_TASK_SAVED_UPLOAD)
            return (Identity){1, layers, 0, of->layer, 1};
        return (Identity){kind < RP_TASK_ACTIVATION_DOWNLOAD ? 0 : layers, verifier->micro_batches,
                          of->layer, of->micro_batch, 1};
    }
}

static gsize
n_identities(const RpVerifier *verifier, RpTaskKind kind)
{
    const Identity all = identity_of(verifier, kind, NULL);

    return all.rows * all.columns * all.copies;
}

static RpLedger *
new_ledger(const RpVerifier *verifier)
{
    const gsize n = (gsize)verifier->n_stages * verifier->micro_batches;
    RpLedger *ledger = g_new0(RpLedger, 1);

    for (guint p = 0; p < N_PARTS; p++)
        ledger->actions[p] = g_new0(guint32, n + 1);
    if (verifier->full) {
        ledger->done = g_new0(guint32, verifier->first_identity[RP_N_TASK_KINDS] + 1);
    } else {
        ledger->first = g_new0(guint32, (gsize)verifier->n_stages * verifier->n_lanes + 1);
        ledger->last = g_new0(guint32, (gsize)verifier->n_stages * verifier->n_lanes + 1);
    }
    return ledger;
}

/* %NULL: nothing of it was ever seen, or it is long over */
static RpLedger *
find_ledger(const RpVerifier *verifier, guint32 iteration)
{
    if (verifier->ledgers == NULL || iteration < verifier->first_iteration ||
        iteration - verifier->first_iteration >= verifier->ledgers->len)
        return NULL;
    return g_ptr_array_index(verifier->ledgers, iteration - verifier->first_iteration);
}

static RpLedger *
ledger_of(RpVerifier *verifier, guint32 index)
{
    const guint32 iteration = rp_verifier_task(verifier, index)->iteration;

    if (verifier->ledgers == NULL) {
        verifier->ledgers = g_ptr_array_new_with_free_func(free_ledger);
        verifier->first_iteration = iteration;
    }
    for (; iteration < verifier->first_iteration; verifier->first_iteration--)
        g_ptr_array_insert(verifier->ledgers, 0, NULL);
    if (iteration - verifier->first_iteration >= verifier->ledgers->len)
        g_ptr_array_set_size(verifier->ledgers, (gint)(iteration - verifier->first_iteration + 1));
    RpLedger **ledger =
        (RpLedger **)&g_ptr_array_index(verifier->ledgers, iteration - verifier->first_iteration);
    if (*ledger == NULL) {
        *ledger = new_ledger(verifier);
        (*ledger)->base = verifier->first_id + index;
    }
    return *ledger;
}

static gboolean
has_actions(const RpLedger *ledger)
{
    for (guint kind = RP_TASK_FORWARD; kind <= RP_TASK_OVERLAP; kind++)
        if (ledger->n[kind] > 0)
            return TRUE;
    return FALSE;
}

/* A task as the ledger keeps it, and back. */
static guint32
entry_of(const RpVerifier *verifier, const RpLedger *ledger, guint32 index)
{
    return (guint32)(verifier->first_id + index - ledger->base) + 1;
}
static guint32
task_of(const RpVerifier *verifier, const RpLedger *ledger, guint32 entry)
{
    const RpTaskId id = ledger->base + entry - 1;

    if (entry == 0)
        return RP_NO_TASK;
    return id < verifier->first_id ? RP_OLD_TASK : (guint32)(id - verifier->first_id);
}

/* Whether tasks of the iteration may have been retired. */
static gboolean
is_partial(const RpVerifier *verifier, guint32 iteration)
{
    return iteration < verifier->complete_from;
}

/* ---- entries ---- */

static void
enter_once(RpVerifier *verifier, const RpLedger *ledger, guint32 *place, guint32 index, RpRule rule,
           const char *text)
{
    if (*place != 0)
        rp_verifier_fail(verifier, rule, task_of(verifier, ledger, *place), index, "%s", text);
    *place = entry_of(verifier, ledger, index);
}

static void
enter_action(RpVerifier *verifier, RpLedger *ledger, guint32 index)
{
    RpActionPart parts[2];
    const guint n = rp_action_parts(verifier, rp_verifier_task(verifier, index), parts);

    for (guint i = 0; i < n; i++) {
        const gsize at = (gsize)parts[i].stage * verifier->micro_batches + parts[i].micro_batch;
        const gboolean done[N_PARTS] = {parts[i].forward && parts[i].begins,
                                        parts[i].backward && parts[i].ends,
                                        parts[i].weights && parts[i].ends};

        const gsize end = (gsize)parts[i].stage * verifier->n_lanes + verifier->lane[index];
        if (!verifier->full && done[FORWARD] && ledger->first[end] == 0)
            ledger->first[end] = entry_of(verifier, ledger, index);
        if (!verifier->full && done[WEIGHTS])
            ledger->last[end] = entry_of(verifier, ledger, index);
        for (guint p = 0; p < N_PARTS; p++)
            if (done[p])
                enter_once(verifier, ledger, &ledger->actions[p][at], index, RP_RULE_ACTIONS,
                           part_names[p].twice);
    }
}

/* The rule that a task breaks which is there twice, and its sentence. */
static const struct {
    RpRule rule;
    const char *text;
} twice[RP_N_TASK_KINDS] = {
    [RP_TASK_PARAMETER_UPLOAD] = {RP_RULE_TRANSFERS, "the same chunk is uploaded twice"},
    [RP_TASK_RESIDENT_UPLOAD] = {RP_RULE_TRANSFERS, "weights that stay are uploaded twice"},
    [RP_TASK_GRADIENT_DOWNLOAD] = {RP_RULE_TRANSFERS, "the same chunk is downloaded twice"},
    [RP_TASK_EXPAND] = {RP_RULE_TRANSFERS, "the same parameters are expanded twice"},
    [RP_TASK_GRADIENT_ACCUMULATE] = {RP_RULE_TRANSFERS, "the same gradients are summed twice"},
    [RP_TASK_NORM] = {RP_RULE_DECISION, "two norms decide on one iteration"},
    [RP_TASK_AGREE] = {RP_RULE_DECISION, "two norms decide on one iteration"},
};

void
rp_ledger_enter(RpVerifier *verifier, guint32 index, guint32 *session)
{
    const RpTask *task = rp_verifier_task(verifier, index);
    const RpTaskKind kind = (RpTaskKind)task->kind;
    RpLedger *ledger = ledger_of(verifier, index);
    RpRule rule = twice[kind].rule;
    const char *text = twice[kind].text;
    guint rounds = 1;

    ledger->n[kind]++;
    enter_action(verifier, ledger, index);
    if (!verifier->full || verifier->first_identity[kind] == verifier->first_identity[kind + 1])
        return;
    const Identity which = identity_of(verifier, kind, task);
    guint32 *done = &ledger->done[verifier->first_identity[kind] +
                                  (which.row * which.columns + which.column) * which.copies];
    if (text == NULL) {
        const gboolean transfer = kind <= RP_TASK_SAVED_UPLOAD;

        rule = transfer ? RP_RULE_ACTIONS : RP_RULE_OPTIMIZER_ORDER;
        text = transfer ? "a transfer runs twice" : "the same update is done twice";
    }
    /* parameters of a bound stage whose weights are offloaded come up for its F, and may again for its B */
    if (which.copies == 2 && *done != 0 && rp_plan_stage(verifier->plan, task->stage)->bound &&
        !rp_modes_upload_once(verifier->modes)) {
        *session = 1;
        done++;
    }
    if (kind == RP_TASK_GRADIENT_ACCUMULATE)
        rounds = rp_verifier_n_summed(verifier, task);
    for (guint i = 0; i < rounds; i++)
        enter_once(verifier, ledger, &done[(gsize)i * verifier->n_stages], index, rule, text);
    if (kind == RP_TASK_OPTIMIZER_STEP)
        ledger->last_step = entry_of(verifier, ledger, index);
}

void
rp_ledger_number(RpVerifier *verifier)
{
    for (guint kind = 0; kind < RP_N_TASK_KINDS; kind++)
        verifier->first_identity[kind + 1] =
            verifier->first_identity[kind] + n_identities(verifier, (RpTaskKind)kind);
}

/* ---- rule 1 ---- */

static guint32
action(const RpVerifier *verifier, const RpLedger *ledger, Part part, guint32 stage,
       guint32 micro_batch)
{
    const gsize at = (gsize)stage * verifier->micro_batches + micro_batch;

    return task_of(verifier, ledger, ledger->actions[part][at]);
}

/* A slot, one stage of one round in one direction, stays on one device; so does each copy of a mirrored
 * stage. */
static void
check_slot(RpVerifier *verifier, const RpLedger *ledger, Part part, guint32 stage)
{
    const guint copies = rp_plan_stage(verifier->plan, stage)->mirrored ? 2 : 1;
    const guint per_round = verifier->micro_batches / verifier->rounds / copies;
    guint32 first = RP_NO_TASK;

    for (guint m = 0; m < verifier->micro_batches; m++) {
        const guint32 task = action(verifier, ledger, part, stage, m);

        if (m % per_round == 0)
            first = RP_NO_TASK;
        if (first < verifier->n_tasks && task < verifier->n_tasks &&
            verifier->lane[first] != verifier->lane[task])
            rp_verifier_fail(verifier, RP_RULE_ACTIONS, first, task, "one slot runs on two gpus");
        if (first == RP_NO_TASK)
            first = task;
    }
}

static void
check_present(RpVerifier *verifier, const RpLedger *ledger, guint32 iteration, guint32 stage)
{
    const RpPlanStage *of = rp_plan_stage(verifier->plan, stage);
    const gboolean backward = of->runs_backward && !verifier->evaluates;
    const gboolean runs[N_PARTS] = {of->runs_forward, backward, backward};

    for (guint p = 0; p < N_PARTS; p++) {
        check_slot(verifier, ledger, (Part)p, stage);
        for (guint m = 0; m < verifier->micro_batches && runs[p]; m++) {
            const guint32 other =
                action(verifier, ledger, p == BACKWARD ? FORWARD : BACKWARD, stage, m);

            if (action(verifier, ledger, (Part)p, stage, m) == RP_NO_TASK)
                rp_verifier_fail(verifier, RP_RULE_ACTIONS, RP_NO_TASK, other,
                                 "no %s of stage %u, micro-batch %u in iteration %u",
                                 part_names[p].name, stage, m, iteration);
        }
    }
}

static gboolean
is_kind(const RpVerifier *verifier, guint32 task, RpTaskKind kind)
{
    return task < verifier->n_tasks && rp_verifier_task(verifier, task)->kind == kind;
}

/* An action follows those whose results it reads. In `full` fidelity buffers show it, but where a stage is
 * bound; but for slices of a sequence: forwards read keys and values of the slices before, backwards their
 * gradients, to which the slices behind have added. */
static void
check_orders(RpVerifier *verifier, const RpLedger *ledger, guint32 s, guint32 m)
{
    const RpPlanStage *stage = rp_plan_stage(verifier->plan, s);
    const guint first = stage->layers.first, end = first + stage->layers.count;
    const gboolean inputs = !verifier->full && stage->layers.count > 0;
    const gboolean trains = !verifier->evaluates, later = m % verifier->modes->slices > 0;
    const guint32 forward = action(verifier, ledger, FORWARD, s, m);
    const guint32 backward = action(verifier, ledger, BACKWARD, s, m);
    const guint32 weights = action(verifier, ledger, WEIGHTS, s, m);
    guint32 input = RP_NO_TASK, gradient = RP_NO_TASK;

    if (inputs && first > 0)
        input = action(verifier, ledger, FORWARD, verifier->forward_of[first - 1], m);
    if (inputs && end < verifier->n_layers)
        gradient = action(verifier, ledger, BACKWARD, verifier->backward_of[end], m);
    const struct {
        gboolean demanded;
        guint32 first, second;
        gboolean late;
        const char *value;
    } orders[] = {
        {TRUE, input, forward,
         verifier->modes->published && is_kind(verifier, forward, RP_TASK_FUSED),
         "the forward's input"},
        {TRUE, gradient, backward,
         is_kind(verifier, backward, RP_TASK_BACKWARD) ||
             is_kind(verifier, backward, RP_TASK_INPUT_GRADIENT),
         "the backward's gradient"},
        {!stage->runs_forward, input, backward, FALSE, "the stashed input"},
        {trains && forward != backward, forward, backward, FALSE, "what the forward keeps"},
        {trains && weights != backward, backward, weights, FALSE, "what W needs of its I"},
        {trains && later, later ? action(verifier, ledger, FORWARD, s, m - 1) : 0, forward, FALSE,
         "keys and values of the slice before"},
        {trains && later, backward, later ? action(verifier, ledger, BACKWARD, s, m - 1) : 0, FALSE,
         "gradients of keys and values from the slice behind"},
    };

    for (guint i = 0; i < G_N_ELEMENTS(orders); i++) {
        const guint32 before = orders[i].first, after = orders[i].second;

        if (!orders[i].demanded || before >= verifier->n_tasks ||
            after >= verifier->n_tasks || /* missing, or old */
            rp_verifier_before(verifier, before, after, FALSE) ||
            (orders[i].late && rp_verifier_before(verifier, before, after, TRUE)))
            continue;
        rp_verifier_fail(verifier, RP_RULE_ACTIONS, before, after,
                         "%s is not sure to be there: the second task may start before the first "
                         "has ended",
                         orders[i].value);
    }
    /* the fused stage's, where they are two */
    if (trains && forward != backward && forward < verifier->n_tasks &&
        backward < verifier->n_tasks &&
        rp_verifier_device(verifier, forward) != rp_verifier_device(verifier, backward))
        rp_verifier_fail(verifier, RP_RULE_ACTIONS, forward, backward,
                         "forward and backward of a stage run on two gpus");
}

/* ---- staleness in `compute` fidelity ---- */

/* The weights that @reader reads, the first forward of a stage on its lane, are made by all actions of
 * @before: of the stage's layers or, synchronous, of all. */
static void
check_makers(RpVerifier *verifier, const RpLedger *before, guint32 reader, guint32 stage)
{
    const RpInterval all = {0, verifier->n_layers};
    const RpInterval layers =
        verifier->modes->staleness == 0 ? all : rp_plan_stage(verifier->plan, stage)->layers;

    for (guint l = layers.first; l < layers.first + layers.count; l++) {
        const guint32 maker = verifier->backward_of[l];

        if (l > layers.first && maker == verifier->backward_of[l - 1])
            continue;
        for (guint lane = 0; lane < verifier->n_lanes; lane++) {
            const guint32 task =
                task_of(verifier, before, before->last[(gsize)maker * verifier->n_lanes + lane]);

            if (task < verifier->n_tasks && !rp_verifier_before(verifier, task, reader, FALSE))
                rp_verifier_fail(verifier, RP_RULE_STALENESS, task, reader,
                                 "the second action may start before the first has ended, "
                                 "whose gradients make the weights it reads");
        }
    }
}

static void
check_staleness(RpVerifier *verifier, const RpLedger *ledger, guint32 iteration)
{
    const guint32 age = 1 + verifier->modes->staleness;
    const RpLedger *before = iteration >= age ? find_ledger(verifier, iteration - age) : NULL;

    if (verifier->full || before == NULL || verifier->evaluates)
        return;
    for (guint s = 0; s < verifier->n_stages; s++)
        for (guint lane = 0; lane < verifier->n_lanes; lane++) {
            const guint32 reader =
                task_of(verifier, ledger, ledger->first[(gsize)s * verifier->n_lanes + lane]);

            if (reader < verifier->n_tasks)
                check_makers(verifier, before, reader, s);
        }
}

static void
check_actions(RpVerifier *verifier, RpLedger *ledger, guint32 iteration, gboolean last)
{
    /* an action that is not there is missing */
    const gboolean complete =
        !last || (!verifier->open && (verifier->ledgers->len == 1 || has_actions(ledger)));

    if (ledger->checked)
        return;
    check_staleness(verifier, ledger, iteration);
    if (is_partial(verifier, iteration))
        return;
    for (guint s = 0; s < verifier->n_stages; s++) {
        if (complete)
            check_present(verifier, ledger, iteration, s);
        for (guint m = 0; m < verifier->micro_batches; m++)
            check_orders(verifier, ledger, s, m);
    }
    ledger->checked = complete && (!last || verifier->source != NULL);
}

/* ---- the optimizer ---- */

/* Gradients are copied and reduced also where all of them are those of a tied matrix, which another
 * layer's step reads. */
gboolean
rp_ledger_has_kind(const RpVerifier *verifier, RpTaskKind kind, guint layer)
{
    const RpPlanModes *modes = verifier->modes;
    const gboolean stepped = rp_verifier_is_stepped(verifier, layer);

    switch (kind) {
    case RP_TASK_EARLY_STEP:
        return modes->step == RP_STEP_EARLY && stepped;
    case RP_TASK_LATE_STEP:
        return modes->step == RP_STEP_EARLY && rp_plan_layer(verifier->plan, layer)->early;
    case RP_TASK_REDUCE:
        return modes->servers > 1 && verifier->trainable[layer];
    case RP_TASK_GATHER:
        return modes->servers > 1 && stepped;
    case RP_TASK_GRADIENT_COPY:
        return modes->copies == RP_COPIES_BLOCKING && verifier->trainable[layer];
    case RP_TASK_PARAMETER_COPY:
        return modes->copies != RP_COPIES_FUSED && stepped;
    default:
        return stepped;
    }
}

/* All layers have a task of each kind in use or, in the last iteration of a growing plan, none; some
 * have, if layers are stepped one by one. @past: an iteration with actions has followed */
static void
check_kind(RpVerifier *verifier, const RpLedger *ledger, RpTaskKind kind, guint32 iteration,
           gboolean past, gboolean last)
{
    const RpPlanModes *modes = verifier->modes;
    const guint32 *done = &ledger->done[verifier->first_identity[kind]];
    /* late copies of layers that are stepped one by one come one by one, too */
    const gboolean late = kind == RP_TASK_PARAMETER_COPY ||
                          (kind == RP_TASK_GATHER && modes->copies != RP_COPIES_FUSED);
    const gboolean closed = ledger->n[RP_TASK_NORM] > 0 && (!late || last);
    const gboolean at_once =
        rp_modes_wait_for_norm(modes) && kind != RP_TASK_EARLY_STEP && kind != RP_TASK_REDUCE;

    if (!past && !(ledger->n[kind] > 0 && (at_once || closed)))
        return;
    for (guint l = 0; l < verifier->n_layers; l++)
        if (done[l] == 0 && rp_ledger_has_kind(verifier, kind, l))
            rp_verifier_fail(verifier, RP_RULE_OPTIMIZER_ORDER, RP_NO_TASK,
                             task_of(verifier, ledger, ledger->last_step),
                             "no %s of layer %u in iteration %u", rp_task_kind_name(kind), l,
                             iteration);
}

static void
check_optimizer(RpVerifier *verifier, const RpLedger *ledger, guint32 iteration, gboolean past,
                gboolean last)
{
    static const RpTaskKind kinds[] = {
        RP_TASK_EARLY_STEP, RP_TASK_GRADIENT_COPY, RP_TASK_OPTIMIZER_STEP, RP_TASK_PARAMETER_COPY,
        RP_TASK_LATE_STEP,  RP_TASK_REDUCE,        RP_TASK_GATHER};
    const guint steps = ledger->n[RP_TASK_OPTIMIZER_STEP], norms = ledger->n[RP_TASK_NORM];
    const guint32 step = task_of(verifier, ledger, ledger->last_step);

    for (guint i = 0; i < G_N_ELEMENTS(kinds); i++)
        check_kind(verifier, ledger, kinds[i], iteration, past, last);
    if (norms == 0 && (past || (steps > 0 && (rp_modes_wait_for_norm(verifier->modes) ||
                                              steps == verifier->n_stepped))))
        rp_verifier_fail(verifier, RP_RULE_DECISION, RP_NO_TASK, step, "iteration %u has no norm",
                         iteration);
    if (verifier->modes->servers > 1 && (norms == 0) != (ledger->n[RP_TASK_AGREE] == 0))
        rp_verifier_fail(verifier, RP_RULE_DECISION, RP_NO_TASK, step,
                         "servers do not agree on the norm of iteration %u", iteration);
}

void
rp_ledger_check(RpVerifier *verifier)
{
    const guint n = verifier->ledgers->len;
    guint last_actions = 0;

    for (guint t = 0; t < n; t++) {
        const RpLedger *ledger = g_ptr_array_index(verifier->ledgers, t);

        if (ledger != NULL && has_actions(ledger))
            last_actions = t;
    }
    for (guint t = 0; t < n; t++) {
        const guint32 iteration = verifier->first_iteration + t;
        const gboolean past = t + verifier->pending < last_actions;
        RpLedger **ledger = (RpLedger **)&g_ptr_array_index(verifier->ledgers, t);

        if (*ledger == NULL)
            *ledger = new_ledger(verifier);
        check_actions(verifier, *ledger, iteration, t + 1 == n);
        if (!verifier->full || verifier->evaluates || is_partial(verifier, iteration))
            continue;
        check_optimizer(verifier, *ledger, iteration, past, t >= last_actions);
    }
}

void
rp_ledger_forget_before(RpVerifier *verifier, guint32 iteration)
{
    if (verifier->ledgers == NULL || iteration <= verifier->first_iteration)
        return;
    const guint n = MIN(iteration - verifier->first_iteration, verifier->ledgers->len);

    if (n > 0)
        g_ptr_array_remove_range(verifier->ledgers, 0, n);
    verifier->first_iteration += n;
}
