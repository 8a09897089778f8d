/*
 * Causal attention on the GPU: medians by CUDA events, in TFLOP/s.
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

#include "exec/cuda/attention.h"
#include "exec/model/dtype.h"

#define HEADS ((size_t)16)
#define KV_HEADS ((size_t)8)
#define D ((size_t)128)
#define MOST_TOKENS ((size_t)32768)
#define WARM_UP 5
#define REPEATS 31

typedef cudaError_t (*Launcher)(const RpCudaAttention *args, cudaStream_t stream);

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
time_ms(Launcher launch, const RpCudaAttention *args)
{
    cudaEvent_t start, end;
    float times[REPEATS];

    must(cudaEventCreate(&start));
    must(cudaEventCreate(&end));
    for (guint i = 0; i < WARM_UP; i++)
        must(launch(args, NULL));
    for (guint i = 0; i < REPEATS; i++) {
        must(cudaEventRecord(start, NULL));
        must(launch(args, NULL));
        must(cudaEventRecord(end, NULL));
        must(cudaEventSynchronize(end));
        must(cudaEventElapsedTime(&times[i], start, end));
    }
    must(cudaEventDestroy(start));
    must(cudaEventDestroy(end));
    qsort(times, REPEATS, sizeof *times, compare);
    return (double)times[REPEATS / 2];
}

static void
run(RpCudaAttention *args, size_t length, size_t sequences)
{
    const double forward = 2.0 * (double)length * (double)length * (double)(D * HEADS * sequences);
    int32_t starts[16];
    int32_t *device_starts = room(sizeof starts);
    double forward_ms, backward_ms;

    for (size_t s = 0; s <= sequences; s++)
        starts[s] = (int32_t)(s * length);
    must(cudaMemcpy(device_starts, starts, sizeof starts, cudaMemcpyHostToDevice));
    args->tokens = length * sequences;
    args->sequences = sequences;
    args->max_length = length;
    args->starts = device_starts;
    forward_ms = time_ms(rp_cuda_attention_forward, args);
    backward_ms = time_ms(rp_cuda_attention_backward, args);
    printf("%8zu %6zu %11.3f %8.1f %12.3f %8.1f\n", length, sequences, forward_ms,
           forward / forward_ms * 1e-9, backward_ms, 2.5 * forward / backward_ms * 1e-9);
    must(cudaFree(device_starts));
}

int
main(void)
{
    const size_t n = MOST_TOKENS * HEADS * D, kv_n = MOST_TOKENS * KV_HEADS * D;
    GRand *random = g_rand_new_with_seed(20261120);
    int count = 0;
    RpCudaAttention args = {.dtype = (int)RP_DTYPE_BF16,
                            .tokens = MOST_TOKENS,
                            .heads = HEADS,
                            .kv_heads = KV_HEADS,
                            .head_size = D,
                            .scale = 1.0f / sqrtf((float)D)};

    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
        return 77;
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
    args.workspace = room(rp_cuda_attention_backward_workspace(&args));
    printf("  length  batch  forward ms  TFLOP/s  backward ms  TFLOP/s\n");
    run(&args, 2048, 8);
    run(&args, 8192, 2);
    run(&args, 32768, 1);
    return 0;
}
