/* Kernels of a mixture of experts; integers are the host's. */
#include "tests/exec-cuda/cuda-fixture.h"

#include <math.h>

typedef struct {
    size_t tokens, experts, choices;
    gboolean one; /* all choose the last k experts */
} Shape;

static const Shape shapes[] = {
    {1, 1, 1, FALSE},     {7, 5, 5, FALSE},     {31, 8, 3, FALSE},
    {300, 16, 16, FALSE}, {515, 129, 4, TRUE},  {5003, 256, 8, FALSE},
    {9001, 4, 4, FALSE},  {70001, 33, 1, TRUE}, {3001, 512, 10, FALSE},
};

/* Inputs of one shape: the host computes the choices and the order of rows. */
typedef struct {
    Shape shape;
    RpDtype dtype;
    guint form;
    size_t n, m;
    int32_t *chosen, *offsets, *rows, *assigned;
    Array arrays[5];
} Inputs;

static int32_t *
integers(size_t n)
{
    return host_bytes(n * sizeof(int32_t));
}

static size_t
rows_of(const Inputs *inputs)
{
    return inputs->shape.tokens * inputs->shape.choices;
}

/* Logits in arrays[0]: of few levels if @form has bit 1, so that most tie. */
static Inputs
make_inputs(Shape shape, RpDtype dtype, guint form)
{
    const size_t T = shape.tokens, E = shape.experts, R = T * shape.choices;
    const Array logits = cuda_random(dtype, T * E, 2);
    const Array weights = host_output(dtype, R);
    const Inputs inputs = {.shape = shape,
                           .dtype = dtype,
                           .form = form,
                           .chosen = integers(R),
                           .offsets = integers(E + 1),
                           .rows = integers(R),
                           .assigned = integers(R),
                           .arrays = {logits}};

    for (size_t i = 0; i < T * E; i++) {
        const float level =
            shape.one ? (i % E < E - shape.choices ? 0 : 3) : (float)(i * 7919 % 10007 % 4);

        if (shape.one || (form & 2) != 0)
            rp_dtype_from_float(dtype, &level, (char *)logits.data + i * rp_dtype_size(dtype), 1);
    }
    rp_host_kernels()->route_forward(NULL, &(RpRouteArgs){.dtype = dtype,
                                                          .tokens = T,
                                                          .experts = E,
                                                          .choices = shape.choices,
                                                          .logits = logits.data,
                                                          .chosen = inputs.chosen,
                                                          .weights = weights.data});
    rp_host_kernels()->sort_rows(NULL, &(RpSortRowsArgs){.tokens = T,
                                                         .experts = E,
                                                         .choices = shape.choices,
                                                         .chosen = inputs.chosen,
                                                         .offsets = inputs.offsets,
                                                         .rows = inputs.rows,
                                                         .assigned = inputs.assigned});
    return inputs;
}

static int32_t *
in(const Side *side, const int32_t *values, size_t n)
{
    return cuda_copy_in(side, values, n, sizeof *values);
}

static void
assert_integers(const Side *side, const int32_t *data, const int32_t *want, size_t n)
{
    const guint mark = host_mark();
    int32_t *got = integers(n);

    cuda_copy_out(side, data, got, n * sizeof *got);
    assert_memory_equal(got, want, n * sizeof *got);
    host_free_since(mark);
}

static void
set(Outputs *outputs, guint i, const Side *side, RpDtype dtype, size_t n, const void *data,
    size_t terms)
{
    outputs->arrays[i] = cuda_result(side, dtype, n, data);
    outputs->terms[i] = terms;
}

static void
compute_route(const Side *side, const void *data, Outputs *outputs)
{
    const Inputs *inputs = data;
    const size_t R = rows_of(inputs), n = inputs->arrays[0].n;
    RpRouteArgs args = {.dtype = inputs->dtype,
                        .tokens = inputs->shape.tokens,
                        .experts = inputs->shape.experts,
                        .choices = inputs->shape.choices,
                        .among_chosen = inputs->form & 1,
                        .logits = cuda_in(side, inputs->arrays[0]),
                        .chosen = cuda_scratch(side, R, sizeof(int32_t)),
                        .weights = cuda_out(side, inputs->dtype, R),
                        .d_weights = cuda_in(side, inputs->arrays[1])};

    args.d_logits = (void *)args.logits;
    side->kernels->route_forward(side->stream, &args);
    assert_integers(side, args.chosen, inputs->chosen, R);
    side->kernels->route_backward(side->stream, &args);
    set(outputs, 0, side, inputs->dtype, R, args.weights, args.experts);
    set(outputs, 1, side, inputs->dtype, n, args.d_logits, args.experts);
}

/* Sequences have 13 tokens and different lengths: some have nothing but padding. */
#define SEQUENCE 13

static int32_t *
lengths_of(size_t tokens)
{
    const size_t n = (tokens + SEQUENCE - 1) / SEQUENCE;
    int32_t *lengths = integers(n);

    for (size_t i = 0; i < n; i++)
        lengths[i] = (int32_t)((SEQUENCE - i % (SEQUENCE + 1)) % (SEQUENCE + 1));
    return lengths;
}

/* Counts, the sums of probabilities, the loss and the gradients of both; chosen by the host. */
static void
compute_balance(const Side *side, const void *data, Outputs *outputs)
{
    const Inputs *inputs = data;
    const size_t T = inputs->shape.tokens, E = inputs->shape.experts;
    const size_t sequences = (T + SEQUENCE - 1) / SEQUENCE;
    RpBalanceArgs args = {.dtype = inputs->dtype,
                          .tokens = T,
                          .experts = E,
                          .choices = inputs->shape.choices,
                          .sequence = SEQUENCE,
                          .lengths = in(side, lengths_of(T), sequences),
                          .logits = cuda_in(side, inputs->arrays[0]),
                          .chosen = in(side, inputs->chosen, rows_of(inputs)),
                          .counts_before = in(side, inputs->offsets, E),
                          .sums_before = cuda_in(side, inputs->arrays[2]),
                          .counts = cuda_scratch(side, E, sizeof(int32_t)),
                          .sums = cuda_scratch(side, E, sizeof(float))};
    RpBalanceLossArgs loss = {.experts = E,
                              .layers = 3,
                              .sequences = sequences,
                              .lengths = args.lengths,
                              .counts = args.counts,
                              .sums = args.sums,
                              .scale = (float)T * (float)T,
                              .loss = cuda_scratch(side, 1, sizeof(double)),
                              .d_sums = cuda_scratch(side, E, sizeof(float))};
    RpRouteArgs route = {.dtype = inputs->dtype,
                         .tokens = T,
                         .experts = E,
                         .choices = inputs->shape.choices,
                         .among_chosen = inputs->form & 1,
                         .logits = args.logits,
                         .chosen = (int32_t *)args.chosen,
                         .d_weights = cuda_in(side, inputs->arrays[1]),
                         .d_logits = (void *)args.logits,
                         .d_sums = loss.d_sums,
                         .sequence = SEQUENCE,
                         .lengths = args.lengths};
    const Array rounded = host_output(RP_DTYPE_FP32, 1);
    double value;

    args.workspace = cuda_workspace(side, side->kernels->balance_forward_workspace(&args));
    side->kernels->balance_forward(side->stream, &args);
    side->kernels->balance_loss(side->stream, &loss);
    side->kernels->route_backward(side->stream, &route);
    set(outputs, 0, side, RP_DTYPE_FP32, E, args.sums, T);
    set(outputs, 1, side, RP_DTYPE_FP32, E, loss.d_sums, 1);
    set(outputs, 2, side, inputs->dtype, T * E, route.d_logits, E);
    cuda_copy_out(side, loss.loss, &value, sizeof value);
    *(float *)rounded.data = (float)value;
    outputs->arrays[3] = rounded;
    outputs->terms[3] = T;
}

RP_TEST(balances_as_the_host_does)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (gsize s = 0; s < G_N_ELEMENTS(shapes); s++) {
            const guint mark = host_mark();
            Inputs inputs = make_inputs(shapes[s], (RpDtype)dtype, s % 4);

            inputs.arrays[1] = cuda_random(RP_DTYPE_FP32, rows_of(&inputs), 1);
            inputs.arrays[2] = cuda_random(RP_DTYPE_FP32, shapes[s].experts, 1);
            cuda_hold_to_host(compute_balance, &inputs, TRUE);
            host_free_since(mark);
        }
    }
}

RP_TEST(routes_as_the_host_does_ties_included)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (gsize s = 0; s < G_N_ELEMENTS(shapes); s++) {
            for (guint form = 0; form < 4; form++) {
                const guint mark = host_mark();
                Inputs inputs = make_inputs(shapes[s], (RpDtype)dtype, form);

                inputs.arrays[1] = cuda_random(RP_DTYPE_FP32, rows_of(&inputs), 1);
                cuda_hold_to_host(compute_route, &inputs, TRUE);
                host_free_since(mark);
            }
        }
    }
}

/* NaN is largest; -0 ties with 0; infinities are numbers. */
RP_TEST(chooses_nans_first)
{
    static const float logits[] = {1, -INFINITY, 3, NAN, 2, 0.0f, -0.0f, -NAN};
    static const int32_t want[] = {3, 7, 2, 4, 0, 5, 6, 1};
    const Side side = {rp_cuda_kernels(), cuda_stream(), 0};
    float weights[8];
    const RpRouteArgs args = {.tokens = 1,
                              .experts = 8,
                              .choices = 8,
                              .logits = cuda_copy_in(&side, logits, 8, sizeof *logits),
                              .chosen = cuda_scratch(&side, 8, sizeof(int32_t)),
                              .weights = cuda_scratch(&side, 8, sizeof(float))};

    side.kernels->route_forward(side.stream, &args);
    assert_integers(&side, args.chosen, want, 8);
    cuda_copy_out(&side, args.weights, weights, sizeof weights);
    for (guint j = 0; j < 8; j++)
        assert_true(isnan(weights[j]));
}

static void
compute_sort(const Side *side, const void *data, Outputs *outputs)
{
    const Inputs *inputs = data;
    const size_t R = rows_of(inputs), E = inputs->shape.experts;
    RpSortRowsArgs args = {.tokens = inputs->shape.tokens,
                           .experts = E,
                           .choices = inputs->shape.choices,
                           .chosen = in(side, inputs->chosen, R),
                           .offsets = cuda_scratch(side, E + 1, sizeof(int32_t)),
                           .rows = cuda_scratch(side, R, sizeof(int32_t)),
                           .assigned = cuda_scratch(side, R, sizeof(int32_t))};

    args.workspace = cuda_workspace(side, side->kernels->sort_rows_workspace(&args));
    side->kernels->sort_rows(side->stream, &args);
    assert_integers(side, args.offsets, inputs->offsets, E + 1);
    assert_integers(side, args.rows, inputs->rows, R);
    assert_integers(side, args.assigned, inputs->assigned, R);
}

RP_TEST(sorts_rows_as_the_host_does)
{
    for (gsize s = 0; s < G_N_ELEMENTS(shapes); s++) {
        const guint mark = host_mark();
        Inputs inputs = make_inputs(shapes[s], RP_DTYPE_FP32, 0);

        cuda_hold_to_host(compute_sort, &inputs, TRUE);
        inputs.shape.tokens = 0;
        memset(inputs.offsets, 0, (shapes[s].experts + 1) * sizeof *inputs.offsets);
        cuda_hold_to_host(compute_sort, &inputs, TRUE);
        host_free_since(mark);
    }
}

/* arrays: x [T,n], of rows [R,n], weights [R] */
static void
compute_rows(const Side *side, const void *data, Outputs *outputs)
{
    const Inputs *inputs = data;
    const size_t T = inputs->shape.tokens, k = inputs->shape.choices, n = inputs->n;
    const int32_t *rows = in(side, inputs->rows, T * k);
    void *x = cuda_in(side, inputs->arrays[0]);
    void *gathered = cuda_out(side, inputs->dtype, T * k * n);
    const RpCombineRowsArgs combine = {
        .dtype = inputs->dtype,
        .tokens = T,
        .choices = k,
        .n = n,
        .rows = rows,
        .x = cuda_in(side, inputs->arrays[1]),
        .weights = inputs->form & 1 ? cuda_in(side, inputs->arrays[2]) : NULL,
        .residual = inputs->form & 2 ? x : NULL,
        .y = x};

    side->kernels->gather_rows(side->stream,
                               &(RpGatherRowsArgs){inputs->dtype, T, k, n, rows, x, gathered});
    side->kernels->combine_rows(side->stream, &combine);
    set(outputs, 0, side, inputs->dtype, T * k * n, gathered, 1);
    set(outputs, 1, side, inputs->dtype, T * n, x, k + 1);
}

RP_TEST(gathers_and_combines_rows)
{
    static const size_t widths[] = {1, 13, 264, 2112};

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (gsize s = 0; s < 5; s++) {
            for (guint form = 0; form < 4; form++) {
                const guint mark = host_mark();
                Inputs inputs = make_inputs(shapes[s], (RpDtype)dtype, 0);

                inputs.n = widths[(s + form) % G_N_ELEMENTS(widths)];
                inputs.form = form;
                inputs.arrays[0] = cuda_random((RpDtype)dtype, shapes[s].tokens * inputs.n, 1);
                inputs.arrays[1] = cuda_random((RpDtype)dtype, rows_of(&inputs) * inputs.n, 1);
                inputs.arrays[2] = cuda_random((RpDtype)dtype, rows_of(&inputs), 0.5);
                cuda_hold_to_host(compute_rows, &inputs, TRUE);
                host_free_since(mark);
            }
        }
    }
}

/* arrays: z [R,2m], g [R,m], weights [R], bias [E,n], dy [T,n] */
static void
compute_glu(const Side *side, const void *data, Outputs *outputs)
{
    const Inputs *inputs = data;
    const size_t R = rows_of(inputs), m = inputs->m, n = inputs->n;
    const RpDtype dtype = inputs->dtype;
    void *z = cuda_in(side, inputs->arrays[0]), *g = cuda_in(side, inputs->arrays[1]);
    const RpExpertGluArgs args = {.dtype = dtype,
                                  .rows = R,
                                  .m = m,
                                  .form = (RpExpertGlu)(inputs->form & 1),
                                  .alpha = 1.702f,
                                  .limit = 6.99f, /* between the values of any storage */
                                  .z = z,
                                  .act = cuda_out(side, dtype, R * m),
                                  .choices = inputs->shape.choices,
                                  .n = n,
                                  .assigned = in(side, inputs->assigned, R),
                                  .weights = cuda_in(side, inputs->arrays[2]),
                                  .g = g,
                                  .chosen = in(side, inputs->chosen, R),
                                  .bias = n > 0 ? cuda_in(side, inputs->arrays[3]) : NULL,
                                  .dy = cuda_in(side, inputs->arrays[4]),
                                  .dz = z,
                                  .product = inputs->form & 2 ? g : NULL,
                                  .d_weights = cuda_out(side, RP_DTYPE_FP32, R)};

    side->kernels->expert_glu_forward(side->stream, &args);
    side->kernels->expert_glu_backward(side->stream, &args);
    set(outputs, 0, side, dtype, R * m, args.act, 8);
    set(outputs, 1, side, dtype, R * 2 * m, z, 8);
    set(outputs, 2, side, dtype, R * m, g, 8);
    set(outputs, 3, side, RP_DTYPE_FP32, R, args.d_weights, m + n);
    if (dtype != RP_DTYPE_FP32) /* the fast exponential of sums that are not rounded */
        outputs->slack[3] = sqrt((double)m) * 0x1p-17 * cuda_largest(outputs->arrays[0]);
}

RP_TEST(activates_experts_forward_and_backward)
{
    static const size_t sizes[][2] = {{1, 5}, {37, 0}, {264, 521}, {520, 72}, {768, 0}};

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (gsize i = 0; i < 4 * G_N_ELEMENTS(sizes); i++) {
            const guint mark = host_mark();
            const Shape shape = shapes[i % 4];
            Inputs inputs = make_inputs(shape, (RpDtype)dtype, 0);
            const size_t R = rows_of(&inputs);

            inputs.form = (guint)(i / G_N_ELEMENTS(sizes));
            inputs.m = sizes[i % G_N_ELEMENTS(sizes)][0];
            inputs.n = sizes[i % G_N_ELEMENTS(sizes)][1];
            inputs.arrays[0] = cuda_random((RpDtype)dtype, R * 2 * inputs.m, 3);
            inputs.arrays[1] = cuda_random((RpDtype)dtype, R * inputs.m, 1);
            inputs.arrays[2] = cuda_random((RpDtype)dtype, R, 0.5);
            inputs.arrays[3] = cuda_random((RpDtype)dtype, shape.experts * inputs.n, 1);
            inputs.arrays[4] = cuda_random((RpDtype)dtype, shape.tokens * inputs.n, 1);
            cuda_hold_to_host(compute_glu, &inputs, TRUE);
            host_free_since(mark);
        }
    }
}

/* Like torch.clamp, passes the gradient at the limit itself. */
RP_TEST(passes_gradients_up_to_the_limit)
{
    static const float z[] = {7, 1, 7.5f, 1, 1, 7, 1, -7, 1, 7.5f, 1, -7.5f, -9, 1};
    static const gboolean passes[] = {TRUE, TRUE, FALSE, TRUE, TRUE,  TRUE, TRUE,
                                      TRUE, TRUE, FALSE, TRUE, FALSE, TRUE, TRUE};
    static const float g[7] = {1, 1, 1, 1, 1, 1, 1}, weight = 1;
    static const int32_t assigned = 0;
    const Side side = {rp_cuda_kernels(), cuda_stream(), 0};
    float dz[14];
    const RpExpertGluArgs args = {.rows = 1,
                                  .m = 7,
                                  .form = RP_EXPERT_CLAMPED,
                                  .alpha = 1.702f,
                                  .limit = 7,
                                  .z = cuda_copy_in(&side, z, 14, sizeof *z),
                                  .choices = 1,
                                  .assigned = in(&side, &assigned, 1),
                                  .weights = cuda_copy_in(&side, &weight, 1, sizeof weight),
                                  .g = cuda_copy_in(&side, g, 7, sizeof *g),
                                  .dz = cuda_scratch(&side, 14, sizeof *z),
                                  .d_weights = cuda_scratch(&side, 1, sizeof(float))};

    side.kernels->expert_glu_backward(side.stream, &args);
    cuda_copy_out(&side, args.dz, dz, sizeof dz);
    for (guint i = 0; i < 14; i++)
        assert_true((dz[i] != 0) == passes[i]);
}

/* arrays: dy [R,n], weights [R], d_bias [E,n] */
static void
compute_bias(const Side *side, const void *data, Outputs *outputs)
{
    const Inputs *inputs = data;
    const size_t R = rows_of(inputs), E = inputs->shape.experts;
    RpExpertBiasArgs args = {.dtype = inputs->dtype,
                             .rows = R,
                             .experts = E,
                             .n = inputs->n,
                             .offsets = in(side, inputs->offsets, E + 1),
                             .dy = cuda_in(side, inputs->arrays[0]),
                             .weights = inputs->form ? cuda_in(side, inputs->arrays[1]) : NULL,
                             .assigned = in(side, inputs->assigned, R),
                             .d_bias = cuda_in(side, inputs->arrays[2])};

    args.workspace = cuda_workspace(side, side->kernels->expert_bias_backward_workspace(&args));
    side->kernels->expert_bias_backward(side->stream, &args);
    set(outputs, 0, side, RP_DTYPE_FP32, E * args.n, args.d_bias, R);
}

RP_TEST(adds_up_gradients_of_biases)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (gsize s = 0; s < G_N_ELEMENTS(shapes); s++) {
            for (guint form = 0; form < 2; form++) {
                const guint mark = host_mark();
                Inputs inputs = make_inputs(shapes[s], (RpDtype)dtype, 0);
                const size_t R = rows_of(&inputs);

                inputs.form = form;
                inputs.n = R > 10000 ? 24 : s % 2 ? 521 : 288;
                inputs.arrays[0] = cuda_random((RpDtype)dtype, R * inputs.n, 1);
                inputs.arrays[1] = cuda_random((RpDtype)dtype, R, 0.5);
                inputs.arrays[2] = cuda_random(RP_DTYPE_FP32, shapes[s].experts * inputs.n, 1);
                cuda_hold_to_host(compute_bias, &inputs, TRUE);
                host_free_since(mark);
            }
        }
    }
}

RP_TEST_FIXTURE(cuda_setup, cuda_teardown)
RP_TEST_NEEDS(cuda_available())
