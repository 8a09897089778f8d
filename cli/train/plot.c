/* roundpipe train: the loss curve, and the timeline. */
#include "cli/train/train.h"

#include <math.h>
#include <string.h>

#include "cli/reports/picture.h"
#include "plots/charts/charts.h"

/* In which the pipeline fills, as measured means have it. */
#define FILLING_STEPS 2
/* A run of fewer steps is drawn whole. */
#define FEWEST_STEPS 4

/* The steps of a metrics.jsonl, or its evaluations. (transfer full) */
static GArray *
read_points(const char *path, gboolean evaluations, GError **error)
{
    g_autoptr(GArray) lines = rp_train_metrics_read(path, error);
    g_autoptr(GArray) points = g_array_new(FALSE, FALSE, sizeof(RpLossPoint));

    if (lines == NULL)
        return NULL;
    for (guint i = 0; i < lines->len; i++) {
        const RpTrainLine *line = &g_array_index(lines, RpTrainLine, i);
        const RpLossPoint point = {line->step, evaluations ? line->eval_loss : line->loss,
                                   line->learning_rate};

        if (isnan(line->eval_runtime) != evaluations)
            g_array_append_val(points, point);
    }
    return g_steal_pointer(&points);
}

gboolean
rp_train_plot_loss(const RpTrainJob *job, const char *metrics, const char *path, GError **error)
{
    const RpRunSpec *run = job->run;
    const RpPlanOptions *options = &job->request.options;
    g_autoptr(GArray) points = read_points(metrics, FALSE, error);
    g_autoptr(GArray) evaluations = points != NULL ? read_points(metrics, TRUE, error) : NULL;
    g_autoptr(RpFigure) figure = NULL;
    g_autofree char *model = g_path_get_basename(run->model);
    g_autofree char *data = g_path_get_basename(run->data);
    g_autofree char *title = g_strdup_printf("Training loss: %s on %s", model, data);
    g_autofree char *subtitle = g_strdup_printf(
        "%s%s on %s, %" G_GUINT64_FORMAT " parameters in %s, %" G_GINT64_FORMAT
        " sequences of %" G_GINT64_FORMAT " tokens a step",
        options->schedule->title, options->async ? " (asynchronous)" : "", run->devices,
        rp_weights_elements(job->weights), rp_dtype_name(job->network.dtype),
        run->gradient_accumulation_steps * run->micro_batches * run->micro_batch_size,
        run->sequence_length);

    if (evaluations == NULL)
        return FALSE;
    figure = rp_loss_figure(
        "training_loss", title, subtitle, (const RpLossPoint *)(const void *)points->data,
        points->len, (const RpLossPoint *)(const void *)evaluations->data, evaluations->len, error);
    return figure != NULL && rp_cli_picture_write(figure, path, error);
}

/* As many steps as the prediction's picture has, behind the first two, in which the pipeline fills. All of a
 * run of few. @shown: (inout): has the iterations of @trace then */
static void
measured_window(const RpTrace *trace, RpRequest *shown, RpPictureWindow *window)
{
    const guint usual = MAX(1, shown->window.end - shown->window.first);
    const RpTraceRecord *records = rp_trace_records(trace);
    guint32 first = G_MAXUINT32, last = 0;
    gint64 unused_ns;

    for (gsize i = 0; i < rp_trace_n_records(trace); i++) {
        first = MIN(first, records[i].iteration);
        last = MAX(last, records[i].iteration);
    }
    if (first > last || last - first < FEWEST_STEPS)
        return;
    window->first = first + FILLING_STEPS;
    window->end = MIN(last, window->first + usual);
    if (!rp_report_iteration_span(trace, window->first, &window->from_ns, &unused_ns) ||
        !rp_report_iteration_span(trace, window->end, &window->end_ns, &unused_ns))
        *window = (RpPictureWindow){0};
    shown->iterations = last + 1;
}

gboolean
rp_train_plot_timeline(const RpTrainJob *job, const RpTrace *trace, const char *path,
                       GError **error)
{
    g_autofree char *model = g_path_get_basename(job->run->model);
    RpPictureWindow window = {0};
    const gboolean predicted = rp_trace_origin(trace) == RP_TRACE_PREDICTED;
    RpRequest shown = job->request; /* borrowed */

    if (!predicted)
        measured_window(trace, &shown, &window);
    else if (!rp_cli_picture_window(&job->request, trace, NULL, &window, error))
        return FALSE;
    g_autoptr(RpFigure) figure = rp_cli_timeline(&shown, model, trace, &window, NULL);

    return rp_cli_picture_write(figure, path, error);
}
