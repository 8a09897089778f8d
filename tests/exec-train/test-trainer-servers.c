/* Several servers, threads of this process, train the weights that one server does whose rounds are their
 * shares: the same bits, losses and norms. */
#include <gio/gio.h>
#include <math.h>

#include "tests/exec-servers/threads-transport.h"
#include "tests/exec-train/train-fixture.h"

#define STEPS 3
#define EACH 2 /* micro-batches of a server */

typedef struct {
    double loss[STEPS];
    double norm[STEPS];
    gboolean skipped[STEPS];
} Steps;

typedef struct {
    const RpTinyModel *model;
    RpTinyRun run; /* of one server */
    char *hash;    /* of server 0 */
    char *gradients;
    Steps steps[8];
    guint64 n_shares[8];  /* layers of which a server has a part */
    guint64 least_shares; /* of each server */
} Servers;

static void
note(gpointer user_data, const RpStepReport *report)
{
    Steps *steps = user_data;

    steps->loss[report->step - 1] = report->loss;
    steps->norm[report->step - 1] = report->grad_norm;
    steps->skipped[report->step - 1] = report->skipped;
}

/* Of the gradients of the last step. All servers call it. */
static char *
hash_gradients(const RpTinyModel *model, const RpTrainer *trainer)
{
    g_autoptr(GChecksum) checksum = g_checksum_new(G_CHECKSUM_SHA256);

    for (guint w = 0; w < rp_weights_count(model->weights); w++) {
        const RpWeight *weight = rp_weights_nth(model->weights, w);
        g_autofree float *values = g_new(float, weight->elements);
        GError *error = NULL;

        if (!rp_weight_has_state(weight))
            continue;
        g_assert(rp_trainer_gradient(trainer, w, values, &error));
        g_checksum_update(checksum, (const guchar *)values,
                          (gssize)(weight->elements * sizeof *values));
    }
    return g_strdup(g_checksum_get_string(checksum));
}

static void
train_one(RpServers *servers, gpointer user_data)
{
    Servers *all = user_data;
    const guint rank = rp_servers_rank(servers);
    RpTinyRun run = all->run;
    g_autoptr(GError) error = NULL;

    run.servers = servers;
    run.done = note;
    run.user_data = &all->steps[rank];
    g_autoptr(RpTrainer) trainer = rp_tiny_trainer(all->model, &run, &error);

    g_assert_no_error(error);
    rp_tiny_train(trainer, &run, 0, STEPS, NULL);
    for (guint l = 0; l < rp_network_n_layers(rp_trainer_network(trainer)); l++)
        all->n_shares[rank] +=
            rp_host_state_layer_state(rp_trainer_host_state(trainer), l).n_parameters > 0;
    g_autofree char *gradients = hash_gradients(all->model, trainer);

    if (rank == 1)
        all->gradients = g_steal_pointer(&gradients);
    g_assert(rp_host_state_gather(rp_trainer_host_state(trainer), g_get_tmp_dir(), &error));
    if (rank == 0)
        all->hash = rp_tiny_hash(trainer);
    rp_host_state_let_go(rp_trainer_host_state(trainer));
}

static void
assert_as_one(const RpTinyModel *model, const RpTinyRun *run, guint n, guint64 least_shares)
{
    Servers all = {.model = model, .run = *run, .least_shares = least_shares};
    ThreadsNet *net = threads_net_new(n);
    const RpServersOptions options = {.piece_bytes = 100000};
    Steps steps = {0};
    RpTinyRun one = *run;

    one.micro_batches = EACH * n;
    one.round = run->round > 0 ? run->round : EACH;
    one.done = note;
    one.user_data = &steps;
    all.run.micro_batches = EACH;
    g_autoptr(RpTrainer) trainer = rp_tiny_trainer(model, &one, NULL);

    rp_tiny_train(trainer, &one, 0, STEPS, NULL);
    g_autofree char *gradients = hash_gradients(model, trainer);
    g_autofree char *expected = rp_tiny_hash(trainer);

    threads_run(net, n, &options, train_one, &all);
    threads_net_free(net);
    for (guint r = 0; r < n; r++)
        assert_true(all.n_shares[r] >= all.least_shares);
    for (guint r = 0; r < n; r++)
        for (guint i = 0; i < STEPS; i++) {
            assert_true(all.steps[r].loss[i] == steps.loss[i]);
            assert_true(all.steps[r].norm[i] == steps.norm[i] ||
                        (all.steps[r].skipped[i] && steps.skipped[i]));
        }
    if (strcmp(all.hash, expected) != 0)
        fail_msg("%u servers, dtype %s, async %d, lean %d: other bits", n,
                 rp_dtype_name(run->dtype), run->async, run->lean);
    assert_string_equal(all.gradients, gradients);
    g_free(all.hash);
    g_free(all.gradients);
}

static void
of_any_number(void **state)
{
    RpTinyModel *model = rp_tiny_model_new_wide(FALSE);

    (void)state;
    for (guint n = 2; n <= 4; n++)
        for (guint async = 0; async < 2; async++) {
            const RpTinyRun run = {"roundpipe",          2,
                                   .async = async,       .dtype = RP_DTYPE_BF16,
                                   .max_grad_norm = 0.5, .threads = 2};

            assert_as_one(model, &run, n, n < 4 ? 3 : 2);
        }
    rp_tiny_model_free(model);
}

static void
of_a_tied_matrix_and_of_steps_that_are_skipped(void **state)
{
    RpTinyModel *model = rp_tiny_model_new_wide(TRUE);

    (void)state;
    for (guint async = 0; async < 2; async++) {
        const RpTinyRun run = {"roundpipe", 1, .async = async, .dtype = RP_DTYPE_FP16,
                               .max_grad_norm = 0.5};

        assert_as_one(model, &run, 3, 3);
    }
    rp_tiny_model_free(model);
}

static void
of_every_form_of_the_optimizer(void **state)
{
    static const RpOptimizerForm forms[] = {
        {.moments = RP_MOMENTS_INT8},
        {.moments = RP_MOMENTS_BF16, .master = RP_MOMENTS_BF16},
        {.rule = RP_UPDATE_LION, .moments = RP_MOMENTS_INT8, .master = RP_MOMENTS_BF16}};
    RpTinyModel *model = rp_tiny_model_new_wide(FALSE);

    (void)state;
    for (guint i = 0; i < G_N_ELEMENTS(forms); i++)
        for (guint lean = 0; lean < 2; lean++) {
            const RpTinyRun run = {"roundpipe",     1,
                                   .async = i != 1, .dtype = RP_DTYPE_BF16,
                                   .lean = lean,    .form = forms[i]};

            assert_as_one(model, &run, 2, 3);
        }
    rp_tiny_model_free(model);
}

/* Two rounds of each server are four of one, where they stand apart on the host. */
static void
of_several_rounds(void **state)
{
    RpTinyModel *model = rp_tiny_model_new_wide(FALSE);
    const RpTinyRun run = {
        "roundpipe", 1, .round = 1, .n_stages = 1, .dtype = RP_DTYPE_BF16, .max_grad_norm = 0.5};

    (void)state;
    assert_as_one(model, &run, 2, 3);
    rp_tiny_model_free(model);
}

/* One stage adds its rounds up where they are made: what is sent is rounded once more. */
static void
but_for_a_rounding_of_rounds_that_are_summed_before(void **state)
{
    RpTinyModel *model = rp_tiny_model_new_wide(FALSE);
    Servers all = {.model = model,
                   .run = {"roundpipe", 1, EACH, .round = 1, .dtype = RP_DTYPE_BF16}};
    Steps steps = {0};
    RpTinyRun one = all.run;
    ThreadsNet *net = threads_net_new(2);

    (void)state;
    one.micro_batches = 2 * EACH;
    one.done = note;
    one.user_data = &steps;
    g_free(rp_tiny_run_hash(model, &one, STEPS));
    threads_run(net, 2, NULL, train_one, &all);
    for (guint i = 0; i < STEPS; i++) {
        assert_true(fabs(all.steps[1].loss[i] - steps.loss[i]) < 1e-3 * steps.loss[i]);
        assert_true(fabs(all.steps[1].norm[i] - steps.norm[i]) < 1e-2 * steps.norm[i]);
    }
    threads_net_free(net);
    rp_tiny_model_free(model);
    g_free(all.hash);
    g_free(all.gradients);
}

static void
of_adapters_and_of_experts(void **state)
{
    RpTinyModel *adapted = rp_tiny_model_new_wide(FALSE), *experts = rp_tiny_model_new_experts();
    const RpTinyRun run = {"roundpipe", 2, .async = TRUE, .dtype = RP_DTYPE_BF16,
                           .max_grad_norm = 0.5};

    (void)state;
    rp_tiny_model_adapt(adapted, 64, NULL, RP_DTYPE_BF16);
    assert_as_one(adapted, &run, 3, 2);
    assert_as_one(experts, &run, 3, 0);
    rp_tiny_model_free(adapted);
    rp_tiny_model_free(experts);
}

/* ---- evaluations ---- */

#define SAMPLES 29

/* Samples of 2 to 12 tokens; that of number @bad has an impossible one. */
static RpDataset *
new_dataset(guint bad)
{
    GString *text = g_string_new(NULL);
    GError *error = NULL;

    for (guint i = 0; i < SAMPLES; i++) {
        g_string_append(text, "{\"input_ids\": [1");
        for (guint t = 0; t < 1 + i % 11; t++)
            g_string_append_printf(text, ",%u", i == bad ? 61 : (7 * i + 5 * t) % 61);
        g_string_append(text, "]}\n");
    }
    g_autoptr(GBytes) bytes = g_string_free_to_bytes(text);
    RpDataset *dataset = rp_dataset_new_jsonl("samples", bytes, 61, &error);

    rp_assert_no_error(error);
    return dataset;
}

typedef struct {
    const RpTinyModel *model;
    RpTinyRun run;
    RpDataset *good, *bad;
    const char *line; /* that is bad: of server 1 */
    RpEvaluation evaluation[4];
} Evaluated;

static gboolean
go_on(gpointer rank, guint64 n_samples)
{
    return *(guint *)rank != 1 || n_samples == 0;
}

/* After a step: what one cannot read none has, who wants no more ends it for all, and then it is whole. */
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
static void
evaluate_as_one(void **state)
{
    RpTinyModel *model = rp_tiny_model_new(FALSE);
    const RpServersOptions options = {.piece_bytes = 1000};

    (void)state;
    for (guint n = 1; n <= 4; n *= 2) {
        static double loss; /* of one */
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

/* Blocks far from each other have gradients in the same place, one after the other. */
static void
of_layers_that_share_a_place(void **state)
{
    RpTinyModel *model = rp_tiny_model_new(TRUE);
    const RpTinyRun run = {"roundpipe", 1, .n_stages = 1, .dtype = RP_DTYPE_BF16,
                           .max_grad_norm = 0.5};

    (void)state;
    assert_as_one(model, &run, 2, 0);
    rp_tiny_model_free(model);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_any_number),
        cmocka_unit_test(of_a_tied_matrix_and_of_steps_that_are_skipped),
        cmocka_unit_test(of_every_form_of_the_optimizer),
        cmocka_unit_test(of_several_rounds),
        cmocka_unit_test(but_for_a_rounding_of_rounds_that_are_summed_before),
        cmocka_unit_test(of_adapters_and_of_experts),
        cmocka_unit_test(of_layers_that_share_a_place),
        cmocka_unit_test(evaluate_as_one),
    };

    return cmocka_run_group_tests_name("train_the_bits_of_one_server", tests, NULL, NULL);
}
