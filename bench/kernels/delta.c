/*
 * The gated delta rule of heads of 128 in bf16, forward and backward, by sequences and heads of Qwen3.5: 16 key heads,
 * and 16 value heads (0.8B, 2B), 32 (4B, 9B, 35B-A3B) or 48 (27B).
 *
 * TFLOP/s count products in chunks of 64 once, as the cost model does: 2 (3 Dk Dv + 64 (Dk + Dv)) a token and head;
 * backward 2.5 times that.
 *
 *   bench-cuda-kernels delta [--length 4096]
 */
#include <stdio.h>

#include "bench/kernels/kernels.h"

#define KEY_HEADS ((size_t)16)
#define MOST_VALUE_HEADS ((size_t)48)
#define DIM ((size_t)128)
#define MOST_TOKENS ((size_t)32768)

typedef struct {
    const RpBench *bench;
    void (*launch)(RpKernelStream *stream, const RpDeltaArgs *args);
    const RpDeltaArgs *args;
} Run;

static void
launch_once(const void *data)
{
    const Run *run = data;

    run->launch(run->bench->stream, run->args);
}

static void
run(const RpBench *bench, RpDeltaArgs *args, size_t length, size_t sequences)
{
    const RpKernels *kernels = bench->kernels;
    Run passes[] = {{bench, kernels->delta_forward, args}, {bench, kernels->delta_backward, args}};
    const RpBenchRun runs[] = {{launch_once, &passes[0]}, {launch_once, &passes[1]}};
    int32_t starts[16];
    int32_t *device_starts = rp_bench_memory(sizeof starts);
    double ms[2];

    for (size_t s = 0; s <= sequences; s++)
        starts[s] = (int32_t)(s * length);
    rp_bench_must(cudaMemcpy(device_starts, starts, sizeof starts, cudaMemcpyHostToDevice),
                  "cudaMemcpy");
    args->tokens = length * sequences;
    args->sequences = sequences;
    args->max_length = length;
    args->starts = device_starts;
    args->workspace = rp_bench_memory(
        MAX(kernels->delta_forward_workspace(args), kernels->delta_backward_workspace(args)));
    rp_bench_medians_ms(bench, runs, 2, ms);
    for (guint i = 0; i < 2; i++)
        printf("%8zu %6zu %6zu  %-8s %10.3f %8.1f\n", length, sequences, args->value_heads,
               i == 0 ? "forward" : "backward", ms[i],
               (i == 0 ? 1 : 2.5) * 2.0 * (double)(args->tokens * args->value_heads) *
                   (double)(3 * DIM * DIM + 2 * RP_DELTA_CHUNK * DIM) / ms[i] * 1e-9);
    fflush(stdout);
    rp_bench_must(cudaFree(args->workspace), "cudaFree");
    rp_bench_must(cudaFree(device_starts), "cudaFree");
}

gboolean
rp_bench_delta(const RpBench *bench)
{
    static const struct {
        size_t length, sequences, value_heads;
    } shapes[] = {{4096, 1, 16}, {4096, 1, 32}, {4096, 1, 48},
                  {2048, 8, 32}, {4096, 8, 32}, {16384, 1, 32}};
    const size_t columns = (2 * KEY_HEADS + MOST_VALUE_HEADS) * DIM;
    const size_t gates = MOST_TOKENS * MOST_VALUE_HEADS;
    float *sums = rp_bench_memory(2 * MOST_VALUE_HEADS * sizeof *sums);
    RpDeltaArgs args = {.dtype = RP_DTYPE_BF16,
                        .key_heads = KEY_HEADS,
                        .key_dim = DIM,
                        .value_dim = DIM,
                        .qkv = rp_bench_random(RP_DTYPE_BF16, MOST_TOKENS * columns, 1),
                        .b = rp_bench_random(RP_DTYPE_BF16, gates, 1),
                        .a = rp_bench_random(RP_DTYPE_BF16, gates, 1),
                        .log = rp_bench_random(RP_DTYPE_BF16, MOST_VALUE_HEADS, 1),
                        .bias = rp_bench_random(RP_DTYPE_BF16, MOST_VALUE_HEADS, 1),
                        .out = rp_bench_memory(gates * DIM * 2),
                        .d_out = rp_bench_random(RP_DTYPE_BF16, gates * DIM, 1),
                        .d_qkv = rp_bench_memory(MOST_TOKENS * columns * 2),
                        .d_b = rp_bench_memory(gates * 2),
                        .d_a = rp_bench_memory(gates * 2),
                        .d_log = sums,
                        .d_bias = sums + MOST_VALUE_HEADS};

    printf("  length  batch  heads  pass             ms  TFLOP/s\n");
    for (guint i = 0; i < G_N_ELEMENTS(shapes); i++) {
        args.value_heads = args.gate_row = shapes[i].value_heads;
        if (bench->length == 0 || (size_t)bench->length == shapes[i].length)
            run(bench, &args, shapes[i].length, shapes[i].sequences);
    }
    return TRUE;
}
