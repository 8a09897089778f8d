/*
 * A mixture of experts composed of kernels, forward and backward, against transformers in fp32
 * (fixtures/make-experts.py): the choices of the router, and norm-wise relative errors of the output
 * and of every gradient. Matmuls are one an expert.
 */
#include "tests/exec-host/host-fixture.h"

#include <math.h>

#include "exec/safetensors/safetensors.h"

#define TOLERANCE 2e-6

typedef struct {
    const char *file;
    size_t T, C, E, k, m;
    gboolean among_chosen;
    RpExpertGlu form; /* CLAMPED: with biases, matrices [in,out] */
} Case;

typedef struct {
    const RpKernels *kernels;
    const Case *c;
    RpSafetensors *file;
    int32_t *offsets, *rows, *assigned;
    void *workspace;
} Block;

static float *
floats(size_t n)
{
    return host_bytes(n * sizeof(float));
}

static const void *
get(const Block *b, const char *name)
{
    const RpSafetensor *tensor = rp_safetensors_find(b->file, name);

    return tensor != NULL ? tensor->data : NULL;
}

static void
check_close(const Block *b, const char *name, const float *got)
{
    const RpSafetensor *tensor = rp_safetensors_find(b->file, name);
    const float *want;
    double error = 0, norm = 0;

    assert_non_null(tensor);
    want = tensor->data;
    for (size_t i = 0; i < tensor->elements; i++) {
        error += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        norm += (double)want[i] * (double)want[i];
    }
    if (!(sqrt(error / norm) <= TOLERANCE))
        fail_msg("%s, %s: relative error %.3g", b->c->file, name, sqrt(error / norm));
}

static void
sizes_of(const Block *b, const char *name, size_t *out, size_t *in)
{
    const gboolean down = strstr(name, "down") != NULL;

    *out = down ? b->c->C : 2 * b->c->m;
    *in = down ? b->c->m : b->c->C;
}

/* y = x W_e^T + bias_e, expert by expert */
static float *
forward(const Block *b, const char *name, const char *bias_name, const float *x)
{
    const gboolean transposed = b->c->form == RP_EXPERT_CLAMPED;
    const float *weight = get(b, name), *bias = get(b, bias_name);
    size_t out, in;
    float *y;

    sizes_of(b, name, &out, &in);
    y = floats(b->c->T * b->c->k * out);
    for (size_t e = 0; e < b->c->E; e++) {
        const size_t first = (size_t)b->offsets[e];

        b->kernels->matmul(NULL, &(RpMatmulArgs){.form = transposed ? RP_MATMUL_NN : RP_MATMUL_NT,
                                                 .m = (size_t)b->offsets[e + 1] - first,
                                                 .n = out,
                                                 .k = in,
                                                 .a = x + first * in,
                                                 .b = weight + e * out * in,
                                                 .c = y + first * out,
                                                 .bias = bias != NULL ? bias + e * out : NULL,
                                                 .workspace = b->workspace});
    }
    return y;
}

/* Returns dy W_e. */
static float *
to_input(const Block *b, const char *name, const float *dy)
{
    const gboolean transposed = b->c->form == RP_EXPERT_CLAMPED;
    const float *weight = get(b, name);
    size_t out, in;
    float *dx;

    sizes_of(b, name, &out, &in);
    dx = floats(b->c->T * b->c->k * in);
    for (size_t e = 0; e < b->c->E; e++) {
        const size_t first = (size_t)b->offsets[e];

        b->kernels->matmul(NULL, &(RpMatmulArgs){.form = transposed ? RP_MATMUL_NT : RP_MATMUL_NN,
                                                 .m = (size_t)b->offsets[e + 1] - first,
                                                 .n = in,
                                                 .k = out,
                                                 .a = dy + first * out,
                                                 .b = weight + e * out * in,
                                                 .c = dx + first * in,
                                                 .workspace = b->workspace});
    }
    return dx;
}

/* Checks the gradient of a stack of matrices. */
static void
check_weights(const Block *b, const char *name, const char *gradient, const float *dy,
              const float *x)
{
    const gboolean transposed = b->c->form == RP_EXPERT_CLAMPED;
    size_t out, in;
    float *d_weight;

    sizes_of(b, name, &out, &in);
    d_weight = floats(b->c->E * out * in);
    memset(d_weight, 0, b->c->E * out * in * sizeof(float));
    for (size_t e = 0; e < b->c->E; e++) {
        const size_t first = (size_t)b->offsets[e];
        const float *dys = dy + first * out, *xs = x + first * in;

        b->kernels->matmul(NULL, &(RpMatmulArgs){.form = RP_MATMUL_TN,
                                                 .m = transposed ? in : out,
                                                 .n = transposed ? out : in,
                                                 .k = (size_t)b->offsets[e + 1] - first,
                                                 .a = transposed ? xs : dys,
                                                 .b = transposed ? dys : xs,
                                                 .c = d_weight + e * out * in,
                                                 .accumulate = TRUE,
                                                 .workspace = b->workspace});
    }
    check_close(b, gradient, d_weight);
}

static void
check_bias(const Block *b, const char *gradient, size_t n, const float *dy, const float *weights)
{
    const size_t R = b->c->T * b->c->k;
    float *d_bias = floats(b->c->E * n);
    RpExpertBiasArgs args = {.rows = R,
                             .experts = b->c->E,
                             .n = n,
                             .offsets = b->offsets,
                             .dy = dy,
                             .weights = weights,
                             .assigned = b->assigned,
                             .d_bias = d_bias};

    memset(d_bias, 0, b->c->E * n * sizeof(float));
    args.workspace = host_workspace(b->kernels->expert_bias_backward_workspace(&args));
    b->kernels->expert_bias_backward(NULL, &args);
    check_close(b, gradient, d_bias);
}

/* Logits, and their choices: [T,k]. */
static RpRouteArgs
route(Block *b)
{
    const size_t T = b->c->T, E = b->c->E, R = T * b->c->k;
    float *logits = floats(T * E);
    RpRouteArgs args = {.tokens = T,
                        .experts = E,
                        .choices = b->c->k,
                        .among_chosen = b->c->among_chosen,
                        .logits = logits,
                        .chosen = host_bytes(R * sizeof(int32_t)),
                        .weights = floats(R),
                        .d_logits = logits};
    RpSortRowsArgs sort = {T, E, b->c->k};

    b->kernels->matmul(NULL, &(RpMatmulArgs){.form = RP_MATMUL_NT,
                                             .m = T,
                                             .n = E,
                                             .k = b->c->C,
                                             .a = get(b, "x"),
                                             .b = get(b, "router.weight"),
                                             .c = logits,
                                             .bias = get(b, "router.bias"),
                                             .workspace = b->workspace});
    check_close(b, "logits", logits);
    b->kernels->route_forward(NULL, &args);
    assert_memory_equal(args.chosen, get(b, "chosen"), R * sizeof(int32_t));
    check_close(b, "weights", args.weights);
    sort.chosen = args.chosen;
    sort.offsets = b->offsets = host_bytes((E + 1) * sizeof(int32_t));
    sort.rows = b->rows = host_bytes(R * sizeof(int32_t));
    sort.assigned = b->assigned = host_bytes(R * sizeof(int32_t));
    b->kernels->sort_rows(NULL, &sort);
    return args;
}

static float *
gather(const Block *b, const float *x)
{
    float *y = floats(b->c->T * b->c->k * b->c->C);

    b->kernels->gather_rows(
        NULL,
        &(RpGatherRowsArgs){
            .tokens = b->c->T, .choices = b->c->k, .n = b->c->C, .rows = b->rows, .x = x, .y = y});
    return y;
}

static void
combine(const Block *b, const float *x, const float *weights, const float *residual, float *y)
{
    b->kernels->combine_rows(NULL, &(RpCombineRowsArgs){.tokens = b->c->T,
                                                        .choices = b->c->k,
                                                        .n = b->c->C,
                                                        .rows = b->rows,
                                                        .x = x,
                                                        .weights = weights,
                                                        .residual = residual,
                                                        .y = y});
}

/* Gradients of the router; adds its part to @dx. */
static void
check_router(const Block *b, const RpRouteArgs *routed, float *dx)
{
    const size_t T = b->c->T, C = b->c->C, E = b->c->E;
    float *d_weight = floats(E * C), *d_bias = floats(E);

    b->kernels->route_backward(NULL, routed);
    b->kernels->matmul(NULL, &(RpMatmulArgs){.form = RP_MATMUL_TN,
                                             .m = E,
                                             .n = C,
                                             .k = T,
                                             .a = routed->d_logits,
                                             .b = get(b, "x"),
                                             .c = d_weight,
                                             .workspace = b->workspace});
    check_close(b, "grad.router.weight", d_weight);
    if (b->c->form == RP_EXPERT_CLAMPED) {
        RpBiasArgs bias = {.tokens = T, .n = E, .dy = routed->d_logits, .d_bias = d_bias};

        memset(d_bias, 0, E * sizeof *d_bias);
        bias.workspace = host_workspace(b->kernels->bias_backward_workspace(&bias));
        b->kernels->bias_backward(NULL, &bias);
        check_close(b, "grad.router.bias", d_bias);
    }
    b->kernels->matmul(NULL, &(RpMatmulArgs){.form = RP_MATMUL_NN,
                                             .m = T,
                                             .n = C,
                                             .k = E,
                                             .a = routed->d_logits,
                                             .b = get(b, "router.weight"),
                                             .c = dx,
                                             .accumulate = TRUE,
                                             .workspace = b->workspace});
}

static void
check_block(Block *b)
{
    const Case *c = b->c;
    const size_t R = c->T * c->k;
    const gboolean biased = c->form == RP_EXPERT_CLAMPED;
    RpRouteArgs routed = route(b);
    float *x = gather(b, get(b, "x"));
    float *z = forward(b, "experts.gate_up_proj", "experts.gate_up_proj_bias", x);
    float *act = floats(R * c->m), *d_weights = floats(R), *y = floats(c->T * c->C);
    RpExpertGluArgs glu = {.rows = R,
                           .m = c->m,
                           .form = c->form,
                           .alpha = 1.702f,
                           .limit = 7,
                           .z = z,
                           .act = act,
                           .choices = c->k,
                           .n = c->C,
                           .assigned = b->assigned,
                           .weights = routed.weights,
                           .chosen = routed.chosen,
                           .bias = get(b, "experts.down_proj_bias"),
                           .dy = get(b, "dy"),
                           .dz = z,
                           .d_weights = d_weights};
    float *dy, *g;

    b->kernels->expert_glu_forward(NULL, &glu);
    combine(b, forward(b, "experts.down_proj", "experts.down_proj_bias", act), routed.weights, NULL,
            y);
    check_close(b, "y", y);

    dy = gather(b, get(b, "dy"));
    g = to_input(b, "experts.down_proj", dy);
    glu.g = glu.product = g;
    b->kernels->expert_glu_backward(NULL, &glu);
    check_weights(b, "experts.down_proj", "grad.experts.down_proj", dy, g);
    check_weights(b, "experts.gate_up_proj", "grad.experts.gate_up_proj", z, x);
    if (biased) {
        check_bias(b, "grad.experts.down_proj_bias", c->C, dy, routed.weights);
        check_bias(b, "grad.experts.gate_up_proj_bias", 2 * c->m, z, NULL);
    }
    combine(b, to_input(b, "experts.gate_up_proj", z), NULL, NULL, y);
    routed.d_weights = d_weights;
    check_router(b, &routed, y);
    check_close(b, "dx", y);
}

static void
check_case(const Case *c)
{
    char *path = rp_test_source_path(c->file);
    GError *error = NULL;
    Block b = {.kernels = rp_host_kernels(), .c = c, .workspace = host_bytes(1 << 20)};

    b.file = rp_safetensors_open(path, &error);
    g_free(path);
    rp_assert_no_error(error);
    check_block(&b);
    rp_safetensors_free(b.file);
}

RP_TEST(equals_qwen3_moe_of_transformers)
{
    check_case(&(Case){"tests/exec-host/fixtures/experts-qwen3.safetensors", 23, 20, 6, 3, 13, TRUE,
                       RP_EXPERT_SILU});
}

RP_TEST(equals_qwen3_moe_without_norm_topk_prob)
{
    check_case(&(Case){"tests/exec-host/fixtures/experts-softmax.safetensors", 23, 20, 5, 2, 13,
                       FALSE, RP_EXPERT_SILU});
}

RP_TEST(equals_gpt_oss_of_transformers)
{
    check_case(&(Case){"tests/exec-host/fixtures/experts-gpt-oss.safetensors", 29, 18, 7, 4, 11,
                       TRUE, RP_EXPERT_CLAMPED});
}

RP_TEST_FIXTURE(host_setup, host_teardown)
