/* A run's files: metrics and run file; its plan is made anew from the latter. */
#include <stdio.h>
#include <string.h>

#include "cli/page/page.h"
#include "cli/progress.h"
#include "core/base/file.h"

#define MAX_RUN_FILE_BYTES (1 << 20)

static void
say(gpointer user_data, const char *kind, const char *text)
{
    g_autofree char *line = g_strdelimit(g_strdup(text), "\r\n", ' ');

    rp_progress_clear();
    fprintf(stderr, "roundpipe report: %s: %s\n", kind, line);
}

static void
show_progress(gpointer user_data, const char *what, guint64 done, guint64 total)
{
    RpProgress *progress = user_data;

    if (total == 0) {
        rp_progress_clear();
        progress->what = NULL;
    } else if (progress->what == NULL) {
        *progress = rp_progress_begin(what, 0);
    }
    rp_progress_show(progress, done, total);
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
    const RpRunEvents events = {.say = say, .progress = show_progress, .user_data = &progress};
    const gboolean made =
        rp_train_job_prepare(&page->job, page->run_file, NULL, TRUE, &events, error);

    page->job.events = NULL;
    rp_progress_clear();
    return made;
}

gboolean
rp_cli_page_read_run(RpCliPage *page, GError **error)
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
