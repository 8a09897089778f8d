/* Losses of preferences, and cross entropy whose gradient has weights, held to the host's. */
#include "tests/exec-cuda/cuda-fixture.h"

typedef struct {
    RpPreference preference;
    size_t tokens, documents;
    Array losses, references;
    const int32_t *labels, *first, *answers;
} Batch;

static void
compute(const Side *side, const void *data, Outputs *outputs)
{
    const Batch *batch = data;
    const size_t n = batch->documents;
    const double loss = 3;
    const RpPreferenceSums sums = {.losses = 1};
    RpPreferenceSums found;
    RpPreferenceArgs args = {
        .preference = batch->preference,
        .tokens = batch->tokens,
        .documents = n,
        .losses = cuda_in(side, batch->losses),
        .labels = cuda_copy_in(side, batch->labels, batch->tokens, sizeof(int32_t)),
        .first = cuda_copy_in(side, batch->first, n + 1, sizeof(int32_t)),
        .answers = cuda_copy_in(side, batch->answers, n, sizeof(int32_t)),
        .references = cuda_in(side, batch->references),
        .nll_scale = 0.3,
        .scale = 0.125,
        .loss = cuda_copy_in(side, &loss, 1, sizeof loss),
        .sums = cuda_copy_in(side, &sums, sizeof sums / sizeof(double), sizeof(double)),
        .logps = cuda_out(side, RP_DTYPE_FP32, n),
        .weights = cuda_out(side, RP_DTYPE_FP32, batch->tokens)};

    args.workspace = cuda_workspace(side, side->kernels->preference_workspace(&args));
    side->kernels->preference(side->stream, &args);
    outputs->arrays[0] = cuda_result(side, RP_DTYPE_FP32, n, args.logps);
    outputs->terms[0] = 1;
    outputs->arrays[1] = cuda_result(side, RP_DTYPE_FP32, batch->tokens, args.weights);
    outputs->terms[1] = 1;
    cuda_copy_out(side, args.loss, &outputs->sums[0], sizeof(double));
    cuda_copy_out(side, args.sums, &found, sizeof found);
    outputs->sums[1] = found.losses + 2 * found.nll + 3 * found.kl;
    outputs->sums[2] = found.rewards_chosen - 2 * found.rewards_rejected + 3 * found.n_right;
    outputs->sums[3] = found.logps_chosen + 2 * found.logps_rejected + 5 * found.n_chosen_targets +
                       7 * (found.n_chosen + 2 * found.n_rejected);
}

/* @pairs of documents of 0 to @most rows, with paddings between them */
static void
check(RpObjective objective, size_t pairs, gint32 most)
{
    const guint mark = host_mark();
    const gboolean kto = objective == RP_OBJECTIVE_KTO;
    const size_t n = 3 * pairs;
    int32_t *first = host_bytes((n + 1) * sizeof *first);
    int32_t *answers = host_bytes(n * sizeof *answers);
    Batch batch = {.preference = rp_preference_default(objective), .documents = n};

    batch.preference.label_smoothing = rp_objective_info(objective)->has_smoothing ? 0.1 : 0;
    batch.preference.desirable_weight = 1.5;
    first[0] = 0;
    for (size_t d = 0; d < n; d++) {
        first[d + 1] = first[d] + host_random_below(most + 1);
        answers[d] = d % 3 == 2   ? RP_ANSWER_NONE
                     : d % 3 == 1 ? (kto ? RP_ANSWER_KL : RP_ANSWER_REJECTED)
                     : !kto       ? RP_ANSWER_CHOSEN
                     : d % 2 == 0 ? RP_ANSWER_DESIRABLE
                                  : RP_ANSWER_UNDESIRABLE;
    }
    batch.tokens = (size_t)first[n] + 5; /* and some of no document */
    int32_t *labels = host_bytes(batch.tokens * sizeof *labels);

    for (size_t t = 0; t < batch.tokens; t++)
        labels[t] = t % 7 == 3 ? RP_LABEL_MASKED : 1;
    batch.losses = host_random(RP_DTYPE_FP32, batch.tokens, 1);
    for (size_t t = 0; t < batch.tokens; t++)
        ((float *)batch.losses.data)[t] *= ((float *)batch.losses.data)[t];
    batch.references = host_random(RP_DTYPE_FP32, n, 3);
    batch.labels = labels;
    batch.first = first;
    batch.answers = answers;
    cuda_hold_to_host(compute, &batch, TRUE);
    host_free_since(mark);
}

RP_TEST(computes_losses_of_documents)
{
    for (RpObjective o = RP_OBJECTIVE_DPO; o < RP_N_OBJECTIVES; o++) {
        check(o, 1, 3);
        check(o, 3, 40);
        check(o, 41, 200);
        check(o, 700, 9);
        check(o, 2, 5000);
    }
}

typedef struct {
    size_t tokens, vocabulary;
    const int32_t *labels;
    Array logits, weights;
} Weighed;

static void
compute_weighed(const Side *side, const void *data, Outputs *outputs)
{
    const Weighed *inputs = data;
    RpCrossEntropyArgs args = {
        .dtype = inputs->logits.dtype,
        .tokens = inputs->tokens,
        .vocabulary = inputs->vocabulary,
        .logits = cuda_in(side, inputs->logits),
        .labels = cuda_copy_in(side, inputs->labels, inputs->tokens, sizeof *inputs->labels),
        .scale = 1,
        .gradient = true,
        .losses = cuda_out(side, RP_DTYPE_FP32, inputs->tokens),
        .weights = cuda_in(side, inputs->weights)};

    args.workspace = cuda_workspace(side, side->kernels->cross_entropy_workspace(&args));
    side->kernels->cross_entropy(side->stream, &args);
    outputs->arrays[0] = cuda_result(side, args.dtype, inputs->logits.n, args.logits);
    outputs->terms[0] = 1;
    outputs->arrays[1] = cuda_result(side, RP_DTYPE_FP32, inputs->tokens, args.losses);
    outputs->terms[1] = 1;
}

RP_TEST(weighs_the_gradient_of_cross_entropy)
{
    static const size_t sizes[][2] = {{1, 3}, {23, 37}, {9, 5003}, {7, 151936}};

    for (guint i = 0; i < RP_N_DTYPES * G_N_ELEMENTS(sizes); i++) {
        const guint mark = host_mark();
        const RpDtype dtype = (RpDtype)(i % RP_N_DTYPES);
        const size_t *size = sizes[i / RP_N_DTYPES];
        int32_t *labels = host_bytes(size[0] * sizeof *labels);
        const Weighed inputs = {size[0], size[1], labels, cuda_random(dtype, size[0] * size[1], 3),
                                host_random(RP_DTYPE_FP32, size[0], 1)};

        for (size_t t = 0; t < size[0]; t++)
            labels[t] = t % 5 == 3 ? RP_LABEL_MASKED : host_random_below((gint32)size[1]);
        cuda_hold_to_host(compute_weighed, &inputs, TRUE);
        host_free_since(mark);
    }
}

RP_TEST_FIXTURE(cuda_setup, cuda_teardown)
RP_TEST_NEEDS(cuda_available())
