/* metrics.jsonl, and means over steady steps. */
#include "run/train/train.h"

#include <errno.h>
#include <glib/gstdio.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/json/json-record.h"
#include "core/json/json-write.h"

/* Steps from an empty pipeline until it is full again. */
#define FILLING_STEPS 2

struct _RpTrainMetrics {
    FILE *file; /* %NULL: not written */
    char *path;
    GError *error;
    gboolean scaled;
    RpStepReport last;
    gboolean reported;
    guint filling;  /* steps that still do not count */
    double pause_s; /* before the next step; 0: none */
    const RpRunEvents *events;

    /* sums over steady steps */
    guint64 steady_steps;
    double steady_ns;
    double idle_ns; /* bubble ratio x time */
    double steady_tokens;
};

gboolean
rp_train_metrics_parse(const char *line, RpLossPoint *point)
{
#define NUMBER(key)                                                                                \
    {                                                                                              \
#key, rp_json_read_number, G_STRUCT_OFFSET(RpLossPoint, key),                              \
            .null_is_absent = TRUE, .min = -G_MAXDOUBLE, .max = G_MAXDOUBLE                        \
    }
    static const RpJsonField fields[] = {
        NUMBER(step), NUMBER(loss), NUMBER(learning_rate), {NULL, rp_json_read_ignored}};
    RpJsonPull pull;

    *point = (RpLossPoint){NAN, NAN, NAN};
    return rp_json_pull_init(&pull, "", line, strlen(line), 0, 0, NULL) &&
           rp_json_read_record(&pull, fields, G_N_ELEMENTS(fields), point, NULL) &&
           rp_json_pull_end(&pull) && isfinite(point->step);
}

/* What the file is to begin with: its lines up to step @keep_steps. */
static char *
kept_lines(const char *path, guint64 keep_steps, GError **error)
{
    g_autofree char *text = NULL;
    g_autoptr(GString) kept = g_string_new(NULL);
    GError *local = NULL;

    if (keep_steps > 0 && !g_file_get_contents(path, &text, NULL, &local)) {
        if (!g_error_matches(local, G_FILE_ERROR, G_FILE_ERROR_NOENT)) {
            g_propagate_error(error, local);
            return NULL;
        }
        g_clear_error(&local);
    }
    for (char *line = text; line != NULL && *line != '\0';) {
        char *end = strchr(line, '\n');
        RpLossPoint point;

        if (end == NULL)
            break; /* torn by whatever ended the process */
        *end = '\0';
        if (rp_train_metrics_parse(line, &point) && point.step >= 1 &&
            point.step <= (double)keep_steps)
            g_string_append_printf(kept, "%s\n", line);
        line = end + 1;
    }
    return g_string_free(g_steal_pointer(&kept), FALSE);
}

RpTrainMetrics *
rp_train_metrics_new(gboolean scaled, const RpRunEvents *events)
{
    RpTrainMetrics *metrics = g_new0(RpTrainMetrics, 1);

    metrics->scaled = scaled;
    metrics->events = events;
    metrics->filling = FILLING_STEPS;
    return metrics;
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
        return TRUE;
    g_set_error(error, G_FILE_ERROR, (gint)g_file_error_from_errno(errno),
                "cannot write \"%s\": %s", path, g_strerror(errno));
    return FALSE;
}

void
rp_train_metrics_free(RpTrainMetrics *metrics)
{
    if (metrics == NULL)
        return;
    if (metrics->file != NULL)
        (void)fclose(metrics->file);
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
        g_set_error(&metrics->error, G_FILE_ERROR, (gint)g_file_error_from_errno(errno),
                    "cannot write \"%s\": %s", metrics->path, g_strerror(errno));
}

void
rp_train_metrics_add_evaluation(RpTrainMetrics *metrics, guint64 step,
                                const RpEvaluation *evaluation)
{
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_COMPACT);

    metrics->filling = FILLING_STEPS;
    if (metrics->file == NULL)
        return;
    rp_json_object(json, NULL);
    rp_json_uint(json, "step", step);
    add_number(json, "eval_loss", evaluation->loss);
    add_number(json, "eval_perplexity", exp(evaluation->loss));
    rp_json_uint(json, "eval_samples", evaluation->n_samples);
    rp_json_uint(json, "eval_tokens", evaluation->n_tokens);
    add_number(json, "eval_runtime", rp_json_round((double)evaluation->ns / 1e9, 6));
    add_number(json, "eval_bubble_ratio", rp_json_round(evaluation->bubble_ratio, 9));
    finish_line(metrics, json);
}

static void
write_line(RpTrainMetrics *metrics, const RpStepReport *report)
{
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_COMPACT);

    rp_json_object(json, NULL);
    rp_json_uint(json, "step", report->step);
    add_number(json, "loss", report->loss);
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
}

void
rp_train_metrics_add(gpointer user_data, const RpStepReport *report)
{
    RpTrainMetrics *metrics = user_data;

    metrics->last = *report;
    metrics->reported = TRUE;
    if (metrics->filling > 0) {
        metrics->filling--;
    } else {
        metrics->steady_steps++;
        metrics->steady_ns += (double)report->step_ns;
        metrics->idle_ns += report->bubble_ratio * (double)report->step_ns;
        metrics->steady_tokens += (double)report->n_tokens;
    }
    if (metrics->file != NULL)
        write_line(metrics, report);
    metrics->events->stepped(metrics->events->user_data, report,
                             metrics->steady_steps > 0
                                 ? metrics->steady_ns / (double)metrics->steady_steps
                                 : (double)report->step_ns);
}

void
rp_train_metrics_pause(RpTrainMetrics *metrics, double seconds)
{
    metrics->pause_s = seconds;
    metrics->filling = FILLING_STEPS;
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
    };
}

const GError *
rp_train_metrics_error(const RpTrainMetrics *metrics)
{
    return metrics->error;
}
