/*
 * Attention sinks: the kernels in every storage against doubles, and GPT-OSS's attention composed
 * of kernels (YaRN, a window, sinks) against transformers in fp32 (fixtures/make-sinks.py).
 */
#include "tests/exec-host/host-fixture.h"

#include <math.h>

#include "exec/model/rope-table.h"
#include "exec/safetensors/safetensors.h"

#define T 71
#define H 4
#define K 2
#define D 12
#define WINDOW 9

/* ---- the kernels alone ---- */

static void
check_kernels(RpDtype dtype, size_t tokens, size_t heads, size_t head_size, double spread)
{
    const RpKernels *kernels = rp_host_kernels();
    const size_t n = tokens * heads * head_size;
    const Array sinks = host_random(dtype, heads, spread), d_out = host_random(dtype, n, 1);
    const Array before = host_random(dtype, n, 1), out = host_copy(before);
    const Array lse = host_random(RP_DTYPE_FP32, tokens * heads, spread);
    const Array d_sinks = host_random(RP_DTYPE_FP32, heads, 1);
    double *want = host_doubles(n), *want_lse = host_doubles(lse.n), *want_d = host_doubles(heads);
    RpSinkArgs args = {.dtype = dtype,
                       .tokens = tokens,
                       .heads = heads,
                       .head_size = head_size,
                       .sinks = sinks.data,
                       .out = out.data,
                       .lse = lse.data,
                       .d_out = d_out.data,
                       .d_sinks = d_sinks.data};

    for (size_t i = 0; i < tokens * heads; i++) {
        const size_t t = i / heads, h = i % heads;
        const double old = lse.values[h * tokens + t];
        const double most = MAX(old, sinks.values[h]);
        const double joined = most + log(exp(old - most) + exp(sinks.values[h] - most));

        want_lse[h * tokens + t] = joined;
        for (size_t d = 0; d < head_size; d++)
            want[i * head_size + d] = before.values[i * head_size + d] * exp(old - joined);
    }
    kernels->sink_forward(NULL, &args);
    host_assert_close(out, want, 3, 0);
    host_assert_close(lse, want_lse, 3, 0);
    memcpy(want_d, d_sinks.values, heads * sizeof *want_d);
    for (size_t i = 0; i < tokens * heads; i++)
        for (size_t d = 0; d < head_size; d++)
            want_d[i % heads] -=
                exp(sinks.values[i % heads] - host_value(lse, i % heads * tokens + i / heads)) *
                host_value(out, i * head_size + d) * d_out.values[i * head_size + d];
    args.workspace = host_workspace(kernels->sink_backward_workspace(&args));
    kernels->sink_backward(NULL, &args);
    host_assert_close(d_sinks, want_d, tokens * head_size, 0);
}

RP_TEST(join_in_every_storage)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        check_kernels((RpDtype)dtype, 1, 1, 1, 1);
        check_kernels((RpDtype)dtype, 67, 5, 24, 2);
        check_kernels((RpDtype)dtype, 9, 2, 1026, 1);
        check_kernels((RpDtype)dtype, 30, 3, 8, 300); /* exp of either alone would overflow */
    }
}

/* ---- GPT-OSS's attention ---- */

static const float *
find(const RpSafetensors *file, const char *name)
{
    const RpSafetensor *tensor = rp_safetensors_find(file, name);

    assert_non_null(tensor);
    return tensor->data;
}

static float *
copy_of(const RpSafetensors *file, const char *name)
{
    const RpSafetensor *tensor = rp_safetensors_find(file, name);

    assert_non_null(tensor);
    return memcpy(host_bytes(tensor->bytes), tensor->data, tensor->bytes);
}

static void
check_close(const RpSafetensors *file, const char *name, const float *got)
{
    const RpSafetensor *tensor = rp_safetensors_find(file, name);
    const float *want = find(file, name);
    double error = 0, norm = 0;

    for (size_t i = 0; i < tensor->elements; i++) {
        error += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        norm += (double)want[i] * (double)want[i];
    }
    if (!(sqrt(error / norm) <= 1e-6))
        fail_msg("%s: relative error %.3g", name, sqrt(error / norm));
}

static RpRopeArgs
rope_args(float *x, size_t heads)
{
    const RpRope rope = {.type = RP_ROPE_YARN,
                         .theta = 150,
                         .factor = 4,
                         .original_max_positions = 64,
                         .beta_fast = 4,
                         .beta_slow = 0.5,
                         .attention_factor = 0.1 * log(4) + 1};
    float *frequencies = host_bytes(D / 2 * sizeof(float));
    float *cosines = host_bytes(T * D / 2 * sizeof(float));
    float *sines = host_bytes(T * D / 2 * sizeof(float));
    int32_t *positions = host_bytes(T * sizeof(int32_t));

    for (int32_t t = 0; t < T; t++)
        positions[t] = t;
    rp_rope_frequencies(&rope, D, T, frequencies);
    rp_rope_table(frequencies, D, T, rp_rope_scale(&rope), cosines, sines);
    return (RpRopeArgs){.tokens = T,
                        .heads = heads,
                        .head_size = D,
                        .positions = positions,
                        .cosines = cosines,
                        .sines = sines,
                        .x = x,
                        .y = x};
}

static void
turn(float *x, size_t heads, gboolean back)
{
    const RpRopeArgs args = rope_args(x, heads);

    if (back)
        rp_host_kernels()->rope_backward(NULL, &args);
    else
        rp_host_kernels()->rope_forward(NULL, &args);
}

RP_TEST(equal_those_of_gpt_oss)
{
    const RpKernels *kernels = rp_host_kernels();
    char *path = rp_test_source_path("tests/exec-host/fixtures/sinks.safetensors");
    GError *error = NULL;
    RpSafetensors *file = rp_safetensors_open(path, &error);
    const int32_t starts[] = {0, T};
    float d_sinks[H] = {0};

    g_free(path);
    rp_assert_no_error(error);
    float *q = copy_of(file, "q"), *k = copy_of(file, "k"), *d_out = copy_of(file, "d_out");
    RpAttentionArgs attention = {.tokens = T,
                                 .sequences = 1,
                                 .max_length = T,
                                 .heads = H,
                                 .kv_heads = K,
                                 .head_size = D,
                                 .window = WINDOW,
                                 .scale = 1.0f / sqrtf(D),
                                 .starts = starts,
                                 .q = q,
                                 .k = k,
                                 .v = find(file, "v"),
                                 .out = host_bytes(T * H * D * sizeof(float)),
                                 .lse = host_bytes(T * H * sizeof(float)),
                                 .d_out = d_out,
                                 .dq = host_bytes(T * H * D * sizeof(float)),
                                 .dk = host_bytes(T * K * D * sizeof(float)),
                                 .dv = host_bytes(T * K * D * sizeof(float))};
    const RpSinkArgs sinks = {.tokens = T,
                              .heads = H,
                              .head_size = D,
                              .sinks = find(file, "sinks"),
                              .out = attention.out,
                              .lse = attention.lse,
                              .d_out = d_out,
                              .d_sinks = d_sinks,
                              .workspace =
                                  host_workspace(kernels->sink_backward_workspace(&sinks))};

    turn(q, H, FALSE);
    turn(k, K, FALSE);
    attention.workspace = host_workspace(kernels->attention_forward_workspace(&attention));
    kernels->attention_forward(NULL, &attention);
    kernels->sink_forward(NULL, &sinks);
    check_close(file, "out", attention.out);
    kernels->sink_backward(NULL, &sinks);
    attention.workspace = host_workspace(kernels->attention_backward_workspace(&attention));
    kernels->attention_backward(NULL, &attention);
    turn(attention.dq, H, TRUE);
    turn(attention.dk, K, TRUE);
    check_close(file, "d_q", attention.dq);
    check_close(file, "d_k", attention.dk);
    check_close(file, "d_v", attention.dv);
    check_close(file, "d_sinks", d_sinks);
    rp_safetensors_free(file);
}

RP_TEST_FIXTURE(host_setup, host_teardown)
