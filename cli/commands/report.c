#include "cli/cli.h"

#include <string.h>

#include "cli/page/page.h"
#include "cli/reports/reports.h"
#include "core/base/quote.h"

#define DEFAULT_OUTPUT "report.html"
#define DEFAULT_TOP 10

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

/* The options of the page and those of the lists exclude each other. */
static gboolean
check_late(const RpArgs *args, char *const *words, GError **error)
{
    const char *lists = args->scale_word != NULL   ? "--scale"
                        : args->picture != NULL    ? "--picture"
                        : args->top != DEFAULT_TOP ? "--top"
                                                   : NULL;

    if (!args->late)
        return lists == NULL ||
               rp_cli_refuse(error, "%s: expected --late, whose lists it is for", lists);
    if (args->output != NULL)
        return rp_cli_refuse(error, "--output: expected no --late, which writes no page");
    return g_strv_length((char **)words) == 2 ||
           rp_cli_refuse(error, "--late: expected PREDICTED MEASURED, two traces");
}

static gboolean
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
    const char *output = args->output != NULL ? args->output : DEFAULT_OUTPUT;
    g_auto(RpCliPage) sources = {0};
    guint64 tasks = 0;

    if (!check_late(args, words, error))
        return FALSE;
    if (args->late)
        return rp_cli_late(args, words, report, error);
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
     "all; with --late those that both have)"},
    {"late scale:auto top"},
    {"picture", "with --late: draw both timelines, device by device (.png, .svg, .pdf or .tex)"},
    {RP_USE_PICTURE},
    {0},
};

static const RpArgs defaults = {.top = DEFAULT_TOP};

const RpCommand rp_command_report = {
    .name = "report",
    .summary = "one page of a run: timeline, bubble, memory, loss; what was late",
    .words = "FILE...",
    .help =
        "Writes one HTML file of a run that any browser shows, without network. FILE is an output\n"
        "directory of roundpipe train, a run file, or a trace; a predicted and a measured trace\n"
        "stand above each other. With --late it lists the tasks of two traces that differ most.\n"
        "Traces are written by simulate, replay and train with --trace.\n\n"
        "Example:\n"
        "  roundpipe report runs/first -o first.html\n"
        "  roundpipe report predicted.json measured.json\n"
        "  roundpipe report --late predicted.json measured.json",
    .uses = uses,
    .defaults = &defaults,
    .run = run,
};
