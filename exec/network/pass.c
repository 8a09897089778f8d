/*
 * Kernels with their operands filled in: dtype, weights, tables and workspace. When a pass
 * measures, only the workspace's size is computed.
 */
#include <math.h>

#include "core/base/units.h"
#include "exec/network/private.h"

/*
 * Lists the shapes of matmuls in a network's calls, which are few, each with its kernel variant: the one that was timed
 * as the fastest, or the backend's first. The head's last chunk is listed; a call of fewer rows (packed ones, fewer
 * targets) has shapes that are not.
 */

static RpMatmulVariant
shape_of(const RpMatmulArgs *args)
{
    return (RpMatmulVariant){.form = args->form,
                             .a = args->a_dtype,
                             .b = args->b_dtype,
                             .c = args->c_dtype,
                             .m = args->m,
                             .n = args->n,
                             .k = args->k,
                             .a_stride = args->a_stride != args->k ? args->a_stride : 0,
                             .bias = args->bias != NULL};
}

/* Thin matmuls of adapters that are fused have columns of wider matrices, and take the first variant. */
static gboolean
is_listed(const RpMatmulArgs *args)
{
    return args->b_stride == 0 && args->c_stride == 0 &&
           (args->a_stride == 0 || args->form == RP_MATMUL_NT);
}

static const RpMatmulVariant *
find(const RpMatmulVariant *variants, guint n, const RpMatmulVariant *shape)
{
    for (guint i = 0; i < n; i++)
        if (rp_matmul_variant_is_of(&variants[i], shape))
            return &variants[i];
    return NULL;
}

void
rp_matmuls_open(RpNetwork *network)
{
    RpNetworkOptions *options = &network->options;

    options->matmul_library = g_strdup(options->matmul_library);
    options->matmul_variants =
        g_memdup2(options->matmul_variants, options->n_matmul_variants * sizeof(RpMatmulVariant));
    network->matmuls = g_array_new(FALSE, FALSE, sizeof(RpMatmulVariant));
}

void
rp_matmuls_close(RpNetwork *network)
{
    g_free((gpointer)network->options.matmul_library);
    g_free((gpointer)network->options.matmul_variants);
    g_array_unref(network->matmuls);
}

const RpMatmulVariant *
rp_network_matmuls(const RpNetwork *network, guint *n)
{
    g_return_val_if_fail(network != NULL && n != NULL, NULL);

    *n = network->matmuls->len;
    return (const RpMatmulVariant *)(void *)network->matmuls->data;
}

void
rp_matmuls_note(const RpNetwork *network, const RpMatmulArgs *args)
{
    const RpMatmulVariant shape = shape_of(args);
    guint n;
    const RpMatmulVariant *known = rp_network_matmuls(network, &n);

    if (is_listed(args) && find(known, n, &shape) == NULL)
        g_array_append_val(network->matmuls, shape);
}

guint8
rp_matmuls_variant(const RpNetwork *network, const RpMatmulArgs *args)
{
    const RpNetworkOptions *options = &network->options;

    if (options->n_matmul_variants == 0 || !is_listed(args))
        return 0;
    const RpMatmulVariant shape = shape_of(args);
    const RpMatmulVariant *variant =
        find(options->matmul_variants, options->n_matmul_variants, &shape);

    return variant != NULL ? (guint8)variant->variant : 0;
}

static void *
take(RpSpace *space, gsize bytes)
{
    void *taken = (void *)(space->base + space->used);

    space->used += rp_align_up(bytes, RP_NETWORK_ALIGNMENT);
    space->peak = MAX(space->peak, space->used);
    return taken;
}

void *
rp_pass_take(const RpPass *pass, RpSpace *space, size_t n)
{
    return take(space, n * rp_dtype_size(pass->network->options.dtype));
}

float *
rp_pass_take_floats(RpSpace *space, size_t n)
{
    return take(space, n * sizeof(float));
}

int32_t *
rp_pass_take_ints(RpSpace *space, size_t n)
{
    return take(space, n * sizeof(int32_t));
}

guint8 *
rp_pass_take_bytes(RpSpace *space, size_t n)
{
    return take(space, n);
}

void *
rp_pass_row(const RpPass *pass, const void *hidden, size_t first)
{
    const RpNetwork *network = pass->network;
    const gsize bytes = network->model->hidden * rp_dtype_size(network->options.dtype);

    return (void *)((guintptr)hidden + first * bytes);
}

/* Address of a gradient's sum; %NULL: the weight is frozen. */
static float *
sum_or_none(const RpPass *pass, RpWeightKind kind)
{
    return rp_pass_trains(pass, kind) ? rp_pass_sum(pass, kind) : NULL;
}

void
rp_pass_matmul(RpPass *pass, RpMatmulArgs args)
{
    args.workspace = pass->kernel_workspace;
    args.half_sums = pass->network->options.half_sums;
    args.alone = rp_pass_has_cache(pass) && args.form == RP_MATMUL_NT;
    if (pass->measuring)
        rp_matmuls_note(pass->network, &args);
    args.variant = rp_matmuls_variant(pass->network, &args);
    RUN_IN_WORKSPACE(pass, matmul, &args);
}

void
rp_pass_bias_sums(RpPass *pass, RpWeightKind bias, size_t rows, const void *dy)
{
    const RpBiasArgs args = {.dtype = pass->network->options.dtype,
                             .tokens = rows,
                             .n = pass->layout->place[bias].shape[0],
                             .dy = dy,
                             .d_bias = rp_pass_sum(pass, bias),
                             .workspace = pass->kernel_workspace};

    RUN_IN_WORKSPACE(pass, bias_backward, &args);
}

static float
norm_shift(const RpPass *pass)
{
    return rp_architectures[pass->network->model->architecture].zero_norms ? 1 : 0;
}

static void
complete_norm(const RpPass *pass, RpWeightKind kind, RpRmsnormArgs *args)
{
    args->dtype = pass->network->options.dtype;
    args->epsilon = (float)pass->network->model->rms_norm_eps;
    args->shift = norm_shift(pass);
    args->weight = rp_pass_weight(pass, kind);
    args->workspace = pass->kernel_workspace;
}

void
rp_pass_norm(RpPass *pass, RpWeightKind kind, RpRmsnormArgs args)
{
    complete_norm(pass, kind, &args);
    RUN(pass, rmsnorm_forward, &args);
}

void
rp_pass_norm_backward(RpPass *pass, RpWeightKind kind, RpRmsnormArgs args)
{
    complete_norm(pass, kind, &args);
    args.d_weight = sum_or_none(pass, kind);
    RUN_IN_WORKSPACE(pass, rmsnorm_backward, &args);
}

void
rp_pass_copy(RpPass *pass, size_t n, const void *x, void *y)
{
    const RpDtype dtype = pass->network->options.dtype;
    const RpElementsArgs args = {.n = n, .x = x, .y = y, .x_dtype = dtype, .y_dtype = dtype};

    RUN(pass, convert, &args);
}

static const void *
constant(const RpPass *pass, gsize offset)
{
    return pass->measuring ? NULL : (const guint8 *)pass->call->constants + offset;
}

static const int32_t *
positions_of(const RpPass *pass)
{
    return rp_pass_has_cache(pass) && !pass->measuring
               ? pass->call->cache->positions
               : constant(pass, pass->network->constants.positions);
}

static const int32_t *
starts_of(const RpPass *pass)
{
    return rp_pass_has_cache(pass) && !pass->measuring
               ? pass->call->cache->starts
               : constant(pass, pass->network->constants.starts);
}

/* The offset of the table of the block's q or k, whose norm is @kind. */
static gsize
table_offset(const RpPass *pass, RpWeightKind kind)
{
    const RpNetwork *network = pass->network;

    return network->constants.table_bytes *
           rp_model_rope_table(network->model, pass->layer - 1, kind == RP_WEIGHT_Q_NORM);
}

static void
complete_rope(const RpPass *pass, RpWeightKind kind, RpRopeArgs *args)
{
    const RpNetwork *network = pass->network;
    const gsize table = table_offset(pass, kind);

    args->dtype = network->options.dtype;
    args->tokens = network->tokens;
    args->head_size = network->model->head_dim;
    args->rotary = network->model->rotary_dim;
    args->positions = positions_of(pass);
    args->cosines = constant(pass, table + network->constants.cosines);
    args->sines = constant(pass, table + network->constants.sines);
}

void
rp_pass_rope(RpPass *pass, RpWeightKind kind, RpRopeArgs args)
{
    complete_rope(pass, kind, &args);
    RUN(pass, rope_forward, &args);
}

void
rp_pass_rope_backward(RpPass *pass, RpWeightKind kind, RpRopeArgs args)
{
    complete_rope(pass, kind, &args);
    RUN(pass, rope_backward, &args);
}

static void
complete_norm_rope(const RpPass *pass, RpWeightKind kind, RpNormRopeArgs *args)
{
    const RpNetwork *network = pass->network;
    const gsize table = table_offset(pass, kind);

    args->dtype = network->options.dtype;
    args->tokens = network->tokens;
    args->head_size = network->model->head_dim;
    args->rotary = network->model->rotary_dim;
    args->epsilon = (float)network->model->rms_norm_eps;
    args->shift = norm_shift(pass);
    args->weight = rp_pass_weight(pass, kind);
    args->workspace = pass->kernel_workspace;
    args->positions = positions_of(pass);
    args->cosines = constant(pass, table + network->constants.cosines);
    args->sines = constant(pass, table + network->constants.sines);
}

void
rp_pass_norm_rope(RpPass *pass, RpWeightKind kind, RpNormRopeArgs args)
{
    complete_norm_rope(pass, kind, &args);
    RUN(pass, norm_rope_forward, &args);
}

void
rp_pass_norm_rope_backward(RpPass *pass, RpWeightKind kind, RpNormRopeArgs args)
{
    complete_norm_rope(pass, kind, &args);
    args.d_weight = sum_or_none(pass, kind);
    RUN_IN_WORKSPACE(pass, norm_rope_backward, &args);
}

/* The sequences of a call, and tokens of the longest. Sequences that one sample fills are measured: no workspace is
 * larger (packed ones run with the built-in kernels, unless all are full). */
static void
find_sequences(const RpPass *pass, size_t *sequences, size_t *max_length)
{
    const RpNetwork *network = pass->network;
    const gboolean given = !pass->measuring && pass->call->n_samples > 0;

    *sequences = network->options.sequences;
    *max_length = network->options.tokens;
    if (network->options.packed_tokens > 0 && !pass->measuring) {
        *sequences = given ? pass->call->n_samples : network->typical_samples;
        *max_length = given ? pass->call->longest : network->options.packed_tokens;
    }
}

static void
complete_attention(const RpPass *pass, RpAttentionArgs *args)
{
    const RpNetwork *network = pass->network;
    const RpModel *model = network->model;

    args->dtype = network->options.dtype;
    args->tokens = network->tokens;
    find_sequences(pass, &args->sequences, &args->max_length);
    args->heads = model->heads;
    args->kv_heads = model->kv_heads;
    args->head_size = model->head_dim;
    args->scale = 1.0f / sqrtf((float)model->head_dim);
    args->choice =
        args->max_length == network->options.tokens && args->sequences == network->options.sequences
            ? network->options.attention
            : RP_ATTENTION_BUILTIN;
    args->workspace = pass->kernel_workspace;
    args->starts = starts_of(pass);
    args->gaps =
        !pass->measuring && pass->call->has_gaps ? args->starts + args->sequences + 1 : NULL;
}

void
rp_pass_attention(RpPass *pass, RpAttentionArgs args)
{
    complete_attention(pass, &args);
    RUN_IN_WORKSPACE(pass, attention_forward, &args);
}

void
rp_pass_attention_backward(RpPass *pass, RpAttentionArgs args)
{
    complete_attention(pass, &args);
    RUN_IN_WORKSPACE(pass, attention_backward, &args);
}

/* ---- gated DeltaNet, gated attention ---- */

static RpConvArgs
conv_args(const RpPass *pass)
{
    const RpNetwork *network = pass->network;
    const RpNetworkOptions *options = &network->options;
    RpConvArgs args = {.dtype = options->dtype,
                       .tokens = network->tokens,
                       .n = rp_model_delta_columns(network->model),
                       .kernel = network->model->delta_kernel,
                       .starts = starts_of(pass),
                       .weight = rp_pass_weight(pass, RP_WEIGHT_DELTA_CONV),
                       .workspace = pass->kernel_workspace};
    size_t longest;

    find_sequences(pass, &args.sequences, &longest);
    return args;
}

void
rp_pass_conv(RpPass *pass, const void *x, void *y)
{
    RpConvArgs args = conv_args(pass);

    args.x = x;
    args.y = y;
    RUN(pass, conv_forward, &args);
}

void
rp_pass_conv_backward(RpPass *pass, const void *x, const void *dy, void *dx)
{
    RpConvArgs args = conv_args(pass);

    args.x = x;
    args.dy = dy;
    args.dx = dx;
    args.d_weight = sum_or_none(pass, RP_WEIGHT_DELTA_CONV);
    RUN_IN_WORKSPACE(pass, conv_backward, &args);
}

static void
complete_delta(const RpPass *pass, RpDeltaArgs *args)
{
    const RpNetwork *network = pass->network;
    const RpModel *model = network->model;
    const RpConvArgs conv = conv_args(pass);

    args->dtype = conv.dtype;
    args->tokens = conv.tokens;
    find_sequences(pass, &args->sequences, &args->max_length);
    args->sequences = conv.sequences;
    args->key_heads = model->delta_key_heads;
    args->value_heads = model->delta_value_heads;
    args->key_dim = model->delta_key_dim;
    args->value_dim = model->delta_value_dim;
    args->starts = conv.starts;
    args->log = rp_pass_weight(pass, RP_WEIGHT_DELTA_LOG);
    args->bias = rp_pass_weight(pass, RP_WEIGHT_DELTA_BIAS);
    args->workspace = pass->kernel_workspace;
}

void
rp_pass_delta(RpPass *pass, RpDeltaArgs args)
{
    complete_delta(pass, &args);
    RUN_IN_WORKSPACE(pass, delta_forward, &args);
}

void
rp_pass_delta_backward(RpPass *pass, RpDeltaArgs args)
{
    complete_delta(pass, &args);
    args.d_log = sum_or_none(pass, RP_WEIGHT_DELTA_LOG);
    args.d_bias = sum_or_none(pass, RP_WEIGHT_DELTA_BIAS);
    RUN_IN_WORKSPACE(pass, delta_backward, &args);
}

static void
complete_gated_norm(const RpPass *pass, RpGatedNormArgs *args)
{
    const RpModel *model = pass->network->model;

    args->dtype = pass->network->options.dtype;
    args->rows = pass->network->tokens * model->delta_value_heads;
    args->n = model->delta_value_dim;
    args->epsilon = (float)model->rms_norm_eps;
    args->weight = rp_pass_weight(pass, RP_WEIGHT_DELTA_NORM);
    args->workspace = pass->kernel_workspace;
}

void
rp_pass_gated_norm(RpPass *pass, RpGatedNormArgs args)
{
    complete_gated_norm(pass, &args);
    RUN(pass, gated_norm_forward, &args);
}

void
rp_pass_gated_norm_backward(RpPass *pass, RpGatedNormArgs args)
{
    complete_gated_norm(pass, &args);
    args.d_weight = sum_or_none(pass, RP_WEIGHT_DELTA_NORM);
    RUN_IN_WORKSPACE(pass, gated_norm_backward, &args);
}

static void
complete_head_gate(const RpPass *pass, RpHeadGateArgs *args)
{
    const RpModel *model = pass->network->model;

    args->dtype = pass->network->options.dtype;
    args->rows = pass->network->tokens * model->heads;
    args->n = model->head_dim;
    args->gate_stride = 2 * args->n;
}

void
rp_pass_head_gate(RpPass *pass, RpHeadGateArgs args)
{
    complete_head_gate(pass, &args);
    RUN(pass, head_gate_forward, &args);
}

void
rp_pass_head_gate_backward(RpPass *pass, RpHeadGateArgs args)
{
    complete_head_gate(pass, &args);
    RUN(pass, head_gate_backward, &args);
}

void
rp_pass_row_gate(RpPass *pass, RpRowGateArgs args)
{
    args.dtype = pass->network->options.dtype;
    RUN(pass, row_gate_forward, &args);
}

void
rp_pass_row_gate_backward(RpPass *pass, RpRowGateArgs args)
{
    args.dtype = pass->network->options.dtype;
    RUN(pass, row_gate_backward, &args);
}

void
rp_pass_columns(RpPass *pass, RpColumnsArgs args)
{
    args.dtype = pass->network->options.dtype;
    RUN(pass, columns, &args);
}

static RpSinkArgs
sink_args(const RpPass *pass)
{
    const RpNetwork *network = pass->network;

    return (RpSinkArgs){.dtype = network->options.dtype,
                        .tokens = network->tokens,
                        .heads = network->model->heads,
                        .head_size = network->model->head_dim,
                        .sinks = rp_pass_weight(pass, RP_WEIGHT_SINKS),
                        .workspace = pass->kernel_workspace};
}

void
rp_pass_sink(RpPass *pass, size_t tokens, void *out, float *lse)
{
    RpSinkArgs args = sink_args(pass);

    args.tokens = tokens;
    args.out = out;
    args.lse = lse;
    RUN(pass, sink_forward, &args);
}

void
rp_pass_sink_backward(RpPass *pass, void *out, float *lse, const void *d_out)
{
    RpSinkArgs args = sink_args(pass);

    if (!rp_pass_trains(pass, RP_WEIGHT_SINKS))
        return;
    args.out = out;
    args.lse = lse;
    args.d_out = d_out;
    args.d_sinks = rp_pass_sum(pass, RP_WEIGHT_SINKS);
    RUN_IN_WORKSPACE(pass, sink_backward, &args);
}

static RpSwigluArgs
swiglu_args(const RpPass *pass, size_t n, size_t row, const void *gate, const void *up)
{
    return (RpSwigluArgs){
        .dtype = pass->network->options.dtype, .n = n, .row = row, .gate = gate, .up = up};
}

void
rp_pass_swiglu(RpPass *pass, size_t n, size_t row, const void *gate, const void *up, void *y,
               float *amax)
{
    RpSwigluArgs args = swiglu_args(pass, n, row, gate, up);

    args.y = y;
    args.largest = amax;
    RUN(pass, swiglu_forward, &args);
}

void
rp_pass_swiglu_backward(RpPass *pass, size_t n, size_t row, void *gate, void *up, void *d,
                        float *const amax[3])
{
    RpSwigluArgs args = swiglu_args(pass, n, row, gate, up);

    args.d_gate_largest = amax[0];
    args.d_up_largest = amax[1];
    args.largest = amax[2];
    args.dy = d;
    args.product = pass->kept.product.used ? NULL : d;
    args.d_gate = gate;
    args.d_up = up;
    RUN(pass, swiglu_backward, &args);
}

void
rp_pass_dropout(RpPass *pass, RpWeightKind adapter, RpDropoutArgs args)
{
    const double p = pass->network->dropout;

    args.dtype = pass->network->options.dtype;
    args.key = pass->layout->place[adapter].key;
    args.threshold = (uint32_t)(p * 4294967296.0);
    args.scale = (float)(1 / (1 - p));
    if (!pass->measuring) {
        args.step = pass->call->step;
        args.row = pass->call->first_token + (guint32)pass->first_row;
    }
    RUN(pass, dropout, &args);
}
