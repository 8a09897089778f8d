#include "sim/draws.h"
#include "core/base/units.h"

#include <math.h>
#include <stdlib.h>

struct _RpDraws {
    RpPlan *plan;
    const RpProfile *profile;
    GArray *tasks;      /* of Times: of the plan's actions */
    double noise;       /* sigma; 0 = the profile's spreads */
    const RpSlow *slow; /* per device; or NULL */
};

/* An action's times as they were planned. */
typedef struct {
    RpTaskId id;
    gint64 duration_ns;
    gint64 lead_ns;
} Times;

/* Parts of a layer's work. */
enum { FORWARD = 1 << 0, RECOMPUTE = 1 << 1, INPUT_GRADIENT = 1 << 2, WEIGHT_GRADIENT = 1 << 3 };
#define BACKWARD (INPUT_GRADIENT | WEIGHT_GRADIENT)

/* An action: parts of its own stage and micro-batch, and of those of its backward part. */
static const struct {
    guint own, lead, behind;
} works[] = {
    [RP_TASK_FORWARD] = {FORWARD, 0, 0},
    [RP_TASK_BACKWARD] = {RECOMPUTE | BACKWARD, RECOMPUTE, 0},
    [RP_TASK_FUSED] = {FORWARD | BACKWARD, FORWARD, 0},
    [RP_TASK_INPUT_GRADIENT] = {RECOMPUTE | INPUT_GRADIENT, RECOMPUTE, 0},
    [RP_TASK_WEIGHT_GRADIENT] = {WEIGHT_GRADIENT, 0, 0},
    [RP_TASK_OVERLAP] = {FORWARD, 0, RECOMPUTE | BACKWARD},
};

gboolean
rp_draws_has_spreads(const RpProfile *profile)
{
    for (guint l = 0; l < profile->n_layers; l++) {
        const RpLayer *layer = &profile->layers[l];

        if (layer->forward_spread_ns > 0 || layer->recompute_spread_ns > 0 ||
            layer->backward_spread_ns > 0)
            return TRUE;
    }
    return FALSE;
}

RpDraws *
rp_draws_new(RpPlan *plan, const RpProfile *profile)
{
    g_return_val_if_fail(plan && profile && rp_plan_n_layers(plan) == profile->n_layers, NULL);

    RpDraws *draws = g_new(RpDraws, 1);

    *draws = (RpDraws){.plan = plan, .profile = profile};
    draws->tasks = g_array_new(FALSE, FALSE, sizeof(Times));
    for (RpTaskId id = rp_plan_first_id(plan); id < rp_plan_end_id(plan); id++) {
        const RpTask *task = rp_plan_task(plan, id);
        const Times times = {id, task->duration_ns, task->lead_ns};

        if (rp_task_is_compute(task))
            g_array_append_val(draws->tasks, times);
    }
    return draws;
}

void
rp_draws_free(RpDraws *draws)
{
    if (draws == NULL)
        return;
    g_array_unref(draws->tasks);
    g_free(draws);
}

void
rp_draws_set_noise(RpDraws *draws, double sigma)
{
    draws->noise = sigma;
}

void
rp_draws_set_slow(RpDraws *draws, const RpSlow *slow)
{
    draws->slow = slow;
}

/* Sets the times of a task from those of its two parts, on its device. */
static void
set_times(RpPlan *plan, RpTaskId id, gint64 lead_ns, gint64 rest_ns, const RpSlow *slow)
{
    const guint32 device = rp_plan_lane_device(plan, rp_plan_task(plan, id)->lane);

    if (slow != NULL && device != RP_NONE) {
        lead_ns = llround((double)lead_ns * slow[device].actions);
        rest_ns = llround((double)rest_ns * slow[device].actions);
    }
    rp_plan_set_times(plan, id, lead_ns + rest_ns, lead_ns);
}

void
rp_plan_slow(RpPlan *plan, const RpSlow *slow)
{
    for (RpTaskId id = rp_plan_first_id(plan); id < rp_plan_end_id(plan); id++) {
        const RpTask *task = rp_plan_task(plan, id);

        if (rp_task_is_compute(task))
            set_times(plan, id, task->lead_ns, task->duration_ns - task->lead_ns, slow);
    }
}

/* ---- one draw ---- */

/* Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014 (SplitMix) */
static guint64
mix(guint64 x)
{
    x += G_GUINT64_CONSTANT(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * G_GUINT64_CONSTANT(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * G_GUINT64_CONSTANT(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

double
rp_draws_normal(guint64 seed, guint draw, guint iteration, guint layer, guint micro_batch)
{
    guint64 state = mix(mix(mix(seed) ^ draw) ^ iteration);
    gint64 sum = 0;

    state = mix(mix(state ^ layer) ^ micro_batch);
    for (guint i = 0; i < 3; i++) {
        state = mix(state);
        for (guint shift = 0; shift < 64; shift += 16)
            sum += (gint64)(state >> shift & 0xffff);
    }
    /* twelve of 0 to 65535, of variance (2^32 - 1) / 12 each */
    return (double)(sum - 6 * 65535) / sqrt(4294967295.0);
}

/* By how much a part is longer at @z. */
static double
change(double noise, double time_ns, double spread_ns, double z)
{
    if (noise > 0)
        return time_ns * expm1(noise * z - noise * noise / 2);
    return fmax(-time_ns, z * spread_ns / RP_DRAW_TENTH);
}

/* The same of @parts of a layer; @last: its stage ends with it. */
static double
layer_change(const RpLayer *layer, guint parts, gboolean last, double noise, double z)
{
    const double backward = (double)layer->backward_ns, weight = (double)layer->weight_gradient_ns;
    const double recompute = (double)layer->recompute_ns;
    double sum = 0;

    if (parts & FORWARD)
        sum += change(noise, (double)layer->forward_ns, (double)layer->forward_spread_ns, z);
    if ((parts & RECOMPUTE) && layer->kind == RP_LAYER_BLOCK) {
        const double part =
            last && recompute > 0 ? 1 - (double)rp_layer_saving_ns(layer) / recompute : 1;

        sum += part * change(noise, recompute, (double)layer->recompute_spread_ns, z);
    }
    if (parts & BACKWARD) {
        const double share = backward > 0 ? weight / backward : 0;
        const double part =
            (parts & INPUT_GRADIENT ? 1 - share : 0) + (parts & WEIGHT_GRADIENT ? share : 0);

        sum += part * change(noise, backward, (double)layer->backward_spread_ns, z);
    }
    return sum;
}

/* One of an action's two stages. */
typedef struct {
    guint32 stage;
    guint32 micro_batch;
} Place;

static double
stage_change(const RpDraws *draws, const RpProfile *card, const Place *place, guint parts,
             guint64 seed, guint draw, guint iteration)
{
    double sum = 0;

    if (parts == 0)
        return 0;
    const RpInterval layers = rp_plan_stage(draws->plan, place->stage)->layers;

    for (guint i = 0; i < layers.count; i++) {
        const guint l = layers.first + i;
        const double z = rp_draws_normal(seed, draw, iteration, l, place->micro_batch);

        sum += layer_change(&card->layers[l], parts, i + 1 == layers.count, draws->noise, z);
    }
    return sum;
}

void
rp_draws_apply(RpDraws *draws, guint64 seed, guint draw)
{
    for (guint i = 0; i < draws->tasks->len; i++) {
        const Times *times = &g_array_index(draws->tasks, Times, i);
        const RpTask *task = rp_plan_task(draws->plan, times->id);
        const Place own = {task->stage, task->micro_batch};
        const Place behind = {task->backward_stage, task->backward_micro_batch};
        const RpProfile *card =
            rp_profile_of(draws->profile, rp_plan_lane_device(draws->plan, task->lane));
        const guint lead_parts = times->lead_ns > 0 ? works[task->kind].lead : 0;
        const double lead =
            stage_change(draws, card, &own, lead_parts, seed, draw, task->iteration);
        const double rest = stage_change(draws, card, &own, works[task->kind].own & ~lead_parts,
                                         seed, draw, task->iteration) +
                            stage_change(draws, card, &behind, works[task->kind].behind, seed, draw,
                                         task->iteration);
        const gint64 lead_ns = MAX(0, times->lead_ns + llround(lead));
        const gint64 rest_ns = MAX(0, times->duration_ns - times->lead_ns + llround(rest));

        set_times(draws->plan, times->id, lead_ns, rest_ns, draws->slow);
    }
}

/* ---- many ---- */

/* Quantile of sorted values, interpolated between neighbours. */
static double
percentile(const double *values, guint n, double p)
{
    const double at = p * (n - 1);
    const guint below = (guint)at;

    return below + 1 < n ? values[below] + (at - below) * (values[below + 1] - values[below])
                         : values[below];
}

RpDrawn
rp_drawn_of(double *values, guint n)
{
    double sum = 0, squares = 0;

    g_assert(n > 0);
    qsort(values, n, sizeof *values, rp_compare_doubles);
    for (guint i = 0; i < n; i++)
        sum += values[i];
    const double mean = sum / n;

    for (guint i = 0; i < n; i++)
        squares += (values[i] - mean) * (values[i] - mean);
    return (RpDrawn){
        .mean = mean,
        .deviation = n > 1 ? sqrt(squares / (n - 1)) : 0,
        .low = percentile(values, n, 0.1),
        .high = percentile(values, n, 0.9),
        .p5 = percentile(values, n, 0.05),
        .p50 = percentile(values, n, 0.5),
        .p95 = percentile(values, n, 0.95),
    };
}
