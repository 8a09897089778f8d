#include "tests/exec-cuda/cuda-fixture.h"

#include <math.h>

typedef struct {
    size_t tokens, n, vocabulary;
    const int32_t *ids;
    int32_t padding_id;
    Array weight, dy, d_weight;
} Embedding;

static void
compute_embedding(const Side *side, const void *data, Outputs *outputs)
{
    const Embedding *inputs = data;
    const RpDtype dtype = inputs->dy.dtype;
    RpEmbeddingArgs args = {
        .dtype = dtype,
        .tokens = inputs->tokens,
        .n = inputs->n,
        .vocabulary = inputs->vocabulary,
        .ids = cuda_copy_in(side, inputs->ids, inputs->tokens, sizeof *inputs->ids),
        .weight = cuda_in(side, inputs->weight),
        .y = cuda_out(side, dtype, inputs->dy.n),
        .dy = cuda_in(side, inputs->dy),
        .d_weight = cuda_in(side, inputs->d_weight),
        .padding_id = inputs->padding_id};

    side->kernels->embedding_forward(side->stream, &args);
    outputs->arrays[0] = cuda_result(side, dtype, inputs->dy.n, args.y);
    args.workspace = cuda_workspace(side, side->kernels->embedding_backward_workspace(&args));
    side->kernels->embedding_backward(side->stream, &args);
    outputs->arrays[1] = cuda_result(side, RP_DTYPE_FP32, inputs->d_weight.n, args.d_weight);
    if (side->stream != NULL)
        return;
    /* the same sums in the same order: the host's bits */
    outputs->terms[1] = 0;
}

/* Ids below @frequent come often, as in text. */
static void
check_embedding(RpDtype dtype, size_t tokens, size_t n, size_t vocabulary, gint32 frequent,
                int32_t padding_id)
{
    const guint mark = host_mark();
    int32_t *ids = host_bytes(tokens * sizeof *ids);
    const Embedding inputs = {tokens,
                              n,
                              vocabulary,
                              ids,
                              padding_id,
                              cuda_random(dtype, vocabulary * n, 1),
                              cuda_random(dtype, tokens * n, 1),
                              cuda_random(RP_DTYPE_FP32, vocabulary * n, 1)};

    for (size_t t = 0; t < tokens; t++)
        ids[t] = t % 3 ? host_random_below(frequent) : host_random_below((gint32)vocabulary);
    ids[tokens - 1] = (int32_t)vocabulary - 1;
    cuda_hold_to_host(compute_embedding, &inputs, TRUE);
    host_free_since(mark);
}

RP_TEST(looks_tokens_up_and_adds_their_gradients_up)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (int32_t padding_id = -1; padding_id < 4; padding_id += 4) {
            check_embedding((RpDtype)dtype, 1, 1, 1, 1, padding_id);
            check_embedding((RpDtype)dtype, 41, 521, 17, 7, padding_id);
            check_embedding((RpDtype)dtype, 257, 8, 256, 256, padding_id);
            check_embedding((RpDtype)dtype, 5003, 24, 257, 5, padding_id);
            check_embedding((RpDtype)dtype, 2049, 2053, 70001 / 64, 9, padding_id);
            check_embedding((RpDtype)dtype, 3001, 3, 151936, 1000, padding_id);
        }
    }
}

typedef struct {
    size_t n, columns;
    const int32_t *rows;
    Array x, y;
} Scatter;

static void
compute_scatter(const Side *side, const void *data, Outputs *outputs)
{
    const Scatter *inputs = data;
    const RpScatterArgs args = {.dtype = inputs->x.dtype,
                                .n = inputs->n,
                                .columns = inputs->columns,
                                .rows =
                                    cuda_copy_in(side, inputs->rows, inputs->n, sizeof(int32_t)),
                                .x = cuda_in(side, inputs->x),
                                .y = cuda_in(side, inputs->y)};

    side->kernels->scatter(side->stream, &args);
    outputs->arrays[0] = cuda_result(side, args.dtype, inputs->y.n, args.y);
}

/* Every third row and the last of an array that has other values there. */
RP_TEST(puts_rows_back_where_they_were)
{
    static const size_t columns[] = {1, 8, 129, 2048};
    static const size_t tokens[] = {1, 2, 67, 1025};

    for (guint c = 0; c < RP_N_DTYPES * G_N_ELEMENTS(columns) * G_N_ELEMENTS(tokens); c++) {
        const RpDtype dtype = (RpDtype)(c % RP_N_DTYPES);
        const size_t of = tokens[c / RP_N_DTYPES % G_N_ELEMENTS(tokens)];
        const size_t each = columns[c / RP_N_DTYPES / G_N_ELEMENTS(tokens)];
        int32_t *rows = host_bytes(of * sizeof *rows);
        size_t n = 0;

        for (size_t t = 0; t < of; t++)
            if (t % 3 == 1 || t + 1 == of)
                rows[n++] = (int32_t)t;
        const Scatter inputs = {n, each, rows, host_random(dtype, n * each, 1),
                                host_random(dtype, of * each, 1)};
        cuda_hold_to_host(compute_scatter, &inputs, TRUE);
    }
}

RP_TEST(looks_a_real_model_up)
{
    check_embedding(RP_DTYPE_BF16, 4096, 1024, 20000, 300, -1);
}

typedef struct {
    size_t tokens, vocabulary;
    const int32_t *labels;
    gboolean gradient;
    Array logits;
    float smoothing;
} Loss;

static void
compute_loss(const Side *side, const void *data, Outputs *outputs)
{
    const Loss *inputs = data;
    const RpDtype dtype = inputs->logits.dtype;
    const double old = 3;
    RpCrossEntropyArgs args = {
        .dtype = dtype,
        .tokens = inputs->tokens,
        .vocabulary = inputs->vocabulary,
        .logits = cuda_in(side, inputs->logits),
        .labels = cuda_copy_in(side, inputs->labels, inputs->tokens, sizeof *inputs->labels),
        .scale = 0.125f,
        .gradient = inputs->gradient,
        .smoothing = inputs->smoothing,
        .loss = cuda_copy_in(side, &old, 1, sizeof old),
        .losses = cuda_out(side, RP_DTYPE_FP32, inputs->tokens)};

    args.workspace = cuda_workspace(side, side->kernels->cross_entropy_workspace(&args));
    side->kernels->cross_entropy(side->stream, &args);
    outputs->arrays[0] = cuda_result(side, dtype, inputs->logits.n, args.logits);
    outputs->terms[0] = 1;
    outputs->arrays[1] = cuda_result(side, RP_DTYPE_FP32, inputs->tokens, args.losses);
    outputs->terms[1] = 1;
    cuda_copy_out(side, args.loss, &outputs->sums[0], sizeof(double));
}

static void
check_smoothed(RpDtype dtype, size_t tokens, size_t vocabulary, double spread, gboolean gradient,
               float smoothing)
{
    const guint mark = host_mark();
    int32_t *labels = host_bytes(tokens * sizeof *labels);
    const Loss inputs = {
        tokens,   vocabulary, labels, gradient, cuda_random(dtype, tokens * vocabulary, spread),
        smoothing};

    for (size_t t = 0; t < tokens; t++)
        labels[t] = t % 5 == 3 ? RP_LABEL_MASKED : host_random_below((gint32)vocabulary);
    cuda_hold_to_host(compute_loss, &inputs, TRUE);
    host_free_since(mark);
}

static void
check_loss(RpDtype dtype, size_t tokens, size_t vocabulary, double spread, gboolean gradient)
{
    check_smoothed(dtype, tokens, vocabulary, spread, gradient, 0);
}

RP_TEST(smooths_labels)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (gboolean gradient = FALSE; gradient <= TRUE; gradient++) {
            check_smoothed((RpDtype)dtype, 23, 37, 3, gradient, 0.1f);
            check_smoothed((RpDtype)dtype, 9, 5003, 3, gradient, 0.3f);
            check_smoothed((RpDtype)dtype, 7, 128259, 3, gradient, 0.05f);
        }
    }
}

RP_TEST(computes_loss_and_gradient_of_a_chunk)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (gboolean gradient = FALSE; gradient <= TRUE; gradient++) {
            check_loss((RpDtype)dtype, 1, 1, 1, gradient);
            check_loss((RpDtype)dtype, 23, 37, 3, gradient);
            check_loss((RpDtype)dtype, 9, 5003, 3, gradient);
            check_loss((RpDtype)dtype, 11, 513, 1000, gradient);
            check_loss((RpDtype)dtype, 1031, 264, 3, gradient);
        }
        /* more than shared memory keeps; rows that stand well, and rows that do not */
        check_loss((RpDtype)dtype, 7, 151936, 3, TRUE);
        check_loss((RpDtype)dtype, 7, 128259, 3, TRUE);
    }
}

/* The device's loss of one row of three logits. */
static Outputs
loss_of_row(const float *logits, int32_t label)
{
    const Side side = {rp_cuda_kernels(), cuda_stream(), 0};
    Loss inputs = {1, 3, &label, TRUE, host_output(RP_DTYPE_FP32, 3)};
    Outputs outputs = {0};

    memcpy(inputs.logits.data, logits, 3 * sizeof *logits);
    compute_loss(&side, &inputs, &outputs);
    return outputs;
}

RP_TEST(gives_nothing_for_masked_tokens)
{
    const float logits[] = {1, NAN, INFINITY};
    const Outputs outputs = loss_of_row(logits, RP_LABEL_MASKED);

    assert_true(outputs.sums[0] == 3);
    assert_true(host_value(outputs.arrays[1], 0) == 0);
    for (size_t i = 0; i < 3; i++)
        assert_true(host_value(outputs.arrays[0], i) == 0);
}

RP_TEST(passes_on_what_is_not_finite)
{
    static const float bad[][3] = {
        {1, INFINITY, 3}, {1, NAN, 3}, {-INFINITY, 2, 3}, {-INFINITY, -INFINITY, -INFINITY}};

    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++)
        assert_false(isfinite(loss_of_row(bad[i], 0).sums[0]));
}

RP_TEST(gives_no_finite_loss_for_a_label_that_is_no_token)
{
    const float logits[] = {1, 2, 3};

    assert_false(isfinite(loss_of_row(logits, 3).sums[0]));
    assert_false(isfinite(loss_of_row(logits, -1).sums[0]));
}

RP_TEST_FIXTURE(cuda_setup, cuda_teardown)
RP_TEST_NEEDS(cuda_available())
