/* Losses of evaluations against transformers and peft; fixtures/make-evaluations.py makes theirs. */
#include "tests/rp-test.h"

#include <math.h>

#include "exec/adapter/adapter.h"
#include "exec/host/kernels.h"
#include "exec/train/trainer.h"
#include "tests/json-tree.h"

#define RELATIVE 1e-5
#define TOKENS 13

static RpTree *
load_evaluations(void)
{
    g_autofree char *path =
        g_build_filename(RP_SOURCE_ROOT, "tests/exec-train/fixtures/evaluations.json", NULL);
    g_autofree char *text = NULL;

    assert_true(g_file_get_contents(path, &text, NULL, NULL));
    RpTree *root = rp_tree_parse(text);
    assert_non_null(root);
    return root;
}

/* JSON of whole numbers. */
static void
add_numbers(GString *line, const char *key, const RpTree *numbers)
{
    g_string_append_printf(line, "\"%s\": [", key);
    for (guint i = 0; i < numbers->items->len; i++)
        g_string_append_printf(line, "%s%.0f", i > 0 ? ", " : "", rp_tree_nth(numbers, i)->number);
    g_string_append(line, "]");
}

static RpDataset *
make_dataset(const RpTree *samples, guint vocabulary)
{
    GString *text = g_string_new(NULL);

    for (guint i = 0; i < samples->items->len; i++) {
        g_string_append(text, "{");
        add_numbers(text, "input_ids", rp_tree_find(rp_tree_nth(samples, i), "input_ids"));
        g_string_append(text, ", ");
        add_numbers(text, "labels", rp_tree_find(rp_tree_nth(samples, i), "labels"));
        g_string_append(text, "}\n");
    }
    g_autoptr(GBytes) bytes = g_string_free_to_bytes(text);
    return rp_must(rp_dataset_new_jsonl, "samples", bytes, vocabulary);
}

static char *
fixture(const char *name, const char *file)
{
    return g_build_filename(RP_SOURCE_ROOT, "tests/exec-network/fixtures", name, file, NULL);
}

typedef struct {
    RpModel config;
    RpSafetensors *file, *adapters;
    RpWeights *weights;
} Model;

static void
load_model(Model *model, const RpTree *from)
{
    const char *name = rp_tree_find(from, "name")->text;
    const RpTree *of = rp_tree_find(from, "base");
    const char *base = of->type == RP_JSON_STRING ? of->text : NULL;
    g_autofree char *directory = fixture(base != NULL ? base : name, NULL);
    g_autofree char *path = fixture(base != NULL ? base : name, "model.safetensors");
    g_autofree char *own = fixture(name, NULL);
    g_autofree char *adapters = fixture(name, RP_ADAPTER_TENSORS);
    g_auto(RpLora) lora = {0};
    GError *error = NULL;

    if (!rp_hf_config_load(directory, &model->config, &error) ||
        (model->file = rp_safetensors_open(path, &error)) == NULL ||
        (base != NULL && (!rp_adapter_config_load(own, &lora, &error) ||
                          (model->adapters = rp_safetensors_open(adapters, &error)) == NULL)))
        fail_msg("%s", error->message);
    model->weights = rp_weights_new_adapted(&model->config, &lora);
    if (!rp_weights_bind(model->weights, model->file, &error) ||
        (base != NULL && !rp_adapter_bind(model->weights, model->adapters, &error)))
        fail_msg("%s", error->message);
}

static void
unload_model(Model *model)
{
    rp_weights_free(model->weights);
    rp_safetensors_free(model->adapters);
    rp_safetensors_free(model->file);
}

static RpTrainer *
make_trainer(const Model *model, guint devices)
{
    RpTrainerOptions options = {
        .weights = model->weights,
        .plan = {.schedule = rp_schedule_find("roundpipe", NULL),
                 .gpus = devices,
                 .micro_batches = 3},
        .network = {.dtype = RP_DTYPE_FP32, .sequences = 1, .tokens = TOKENS, .head_chunk = 7},
        .update = {.adamw = RP_ADAMW_OPTIONS_INIT, .max_grad_norm = 1},
        .evaluates = TRUE,
    };
    g_autoptr(RpNetwork) network =
        rp_network_new(model->weights, rp_host_kernels(), &options.network);
    g_autoptr(RpProfile) profile = rp_network_profile(network);
    GError *error = NULL;

    for (guint l = 0; l < profile->n_layers; l++)
        profile->layers[l].forward_ns = profile->layers[l].backward_ns = 1000;
    profile->links.h2d_bytes_per_s = profile->links.d2h_bytes_per_s = 1e10;
    g_autoptr(RpPartition) partition = rp_partition_paper(profile, devices, 3, 0, &error);
    options.profile = profile;
    options.partition = partition;
    RpTrainer *trainer = rp_trainer_new(&options, &error);
    if (trainer == NULL)
        fail_msg("%s", error->message);
    return trainer;
}

RP_TEST(losses_are_those_of_transformers)
{
    RpTree *root = load_evaluations();
    const RpTree *models = rp_tree_find(root, "models");

    assert_true(models->items->len >= 5);
    for (guint i = 0; i < models->items->len; i++) {
        const RpTree *from = rp_tree_nth(models, i);
        const RpTree *samples = rp_tree_find(from, "samples");
        const double expected = rp_tree_find(from, "loss")->number;
        Model model = {0};

        load_model(&model, from);
        g_autoptr(RpDataset) dataset = make_dataset(samples, model.config.vocab);
        for (guint devices = 1; devices <= 2; devices++) {
            RpTrainer *trainer = make_trainer(&model, devices);
            RpEvaluation evaluation;
            GError *error = NULL;

            assert_true(rp_trainer_evaluate(trainer, dataset, 0, NULL, NULL, &evaluation, &error));
            assert_int_equal(evaluation.n_samples, samples->items->len);
            assert_int_equal(evaluation.n_targets, (guint64)rp_tree_find(from, "targets")->number);
            if (!(fabs(evaluation.loss - expected) <= RELATIVE * expected))
                fail_msg("%s: %.9g, transformers %.9g", rp_tree_find(from, "name")->text,
                         evaluation.loss, expected);
            rp_trainer_free(trainer);
        }
        unload_model(&model);
    }
    rp_tree_free(root);
}
