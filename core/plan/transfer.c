#include "core/plan/transfer.h"

#include "core/base/units.h"

#define DEFAULT_ALIGNMENT 256

static guint64
layer_bytes(const RpProfile *profile, guint layer, RpChunksOf of)
{
    switch (of) {
    case RP_CHUNKS_PARAMETERS:
        return rp_layer_upload_bytes(&profile->layers[layer]);
    case RP_CHUNKS_GRADIENTS:
        return profile->layers[layer].gradient_bytes;
    case RP_CHUNKS_SUMS:
        return rp_profile_sum_bytes(profile, profile->layers[layer].gradient_bytes);
    }
    g_assert_not_reached();
}

/* Bytes of the stage before the end of chunk @c of @n; rounds down. */
static guint64
end_of_chunk(guint64 total, guint c, guint n)
{
    const guint64 share = total / n;

    return share * (c + 1) + total % n * (c + 1) / n;
}

/* One segment a layer that is in it; nothing is appended for a chunk without bytes. */
static void
append_chunk(RpChunks *chunks, const GArray *segments, guint first_segment)
{
    guint64 bytes = 0;

    for (guint i = first_segment; i < segments->len; i++)
        bytes += g_array_index(segments, RpSegment, i).bytes;
    if (bytes == 0)
        return;
    chunks->chunk_bytes[chunks->n_chunks++] = bytes;
    chunks->first_segment[chunks->n_chunks] = segments->len;
}

RpChunks
rp_chunks_pack(const RpProfile *profile, RpInterval layers, RpChunksOf of, guint n_windows,
               guint64 alignment)
{
    g_return_val_if_fail(n_windows >= 1, (RpChunks){0});

    const guint end_layer = layers.first + layers.count;
    RpChunks chunks = {.first_segment = g_new0(guint, (gsize)n_windows + 1),
                       .chunk_bytes = g_new0(guint64, n_windows)};
    GArray *segments = g_array_new(FALSE, FALSE, sizeof(RpSegment));
    guint64 total = 0, before = 0, offset = 0; /* before: bytes of the layers before @l */
    guint l = layers.first;

    for (guint i = layers.first; i < end_layer; i++)
        total += layer_bytes(profile, i, of);
    for (guint c = 0; c < n_windows; c++) {
        const guint64 end = end_of_chunk(total, c, n_windows);
        const guint first_segment = segments->len;

        while (l < end_layer && before + offset < end) {
            const guint64 bytes = layer_bytes(profile, l, of);
            const guint64 to = MIN(
                bytes, rp_align_up(end - before, alignment != 0 ? alignment : DEFAULT_ALIGNMENT));
            const RpSegment segment = {.layer = l, .offset = offset, .bytes = to - offset};

            if (segment.bytes > 0)
                g_array_append_val(segments, segment);
            offset = to;
            if (offset < bytes)
                break;
            before += bytes;
            offset = 0;
            l++;
        }
        append_chunk(&chunks, segments, first_segment);
    }
    chunks.segments = (RpSegment *)(void *)g_array_free(segments, FALSE);
    return chunks;
}

RpChunks
rp_chunks_by_layer(const RpProfile *profile, RpInterval layers, RpChunksOf of, gboolean downward)
{
    RpChunks chunks = {.first_segment = g_new0(guint, (gsize)layers.count + 1),
                       .chunk_bytes = g_new0(guint64, layers.count)};
    GArray *segments = g_array_new(FALSE, FALSE, sizeof(RpSegment));

    for (guint i = 0; i < layers.count; i++) {
        const guint layer = layers.first + (downward ? layers.count - 1 - i : i);
        const RpSegment segment = {.layer = layer, .bytes = layer_bytes(profile, layer, of)};

        if (segment.bytes == 0)
            continue;
        g_array_append_val(segments, segment);
        append_chunk(&chunks, segments, segments->len - 1);
    }
    chunks.segments = (RpSegment *)(void *)g_array_free(segments, FALSE);
    return chunks;
}
