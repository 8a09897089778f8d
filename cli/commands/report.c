#include "cli/cli.h"

#include <string.h>

#include "cli/reports/diff.h"
#include "core/base/quote.h"
#include "core/formats/export.h"
#include "plots/page/page.h"

#define DEFAULT_OUTPUT "report.html"
#define MOST_TRACES RP_N_TRACE_SIDES

typedef struct {
    char *output;
} ReportArgs;

/* What the page is made of. */
typedef struct {
    guint n;
    char *files[MOST_TRACES]; /* to be shown */
    RpTrace *traces[MOST_TRACES];
    GPtrArray *memory[MOST_TRACES]; /* (nullable) (element-type GArray<RpMemoryStep>) */
    RpTraceDiff *diff;              /* of two */
} Sources;

static void
sources_clear(Sources *sources)
{
    for (guint i = 0; i < MOST_TRACES; i++) {
        g_free(sources->files[i]);
        rp_trace_free(sources->traces[i]);
        g_clear_pointer(&sources->memory[i], g_ptr_array_unref);
    }
    g_clear_pointer(&sources->diff, rp_trace_diff_free);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Sources, sources_clear)

/* ---- what is read ---- */

static gboolean
read_trace(const char *path, Sources *sources, GError **error)
{
    const guint n = sources->n;

    if (n == MOST_TRACES)
        return rp_cli_refuse(
            error, "FILE: expected at most %d traces, a predicted and a measured one", MOST_TRACES);
    sources->traces[n] = rp_trace_load_chrome_memory(path, &sources->memory[n], error);
    if (sources->traces[n] == NULL)
        return FALSE;
    sources->files[n] = rp_display_name(path);
    sources->n++;
    if (rp_trace_n_records(sources->traces[n]) > 0)
        return TRUE;
    g_set_error(error, RP_EXPORT_ERROR, RP_EXPORT_ERROR_TRACE,
                "%s: expected a trace with tasks, found none", sources->files[n]);
    return FALSE;
}

#define SWAP(a, b)                                                                                 \
    do {                                                                                           \
        gpointer held = a;                                                                         \
        a = b;                                                                                     \
        b = held;                                                                                  \
    } while (0)

/* Times of the compared part begin with its first action; so do those of memory. */
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

/* Two traces must be of one run; the predicted one stands above. */
static gboolean
match(Sources *sources, GError **error)
{
    const RpTraceDiffOptions options = {.scale = 1};

    if (sources->n < 2)
        return TRUE;
    if (rp_trace_origin(sources->traces[0]) == RP_TRACE_MEASURED &&
        rp_trace_origin(sources->traces[1]) == RP_TRACE_PREDICTED) {
        SWAP(sources->traces[0], sources->traces[1]);
        SWAP(sources->files[0], sources->files[1]);
        SWAP(sources->memory[0], sources->memory[1]);
    }
    sources->diff = rp_trace_diff_new((const RpTrace *const *)sources->traces,
                                      (const char *const *)sources->files, &options, error);
    if (sources->diff == NULL) {
        g_prefix_error(error, "not two traces of one run: ");
        return FALSE;
    }
    for (guint i = 0; i < sources->n; i++)
        shift_memory(sources->memory[i], sources->traces[i],
                     rp_trace_diff_trace(sources->diff, (RpTraceSide)i));
    return TRUE;
}

/* ---- what is written ---- */

static void
add_traces(const Sources *sources, RpPage *page)
{
    RpPageTrace traces[MOST_TRACES] = {0};
    const RpTaskPair *pairs = NULL;
    gsize n_pairs = 0;

    for (guint i = 0; i < sources->n; i++) {
        const RpTrace *whole = sources->traces[i];
        const gboolean alone = sources->diff == NULL;

        traces[i] = (RpPageTrace){
            .name = !alone ? rp_diff_label(sources->diff, (RpTraceSide)i)
                    : rp_trace_origin(whole) == RP_TRACE_MEASURED ? "measured"
                                                                  : "predicted",
            .file = sources->files[i],
            .trace = alone ? whole : rp_trace_diff_trace(sources->diff, (RpTraceSide)i),
            .memory = sources->memory[i],
        };
    }
    if (sources->diff != NULL) {
        pairs = rp_trace_diff_pairs(sources->diff, &n_pairs);
        rp_page_say(page,
                    "Iterations %u to %u, which both traces have; times from their first action.",
                    rp_trace_diff_first_iteration(sources->diff),
                    rp_trace_diff_end_iteration(sources->diff) - 1);
    }
    rp_page_add_traces(page, traces, sources->n, pairs, n_pairs);
}

/* As a shell takes it. */
static void
add_command(RpPage *page, char *const *words, const char *output)
{
    g_autoptr(GString) command = g_string_new("roundpipe report");
    g_autofree char *file = g_shell_quote(output);

    for (char *const *word = words; *word != NULL; word++) {
        g_autofree char *quoted = strpbrk(*word, " \t\n'\"\\$`*?[]&;|<>()#!~") != NULL
                                      ? g_shell_quote(*word)
                                      : g_strdup(*word);

        g_string_append_printf(command, " %s", quoted);
    }
    g_string_append_printf(command, " -o %s", file);
    rp_page_head(page, "Commands");
    rp_page_quote(page, NULL, command->str);
}

static char *
make_page(const Sources *sources, char *const *words, const char *output)
{
    g_autofree char *name = g_path_get_basename(words[0]);
    g_autofree char *shown = rp_display_name(name);
    g_autofree char *title = g_strdup_printf("%s: a run of roundpipe", shown);
    g_autoptr(RpPage) page = rp_page_new(title);

    if (sources->n > 0)
        add_traces(sources, page);
    add_command(page, words, output);
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
run(gpointer user_args, char **words, RpReport *report, GError **error)
{
    const ReportArgs *args = user_args;
    const char *output = args->output != NULL ? args->output : DEFAULT_OUTPUT;
    g_auto(Sources) sources = {0};

    if (!check_files(words, output, error))
        return FALSE;
    for (char **word = words; *word != NULL; word++)
        if (!read_trace(*word, &sources, error))
            return FALSE;
    if (!match(&sources, error))
        return FALSE;
    g_autofree char *html = make_page(&sources, words, output);
    guint64 tasks = 0;

    if (!rp_cli_write_file(output, write_page, html, error))
        return FALSE;
    for (guint i = 0; i < sources.n; i++)
        tasks += rp_trace_n_records(sources.traces[i]);
    rp_report_text(report, "report", output, "report");
    rp_report_count(report, "tasks", (gint64)tasks, "tasks");
    rp_report_bytes(report, "bytes", strlen(html), "size");
    return TRUE;
}

static const GOptionEntry options[] = {
    {"output", 'o', RP_FILE(ReportArgs, output), "the page (default: " DEFAULT_OUTPUT ")",
     "FILE.html"},
    {0},
};

const RpCommand rp_command_report = {
    .name = "report",
    .summary = "one page of a run: timeline, bubble, memory, loss",
    .words = "FILE...",
    .help =
        "Writes one HTML file of a run that any browser shows, without network: the timeline of\n"
        "a trace, or of a predicted above a measured one, with zoom and every task's times.\n\n"
        "Example:\n"
        "  roundpipe simulate qwen3-1.7b --schedule roundpipe --gpus 8 --micro-batches 16 \\\n"
        "    --fidelity full --trace predicted.json\n"
        "  roundpipe report predicted.json -o report.html",
    .options = options,
    .args_size = sizeof(ReportArgs),
    .run = run,
};
