/* Whether a checkpoint is of the model that the run trains; its adapters, of the base, the shape and the scale. */
#include "exec/checkpoint/private.h"

#include <stdio.h>
#include <string.h>

/* Lines of config.json, but for keys that change neither the loss nor its gradient. */
static char **
lines_of(const RpModel *model)
{
    RpModel same = *model;

    same.max_positions = 0;
    same.initializer_range = 0;
    same.has_dtype = FALSE;
    same.bos_id = RP_MODEL_NO_TOKEN;
    same.n_eos = 0;
    g_autofree char *json = rp_hf_config_to_json(&same);
    return g_strsplit(json, "\n", -1);
}

static gboolean
fail_model(const char *path, const char *key, const char *expected, const char *found,
           GError **error)
{
    return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_MISMATCH, path,
                              "%s: expected %s, as the model has it, found %s", key, expected,
                              found);
}

gboolean
rp_checkpoint_check_config(const char *directory, const RpModel *model, GError **error)
{
    g_autofree char *path = g_build_filename(directory, RP_CHECKPOINT_CONFIG, NULL);
    RpModel saved;
    GError *cause = NULL;

    if (!rp_hf_config_load(path, &saved, &cause))
        return rp_checkpoint_fail_as(error, RP_CHECKPOINT_ERROR_CORRUPT, cause);
    if (saved.architecture != model->architecture)
        return fail_model(path, "architectures", rp_architectures[model->architecture].hf_name,
                          rp_architectures[saved.architecture].hf_name, error);
    g_auto(GStrv) lines = lines_of(model), other = lines_of(&saved);
    guint i = 0;
    char key[64] = "", expected[64] = "", found[64] = "";

    while (lines[i] != NULL && g_strcmp0(lines[i], other[i]) == 0)
        i++;
    if (lines[i] == NULL)
        return TRUE;
    sscanf(lines[i], " \"%63[^\"]\": %63[^,]", key, expected);
    sscanf(other[i], " \"%63[^\"]\": %63[^,]", key, found);
    return fail_model(path, key, expected[0] == '{' ? "an object" : expected,
                      found[0] == '{' ? "an object" : found, error);
}

/* The run's weights and the saved state that is compared with them. */
typedef struct {
    const char *path;
    const RpWeights *weights;
    RpCheckpointState state;
} Restore;

static gboolean
fail_adapters(const Restore *restore, const char *key, const char *expected, const char *found,
              GError **error)
{
    return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_MISMATCH, restore->path,
                              "%s: expected %s, as this run has it, found %s", key, expected,
                              found);
}

/* Lists the @names that are not in @others. (transfer full) (nullable) */
static char *
names_beyond(char *const *names, char *const *others)
{
    g_autoptr(GStrvBuilder) beyond = g_strv_builder_new();

    for (; names != NULL && *names != NULL; names++)
        if (others == NULL || !g_strv_contains((const char *const *)others, *names))
            g_strv_builder_add(beyond, *names);
    g_auto(GStrv) list = g_strv_builder_end(beyond);
    return list[0] != NULL ? g_strjoinv(", ", list) : NULL;
}

static gboolean
check_names(const Restore *restore, const char *key, char *const *run, char *const *saved,
            GError **error)
{
    g_autofree char *expected = names_beyond(run, saved), *found = names_beyond(saved, run);

    return (expected == NULL && found == NULL) ||
           fail_adapters(restore, key, expected != NULL ? expected : "no others",
                         found != NULL ? found : "no others", error);
}

/* Compares the modules that have a rank or an alpha of their own. */
static gboolean
check_scales(const Restore *restore, const RpLora *run, const RpLora *saved, GError **error)
{
    for (guint i = 0; i < rp_weights_count(restore->weights); i++) {
        const char *name = rp_weights_nth(restore->weights, i)->name;

        if (!g_str_has_suffix(name, RP_LORA_A))
            continue;
        g_autofree char *module = g_strndup(name, strlen(name) - strlen(RP_LORA_A));
        const guint rank = rp_lora_rank(run, module), other = rp_lora_rank(saved, module);
        const double scale = rp_lora_scale(run, module), found = rp_lora_scale(saved, module);

        if (rank == other && scale == found)
            continue;
        g_autofree char *this = g_strdup_printf("%s of rank %u, scale %g", module, rank, scale);
        g_autofree char *that = g_strdup_printf("rank %u, scale %g", other, found);

        return fail_adapters(restore, "lora", this, that, error);
    }
    return TRUE;
}

static char *
describe_lora(const RpLora *lora)
{
    return g_strdup_printf("rank %u, alpha %g%s, dropout %g", lora->rank, lora->alpha,
                           lora->rslora ? ", rslora" : "", lora->dropout);
}

/* Whether the checkpoint's adapters are of the shape and the scale that this run trains. */
static gboolean
check_lora(const Restore *restore, GError **error)
{
    g_autofree char *text = rp_adapter_config_text(restore->weights, "");
    g_auto(RpLora) run = {0};
    g_auto(RpLora) saved = {0};
    GError *cause = NULL;

    if (!rp_adapter_config_load(restore->path, &saved, &cause) ||
        !rp_adapter_config_parse(RP_ADAPTER_CONFIG, text, strlen(text), &run, &cause))
        return rp_checkpoint_fail_as(error, RP_CHECKPOINT_ERROR_CORRUPT, cause);
    if (saved.rank != run.rank || saved.alpha != run.alpha || saved.rslora != run.rslora ||
        saved.dropout != run.dropout) {
        g_autofree char *expected = describe_lora(&run);
        g_autofree char *found = describe_lora(&saved);

        return fail_adapters(restore, "lora", expected, found, error);
    }
    return check_names(restore, "lora.targets", run.targets, saved.targets, error) &&
           check_names(restore, "lora.save", run.saved, saved.saved, error) &&
           check_scales(restore, &run, &saved, error);
}

static gboolean
check_base_format(const Restore *restore, GError **error)
{
    const char *format = rp_weights_base_format(restore->weights);
    const char *saved = restore->state.base_format;

    return saved == NULL || strcmp(saved, format) == 0 ||
           fail_adapters(restore, "base", format, saved, error);
}

/* The first layer whose tensors are others: its name in files. (transfer full) */
static char *
differing_layer(const RpWeights *weights, const char *saved)
{
    g_auto(GStrv) one = g_strsplit(rp_weights_base_values(weights), " ", -1);
    g_auto(GStrv) other = g_strsplit(saved, " ", -1);
    const guint blocks = rp_weights_model(weights)->blocks;
    guint layer = 0;

    while (one[layer] != NULL && other[layer] != NULL && strcmp(one[layer], other[layer]) == 0)
        layer++;
    return layer == 0       ? g_strdup("model.embed_tokens")
           : layer > blocks ? g_strdup("model.norm and lm_head")
                            : g_strdup_printf("model.layers.%u", layer - 1);
}

/* Whether the bytes are the same, or the values are in another type. Older checkpoints have no hashes of layers but one
 * of samples alone, which is recognised by its shape. */
static gboolean
check_hash(const Restore *restore, const RpWeights *weights, GError **error)
{
    const RpCheckpointState *state = &restore->state;

    if (state->base == NULL || (state->base_values == NULL && state->base_layers == NULL) ||
        strcmp(state->base, rp_weights_base_hash(weights)) == 0 ||
        g_strcmp0(state->base_values, rp_weights_base_values(weights)) == 0)
        return TRUE;
    if (state->base_values == NULL)
        return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_MISMATCH, restore->path,
                                  "expected adapters of this base, found those of one with other "
                                  "bytes");
    g_autofree char *layer = differing_layer(weights, state->base_values);

    return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_MISMATCH, restore->path,
                              "expected adapters of this base, found those of one with other "
                              "values: the first that differ are of %s",
                              layer);
}

gboolean
rp_checkpoint_check_base(const char *path, const RpWeights *weights, GError **error)
{
    g_autofree char *state = g_build_filename(path, RP_CHECKPOINT_STATE, NULL);
    Restore restore = {.path = path};

    if (!g_file_test(state, G_FILE_TEST_EXISTS))
        return TRUE;
    gboolean good = rp_checkpoint_state_load(path, &restore.state, error) &&
                    rp_checkpoint_check_config(path, rp_weights_model(weights), error) &&
                    check_hash(&restore, weights, error);
    rp_checkpoint_state_clear(&restore.state);
    if (!good && error != NULL &&
        g_error_matches(*error, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_MISMATCH)) {
        char *message = g_strconcat((*error)->message,
                                    "; --any-base, or lora.any_base: true in a run file, takes "
                                    "them all the same",
                                    NULL);

        g_free((*error)->message);
        (*error)->message = message;
    }
    return good;
}

gboolean
rp_checkpoint_check_adapters(const char *path, const RpWeights *weights,
                             const RpCheckpointState *state, GError **error)
{
    const Restore restore = {.path = path, .weights = weights, .state = *state};
    const char *saved = state->base;
    const gboolean adapts = rp_weights_lora(weights) != NULL;

    if (adapts != (saved != NULL))
        return fail_adapters(&restore, "lora", adapts ? "adapters" : "a whole model",
                             adapts ? "a whole model" : "adapters (lora.rank)", error);
    if (!adapts)
        return TRUE;
    return check_hash(&restore, weights, error) && check_base_format(&restore, error) &&
           check_lora(&restore, error);
}
