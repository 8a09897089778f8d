#include "tests/sim/brute-force.h"

#include "core/schedules/schedule.h"
#include "sim/search/partition-cost.h"
#include "sim/steady-window.h"
#include "tests/sim/random-cut.h"

RpDispatchedSearch
rp_test_random_case(GRand *rand, guint most_blocks, RpProfile **profile)
{
    const guint gpus = (guint)g_rand_int_range(rand, 2, 5);
    const guint n_blocks = (guint)g_rand_int_range(rand, 5, (gint)most_blocks + 1);

    *profile = rp_test_random_times(rand, n_blocks);
    return (RpDispatchedSearch){
        .profile = *profile,
        .options =
            {
                .schedule = rp_schedule_find("roundpipe", NULL),
                .gpus = gpus,
                .micro_batches = gpus * (guint)g_rand_int_range(rand, 1, 5),
                .async = g_rand_int_range(rand, 0, 3) == 0,
                .fused_forward = g_rand_boolean(rand) ? RP_FUSED_PUBLISHED : RP_FUSED_PHYSICAL,
            },
        .least_slots = g_rand_boolean(rand) ? gpus : 1,
    };
}

gint64
rp_test_time_ns(const RpDispatchedSearch *search, const RpCut *cut, guint round)
{
    const RpPlanOptions *options = &search->options;
    g_autoptr(RpRecurrence) recurrence = rp_recurrence_new(search->profile, options);
    RpSpan span = {.micro_batches = options->micro_batches, .round = round};

    if (options->async) {
        const RpSteadyWindow window =
            rp_steady_window(options->gpus, rp_cut_slots(cut) * (options->micro_batches / round));

        span.first = window.first;
        span.end = window.end;
    }
    return rp_recurrence_time_ns(recurrence, cut, &span, G_MAXINT64);
}

/* Borders of one side, in front of layer @k: bit i of @mask between layers i and i + 1. */
static guint
lay_side(guint *borders, guint n, guint k, guint mask, gboolean falls)
{
    for (guint i = 1; i < k; i++) {
        const guint layer = falls ? k - i : i;

        if ((mask >> (layer - 1) & 1) != 0)
            borders[n++] = layer;
    }
    return n;
}

gint64
rp_test_least_ns(const RpDispatchedSearch *search)
{
    const RpPlanOptions *options = &search->options;
    const guint n = search->profile->n_layers;
    const guint lead = search->profile->layers[0].kind == RP_LAYER_EMBEDDING;
    g_autoptr(RpCut) cut = rp_cut_new(n);
    gint64 least = G_MAXINT64;

    for (guint round = options->gpus; round <= options->micro_batches; round++) {
        if (options->micro_batches % round != 0)
            continue;
        for (guint k = 0; k < n; k++) { /* layers in front of the fused stage */
            const guint ways = k > 1 ? 1u << (k - 1) : 1;

            if (k != 0 && k <= lead)
                continue;
            for (guint up = 0; up < ways; up += 1 + lead) /* embedding and block 0 together */
                for (guint down = 0; down < ways; down += 1 + lead) {
                    cut->up[0] = 0;
                    cut->down[0] = n;
                    cut->n_forward = k == 0 ? 0 : lay_side(cut->up, 1, k, up, FALSE);
                    cut->up[cut->n_forward] = k;
                    cut->down[1] = k;
                    cut->n_backward = k == 0 ? 1 : lay_side(cut->down, 2, k, down, TRUE);
                    cut->down[cut->n_backward] = 0;
                    if (rp_cut_slots(cut) >= search->least_slots)
                        least = MIN(least, rp_test_time_ns(search, cut, round));
                }
        }
    }
    return least;
}
