/*
 * Tests that the same arguments give the same bits: again, elsewhere in memory, and while other
 * threads do the same; and that a packed sequence gives the same as alone.
 */
#include "tests/exec-host/host-fixture.h"

#define T 150
#define C 67
#define HEADS 4
#define KV_HEADS 2
#define D 10
#define THREADS 4
#define RUNS 6

typedef struct {
    Array x, weight, q, k, v, d_out;
} Inputs;

typedef struct {
    Array product, gradient, out, lse, dq, dk, dv, dx, d_norm;
    void *workspace;
    size_t shift; /* bytes that inputs are moved by */
    char *moved;
} Run;

static Inputs inputs;

static size_t
workspace_bytes(void)
{
    const RpKernels *kernels = rp_host_kernels();
    const RpAttentionArgs attention = {.dtype = RP_DTYPE_BF16,
                                       .max_length = T,
                                       .heads = HEADS,
                                       .kv_heads = KV_HEADS,
                                       .head_size = D};
    const RpMatmulArgs matmul = {.m = T, .n = C, .k = T, .a_dtype = RP_DTYPE_BF16};

    return kernels->attention_forward_workspace(&attention) +
           kernels->attention_backward_workspace(&attention) + kernels->matmul_workspace(&matmul);
}

static Run
new_run(size_t shift)
{
    const size_t q = T * HEADS * D;
    const size_t kv = T * KV_HEADS * D;

    return (Run){.product = host_output(RP_DTYPE_FP32, T * C),
                 .gradient = host_random(RP_DTYPE_FP32, C * C, 0),
                 .out = host_output(RP_DTYPE_BF16, q),
                 .lse = host_output(RP_DTYPE_FP32, T * HEADS),
                 .dq = host_output(RP_DTYPE_BF16, q),
                 .dk = host_output(RP_DTYPE_BF16, kv),
                 .dv = host_output(RP_DTYPE_BF16, kv),
                 .dx = host_output(RP_DTYPE_FP32, T * C),
                 .d_norm = host_random(RP_DTYPE_FP32, C, 0),
                 .workspace = host_bytes(workspace_bytes()),
                 .shift = shift,
                 .moved = host_bytes(T * C * sizeof(float) + 64)};
}

static gpointer
compute(gpointer user_data)
{
    static const int32_t starts[] = {0, 3, 70, T};
    const RpKernels *kernels = rp_host_kernels();
    Run *run = user_data;
    float *x = memcpy(run->moved + run->shift, inputs.x.data, T * C * sizeof(float));
    float rstd[T];
    const RpAttentionArgs attention = {.dtype = RP_DTYPE_BF16,
                                       .tokens = T,
                                       .sequences = 3,
                                       .max_length = T,
                                       .heads = HEADS,
                                       .kv_heads = KV_HEADS,
                                       .head_size = D,
                                       .scale = 0.3f,
                                       .starts = starts,
                                       .q = inputs.q.data,
                                       .k = inputs.k.data,
                                       .v = inputs.v.data,
                                       .out = run->out.data,
                                       .lse = run->lse.data,
                                       .d_out = inputs.d_out.data,
                                       .dq = run->dq.data,
                                       .dk = run->dk.data,
                                       .dv = run->dv.data,
                                       .workspace = run->workspace};
    const RpRmsnormArgs norm = {.rows = T,
                                .n = C,
                                .epsilon = 1e-6f,
                                .x = x,
                                .weight = inputs.weight.data,
                                .y = run->dx.data,
                                .rstd = rstd,
                                .dy = inputs.x.data,
                                .dx = run->dx.data,
                                .d_weight = run->d_norm.data,
                                .workspace = run->workspace};

    kernels->matmul(
        NULL, &(RpMatmulArgs){RP_MATMUL_NT, T, C, C, x, inputs.weight.data, run->product.data});
    for (int step = 0; step < 3; step++)
        kernels->matmul(NULL, &(RpMatmulArgs){RP_MATMUL_TN, C, C, T, x, run->product.data,
                                              run->gradient.data, .accumulate = TRUE});
    kernels->rmsnorm_forward(NULL, &norm);
    kernels->rmsnorm_backward(NULL, &norm);
    kernels->attention_forward(NULL, &attention);
    kernels->attention_backward(NULL, &attention);
    return NULL;
}

static void
assert_same_run(const Run *a, const Run *b)
{
    host_assert_same(a->product, b->product);
    host_assert_same(a->gradient, b->gradient);
    host_assert_same(a->out, b->out);
    host_assert_same(a->lse, b->lse);
    host_assert_same(a->dq, b->dq);
    host_assert_same(a->dk, b->dk);
    host_assert_same(a->dv, b->dv);
    host_assert_same(a->dx, b->dx);
    host_assert_same(a->d_norm, b->d_norm);
}

static void
make_inputs(void)
{
    inputs = (Inputs){.x = host_random(RP_DTYPE_FP32, T * C, 1),
                      .weight = host_random(RP_DTYPE_FP32, C * C, 1),
                      .q = host_random(RP_DTYPE_BF16, T * HEADS * D, 1),
                      .k = host_random(RP_DTYPE_BF16, T * KV_HEADS * D, 1),
                      .v = host_random(RP_DTYPE_BF16, T * KV_HEADS * D, 1),
                      .d_out = host_random(RP_DTYPE_BF16, T * HEADS * D, 1)};
}

RP_TEST(repeats_itself_anywhere_in_memory)
{
    Run first = new_run(0);

    make_inputs();
    compute(&first);
    for (size_t i = 1; i < 16; i++) {
        Run run = new_run(4 * i);

        compute(&run);
        assert_same_run(&first, &run);
    }
}

RP_TEST(repeats_itself_beside_other_threads)
{
    Run alone = new_run(0);

    make_inputs();
    compute(&alone);
    for (int i = 0; i < RUNS; i++) {
        Run runs[THREADS];
        GThread *threads[THREADS];

        for (size_t t = 0; t < THREADS; t++)
            runs[t] = new_run(4 * t);
        for (size_t t = 0; t < THREADS; t++)
            threads[t] = g_thread_new("device", compute, &runs[t]);
        for (size_t t = 0; t < THREADS; t++)
            g_thread_join(threads[t]);
        for (size_t t = 0; t < THREADS; t++)
            assert_same_run(&alone, &runs[t]);
    }
}

RP_TEST(packs_without_changing_a_bit)
{
    static const int32_t alone[] = {0, 80};
    Run run = new_run(0);
    Run other = new_run(0);
    const size_t q = 70 * HEADS * D * 2;
    const size_t kv = 70 * KV_HEADS * D * 2;
    const RpKernels *kernels = rp_host_kernels();
    RpAttentionArgs args;

    make_inputs();
    compute(&run);
    args = (RpAttentionArgs){.dtype = RP_DTYPE_BF16,
                             .tokens = 80,
                             .sequences = 1,
                             .max_length = 80,
                             .heads = HEADS,
                             .kv_heads = KV_HEADS,
                             .head_size = D,
                             .scale = 0.3f,
                             .starts = alone,
                             .q = (char *)inputs.q.data + q,
                             .k = (char *)inputs.k.data + kv,
                             .v = (char *)inputs.v.data + kv,
                             .out = other.out.data,
                             .lse = other.lse.data,
                             .d_out = (char *)inputs.d_out.data + q,
                             .dq = other.dq.data,
                             .dk = other.dk.data,
                             .dv = other.dv.data,
                             .workspace = other.workspace};
    kernels->attention_forward(NULL, &args);
    kernels->attention_backward(NULL, &args);
    assert_memory_equal((char *)run.out.data + q, other.out.data, 80 * HEADS * D * 2);
    assert_memory_equal((char *)run.dq.data + q, other.dq.data, 80 * HEADS * D * 2);
    assert_memory_equal((char *)run.dk.data + kv, other.dk.data, 80 * KV_HEADS * D * 2);
    assert_memory_equal((char *)run.dv.data + kv, other.dv.data, 80 * KV_HEADS * D * 2);
}

RP_TEST_FIXTURE(host_setup, host_teardown)
