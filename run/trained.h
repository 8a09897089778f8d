/**
 * A trained model as a word names it, to be asked or evaluated: a model, a checkpoint or the output of a run,
 * with adapters, on one device; and its tokenizer.
 */
#pragma once

#include "exec/device/device.h"
#include "exec/generate/generator.h"
#include "run/settings.h"
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
} RpTrained;

void rp_trained_clear(RpTrained *model);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpTrained, rp_trained_clear)

/**
 * rp_trained_open:
 * @word: a directory with a model; with adapters alone, whose base adapter_config.json names; or the
 *   output of a run: its best checkpoint, else its last
 * @adapter: (nullable): a directory of adapters for it
 * @device: (nullable): "host", "cuda" or "cuda:1"; %NULL: the host
 *
 * Errors: of the files; RP_RUN_ERROR_USAGE
 */
gboolean rp_trained_open(RpTrained *model, const char *word, const char *adapter,
                         const char *device, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same up to paths and config: nothing of the weights is read. Errors: of the files */
gboolean rp_trained_find(RpTrained *model, const char *word, const char *adapter,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The tokenizer of the adapters' directory, if it has one, else of the model's. (transfer full) */
RpTokenizer *rp_trained_tokenizer(const RpTrained *model, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The directory that has @name: the adapters', else the model's. */
const char *rp_trained_directory(const RpTrained *model, const char *name);

/* Tokens that end an answer: of generation_config.json, else of config.json. Errors: of the file */
gboolean rp_trained_ends(const RpTrained *model, RpGeneratorOptions *options,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;
