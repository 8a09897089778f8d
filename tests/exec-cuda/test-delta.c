/* The gated delta rule, and the parts beside it, against the host's; the rule of many tokens against double. */
#include "tests/exec-cuda/cuda-fixture.h"
#include "tests/exec-host/delta-recurrence.h"

typedef struct {
    RpDeltaArgs sizes;
    const gint32 *starts;
    Array qkv, b, a, log, bias, d_out;
} Rule;

static void
compute_rule(const Side *side, const void *inputs, Outputs *outputs)
{
    const Rule *rule = inputs;
    RpDeltaArgs args = rule->sizes;
    const size_t heads = args.value_heads, n = args.tokens * rp_delta_columns(&args);
    const size_t values = args.tokens * heads * args.value_dim;
    const gboolean joined = args.gate_row > heads; /* a stands behind b */
    const size_t gates = args.tokens * args.gate_row;
    const size_t behind = heads * rp_dtype_size(args.dtype);
    const Array zeros = host_random(RP_DTYPE_FP32, 2 * heads, 0);
    float *sums = cuda_in(side, zeros);

    args.starts = cuda_copy_in(side, rule->starts, args.sequences + 1, sizeof(gint32));
    args.qkv = cuda_in(side, rule->qkv);
    args.b = cuda_in(side, rule->b);
    args.a = joined ? (const char *)args.b + behind : cuda_in(side, rule->a);
    args.log = cuda_in(side, rule->log);
    args.bias = cuda_in(side, rule->bias);
    args.d_out = cuda_in(side, rule->d_out);
    args.out = cuda_out(side, args.dtype, values);
    args.d_qkv = cuda_out(side, args.dtype, n);
    args.d_b = cuda_out(side, args.dtype, gates);
    args.d_a = joined ? (char *)args.d_b + behind : cuda_out(side, args.dtype, gates);
    args.d_log = sums;
    args.d_bias = sums + heads;
    args.workspace = cuda_workspace(side, side->kernels->delta_forward_workspace(&args));
    side->kernels->delta_forward(side->stream, &args);
    args.workspace = cuda_workspace(side, side->kernels->delta_backward_workspace(&args));
    side->kernels->delta_backward(side->stream, &args);
    outputs->arrays[0] = cuda_result(side, args.dtype, values, args.out);
    outputs->arrays[1] = cuda_result(side, args.dtype, n, args.d_qkv);
    outputs->arrays[2] = cuda_result(side, args.dtype, gates, args.d_b);
    outputs->arrays[3] =
        joined ? outputs->arrays[2] : cuda_result(side, args.dtype, gates, args.d_a);
    outputs->arrays[4] = cuda_result(side, RP_DTYPE_FP32, 2 * heads, sums);
    for (guint i = 0; i < 5; i++)
        outputs->terms[i] = 64 * args.key_dim;
    outputs->terms[4] *= args.tokens;
}

static void
hold_rule(RpDtype dtype, RpDeltaArgs sizes, const gint32 *starts)
{
    const size_t T = (size_t)starts[sizes.sequences], H = sizes.value_heads;
    Rule rule = {.sizes = sizes, .starts = starts};

    rule.sizes.dtype = dtype;
    if (rule.sizes.gate_row == 0)
        rule.sizes.gate_row = H;
    rule.sizes.tokens = T;
    for (size_t s = 0; s < sizes.sequences; s++)
        rule.sizes.max_length = MAX(rule.sizes.max_length, (size_t)(starts[s + 1] - starts[s]));
    rule.qkv = host_random(dtype, T * rp_delta_columns(&sizes), 1);
    rule.b = host_random(dtype, T * rule.sizes.gate_row, 2);
    rule.a = host_random(dtype, T * rule.sizes.gate_row, 2);
    rule.log = host_random(dtype, H, 1);
    rule.bias = host_random(dtype, H, 1);
    rule.d_out = host_random(dtype, T * H * sizes.value_dim, 1);
    /* the first head forgets so little that states of earlier chunks matter */
    rp_dtype_from_float(dtype, &(float){-6}, rule.log.data, 1);
    /* arrays of heads of 128 that are not aligned go through other kernels */
    cuda_hold_to_host(compute_rule, &rule, dtype != RP_DTYPE_BF16 || sizes.key_dim < 128);
}

RP_TEST(computes_the_delta_rule)
{
    static const gint32 one[] = {0, 200}, packed[] = {0, 3, 131, 131, 195, 196};

    for (guint d = 0; d < RP_N_DTYPES; d++) {
        hold_rule(
            (RpDtype)d,
            (RpDeltaArgs){
                .sequences = 1, .key_heads = 1, .value_heads = 1, .key_dim = 64, .value_dim = 32},
            one);
        hold_rule((RpDtype)d,
                  (RpDeltaArgs){.sequences = 5,
                                .key_heads = 2,
                                .value_heads = 4,
                                .key_dim = 6,
                                .value_dim = 5,
                                .gate_row = 8},
                  packed);
        hold_rule((RpDtype)d,
                  (RpDeltaArgs){.sequences = 1,
                                .key_heads = 2,
                                .value_heads = 6,
                                .key_dim = 128,
                                .value_dim = 128,
                                .gate_row = 12},
                  one);
    }
}

/*
 * The first head forgets nothing in thousands of tokens, the second nearly everything at once.
 *
 * A value may be as far off as 16,385 roundings of fp32 together, 8 sqrt(16385) 2^-24 of the largest, beside its rounding to
 * the storage. bf16 has no more: the recurrence reads the same rounded inputs, and states are fp32. But operands of tensor
 * cores have 16 bits, @bits fewer than fp32's, and sums of all tokens, which cancel, keep that error: d_log's and d_bias's
 * may be 2^bits times as large.
 */
static void
hold_to_recurrence(RpDtype dtype, DeltaSizes sizes, guint bits)
{
    static const gint32 starts[] = {0, 16385};
    static const float logs[] = {-12, 5};
    const Side device = {rp_cuda_kernels(), cuda_stream(), 0};
    DeltaCase c = delta_case(dtype, &sizes, starts, 1);
    const double *wanted[] = {c.want_out, c.want_qkv, c.want_b, c.want_a};
    Rule rule = {c.args, starts, c.qkv, c.b, c.a, c.log, c.bias, c.d_out};
    double sums[4];
    Outputs got = {0};

    rp_dtype_from_float(dtype, logs, c.log.data, 2);
    for (guint head = 0; head < 2; head++) {
        c.log.values[head] = (double)logs[head];
        c.want_log[head] = c.want_bias[head] = 0;
    }
    delta_want(&c);
    memcpy(sums, c.want_log, 2 * sizeof *sums);
    memcpy(sums + 2, c.want_bias, 2 * sizeof *sums);
    compute_rule(&device, &rule, &got);
    for (guint i = 0; i < G_N_ELEMENTS(wanted); i++)
        host_assert_close(got.arrays[i], wanted[i], 16385, 0);
    host_assert_close(got.arrays[4], sums, (size_t)16385 << 2 * bits, 0);
}

RP_TEST(keeps_small_gates_of_many_tokens)
{
    hold_to_recurrence(RP_DTYPE_FP32, (DeltaSizes){1, 2, 8, 8}, 0);
    hold_to_recurrence(RP_DTYPE_BF16, (DeltaSizes){1, 2, 128, 128}, 7);
}

typedef struct {
    size_t n, kernel, sequences;
    const gint32 *starts;
    Array x, weight, dy;
} Conv;

static void
compute_conv(const Side *side, const void *inputs, Outputs *outputs)
{
    const Conv *conv = inputs;
    const size_t T = (size_t)conv->starts[conv->sequences], n = T * conv->n;
    const Array zeros = host_random(RP_DTYPE_FP32, conv->n * conv->kernel, 0);
    RpConvArgs args = {.dtype = conv->x.dtype,
                       .tokens = T,
                       .sequences = conv->sequences,
                       .n = conv->n,
                       .kernel = conv->kernel,
                       .starts =
                           cuda_copy_in(side, conv->starts, conv->sequences + 1, sizeof(gint32)),
                       .x = cuda_in(side, conv->x),
                       .weight = cuda_in(side, conv->weight),
                       .dy = cuda_in(side, conv->dy),
                       .y = cuda_out(side, conv->x.dtype, n),
                       .dx = cuda_out(side, conv->x.dtype, n),
                       .d_weight = cuda_in(side, zeros)};

    args.workspace = cuda_workspace(side, side->kernels->conv_backward_workspace(&args));
    side->kernels->conv_forward(side->stream, &args);
    side->kernels->conv_backward(side->stream, &args);
    outputs->arrays[0] = cuda_result(side, args.dtype, n, args.y);
    outputs->arrays[1] = cuda_result(side, args.dtype, n, args.dx);
    outputs->arrays[2] = cuda_result(side, RP_DTYPE_FP32, zeros.n, args.d_weight);
    outputs->terms[0] = outputs->terms[1] = conv->kernel;
    outputs->terms[2] = T;
}

RP_TEST(convolves_within_sequences)
{
    static const gint32 starts[] = {0, 1, 4, 4, 140, 202};
    static const size_t kernels[] = {1, 4, 7};

    for (guint d = 0; d < RP_N_DTYPES; d++)
        for (guint k = 0; k < G_N_ELEMENTS(kernels); k++) {
            const Conv conv = {.n = 261,
                               .kernel = kernels[k],
                               .sequences = 5,
                               .starts = starts,
                               .x = host_random((RpDtype)d, 202 * 261, 1),
                               .weight = host_random((RpDtype)d, 261 * kernels[k], 1),
                               .dy = host_random((RpDtype)d, 202 * 261, 1)};

            cuda_hold_to_host(compute_conv, &conv, TRUE);
        }
}

typedef struct {
    size_t rows, n;
    Array x, gate, weight, dy;
} Gated;

static void
compute_gated(const Side *side, const void *inputs, Outputs *outputs)
{
    const Gated *gated = inputs;
    const size_t n = gated->rows * gated->n;
    const Array zeros = host_random(RP_DTYPE_FP32, gated->n, 0);
    RpGatedNormArgs args = {.dtype = gated->x.dtype,
                            .rows = gated->rows,
                            .n = gated->n,
                            .epsilon = 1e-6f,
                            .x = cuda_in(side, gated->x),
                            .gate = cuda_in(side, gated->gate),
                            .weight = cuda_in(side, gated->weight),
                            .dy = cuda_in(side, gated->dy),
                            .y = cuda_out(side, gated->x.dtype, n),
                            .dx = cuda_out(side, gated->x.dtype, n),
                            .d_gate = cuda_out(side, gated->x.dtype, n),
                            .d_weight = cuda_in(side, zeros)};

    args.workspace = cuda_workspace(side, side->kernels->gated_norm_backward_workspace(&args));
    side->kernels->gated_norm_forward(side->stream, &args);
    side->kernels->gated_norm_backward(side->stream, &args);
    outputs->arrays[0] = cuda_result(side, args.dtype, n, args.y);
    outputs->arrays[1] = cuda_result(side, args.dtype, n, args.dx);
    outputs->arrays[2] = cuda_result(side, args.dtype, n, args.d_gate);
    outputs->arrays[3] = cuda_result(side, RP_DTYPE_FP32, gated->n, args.d_weight);
    for (guint i = 0; i < 4; i++)
        outputs->terms[i] = gated->n;
    outputs->terms[3] = gated->rows;
}

/* Queries between gates: [rows,2 n]. */
static void
compute_gates(const Side *side, const void *inputs, Outputs *outputs)
{
    const Gated *gated = inputs;
    const RpDtype dtype = gated->x.dtype;
    const size_t size = rp_dtype_size(dtype), n = gated->rows * gated->n;
    const Array zeros = host_random(dtype, 2 * n, 0);
    char *both = cuda_in(side, gated->gate), *gradient = cuda_in(side, zeros);
    const RpHeadGateArgs args = {.dtype = dtype,
                                 .rows = gated->rows,
                                 .n = gated->n,
                                 .gate_stride = 2 * gated->n,
                                 .x = cuda_in(side, gated->x),
                                 .gate = both + gated->n * size,
                                 .y = cuda_out(side, dtype, n),
                                 .dy = cuda_in(side, gated->dy),
                                 .dx = cuda_out(side, dtype, n),
                                 .d_gate = gradient + gated->n * size};
    const RpColumnsArgs columns = {dtype,        gated->rows, gated->n, gated->n,
                                   2 * gated->n, args.x,      gradient};

    side->kernels->head_gate_forward(side->stream, &args);
    side->kernels->head_gate_backward(side->stream, &args);
    side->kernels->columns(side->stream, &columns);
    outputs->arrays[0] = cuda_result(side, dtype, n, args.y);
    outputs->arrays[1] = cuda_result(side, dtype, n, args.dx);
    outputs->arrays[2] = cuda_result(side, dtype, 2 * n, gradient);
    for (guint i = 0; i < 3; i++)
        outputs->terms[i] = 4;
}

static void
compute_row_gates(const Side *side, const void *inputs, Outputs *outputs)
{
    const Gated *gated = inputs;
    const RpDtype dtype = gated->x.dtype;
    const size_t n = gated->rows * gated->n;
    const RpRowGateArgs args = {.dtype = dtype,
                                .rows = gated->rows,
                                .n = gated->n,
                                .x = cuda_in(side, gated->x),
                                .gate = cuda_in(side, gated->gate),
                                .y = cuda_out(side, dtype, n),
                                .dy = cuda_in(side, gated->dy),
                                .dx = cuda_out(side, dtype, n),
                                .d_gate = cuda_out(side, dtype, gated->rows)};

    side->kernels->row_gate_forward(side->stream, &args);
    outputs->arrays[0] = cuda_result(side, dtype, n, args.y);
    side->kernels->row_gate_backward(side->stream, &args);
    outputs->arrays[1] = cuda_result(side, dtype, n, args.y);
    outputs->arrays[2] = cuda_result(side, dtype, n, args.dx);
    outputs->arrays[3] = cuda_result(side, dtype, gated->rows, args.d_gate);
    for (guint i = 0; i < 4; i++)
        outputs->terms[i] = i < 3 ? 4 : gated->n;
}

RP_TEST(gates_after_the_norm_and_between_queries)
{
    static const size_t sizes[] = {6, 128, 129};

    for (guint d = 0; d < RP_N_DTYPES; d++)
        for (guint i = 0; i < G_N_ELEMENTS(sizes); i++) {
            const size_t n = sizes[i] * 301;
            Gated gated = {.rows = 301,
                           .n = sizes[i],
                           .x = host_random((RpDtype)d, n, 1),
                           .gate = host_random((RpDtype)d, n, 1),
                           .weight = host_random((RpDtype)d, sizes[i], 1),
                           .dy = host_random((RpDtype)d, n, 1)};

            cuda_hold_to_host(compute_gated, &gated, TRUE);
            gated.gate = host_random((RpDtype)d, 2 * n, 1);
            cuda_hold_to_host(compute_gates, &gated, TRUE);
            gated.gate = host_random((RpDtype)d, 301, 1);
            cuda_hold_to_host(compute_row_gates, &gated, TRUE);
        }
}

/* Norms around 1, and a part of each head rotated. */
typedef struct {
    Array x, weight, dy, cosines, sines;
    const gint32 *positions;
} Rotated;

static void
compute_rotated(const Side *side, const void *inputs, Outputs *outputs)
{
    const Rotated *rotated = inputs;
    const RpDtype dtype = rotated->x.dtype;
    const size_t T = 33, H = 3, D = 20, n = T * H * D;
    const Array zeros = host_random(RP_DTYPE_FP32, D, 0);
    RpNormRopeArgs args = {.dtype = dtype,
                           .tokens = T,
                           .heads = H,
                           .head_size = D,
                           .rotary = 6,
                           .epsilon = 1e-6f,
                           .shift = 1,
                           .positions = cuda_copy_in(side, rotated->positions, T, sizeof(gint32)),
                           .cosines = cuda_in(side, rotated->cosines),
                           .sines = cuda_in(side, rotated->sines),
                           .x = cuda_in(side, rotated->x),
                           .weight = cuda_in(side, rotated->weight),
                           .y = cuda_out(side, dtype, n),
                           .rstd = cuda_scratch(side, T * H, sizeof(float)),
                           .dy = cuda_in(side, rotated->dy),
                           .dx = cuda_out(side, dtype, n),
                           .d_weight = cuda_in(side, zeros)};

    args.workspace = cuda_workspace(side, side->kernels->norm_rope_backward_workspace(&args));
    side->kernels->norm_rope_forward(side->stream, &args);
    side->kernels->norm_rope_backward(side->stream, &args);
    outputs->arrays[0] = cuda_result(side, dtype, n, args.y);
    outputs->arrays[1] = cuda_result(side, dtype, n, args.dx);
    outputs->arrays[2] = cuda_result(side, RP_DTYPE_FP32, D, args.d_weight);
    for (guint i = 0; i < 3; i++)
        outputs->terms[i] = i < 2 ? D : T * H;
    /* rounded to the storage between norm and rope, too */
    outputs->slack[0] = outputs->slack[1] = dtype == RP_DTYPE_BF16   ? 0x1p-5
                                            : dtype == RP_DTYPE_FP16 ? 0x1p-8
                                                                     : 0;
}

RP_TEST(norms_around_one_and_rotates_a_part_of_a_head)
{
    gint32 positions[33];

    for (gint32 t = 0; t < 33; t++)
        positions[t] = 32 - t;
    for (guint d = 0; d < RP_N_DTYPES; d++) {
        const Rotated rotated = {.x = host_random((RpDtype)d, 33 * 3 * 20, 1),
                                 .weight = host_random((RpDtype)d, 20, 0.2),
                                 .dy = host_random((RpDtype)d, 33 * 3 * 20, 1),
                                 .cosines = host_random(RP_DTYPE_FP32, 33 * 3, 1),
                                 .sines = host_random(RP_DTYPE_FP32, 33 * 3, 1),
                                 .positions = positions};

        cuda_hold_to_host(compute_rotated, &rotated, TRUE);
    }
}

RP_TEST_FIXTURE(cuda_setup, cuda_teardown)
RP_TEST_NEEDS(cuda_available())
