#include "exec/device/rehearsal.h"

#include "core/base/units.h"

#define ALIGNMENT 256

/* Memory that is handed out front to back; beyond @bytes it only counts. */
typedef struct {
    guintptr memory;
    guint64 bytes, used;
} Space;

static void *
take(Space *space, guint64 bytes)
{
    void *at = (void *)(space->memory + space->used);

    space->used += rp_align_up(bytes, ALIGNMENT);
    return at;
}

/* The call but for its output; @d_input: the backward's. */
static RpStageCall
make_call(const RpNetwork *network, const RpProfile *profile, guint layer, Space *space,
          void **d_input)
{
    const RpLayer *sizes = &profile->layers[layer];
    const RpLayerLayout *layout = rp_network_layout(network, layer);
    const guint64 hidden = rp_network_hidden_bytes(network);

    *d_input = layer > 0 ? take(space, hidden) : NULL;
    return (RpStageCall){
        .layers = {layer, 1},
        .parameters = take(space, layout->bytes),
        .input = take(space, MAX(hidden, sizes->input_bytes)),
        .gradient = take(space, hidden),
        .output = take(space, hidden),
        .sums = take(space, layout->elements * sizeof(float)),
        .workspace =
            take(space, sizes->activation_bytes +
                            profile->layers[profile->n_layers - 1].activation_bytes +
                            MAX(sizes->forward_workspace_bytes, sizes->backward_workspace_bytes)),
        .targets = take(space, rp_profile_micro_batch_tokens(profile) * sizeof(gint32)),
        .loss = take(space, 2 * sizeof(double)),
        .scale = 1,
        .drops = TRUE};
}

static void
rehearse_layer(const RpNetwork *network, const RpProfile *profile, guint layer,
               RpKernelStream *stream, const void *constants, Space space)
{
    const gboolean head = profile->layers[layer].kind == RP_LAYER_HEAD;
    const guint boundary = layer + 1;
    void *d_input;
    RpStageCall call = make_call(network, profile, layer, &space, &d_input);
    const void *upload = take(&space, profile->layers[layer].upload_bytes);

    if (space.used > space.bytes)
        return;
    call.stream = stream;
    call.constants = constants;
    call.boundaries = &boundary;
    call.n_boundaries = head ? 0 : 1;
    rp_network_kernels(network)->fill(stream, &(RpFillArgs){.dtype = RP_DTYPE_FP32,
                                                            .n = space.used / sizeof(float),
                                                            .x = (void *)space.memory});
    if (profile->layers[layer].upload_bytes > 0)
        rp_network_expand(network, stream, call.layers, upload, (RpResidents){0},
                          (void *)call.parameters);
    rp_network_forward(network, &call);
    if (!head)
        rp_network_recompute(network, &call);
    call.output = d_input;
    rp_network_backward(network, &call);
}

void
rp_rehearse(const RpNetwork *network, RpKernelStream *stream, const void *constants, void *memory,
            guint64 bytes)
{
    g_autoptr(RpProfile) profile = rp_network_profile(network);

    for (guint l = 0; l < profile->n_layers; l++)
        if (rp_network_layer_class(network, l) == l)
            rehearse_layer(network, profile, l, stream, constants,
                           (Space){.memory = (guintptr)memory, .bytes = bytes});
}
