#include "tests/exec-cuda/cuda-fixture.h"

#include <math.h>

#include "exec/model/rope-table.h"

#define POSITIONS 97

typedef struct {
    size_t tokens, heads, head_size;
    const int32_t *positions;
    const float *cosines, *sines; /* [POSITIONS,head_size/2] */
    gboolean in_place;
    gboolean one_by_one; /* rmsnorm and rope instead */
    size_t gap;          /* heads by which the rows of x, dy and dx are wider; dx in place */
    Array x, weight, dy, rstd, d_weight;
} Inputs;

static RpNormRopeArgs
fused_args(const Side *side, const Inputs *inputs)
{
    const size_t table = POSITIONS * inputs->head_size / 2;

    return (RpNormRopeArgs){
        .dtype = inputs->x.dtype,
        .tokens = inputs->tokens,
        .heads = inputs->heads,
        .head_size = inputs->head_size,
        .row_heads = inputs->gap > 0 ? inputs->heads + inputs->gap : 0,
        .epsilon = 1e-6f,
        .positions = cuda_copy_in(side, inputs->positions, inputs->tokens, sizeof(int32_t)),
        .cosines = cuda_copy_in(side, inputs->cosines, table, sizeof(float)),
        .sines = cuda_copy_in(side, inputs->sines, table, sizeof(float)),
        .weight = cuda_in(side, inputs->weight)};
}

static RpRmsnormArgs
norm_args(const RpNormRopeArgs *args)
{
    return (RpRmsnormArgs){.dtype = args->dtype,
                           .rows = args->tokens * args->heads,
                           .n = args->head_size,
                           .epsilon = args->epsilon,
                           .x = args->x,
                           .weight = args->weight,
                           .y = args->y,
                           .rstd = args->rstd,
                           .dy = args->dx,
                           .dx = args->dx,
                           .d_weight = args->d_weight};
}

static RpRopeArgs
rope_args(const RpNormRopeArgs *args, const void *x, void *y)
{
    return (RpRopeArgs){.dtype = args->dtype,
                        .tokens = args->tokens,
                        .heads = args->heads,
                        .head_size = args->head_size,
                        .positions = args->positions,
                        .cosines = args->cosines,
                        .sines = args->sines,
                        .x = x,
                        .y = y};
}

static void
run_forward(const Side *side, const Inputs *inputs, const RpNormRopeArgs *args)
{
    const RpRmsnormArgs norm = norm_args(args);
    const RpRopeArgs rope = rope_args(args, args->y, args->y);

    if (!inputs->one_by_one) {
        side->kernels->norm_rope_forward(side->stream, args);
        return;
    }
    side->kernels->rmsnorm_forward(side->stream, &norm);
    side->kernels->rope_forward(side->stream, &rope);
}

static void
run_backward(const Side *side, const Inputs *inputs, RpNormRopeArgs *args)
{
    RpRmsnormArgs norm = norm_args(args);
    const RpRopeArgs rope = rope_args(args, args->dy, args->dx);

    if (!inputs->one_by_one) {
        args->workspace = cuda_workspace(side, side->kernels->norm_rope_backward_workspace(args));
        side->kernels->norm_rope_backward(side->stream, args);
        return;
    }
    norm.workspace = cuda_workspace(side, side->kernels->rmsnorm_backward_workspace(&norm));
    side->kernels->rope_backward(side->stream, &rope);
    side->kernels->rmsnorm_backward(side->stream, &norm);
}

/* One unit of the storage, of values up to @value: the value between norm and rope may be rounded
 * in the other direction. */
static double
unit_of(RpDtype dtype, double value)
{
    static const double units[RP_N_DTYPES] = {
        [RP_DTYPE_FP32] = 0x1p-23, [RP_DTYPE_BF16] = 0x1p-7, [RP_DTYPE_FP16] = 0x1p-10};

    return units[dtype] * value;
}

/*
 * y: a pair's values between are at most as long as y's pair, sqrt(2) largest; two of them, times a
 * cosine and a sine, make at most 2 largest.
 * dx: g, at most sqrt(2) largest dy, times weight and rstd; and through the mean, in which one in D
 * differs as a rule (four are allowed), times k^2, k = x rstd.
 * d_weight: few values in a thousand are rounded in the other direction: four at once, all of one
 * sign.
 */
static void
allow_for_roundings_between(const Inputs *inputs, Outputs *outputs)
{
    const RpDtype dtype = inputs->x.dtype;
    const double rstd = cuda_largest(inputs->rstd);
    const double k = cuda_largest(inputs->x) * rstd;
    const double g = unit_of(dtype, sqrt(2) * cuda_largest(inputs->dy));
    const double through_mean = fmin(1, 4 / (double)inputs->head_size) * k * k;

    outputs->slack[0] = unit_of(dtype, 2 * cuda_largest(outputs->arrays[0]));
    outputs->slack[2] = g * cuda_largest(inputs->weight) * rstd * (1 + through_mean);
    outputs->slack[3] = 4 * g * k;
}

/* @array as columns of wider rows, and back; NaN between. */
static Array
spread(const Inputs *inputs, Array array)
{
    const size_t size = rp_dtype_size(array.dtype) * inputs->head_size;
    const size_t row = inputs->heads + inputs->gap;
    const Array wide = host_output(array.dtype, inputs->tokens * row * inputs->head_size);

    for (size_t t = 0; t < inputs->tokens; t++)
        memcpy((char *)wide.data + t * row * size,
               (const char *)array.data + t * inputs->heads * size, inputs->heads * size);
    return wide;
}

static Array
gather(const Inputs *inputs, Array wide)
{
    const size_t size = rp_dtype_size(wide.dtype) * inputs->head_size;
    const size_t row = inputs->heads + inputs->gap;
    const Array array = host_output(wide.dtype, inputs->tokens * inputs->heads * inputs->head_size);

    for (size_t t = 0; t < inputs->tokens; t++)
        memcpy((char *)array.data + t * inputs->heads * size,
               (const char *)wide.data + t * row * size, inputs->heads * size);
    return array;
}

static void
compute(const Side *side, const void *data, Outputs *outputs)
{
    const Inputs *inputs = data;
    const RpDtype dtype = inputs->x.dtype;
    const size_t rows = inputs->tokens * inputs->heads;
    const Array wide_x = spread(inputs, inputs->x), wide_dy = spread(inputs, inputs->dy);
    void *x = cuda_in(side, wide_x);
    void *dy = cuda_in(side, wide_dy);
    RpNormRopeArgs args = fused_args(side, inputs);

    args.x = x;
    args.y = inputs->in_place ? x : cuda_out(side, dtype, inputs->x.n);
    args.rstd = cuda_out(side, RP_DTYPE_FP32, rows);
    run_forward(side, inputs, &args);
    outputs->arrays[0] = cuda_result(side, dtype, inputs->x.n, args.y);
    outputs->arrays[1] = cuda_result(side, RP_DTYPE_FP32, rows, args.rstd);

    args.x = cuda_in(side, wide_x);
    args.rstd = cuda_in(side, inputs->rstd);
    args.dy = dy;
    args.dx = inputs->in_place || inputs->gap > 0 ? dy : cuda_out(side, dtype, inputs->x.n);
    args.d_weight = cuda_in(side, inputs->d_weight);
    run_backward(side, inputs, &args);
    outputs->arrays[2] = gather(inputs, cuda_result(side, dtype, wide_dy.n, args.dx));
    outputs->arrays[3] = cuda_result(side, RP_DTYPE_FP32, inputs->head_size, args.d_weight);

    outputs->terms[0] = outputs->terms[1] = outputs->terms[2] = inputs->head_size;
    outputs->terms[3] = rows;
    allow_for_roundings_between(inputs, outputs);
}

static Inputs
make_inputs(RpDtype dtype, size_t tokens, size_t heads, size_t head_size)
{
    const size_t half = head_size / 2;
    const size_t n = tokens * heads * head_size;
    float *frequencies = host_bytes(half * sizeof *frequencies);
    float *cosines = host_bytes(POSITIONS * half * sizeof *cosines);
    float *sines = host_bytes(POSITIONS * half * sizeof *sines);
    int32_t *positions = host_bytes(tokens * sizeof *positions);
    const Inputs inputs = {.tokens = tokens,
                           .heads = heads,
                           .head_size = head_size,
                           .positions = positions,
                           .cosines = cosines,
                           .sines = sines,
                           .x = cuda_random(dtype, n, 1),
                           .weight = host_random(dtype, head_size, 1),
                           .dy = cuda_random(dtype, n, 1),
                           .rstd = host_random(RP_DTYPE_FP32, tokens * heads, 0.1),
                           .d_weight = host_random(RP_DTYPE_FP32, head_size, 1)};

    for (size_t i = 0; i < half; i++)
        frequencies[i] = 1.0f / (float)(i + 1);
    rp_rope_table(frequencies, (guint)head_size, POSITIONS, 1, cosines, sines);
    for (size_t t = 0; t < tokens; t++)
        positions[t] = host_random_below(POSITIONS);
    for (size_t i = 0; i < inputs.rstd.n; i++)
        ((float *)inputs.rstd.data)[i] += 1;
    return inputs;
}

static void
check_size(RpDtype dtype, size_t tokens, size_t heads, size_t head_size)
{
    const guint mark = host_mark();
    Inputs inputs = make_inputs(dtype, tokens, heads, head_size);

    for (guint in_place = 0; in_place < 2; in_place++) {
        inputs.in_place = in_place != 0;
        cuda_hold_to_host(compute, &inputs, TRUE);
    }
    inputs.in_place = FALSE;
    inputs.gap = head_size <= 256 ? 3 : 0;
    if (inputs.gap > 0)
        cuda_hold_to_host(compute, &inputs, TRUE);
    host_free_since(mark);
}

RP_TEST(normalises_and_turns_heads_of_every_size)
{
    /* beside every limit where the kernel changes */
    static const size_t sizes[] = {2, 6, 16, 34, 64, 66, 80, 128, 130, 192, 256, 258, 512, 1030};

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++)
        for (size_t s = 0; s < G_N_ELEMENTS(sizes); s++)
            check_size((RpDtype)dtype, 29, 1 + s % 5, sizes[s]);
}

RP_TEST(adds_gradients_up_over_many_tokens)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        check_size((RpDtype)dtype, 1, 1, 64);
        check_size((RpDtype)dtype, 33003, 3, 8);
        check_size((RpDtype)dtype, 2311, 5, 128);
    }
}

RP_TEST(normalises_and_turns_a_real_model)
{
    check_size(RP_DTYPE_BF16, 2048, 16, 128);
    check_size(RP_DTYPE_FP16, 2048, 8, 128);
}

/* Compares both on the GPU, within the tolerance for the host. */
RP_TEST(equals_norm_and_rope_one_after_the_other)
{
    const Side device = {rp_cuda_kernels(), cuda_stream(), 0};

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        Inputs inputs = make_inputs((RpDtype)dtype, 515, 6, 128);
        Outputs fused = {0};
        Outputs pair = {0};

        compute(&device, &inputs, &fused);
        inputs.one_by_one = TRUE;
        compute(&device, &inputs, &pair);
        cuda_assert_close(&fused, &pair, "one after the other");
    }
}

RP_TEST_FIXTURE(cuda_setup, cuda_teardown)
RP_TEST_NEEDS(cuda_available())
