/**
 * The model that a run names: a directory, or `random:` and the shapes that its weights are made for; and
 * what it is called in profiles that are measured.
 */
#pragma once

#include "core/catalogue/catalogue.h"
#include "core/profile/profile.h"
#include "exec/network/network.h"
#include "run/spec.h"

/**
 * rp_run_find_model:
 * @word: a name of the catalogue, or a config.json or its directory
 *
 * Errors: RP_CATALOGUE_ERROR_MODEL, RP_HF_CONFIG_ERROR_*, G_FILE_ERROR
 */
gboolean rp_run_find_model(const char *word, RpModel *model,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The directory of what rp_run_find_model() reads; %NULL: the catalogue. (transfer full) */
char *rp_run_find_directory(const char *word);

/* Whether the weights of @model, as run files name it, are made in memory. */
gboolean rp_run_model_is_random(const char *model);
/* Where its tokenizer is, if it has one, and its weights, if they are not made; %NULL: nowhere. (transfer full) */
char *rp_run_model_directory(const char *model);
/* The model of the catalogue that a run names where there is no such directory. Returns: (nullable) */
const RpModel *rp_run_model_named(const char *model);
/* Its config, of an architecture that runs. Errors: those of rp_run_find_model() */
gboolean rp_run_model_load(const char *model, RpModel *config,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Whether @directory has its weights. */
gboolean rp_run_has_weights(const char *directory);
/* The format of frozen matrices that are packed; %NULL: they have 16 or 32 bits. */
const char *rp_run_base_format(const RpWeights *weights);

/* One line of valid text of at most so many bytes, as a profile may have. (transfer full) */
char *rp_profile_text(const char *text, gsize most);
/* A profile that was measured has the name of its model's directory, or of the catalogue: @word. */
void rp_profile_name_model(RpProfile *profile, const char *word);

/*
 * The operands of matmuls, as settings or options request them, and whether model and devices can.
 */

#define RP_RUN_MATMUL_FP8 (RP_DTYPE_E4M3 + 1)
#define RP_RUN_MATMUL_FP8_HEAD (RP_DTYPE_E5M2 + 1)

/**
 * rp_run_take_matmul:
 * @run: of which matmul_choice, half_sums and fp8 are read
 * @weights: of the model; unbound ones will do
 * @kernels: (nullable): of devices that are not known yet
 * @devices: how many of theirs
 * @options: (inout): dtype, sequences and tokens are known; codes and half_sums are set
 *
 * Errors: RP_RUN_ERROR_VALUE
 */
gboolean rp_run_take_matmul(const RpRunSpec *run, const RpWeights *weights,
                            const RpKernels *kernels, guint devices, RpNetworkOptions *options,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;
