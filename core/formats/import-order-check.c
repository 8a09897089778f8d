/*
 * Whether an order of actions can be a plan at all: every product is made once, every stage runs on
 * one rank, and a dispatched order has both halves and moves its slots in rounds.
 */
#include "core/formats/import-order-private.h"

#include "core/base/quote.h"
#include "core/base/units.h"
#include "core/formats/schedule-file.h"

void
rp_orders_format(const RpOrders *orders, GString *text, const RpAction *action)
{
    if (orders->lines != NULL)
        rp_schedule_file_format(text, action);
    else
        rp_action_format(text, action);
}

char *
rp_orders_describe(const RpOrders *orders, guint rank, guint i)
{
    const guint32 cell = g_array_index(orders->cells[rank], guint32, i);
    g_autoptr(GString) text = g_string_new("`");

    rp_orders_format(orders, text, rp_orders_action(orders, rank, i));
    if (orders->lines != NULL)
        g_string_append_printf(text, "` (line %u, column %u)", orders->lines[rank], cell);
    else
        g_string_append_printf(text, "` (row %u, cell %u)", rank + 1, cell);
    return g_string_free(g_steal_pointer(&text), FALSE);
}

/* Sets the error "<file>: <subject> <problem>". */
static gboolean
fail(const RpOrderMerge *merge, const char *subject, const char *problem)
{
    return rp_fail_in(merge->error, merge->orders->name, RP_IMPORT_ERROR, RP_IMPORT_ERROR_ORDER,
                      "%s %s", subject, problem);
}

static gboolean
fail_at(const RpOrderMerge *merge, guint rank, guint i, const char *problem)
{
    g_autofree char *subject = rp_orders_describe(merge->orders, rank, i);

    return fail(merge, subject, problem);
}

/* Records the products of each action: every product once, every stage on one rank. */
static gboolean
register_action(RpOrderMerge *merge, guint rank, guint i)
{
    const RpAction *action = rp_orders_action(merge->orders, rank, i);
    guint32 stages[2] = {action->stage, rp_action_backward_stage(action)};
    RpTaskId *made[RP_MAX_PRODUCTS];
    guint n = rp_order_products_of(merge, action, made);

    for (guint k = 0; k < n; k++) {
        if (*made[k] != RP_PRODUCT_ABSENT)
            return fail_at(merge, rank, i,
                           merge->orders->lines != NULL
                               ? "is there twice: expected each action once; leave one out"
                               : "does what another action does as well");
        *made[k] = RP_TASK_NONE;
    }
    if (action->kind != RP_ACTION_FORWARD)
        merge->backward = TRUE;
    if (action->kind == RP_ACTION_FUSED) {
        if (merge->fused_stage != RP_NONE && merge->fused_stage != action->stage)
            return fail_at(merge, rank, i, "is a fused action of a second stage");
        merge->fused_stage = action->stage;
    }
    for (guint k = 0; k < 2; k++)
        if (merge->rank_of[stages[k]] == RP_NONE)
            merge->rank_of[stages[k]] = rank;
        else if (merge->rank_of[stages[k]] != rank)
            merge->rank_of[stages[k]] = merge->orders->n_ranks; /* several */
    return TRUE;
}

/* A stage needs all its products, or in a dispatched order those of its half: forward or
 * backward. */
static gboolean
is_expected(const RpOrderMerge *merge, guint32 stage, guint what)
{
    if (merge->fused_stage == RP_NONE)
        return what == RP_PRODUCT_ACTIVATION || merge->backward;
    return what == RP_PRODUCT_ACTIVATION ? stage <= merge->fused_stage
                                         : stage >= merge->fused_stage;
}

/* The first action of @stage that is not on rank @but; RP_NONE: on any rank. FALSE: there is
 * none. */
static gboolean
find_of_stage(const RpOrderMerge *merge, guint32 stage, guint but, guint *rank, guint *i)
{
    for (*rank = 0; *rank < merge->orders->n_ranks; (*rank)++)
        for (*i = 0; *rank != but && *i < merge->orders->ranks[*rank]->len; (*i)++)
            if (rp_orders_action(merge->orders, *rank, *i)->stage == stage)
                return TRUE;
    return FALSE;
}

/* Names the missing action in a schedule file's error. */
static gboolean
fail_missing(const RpOrderMerge *merge, guint32 stage, guint32 micro_batch, guint what)
{
    const RpAction wanted = {
        .stage = stage,
        .micro_batch = micro_batch,
        .kind = what == RP_PRODUCT_ACTIVATION ? RP_ACTION_FORWARD
                : what == RP_PRODUCT_WEIGHT_GRADIENT &&
                        *rp_order_product(merge, stage, micro_batch, RP_PRODUCT_INPUT_GRADIENT) !=
                            RP_PRODUCT_ABSENT
                    ? RP_ACTION_WEIGHT_GRADIENT
                    : RP_ACTION_BACKWARD};
    g_autoptr(GString) action = g_string_new("`");
    guint rank, i;

    rp_orders_format(merge->orders, action, &wanted);
    g_autofree char *subject =
        find_of_stage(merge, stage, RP_NONE, &rank, &i)
            ? g_strdup_printf("line %u: expected %s`, as of the other micro-batches of stage "
                              "%u,",
                              merge->orders->lines[rank], action->str, stage)
            : g_strdup_printf("expected %s` on some line, as of stage %u,", action->str,
                              merge->n_stages - 1);
    return fail(merge, subject, "found it nowhere; add it");
}

static gboolean
fail_moved(const RpOrderMerge *merge, guint32 stage)
{
    guint rank, i, other, k;

    if (!find_of_stage(merge, stage, RP_NONE, &rank, &i) ||
        !find_of_stage(merge, stage, rank, &other, &k)) /* an overlap's backward part */
        return fail(merge, "a stage", "runs on two lines; expected all of it on one GPU");
    g_autofree char *problem = g_strdup_printf(
        "is of stage %u, which runs on line %u: expected all of a stage on one GPU, or a fused "
        "stage (FB); move it there",
        stage, merge->orders->lines[rank]);

    return fail_at(merge, other, k, problem);
}

static gboolean
check_complete(const RpOrderMerge *merge)
{
    static const char *const makers[RP_N_PRODUCTS] = {"forward", "backward (B or I)",
                                                      "backward (B or W)"};

    for (guint32 s = 0; s < merge->n_stages; s++) {
        for (guint32 m = 0; m < merge->micro_batches; m++) {
            for (guint what = 0; what < RP_N_PRODUCTS; what++) {
                gboolean present = *rp_order_product(merge, s, m, what) != RP_PRODUCT_ABSENT;
                gboolean expected = is_expected(merge, s, what);
                if (present == expected)
                    continue;
                if (merge->orders->lines != NULL && !present)
                    return fail_missing(merge, s, m, what);
                g_autofree char *subject = g_strdup_printf("stage %u, micro-batch %u", s, m);
                g_autofree char *problem = g_strdup_printf(
                    present ? "has a %s on the wrong side of the fused stage" : "has no %s",
                    makers[what]);
                return fail(merge, subject, problem);
            }
        }
        if (merge->fused_stage == RP_NONE && merge->rank_of[s] == merge->orders->n_ranks) {
            if (merge->orders->lines != NULL)
                return fail_moved(merge, s);
            g_autofree char *subject = g_strdup_printf("stage %u", s);
            return fail(merge, subject, "runs on more than one rank");
        }
    }
    if (merge->fused_stage != RP_NONE &&
        (merge->fused_stage == 0) != (merge->fused_stage == merge->n_stages - 1))
        return fail(merge, "the order", "has stages on one side of the fused stage only");
    return TRUE;
}

/* In a dispatched order the fused stage runs fused actions and nothing else, and nothing overlaps.
 */
static gboolean
check_fused(const RpOrderMerge *merge)
{
    for (guint r = 0; r < merge->orders->n_ranks; r++) {
        for (guint i = 0; i < merge->orders->ranks[r]->len; i++) {
            const RpAction *action = rp_orders_action(merge->orders, r, i);
            if (action->kind == RP_ACTION_OVERLAP)
                return fail_at(merge, r, i, "is an overlap in an order with a fused stage");
            if (action->stage == merge->fused_stage && action->kind != RP_ACTION_FUSED)
                return fail_at(merge, r, i, "is half of what the fused stage runs as one action");
        }
    }
    return TRUE;
}

/* A round of a dispatched order: the longest equal runs of micro-batches in which no slot moves. */
static gboolean
find_rounds(RpOrderMerge *merge)
{
    guint M = merge->micro_batches;
    g_autofree guint32 *rank_of = g_new(guint32, (gsize)merge->n_stages * M);

    for (gsize at = 0; at < (gsize)merge->n_stages * M; at++)
        rank_of[at] = RP_NONE;
    for (guint r = 0; r < merge->orders->n_ranks; r++) {
        for (guint i = 0; i < merge->orders->ranks[r]->len; i++) {
            const RpAction *action = rp_orders_action(merge->orders, r, i);
            guint32 *rank = &rank_of[(gsize)action->stage * M + action->micro_batch];
            if (*rank != RP_NONE && *rank != r)
                return fail_at(merge, r, i, "runs on another rank than the other half of it");
            *rank = r;
        }
    }
    merge->round = M;
    for (guint32 s = 0; s < merge->n_stages; s++)
        for (guint m = 1; m < M; m++)
            if (rank_of[(gsize)s * M + m] != rank_of[(gsize)s * M + m - 1])
                merge->round = (guint)rp_greatest_common_divisor(merge->round, m);
    if (M / merge->round > G_MAXUINT16)
        return fail(merge, "the order", "moves its slots more than 65535 times");
    return TRUE;
}

gboolean
rp_order_register(RpOrderMerge *merge)
{
    const RpOrders *orders = merge->orders;

    for (gsize i = 0; i < (gsize)merge->n_stages * merge->micro_batches * RP_N_PRODUCTS; i++)
        merge->products[i] = RP_PRODUCT_ABSENT;
    for (guint s = 0; s < merge->n_stages; s++)
        merge->rank_of[s] = RP_NONE;
    for (guint r = 0; r < orders->n_ranks; r++)
        for (guint i = 0; i < orders->ranks[r]->len; i++)
            if (!register_action(merge, r, i))
                return FALSE;
    if (merge->fused_stage != RP_NONE && !check_fused(merge))
        return FALSE;
    merge->round = merge->micro_batches;
    return check_complete(merge) && (merge->fused_stage == RP_NONE || find_rounds(merge));
}

static gboolean
check_costs(const RpOrderMerge *merge)
{
    const RpOrderCosts *costs = merge->costs;

    if (costs->n_stages != 1 && costs->n_stages != merge->n_stages) {
        g_autofree char *problem = g_strdup_printf("has %u stages, but costs are given for %u",
                                                   merge->n_stages, costs->n_stages);
        return fail(merge, "the order", problem);
    }
    for (guint s = 0; s < costs->n_stages; s++) {
        const RpStageCost *cost = &costs->stages[s];
        gint64 least = MIN(MIN(cost->forward_ns, cost->weight_gradient_ns), cost->recompute_ns);

        least = MIN(least, MIN(cost->input_gradient_ns, costs->overlap_ns));
        if (least >= 0 && cost->recompute_ns <= cost->backward_ns)
            continue;
        g_autofree char *subject = g_strdup_printf("the cost of stage %u", s);
        return fail(
            merge, subject,
            "is negative, or its recompute takes longer than the backward that it is part of");
    }
    return TRUE;
}

/* Not more stages x micro-batches than actions to run them. */
static gboolean
check_size(const RpOrderMerge *merge)
{
    guint64 n_actions = rp_orders_n_actions(merge->orders);

    if (n_actions == 0)
        return fail(merge, "the order", "has no action");
    /* an overlapped action is two */
    if ((guint64)merge->n_stages * merge->micro_batches > 2 * n_actions) {
        g_autofree char *problem = g_strdup_printf(
            "names stage %u and micro-batch %u, but has too few actions (%" G_GUINT64_FORMAT
            ") for every stage to run every micro-batch",
            merge->n_stages - 1, merge->micro_batches - 1, n_actions);
        return fail(merge, "the order", problem);
    }
    return TRUE;
}

gboolean
rp_order_check_input(const RpOrderMerge *merge)
{
    return check_size(merge) && check_costs(merge);
}

guint
rp_order_products_of(const RpOrderMerge *merge, const RpAction *action,
                     RpTaskId *made[RP_MAX_PRODUCTS])
{
    const RpActionProducts *makes = rp_action_products((RpActionKind)action->kind);
    const guint32 s = rp_action_backward_stage(action), m = rp_action_backward_micro_batch(action);
    guint n = 0;

    if (makes->output)
        made[n++] =
            rp_order_product(merge, action->stage, action->micro_batch, RP_PRODUCT_ACTIVATION);
    if (makes->input_gradient)
        made[n++] = rp_order_product(merge, s, m, RP_PRODUCT_INPUT_GRADIENT);
    if (makes->weight_gradient)
        made[n++] = rp_order_product(merge, s, m, RP_PRODUCT_WEIGHT_GRADIENT);
    return n;
}
