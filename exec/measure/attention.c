/* Whose attention is faster on this device: a block is run with each. */
#include "exec/measure/measure.h"

#define SECONDS 0.2

/* Forward and backward of the first block. */
static gboolean
time_block(RpProbe *probe, const RpNetwork *network, const RpWeights *weights,
           const RpMeasureOptions *options, gint64 *ns, GError **error)
{
    const guint block = MIN(1, rp_network_n_layers(network) - 1);
    RpMeasurer measurer = {.options = options, .n_measures = 1};
    g_autoptr(RpProfile) profile = rp_network_profile(network);

    if (!rp_measure_layer(&measurer, probe, network, weights, block, profile, error))
        return FALSE;
    *ns = profile->layers[block].forward_ns + profile->layers[block].backward_ns;
    return TRUE;
}

gboolean
rp_measure_attention(RpProbe *probe, const RpNetwork *network, const RpWeights *weights,
                     RpAttentionChoice *fastest, GError **error)
{
    g_return_val_if_fail(probe && network && fastest, FALSE);
    g_return_val_if_fail(!error || !*error, FALSE);

    const RpKernels *kernels = rp_network_kernels(network);
    const RpMeasureOptions measure = {
        .devices = 1, .seconds = SECONDS, .max_runs = 20, .optimizer_threads = 1};
    RpAttentionChoice best = RP_ATTENTION_BUILTIN;
    gint64 least_ns = G_MAXINT64;

    for (guint c = RP_N_ATTENTIONS; c-- > 0;) {
        RpNetworkOptions options = *rp_network_options(network);
        gint64 ns;

        /* the last one has nothing to be compared with, if it is the only one */
        if (!kernels->has_attention((RpAttentionChoice)c) || (c == 0 && least_ns == G_MAXINT64))
            continue;
        options.attention = (RpAttentionChoice)c;
        g_autoptr(RpNetwork) other = rp_network_new(rp_network_weights(network), kernels, &options);

        if (!time_block(probe, other, weights, &measure, &ns, error))
            return FALSE;
        if (ns < least_ns) {
            least_ns = ns;
            best = (RpAttentionChoice)c;
        }
    }
    *fastest = best;
    return TRUE;
}
