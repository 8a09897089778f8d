/*
 * A whole transformer block composed of kernels, forward and backward, against transformers in fp32
 * (fixtures/make-blocks.py): norm-wise relative error of the output and of every gradient.
 */
#include "tests/exec-host/host-fixture.h"

#include <math.h>

#include "exec/model/rope-table.h"
#include "exec/safetensors/safetensors.h"

/* The worst errors are in gradients of a k bias, which are sums of terms that nearly cancel; all
 * others stay below 1e-6. */
#define TOLERANCE 4e-6

typedef struct {
    const char *file;
    size_t tokens, hidden, heads, kv_heads, head_size, intermediate;
    float epsilon;
    RpRope rope;
} Case;

typedef struct {
    const RpKernels *kernels;
    const Case *c;
    RpSafetensors *file;
    float *cosines, *sines, *rstd;
    int32_t *positions;
    GHashTable *gradients; /* name of the weight -> float * */
    void *workspace;
} Block;

static float *
floats(size_t n)
{
    return host_bytes(n * sizeof(float));
}

static const RpSafetensor *
find(const Block *b, const char *part, const char *name)
{
    g_autofree char *full = g_strconcat(part, name, NULL);

    return rp_safetensors_find(b->file, full);
}

/* NULL if the block has none. */
static const float *
weight_of(const Block *b, const char *layer, const char *name)
{
    const RpSafetensor *tensor = find(b, layer, name);

    return tensor != NULL ? tensor->data : NULL;
}

static float *
gradient_of(const Block *b, const char *layer, const char *name)
{
    const RpSafetensor *tensor = find(b, layer, name);
    float *gradient;

    if (tensor == NULL)
        return NULL;
    gradient = floats(tensor->elements);
    memset(gradient, 0, tensor->bytes);
    g_hash_table_insert(b->gradients, g_strconcat(layer, name, NULL), gradient);
    return gradient;
}

static void
check_close(const Block *b, const char *part, const char *name, const float *got)
{
    const RpSafetensor *tensor = find(b, part, name);
    const float *want;
    double error = 0;
    double norm = 0;

    assert_non_null(tensor);
    want = tensor->data;
    for (size_t i = 0; i < tensor->elements; i++) {
        error += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        norm += (double)want[i] * (double)want[i];
    }
    if (!(sqrt(error / norm) <= TOLERANCE))
        fail_msg("%s%s: relative error %.3g", part, name, sqrt(error / norm));
}

static float *
linear(const Block *b, const char *layer, const float *x, size_t in, size_t out)
{
    const float *bias = weight_of(b, layer, ".bias");
    float *y = floats(b->c->tokens * out);

    b->kernels->matmul(NULL, &(RpMatmulArgs){RP_MATMUL_NT, b->c->tokens, out, in, x,
                                             weight_of(b, layer, ".weight"), y});
    if (bias != NULL)
        b->kernels->bias_forward(
            NULL, &(RpBiasArgs){.tokens = b->c->tokens, .n = out, .bias = bias, .y = y});
    return y;
}

/* dx = or +=; returns dx */
static float *
linear_backward(const Block *b, const char *layer, const float *x, const float *dy, size_t in,
                size_t out, float *dx)
{
    const size_t T = b->c->tokens;
    float *d_weight = gradient_of(b, layer, ".weight");
    float *d_bias = gradient_of(b, layer, ".bias");
    const gboolean accumulate = dx != NULL;

    if (dx == NULL)
        dx = floats(T * in);
    b->kernels->matmul(NULL,
                       &(RpMatmulArgs){RP_MATMUL_NN, T, in, out, dy, weight_of(b, layer, ".weight"),
                                       dx, .accumulate = accumulate});
    b->kernels->matmul(
        NULL, &(RpMatmulArgs){RP_MATMUL_TN, out, in, T, dy, x, d_weight, .accumulate = TRUE});
    if (d_bias != NULL)
        b->kernels->bias_backward(NULL,
                                  &(RpBiasArgs){.tokens = T, .n = out, .dy = dy, .d_bias = d_bias});
    return dx;
}

/* Its rstd is made anew in backward. Without such a weight: x. */
static float *
norm(const Block *b, const char *layer, float *x, size_t rows, size_t n)
{
    float *y;

    if (weight_of(b, layer, ".weight") == NULL)
        return x;
    y = floats(rows * n);
    b->kernels->rmsnorm_forward(NULL, &(RpRmsnormArgs){.rows = rows,
                                                       .n = n,
                                                       .epsilon = b->c->epsilon,
                                                       .x = x,
                                                       .weight = weight_of(b, layer, ".weight"),
                                                       .y = y,
                                                       .rstd = b->rstd});
    return y;
}

static void
norm_backward(const Block *b, const char *layer, float *x, size_t rows, size_t n, float *dy,
              const float *d_residual)
{
    if (weight_of(b, layer, ".weight") == NULL)
        return;
    norm(b, layer, x, rows, n);
    b->kernels->rmsnorm_backward(NULL,
                                 &(RpRmsnormArgs){.rows = rows,
                                                  .n = n,
                                                  .epsilon = b->c->epsilon,
                                                  .x = x,
                                                  .weight = weight_of(b, layer, ".weight"),
                                                  .rstd = b->rstd,
                                                  .dy = dy,
                                                  .d_residual = d_residual,
                                                  .dx = dy,
                                                  .d_weight = gradient_of(b, layer, ".weight"),
                                                  .workspace = b->workspace});
}

static RpRopeArgs
rope_args(const Block *b, float *x, size_t heads)
{
    return (RpRopeArgs){.tokens = b->c->tokens,
                        .heads = heads,
                        .head_size = b->c->head_size,
                        .positions = b->positions,
                        .cosines = b->cosines,
                        .sines = b->sines,
                        .x = x,
                        .y = x};
}

static float *
copy_of(const float *x, size_t n)
{
    return memcpy(floats(n), x, n * sizeof *x);
}

static void
check_block(const Block *b)
{
    const Case *c = b->c;
    const RpKernels *kernels = b->kernels;
    const size_t T = c->tokens;
    const size_t n = T * c->hidden;
    const size_t q_size = c->heads * c->head_size;
    const size_t kv_size = c->kv_heads * c->head_size;
    const size_t m = c->intermediate;
    const int32_t starts[] = {0, (int32_t)T};
    float *x = copy_of(weight_of(b, "x", ""), n);
    float *dy = copy_of(weight_of(b, "dy", ""), n);
    float *s = floats(n), *y = floats(n), *gated = floats(T * m), *d_gate = floats(T * m);
    float *q_raw, *k_raw, *q, *k, *v, *x_normed, *s_normed, *gate, *up, *o, *down, *d;
    RpRopeArgs rope;
    RpAttentionArgs attention = {.tokens = T,
                                 .sequences = 1,
                                 .max_length = T,
                                 .heads = c->heads,
                                 .kv_heads = c->kv_heads,
                                 .head_size = c->head_size,
                                 .scale = 1.0f / sqrtf((float)c->head_size),
                                 .starts = starts,
                                 .out = floats(T * q_size),
                                 .lse = floats(T * c->heads),
                                 .dq = floats(T * q_size),
                                 .dk = floats(T * kv_size),
                                 .dv = floats(T * kv_size),
                                 .workspace = b->workspace};

    x_normed = norm(b, "input_layernorm", x, T, c->hidden);
    q_raw = linear(b, "self_attn.q_proj", x_normed, c->hidden, q_size);
    k_raw = linear(b, "self_attn.k_proj", x_normed, c->hidden, kv_size);
    v = linear(b, "self_attn.v_proj", x_normed, c->hidden, kv_size);
    q = norm(b, "self_attn.q_norm", q_raw, T * c->heads, c->head_size);
    k = norm(b, "self_attn.k_norm", k_raw, T * c->kv_heads, c->head_size);
    rope = rope_args(b, q, c->heads);
    kernels->rope_forward(NULL, &rope);
    rope = rope_args(b, k, c->kv_heads);
    kernels->rope_forward(NULL, &rope);
    attention.q = q;
    attention.k = k;
    attention.v = v;
    kernels->attention_forward(NULL, &attention);
    o = linear(b, "self_attn.o_proj", attention.out, q_size, c->hidden);
    kernels->add(NULL, &(RpElementsArgs){n, o, x, s});
    s_normed = norm(b, "post_attention_layernorm", s, T, c->hidden);
    gate = linear(b, "mlp.gate_proj", s_normed, c->hidden, m);
    up = linear(b, "mlp.up_proj", s_normed, c->hidden, m);
    kernels->swiglu_forward(NULL, &(RpSwigluArgs){.n = T * m, .gate = gate, .up = up, .y = gated});
    down = linear(b, "mlp.down_proj", gated, m, c->hidden);
    kernels->add(NULL, &(RpElementsArgs){n, down, s, y});
    check_close(b, "y", "", y);

    d = linear_backward(b, "mlp.down_proj", gated, dy, m, c->hidden, NULL);
    kernels->swiglu_backward(
        NULL,
        &(RpSwigluArgs){.n = T * m, .gate = gate, .up = up, .dy = d, .d_gate = d_gate, .d_up = d});
    d = linear_backward(b, "mlp.up_proj", s_normed, d, c->hidden, m, NULL);
    d = linear_backward(b, "mlp.gate_proj", s_normed, d_gate, c->hidden, m, d);
    norm_backward(b, "post_attention_layernorm", s, T, c->hidden, d, dy);
    attention.d_out =
        linear_backward(b, "self_attn.o_proj", attention.out, d, q_size, c->hidden, NULL);
    kernels->attention_backward(NULL, &attention);
    rope = rope_args(b, attention.dq, c->heads);
    kernels->rope_backward(NULL, &rope);
    rope = rope_args(b, attention.dk, c->kv_heads);
    kernels->rope_backward(NULL, &rope);
    norm_backward(b, "self_attn.q_norm", q_raw, T * c->heads, c->head_size, attention.dq, NULL);
    norm_backward(b, "self_attn.k_norm", k_raw, T * c->kv_heads, c->head_size, attention.dk, NULL);
    dy = d;
    d = linear_backward(b, "self_attn.q_proj", x_normed, attention.dq, c->hidden, q_size, NULL);
    d = linear_backward(b, "self_attn.k_proj", x_normed, attention.dk, c->hidden, kv_size, d);
    d = linear_backward(b, "self_attn.v_proj", x_normed, attention.dv, c->hidden, kv_size, d);
    norm_backward(b, "input_layernorm", x, T, c->hidden, d, dy);
    check_close(b, "dx", "", d);
}

static size_t
workspace_bytes(const Case *c)
{
    const RpKernels *kernels = rp_host_kernels();
    const RpAttentionArgs attention = {.max_length = c->tokens, .head_size = c->head_size};
    const RpRmsnormArgs norm_args = {.n = c->hidden};
    size_t bytes = kernels->attention_backward_workspace(&attention);

    bytes = MAX(bytes, kernels->attention_forward_workspace(&attention));
    return MAX(bytes, kernels->rmsnorm_backward_workspace(&norm_args));
}

static void
check_case(const Case *c)
{
    char *path = rp_test_source_path(c->file);
    GError *error = NULL;
    Block b = {.kernels = rp_host_kernels(), .c = c};
    GHashTableIter iter;
    gpointer name, gradient;
    float *frequencies = floats(c->head_size / 2);
    guint checked = 0;

    b.file = rp_safetensors_open(path, &error);
    g_free(path);
    rp_assert_no_error(error);
    b.gradients = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    b.cosines = floats(c->tokens * c->head_size / 2);
    b.sines = floats(c->tokens * c->head_size / 2);
    b.rstd = floats(c->tokens * c->heads);
    b.workspace = host_bytes(workspace_bytes(c));
    b.positions = host_bytes(c->tokens * sizeof(int32_t));
    for (size_t t = 0; t < c->tokens; t++)
        b.positions[t] = (int32_t)t;
    rp_rope_frequencies(&c->rope, (guint)c->head_size, (guint)c->tokens, frequencies);
    rp_rope_table(frequencies, (guint)c->head_size, (guint)c->tokens, 1, b.cosines, b.sines);
    check_close(&b, "frequencies", "", frequencies);
    check_block(&b);
    g_hash_table_iter_init(&iter, b.gradients);
    while (g_hash_table_iter_next(&iter, &name, &gradient)) {
        check_close(&b, "grad.", name, gradient);
        checked++;
    }
    /* x, y, dy, dx, frequencies; and each weight with its gradient */
    assert_int_equal(2 * checked + 5, rp_safetensors_count(b.file));
    g_hash_table_unref(b.gradients);
    rp_safetensors_free(b.file);
}

RP_TEST(equals_a_qwen3_block_of_transformers)
{
    static const Case qwen3 = {"tests/exec-host/fixtures/qwen3-block.safetensors",
                               71,
                               20,
                               4,
                               2,
                               6,
                               37,
                               1e-6f,
                               {.theta = 1e6}};

    check_case(&qwen3);
}

RP_TEST(equals_a_llama_block_of_transformers)
{
    static const Case llama = {"tests/exec-host/fixtures/llama-block.safetensors",
                               67,
                               24,
                               4,
                               1,
                               6,
                               29,
                               1e-5f,
                               {.type = RP_ROPE_LLAMA3,
                                .theta = 100,
                                .factor = 8,
                                .low_freq_factor = 1,
                                .high_freq_factor = 4,
                                .original_max_positions = 32}};

    check_case(&llama);
}

RP_TEST_FIXTURE(host_setup, host_teardown)
