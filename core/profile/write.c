/**
 * Writes `roundpipe-profile/1`. The text is built here and not by json-glib, which prints 7.429 as
 * 7.4290000000000003: a time is whole nanoseconds and so at most six decimals of a millisecond; a
 * rate takes the fewest digits that read back as the same double.
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
#include "core/base/units.h"
#include "core/profile/private.h"

#define BYTES_PER_GB 1e9

/* Text in progress: keys of one object are separated by commas, on one or on several lines. */
typedef struct {
    GString *text;
    const char *separator; /* before the next key */
} Writer;

static void
append_key(Writer *writer, const char *key)
{
    g_string_append_printf(writer->text, "%s\"%s\": ", writer->separator, key);
}

/* A string literal; control characters do not occur in profiles that were read. */
static void
append_string(Writer *writer, const char *key, const char *value, const char *separator)
{
    if (!value || !*value)
        return;
    append_key(writer, key);
    writer->separator = separator;
    g_string_append_c(writer->text, '"');
    for (const char *p = value; *p; p++) {
        if (*p == '"' || *p == '\\')
            g_string_append_printf(writer->text, "\\%c", *p);
        else if ((guchar)*p < 0x20)
            g_string_append_printf(writer->text, "\\u%04x", (guchar)*p);
        else
            g_string_append_c(writer->text, *p);
    }
    g_string_append_c(writer->text, '"');
}

static void
append_size(Writer *writer, const char *key, guint64 value, const char *separator)
{
    append_key(writer, key);
    writer->separator = separator;
    g_string_append_printf(writer->text, "%" G_GUINT64_FORMAT, value);
}

/* Exact: whole nanoseconds as milliseconds, trailing zeros dropped, at least one decimal. */
static void
append_time(Writer *writer, const char *key, gint64 time_ns, const char *separator)
{
    gint64 whole = time_ns / RP_NS_PER_MS;
    gint64 fraction = time_ns % RP_NS_PER_MS;
    int decimals = 6;

    while (decimals > 1 && fraction % 10 == 0) {
        fraction /= 10;
        decimals--;
    }
    append_key(writer, key);
    writer->separator = separator;
    g_string_append_printf(writer->text, "%" G_GINT64_FORMAT ".%0*" G_GINT64_FORMAT, whole,
                           decimals, fraction);
}

/*
 * The shortest digits d, `d × unit` of which reads back as @value, into @digits as %e prints them.
 * Returns what reads back: @value, or the double next to it that can be written.
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
    /* no double times @unit is @value; what is written now reads back as its neighbour */
    return back;
}

/* A positive rate in units of @unit; nothing if it is unknown. */
static void
append_rate(Writer *writer, const char *key, double value, double unit, const char *separator)
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
    for (const char *p = digits; *p; p++) {
        if (*p != '.')
            g_string_append_c(mantissa, *p);
    }
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

    append_key(writer, key);
    writer->separator = separator;
    g_string_append(writer->text, mantissa->str);
    if (exponent != 0)
        g_string_append_printf(writer->text, "e%d", exponent);
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
           x.backward_spread_ns == y.backward_spread_ns && x.parameter_bytes == y.parameter_bytes &&
           x.gradient_bytes == y.gradient_bytes && x.input_bytes == y.input_bytes &&
           x.output_bytes == y.output_bytes &&
           x.forward_workspace_bytes == y.forward_workspace_bytes &&
           x.backward_workspace_bytes == y.backward_workspace_bytes &&
           x.activation_bytes == y.activation_bytes && x.tied_bytes == y.tied_bytes;
}

static void
append_layer_times(Writer *writer, const RpLayer *layer)
{
    append_time(writer, "forward_ms", layer->forward_ns, ", ");
    append_time(writer, "backward_ms", layer->backward_ns, ", ");
    if (layer->recompute_ns != layer->forward_ns)
        append_time(writer, "recompute_ms", layer->recompute_ns, ", ");
    if (rp_layer_saving_ns(layer) > 0)
        append_time(writer, "recompute_last_ms", layer->recompute_last_ns, ", ");
    if (layer->weight_gradient_ns != rp_profile_default_weight_gradient_ns(layer->backward_ns))
        append_time(writer, "weight_gradient_ms", layer->weight_gradient_ns, ", ");
    if (layer->forward_spread_ns != 0)
        append_time(writer, "forward_spread_ms", layer->forward_spread_ns, ", ");
    if (layer->recompute_spread_ns != 0)
        append_time(writer, "recompute_spread_ms", layer->recompute_spread_ns, ", ");
    if (layer->backward_spread_ns != 0)
        append_time(writer, "backward_spread_ms", layer->backward_spread_ns, ", ");
}

/* Sizes of 0 are left out unless a profile with sizes needs them to say so. */
static void
append_layer_sizes(Writer *writer, const RpLayer *layer, gboolean has_sizes)
{
    const struct {
        const char *key;
        guint64 bytes;
        gboolean always;
    } sizes[] = {
        {"parameter_bytes", layer->parameter_bytes, has_sizes},
        {"gradient_bytes", layer->gradient_bytes, has_sizes},
        {"input_bytes", layer->input_bytes, has_sizes},
        {"output_bytes", layer->output_bytes, has_sizes},
        {"forward_workspace_bytes", layer->forward_workspace_bytes, FALSE},
        {"backward_workspace_bytes", layer->backward_workspace_bytes, FALSE},
        {"activation_bytes", layer->activation_bytes, FALSE},
        {"tied_bytes", layer->tied_bytes, FALSE},
    };

    for (guint i = 0; i < G_N_ELEMENTS(sizes); i++) {
        if (i == 0 || i == 4)
            writer->separator = ",\n      ";
        if (sizes[i].bytes != 0 || sizes[i].always)
            append_size(writer, sizes[i].key, sizes[i].bytes, ", ");
    }
    if (layer->n_tensors == 0)
        return;
    writer->separator = ",\n      ";
    append_key(writer, "tensor_bytes");
    for (guint i = 0; i < layer->n_tensors; i++)
        g_string_append_printf(writer->text, "%s%" G_GUINT64_FORMAT, i == 0 ? "[" : ", ",
                               layer->tensor_bytes[i]);
    g_string_append_c(writer->text, ']');
}

static void
append_layers(Writer *writer, const RpProfile *profile)
{
    append_key(writer, "layers");
    g_string_append(writer->text, "[");
    for (guint i = 0, count = 1; i < profile->n_layers; i += count) {
        const RpLayer *layer = &profile->layers[i];

        for (count = 1; layer->kind == RP_LAYER_BLOCK && i + count < profile->n_layers; count++) {
            if (!layers_equal(layer, &profile->layers[i + count]))
                break;
        }
        g_string_append(writer->text, i == 0 ? "\n    { " : ",\n    { ");
        writer->separator = "";
        append_string(writer, "kind", rp_layer_kind_name(layer->kind), ", ");
        append_string(writer, "name", layer->name, ", ");
        if (count > 1)
            append_size(writer, "count", count, ", ");
        writer->separator = ",\n      ";
        append_layer_times(writer, layer);
        append_layer_sizes(writer, layer, profile->has_sizes);
        g_string_append(writer->text, " }");
    }
    g_string_append(writer->text, "\n  ]");
}

static void
append_links(Writer *writer, const RpLinks *links)
{
    append_key(writer, "links");
    g_string_append(writer->text, "{ ");
    writer->separator = "";
    append_time(writer, "hop_ms", links->hop_ns, ", ");
    if (links->copy_latency_ns != 0)
        append_time(writer, "copy_latency_ms", links->copy_latency_ns, ", ");
    append_rate(writer, "h2d_gb_per_s", links->h2d_bytes_per_s, BYTES_PER_GB, ", ");
    append_rate(writer, "d2h_gb_per_s", links->d2h_bytes_per_s, BYTES_PER_GB, ", ");
    append_rate(writer, "both_gb_per_s", links->both_bytes_per_s, BYTES_PER_GB, ", ");
    append_rate(writer, "all_h2d_gb_per_s", links->all_h2d_bytes_per_s, BYTES_PER_GB, ", ");
    append_rate(writer, "all_d2h_gb_per_s", links->all_d2h_bytes_per_s, BYTES_PER_GB, ", ");
    append_rate(writer, "all_both_gb_per_s", links->all_both_bytes_per_s, BYTES_PER_GB, ", ");
    append_rate(writer, "host_gb_per_s", links->host_bytes_per_s, BYTES_PER_GB, ", ");
    append_rate(writer, "root_gb_per_s", links->root_bytes_per_s, BYTES_PER_GB, ", ");
    if (links->gpus_per_root != 0)
        append_size(writer, "gpus_per_root", links->gpus_per_root, ", ");
    append_rate(writer, "beside_optimizer_gb_per_s", links->beside_optimizer_bytes_per_s,
                BYTES_PER_GB, ", ");
    g_string_append(writer->text, " }");
}

char *
rp_profile_to_json(const RpProfile *profile)
{
    const char *next = ",\n  ";

    g_return_val_if_fail(profile, NULL);

    Writer writer = {g_string_new("{\n  "), ""};
    append_string(&writer, "format", RP_PROFILE_FORMAT, next);
    append_string(&writer, "model", profile->model, next);
    append_string(&writer, "device", profile->device, next);
    if (profile->gpus != 0)
        append_size(&writer, "gpus", profile->gpus, next);
    if (profile->processors != 0)
        append_size(&writer, "processors", profile->processors, next);
    append_string(&writer, "dtype", profile->dtype, next);
    append_string(&writer, "accumulate", profile->accumulate, next);
    append_string(&writer, "attention", profile->attention, next);
    if (profile->head_chunk != 0)
        append_size(&writer, "head_chunk", profile->head_chunk, next);
    append_string(&writer, "source", profile->source, next);
    append_string(&writer, "origin", profile->origin, next);
    append_string(&writer, "date", profile->date, next);
    if (profile->sequences != 0 || profile->tokens_per_sequence != 0) {
        append_key(&writer, "micro_batch");
        g_string_append(writer.text, "{ ");
        writer.separator = "";
        if (profile->sequences != 0)
            append_size(&writer, "sequences", profile->sequences, ", ");
        if (profile->tokens_per_sequence != 0)
            append_size(&writer, "tokens_per_sequence", profile->tokens_per_sequence, "");
        g_string_append(writer.text, " }");
        writer.separator = next;
    }
    append_links(&writer, &profile->links);
    writer.separator = next;
    if (profile->gpu_memory_bytes != 0)
        append_size(&writer, "gpu_memory_bytes", profile->gpu_memory_bytes, next);
    if (profile->optimizer_parameters_per_s > 0) {
        append_key(&writer, "optimizer");
        g_string_append(writer.text, "{ ");
        writer.separator = "";
        append_rate(&writer, "parameters_per_s", profile->optimizer_parameters_per_s, 1, ", ");
        append_rate(&writer, "norm_parameters_per_s", profile->norm_parameters_per_s, 1, ", ");
        append_rate(&writer, "sum_parameters_per_s", profile->sum_parameters_per_s, 1, ", ");
        append_rate(&writer, "gradient_copy_parameters_per_s",
                    profile->gradient_copy_parameters_per_s, 1, ", ");
        append_rate(&writer, "parameter_copy_parameters_per_s",
                    profile->parameter_copy_parameters_per_s, 1, "");
        g_string_append(writer.text, " }");
        writer.separator = next;
    }
    append_layers(&writer, profile);
    g_string_append(writer.text, "\n}\n");
    return g_string_free(writer.text, FALSE);
}

static gboolean
fail(const char *path, const char *reason, GError **error)
{
    g_autofree char *shown = rp_display_name(path);

    g_set_error(error, RP_PROFILE_ERROR, RP_PROFILE_ERROR_IO, "%s: cannot write: %s", shown,
                reason);
    return FALSE;
}

/* Pipes and devices cannot be renamed over. */
static gboolean
write_through(const char *path, const char *text, GError **error)
{
    FILE *file = fopen(path, "we");

    if (!file)
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
    g_return_val_if_fail(!error || !*error, FALSE);

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
        resolved ? resolved : path, text, -1,
        G_FILE_SET_CONTENTS_CONSISTENT | G_FILE_SET_CONTENTS_DURABLE, 0666, &write_error);
    free(resolved);
    return good || fail(path, write_error->message, error);
}
