/**
 * Hashes of a base. One is of names, shapes and types of its tensors, and of all of their bytes; the other
 * does not see the type, so that copies in fp32, bf16 and (within its range) fp16 are one base. Several
 * threads take pieces in turn, and read each once:
 *
 *   piece    XXH64 of 4 MiB of a tensor, and of each 2^20 of its values, rounded to bf16
 *   layer    SHA-256 of name, type and shape of each of its tensors, and of the XXH64 of its pieces
 *   base     SHA-256 of its layers
 *   values   of each layer, SHA-256 of names, shapes, and the XXH64 of values; packed tensors as they are
 *
 * A piece that changed has the same XXH64 once in 2^64 times; it is no signature against somebody who
 * means to. Tensors count by the names that the model has for them, so that experts in one tensor are
 * the same base as experts one by one.
 */
#include <string.h>

#include "core/base/hash.h"
#include "core/base/threads.h"
#include "exec/model/weights-private.h"

#define PIECE_BYTES ((gsize)4 << 20)
#define PIECE_VALUES ((gsize)1 << 20)
#define LAYER_DIGITS 16 /* digits of a layer's SHA-256, to show which layers differ */

typedef struct {
    guint weight;
    const guint8 *bytes; /* NULL: they are made */
    gsize at, n;         /* bytes of the tensor */
    guint64 hash;        /* little-endian, as these: */
    guint64 values[PIECE_BYTES / PIECE_VALUES / sizeof(guint16)];
    const RpSafetensor *tensor;
} Piece;

typedef struct {
    const RpWeights *weights;
    GArray *pieces; /* (element-type Piece) */
} Hashing;

/* The bytes that a file would have. */
static void
make_bytes(const RpWeights *weights, const Piece *piece, guint8 *bytes)
{
    const gsize size = rp_dtype_size(weights->dtype);
    float values[1024];

    for (gsize done = 0, some; done < piece->n; done += some * size) {
        some = MIN((piece->n - done) / size, G_N_ELEMENTS(values));
        rp_weights_read(weights, piece->weight, (piece->at + done) / size, values, some);
        rp_dtype_from_float(weights->dtype, values, bytes + done, some);
    }
}

/* Parts of a packed weight are bytes. */
static gboolean
has_values(const RpWeights *weights, guint index)
{
    return rp_weights_packed(weights, index) == NULL;
}

static void
hash_values(Piece *piece, const guint8 *bytes)
{
    const RpDtype dtype = piece->tensor->dtype;
    g_autofree guint16 *rounded = dtype != RP_DTYPE_BF16 ? g_new(guint16, PIECE_VALUES) : NULL;
    const gsize size = rp_dtype_size(dtype);
    float values[1024];

    for (gsize at = 0, k = 0; at < piece->n / size; at += PIECE_VALUES, k++) {
        const gsize n = MIN(piece->n / size - at, PIECE_VALUES);

        for (gsize done = 0, some; dtype != RP_DTYPE_BF16 && done < n; done += some) {
            some = MIN(n - done, G_N_ELEMENTS(values));
            rp_dtype_to_float(dtype, bytes + (at + done) * size, values, some);
            rp_dtype_from_float(RP_DTYPE_BF16, values, rounded + done, some);
        }
        piece->values[k] = GUINT64_TO_LE(rp_hash64(
            dtype == RP_DTYPE_BF16 ? (const void *)(bytes + at * size) : (const void *)rounded,
            n * sizeof *rounded, 0));
    }
}

/* RpPieceFunc. @data: Hashing */
static gboolean
hash_piece(guint i, gpointer data, GError **error)
{
    const Hashing *hashing = data;
    Piece *piece = &g_array_index(hashing->pieces, Piece, i);
    g_autofree guint8 *made = piece->bytes == NULL ? g_malloc(piece->n) : NULL;
    const guint8 *bytes = made != NULL ? made : piece->bytes;

    if (made != NULL)
        make_bytes(hashing->weights, piece, made);
    piece->hash = GUINT64_TO_LE(rp_hash64(bytes, piece->n, 0));
    if (has_values(hashing->weights, piece->weight))
        hash_values(piece, bytes);
    return TRUE;
}

/* Lists the tensors that hold a weight of the base: one, or the parts of a packed one. In a packed
 * stack the first piece stands for all. Returns: their number */
static guint
tensors_of(const RpWeights *weights, guint index, const RpSafetensor *tensors[RP_N_LOWBIT_PARTS])
{
    const RpWeight *weight = rp_weights_nth(weights, index);
    const RpLowbitSource *packed = rp_weights_packed(weights, index);
    guint64 at = weight->offset;
    guint n = 0;

    if (weight->tied || rp_weight_is_adapter(weight->kind) ||
        (packed != NULL && at > 0 && packed->n_pieces == 0))
        return 0;
    if (packed != NULL)
        packed = rp_lowbit_source_piece(packed, &at);
    if (packed == NULL)
        tensors[n++] = weights->origins[index].base;
    for (guint part = 0; packed != NULL && part < RP_N_LOWBIT_PARTS; part++)
        if (packed->parts[part] != NULL)
            tensors[n++] = packed->parts[part];
    return n;
}

static void
add_pieces(GArray *pieces, guint weight, const RpSafetensor *tensor)
{
    const guint8 *bytes = tensor->data;

    for (gsize at = 0; at < tensor->bytes; at += PIECE_BYTES) {
        const Piece piece = {.weight = weight,
                             .bytes = bytes != NULL ? bytes + at : NULL,
                             .at = at,
                             .n = MIN(PIECE_BYTES, tensor->bytes - at),
                             .tensor = tensor};

        g_array_append_val(pieces, piece);
    }
}

static void
add_text(GChecksum *checksum, const char *text)
{
    g_checksum_update(checksum, (const guchar *)text, (gssize)strlen(text) + 1);
}

/* @bytes, @values: of its layer */
static void
add_tensor(GChecksum *bytes, GChecksum *values, const RpWeight *weight, const RpSafetensor *tensor,
           gboolean valued, const Piece **piece)
{
    g_autofree char *shape =
        rp_safetensor_describe(tensor->dtype_name, tensor->shape, tensor->rank);
    g_autofree char *bare =
        rp_safetensor_describe(valued ? "" : tensor->dtype_name, tensor->shape, tensor->rank);

    add_text(bytes, weight->name);
    add_text(bytes, shape);
    add_text(values, weight->name);
    add_text(values, bare);
    for (gsize at = 0; at < tensor->bytes; at += PIECE_BYTES, (*piece)++) {
        const gsize n = valued ? (*piece)->n / rp_dtype_size(tensor->dtype) : 0;

        g_checksum_update(bytes, (const guchar *)&(*piece)->hash, sizeof(*piece)->hash);
        if (!valued)
            g_checksum_update(values, (const guchar *)&(*piece)->hash, sizeof(*piece)->hash);
        for (gsize k = 0; k * PIECE_VALUES < n; k++)
            g_checksum_update(values, (const guchar *)&(*piece)->values[k],
                              sizeof(*piece)->values[k]);
    }
}

/* Makes the hashes of the base and of all layers from those of their pieces. */
static void
join(RpWeights *weights, const Piece *piece)
{
    g_autoptr(GChecksum) whole = g_checksum_new(G_CHECKSUM_SHA256);
    g_autoptr(GString) layers = g_string_new(NULL);

    for (guint layer = 0; layer < rp_weights_n_layers(weights); layer++) {
        g_autoptr(GChecksum) bytes = g_checksum_new(G_CHECKSUM_SHA256);
        g_autoptr(GChecksum) values = g_checksum_new(G_CHECKSUM_SHA256);
        guint first;
        const guint n = rp_weights_layer(weights, layer, &first);

        for (guint i = first; i < first + n; i++) {
            const RpSafetensor *tensors[RP_N_LOWBIT_PARTS];
            const guint parts = tensors_of(weights, i, tensors);

            for (guint part = 0; part < parts; part++)
                add_tensor(bytes, values, rp_weights_nth(weights, i), tensors[part],
                           has_values(weights, i), &piece);
        }
        g_checksum_update(whole, (const guchar *)g_checksum_get_string(bytes), -1);
        g_string_append_printf(layers, "%s%.*s", layer > 0 ? " " : "", LAYER_DIGITS,
                               g_checksum_get_string(values));
    }
    weights->base_hash = g_strdup(g_checksum_get_string(whole));
    weights->base_values = g_string_free(g_steal_pointer(&layers), FALSE);
}

/* Computes the hash on first use: not every run needs it. */
static void
hash_base(RpWeights *weights)
{
    g_autoptr(GArray) pieces = g_array_new(FALSE, FALSE, sizeof(Piece));
    Hashing hashing = {.weights = weights, .pieces = pieces};

    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpSafetensor *tensors[RP_N_LOWBIT_PARTS];
        const guint parts = tensors_of(weights, i, tensors);

        for (guint part = 0; part < parts; part++)
            add_pieces(pieces, i, tensors[part]);
    }
    (void)rp_run_pieces(pieces->len, hash_piece, &hashing, NULL);
    join(weights, (const Piece *)(void *)pieces->data);
}

const char *
rp_weights_model_hash(const RpWeights *weights)
{
    RpWeights *own = (RpWeights *)(guintptr)weights;

    g_return_val_if_fail(weights != NULL, NULL);
    g_mutex_lock(&own->base_lock);
    if (own->base_hash == NULL && own->origins != NULL)
        hash_base(own);
    g_mutex_unlock(&own->base_lock);
    return weights->base_hash;
}

const char *
rp_weights_base_hash(const RpWeights *weights)
{
    g_return_val_if_fail(weights != NULL, NULL);
    return weights->lora.rank > 0 ? rp_weights_model_hash(weights) : NULL;
}

const char *
rp_weights_base_values(const RpWeights *weights)
{
    return rp_weights_base_hash(weights) != NULL ? weights->base_values : NULL;
}
