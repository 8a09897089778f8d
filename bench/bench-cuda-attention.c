/*
 * Causal attention on the GPU, by the built-in kernels and by cuDNN: medians by CUDA events, in
 * TFLOP/s. Where cuDNN does not run, the built-in kernels are timed in its place, and why is said.
 *
 * Counted as others do: forward 4 s^2 D a sequence and head, halved by the mask; backward 2.5 times
 * that, whatever is computed twice. bf16, 16 query and 8 kv heads of 128 (Qwen3-1.7B), 16384 tokens
 * or one sequence, random inputs.
 *
 *   bench-cuda-attention
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <glib.h>

#include "exec/cuda/kernels/kernels.h"

#define HEADS ((size_t)16)
#define KV_HEADS ((size_t)8)
#define D ((size_t)128)
#define MOST_TOKENS ((size_t)32768)
#define WARM_UP 5
#define REPEATS 31

typedef void (*Launcher)(RpKernelStream *stream, const RpAttentionArgs *args);

static void
must(cudaError_t status)
{
    if (status == cudaSuccess)
        return;
    fprintf(stderr, "bench-cuda-attention: %s\n", cudaGetErrorString(status));
    exit(1);
}

static void *
room(size_t bytes)
{
    void *block = NULL;

    must(cudaMalloc(&block, bytes));
    return block;
}

/* About normal, from -3 to 3. */
static void *
random_room(GRand *random, size_t n)
{
    g_autofree guint16 *values = g_new(guint16, n);
    void *block = room(n * sizeof *values);

    for (size_t i = 0; i < n; i++) {
        const double sum = g_rand_double(random) + g_rand_double(random) + g_rand_double(random);

        values[i] = rp_bf16_from_float((float)(2 * sum - 3));
    }
    must(cudaMemcpy(block, values, n * sizeof *values, cudaMemcpyHostToDevice));
    return block;
}

static int
compare(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

/* Median, milliseconds. */
static double
time_ms(RpKernelStream *stream, Launcher launch, const RpAttentionArgs *args)
{
    g_autoptr(GError) error = NULL;
    cudaEvent_t start, end;
    float times[REPEATS];

    must(cudaEventCreate(&start));
    must(cudaEventCreate(&end));
    for (guint i = 0; i < WARM_UP; i++)
        launch(stream, args);
    for (guint i = 0; i < REPEATS; i++) {
        must(cudaEventRecord(start, NULL));
        launch(stream, args);
        must(cudaEventRecord(end, NULL));
        must(cudaEventSynchronize(end));
        must(cudaEventElapsedTime(&times[i], start, end));
    }
    if (!rp_cuda_kernels()->check(stream, &error)) {
        fprintf(stderr, "bench-cuda-attention: %s\n", error->message);
        exit(1);
    }
    must(cudaEventDestroy(start));
    must(cudaEventDestroy(end));
    qsort(times, REPEATS, sizeof *times, compare);
    return (double)times[REPEATS / 2];
}

/* @what: 1 forward, 2.5 backward */
static void
print_pass(RpKernelStream *stream, Launcher launch, const RpAttentionArgs *args, double what)
{
    const double length = (double)args->max_length;
    const double flop = what * 2.0 * length * length * (double)(D * HEADS * args->sequences);
    const guint64 before = rp_cuda_stream_cudnn_runs(stream);
    const double ms = time_ms(stream, launch, args);
    const gboolean ran = rp_cuda_stream_cudnn_runs(stream) - before == WARM_UP + REPEATS;

    printf("%8zu %6zu  %-8s %-8s %10.3f %8.1f", args->max_length, args->sequences,
           rp_attention_name(args->choice), what > 1 ? "backward" : "forward", ms,
           flop / ms * 1e-9);
    if (args->choice == RP_ATTENTION_CUDNN && !ran)
        printf("  built in: %s", rp_cuda_stream_cudnn_reason(stream));
    printf("\n");
}

static void
run(RpKernelStream *stream, RpAttentionArgs *args, size_t length, size_t sequences)
{
    const RpKernels *kernels = rp_cuda_kernels();
    int32_t starts[16];
    int32_t *device_starts = room(sizeof starts);

    for (size_t s = 0; s <= sequences; s++)
        starts[s] = (int32_t)(s * length);
    must(cudaMemcpy(device_starts, starts, sizeof starts, cudaMemcpyHostToDevice));
    args->tokens = length * sequences;
    args->sequences = sequences;
    args->max_length = length;
    args->starts = device_starts;
    for (guint choice = 0; choice < RP_N_ATTENTIONS; choice++) {
        args->choice = (RpAttentionChoice)choice;
        if (!kernels->has_attention(args->choice))
            continue;
        args->workspace = room(MAX(kernels->attention_forward_workspace(args),
                                   kernels->attention_backward_workspace(args)));
        print_pass(stream, kernels->attention_forward, args, 1);
        print_pass(stream, kernels->attention_backward, args, 2.5);
        must(cudaFree(args->workspace));
    }
    must(cudaFree(device_starts));
}

int
main(void)
{
    const size_t n = MOST_TOKENS * HEADS * D, kv_n = MOST_TOKENS * KV_HEADS * D;
    GRand *random = g_rand_new_with_seed(20261120);
    int count = 0;
    g_autoptr(GError) error = NULL;
    RpKernelStream *stream;
    RpAttentionArgs args = {.dtype = RP_DTYPE_BF16,
                            .tokens = MOST_TOKENS,
                            .heads = HEADS,
                            .kv_heads = KV_HEADS,
                            .head_size = D,
                            .scale = 1.0f / sqrtf((float)D)};

    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
        return 77;
    stream = rp_cuda_stream_new(0, NULL, &error);
    if (!stream) {
        fprintf(stderr, "bench-cuda-attention: %s\n", error->message);
        return 1;
    }
    args.q = random_room(random, n);
    args.k = random_room(random, kv_n);
    args.v = random_room(random, kv_n);
    args.d_out = random_room(random, n);
    g_rand_free(random);
    args.out = room(n * 2);
    args.dq = room(n * 2);
    args.dk = room(kv_n * 2);
    args.dv = room(kv_n * 2);
    args.lse = room(MOST_TOKENS * HEADS * sizeof(float));
    printf("  length  batch  by       pass             ms  TFLOP/s\n");
    run(stream, &args, 2048, 8);
    run(stream, &args, 8192, 2);
    run(stream, &args, 32768, 1);
    rp_cuda_stream_free(stream);
    return 0;
}
