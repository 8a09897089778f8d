/*
 * Sessions: a run in the caller's program, with and without a schedule of its own.
 */
#include "tests/rp-test.h"

#include <glib/gstdio.h>
#include <math.h>
#include <string.h>

#include "core/base/file.h"
#include "core/catalogue/custom.h"
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

/* @set: words more, or %NULL */
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
    g_auto(GStrv) sets = g_strsplit(set != NULL ? set : "", " ", -1);
    RpRunSpec *run = rp_run_file_parse("test", text, strlen(text), (const char *const *)sets, NULL);

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

/* ---- layers and losses of the caller's program: the tables keep them, too ---- */

static void
own_entropy(const RpLossCall *c)
{
    float *row = c->values;

    for (gsize r = 0; r < c->rows; r++, row += c->width) {
        const gint32 label = c->labels[r * c->label_stride];
        double sum = 0;

        for (gsize v = 0; v < c->width; v++)
            sum += exp((double)row[v]);
        if (label != RP_LABEL_MASKED)
            *c->loss += log(sum) - row[label];
        for (gsize v = 0; v < c->width && c->gradient; v++)
            row[v] = label == RP_LABEL_MASKED
                         ? 0
                         : (float)(c->scale * (exp((double)row[v]) / sum - (v == (gsize)label)));
    }
}

/* Fails with @message, which ends in "*" where the rest does not matter. */
static void
check_refused(RpRunSpec *run, const char *message)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(RpSession) session = rp_session_new(run, RP_SESSION_LOOP, NULL, &error);

    assert_null(session);
    assert_non_null(error);
    if (!g_pattern_match_simple(message, error->message))
        fail_msg("expected %s, found %s", message, error->message);
}

RP_TEST_OF(trains_by_a_loss_of_the_callers_program, const Fixture *f)
{
    static const RpLoss own = {.name = "own-entropy", .host = own_entropy};
    static const RpLoss nameless = {.name = "Own", .host = own_entropy}, empty = {.name = "empty"};
    double losses[2][STEPS];
    g_autoptr(GError) error = NULL;

    assert_true(rp_loss_add(&own, NULL));
    assert_false(rp_loss_add(&own, &error));
    assert_string_equal(error->message, "loss \"own-entropy\": expected a name that no other has");
    assert_false(rp_loss_add(&nameless, NULL) || rp_loss_add(&empty, NULL));
    run_loop(f, "roundpipe", losses[0]);
    run_loop(f, "roundpipe loss=own-entropy", losses[1]);
    for (guint i = 0; i < STEPS; i++)
        assert_true(fabs(losses[0][i] - losses[1][i]) < 1e-5);
    check_refused(make_run(f, "loss=other"), "loss: expected one of cross_entropy, own-entropy, or "
                                             "one that a program adds (docs/library.md), found "
                                             "\"other\"");
    check_refused(make_run(f, "loss=own-entropy label_smoothing=0.1"),
                  "label_smoothing: expected 0 with the loss own-entropy, found 0.1");
}

/* A record is C numbers and C labels; the first layer copies the numbers, blocks multiply them by weights that
 * begin as 1, the last copies them. With blocks of 1 the loss is the squared distance of numbers and labels. */
#define NUMBERS 3

static guint
no_tensors(const RpCustomShape *shape, RpCustomTensor *tensors)
{
    return 0;
}

static guint
one_tensor(const RpCustomShape *shape, RpCustomTensor *tensors)
{
    tensors[0] = (RpCustomTensor){.name = "weight", .rank = 1, .dims = {shape->hidden}, .start = 1};
    return 1;
}

static void
take_numbers(const RpCustomCall *c)
{
    for (guint i = 0; i < c->shape.samples; i++)
        memcpy((float *)c->output + i * c->shape.hidden,
               (const float *)c->input + i * c->shape.words, c->shape.hidden * sizeof(float));
}

static void
ignore(const RpCustomCall *c)
{
}

static void
multiply(const RpCustomCall *c)
{
    const float *x = c->input, *w = c->weights[0];

    for (guint i = 0; i < c->shape.samples * c->shape.hidden; i++)
        ((float *)c->output)[i] = x[i] * w[i % c->shape.hidden];
}

static void
multiply_backward(const RpCustomCall *c)
{
    const float *x = c->input, *w = c->weights[0], *dy = c->d_output;

    for (guint i = 0; i < c->shape.samples * c->shape.hidden; i++) {
        c->sums[0][i % c->shape.hidden] += x[i] * dy[i];
        if (c->d_input != NULL)
            ((float *)c->d_input)[i] = dy[i] * w[i % c->shape.hidden];
    }
}

static void
copy(const RpCustomCall *c)
{
    memcpy(c->output, c->input, (gsize)c->shape.samples * c->shape.hidden * sizeof(float));
}

static void
copy_backward(const RpCustomCall *c)
{
    memcpy(c->d_input, c->d_output, (gsize)c->shape.samples * c->shape.hidden * sizeof(float));
}

static void
squares(const RpLossCall *c)
{
    for (gsize i = 0; i < c->rows * c->width; i++) {
        float label, *value = (float *)c->values + i;
        const gint32 *word = &c->labels[i / c->width * c->label_stride + i % c->width];

        memcpy(&label, word, sizeof label);
        const float error = *word == RP_LABEL_MASKED ? 0 : *value - label;
        *c->loss += (double)error * error;
        *value = c->gradient ? 2 * c->scale * error : *value;
    }
}

static const RpCustomLayer numbers = {
    .tensors = no_tensors, .forward = take_numbers, .backward = ignore};
static const RpCustomLayer products = {
    .tensors = one_tensor, .forward = multiply, .backward = multiply_backward};
static const RpCustomLayer result = {
    .tensors = no_tensors, .forward = copy, .backward = copy_backward};
static const RpLoss distance = {.name = "distance", .host = squares};
static const RpCustomArchitecture scaled = {.name = "scaled",
                                            .input = &numbers,
                                            .block = &products,
                                            .output = &result,
                                            .loss = &distance,
                                            .labels = NUMBERS,
                                            .dtypes = 1 << RP_DTYPE_FP32};

static RpRunSpec *
make_custom_run(const Fixture *f, const char *set)
{
    g_autofree char *sets =
        g_strdup_printf("data=%s/numbers.bin sequence_length=%d dtype=fp32 micro_batch_size=2 %s",
                        f->directory, 2 * NUMBERS, set);

    return make_run(f, g_strchomp(sets));
}

RP_TEST_OF(trains_layers_of_the_callers_program, const Fixture *f)
{
    static const RpCustomArchitecture without = {.name = "without", .input = &numbers};
    float records[16][2 * NUMBERS];
    double losses[STEPS], expected = 0;
    g_autofree char *path = g_build_filename(f->directory, "numbers.bin", NULL);
    g_autoptr(GError) error = NULL;

    for (guint i = 0; i < 16; i++)
        for (guint j = 0; j < NUMBERS; j++) {
            records[i][j] = (float)(i + j) / 8 - 1;
            records[i][NUMBERS + j] = 0.5f * records[i][j];
            if (i < 8) /* of the first step, which has 4 x 2 records in the order of the file */
                expected += 0.25 * records[i][j] * records[i][j] / (8 * NUMBERS);
        }
    assert_true(g_file_set_contents(path, (const char *)records, sizeof records, NULL));
    g_free(write_file(f, "config.json",
                      "{\"architectures\": [\"scaled\"], \"hidden_size\": 3, \"vocab_size\": 3,\n"
                      " \"num_hidden_layers\": 4, \"max_position_embeddings\": 6}"));
    check_refused(make_custom_run(f, ""), "model: *: architectures?0?: expected one of *");

    assert_false(rp_architecture_add(&without, &error));
    assert_string_equal(error->message, "architecture \"without\": expected input, block and "
                                        "output, each with tensors, forward and backward");
    assert_true(rp_architecture_add(&scaled, NULL));
    g_autofree char *set = g_strdup_printf(
        "roundpipe shuffle=false data=%s sequence_length=6 dtype=fp32 micro_batch_size=2", path);
    run_loop(f, set, losses);
    assert_true(fabs(losses[0] - expected) < 1e-6);
    assert_true(losses[STEPS - 1] < losses[0]);

    check_refused(make_custom_run(f, "sequence_length=7"),
                  "sequence_length: expected 6, the words of a record of scaled "
                  "(max_position_embeddings), found 7");
    check_refused(make_custom_run(f, "dtype=bf16"),
                  "dtype: expected one that scaled can, found bf16");
    check_refused(make_custom_run(f, "loss=cross_entropy"),
                  "loss: expected one that a program adds, as scaled has layers of its own, *");
    check_refused(make_custom_run(f, "packing=true"), "packing: expected nothing for scaled, *");
    check_refused(make_custom_run(f, "lora.rank=2"), "lora: expected nothing for scaled, *");
    g_autofree char *lines = g_strdup_printf("data=%s/data.jsonl", f->directory);
    check_refused(make_custom_run(f, lines),
                  "*/data.jsonl: expected one file of 32-bit words whose name ends in .bin, as "
                  "scaled reads it");
}
