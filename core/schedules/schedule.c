/*
 * What every schedule shares: the checks of a shape, where a stage runs.
 */
#include "core/schedules/schedule.h"

/* Beyond these an order does not fit in memory, or its counts not in 32 bits. */
#define MAX_GPUS (1u << 16)
#define MAX_MICRO_BATCHES (1u << 24)
#define MAX_ACTIONS (1u << 28) /* M x S */

G_DEFINE_QUARK(rp_schedule_error, rp_schedule_error)

guint
rp_schedule_gpu(const RpScheduleOps *schedule, const RpShape *shape, guint stage, guint round)
{
    const guint N = shape->gpus;

    g_return_val_if_fail(stage < shape->stages, 0);

    if (schedule->dispatched)
        return (guint)((shape->first_gpu + (guint64)round * shape->stages + stage) % N);
    if (schedule->folded)
        return stage < N ? stage : 2 * N - 1 - stage;
    if (schedule->gpu_of_rank != NULL)
        return schedule->gpu_of_rank(shape, stage % N);
    return stage % N;
}

guint
rp_schedule_next_first_gpu(const RpScheduleOps *schedule, const RpShape *shape)
{
    if (!schedule->dispatched)
        return shape->first_gpu;

    guint64 rounds = shape->micro_batches / shape->round;
    return (guint)((shape->first_gpu + rounds * shape->stages) % shape->gpus);
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

    for (guint i = 0; i < G_N_ELEMENTS(counts); i++) {
        if (counts[i].found < 1 || counts[i].found > counts[i].most) {
            g_set_error(error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_SHAPE,
                        "the number of %s must be from 1 to %u, found %u; use a number in between",
                        counts[i].what, counts[i].most, counts[i].found);
            return FALSE;
        }
    }
    if ((guint64)shape->micro_batches * shape->stages > MAX_ACTIONS) {
        g_set_error(error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_SHAPE,
                    "at most %u actions fit in one iteration, found %u micro-batches x %u stages; "
                    "use at most %u micro-batches",
                    MAX_ACTIONS, shape->micro_batches, shape->stages, MAX_ACTIONS / shape->stages);
        return FALSE;
    }
    return TRUE;
}

static gboolean
check_stages(const RpScheduleOps *schedule, const RpShape *shape, GError **error)
{
    const guint N = shape->gpus, S = shape->stages;
    const guint v = schedule->stages_per_gpu;

    if (v != 0 && S != (guint64)v * N) {
        g_set_error(error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_SHAPE,
                    "%u GPUs need %s per GPU, %" G_GUINT64_FORMAT
                    " in all, found %u; use %" G_GUINT64_FORMAT
                    " stages, or another schedule (looped-bfs takes any multiple of the GPUs)",
                    N, v == 1 ? "one stage" : "two stages", (guint64)v * N, S, (guint64)v * N);
        return FALSE;
    }
    if (S % N != 0) {
        g_set_error(error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_SHAPE,
                    "%u GPUs need the same number of stages each, found %u stages in all; use %u",
                    N, S, MAX(1, S / N) * N);
        return FALSE;
    }
    return TRUE;
}

static gboolean
check_rounds(const RpScheduleOps *schedule, const RpShape *shape, GError **error)
{
    const guint M = shape->micro_batches, round = shape->round;

    if (!schedule->dispatched && round != 0 && round != M) {
        g_set_error(error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_SHAPE,
                    "an iteration is one round of all %u micro-batches, found rounds of %u; leave "
                    "the round out, or use roundpipe",
                    M, round);
        return FALSE;
    }
    if (schedule->dispatched && (round == 0 || M % round != 0)) {
        guint nearest = CLAMP(round, MIN(shape->gpus, M), M);

        while (M % nearest != 0)
            nearest++;
        g_set_error(error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_SHAPE,
                    "%u micro-batches need rounds of the same size, found M_R = %u, which does not "
                    "divide them; use M_R = %u",
                    M, round, nearest);
        return FALSE;
    }
    return TRUE;
}

gboolean
rp_schedule_check(const RpScheduleOps *schedule, const RpShape *shape, GError **error)
{
    g_return_val_if_fail(schedule != NULL && shape != NULL, FALSE);

    if (!check_counts(shape, error) ||
        (!schedule->dispatched && !check_stages(schedule, shape, error)) ||
        !check_rounds(schedule, shape, error) ||
        (schedule->check != NULL && !schedule->check(shape, error))) {
        g_prefix_error(error, "%s: ", schedule->name);
        return FALSE;
    }
    return TRUE;
}

/* A dispatched stage leaves its activations in host memory: only the running action holds any. */
guint
rp_schedule_peak_live(const RpScheduleOps *schedule, const RpShape *shape, guint gpu)
{
    g_autoptr(GArray) order = g_array_new(FALSE, FALSE, sizeof(RpAction));
    guint live = 0, peak = 0;

    g_return_val_if_fail(gpu < shape->gpus, 0);

    schedule->order(shape, gpu, order);
    if (schedule->dispatched)
        return MIN(order->len, 1);
    for (guint i = 0; i < order->len; i++) {
        const RpActionProducts *makes = rp_action_products(&g_array_index(order, RpAction, i));

        /* an overlapped forward starts before the backward beside it can free anything */
        live += makes->output ? 1 : 0;
        peak = MAX(peak, live);
        live -= makes->weight_gradient ? 1 : 0;
    }
    return peak;
}
