/* Sentences that a run says, metrics.jsonl, and means over steady steps. */
#include "run/train/train.h"

#include <errno.h>
#include <glib/gstdio.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/quote.h"
#include "core/json/json-record.h"
#include "core/json/json-write.h"

/* Steps from an empty pipeline until it is full again. */
#define FILLING_STEPS 2

struct _RpTrainMetrics {
    FILE *file; /* %NULL: not written */
    gboolean tensorboard;
    RpTensorboard *board; /* %NULL: likewise */
    char *path;
    GError *error;
    gboolean scaled;
    gboolean balanced;
    RpStepReport last;
    gboolean reported;
    guint together;  /* steps of a group */
    guint64 n_steps; /* that were reported */
    guint filling;   /* steps that still do not count */
    double pause_s;  /* before the next step; 0: none */
    const RpRunEvents *events;

    /* sums over steady steps */
    guint64 steady_steps;
    double steady_ns;
    double idle_ns; /* bubble ratio x time */
    double steady_tokens;
    guint64 clipped_steps;
};

/* Returns: whether @text is one */
static gboolean
parse_line(const char *text, RpTrainLine *line)
{
#define NUMBER(key)                                                                                \
    {                                                                                              \
#key, rp_json_read_number, G_STRUCT_OFFSET(RpTrainLine, key),                              \
            .null_is_absent = TRUE, .min = -G_MAXDOUBLE, .max = G_MAXDOUBLE                        \
    }
    static const RpJsonField fields[] = {NUMBER(step),
                                         NUMBER(loss),
                                         NUMBER(learning_rate),
                                         NUMBER(grad_norm),
                                         NUMBER(tokens),
                                         NUMBER(step_ms),
                                         NUMBER(bubble_ratio),
                                         NUMBER(eval_loss),
                                         NUMBER(eval_runtime),
                                         {"eval_rewards/accuracies", rp_json_read_number,
                                          G_STRUCT_OFFSET(RpTrainLine, eval_accuracy),
                                          .null_is_absent = TRUE, .max = 1},
                                         {NULL, rp_json_read_ignored}};
    RpJsonPull pull;

    *line = (RpTrainLine){NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    return rp_json_pull_init(&pull, "", text, strlen(text), 0, 0, NULL) &&
           rp_json_read_record(&pull, fields, G_N_ELEMENTS(fields), line, NULL) &&
           rp_json_pull_end(&pull) && isfinite(line->step);
}

GArray *
rp_train_metrics_read(const char *path, GError **error)
{
    g_autofree char *text = NULL;

    if (!g_file_get_contents(path, &text, NULL, error))
        return NULL;
    GArray *lines = g_array_new(FALSE, FALSE, sizeof(RpTrainLine));
    for (char *at = text, *end; (end = strchr(at, '\n')) != NULL; at = end + 1) {
        RpTrainLine line;
        *end = '\0';
        if (parse_line(at, &line))
            g_array_append_val(lines, line);
    }
    return lines;
}

/* The lines that the file keeps: those up to step @keep_steps. */
static char *
kept_lines(const char *path, guint64 keep_steps, GError **error)
{
    g_autofree char *text = NULL;
    g_autoptr(GString) kept = g_string_new(NULL);
    GError *local = NULL;

    if (keep_steps > 0 && !g_file_get_contents(path, &text, NULL, &local)) {
        if (!g_error_matches(local, G_FILE_ERROR, G_FILE_ERROR_NOENT))
            return rp_null(rp_propagate_error(error, local));
        g_clear_error(&local);
    }
    for (char *line = text; line != NULL && *line != '\0';) {
        char *end = strchr(line, '\n');
        RpTrainLine point;

        if (end == NULL)
            break; /* torn by whatever ended the process */
        *end = '\0';
        if (parse_line(line, &point) && point.step >= (isnan(point.eval_runtime) ? 1 : 0) &&
            point.step <= (double)keep_steps)
            g_string_append_printf(kept, "%s\n", line);
        line = end + 1;
    }
    return g_string_free(g_steal_pointer(&kept), FALSE);
}

void
rp_run_say(const RpRunEvents *events, const char *kind, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *text = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    RP_RUN_TELL(events, say, kind, text);
}

/* The pipeline is empty. Means begin with a group of steps again. */
static void
fill(RpTrainMetrics *metrics)
{
    metrics->filling = FILLING_STEPS;
    while ((metrics->n_steps + metrics->filling) % metrics->together != 0)
        metrics->filling++;
}

RpTrainMetrics *
rp_train_metrics_new(gboolean scaled, gboolean balanced, gboolean tensorboard, guint together,
                     const RpRunEvents *events)
{
    RpTrainMetrics *metrics = g_new0(RpTrainMetrics, 1);

    metrics->scaled = scaled;
    metrics->balanced = balanced;
    metrics->tensorboard = tensorboard;
    metrics->events = events;
    metrics->together = together;
    fill(metrics);
    return metrics;
}

static gboolean
open_board(RpTrainMetrics *metrics, guint64 next_step, GError **error)
{
    g_autofree char *directory = g_path_get_dirname(metrics->path);

    g_clear_pointer(&metrics->board, rp_tensorboard_free);
    metrics->board = rp_tensorboard_new(directory, next_step, error);
    return metrics->board != NULL;
}

gboolean
rp_train_metrics_open(RpTrainMetrics *metrics, const char *path, guint64 keep_steps, GError **error)
{
    g_autofree char *kept = kept_lines(path, keep_steps, error);

    if (kept == NULL || !g_file_set_contents(path, kept, -1, error))
        return FALSE;
    if (metrics->file != NULL)
        (void)fclose(metrics->file); /* it was removed */
    g_free(metrics->path);
    metrics->path = g_strdup(path);
    metrics->file = g_fopen(path, "ae");
    if (metrics->file != NULL)
        return !metrics->tensorboard || open_board(metrics, keep_steps + 1, error);
    return rp_file_fail(error, errno, "cannot write \"%s\"", path);
}

void
rp_train_metrics_free(RpTrainMetrics *metrics)
{
    if (metrics == NULL)
        return;
    if (metrics->file != NULL)
        (void)fclose(metrics->file);
    rp_tensorboard_free(metrics->board);
    g_clear_error(&metrics->error);
    g_free(metrics->path);
    g_free(metrics);
}

/* Whole numbers without a fraction. */
static void
add_number(RpJsonWriter *json, const char *key, double value)
{
    if (value == floor(value) && fabs(value) < 1e15)
        rp_json_int(json, key, (gint64)value);
    else
        rp_json_number(json, key, value);
}

/* The object that was begun ends as a line. */
static void
finish_line(RpTrainMetrics *metrics, RpJsonWriter *json)
{
    rp_json_end(json);
    g_string_append_c(rp_json_writer_text(json), '\n');
    if ((fputs(rp_json_writer_text(json)->str, metrics->file) < 0 || fflush(metrics->file) != 0) &&
        metrics->error == NULL)
        (void)rp_file_fail(&metrics->error, errno, "cannot write \"%s\"", metrics->path);
}

/* Metrics of a preference, as far as there are some, by TRL's names. @prefix: of each name */
static void
add_preference(RpJsonWriter *json, const char *prefix, const double *values)
{
    for (guint i = 0; i < RP_N_PREFERENCE_METRICS; i++) {
        g_autofree char *name = g_strconcat(prefix, rp_preference_metric_name(i), NULL);

        if (isfinite(values[i]))
            add_number(json, name, values[i]);
    }
}

/* @values, and the metrics of a preference behind them. Nothing without a board. */
static void
add_to_board(RpTrainMetrics *metrics, guint64 step, const RpTensorboardValue *values, guint n,
             const char *prefix, const double *preference)
{
    g_autoptr(GArray) all = g_array_new(FALSE, FALSE, sizeof(RpTensorboardValue));
    g_autoptr(GStringChunk) names = g_string_chunk_new(256);

    if (metrics->board == NULL)
        return;
    g_array_append_vals(all, values, n);
    for (guint i = 0; i < RP_N_PREFERENCE_METRICS; i++) {
        g_autofree char *name = g_strconcat(prefix, rp_preference_metric_name(i), NULL);
        const RpTensorboardValue value = {g_string_chunk_insert(names, name), preference[i]};

        if (isfinite(preference[i]))
            g_array_append_val(all, value);
    }
    values = (const RpTensorboardValue *)(const void *)all->data;
    if (rp_tensorboard_add(metrics->board, step, values, all->len) || metrics->error != NULL)
        return;
    (void)rp_file_fail(&metrics->error, errno, "cannot write TensorBoard's file beside \"%s\"",
                       metrics->path);
}

void
rp_train_metrics_add_evaluation(RpTrainMetrics *metrics, guint64 step,
                                const RpEvaluation *evaluation)
{
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_COMPACT);

    fill(metrics);
    if (metrics->file == NULL)
        return;
    rp_json_object(json, NULL);
    rp_json_uint(json, "step", step);
    add_number(json, "eval_loss", evaluation->loss);
    if (evaluation->n_pairs == 0)
        add_number(json, "eval_perplexity", exp(evaluation->loss));
    add_preference(json, "eval_", evaluation->metrics);
    rp_json_uint(json, "eval_samples", evaluation->n_samples);
    rp_json_uint(json, "eval_tokens", evaluation->n_tokens);
    add_number(json, "eval_runtime", rp_json_round((double)evaluation->ns / 1e9, 6));
    add_number(json, "eval_bubble_ratio", rp_json_round(evaluation->bubble_ratio, 9));
    finish_line(metrics, json);
    const RpTensorboardValue values[] = {
        {"eval/loss", evaluation->loss},
        {"eval/runtime", (double)evaluation->ns / 1e9},
        {"eval/bubble_ratio", evaluation->bubble_ratio},
        {"eval/perplexity", exp(evaluation->loss)},
    };
    add_to_board(metrics, step, values, G_N_ELEMENTS(values) - (evaluation->n_pairs > 0), "eval/",
                 evaluation->metrics);
}

static void
write_line(RpTrainMetrics *metrics, const RpStepReport *report)
{
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_COMPACT);

    rp_json_object(json, NULL);
    rp_json_uint(json, "step", report->step);
    add_number(json, "loss", report->loss);
    if (metrics->balanced)
        add_number(json, "aux_loss", report->aux_loss);
    add_preference(json, "", report->metrics);
    add_number(json, "learning_rate", report->learning_rate);
    add_number(json, "grad_norm", report->grad_norm);
    rp_json_uint(json, "tokens", report->n_tokens);
    add_number(json, "step_ms", (double)report->step_ns / 1e6);
    if (metrics->pause_s > 0)
        add_number(json, "checkpoint_ms", rp_json_round(1000 * metrics->pause_s, 3));
    metrics->pause_s = 0;
    add_number(json, "bubble_ratio", rp_json_round(report->bubble_ratio, 9));
    if (metrics->scaled) {
        add_number(json, "loss_scale", report->loss_scale);
        rp_json_bool(json, "skipped", report->skipped);
    }
    finish_line(metrics, json);
    const RpTensorboardValue values[] = {
        {"train/loss", report->loss},
        {"train/learning_rate", report->learning_rate},
        {"train/grad_norm", report->grad_norm},
        {"train/tokens_per_second",
         (double)report->n_tokens * 1e9 / (double)MAX(1, report->step_ns)},
        {"train/bubble_ratio", report->bubble_ratio},
        {"train/aux_loss", report->aux_loss},
    };
    add_to_board(metrics, report->step, values, G_N_ELEMENTS(values) - !metrics->balanced, "train/",
                 report->metrics);
}

void
rp_train_metrics_add(gpointer user_data, const RpStepReport *report)
{
    RpTrainMetrics *metrics = user_data;

    const gboolean clipped = metrics->reported && !metrics->last.held;

    metrics->last = *report;
    metrics->reported = TRUE;
    metrics->n_steps++;
    if (metrics->filling > 0) {
        metrics->filling--;
    } else {
        metrics->steady_steps++;
        metrics->steady_ns += (double)report->step_ns;
        metrics->idle_ns += report->bubble_ratio * (double)report->step_ns;
        metrics->steady_tokens += (double)report->n_tokens;
        metrics->clipped_steps += clipped;
    }
    if (metrics->file != NULL)
        write_line(metrics, report);
    RP_RUN_TELL(metrics->events, stepped, report,
                metrics->steady_steps > 0 ? metrics->steady_ns / (double)metrics->steady_steps
                                          : (double)report->step_ns);
}

void
rp_train_metrics_pause(RpTrainMetrics *metrics, double seconds)
{
    metrics->pause_s = seconds;
    fill(metrics);
}

const RpStepReport *
rp_train_metrics_last(const RpTrainMetrics *metrics)
{
    return metrics->reported ? &metrics->last : NULL;
}

RpTrainMeans
rp_train_metrics_means(const RpTrainMetrics *metrics)
{
    double steps = (double)MAX(1, metrics->steady_steps);

    return (RpTrainMeans){
        .steps = metrics->steady_steps,
        .step_ns = metrics->steady_ns / steps,
        .bubble_ratio = metrics->steady_ns > 0 ? metrics->idle_ns / metrics->steady_ns : 0,
        .tokens = metrics->steady_tokens / steps,
        .clipped_steps = metrics->clipped_steps,
    };
}

const GError *
rp_train_metrics_error(const RpTrainMetrics *metrics)
{
    return metrics->error;
}

/* ---- events for TensorBoard ---- */

/*
 * Numbers of steps for TensorBoard: an event file, `events.out.tfevents.SECONDS.HOST`.
 *
 *   file    record, record, ...
 *   record  length u64 | masked CRC-32C of it u32 | data | masked CRC-32C of the data u32
 *   data    a protocol buffer, an Event: wall_time 1, step 2, and one of
 *             file_version 3, session_log 7 {status 1}, summary 5 {value 1 {tag 1, simple_value 2}}
 *   masked  c rotated right by 15 bits, + 0xa282ead8
 *
 * Numbers are little-endian. Source: tensorflow/core/util/event.proto, lib/hash/crc32c.h
 */

#define POLYNOMIAL 0x82f63b78u /* reflected */
#define MASK 0xa282ead8u

/* Keys of fields: number << 3 | wire type (0: varint, 1: 8 bytes, 2: length and bytes, 5: 4 bytes). */
enum {
    EVENT_WALL_TIME = 1 << 3 | 1,
    EVENT_STEP = 2 << 3,
    EVENT_FILE_VERSION = 3 << 3 | 2,
    EVENT_SUMMARY = 5 << 3 | 2,
    EVENT_SESSION_LOG = 7 << 3 | 2,
    SUMMARY_VALUE = 1 << 3 | 2,
    VALUE_TAG = 1 << 3 | 2,
    VALUE_SIMPLE = 2 << 3 | 5,
    SESSION_STATUS = 1 << 3
};
#define SESSION_START 1

struct _RpTensorboard {
    FILE *file;
};

guint32
rp_tensorboard_crc(const void *bytes, gsize n)
{
    const guint8 *at = bytes;
    guint32 crc = 0xffffffffu;

    for (gsize i = 0; i < n; i++) {
        crc ^= at[i];
        for (guint bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
    }
    return ~crc;
}

static guint32
masked_crc(const void *bytes, gsize n)
{
    const guint32 crc = rp_tensorboard_crc(bytes, n);

    return (crc >> 15 | crc << 17) + MASK;
}

/* ---- protocol buffers ---- */

static void
append_varint(GByteArray *bytes, guint64 value)
{
    do {
        const guint8 byte = (guint8)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));

        g_byte_array_append(bytes, &byte, 1);
        value >>= 7;
    } while (value > 0);
}

static void
append_bytes(GByteArray *bytes, guint key, const void *data, gsize n)
{
    append_varint(bytes, key);
    append_varint(bytes, n);
    g_byte_array_append(bytes, data, (guint)n);
}

static GByteArray *
new_event(guint64 step)
{
    GByteArray *event = g_byte_array_new();
    const double wall_time = (double)g_get_real_time() / G_USEC_PER_SEC;
    guint64 bits;

    memcpy(&bits, &wall_time, sizeof bits);
    bits = GUINT64_TO_LE(bits);
    append_varint(event, EVENT_WALL_TIME);
    g_byte_array_append(event, (const guint8 *)&bits, sizeof bits);
    append_varint(event, EVENT_STEP);
    append_varint(event, step);
    return event;
}

static void
append_value(GByteArray *summary, const RpTensorboardValue *value)
{
    g_autoptr(GByteArray) bytes = g_byte_array_new();
    const float narrow = (float)value->value;
    guint32 bits;

    memcpy(&bits, &narrow, sizeof bits);
    bits = GUINT32_TO_LE(bits);
    append_bytes(bytes, VALUE_TAG, value->tag, strlen(value->tag));
    append_varint(bytes, VALUE_SIMPLE);
    g_byte_array_append(bytes, (const guint8 *)&bits, sizeof bits);
    append_bytes(summary, SUMMARY_VALUE, bytes->data, bytes->len);
}

/* ---- records ---- */

/* Takes @event over. */
static gboolean
write_event(RpTensorboard *board, GByteArray *event)
{
    g_autoptr(GByteArray) data = event;
    const guint64 length = GUINT64_TO_LE((guint64)data->len);
    const guint32 head = GUINT32_TO_LE(masked_crc(&length, sizeof length));
    const guint32 tail = GUINT32_TO_LE(masked_crc(data->data, data->len));

    return fwrite(&length, sizeof length, 1, board->file) == 1 &&
           fwrite(&head, sizeof head, 1, board->file) == 1 &&
           fwrite(data->data, data->len, 1, board->file) == 1 &&
           fwrite(&tail, sizeof tail, 1, board->file) == 1 && fflush(board->file) == 0;
}

static gboolean
write_start(RpTensorboard *board, guint64 next_step)
{
    static const char version[] = "brain.Event:2";
    static const guint8 start[] = {SESSION_STATUS, SESSION_START};
    GByteArray *event = new_event(0);

    append_bytes(event, EVENT_FILE_VERSION, version, strlen(version));
    if (!write_event(board, event) || next_step <= 1)
        return next_step <= 1;
    event = new_event(next_step);
    append_bytes(event, EVENT_SESSION_LOG, start, sizeof start);
    return write_event(board, event);
}

RpTensorboard *
rp_tensorboard_new(const char *directory, guint64 next_step, GError **error)
{
    const gint64 seconds = g_get_real_time() / G_USEC_PER_SEC;
    g_autofree char *name = g_strdup_printf("events.out.tfevents.%010" G_GINT64_FORMAT ".%s",
                                            seconds, g_get_host_name());
    g_autofree char *path = g_build_filename(directory, name, NULL);
    g_autoptr(RpTensorboard) board = g_new0(RpTensorboard, 1);

    board->file = g_fopen(path, "abe");
    if (board->file != NULL && write_start(board, next_step))
        return g_steal_pointer(&board);
    return rp_null(rp_file_fail(error, errno, "cannot write \"%s\"", path));
}

void
rp_tensorboard_free(RpTensorboard *board)
{
    if (board == NULL)
        return;
    if (board->file != NULL)
        (void)fclose(board->file);
    g_free(board);
}

gboolean
rp_tensorboard_add(RpTensorboard *board, guint64 step, const RpTensorboardValue *values, guint n)
{
    g_autoptr(GByteArray) summary = g_byte_array_new();
    GByteArray *event = new_event(step);

    for (guint i = 0; i < n; i++)
        append_value(summary, &values[i]);
    append_bytes(event, EVENT_SUMMARY, summary->data, summary->len);
    return write_event(board, event);
}
