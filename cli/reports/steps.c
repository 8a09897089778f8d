#include "cli/reports/reports.h"

#include <math.h>

#include "core/base/quote.h"
#include "plots/charts/charts.h"

void
rp_cli_steps_clear(RpCliSteps *steps)
{
    g_clear_pointer(&steps->title, g_free);
    g_clear_pointer(&steps->lines, g_array_unref);
}

gboolean
rp_cli_is_evaluation(const RpTrainLine *line)
{
    return isnan(line->eval_runtime) == 0;
}

double
rp_cli_tokens_per_s(const RpTrainLine *line)
{
    return line->step_ms > 0 ? line->tokens * 1000 / line->step_ms : NAN;
}

gboolean
rp_cli_steps_read(const char *word, RpCliSteps *steps, GError **error)
{
    const gboolean directory = g_file_test(word, G_FILE_TEST_IS_DIR);
    g_autofree char *path =
        directory ? g_build_filename(word, RP_CLI_METRICS, NULL) : g_strdup(word);
    g_autofree char *whole = g_canonicalize_filename(word, NULL);
    g_autofree char *named = directory ? g_strdup(whole) : g_path_get_dirname(whole);
    g_autoptr(GArray) lines = NULL;

    if (!g_file_test(path, G_FILE_TEST_EXISTS)) {
        g_autofree char *shown = rp_display_name(word);

        return rp_fail(error, G_FILE_ERROR, G_FILE_ERROR_NOENT,
                       "%s: expected the output directory of a run, or its " RP_CLI_METRICS
                       ", found %s",
                       shown, directory ? "a directory without " RP_CLI_METRICS : "nothing");
    }
    if (!rp_train_check_regular("", path, G_MAXUINT64, error) ||
        (lines = rp_train_metrics_read(path, error)) == NULL)
        return FALSE;
    if (lines->len == 0)
        return rp_fail(error, G_FILE_ERROR, G_FILE_ERROR_INVAL,
                       "%s: expected lines of metrics, as roundpipe train writes them, found none",
                       path);
    *steps = (RpCliSteps){g_path_get_basename(named), g_steal_pointer(&lines)};
    return TRUE;
}

RpRunPoint
rp_cli_point_of(const RpTrainLine *line)
{
    return (RpRunPoint){.step = line->step,
                        .loss = line->loss,
                        .learning_rate = line->learning_rate,
                        .grad_norm = line->grad_norm,
                        .tokens_per_s = rp_cli_tokens_per_s(line),
                        .bubble_ratio = line->bubble_ratio,
                        .eval_loss = line->eval_loss};
}

gboolean
rp_cli_steps_draw(const GArray *runs, const char *title, const char *path, gboolean logarithmic,
                  const RpFigureStyle *style, GError **error)
{
    g_autofree RpRunCurve *curves = g_new0(RpRunCurve, runs->len);
    g_autoptr(GPtrArray) points = g_ptr_array_new_with_free_func(g_free);

    for (guint r = 0; r < runs->len; r++) {
        const RpCliSteps *run = &g_array_index(runs, RpCliSteps, r);
        RpRunPoint *own = g_new(RpRunPoint, run->lines->len);

        g_ptr_array_add(points, own);
        for (guint i = 0; i < run->lines->len; i++)
            own[i] = rp_cli_point_of(&g_array_index(run->lines, RpTrainLine, i));
        curves[r] = (RpRunCurve){.title = run->title, .points = own, .n = run->lines->len};
    }
    g_autoptr(RpFigure) figure =
        rp_runs_figure("runs", title, curves, runs->len, logarithmic, style, error);

    return figure != NULL && rp_cli_picture_write(figure, path, error);
}
