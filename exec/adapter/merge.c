#include "core/base/threads.h"
#include "exec/adapter/adapter.h"

/* Elements of rows that are made and written at a time, or one row. */
#define PIECE_ELEMENTS ((guint64)1 << 20)

/* Rows of a matrix being made: of one matrix, of one expert, or of its [in,out]. */
typedef struct {
    const RpWeights *weights;
    guint index;         /* W's number */
    const float *a;      /* [r,in]; NULL: no adapter */
    const float *b;      /* [out,r] */
    gboolean transposed; /* rows are inputs */
    guint64 rank, columns;
    guint64 n_rows; /* rows of the matrix */
    float scale;
    guint64 first, n; /* rows */
    guint64 adapted;  /* the matrix's first row */
    RpDtype dtype;    /* type in the file */
    gboolean packed;  /* W is */
    float *wide;      /* [n,columns] */
    guint8 *rounded;  /* the same, as it is written */
} Rows;

/* sum[i] of B A, in the order of the rank. */
static void
add_product(const Rows *rows, guint64 row, float *sum)
{
    for (guint64 k = 0; k < rows->rank; k++)
        if (rows->transposed) {
            const float a = rows->a[k * (rows->n_rows) + row];

            for (guint64 i = 0; i < rows->columns; i++)
                sum[i] += rows->b[i * rows->rank + k] * a;
        } else {
            const float b = rows->b[row * rows->rank + k];
            const float *a = rows->a + k * rows->columns;

            for (guint64 i = 0; i < rows->columns; i++)
                sum[i] += b * a[i];
        }
}

static gboolean
make_row(guint row, gpointer data, GError **error)
{
    const Rows *rows = data;
    const guint64 at = (rows->first + row) * rows->columns;
    float *wide = rows->wide + row * rows->columns;
    guint8 *rounded = rows->rounded + row * rows->columns * rp_dtype_size(rows->dtype);
    g_autofree float *sum = rows->a != NULL ? g_new0(float, rows->columns) : NULL;

    rp_weights_read(rows->weights, rows->index, at, wide, rows->columns);
    if (sum != NULL && rows->packed) { /* training adds to the expanded values, in 16 bits */
        rp_dtype_from_float(rows->dtype, wide, rounded, rows->columns);
        rp_dtype_to_float(rows->dtype, rounded, wide, rows->columns);
    }
    if (sum != NULL)
        add_product(rows, rows->first + row - rows->adapted, sum);
    for (guint64 i = 0; sum != NULL && i < rows->columns; i++)
        wide[i] += rows->scale * sum[i];
    rp_dtype_from_float(rows->dtype, wide, rounded, rows->columns);
    return TRUE;
}

/* A's, or B's, part of an expert, as fp32. (transfer full) */
static float *
read_adapter(const RpWeights *weights, guint index, guint64 expert)
{
    const RpWeight *adapter = rp_weights_nth(weights, index);
    const guint64 n = adapter->shape[adapter->rank - 2] * adapter->shape[adapter->rank - 1];
    float *values = g_new(float, n);

    rp_weights_read(weights, index, expert * n, values, n);
    return values;
}

typedef struct {
    const RpWeights *weights;
    const RpMergeOptions *options;
    RpSafetensorsWriter *writer;
    float *wide;
    guint8 *rounded;
    guint64 done, total;
} Merge;

/* Rows from @rows->first to @end. */
static gboolean
write_rows(Merge *merge, Rows *rows, guint64 end, guint tensor, GError **error)
{
    const guint64 step = MAX(1, PIECE_ELEMENTS / rows->columns);
    const gboolean slow = rows->a != NULL || rows->packed;

    for (; rows->first < end; rows->first += step) {
        rows->n = MIN(step, end - rows->first);
        if (slow)
            (void)rp_run_pieces((guint)rows->n, make_row, rows, NULL);
        else
            for (guint row = 0; row < rows->n; row++)
                (void)make_row(row, rows, NULL);
        if (!rp_safetensors_writer_write(
                merge->writer, tensor, rows->rounded,
                (gsize)(rows->n * rows->columns) * rp_dtype_size(rows->dtype), error))
            return FALSE;
        merge->done += rows->n * rows->columns;
        if (merge->options->progress != NULL)
            merge->options->progress(merge->done, merge->total, merge->options->user_data);
    }
    return TRUE;
}

/* A weight is one matrix, a piece of a stack, or a stack of [in,out]: of each expert, its rows. */
static gboolean
write_weight(Merge *merge, guint index, guint tensor, GError **error)
{
    const RpWeight *weight = rp_weights_nth(merge->weights, index);
    const guint64 columns = weight->rank == 1 ? 1 : weight->shape[weight->rank - 1];
    const guint64 experts = weight->rank == RP_WEIGHT_MAX_RANK ? weight->shape[0] : 1;
    const guint64 n_rows = weight->elements / columns / experts;
    const guint64 of_expert = weight->stack[1] * weight->stack[2];
    const int a = rp_weights_find(merge->weights, weight->layer,
                                  rp_weight_adapter(weight->kind, RP_ADAPTER_A));
    const RpWeight *thin = a >= 0 ? rp_weights_nth(merge->weights, (guint)a) : NULL;
    Rows rows = {.weights = merge->weights,
                 .index = index,
                 .transposed = weight->transposed,
                 .rank = thin != NULL ? thin->shape[thin->rank - 2] : 0,
                 .columns = columns,
                 .n_rows = n_rows,
                 .scale = thin != NULL ? (float)thin->scale : 0,
                 .dtype = rp_weights_dtype(merge->weights),
                 .packed = rp_weights_packed(merge->weights, index) != NULL,
                 .wide = merge->wide,
                 .rounded = merge->rounded};

    for (guint64 e = 0; e < experts; e++) {
        const guint64 expert = of_expert > 0 ? weight->offset / of_expert : e;
        const guint64 before = of_expert > 0 ? weight->offset % of_expert / columns : 0;
        g_autofree float *a_values =
            thin != NULL ? read_adapter(merge->weights, (guint)a, expert) : NULL;
        g_autofree float *b_values =
            thin != NULL ? read_adapter(merge->weights, (guint)a + 1, expert) : NULL;

        rows.a = a_values;
        rows.b = thin != NULL ? b_values + before * rows.rank : NULL;
        rows.adapted = rows.first = e * n_rows;
        if (!write_rows(merge, &rows, (e + 1) * n_rows, tensor, error))
            return FALSE;
    }
    return TRUE;
}

static gboolean
is_written(const RpWeight *weight)
{
    return !weight->tied && !rp_weight_is_adapter(weight->kind);
}

gboolean
rp_merge_write(const RpWeights *weights, const char *directory, const RpMergeOptions *options,
               GError **error)
{
    g_autofree char *path = g_build_filename(directory, "model.safetensors", NULL);
    g_autoptr(RpSafetensorsWriter) writer =
        rp_safetensors_writer_new(path, options->max_shard_bytes);
    g_autofree float *wide = NULL;
    g_autofree guint8 *rounded = NULL;
    Merge merge = {.weights = weights, .options = options, .writer = writer};
    guint64 most = PIECE_ELEMENTS;
    guint tensor = 0;

    g_return_val_if_fail(rp_weights_lora(weights) && rp_weights_source(weights, 0), FALSE);
    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);

        if (!is_written(weight))
            continue;
        (void)rp_safetensors_writer_add(writer, weight->name, rp_weights_dtype(weights),
                                        weight->shape, weight->rank);
        merge.total += weight->elements;
        most = MAX(most, weight->rank == 1 ? 1 : weight->shape[weight->rank - 1]);
    }
    const guint others = rp_weights_add_others(rp_weights_model(weights), options->base, writer);

    if (!rp_safetensors_writer_begin(writer, error))
        return FALSE;
    merge.wide = wide = g_new(float, most);
    merge.rounded = rounded = g_malloc(most * sizeof(float));
    for (guint i = 0; i < rp_weights_count(weights); i++)
        if (is_written(rp_weights_nth(weights, i)) && !write_weight(&merge, i, tensor++, error))
            return FALSE;
    return rp_weights_write_others(rp_weights_model(weights), options->base, others, writer,
                                   error) &&
           rp_safetensors_writer_finish(writer, error);
}
