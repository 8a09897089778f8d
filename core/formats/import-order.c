/**
 * From an order to a plan: the actions of every rank woven into one stream in which each comes
 * after what it waits for.
 *
 * Actions are counted by what they produce: for a stage and a micro-batch the activations (F), the
 * gradient of the input (B, I) and that of the weights (B, W). A rank whose next action lacks one
 * of these waits for it; whoever produces it wakes the ranks that wait.
 */
#include "core/formats/import-pytorch.h"

#include "core/base/quote.h"

enum { ACTIVATION, INPUT_GRADIENT, WEIGHT_GRADIENT, N_PRODUCTS };

#define ABSENT                                                                                     \
    (RP_TASK_NONE -                                                                                \
     1) /* no action of the order makes it; RP_TASK_NONE: not made yet              \
                        */
#define MAX_NEEDS 4

typedef struct {
    const RpOrders *orders;
    const RpOrderCosts *costs;
    guint n_stages;
    guint micro_batches;
    guint round;         /* M_R: micro-batches of a round */
    gboolean backward;   /* there are backward actions at all */
    guint32 fused_stage; /* dispatched: forward before it, backward behind it; else RP_NONE */
    RpTaskId *products;  /* n_stages x micro_batches x N_PRODUCTS */
    guint32 *rank_of;    /* of each stage */
    RpPlan *plan;
    guint *next;           /* of each rank: its next action */
    guint32 *next_waiting; /* of each rank: another that waits for the same */
    GHashTable *waiting;   /* RpTaskId *product -> first rank that waits for it, + 1 */
    GQueue ready;          /* ranks, + 1 */
    GError **error;
} Weave;

/* What an action waits for. */
typedef struct {
    RpTaskId *product;
    guint32 phase;
} Need;

static RpTaskId *
product(const Weave *weave, guint32 stage, guint32 micro_batch, guint what)
{
    return &weave
                ->products[((gsize)stage * weave->micro_batches + micro_batch) * N_PRODUCTS + what];
}

static const RpAction *
action_at(const Weave *weave, guint rank, guint i)
{
    return &g_array_index(weave->orders->ranks[rank], RpAction, i);
}

/* "`3B0` (row 2, cell 7)" */
static char *
describe(const Weave *weave, guint rank, guint i)
{
    g_autoptr(GString) text = g_string_new("`");

    rp_action_format(text, action_at(weave, rank, i));
    g_string_append_printf(text, "` (row %u, cell %u)", rank + 1,
                           g_array_index(weave->orders->cells[rank], guint32, i));
    return g_string_free(g_steal_pointer(&text), FALSE);
}

/* Sets the error "<file>: <subject> <problem>". */
static gboolean
fail(const Weave *weave, const char *subject, const char *problem)
{
    g_autofree char *name = rp_display_name(weave->orders->name);

    g_set_error(weave->error, RP_IMPORT_ERROR, RP_IMPORT_ERROR_ORDER, "%s: %s %s", name, subject,
                problem);
    return FALSE;
}

static gboolean
fail_at(const Weave *weave, guint rank, guint i, const char *problem)
{
    g_autofree char *subject = describe(weave, rank, i);

    return fail(weave, subject, problem);
}

/* Which products an action makes. Returns: how many */
static guint
products_of(const Weave *weave, const RpAction *action, RpTaskId *made[MAX_NEEDS])
{
    guint32 s = action->stage, m = action->micro_batch;
    guint n = 0;

    if (action->kind == RP_ACTION_FORWARD || action->kind == RP_ACTION_FUSED ||
        action->kind == RP_ACTION_OVERLAP)
        made[n++] = product(weave, s, m, ACTIVATION);
    if (action->kind == RP_ACTION_OVERLAP) {
        s = action->backward_stage;
        m = action->backward_micro_batch;
    }
    if (action->kind != RP_ACTION_FORWARD && action->kind != RP_ACTION_WEIGHT_GRADIENT)
        made[n++] = product(weave, s, m, INPUT_GRADIENT);
    if (action->kind != RP_ACTION_FORWARD && action->kind != RP_ACTION_INPUT_GRADIENT)
        made[n++] = product(weave, s, m, WEIGHT_GRADIENT);
    return n;
}

/* Notes what each action will make: every product once, every stage on one rank. */
static gboolean
register_action(Weave *weave, guint rank, guint i)
{
    const RpAction *action = action_at(weave, rank, i);
    guint32 stages[2] = {action->stage, action->stage};
    RpTaskId *made[MAX_NEEDS];
    guint n = products_of(weave, action, made);

    for (guint k = 0; k < n; k++) {
        if (*made[k] != ABSENT)
            return fail_at(weave, rank, i, "does what another action does as well");
        *made[k] = RP_TASK_NONE;
    }
    if (action->kind != RP_ACTION_FORWARD)
        weave->backward = TRUE;
    if (action->kind == RP_ACTION_FUSED) {
        if (weave->fused_stage != RP_NONE && weave->fused_stage != action->stage)
            return fail_at(weave, rank, i, "is a fused action of a second stage");
        weave->fused_stage = action->stage;
    }
    if (action->kind == RP_ACTION_OVERLAP)
        stages[1] = action->backward_stage;
    for (guint k = 0; k < 2; k++) {
        if (weave->rank_of[stages[k]] == RP_NONE)
            weave->rank_of[stages[k]] = rank;
        else if (weave->rank_of[stages[k]] != rank)
            weave->rank_of[stages[k]] = weave->orders->n_ranks; /* several */
    }
    return TRUE;
}

/* What must be there of a stage: all of it, or one half of it in a dispatched order. */
static gboolean
is_expected(const Weave *weave, guint32 stage, guint what)
{
    if (weave->fused_stage == RP_NONE)
        return what == ACTIVATION || weave->backward;
    return what == ACTIVATION ? stage <= weave->fused_stage : stage >= weave->fused_stage;
}

static gboolean
check_complete(const Weave *weave)
{
    static const char *const makers[N_PRODUCTS] = {"forward", "backward (B or I)",
                                                   "backward (B or W)"};

    for (guint32 s = 0; s < weave->n_stages; s++) {
        for (guint32 m = 0; m < weave->micro_batches; m++) {
            for (guint what = 0; what < N_PRODUCTS; what++) {
                gboolean present = *product(weave, s, m, what) != ABSENT;
                gboolean expected = is_expected(weave, s, what);
                if (present == expected)
                    continue;
                g_autofree char *subject = g_strdup_printf("stage %u, micro-batch %u", s, m);
                g_autofree char *problem = g_strdup_printf(
                    present ? "has a %s on the wrong side of the fused stage" : "has no %s",
                    makers[what]);
                return fail(weave, subject, problem);
            }
        }
        if (weave->fused_stage == RP_NONE && weave->rank_of[s] == weave->orders->n_ranks) {
            g_autofree char *subject = g_strdup_printf("stage %u", s);
            return fail(weave, subject, "runs on more than one rank");
        }
    }
    if (weave->fused_stage != RP_NONE &&
        (weave->fused_stage == 0) != (weave->fused_stage == weave->n_stages - 1))
        return fail(weave, "the order", "has stages on one side of the fused stage only");
    return TRUE;
}

/* In a dispatched order the fused stage runs fused actions and nothing else, and nothing overlaps.
 */
static gboolean
check_fused(const Weave *weave)
{
    for (guint r = 0; r < weave->orders->n_ranks; r++) {
        for (guint i = 0; i < weave->orders->ranks[r]->len; i++) {
            const RpAction *action = action_at(weave, r, i);
            if (action->kind == RP_ACTION_OVERLAP)
                return fail_at(weave, r, i, "is an overlap in an order with a fused stage");
            if (action->stage == weave->fused_stage && action->kind != RP_ACTION_FUSED)
                return fail_at(weave, r, i, "is half of what the fused stage runs as one action");
        }
    }
    return TRUE;
}

static guint
greatest_common_divisor(guint a, guint b)
{
    while (b != 0) {
        guint rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* A round of a dispatched order: the longest equal runs of micro-batches in which no slot moves. */
static gboolean
find_rounds(Weave *weave)
{
    guint M = weave->micro_batches;
    g_autofree guint32 *rank_of = g_new(guint32, (gsize)weave->n_stages * M);

    for (gsize at = 0; at < (gsize)weave->n_stages * M; at++)
        rank_of[at] = RP_NONE;
    for (guint r = 0; r < weave->orders->n_ranks; r++) {
        for (guint i = 0; i < weave->orders->ranks[r]->len; i++) {
            const RpAction *action = action_at(weave, r, i);
            guint32 *rank = &rank_of[(gsize)action->stage * M + action->micro_batch];
            if (*rank != RP_NONE && *rank != r)
                return fail_at(weave, r, i, "runs on another rank than the other half of it");
            *rank = r;
        }
    }
    weave->round = M;
    for (guint32 s = 0; s < weave->n_stages; s++)
        for (guint m = 1; m < M; m++)
            if (rank_of[(gsize)s * M + m] != rank_of[(gsize)s * M + m - 1])
                weave->round = greatest_common_divisor(weave->round, m);
    if (M / weave->round > G_MAXUINT16)
        return fail(weave, "the order", "moves its slots more than 65535 times");
    return TRUE;
}

static gboolean
register_all(Weave *weave)
{
    const RpOrders *orders = weave->orders;

    for (gsize i = 0; i < (gsize)weave->n_stages * weave->micro_batches * N_PRODUCTS; i++)
        weave->products[i] = ABSENT;
    for (guint s = 0; s < weave->n_stages; s++)
        weave->rank_of[s] = RP_NONE;
    for (guint r = 0; r < orders->n_ranks; r++)
        for (guint i = 0; i < orders->ranks[r]->len; i++)
            if (!register_action(weave, r, i))
                return FALSE;
    if (weave->fused_stage != RP_NONE && !check_fused(weave))
        return FALSE;
    weave->round = weave->micro_batches;
    return check_complete(weave) && (weave->fused_stage == RP_NONE || find_rounds(weave));
}

static guint
needs_of_forward(const Weave *weave, guint32 s, guint32 m, Need *needs)
{
    if (s == 0)
        return 0;
    needs[0] = (Need){product(weave, s - 1, m, ACTIVATION), 0};
    return 1;
}

/* Of B and I: the stashed input at the start, the gradient after the recompute. */
static guint
needs_of_backward(const Weave *weave, guint32 s, guint32 m, Need *needs)
{
    if (weave->fused_stage != RP_NONE) {
        /* which forward stage holds the input is not in the order: the last one comes after it */
        needs[0] = (Need){product(weave, weave->fused_stage - 1, m, ACTIVATION), 0};
        needs[1] = (Need){product(weave, s - 1, m, INPUT_GRADIENT), 1};
        return 2;
    }
    needs[0] = (Need){product(weave, s, m, ACTIVATION), 0};
    if (s + 1 == weave->n_stages)
        return 1;
    needs[1] = (Need){product(weave, s + 1, m, INPUT_GRADIENT), 1};
    return 2;
}

static guint
needs_of(const Weave *weave, const RpAction *action, Need needs[MAX_NEEDS])
{
    guint n = 0;

    switch (action->kind) {
    case RP_ACTION_FORWARD:
    case RP_ACTION_FUSED:
        return needs_of_forward(weave, action->stage, action->micro_batch, needs);
    case RP_ACTION_WEIGHT_GRADIENT:
        needs[0] = (Need){product(weave, action->stage, action->micro_batch, INPUT_GRADIENT), 0};
        return 1;
    case RP_ACTION_OVERLAP:
        n = needs_of_forward(weave, action->stage, action->micro_batch, needs);
        n += needs_of_backward(weave, action->backward_stage, action->backward_micro_batch,
                               needs + n);
        for (guint i = 0; i < n; i++)
            needs[i].phase = 0; /* the two parts run mixed: there is no leading recompute */
        return n;
    default:
        return needs_of_backward(weave, action->stage, action->micro_batch, needs);
    }
}

static const RpStageCost *
cost_of(const Weave *weave, guint32 stage)
{
    return &weave->costs->stages[weave->costs->n_stages == 1 ? 0 : stage];
}

/* Fills in kind, duration and lead. */
static void
set_work(const Weave *weave, const RpAction *action, RpTask *task)
{
    const RpStageCost *cost = cost_of(weave, action->stage);

    switch (action->kind) {
    case RP_ACTION_FORWARD:
        task->kind = RP_TASK_FORWARD;
        task->duration_ns = cost->forward_ns;
        break;
    case RP_ACTION_FUSED:
        task->kind = RP_TASK_FUSED;
        task->duration_ns = cost->forward_ns + cost->backward_ns - cost->recompute_ns;
        break;
    case RP_ACTION_OVERLAP:
        task->kind = RP_TASK_OVERLAP;
        task->backward_stage = action->backward_stage;
        task->backward_micro_batch = action->backward_micro_batch;
        task->duration_ns = weave->costs->overlap_ns;
        if (task->duration_ns == 0)
            task->duration_ns =
                cost->forward_ns + cost_of(weave, action->backward_stage)->backward_ns;
        break;
    case RP_ACTION_BACKWARD:
        task->kind = RP_TASK_BACKWARD;
        task->duration_ns = cost->backward_ns;
        task->lead_ns = cost->recompute_ns;
        break;
    case RP_ACTION_INPUT_GRADIENT:
        task->kind = RP_TASK_INPUT_GRADIENT;
        task->duration_ns = cost->input_gradient_ns;
        task->lead_ns = MIN(cost->recompute_ns, cost->input_gradient_ns);
        break;
    default:
        task->kind = RP_TASK_WEIGHT_GRADIENT;
        task->duration_ns = cost->weight_gradient_ns;
        break;
    }
}

/* Wakes the ranks that wait for @made, the last one to wait first. */
static void
wake(Weave *weave, RpTaskId *made)
{
    guint32 rank = GPOINTER_TO_UINT(g_hash_table_lookup(weave->waiting, made));

    g_hash_table_remove(weave->waiting, made);
    for (; rank != 0; rank = weave->next_waiting[rank - 1])
        g_queue_push_tail(&weave->ready, GUINT_TO_POINTER(rank));
}

static void
wait_for(Weave *weave, guint rank, RpTaskId *made)
{
    weave->next_waiting[rank] = GPOINTER_TO_UINT(g_hash_table_lookup(weave->waiting, made));
    g_hash_table_insert(weave->waiting, made, GUINT_TO_POINTER(rank + 1));
}

/* The first product that is not there yet; %NULL if all are. */
static RpTaskId *
missing_need(const Weave *weave, const RpAction *action)
{
    Need needs[MAX_NEEDS];
    guint n = needs_of(weave, action, needs);

    for (guint k = 0; k < n; k++)
        if (*needs[k].product == RP_TASK_NONE)
            return needs[k].product;
    return NULL;
}

static void
append_action(Weave *weave, guint rank, const RpAction *action)
{
    RpTask task = {
        .lane = rp_plan_lane(weave->plan, rank, RP_LANE_COMPUTE),
        .micro_batch = action->micro_batch,
        .stage = action->stage,
        .layer = RP_NONE,
        .chunk = RP_NONE,
        .round = (guint16)(action->micro_batch / weave->round),
    };
    RpDependency dependencies[MAX_NEEDS];
    Need needs[MAX_NEEDS];
    RpTaskId *made[MAX_NEEDS];
    guint n = needs_of(weave, action, needs);

    for (guint k = 0; k < n; k++) {
        const RpTask *from = rp_plan_task(weave->plan, *needs[k].product);
        dependencies[k] = (RpDependency){
            .task = *needs[k].product,
            .hop_ns = from->lane == task.lane ? 0 : weave->costs->hop_ns,
            .phase = needs[k].phase,
        };
    }
    set_work(weave, action, &task);
    RpTaskId id = rp_plan_append(weave->plan, &task, dependencies, n, NULL, 0);
    n = products_of(weave, action, made);
    for (guint k = 0; k < n; k++) {
        *made[k] = id;
        wake(weave, made[k]);
    }
}

static gboolean
makes(const Weave *weave, const RpAction *action, const RpTaskId *what)
{
    RpTaskId *made[MAX_NEEDS];
    guint n = products_of(weave, action, made);

    for (guint k = 0; k < n; k++)
        if (made[k] == what)
            return TRUE;
    return FALSE;
}

/* Where in the order the action is that makes @what. It is there: check_complete() saw it. */
static void
find_maker(const Weave *weave, const RpTaskId *what, guint *rank, guint *i)
{
    for (*rank = 0; *rank < weave->orders->n_ranks; (*rank)++)
        for (*i = weave->next[*rank]; *i < weave->orders->ranks[*rank]->len; (*i)++)
            if (makes(weave, action_at(weave, *rank, *i), what))
                return;
    g_assert_not_reached();
}

/* Follows who waits for whom from a rank that waits, until one comes up again. */
static gboolean
fail_deadlock(const Weave *weave, guint rank)
{
    g_autofree gboolean *seen = g_new0(gboolean, weave->orders->n_ranks);
    guint maker_rank = rank, maker = 0;

    while (!seen[rank]) {
        seen[rank] = TRUE;
        find_maker(weave, missing_need(weave, action_at(weave, rank, weave->next[rank])),
                   &maker_rank, &maker);
        rank = maker_rank;
    }
    /* @rank is on the cycle now */
    guint behind_rank = 0, behind = 0;
    find_maker(weave, missing_need(weave, action_at(weave, rank, weave->next[rank])), &maker_rank,
               &maker);
    guint head = weave->next[maker_rank];
    find_maker(weave, missing_need(weave, action_at(weave, maker_rank, head)), &behind_rank,
               &behind);
    g_autofree char *name = rp_display_name(weave->orders->name);
    g_autofree char *waiting = describe(weave, rank, weave->next[rank]);
    g_autofree char *wanted = describe(weave, maker_rank, maker);
    g_autofree char *blocked = describe(weave, maker_rank, head);
    g_autofree char *wanted_too = describe(weave, behind_rank, behind);

    if (maker == head)
        g_set_error(weave->error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_DEADLOCK,
                    "%s: the order cannot run: %s waits for %s, which waits for %s", name, waiting,
                    wanted, wanted_too);
    else
        g_set_error(weave->error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_DEADLOCK,
                    "%s: the order cannot run: %s waits for %s, which comes after %s, which waits "
                    "for %s",
                    name, waiting, wanted, blocked, wanted_too);
    return FALSE;
}

static gboolean
weave_all(Weave *weave)
{
    const RpOrders *orders = weave->orders;

    for (guint r = 0; r < orders->n_ranks; r++)
        g_queue_push_tail(&weave->ready, GUINT_TO_POINTER(r + 1));
    while (!g_queue_is_empty(&weave->ready)) {
        guint rank = GPOINTER_TO_UINT(g_queue_pop_head(&weave->ready)) - 1;
        RpTaskId *missing = NULL;

        while (weave->next[rank] < orders->ranks[rank]->len) {
            const RpAction *action = action_at(weave, rank, weave->next[rank]);
            missing = missing_need(weave, action);
            if (missing)
                break;
            append_action(weave, rank, action);
            weave->next[rank]++;
        }
        if (missing)
            wait_for(weave, rank, missing);
    }
    for (guint r = 0; r < orders->n_ranks; r++)
        if (weave->next[r] < orders->ranks[r]->len)
            return fail_deadlock(weave, r);
    return TRUE;
}

/* Layers as rp_plan_from_orders() promises them. */
static void
add_stages(Weave *weave)
{
    gboolean dispatched = weave->fused_stage != RP_NONE;
    guint per_forward = dispatched ? weave->n_stages - 1 - weave->fused_stage : 1;
    guint per_backward = dispatched ? weave->fused_stage : 1;
    guint first = 0;

    for (guint32 s = 0; s < weave->n_stages; s++) {
        RpPlanStage stage = {
            .runs_forward = !dispatched || s <= weave->fused_stage,
            .runs_backward = dispatched ? s >= weave->fused_stage : weave->backward,
            .bound = !dispatched,
            .device = dispatched ? RP_NONE : weave->rank_of[s],
        };

        if (!dispatched || s < weave->fused_stage) {
            stage.layers = (RpInterval){first, per_forward};
            first += per_forward;
        } else if (s == weave->fused_stage) {
            stage.layers = (RpInterval){first, 1};
        } else {
            first -= per_backward;
            stage.layers = (RpInterval){first, per_backward};
        }
        rp_plan_add_stage(weave->plan, &stage);
    }
}

static RpPlan *
make_plan(Weave *weave)
{
    RpPlanPromises promises = {.schedule = "imported"};
    guint n_layers = weave->n_stages;

    if (!register_all(weave))
        return NULL;
    if (weave->fused_stage != RP_NONE)
        n_layers = weave->fused_stage * (weave->n_stages - 1 - weave->fused_stage) + 1;
    weave->plan =
        rp_plan_new(weave->orders->n_ranks, RP_FIDELITY_COMPUTE, n_layers, weave->micro_batches);
    promises.rounds = weave->micro_batches / weave->round;
    rp_plan_set_promises(weave->plan, &promises);
    add_stages(weave);
    if (!weave_all(weave))
        g_clear_pointer(&weave->plan, rp_plan_free);
    return weave->plan;
}

static gboolean
check_costs(const Weave *weave)
{
    const RpOrderCosts *costs = weave->costs;

    if (costs->n_stages != 1 && costs->n_stages != weave->n_stages) {
        g_autofree char *problem = g_strdup_printf("has %u stages, but costs are given for %u",
                                                   weave->n_stages, costs->n_stages);
        return fail(weave, "the order", problem);
    }
    for (guint s = 0; s < costs->n_stages; s++) {
        const RpStageCost *cost = &costs->stages[s];
        gint64 least = MIN(MIN(cost->forward_ns, cost->weight_gradient_ns), cost->recompute_ns);

        least = MIN(least, MIN(cost->input_gradient_ns, costs->overlap_ns));
        if (least >= 0 && cost->recompute_ns <= cost->backward_ns)
            continue;
        g_autofree char *subject = g_strdup_printf("the cost of stage %u", s);
        return fail(
            weave, subject,
            "is negative, or its recompute takes longer than the backward that it is part of");
    }
    return TRUE;
}

/* Not more stages x micro-batches than actions to run them. */
static gboolean
check_size(const Weave *weave)
{
    guint64 n_actions = rp_orders_n_actions(weave->orders);

    if (n_actions == 0)
        return fail(weave, "the order", "has no action");
    /* an overlapped action is two */
    if ((guint64)weave->n_stages * weave->micro_batches > 2 * n_actions) {
        g_autofree char *problem = g_strdup_printf(
            "names stage %u and micro-batch %u, but has too few actions (%" G_GUINT64_FORMAT
            ") for every stage to run every micro-batch",
            weave->n_stages - 1, weave->micro_batches - 1, n_actions);
        return fail(weave, "the order", problem);
    }
    return TRUE;
}

RpPlan *
rp_plan_from_orders(const RpOrders *orders, const RpOrderCosts *costs, GError **error)
{
    Weave weave = {
        .orders = orders,
        .costs = costs,
        .n_stages = orders->n_stages,
        .micro_batches = orders->micro_batches,
        .fused_stage = RP_NONE,
        .ready = G_QUEUE_INIT,
        .error = error,
    };

    g_return_val_if_fail(costs->n_stages >= 1, NULL);
    if (!check_size(&weave) || !check_costs(&weave))
        return NULL;
    weave.products = g_new(RpTaskId, (gsize)weave.n_stages * weave.micro_batches * N_PRODUCTS);
    weave.rank_of = g_new(guint32, weave.n_stages);
    weave.next = g_new0(guint, orders->n_ranks);
    weave.next_waiting = g_new0(guint32, orders->n_ranks);
    weave.waiting = g_hash_table_new(NULL, NULL);
    RpPlan *plan = make_plan(&weave);
    g_hash_table_unref(weave.waiting);
    g_queue_clear(&weave.ready);
    g_free(weave.next_waiting);
    g_free(weave.next);
    g_free(weave.rank_of);
    g_free(weave.products);
    return plan;
}
