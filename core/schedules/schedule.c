/*
 * Shared by every schedule: the checks of a shape, and the device that runs a stage.
 */
#include "core/schedules/schedule.h"

#include <math.h>

#include "core/base/quote.h"
#include "core/schedules/given.h"
#include "core/schedules/schedules.h"

/* Beyond these an order does not fit in memory, or its counts not in 32 bits. */
#define MAX_GPUS (1u << 16)
#define MAX_MICRO_BATCHES (1u << 24)
#define MAX_ACTIONS (1u << 28) /* M x S */

static void
rp_schedule_error_private_init(RpScheduleErrorPrivate *remedies)
{
    *remedies = (RpScheduleErrorPrivate){0};
}

static void
rp_schedule_error_private_copy(const RpScheduleErrorPrivate *from, RpScheduleErrorPrivate *to)
{
    *to = *from;
}

static void
rp_schedule_error_private_clear(RpScheduleErrorPrivate *remedies)
{
    (void)remedies;
}

G_DEFINE_EXTENDED_ERROR(RpScheduleError, rp_schedule_error)

const RpScheduleErrorPrivate *
rp_schedule_error_remedies(GError *error)
{
    const RpScheduleErrorPrivate *remedies =
        error->domain == RP_SCHEDULE_ERROR ? rp_schedule_error_get_private(error) : NULL;

    return remedies != NULL && remedies->one.part != RP_SHAPE_NOTHING ? remedies : NULL;
}

gboolean
rp_schedule_fail(GError **error, RpShapeRemedy one, RpShapeRemedy other, const char *format, ...)
{
    va_list arguments;

    if (error == NULL)
        return FALSE;
    va_start(arguments, format);
    *error = g_error_new_valist(RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_SHAPE, format, arguments);
    va_end(arguments);
    *rp_schedule_error_get_private(*error) = (RpScheduleErrorPrivate){one, other};
    return FALSE;
}

static gint64
slices_before_ns(gint64 ns, double attention, guint j, guint K)
{
    const double x = (double)j / K;

    return llround((double)ns * ((1 - attention) * x + attention * x * x));
}

gint64
rp_slice_time_ns(gint64 ns, double attention, guint j, guint K)
{
    return K <= 1
               ? ns
               : slices_before_ns(ns, attention, j + 1, K) - slices_before_ns(ns, attention, j, K);
}

/* Devices from the first slot of a round to that of the next. */
static guint64
turn_of(const RpShape *shape)
{
    return shape->turn > 0 ? shape->turn : shape->stages;
}

guint
rp_schedule_gpu(const RpScheduleOps *schedule, const RpShape *shape, guint stage, guint round)
{
    const guint N = shape->gpus;

    g_return_val_if_fail(stage < shape->stages, 0);

    const RpGivenOrders *given = schedule->given;

    if (given != NULL && !schedule->dispatched)
        return given->gpu_of[stage];
    if (given != NULL && !given->in_turns && !shape->forward_only)
        return (shape->first_gpu + given->gpu_of[round * given->stages + stage]) % N;
    if (schedule->dispatched) {
        const guint replicas = MAX(1, shape->replicas), n = N / replicas;
        const guint64 turns = shape->first_gpu + round / replicas * turn_of(shape) + stage;

        return round % replicas * n + (guint)(turns % n);
    }
    if (schedule->mirrored)
        return round == 0 ? stage : N - 1 - stage;
    if (schedule->folded)
        return stage / N % 2 == 0 ? stage % N : N - 1 - stage % N;
    if (schedule->gpu_of_rank != NULL)
        return schedule->gpu_of_rank(shape, stage % N);
    return stage % N;
}

guint
rp_schedule_gpu_of(const RpScheduleOps *schedule, const RpShape *shape, guint stage,
                   guint micro_batch)
{
    const guint round = schedule->mirrored ? shape->micro_batches / 2 : shape->round;

    return rp_schedule_gpu(schedule, shape, stage, micro_batch / MAX(1, round));
}

guint
rp_schedule_next_first_gpu(const RpScheduleOps *schedule, const RpShape *shape)
{
    if (!schedule->dispatched)
        return shape->first_gpu;

    const guint64 rounds = shape->micro_batches / shape->round / MAX(1, shape->replicas);

    return (guint)((shape->first_gpu + rounds * turn_of(shape)) % rp_shape_group_gpus(shape));
}

/* Appends the backwards of @n slices, from the last to the first. */
static void
append_backwards(guint slot, guint first, guint n, RpActionKind kind, GArray *order)
{
    for (guint m = first + n; m-- > first;) {
        rp_order_push(order, kind, slot, m);
        if (kind == RP_ACTION_INPUT_GRADIENT)
            rp_order_push(order, RP_ACTION_WEIGHT_GRADIENT, slot, m);
    }
}

void
rp_schedule_append_slot(const RpShape *shape, guint slot, guint round, gboolean split,
                        GArray *order)
{
    const RpActionKind kind = slot < shape->forward_slots    ? RP_ACTION_FORWARD
                              : slot == shape->forward_slots ? RP_ACTION_FUSED
                              : split                        ? RP_ACTION_INPUT_GRADIENT
                                                             : RP_ACTION_BACKWARD;

    const guint K = MAX(1, shape->slices);

    for (guint first = round * shape->round; first < (round + 1) * shape->round; first += K) {
        if (kind != RP_ACTION_FORWARD && kind != RP_ACTION_FUSED) {
            append_backwards(slot, first, K, kind, order);
            continue;
        }
        for (guint j = 0; j < K; j++)
            rp_order_push(order, j + 1 < K ? RP_ACTION_FORWARD : kind, slot, first + j);
        if (kind == RP_ACTION_FUSED)
            append_backwards(slot, first, K - 1, RP_ACTION_BACKWARD, order);
    }
}

void
rp_schedule_append_order(const RpScheduleOps *schedule, const RpShape *shape, guint gpu,
                         GArray *order)
{
    const guint N = shape->gpus;

    if (schedule->given == NULL) {
        schedule->order(shape, gpu, order);
        return;
    }
    /* dispatched: a later iteration begins on another device */
    const GArray *of = schedule->given->orders[(gpu + N - shape->first_gpu % N) % N];

    g_array_append_vals(order, of->data, of->len);
}

void
rp_schedule_order_forward(const RpScheduleOps *schedule, const RpShape *shape, guint gpu,
                          GArray *order)
{
    const guint group = schedule->dispatched         ? shape->round
                        : schedule->offloads_weights ? shape->micro_batches
                                                     : shape->gpus;

    for (guint start = 0; start < shape->micro_batches; start += group) {
        const guint end = start + MIN(group, shape->micro_batches - start);

        for (guint stage = 0; stage < shape->stages; stage++)
            for (guint m = start; m < end; m++)
                if (rp_schedule_gpu(schedule, shape, stage, start / group) == gpu)
                    rp_order_push(order, RP_ACTION_FORWARD, stage, m);
    }
}

static gboolean
check_counts(const RpShape *shape, GError **error)
{
    const struct {
        const char *what;
        guint found;
        guint most;
    } counts[] = {
        {"GPUs", shape->gpus, MAX_GPUS},
        {"micro-batches", shape->micro_batches, MAX_MICRO_BATCHES},
        {"stages", shape->stages, MAX_ACTIONS},
    };

    for (guint i = 0; i < G_N_ELEMENTS(counts); i++)
        if (counts[i].found < 1 || counts[i].found > counts[i].most)
            return rp_schedule_fail(error, RP_SHAPE_NONE, RP_SHAPE_NONE,
                                    "the number of %s must be from 1 to %u, found %u",
                                    counts[i].what, counts[i].most, counts[i].found);
    if ((guint64)shape->micro_batches * shape->stages > MAX_ACTIONS)
        return rp_schedule_fail(
            error, RP_SHAPE_USE(MICRO_BATCHES, OR_LESS, MAX_ACTIONS / shape->stages), RP_SHAPE_NONE,
            "at most %u actions fit in one iteration, found %u micro-batches x %u stages",
            MAX_ACTIONS, shape->micro_batches, shape->stages);
    return TRUE;
}

static gboolean
check_stages(const RpScheduleOps *schedule, const RpShape *shape, GError **error)
{
    const guint N = shape->gpus, S = shape->stages;
    const guint v = schedule->stages_per_gpu;

    if (v != 0 && S != (guint64)v * N)
        return rp_schedule_fail(error, RP_SHAPE_USE(STAGES, EXACTLY, v * N), RP_SHAPE_NONE,
                                "%u GPUs need %s per GPU, %u in all, found %u (looped-bfs takes "
                                "any multiple of the GPUs)",
                                N, v == 1 ? "one stage" : "two stages", v * N, S);
    if (S % N != 0)
        return rp_schedule_fail(
            error, RP_SHAPE_USE(STAGES, EXACTLY, MAX(1, S / N) * N), RP_SHAPE_NONE,
            "%u GPUs need the same number of stages each, found %u stages in all", N, S);
    return TRUE;
}

/* Each group of GPUs has as many micro-batches, and rounds. */
static gboolean
check_replicas(const RpShape *shape, GError **error)
{
    const guint replicas = MAX(1, shape->replicas),
                rounds = shape->micro_batches / MAX(1, shape->round);
    const struct {
        const char *what;
        guint found;
    } shared[] = {{"GPUs", shape->gpus}, {"micro-batches", shape->micro_batches}};

    for (guint i = 0; i < G_N_ELEMENTS(shared); i++)
        if (shared[i].found % replicas != 0)
            return rp_schedule_fail(
                error, RP_SHAPE_NONE, RP_SHAPE_NONE,
                "%u %s do not divide into %u replicas: expected a divisor of %u", shared[i].found,
                shared[i].what, replicas, shared[i].found);
    if (rounds % replicas == 0)
        return TRUE;
    return rp_schedule_fail(error, RP_SHAPE_USE(ROUND, EXACTLY, shape->micro_batches / replicas),
                            RP_SHAPE_NONE,
                            "%u replicas need as many rounds each, found rounds of %u of %u "
                            "micro-batches",
                            replicas, shape->round, shape->micro_batches);
}

static gboolean
check_rounds(const RpScheduleOps *schedule, const RpShape *shape, GError **error)
{
    const guint M = shape->micro_batches, round = shape->round;
    guint nearest = CLAMP(round, MIN(shape->gpus, M), M);

    if (!schedule->dispatched && round != 0 && round != M)
        return rp_schedule_fail(error, RP_SHAPE_USE(ROUND, EXACTLY, M), RP_SHAPE_NONE,
                                "an iteration is one round of all %u micro-batches, found rounds "
                                "of %u",
                                M, round);
    if (!schedule->dispatched || (round > 0 && M % round == 0))
        return TRUE;
    while (M % nearest != 0)
        nearest++;
    return rp_schedule_fail(error, RP_SHAPE_USE(ROUND, EXACTLY, nearest), RP_SHAPE_NONE,
                            "%u micro-batches need rounds of the same size, found rounds of %u, "
                            "which does not divide them",
                            M, round);
}

/* The numbers of a file's orders are theirs. */
static gboolean
check_given(const RpGivenOrders *given, const RpShape *shape, GError **error)
{
    const struct {
        const char *what;
        guint wanted, found;
        RpShapeRemedy remedy;
    } numbers[] = {
        {"GPUs", given->gpus, shape->gpus, RP_SHAPE_USE(GPUS, EXACTLY, given->gpus)},
        {"stages", given->stages, shape->stages, RP_SHAPE_NONE},
        {"forward stages", given->forward_slots, shape->forward_slots, RP_SHAPE_NONE},
        {"micro-batches", given->micro_batches,
         shape->forward_only ? given->micro_batches : shape->micro_batches,
         RP_SHAPE_USE(MICRO_BATCHES, EXACTLY, given->micro_batches)},
        {"micro-batches a round", given->round > 0 ? given->round : shape->micro_batches,
         shape->round > 0 && !shape->forward_only ? shape->round
         : given->round > 0                       ? given->round
                                                  : shape->micro_batches,
         RP_SHAPE_USE(ROUND, EXACTLY, given->round)},
    };

    for (guint i = 0; i < G_N_ELEMENTS(numbers); i++)
        if (numbers[i].found != numbers[i].wanted)
            return rp_schedule_fail(error, numbers[i].remedy, RP_SHAPE_NONE,
                                    "the file's order has %u %s, found %u", numbers[i].wanted,
                                    numbers[i].what, numbers[i].found);
    return TRUE;
}

static gboolean
check_own(const RpScheduleOps *schedule, const RpShape *shape, GError **error)
{
    return (schedule->dispatched || check_stages(schedule, shape, error)) &&
           check_replicas(shape, error) && check_rounds(schedule, shape, error) &&
           (schedule->check == NULL || schedule->check(shape, error));
}

enum { OUTPUT = 1, INPUT = 2, WEIGHT = 4 }; /* bits of products */

/* Whether the parts of an action exist and belong to @gpu, and nothing else makes its products.
 * @made: [S x M] */
static gboolean
check_action(const RpScheduleOps *schedule, const RpShape *shape, guint gpu, const RpAction *action,
             guint8 *made)
{
    if (action->kind > RP_ACTION_OVERLAP || action->kind == RP_ACTION_FUSED)
        return FALSE;
    const RpActionProducts *makes = rp_action_products((RpActionKind)action->kind);
    const struct {
        guint stage, micro_batch, products;
    } parts[] = {
        {action->stage, action->micro_batch, makes->output ? OUTPUT : 0},
        {rp_action_backward_stage(action), rp_action_backward_micro_batch(action),
         (makes->input_gradient ? INPUT : 0u) | (makes->weight_gradient ? WEIGHT : 0u)},
    };

    for (guint i = 0; i < G_N_ELEMENTS(parts); i++) {
        if (parts[i].products == 0)
            continue;
        if (parts[i].stage >= shape->stages || parts[i].micro_batch >= shape->micro_batches ||
            rp_schedule_gpu_of(schedule, shape, parts[i].stage, parts[i].micro_batch) != gpu)
            return FALSE;
        guint8 *of = &made[(gsize)parts[i].stage * shape->micro_batches + parts[i].micro_batch];

        if ((*of & parts[i].products) != 0)
            return FALSE;
        *of |= (guint8)parts[i].products;
    }
    return TRUE;
}

/* The orders of a schedule that is the caller's: others are known to be whole. */
static gboolean
check_orders(const RpScheduleOps *schedule, const RpShape *shape, GError **error)
{
    const gsize n = (gsize)shape->stages * shape->micro_batches;
    g_autofree guint8 *made = g_malloc0(n);
    g_autoptr(GArray) order = g_array_new(FALSE, FALSE, sizeof(RpAction));

    for (guint g = 0; g < shape->gpus; g++) {
        g_array_set_size(order, 0);
        schedule->order(shape, g, order);
        for (guint i = 0; i < order->len; i++) {
            const RpAction *action = &g_array_index(order, RpAction, i);

            if (check_action(schedule, shape, g, action, made))
                continue;
            return rp_fail(error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_OWN,
                           "gpu %u, action %u: expected F, B, I or W of a stage of that gpu, each "
                           "once, found kind %u of stage %u, micro-batch %u",
                           g, i, action->kind, action->stage, action->micro_batch);
        }
    }
    for (gsize i = 0; i < n; i++)
        if (made[i] != (OUTPUT | INPUT | WEIGHT))
            return rp_fail(
                error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_OWN,
                "expected F and B, or F, I and W, of stage %u, micro-batch %u in its order",
                (guint)(i / shape->micro_batches), (guint)(i % shape->micro_batches));
    return TRUE;
}

static const RpScheduleOps *distrusted[RP_MOST_ADDED];
static guint n_distrusted;

void
rp_schedule_distrust(const RpScheduleOps *schedule)
{
    distrusted[n_distrusted++] = schedule;
}

static gboolean
is_distrusted(const RpScheduleOps *schedule)
{
    guint i = 0;

    while (i < n_distrusted && distrusted[i] != schedule)
        i++;
    return i < n_distrusted;
}

gboolean
rp_schedule_check(const RpScheduleOps *schedule, const RpShape *shape, GError **error)
{
    g_return_val_if_fail(schedule != NULL && shape != NULL, FALSE);

    if (!check_counts(shape, error) ||
        !(schedule->given != NULL ? check_given(schedule->given, shape, error)
                                  : check_own(schedule, shape, error)) ||
        (is_distrusted(schedule) && !shape->forward_only && !check_orders(schedule, shape, error)))
        return rp_prefix_error(error, "%s: ", schedule->name);
    return TRUE;
}

/* A dispatched stage leaves its activations in host memory: only the running action holds any. */
guint
rp_schedule_peak_live(const RpScheduleOps *schedule, const RpShape *shape, guint gpu)
{
    g_autoptr(GArray) order = g_array_new(FALSE, FALSE, sizeof(RpAction));
    guint live = 0, peak = 0;

    g_return_val_if_fail(gpu < shape->gpus, 0);

    rp_schedule_append_order(schedule, shape, gpu, order);
    if (schedule->dispatched)
        return MIN(order->len, 1);
    for (guint i = 0; i < order->len; i++) {
        const RpActionProducts *makes =
            rp_action_products((RpActionKind)g_array_index(order, RpAction, i).kind);

        /* an overlapped forward starts before the backward beside it can free anything */
        live += makes->output ? 1 : 0;
        peak = MAX(peak, live);
        live -= makes->weight_gradient ? 1 : 0;
    }
    return peak;
}
