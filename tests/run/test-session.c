/*
 * Sessions: a run in the caller's program, with and without a schedule of its own.
 */
#include "tests/rp-test.h"

#include <glib/gstdio.h>
#include <string.h>

#include "core/base/file.h"
#include "core/verify/verify.h"
#include "run/run-file.h"
#include "run/train/session.h"

#define STEPS 4

static const char config[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 16, "
    "\"num_hidden_layers\": 4, \"num_attention_heads\": 4, \"intermediate_size\": 24, "
    "\"vocab_size\": 33, \"torch_dtype\": \"float32\"}";

typedef struct {
    char *directory;
} Fixture;

static char *
write_file(const Fixture *f, const char *name, const char *text)
{
    char *path = g_build_filename(f->directory, name, NULL);

    assert_true(g_file_set_contents(path, text, -1, NULL));
    return path;
}

static void
fill(Fixture *f)
{
    g_autoptr(GString) samples = g_string_new(NULL);

    f->directory = g_dir_make_tmp("rp-session-XXXXXX", NULL);
    for (guint i = 0; i < 16; i++)
        g_string_append_printf(samples, "{\"input_ids\": [1, %u, 3, 4, 5, 6, 7]}\n", i + 8);
    g_free(write_file(f, "config.json", config));
    g_free(write_file(f, "data.jsonl", samples->str));
}

/* Directories in it first. */
static void
remove_tree(const char *path)
{
    g_autoptr(GPtrArray) names = rp_file_list(path, NULL);

    for (guint i = 0; names != NULL && i < names->len; i++) {
        g_autofree char *within = g_build_filename(path, g_ptr_array_index(names, i), NULL);

        if (g_file_test(within, G_FILE_TEST_IS_DIR) && !g_file_test(within, G_FILE_TEST_IS_SYMLINK))
            remove_tree(within);
    }
    rp_file_remove_directory(path);
}

static void
clear(Fixture *f)
{
    remove_tree(f->directory);
    g_free(f->directory);
}

RP_TEST_STATE(Fixture, fill, clear)

/* @set: a word more, or %NULL */
static RpRunSpec *
make_run(const Fixture *f, const char *set)
{
    g_autofree char *text = g_strdup_printf("model: random:%s\n"
                                            "data: %s/data.jsonl\n"
                                            "output: %s/out\n"
                                            "devices: host:2\n"
                                            "micro_batches: 4\n"
                                            "sequence_length: 8\n"
                                            "packing: false\n"
                                            "async: false\n"
                                            "steps: %d\n"
                                            "optimizer: {learning_rate: 1e-2}\n",
                                            f->directory, f->directory, f->directory, STEPS);
    const char *const sets[] = {set, NULL};
    RpRunSpec *run = rp_run_file_parse("test", text, strlen(text), sets, NULL);

    assert_non_null(run);
    return run;
}

static void
run_loop(const Fixture *f, const char *schedule, double losses[STEPS])
{
    g_autofree char *set = g_strconcat("schedule=", schedule, NULL);
    g_autoptr(RpSession) session = rp_session_new(make_run(f, set), RP_SESSION_LOOP, NULL, NULL);
    g_autofree char *output = g_build_filename(f->directory, "out", NULL);

    assert_non_null(session);
    g_autoptr(RpBatcher) batcher = rp_session_batcher(session, NULL);
    g_autoptr(RpTrainer) trainer = rp_session_trainer(session, NULL);
    g_autoptr(RpTokenBatch) batch = rp_session_batch(session);
    for (guint i = 0; i < STEPS; i++) {
        assert_true(rp_batcher_next(batcher, batch, NULL));
        assert_true(rp_trainer_forward_backward(trainer, batch, &losses[i], NULL));
        assert_true(rp_trainer_step(trainer, NULL));
    }
    assert_true(rp_trainer_flush(trainer, NULL));
    assert_false(g_file_test(output, G_FILE_TEST_EXISTS));
}

static guint stopped_after;

static void
stepped(gpointer user_data, const RpStepReport *report, double step_ns)
{
    *(guint64 *)user_data = report->step;
    if (report->step >= 2)
        stopped_after = 1;
}

static int
stop(void)
{
    return (int)stopped_after;
}

RP_TEST_OF(a_run_stops_and_is_resumed, const Fixture *f)
{
    guint64 step = 0;
    const RpRunEvents events = {.stepped = stepped, .stop = stop, .user_data = &step};
    g_autofree char *checkpoint = NULL;
    g_autofree char *last = NULL;
    GError *error = NULL;
    RpSession *session = rp_session_new(make_run(f, NULL), RP_SESSION_TRAIN, &events, NULL);

    assert_non_null(session);
    assert_true(rp_session_train(session, &checkpoint, NULL));
    rp_session_free(session);
    assert_true(step >= 2 && step < STEPS);
    assert_non_null(checkpoint);

    /* a new run would be in its way; it is resumed without anybody who follows it */
    assert_null(rp_session_new(make_run(f, NULL), RP_SESSION_TRAIN, &events, &error));
    assert_true(g_error_matches(error, RP_RUN_ERROR, RP_RUN_ERROR_CHECKPOINT));
    g_clear_error(&error);
    session = rp_session_new(make_run(f, NULL), RP_SESSION_RESUME, NULL, NULL);
    assert_non_null(session);
    assert_true(rp_session_train(session, &last, NULL));
    rp_session_free(session);
    assert_true(g_str_has_suffix(last, "/checkpoint-4"));
}

RP_TEST_OF(predicts_without_weights_or_data, const Fixture *f)
{
    g_autofree char *data = g_build_filename(f->directory, "data.jsonl", NULL);

    assert_int_equal(g_remove(data), 0);
    g_autoptr(RpSession) session =
        rp_session_new(make_run(f, NULL), RP_SESSION_PREDICT, NULL, NULL);

    assert_non_null(session);
    const RpSessionPrediction predicted = rp_session_predict(session);

    assert_true(predicted.step.iteration_ns > 0);
    assert_int_equal(predicted.tokens, 4 * 8);
    assert_true(rp_verify_plan(predicted.plan, NULL));
    assert_true(rp_verify_trace(predicted.plan, predicted.trace, NULL));
    g_autofree char *path = g_build_filename(f->directory, "times.json", NULL);

    assert_true(rp_profile_save(predicted.profile, path, NULL));
    g_autoptr(RpProfile) profile = rp_profile_load(path, NULL);

    assert_int_equal(rp_profile_n_blocks(profile), 4);
}

/* A schedule of the caller's: last, for the table keeps it. */

static void
order(const RpShape *shape, guint gpu, GArray *actions)
{
    const guint M = shape->micro_batches, ahead = MIN(M, 2 * (shape->gpus - gpu) - 1);

    for (guint i = 0; i < M + ahead; i++) {
        if (i < M)
            rp_order_push(actions, RP_ACTION_FORWARD, gpu, i);
        if (i + 1 >= ahead && i + 1 - ahead < M)
            rp_order_push(actions, RP_ACTION_BACKWARD, gpu, i + 1 - ahead);
    }
}

static void
order_in_deadlock(const RpShape *shape, guint gpu, GArray *actions)
{
    for (guint i = 0; i < shape->micro_batches; i++) {
        rp_order_push(actions, RP_ACTION_BACKWARD, gpu, i);
        rp_order_push(actions, RP_ACTION_FORWARD, gpu, i);
    }
}

RP_TEST_OF(trains_by_a_schedule_of_the_callers_program, const Fixture *f)
{
    static const RpScheduleOps eager = {.name = "eager-1f1b",
                                        .title = "Eager 1F1B",
                                        .summary = "1F1B with more forwards ahead",
                                        .stages_per_gpu = 1,
                                        .order = order};
    static const RpScheduleOps stuck = {.name = "stuck",
                                        .title = "Stuck",
                                        .summary = "backwards before their forwards",
                                        .stages_per_gpu = 1,
                                        .order = order_in_deadlock};
    double losses[2][STEPS];
    GError *error = NULL;

    assert_true(rp_schedule_add(&eager, NULL) && rp_schedule_add(&stuck, NULL));
    run_loop(f, "1f1b", losses[0]);
    run_loop(f, "eager-1f1b", losses[1]);
    assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
    assert_true(losses[0][STEPS - 1] < losses[0][0]);
    assert_null(rp_session_new(make_run(f, "schedule=stuck"), RP_SESSION_LOOP, NULL, &error));
    assert_true(g_error_matches(error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_DEADLOCK));
    rp_assert_error(&error, "schedule stuck cannot run with 2 gpus and 4 micro-batches");
}
