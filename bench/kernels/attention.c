/*
 * Causal attention, by the built-in kernels and by cuDNN, and backward by each of its kernel variants
 * (exec/cuda/attention/variants.h), in rotation. Where cuDNN does not run, the built-in kernels are timed in its place,
 * and the reason is printed.
 *
 * TFLOP/s count as usual: forward 4 s^2 D a sequence and head, halved by the mask; backward 2.5 times that, whatever is
 * computed twice. bf16, 16 query and 8 kv heads of 128 (Qwen3-1.7B), or 64, or 256, 16384 tokens or one sequence.
 *
 *   bench-cuda-kernels attention [--length 8192] [--head-size 64] [--variant mma]
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <glib.h>

#include "bench/kernels/kernels.h"
#include "exec/cuda/attention/variants.h"

#define HEADS ((size_t)16)
#define KV_HEADS ((size_t)8)
#define HEAD_SIZE 128
#define MOST_HEAD_SIZE 256
#define MOST_TOKENS ((size_t)32768)

typedef void (*Launcher)(RpKernelStream *stream, const RpAttentionArgs *args);

typedef struct {
    const RpBench *bench;
    Launcher launch; /* NULL: backward by @variant */
    const RpAttentionArgs *args;
    RpBackwardVariant variant;
} Run;

static void
launch_once(const void *data)
{
    const Run *run = data;

    if (run->launch != NULL)
        run->launch(run->bench->stream, run->args);
    else
        rp_bench_must(rp_cuda_attention_backward_by(run->variant, run->args, run->bench->lane),
                      "backward");
}

/* @what: 1 forward, 2.5 backward */
static double
count_flop(const RpAttentionArgs *args, double what)
{
    const double length = (double)args->max_length;

    return what * 2.0 * length * length * (double)(args->head_size * HEADS * args->sequences);
}

/* Runs the backward by all kernel variants whose name contains @name, one after the other. */
static void
print_variants(const RpBench *bench, const RpAttentionArgs *args, const char *name)
{
    Run of_variant[RP_N_BACKWARD_VARIANTS];
    RpBenchRun runs[RP_N_BACKWARD_VARIANTS];
    double ms[RP_N_BACKWARD_VARIANTS];
    guint n = 0;

    for (guint variant = 0; variant < RP_N_BACKWARD_VARIANTS; variant++) {
        if (!rp_cuda_backward_variant_can((RpBackwardVariant)variant, args) ||
            strstr(rp_cuda_backward_variant_name((RpBackwardVariant)variant), name) == NULL)
            continue;
        of_variant[n] = (Run){bench, NULL, args, (RpBackwardVariant)variant};
        runs[n] = (RpBenchRun){launch_once, &of_variant[n]};
        n++;
    }
    rp_bench_medians_ms(bench, runs, n, ms);
    for (guint i = 0; i < n; i++)
        printf("%8zu %6zu  %-8s %-8s %10.3f %8.1f\n", args->max_length, args->sequences,
               rp_cuda_backward_variant_name(of_variant[i].variant), "backward", ms[i],
               count_flop(args, 2.5) / ms[i] * 1e-9);
    fflush(stdout);
}

static void
print_pass(const RpBench *bench, Launcher launch, const RpAttentionArgs *args, double what)
{
    const guint64 before = rp_cuda_stream_cudnn_runs(bench->stream);
    const double ms = rp_bench_median_ms(bench, launch_once, &(Run){bench, launch, args, 0});
    const gboolean ran =
        rp_cuda_stream_cudnn_runs(bench->stream) - before >= RP_BENCH_WARM_UP + RP_BENCH_REPEATS;

    printf("%8zu %6zu  %-8s %-8s %10.3f %8.1f", args->max_length, args->sequences,
           rp_attention_name(args->choice), what > 1 ? "backward" : "forward", ms,
           count_flop(args, what) / ms * 1e-9);
    if (args->choice == RP_ATTENTION_CUDNN && !ran)
        printf("  built in: %s", rp_cuda_stream_cudnn_reason(bench->stream));
    printf("\n");
    fflush(stdout);
}

static void
run(const RpBench *bench, RpAttentionArgs *args, size_t length, size_t sequences)
{
    const RpKernels *kernels = bench->kernels;
    int32_t starts[16];
    int32_t *device_starts = rp_bench_memory(sizeof starts);

    for (size_t s = 0; s <= sequences; s++)
        starts[s] = (int32_t)(s * length);
    rp_bench_must(cudaMemcpy(device_starts, starts, sizeof starts, cudaMemcpyHostToDevice),
                  "cudaMemcpy");
    args->tokens = length * sequences;
    args->sequences = sequences;
    args->max_length = length;
    args->starts = device_starts;
    for (guint choice = 0; choice < RP_N_ATTENTIONS; choice++) {
        args->choice = (RpAttentionChoice)choice;
        if (!kernels->has_attention(args->choice))
            continue;
        args->workspace = rp_bench_memory(MAX(kernels->attention_forward_workspace(args),
                                              kernels->attention_backward_workspace(args)));
        if (bench->variant == NULL) {
            print_pass(bench, kernels->attention_forward, args, 1);
            if (choice == RP_ATTENTION_BUILTIN)
                print_pass(bench, kernels->attention_backward, args, 2.5);
        } else if (choice == RP_ATTENTION_BUILTIN) {
            kernels->attention_forward(bench->stream, args);
        }
        if (choice == RP_ATTENTION_BUILTIN)
            print_variants(bench, args, bench->variant != NULL ? bench->variant : "");
        rp_bench_must(cudaFree(args->workspace), "cudaFree");
    }
    rp_bench_must(cudaFree(device_starts), "cudaFree");
}

gboolean
rp_bench_attention(const RpBench *bench)
{
    static const struct {
        size_t length, sequences;
    } shapes[] = {{2048, 8}, {8192, 2}, {32768, 1}};

    const size_t n = MOST_TOKENS * HEADS * MOST_HEAD_SIZE,
                 kv_n = MOST_TOKENS * KV_HEADS * MOST_HEAD_SIZE;
    const size_t head_size = bench->head_size > 0 ? (size_t)bench->head_size : HEAD_SIZE;
    gboolean found = FALSE;
    RpAttentionArgs args = {
        .dtype = RP_DTYPE_BF16, .tokens = MOST_TOKENS, .heads = HEADS, .kv_heads = KV_HEADS};

    for (guint i = 0; i < G_N_ELEMENTS(shapes); i++)
        found = found || bench->length == 0 || (size_t)bench->length == shapes[i].length;
    if (!found || (head_size != 64 && head_size != 128 && head_size != 256)) {
        fprintf(stderr, "expected a length of 2048, 8192 or 32768, and heads of 64, 128 or 256\n");
        return FALSE;
    }
    args.head_size = head_size;
    args.scale = 1.0f / sqrtf((float)head_size);
    args.q = rp_bench_random(RP_DTYPE_BF16, n, 1);
    args.k = rp_bench_random(RP_DTYPE_BF16, kv_n, 1);
    args.v = rp_bench_random(RP_DTYPE_BF16, kv_n, 1);
    args.d_out = rp_bench_random(RP_DTYPE_BF16, n, 1);
    args.out = rp_bench_memory(n * 2);
    args.dq = rp_bench_memory(n * 2);
    args.dk = rp_bench_memory(kv_n * 2);
    args.dv = rp_bench_memory(kv_n * 2);
    args.lse = rp_bench_memory(MOST_TOKENS * HEADS * sizeof(float));
    printf("  length  batch  by       pass             ms  TFLOP/s\n");
    for (guint i = 0; i < G_N_ELEMENTS(shapes); i++)
        if (bench->length == 0 || (size_t)bench->length == shapes[i].length)
            run(bench, &args, shapes[i].length, shapes[i].sequences);
    return TRUE;
}
