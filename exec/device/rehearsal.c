#include "exec/device/rehearsal.h"

#include "core/base/units.h"

#define ALIGNMENT 256

/* Memory that is handed out front to back; beyond @bytes it only counts. */
typedef struct {
    guintptr memory;
    guint64 bytes, used;
} Room;

static void *
take(Room *room, guint64 bytes)
{
    void *at = (void *)(room->memory + room->used);

    room->used += rp_align_up(bytes, ALIGNMENT);
    return at;
}

/* The call but for its output; @d_input: the backward's. */
static RpStageCall
make_call(const RpNetwork *network, const RpProfile *profile, guint layer, Room *room,
          void **d_input)
{
    const RpLayer *sizes = &profile->layers[layer];
    const RpLayerLayout *layout = rp_network_layout(network, layer);
    const guint64 hidden = rp_network_hidden_bytes(network);

    *d_input = layer > 0 ? take(room, hidden) : NULL;
    return (RpStageCall){
        .layers = {layer, 1},
        .parameters = take(room, layout->bytes),
        .input = take(room, MAX(hidden, sizes->input_bytes)),
        .gradient = take(room, hidden),
        .output = take(room, hidden),
        .sums = take(room, layout->elements * sizeof(float)),
        .workspace =
            take(room, sizes->activation_bytes +
                           profile->layers[profile->n_layers - 1].activation_bytes +
                           MAX(sizes->forward_workspace_bytes, sizes->backward_workspace_bytes)),
        .targets = take(room, rp_profile_micro_batch_tokens(profile) * sizeof(gint32)),
        .loss = take(room, 2 * sizeof(double)),
        .scale = 1,
        .drops = TRUE};
}

static void
rehearse_layer(const RpNetwork *network, const RpProfile *profile, guint layer,
               RpKernelStream *stream, const void *constants, Room room)
{
    const gboolean head = profile->layers[layer].kind == RP_LAYER_HEAD;
    const guint boundary = layer + 1;
    void *d_input;
    RpStageCall call = make_call(network, profile, layer, &room, &d_input);
    const void *upload = take(&room, profile->layers[layer].upload_bytes);

    if (room.used > room.bytes)
        return;
    call.stream = stream;
    call.constants = constants;
    call.boundaries = &boundary;
    call.n_boundaries = head ? 0 : 1;
    rp_network_kernels(network)->fill(stream, &(RpFillArgs){.dtype = RP_DTYPE_FP32,
                                                            .n = room.used / sizeof(float),
                                                            .x = (void *)room.memory});
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
                           (Room){.memory = (guintptr)memory, .bytes = bytes});
}
