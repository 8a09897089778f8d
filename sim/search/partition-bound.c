#include "sim/search/partition-bound.h"

#include "core/base/units.h"
#include "core/schedules/given.h"
#include "sim/search/cut-moves.h"

#define MOST_LAYERS 2048 /* of more it is not asked how many stages memory takes at least */

typedef struct {
    const RpDispatchedSearch *search;
    guint lead; /* layers that stand with the first block */
    gint64 hop_ns;
    gboolean gated, early_fused, split;
    /* sums over the layers before an index; recompute: the least that it takes, early: the
     * most that may run before a gradient arrives */
    gint64 *forward, *recompute, *early, *backward, *weight; /* weight: none, unless split */
} Sums;

static void
init_sums(Sums *sums, const RpDispatchedSearch *search)
{
    const RpProfile *profile = search->profile;
    const RpPlanOptions *options = &search->options;
    const gsize n = profile->n_layers;

    *sums = (Sums){
        .search = search,
        .lead = rp_cut_least_first(profile) - 1,
        .split = options->schedule->split_backward,
        .hop_ns = options->gpus > 1 ? profile->links.hop_ns : 0,
        .gated = options->recompute == RP_RECOMPUTE_GATED,
        .forward = g_new0(gint64, n + 1),
        .recompute = g_new0(gint64, n + 1),
        .backward = g_new0(gint64, n + 1),
        .early = g_new0(gint64, n + 1),
        .weight = g_new0(gint64, n + 1),
    };
    sums->early_fused = !sums->gated && options->fused_forward == RP_FUSED_PUBLISHED;
    for (gsize l = 0; l < n; l++) {
        const RpLayer *layer = &profile->layers[l];

        sums->forward[l + 1] = sums->forward[l] + layer->forward_ns;
        sums->backward[l + 1] = sums->backward[l] + layer->backward_ns;
        sums->weight[l + 1] = sums->weight[l] + (sums->split ? layer->weight_gradient_ns : 0);
        /* each layer may be the last of its stage */
        sums->recompute[l + 1] =
            sums->recompute[l] + (layer->kind == RP_LAYER_BLOCK
                                      ? rp_layer_recompute_ns(layer) - rp_layer_saving_ns(layer)
                                      : 0);
        sums->early[l + 1] =
            sums->early[l] +
            (layer->kind == RP_LAYER_BLOCK && !sums->gated ? rp_layer_recompute_ns(layer) : 0);
    }
}

static void
clear_sums(Sums *sums)
{
    g_free(sums->forward);
    g_free(sums->recompute);
    g_free(sums->backward);
    g_free(sums->early);
    g_free(sums->weight);
}

static gboolean
fits(const Sums *sums, guint fused_first, const RpInterval *stage, RpPhase phase)
{
    const RpDispatchedSearch *search = sums->search;

    return rp_plan_least_fits(search->profile, fused_first, stage, phase, &search->options,
                              search->memory_bytes);
}

/* Work of one micro-batch with layers from @k on in the fused stage. */
static gint64
work_ns(const Sums *sums, guint k)
{
    const guint n = sums->search->profile->n_layers;

    return sums->forward[n] + sums->backward[n] + sums->recompute[k];
}

/* Time that the device whose first slot is @g waits, with @n_forward forward stages. */
static gint64
start_ns(const Sums *sums, guint k, guint n_forward, guint g)
{
    const guint n = sums->search->profile->n_layers;
    const gint64 hops_ns = g * sums->hop_ns;

    if (g == 0)
        return 0;
    if (g < n_forward)
        return sums->forward[MIN(k, sums->lead + g)] + hops_ns;
    if (g == n_forward)
        return MAX(0, sums->forward[k] + hops_ns -
                          (sums->early_fused ? sums->forward[n] - sums->forward[k] : 0));
    return MAX(0,
               sums->forward[k] + hops_ns + sums->backward[n] - sums->backward[k] - sums->early[k]);
}

/* Time that runs elsewhere after the device whose last slot is the @j-th from the end. Split: maybe none,
 * if it has much W to do. */
static gint64
tail_ns(const Sums *sums, guint k, guint j)
{
    return j == 0 || sums->split ? 0 : sums->backward[MIN(k, sums->lead + j)] + j * sums->hop_ns;
}

/* Rounds of at least N slots: device g begins with slot g. */
static gint64
waits_ns(const Sums *sums, guint k)
{
    const guint gpus = sums->search->options.gpus;
    gint64 starts_ns = G_MAXINT64, tails_ns = 0;
    gint64 in_front_ns = 0, behind_ns = 0; /* slots that begin before and after the fused one */

    for (guint g = 0; g < gpus; g++) {
        tails_ns += tail_ns(sums, k, g);
        behind_ns += start_ns(sums, k, 0, g);
    }
    for (guint n_forward = 1; n_forward <= MIN(k - sums->lead, gpus); n_forward++) {
        const gboolean within = n_forward < gpus;

        in_front_ns += start_ns(sums, k, n_forward, n_forward - 1);
        behind_ns -= within ? start_ns(sums, k, 0, n_forward) : behind_ns;
        starts_ns = MIN(starts_ns, in_front_ns + behind_ns +
                                       (within ? start_ns(sums, k, n_forward, n_forward) : 0));
    }
    return starts_ns + tails_ns;
}

/* The first @devices devices begin with slots 0 to @slots - 1 of the first rounds, in turn. */
static gint64
few_slots_waits_ns(const Sums *sums, guint k, guint slots, guint devices)
{
    gint64 sum = 0;

    for (guint i = 0; i < slots; i++) {
        const gint64 times = devices / slots + (i < devices % slots ? 1 : 0);
        const gint64 start =
            MIN(MIN(start_ns(sums, k, slots, i), start_ns(sums, k, i, i)), start_ns(sums, k, 0, i));

        sum += times * (start + tail_ns(sums, k, i));
    }
    return sum;
}

/* The fewest stages that hold layers 0 to @k - 1, or @most if these are too few. */
static guint
least_stages(const Sums *sums, guint k, RpPhase phase, guint most)
{
    guint stages = 0;

    for (guint at = 0; at < k && stages < most; stages++) {
        RpInterval stage = {at, 1};

        while (at + stage.count < k) {
            stage.count++;
            if (!fits(sums, k, &stage, phase)) {
                stage.count--;
                break;
            }
        }
        at += stage.count;
    }
    return stages;
}

static guint
least_slots(const Sums *sums, guint k)
{
    const RpDispatchedSearch *search = sums->search;
    const guint least = MAX(1, search->least_slots);

    if (k == 0 || search->memory_bytes == 0 || search->profile->n_layers > MOST_LAYERS)
        return MAX(least, k == 0 ? 1 : 3);
    const guint gpus = search->options.gpus; /* it is not asked for more */
    const guint forward = least_stages(sums, k, RP_PHASE_FORWARD, gpus);

    return MAX(least, 1 + forward + least_stages(sums, k, RP_PHASE_BACKWARD, gpus - forward));
}

/*
 * Time of the fused stage alone, if it waits for nothing. It runs the micro-batches of a
 * round one after the other. The next round's cannot begin before, if rounds have N slots or more:
 * the slot behind it, and all that follow, end later still, and one of them stands in front of the
 * next round's first slots on a device. With fewer slots so do rounds q further on:
 *
 *   slots from one fused stage to the next one that waits for it: at most N + S - 1, q S of them
 */
static double
fused_ns(const Sums *sums, guint k, guint slots)
{
    const RpPlanOptions *options = &sums->search->options;
    const guint n = sums->search->profile->n_layers;
    const guint gpus = options->gpus;
    const guint turn = slots >= gpus ? 1 : (gpus + 2 * slots - 2) / slots;
    const double stage =
        (double)(sums->forward[n] - sums->forward[k] + sums->backward[n] - sums->backward[k]);
    const double round = options->round != 0 ? options->round : MIN(gpus, options->micro_batches);

    if (options->async)
        return stage * options->micro_batches / turn;
    return stage * MAX(round, (double)options->micro_batches / turn) +
           (double)(sums->backward[k] - sums->weight[k]) +
           (sums->early_fused ? 0 : (double)sums->forward[k]);
}

/* Bound of the partitions that fuse layers from @k on; G_MAXINT64 if it is no less than @most_ns. */
static gint64
bound_of(const Sums *sums, guint k, gint64 most_ns)
{
    const RpPlanOptions *options = &sums->search->options;
    const guint gpus = options->gpus;
    const guint rounds = options->micro_batches /
                         (options->round != 0 ? options->round : MIN(gpus, options->micro_batches));
    const double work = (double)work_ns(sums, k) * options->micro_batches;
    const guint most = k == 0 ? 1 : 2 * (k - sums->lead) + 1;
    double best = G_MAXDOUBLE;

    const gboolean many = most >= gpus && k > 0; /* rounds of N slots are possible */

    if (work / gpus >= (double)most_ns)
        return G_MAXINT64;

    if (many)
        best = MAX((work + (options->async ? 0 : (double)waits_ns(sums, k))) / gpus,
                   fused_ns(sums, k, gpus));
    for (guint slots = work / gpus < best ? least_slots(sums, k) : gpus;
         slots < gpus && slots <= most; slots++) {
        const guint devices =
            options->async ? gpus : (guint)MIN((guint64)gpus, (guint64)rounds * slots);
        const double waits =
            options->async ? 0 : (double)few_slots_waits_ns(sums, k, slots, devices);

        best = MIN(best, MAX((work + waits) / devices, fused_ns(sums, k, slots)));
    }
    return best < (double)G_MAXINT64 ? (gint64)best : G_MAXINT64;
}

/* The first layer that the fused stage can begin with; n_layers if there is none. A longer stage
 * needs no less memory. */
static guint
least_fused_first(const Sums *sums)
{
    guint low = 0, high = sums->search->profile->n_layers;

    while (low < high) {
        const guint middle = low + (high - low) / 2;

        if (fits(sums, middle, NULL, RP_PHASE_FUSED))
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

gint64
rp_dispatched_bound_ns(const RpDispatchedSearch *search)
{
    Sums sums;
    gint64 best = G_MAXINT64;

    init_sums(&sums, search);
    for (guint k = least_fused_first(&sums); k < search->profile->n_layers; k++)
        if (k == 0 || k > sums.lead)
            best = MIN(best, bound_of(&sums, k, best));
    clear_sums(&sums);
    return best == G_MAXINT64 ? 0 : best;
}

/* ---- bound schedules ---- */

/* Whether N stages can take all layers so that none needs more than @t_ns. */
static gboolean
can_end_by(const Sums *sums, gboolean split, double t_ns)
{
    const RpPlanOptions *options = &sums->search->options;
    const guint n = sums->search->profile->n_layers;
    guint at = 0;

    for (guint s = 0; s < options->gpus && at < n; s++) {
        double before = 0;

        if (!options->async && s > 0)
            before = (double)sums->forward[at] + s * (double)sums->hop_ns;
        if (!options->async && s > 0 && !split)
            before += (double)sums->backward[at] + s * (double)sums->hop_ns +
                      (sums->gated ? (double)sums->recompute[at] : 0);
        const double most = (t_ns - before) / options->micro_batches;
        guint low = at, high = n;

        while (low < high) {
            const guint middle = low + (high - low + 1) / 2;
            const double stage =
                (double)(sums->forward[middle] - sums->forward[at] + sums->recompute[middle] -
                         sums->recompute[at] + sums->backward[middle] - sums->backward[at]);

            if (stage <= most)
                low = middle;
            else
                high = middle - 1;
        }
        at = low;
    }
    return at >= n;
}

/* One stage a device: the least T, by halving. */
static gint64
one_stage_bound(const Sums *sums, gboolean split, gint64 low)
{
    const guint n = sums->search->profile->n_layers;
    gint64 high = (work_ns(sums, n) + 2 * sums->search->options.gpus * sums->hop_ns) *
                  (sums->search->options.micro_batches + 2);

    while (low < high) {
        const gint64 middle = low + (high - low) / 2;

        if (can_end_by(sums, split, (double)middle))
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

gint64
rp_bound_bound_ns(const RpProfile *profile, const RpPlanOptions *options, guint n_stages)
{
    const RpScheduleOps *schedule = options->schedule;
    const guint gpus = options->gpus, n = profile->n_layers;
    RpDispatchedSearch search = {.profile = profile, .options = *options};
    Sums sums;

    init_sums(&sums, &search);
    double bound = (double)work_ns(&sums, n) * options->micro_batches;

    /* of slices only what devices have to do */
    for (guint g = 0; g < gpus && !options->async && !schedule->sliced && schedule->given == NULL;
         g++) {
        /* stages on the way to its first: two directions begin on both ends */
        const guint r = schedule->mirrored ? MIN(g, gpus - 1 - g) : g;

        bound += (double)start_ns(&sums, n, gpus + 1, r);
        if (!schedule->split_backward && r > 0)
            bound += (double)tail_ns(&sums, n, r) +
                     (sums.gated ? (double)sums.recompute[MIN(n, sums.lead + r)] : 0);
    }
    gint64 best = (gint64)(bound / gpus);

    if (schedule->given == NULL && !schedule->sliced && rp_planner_has_full(options) &&
        (schedule->stages_per_gpu == 1 || n_stages == gpus))
        best = MAX(best, one_stage_bound(&sums, schedule->split_backward, best));
    clear_sums(&sums);
    return best;
}
