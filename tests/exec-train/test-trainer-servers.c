/* Several servers, threads of this process, train the same weights as one server whose rounds are their shares: the
 * same bits, losses and norms. They save their parts, from which any number of servers resumes. */
#include <glib/gstdio.h>
#include <math.h>

#include "core/base/file.h"
#include "core/base/hash.h"
#include "exec/checkpoint/checkpoint.h"
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
    RpTinyRun run;      /* run of one server */
    const char *from;   /* a checkpoint; NULL: none */
    const char *output; /* where one is saved */
    guint64 first_step;
    guint n_steps;
    char *gradients; /* gradients of server 1 */
    Steps steps[8];
    guint64 n_shares[8];  /* layers of which a server has a part */
    guint64 least_shares; /* smallest share of each server */
} Servers;

static void
note(gpointer user_data, const RpStepReport *report)
{
    Steps *steps = user_data;

    steps->loss[report->step - 1] = report->loss;
    steps->norm[report->step - 1] = report->grad_norm;
    steps->skipped[report->step - 1] = report->skipped;
}

/* Hashes the gradients of the last step. All servers call it. */
static char *
hash_gradients(const RpTinyModel *model, const RpTrainer *trainer)
{
    guint64 hash = 0;

    for (guint w = 0; w < rp_weights_count(model->weights); w++) {
        const RpWeight *weight = rp_weights_nth(model->weights, w);
        g_autofree float *values = g_new(float, weight->elements);
        GError *error = NULL;

        if (!rp_weight_has_state(weight))
            continue;
        g_assert(rp_trainer_gradient(trainer, w, values, &error));
        hash = rp_hash64(values, weight->elements * sizeof *values, hash);
    }
    return g_strdup_printf("%016" G_GINT64_MODIFIER "x", hash);
}

static void
remove_tree(const char *path)
{
    g_autoptr(GPtrArray) names =
        g_file_test(path, G_FILE_TEST_IS_DIR) ? rp_file_list(path, NULL) : NULL;

    for (guint i = 0; names != NULL && i < names->len; i++) {
        g_autofree char *inner = g_build_filename(path, g_ptr_array_index(names, i), NULL);

        remove_tree(inner);
    }
    g_remove(path);
}

/* Saves a run of one server, or one server's part of a run of several. */
static void
save(RpTrainer *trainer, RpServers *servers, const char *output)
{
    const RpCheckpointOptions options = {.output = output, .servers = servers};
    const RpDataState data = {.n_samples = 9, .n_iterations = rp_trainer_n_steps(trainer)};
    g_autoptr(GError) error = NULL;
    g_autofree char *path = rp_checkpoint_save(&options, trainer, &data, NULL, &error);

    g_assert_no_error(error);
}

static void
restore(RpTrainer *trainer, RpServers *servers, const char *path)
{
    RpDataState data;
    g_autoptr(GError) error = NULL;

    if (!rp_checkpoint_restore(path, trainer, servers, &data, NULL, &error))
        g_assert_no_error(error);
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
    if (all->from != NULL)
        restore(trainer, servers, all->from);
    rp_tiny_train(trainer, &run, all->first_step, all->n_steps, NULL);
    for (guint l = 0; l < rp_network_n_layers(rp_trainer_network(trainer)); l++)
        all->n_shares[rank] +=
            rp_host_state_layer_state(rp_trainer_host_state(trainer), l).n_parameters > 0;
    if (all->from == NULL) {
        g_autofree char *gradients = hash_gradients(all->model, trainer);

        if (rank == 1)
            all->gradients = g_steal_pointer(&gradients);
    }
    if (all->output != NULL)
        save(trainer, servers, all->output);
}

/* On one server: the same steps. */
static void
train_alone(Servers *all, const RpTinyRun *run)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(RpTrainer) trainer = rp_tiny_trainer(all->model, run, &error);

    g_assert_no_error(error);
    if (all->from != NULL)
        restore(trainer, NULL, all->from);
    rp_tiny_train(trainer, run, all->first_step, all->n_steps, NULL);
    if (all->from == NULL)
        all->gradients = hash_gradients(all->model, trainer);
    if (all->output != NULL)
        save(trainer, NULL, all->output);
}

static void
train_together(Servers *all, guint n)
{
    ThreadsNet *net = threads_net_new(n);
    const RpServersOptions options = {.piece_bytes = 100000};

    threads_run(net, n, &options, train_one, all);
    threads_net_free(net);
}

/* Hash of the checkpoint of @step: masters, moments and next weights. (transfer full) */
static char *
saved_hash(const RpTinyModel *model, const RpTinyRun *run, const char *output, guint64 step)
{
    g_autofree char *name = g_strdup_printf("checkpoint-%" G_GUINT64_FORMAT, step);
    g_autofree char *path = g_build_filename(output, name, NULL);
    g_autoptr(GError) error = NULL;
    g_autoptr(RpTrainer) trainer = rp_tiny_trainer(model, run, &error);

    g_assert_no_error(error);
    restore(trainer, NULL, path);
    return rp_tiny_hash(trainer);
}

/* Files that do not say how many servers wrote them. */
static void
assert_same_files(const char *one, const char *other)
{
    g_autoptr(GPtrArray) names = rp_file_list(one, NULL);
    guint n = 0;

    assert_non_null(names);
    for (guint i = 0; i < names->len; i++) {
        const char *name = g_ptr_array_index(names, i);
        g_autofree char *a = g_build_filename(one, name, NULL);
        g_autofree char *b = g_build_filename(other, name, NULL);
        g_autofree char *x = NULL, *y = NULL;
        gsize n_x, n_y;

        if (g_str_has_prefix(name, "optimizer") || g_str_has_prefix(name, "next") ||
            strcmp(name, "manifest.json") == 0)
            continue;
        assert_true(g_file_get_contents(a, &x, &n_x, NULL));
        assert_true(g_file_get_contents(b, &y, &n_y, NULL));
        if (n_x != n_y || memcmp(x, y, n_x) != 0)
            fail_msg("%s differs from %s", a, b);
        n++;
    }
    assert_true(n >= 3);
}

static void
assert_as_one(const RpTinyModel *model, const RpTinyRun *run, guint n, guint64 least_shares)
{
    g_autofree char *directory = g_dir_make_tmp("rp-servers-XXXXXX", NULL);
    g_autofree char *alone = g_build_filename(directory, "alone", NULL);
    g_autofree char *together = g_build_filename(directory, "together", NULL);
    g_autofree char *of_one = g_build_filename(alone, "checkpoint-" G_STRINGIFY(STEPS), NULL);
    g_autofree char *of_all = g_build_filename(together, "checkpoint-" G_STRINGIFY(STEPS), NULL);
    Servers all = {.model = model,
                   .run = *run,
                   .output = alone,
                   .n_steps = STEPS,
                   .least_shares = least_shares};
    Steps steps = {0};
    RpTinyRun one = *run;

    one.micro_batches = EACH * n;
    one.round = run->round > 0 ? run->round : EACH;
    one.done = note;
    one.user_data = &steps;
    all.run.micro_batches = EACH;
    train_alone(&all, &one);
    g_autofree char *gradients = g_steal_pointer(&all.gradients);

    all.output = together;
    train_together(&all, n);
    one.done = NULL;
    g_autofree char *expected = saved_hash(model, &one, alone, STEPS);
    g_autofree char *hash = saved_hash(model, &one, together, STEPS);

    assert_same_files(of_one, of_all);
    remove_tree(directory);
    for (guint r = 0; r < n; r++)
        assert_true(all.n_shares[r] >= all.least_shares);
    for (guint r = 0; r < n; r++)
        for (guint i = 0; i < STEPS; i++) {
            assert_true(all.steps[r].loss[i] == steps.loss[i]);
            assert_true(all.steps[r].norm[i] == steps.norm[i] ||
                        (all.steps[r].skipped[i] && steps.skipped[i]));
        }
    if (strcmp(hash, expected) != 0)
        fail_msg("%u servers, dtype %s, async %d, lean %d: other bits", n,
                 rp_dtype_name(run->dtype), run->async, run->lean);
    assert_string_equal(all.gradients, gradients);
    g_free(all.gradients);
}

RP_TEST(of_any_number)
{
    RpTinyModel *model = rp_tiny_model_new_wide(FALSE);

    for (guint n = 2; n <= 4; n++)
        for (guint async = 0; async < 2; async++) {
            if (!RP_TEST_ALL && (async != n % 2 || (RP_TEST_SMALL && n != 3)))
                continue;
            const RpTinyRun run = {"roundpipe",          2,
                                   .async = async,       .dtype = RP_DTYPE_BF16,
                                   .max_grad_norm = 0.5, .threads = 2};

            assert_as_one(model, &run, n, n < 4 ? 3 : 2);
        }
    rp_tiny_model_free(model);
}

RP_TEST(of_a_tied_matrix_and_of_steps_that_are_skipped)
{
    RpTinyModel *model = rp_tiny_model_new_wide(TRUE);

    for (guint async = RP_TEST_FEW ? 1 : 0; async < 2; async++) {
        const RpTinyRun run = {"roundpipe", 1, .async = async, .dtype = RP_DTYPE_FP16,
                               .max_grad_norm = 0.5};

        assert_as_one(model, &run, 3, 3);
    }
    rp_tiny_model_free(model);
}

RP_TEST(of_every_form_of_the_optimizer)
{
    static const RpStateFormat forms[] = {
        {.moments = RP_MOMENTS_INT8},
        {.moments = RP_MOMENTS_BF16, .master = RP_MOMENTS_BF16},
        {.rule = RP_UPDATE_LION, .moments = RP_MOMENTS_INT8, .master = RP_MOMENTS_BF16}};
    RpTinyModel *model = rp_tiny_model_new_wide(FALSE);

    for (guint i = 0; i < G_N_ELEMENTS(forms); i++)
        for (guint lean = 0; lean < 2; lean++) {
            if (!RP_TEST_ALL && (lean != (i > 0) || (RP_TEST_SMALL && i != 2)))
                continue;
            const RpTinyRun run = {"roundpipe",     1,
                                   .async = i != 1, .dtype = RP_DTYPE_BF16,
                                   .lean = lean,    .form = forms[i]};

            assert_as_one(model, &run, 2, 3);
        }
    rp_tiny_model_free(model);
}

/* Two rounds of each server are four of one, where they stand apart on the host. */
RP_TEST(of_several_rounds)
{
    RpTinyModel *model = rp_tiny_model_new_wide(FALSE);
    const RpTinyRun run = {
        "roundpipe", 1, .round = 1, .n_stages = 1, .dtype = RP_DTYPE_BF16, .max_grad_norm = 0.5};

    assert_as_one(model, &run, 2, 3);
    rp_tiny_model_free(model);
}

/* One stage adds its rounds up where they are made: the messages are rounded once more. */
RP_TEST(but_for_a_rounding_of_rounds_that_are_summed_before)
{
    RpTinyModel *model = rp_tiny_model_new_wide(FALSE);
    Servers all = {.model = model,
                   .run = {"roundpipe", 1, EACH, .round = 1, .dtype = RP_DTYPE_BF16},
                   .n_steps = STEPS};
    Steps steps = {0};
    RpTinyRun one = all.run;

    one.micro_batches = 2 * EACH;
    one.done = note;
    one.user_data = &steps;
    g_free(rp_tiny_run_hash(model, &one, STEPS));
    train_together(&all, 2);
    for (guint i = 0; i < STEPS; i++) {
        assert_true(fabs(all.steps[1].loss[i] - steps.loss[i]) < 1e-3 * steps.loss[i]);
        assert_true(fabs(all.steps[1].norm[i] - steps.norm[i]) < 1e-2 * steps.norm[i]);
    }
    rp_tiny_model_free(model);
    g_free(all.gradients);
}

RP_TEST(of_adapters_and_of_experts)
{
    RpTinyModel *adapted = rp_tiny_model_new_wide(FALSE), *experts = rp_tiny_model_new_experts();
    const RpTinyRun run = {"roundpipe", 2, .async = TRUE, .dtype = RP_DTYPE_BF16,
                           .max_grad_norm = 0.5};

    rp_tiny_model_adapt(adapted, 64, NULL, RP_DTYPE_BF16);
    if (!RP_TEST_FEW) { /* the last has both */
        assert_as_one(adapted, &run, 3, 2);
        assert_as_one(experts, &run, 3, 0);
    }
    rp_tiny_model_adapt(experts, 64, NULL, RP_DTYPE_BF16); /* the file has them in another order */
    assert_as_one(experts, &run, 3, 0);
    rp_tiny_model_free(adapted);
    rp_tiny_model_free(experts);
}

/* Micro-batches of a step, and steps on each number of servers, one run after the other. */
#define ALL 12
static const guint counts[] = {4, 2, 1, 3};

/* The same with one server at a time, which adds up rounds as they are these servers'. */
RP_TEST(from_checkpoints_of_other_numbers)
{
    static const RpStateFormat forms[] = {{.moments = RP_MOMENTS_FP32},
                                          {.moments = RP_MOMENTS_INT8},
                                          {.moments = RP_MOMENTS_BF16, .master = RP_MOMENTS_BF16}};
    RpTinyModel *model = rp_tiny_model_new_wide(FALSE);

    for (guint i = 0; i < 2 * G_N_ELEMENTS(forms); i += RP_TEST_EVERY(3, 6)) {
        g_autofree char *directory = g_dir_make_tmp("rp-servers-XXXXXX", NULL);
        g_autofree char *alone = g_build_filename(directory, "alone", NULL);
        g_autofree char *together = g_build_filename(directory, "together", NULL);
        RpTinyRun run = {"roundpipe",          2,
                         .async = i % 2 != 0,  .dtype = RP_DTYPE_BF16,
                         .max_grad_norm = 0.5, .form = forms[i / 2]};
        g_autofree char *of_one = NULL, *of_all = NULL;

        for (guint k = 0; k < G_N_ELEMENTS(counts) - (RP_TEST_FEW ? 1 : 0); k++) {
            Servers all = {.model = model, .run = run, .first_step = k, .n_steps = 1};

            all.run.micro_batches = ALL / counts[k];
            all.run.round = 0; /* all of them */
            run.micro_batches = ALL;
            run.round = ALL / counts[k];
            all.from = of_one;
            all.output = alone;
            train_alone(&all, &run);
            g_clear_pointer(&all.gradients, g_free);
            all.from = of_all;
            all.output = together;
            if (counts[k] == 1)
                train_alone(&all, &run);
            else
                train_together(&all, counts[k]);
            g_free(all.gradients);
            g_autofree char *name = g_strdup_printf("checkpoint-%u", k + 1);

            g_free(of_one);
            g_free(of_all);
            of_one = g_build_filename(alone, name, NULL);
            of_all = g_build_filename(together, name, NULL);
            assert_same_files(of_one, of_all);
            g_autofree char *expected = saved_hash(model, &run, alone, k + 1);
            g_autofree char *hash = saved_hash(model, &run, together, k + 1);

            assert_string_equal(hash, expected);
        }
        remove_tree(directory);
    }
    rp_tiny_model_free(model);
}

/* Blocks far from each other have gradients in the same place, one after the other. */
RP_TEST(of_layers_that_share_a_place)
{
    RpTinyModel *model = rp_tiny_model_new(TRUE);
    const RpTinyRun run = {"roundpipe", 1, .n_stages = 1, .dtype = RP_DTYPE_BF16,
                           .max_grad_norm = 0.5};

    assert_as_one(model, &run, 2, 0);
    rp_tiny_model_free(model);
}
