#include "tests/exec-cuda/cuda-fixture.h"

#include <math.h>

#include "exec/cuda/attention/variants.h"

typedef struct {
    RpDtype dtype;
    size_t heads, kv_heads, head_size, window;
    size_t sequences;
    int32_t lengths[4];
    float scale;               /* 0: 1 / sqrt(D) */
    RpAttentionChoice forward; /* on the device */
    guint variant;             /* not 0: backward by the variant before, where it can */
    gboolean columns; /* v, dq, dk and dv are those of two matrices of heads + 2 kv_heads a token */
    int32_t gaps[8];  /* RpAttentionArgs.gaps, if the first sequence has one */
} Shape;

typedef struct {
    Array q, k, v, d_out;
} Inputs;

/* out, lse, dq, dk, dv */
#define N_OUTPUTS 5

typedef struct {
    Array arrays[N_OUTPUTS];
} Results;

static size_t
tokens_of(const Shape *shape)
{
    size_t tokens = 0;

    for (size_t s = 0; s < shape->sequences; s++)
        tokens += (size_t)shape->lengths[s];
    return tokens;
}

static Inputs
random_inputs(const Shape *shape)
{
    const size_t row = shape->head_size * tokens_of(shape);

    return (Inputs){cuda_random(shape->dtype, row * shape->heads, 2),
                    cuda_random(shape->dtype, row * shape->kv_heads, 1),
                    cuda_random(shape->dtype, row * shape->kv_heads, 1),
                    cuda_random(shape->dtype, row * shape->heads, 1)};
}

static Array
as_floats(Array array)
{
    const Array floats = host_output(RP_DTYPE_FP32, array.n);

    rp_dtype_to_float(array.dtype, array.data, floats.data, array.n);
    return floats;
}

static void
differentiate(const Side *side, const Shape *shape, const RpAttentionArgs *args)
{
    if (side->stream == NULL || shape->variant == 0 ||
        !rp_cuda_backward_variant_can((RpBackwardVariant)(shape->variant - 1), args)) {
        side->kernels->attention_backward(side->stream, args);
        return;
    }
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(
        rp_cuda_attention_backward_by((RpBackwardVariant)(shape->variant - 1), args, NULL),
        cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
}

/* @array as columns of rows of heads + 2 kv_heads, from head @first on; zeros between. */
static Array
spread(const Shape *shape, Array array, size_t heads, size_t first)
{
    const size_t row = shape->heads + 2 * shape->kv_heads, tokens = tokens_of(shape);
    const size_t size = rp_dtype_size(array.dtype) * shape->head_size;
    const Array wide = host_output(array.dtype, tokens * row * shape->head_size);

    memset(wide.data, 0, tokens * row * size);
    for (size_t t = 0; t < tokens; t++)
        memcpy((char *)wide.data + (t * row + first) * size,
               (const char *)array.data + t * heads * size, heads * size);
    return wide;
}

static Array
gather(const Shape *shape, Array wide, size_t heads, size_t first)
{
    const size_t row = shape->heads + 2 * shape->kv_heads, tokens = tokens_of(shape);
    const size_t size = rp_dtype_size(wide.dtype) * shape->head_size;
    const Array array = host_output(wide.dtype, tokens * heads * shape->head_size);

    for (size_t t = 0; t < tokens; t++)
        memcpy((char *)array.data + t * heads * size,
               (const char *)wide.data + (t * row + first) * size, heads * size);
    return array;
}

/* Columns of one matrix, in place of arrays without gaps. Returns: the gradients' matrix */
static void *
use_columns(const Side *side, const Shape *shape, Array v, RpAttentionArgs *args)
{
    const size_t row = shape->heads + 2 * shape->kv_heads;
    const size_t head = shape->head_size * rp_dtype_size(args->dtype);
    const Array wide = spread(shape, v, shape->kv_heads, row - shape->kv_heads);
    char *d = cuda_out(side, args->dtype, wide.n);

    args->row_heads = row;
    args->v = (char *)cuda_in(side, wide) + (row - shape->kv_heads) * head;
    args->dq = d;
    args->dk = d + shape->heads * head;
    args->dv = d + (shape->heads + shape->kv_heads) * head;
    return d;
}

/* Forward, then backward from its out and lse. @out_side: where `out` goes, for its own shift. */
static Results
attend(const Side *side, const Side *out_side, const Shape *shape, const Inputs *inputs)
{
    const RpDtype dtype = inputs->q.dtype;
    const size_t n = inputs->q.n, kv_n = inputs->k.n;
    int32_t starts[5] = {0};
    RpAttentionArgs args = {.dtype = dtype,
                            .tokens = tokens_of(shape),
                            .sequences = shape->sequences,
                            .heads = shape->heads,
                            .kv_heads = shape->kv_heads,
                            .head_size = shape->head_size,
                            .window = shape->window,
                            .scale = shape->scale > 0 ? shape->scale
                                                      : 1.0f / sqrtf((float)shape->head_size),
                            .q = cuda_in(side, inputs->q),
                            .k = cuda_in(side, inputs->k),
                            .v = cuda_in(side, inputs->v),
                            .d_out = cuda_in(side, inputs->d_out),
                            .out = cuda_out(out_side, dtype, n),
                            .lse = cuda_out(side, RP_DTYPE_FP32, n / shape->head_size),
                            .dq = cuda_out(side, dtype, n),
                            .dk = cuda_out(side, dtype, kv_n),
                            .dv = cuda_out(side, dtype, kv_n)};

    const void *d = shape->columns ? use_columns(side, shape, inputs->v, &args) : NULL;

    for (size_t s = 0; s < shape->sequences; s++) {
        starts[s + 1] = starts[s] + shape->lengths[s];
        args.max_length = MAX(args.max_length, (size_t)shape->lengths[s]);
    }
    args.starts = cuda_copy_in(side, starts, shape->sequences + 1, sizeof *starts);
    if (shape->gaps[1] > 0)
        args.gaps = cuda_copy_in(side, shape->gaps, 2 * shape->sequences, sizeof *shape->gaps);
    args.choice = side->stream != NULL ? shape->forward : RP_ATTENTION_BUILTIN;
    args.workspace = cuda_workspace(side, side->kernels->attention_forward_workspace(&args));
    side->kernels->attention_forward(side->stream, &args);
    args.workspace = cuda_workspace(side, side->kernels->attention_backward_workspace(&args));
    differentiate(side, shape, &args);
    if (shape->columns) {
        const Array all = cuda_result(side, dtype, n + 2 * kv_n, d);

        return (Results){{cuda_result(side, dtype, n, args.out),
                          cuda_result(side, RP_DTYPE_FP32, n / shape->head_size, args.lse),
                          gather(shape, all, shape->heads, 0),
                          gather(shape, all, shape->kv_heads, shape->heads),
                          gather(shape, all, shape->kv_heads, shape->heads + shape->kv_heads)}};
    }
    return (Results){{cuda_result(side, dtype, n, args.out),
                      cuda_result(side, RP_DTYPE_FP32, n / shape->head_size, args.lse),
                      cuda_result(side, dtype, n, args.dq), cuda_result(side, dtype, kv_n, args.dk),
                      cuda_result(side, dtype, kv_n, args.dv)}};
}

/* The host's, of the same inputs as fp32: its out is not rounded. */
static Results
attend_on_host(const Shape *shape, const Inputs *inputs)
{
    const Side host = {rp_host_kernels(), NULL, 0};
    const Inputs floats = {as_floats(inputs->q), as_floats(inputs->k), as_floats(inputs->v),
                           as_floats(inputs->d_out)};

    return attend(&host, &host, shape, &floats);
}

static Results
attend_on_device(const Shape *shape, const Inputs *inputs, size_t shift, size_t out_shift)
{
    const Side device = {rp_cuda_kernels(), cuda_stream(), shift};
    const Side out_side = {rp_cuda_kernels(), cuda_stream(), out_shift};

    return attend(&device, &out_side, shape, inputs);
}

/* Roundings to the storage before the last: P (out, dv), the gradient of scores and delta's stored
 * out (dq, dk). Four times the terms: host and device both err, and errors go with the root. */
static void
assert_close(const Shape *shape, const Results *got, const Results *want)
{
    static const double roundings[N_OUTPUTS] = {1, 0, 2, 2, 1};
    size_t terms = shape->head_size;

    for (size_t s = 0; s < shape->sequences; s++)
        terms = MAX(terms, shape->head_size + (size_t)shape->lengths[s]);
    for (guint i = 0; i < N_OUTPUTS; i++) {
        const size_t group = i < 3 ? 1 : shape->heads / shape->kv_heads;
        double *values = host_doubles(want->arrays[i].n);

        for (size_t j = 0; j < want->arrays[i].n; j++)
            values[j] = host_value(want->arrays[i], j);
        host_assert_close(got->arrays[i], values, 4 * terms * group, roundings[i]);
    }
}

static void
assert_same(const Results *a, const Results *b)
{
    for (guint i = 0; i < N_OUTPUTS; i++)
        host_assert_same(a->arrays[i], b->arrays[i]);
}

/* All kernels of @shape's variants against the host, and each against itself. */
static void
hold_variants(Shape *shape)
{
    const Inputs inputs = random_inputs(shape);
    const Results want = attend_on_host(shape, &inputs);

    for (shape->variant = 0; shape->variant <= RP_N_BACKWARD_VARIANTS; shape->variant++) {
        const Results got = attend_on_device(shape, &inputs, 0, 0);
        const Results again = attend_on_device(shape, &inputs, 0, 0);

        assert_close(shape, &got, &want);
        assert_same(&again, &got);
    }
}

/* One dtype and head size, which stand in the state: all lengths and windows. */
static void
check_shapes(void **state)
{
    static const struct {
        size_t n;
        int32_t lengths[4];
    } packs[] = {{1, {1}}, {3, {7, 1, 130}}, {1, {64}}, {3, {129, 255, 300}}, {1, {1000}}};
    static const size_t windows[] = {0, 1, 50, 128};
    Shape shape = *(const Shape *)*state;
    size_t group = 1;

    for (size_t p = 0; p < G_N_ELEMENTS(packs); p++) {
        for (size_t w = 0; w < G_N_ELEMENTS(windows); w++, group = group == 8 ? 1 : 2 * group) {
            shape.kv_heads = group <= 2 ? 2 : 1;
            shape.heads = shape.kv_heads * group;
            shape.window = windows[(w + p) % G_N_ELEMENTS(windows)];
            shape.sequences = packs[p].n;
            memcpy(shape.lengths, packs[p].lengths, sizeof shape.lengths);
            hold_variants(&shape);
        }
    }
}

/* Gaps within a tile, over several, of whole blocks, and none. */
RP_TEST(attends_in_branches)
{
    static const size_t sizes[] = {40, 64, 128, 256};

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++) {
            Shape shape = {(RpDtype)dtype,
                           4,
                           2,
                           sizes[i],
                           0,
                           4,
                           {700, 90, 60, 1024},
                           0,
                           .gaps = {129, 600, 20, 52, 0, 0, 256, 768}};
            hold_variants(&shape);
        }
    }
}

RP_TEST(attends_over_a_long_sequence)
{
    Shape shape = {RP_DTYPE_BF16, 4, 2, 128, 0, 2, {3000, 77}, 0};

    for (shape.window = 0; shape.window <= 1000; shape.window += 1000)
        hold_variants(&shape);
}

/* Tokens @first .. of an array with @heads. */
static Array
part_of(Array array, size_t first, size_t tokens, size_t row)
{
    const Array part = host_output(array.dtype, tokens * row);
    const size_t size = rp_dtype_size(array.dtype);

    memcpy(part.data, (const char *)array.data + first * row * size, part.n * size);
    return part;
}

/* @n of an array's @heads, from @first on. */
static Array
heads_of(Array array, size_t heads, size_t first, size_t n, size_t tokens, size_t head_size)
{
    const Array part = host_output(array.dtype, tokens * n * head_size);
    const size_t size = rp_dtype_size(array.dtype) * head_size;

    for (size_t t = 0; t < tokens; t++)
        memcpy((char *)part.data + t * n * size,
               (const char *)array.data + (t * heads + first) * size, n * size);
    return part;
}

/* The gradients of one query and of one key of the only head, from the device's lse. */
static void
assert_close_at(const Shape *shape, const Inputs *inputs, const Results *got, size_t token)
{
    const size_t D = shape->head_size, length = (size_t)shape->lengths[0];
    const float *lse = got->arrays[1].data;
    const double scale = 1.0 / sqrt((double)D);
    double *dq = host_doubles(D), *dk = host_doubles(D), *dv = host_doubles(D);
    Array part[3];

    for (size_t d = 0; d < D; d++)
        dq[d] = dk[d] = dv[d] = 0;
    for (size_t other = 0; other < length; other++) {
        const size_t i = MAX(token, other), j = MIN(token, other); /* query i sees key j */
        double score = 0, weight = 0, delta = 0, y;

        for (size_t d = 0; d < D; d++) {
            const double d_out = host_value(inputs->d_out, i * D + d);

            score += host_value(inputs->q, i * D + d) * host_value(inputs->k, j * D + d);
            weight += d_out * host_value(inputs->v, j * D + d);
            delta += d_out * host_value(got->arrays[0], i * D + d);
        }
        score = exp(scale * score - lse[i]);
        y = scale * score * (weight - delta);
        for (size_t d = 0; d < D; d++) {
            if (i == token)
                dq[d] += y * host_value(inputs->k, j * D + d);
            if (j == token) {
                dk[d] += y * host_value(inputs->q, i * D + d);
                dv[d] += score * host_value(inputs->d_out, i * D + d);
            }
        }
    }
    for (guint a = 0; a < 3; a++) {
        part[a] = part_of(got->arrays[2 + a], token, 1, D);
        host_assert_close(part[a], a == 0 ? dq : a == 1 ? dk : dv, 4 * (D + length), 2);
    }
}

/* Beyond 32,768 tokens; sums of dq in several launches, if there are several heads. */
RP_TEST(differentiates_65536_tokens)
{
    static const size_t tokens[] = {0, 1, 127, 128, 32767, 32768, 40001, 65471, 65472, 65534};
    Shape shape = {RP_DTYPE_BF16, 1, 1, 128, 0, 1, {65535}, 0};
    const Inputs inputs = random_inputs(&shape);

    for (shape.variant = 1; shape.variant <= RP_N_BACKWARD_VARIANTS; shape.variant++) {
        const Results got = attend_on_device(&shape, &inputs, 0, 0);
        const Results again = attend_on_device(&shape, &inputs, 0, 0);

        for (size_t t = 0; t < G_N_ELEMENTS(tokens); t++)
            assert_close_at(&shape, &inputs, &got, tokens[t]);
        assert_same(&again, &got);
    }
}

/* Every head's gradients are those that it has alone, in one launch and in several. */
RP_TEST(differentiates_more_heads_than_a_launch_has)
{
    Shape shape = {RP_DTYPE_BF16, 12, 3, 128, 300, 1, {30000}, 0};
    const size_t row = shape.head_size, tokens = (size_t)shape.lengths[0];
    const Inputs inputs = random_inputs(&shape);
    Results got;

    shape.variant = 1 + RP_BACKWARD_MMA;
    got = attend_on_device(&shape, &inputs, 0, 0);
    for (size_t kv = 0; kv < shape.kv_heads; kv++) {
        const Shape alone = {RP_DTYPE_BF16,           4, 1, 128, 300, 1, {30000}, 0,
                             .variant = shape.variant};
        const Inputs part = {heads_of(inputs.q, shape.heads, kv * 4, 4, tokens, row),
                             heads_of(inputs.k, shape.kv_heads, kv, 1, tokens, row),
                             heads_of(inputs.v, shape.kv_heads, kv, 1, tokens, row),
                             heads_of(inputs.d_out, shape.heads, kv * 4, 4, tokens, row)};
        const Results want = attend_on_device(&alone, &part, 0, 0);

        host_assert_same(heads_of(got.arrays[2], shape.heads, kv * 4, 4, tokens, row),
                         want.arrays[2]);
        for (guint a = 3; a < N_OUTPUTS; a++)
            host_assert_same(heads_of(got.arrays[a], shape.kv_heads, kv, 1, tokens, row),
                             want.arrays[a]);
    }
}

/* Tests the kernels of every variant, and cuDNN. */
RP_TEST(gives_the_same_bits_of_columns)
{
    static const size_t sizes[] = {40, 64, 128, 256};

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++) {
            for (guint cudnn_too = 0; cudnn_too < 2; cudnn_too++) {
                Shape shape = {(RpDtype)dtype, 4, 2, sizes[i], 0, 2, {256, 256}, 0};
                const Inputs inputs = random_inputs(&shape);

                if (cudnn_too)
                    shape.forward = RP_ATTENTION_CUDNN;
                for (shape.variant = 0; shape.variant <= (cudnn_too ? 0 : RP_N_BACKWARD_VARIANTS);
                     shape.variant++) {
                    Results apart, columns;

                    shape.columns = FALSE;
                    apart = attend_on_device(&shape, &inputs, 0, 0);
                    shape.columns = TRUE;
                    columns = attend_on_device(&shape, &inputs, 0, 0);
                    assert_same(&columns, &apart);
                }
            }
        }
    }
}

RP_TEST(gives_the_same_bits_wherever_out_is)
{
    static const size_t sizes[] = {64, 80, 128, 256};

    for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++) {
        const Shape shape = {RP_DTYPE_FP16, 4, 2, sizes[i], 100, 2, {129, 70}, 0};
        const Inputs inputs = random_inputs(&shape);
        const Results got = attend_on_device(&shape, &inputs, 0, 0);
        const Results moved = attend_on_device(&shape, &inputs, 0, 1);

        assert_same(&moved, &got);
    }
}

RP_TEST(takes_arrays_at_any_multiple_of_their_element)
{
    static const size_t sizes[] = {64, 80, 128, 256};

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++) {
            const Shape shape = {(RpDtype)dtype, 4, 2, sizes[i], 0, 2, {129, 70}, 0};
            const Inputs inputs = random_inputs(&shape);
            const Results want = attend_on_host(&shape, &inputs);
            const Results moved = attend_on_device(&shape, &inputs, 1, 1);

            assert_close(&shape, &moved, &want);
        }
    }
}

static void
assert_same_alone(const Shape *shape, const Inputs *inputs, const Results *packed, size_t first,
                  int32_t length)
{
    const size_t row = shape->heads * shape->head_size;
    const size_t kv_row = shape->kv_heads * shape->head_size;
    const size_t rows[N_OUTPUTS] = {row, 0, row, kv_row, kv_row};
    const size_t tokens = (size_t)length;
    const Inputs part = {
        part_of(inputs->q, first, tokens, row), part_of(inputs->k, first, tokens, kv_row),
        part_of(inputs->v, first, tokens, kv_row), part_of(inputs->d_out, first, tokens, row)};
    Shape alone = *shape;
    Results got;

    alone.sequences = 1;
    alone.lengths[0] = length;
    got = attend_on_device(&alone, &part, 0, 0);
    for (guint i = 0; i < N_OUTPUTS; i++)
        if (i != 1)
            host_assert_same(got.arrays[i], part_of(packed->arrays[i], first, tokens, rows[i]));
    for (size_t h = 0; h < shape->heads; h++)
        assert_memory_equal((float *)got.arrays[1].data + h * tokens,
                            (float *)packed->arrays[1].data + h * tokens_of(shape) + first,
                            tokens * sizeof(float));
}

RP_TEST(gives_a_sequence_the_same_bits_alone_and_packed)
{
    static const size_t sizes[] = {40, 64, 128, 256};

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++) {
            Shape shape = {(RpDtype)dtype, 4, 2, sizes[i], 90, 4, {70, 1, 333, 128}, 0};
            const Inputs inputs = random_inputs(&shape);

            for (shape.variant = 1; shape.variant <= RP_N_BACKWARD_VARIANTS; shape.variant++) {
                const Results packed = attend_on_device(&shape, &inputs, 0, 0);
                size_t first = 0;

                for (size_t s = 0; s < shape.sequences; s++) {
                    assert_same_alone(&shape, &inputs, &packed, first, shape.lengths[s]);
                    first += (size_t)shape.lengths[s];
                }
            }
        }
    }
}

RP_TEST(stands_scores_of_any_size)
{
    /* every key outweighs all before it, by exp(128): query i is left with v[i] */
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        const Shape shape = {(RpDtype)dtype, 1, 1, 64, 0, 1, {200}, 1};
        Inputs inputs = random_inputs(&shape);
        Results got;

        for (size_t i = 0; i < inputs.q.n; i++) {
            const float q = i % 64 == 0 ? 128 : 0, k = i % 64 == 0 ? (float)(i / 64) : 0;
            const size_t at = i * rp_dtype_size(shape.dtype);

            rp_dtype_from_float(shape.dtype, &q, (char *)inputs.q.data + at, 1);
            rp_dtype_from_float(shape.dtype, &k, (char *)inputs.k.data + at, 1);
        }
        got = attend_on_device(&shape, &inputs, 0, 0);
        /* scores near 25,000 leave exp(0) a thousandth off, above and below the line alike */
        for (size_t i = 0; i < inputs.v.n; i++)
            assert_true(fabs(host_value(got.arrays[0], i) - host_value(inputs.v, i)) <=
                        0x1p-7 * fabs(host_value(inputs.v, i)));
        for (size_t i = 0; i < 200; i++)
            assert_true(fabsf(((const float *)got.arrays[1].data)[i] - 128.0f * (float)i) <=
                        1e-6f * 128.0f * (float)i);
    }
}

/*
 * cuDNN. Whether it runs is counted in the stream; where it has to and does not, the test says why.
 */
static gboolean
have_cudnn(void)
{
    return rp_cuda_kernels()->has_attention(RP_ATTENTION_CUDNN);
}

static void
assert_runs(guint64 before, guint64 runs, const Shape *shape)
{
    const guint64 got = rp_cuda_stream_cudnn_runs(cuda_stream()) - before;

    if (got == runs)
        return;
    print_error("%s, %zu/%zu heads of %zu, %zu x %d, window %zu: cuDNN ran %" G_GUINT64_FORMAT
                " times, not %" G_GUINT64_FORMAT ": %s\n",
                rp_dtype_name(shape->dtype), shape->heads, shape->kv_heads, shape->head_size,
                shape->sequences, shape->lengths[0], shape->window, got, runs,
                rp_cuda_stream_cudnn_reason(cuda_stream()));
    fail();
}

/* @runs: of cuDNN, each time */
static void
check_cudnn(Shape shape, guint64 runs, size_t shift)
{
    guint64 before = rp_cuda_stream_cudnn_runs(cuda_stream());
    const Inputs inputs = random_inputs(&shape);
    const Results want = attend_on_host(&shape, &inputs);
    Results got, again;

    shape.forward = RP_ATTENTION_CUDNN;
    got = attend_on_device(&shape, &inputs, shift, shift);
    assert_runs(before, runs, &shape);
    assert_close(&shape, &got, &want);
    before = rp_cuda_stream_cudnn_runs(cuda_stream());
    again = attend_on_device(&shape, &inputs, shift, shift);
    assert_runs(before, runs, &shape);
    assert_same(&again, &got);
}

static const Shape dense[] = {
    {RP_DTYPE_BF16, 4, 2, 128, 0, 2, {256, 256}, 0},
    {RP_DTYPE_FP16, 4, 2, 128, 0, 2, {256, 256}, 0},
    {RP_DTYPE_BF16, 2, 2, 128, 0, 1, {1024}, 0},
    {RP_DTYPE_FP16, 8, 1, 64, 0, 3, {128, 128, 128}, 0},
    {RP_DTYPE_BF16, 3, 3, 64, 0, 4, {384, 384, 384, 384}, 0},
    {RP_DTYPE_BF16, 4, 1, 64, 0, 1, {640}, 0.3f},
    {RP_DTYPE_BF16, 2, 1, 128, 100, 2, {512, 512}, 0},
    {RP_DTYPE_FP16, 2, 2, 64, 128, 1, {384}, 0},
    {RP_DTYPE_BF16, 2, 2, 128, 1000, 2, {512, 512}, 0},
};

RP_TEST(attends_by_cudnn_to_dense_batches)
{
    if (!have_cudnn())
        skip();
    for (size_t i = 0; i < G_N_ELEMENTS(dense); i++)
        check_cudnn(dense[i], 1, 0);
}

RP_TEST(attends_by_cudnn_to_any_length_from_64)
{
    static const int32_t lengths[] = {64, 65, 100, 129, 1000};

    if (!have_cudnn())
        skip();
    for (size_t i = 0; i < G_N_ELEMENTS(lengths); i++) {
        const Shape shape = {RP_DTYPE_BF16, 4, 2, 128, 0, 2, {lengths[i], lengths[i]}, 0};

        check_cudnn(shape, 1, 0);
    }
}

RP_TEST(leaves_what_cudnn_does_not_do_to_the_built_in_kernels)
{
    static const Shape others[] = {
        {RP_DTYPE_FP32, 2, 1, 64, 0, 2, {128, 128}, 0},
        {RP_DTYPE_BF16, 2, 1, 80, 0, 2, {128, 128}, 0},
        {RP_DTYPE_BF16, 2, 1, 64, 0, 2, {128, 256}, 0},
        {RP_DTYPE_FP16, 4, 2, 128, 100, 4, {70, 1, 333, 128}, 0},
        {RP_DTYPE_FP16, 2, 1, 128, 0, 1, {7}, 0},
        {RP_DTYPE_BF16, 2, 1, 64, 0, 2, {128, 128}, 0, .gaps = {30, 80}},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(others); i++)
        check_cudnn(others[i], 0, 0);
    check_cudnn(dense[0], 0, 1); /* no multiples of 16 bytes */
}

RP_TEST_AT_START(add_shapes)
{
    static Shape shapes[] = {
        {.dtype = RP_DTYPE_FP32, .head_size = 8},   {.dtype = RP_DTYPE_FP32, .head_size = 40},
        {.dtype = RP_DTYPE_FP32, .head_size = 64},  {.dtype = RP_DTYPE_FP32, .head_size = 80},
        {.dtype = RP_DTYPE_BF16, .head_size = 8},   {.dtype = RP_DTYPE_BF16, .head_size = 40},
        {.dtype = RP_DTYPE_BF16, .head_size = 64},  {.dtype = RP_DTYPE_BF16, .head_size = 80},
        {.dtype = RP_DTYPE_FP16, .head_size = 8},   {.dtype = RP_DTYPE_FP16, .head_size = 40},
        {.dtype = RP_DTYPE_FP16, .head_size = 64},  {.dtype = RP_DTYPE_FP16, .head_size = 80},
        {.dtype = RP_DTYPE_FP32, .head_size = 128}, {.dtype = RP_DTYPE_BF16, .head_size = 128},
        {.dtype = RP_DTYPE_FP16, .head_size = 128}, {.dtype = RP_DTYPE_BF16, .head_size = 256},
        {.dtype = RP_DTYPE_FP16, .head_size = 256},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(shapes); i++)
        rp_test_add(g_strdup_printf("attends_in_%s_with_heads_of_%zu",
                                    rp_dtype_name(shapes[i].dtype), shapes[i].head_size),
                    check_shapes, NULL, NULL, &shapes[i]);
}

RP_TEST_FIXTURE(cuda_setup, cuda_teardown)
RP_TEST_NEEDS(cuda_available())
