#include "tests/sim/random-cut.h"

RpProfile *
rp_test_random_times(GRand *rand, guint n_blocks)
{
    const guint lead = (guint)g_rand_int_range(rand, 0, 2);
    const guint head = (guint)g_rand_int_range(rand, 0, 2);
    RpProfile *profile = rp_profile_new(lead + n_blocks + head);

    profile->links.hop_ns = g_rand_int_range(rand, 0, 3) * 700;
    for (guint l = 0; l < profile->n_layers; l++) {
        RpLayer *layer = &profile->layers[l];

        layer->forward_ns = g_rand_int_range(rand, 1000, 10000);
        layer->backward_ns = g_rand_int_range(rand, 1000, 20000);
        layer->recompute_ns = g_rand_int_range(rand, 1000, 10000);
        if (g_rand_boolean(rand))
            layer->recompute_last_ns = layer->recompute_ns / 2;
        if (l < lead) {
            layer->kind = RP_LAYER_EMBEDDING;
            layer->forward_ns = layer->backward_ns = layer->recompute_ns =
                layer->recompute_last_ns = 0;
        } else if (l >= lead + n_blocks) {
            layer->kind = RP_LAYER_HEAD;
        }
    }
    return profile;
}

/* Borders from @from on to below @end, each with a chance of one in @one_in. Returns: how many. */
static guint
random_borders(GRand *rand, guint from, guint end, gint one_in, guint *borders)
{
    guint n = 0;

    for (guint l = from; l < end; l++)
        if (g_rand_int_range(rand, 0, one_in) == 0)
            borders[n++] = l;
    return n;
}

void
rp_test_random_cut(GRand *rand, const RpProfile *profile, RpCut *cut)
{
    const guint n = profile->n_layers;
    const guint lead = profile->layers[0].kind == RP_LAYER_EMBEDDING;
    const guint k = (guint)g_rand_int_range(rand, 0, (gint)n);
    const gint one_in = g_rand_int_range(rand, 1, 5);
    g_autofree guint *borders = g_new(guint, n + 1);

    cut->up[0] = 0;
    cut->down[0] = n;
    if (k <= lead) {
        cut->n_forward = 0;
        cut->n_backward = 1;
        cut->down[1] = 0;
        return;
    }
    guint inner = random_borders(rand, lead + 1, k, one_in, borders);
    for (guint i = 0; i < inner; i++)
        cut->up[i + 1] = borders[i];
    cut->n_forward = inner + 1;
    cut->up[cut->n_forward] = k;
    inner = random_borders(rand, lead + 1, k, one_in, borders);
    cut->down[1] = k;
    for (guint i = 0; i < inner; i++)
        cut->down[2 + i] = borders[inner - 1 - i];
    cut->n_backward = inner + 2;
    cut->down[cut->n_backward] = 0;
}
