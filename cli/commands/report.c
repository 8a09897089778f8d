#include "cli/cli.h"

#include <string.h>

#include "cli/page/page.h"
#include "cli/reports/reports.h"
#include "core/base/quote.h"

#define DEFAULT_OUTPUT "report.html"

static const RpTrace *
shown_trace(const RpCliPage *sources, guint i)
{
    return sources->diff != NULL ? rp_trace_diff_trace(sources->diff, (RpTraceSide)i)
                                 : sources->traces[i];
}

static void
add_traces(const RpCliPage *sources, RpPage *page)
{
    RpPageTrace traces[RP_CLI_PAGE_TRACES] = {0};
    const RpTaskPair *pairs = NULL;
    gsize n_pairs = 0;

    for (guint i = 0; i < sources->n; i++)
        traces[i] = (RpPageTrace){
            .name = sources->n > 1 ? rp_diff_label(sources->diff, (RpTraceSide)i)
                    : rp_trace_origin(sources->traces[i]) == RP_TRACE_MEASURED ? "measured"
                                                                               : "predicted",
            .file = sources->files[i],
            .trace = shown_trace(sources, i),
            .plan = sources->plans[i],
            .memory = sources->memory[i],
            .steady = sources->steady.makespan_ns > 0 ? &sources->steady : NULL,
        };
    if (sources->diff != NULL) {
        pairs = sources->n > 1 ? rp_trace_diff_pairs(sources->diff, &n_pairs) : NULL;
        rp_page_say(page, "Iterations %u to %u%s; times from their first action.",
                    rp_trace_diff_first_iteration(sources->diff),
                    rp_trace_diff_end_iteration(sources->diff) - 1,
                    sources->n > 1 ? ", which both traces have" : "");
    }
    rp_page_add_traces(page, traces, sources->n, pairs, n_pairs);
}

static char *
make_page(const RpCliPage *sources, char *const *words, const RpArgs *args, const char *output)
{
    g_autofree char *whole =
        g_canonicalize_filename(sources->run_word != NULL ? sources->run_word : words[0], NULL);
    g_autofree char *name = g_path_get_basename(whole);
    g_autofree char *shown = rp_display_name(name);
    g_autofree char *title = g_strdup_printf("%s: a run of roundpipe", shown);
    g_autoptr(RpPage) page = rp_page_new(title);

    rp_cli_page_add_steps(sources, page);
    if (sources->n > 0)
        add_traces(sources, page);
    rp_cli_page_add_plan(sources, page);
    rp_cli_page_add_commands(sources, words, args->range, output, page);
    return rp_page_finish(page);
}

static gboolean
write_page(GOutputStream *stream, gpointer html, GError **error)
{
    return g_output_stream_write_all(stream, html, strlen(html), NULL, NULL, error);
}

static gboolean
check_files(char *const *words, const char *output, GError **error)
{
    for (char *const *word = words; *word != NULL; word++) {
        const RpCliFile files[] = {{"FILE", *word, RP_CLI_READ},
                                   {"--output", output, RP_CLI_WRITTEN}};

        if (!rp_cli_check_files(files, G_N_ELEMENTS(files), error))
            return FALSE;
    }
    return TRUE;
}

static gboolean
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
    const char *output = args->output != NULL ? args->output : DEFAULT_OUTPUT;
    g_auto(RpCliPage) sources = {0};
    guint64 tasks = 0;

    if (!check_files(words, output, error) ||
        !rp_cli_page_read(&sources, words, args->range, error))
        return FALSE;
    g_autofree char *html = make_page(&sources, words, args, output);

    if (!rp_cli_write_file(output, write_page, html, error))
        return FALSE;
    for (guint i = 0; i < sources.n; i++)
        tasks += rp_trace_n_records(shown_trace(&sources, i));
    rp_report_text(report, "report", output, "report");
    rp_report_count(report, "tasks", (gint64)tasks, "tasks");
    rp_report_bytes(report, "bytes", strlen(html), "size");
    return TRUE;
}

static const RpUse uses[] = {
    {"output", "the page (default: " DEFAULT_OUTPUT ")", "FILE.html"},
    {"iterations:range",
     "show iterations A to B - 1 (default: the steady state of a run that is only planned, else "
     "all)"},
    {0},
};

const RpCommand rp_command_report = {
    .name = "report",
    .summary = "one page of a run: timeline, bubble, memory, loss",
    .words = "FILE...",
    .help =
        "Writes one HTML file of a run that any browser shows, without network. FILE is an output\n"
        "directory of roundpipe train, a run file, or a trace; a predicted and a measured trace\n"
        "stand above each other.\n\n"
        "Example:\n"
        "  roundpipe report runs/first -o first.html\n"
        "  roundpipe report predicted.json measured.json",
    .uses = uses,
    .run = run,
};
