/**
 * Reads `roundpipe-profile/1`: text -> strict JSON -> records -> RpProfile.
 *
 * The keys stand in tables; docs/profile-format.md explains them.
 */
#include "core/profile/profile.h"

#include <stdio.h>
#include <string.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/base/units.h"
#include "core/json/json-record.h"
#include "core/profile/box.h"
#include "core/profile/private.h"

#define MAX_NAME 128
#define MAX_STRING 4096
#define MAX_GPUS 4096
#define MAX_PROCESSORS 65536
#define MAX_ALONE_SPEED 100
#define BYTES_PER_GB 1e9
#define LAYERS "an array of layers"

/* The file. */
typedef struct {
    RpProfile profile;
    double narrow_rate; /* files from when rounds were summed in the network's storage */
    gboolean is_box;    /* layers may be left out */
    GArray *layers;     /* RpLayer */
    GArray *entries;    /* RpProfileEntry: the entry of `layers` from which each layer comes */
} Top;

/* One entry of `layers`. */
typedef struct {
    RpLayer layer;
    guint count;
    char *name;
    guint64 *tensor_bytes;
} Entry;

static gboolean
read_time(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    double ms;

    if (!rp_json_read_number(pull, field, &ms))
        return FALSE;
    *(gint64 *)value = rp_ns_from_ms(ms);
    return TRUE;
}

static gboolean
read_speed(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    double gb_per_s;

    if (!rp_json_read_number(pull, field, &gb_per_s))
        return FALSE;
    *(double *)value = gb_per_s * BYTES_PER_GB;
    return TRUE;
}

static gboolean
read_date(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    guint year, month, day;
    int length = 0;

    if (!rp_json_read_text(pull, field, value))
        return FALSE;
    const char *date = *(char **)value;
    return (strspn(date, "0123456789-") == 10 && date[4] == '-' && date[7] == '-' &&
            sscanf(date, "%4u-%2u-%2u%n", &year, &month, &day, &length) == 3 && length == 10 &&
            date[10] == '\0' && g_date_valid_dmy(day, month, year)) ||
           rp_json_pull_fail_value(pull, "a date as 2026-04-29");
}

/* ---- tables ---- */

/* Slow enough for anything real, and 2^50 bytes at it still take less than G_MAXINT64 ns. */
#define SPEED(key, member)                                                                         \
    {                                                                                              \
        key, read_speed, G_STRUCT_OFFSET(RpLinks, member), .min = 1e-3, .max = 1e6,                \
                                                           .expected = "GB/s from 0.001 to 1e6"    \
    }
#define RATE(key, member)                                                                          \
    {                                                                                              \
        key, rp_json_read_number, G_STRUCT_OFFSET(Top, member),                                    \
            .min = 1e6, .max = 1e15, .expected = "parameters/s from 1e6 to 1e15"                   \
    }
#define TIME(key, type, member, ...)                                                               \
    {                                                                                              \
        key, read_time, G_STRUCT_OFFSET(type, member),                                             \
            .max = RP_PROFILE_MAX_MS, .expected = "milliseconds from 0 to 1e9", __VA_ARGS__        \
    }
#define SIZE(key, type, member)                                                                    \
    {                                                                                              \
        key, rp_json_read_size, G_STRUCT_OFFSET(type, member),                                     \
            .max = (double)RP_PROFILE_MAX_BYTES, .expected = "whole bytes from 0 to 2^50"          \
    }
#define SAVED(name, group)                                                                         \
    SIZE("saved_" name "_bytes", Entry, layer.saved[RP_SAVED_##group].bytes),                      \
        TIME("saved_" name "_ms", Entry, layer.saved[RP_SAVED_##group].recompute_ns, )
#define COUNT(key, type, member, most)                                                             \
    {                                                                                              \
        key, rp_json_read_count, G_STRUCT_OFFSET(type, member), .min = 1, .max = most              \
    }
#define CHOICE(key, member, texts)                                                                 \
    {                                                                                              \
        key, rp_json_read_choice, G_STRUCT_OFFSET(Top, member), .max = MAX_STRING,                 \
                                                                .choices = texts                   \
    }
#define TEXT(key, member, most)                                                                    \
    {                                                                                              \
        key, rp_json_read_text, G_STRUCT_OFFSET(Top, member), .max = most                          \
    }

static const char *const formats[] = {RP_PROFILE_FORMAT, NULL};
static const char *const dtypes[] = {"fp16", "bf16", "fp32", NULL};
static const char *const accumulates[] = {"fp16", "fp32", NULL};
static const char *const matmuls[] = {"fp8", "fp8-head", NULL};
static const char *const attentions[] = {"builtin", "cudnn", "cudnn-forward", NULL};
static const char *const sources[] = {"published", "measured", "predicted", NULL};
static const char *const kinds[] = {"embedding", "block", "head", NULL};

static gboolean read_links(RpJsonPull *pull, const RpJsonField *field, gpointer value);
static gboolean read_layers(RpJsonPull *pull, const RpJsonField *field, gpointer value);
static gboolean read_tensors(RpJsonPull *pull, const RpJsonField *field, gpointer value);

/* Read before the rest: in a file of another kind no other error matters. */
static const RpJsonField format_fields[] = {
    {"format", rp_json_read_constant, .required = TRUE, .choices = formats},
    {NULL, rp_json_read_ignored},
};

static const RpJsonField micro_batch_fields[] = {
    COUNT("sequences", Top, profile.sequences, 1 << 24),
    COUNT("tokens_per_sequence", Top, profile.tokens_per_sequence, 1 << 30),
};

#define CACHED(name, rule, moments, master)                                                        \
    RATE(name, profile.cached_parameters_per_s[rule][moments][master]),
static const RpJsonField cached_fields[] = {RP_STATE_FORMATS(CACHED)};
#undef CACHED

static const RpJsonField optimizer_fields[] = {
    RATE("parameters_per_s", profile.optimizer_parameters_per_s),
    RATE("norm_parameters_per_s", profile.norm_parameters_per_s),
    RATE("sum_parameters_per_s", profile.sum_parameters_per_s),
    RATE("gradient_copy_parameters_per_s", profile.gradient_copy_parameters_per_s),
    RATE("parameter_copy_parameters_per_s", profile.parameter_copy_parameters_per_s),
    RATE("accumulate_parameters_per_s", narrow_rate),
    {"cached_parameters_per_s", RP_JSON_NESTED(cached_fields)},
};

static const RpJsonField matmul_fields[] = {
    {"library", rp_json_read_text, G_STRUCT_OFFSET(Top, profile.matmul_library), .required = TRUE,
     .min = 1, .max = MAX_NAME, .expected = "the name of a library"},
    {"ways", rp_profile_read_matmul_variants, G_STRUCT_OFFSET(Top, profile), .required = TRUE,
     .expected = "an array of shapes"},
};

static const RpJsonField top_fields[] = {
    {"format", rp_json_read_ignored}, /* see format_fields */
    TEXT("model", profile.model, MAX_NAME),
    TEXT("device", profile.device, MAX_NAME),
    COUNT("gpus", Top, profile.gpus, MAX_GPUS),
    COUNT("processors", Top, profile.processors, MAX_PROCESSORS),
    CHOICE("dtype", profile.dtype, dtypes),
    CHOICE("accumulate", profile.accumulate, accumulates),
    CHOICE("matmul", profile.matmul, matmuls),
    CHOICE("attention", profile.attention, attentions),
    COUNT("head_chunk", Top, profile.head_chunk, 1 << 30),
    CHOICE("source", profile.source, sources),
    TEXT("origin", profile.origin, MAX_STRING),
    {"date", read_date, G_STRUCT_OFFSET(Top, profile.date), .max = MAX_STRING},
    {"micro_batch", RP_JSON_NESTED(micro_batch_fields)},
    {"links", read_links, G_STRUCT_OFFSET(Top, profile.links)},
    SIZE("gpu_memory_bytes", Top, profile.gpu_memory_bytes),
    SIZE("constant_bytes", Top, profile.constant_bytes),
    {"alone_speed", rp_json_read_number, G_STRUCT_OFFSET(Top, profile.alone_speed), .min = 1,
     .max = MAX_ALONE_SPEED, .expected = "a number from 1 to 100"},
    {"optimizer", RP_JSON_NESTED(optimizer_fields)},
    {"matmuls", RP_JSON_NESTED(matmul_fields)},
    {"layers", read_layers, .expected = LAYERS},
};

static const RpJsonField link_fields[] = {
    TIME("hop_ms", RpLinks, hop_ns, ),
    TIME("copy_latency_ms", RpLinks, copy_latency_ns, ),
    SPEED("h2d_gb_per_s", h2d_bytes_per_s),
    SPEED("d2h_gb_per_s", d2h_bytes_per_s),
    SPEED("both_gb_per_s", both_bytes_per_s),
    SPEED("all_h2d_gb_per_s", all_h2d_bytes_per_s),
    SPEED("all_d2h_gb_per_s", all_d2h_bytes_per_s),
    SPEED("all_both_gb_per_s", all_both_bytes_per_s),
    SPEED("host_gb_per_s", host_bytes_per_s),
    SPEED("root_gb_per_s", root_bytes_per_s),
    COUNT("gpus_per_root", RpLinks, gpus_per_root, MAX_GPUS),
    SPEED("beside_optimizer_gb_per_s", beside_optimizer_bytes_per_s),
    SPEED("network_gb_per_s", network_bytes_per_s),
    TIME("network_latency_ms", RpLinks, network_latency_ns, ),
};

static const RpJsonField layer_fields[] = {
    {"kind", rp_json_read_choice_index, G_STRUCT_OFFSET(Entry, layer.kind), .required = TRUE,
     .choices = kinds},
    {"name", rp_json_read_text, G_STRUCT_OFFSET(Entry, name), .max = MAX_NAME},
    COUNT("count", Entry, count, RP_PROFILE_MAX_LAYERS),
    TIME("forward_ms", Entry, layer.forward_ns, .required = TRUE),
    TIME("backward_ms", Entry, layer.backward_ns, .required = TRUE),
    TIME("recompute_ms", Entry, layer.recompute_ns, ),
    TIME("recompute_last_ms", Entry, layer.recompute_last_ns, ),
    TIME("weight_gradient_ms", Entry, layer.weight_gradient_ns, ),
    TIME("forward_spread_ms", Entry, layer.forward_spread_ns, ),
    TIME("recompute_spread_ms", Entry, layer.recompute_spread_ns, ),
    TIME("backward_spread_ms", Entry, layer.backward_spread_ns, ),
    TIME("expand_ms", Entry, layer.expand_ns, ),
    SIZE("parameter_bytes", Entry, layer.parameter_bytes),
    SIZE("upload_bytes", Entry, layer.upload_bytes),
    SIZE("gradient_bytes", Entry, layer.gradient_bytes),
    SIZE("tied_bytes", Entry, layer.tied_bytes),
    SIZE("tied_gradient_bytes", Entry, layer.tied_gradient_bytes),
    SIZE("input_bytes", Entry, layer.input_bytes),
    SIZE("output_bytes", Entry, layer.output_bytes),
    SIZE("forward_workspace_bytes", Entry, layer.forward_workspace_bytes),
    SIZE("backward_workspace_bytes", Entry, layer.backward_workspace_bytes),
    SIZE("activation_bytes", Entry, layer.activation_bytes),
    SAVED("attention", ATTENTION),
    SAVED("qkv", QKV),
    SAVED("residual", RESIDUAL),
    SAVED("mlp", MLP),
    {"tensor_bytes", read_tensors},
};

/* ---- links ---- */

static gboolean
read_links(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    RpLinks *links = value;
    RpJsonRecord record;

    if (!rp_json_read_record(pull, link_fields, G_N_ELEMENTS(link_fields), links, &record))
        return FALSE;
    return links->beside_optimizer_bytes_per_s == 0 ||
           links->beside_optimizer_bytes_per_s < links->host_bytes_per_s ||
           rp_json_record_fail(&record, pull, "beside_optimizer_gb_per_s",
                               "less than host_gb_per_s");
}

/* ---- layers ---- */

/* Into the entry's layer, whose parameter_bytes another key may have set. */
static gboolean
read_tensors(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    static const RpJsonField size = SIZE("", Entry, tensor_bytes);
    g_autoptr(GArray) array = g_array_new(FALSE, FALSE, sizeof(guint64));
    Entry *entry = value;
    guint64 sum = 0;

    if (rp_json_pull_peek(pull) != RP_JSON_ARRAY)
        return rp_json_pull_fail(pull, "an array of at least one size");
    const char *start = pull->at;
    for (rp_json_pull_enter_array(pull); rp_json_pull_next_element(pull);) {
        guint64 bytes;
        if (!rp_json_read_size(pull, &size, &bytes))
            return FALSE;
        sum += bytes;
        if (sum > RP_PROFILE_MAX_BYTES)
            return rp_json_pull_fail_value(pull, "a sum of at most 2^50");
        g_array_append_val(array, bytes);
    }
    if (array->len == 0)
        return rp_json_pull_refuse(pull, start, NULL, "an array of at least one size", NULL);
    entry->layer.n_tensors = array->len;
    entry->tensor_bytes = (guint64 *)(void *)g_array_free(g_steal_pointer(&array), FALSE);
    return TRUE;
}

/* The sum of an entry's tensors is its parameters. */
static gboolean
add_tensors(const RpJsonRecord *record, RpJsonPull *pull, Entry *entry, RpProfile *profile)
{
    RpLayer *layer = &entry->layer;
    guint64 sum = 0;

    if (entry->tensor_bytes == NULL)
        return TRUE;
    for (guint i = 0; i < layer->n_tensors; i++)
        sum += entry->tensor_bytes[i];
    if (rp_json_record_at(record, "parameter_bytes") != NULL && layer->parameter_bytes != sum) {
        g_autofree char *expected =
            g_strdup_printf("the sum of tensor_bytes, %" G_GUINT64_FORMAT, sum);
        return rp_json_record_fail(record, pull, "parameter_bytes", expected);
    }
    layer->parameter_bytes = sum;
    layer->tensor_bytes = entry->tensor_bytes;
    g_ptr_array_add(profile->tensor_tables, g_steal_pointer(&entry->tensor_bytes));
    return TRUE;
}

/* Times that a file may leave out, and how they go with one another. */
static gboolean
check_layer_times(const RpJsonRecord *record, RpJsonPull *pull, RpLayer *layer)
{
    if (rp_json_record_at(record, "recompute_ms") == NULL)
        layer->recompute_ns = layer->forward_ns;
    if (rp_json_record_at(record, "weight_gradient_ms") == NULL)
        layer->weight_gradient_ns = rp_profile_default_weight_gradient_ns(layer->backward_ns);
    /* more than 0, which stands for a missing value */
    if (rp_json_record_at(record, "recompute_last_ms") != NULL &&
        (layer->recompute_last_ns == 0 || layer->recompute_last_ns > layer->recompute_ns))
        return rp_json_record_fail(record, pull, "recompute_last_ms",
                                   "more than 0 and at most recompute_ms");
    if (layer->expand_ns > 0 && layer->upload_bytes == 0)
        return rp_json_record_fail(record, pull, "expand_ms",
                                   "0, or upload_bytes of packed weights beside it");
    return layer->weight_gradient_ns <= layer->backward_ns ||
           rp_json_record_fail(record, pull, "weight_gradient_ms", "at most backward_ms");
}

/* Kept values of a layer, which a recompute makes; each once. */
static gboolean
check_saved(const RpJsonRecord *record, RpJsonPull *pull, const RpLayer *layer)
{
    guint64 bytes = 0;
    gint64 time_ns = 0;

    /* a file that does not know says nothing: memory of a plan would be too low without a word */
    if (layer->kind == RP_LAYER_BLOCK && layer->activation_bytes == 0 &&
        rp_json_record_at(record, "activation_bytes") != NULL)
        return rp_json_record_fail(record, pull, "activation_bytes",
                                   "what a block keeps for its backward, more than 0");
    for (guint g = 0; g < RP_N_SAVED_GROUPS; g++) {
        const RpSavedGroupInfo *row = rp_saved_group((RpSavedGroup)g);

        bytes += layer->saved[g].bytes;
        time_ns += layer->saved[g].recompute_ns;
        if (bytes > layer->activation_bytes)
            return rp_json_record_fail(record, pull, row->bytes_key,
                                       "at most activation_bytes, all that is saved together");
        if (time_ns > layer->recompute_ns ||
            (layer->saved[g].recompute_ns > 0 && layer->saved[g].bytes == 0))
            return rp_json_record_fail(record, pull, row->time_key,
                                       "bytes beside it, and at most recompute_ms, all that is "
                                       "saved together");
    }
    return TRUE;
}

/* [embedding] block... [head], as far as the layers before this one show. */
static gboolean
check_order(const RpJsonRecord *record, RpJsonPull *pull, const Entry *entry, const Top *top)
{
    const guint n = top->layers->len;

    if (entry->layer.kind == RP_LAYER_EMBEDDING && (n > 0 || entry->count > 1))
        return rp_json_record_fail(record, pull, "kind", "one embedding, as the first layer");
    if (entry->layer.kind == RP_LAYER_HEAD && entry->count > 1)
        return rp_json_record_fail(record, pull, "kind", "one head, as the last layer");
    if (n > 0 && g_array_index(top->layers, RpLayer, n - 1).kind == RP_LAYER_HEAD)
        return rp_json_record_fail(record, pull, "kind", "no layer behind the head");
    if (n + entry->count > RP_PROFILE_MAX_LAYERS)
        return rp_json_record_fail(record, pull, "count",
                                   "at most " G_STRINGIFY(RP_PROFILE_MAX_LAYERS) " layers in all");
    return TRUE;
}

/* Records the first size that RpProfile.has_sizes promises and @record lacks. */
static void
note_missing(const RpJsonRecord *record, const RpLayer *layer, guint index, RpProfile *profile)
{
    static const char *const required[] = {"parameter_bytes", "gradient_bytes", "input_bytes",
                                           "output_bytes"};

    for (guint i = 0; i < G_N_ELEMENTS(required) && profile->missing == NULL; i++)
        if (rp_json_record_at(record, required[i]) == NULL && !(i == 0 && layer->n_tensors > 0))
            profile->missing = g_strdup_printf("layers[%u].%s", index, required[i]);
}

static void
append_layers(Top *top, const Entry *entry, const RpProfileEntry *origin)
{
    for (guint k = 0; k < entry->count; k++) {
        g_array_append_val(top->layers, entry->layer);
        g_array_append_val(top->entries, *origin);
    }
}

static gboolean
read_entry(RpJsonPull *pull, guint index, Entry *entry, Top *top)
{
    RpProfile *profile = &top->profile;
    RpJsonRecord record;

    if (!rp_json_read_record(pull, layer_fields, G_N_ELEMENTS(layer_fields), entry, &record) ||
        !check_layer_times(&record, pull, &entry->layer) ||
        !check_saved(&record, pull, &entry->layer) || !add_tensors(&record, pull, entry, profile) ||
        !check_order(&record, pull, entry, top))
        return FALSE;
    entry->layer.name = rp_layer_kind_name(entry->layer.kind);
    if (entry->name != NULL && *entry->name) {
        entry->layer.name = entry->name;
        g_ptr_array_add(profile->names, g_steal_pointer(&entry->name));
    }
    if (rp_json_record_at(&record, "tied_gradient_bytes") == NULL)
        entry->layer.tied_gradient_bytes = rp_profile_default_tied_gradient_bytes(&entry->layer);
    note_missing(&record, &entry->layer, index, profile);
    append_layers(top, entry, &(RpProfileEntry){index, record.start});
    return TRUE;
}

static gboolean
read_layers(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    if (rp_json_pull_peek(pull) != RP_JSON_ARRAY)
        return rp_json_pull_fail(pull, field->expected);
    (void)rp_json_pull_enter_array(pull);
    for (guint i = 0; rp_json_pull_next_element(pull); i++) {
        Entry entry = {.count = 1};
        gboolean good = read_entry(pull, i, &entry, value);
        g_free(entry.name);
        g_free(entry.tensor_bytes);
        if (!good)
            return FALSE;
    }
    return !pull->failed;
}

/* ---- the file ---- */

static gboolean
read_top(RpJsonPull *pull, Top *top)
{
    RpProfile *profile = &top->profile;
    RpJsonPull first = *pull;
    RpJsonRecord record;

    first.code = RP_PROFILE_ERROR_FORMAT;
    pull->code = RP_PROFILE_ERROR_VALUE;
    if (!rp_json_read_record(&first, format_fields, G_N_ELEMENTS(format_fields), NULL, NULL) ||
        !rp_json_read_record(pull, top_fields, G_N_ELEMENTS(top_fields), top, &record))
        return FALSE;
    if (rp_json_record_at(&record, "layers") == NULL && !top->is_box)
        return rp_json_record_fail(&record, pull, "layers", LAYERS);
    profile->n_layers = top->layers->len;
    profile->layers = (RpLayer *)(void *)g_array_free(g_steal_pointer(&top->layers), FALSE);
    profile->whole_card = strcmp(profile->source, "measured") != 0;
    profile->has_sizes = profile->missing == NULL;
    if (profile->sum_parameters_per_s == 0) /* by their bytes: the sum was as wide as its parts */
        profile->sum_parameters_per_s = top->narrow_rate * 3 * rp_profile_element_bytes(profile) /
                                        (rp_profile_element_bytes(profile) + 8);
    if (rp_json_record_at(&record, "layers") == NULL)
        return rp_profile_says_box(profile) ||
               rp_json_record_fail(&record, pull, "links",
                                   "h2d_gb_per_s with d2h_gb_per_s, host_gb_per_s, or an "
                                   "optimizer's rate");
    return rp_profile_check_layers(pull, profile, rp_json_record_at(&record, "layers"),
                                   (const RpProfileEntry *)(void *)top->entries->data);
}

static RpProfile *
read_one(RpJsonPull *pull, gboolean is_box)
{
    g_autoptr(RpProfile) profile = rp_profile_new(0);
    Top top = {.profile = *profile,
               .is_box = is_box,
               .layers = g_array_new(FALSE, FALSE, sizeof(RpLayer)),
               .entries = g_array_new(FALSE, FALSE, sizeof(RpProfileEntry))};
    gboolean good = read_top(pull, &top);

    *profile = top.profile;
    g_clear_pointer(&top.layers, g_array_unref);
    g_array_unref(top.entries);
    return good ? g_steal_pointer(&profile) : NULL;
}

/* Whether @next continues the array that has @last: the same layers, and a larger micro-batch. */
static gboolean
check_next(RpJsonPull *pull, const RpProfile *last, const RpProfile *next)
{
    if (strcmp(next->model, last->model) != 0 || strcmp(next->dtype, last->dtype) != 0 ||
        next->n_layers != last->n_layers || next->tokens_per_sequence != last->tokens_per_sequence)
        return rp_json_pull_fail_value(pull, "the model, dtype, layers and length of the first");
    return next->sequences > MAX(1, last->sequences) ||
           rp_json_pull_fail_value(pull, "larger micro-batches than those before");
}

static RpProfile *
read_array(RpJsonPull *pull)
{
    g_autoptr(RpProfile) head = NULL;
    RpProfile **end = &head;

    (void)rp_json_pull_enter_array(pull);
    for (const RpProfile *last = NULL; rp_json_pull_next_element(pull);
         last = *end, end = &(*end)->next) {
        *end = read_one(pull, FALSE);
        if (*end == NULL || (last != NULL && !check_next(pull, last, *end)))
            return NULL;
    }
    pull->code = RP_PROFILE_ERROR_FORMAT;
    if (head == NULL && !pull->failed)
        (void)rp_json_pull_fail_value(pull, "a profile or more");
    return pull->failed ? NULL : g_steal_pointer(&head);
}

static RpProfile *
parse(const char *name, const char *text, gsize length, gboolean is_box, GError **error)
{
    g_autofree char *shown = rp_display_name(name);
    RpJsonPull pull;

    g_return_val_if_fail(name && (text || length == 0), NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    if (length > RP_PROFILE_MAX_FILE_BYTES)
        return rp_null(rp_fail(error, RP_PROFILE_ERROR, RP_PROFILE_ERROR_SYNTAX,
                               "%s: expected at most %" G_GSIZE_FORMAT " bytes, found more", shown,
                               RP_PROFILE_MAX_FILE_BYTES));
    if (!rp_json_pull_init(&pull, shown, text, length, RP_PROFILE_ERROR, RP_PROFILE_ERROR_SYNTAX,
                           error))
        return NULL;
    RpJsonPull whole = pull;

    if (!rp_json_pull_skip(&whole) || !rp_json_pull_end(&whole))
        return NULL;
    return !is_box && rp_json_pull_peek(&pull) == RP_JSON_ARRAY ? read_array(&pull)
                                                                : read_one(&pull, is_box);
}

RpProfile *
rp_profile_parse(const char *name, const char *text, gsize length, GError **error)
{
    return parse(name, text, length, FALSE, error);
}

RpProfile *
rp_profile_parse_box(const char *name, const char *text, gsize length, GError **error)
{
    return parse(name, text, length, TRUE, error);
}

/* ---- files ---- */

static char *
read_file(const char *path, gsize *length, GError **error)
{
    g_autoptr(GError) local = NULL;
    char *text = rp_file_read(path, RP_PROFILE_MAX_FILE_BYTES, length, &local);

    if (text == NULL)
        g_set_error_literal(error, RP_PROFILE_ERROR, RP_PROFILE_ERROR_IO, local->message);
    return text;
}

RpProfile *
rp_profile_load(const char *path, GError **error)
{
    gsize length;

    g_return_val_if_fail(path != NULL, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    g_autofree char *text = read_file(path, &length, error);

    return text != NULL ? rp_profile_parse(path, text, length, error) : NULL;
}

RpProfile *
rp_profile_load_box(const char *path, GError **error)
{
    gsize length;
    g_autofree char *text = read_file(path, &length, error);

    return text != NULL ? rp_profile_parse_box(path, text, length, error) : NULL;
}
