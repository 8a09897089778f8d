#include "tests/core/partition-fixture.h"

RpProfile *
rp_test_profile(guint n_blocks, gint64 forward_ns, gint64 backward_ns, gint64 head_forward_ns,
                gint64 head_backward_ns)
{
    RpProfile *profile = rp_profile_new(n_blocks + 2);

    for (guint i = 0; i < profile->n_layers; i++) {
        RpLayer *layer = &profile->layers[i];

        if (i == 0) {
            layer->kind = RP_LAYER_EMBEDDING;
        } else if (i <= n_blocks) {
            layer->forward_ns = layer->recompute_ns = forward_ns;
            layer->backward_ns = backward_ns;
        } else {
            layer->kind = RP_LAYER_HEAD;
            layer->forward_ns = layer->recompute_ns = head_forward_ns;
            layer->backward_ns = head_backward_ns;
        }
    }
    return profile;
}

void
rp_test_set_random_sizes(GRand *rand, RpLayer *layer)
{
    layer->parameter_bytes = (guint64)g_rand_int_range(rand, 0, 20);
    layer->gradient_bytes = (guint64)g_rand_int_range(rand, 0, 20);
    layer->input_bytes = (guint64)g_rand_int_range(rand, 0, 20);
    layer->output_bytes = (guint64)g_rand_int_range(rand, 0, 20);
    layer->forward_workspace_bytes = (guint64)g_rand_int_range(rand, 0, 20);
    layer->backward_workspace_bytes = (guint64)g_rand_int_range(rand, 0, 40);
    layer->activation_bytes = (guint64)g_rand_int_range(rand, 0, 20);
}

RpProfile *
rp_test_random_sizes(GRand *rand, guint n_layers)
{
    RpProfile *profile = rp_profile_new(n_layers);

    for (guint i = 0; i < n_layers; i++)
        rp_test_set_random_sizes(rand, &profile->layers[i]);
    return profile;
}
