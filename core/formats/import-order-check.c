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

char *
rp_order_describe(const RpOrderWeave *weave, guint rank, guint i)
{
    return rp_orders_describe(weave->orders, rank, i);
}

/* Sets the error "<file>: <subject> <problem>". */
static gboolean
fail(const RpOrderWeave *weave, const char *subject, const char *problem)
{
    g_autofree char *name = rp_display_name(weave->orders->name);

    g_set_error(weave->error, RP_IMPORT_ERROR, RP_IMPORT_ERROR_ORDER, "%s: %s %s", name, subject,
                problem);
    return FALSE;
}

static gboolean
fail_at(const RpOrderWeave *weave, guint rank, guint i, const char *problem)
{
    g_autofree char *subject = rp_order_describe(weave, rank, i);

    return fail(weave, subject, problem);
}

/* Records the products of each action: every product once, every stage on one rank. */
static gboolean
register_action(RpOrderWeave *weave, guint rank, guint i)
{
    const RpAction *action = rp_order_action(weave, rank, i);
    guint32 stages[2] = {action->stage, action->stage};
    RpTaskId *made[RP_MAX_PRODUCTS];
    guint n = rp_order_products_of(weave, action, made);

    for (guint k = 0; k < n; k++) {
        if (*made[k] != RP_PRODUCT_ABSENT)
            return fail_at(weave, rank, i,
                           weave->orders->lines != NULL
                               ? "is there twice: expected each action once; leave one out"
                               : "does what another action does as well");
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
    for (guint k = 0; k < 2; k++)
        if (weave->rank_of[stages[k]] == RP_NONE)
            weave->rank_of[stages[k]] = rank;
        else if (weave->rank_of[stages[k]] != rank)
            weave->rank_of[stages[k]] = weave->orders->n_ranks; /* several */
    return TRUE;
}

/* A stage needs all its products, or in a dispatched order those of its half: forward or
 * backward. */
static gboolean
is_expected(const RpOrderWeave *weave, guint32 stage, guint what)
{
    if (weave->fused_stage == RP_NONE)
        return what == RP_PRODUCT_ACTIVATION || weave->backward;
    return what == RP_PRODUCT_ACTIVATION ? stage <= weave->fused_stage
                                         : stage >= weave->fused_stage;
}

/* The first action of @stage that is not on rank @but; RP_NONE: on any rank. FALSE: there is
 * none. */
static gboolean
find_of_stage(const RpOrderWeave *weave, guint32 stage, guint but, guint *rank, guint *i)
{
    for (*rank = 0; *rank < weave->orders->n_ranks; (*rank)++)
        for (*i = 0; *rank != but && *i < weave->orders->ranks[*rank]->len; (*i)++)
            if (rp_order_action(weave, *rank, *i)->stage == stage)
                return TRUE;
    return FALSE;
}

/* Names the missing action in a schedule file's error. */
static gboolean
fail_missing(const RpOrderWeave *weave, guint32 stage, guint32 micro_batch, guint what)
{
    const RpAction wanted = {
        .stage = stage,
        .micro_batch = micro_batch,
        .kind = what == RP_PRODUCT_ACTIVATION ? RP_ACTION_FORWARD
                : what == RP_PRODUCT_WEIGHT_GRADIENT &&
                        *rp_order_product(weave, stage, micro_batch, RP_PRODUCT_INPUT_GRADIENT) !=
                            RP_PRODUCT_ABSENT
                    ? RP_ACTION_WEIGHT_GRADIENT
                    : RP_ACTION_BACKWARD};
    g_autoptr(GString) action = g_string_new("`");
    g_autofree char *subject = NULL;
    guint rank, i;

    rp_orders_format(weave->orders, action, &wanted);
    subject = find_of_stage(weave, stage, RP_NONE, &rank, &i)
                  ? g_strdup_printf("line %u: expected %s`, as of the other micro-batches of stage "
                                    "%u,",
                                    weave->orders->lines[rank], action->str, stage)
                  : g_strdup_printf("expected %s` on some line, as of stage %u,", action->str,
                                    weave->n_stages - 1);
    return fail(weave, subject, "found it nowhere; add it");
}

static gboolean
fail_moved(const RpOrderWeave *weave, guint32 stage)
{
    guint rank, i, other, k;

    if (!find_of_stage(weave, stage, RP_NONE, &rank, &i) ||
        !find_of_stage(weave, stage, rank, &other, &k)) /* an overlap's backward part */
        return fail(weave, "a stage", "runs on two lines; expected all of it on one GPU");
    g_autofree char *problem = g_strdup_printf(
        "is of stage %u, which runs on line %u: expected all of a stage on one GPU, or a fused "
        "stage (FB); move it there",
        stage, weave->orders->lines[rank]);

    return fail_at(weave, other, k, problem);
}

static gboolean
check_complete(const RpOrderWeave *weave)
{
    static const char *const makers[RP_N_PRODUCTS] = {"forward", "backward (B or I)",
                                                      "backward (B or W)"};

    for (guint32 s = 0; s < weave->n_stages; s++) {
        for (guint32 m = 0; m < weave->micro_batches; m++) {
            for (guint what = 0; what < RP_N_PRODUCTS; what++) {
                gboolean present = *rp_order_product(weave, s, m, what) != RP_PRODUCT_ABSENT;
                gboolean expected = is_expected(weave, s, what);
                if (present == expected)
                    continue;
                if (weave->orders->lines != NULL && !present)
                    return fail_missing(weave, s, m, what);
                g_autofree char *subject = g_strdup_printf("stage %u, micro-batch %u", s, m);
                g_autofree char *problem = g_strdup_printf(
                    present ? "has a %s on the wrong side of the fused stage" : "has no %s",
                    makers[what]);
                return fail(weave, subject, problem);
            }
        }
        if (weave->fused_stage == RP_NONE && weave->rank_of[s] == weave->orders->n_ranks) {
            if (weave->orders->lines != NULL)
                return fail_moved(weave, s);
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
check_fused(const RpOrderWeave *weave)
{
    for (guint r = 0; r < weave->orders->n_ranks; r++) {
        for (guint i = 0; i < weave->orders->ranks[r]->len; i++) {
            const RpAction *action = rp_order_action(weave, r, i);
            if (action->kind == RP_ACTION_OVERLAP)
                return fail_at(weave, r, i, "is an overlap in an order with a fused stage");
            if (action->stage == weave->fused_stage && action->kind != RP_ACTION_FUSED)
                return fail_at(weave, r, i, "is half of what the fused stage runs as one action");
        }
    }
    return TRUE;
}

/* A round of a dispatched order: the longest equal runs of micro-batches in which no slot moves. */
static gboolean
find_rounds(RpOrderWeave *weave)
{
    guint M = weave->micro_batches;
    g_autofree guint32 *rank_of = g_new(guint32, (gsize)weave->n_stages * M);

    for (gsize at = 0; at < (gsize)weave->n_stages * M; at++)
        rank_of[at] = RP_NONE;
    for (guint r = 0; r < weave->orders->n_ranks; r++) {
        for (guint i = 0; i < weave->orders->ranks[r]->len; i++) {
            const RpAction *action = rp_order_action(weave, r, i);
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
                weave->round = (guint)rp_greatest_common_divisor(weave->round, m);
    if (M / weave->round > G_MAXUINT16)
        return fail(weave, "the order", "moves its slots more than 65535 times");
    return TRUE;
}

gboolean
rp_order_register(RpOrderWeave *weave)
{
    const RpOrders *orders = weave->orders;

    for (gsize i = 0; i < (gsize)weave->n_stages * weave->micro_batches * RP_N_PRODUCTS; i++)
        weave->products[i] = RP_PRODUCT_ABSENT;
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

static gboolean
check_costs(const RpOrderWeave *weave)
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
check_size(const RpOrderWeave *weave)
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

gboolean
rp_order_check_input(const RpOrderWeave *weave)
{
    return check_size(weave) && check_costs(weave);
}

guint
rp_order_products_of(const RpOrderWeave *weave, const RpAction *action,
                     RpTaskId *made[RP_MAX_PRODUCTS])
{
    const RpActionProducts *makes = rp_action_products((RpActionKind)action->kind);
    const guint32 s = rp_action_backward_stage(action), m = rp_action_backward_micro_batch(action);
    guint n = 0;

    if (makes->output)
        made[n++] =
            rp_order_product(weave, action->stage, action->micro_batch, RP_PRODUCT_ACTIVATION);
    if (makes->input_gradient)
        made[n++] = rp_order_product(weave, s, m, RP_PRODUCT_INPUT_GRADIENT);
    if (makes->weight_gradient)
        made[n++] = rp_order_product(weave, s, m, RP_PRODUCT_WEIGHT_GRADIENT);
    return n;
}
