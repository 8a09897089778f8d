/**
 * Whether all weights are finite in the type of the run.
 *
 * A value rounds to infinity in a type if its magnitude is at least half a step above the largest
 * finite one. Magnitudes compare as their bits do, so that one comparison of integers a value is
 * enough, and a block of values needs no branch:
 *
 *   bits of fp32     0 | 01111111 | 11…1        largest finite
 *                    0 | 11111111 | 00…0        infinity, then NaNs
 *   limits           fp32 0x7f800000   bf16 0x7f7f8000   fp16 0x477ff000 (65520)
 *
 * Several threads take pieces of tensors in rotation; the first bad value in the order of the list
 * is reported, whichever thread finds one first.
 */
#include "core/base/threads.h"
#include "exec/model/weights.h"

#include <math.h>
#include <string.h>

#include "core/base/quote.h"
#include "exec/system/pool.h"

#define PIECE_ELEMENTS ((guint64)1 << 20)
#define BLOCK_ELEMENTS 256

typedef struct {
    guint weight;
    guint64 first;
    guint64 n;
} Piece;

typedef struct {
    const RpWeights *weights;
    gint32 limit32; /* limit for fp32 bits without the sign */
    RpDtype dtype;
    GArray *pieces; /* (element-type Piece) */
} Search;

/* The least bits, without the sign, that are or become infinite. */
static guint32
infinite_bits(RpDtype dtype)
{
    switch (dtype) {
    case RP_DTYPE_FP32:
        return 0x7f800000;
    case RP_DTYPE_BF16:
        return 0x7f7f8000;
    case RP_DTYPE_FP16:
        return 0x477ff000;
    case RP_DTYPE_E4M3:
    case RP_DTYPE_E5M2:
        break;
    }
    g_assert_not_reached();
}

/* The same for values of @source, which has 16 bits. Its bf16 is the upper half of fp32. */
static guint16
infinite_bits16(RpDtype source, RpDtype dtype)
{
    if (source == RP_DTYPE_FP16)
        return 0x7c00; /* finite values are finite in all types */
    return (guint16)((infinite_bits(dtype) + 0xffff) >> 16);
}

/* Whether one of @n values is bad. Copied to a block first: tensors may stand at odd places. */
static gboolean
has_bad32(const guint8 *values, guint64 n, gint32 limit)
{
    gint32 block[BLOCK_ELEMENTS] = {0};
    gint32 bad = 0;

    for (guint64 at = 0; at < n && !bad; at += BLOCK_ELEMENTS) {
        gsize left = (gsize)MIN(BLOCK_ELEMENTS, n - at);
        if (left < BLOCK_ELEMENTS)
            memset(block, 0, sizeof block);
        memcpy(block, values + at * sizeof *block, left * sizeof *block);
        for (gsize i = 0; i < BLOCK_ELEMENTS; i++)
            bad |= (block[i] & 0x7fffffff) >= limit;
    }
    return bad;
}

static gboolean
has_bad16(const guint8 *values, guint64 n, gint16 limit)
{
    gint16 block[BLOCK_ELEMENTS] = {0};
    gint16 bad = 0;

    for (guint64 at = 0; at < n && !bad; at += BLOCK_ELEMENTS) {
        gsize left = (gsize)MIN(BLOCK_ELEMENTS, n - at);
        if (left < BLOCK_ELEMENTS)
            memset(block, 0, sizeof block);
        memcpy(block, values + at * sizeof *block, left * sizeof *block);
        for (gsize i = 0; i < BLOCK_ELEMENTS; i++)
            bad |= (gint16)((gint16)(block[i] & 0x7fff) >= limit ? -1 : 0);
    }
    return bad != 0;
}

/* Looks for a bad value in a packed weight. */
static gboolean
has_bad_read(const Search *search, guint weight, guint64 first, guint64 n)
{
    float block[BLOCK_ELEMENTS];
    gboolean bad = FALSE;

    for (guint64 at = 0; at < n && !bad; at += BLOCK_ELEMENTS) {
        const gsize left = (gsize)MIN(BLOCK_ELEMENTS, n - at);

        rp_weights_read(search->weights, weight, first + at, block, left);
        bad = has_bad32((const guint8 *)block, left, search->limit32);
    }
    return bad;
}

static gboolean
has_bad(const Search *search, guint weight, guint64 first, guint64 n)
{
    const RpWeightOrigin origin = rp_weights_origin(search->weights, weight);
    const RpSafetensor *tensor = origin.tensor;

    if (tensor == NULL || origin.map != NULL)
        return has_bad_read(search, weight, first, n);
    const guint8 *values = (const guint8 *)tensor->data + first * rp_dtype_size(tensor->dtype);

    return tensor->dtype == RP_DTYPE_FP32
               ? has_bad32(values, n, search->limit32)
               : has_bad16(values, n, (gint16)infinite_bits16(tensor->dtype, search->dtype));
}

/* @trained: of weights with an optimizer's state alone */
static GArray *
divide(const RpWeights *weights, gboolean trained)
{
    GArray *pieces = g_array_new(FALSE, FALSE, sizeof(Piece));

    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        if (weight->is_packed || (trained && !rp_weight_has_state(weight)) ||
            (rp_weights_source(weights, i) == NULL && rp_weights_packed(weights, i) == NULL))
            continue; /* looked at as a whole; an adapter that begins as new ones do */
        for (guint64 at = 0; at < weight->elements && !weight->tied; at += PIECE_ELEMENTS) {
            Piece piece = {i, at, MIN(PIECE_ELEMENTS, weight->elements - at)};
            g_array_append_val(pieces, piece);
        }
    }
    return pieces;
}

/* RpPieceFunc. @data: Search */
static gboolean
check_piece(guint i, gpointer data, GError **error)
{
    const Search *search = data;
    const Piece *piece = &g_array_index(search->pieces, Piece, i);
    const RpWeight *weight = rp_weights_nth(search->weights, piece->weight);
    const RpLowbitSource *packed = rp_weights_packed(search->weights, piece->weight);
    guint64 begin = weight->offset;
    const RpSafetensor *tensor = packed != NULL ? rp_lowbit_source_piece(packed, &begin)->tensor
                                                : rp_weights_source(search->weights, piece->weight);
    guint64 at = piece->first;
    float value;

    if (!has_bad(search, piece->weight, at, piece->n))
        return TRUE;
    while (!has_bad(search, piece->weight, at, 1))
        at++;
    rp_weights_read(search->weights, piece->weight, at, &value, 1);
    g_autofree char *quoted = rp_quote(tensor->name);
    g_autofree char *place = weight->rank == 2
                                 ? g_strdup_printf("%" G_GUINT64_FORMAT ", %" G_GUINT64_FORMAT,
                                                   at / weight->shape[1], at % weight->shape[1])
                                 : g_strdup_printf("%" G_GUINT64_FORMAT, at);
    return rp_fail_in(error, tensor->file, RP_WEIGHTS_ERROR, RP_WEIGHTS_ERROR_VALUE,
                      "tensor %s: expected finite values in %s, found %.9g%s at [%s]", quoted,
                      rp_dtype_name(search->dtype), (double)value,
                      isfinite(value) ? ", which is infinite there," : "", place);
}

/* Weights that stay packed, one after the other. */
static gboolean
check_packed(const RpWeights *weights, RpDtype dtype, GError **error)
{
    g_autoptr(RpPool) pool = NULL;
    gboolean finite = TRUE;

    if (!rp_weights_is_packed(weights))
        return TRUE;
    pool = rp_pool_new(&(RpPoolOptions){0}, error);
    if (pool == NULL)
        return FALSE;
    for (guint i = 0; i < rp_weights_count(weights) && finite; i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        const RpLowbitSource *source = rp_weights_packed(weights, i);
        guint64 at = weight->offset;

        if (!weight->is_packed || (at > 0 && source->n_pieces == 0))
            continue;
        source = rp_lowbit_source_piece(source, &at);
        const RpLowbitShape shape = rp_lowbit_shape_of(source->shape, source->rank);
        const gsize bytes = rp_lowbit_layout(source->format, shape).total;
        void *packed = g_aligned_alloc(1, bytes, RP_LOWBIT_ALIGNMENT);

        rp_lowbit_source_load(source, packed, pool);
        finite = rp_lowbit_source_check(source, packed, dtype, pool, error);
        g_aligned_free(packed);
    }
    return finite;
}

/* Values that are read as they stand in files. */
static gboolean
check_pieces(const RpWeights *weights, gboolean trained, RpDtype dtype, GError **error)
{
    g_autoptr(GArray) pieces = divide(weights, trained);
    Search search = {.weights = weights,
                     .limit32 = (gint32)infinite_bits(dtype),
                     .dtype = dtype,
                     .pieces = pieces};

    return rp_run_pieces(pieces->len, check_piece, &search, error);
}

gboolean
rp_weights_check_finite(const RpWeights *weights, RpDtype dtype, GError **error)
{
    g_return_val_if_fail(weights && (guint)dtype < RP_N_DTYPES, FALSE);
    g_return_val_if_fail(rp_weights_source(weights, 0), FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    return check_pieces(weights, FALSE, dtype, error) && check_packed(weights, dtype, error);
}

gboolean
rp_weights_check_finite_trained(const RpWeights *weights, GError **error)
{
    g_return_val_if_fail(weights, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    return check_pieces(weights, TRUE, RP_DTYPE_FP32, error);
}
