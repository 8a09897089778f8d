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

/* The rule that a task breaks which is there twice, and its sentence. */
#define TRANSFER RP_PER_VALUE, RP_RULE_ACTIONS, "a transfer runs twice"
#define UPDATE RP_PER_LAYER, RP_RULE_OPTIMIZER_ORDER, "the same update is done twice"
static const struct {
    guint8 identity;
    guint8 rule;
    const char *twice;
} rows[RP_N_TASK_KINDS] = {
    [RP_TASK_FORWARD] = {RP_PER_ACTION, RP_RULE_ACTIONS, "a forward runs twice"},
    [RP_TASK_BACKWARD] = {RP_PER_ACTION, RP_RULE_ACTIONS, "a backward runs twice"},
    [RP_TASK_WEIGHT_GRADIENT] = {RP_PER_ACTION, RP_RULE_ACTIONS, "a weight gradient runs twice"},
    [RP_TASK_ACTIVATION_DOWNLOAD] = {TRANSFER},
    [RP_TASK_ACTIVATION_UPLOAD] = {TRANSFER},
    [RP_TASK_STASH_UPLOAD] = {TRANSFER},
    [RP_TASK_ACTGRAD_DOWNLOAD] = {TRANSFER},
    [RP_TASK_ACTGRAD_UPLOAD] = {TRANSFER},
    [RP_TASK_SAVED_DOWNLOAD] = {TRANSFER},
    [RP_TASK_SAVED_UPLOAD] = {TRANSFER},
    [RP_TASK_PARAMETER_UPLOAD] = {RP_PER_CHUNK, RP_RULE_TRANSFERS,
                                  "the same chunk is uploaded twice"},
    [RP_TASK_RESIDENT_UPLOAD] = {RP_PER_DEVICE, RP_RULE_TRANSFERS,
                                 "weights that stay are uploaded twice"},
    [RP_TASK_GRADIENT_DOWNLOAD] = {RP_PER_CHUNK, RP_RULE_TRANSFERS,
                                   "the same chunk is downloaded twice"},
    [RP_TASK_EXPAND] = {RP_PER_SLOT, RP_RULE_TRANSFERS, "the same parameters are expanded twice"},
    [RP_TASK_GRADIENT_ACCUMULATE] = {RP_PER_SLOT, RP_RULE_TRANSFERS,
                                     "the same gradients are summed twice"},
    [RP_TASK_NORM] = {RP_PER_ITERATION, RP_RULE_DECISION, "two norms decide on one iteration"},
    [RP_TASK_EARLY_STEP] = {UPDATE},
    [RP_TASK_GRADIENT_COPY] = {UPDATE},
    [RP_TASK_OPTIMIZER_STEP] = {UPDATE},
    [RP_TASK_PARAMETER_COPY] = {UPDATE},
    [RP_TASK_LATE_STEP] = {UPDATE},
    [RP_TASK_REDUCE] = {UPDATE},
    [RP_TASK_AGREE] = {RP_PER_ITERATION, RP_RULE_DECISION, "two norms decide on one iteration"},
    [RP_TASK_GATHER] = {UPDATE},
};

RpIdentity
rp_verifier_identity(RpTaskKind kind)
{
    return (RpIdentity)rows[kind].identity;
}

struct _RpLedger {
    RpTaskId *done;         /* [first_identity of the kind + identity_of()]; RP_TASK_NONE: none */
    RpTaskId *first, *last; /* `compute`: [stage * n_lanes + lane] forward; that makes gradients */
    guint n[RP_N_TASK_KINDS];
    guint n_actions;
    RpTaskId last_step; /* one of the steps */
    gboolean checked;   /* its actions */
};

static void
free_ledger(gpointer data)
{
    RpLedger *ledger = data;

    g_free(ledger->done);
    g_free(ledger->first);
    g_free(ledger->last);
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

/* Number of a task among those of its kind; of an action, that of a part. @n: (out): how many there are. What is
 * by slot may come twice in each: the second ones are numbered behind. */
static gsize
identity_of(const RpVerifier *verifier, RpTaskKind kind, const RpTask *task, gsize *n)
{
    const gsize layers = verifier->n_layers, stages = verifier->n_stages;
    const gsize round = kind == RP_TASK_GRADIENT_ACCUMULATE
                            ? task->round
                            : rp_verifier_slot_round(verifier, task->round);
    const gsize chunks = verifier->first_chunk[stages];

    switch (rp_verifier_identity(kind)) {
    case RP_PER_ACTION:
        *n = stages * verifier->micro_batches;
        return (gsize)task->stage * verifier->micro_batches + task->micro_batch;
    case RP_PER_VALUE:
        *n = layers * verifier->micro_batches;
        return (gsize)task->layer * verifier->micro_batches + task->micro_batch;
    case RP_PER_CHUNK:
        *n = 2 * verifier->rounds * chunks;
        return round * chunks + verifier->first_chunk[task->stage] + task->chunk;
    case RP_PER_SLOT:
        *n = 2 * verifier->rounds * stages;
        return round * stages + task->stage;
    case RP_PER_DEVICE:
        *n = rp_plan_gpus(verifier->plan) * layers;
        return rp_plan_lane_device(verifier->plan, task->lane) * layers + task->layer;
    case RP_PER_LAYER:
        *n = layers;
        return task->layer;
    case RP_PER_ITERATION:
        *n = 1;
        return 0;
    default:
        *n = 0;
        return 0;
    }
}

static RpTaskId *
new_entries(gsize n)
{
    RpTaskId *entries = g_new(RpTaskId, n + 1);

    for (gsize i = 0; i < n; i++)
        entries[i] = RP_TASK_NONE;
    return entries;
}

static RpLedger *
new_ledger(const RpVerifier *verifier)
{
    RpLedger *ledger = g_new0(RpLedger, 1);

    ledger->done = new_entries(verifier->first_identity[RP_N_TASK_KINDS]);
    ledger->last_step = RP_TASK_NONE;
    if (!verifier->full) {
        ledger->first = new_entries((gsize)verifier->n_stages * verifier->n_lanes);
        ledger->last = new_entries((gsize)verifier->n_stages * verifier->n_lanes);
    }
    return ledger;
}

/* %NULL: nothing of it was ever seen, or it is long over */
static RpLedger *
find_ledger(const RpVerifier *verifier, guint32 iteration)
{
    if (iteration < verifier->first_iteration ||
        iteration - verifier->first_iteration >= verifier->ledgers->len)
        return NULL;
    return g_ptr_array_index(verifier->ledgers, iteration - verifier->first_iteration);
}

static RpLedger *
ledger_of(RpVerifier *verifier, guint32 iteration)
{
    if (verifier->ledgers->len == 0)
        verifier->first_iteration = iteration;
    for (; iteration < verifier->first_iteration; verifier->first_iteration--)
        g_ptr_array_insert(verifier->ledgers, 0, new_ledger(verifier));
    while (iteration - verifier->first_iteration >= verifier->ledgers->len)
        g_ptr_array_add(verifier->ledgers, new_ledger(verifier));
    return find_ledger(verifier, iteration);
}

/* ---- entries ---- */

static void
enter_once(RpVerifier *verifier, RpTaskId *place, guint32 index, RpTaskKind kind)
{
    if (*place != RP_TASK_NONE)
        fail_tasks(verifier, (RpRule)rows[kind].rule, rp_verifier_index(verifier, *place), index,
                   "%s", rows[kind].twice);
    *place = verifier->first_id + index;
}

/* The kind of an action that has this part alone, by which the ledger knows the part. */
static const RpTaskKind kind_of_part[RP_N_PARTS] = {RP_TASK_FORWARD, RP_TASK_BACKWARD,
                                                    RP_TASK_WEIGHT_GRADIENT};

static RpTaskId *
action_place(const RpVerifier *verifier, const RpLedger *ledger, guint part, guint32 stage,
             guint32 micro_batch)
{
    return &ledger->done[verifier->first_identity[kind_of_part[part]] +
                         (gsize)stage * verifier->micro_batches + micro_batch];
}

static void
enter_action(RpVerifier *verifier, RpLedger *ledger, guint32 index)
{
    RpActionPart parts[2];
    const guint n = rp_action_parts(verifier, rp_verifier_task(verifier, index), parts);

    for (guint i = 0; i < n; i++) {
        const RpActionPart *of = &parts[i];
        const gsize end = (gsize)of->stage * verifier->n_lanes + verifier->places[index].lane;

        for (guint p = 0; p < RP_N_PARTS; p++) {
            if (!of->runs[p] || !(p == RP_PART_FORWARD ? of->begins : of->ends))
                continue;
            enter_once(verifier, action_place(verifier, ledger, p, of->stage, of->micro_batch),
                       index, kind_of_part[p]);
            if (!verifier->full && p == RP_PART_FORWARD && ledger->first[end] == RP_TASK_NONE)
                ledger->first[end] = verifier->first_id + index;
            if (!verifier->full && p == RP_PART_WEIGHTS)
                ledger->last[end] = verifier->first_id + index;
        }
    }
}

void
rp_ledger_enter(RpVerifier *verifier, guint32 index, guint32 *session)
{
    const RpTask *task = rp_verifier_task(verifier, index);
    const RpTaskKind kind = (RpTaskKind)task->kind;
    RpLedger *ledger = ledger_of(verifier, task->iteration);
    const guint rounds =
        kind == RP_TASK_GRADIENT_ACCUMULATE ? rp_verifier_n_summed(verifier, task) : 1;
    gsize n;

    ledger->n[kind]++;
    ledger->n_actions += rp_task_is_compute(task);
    if (rp_task_is_compute(task))
        enter_action(verifier, ledger, index);
    if (rp_task_is_compute(task) || rows[kind].identity == RP_ALIKE || !verifier->full)
        return;
    RpTaskId *done =
        &ledger->done[verifier->first_identity[kind] + identity_of(verifier, kind, task, &n)];
    /* parameters of a bound stage whose weights are offloaded come up for its F, and may again for its B */
    if ((kind == RP_TASK_PARAMETER_UPLOAD || kind == RP_TASK_EXPAND) && *done != RP_TASK_NONE &&
        rp_plan_stage(verifier->plan, task->stage)->bound &&
        !rp_modes_upload_once(verifier->modes)) {
        *session = 1;
        done += n / 2;
    }
    for (guint i = rounds; i-- > 0;)
        enter_once(verifier, done - (gsize)i * verifier->n_stages, index, kind);
    if (kind == RP_TASK_OPTIMIZER_STEP)
        ledger->last_step = verifier->first_id + index;
}

void
rp_ledger_number(RpVerifier *verifier)
{
    const RpTask any = {.stage = 0};

    verifier->ledgers = g_ptr_array_new_with_free_func(free_ledger);
    for (guint kind = 0; kind < RP_N_TASK_KINDS; kind++) {
        gsize n;

        (void)identity_of(verifier, (RpTaskKind)kind, &any, &n);
        verifier->first_identity[kind + 1] =
            verifier->first_identity[kind] +
            (verifier->full || rows[kind].identity == RP_PER_ACTION ? n : 0);
    }
}

/* ---- rule 1 ---- */

static guint32
action(const RpVerifier *verifier, const RpLedger *ledger, guint part, guint32 stage,
       guint32 micro_batch)
{
    return rp_verifier_index(verifier, *action_place(verifier, ledger, part, stage, micro_batch));
}

/* Every action is there. A slot, one stage of one round in one direction, stays on one device; so does each
 * copy of a mirrored stage. */
static void
check_present(RpVerifier *verifier, const RpLedger *ledger, guint32 iteration, guint32 stage)
{
    const RpPlanStage *of = rp_plan_stage(verifier->plan, stage);
    const guint per_round = verifier->micro_batches / verifier->rounds / (of->mirrored ? 2 : 1);
    const gboolean backward = of->runs_backward && !verifier->evaluates;
    const gboolean runs[RP_N_PARTS] = {of->runs_forward, backward, backward};
    static const char *const names[RP_N_PARTS] = {"forward", "backward", "weight gradient"};

    for (guint p = 0; p < RP_N_PARTS; p++)
        for (guint m = 0; m < verifier->micro_batches; m++) {
            const guint beside = p == RP_PART_BACKWARD ? RP_PART_FORWARD : RP_PART_BACKWARD;
            const guint32 task = action(verifier, ledger, p, stage, m);
            const guint32 first = action(verifier, ledger, p, stage, m - m % per_round);

            if (task == RP_NO_TASK && runs[p])
                fail_task(verifier, RP_RULE_ACTIONS, action(verifier, ledger, beside, stage, m),
                          "no %s of stage %u, micro-batch %u in iteration %u", names[p], stage, m,
                          iteration);
            if (first < verifier->n_tasks && task < verifier->n_tasks &&
                verifier->places[first].lane != verifier->places[task].lane)
                fail_tasks(verifier, RP_RULE_ACTIONS, first, task, "one slot runs on two gpus");
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
    const guint32 forward = action(verifier, ledger, RP_PART_FORWARD, s, m);
    const guint32 backward = action(verifier, ledger, RP_PART_BACKWARD, s, m);
    const guint32 weights = action(verifier, ledger, RP_PART_WEIGHTS, s, m);
    guint32 input = RP_NO_TASK, gradient = RP_NO_TASK;

    if (inputs && first > 0)
        input = action(verifier, ledger, RP_PART_FORWARD,
                       rp_verifier_stage_of(verifier, first - 1, RP_FORWARD), m);
    if (inputs && end < verifier->n_layers)
        gradient = action(verifier, ledger, RP_PART_BACKWARD,
                          rp_verifier_stage_of(verifier, end, RP_BACKWARD), m);
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
        {trains && later, later ? action(verifier, ledger, RP_PART_FORWARD, s, m - 1) : 0, forward,
         FALSE, "keys and values of the slice before"},
        {trains && later, backward,
         later ? action(verifier, ledger, RP_PART_BACKWARD, s, m - 1) : 0, FALSE,
         "gradients of keys and values from the slice behind"},
    };

    for (guint i = 0; i < G_N_ELEMENTS(orders); i++) {
        const guint32 before = orders[i].first, after = orders[i].second;

        if (!orders[i].demanded || before >= verifier->n_tasks ||
            after >= verifier->n_tasks || /* missing, or old */
            rp_verifier_before(verifier, &verifier->places[before], after, FALSE) ||
            (orders[i].late &&
             rp_verifier_before(verifier, &verifier->places[before], after, TRUE)))
            continue;
        fail_tasks(
            verifier, RP_RULE_ACTIONS, before, after,
            "%s is not sure to be there: the second task may start before the first has ended",
            orders[i].value);
    }
    /* the fused stage's, where they are two */
    if (trains && forward != backward && forward < verifier->n_tasks &&
        backward < verifier->n_tasks &&
        rp_verifier_device(verifier, forward) != rp_verifier_device(verifier, backward))
        fail_tasks(verifier, RP_RULE_ACTIONS, forward, backward,
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
        const guint32 maker = rp_verifier_stage_of(verifier, l, RP_BACKWARD);

        if (l > layers.first && !rp_verifier_begins_stage(verifier, l, RP_BACKWARD))
            continue;
        for (guint lane = 0; lane < verifier->n_lanes; lane++) {
            const guint32 task =
                rp_verifier_index(verifier, before->last[(gsize)maker * verifier->n_lanes + lane]);

            if (task < verifier->n_tasks &&
                !rp_verifier_before(verifier, &verifier->places[task], reader, FALSE))
                fail_tasks(verifier, RP_RULE_STALENESS, task, reader,
                           "the second action may start before the first has ended, whose "
                           "gradients make the weights it reads");
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
                rp_verifier_index(verifier, ledger->first[(gsize)s * verifier->n_lanes + lane]);

            if (reader < verifier->n_tasks)
                check_makers(verifier, before, reader, s);
        }
}

static void
check_actions(RpVerifier *verifier, RpLedger *ledger, guint32 iteration, gboolean last)
{
    /* an action that is not there is missing */
    const gboolean complete =
        !last || (!verifier->open && (verifier->ledgers->len == 1 || ledger->n_actions > 0));

    if (ledger->checked)
        return;
    check_staleness(verifier, ledger, iteration);
    if (iteration < verifier->complete_from)
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
        return modes->servers > 1 && verifier->layers[layer].gradient_bytes > 0;
    case RP_TASK_GATHER:
        return modes->servers > 1 && stepped;
    case RP_TASK_GRADIENT_COPY:
        return modes->copies == RP_COPIES_BLOCKING && verifier->layers[layer].gradient_bytes > 0;
    case RP_TASK_PARAMETER_COPY:
        return modes->copies != RP_COPIES_FUSED && stepped;
    default:
        return stepped;
    }
}

/* All layers have a task of each kind in use or, in the last iteration of a growing plan, none; some
 * have, if layers are stepped one by one. @past: an iteration with actions has followed */
static void
check_optimizer(RpVerifier *verifier, const RpLedger *ledger, guint32 iteration, gboolean past,
                gboolean last)
{
    const RpPlanModes *modes = verifier->modes;
    const guint steps = ledger->n[RP_TASK_OPTIMIZER_STEP], norms = ledger->n[RP_TASK_NORM];
    const guint32 step = rp_verifier_index(verifier, ledger->last_step);
    const gboolean waits = rp_modes_wait_for_norm(modes);

    for (RpTaskKind kind = 0; kind < RP_N_TASK_KINDS; kind++) {
        /* late copies of layers that are stepped one by one come one by one, too */
        const gboolean late = kind == RP_TASK_PARAMETER_COPY ||
                              (kind == RP_TASK_GATHER && modes->copies != RP_COPIES_FUSED);
        const gboolean at_once = waits && kind != RP_TASK_EARLY_STEP && kind != RP_TASK_REDUCE;
        const gboolean closed = at_once || (norms > 0 && (!late || last));

        if (rp_verifier_identity(kind) != RP_PER_LAYER ||
            !(past || (ledger->n[kind] > 0 && closed)))
            continue;
        for (guint l = 0; l < verifier->n_layers; l++)
            if (ledger->done[verifier->first_identity[kind] + l] == RP_TASK_NONE &&
                rp_ledger_has_kind(verifier, kind, l))
                fail_task(verifier, RP_RULE_OPTIMIZER_ORDER, step,
                          "no %s of layer %u in iteration %u", rp_task_kind_name(kind), l,
                          iteration);
    }
    if (norms == 0 && (past || (steps > 0 && (waits || steps == verifier->n_stepped))))
        fail_task(verifier, RP_RULE_DECISION, step, "iteration %u has no norm", iteration);
    if (modes->servers > 1 && (norms == 0) != (ledger->n[RP_TASK_AGREE] == 0))
        fail_task(verifier, RP_RULE_DECISION, step,
                  "servers do not agree on the norm of iteration %u", iteration);
}

void
rp_ledger_check(RpVerifier *verifier)
{
    const guint n = verifier->ledgers->len;
    guint last_actions = 0;

    for (guint t = 0; t < n; t++) {
        const RpLedger *ledger = g_ptr_array_index(verifier->ledgers, t);

        if (ledger->n_actions > 0)
            last_actions = t;
    }
    for (guint t = 0; t < n; t++) {
        const guint32 iteration = verifier->first_iteration + t;
        const gboolean past = t + verifier->pending < last_actions;
        RpLedger *ledger = g_ptr_array_index(verifier->ledgers, t);

        check_actions(verifier, ledger, iteration, t + 1 == n);
        if (!verifier->full || verifier->evaluates || iteration < verifier->complete_from)
            continue;
        check_optimizer(verifier, ledger, iteration, past, t >= last_actions);
    }
}

void
rp_ledger_forget_before(RpVerifier *verifier, guint32 iteration)
{
    if (iteration <= verifier->first_iteration)
        return;
    const guint n = MIN(iteration - verifier->first_iteration, verifier->ledgers->len);

    if (n > 0)
        g_ptr_array_remove_range(verifier->ledgers, 0, n);
    verifier->first_iteration += n;
}
