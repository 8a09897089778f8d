#include "cli/page/page.h"

#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/formats/export.h"

/* A run's files: metrics and run file; its plan is made anew from the latter. */

#define MAX_RUN_FILE_BYTES (1 << 20)

static void
say(gpointer user_data, const char *kind, const char *text)
{
    rp_cli_note(kind, "%s", text);
}

/* The run as it was resolved, with the layer times that it was planned with. */
static gboolean
read_run_file(RpCliPage *page, GError **error)
{
    g_autofree char *directory = g_path_get_dirname(page->run_path);
    g_autofree char *profile = g_build_filename(directory, RP_TRAIN_PROFILE, NULL);
    g_autofree char *set = g_strconcat("profile=", profile, NULL);
    const char *const sets[] = {set, NULL};
    gsize length;

    if (!rp_train_check_regular("", page->run_path, MAX_RUN_FILE_BYTES, error))
        return FALSE;
    page->run_text = rp_file_read(page->run_path, MAX_RUN_FILE_BYTES, &length, error);
    if (page->run_text == NULL)
        return FALSE;
    page->run_file = rp_run_file_load(
        page->run_path,
        page->steps.lines != NULL && g_file_test(profile, G_FILE_TEST_EXISTS) ? sets : NULL, error);
    return page->run_file != NULL;
}

static gboolean
make_plan(RpCliPage *page, GError **error)
{
    RpProgress progress = {0};
    const RpRunEvents events = {.say = say, .progress = rp_progress_event, .user_data = &progress};
    const gboolean made =
        rp_train_job_prepare(&page->job, page->run_file, NULL, TRUE, &events, error);

    page->job.events = NULL;
    rp_progress_clear();
    return made;
}

/* Reads what @page->run_word names, plans it anew and simulates it. Of a directory's run the plan may be
 * missing: page->problem. Errors: those of the files */
static gboolean
read_run(RpCliPage *page, GError **error)
{
    const char *word = page->run_word;
    const gboolean directory = g_file_test(word, G_FILE_TEST_IS_DIR);
    const gboolean metrics = directory || g_str_has_suffix(word, ".jsonl");
    GError *problem = NULL;

    if (metrics && !rp_cli_steps_read(word, &page->steps, error))
        return FALSE;
    g_autofree char *above = directory ? g_strdup(word) : g_path_get_dirname(word);

    page->run_path = metrics ? g_build_filename(above, "run.yaml", NULL) : g_strdup(word);
    if (metrics && !g_file_test(page->run_path, G_FILE_TEST_EXISTS))
        return TRUE;
    if (read_run_file(page, &problem) && make_plan(page, &problem))
        return TRUE;
    if (!metrics) {
        g_propagate_error(error, problem);
        return FALSE;
    }
    /* what was measured is worth showing without */
    page->problem = g_strdup(problem->message);
    say(NULL, "note", problem->message);
    g_error_free(problem);
    g_clear_pointer(&page->job.trace, rp_trace_free);
    return TRUE;
}

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
    return rp_fail(error, RP_EXPORT_ERROR, RP_EXPORT_ERROR_TRACE,
                   "%s: expected a trace with tasks, found none", page->files[n]);
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
    if (page->run_word != NULL && (!read_run(page, error) || !find_measured(page, error)))
        return FALSE;
    return add_predicted(page, error) && match(page, iterations, error);
}
