/* Several servers, threads of this process, train on preferences as one server whose rounds are their shares: the same
 * bits, losses and metrics; each scores its own batches. */
#include <math.h>

#include "core/base/hash.h"
#include "tests/exec-servers/threads-transport.h"
#include "tests/exec-train/train-fixture.h"

#define STEPS 3
#define EACH 2 /* micro-batches of a server */

typedef struct {
    const RpTinyModel *model;
    RpTinyRun run; /* run of one server */
    guint n;       /* servers */
    struct {
        guint64 hash;
        guint n_reports;
        RpStepReport reports[STEPS];
    } of[4];
} Servers;

/* Micro-batches [first, first + n) of @all of a step: a pair a row, whose counts are those of all. */
static RpTokenBatch *
make_batch(guint step, guint first, guint n, guint all)
{
    const RpBatcherOptions options = {.micro_batches = n,
                                      .sequences = RP_TINY_SEQUENCES,
                                      .tokens = RP_TINY_TOKENS,
                                      .packing = TRUE,
                                      .preference = TRUE};
    const guint T = RP_TINY_SEQUENCES * RP_TINY_TOKENS;
    RpTokenBatch *batch = rp_token_batch_new(&options);

    for (guint m = 0; m < all; m++) {
        g_autoptr(GRand) rand = g_rand_new_with_seed(step * 1000 + m);
        const gboolean own = m >= first && m < first + n;
        const guint at = own ? m - first : 0;

        for (guint d = 0; d < 2 * RP_TINY_SEQUENCES; d++) {
            const guint row = d / 2 * RP_TINY_TOKENS, n_first = 3 + (step + m + d / 2) % 5;
            const guint begin = row + (d % 2 == 0 ? 0 : n_first);
            const guint end = row + (d % 2 == 0 ? n_first : RP_TINY_TOKENS);
            const guint n_targets = end - begin - 1;

            batch->n_pairs += d % 2 == 0;
            batch->n_targets += n_targets;
            batch->n_chosen_targets += d % 2 == 0 ? n_targets : 0;
            if (!own)
                continue;
            for (guint t = begin; t < end; t++) {
                batch->input_ids[at * T + t] = g_rand_int_range(rand, 0, 61);
                batch->targets[at * T + t] = RP_LABEL_MASKED;
                if (t > begin)
                    batch->targets[at * T + t - 1] = batch->input_ids[at * T + t];
            }
            batch->starts[at * (T + 1) + d] = (gint32)begin;
            batch->starts[at * (T + 1) + d + 1] = (gint32)end;
            batch->answers[at * T + d] = d % 2 == 0 ? RP_ANSWER_CHOSEN : RP_ANSWER_REJECTED;
            batch->longest[at] = MAX(batch->longest[at], end - begin);
            batch->n_micro_targets[at] += n_targets;
            batch->n_starts[at]++;
        }
        for (guint row = 0; own && row < RP_TINY_SEQUENCES; row++)
            batch->lengths[at * RP_TINY_SEQUENCES + row] = RP_TINY_TOKENS;
    }
    return batch;
}

typedef struct {
    Servers *all;
    guint rank;
} Receiver;

static void
note(gpointer user_data, const RpStepReport *report)
{
    const Receiver *receiver = user_data;

    receiver->all->of[receiver->rank].reports[receiver->all->of[receiver->rank].n_reports++] =
        *report;
}

static void
train(Servers *all, RpServers *servers, guint rank, guint micro_batches)
{
    Receiver receiver = {all, rank};
    RpTinyRun run = all->run;
    GError *error = NULL;

    run.servers = servers;
    run.micro_batches = micro_batches;
    run.done = note;
    run.user_data = &receiver;
    g_autoptr(RpTrainer) trainer = rp_tiny_trainer(all->model, &run, &error);

    g_assert_no_error(error);
    for (guint i = 0; i < STEPS; i++) {
        RpTokenBatch *batch = make_batch(i, rank * micro_batches, micro_batches, all->n * EACH);

        g_assert(rp_trainer_score(trainer, &batch, 1, TRUE, &error));
        g_assert(rp_trainer_forward_backward(trainer, batch, NULL, &error));
        g_assert(rp_trainer_step(trainer, &error));
        rp_token_batch_free(batch);
    }
    g_assert(rp_trainer_flush(trainer, &error));
    for (guint w = 0; w < rp_weights_count(all->model->weights); w++)
        all->of[rank].hash = rp_hash64(
            rp_trainer_next_weight(trainer, w),
            rp_weights_nth(all->model->weights, w)->elements * sizeof(guint16), all->of[rank].hash);
}

static void
train_one(RpServers *servers, gpointer user_data)
{
    train(user_data, servers, rp_servers_rank(servers), EACH);
}

/* Each server has the metrics of all. */
static void
assert_as_one(RpTinyModel *model, double aux_loss)
{
    const RpServersOptions options = {.piece_bytes = 1000};
    RpPreference preference = rp_preference_default(RP_OBJECTIVE_DPO);

    preference.reference = RP_REFERENCE_COPY;
    preference.sft_weight = 0.5;
    for (guint n = 2; n <= 4; n *= 2) {
        Servers one = {.model = model,
                       .n = n,
                       .run = {"roundpipe", 1, .round = EACH, .n_stages = 1, .dtype = RP_DTYPE_BF16,
                               .packed = TRUE, .aux_loss = aux_loss, .preference = preference}};
        Servers all = one;
        ThreadsNet *net = threads_net_new(n);

        train(&one, NULL, 0, n * EACH);
        threads_run(net, n, &options, train_one, &all);
        for (guint r = 0; r < n; r++) {
            assert_int_equal(all.of[r].n_reports, STEPS);
            assert_true(all.of[r].hash == one.of[0].hash);
            for (guint i = 0; i < STEPS; i++) {
                const RpStepReport *found = &all.of[r].reports[i], *want = &one.of[0].reports[i];

                assert_true(found->loss == want->loss && isfinite(found->loss));
                assert_true(found->aux_loss == want->aux_loss);
                assert_true((aux_loss > 0) == (found->aux_loss > 0));
                for (guint k = 0; k < RP_N_PREFERENCE_METRICS; k++)
                    assert_true(isnan(want->metrics[k]) ? isnan(found->metrics[k])
                                                        : found->metrics[k] == want->metrics[k]);
            }
        }
        assert_true(one.of[0].reports[0].metrics[RP_PREFERENCE_NLL_LOSS] > 0);
        threads_net_free(net);
    }
    rp_tiny_model_free(model);
}

RP_TEST(train_on_preferences_as_one)
{
    assert_as_one(rp_tiny_model_new(FALSE), 0);
}

RP_TEST(balance_experts_beside_preferences_as_one)
{
    assert_as_one(rp_tiny_model_new_experts(), 0.02);
}
