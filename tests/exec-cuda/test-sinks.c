#include "tests/exec-cuda/cuda-fixture.h"

typedef struct {
    size_t tokens, heads, head_size;
    Array sinks, out, lse, d_out, d_sinks;
} Inputs;

static void
compute(const Side *side, const void *data, Outputs *outputs)
{
    const Inputs *inputs = data;
    const RpDtype dtype = inputs->out.dtype;
    RpSinkArgs args = {.dtype = dtype,
                       .tokens = inputs->tokens,
                       .heads = inputs->heads,
                       .head_size = inputs->head_size,
                       .sinks = cuda_in(side, inputs->sinks),
                       .out = cuda_in(side, inputs->out),
                       .lse = cuda_in(side, inputs->lse),
                       .d_out = cuda_in(side, inputs->d_out),
                       .d_sinks = cuda_in(side, inputs->d_sinks)};

    args.workspace = cuda_workspace(side, side->kernels->sink_backward_workspace(&args));
    side->kernels->sink_forward(side->stream, &args);
    outputs->arrays[0] = cuda_result(side, dtype, inputs->out.n, args.out);
    outputs->terms[0] = 3;
    outputs->arrays[1] = cuda_result(side, RP_DTYPE_FP32, inputs->lse.n, args.lse);
    outputs->terms[1] = 3;
    args.out = cuda_in(side, inputs->out); /* not the values rounded before */
    args.lse = cuda_in(side, inputs->lse);
    side->kernels->sink_backward(side->stream, &args);
    outputs->arrays[2] = cuda_result(side, RP_DTYPE_FP32, inputs->d_sinks.n, args.d_sinks);
    outputs->terms[2] = inputs->tokens * inputs->head_size;
}

static void
check_size(RpDtype dtype, size_t tokens, size_t heads, size_t head_size)
{
    const Inputs inputs = {tokens,
                           heads,
                           head_size,
                           cuda_random(dtype, heads, 1),
                           cuda_random(dtype, tokens * heads * head_size, 1),
                           cuda_random(RP_DTYPE_FP32, tokens * heads, 1),
                           cuda_random(dtype, tokens * heads * head_size, 1),
                           cuda_random(RP_DTYPE_FP32, heads, 1)};

    cuda_hold_to_host(compute, &inputs, TRUE);
}

RP_TEST(join_heads_of_every_size)
{
    static const size_t sizes[] = {1, 6, 8, 34, 64, 80, 128, 256, 1026};

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++)
        for (size_t s = 0; s < G_N_ELEMENTS(sizes); s++)
            check_size((RpDtype)dtype, 1 + 67 * s, 1 + s, sizes[s]);
}

RP_TEST(join_a_real_model)
{
    check_size(RP_DTYPE_BF16, 4096, 64, 64);
}

RP_TEST_FIXTURE(cuda_setup, cuda_teardown)
RP_TEST_NEEDS(cuda_available())
