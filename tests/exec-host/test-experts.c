/* Kernels of a mixture of experts, one by one, against the same formulas in double. */
#include "tests/exec-host/host-fixture.h"

#include <math.h>

typedef struct {
    size_t tokens, experts, choices;
} Shape;

static const Shape shapes[] = {
    {1, 1, 1},     {7, 2, 1},    {9, 5, 5},   {31, 8, 3},
    {40, 129, 16}, {33, 256, 8}, {5, 16, 16}, {33, 512, 10},
};

static int32_t *
integers(size_t n)
{
    return host_bytes(n * sizeof(int32_t));
}

/* Random choices, of one token all different. */
static int32_t *
random_choices(Shape shape)
{
    int32_t *chosen = integers(shape.tokens * shape.choices);

    for (size_t a = 0; a < shape.tokens * shape.choices; a++) {
        gboolean taken = TRUE;

        while (taken) {
            chosen[a] = host_random_below((gint32)shape.experts);
            taken = FALSE;
            for (size_t other = a - a % shape.choices; other < a; other++)
                taken |= chosen[other] == chosen[a];
        }
    }
    return chosen;
}

/* The k-th choice: k others are before it, larger or as large and lower. */
static void
assert_chosen(Shape shape, const double *logits, const int32_t *chosen)
{
    for (size_t j = 0; j < shape.choices; j++) {
        size_t before = 0;

        assert_in_range(chosen[j], 0, shape.experts - 1);
        for (size_t e = 0; e < shape.experts; e++)
            before += logits[e] > logits[chosen[j]] ||
                      (logits[e] == logits[chosen[j]] && e < (size_t)chosen[j]);
        assert_int_equal(before, j);
    }
}

/* @p: [k] */
static void
reference_route(Shape shape, gboolean among_chosen, const double *logits, const int32_t *chosen,
                double *p)
{
    double sum = 0;

    if (among_chosen)
        for (size_t j = 0; j < shape.choices; j++)
            sum += exp(logits[chosen[j]]);
    else
        for (size_t e = 0; e < shape.experts; e++)
            sum += exp(logits[e]);
    for (size_t j = 0; j < shape.choices; j++)
        p[j] = exp(logits[chosen[j]]) / sum;
}

/* d loss / d logits[e] by central differences; loss = sum_j weights[j] d_weights[j] */
static double
route_gradient(Shape shape, gboolean among_chosen, double *logits, const int32_t *chosen,
               const double *d_weights, size_t e)
{
    const double old = logits[e], step = 1e-4;
    double p[RP_MOST_CHOICES];
    double loss = 0;

    for (int side = 1; side >= -1; side -= 2) {
        logits[e] = old + side * step;
        reference_route(shape, among_chosen, logits, chosen, p);
        for (size_t j = 0; j < shape.choices; j++)
            loss += side * p[j] * d_weights[j];
    }
    logits[e] = old;
    return loss / (2 * step);
}

/* @levels: how many different logits there are, so that most tie; 0: as random numbers come */
static void
check_route(RpDtype dtype, Shape shape, gboolean among_chosen, gint32 levels)
{
    const size_t T = shape.tokens, E = shape.experts, k = shape.choices;
    const Array logits = host_random(dtype, T * E, 2);
    const Array weights = host_output(dtype, T * k);
    const Array d_weights = host_random(RP_DTYPE_FP32, T * k, 1);
    double *want = host_doubles(T * MAX(E, k));
    RpRouteArgs args = {.dtype = dtype,
                        .tokens = T,
                        .experts = E,
                        .choices = k,
                        .among_chosen = among_chosen,
                        .logits = logits.data,
                        .chosen = integers(T * k),
                        .weights = weights.data,
                        .d_weights = d_weights.data,
                        .d_logits = logits.data};

    for (size_t i = 0; levels > 0 && i < T * E; i++) {
        const float level = (float)host_random_below(levels);

        rp_dtype_from_float(dtype, &level, (char *)logits.data + i * rp_dtype_size(dtype), 1);
        logits.values[i] = (double)level;
    }
    rp_host_kernels()->route_forward(NULL, &args);
    for (size_t t = 0; t < T; t++) {
        assert_chosen(shape, logits.values + t * E, args.chosen + t * k);
        reference_route(shape, among_chosen, logits.values + t * E, args.chosen + t * k,
                        want + t * k);
    }
    host_assert_close(weights, want, E, 0);
    rp_host_kernels()->route_backward(NULL, &args);
    for (size_t i = 0; i < T * E; i++)
        want[i] = route_gradient(shape, among_chosen, logits.values + i / E * E,
                                 args.chosen + i / E * k, d_weights.values + i / E * k, i % E);
    host_assert_close(logits, want, E, 0);
}

RP_TEST(routes_forward_and_backward)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (gsize s = 0; s < G_N_ELEMENTS(shapes); s++) {
            for (gboolean among = FALSE; among <= TRUE; among++) {
                check_route((RpDtype)dtype, shapes[s], among, 0);
                check_route((RpDtype)dtype, shapes[s], among, 3);
                check_route((RpDtype)dtype, shapes[s], among, 1);
            }
        }
    }
}

/* Like torch.topk: NaN is largest, infinities are numbers. */
RP_TEST(chooses_a_nan_first)
{
    float logits[] = {1, -INFINITY, 3, NAN, 2, 0.0f, -0.0f, -1};
    int32_t chosen[7];
    float weights[7];
    const RpRouteArgs args = {RP_DTYPE_FP32,     1, 8, 7, TRUE, .logits = logits, .chosen = chosen,
                              .weights = weights};

    rp_host_kernels()->route_forward(NULL, &args);
    assert_memory_equal(chosen, ((int32_t[]){3, 2, 4, 0, 5, 6, 7}), sizeof chosen);
    for (guint j = 0; j < 7; j++)
        assert_true(isnan(weights[j]));
}

static void
check_sort(Shape shape, const int32_t *chosen)
{
    const size_t E = shape.experts, R = shape.tokens * shape.choices;
    RpSortRowsArgs args = {.tokens = shape.tokens,
                           .experts = E,
                           .choices = shape.choices,
                           .chosen = chosen,
                           .offsets = integers(E + 1),
                           .rows = integers(R),
                           .assigned = integers(R)};

    args.workspace = host_workspace(rp_host_kernels()->sort_rows_workspace(&args));
    rp_host_kernels()->sort_rows(NULL, &args);
    assert_int_equal(args.offsets[0], 0);
    assert_int_equal(args.offsets[E], R);
    for (size_t e = 0; e < E; e++) {
        for (int32_t r = args.offsets[e]; r < args.offsets[e + 1]; r++) {
            assert_in_range(args.assigned[r], 0, R - 1);
            assert_int_equal(chosen[args.assigned[r]], e);
            assert_int_equal(args.rows[args.assigned[r]], r);
            assert_true(r == args.offsets[e] || args.assigned[r - 1] < args.assigned[r]);
        }
    }
}

RP_TEST(sorts_assignments_by_expert_and_keeps_their_order)
{
    for (gsize s = 0; s < G_N_ELEMENTS(shapes); s++)
        check_sort(shapes[s], random_choices(shapes[s]));
}

RP_TEST(sorts_where_one_expert_gets_everything)
{
    const Shape shape = {1000, 6, 1};
    int32_t *chosen = integers(1000);

    for (int32_t only = 0; only < 6; only++) {
        for (size_t a = 0; a < 1000; a++)
            chosen[a] = only;
        check_sort(shape, chosen);
    }
    check_sort((Shape){0, 6, 2}, chosen);
}

static int32_t *
rows_of(Shape shape, const int32_t *chosen, int32_t **offsets, int32_t **assigned)
{
    const size_t R = shape.tokens * shape.choices;
    RpSortRowsArgs args = {.tokens = shape.tokens,
                           .experts = shape.experts,
                           .choices = shape.choices,
                           .chosen = chosen,
                           .offsets = integers(shape.experts + 1),
                           .rows = integers(R),
                           .assigned = integers(R)};

    rp_host_kernels()->sort_rows(NULL, &args);
    *offsets = args.offsets;
    *assigned = args.assigned;
    return args.rows;
}

static void
check_rows(RpDtype dtype, Shape shape, size_t n, gboolean weighted, gboolean residual)
{
    const size_t T = shape.tokens, k = shape.choices;
    const Array x = host_random(dtype, T * n, 1);
    const Array gathered = host_output(dtype, T * k * n);
    const Array weights = host_random(dtype, T * k, 1);
    const Array y = host_random(dtype, T * n, 1); /* its residual too */
    double *want = host_doubles(T * n);
    int32_t *offsets, *assigned;
    const int32_t *rows = rows_of(shape, random_choices(shape), &offsets, &assigned);
    const RpGatherRowsArgs gather = {dtype, T, k, n, rows, x.data, gathered.data};
    const Array d = host_random(dtype, T * k * n, 1);

    rp_host_kernels()->gather_rows(NULL, &gather);
    for (size_t r = 0; r < T * k; r++)
        for (size_t i = 0; i < n; i++)
            assert_true(host_value(gathered, r * n + i) ==
                        x.values[(size_t)assigned[r] / k * n + i]);
    for (size_t i = 0; i < T * n; i++) {
        const size_t t = i / n;

        want[i] = residual ? y.values[i] : 0;
        for (size_t j = 0; j < k; j++)
            want[i] += (weighted ? weights.values[t * k + j] : 1) *
                       d.values[(size_t)rows[t * k + j] * n + i % n];
    }
    rp_host_kernels()->combine_rows(NULL, &(RpCombineRowsArgs){dtype, T, k, n, rows, d.data,
                                                               weighted ? weights.data : NULL,
                                                               residual ? y.data : NULL, y.data});
    host_assert_close(y, want, k + 1, 0);
}

RP_TEST(gathers_and_combines_rows)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++)
        for (gsize s = 0; s < G_N_ELEMENTS(shapes); s++)
            for (guint form = 0; form < 4; form++)
                check_rows((RpDtype)dtype, shapes[s], s % 2 == 0 ? 521 : 13, form & 1, form >> 1);
}

static double
reference_act(RpExpertGlu form, double a, double b)
{
    if (form == RP_EXPERT_SILU)
        return a / (1 + exp(-a)) * b;
    a = fmin(a, (double)6.99f);
    b = fmin(fmax(b, (double)-6.99f), (double)6.99f);
    return a / (1 + exp(-(double)1.702f * a)) * (b + 1);
}

/* Computes all results of the backward in double precision. */
static void
reference_glu(const RpExpertGluArgs *args, const double *z, const double *g, const double *weights,
              const double *bias, const double *dy, double *dz, double *product, double *d_weights)
{
    const size_t m = args->m, n = args->n;
    const double step = 1e-5;

    for (size_t r = 0; r < args->rows; r++) {
        const size_t a = (size_t)args->assigned[r];

        d_weights[a] = 0;
        for (size_t c = 0; args->bias != NULL && c < n; c++)
            d_weights[a] += bias[(size_t)args->chosen[a] * n + c] * dy[a / args->choices * n + c];
        for (size_t i = 0; i < m; i++) {
            const size_t at[2] = {args->form == RP_EXPERT_SILU ? i : 2 * i,
                                  args->form == RP_EXPERT_SILU ? m + i : 2 * i + 1};
            const double gate = z[r * 2 * m + at[0]], up = z[r * 2 * m + at[1]];
            const double act = reference_act(args->form, gate, up);
            const double scale = weights[a] * g[r * m + i] / (2 * step);

            d_weights[a] += act * g[r * m + i];
            product[r * m + i] = weights[a] * act;
            dz[r * 2 * m + at[0]] = scale * (reference_act(args->form, gate + step, up) -
                                             reference_act(args->form, gate - step, up));
            dz[r * 2 * m + at[1]] = scale * (reference_act(args->form, gate, up + step) -
                                             reference_act(args->form, gate, up - step));
        }
    }
}

static void
check_glu(RpDtype dtype, Shape shape, size_t m, size_t n, RpExpertGlu form)
{
    const size_t T = shape.tokens, k = shape.choices, R = T * k;
    const Array z = host_random(dtype, R * 2 * m, 3);
    const Array g = host_random(dtype, R * m, 1);
    const Array weights = host_random(dtype, R, 0.5);
    const Array bias = host_random(dtype, shape.experts * n, 1);
    const Array dy = host_random(dtype, T * n, 1);
    const Array d_weights = host_output(RP_DTYPE_FP32, R);
    const Array act = host_output(dtype, R * m);
    double *want = host_doubles(R * m), *dz = host_doubles(R * 2 * m);
    double *want_d_weights = host_doubles(R);
    const int32_t *chosen = random_choices(shape);
    int32_t *offsets, *assigned;
    RpExpertGluArgs args = {.dtype = dtype,
                            .rows = R,
                            .m = m,
                            .form = form,
                            .alpha = 1.702f,
                            .limit = 6.99f, /* between the values of any storage */
                            .z = z.data,
                            .act = act.data,
                            .choices = k,
                            .n = n,
                            .weights = weights.data,
                            .g = g.data,
                            .chosen = chosen,
                            .bias = n > 0 ? bias.data : NULL,
                            .dy = dy.data,
                            .dz = z.data,
                            .product = g.data,
                            .d_weights = d_weights.data};

    rows_of(shape, chosen, &offsets, &assigned);
    args.assigned = assigned;
    for (size_t i = 0; i < R * m; i++)
        want[i] = form == RP_EXPERT_SILU
                      ? reference_act(form, z.values[i / m * 2 * m + i % m],
                                      z.values[i / m * 2 * m + m + i % m])
                      : reference_act(form, z.values[2 * i], z.values[2 * i + 1]);
    rp_host_kernels()->expert_glu_forward(NULL, &args);
    host_assert_close(act, want, 8, 0);
    reference_glu(&args, z.values, g.values, weights.values, bias.values, dy.values, dz, want,
                  want_d_weights);
    rp_host_kernels()->expert_glu_backward(NULL, &args);
    host_assert_close(z, dz, 8, 0);
    host_assert_close(g, want, 8, 0);
    host_assert_close(d_weights, want_d_weights, m + n, 0);
}

RP_TEST(activates_experts_forward_and_backward)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (guint form = RP_EXPERT_SILU; form <= RP_EXPERT_CLAMPED; form++) {
            check_glu((RpDtype)dtype, (Shape){7, 5, 3}, 37, 19, (RpExpertGlu)form);
            check_glu((RpDtype)dtype, (Shape){9, 4, 4}, 1030, 0, (RpExpertGlu)form);
            check_glu((RpDtype)dtype, (Shape){2, 1, 1}, 1, 521, (RpExpertGlu)form);
        }
    }
}

/* Like torch.clamp, passes the gradient at the limit itself. */
RP_TEST(passes_gradients_up_to_the_limit)
{
    const float z[] = {7, 1, 7.5f, 1, 1, 7, 1, -7, 1, 7.5f, 1, -7.5f, -9, 1};
    const gboolean passes[] = {TRUE, TRUE, FALSE, TRUE, TRUE,  TRUE, TRUE,
                               TRUE, TRUE, FALSE, TRUE, FALSE, TRUE, TRUE};
    const float g[7] = {1, 1, 1, 1, 1, 1, 1}, weight = 1;
    const int32_t assigned = 0;
    float dz[14], d_weight;
    const RpExpertGluArgs args = {.rows = 1,
                                  .m = 7,
                                  .form = RP_EXPERT_CLAMPED,
                                  .alpha = 1.702f,
                                  .limit = 7,
                                  .z = z,
                                  .choices = 1,
                                  .assigned = &assigned,
                                  .weights = &weight,
                                  .g = g,
                                  .dz = dz,
                                  .d_weights = &d_weight};

    rp_host_kernels()->expert_glu_backward(NULL, &args);
    for (guint i = 0; i < 14; i++)
        assert_true((dz[i] != 0) == passes[i]);
}

static void
check_bias(RpDtype dtype, Shape shape, const int32_t *chosen, size_t n, gboolean weighted)
{
    const size_t R = shape.tokens * shape.choices;
    const Array dy = host_random(dtype, R * n, 1);
    const Array weights = host_random(dtype, R, 0.5);
    const Array d_bias = host_random(RP_DTYPE_FP32, shape.experts * n, 1);
    int32_t *offsets, *assigned;
    RpExpertBiasArgs args = {.dtype = dtype,
                             .rows = R,
                             .experts = shape.experts,
                             .n = n,
                             .dy = dy.data,
                             .weights = weighted ? weights.data : NULL,
                             .d_bias = d_bias.data};

    rows_of(shape, chosen, &offsets, &assigned);
    args.offsets = offsets;
    args.assigned = assigned;
    args.workspace = host_workspace(rp_host_kernels()->expert_bias_backward_workspace(&args));
    rp_host_kernels()->expert_bias_backward(NULL, &args);
    for (size_t i = 0; i < R * n; i++) {
        const size_t a = (size_t)assigned[i / n];

        d_bias.values[(size_t)chosen[a] * n + i % n] +=
            (weighted ? weights.values[a] : 1) * dy.values[i];
    }
    host_assert_close(d_bias, d_bias.values, R, 0);
}

RP_TEST(adds_up_gradients_of_biases)
{
    int32_t *one = integers(300);

    for (size_t a = 0; a < 300; a++)
        one[a] = 2;
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (gboolean weighted = FALSE; weighted <= TRUE; weighted++) {
            for (gsize s = 0; s < G_N_ELEMENTS(shapes); s++)
                check_bias((RpDtype)dtype, shapes[s], random_choices(shapes[s]), 37, weighted);
            check_bias((RpDtype)dtype, (Shape){300, 4, 1}, one, 521, weighted);
        }
    }
}

RP_TEST_FIXTURE(host_setup, host_teardown)
