/*
 * Every backward kernel against central differences of the double-precision forward:
 * d/dx of sum_i r[i] f(x)[i] is backward's result for dy = r.
 */
#include "tests/exec-host/host-fixture.h"
#include "tests/exec-host/reference.h"

#include <math.h>

#define STEP 1e-5
/* fp32 arithmetic over a few dozen terms; the differences themselves are good to 1e-9 */
#define TOLERANCE 2e-6

/* The forward under test: from the inputs' values, which may be changed, to outputs. */
typedef void (*Forward)(gpointer user_data, double *outputs);

static double
weighted_sum(Forward forward, gpointer user_data, Array r)
{
    double *outputs = host_doubles(r.n);
    double sum = 0;

    forward(user_data, outputs);
    for (size_t i = 0; i < r.n; i++)
        sum += r.values[i] * outputs[i];
    return sum;
}

static void
check_gradient(Array got, Array input, Array r, Forward forward, gpointer user_data)
{
    double *want = host_doubles(input.n);
    double largest = 0;

    for (size_t i = 0; i < input.n; i++) {
        const double value = input.values[i];
        double above, below;

        input.values[i] = value + STEP;
        above = weighted_sum(forward, user_data, r);
        input.values[i] = value - STEP;
        below = weighted_sum(forward, user_data, r);
        input.values[i] = value;
        want[i] = (above - below) / (2 * STEP);
        largest = fmax(largest, fabs(want[i]));
    }
    for (size_t i = 0; i < input.n; i++)
        if (!(fabs(host_value(got, i) - want[i]) <= TOLERANCE * largest))
            fail_msg("element %zu: %.9g, by differences %.9g", i, host_value(got, i), want[i]);
}

static Array
fp32(size_t n)
{
    return host_random(RP_DTYPE_FP32, n, 1);
}

static Array
zeros(size_t n)
{
    return host_random(RP_DTYPE_FP32, n, 0);
}

static Array
output(size_t n)
{
    return host_output(RP_DTYPE_FP32, n);
}

typedef struct {
    size_t m, n, k;
    Array x, weight;
} Linear;

static void
linear_forward(gpointer user_data, double *outputs)
{
    Linear *l = user_data;

    reference_matmul(RP_MATMUL_NT, l->m, l->n, l->k, l->x.values, l->weight.values, outputs, FALSE);
}

RP_TEST(differentiates_a_linear_layer)
{
    const RpKernels *kernels = rp_host_kernels();
    Linear l = {5, 7, 3, fp32(15), fp32(21)};
    const Array dy = fp32(35);
    const Array dx = output(15);
    const Array d_weight = zeros(21);

    kernels->matmul(NULL, &(RpMatmulArgs){RP_MATMUL_NN, 5, 3, 7, dy.data, l.weight.data, dx.data});
    kernels->matmul(NULL, &(RpMatmulArgs){RP_MATMUL_TN, 7, 3, 5, dy.data, l.x.data, d_weight.data,
                                          .accumulate = TRUE});
    check_gradient(dx, l.x, dy, linear_forward, &l);
    check_gradient(d_weight, l.weight, dy, linear_forward, &l);
}

typedef struct {
    Array x, weight;
} Norm;

static void
norm_forward(gpointer user_data, double *outputs)
{
    Norm *norm = user_data;

    reference_rmsnorm(4, 9, 1e-3, norm->x.values, norm->weight.values, outputs);
}

RP_TEST(differentiates_rmsnorm)
{
    const RpKernels *kernels = rp_host_kernels();
    Norm norm = {fp32(36), fp32(9)};
    const Array dy = fp32(36);
    const Array dx = output(36);
    const Array d_weight = zeros(9);
    RpRmsnormArgs args = {.rows = 4,
                          .n = 9,
                          .epsilon = 1e-3f,
                          .x = norm.x.data,
                          .weight = norm.weight.data,
                          .y = output(36).data,
                          .rstd = output(4).data,
                          .dy = dy.data,
                          .dx = dx.data,
                          .d_weight = d_weight.data};

    args.workspace = host_workspace(kernels->rmsnorm_backward_workspace(&args));
    kernels->rmsnorm_forward(NULL, &args);
    kernels->rmsnorm_backward(NULL, &args);
    check_gradient(dx, norm.x, dy, norm_forward, &norm);
    check_gradient(d_weight, norm.weight, dy, norm_forward, &norm);
}

static const int32_t rope_positions[] = {0, 3, 11};

static void
rope_forward(gpointer user_data, double *outputs)
{
    static const double frequencies[] = {1, 0.5, 0.0625};
    Array *x = user_data;

    reference_rope(3, 2, 6, rope_positions, frequencies, 1, x->values, outputs);
}

RP_TEST(differentiates_rope)
{
    static const float frequencies[] = {1, 0.5f, 0.0625f};
    float cosines[12 * 3], sines[12 * 3];
    Array x = fp32(36);
    const Array dy = fp32(36);
    const Array dx = output(36);

    for (size_t i = 0; i < 36; i++) {
        cosines[i] = cosf((float)(i / 3) * frequencies[i % 3]);
        sines[i] = sinf((float)(i / 3) * frequencies[i % 3]);
    }
    rp_host_kernels()->rope_backward(NULL, &(RpRopeArgs){.tokens = 3,
                                                         .heads = 2,
                                                         .head_size = 6,
                                                         .positions = rope_positions,
                                                         .cosines = cosines,
                                                         .sines = sines,
                                                         .x = dy.data,
                                                         .y = dx.data});
    check_gradient(dx, x, dy, rope_forward, &x);
}

typedef struct {
    RpAttentionArgs args;
    Array q, k, v;
} Attention;

static void
attention_forward(gpointer user_data, double *outputs)
{
    Attention *a = user_data;
    double *lse = host_doubles(a->args.heads * a->args.tokens);

    reference_attention(&a->args, a->q.values, a->k.values, a->v.values, outputs, lse);
}

static void
check_attention_gradients(size_t heads, size_t kv_heads, size_t window)
{
    static const int32_t starts[] = {0, 1, 6, 9};
    const RpKernels *kernels = rp_host_kernels();
    const size_t n = 9 * heads * 3;
    const size_t kv_n = 9 * kv_heads * 3;
    Attention a = {.q = fp32(n), .k = fp32(kv_n), .v = fp32(kv_n)};
    const Array d_out = fp32(n);
    const Array dq = output(n);
    const Array dk = output(kv_n);
    const Array dv = output(kv_n);

    a.args = (RpAttentionArgs){.tokens = 9,
                               .sequences = 3,
                               .max_length = 5,
                               .heads = heads,
                               .kv_heads = kv_heads,
                               .head_size = 3,
                               .window = window,
                               .scale = 0.5f,
                               .starts = starts,
                               .q = a.q.data,
                               .k = a.k.data,
                               .v = a.v.data,
                               .out = output(n).data,
                               .lse = output(9 * heads).data,
                               .d_out = d_out.data,
                               .dq = dq.data,
                               .dk = dk.data,
                               .dv = dv.data};
    a.args.workspace = host_workspace(kernels->attention_forward_workspace(&a.args));
    kernels->attention_forward(NULL, &a.args);
    a.args.workspace = host_workspace(kernels->attention_backward_workspace(&a.args));
    kernels->attention_backward(NULL, &a.args);
    check_gradient(dq, a.q, d_out, attention_forward, &a);
    check_gradient(dk, a.k, d_out, attention_forward, &a);
    check_gradient(dv, a.v, d_out, attention_forward, &a);
}

RP_TEST(differentiates_attention)
{
    check_attention_gradients(2, 2, 0);
    check_attention_gradients(4, 2, 0);
    check_attention_gradients(4, 1, 0);
    check_attention_gradients(4, 2, 3);
}

typedef struct {
    Array gate, up;
} Swiglu;

static void
swiglu_forward(gpointer user_data, double *outputs)
{
    Swiglu *s = user_data;

    reference_swiglu(s->gate.n, s->gate.values, s->up.values, outputs);
}

RP_TEST(differentiates_swiglu)
{
    Swiglu s = {host_random(RP_DTYPE_FP32, 23, 3), fp32(23)};
    const Array dy = fp32(23);
    const Array d_gate = output(23);
    const Array d_up = output(23);

    rp_host_kernels()->swiglu_backward(NULL, &(RpSwigluArgs){.n = 23,
                                                             .gate = s.gate.data,
                                                             .up = s.up.data,
                                                             .dy = dy.data,
                                                             .d_gate = d_gate.data,
                                                             .d_up = d_up.data});
    check_gradient(d_gate, s.gate, dy, swiglu_forward, &s);
    check_gradient(d_up, s.up, dy, swiglu_forward, &s);
}

static const int32_t loss_labels[] = {3, RP_LABEL_MASKED, 0, 6};

static void
loss_forward(gpointer user_data, double *outputs)
{
    Array *logits = user_data;

    outputs[0] = reference_cross_entropy(4, 7, logits->values, loss_labels, 1, NULL);
}

RP_TEST(differentiates_cross_entropy)
{
    Array logits = fp32(28);
    Array scale = fp32(1);
    double loss = 0;

    rp_host_kernels()->cross_entropy(
        NULL, &(RpCrossEntropyArgs){RP_DTYPE_FP32, 4, 7, logits.data, loss_labels,
                                    (float)scale.values[0], TRUE, .loss = &loss});
    check_gradient(logits, logits, scale, loss_forward, &logits);
}

RP_TEST_FIXTURE(host_setup, host_teardown)
