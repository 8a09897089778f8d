#include "tests/exec-host/host-fixture.h"
#include "tests/exec-host/reference.h"

#include <math.h>

RP_TEST(looks_tokens_up)
{
    const size_t tokens = 41;
    const size_t n = 521;
    const size_t vocabulary = 17;

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        const Array weight = host_random((RpDtype)dtype, vocabulary * n, 1);
        const Array y = host_output((RpDtype)dtype, tokens * n);
        int32_t ids[41];
        const RpEmbeddingArgs args = {y.dtype, tokens,      n,      vocabulary,
                                      ids,     weight.data, y.data, .padding_id = -1};

        for (size_t t = 0; t < tokens; t++)
            ids[t] = host_random_below(17);
        rp_host_kernels()->embedding_forward(NULL, &args);
        for (size_t i = 0; i < y.n; i++)
            assert_true(host_value(y, i) == weight.values[(size_t)ids[i / n] * n + i % n]);
    }
}

RP_TEST(adds_up_gradients_of_rows)
{
    const RpKernels *kernels = rp_host_kernels();
    const size_t tokens = 41;
    const size_t n = 521;
    const size_t vocabulary = 17;

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (int32_t padding_id = -1; padding_id < 4; padding_id += 4) {
            const Array dy = host_random((RpDtype)dtype, tokens * n, 1);
            const Array d_weight = host_random(RP_DTYPE_FP32, vocabulary * n, 1);
            int32_t ids[41];
            RpEmbeddingArgs args = {.dtype = dy.dtype,
                                    .tokens = tokens,
                                    .n = n,
                                    .vocabulary = vocabulary,
                                    .ids = ids,
                                    .dy = dy.data,
                                    .d_weight = d_weight.data,
                                    .padding_id = padding_id};

            for (size_t t = 0; t < tokens; t++)
                ids[t] = host_random_below(7);
            args.workspace = host_workspace(kernels->embedding_backward_workspace(&args));
            kernels->embedding_backward(NULL, &args);
            for (size_t i = 0; i < dy.n; i++)
                if (ids[i / n] != padding_id)
                    d_weight.values[(size_t)ids[i / n] * n + i % n] += dy.values[i];
            host_assert_close(d_weight, d_weight.values, tokens, 0);
        }
    }
}

static void
check_cross_entropy(RpDtype dtype, size_t tokens, size_t vocabulary, double spread,
                    gboolean with_gradient)
{
    const RpKernels *kernels = rp_host_kernels();
    const Array logits = host_random(dtype, tokens * vocabulary, spread);
    const Array losses = host_output(RP_DTYPE_FP32, tokens);
    int32_t *labels = host_bytes(tokens * sizeof *labels);
    double *want = host_doubles(logits.n);
    double loss = 3;
    double want_loss;
    RpCrossEntropyArgs args = {.dtype = dtype,
                               .tokens = tokens,
                               .vocabulary = vocabulary,
                               .logits = logits.data,
                               .labels = labels,
                               .scale = 0.125f,
                               .gradient = with_gradient,
                               .loss = &loss,
                               .losses = losses.data};

    for (size_t t = 0; t < tokens; t++)
        labels[t] = t % 5 == 3 ? RP_LABEL_MASKED : host_random_below((gint32)vocabulary);
    labels[0] = (int32_t)MIN(vocabulary - 1, 512); /* where the second tile begins */
    want_loss = 3 + reference_cross_entropy(tokens, vocabulary, logits.values, labels, 0.125, want);
    args.workspace = host_workspace(kernels->cross_entropy_workspace(&args));
    kernels->cross_entropy(NULL, &args);
    assert_true(fabs(loss - want_loss) <= 1e-6 * want_loss);
    for (size_t t = 0; t < tokens; t++) {
        want_loss -= host_value(losses, t);
        if (labels[t] == RP_LABEL_MASKED)
            assert_true(host_value(losses, t) == 0);
    }
    assert_true(fabs(want_loss - 3) <= 1e-6 * loss);
    host_assert_close(logits, with_gradient ? want : logits.values, 1, 0);
}

/* @n numbers of @line. */
static double *
numbers_of(const char *line, size_t n)
{
    double *numbers = host_doubles(n);
    char *at = (char *)line;

    for (size_t i = 0; i < n; i++)
        numbers[i] = g_ascii_strtod(at, &at);
    return numbers;
}

/* fixtures/make-smoothing.py made theirs. */
RP_TEST(smooths_labels_as_pytorch_does)
{
    g_autofree char *path = rp_test_source_path("tests/exec-host/fixtures/smoothing.txt");
    g_autofree char *text = NULL;
    guint n_cases = 0;

    assert_true(g_file_get_contents(path, &text, NULL, NULL));
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (char **line = lines; line[0] != NULL && *line[0] != '\0'; line += 5, n_cases++) {
        const double *sizes = numbers_of(line[0], 3);
        const size_t tokens = (size_t)sizes[0], vocabulary = (size_t)sizes[1];
        const double *labels = numbers_of(line[1], tokens);
        const double *logits = numbers_of(line[2], tokens * vocabulary);
        const double *gradient = numbers_of(line[4], tokens * vocabulary);
        const double want = g_ascii_strtod(line[3], NULL);
        const Array values = host_output(RP_DTYPE_FP32, tokens * vocabulary);
        int32_t *targets = host_bytes(tokens * sizeof *targets);
        double loss = 0, looked_at = 0;
        RpCrossEntropyArgs args = {.dtype = RP_DTYPE_FP32,
                                   .tokens = tokens,
                                   .vocabulary = vocabulary,
                                   .logits = values.data,
                                   .labels = targets,
                                   .scale = 1,
                                   .smoothing = (float)sizes[2],
                                   .loss = &looked_at};

        for (size_t t = 0; t < tokens; t++)
            targets[t] = (int32_t)labels[t];
        for (size_t i = 0; i < tokens * vocabulary; i++)
            ((float *)values.data)[i] = (float)logits[i];
        rp_host_kernels()->cross_entropy(NULL, &args);
        args.gradient = TRUE;
        args.loss = &loss;
        rp_host_kernels()->cross_entropy(NULL, &args);
        assert_true(loss == looked_at);
        assert_true(fabs(loss - want) <= 1e-6 * want);
        for (size_t i = 0; i < tokens * vocabulary; i++)
            assert_true(fabs(((float *)values.data)[i] - gradient[i]) <= 1e-6);
    }
    assert_int_equal(n_cases, 3);
}

RP_TEST(computes_loss_and_gradient_of_a_chunk)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (gboolean gradient = FALSE; gradient <= TRUE; gradient++) {
            check_cross_entropy((RpDtype)dtype, 1, 1, 1, gradient);
            check_cross_entropy((RpDtype)dtype, 23, 37, 3, gradient);
            check_cross_entropy((RpDtype)dtype, 9, 5003, 3, gradient);
            check_cross_entropy((RpDtype)dtype, 11, 513, 1000, gradient);
        }
    }
}

RP_TEST(gives_nothing_for_masked_tokens)
{
    float logits[] = {1, 2, NAN, 4, 5, 6};
    const int32_t labels[] = {RP_LABEL_MASKED, RP_LABEL_MASKED};
    double loss = 7;
    const RpCrossEntropyArgs args = {RP_DTYPE_FP32, 2, 3, logits, labels, 1, TRUE, .loss = &loss};

    rp_host_kernels()->cross_entropy(NULL, &args);
    assert_true(loss == 7);
    for (size_t i = 0; i < 6; i++)
        assert_true(logits[i] == 0);
}

RP_TEST(passes_on_what_is_not_finite)
{
    static const float bad[] = {INFINITY, NAN};

    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
        float logits[] = {1, bad[i], 3};
        const int32_t labels[] = {0};
        double loss = 0;
        const RpCrossEntropyArgs args = {RP_DTYPE_FP32, 1, 3,    logits,
                                         labels,        1, TRUE, .loss = &loss};

        rp_host_kernels()->cross_entropy(NULL, &args);
        assert_false(isfinite(loss));
    }
}

/* The LM head: the same loss and gradients whether done in chunks or at once. */
RP_TEST(adds_chunks_up_to_the_whole_head)
{
    const RpKernels *kernels = rp_host_kernels();
    const size_t T = 23;
    const size_t C = 19;
    const size_t V = 101;
    const size_t chunk = 7;
    const Array x = host_random(RP_DTYPE_FP32, T * C, 1);
    const Array weight = host_random(RP_DTYPE_FP32, V * C, 0.5);
    const Array dx = host_output(RP_DTYPE_FP32, T * C);
    const Array d_weight = host_random(RP_DTYPE_FP32, V * C, 0);
    const Array logits = host_output(RP_DTYPE_FP32, chunk * V);
    double *want_logits = host_doubles(T * V);
    double *gradient = host_doubles(T * V);
    double *want = host_doubles(V * C);
    double loss = 0;
    double want_loss;
    int32_t labels[23];

    for (size_t t = 0; t < T; t++)
        labels[t] = t % 6 == 0 ? RP_LABEL_MASKED : host_random_below(101);
    for (size_t first = 0; first < T; first += chunk) {
        const size_t n = MIN(chunk, T - first);
        float *x_chunk = (float *)x.data + first * C;
        float *dx_chunk = (float *)dx.data + first * C;

        kernels->matmul(NULL,
                        &(RpMatmulArgs){RP_MATMUL_NT, n, V, C, x_chunk, weight.data, logits.data});
        kernels->cross_entropy(NULL,
                               &(RpCrossEntropyArgs){RP_DTYPE_FP32, n, V, logits.data,
                                                     labels + first, 0.05f, TRUE, .loss = &loss});
        kernels->matmul(NULL,
                        &(RpMatmulArgs){RP_MATMUL_NN, n, C, V, logits.data, weight.data, dx_chunk});
        kernels->matmul(NULL, &(RpMatmulArgs){RP_MATMUL_TN, V, C, n, logits.data, x_chunk,
                                              d_weight.data, .accumulate = TRUE});
    }
    reference_matmul(RP_MATMUL_NT, T, V, C, x.values, weight.values, want_logits, FALSE);
    want_loss = reference_cross_entropy(T, V, want_logits, labels, 0.05, gradient);
    assert_true(fabs(loss - want_loss) <= 1e-6 * want_loss);
    reference_matmul(RP_MATMUL_NN, T, C, V, gradient, weight.values, want, FALSE);
    host_assert_close(dx, want, V, 0);
    reference_matmul(RP_MATMUL_TN, V, C, T, gradient, x.values, want, FALSE);
    host_assert_close(d_weight, want, T, 0);
}

RP_TEST_FIXTURE(host_setup, host_teardown)
