#include "exec/quantise/quantise.h"

#include <gio/gio.h>
#include <string.h>

#include "core/base/quote.h"
#include "core/json/json-write.h"
#include "exec/system/pool.h"

/* Shares of threads end at multiples of this many elements. */
#define GRANULE ((gsize)16384)

typedef struct {
    const RpWeights *plain;  /* bound to the checkpoint, or to nothing: random */
    const RpWeights *packed; /* the same list, packed */
    const char *path;
    const RpSafetensors *published; /* (nullable): as published models are; the checkpoint */
    RpDtype dtype;                  /* type of values that are not packed, and of all before */
    guint64 seed;
    RpSafetensorsWriter *writer;
    RpPool *pool;
    RpQuantiseProgress progress;
    gpointer progress_data;
    RpLowbitTarget *targets; /* [weights]: of packed ones, of a stack its first */
    guint *numbers;          /* [weights]: of those that are not */
    guint others;            /* number of the first tensor of a larger model's other parts */
    guint64 done;
    guint64 total;
} Run;

/* Whether all experts' matrices of its kind are one tensor of the file. */
static gboolean
is_stacked(const Run *run, const RpWeight *weight)
{
    return weight->is_packed && weight->stack[0] > 0 && run->published == NULL;
}

/* Whether nothing is written of it, because another weight stands for it. */
static gboolean
is_another(const Run *run, const RpWeight *weight)
{
    return weight->tied || (weight->offset > 0 && is_stacked(run, weight));
}

static gboolean
declare(Run *run, GError **error)
{
    for (guint i = 0; i < rp_weights_count(run->packed); i++) {
        const RpWeight *weight = rp_weights_nth(run->packed, i);
        const gboolean stack = is_stacked(run, weight);
        const guint64 *shape = stack ? weight->stack : weight->shape;

        if (is_another(run, weight))
            continue;
        if (!weight->is_packed)
            run->numbers[i] = rp_safetensors_writer_add(run->writer, weight->name, run->dtype,
                                                        weight->shape, weight->rank);
        else if (!rp_lowbit_target_add(run->writer, stack ? weight->stack_name : weight->name,
                                       weight->format, shape,
                                       stack ? RP_WEIGHT_MAX_RANK : weight->rank, run->dtype,
                                       &run->targets[i], error))
            return FALSE;
    }
    run->others = rp_weights_add_others(rp_weights_model(run->plain), run->published, run->writer);
    return rp_safetensors_writer_begin(run->writer, error);
}

/* ---- the written values: a tensor, random numbers, all of a stack, or a transposed stack ---- */

typedef struct {
    const Run *run;
    guint weight;
    guint8 *to;
} Fetch;

/* Elements of a weight, in 16 or 32 bits. */
static void
fetch_some(gsize first, gsize n, gpointer data)
{
    const Fetch *fetch = data;
    const Run *run = fetch->run;
    const RpSafetensor *source = rp_weights_source(run->plain, fetch->weight);
    const gsize size = rp_dtype_size(run->dtype);
    float values[1024];

    if (source != NULL) {
        memcpy(fetch->to + first * size, (const guint8 *)source->data + first * size, n * size);
        return;
    }
    for (gsize at = first, piece; at < first + n; at += piece) {
        piece = MIN(first + n - at, G_N_ELEMENTS(values));
        rp_init_fill(rp_weights_model(run->plain), rp_weights_nth(run->plain, fetch->weight),
                     run->seed, at, values, piece);
        rp_dtype_from_float(run->dtype, values, fetch->to + at * size, piece);
    }
}

static void
fetch(const Run *run, guint index, guint8 *to)
{
    Fetch fetch = {run, index, to};

    rp_pool_run(run->pool, 0, rp_weights_nth(run->plain, index)->elements, GRANULE, fetch_some,
                &fetch);
}

/* All weights of the stack that weight @first begins, one after the other. */
static void
fetch_stack(const Run *run, guint first, guint8 *to)
{
    const RpWeight *begin = rp_weights_nth(run->plain, first);
    guint layer_first;
    const guint n = rp_weights_layer(run->plain, begin->layer, &layer_first);

    for (guint i = first; i < layer_first + n; i++) {
        const RpWeight *weight = rp_weights_nth(run->plain, i);

        if (weight->kind == begin->kind)
            fetch(run, i, to + weight->offset * rp_dtype_size(run->dtype));
    }
}

typedef struct {
    const guint8 *from; /* [matrices,in,out] */
    guint8 *to;         /* [matrices,out,in] */
    gsize in, out;
    gsize size;
} Turning;

static void
turn_some(gsize first, gsize n, gpointer data)
{
    const Turning *turning = data;
    const gsize size = turning->size;

    for (gsize row = first; row < first + n; row++) { /* rows are outputs, over all matrices */
        const guint8 *from = turning->from +
                             row / turning->out * turning->in * turning->out * size +
                             row % turning->out * size;

        for (gsize i = 0; i < turning->in; i++)
            memcpy(turning->to + (row * turning->in + i) * size, from + i * turning->out * size,
                   size);
    }
}

static void
turn(const Run *run, RpSafetensor *whole)
{
    Turning turning = {.from = whole->data,
                       .to = g_malloc(whole->bytes),
                       .in = whole->shape[1],
                       .out = whole->shape[2],
                       .size = rp_dtype_size(run->dtype)};

    rp_pool_run(run->pool, 0, whole->shape[0] * turning.out, 16, turn_some, &turning);
    whole->data = turning.to;
    whole->shape[1] = turning.out;
    whole->shape[2] = turning.in;
}

/* @whole: (out): the values written for weight @index, or the packed ones. Returns: (nullable):
 * their memory */
static void *
find_whole(const Run *run, guint index, RpSafetensor *whole)
{
    const RpWeight *plain = rp_weights_nth(run->plain, index);
    const RpWeight *packed = rp_weights_nth(run->packed, index);
    const RpSafetensor *source = rp_weights_source(run->plain, index);
    const gboolean stack = is_stacked(run, packed);
    g_autofree guint8 *held = NULL;

    *whole = source != NULL
                 ? *source
                 : (RpSafetensor){.name = plain->name, .file = run->path, .rank = plain->rank};
    whole->supported = TRUE;
    whole->dtype = run->dtype;
    whole->rank = stack ? RP_WEIGHT_MAX_RANK : plain->rank;
    memcpy(whole->shape, stack ? plain->stack : plain->shape, sizeof plain->shape);
    whole->elements = stack ? rp_weight_stack_elements(plain) : plain->elements;
    whole->bytes = whole->elements * rp_dtype_size(run->dtype);
    if (stack || source == NULL) {
        whole->data = held = g_malloc(whole->bytes);
        if (stack)
            fetch_stack(run, index, held);
        else
            fetch(run, index, held);
    }
    if (packed->is_packed && plain->transposed && !packed->transposed) {
        turn(run, whole);
        return (gpointer)(guintptr)whole->data;
    }
    return g_steal_pointer(&held);
}

static gboolean
write_weight(Run *run, guint index, GError **error)
{
    const RpWeight *weight = rp_weights_nth(run->packed, index);
    RpSafetensor whole;
    g_autofree void *held = find_whole(run, index, &whole);
    gboolean done;

    if (weight->is_packed) {
        const RpLowbitShape shape = rp_lowbit_shape_of(whole.shape, whole.rank);
        const gsize bytes = rp_lowbit_layout(weight->format, shape).total;
        void *packed = g_aligned_alloc0(1, bytes, RP_LOWBIT_ALIGNMENT);

        done = rp_lowbit_pack_tensor(weight->format, &whole, packed, run->pool, error) &&
               rp_lowbit_target_write(run->writer, &run->targets[index], packed, error);
        g_aligned_free(packed);
    } else {
        done = rp_safetensors_writer_write(run->writer, run->numbers[index], whole.data,
                                           whole.bytes, error);
    }
    run->done += whole.elements;
    return done;
}

static gboolean
write_weights(Run *run, GError **error)
{
    for (guint i = 0; i < rp_weights_count(run->packed); i++) {
        if (is_another(run, rp_weights_nth(run->packed, i)))
            continue;
        if (!write_weight(run, i, error))
            return FALSE;
        if (!run->progress(run->done, run->total, run->progress_data))
            return rp_fail(error, G_IO_ERROR, G_IO_ERROR_CANCELLED, "stopped");
    }
    return rp_weights_write_others(rp_weights_model(run->plain), run->published, run->others,
                                   run->writer, error) &&
           rp_safetensors_writer_finish(run->writer, error);
}

/* The list of @model with its base packed. */
static RpWeights *
pack_list(const RpModel *model, RpLowbit format, RpDtype dtype)
{
    RpWeights *weights = rp_weights_new(model);

    for (guint i = 0; i < rp_weights_count(weights); i++)
        rp_weights_freeze(weights, i, dtype);
    rp_weights_pack_base(weights, format);
    return weights;
}

static gboolean
run_all(Run *run, RpLowbit format, guint64 max_shard_bytes, GError **error)
{
    const guint n = rp_weights_count(run->plain);
    g_autoptr(RpWeights) packed = pack_list(rp_weights_model(run->plain), format, run->dtype);
    g_autoptr(RpSafetensorsWriter) writer = rp_safetensors_writer_new(run->path, max_shard_bytes);
    g_autoptr(RpPool) pool = rp_pool_new(&(RpPoolOptions){0}, error);

    if (pool == NULL)
        return FALSE;
    run->packed = packed;
    run->writer = writer;
    run->pool = pool;
    run->targets = g_new0(RpLowbitTarget, n);
    run->numbers = g_new0(guint, n);
    run->total = rp_weights_elements(run->plain);
    gboolean done = declare(run, error) && write_weights(run, error);
    for (guint i = 0; i < n; i++)
        rp_lowbit_target_clear(&run->targets[i]);
    g_free(run->targets);
    g_free(run->numbers);
    return done;
}

static gboolean
go_on(guint64 done, guint64 total, gpointer user_data)
{
    return TRUE;
}

gboolean
rp_quantise(const RpModel *model, const RpSafetensors *checkpoint, RpLowbit format,
            const char *path, const RpQuantiseOptions *options, GError **error)
{
    g_return_val_if_fail(model && checkpoint && path && options, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    g_autoptr(RpWeights) plain = rp_weights_new(model);

    if (!rp_weights_bind(plain, checkpoint, error))
        return FALSE;
    Run run = {.plain = plain,
               .path = path,
               .published = options->published ? checkpoint : NULL,
               .dtype = rp_weights_dtype(plain),
               .progress = options->progress != NULL ? options->progress : go_on,
               .progress_data = options->user_data};
    return run_all(&run, format, 0, error);
}

static gboolean
tell(guint64 done, guint64 total, gpointer user_data)
{
    const RpInitOptions *options = user_data;

    if (options->progress != NULL)
        options->progress(done, total, options->user_data);
    return TRUE;
}

gboolean
rp_quantise_random(const RpModel *model, RpLowbit format, const char *directory,
                   const RpInitOptions *options, GError **error)
{
    g_return_val_if_fail(model && directory && options, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    g_autoptr(RpWeights) plain = rp_weights_new(model);
    g_autofree char *path = g_build_filename(directory, "model.safetensors", NULL);
    g_autofree char *config_path = g_build_filename(directory, "config.json", NULL);
    RpModel named = *model;
    Run run = {.plain = plain,
               .path = path,
               .dtype = model->dtype,
               .seed = options->seed,
               .progress = tell,
               .progress_data = (gpointer)(guintptr)options};

    named.has_dtype = TRUE;
    return run_all(&run, format, options->max_shard_bytes, error) &&
           rp_hf_config_save(&named, config_path, error);
}

char *
rp_quantise_path(const RpSafetensors *checkpoint, RpLowbit format)
{
    g_autofree char *directory = g_path_get_dirname(rp_safetensors_path(checkpoint));
    g_autofree char *name = rp_lowbit_cache_name(format, checkpoint);

    return g_build_filename(directory, name, NULL);
}

/* The module of a tensor of a matrix that is not in fp8, and is no embedding. */
static void
add_module(RpJsonWriter *json, const char *name)
{
    g_autofree char *module = g_strdup(name);

    if (g_str_has_suffix(name, ".weight"))
        module[strlen(name) - strlen(".weight")] = '\0';
    rp_json_string(json, NULL, module);
}

char *
rp_quantise_fp8_config(const RpModel *model, const RpSafetensors *checkpoint)
{
    g_return_val_if_fail(model && checkpoint, NULL);

    g_autoptr(RpWeights) weights = pack_list(model, RP_LOWBIT_FP8, RP_DTYPE_BF16);
    RpJsonWriter *json = rp_json_writer_new(RP_JSON_SPACED);

    rp_json_object(json, NULL);
    rp_json_string(json, "activation_scheme", "dynamic");
    rp_json_string(json, "fmt", "e4m3");
    rp_json_array(json, "modules_to_not_convert");
    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);

        if (weight->rank == 2 && !weight->is_packed && weight->kind != RP_WEIGHT_EMBEDDING)
            add_module(json, weight->name);
    }
    for (guint i = 0; i < rp_safetensors_count(checkpoint); i++) {
        const RpSafetensor *tensor = rp_safetensors_nth(checkpoint, i);

        if (tensor->rank == 2 && tensor->supported && rp_weights_is_other(model, tensor->name) &&
            g_str_has_suffix(tensor->name, ".weight"))
            add_module(json, tensor->name);
    }
    rp_json_end(json);
    rp_json_string(json, "quant_method", "fp8");
    rp_json_array(json, "weight_block_size");
    rp_json_uint(json, NULL, RP_FP8_BLOCK);
    rp_json_uint(json, NULL, RP_FP8_BLOCK);
    rp_json_end(json);
    rp_json_end(json);
    return rp_json_writer_finish(json);
}
