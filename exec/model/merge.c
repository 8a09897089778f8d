#include "exec/model/merge.h"

#include "exec/system/threads.h"

#include <stdatomic.h>

/* Elements of rows that are made and written at a time, or one row. */
#define PIECE_ELEMENTS ((guint64)1 << 20)

/* Rows of a matrix being made. */
typedef struct {
    const RpWeights *weights;
    guint index;    /* of W */
    const float *a; /* [r,in]; NULL: no adapter */
    const float *b; /* [out,r] */
    guint64 rank, columns;
    float scale;
    guint64 first, n; /* rows */
    RpDtype dtype;    /* of what is written */
    float *wide;      /* [n,columns] */
    guint8 *rounded;  /* the same, as it is written */
    atomic_uint next; /* row */
} Rows;

static void
make_row(const Rows *rows, guint64 row)
{
    const guint64 at = (rows->first + row) * rows->columns;
    float *wide = rows->wide + row * rows->columns;
    g_autofree float *sum = g_new0(float, rows->columns);

    rp_weights_read(rows->weights, rows->index, at, wide, rows->columns);
    for (guint64 k = 0; rows->a != NULL && k < rows->rank; k++) {
        const float b = rows->b[(rows->first + row) * rows->rank + k];
        const float *a = rows->a + k * rows->columns;

        for (guint64 i = 0; i < rows->columns; i++)
            sum[i] += b * a[i];
    }
    for (guint64 i = 0; rows->a != NULL && i < rows->columns; i++)
        wide[i] += rows->scale * sum[i];
    rp_dtype_from_float(rows->dtype, wide,
                        rows->rounded + row * rows->columns * rp_dtype_size(rows->dtype),
                        rows->columns);
}

static void *
make_some(void *data)
{
    Rows *rows = data;
    guint row;

    while ((row = atomic_fetch_add(&rows->next, 1)) < rows->n)
        make_row(rows, row);
    return NULL;
}

/* The adapter of @weight as fp32; %NULL: it has none. (transfer full) */
static float *
adapter_of(const RpWeights *weights, const RpWeight *weight, RpAdapterPart part)
{
    const int index =
        rp_weights_find(weights, weight->layer, rp_weight_adapter(weight->kind, part));

    if (index < 0)
        return NULL;
    const guint64 n = rp_weights_nth(weights, (guint)index)->elements;
    float *values = g_new(float, n);

    rp_weights_read(weights, (guint)index, 0, values, n);
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

static gboolean
write_weight(Merge *merge, guint index, guint tensor, GError **error)
{
    const RpWeight *weight = rp_weights_nth(merge->weights, index);
    const guint64 columns = weight->rank == 1 ? 1 : weight->shape[weight->rank - 1];
    const guint64 n_rows = weight->elements / columns;
    const guint64 step = MAX(1, PIECE_ELEMENTS / columns);
    g_autofree float *a = adapter_of(merge->weights, weight, RP_ADAPTER_A);
    g_autofree float *b = adapter_of(merge->weights, weight, RP_ADAPTER_B);
    const int adapter = rp_weights_find(merge->weights, weight->layer,
                                        rp_weight_adapter(weight->kind, RP_ADAPTER_A));
    const RpWeight *thin = adapter >= 0 ? rp_weights_nth(merge->weights, (guint)adapter) : NULL;
    Rows rows = {.weights = merge->weights,
                 .index = index,
                 .a = a,
                 .b = b,
                 .rank = thin != NULL ? thin->shape[0] : 0,
                 .columns = columns,
                 .scale = thin != NULL ? (float)thin->scale : 0,
                 .dtype = rp_weights_dtype(merge->weights),
                 .wide = merge->wide,
                 .rounded = merge->rounded};

    for (rows.first = 0; rows.first < n_rows; rows.first += step) {
        rows.n = MIN(step, n_rows - rows.first);
        atomic_init(&rows.next, 0);
        rp_run_in_threads((guint)MIN(rows.n, a != NULL ? 64 : 1), make_some, &rows);
        if (!rp_safetensors_writer_write(merge->writer, tensor, rows.rounded,
                                         (gsize)(rows.n * columns) * rp_dtype_size(rows.dtype),
                                         error))
            return FALSE;
        merge->done += rows.n * columns;
        if (merge->options->progress != NULL)
            merge->options->progress(merge->done, merge->total, merge->options->user_data);
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
    if (!rp_safetensors_writer_begin(writer, error))
        return FALSE;
    merge.wide = wide = g_new(float, most);
    merge.rounded = rounded = g_malloc(most * sizeof(float));
    for (guint i = 0; i < rp_weights_count(weights); i++)
        if (is_written(rp_weights_nth(weights, i)) && !write_weight(&merge, i, tensor++, error))
            return FALSE;
    return rp_safetensors_writer_finish(writer, error);
}
