/* A schedule of a file: read in either dialect, proved to run, and made one more row. */
#include "core/formats/schedule-file.h"

#include <string.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/base/units.h"

/* A file's schedule while it is read. */
typedef struct {
    RpOrders *orders;
    RpScheduleText words;
    RpPlan *plan; /* made with any times: its stages hold for all */
    guint round;  /* dispatched; else 0 */
    guint fused;
    guint *gpu_of;
    GError **error;
} Reading;

static gboolean
is_csv(const char *text, gsize length)
{
    for (gsize i = 0; i < length; i++)
        if (!g_ascii_isspace(text[i]))
            return g_ascii_isdigit(text[i]) || text[i] == '(' || text[i] == ',';
    return FALSE;
}

/* ---- rounds of a dispatched order ---- */

static const RpAction *
action_at(const Reading *reading, guint rank, guint i)
{
    return rp_orders_action(reading->orders, rank, i);
}

/* The first action from @i on that is no W: these stand anywhere in their slot. */
static guint
skip_weights(const Reading *reading, guint rank, guint i)
{
    while (i < reading->orders->ranks[rank]->len &&
           action_at(reading, rank, i)->kind == RP_ACTION_WEIGHT_GRADIENT)
        i++;
    return i;
}

/* The longest that all runs of one slot's micro-batches consist of. */
static guint
find_round(const Reading *reading)
{
    guint round = reading->orders->micro_batches / rp_plan_rounds(reading->plan);

    for (guint r = 0; r < reading->orders->n_ranks; r++) {
        const guint n = reading->orders->ranks[r]->len;
        guint length = 0, next;

        for (guint i = skip_weights(reading, r, 0); i < n; i = next) {
            const RpAction *action = action_at(reading, r, i);

            next = skip_weights(reading, r, i + 1);
            length++;
            if (next < n && action_at(reading, r, next)->stage == action->stage &&
                action_at(reading, r, next)->micro_batch == action->micro_batch + 1)
                continue;
            round = (guint)rp_greatest_common_divisor(round, action->micro_batch + 1);
            round = (guint)rp_greatest_common_divisor(round, length);
            length = 0;
        }
    }
    return round;
}

static gboolean
fail_slot(const Reading *reading, guint rank, guint i, guint32 slot, guint32 micro_batch)
{
    RpAction wanted = {.stage = slot, .micro_batch = micro_batch};
    g_autofree char *found = rp_orders_describe(reading->orders, rank, i);
    g_autoptr(GString) expected = g_string_new(NULL);

    wanted.kind = slot < reading->fused    ? RP_ACTION_FORWARD
                  : slot == reading->fused ? RP_ACTION_FUSED
                                           : RP_ACTION_BACKWARD;
    rp_orders_format(reading->orders, expected, &wanted);
    return rp_fail_in(
        reading->error, reading->orders->name, RP_IMPORT_ERROR, RP_IMPORT_ERROR_ORDER,
        "expected %s, found %s: with a fused stage slots run one after the other, each all "
        "micro-batches of a round, here %u; a line `round N` says how many",
        expected->str, found, reading->round);
}

/* The W from @i on that belong to the round of @slot that begins with @first. */
static guint
weights_of_slot(const Reading *reading, guint rank, guint slot, guint first, guint i)
{
    for (; i < skip_weights(reading, rank, i); i++) {
        const RpAction *action = action_at(reading, rank, i);

        if (action->stage != slot || action->micro_batch / reading->round != first / reading->round)
            return i;
    }
    return i;
}

/* Every GPU runs its slots in the order of slots and rounds. */
static gboolean
place_slots(Reading *reading)
{
    const RpOrders *orders = reading->orders;
    const guint S = orders->n_stages, M = orders->micro_batches;
    g_autofree guint *rank_of = g_new(guint, (gsize)S * M);
    g_autofree guint *next = g_new0(guint, orders->n_ranks);

    for (guint r = 0; r < orders->n_ranks; r++)
        for (guint i = 0; i < orders->ranks[r]->len; i++)
            rank_of[(gsize)action_at(reading, r, i)->stage * M +
                    action_at(reading, r, i)->micro_batch] = r;
    reading->gpu_of = g_new(guint, (gsize)S * (M / reading->round));
    for (guint first = 0; first < M; first += reading->round) {
        for (guint slot = 0; slot < S; slot++) {
            const guint r = rank_of[(gsize)slot * M + first];

            reading->gpu_of[(gsize)(first / reading->round) * S + slot] = r;
            for (guint m = first; m < first + reading->round; m++) {
                const RpAction *action =
                    next[r] < orders->ranks[r]->len ? action_at(reading, r, next[r]) : NULL;

                if (action == NULL)
                    return fail_slot(reading, r, orders->ranks[r]->len - 1, slot, m);
                if (action->stage != slot || action->micro_batch != m ||
                    action->kind == RP_ACTION_WEIGHT_GRADIENT)
                    return fail_slot(reading, r, next[r], slot, m);
                next[r] = weights_of_slot(reading, r, slot, first, next[r] + 1);
            }
        }
    }
    return TRUE;
}

/* ---- together ---- */

static gboolean
fail(const Reading *reading, guint line, const char *what)
{
    return rp_fail_in(reading->error, reading->orders->name, RP_IMPORT_ERROR, RP_IMPORT_ERROR_ORDER,
                      "line %u: %s", line, what);
}

static gboolean
place_rounds(Reading *reading)
{
    const guint given = reading->words.round;

    while (rp_plan_stage(reading->plan, reading->fused)->runs_backward == FALSE)
        reading->fused++;
    reading->round = given != 0 ? given : find_round(reading);
    if (reading->orders->micro_batches % reading->round != 0) {
        g_autofree char *what =
            g_strdup_printf("expected rounds that divide the %u micro-batches, found `round %u`",
                            reading->orders->micro_batches, given);

        return fail(reading, reading->words.round_line, what);
    }
    if (reading->words.offloaded_line != 0)
        return fail(
            reading, reading->words.offloaded_line,
            "expected no `weights offloaded` where a stage is fused: weights of slots always "
            "come up; leave it out");
    return place_slots(reading);
}

static gboolean
place_stages(Reading *reading)
{
    const guint S = reading->orders->n_stages;

    if (reading->words.round_line != 0)
        return fail(reading, reading->words.round_line,
                    "expected no `round` where no stage is fused (FB): all micro-batches are one "
                    "round; leave it out");
    if (!rp_plan_stage(reading->plan, S - 1)->runs_backward)
        return fail(reading, 1, "expected a backward (B, or I and W) of each forward, found none");
    reading->gpu_of = g_new(guint, S);
    for (guint s = 0; s < S; s++)
        reading->gpu_of[s] = rp_plan_stage(reading->plan, s)->device;
    return TRUE;
}

static RpScheduleOps *
make_schedule(Reading *reading)
{
    static const RpStageCost unit = {
        .forward_ns = 1, .backward_ns = 2, .input_gradient_ns = 1, .weight_gradient_ns = 1};
    static const RpOrderCosts costs = {.stages = &unit, .n_stages = 1};
    RpOrders *orders = reading->orders;
    RpCommunicationProof proof;

    reading->plan = rp_plan_from_orders(orders, &costs, reading->error);
    if (reading->plan == NULL || !rp_orders_check_communications(orders, &proof, reading->error))
        return NULL;
    const gboolean dispatched = !rp_plan_stage(reading->plan, 0)->bound;

    if (!(dispatched ? place_rounds(reading) : place_stages(reading)))
        return NULL;
    const RpGivenOrders given = {
        .gpus = orders->n_ranks,
        .micro_batches = orders->micro_batches,
        .stages = orders->n_stages,
        .round = reading->round,
        .forward_slots = dispatched ? reading->fused : 0,
        .orders = orders->ranks,
        .gpu_of = reading->gpu_of,
    };
    g_autofree char *base = g_path_get_basename(orders->name);
    g_autofree char *name = rp_display_name(base);

    return rp_schedule_new_given(name, &given, reading->words.offloaded_line != 0);
}

RpScheduleOps *
rp_schedule_file_parse(const char *name, const char *text, gsize length, GError **error)
{
    GError *problem = NULL;
    Reading reading = {.error = &problem};
    RpScheduleOps *schedule = NULL;

    g_return_val_if_fail(name && (text || length == 0), NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    text = length > 0 ? text : "";
    reading.orders = is_csv(text, length)
                         ? rp_orders_import_pytorch(name, text, length,
                                                    rp_pytorch_flags_of(text, length), &problem)
                         : rp_orders_import_text(name, text, length, &reading.words, &problem);
    if (reading.orders != NULL)
        schedule = make_schedule(&reading);
    rp_plan_free(reading.plan);
    rp_orders_free(reading.orders);
    g_free(reading.gpu_of);
    if (schedule == NULL)
        g_propagate_error(error, problem);
    return schedule;
}

RpScheduleOps *
rp_schedule_file_load(const char *path, GError **error)
{
    gsize length;
    g_autofree char *text = rp_file_read(path, RP_SCHEDULE_FILE_MAX_BYTES, &length, error);

    return text != NULL ? rp_schedule_file_parse(path, text, length, error) : NULL;
}
