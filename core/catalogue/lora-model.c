/* Adapters on a model: which of its matrices they may have, and whether they fit. */
#include "core/catalogue/lora.h"

#include <string.h>

#include "core/base/quote.h"

/* ---- checks ---- */

/* Modules of a model, in file order, and the last words of their names, each once. */
typedef struct {
    GPtrArray *modules; /* (transfer full) */
    GPtrArray *words;   /* (transfer full), with a %NULL behind the last */
} Modules;

static void
modules_clear(Modules *of)
{
    g_ptr_array_unref(of->modules);
    g_ptr_array_unref(of->words);
}

static void
modules_add(Modules *of, char *module)
{
    const char *dot = strrchr(module, '.');
    const char *word = dot != NULL ? dot + 1 : module;

    g_ptr_array_add(of->modules, module);
    if (!g_ptr_array_find_with_equal_func(of->words, word, g_str_equal, NULL))
        g_ptr_array_add(of->words, g_strdup(word));
}

static char *
module_of(const char *weight)
{
    const char *dot = strrchr(weight, '.');

    return dot != NULL && (strcmp(dot, ".weight") == 0 || strcmp(dot, ".bias") == 0)
               ? g_strndup(weight, (gsize)(dot - weight))
               : g_strdup(weight);
}

/* (transfer full) */
static char *
module_of_a(const RpWeight *weight)
{
    return g_strndup(weight->name, strlen(weight->name) - strlen(RP_LORA_A));
}

/* Names of one expert's matrices stand for the stacks that they are pieces of. */
static gboolean
is_of_first_expert(const RpWeight *weight)
{
    return weight->stack_name != NULL && weight->offset < weight->stack[1] * weight->stack[2];
}

/* @adapted: only the ones that may have adapters */
static Modules
modules_of(const RpModel *model, gboolean adapted)
{
    char every[] = "*", *any[] = {every, NULL};
    const RpLora all = {.rank = 1, .alpha = 1, .targets = any};
    g_autoptr(GStringChunk) names = g_string_chunk_new(4096);
    g_autoptr(GArray) weights = g_array_new(FALSE, FALSE, sizeof(RpWeight));
    Modules of = {g_ptr_array_new_with_free_func(g_free), g_ptr_array_new_with_free_func(g_free)};

    for (guint layer = 0; layer < rp_model_n_layers(model); layer++)
        rp_model_add_weights(model, layer, &all, names, weights);
    for (guint i = 0; i < weights->len; i++) {
        const RpWeight *weight = &g_array_index(weights, RpWeight, i);

        if (!rp_weight_is_adapter(weight->kind)) {
            if (!adapted || is_of_first_expert(weight))
                modules_add(&of, module_of(weight->name));
        } else if (adapted && g_str_has_suffix(weight->name, RP_LORA_A)) {
            modules_add(&of, module_of_a(weight));
        }
    }
    g_ptr_array_add(of.words, NULL);
    return of;
}

static gboolean
check_regex(const char *key, const char *name, GError **error)
{
    g_autoptr(GError) cause = NULL;

    if (!g_str_has_prefix(name, RP_LORA_REGEX))
        return TRUE;
    g_autoptr(GRegex) regex = g_regex_new(name + strlen(RP_LORA_REGEX), 0, 0, &cause);
    g_autofree char *quoted = rp_quote(name);

    if (regex == NULL)
        g_set_error(error, RP_LORA_ERROR, RP_LORA_ERROR_TARGET,
                    "%s: expected a regular expression, found %s: %s", key, quoted, cause->message);
    return regex != NULL;
}

static gboolean
check_names(const char *key, char *const *names, const Modules *of, GError **error)
{
    for (; names != NULL && *names != NULL; names++) {
        char *const one[] = {*names, NULL};
        gboolean found = FALSE;

        for (guint i = 0; i < of->modules->len && !found; i++)
            found = rp_lora_names_module(one, g_ptr_array_index(of->modules, i));
        if (found)
            continue;
        if (!check_regex(key, *names, error))
            return FALSE;
        const char *const *words = (const char *const *)of->words->pdata;
        const char *dot = strrchr(*names, '.');
        const char *near = rp_nearest_name(dot != NULL ? dot + 1 : *names, words);
        g_autofree char *quoted = rp_quote(*names);
        g_autofree char *list = g_strjoinv(", ", (char **)of->words->pdata);

        return rp_fail(error, RP_LORA_ERROR, RP_LORA_ERROR_TARGET,
                       "%s: expected names of %s, found %s, which matches none%s%s%s", key, list,
                       quoted, near != NULL ? "; did you mean \"" : "", near != NULL ? near : "",
                       near != NULL ? "\"?" : "");
    }
    return TRUE;
}

/* One matrix that is two modules would be trained as one, where peft makes two of it. */
static gboolean
check_tied(const RpLora *lora, const RpModel *model, GError **error)
{
    if (!model->tied || (!rp_lora_names_module(lora->saved, "model.embed_tokens") &&
                         !rp_lora_names_module(lora->saved, "lm_head")))
        return TRUE;
    return rp_fail(error, RP_LORA_ERROR, RP_LORA_ERROR_TARGET,
                   "lora.save: embed_tokens and lm_head are one matrix in this model "
                   "(tie_word_embeddings), which cannot be trained apart: leave them out");
}

/* An expert's matrix that is named, although its stack has no adapters because another matrix fused
 * in it is not named. */
static gboolean
check_fused(const RpLora *lora, const GArray *weights, GError **error)
{
    for (guint i = 0; i < weights->len; i++) {
        const RpWeight *weight = &g_array_index(weights, RpWeight, i);
        gboolean adapted = FALSE;

        if (rp_weight_is_adapter(weight->kind) || !is_of_first_expert(weight))
            continue;
        g_autofree char *module = module_of(weight->name);
        if (!rp_lora_names_module(lora->targets, module))
            continue;
        for (guint j = i; j < weights->len && !adapted; j++) {
            const RpWeight *other = &g_array_index(weights, RpWeight, j);

            adapted = other->layer == weight->layer &&
                      other->kind == rp_weight_adapter(weight->kind, RP_ADAPTER_A);
        }
        if (adapted)
            continue;
        return rp_fail(error, RP_LORA_ERROR, RP_LORA_ERROR_TARGET,
                       "lora.targets: expected all matrices that %s joins, or none, found %s alone",
                       weight->stack_name, module);
    }
    return TRUE;
}

/* As peft has it: an expert's rows cannot be dropped apart there. */
static gboolean
check_dropout(const RpLora *lora, const GArray *weights, GError **error)
{
    for (guint i = 0; lora->dropout > 0 && i < weights->len; i++) {
        const RpWeight *weight = &g_array_index(weights, RpWeight, i);

        if (!rp_weight_is_adapter(weight->kind) || weight->rank < RP_WEIGHT_MAX_RANK)
            continue;
        return rp_fail(error, RP_LORA_ERROR, RP_LORA_ERROR_DROPOUT,
                       "lora.dropout: expected 0 beside adapters of experts, as in peft, found %g",
                       lora->dropout);
    }
    return TRUE;
}

/* Names the first adapted matrix whose rank is larger than its smaller side, if there is one. */
static gboolean
check_ranks(const GArray *weights, GError **error)
{
    const RpWeight *found = NULL;
    guint64 least = G_MAXUINT64;

    /* a B stands behind its A */
    for (guint i = 0; i + 1 < weights->len; i++) {
        const RpWeight *a = &g_array_index(weights, RpWeight, i);

        if (!rp_weight_is_adapter(a->kind) || !g_str_has_suffix(a->name, RP_LORA_A))
            continue;
        const guint64 side = MIN(a->shape[a->rank - 1], a[1].shape[a->rank - 2]);

        if (a->shape[a->rank - 2] > side && side < least) {
            found = a;
            least = side;
        }
    }
    if (found == NULL)
        return TRUE;
    g_autofree char *module = module_of_a(found);
    const guint64 rank = found->shape[found->rank - 2];

    return rp_fail(error, RP_LORA_ERROR, RP_LORA_ERROR_RANK,
                   "lora.rank: expected at most %" G_GUINT64_FORMAT
                   ", the smallest side of %s, found %" G_GUINT64_FORMAT,
                   least, module, rank);
}

static gboolean
check_experts(const GArray *weights, GError **error)
{
    gboolean saved = FALSE;

    for (guint i = 0; i < weights->len; i++) {
        const RpWeight *weight = &g_array_index(weights, RpWeight, i);

        saved = saved || (weight->trained && !rp_weight_is_adapter(weight->kind) &&
                          (weight->stack_name != NULL || weight->transposed));
    }
    if (saved)
        g_set_error_literal(
            error, RP_LORA_ERROR, RP_LORA_ERROR_TARGET,
            "lora.save: experts are not trained whole beside adapters: leave them out");
    return !saved;
}

gboolean
rp_lora_check(const RpLora *lora, const RpModel *model, GError **error)
{
    g_autoptr(GStringChunk) names = g_string_chunk_new(4096);
    g_autoptr(GArray) weights = g_array_new(FALSE, FALSE, sizeof(RpWeight));

    g_return_val_if_fail(lora && lora->rank > 0 && model, FALSE);
    for (guint layer = 0; layer < rp_model_n_layers(model); layer++)
        rp_model_add_weights(model, layer, lora, names, weights);
    Modules adapted = modules_of(model, TRUE);
    Modules all = modules_of(model, FALSE);
    const gboolean good = check_names("lora.targets", lora->targets, &adapted, error) &&
                          check_names("lora.save", lora->saved, &all, error) &&
                          check_tied(lora, model, error) && check_ranks(weights, error) &&
                          check_fused(lora, weights, error) && check_experts(weights, error) &&
                          check_dropout(lora, weights, error);

    modules_clear(&adapted);
    modules_clear(&all);
    return good;
}
