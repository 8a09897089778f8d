/* Attention by mma.sync without a GPU (soft-warps.h), against the host's. */
#include "tests/exec-host/host-fixture.h"

#include <math.h>

#include "tests/exec-cuda/soft-warps.h"

typedef struct {
    RpDtype dtype;
    size_t heads, kv_heads, head_size, window, sequences;
    int32_t lengths[3];
    gboolean wide, sinks; /* by backward-wide.cu; behind sinks (RpSinkArgs) */
    int32_t gaps[6];      /* RpAttentionArgs.gaps, if the first sequence has one */
} Shape;

static Array
as_floats(Array array)
{
    const Array floats = host_output(RP_DTYPE_FP32, array.n);

    rp_dtype_to_float(array.dtype, array.data, floats.data, array.n);
    return floats;
}

static double *
values_of(Array array)
{
    double *values = host_doubles(array.n);

    for (size_t i = 0; i < array.n; i++)
        values[i] = host_value(array, i);
    return values;
}

/* d_out . out, [heads,tokens]. */
static float *
sum_products(const RpAttentionArgs *args)
{
    const size_t heads = args->heads, D = args->head_size;
    const float *out = args->out, *d_out = args->d_out;
    float *delta = host_bytes(heads * args->tokens * sizeof *delta);

    for (size_t i = 0; i < heads * args->tokens; i++) {
        const size_t row = (i % args->tokens * heads + i / args->tokens) * D;

        delta[i] = 0;
        for (size_t d = 0; d < D; d++)
            delta[i] += out[row + d] * d_out[row + d];
    }
    return delta;
}

static void
differentiate(const Shape *shape, const RpAttentionArgs *args, const float *delta,
              gboolean backwards)
{
    if (shape->wide)
        soft_attention_backward_wide(args, delta, backwards);
    else if (shape->head_size == 256)
        soft_attention_backward_pairs(args, delta, backwards);
    else
        soft_attention_backward(args, delta, backwards);
}

/* Adds a sink of each head to the forward's result. */
static void
add_sinks(const RpAttentionArgs *args)
{
    const Array sinks = host_random(RP_DTYPE_FP32, args->heads, 2);
    const RpSinkArgs sink = {.dtype = RP_DTYPE_FP32,
                             .tokens = args->tokens,
                             .heads = args->heads,
                             .head_size = args->head_size,
                             .sinks = sinks.data,
                             .out = args->out,
                             .lse = args->lse};

    rp_host_kernels()->sink_forward(NULL, &sink);
}

/* @args: of the storage, whose results on the host are @out and @lse */
static void
check_forward(RpAttentionArgs args, const float *out, const float *lse)
{
    const Array got = host_output(args.dtype, args.tokens * args.heads * args.head_size);
    const Array got_lse = host_output(RP_DTYPE_FP32, args.tokens * args.heads);
    double *values = host_doubles(got.n), *values_of_lse = host_doubles(got_lse.n);

    for (size_t i = 0; i < got.n; i++)
        values[i] = (double)out[i];
    for (size_t i = 0; i < got_lse.n; i++)
        values_of_lse[i] = (double)lse[i];
    args.out = got.data;
    args.lse = got_lse.data;
    soft_attention_forward(&args);
    host_assert_close(got, values, 4 * (args.max_length + args.head_size), 1);
    host_assert_close(got_lse, values_of_lse, 4 * (args.max_length + args.head_size), 0);
}

static void
check_shape(const Shape *shape)
{
    const RpKernels *kernels = rp_host_kernels();
    gint32 starts[4] = {0};
    RpAttentionArgs args = {.dtype = RP_DTYPE_FP32,
                            .sequences = shape->sequences,
                            .heads = shape->heads,
                            .kv_heads = shape->kv_heads,
                            .head_size = shape->head_size,
                            .window = shape->window,
                            .scale = 1 / sqrtf((float)shape->head_size),
                            .starts = starts,
                            .gaps = shape->gaps[1] > 0 ? shape->gaps : NULL};

    for (size_t s = 0; s < shape->sequences; s++) {
        starts[s + 1] = starts[s] + shape->lengths[s];
        args.max_length = MAX(args.max_length, (size_t)shape->lengths[s]);
    }
    args.tokens = (size_t)starts[shape->sequences];

    const size_t n = args.tokens * shape->heads * shape->head_size;
    const size_t kv_n = args.tokens * shape->kv_heads * shape->head_size;
    const Array inputs[] = {host_random(shape->dtype, n, 2), host_random(shape->dtype, kv_n, 1),
                            host_random(shape->dtype, kv_n, 1), host_random(shape->dtype, n, 1)};
    const Array want[] = {host_output(RP_DTYPE_FP32, n), host_output(RP_DTYPE_FP32, kv_n),
                          host_output(RP_DTYPE_FP32, kv_n)};
    Array got[2][3];

    args.q = as_floats(inputs[0]).data;
    args.k = as_floats(inputs[1]).data;
    args.v = as_floats(inputs[2]).data;
    args.d_out = as_floats(inputs[3]).data;
    args.out = host_output(RP_DTYPE_FP32, n).data;
    args.lse = host_output(RP_DTYPE_FP32, args.heads * args.tokens).data;
    args.dq = want[0].data;
    args.dk = want[1].data;
    args.dv = want[2].data;
    args.workspace = host_workspace(kernels->attention_forward_workspace(&args));
    kernels->attention_forward(NULL, &args);
    if (shape->sinks)
        add_sinks(&args);
    args.workspace = host_workspace(kernels->attention_backward_workspace(&args));
    kernels->attention_backward(NULL, &args);

    const float *delta = sum_products(&args);

    args.dtype = shape->dtype;
    args.q = inputs[0].data;
    args.k = inputs[1].data;
    args.v = inputs[2].data;
    args.d_out = inputs[3].data;
    if (!shape->sinks && !shape->wide)
        check_forward(args, args.out, args.lse);
    for (guint order = 0; order < 2; order++) {
        for (guint i = 0; i < 3; i++)
            got[order][i] = host_output(shape->dtype, want[i].n);
        args.dq = got[order][0].data;
        args.dk = got[order][1].data;
        args.dv = got[order][2].data;
        differentiate(shape, &args, delta, order == 1);
    }
    const size_t row = args.heads + 2 * args.kv_heads, head = args.head_size * 2;
    const Array wide = host_output(shape->dtype, args.tokens * row * args.head_size);
    const Array d_wide = host_output(shape->dtype, wide.n);
    const size_t firsts[] = {0, args.heads, args.heads + args.kv_heads};

    for (size_t t = 0; t < args.tokens; t++)
        memcpy((char *)wide.data + (t * row + firsts[2]) * head,
               (const char *)inputs[2].data + t * args.kv_heads * head, args.kv_heads * head);
    args.row_heads = row;
    args.v = (char *)wide.data + firsts[2] * head;
    args.dq = d_wide.data;
    args.dk = (char *)d_wide.data + firsts[1] * head;
    args.dv = (char *)d_wide.data + firsts[2] * head;
    differentiate(shape, &args, delta, FALSE);
    for (guint i = 0; i < 3; i++) { /* columns of one matrix: the same bits */
        const size_t heads = i == 0 ? args.heads : args.kv_heads;

        for (size_t t = 0; t < args.tokens; t++)
            assert_memory_equal((char *)d_wide.data + (t * row + firsts[i]) * head,
                                (char *)got[0][i].data + t * heads * head, heads * head);
    }
    for (guint i = 0; i < 3; i++) {
        const size_t group = i == 0 ? 1 : shape->heads / shape->kv_heads;

        /* P and the gradient of scores are rounded to the storage before they multiply */
        host_assert_close(got[0][i], values_of(want[i]),
                          4 * (args.max_length + args.head_size) * group, i == 2 ? 1 : 2);
        host_assert_same(got[0][i], got[1][i]);
    }
}

RP_TEST(differentiates_with_heads_of_128)
{
    if (RP_TEST_FEW) /* shapes with a window have as many */
        return;
    check_shape(&(Shape){RP_DTYPE_BF16, 2, 1, 128, 0, 2, {200, 77}});
    check_shape(&(Shape){RP_DTYPE_FP16, 1, 1, 128, 0, 1, {129}});
}

RP_TEST(differentiates_with_heads_of_64)
{
    check_shape(&(Shape){RP_DTYPE_BF16, 2, 1, 64, 0, 2, {260, 11}});
    check_shape(&(Shape){RP_DTYPE_FP16, 1, 1, 64, 0, 3, {1, 64, 130}});
}

/* Pairs of warps with 64 keys a block. */
RP_TEST(differentiates_with_heads_of_256)
{
    check_shape(&(Shape){RP_DTYPE_BF16, 2, 1, 256, 50, 1, {150}, .sinks = TRUE});
    if (RP_TEST_FEW)
        return;
    check_shape(&(Shape){RP_DTYPE_BF16, 2, 1, 256, 0, 2, {133, 11}});
    check_shape(&(Shape){RP_DTYPE_FP16, 1, 1, 256, 0, 3, {1, 64, 65}});
}

RP_TEST(differentiates_within_a_window)
{
    check_shape(&(Shape){RP_DTYPE_BF16, 1, 1, 128, 90, 1, {260}});
    check_shape(&(Shape){RP_DTYPE_BF16, 1, 1, 64, 1, 1, {140}});
}

/* One, two and three blocks of keys; their last has one key, half a warp's, and all. */
RP_TEST(differentiates_256_keys_a_block)
{
    check_shape(&(Shape){RP_DTYPE_BF16, 2, 1, 64, 0, 2, {515, 11}, .wide = TRUE});
    if (RP_TEST_FEW) /* fp16 and sinks: those of the window */
        return;
    check_shape(&(Shape){RP_DTYPE_FP16, 1, 1, 64, 0, 3, {1, 256, 257}, .wide = TRUE});
    check_shape(&(Shape){RP_DTYPE_FP16, 2, 2, 64, 0, 1, {273}, .wide = TRUE, .sinks = TRUE});
}

/* Gaps of less than a tile, of whole blocks of keys, of more, and in one sequence of several. */
RP_TEST(attends_and_differentiates_behind_gaps)
{
    check_shape(&(Shape){RP_DTYPE_BF16, 2, 1, 128, 0, 2, {300, 77}, .gaps = {100, 270, 9, 40}});
    check_shape(
        &(Shape){RP_DTYPE_BF16, 2, 1, 64, 0, 2, {600, 40}, .wide = TRUE, .gaps = {200, 570, 7, 9}});
    if (RP_TEST_FEW)
        return;
    check_shape(
        &(Shape){RP_DTYPE_FP16, 1, 1, 64, 0, 3, {420, 1, 40}, .gaps = {128, 384, 0, 0, 1, 39}});
    check_shape(&(Shape){RP_DTYPE_BF16, 2, 1, 256, 0, 2, {230, 70}, .gaps = {31, 200}});
    check_shape(&(Shape){RP_DTYPE_BF16, 1, 1, 128, 0, 1, {400}, .gaps = {1, 399}});
    check_shape(&(Shape){RP_DTYPE_FP16, 1, 1, 256, 0, 1, {256}, .gaps = {64, 192}});
    check_shape(&(Shape){RP_DTYPE_FP16, 1, 1, 64, 0, 1, {520}, .wide = TRUE, .gaps = {256, 512}});
}

/* Windows of less than a tile, of more than a block, and of one that ends within a block. */
RP_TEST(differentiates_256_keys_a_block_within_a_window)
{
    check_shape(&(Shape){RP_DTYPE_BF16, 1, 1, 64, 1, 1, {300}, .wide = TRUE});
    check_shape(&(Shape){RP_DTYPE_FP16, 1, 1, 64, 90, 1, {390}, .wide = TRUE});
    check_shape(&(Shape){RP_DTYPE_BF16, 2, 1, 64, 300, 1, {600}, .wide = TRUE, .sinks = TRUE});
}

RP_TEST_FIXTURE(host_setup, host_teardown)
