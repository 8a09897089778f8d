/* The profile of a network: every size, and no times. */
#include "core/base/fp8.h"
#include "core/base/units.h"
#include "exec/network/private.h"

/* Tensor by tensor, each with the gap behind it. */
static void
set_tensors(const RpNetwork *network, RpProfile *profile, guint index)
{
    guint first;
    const guint n = rp_weights_layer(network->weights, index, &first);
    const RpLayerLayout *layout = &network->layers[index].layout;
    g_autofree guint64 *bytes = g_new(guint64, n + 1);

    for (guint i = 0; i < n; i++) {
        const RpWeight *weight = rp_weights_nth(network->weights, first + i);
        const RpWeightPlace *place = &layout->place[weight->kind];

        bytes[i] = place->has_fp8 ? rp_layout_byte_capacity(place)
                                  : rp_layout_bytes_left(weight) * rp_dtype_size(place->storage);
    }
    bytes[n] = layout->scratch_bytes;
    rp_profile_set_tensors(profile, index, bytes, n + (layout->scratch_bytes > 0));
}

static void
set_layer(const RpNetwork *network, gboolean packed, RpProfile *profile, guint index)
{
    RpLayer *layer = &profile->layers[index];
    const RpNetworkLayer *of = &network->layers[index];
    /* hidden states between layers begin at multiples, but are counted without */
    const gsize gaps = 2 * (network->hidden_space - network->hidden_bytes);

    set_tensors(network, profile, index);
    if (packed)
        layer->upload_bytes = of->layout.upload_bytes;
    layer->gradient_bytes = of->layout.elements * rp_dtype_size(network->options.dtype);
    layer->tied_bytes = of->layout.tied_bytes;
    layer->tied_gradient_bytes = of->layout.tied_elements * rp_dtype_size(network->options.dtype);
    layer->input_bytes = index > 0 ? network->hidden_bytes : layer->input_bytes;
    layer->output_bytes = index < network->n_layers - 1 ? network->hidden_bytes : 0;
    layer->activation_bytes = of->sizes.kept;
    for (guint g = 0; g < RP_N_SAVED_GROUPS; g++)
        layer->saved[g].bytes = of->sizes.saved[g];
    layer->forward_workspace_bytes =
        rp_align_up(of->sizes.forward.total + gaps, RP_NETWORK_ALIGNMENT);
    layer->backward_workspace_bytes = of->sizes.backward.total + network->hidden_space;
}

RpProfile *
rp_network_profile(const RpNetwork *network)
{
    g_return_val_if_fail(network != NULL, NULL);

    const RpNetworkOptions *options = &network->options;
    const gboolean packed = rp_network_is_packed(network);
    RpProfile *profile = rp_model_profile(network->model, options->sequences, options->tokens,
                                          rp_dtype_size(options->dtype));

    rp_profile_take(&profile->model,
                    g_strdup_printf("%ux%u", network->model->hidden, network->model->blocks));
    rp_profile_take(&profile->dtype, g_strdup(rp_dtype_name(network->options.dtype)));
    rp_profile_take(&profile->accumulate, g_strdup(network->options.half_sums ? "fp16" : "fp32"));
    rp_profile_take(&profile->matmul,
                    g_strdup(rp_fp8_name(network->options.fp8.used, network->options.fp8.head)));
    rp_profile_take(&profile->attention, g_strdup(rp_attention_name(network->options.attention)));
    rp_profile_take(&profile->source, g_strdup("measured"));
    profile->head_chunk = network->options.head_chunk;
    if (options->matmul_library != NULL)
        rp_profile_set_matmuls(profile, options->matmul_library, options->matmul_variants,
                               options->n_matmul_variants);
    for (guint i = 0; i < network->n_layers; i++)
        set_layer(network, packed, profile, i);
    profile->constant_bytes = rp_network_constant_bytes(network);
    return profile;
}
