/* Several servers, threads of this process, evaluate together: the loss of one, to the bit. */
#include <gio/gio.h>
#include <math.h>

#include "tests/exec-servers/threads-transport.h"
#include "tests/exec-train/train-fixture.h"

#define SAMPLES 29

/* Samples of 2 to 12 tokens; that of number @bad has an impossible one. */
static RpDataset *
new_dataset(guint bad)
{
    GString *text = g_string_new(NULL);

    for (guint i = 0; i < SAMPLES; i++) {
        g_string_append(text, "{\"input_ids\": [1");
        for (guint t = 0; t < 1 + i % 11; t++)
            g_string_append_printf(text, ",%u", i == bad ? 61 : (7 * i + 5 * t) % 61);
        g_string_append(text, "]}\n");
    }
    g_autoptr(GBytes) bytes = g_string_free_to_bytes(text);
    return rp_must(rp_dataset_new_jsonl, "samples", bytes, 61);
}

typedef struct {
    const RpTinyModel *model;
    RpTinyRun run;
    RpDataset *good, *bad;
    const char *line; /* the bad line of server 1 */
    RpEvaluation evaluation[4];
} Evaluated;

static gboolean
go_on(gpointer rank, guint64 n_samples)
{
    return *(guint *)rank != 1 || n_samples == 0;
}

/* After a step: a sample that one server cannot read fails on all, one that stops ends it for all, and then it is
 * whole. */
static void
evaluate_one(RpServers *servers, gpointer user_data)
{
    Evaluated *all = user_data;
    guint rank = rp_servers_rank(servers);
    RpTinyRun run = all->run;
    RpEvaluation *evaluation = &all->evaluation[rank];
    GError *error = NULL;

    run.servers = servers;
    g_autoptr(RpTrainer) trainer = rp_tiny_trainer(all->model, &run, &error);

    g_assert_no_error(error);
    rp_tiny_train(trainer, &run, 0, 1, NULL);
    g_assert(!rp_trainer_evaluate(trainer, all->bad, 0, NULL, NULL, evaluation, &error));
    g_assert_true(error->domain == RP_DATASET_ERROR);
    g_assert_true(
        g_str_has_prefix(error->message, rank == 1 ? all->line : rp_servers_name(servers, 1)));
    g_assert_nonnull(strstr(error->message, all->line));
    g_clear_error(&error);
    g_assert(!rp_trainer_evaluate(trainer, all->good, 0, go_on, &rank, evaluation, &error));
    g_assert_error(error, G_IO_ERROR, G_IO_ERROR_CANCELLED);
    g_clear_error(&error);
    g_assert(rp_trainer_evaluate(trainer, all->good, 0, NULL, NULL, evaluation, &error));
}

/* Four micro-batches of two sequences each: server 1 reads samples 4 to 7 of two, 2 and 3 of four. */
RP_TEST(evaluate_as_one)
{
    RpTinyModel *model = rp_tiny_model_new(FALSE);
    const RpServersOptions options = {.piece_bytes = 1000};

    for (guint n = 1; n <= 4; n *= 2) {
        static double loss; /* loss of one server */
        Evaluated all = {.model = model,
                         .run = {"roundpipe", 1, .micro_batches = 4 / n, .round = 1, .n_stages = 1,
                                 .dtype = RP_DTYPE_BF16, .async = TRUE, .evaluates = TRUE},
                         .good = new_dataset(SAMPLES),
                         .bad = new_dataset(n == 2 ? 5 : 3),
                         .line = n == 2 ? "samples: line 6, " : "samples: line 4, "};
        ThreadsNet *net = threads_net_new(n);

        if (n == 1) {
            g_autoptr(RpTrainer) trainer = rp_tiny_trainer(model, &all.run, NULL);

            rp_tiny_train(trainer, &all.run, 0, 1, NULL);
            assert_true(
                rp_trainer_evaluate(trainer, all.good, 0, NULL, NULL, &all.evaluation[0], NULL));
            loss = all.evaluation[0].loss;
        } else {
            threads_run(net, n, &options, evaluate_one, &all);
        }
        for (guint r = 0; r < n; r++) {
            assert_true(isfinite(loss) && all.evaluation[r].loss == loss);
            assert_int_equal(all.evaluation[r].n_samples, SAMPLES);
            assert_int_equal(all.evaluation[r].calls, 4);
        }
        threads_net_free(net);
        rp_dataset_free(all.good);
        rp_dataset_free(all.bad);
    }
    rp_tiny_model_free(model);
}
