/* roundpipe merge: a model with its adapters in it. */
#include "cli/cli.h"

#include "core/base/file.h"
#include "exec/adapter/adapter.h"
#include "exec/checkpoint/checkpoint.h"
#include "exec/quantise/quantise.h"
#include "run/spec.h"
#include "run/trained.h"

typedef struct {
    RpModel config;
    RpSafetensors *base, *adapters;
    RpWeights *weights;
} Merging;

static void
merging_clear(Merging *merging)
{
    g_clear_pointer(&merging->weights, rp_weights_free);
    g_clear_pointer(&merging->adapters, rp_safetensors_free);
    g_clear_pointer(&merging->base, rp_safetensors_free);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Merging, merging_clear)

/* Takes the base's own packing; but stacks of GPT-OSS in mxfp4 are read as 16-bit weights would be. */
static gboolean
adopt(Merging *merging, const RpLora *lora, GError **error)
{
    gboolean turned = FALSE;

    if (!rp_weights_adopt(merging->weights, merging->base, error))
        return FALSE;
    for (guint i = 0; i < rp_weights_count(merging->weights) && !turned; i++) {
        const RpWeight *weight = rp_weights_nth(merging->weights, i);

        turned = weight->is_packed && weight->format == RP_LOWBIT_MXFP4 &&
                 rp_architectures[merging->config.architecture].fused_experts;
    }
    if (turned) {
        rp_weights_free(merging->weights);
        merging->weights = rp_weights_new_adapted(&merging->config, lora);
    }
    return TRUE;
}

static gboolean
open_all(Merging *merging, const char *base, const char *adapter, gboolean any_base, GError **error)
{
    g_autofree char *tensors = g_build_filename(adapter, RP_ADAPTER_TENSORS, NULL);
    g_autofree char *own = g_build_filename(base, RP_ADAPTER_CONFIG, NULL);
    g_autofree char *other = g_build_filename(adapter, RP_ADAPTER_CONFIG, NULL);
    g_auto(RpLora) lora = {0};

    if (g_file_test(own, G_FILE_TEST_EXISTS) && !g_file_test(other, G_FILE_TEST_EXISTS))
        return rp_cli_refuse(error,
                             "expected BASE before ADAPTER, found adapters in \"%s\": "
                             "roundpipe merge %s %s",
                             base, adapter, base);
    if (!rp_checkpoint_verify_model(base, error) || !rp_checkpoint_verify_model(adapter, error) ||
        !rp_hf_config_load(base, &merging->config, error) ||
        !rp_adapter_config_load(adapter, &lora, error))
        return FALSE;
    if (!rp_lora_check(&lora, &merging->config, error))
        return FALSE;
    merging->base = rp_safetensors_open(base, error);
    if (merging->base == NULL)
        return FALSE;
    merging->weights = rp_weights_new_adapted(&merging->config, &lora);
    if (!adopt(merging, &lora, error) || !rp_weights_bind(merging->weights, merging->base, error))
        return FALSE;
    merging->adapters = rp_safetensors_open(tensors, error);
    return merging->adapters != NULL &&
           (any_base || rp_checkpoint_check_base(adapter, merging->weights, error)) &&
           rp_adapter_bind(merging->weights, merging->adapters, error);
}

static gboolean
make_output(const RpArgs *args, const char *const *read, GError **error)
{
    if (args->output == NULL)
        return rp_cli_refuse(error, "--output: expected a directory, found nothing");
    for (guint i = 0; i < 2; i++) {
        if (rp_file_is_same_place(read[i], args->output))
            return rp_cli_refuse(
                error, "--output: expected a directory of its own, found \"%s\", which is read",
                args->output);
    }
    return rp_cli_make_model_directory(args->output, args->force, error);
}

static gboolean
copy_file(const char *from, const char *to, const char *name, GError **error)
{
    g_autofree char *source = g_build_filename(from, name, NULL);
    g_autofree char *target = g_build_filename(to, name, NULL);

    if (!g_file_test(source, G_FILE_TEST_IS_REGULAR))
        return TRUE;
    g_autoptr(GMappedFile) map = rp_file_map(source, error);
    const char *text = map != NULL ? g_mapped_file_get_contents(map) : NULL;

    return map != NULL && g_file_set_contents(target, text != NULL ? text : "",
                                              (gssize)g_mapped_file_get_length(map), error);
}

/* The base's config.json, with the merged model's own packing. @quantization: (nullable) */
static gboolean
write_config(const char *from, const char *to, const char *quantization, GError **error)
{
    g_autofree char *source = g_build_filename(from, "config.json", NULL);
    g_autofree char *target = g_build_filename(to, "config.json", NULL);
    g_autoptr(GMappedFile) map = rp_file_map(source, error);

    if (map == NULL)
        return FALSE;
    const gsize length = g_mapped_file_get_length(map);
    const char *text = g_mapped_file_get_contents(map);

    if (quantization == NULL &&
        g_strstr_len(text, (gssize)length, "\"quantization_config\"") == NULL)
        return g_file_set_contents(target, text, (gssize)length, error);
    g_autofree char *own = rp_hf_config_requantise(source, text, length, quantization, error);

    return own != NULL && g_file_set_contents(target, own, -1, error);
}

static gboolean
copy_files(const char *from, const char *to, GError **error)
{
    for (const char *const *name = rp_checkpoint_copied_files; *name != NULL; name++)
        if (!copy_file(from, to, *name, error))
            return FALSE;
    return TRUE;
}

/* Whether the model can be packed again as fp8 models are published, and is read. */
static gboolean
check_base(const RpArgs *args, const Merging *merging, GError **error)
{
    const int choice = args->run.base_choice;
    const RpModel *config = &merging->config;
    const RpArchitectureRow *row = &rp_architectures[config->architecture];

    if (choice <= RP_RUN_BASE_16_BITS)
        return TRUE;
    if (choice != RP_RUN_BASE_PACKED + RP_LOWBIT_FP8)
        return rp_cli_refuse(error, "--base: expected bf16 or fp8, found %s",
                             rp_lowbit_name((RpLowbit)(choice - RP_RUN_BASE_PACKED)));
    if (row->fused_experts)
        return rp_cli_refuse(error, "--base: expected bf16 of %s, found fp8", row->model_type);
    return config->experts == 1 || config->intermediate % RP_FP8_BLOCK == 0 ||
           rp_cli_refuse(error,
                         "--base: expected bf16 of experts with %u rows, since blocks of fp8 have "
                         "%d, found fp8",
                         config->intermediate, RP_FP8_BLOCK);
}

/* Packs the merged model, in its place. */
static gboolean
pack_again(const Merging *merging, const char *output, GError **error)
{
    const RpQuantiseOptions options = {.published = TRUE};
    g_autoptr(RpSafetensors) merged = rp_safetensors_open(output, error);
    g_autofree char *path = g_build_filename(output, "model.safetensors", NULL);

    return merged != NULL &&
           rp_quantise(&merging->config, merged, RP_LOWBIT_FP8, path, &options, error);
}

static gboolean
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
    RpProgress progress = rp_progress_begin("merging parameters", 0);
    const gboolean packs = args->run.base_choice > RP_RUN_BASE_16_BITS;
    RpMergeOptions options = {.max_shard_bytes = packs ? 0 : RP_CLI_SHARD_BYTES,
                              .progress = rp_progress_counted,
                              .user_data = &progress};
    g_autofree char *base = rp_trained_checkpoint(words[0]);
    g_autofree char *adapter = rp_trained_checkpoint(words[1]);
    g_auto(Merging) merging = {0};

    if (!open_all(&merging, base, adapter, args->run.lora.any_base, error) ||
        !check_base(args, &merging, error) ||
        !make_output(args, (const char *[]){base, adapter}, error))
        return FALSE;
    options.base = merging.base;
    g_autofree char *quantization =
        packs ? rp_quantise_fp8_config(&merging.config, merging.base) : NULL;
    const gboolean written = rp_merge_write(merging.weights, args->output, &options, error) &&
                             copy_files(base, args->output, error) &&
                             (!packs || pack_again(&merging, args->output, error)) &&
                             write_config(base, args->output, quantization, error);
    const char *type = packs ? "fp8" : rp_dtype_name(rp_weights_dtype(merging.weights));
    const RpLora *lora = rp_weights_lora(merging.weights);

    rp_progress_clear();
    if (!written)
        return FALSE;
    rp_report_say(report, "%s: %s with the adapters of %s, rank %u, in %s", args->output, words[0],
                  adapter, lora->rank, type);
    rp_report_text(report, "output", args->output, NULL);
    rp_report_count(report, "rank", lora->rank, NULL);
    rp_report_text(report, "dtype", type, NULL);
    return TRUE;
}

static const RpUse uses[] = {
    {"output force any-base"},
    {"base", "fp8: linear layers of blocks in 8 bits, as fp8 models are published (default: bf16)",
     "FORMAT"},
    {0},
};

const RpCommand rp_command_merge = {
    .name = "merge",
    .summary = "make one model of a base and its adapters",
    .words = "BASE ADAPTER",
    .help = "Makes one model of a base and the adapters that were trained on it, tensor by\n"
            "tensor: as Hugging Face transformers loads it. ADAPTER is a directory of adapters;\n"
            "both may be the output of a run: its best checkpoint, else its last.\n\n"
            "Example:\n  roundpipe merge model run/checkpoint-200 -o merged",
    .uses = uses,
    .run = run,
};
