/**
 * The subject of generate and evaluate: a model, a checkpoint or a run, with adapters, on one device;
 * its tokenizer; answers as they are asked for.
 */
#pragma once

#include "cli/cli.h"
#include "exec/device/device.h"
#include "exec/generate/generator.h"
#include "text/tokenizer/tokenizer.h"

typedef struct {
    char *path;        /* of the model, or of the base of adapters */
    char *adapter;     /* (nullable): a directory of adapters */
    gboolean any_base; /* set before: adapters of another base are taken */
    RpModel config;
    RpSafetensors *checkpoint;
    RpSafetensors *adapters; /* or %NULL */
    RpWeights *weights;
    const RpKernels *kernels;
    RpProbe *probe; /* the device */
} RpCliModel;

void rp_cli_model_clear(RpCliModel *model);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpCliModel, rp_cli_model_clear)

/**
 * rp_cli_model_open:
 * @word: a directory with a model; with adapters alone, whose base adapter_config.json names; or the
 *   output of a run: its best checkpoint, else its last
 * @adapter: (nullable): a directory of adapters for it
 * @device: (nullable): "host", "cuda" or "cuda:1"; %NULL: the host
 *
 * Errors: of the files; RP_CLI_ERROR_USAGE
 */
gboolean rp_cli_model_open(RpCliModel *model, const char *word, const char *adapter,
                           const char *device, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same up to paths and config: nothing of the weights is read. Errors: of the files */
gboolean rp_cli_model_find(RpCliModel *model, const char *word, const char *adapter,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The tokenizer of the adapters' directory, if it has one, else of the model's. (transfer full) */
RpTokenizer *rp_cli_model_tokenizer(const RpCliModel *model,
                                    GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The directory that has @name: the adapters', else the model's. */
const char *rp_cli_model_directory(const RpCliModel *model, const char *name);

/* Tokens that end an answer: of generation_config.json, else of config.json. Errors: of the file */
gboolean rp_cli_model_ends(const RpCliModel *model, RpGeneratorOptions *options,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- options of generate ---- */

RpSampling rp_generate_sampling(const RpArgs *args);
/* Errors: RP_CLI_ERROR_USAGE */
gboolean rp_generate_check_sampling(const RpArgs *args, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- prompts.c: a file of ids, answers to a file ---- */

gboolean rp_generate_prompts(const RpArgs *args, const char *word, RpReport *report,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;
