/**
 * Writes `roundpipe-profile/1`. A time is whole nanoseconds and so at most six decimals of a
 * millisecond; a rate takes the fewest digits that read back as the same double.
 */
#include "core/profile/profile.h"

#include <errno.h>
#include <gio/gio.h>
#include <glib/gstdio.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/quote.h"
#include "core/json/json-write.h"
#include "core/profile/private.h"

#define BYTES_PER_GB 1e9

#define MS_DECIMALS 6

static void
add_text(RpJsonWriter *json, const char *key, const char *value)
{
    if (value != NULL && *value)
        rp_json_string(json, key, value);
}

static void
add_size(RpJsonWriter *json, const char *key, guint64 value)
{
    if (value != 0)
        rp_json_uint(json, key, value);
}

static void
add_time(RpJsonWriter *json, const char *key, gint64 time_ns)
{
    rp_json_decimal(json, key, time_ns, MS_DECIMALS, 1);
}

/*
 * The shortest digits d, `d × unit` of which reads back as @value, into @digits as %e prints them.
 * Returns the value that reads back: @value, or the double next to it that can be written.
 */
static double
shortest_digits(double value, double unit, char *digits, int size)
{
    double quotients[3] = {value / unit};
    double back = value;

    quotients[1] = nextafter(quotients[0], 0);
    quotients[2] = nextafter(quotients[0], INFINITY);
    for (guint i = 0; i < G_N_ELEMENTS(quotients); i++) {
        for (int precision = i == 0 ? 0 : 16; precision <= 16; precision++) {
            char format[8];
            g_snprintf(format, sizeof format, "%%.%de", precision);
            g_ascii_formatd(digits, size, format, quotients[i]);
            back = g_ascii_strtod(digits, NULL) * unit;
            if (back == value)
                return back;
        }
    }
    /* no double times @unit is @value; the written number reads back as its neighbour */
    return back;
}

/* A positive rate in units of @unit; nothing if it is unknown. */
static void
add_rate(RpJsonWriter *json, const char *key, double value, double unit)
{
    char digits[G_ASCII_DTOSTR_BUF_SIZE];

    if (!(value > 0) || !isfinite(value))
        return;
    double back = shortest_digits(value, unit, digits, sizeof digits);
    if (back != value)
        shortest_digits(back, unit, digits, sizeof digits);

    /* d.ddde+XX -> 25.0 or 3.0e9 */
    char *exponent_text = strchr(digits, 'e');
    int exponent = atoi(exponent_text + 1);
    *exponent_text = '\0';
    g_autoptr(GString) mantissa = g_string_new(NULL);
    for (const char *p = digits; *p; p++)
        if (*p != '.')
            g_string_append_c(mantissa, *p);
    while (mantissa->len > 1 && mantissa->str[mantissa->len - 1] == '0')
        g_string_truncate(mantissa, mantissa->len - 1);
    int point = 1; /* digits before the point */
    if (exponent >= -4 && exponent < 6) {
        for (; exponent < 0; exponent++)
            g_string_prepend_c(mantissa, '0');
        point += exponent;
        exponent = 0;
    }
    while ((int)mantissa->len <= point)
        g_string_append_c(mantissa, '0');
    g_string_insert_c(mantissa, point, '.');

    if (exponent != 0)
        g_string_append_printf(mantissa, "e%d", exponent);
    rp_json_raw(json, key, mantissa->str);
}

static gboolean
layers_equal(const RpLayer *a, const RpLayer *b)
{
    RpLayer x = *a;
    RpLayer y = *b;
    gboolean same_tensors =
        x.n_tensors == y.n_tensors &&
        (x.tensor_bytes == y.tensor_bytes ||
         memcmp(x.tensor_bytes, y.tensor_bytes, x.n_tensors * sizeof(guint64)) == 0);

    return same_tensors && x.kind == y.kind && g_strcmp0(x.name, y.name) == 0 &&
           x.forward_ns == y.forward_ns && x.backward_ns == y.backward_ns &&
           x.recompute_ns == y.recompute_ns && rp_layer_saving_ns(a) == rp_layer_saving_ns(b) &&
           x.weight_gradient_ns == y.weight_gradient_ns &&
           x.forward_spread_ns == y.forward_spread_ns &&
           x.recompute_spread_ns == y.recompute_spread_ns &&
           x.backward_spread_ns == y.backward_spread_ns && x.expand_ns == y.expand_ns &&
           x.parameter_bytes == y.parameter_bytes && x.upload_bytes == y.upload_bytes &&
           x.gradient_bytes == y.gradient_bytes && x.input_bytes == y.input_bytes &&
           x.output_bytes == y.output_bytes &&
           x.forward_workspace_bytes == y.forward_workspace_bytes &&
           x.backward_workspace_bytes == y.backward_workspace_bytes &&
           x.activation_bytes == y.activation_bytes && x.tied_bytes == y.tied_bytes &&
           x.tied_gradient_bytes == y.tied_gradient_bytes &&
           memcmp(x.saved, y.saved, sizeof x.saved) == 0;
}

static void
add_layer_times(RpJsonWriter *json, const RpLayer *layer)
{
    const struct {
        const char *key;
        gint64 time_ns;
        gboolean written;
    } times[] = {
        {"forward_ms", layer->forward_ns, TRUE},
        {"backward_ms", layer->backward_ns, TRUE},
        {"recompute_ms", layer->recompute_ns, layer->recompute_ns != layer->forward_ns},
        {"recompute_last_ms", layer->recompute_last_ns, rp_layer_saving_ns(layer) > 0},
        {"weight_gradient_ms", layer->weight_gradient_ns,
         layer->weight_gradient_ns != rp_profile_default_weight_gradient_ns(layer->backward_ns)},
        {"forward_spread_ms", layer->forward_spread_ns, layer->forward_spread_ns != 0},
        {"recompute_spread_ms", layer->recompute_spread_ns, layer->recompute_spread_ns != 0},
        {"backward_spread_ms", layer->backward_spread_ns, layer->backward_spread_ns != 0},
        {"expand_ms", layer->expand_ns, layer->expand_ns != 0},
    };

    rp_json_break(json);
    for (guint i = 0; i < G_N_ELEMENTS(times); i++)
        if (times[i].written)
            add_time(json, times[i].key, times[i].time_ns);
}

/* Groups of tensors whose forward may save them for its backward. */
static void
add_layer_saved(RpJsonWriter *json, const RpLayer *layer)
{
    for (guint g = 0; g < RP_N_SAVED_GROUPS; g++) {
        const RpSavedGroupInfo *row = rp_saved_group((RpSavedGroup)g);
        const RpSavedTensors *saved = &layer->saved[g];

        if (saved->bytes == 0)
            continue;
        rp_json_break(json);
        rp_json_uint(json, row->bytes_key, saved->bytes);
        if (saved->recompute_ns != 0)
            add_time(json, row->time_key, saved->recompute_ns);
    }
}

/* Sizes of 0 are left out unless a profile with sizes needs them to say so. */
static void
add_layer_sizes(RpJsonWriter *json, const RpLayer *layer, gboolean has_sizes)
{
    const struct {
        const char *key;
        guint64 bytes;
        gboolean always;
    } sizes[] = {
        {"parameter_bytes", layer->parameter_bytes, has_sizes},
        {"upload_bytes", layer->upload_bytes, FALSE},
        {"gradient_bytes", layer->gradient_bytes, has_sizes},
        {"input_bytes", layer->input_bytes, has_sizes},
        {"output_bytes", layer->output_bytes, has_sizes},
        {"forward_workspace_bytes", layer->forward_workspace_bytes, FALSE},
        {"backward_workspace_bytes", layer->backward_workspace_bytes, FALSE},
        {"activation_bytes", layer->activation_bytes, FALSE},
        {"tied_bytes", layer->tied_bytes, FALSE},
    };

    for (guint i = 0; i < G_N_ELEMENTS(sizes); i++) {
        if (i == 0 || i == 5)
            rp_json_break(json);
        if (sizes[i].bytes != 0 || sizes[i].always)
            rp_json_uint(json, sizes[i].key, sizes[i].bytes);
    }
    if (layer->tied_gradient_bytes != rp_profile_default_tied_gradient_bytes(layer))
        rp_json_uint(json, "tied_gradient_bytes", layer->tied_gradient_bytes);
    if (layer->n_tensors == 0)
        return;
    rp_json_break(json);
    rp_json_array(json, "tensor_bytes");
    for (guint i = 0; i < layer->n_tensors; i++)
        rp_json_uint(json, NULL, layer->tensor_bytes[i]);
    rp_json_end(json);
}

static void
add_layers(RpJsonWriter *json, const RpProfile *profile)
{
    rp_json_array(json, "layers");
    for (guint i = 0, count = 1; i < profile->n_layers; i += count) {
        const RpLayer *layer = &profile->layers[i];

        for (count = 1; layer->kind == RP_LAYER_BLOCK && i + count < profile->n_layers; count++)
            if (!layers_equal(layer, &profile->layers[i + count]))
                break;
        rp_json_object_as(json, NULL, RP_JSON_PADDED);
        rp_json_string(json, "kind", rp_layer_kind_name(layer->kind));
        add_text(json, "name", layer->name);
        if (count > 1)
            rp_json_uint(json, "count", count);
        add_layer_times(json, layer);
        add_layer_sizes(json, layer, profile->has_sizes);
        add_layer_saved(json, layer);
        rp_json_end(json);
    }
    rp_json_end(json);
}

static void
add_links(RpJsonWriter *json, const RpLinks *links)
{
    rp_json_object_as(json, "links", RP_JSON_PADDED);
    add_time(json, "hop_ms", links->hop_ns);
    if (links->copy_latency_ns != 0)
        add_time(json, "copy_latency_ms", links->copy_latency_ns);
    add_rate(json, "h2d_gb_per_s", links->h2d_bytes_per_s, BYTES_PER_GB);
    add_rate(json, "d2h_gb_per_s", links->d2h_bytes_per_s, BYTES_PER_GB);
    add_rate(json, "both_gb_per_s", links->both_bytes_per_s, BYTES_PER_GB);
    add_rate(json, "all_h2d_gb_per_s", links->all_h2d_bytes_per_s, BYTES_PER_GB);
    add_rate(json, "all_d2h_gb_per_s", links->all_d2h_bytes_per_s, BYTES_PER_GB);
    add_rate(json, "all_both_gb_per_s", links->all_both_bytes_per_s, BYTES_PER_GB);
    add_rate(json, "host_gb_per_s", links->host_bytes_per_s, BYTES_PER_GB);
    add_rate(json, "root_gb_per_s", links->root_bytes_per_s, BYTES_PER_GB);
    add_size(json, "gpus_per_root", links->gpus_per_root);
    add_rate(json, "beside_optimizer_gb_per_s", links->beside_optimizer_bytes_per_s, BYTES_PER_GB);
    add_rate(json, "network_gb_per_s", links->network_bytes_per_s, BYTES_PER_GB);
    if (links->network_latency_ns != 0)
        add_time(json, "network_latency_ms", links->network_latency_ns);
    rp_json_end(json);
}

static void
add_cached_rates(RpJsonWriter *json, const RpProfile *profile)
{
#define ADD(name, rule, moments, master)                                                           \
    add_rate(json, name, profile->cached_parameters_per_s[rule][moments][master], 1);
    if (!(profile->cached_parameters_per_s[RP_UPDATE_ADAMW][RP_MOMENTS_FP32][RP_MOMENTS_FP32] > 0))
        return;
    rp_json_object_as(json, "cached_parameters_per_s", RP_JSON_PADDED);
    RP_STATE_FORMATS(ADD)
    rp_json_end(json);
#undef ADD
}

static void
add_optimizer(RpJsonWriter *json, const RpProfile *profile)
{
    if (!(profile->optimizer_parameters_per_s > 0))
        return;
    rp_json_object_as(json, "optimizer", RP_JSON_PADDED);
    add_rate(json, "parameters_per_s", profile->optimizer_parameters_per_s, 1);
    add_rate(json, "norm_parameters_per_s", profile->norm_parameters_per_s, 1);
    add_rate(json, "sum_parameters_per_s", profile->sum_parameters_per_s, 1);
    add_rate(json, "gradient_copy_parameters_per_s", profile->gradient_copy_parameters_per_s, 1);
    add_rate(json, "parameter_copy_parameters_per_s", profile->parameter_copy_parameters_per_s, 1);
    add_cached_rates(json, profile);
    rp_json_end(json);
}

static char *
write_one(const RpProfile *profile)
{
    RpJsonWriter *json = rp_json_writer_new(RP_JSON_LINES);
    rp_json_object(json, NULL);
    rp_json_string(json, "format", RP_PROFILE_FORMAT);
    add_text(json, "model", profile->model);
    add_text(json, "device", profile->device);
    add_size(json, "gpus", profile->gpus);
    add_size(json, "processors", profile->processors);
    add_text(json, "dtype", profile->dtype);
    add_text(json, "accumulate", profile->accumulate);
    add_text(json, "matmul", profile->matmul);
    add_text(json, "attention", profile->attention);
    add_size(json, "head_chunk", profile->head_chunk);
    add_text(json, "source", profile->source);
    add_text(json, "origin", profile->origin);
    add_text(json, "date", profile->date);
    if (profile->sequences != 0 || profile->tokens_per_sequence != 0) {
        rp_json_object_as(json, "micro_batch", RP_JSON_PADDED);
        add_size(json, "sequences", profile->sequences);
        add_size(json, "tokens_per_sequence", profile->tokens_per_sequence);
        rp_json_end(json);
    }
    add_links(json, &profile->links);
    add_size(json, "gpu_memory_bytes", profile->gpu_memory_bytes);
    add_size(json, "constant_bytes", profile->constant_bytes);
    if (profile->alone_speed > 0)
        rp_json_double(json, "alone_speed", profile->alone_speed, 4);
    add_optimizer(json, profile);
    rp_profile_write_matmuls(json, profile);
    if (profile->n_layers > 0) /* a box has none */
        add_layers(json, profile);
    rp_json_end(json);
    return rp_json_writer_finish(json);
}

char *
rp_profile_to_json(const RpProfile *profile)
{
    g_return_val_if_fail(profile != NULL, NULL);

    if (profile->next == NULL)
        return write_one(profile);
    GString *text = g_string_new("[\n");

    for (const RpProfile *p = profile; p != NULL; p = p->next) {
        g_autofree char *one = write_one(p);

        g_string_append_printf(text, "%s%s\n", g_strchomp(one), p->next != NULL ? "," : "");
    }
    return g_string_free(g_string_append(text, "]\n"), FALSE);
}

static gboolean
fail(const char *path, const char *reason, GError **error)
{
    return rp_fail_in(error, path, RP_PROFILE_ERROR, RP_PROFILE_ERROR_IO, "cannot write: %s",
                      reason);
}

/* Pipes and devices cannot be renamed over. */
static gboolean
write_through(const char *path, const char *text, GError **error)
{
    FILE *file = fopen(path, "we");

    if (file == NULL)
        return fail(path, g_strerror(errno), error);
    gboolean good = fputs(text, file) >= 0;
    int code = errno;
    if (fclose(file) != 0 && good) {
        good = FALSE;
        code = errno;
    }
    return good || fail(path, g_strerror(code), error);
}

gboolean
rp_profile_save(const RpProfile *profile, const char *path, GError **error)
{
    g_autoptr(GError) write_error = NULL;
    GStatBuf info;

    g_return_val_if_fail(profile && path, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    g_autofree char *text = rp_profile_to_json(profile);
    if (g_stat(path, &info) == 0) {
        if (S_ISDIR(info.st_mode))
            return fail(path, g_strerror(EISDIR), error);
        if (!S_ISREG(info.st_mode))
            return write_through(path, text, error);
    }
    /* a symbolic link keeps pointing at the file, which is replaced */
    char *resolved = realpath(path, NULL);
    gboolean good = g_file_set_contents_full(
        resolved != NULL ? resolved : path, text, -1,
        G_FILE_SET_CONTENTS_CONSISTENT | G_FILE_SET_CONTENTS_DURABLE, 0666, &write_error);
    free(resolved);
    return good || fail(path, write_error->message, error);
}
