#include "core/transfer.h"

#include "core/units.h"

#define DEFAULT_ALIGNMENT 256
#define SMALL_PIECES_PER_WINDOW 8 /* neighbours are joined up to this part of an even share */

/* A piece of a tensor on its way to a window. */
typedef struct {
    RpSegment segment;
    guint window;
} Piece;

typedef struct {
    guint64 bytes;
    guint window;
} Load;

/* Adds a tensor: split if it is above @limit, joined to its neighbour if both are small. */
static void
add_pieces(GArray *pieces, guint layer, guint64 offset, guint64 bytes, guint64 limit)
{
    Piece *last = pieces->len > 0 ? &g_array_index(pieces, Piece, pieces->len - 1) : NULL;

    if (last != NULL && last->segment.layer == layer &&
        last->segment.offset + last->segment.bytes == offset &&
        last->segment.bytes + bytes <= limit / SMALL_PIECES_PER_WINDOW) {
        last->segment.bytes += bytes;
        return;
    }
    while (bytes > 0) {
        guint64 size = MIN(bytes, limit);
        Piece piece = {.segment = {.layer = layer, .offset = offset, .bytes = size}};

        g_array_append_val(pieces, piece);
        offset += size;
        bytes -= size;
    }
}

static guint64
layer_bytes(const RpLayer *layer, gboolean gradients)
{
    return gradients ? layer->gradient_bytes : layer->parameter_bytes;
}

static void
collect_pieces(GArray *pieces, const RpProfile *profile, RpInterval layers, gboolean gradients,
               guint64 limit)
{
    for (guint l = layers.first; l < layers.first + layers.count; l++) {
        const RpLayer *layer = &profile->layers[l];
        guint64 bytes = layer_bytes(layer, gradients);
        guint64 offset = 0;

        if (layer->n_tensors == 0 || bytes != layer->parameter_bytes) {
            add_pieces(pieces, l, 0, bytes, limit);
            continue;
        }
        for (guint t = 0; t < layer->n_tensors; t++) {
            add_pieces(pieces, l, offset, layer->tensor_bytes[t], limit);
            offset += layer->tensor_bytes[t];
        }
    }
}

static int
compare_place(const RpSegment *a, const RpSegment *b)
{
    if (a->layer != b->layer)
        return a->layer < b->layer ? -1 : 1;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    return 0;
}

static int
compare_falling_size(gconstpointer a, gconstpointer b)
{
    const Piece *x = a;
    const Piece *y = b;

    if (x->segment.bytes != y->segment.bytes)
        return x->segment.bytes > y->segment.bytes ? -1 : 1;
    return compare_place(&x->segment, &y->segment);
}

static int
compare_window(gconstpointer a, gconstpointer b)
{
    const Piece *x = a;
    const Piece *y = b;

    if (x->window != y->window)
        return x->window < y->window ? -1 : 1;
    return compare_place(&x->segment, &y->segment);
}

static gboolean
load_less(const Load *a, const Load *b)
{
    return a->bytes != b->bytes ? a->bytes < b->bytes : a->window < b->window;
}

/* Restores the heap after loads[0] has grown. */
static void
sift_down(Load *loads, guint n)
{
    guint i = 0;

    for (;;) {
        guint least = i;

        for (guint child = 2 * i + 1; child <= 2 * i + 2 && child < n; child++)
            if (load_less(&loads[child], &loads[least]))
                least = child;
        if (least == i)
            return;
        Load swap = loads[i];
        loads[i] = loads[least];
        loads[least] = swap;
        i = least;
    }
}

/* Sorted pieces to chunks: neighbours merged, empty windows dropped. */
static RpChunks
chunks_from_pieces(const GArray *pieces)
{
    RpChunks chunks = {0};
    guint n_segments = 0;

    chunks.first_segment = g_new(guint, (gsize)pieces->len + 1);
    chunks.chunk_bytes = g_new0(guint64, MAX(pieces->len, 1));
    chunks.segments = g_new(RpSegment, MAX(pieces->len, 1));
    for (guint i = 0; i < pieces->len; i++) {
        const Piece *piece = &g_array_index(pieces, Piece, i);
        gboolean opens = i == 0 || piece->window != g_array_index(pieces, Piece, i - 1).window;
        RpSegment *last = n_segments > 0 ? &chunks.segments[n_segments - 1] : NULL;

        if (opens)
            chunks.first_segment[chunks.n_chunks++] = n_segments;
        chunks.chunk_bytes[chunks.n_chunks - 1] += piece->segment.bytes;
        if (!opens && last->layer == piece->segment.layer &&
            last->offset + last->bytes == piece->segment.offset)
            last->bytes += piece->segment.bytes;
        else
            chunks.segments[n_segments++] = piece->segment;
    }
    chunks.first_segment[chunks.n_chunks] = n_segments;
    return chunks;
}

RpChunks
rp_chunks_pack(const RpProfile *profile, RpInterval layers, gboolean gradients, guint n_windows,
               guint64 alignment)
{
    guint64 total = 0;
    g_autoptr(GArray) pieces = g_array_new(FALSE, FALSE, sizeof(Piece));
    g_autofree Load *loads = g_new0(Load, n_windows);

    g_return_val_if_fail(n_windows >= 1, (RpChunks){0});
    if (alignment == 0)
        alignment = DEFAULT_ALIGNMENT;
    for (guint l = layers.first; l < layers.first + layers.count; l++)
        total += layer_bytes(&profile->layers[l], gradients);

    guint64 share = rp_align_up((total + n_windows - 1) / n_windows, alignment);

    collect_pieces(pieces, profile, layers, gradients, MAX(share, alignment));
    g_array_sort(pieces, compare_falling_size);
    for (guint w = 0; w < n_windows; w++)
        loads[w].window = w; /* all empty: in heap order already */
    for (guint i = 0; i < pieces->len; i++) {
        Piece *piece = &g_array_index(pieces, Piece, i);

        piece->window = loads[0].window;
        loads[0].bytes += piece->segment.bytes;
        sift_down(loads, n_windows);
    }
    g_array_sort(pieces, compare_window);
    return chunks_from_pieces(pieces);
}

RpChunks
rp_chunks_whole(const RpProfile *profile, RpInterval layers, gboolean gradients)
{
    g_autoptr(GArray) pieces = g_array_new(FALSE, FALSE, sizeof(Piece));

    collect_pieces(pieces, profile, layers, gradients, G_MAXUINT64);
    return chunks_from_pieces(pieces);
}
