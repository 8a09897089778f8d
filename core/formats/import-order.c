/*
 * From an order to a plan: the actions of every rank merged into one stream in which each comes
 * after all that it waits for. A rank whose next action lacks a product waits for it; the action
 * that makes the product wakes the ranks that wait.
 */
#include "core/formats/import-order-private.h"

#include "core/base/quote.h"

/* A product that an action waits for, and the phase in which it does. */
typedef struct {
    RpTaskId *product;
    guint32 phase;
} Need;

static guint
needs_of_forward(const RpOrderWeave *weave, guint32 s, guint32 m, Need *needs)
{
    if (s == 0)
        return 0;
    needs[0] = (Need){rp_order_product(weave, s - 1, m, RP_PRODUCT_ACTIVATION), 0};
    return 1;
}

/* B and I need the stashed input at the start, and the gradient after the recompute. */
static guint
needs_of_backward(const RpOrderWeave *weave, guint32 s, guint32 m, Need *needs)
{
    if (weave->fused_stage != RP_NONE) {
        /* the order does not name the forward stage that holds the input: the last one comes after
         * it */
        needs[0] =
            (Need){rp_order_product(weave, weave->fused_stage - 1, m, RP_PRODUCT_ACTIVATION), 0};
        needs[1] = (Need){rp_order_product(weave, s - 1, m, RP_PRODUCT_INPUT_GRADIENT), 1};
        return 2;
    }
    needs[0] = (Need){rp_order_product(weave, s, m, RP_PRODUCT_ACTIVATION), 0};
    if (s + 1 == weave->n_stages)
        return 1;
    needs[1] = (Need){rp_order_product(weave, s + 1, m, RP_PRODUCT_INPUT_GRADIENT), 1};
    return 2;
}

static guint
needs_of(const RpOrderWeave *weave, const RpAction *action, Need needs[RP_MAX_PRODUCTS])
{
    const RpActionProducts *makes = rp_action_products((RpActionKind)action->kind);
    const guint32 s = rp_action_backward_stage(action), m = rp_action_backward_micro_batch(action);
    guint n = 0;

    if (makes->output)
        n = needs_of_forward(weave, action->stage, action->micro_batch, needs);
    if (makes->input_gradient && action->kind != RP_ACTION_FUSED)
        n += needs_of_backward(weave, s, m, needs + n);
    if (action->kind == RP_ACTION_WEIGHT_GRADIENT)
        needs[n++] = (Need){rp_order_product(weave, s, m, RP_PRODUCT_INPUT_GRADIENT), 0};
    for (guint i = 0; i < n && makes->output; i++)
        needs[i].phase = 0; /* two parts of an action run mixed: there is no leading recompute */
    return n;
}

static const RpStageCost *
cost_of(const RpOrderWeave *weave, guint32 stage)
{
    return &weave->costs->stages[weave->costs->n_stages == 1 ? 0 : stage];
}

/* Fills in kind, duration and lead. */
static void
set_work(const RpOrderWeave *weave, const RpAction *action, RpTask *task)
{
    const RpStageCost *cost = cost_of(weave, action->stage);

    task->kind = action->kind; /* kinds of actions are the first kinds of tasks */
    switch (action->kind) {
    case RP_ACTION_FORWARD:
        task->duration_ns = cost->forward_ns;
        break;
    case RP_ACTION_FUSED:
        task->duration_ns = cost->forward_ns + cost->backward_ns - cost->recompute_ns;
        break;
    case RP_ACTION_OVERLAP:
        task->backward_stage = action->backward_stage;
        task->backward_micro_batch = action->backward_micro_batch;
        task->duration_ns = weave->costs->overlap_ns;
        if (task->duration_ns == 0)
            task->duration_ns =
                cost->forward_ns + cost_of(weave, action->backward_stage)->backward_ns;
        break;
    case RP_ACTION_BACKWARD:
        task->duration_ns = cost->backward_ns;
        task->lead_ns = cost->recompute_ns;
        break;
    case RP_ACTION_INPUT_GRADIENT:
        task->duration_ns = cost->input_gradient_ns;
        task->lead_ns = MIN(cost->recompute_ns, cost->input_gradient_ns);
        break;
    default:
        task->duration_ns = cost->weight_gradient_ns;
        break;
    }
}

/* Wakes the ranks that wait for @made, the last one to wait first. */
static void
wake(RpOrderWeave *weave, RpTaskId *made)
{
    guint32 rank = GPOINTER_TO_UINT(g_hash_table_lookup(weave->waiting, made));

    g_hash_table_remove(weave->waiting, made);
    for (; rank != 0; rank = weave->next_waiting[rank - 1])
        g_queue_push_tail(&weave->ready, GUINT_TO_POINTER(rank));
}

static void
wait_for(RpOrderWeave *weave, guint rank, RpTaskId *made)
{
    weave->next_waiting[rank] = GPOINTER_TO_UINT(g_hash_table_lookup(weave->waiting, made));
    g_hash_table_insert(weave->waiting, made, GUINT_TO_POINTER(rank + 1));
}

/* The first product that is not there yet; %NULL if all are. */
static RpTaskId *
missing_need(const RpOrderWeave *weave, const RpAction *action)
{
    Need needs[RP_MAX_PRODUCTS];
    guint n = needs_of(weave, action, needs);

    for (guint k = 0; k < n; k++)
        if (*needs[k].product == RP_TASK_NONE)
            return needs[k].product;
    return NULL;
}

static void
append_action(RpOrderWeave *weave, guint rank, const RpAction *action)
{
    RpTask task = {
        .lane = rp_plan_lane(weave->plan, rank, RP_LANE_COMPUTE),
        .micro_batch = action->micro_batch,
        .stage = action->stage,
        .layer = RP_NONE,
        .chunk = RP_NONE,
        .round = (guint16)(action->micro_batch / weave->round),
    };
    RpDependency dependencies[RP_MAX_PRODUCTS];
    Need needs[RP_MAX_PRODUCTS];
    RpTaskId *made[RP_MAX_PRODUCTS];
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
    n = rp_order_products_of(weave, action, made);
    for (guint k = 0; k < n; k++) {
        *made[k] = id;
        wake(weave, made[k]);
    }
}

static gboolean
makes(const RpOrderWeave *weave, const RpAction *action, const RpTaskId *what)
{
    RpTaskId *made[RP_MAX_PRODUCTS];
    guint n = rp_order_products_of(weave, action, made);

    for (guint k = 0; k < n; k++)
        if (made[k] == what)
            return TRUE;
    return FALSE;
}

/* The place in the order of the action that makes @what. It is there: check_complete() saw it. */
static void
find_maker(const RpOrderWeave *weave, const RpTaskId *what, guint *rank, guint *i)
{
    for (*rank = 0; *rank < weave->orders->n_ranks; (*rank)++)
        for (*i = weave->next[*rank]; *i < weave->orders->ranks[*rank]->len; (*i)++)
            if (makes(weave, rp_order_action(weave, *rank, *i), what))
                return;
    g_assert_not_reached();
}

/* "; put X before Y", if the order is a schedule file's. */
static char *
orders_remedy(const RpOrders *orders, const char *wanted, const char *blocked)
{
    return orders->lines != NULL ? g_strdup_printf("; put %s before %s", wanted, blocked)
                                 : g_strdup("");
}

/* Follows who waits for whom from a rank that waits, until one comes up again. */
static gboolean
fail_deadlock(const RpOrderWeave *weave, guint rank)
{
    g_autofree gboolean *seen = g_new0(gboolean, weave->orders->n_ranks);
    guint maker_rank = rank, maker = 0;

    while (!seen[rank]) {
        seen[rank] = TRUE;
        find_maker(weave, missing_need(weave, rp_order_action(weave, rank, weave->next[rank])),
                   &maker_rank, &maker);
        rank = maker_rank;
    }
    /* @rank is on the cycle now */
    guint behind_rank = 0, behind = 0;
    find_maker(weave, missing_need(weave, rp_order_action(weave, rank, weave->next[rank])),
               &maker_rank, &maker);
    guint head = weave->next[maker_rank];
    find_maker(weave, missing_need(weave, rp_order_action(weave, maker_rank, head)), &behind_rank,
               &behind);
    g_autofree char *name = rp_display_name(weave->orders->name);
    g_autofree char *waiting = rp_order_describe(weave, rank, weave->next[rank]);
    g_autofree char *wanted = rp_order_describe(weave, maker_rank, maker);
    g_autofree char *blocked = rp_order_describe(weave, maker_rank, head);
    g_autofree char *wanted_too = rp_order_describe(weave, behind_rank, behind);

    g_autofree char *remedy = orders_remedy(weave->orders, wanted, blocked);

    if (maker == head)
        g_set_error(weave->error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_DEADLOCK,
                    "%s: the order cannot run: %s waits for %s, which waits for %s", name, waiting,
                    wanted, wanted_too);
    else
        g_set_error(weave->error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_DEADLOCK,
                    "%s: the order cannot run: %s waits for %s, which comes after %s, which waits "
                    "for %s%s",
                    name, waiting, wanted, blocked, wanted_too, remedy);
    return FALSE;
}

static gboolean
weave_all(RpOrderWeave *weave)
{
    const RpOrders *orders = weave->orders;

    for (guint r = 0; r < orders->n_ranks; r++)
        g_queue_push_tail(&weave->ready, GUINT_TO_POINTER(r + 1));
    while (!g_queue_is_empty(&weave->ready)) {
        guint rank = GPOINTER_TO_UINT(g_queue_pop_head(&weave->ready)) - 1;
        RpTaskId *missing = NULL;

        while (weave->next[rank] < orders->ranks[rank]->len) {
            const RpAction *action = rp_order_action(weave, rank, weave->next[rank]);
            missing = missing_need(weave, action);
            if (missing != NULL)
                break;
            append_action(weave, rank, action);
            weave->next[rank]++;
        }
        if (missing != NULL)
            wait_for(weave, rank, missing);
    }
    for (guint r = 0; r < orders->n_ranks; r++)
        if (weave->next[r] < orders->ranks[r]->len)
            return fail_deadlock(weave, r);
    return TRUE;
}

/* Layers as rp_plan_from_orders() promises them. */
static void
add_stages(RpOrderWeave *weave)
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
make_plan(RpOrderWeave *weave)
{
    RpPlanPromises promises = {.schedule = "imported"};
    guint n_layers = weave->n_stages;

    if (!rp_order_register(weave))
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

RpPlan *
rp_plan_from_orders(const RpOrders *orders, const RpOrderCosts *costs, GError **error)
{
    RpOrderWeave weave = {
        .orders = orders,
        .costs = costs,
        .n_stages = orders->n_stages,
        .micro_batches = orders->micro_batches,
        .fused_stage = RP_NONE,
        .ready = G_QUEUE_INIT,
        .error = error,
    };

    g_return_val_if_fail(costs->n_stages >= 1, NULL);
    if (!rp_order_check_input(&weave))
        return NULL;
    weave.products = g_new(RpTaskId, (gsize)weave.n_stages * weave.micro_batches * RP_N_PRODUCTS);
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
