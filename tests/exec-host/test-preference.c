/* Losses of preferences: gradients by differences, margins without bounds, documents that are none; and cross entropy
 * whose gradient has weights. */
#include "tests/exec-host/host-fixture.h"

#include <math.h>

#define DOCUMENTS 7
#define TOKENS 24

/* A micro-batch of documents. */
typedef struct {
    RpPreference preference;
    float losses[TOKENS], references[DOCUMENTS];
    int32_t labels[TOKENS], first[DOCUMENTS + 1], answers[DOCUMENTS];
} Batch;

/* Outputs of the kernel. */
typedef struct {
    double loss;
    RpPreferenceSums sums;
    float logps[DOCUMENTS], weights[TOKENS];
} Result;

static const RpObjective objectives[] = {RP_OBJECTIVE_DPO, RP_OBJECTIVE_IPO, RP_OBJECTIVE_ORPO,
                                         RP_OBJECTIVE_SIMPO, RP_OBJECTIVE_KTO};

/* Two pairs or answers, a padding between them, and one of an empty pair behind; some rows are masked, some are of no
 * document. */
static Batch
make_batch(RpObjective objective)
{
    static const int32_t first[] = {0, 4, 9, 11, 15, 22, 22, 22};
    const gboolean kto = objective == RP_OBJECTIVE_KTO;
    const int32_t answers[] = {kto ? RP_ANSWER_DESIRABLE : RP_ANSWER_CHOSEN,
                               kto ? RP_ANSWER_KL : RP_ANSWER_REJECTED,
                               RP_ANSWER_NONE,
                               kto ? RP_ANSWER_UNDESIRABLE : RP_ANSWER_CHOSEN,
                               kto ? RP_ANSWER_KL : RP_ANSWER_REJECTED,
                               kto ? RP_ANSWER_DESIRABLE : RP_ANSWER_CHOSEN,
                               kto ? RP_ANSWER_KL : RP_ANSWER_REJECTED};
    Batch batch = {.preference = rp_preference_default(objective)};

    batch.preference.beta = 0.4;
    batch.preference.label_smoothing = rp_objective_info(objective)->has_smoothing ? 0.1 : 0;
    batch.preference.undesirable_weight = 0.6;
    memcpy(batch.first, first, sizeof first);
    memcpy(batch.answers, answers, sizeof answers);
    for (size_t t = 0; t < TOKENS; t++) {
        const gboolean masked = t % 5 == 2 || (t >= 9 && t < 11) || t >= 22;

        batch.labels[t] = masked ? RP_LABEL_MASKED : 1;
        batch.losses[t] = masked ? 0 : 0.3F + 0.1F * (float)(t % 7);
    }
    for (size_t d = 0; d < DOCUMENTS; d++)
        batch.references[d] = -0.4F * (float)d - 1;
    return batch;
}

/* @logps: (array length=TOKENS) (nullable): more than float, for differences */
static Result
run(const Batch *batch, double nll_scale)
{
    Result result = {.loss = 2, .sums.n_right = 1};
    RpPreferenceArgs args = {.preference = batch->preference,
                             .tokens = TOKENS,
                             .documents = DOCUMENTS,
                             .losses = batch->losses,
                             .labels = batch->labels,
                             .first = batch->first,
                             .answers = batch->answers,
                             .references = batch->references,
                             .nll_scale = nll_scale,
                             .scale = 0.25,
                             .loss = &result.loss,
                             .sums = &result.sums,
                             .logps = result.logps,
                             .weights = result.weights};

    memset(result.weights, 0xff, sizeof result.weights);
    args.workspace = host_workspace(rp_host_kernels()->preference_workspace(&args));
    rp_host_kernels()->preference(NULL, &args);
    return result;
}

/* KTO's z has no gradient, and is not 0 here: its documents are left as they are. */
RP_TEST(has_the_gradients_of_its_losses)
{
    for (guint i = 0; i < G_N_ELEMENTS(objectives); i++) {
        const Batch batch = make_batch(objectives[i]);
        const Result result = run(&batch, 0.3);

        for (int32_t d = 0; d < DOCUMENTS; d++)
            for (int32_t t = batch.first[d]; t < batch.first[d + 1]; t++) {
                Batch more = batch, less = batch;

                if (batch.labels[t] == RP_LABEL_MASKED || batch.answers[d] == RP_ANSWER_KL) {
                    assert_true(result.weights[t] == 0);
                    continue;
                }
                more.losses[t] += 0x1p-7F;
                less.losses[t] -= 0x1p-7F;
                const double slope = (run(&more, 0.3).loss - run(&less, 0.3).loss) /
                                     ((double)more.losses[t] - (double)less.losses[t]);

                assert_true(fabs(result.weights[t] - 0.25 * slope) < 2e-5);
            }
        for (size_t t = 22; t < TOKENS; t++)
            assert_true(result.weights[t] == 0);
        assert_true(result.sums.nll > 0);
        assert_true(result.sums.n_chosen + result.sums.n_rejected ==
                    (objectives[i] == RP_OBJECTIVE_KTO ? 3 : 6));
    }
}

/* Sums are added to, and a document's log-probability is the sum of its rows. */
RP_TEST(adds_rows_of_documents_up)
{
    const Batch batch = make_batch(RP_OBJECTIVE_DPO);
    const Result result = run(&batch, 0);

    assert_true(result.sums.n_right >= 1);
    for (int32_t d = 0; d < DOCUMENTS; d++) {
        double sum = 0;

        for (int32_t t = batch.first[d]; t < batch.first[d + 1]; t++)
            sum -= batch.labels[t] == RP_LABEL_MASKED ? 0 : (double)batch.losses[t];
        assert_true(result.logps[d] == (float)sum);
    }
    assert_true(fabs(result.loss - 2 - result.sums.losses) < 1e-12);
}

/* Log-probabilities near 0, and margins of a million either way. */
RP_TEST(stays_finite_whatever_the_margin)
{
    static const float values[] = {0, 1e-30F, 1e-9F, 1e-6F, 30, 90, 800, 1e6F};

    for (guint i = 0; i < G_N_ELEMENTS(objectives); i++)
        for (guint v = 0; v < G_N_ELEMENTS(values) * G_N_ELEMENTS(values); v++) {
            Batch batch = make_batch(objectives[i]);

            for (int32_t t = 0; t < TOKENS; t++)
                batch.losses[t] =
                    values[t < 4 ? v % G_N_ELEMENTS(values) : v / G_N_ELEMENTS(values)];
            const Result result = run(&batch, 1);

            assert_true(isfinite(result.loss) && isfinite(result.sums.rewards_chosen));
            for (size_t t = 0; t < TOKENS; t++)
                assert_true(isfinite(result.weights[t]));
        }
}

/* An answer that the model never gives is no number of a loss. */
RP_TEST(passes_on_what_is_not_finite)
{
    for (guint i = 0; i < G_N_ELEMENTS(objectives); i++) {
        Batch batch = make_batch(objectives[i]);

        batch.losses[0] = NAN;
        assert_false(isfinite(run(&batch, 0).loss));
    }
}

/* z is a mean over KL documents, and never below 0. */
RP_TEST(clamps_the_kl_term)
{
    Batch batch = make_batch(RP_OBJECTIVE_KTO);
    const RpPreferenceSums sums = run(&batch, 0).sums;
    double z = 0;

    for (int32_t d = 0; d < DOCUMENTS; d++)
        if (batch.answers[d] == RP_ANSWER_KL)
            z += ((double)run(&batch, 0).logps[d] - (double)batch.references[d]) / 3;
    assert_true(z > 0 && fabs(sums.kl - z) < 1e-6 && sums.n_kl == 1);
    for (int32_t d = 0; d < DOCUMENTS; d++)
        batch.references[d] = 0;
    assert_true(run(&batch, 0).sums.kl == 0);
}

RP_TEST(weighs_the_gradient_of_cross_entropy)
{
    const RpKernels *kernels = rp_host_kernels();
    const size_t tokens = 9, vocabulary = 131;

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        const Array logits = host_random((RpDtype)dtype, tokens * vocabulary, 2);
        const Array weighed = host_copy(logits);
        int32_t labels[9];
        float weights[9], losses[9];
        double loss = 0;
        RpCrossEntropyArgs args = {.dtype = logits.dtype,
                                   .tokens = tokens,
                                   .vocabulary = vocabulary,
                                   .logits = logits.data,
                                   .labels = labels,
                                   .scale = 1,
                                   .gradient = true,
                                   .loss = &loss};

        for (size_t t = 0; t < tokens; t++) {
            labels[t] = t == 4 ? RP_LABEL_MASKED : host_random_below((gint32)vocabulary);
            weights[t] = t % 2 == 0 ? -0x1p-3F : 0x1p-1F; /* exact in every storage */
        }
        kernels->cross_entropy(NULL, &args);
        args.logits = weighed.data;
        args.weights = weights;
        args.losses = losses;
        args.loss = NULL;
        kernels->cross_entropy(NULL, &args);
        for (size_t i = 0; i < tokens * vocabulary; i++) {
            const double wanted = (double)weights[i / vocabulary] * host_value(logits, i);

            assert_true(fabs(host_value(weighed, i) - wanted) <= 0x1p-23);
            loss -= i % vocabulary == 0 ? (double)losses[i / vocabulary] : 0;
        }
        assert_true(fabs(loss) < 1e-5);
    }
}

RP_TEST_FIXTURE(host_setup, host_teardown)
