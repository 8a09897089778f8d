#include "cli/page/page.h"

#include <string.h>

#include "core/base/quote.h"
#include "core/formats/export.h"

#define NOT_ONE_RUN "not two traces of one run: "

void
rp_cli_page_clear(RpCliPage *page)
{
    for (guint i = 0; i < RP_CLI_PAGE_TRACES; i++) {
        g_free(page->files[i]);
        rp_trace_free(page->traces[i]);
        g_clear_pointer(&page->memory[i], g_ptr_array_unref);
    }
    g_clear_pointer(&page->diff, rp_trace_diff_free);
    g_free(page->run_path);
    g_free(page->run_text);
    g_free(page->problem);
    rp_cli_steps_clear(&page->steps);
    rp_train_job_clear(&page->job);
    g_clear_pointer(&page->run_file, rp_run_spec_free);
}

static gboolean
read_trace(const char *path, RpCliPage *page, GError **error)
{
    const guint n = page->n;

    if (n == RP_CLI_PAGE_TRACES)
        return rp_cli_refuse(error,
                             "FILE: expected at most %d traces, a predicted and a measured one",
                             RP_CLI_PAGE_TRACES);
    page->traces[n] = rp_trace_load_chrome_memory(path, &page->memory[n], error);
    if (page->traces[n] == NULL)
        return FALSE;
    page->files[n] = rp_display_name(path);
    page->n++;
    if (rp_trace_n_records(page->traces[n]) > 0)
        return TRUE;
    g_set_error(error, RP_EXPORT_ERROR, RP_EXPORT_ERROR_TRACE,
                "%s: expected a trace with tasks, found none", page->files[n]);
    return FALSE;
}

/* A directory, its metrics, or a run file; all else is a trace. */
static gboolean
is_run(const char *word)
{
    return g_file_test(word, G_FILE_TEST_IS_DIR) || g_str_has_suffix(word, ".jsonl") ||
           g_str_has_suffix(word, ".yaml") || g_str_has_suffix(word, ".yml");
}

/* ---- the run's own traces ---- */

/* Finds the trace that train wrote, if none was named: by its key, or as trace.json beside its metrics. */
static gboolean
find_measured(RpCliPage *page, GError **error)
{
    g_autofree char *beside = g_build_filename(page->run_word, "trace.json", NULL);
    const char *named = page->run_file != NULL ? page->run_file->trace : NULL;
    const char *path = named != NULL && g_file_test(named, G_FILE_TEST_EXISTS) ? named : beside;

    if (page->n > 0 || page->steps.lines == NULL || !g_file_test(path, G_FILE_TEST_EXISTS))
        return TRUE;
    return read_trace(path, page, error);
}

/* Refuses a predicted trace that is not of the run's plan. */
static gboolean
check_predicted(const RpCliPage *page, guint i, GError **error)
{
    const RpTraceDiffOptions options = {.scale = 1};
    const RpTrace *const traces[] = {page->job.trace, page->traces[i]};
    const char *const names[] = {page->run_path, page->files[i]};
    g_autoptr(RpTraceDiff) diff = rp_trace_diff_new(traces, names, &options, error);

    if (diff == NULL)
        g_prefix_error(error, NOT_ONE_RUN);
    return diff != NULL;
}

static gboolean
add_predicted(RpCliPage *page, GError **error)
{
    const guint n = page->n;

    for (guint i = 0; i < n && page->job.trace != NULL; i++)
        if (rp_trace_origin(page->traces[i]) == RP_TRACE_PREDICTED)
            return check_predicted(page, i, error);
    if (page->job.trace == NULL || n == RP_CLI_PAGE_TRACES)
        return TRUE;
    g_autofree char *shown = rp_display_name(page->run_path);

    page->files[n] = g_strdup_printf("planned from %s", shown);
    page->traces[n] = g_steal_pointer(&page->job.trace);
    page->plans[n] = page->job.plan;
    page->memory[n] = g_ptr_array_new_with_free_func((GDestroyNotify)g_array_unref);
    for (guint32 arena = 0; arena <= rp_trace_gpus(page->traces[n]); arena++)
        g_ptr_array_add(page->memory[n],
                        rp_report_memory_curve(page->job.plan, page->traces[n], arena));
    page->n++;
    return TRUE;
}

/* ---- what is shown of them ---- */

#define SWAP(a, b)                                                                                 \
    do {                                                                                           \
        gconstpointer held = a;                                                                    \
        a = b;                                                                                     \
        b = (gpointer)held;                                                                        \
    } while (0)

static void
put_predicted_first(RpCliPage *page)
{
    if (page->n < 2 || rp_trace_origin(page->traces[0]) == RP_TRACE_PREDICTED ||
        rp_trace_origin(page->traces[1]) == RP_TRACE_MEASURED)
        return;
    SWAP(page->traces[0], page->traces[1]);
    SWAP(page->files[0], page->files[1]);
    SWAP(page->memory[0], page->memory[1]);
    SWAP(page->plans[0], page->plans[1]);
}

/* Times of a part begin with its first action; so do those of memory. */
static void
shift_memory(GPtrArray *memory, const RpTrace *whole, const RpTrace *part)
{
    const RpTraceRecord *first = rp_trace_records(part);
    const RpTraceRecord *record = rp_trace_records(whole);

    while (record->task != first->task)
        record++;
    for (guint arena = 0; arena < memory->len; arena++) {
        GArray *steps = g_ptr_array_index(memory, arena);

        for (guint i = 0; i < steps->len; i++)
            g_array_index(steps, RpMemoryStep, i).time_ns -= record->start_ns - first->start_ns;
    }
}

/* Chooses iterations: as requested; the steady state of a single asynchronous prediction; else all. */
static gboolean
choose_part(RpCliPage *page, const char *iterations, RpTraceDiffOptions *options, GError **error)
{
    guint64 first = 0, end = 0;

    *options = (RpTraceDiffOptions){.scale = 1};
    if (iterations != NULL && !rp_cli_parse_range("iterations", iterations, &first, &end, error))
        return FALSE;
    options->first_iteration = (guint32)first;
    options->end_iteration = (guint32)end;
    if (iterations == NULL && page->n == 1 && page->plans[0] != NULL && page->job.request.steady) {
        options->first_iteration = page->job.request.window.first;
        options->end_iteration = page->job.request.window.end;
        page->steady = rp_report_steady_bubble(page->traces[0], &page->job.steady,
                                               !page->job.request.options.async);
    }
    return TRUE;
}

/* Two traces must be of one run; the predicted one stands above. */
static gboolean
match(RpCliPage *page, const char *iterations, GError **error)
{
    RpTraceDiffOptions options;

    put_predicted_first(page);
    if (!choose_part(page, iterations, &options, error))
        return FALSE;
    if (page->n == 0 || (page->n == 1 && options.end_iteration == 0))
        return TRUE;
    const guint second = page->n - 1;
    const RpTrace *const traces[] = {page->traces[0], page->traces[second]};
    const char *const names[] = {page->files[0], page->files[second]};

    page->diff = rp_trace_diff_new(traces, names, &options, error);
    if (page->diff == NULL) {
        g_prefix_error(error, "%s", iterations != NULL ? "--iterations: " : NOT_ONE_RUN);
        return FALSE;
    }
    for (guint i = 0; i < page->n; i++)
        if (page->memory[i] != NULL)
            shift_memory(page->memory[i], page->traces[i],
                         rp_trace_diff_trace(page->diff, (RpTraceSide)i));
    return TRUE;
}

gboolean
rp_cli_page_read(RpCliPage *page, char *const *words, const char *iterations, GError **error)
{
    for (char *const *word = words; *word != NULL; word++) {
        if (!is_run(*word) && !read_trace(*word, page, error))
            return FALSE;
        if (is_run(*word) && page->run_word != NULL)
            return rp_cli_refuse(error, "FILE: expected one run, found %s and %s", page->run_word,
                                 *word);
        if (is_run(*word))
            page->run_word = *word;
    }
    if (page->run_word != NULL &&
        (!rp_cli_page_read_run(page, error) || !find_measured(page, error)))
        return FALSE;
    return add_predicted(page, error) && match(page, iterations, error);
}
