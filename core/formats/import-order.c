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
needs_of_forward(const RpOrderMerge *merge, guint32 s, guint32 m, Need *needs)
{
    if (s == 0)
        return 0;
    needs[0] = (Need){rp_order_product(merge, s - 1, m, RP_PRODUCT_ACTIVATION), 0};
    return 1;
}

/* B and I need the stashed input at the start, and the gradient after the recompute. */
static guint
needs_of_backward(const RpOrderMerge *merge, guint32 s, guint32 m, Need *needs)
{
    if (merge->fused_stage != RP_NONE) {
        /* the order does not name the forward stage that holds the input: the last one comes after
         * it */
        needs[0] =
            (Need){rp_order_product(merge, merge->fused_stage - 1, m, RP_PRODUCT_ACTIVATION), 0};
        needs[1] = (Need){rp_order_product(merge, s - 1, m, RP_PRODUCT_INPUT_GRADIENT), 1};
        return 2;
    }
    needs[0] = (Need){rp_order_product(merge, s, m, RP_PRODUCT_ACTIVATION), 0};
    if (s + 1 == merge->n_stages)
        return 1;
    needs[1] = (Need){rp_order_product(merge, s + 1, m, RP_PRODUCT_INPUT_GRADIENT), 1};
    return 2;
}

static guint
needs_of(const RpOrderMerge *merge, const RpAction *action, Need needs[RP_MAX_PRODUCTS])
{
    const RpActionProducts *makes = rp_action_products((RpActionKind)action->kind);
    const guint32 s = rp_action_backward_stage(action), m = rp_action_backward_micro_batch(action);
    guint n = 0;

    if (makes->output)
        n = needs_of_forward(merge, action->stage, action->micro_batch, needs);
    if (makes->input_gradient && action->kind != RP_ACTION_FUSED)
        n += needs_of_backward(merge, s, m, needs + n);
    if (action->kind == RP_ACTION_WEIGHT_GRADIENT)
        needs[n++] = (Need){rp_order_product(merge, s, m, RP_PRODUCT_INPUT_GRADIENT), 0};
    for (guint i = 0; i < n && makes->output; i++)
        needs[i].phase = 0; /* two parts of an action run mixed: there is no leading recompute */
    return n;
}

static const RpStageCost *
cost_of(const RpOrderMerge *merge, guint32 stage)
{
    return &merge->costs->stages[merge->costs->n_stages == 1 ? 0 : stage];
}

/* Fills in kind, duration and lead. */
static void
set_work(const RpOrderMerge *merge, const RpAction *action, RpTask *task)
{
    const RpStageCost *cost = cost_of(merge, action->stage);

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
        task->duration_ns = merge->costs->overlap_ns;
        if (task->duration_ns == 0)
            task->duration_ns =
                cost->forward_ns + cost_of(merge, action->backward_stage)->backward_ns;
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
wake(RpOrderMerge *merge, RpTaskId *made)
{
    guint32 rank = GPOINTER_TO_UINT(g_hash_table_lookup(merge->waiting, made));

    g_hash_table_remove(merge->waiting, made);
    for (; rank != 0; rank = merge->next_waiting[rank - 1])
        g_queue_push_tail(&merge->ready, GUINT_TO_POINTER(rank));
}

static void
wait_for(RpOrderMerge *merge, guint rank, RpTaskId *made)
{
    merge->next_waiting[rank] = GPOINTER_TO_UINT(g_hash_table_lookup(merge->waiting, made));
    g_hash_table_insert(merge->waiting, made, GUINT_TO_POINTER(rank + 1));
}

/* The first product that is not there yet; %NULL if all are. */
static RpTaskId *
missing_need(const RpOrderMerge *merge, const RpAction *action)
{
    Need needs[RP_MAX_PRODUCTS];
    guint n = needs_of(merge, action, needs);

    for (guint k = 0; k < n; k++)
        if (*needs[k].product == RP_TASK_NONE)
            return needs[k].product;
    return NULL;
}

static void
append_action(RpOrderMerge *merge, guint rank, const RpAction *action)
{
    RpTask task = {
        .lane = rp_plan_lane(merge->plan, rank, RP_LANE_COMPUTE),
        .micro_batch = action->micro_batch,
        .stage = action->stage,
        .layer = RP_NONE,
        .chunk = RP_NONE,
        .round = (guint16)(action->micro_batch / merge->round),
    };
    RpDependency dependencies[RP_MAX_PRODUCTS];
    Need needs[RP_MAX_PRODUCTS];
    RpTaskId *made[RP_MAX_PRODUCTS];
    guint n = needs_of(merge, action, needs);

    for (guint k = 0; k < n; k++) {
        const RpTask *from = rp_plan_task(merge->plan, *needs[k].product);
        dependencies[k] = (RpDependency){
            .task = *needs[k].product,
            .hop_ns = from->lane == task.lane ? 0 : merge->costs->hop_ns,
            .phase = needs[k].phase,
        };
    }
    set_work(merge, action, &task);
    RpTaskId id = rp_plan_append(merge->plan, &task, dependencies, n, NULL, 0);
    n = rp_order_products_of(merge, action, made);
    for (guint k = 0; k < n; k++) {
        *made[k] = id;
        wake(merge, made[k]);
    }
}

static gboolean
makes(const RpOrderMerge *merge, const RpAction *action, const RpTaskId *what)
{
    RpTaskId *made[RP_MAX_PRODUCTS];
    guint n = rp_order_products_of(merge, action, made);

    for (guint k = 0; k < n; k++)
        if (made[k] == what)
            return TRUE;
    return FALSE;
}

/* The place in the order of the action that makes @what. It is there: check_complete() saw it. */
static void
find_maker(const RpOrderMerge *merge, const RpTaskId *what, guint *rank, guint *i)
{
    for (*rank = 0; *rank < merge->orders->n_ranks; (*rank)++)
        for (*i = merge->next[*rank]; *i < merge->orders->ranks[*rank]->len; (*i)++)
            if (makes(merge, rp_orders_action(merge->orders, *rank, *i), what))
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
fail_deadlock(const RpOrderMerge *merge, guint rank)
{
    g_autofree gboolean *seen = g_new0(gboolean, merge->orders->n_ranks);
    guint maker_rank = rank, maker = 0;

    while (!seen[rank]) {
        seen[rank] = TRUE;
        find_maker(merge,
                   missing_need(merge, rp_orders_action(merge->orders, rank, merge->next[rank])),
                   &maker_rank, &maker);
        rank = maker_rank;
    }
    /* @rank is on the cycle now */
    guint behind_rank = 0, behind = 0;
    find_maker(merge, missing_need(merge, rp_orders_action(merge->orders, rank, merge->next[rank])),
               &maker_rank, &maker);
    guint head = merge->next[maker_rank];
    find_maker(merge, missing_need(merge, rp_orders_action(merge->orders, maker_rank, head)),
               &behind_rank, &behind);
    g_autofree char *name = rp_display_name(merge->orders->name);
    g_autofree char *waiting = rp_orders_describe(merge->orders, rank, merge->next[rank]);
    g_autofree char *wanted = rp_orders_describe(merge->orders, maker_rank, maker);
    g_autofree char *blocked = rp_orders_describe(merge->orders, maker_rank, head);
    g_autofree char *wanted_too = rp_orders_describe(merge->orders, behind_rank, behind);

    g_autofree char *remedy = orders_remedy(merge->orders, wanted, blocked);

    if (maker == head)
        g_set_error(merge->error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_DEADLOCK,
                    "%s: the order cannot run: %s waits for %s, which waits for %s", name, waiting,
                    wanted, wanted_too);
    else
        g_set_error(merge->error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_DEADLOCK,
                    "%s: the order cannot run: %s waits for %s, which comes after %s, which waits "
                    "for %s%s",
                    name, waiting, wanted, blocked, wanted_too, remedy);
    return FALSE;
}

static gboolean
merge_all(RpOrderMerge *merge)
{
    const RpOrders *orders = merge->orders;

    for (guint r = 0; r < orders->n_ranks; r++)
        g_queue_push_tail(&merge->ready, GUINT_TO_POINTER(r + 1));
    while (!g_queue_is_empty(&merge->ready)) {
        guint rank = GPOINTER_TO_UINT(g_queue_pop_head(&merge->ready)) - 1;
        RpTaskId *missing = NULL;

        while (merge->next[rank] < orders->ranks[rank]->len) {
            const RpAction *action = rp_orders_action(merge->orders, rank, merge->next[rank]);
            missing = missing_need(merge, action);
            if (missing != NULL)
                break;
            append_action(merge, rank, action);
            merge->next[rank]++;
        }
        if (missing != NULL)
            wait_for(merge, rank, missing);
    }
    for (guint r = 0; r < orders->n_ranks; r++)
        if (merge->next[r] < orders->ranks[r]->len)
            return fail_deadlock(merge, r);
    return TRUE;
}

/* Layers as rp_plan_from_orders() says. */
static void
add_stages(RpOrderMerge *merge)
{
    gboolean dispatched = merge->fused_stage != RP_NONE;
    guint per_forward = dispatched ? merge->n_stages - 1 - merge->fused_stage : 1;
    guint per_backward = dispatched ? merge->fused_stage : 1;
    guint first = 0;

    for (guint32 s = 0; s < merge->n_stages; s++) {
        RpPlanStage stage = {
            .runs_forward = !dispatched || s <= merge->fused_stage,
            .runs_backward = dispatched ? s >= merge->fused_stage : merge->backward,
            .bound = !dispatched,
            .device = dispatched ? RP_NONE : merge->rank_of[s],
        };

        if (!dispatched || s < merge->fused_stage) {
            stage.layers = (RpInterval){first, per_forward};
            first += per_forward;
        } else if (s == merge->fused_stage) {
            stage.layers = (RpInterval){first, 1};
        } else {
            first -= per_backward;
            stage.layers = (RpInterval){first, per_backward};
        }
        rp_plan_add_stage(merge->plan, &stage);
    }
}

static RpPlan *
make_plan(RpOrderMerge *merge)
{
    guint n_layers = merge->n_stages;
    RpPlanModes *modes;

    if (!rp_order_register(merge))
        return NULL;
    if (merge->fused_stage != RP_NONE)
        n_layers = merge->fused_stage * (merge->n_stages - 1 - merge->fused_stage) + 1;
    merge->plan =
        rp_plan_new(merge->orders->n_ranks, RP_FIDELITY_COMPUTE, n_layers, merge->micro_batches);
    modes = &rp_plan_tables(merge->plan)->modes;
    modes->rounds = merge->micro_batches / merge->round;
    modes->gradients = modes->rounds > 1 ? RP_GRADIENTS_SUMMED : RP_GRADIENTS_ONE_ROUND;
    add_stages(merge);
    if (!merge_all(merge))
        g_clear_pointer(&merge->plan, rp_plan_free);
    return merge->plan;
}

RpPlan *
rp_plan_from_orders(const RpOrders *orders, const RpOrderCosts *costs, GError **error)
{
    RpOrderMerge merge = {
        .orders = orders,
        .costs = costs,
        .n_stages = orders->n_stages,
        .micro_batches = orders->micro_batches,
        .fused_stage = RP_NONE,
        .ready = G_QUEUE_INIT,
        .error = error,
    };

    g_return_val_if_fail(costs->n_stages >= 1, NULL);
    if (!rp_order_check_input(&merge))
        return NULL;
    merge.products = g_new(RpTaskId, (gsize)merge.n_stages * merge.micro_batches * RP_N_PRODUCTS);
    merge.rank_of = g_new(guint32, merge.n_stages);
    merge.next = g_new0(guint, orders->n_ranks);
    merge.next_waiting = g_new0(guint32, orders->n_ranks);
    merge.waiting = g_hash_table_new(NULL, NULL);
    RpPlan *plan = make_plan(&merge);
    g_hash_table_unref(merge.waiting);
    g_queue_clear(&merge.ready);
    g_free(merge.next_waiting);
    g_free(merge.next);
    g_free(merge.rank_of);
    g_free(merge.products);
    return plan;
}
