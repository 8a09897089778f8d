/* Ten steps of AdamW against transformers, peft and PyTorch: clipping, weight decay, warm-up; fixtures
 * and the script that makes them are in tests/exec-network/fixtures. */
#include "tests/rp-test.h"

#include <math.h>

#include "exec/adapter/adapter.h"
#include "exec/host/kernels.h"
#include "exec/train/trainer.h"
#include "tests/json-tree.h"

#define RELATIVE 1e-5

typedef struct {
    RpModel config;
    RpSafetensors *file, *final, *adapters;
    RpWeights *weights;
    RpTree *root;
    const RpTree *options;
    const RpTree *steps;
    guint n_done;
    RpStepReport reports[16];
} Fixture;

static void
load(Fixture *f, const char *name, const char *base)
{
    g_autofree char *own =
        g_build_filename(RP_SOURCE_ROOT, "tests/exec-network/fixtures", name, NULL);
    g_autofree char *directory =
        base != NULL ? g_build_filename(own, "..", base, NULL) : g_strdup(own);
    g_autofree char *adapters = g_build_filename(own, RP_ADAPTER_TENSORS, NULL);
    g_auto(RpLora) lora = {0};
    g_autofree char *steps = g_build_filename(own, "steps.json", NULL);
    g_autofree char *final = g_build_filename(own, "final.safetensors", NULL);
    g_autofree char *model = g_build_filename(directory, "model.safetensors", NULL);
    g_autofree char *text = NULL;
    GError *error = NULL;

    if (!rp_hf_config_load(directory, &f->config, &error))
        fail_msg("%s", error->message);
    f->file = rp_safetensors_open(model, &error);
    f->final = rp_safetensors_open(final, &error);
    assert_null(error);
    if (base != NULL && (!rp_adapter_config_load(own, &lora, &error) ||
                         (f->adapters = rp_safetensors_open(adapters, &error)) == NULL))
        fail_msg("%s", error->message);
    f->weights = rp_weights_new_adapted(&f->config, &lora);
    if (!rp_weights_bind(f->weights, f->file, &error) ||
        (base != NULL && !rp_adapter_bind(f->weights, f->adapters, &error)))
        fail_msg("%s", error->message);
    assert_true(g_file_get_contents(steps, &text, NULL, NULL));
    f->root = rp_tree_parse(text);
    assert_non_null(f->root);
    f->options = rp_tree_find(f->root, "options");
    f->steps = rp_tree_find(f->root, "steps");
}

static void
unload(Fixture *f)
{
    rp_tree_free(f->root);
    rp_weights_free(f->weights);
    rp_safetensors_free(f->file);
    rp_safetensors_free(f->final);
    rp_safetensors_free(f->adapters);
}

static double
option(const Fixture *f, const char *name)
{
    return rp_tree_find(f->options, name)->number;
}

static guint
count(const Fixture *f, const char *name)
{
    return (guint)rp_tree_find(f->options, name)->number;
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
        g_str_equal(rp_tree_find(f->options, "schedule")->text, "cosine") ? RP_LEARNING_RATE_COSINE
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
make_batch(const Fixture *f, const RpTree *step)
{
    const guint tokens = count(f, "sequences") * count(f, "tokens");
    const RpBatcherOptions options = {
        .micro_batches = 3, .sequences = count(f, "sequences"), .tokens = count(f, "tokens")};
    const RpTree *micro_batches = rp_tree_find(step, "micro_batches");
    RpTokenBatch *batch = rp_token_batch_new(&options);

    for (guint m = 0; m < 3; m++) {
        const RpTree *from = rp_tree_nth(micro_batches, m);
        const RpTree *ids = rp_tree_find(from, "input_ids");
        const RpTree *targets = rp_tree_find(from, "targets");

        for (guint i = 0; i < tokens; i++) {
            batch->input_ids[m * tokens + i] = (gint32)(gint64)rp_tree_nth(ids, i)->number;
            batch->targets[m * tokens + i] = (gint32)(gint64)rp_tree_nth(targets, i)->number;
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
        g_autofree char *name = rp_adapter_tensor_name(f->weights, w);
        const RpSafetensor *expected =
            rp_safetensors_find(f->final, name + strlen("base_model.model."));
        double difference = 0, norm = 0;

        if (!rp_weight_has_state(weight))
            continue;
        g_autofree float *buffer = g_new(float, weight->elements);
        const float *value = rp_adapter_to_file(
            weight, RP_DTYPE_FP32, rp_trainer_weight(trainer, w), 0, weight->elements, buffer);

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
assert_ten_steps(const char *name, const char *base, guint devices)
{
    Fixture f = {0};
    RpTrainer *trainer;
    RpTokenBatch *batches[16];
    GError *error = NULL;
    guint n, n_clipped = 0;

    load(&f, name, base);
    n = f.steps->items->len;
    assert_int_equal(n, 10);
    trainer = make_trainer(&f, devices);
    for (guint i = 0; i < n; i++) {
        const RpTree *step = rp_tree_nth(f.steps, i);
        double loss;

        batches[i] = make_batch(&f, step);
        assert_true(rp_trainer_forward_backward(trainer, batches[i], &loss, &error));
        assert_near(loss, rp_tree_find(step, "loss")->number, "loss", i);
        assert_true(rp_trainer_step(trainer, &error));
    }
    assert_true(rp_trainer_flush(trainer, &error));
    assert_int_equal(f.n_done, n);
    for (guint i = 0; i < n; i++) {
        const RpTree *step = rp_tree_nth(f.steps, i);
        const double norm = rp_tree_find(step, "grad_norm")->number;

        assert_near(f.reports[i].loss, rp_tree_find(step, "loss")->number, "loss", i);
        assert_near(f.reports[i].grad_norm, norm, "gradient norm", i);
        assert_near(f.reports[i].learning_rate, rp_tree_find(step, "learning_rate")->number,
                    "learning rate", i);
        n_clipped += norm > option(&f, "max_grad_norm");
        rp_token_batch_free(batches[i]);
    }
    assert_true(n_clipped > 0);
    assert_weights(&f, trainer);
    rp_trainer_free(trainer);
    unload(&f);
}

RP_TEST(of_a_tied_qwen3_are_those_of_transformers)
{
    for (guint devices = 1; devices <= 3; devices++)
        assert_ten_steps("qwen3-tied", NULL, devices);
}

RP_TEST(of_a_llama_with_biases_are_those_of_transformers)
{
    for (guint devices = 1; devices <= 3; devices++)
        assert_ten_steps("llama-bias", NULL, devices);
}

RP_TEST(of_a_qwen3_of_experts_are_those_of_transformers)
{
    for (guint devices = 1; devices <= 3; devices++)
        assert_ten_steps("qwen3-moe", NULL, devices);
}

RP_TEST(of_a_gpt_oss_are_those_of_transformers)
{
    for (guint devices = 1; devices <= 3; devices++)
        assert_ten_steps("gpt-oss", NULL, devices);
}

RP_TEST(of_a_qwen3_5_are_those_of_transformers)
{
    for (guint devices = 1; devices <= 3; devices++)
        assert_ten_steps("qwen3-5-outer", NULL, devices);
}

RP_TEST(of_a_qwen3_5_with_experts_are_those_of_transformers)
{
    for (guint devices = 1; devices <= 3; devices++)
        assert_ten_steps("qwen3-5-moe-outer", NULL, devices);
}

RP_TEST(of_adapters_of_a_qwen3_5_are_those_of_peft)
{
    for (guint devices = 1; devices <= 3; devices++)
        assert_ten_steps("qwen3-5-lora", "qwen3-5", devices);
}

RP_TEST(of_adapters_of_a_qwen3_5_with_experts_are_those_of_peft)
{
    for (guint devices = 1; devices <= 3; devices++)
        assert_ten_steps("qwen3-5-moe-lora", "qwen3-5-moe", devices);
}

RP_TEST(of_adapters_are_those_of_peft)
{
    for (guint devices = 1; devices <= 3; devices++)
        assert_ten_steps("qwen3-tied-lora", "qwen3-tied", devices);
}

RP_TEST(of_adapters_and_a_whole_head_are_those_of_peft)
{
    for (guint devices = 1; devices <= 3; devices++)
        assert_ten_steps("llama-bias-lora", "llama-bias", devices);
}

RP_TEST(of_adapters_of_experts_are_those_of_peft)
{
    for (guint devices = 1; devices <= 3; devices++)
        assert_ten_steps("qwen3-moe-lora", "qwen3-moe", devices);
    for (guint devices = 1; devices <= 3; devices++)
        assert_ten_steps("gpt-oss-lora", "gpt-oss", devices);
}

RP_TEST(of_adapters_with_dropout_are_those_of_peft)
{
    for (guint devices = 1; devices <= 3; devices++)
        assert_ten_steps("llama-bias-dropout", "llama-bias", devices);
}

/* Its weights are then none either, and the token that they belong to is the first. */
RP_TEST(of_a_router_without_numbers_name_its_layer_and_token)
{
    Fixture f = {0};
    RpTrainer *trainer;
    RpTokenBatch *batch;
    GError *error = NULL;
    guint64 run;

    load(&f, "qwen3-moe", NULL);
    trainer = make_trainer(&f, 2);
    const guint64 place =
        rp_network_layout(rp_trainer_network(trainer), 2)->place[RP_WEIGHT_ROUTER].byte;
    *(float *)rp_host_state_weights(rp_trainer_host_state(trainer), 2, 0, place, &run) = NAN;
    batch = make_batch(&f, rp_tree_nth(f.steps, 0));
    assert_false(rp_trainer_forward_backward(trainer, batch, NULL, &error) &&
                 rp_trainer_step(trainer, &error) && rp_trainer_flush(trainer, &error));
    rp_assert_error_message_contains(error, "step 1: the loss is not a number");
    rp_assert_error_message_contains(error, "layer 2 (model.layers.1), sequence 0, token 0;");
    g_error_free(error);
    rp_trainer_free(trainer);
    rp_token_batch_free(batch);
    unload(&f);
}
