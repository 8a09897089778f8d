/* Finds the faster attention on this device: a block of each class is run with each. */
#include "exec/measure/measure.h"

#define SECONDS 0.2

static guint
count_alike(const RpNetwork *network, guint class)
{
    guint n = 0;

    for (guint l = 0; l < rp_network_n_layers(network); l++)
        n += rp_network_layer_class(network, l) == class;
    return n;
}

/* Forward and backward of all blocks: of each class the first is run. */
static gboolean
time_blocks(RpProbe *probe, const RpNetwork *network, const RpWeights *weights,
            const RpMeasureOptions *options, gint64 *ns, GError **error)
{
    RpMeasurer measurer = {
        .options = options, .n_measures = 1, .settle = TRUE, .passes_alone = TRUE};
    g_autoptr(RpProfile) profile = rp_network_profile(network);

    *ns = 0;
    for (guint l = 1; l + 1 < rp_network_n_layers(network); l++) {
        if (rp_network_layer_class(network, l) != l)
            continue;
        if (!rp_measure_layer(&measurer, probe, network, weights, l, profile, error))
            return FALSE;
        *ns += count_alike(network, l) *
               (profile->layers[l].forward_ns + profile->layers[l].backward_ns);
    }
    return TRUE;
}

gboolean
rp_measure_attention(RpProbe *probe, const RpNetwork *network, const RpWeights *weights,
                     RpAttentionChoice *fastest, GError **error)
{
    g_return_val_if_fail(probe && network && fastest, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

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

        if (!time_blocks(probe, other, weights, &measure, &ns, error))
            return FALSE;
        if (ns < least_ns) {
            least_ns = ns;
            best = (RpAttentionChoice)c;
        }
    }
    *fastest = best;
    return TRUE;
}
