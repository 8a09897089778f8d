#include "tests/exec-host/host-fixture.h"
#include "tests/exec-host/reference.h"

#include <math.h>

typedef struct {
    const char *what;
    size_t heads, kv_heads, head_size, window;
    int32_t lengths[8]; /* up to the first 0 */
    int32_t gaps[8];    /* first key and end, of each sequence */
} Shape;

static const Shape shapes[] = {
    {"one token", 1, 1, 1, 0, {1}},
    {"group of 1", 3, 3, 7, 0, {67}},
    {"group of 2", 4, 2, 33, 0, {130}},
    {"group of 4", 8, 2, 12, 0, {65}},
    {"one kv head", 5, 1, 65, 0, {63, 2}},
    {"packed", 4, 2, 6, 0, {5, 1, 64, 129, 3, 67}},
    {"window of 1", 2, 1, 5, 1, {70}},
    {"small window, packed", 4, 1, 9, 13, {67, 12, 140}},
    {"window of a block and one", 2, 1, 8, 65, {193}},
    {"window of a block and two", 2, 1, 8, 66, {193}},
    {"window beyond a block", 2, 2, 8, 70, {200, 69}},
    {"window beyond the sequence", 2, 1, 8, 1000, {77}},
    {"gap within a block", 2, 1, 8, 0, {40}, {7, 19}},
    {"gap over blocks, packed", 4, 2, 9, 0, {200, 5, 70, 3}, {70, 150, 0, 0, 64, 68, 1, 2}},
    {"gap of whole blocks", 1, 1, 7, 0, {260}, {64, 192}},
};

/* Sizes, scale and starts. */
static RpAttentionArgs
make_args(const Shape *shape, RpDtype dtype)
{
    int32_t *starts = host_bytes(9 * sizeof *starts);
    RpAttentionArgs args = {.dtype = dtype,
                            .heads = shape->heads,
                            .kv_heads = shape->kv_heads,
                            .head_size = shape->head_size,
                            .window = shape->window,
                            .scale = 1.0f / sqrtf((float)shape->head_size),
                            .starts = starts};

    starts[0] = 0;
    for (size_t s = 0; shape->lengths[s] > 0; s++) {
        starts[s + 1] = starts[s] + shape->lengths[s];
        args.sequences = s + 1;
        args.max_length = MAX(args.max_length, (size_t)shape->lengths[s]);
    }
    args.tokens = (size_t)starts[args.sequences];
    if (shape->gaps[1] > 0)
        args.gaps = shape->gaps;
    return args;
}

static void
check_attention(const Shape *shape, RpDtype dtype)
{
    const RpKernels *kernels = rp_host_kernels();
    RpAttentionArgs args = make_args(shape, dtype);
    const size_t n = args.tokens * args.heads * args.head_size;
    const size_t kv_n = args.tokens * args.kv_heads * args.head_size;
    const Array q = host_random(dtype, n, 2);
    const Array k = host_random(dtype, kv_n, 1);
    const Array v = host_random(dtype, kv_n, 1);
    const Array d_out = host_random(dtype, n, 1);
    const Array out = host_output(dtype, n);
    const Array lse = host_output(RP_DTYPE_FP32, args.heads * args.tokens);
    const Array dq = host_output(dtype, n);
    const Array dk = host_output(dtype, kv_n);
    const Array dv = host_output(dtype, kv_n);
    const size_t terms = args.max_length + args.head_size;
    double *want[] = {host_doubles(n), host_doubles(kv_n), host_doubles(kv_n)};
    double *want_lse = host_doubles(lse.n);

    args.q = q.data;
    args.k = k.data;
    args.v = v.data;
    args.out = out.data;
    args.lse = lse.data;
    args.d_out = d_out.data;
    args.dq = dq.data;
    args.dk = dk.data;
    args.dv = dv.data;
    reference_attention(&args, q.values, k.values, v.values, want[0], want_lse);
    args.workspace = host_workspace(kernels->attention_forward_workspace(&args));
    kernels->attention_forward(NULL, &args);
    host_assert_close(out, want[0], terms, 0);
    host_assert_close(lse, want_lse, terms, 0);

    reference_attention_backward(&args, q.values, k.values, v.values, d_out.values, want[0],
                                 want[1], want[2]);
    args.workspace = host_workspace(kernels->attention_backward_workspace(&args));
    kernels->attention_backward(NULL, &args);
    /* delta is of the stored output: one more rounding */
    host_assert_close(dq, want[0], terms, 1);
    host_assert_close(dk, want[1], terms * args.heads / args.kv_heads, 1);
    host_assert_close(dv, want[2], terms * args.heads / args.kv_heads, 0);
}

/* Whether the first @heads of each token of @wide, @row a token, are those of @array. */
static gboolean
are_columns(const RpAttentionArgs *args, const void *wide, size_t row, Array array, size_t heads)
{
    const size_t head = args->head_size * rp_dtype_size(args->dtype);

    for (size_t t = 0; t < args->tokens; t++)
        if (memcmp((const char *)wide + t * row * head, (const char *)array.data + t * heads * head,
                   heads * head) != 0)
            return FALSE;
    return TRUE;
}

/* v a column of wider rows, dq, dk and dv columns of one matrix: the same bits. */
RP_TEST(gives_the_same_bits_of_columns)
{
    const RpKernels *kernels = rp_host_kernels();
    const Shape shape = {"", 4, 2, 12, 30, {70, 5}};

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        RpAttentionArgs args = make_args(&shape, (RpDtype)dtype);
        const size_t T = args.tokens, D = args.head_size, row = args.heads + 2 * args.kv_heads;
        const size_t head = D * rp_dtype_size(args.dtype);
        const Array v = host_random(args.dtype, T * args.kv_heads * D, 1);
        const Array wide = host_output(args.dtype, T * row * D);
        const Array d_wide = host_output(args.dtype, T * row * D);
        const Array d_out = host_random(args.dtype, T * args.heads * D, 1);
        const Array out[2] = {host_output(args.dtype, d_out.n), host_output(args.dtype, d_out.n)};
        const Array d[3] = {host_output(args.dtype, d_out.n), host_output(args.dtype, v.n),
                            host_output(args.dtype, v.n)};
        char *columns = d_wide.data;

        args.q = host_random(args.dtype, d_out.n, 2).data;
        args.k = host_random(args.dtype, v.n, 1).data;
        args.lse = host_output(RP_DTYPE_FP32, args.heads * T).data;
        args.d_out = d_out.data;
        for (size_t t = 0; t < T; t++)
            memcpy((char *)wide.data + (t * row + 1) * head,
                   (char *)v.data + t * args.kv_heads * head, args.kv_heads * head);
        for (guint i = 0; i < 2; i++) {
            args.row_heads = i == 0 ? 0 : row;
            args.v = i == 0 ? v.data : (char *)wide.data + head;
            args.out = out[i].data;
            args.dq = i == 0 ? d[0].data : columns;
            args.dk = i == 0 ? d[1].data : columns + args.heads * head;
            args.dv = i == 0 ? d[2].data : columns + (args.heads + args.kv_heads) * head;
            args.workspace = host_workspace(kernels->attention_forward_workspace(&args));
            kernels->attention_forward(NULL, &args);
            args.workspace = host_workspace(kernels->attention_backward_workspace(&args));
            kernels->attention_backward(NULL, &args);
        }
        host_assert_same(out[1], out[0]);
        assert_true(are_columns(&args, args.dq, row, d[0], args.heads));
        assert_true(are_columns(&args, args.dk, row, d[1], args.kv_heads));
        assert_true(are_columns(&args, args.dv, row, d[2], args.kv_heads));
    }
}

RP_TEST(attends_in_every_shape)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++)
        for (size_t i = 0; i < G_N_ELEMENTS(shapes); i++)
            check_attention(&shapes[i], (RpDtype)dtype);
}

RP_TEST(stands_scores_of_any_size)
{
    /* the running maximum rises from block to block; exp of a score would overflow */
    const RpKernels *kernels = rp_host_kernels();
    const Shape shape = {"", 1, 1, 1, 0, {200}};
    RpAttentionArgs args = make_args(&shape, RP_DTYPE_FP32);
    const Array q = host_random(RP_DTYPE_FP32, 200, 0);
    const Array k = host_copy(q);
    const Array v = host_random(RP_DTYPE_FP32, 200, 1);
    const Array out = host_output(RP_DTYPE_FP32, 200);
    const Array lse = host_output(RP_DTYPE_FP32, 200);

    for (size_t i = 0; i < 200; i++) {
        ((float *)q.data)[i] = 10;
        ((float *)k.data)[i] = (float)i * 20 - 2000;
    }
    args.q = q.data;
    args.k = k.data;
    args.v = v.data;
    args.out = out.data;
    args.lse = lse.data;
    args.workspace = host_workspace(kernels->attention_forward_workspace(&args));
    kernels->attention_forward(NULL, &args);
    host_assert_close(out, v.values, 1, 0);
    assert_true(((float *)lse.data)[199] == 19800.0f);
}

RP_TEST_FIXTURE(host_setup, host_teardown)
