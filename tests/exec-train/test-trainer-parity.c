/* Ten steps of AdamW against transformers and PyTorch: clipping, weight decay, warm-up; fixtures
 * and the script that makes them are in tests/exec-network/fixtures. */
#include "tests/rp-test.h"

#include <json-glib/json-glib.h>
#include <math.h>

#include "exec/host/kernels.h"
#include "exec/train/trainer.h"

#define RELATIVE 1e-5

typedef struct {
    RpModel config;
    RpSafetensors *file, *final;
    RpWeights *weights;
    JsonParser *parser;
    JsonObject *options;
    JsonArray *steps;
    guint n_done;
    RpStepReport reports[16];
} Fixture;

static void
load(Fixture *f, const char *name)
{
    g_autofree char *directory =
        g_build_filename(RP_SOURCE_ROOT, "tests/exec-network/fixtures", name, NULL);
    g_autofree char *steps = g_build_filename(directory, "steps.json", NULL);
    g_autofree char *final = g_build_filename(directory, "final.safetensors", NULL);
    g_autofree char *model = g_build_filename(directory, "model.safetensors", NULL);
    GError *error = NULL;
    JsonObject *root;

    if (!rp_hf_config_load(directory, &f->config, &error))
        fail_msg("%s", error->message);
    f->file = rp_safetensors_open(model, &error);
    f->final = rp_safetensors_open(final, &error);
    assert_null(error);
    f->weights = rp_weights_new(&f->config);
    if (!rp_weights_bind(f->weights, f->file, &error))
        fail_msg("%s", error->message);
    f->parser = json_parser_new();
    assert_true(json_parser_load_from_file(f->parser, steps, NULL));
    root = json_node_get_object(json_parser_get_root(f->parser));
    f->options = json_object_get_object_member(root, "options");
    f->steps = json_object_get_array_member(root, "steps");
}

static void
unload(Fixture *f)
{
    g_object_unref(f->parser);
    rp_weights_free(f->weights);
    rp_safetensors_free(f->file);
    rp_safetensors_free(f->final);
}

static double
option(const Fixture *f, const char *name)
{
    return json_object_get_double_member(f->options, name);
}

static guint
count(const Fixture *f, const char *name)
{
    return (guint)json_object_get_int_member(f->options, name);
}

static void
note_report(gpointer user_data, const RpStepReport *report)
{
    Fixture *f = user_data;

    f->reports[f->n_done++] = *report;
}

static RpTrainer *
make_trainer(Fixture *f, guint devices)
{
    RpTrainerOptions options = {
        .weights = f->weights,
        .plan = {.schedule = rp_schedule_find("roundpipe", NULL),
                 .gpus = devices,
                 .micro_batches = 3},
        .network = {.dtype = RP_DTYPE_FP32,
                    .sequences = count(f, "sequences"),
                    .tokens = count(f, "tokens"),
                    .head_chunk = 7},
        .update = {.adamw = {.beta1 = option(f, "beta1"),
                             .beta2 = option(f, "beta2"),
                             .epsilon = option(f, "epsilon"),
                             .weight_decay = option(f, "weight_decay")},
                   .learning_rate = {.peak = option(f, "learning_rate"),
                                     .warmup_steps = count(f, "warmup_steps"),
                                     .total_steps = count(f, "total_steps")},
                   .max_grad_norm = option(f, "max_grad_norm")},
        .done = note_report,
        .user_data = f,
    };
    RpNetwork *network = rp_network_new(f->weights, rp_host_kernels(), &options.network);
    RpProfile *profile = rp_network_profile(network);
    RpPartition *partition;
    RpTrainer *trainer;
    GError *error = NULL;

    options.update.learning_rate.kind =
        g_str_equal(json_object_get_string_member(f->options, "schedule"), "cosine")
            ? RP_LEARNING_RATE_COSINE
            : RP_LEARNING_RATE_LINEAR;
    for (guint l = 0; l < profile->n_layers; l++)
        profile->layers[l].forward_ns = profile->layers[l].backward_ns = 1000;
    profile->links.h2d_bytes_per_s = profile->links.d2h_bytes_per_s = 1e10;
    partition = rp_partition_paper(profile, devices, 3, 0, &error);
    options.profile = profile;
    options.partition = partition;
    trainer = rp_trainer_new(&options, &error);
    if (trainer == NULL)
        fail_msg("%s", error->message);
    rp_partition_free(partition);
    rp_profile_free(profile);
    rp_network_free(network);
    return trainer;
}

static RpTokenBatch *
make_batch(const Fixture *f, JsonObject *step)
{
    const guint tokens = count(f, "sequences") * count(f, "tokens");
    const RpBatcherOptions options = {
        .micro_batches = 3, .sequences = count(f, "sequences"), .tokens = count(f, "tokens")};
    JsonArray *micro_batches = json_object_get_array_member(step, "micro_batches");
    RpTokenBatch *batch = rp_token_batch_new(&options);

    for (guint m = 0; m < 3; m++) {
        JsonObject *from = json_array_get_object_element(micro_batches, m);
        JsonArray *ids = json_object_get_array_member(from, "input_ids");
        JsonArray *targets = json_object_get_array_member(from, "targets");

        for (guint i = 0; i < tokens; i++) {
            batch->input_ids[m * tokens + i] = (gint32)json_array_get_int_element(ids, i);
            batch->targets[m * tokens + i] = (gint32)json_array_get_int_element(targets, i);
            batch->n_targets += batch->targets[m * tokens + i] != RP_LABEL_MASKED;
        }
    }
    batch->n_tokens = 3 * (guint64)tokens;
    return batch;
}

static void
assert_near(double value, double expected, const char *what, guint step)
{
    if (!(fabs(value - expected) <= RELATIVE * fabs(expected)))
        fail_msg("step %u: %s %.9g, transformers %.9g", step, what, value, expected);
}

static void
assert_weights(const Fixture *f, RpTrainer *trainer)
{
    for (guint w = 0; w < rp_weights_count(f->weights); w++) {
        const RpWeight *weight = rp_weights_nth(f->weights, w);
        const RpSafetensor *expected = rp_safetensors_find(f->final, weight->name);
        const float *value = rp_trainer_weight(trainer, w);
        double difference = 0, norm = 0;

        if (weight->tied)
            continue;
        assert_non_null(expected);
        for (guint64 i = 0; i < weight->elements; i++) {
            const double want = ((const float *)expected->data)[i];

            difference += (value[i] - want) * (value[i] - want);
            norm += want * want;
        }
        if (!(sqrt(difference) <= RELATIVE * sqrt(norm)))
            fail_msg("%s: relative error %.3g", weight->name, sqrt(difference / norm));
    }
}

static void
assert_ten_steps(const char *name, guint devices)
{
    Fixture f = {0};
    RpTrainer *trainer;
    RpTokenBatch *batches[16];
    GError *error = NULL;
    guint n, n_clipped = 0;

    load(&f, name);
    n = json_array_get_length(f.steps);
    assert_int_equal(n, 10);
    trainer = make_trainer(&f, devices);
    for (guint i = 0; i < n; i++) {
        JsonObject *step = json_array_get_object_element(f.steps, i);
        double loss;

        batches[i] = make_batch(&f, step);
        assert_true(rp_trainer_forward_backward(trainer, batches[i], &loss, &error));
        assert_near(loss, json_object_get_double_member(step, "loss"), "loss", i);
        assert_true(rp_trainer_step(trainer, &error));
    }
    assert_true(rp_trainer_flush(trainer, &error));
    assert_int_equal(f.n_done, n);
    for (guint i = 0; i < n; i++) {
        JsonObject *step = json_array_get_object_element(f.steps, i);
        const double norm = json_object_get_double_member(step, "grad_norm");

        assert_near(f.reports[i].loss, json_object_get_double_member(step, "loss"), "loss", i);
        assert_near(f.reports[i].grad_norm, norm, "gradient norm", i);
        assert_near(f.reports[i].learning_rate,
                    json_object_get_double_member(step, "learning_rate"), "learning rate", i);
        n_clipped += norm > option(&f, "max_grad_norm");
        rp_token_batch_free(batches[i]);
    }
    assert_true(n_clipped > 0);
    assert_weights(&f, trainer);
    rp_trainer_free(trainer);
    unload(&f);
}

static void
of_a_tied_qwen3_are_those_of_transformers(void **state)
{
    for (guint devices = 1; devices <= 3; devices++)
        assert_ten_steps("qwen3-tied", devices);
}

static void
of_a_llama_with_biases_are_those_of_transformers(void **state)
{
    for (guint devices = 1; devices <= 3; devices++)
        assert_ten_steps("llama-bias", devices);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_a_tied_qwen3_are_those_of_transformers),
        cmocka_unit_test(of_a_llama_with_biases_are_those_of_transformers),
    };

    return cmocka_run_group_tests_name("ten steps", tests, NULL, NULL);
}
