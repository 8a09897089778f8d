/**
 * Reads `roundpipe-profile/1`: text -> rp_profile_scan() -> json-glib -> RpProfile.
 *
 * The keys stand in tables; what they mean is in docs/profile-format.md.
 */
#include "core/profile/profile.h"

#include <string.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/base/units.h"
#include "core/profile/private.h"
#include "core/profile/section.h"

#define MAX_NAME 128
#define MAX_GPUS 4096
#define MAX_PROCESSORS 65536
/* Slow enough for anything real, and 2^50 bytes at it still take less than G_MAXINT64 ns. */
#define MIN_GB_PER_S 1e-3
#define MAX_GB_PER_S 1e6
#define BYTES_PER_GB 1e9

typedef struct {
    const char *key;
    gsize offset;
} Field;

static const char *const top_keys[] = {
    "format",     "model",  "device",      "gpus",      "processors", "dtype",
    "accumulate", "source", "origin",      "date",      "links",      "gpu_memory_bytes",
    "optimizer",  "layers", "micro_batch", "attention", "head_chunk", NULL};
static const char *const link_keys[] = {"hop_ms",
                                        "copy_latency_ms",
                                        "h2d_gb_per_s",
                                        "d2h_gb_per_s",
                                        "both_gb_per_s",
                                        "all_h2d_gb_per_s",
                                        "all_d2h_gb_per_s",
                                        "all_both_gb_per_s",
                                        "host_gb_per_s",
                                        "root_gb_per_s",
                                        "gpus_per_root",
                                        "beside_optimizer_gb_per_s",
                                        NULL};
static const char *const micro_batch_keys[] = {"sequences", "tokens_per_sequence", NULL};
static const char *const optimizer_keys[] = {"parameters_per_s",
                                             "norm_parameters_per_s",
                                             "sum_parameters_per_s",
                                             "gradient_copy_parameters_per_s",
                                             "parameter_copy_parameters_per_s",
                                             "accumulate_parameters_per_s",
                                             NULL};
static const char *const layer_keys[] = {"kind",
                                         "name",
                                         "count",
                                         "forward_ms",
                                         "backward_ms",
                                         "recompute_ms",
                                         "recompute_last_ms",
                                         "weight_gradient_ms",
                                         "forward_spread_ms",
                                         "recompute_spread_ms",
                                         "backward_spread_ms",
                                         "parameter_bytes",
                                         "gradient_bytes",
                                         "tied_bytes",
                                         "input_bytes",
                                         "output_bytes",
                                         "forward_workspace_bytes",
                                         "backward_workspace_bytes",
                                         "activation_bytes",
                                         "tensor_bytes",
                                         NULL};

static const char *const dtypes[] = {"fp16", "bf16", "fp32", NULL};
static const char *const accumulates[] = {"fp16", "fp32", NULL};
static const char *const attentions[] = {"builtin", "cudnn", NULL};
static const char *const sources[] = {"published", "measured", "predicted", NULL};
static const char *const kinds[] = {"embedding", "block", "head", NULL};

/* The first four are what RpProfile.has_sizes promises. */
#define N_REQUIRED_SIZES 4
static const Field size_fields[] = {
    {"parameter_bytes", G_STRUCT_OFFSET(RpLayer, parameter_bytes)},
    {"gradient_bytes", G_STRUCT_OFFSET(RpLayer, gradient_bytes)},
    {"input_bytes", G_STRUCT_OFFSET(RpLayer, input_bytes)},
    {"output_bytes", G_STRUCT_OFFSET(RpLayer, output_bytes)},
    {"forward_workspace_bytes", G_STRUCT_OFFSET(RpLayer, forward_workspace_bytes)},
    {"backward_workspace_bytes", G_STRUCT_OFFSET(RpLayer, backward_workspace_bytes)},
    {"activation_bytes", G_STRUCT_OFFSET(RpLayer, activation_bytes)},
    {"tied_bytes", G_STRUCT_OFFSET(RpLayer, tied_bytes)},
};
static const Field speed_fields[] = {
    {"h2d_gb_per_s", G_STRUCT_OFFSET(RpLinks, h2d_bytes_per_s)},
    {"d2h_gb_per_s", G_STRUCT_OFFSET(RpLinks, d2h_bytes_per_s)},
    {"both_gb_per_s", G_STRUCT_OFFSET(RpLinks, both_bytes_per_s)},
    {"all_h2d_gb_per_s", G_STRUCT_OFFSET(RpLinks, all_h2d_bytes_per_s)},
    {"all_d2h_gb_per_s", G_STRUCT_OFFSET(RpLinks, all_d2h_bytes_per_s)},
    {"all_both_gb_per_s", G_STRUCT_OFFSET(RpLinks, all_both_bytes_per_s)},
    {"host_gb_per_s", G_STRUCT_OFFSET(RpLinks, host_bytes_per_s)},
    {"root_gb_per_s", G_STRUCT_OFFSET(RpLinks, root_bytes_per_s)},
    {"beside_optimizer_gb_per_s", G_STRUCT_OFFSET(RpLinks, beside_optimizer_bytes_per_s)},
};

static gboolean
read_links(const RpSection *top, RpLinks *links)
{
    g_auto(RpSection) section = {0};
    gboolean found;

    if (!rp_section_open(top, "links", &section, &found))
        return FALSE;
    if (!found)
        return TRUE;
    if (!rp_section_check_keys(&section, link_keys) ||
        !rp_section_time(&section, "hop_ms", &links->hop_ns) ||
        !rp_section_time(&section, "copy_latency_ms", &links->copy_latency_ns) ||
        !rp_section_count(&section, "gpus_per_root", MAX_GPUS, &links->gpus_per_root))
        return FALSE;
    for (guint i = 0; i < G_N_ELEMENTS(speed_fields); i++) {
        double gb_per_s = 0;
        if (!rp_section_number(&section, speed_fields[i].key, MIN_GB_PER_S, MAX_GB_PER_S,
                               "GB/s from 0.001 to 1e6", &gb_per_s))
            return FALSE;
        G_STRUCT_MEMBER(double, links, speed_fields[i].offset) = gb_per_s * BYTES_PER_GB;
    }
    if (links->beside_optimizer_bytes_per_s > 0 &&
        links->beside_optimizer_bytes_per_s >= links->host_bytes_per_s)
        return rp_section_fail_value(&section, "beside_optimizer_gb_per_s",
                                     "less than host_gb_per_s");
    return TRUE;
}

static gboolean
read_micro_batch(const RpSection *top, RpProfile *profile)
{
    g_auto(RpSection) section = {0};
    gboolean found;

    if (!rp_section_open(top, "micro_batch", &section, &found))
        return FALSE;
    return !found || (rp_section_check_keys(&section, micro_batch_keys) &&
                      rp_section_count(&section, "sequences", 1u << 24, &profile->sequences) &&
                      rp_section_count(&section, "tokens_per_sequence", 1u << 30,
                                       &profile->tokens_per_sequence));
}

static gboolean
read_optimizer(const RpSection *top, RpProfile *profile)
{
    g_auto(RpSection) section = {0};
    double narrow_rate = 0; /* files from when rounds were summed in the network's storage */
    double *const rates[] = {&profile->optimizer_parameters_per_s,
                             &profile->norm_parameters_per_s,
                             &profile->sum_parameters_per_s,
                             &profile->gradient_copy_parameters_per_s,
                             &profile->parameter_copy_parameters_per_s,
                             &narrow_rate};
    gboolean found;

    G_STATIC_ASSERT(G_N_ELEMENTS(rates) + 1 == G_N_ELEMENTS(optimizer_keys));
    if (!rp_section_open(top, "optimizer", &section, &found))
        return FALSE;
    if (found && !rp_section_check_keys(&section, optimizer_keys))
        return FALSE;
    for (gsize i = 0; found && i < G_N_ELEMENTS(rates); i++)
        if (!rp_section_number(&section, optimizer_keys[i], 1e6, 1e15,
                               "parameters/s from 1e6 to 1e15", rates[i]))
            return FALSE;
    if (profile->sum_parameters_per_s ==
        0) /* by their bytes: the sum was as wide as what is added */
        profile->sum_parameters_per_s = narrow_rate * 3 * rp_profile_element_bytes(profile) /
                                        (rp_profile_element_bytes(profile) + 8);
    return TRUE;
}

static gboolean
read_tensors(const RpSection *section, RpProfile *profile, RpLayer *layer)
{
    JsonNode *node = json_object_get_member(section->object, "tensor_bytes");
    guint64 sum = 0;

    if (!node)
        return TRUE;
    if (!JSON_NODE_HOLDS_ARRAY(node) || json_array_get_length(json_node_get_array(node)) == 0)
        return rp_section_fail_value(section, "tensor_bytes", "an array of at least one size");
    JsonArray *array = json_node_get_array(node);
    guint n = json_array_get_length(array);
    guint64 *bytes = g_new(guint64, n);
    g_ptr_array_add(profile->tensor_tables, bytes);
    for (guint i = 0; i < n; i++) {
        JsonNode *element = json_array_get_element(array, i);
        if (!rp_json_node_size(element, &bytes[i])) {
            g_autofree char *key = g_strdup_printf("tensor_bytes[%u]", i);
            g_autofree char *found = rp_json_node_describe(element);
            return rp_section_fail(section, RP_PROFILE_ERROR_VALUE, key,
                                   "whole bytes from 0 to 2^50", found);
        }
        sum += bytes[i]; /* at most 2^22 values of 2^50 */
        if (sum > RP_PROFILE_MAX_BYTES)
            return rp_section_fail(section, RP_PROFILE_ERROR_VALUE, "tensor_bytes",
                                   "a sum of at most 2^50", "more");
    }
    if (json_object_has_member(section->object, "parameter_bytes") &&
        layer->parameter_bytes != sum) {
        g_autofree char *expected =
            g_strdup_printf("the sum of tensor_bytes, %" G_GUINT64_FORMAT, sum);
        return rp_section_fail_value(section, "parameter_bytes", expected);
    }
    layer->parameter_bytes = sum;
    layer->n_tensors = n;
    layer->tensor_bytes = bytes;
    return TRUE;
}

static gboolean
read_layer_times(const RpSection *section, RpLayer *layer)
{
    static const char *const required[] = {"forward_ms", "backward_ms"};

    for (guint i = 0; i < G_N_ELEMENTS(required); i++) {
        if (!json_object_has_member(section->object, required[i]))
            return rp_section_fail_value(section, required[i], "milliseconds from 0 to 1e9");
    }
    if (!rp_section_time(section, "forward_ms", &layer->forward_ns) ||
        !rp_section_time(section, "backward_ms", &layer->backward_ns))
        return FALSE;
    layer->recompute_ns = layer->forward_ns;
    layer->weight_gradient_ns = rp_profile_default_weight_gradient_ns(layer->backward_ns);
    if (!rp_section_time(section, "recompute_ms", &layer->recompute_ns) ||
        !rp_section_time(section, "recompute_last_ms", &layer->recompute_last_ns) ||
        !rp_section_time(section, "weight_gradient_ms", &layer->weight_gradient_ns) ||
        !rp_section_time(section, "forward_spread_ms", &layer->forward_spread_ns) ||
        !rp_section_time(section, "recompute_spread_ms", &layer->recompute_spread_ns) ||
        !rp_section_time(section, "backward_spread_ms", &layer->backward_spread_ns))
        return FALSE;
    /* more than 0, which stands for what a file does not say */
    if (json_object_has_member(section->object, "recompute_last_ms") &&
        (layer->recompute_last_ns == 0 || layer->recompute_last_ns > layer->recompute_ns))
        return rp_section_fail_value(section, "recompute_last_ms",
                                     "more than 0 and at most recompute_ms");
    return layer->weight_gradient_ns <= layer->backward_ns ||
           rp_section_fail_value(section, "weight_gradient_ms", "at most backward_ms");
}

/* Notes the first required size that @section lacks. */
static void
note_missing(const RpSection *section, const RpLayer *layer, RpProfile *profile)
{
    for (guint i = 0; i < N_REQUIRED_SIZES && !profile->missing; i++) {
        if (!json_object_has_member(section->object, size_fields[i].key) &&
            !(i == 0 && layer->n_tensors > 0))
            profile->missing = rp_section_place(section, size_fields[i].key);
    }
}

/* Everything of one entry but its count. */
static gboolean
read_layer(const RpSection *section, RpProfile *profile, RpLayer *layer)
{
    g_autofree char *kind = NULL;
    g_autofree char *name = NULL;

    if (!json_object_has_member(section->object, "kind"))
        return rp_section_fail_value(section, "kind", "one of \"embedding\", \"block\", \"head\"");
    if (!rp_section_choice(section, "kind", kinds, &kind) ||
        !rp_section_string(section, "name", MAX_NAME, &name))
        return FALSE;
    while (strcmp(kinds[layer->kind], kind) != 0)
        layer->kind++;
    if (name && *name) {
        layer->name = name;
        g_ptr_array_add(profile->names, g_steal_pointer(&name));
    } else {
        layer->name = rp_layer_kind_name(layer->kind);
    }
    if (!read_layer_times(section, layer))
        return FALSE;
    for (guint i = 0; i < G_N_ELEMENTS(size_fields); i++) {
        if (!rp_section_size(section, size_fields[i].key,
                             &G_STRUCT_MEMBER(guint64, layer, size_fields[i].offset)))
            return FALSE;
    }
    if (!read_tensors(section, profile, layer))
        return FALSE;
    note_missing(section, layer, profile);
    return TRUE;
}

/* Entry @index of `layers` as a section; sets its count. */
static gboolean
open_layer(const RpSection *top, JsonArray *array, guint index, RpSection *inner, guint *count)
{
    JsonNode *node = json_array_get_element(array, index);
    g_autofree char *place = g_strdup_printf("layers[%u]", index);

    if (!JSON_NODE_HOLDS_OBJECT(node)) {
        g_autofree char *found = rp_json_node_describe(node);
        return rp_section_fail(top, RP_PROFILE_ERROR_VALUE, place, "an object", found);
    }
    *inner =
        (RpSection){top->file, g_steal_pointer(&place), json_node_get_object(node), top->error};
    *count = 1;
    return rp_section_check_keys(inner, layer_keys) &&
           rp_section_count(inner, "count", RP_PROFILE_MAX_LAYERS, count);
}

/* Adds up the counts before anything is allocated for them. */
static gboolean
count_layers(const RpSection *top, JsonArray *array, guint *n_layers)
{
    guint total = 0;

    for (guint i = 0; i < json_array_get_length(array); i++) {
        g_auto(RpSection) section = {0};
        guint count;

        if (!open_layer(top, array, i, &section, &count))
            return FALSE;
        total += count;
        if (total > RP_PROFILE_MAX_LAYERS)
            return rp_section_fail(top, RP_PROFILE_ERROR_VALUE, "layers",
                                   "at most " G_STRINGIFY(RP_PROFILE_MAX_LAYERS) " layers", "more");
    }
    *n_layers = total;
    return TRUE;
}

/* [embedding] block... [head]: whether @kind, @count times, may come @at of @n_layers. */
static gboolean
check_order(const RpSection *section, RpLayerKind kind, guint at, guint count, guint n_layers)
{
    if (kind == RP_LAYER_EMBEDDING && (at > 0 || count > 1))
        return rp_section_fail(section, RP_PROFILE_ERROR_VALUE, "kind",
                               "one embedding, as the first layer", "another or a later one");
    if (kind == RP_LAYER_HEAD && at + 1 < n_layers)
        return rp_section_fail(section, RP_PROFILE_ERROR_VALUE, "kind",
                               "one head, as the last layer", "another or an earlier one");
    return TRUE;
}

/* So that a sum over all layers, a few times over, is far from the end of 64 bits. */
static gboolean
check_times(const RpSection *top, const RpProfile *profile)
{
    double ms = 0;

    for (guint l = 0; l < profile->n_layers; l++) {
        const RpLayer *layer = &profile->layers[l];

        ms += rp_ms_from_ns(layer->forward_ns) + rp_ms_from_ns(layer->backward_ns) +
              rp_ms_from_ns(layer->recompute_ns);
    }
    return ms <= RP_PROFILE_MAX_MS ||
           rp_section_fail(top, RP_PROFILE_ERROR_VALUE, "layers",
                           "times of at most 1e9 ms, all layers together", "more");
}

static gboolean
read_layers(const RpSection *top, RpProfile *profile)
{
    JsonNode *node = json_object_get_member(top->object, "layers");
    guint at = 0;

    if (!node || !JSON_NODE_HOLDS_ARRAY(node))
        return rp_section_fail_value(top, "layers", "an array of layers");
    JsonArray *array = json_node_get_array(node);
    if (!count_layers(top, array, &profile->n_layers))
        return FALSE;
    g_free(profile->layers);
    profile->layers = g_new0(RpLayer, profile->n_layers);
    g_autofree guint *entries = g_new(guint, profile->n_layers);
    for (guint i = 0; i < json_array_get_length(array); i++) {
        g_auto(RpSection) section = {0};
        RpLayer *layer = &profile->layers[at];
        guint count;

        if (!open_layer(top, array, i, &section, &count) || !read_layer(&section, profile, layer) ||
            !check_order(&section, layer->kind, at, count, profile->n_layers))
            return FALSE;
        for (guint k = 0; k < count; k++) {
            layer[k] = layer[0];
            entries[at + k] = i;
        }
        at += count;
    }
    if (rp_profile_n_blocks(profile) == 0)
        return rp_section_fail(top, RP_PROFILE_ERROR_VALUE, "layers", "at least one block", "none");
    if (!check_times(top, profile))
        return FALSE;
    profile->has_sizes = !profile->missing;
    return rp_profile_check_sizes(top, profile, entries);
}

static gboolean
check_format(const RpSection *top)
{
    JsonNode *node = json_object_get_member(top->object, "format");

    if (node && JSON_NODE_HOLDS_VALUE(node) && json_node_get_value_type(node) == G_TYPE_STRING &&
        strcmp(json_node_get_string(node), RP_PROFILE_FORMAT) == 0)
        return TRUE;
    g_autofree char *found = rp_json_node_describe(node);
    return rp_section_fail(top, RP_PROFILE_ERROR_FORMAT, "format", "\"" RP_PROFILE_FORMAT "\"",
                           found);
}

static gboolean
read_profile(const RpSection *top, RpProfile *profile)
{
    return check_format(top) && rp_section_check_keys(top, top_keys) &&
           rp_section_string(top, "model", MAX_NAME, &profile->model) &&
           rp_section_string(top, "device", MAX_NAME, &profile->device) &&
           rp_section_count(top, "gpus", MAX_GPUS, &profile->gpus) &&
           rp_section_count(top, "processors", MAX_PROCESSORS, &profile->processors) &&
           rp_section_choice(top, "dtype", dtypes, &profile->dtype) &&
           rp_section_choice(top, "accumulate", accumulates, &profile->accumulate) &&
           rp_section_choice(top, "attention", attentions, &profile->attention) &&
           rp_section_count(top, "head_chunk", 1u << 30, &profile->head_chunk) &&
           rp_section_choice(top, "source", sources, &profile->source) &&
           rp_section_string(top, "origin", RP_PROFILE_MAX_STRING, &profile->origin) &&
           rp_section_date(top, "date", &profile->date) && read_micro_batch(top, profile) &&
           read_links(top, &profile->links) &&
           rp_section_size(top, "gpu_memory_bytes", &profile->gpu_memory_bytes) &&
           read_optimizer(top, profile) && read_layers(top, profile);
}

RpProfile *
rp_profile_parse(const char *name, const char *text, gsize length, GError **error)
{
    g_autoptr(JsonParser) parser = NULL;
    g_autoptr(RpProfile) profile = NULL;
    g_autoptr(GError) json_error = NULL;

    g_return_val_if_fail(name && (text || length == 0), NULL);
    g_return_val_if_fail(!error || !*error, NULL);

    if (!rp_profile_scan(name, text, length, error))
        return NULL;
    parser = json_parser_new_immutable();
    if (!json_parser_load_from_data(parser, text, (gssize)length, &json_error)) {
        g_autofree char *shown = rp_display_name(name);
        g_set_error(error, RP_PROFILE_ERROR, RP_PROFILE_ERROR_SYNTAX, "%s: %s", shown,
                    json_error->message);
        return NULL;
    }
    JsonNode *root = json_parser_get_root(parser);
    if (!root || !JSON_NODE_HOLDS_OBJECT(root)) {
        g_autofree char *shown = rp_display_name(name);
        g_autofree char *found = rp_json_node_describe(root);
        g_set_error(error, RP_PROFILE_ERROR, RP_PROFILE_ERROR_FORMAT,
                    "%s: the file: expected an object, found %s", shown, found);
        return NULL;
    }
    RpSection top = {
        .file = name, .place = (char *)"", .object = json_node_get_object(root), .error = error};
    profile = rp_profile_new(0);
    if (!read_profile(&top, profile))
        return NULL;
    return g_steal_pointer(&profile);
}

RpProfile *
rp_profile_load(const char *path, GError **error)
{
    g_autoptr(GError) local = NULL;
    gsize length;

    g_return_val_if_fail(path, NULL);
    g_return_val_if_fail(!error || !*error, NULL);

    g_autofree char *text = rp_file_read(path, RP_PROFILE_MAX_FILE_BYTES, &length, &local);
    if (!text) {
        g_set_error_literal(error, RP_PROFILE_ERROR, RP_PROFILE_ERROR_IO, local->message);
        return NULL;
    }
    return rp_profile_parse(path, text, length, error);
}
