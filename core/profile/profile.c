#include "core/profile/profile.h"

#include <string.h>

#include "core/base/quote.h"
#include "core/base/units.h"
#include "core/profile/private.h"

static const RpSavedGroupInfo rows[RP_N_SAVED_GROUPS] = {
    [RP_SAVED_ATTENTION] = {"attention", "saved_attention_bytes", "saved_attention_ms",
                            "output of attention"},
    [RP_SAVED_QKV] = {"qkv", "saved_qkv_bytes", "saved_qkv_ms", "queries, keys and values"},
    [RP_SAVED_RESIDUAL] = {"residual", "saved_residual_bytes", "saved_residual_ms",
                           "hidden state between attention and MLP"},
    [RP_SAVED_MLP] = {"mlp", "saved_mlp_bytes", "saved_mlp_ms", "gate and up of the MLP"},
};

const RpSavedGroupInfo *
rp_saved_group(RpSavedGroup group)
{
    g_return_val_if_fail((guint)group < RP_N_SAVED_GROUPS, NULL);
    return &rows[group];
}

double
rp_saved_ns_per_mib(const RpSavedTensors *tensors)
{
    return (double)tensors->recompute_ns * (double)RP_MIB / (double)tensors->bytes;
}

G_DEFINE_QUARK(rp_profile_error, rp_profile_error)

static const char *const kind_names[] = {"embedding", "block", "head"};

guint
rp_profile_element_bytes(const RpProfile *profile)
{
    return g_strcmp0(profile->dtype, "fp32") == 0 ? 4 : 2;
}

guint64
rp_profile_sum_bytes(const RpProfile *profile, guint64 gradient_bytes)
{
    return gradient_bytes * 4 / rp_profile_element_bytes(profile);
}

gboolean
rp_profile_is_packed(const RpProfile *profile)
{
    for (guint l = 0; l < profile->n_layers; l++)
        if (profile->layers[l].upload_bytes > 0)
            return TRUE;
    return FALSE;
}

const char *
rp_layer_kind_name(RpLayerKind kind)
{
    g_return_val_if_fail((guint)kind < G_N_ELEMENTS(kind_names), NULL);
    return kind_names[kind];
}

gint64
rp_layer_saving_ns(const RpLayer *layer)
{
    g_return_val_if_fail(layer != NULL, 0);
    return layer->kind == RP_LAYER_BLOCK && layer->recompute_last_ns > 0
               ? MAX(0, layer->recompute_ns - layer->recompute_last_ns)
               : 0;
}

guint64
rp_layer_saved_bytes(const RpLayer *layer)
{
    guint64 bytes = 0;

    for (guint g = 0; layer->saved_groups >> g != 0; g++)
        if ((layer->saved_groups >> g & 1) != 0)
            bytes += layer->saved[g].bytes;
    return bytes;
}

gint64
rp_layer_recompute_ns(const RpLayer *layer)
{
    gint64 time_ns = layer->recompute_ns;

    for (guint g = 0; layer->saved_groups >> g != 0; g++)
        if ((layer->saved_groups >> g & 1) != 0)
            time_ns -= layer->saved[g].recompute_ns;
    /* the tensors that a stage's last block leaves out are left out all the same */
    return MAX(time_ns, rp_layer_saving_ns(layer));
}

/* A layer saves the same tensors on all cards. */
static void
take_saved(RpProfile *profile)
{
    for (guint c = 0; c < profile->n_cards; c++)
        for (guint l = 0; l < profile->n_layers; l++)
            profile->cards[c]->layers[l].saved_groups = profile->layers[l].saved_groups;
}

void
rp_profile_choose_saved(RpProfile *profile, const RpSavedChoice *choice)
{
    for (guint l = 0; l < profile->n_layers; l++) {
        RpLayer *layer = &profile->layers[l];

        layer->saved_groups = 0;
        for (guint g = 0; g < RP_N_SAVED_GROUPS && l >= choice->first; g++)
            if ((choice->groups >> g & 1) != 0 && layer->saved[g].bytes > 0 &&
                rp_saved_ns_per_mib(&layer->saved[g]) >= choice->least_ns)
                layer->saved_groups |= 1u << g;
    }
    take_saved(profile);
}

void
rp_profile_keep_activations(RpProfile *profile)
{
    for (guint l = 0; l < profile->n_layers; l++) {
        RpLayer *layer = &profile->layers[l];

        layer->recompute_ns = layer->recompute_last_ns = layer->recompute_spread_ns = 0;
        layer->saved_groups = 0;
    }
    for (guint c = 0; c < profile->n_cards; c++)
        rp_profile_keep_activations(profile->cards[c]);
}

gboolean
rp_profile_saves(const RpProfile *profile)
{
    for (guint l = 0; l < profile->n_layers; l++)
        if (profile->layers[l].saved_groups != 0)
            return TRUE;
    return FALSE;
}

guint64
rp_profile_keep_fused(RpProfile *profile, guint fused)
{
    guint64 bytes = 0;

    for (guint l = 0; l < profile->n_layers; l++) {
        if (l >= fused)
            profile->layers[l].saved_groups = 0;
        bytes += rp_layer_saved_bytes(&profile->layers[l]);
    }
    take_saved(profile);
    return bytes;
}

GArray *
rp_profile_savings(const RpProfile *profile)
{
    GArray *row = g_array_new(FALSE, FALSE, sizeof(double));

    for (guint l = 0; l < profile->n_layers; l++)
        for (guint g = 0; g < RP_N_SAVED_GROUPS; g++) {
            const RpSavedTensors *saved = &profile->layers[l].saved[g];
            guint i = 0;

            if (saved->bytes == 0 || saved->recompute_ns <= 0)
                continue;
            const double saving = rp_saved_ns_per_mib(saved);

            while (i < row->len && g_array_index(row, double, i) > saving)
                i++;
            if (i == row->len || g_array_index(row, double, i) != saving)
                g_array_insert_val(row, i, saving);
        }
    return row;
}

char *
rp_profile_describe_saved(const RpProfile *profile)
{
    GString *text = g_string_new(NULL);

    for (guint g = 0; g < RP_N_SAVED_GROUPS; g++) {
        guint n = 0;

        for (guint l = 0; l < profile->n_layers; l++)
            n += (profile->layers[l].saved_groups >> g & 1) != 0;
        if (n > 0)
            g_string_append_printf(text, "%s%s of %u%s", text->len > 0 ? ", " : "",
                                   rp_saved_group((RpSavedGroup)g)->name, n,
                                   text->len > 0 ? ""
                                   : n == 1      ? " layer"
                                                 : " layers");
    }
    if (text->len == 0)
        g_string_append(text, "nothing");
    return g_string_free(text, FALSE);
}

/* Texts that every profile has, if only empty ones. */
static const gsize texts[] = {
    offsetof(RpProfile, model),  offsetof(RpProfile, device),
    offsetof(RpProfile, dtype),  offsetof(RpProfile, accumulate),
    offsetof(RpProfile, matmul), offsetof(RpProfile, attention),
    offsetof(RpProfile, source), offsetof(RpProfile, origin),
    offsetof(RpProfile, date),   offsetof(RpProfile, matmul_library),
};

static char **
text_of(RpProfile *profile, gsize i)
{
    return (char **)(void *)((char *)profile + texts[i]);
}

RpProfile *
rp_profile_new(guint n_layers)
{
    RpProfile *profile = g_new0(RpProfile, 1);

    for (gsize i = 0; i < G_N_ELEMENTS(texts); i++)
        *text_of(profile, i) = g_strdup("");
    profile->n_layers = n_layers;
    profile->layers = g_new0(RpLayer, n_layers);
    profile->tensor_tables = g_ptr_array_new_with_free_func(g_free);
    profile->names = g_ptr_array_new_with_free_func(g_free);
    for (guint i = 0; i < n_layers; i++) {
        profile->layers[i].kind = RP_LAYER_BLOCK;
        profile->layers[i].name = g_intern_static_string("block");
    }
    return profile;
}

void
rp_profile_take(char **string, char *value)
{
    g_free(*string);
    *string = value;
}

/* One copy of each tensor table, so that layers that share one still do. */
static void
copy_tensor_tables(RpProfile *to)
{
    g_autoptr(GHashTable) copies = g_hash_table_new(NULL, NULL);

    for (guint i = 0; i < to->n_layers; i++) {
        RpLayer *layer = &to->layers[i];

        if (layer->tensor_bytes == NULL)
            continue;
        guint64 *copy = g_hash_table_lookup(copies, layer->tensor_bytes);
        if (copy == NULL) {
            copy = g_memdup2(layer->tensor_bytes, layer->n_tensors * sizeof(guint64));
            g_ptr_array_add(to->tensor_tables, copy);
            g_hash_table_insert(copies, (gpointer)layer->tensor_bytes, copy);
        }
        layer->tensor_bytes = copy;
    }
}

/* One copy of each name; equal pointers stay equal. */
static void
copy_names(RpProfile *to)
{
    g_autoptr(GHashTable) copies = g_hash_table_new(NULL, NULL);

    for (guint i = 0; i < to->n_layers; i++) {
        RpLayer *layer = &to->layers[i];

        char *copy = g_hash_table_lookup(copies, layer->name);
        if (copy == NULL) {
            copy = g_strdup(layer->name);
            g_ptr_array_add(to->names, copy);
            g_hash_table_insert(copies, (gpointer)layer->name, copy);
        }
        layer->name = copy;
    }
}

static void
copy_cards(RpProfile *to)
{
    if (to->n_cards == 0)
        return;
    to->card_of = g_memdup2(to->card_of, to->n_devices * sizeof *to->card_of);
    to->cards = g_memdup2(to->cards, to->n_cards * sizeof *to->cards);
    for (guint c = 0; c < to->n_cards; c++)
        to->cards[c] = rp_profile_copy(to->cards[c]);
}

void
rp_profile_clear_cards(RpProfile *profile)
{
    for (guint c = 0; c < profile->n_cards; c++)
        rp_profile_free(profile->cards[c]);
    g_clear_pointer(&profile->cards, g_free);
    g_clear_pointer(&profile->card_of, g_free);
    profile->n_cards = profile->n_devices = 0;
}

RpProfile *
rp_profile_copy(const RpProfile *profile)
{
    g_return_val_if_fail(profile != NULL, NULL);

    RpProfile *copy = g_new(RpProfile, 1);
    *copy = *profile;
    for (gsize i = 0; i < G_N_ELEMENTS(texts); i++)
        *text_of(copy, i) = g_strdup(*text_of(copy, i));
    copy->missing = g_strdup(profile->missing);
    copy->matmul_variants =
        g_memdup2(profile->matmul_variants, profile->n_matmul_variants * sizeof(RpMatmulVariant));
    copy->layers = g_memdup2(profile->layers, profile->n_layers * sizeof(RpLayer));
    copy->tensor_tables = g_ptr_array_new_with_free_func(g_free);
    copy_tensor_tables(copy);
    copy->names = g_ptr_array_new_with_free_func(g_free);
    copy_names(copy);
    copy_cards(copy);
    copy->next = NULL;
    return copy;
}

static void
free_one(RpProfile *profile)
{
    for (gsize i = 0; i < G_N_ELEMENTS(texts); i++)
        g_free(*text_of(profile, i));
    g_free(profile->missing);
    g_free(profile->matmul_variants);
    g_free(profile->layers);
    g_ptr_array_unref(profile->tensor_tables);
    g_ptr_array_unref(profile->names);
    rp_profile_clear_cards(profile);
    g_free(profile);
}

void
rp_profile_free(RpProfile *profile)
{
    while (profile != NULL) {
        RpProfile *next = profile->next;

        free_one(profile);
        profile = next;
    }
}

const RpProfile *
rp_profile_with_micro_batch(const RpProfile *profile, guint sequences)
{
    while (profile != NULL && MAX(1, profile->sequences) != sequences)
        profile = profile->next;
    return profile;
}

RpProfile *
rp_profile_insert(RpProfile *all, RpProfile *one)
{
    const guint sequences = MAX(1, one->sequences);
    RpProfile **at = &all;

    while (*at != NULL && MAX(1, (*at)->sequences) < sequences)
        at = &(*at)->next;
    one->next = *at;
    if (one->next != NULL && MAX(1, one->next->sequences) == sequences) {
        RpProfile *old = one->next;

        one->next = g_steal_pointer(&old->next);
        rp_profile_free(old);
    }
    *at = one;
    return all;
}

char *
rp_profile_micro_batches(const RpProfile *profile)
{
    GString *text = g_string_new(NULL);

    for (const RpProfile *p = profile; p != NULL; p = p->next)
        g_string_append_printf(text, "%s%u",
                               p == profile      ? ""
                               : p->next == NULL ? " and "
                                                 : ", ",
                               MAX(1, p->sequences));
    return g_string_free(text, FALSE);
}

guint
rp_profile_n_blocks(const RpProfile *profile)
{
    guint n = 0;

    g_return_val_if_fail(profile != NULL, 0);
    for (guint i = 0; i < profile->n_layers; i++)
        n += profile->layers[i].kind == RP_LAYER_BLOCK;
    return n;
}

guint
rp_profile_first_block(const RpProfile *profile)
{
    guint i = 0;

    g_return_val_if_fail(profile != NULL, 0);
    while (i < profile->n_layers && profile->layers[i].kind != RP_LAYER_BLOCK)
        i++;
    return i;
}

guint64
rp_profile_micro_batch_tokens(const RpProfile *profile)
{
    g_return_val_if_fail(profile != NULL, 0);
    return (guint64)profile->sequences * profile->tokens_per_sequence;
}

gboolean
rp_profile_check_full(const RpProfile *profile, GError **error)
{
    const char *missing = NULL;

    g_return_val_if_fail(profile != NULL, FALSE);
    if (!profile->has_sizes)
        missing = profile->missing != NULL ? profile->missing : "sizes of the layers";
    else if (!(profile->links.h2d_bytes_per_s > 0))
        missing = "links.h2d_gb_per_s";
    else if (!(profile->links.d2h_bytes_per_s > 0))
        missing = "links.d2h_gb_per_s";
    if (missing == NULL)
        return TRUE;
    return rp_fail(error, RP_PROFILE_ERROR, RP_PROFILE_ERROR_FIDELITY,
                   "the profile of %s lacks %s: it serves `compute` fidelity only",
                   *profile->model ? profile->model : "this model", missing);
}

void
rp_profile_set_tensors(RpProfile *profile, guint layer, const guint64 *tensor_bytes,
                       guint n_tensors)
{
    g_return_if_fail(profile && layer < profile->n_layers);
    g_return_if_fail(tensor_bytes || n_tensors == 0);

    RpLayer *to = &profile->layers[layer];
    const RpLayer *before = layer > 0 ? &profile->layers[layer - 1] : NULL;

    to->n_tensors = n_tensors;
    to->parameter_bytes = 0;
    for (guint i = 0; i < n_tensors; i++)
        to->parameter_bytes += tensor_bytes[i];
    if (n_tensors == 0) {
        to->tensor_bytes = NULL;
    } else if (before != NULL && before->n_tensors == n_tensors &&
               memcmp(before->tensor_bytes, tensor_bytes, n_tensors * sizeof(guint64)) == 0) {
        to->tensor_bytes = before->tensor_bytes; /* a row of equal blocks shares one table */
    } else {
        guint64 *table = g_memdup2(tensor_bytes, n_tensors * sizeof(guint64));
        g_ptr_array_add(profile->tensor_tables, table);
        to->tensor_bytes = table;
    }
}

guint64
rp_profile_default_tied_gradient_bytes(const RpLayer *layer)
{
    return layer->gradient_bytes >= layer->tied_bytes ? layer->tied_bytes : 0;
}

gint64
rp_profile_default_weight_gradient_ns(gint64 backward_ns)
{
    return backward_ns / 2;
}

void
rp_profile_take_sizes(RpProfile *profile, const RpProfile *sized)
{
    g_assert(profile->n_layers == sized->n_layers);
    for (guint i = 0; i < profile->n_layers; i++) {
        const RpLayer *from = &sized->layers[i];
        RpLayer *to = &profile->layers[i];

        rp_profile_set_tensors(profile, i, from->tensor_bytes, from->n_tensors);
        to->upload_bytes = from->upload_bytes;
        to->gradient_bytes = from->gradient_bytes;
        to->tied_bytes = from->tied_bytes;
        to->tied_gradient_bytes = from->tied_gradient_bytes;
        to->input_bytes = from->input_bytes;
        to->output_bytes = from->output_bytes;
        to->forward_workspace_bytes = from->forward_workspace_bytes;
        to->backward_workspace_bytes = from->backward_workspace_bytes;
        to->activation_bytes = from->activation_bytes;
        for (guint g = 0; g < RP_N_SAVED_GROUPS; g++)
            to->saved[g].bytes = from->saved[g].bytes;
    }
    profile->constant_bytes = sized->constant_bytes;
}
