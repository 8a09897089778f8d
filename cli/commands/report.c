#include "cli/cli.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "cli/reports/reports.h"
#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/base/units.h"
#include "core/formats/export.h"
#include "core/schedules/schedule.h"
#include "core/trace/diff.h"
#include "plots/figure.h"
#include "plots/page/page.h"

/* The sources of a page. Zero-initialise. */
typedef struct {
    guint n;                       /* traces */
    char *files[RP_N_TRACE_SIDES]; /* to be shown */
    RpTrace *traces[RP_N_TRACE_SIDES];
    const RpPlan *plans[RP_N_TRACE_SIDES]; /* (nullable): of the job */
    /* (nullable) (element-type GArray<RpMemoryStep>): of each device, then of the host */
    GPtrArray *memory[RP_N_TRACE_SIDES];
    RpBubble steady;   /* of the iterations that are shown; makespan_ns 0: they are not steady */
    RpTraceDiff *diff; /* of two, or of one of which a part is shown */
    /* of a run's directory or a run file */
    const char *run_word; /* %NULL: there is none */
    char *run_path;       /* its run file */
    char *run_text;
    RpCliSteps steps; /* lines are %NULL: none are known */
    RpRunSpec *run_file;
    RpTrainJob job; /* its plan is %NULL: not known, because of */
    char *problem;
} Sources;

static void
sources_clear(Sources *page)
{
    for (guint i = 0; i < RP_N_TRACE_SIDES; i++) {
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

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Sources, sources_clear)

/* ---- the files of a run and its prediction ---- */

/* A run's files: metrics and run file; its plan is made anew from the latter. */

#define MAX_RUN_FILE_BYTES (1 << 20)

static void
say(gpointer user_data, const char *kind, const char *text)
{
    rp_cli_note(kind, "%s", text);
}

/* The run as it was resolved, with the layer times that it was planned with. */
static gboolean
read_run_file(Sources *page, GError **error)
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
make_plan(Sources *page, GError **error)
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
read_run(Sources *page, GError **error)
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
    if (!metrics)
        return rp_propagate_error(error, problem);
    /* what was measured is worth showing without */
    page->problem = g_strdup(problem->message);
    say(NULL, "note", problem->message);
    g_error_free(problem);
    g_clear_pointer(&page->job.trace, rp_trace_free);
    return TRUE;
}

#define NOT_ONE_RUN "not two traces of one run: "

static gboolean
read_trace(const char *path, Sources *page, GError **error)
{
    const guint n = page->n;

    if (n == RP_N_TRACE_SIDES)
        return rp_cli_refuse(error,
                             "FILE: expected at most %d traces, a predicted and a measured one",
                             RP_N_TRACE_SIDES);
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

/* One trace of all recordings from @words on. */
static gboolean
read_recordings(char *const *words, Sources *page, const RpArgs *args, GError **error)
{
    page->traces[page->n] = rp_cli_recordings_trace(args, words, error);
    if (page->traces[page->n] == NULL)
        return FALSE;
    page->files[page->n++] = rp_cli_recordings_name(words);
    return TRUE;
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
find_measured(Sources *page, GError **error)
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
check_predicted(const Sources *page, guint i, GError **error)
{
    const RpTraceDiffOptions options = {.scale = 1};
    const RpTrace *const traces[] = {page->job.trace, page->traces[i]};
    const char *const names[] = {page->run_path, page->files[i]};
    g_autoptr(RpTraceDiff) diff = rp_trace_diff_new(traces, names, &options, error);

    return diff != NULL || rp_prefix_error(error, NOT_ONE_RUN);
}

static gboolean
add_predicted(Sources *page, GError **error)
{
    const guint n = page->n;

    for (guint i = 0; i < n && page->job.trace != NULL; i++)
        if (rp_trace_origin(page->traces[i]) == RP_TRACE_PREDICTED)
            return check_predicted(page, i, error);
    if (page->job.trace == NULL || n == RP_N_TRACE_SIDES)
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
put_predicted_first(Sources *page)
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
choose_part(Sources *page, const char *iterations, RpTraceDiffOptions *options, GError **error)
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
match(Sources *page, const char *iterations, GError **error)
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
    if (page->diff == NULL)
        return rp_prefix_error(error, "%s", iterations != NULL ? "--iterations: " : NOT_ONE_RUN);
    for (guint i = 0; i < page->n; i++)
        if (page->memory[i] != NULL)
            shift_memory(page->memory[i], page->traces[i],
                         rp_trace_diff_trace(page->diff, (RpTraceSide)i));
    return TRUE;
}

static gboolean
read_sources(Sources *page, char *const *words, const RpArgs *args, GError **error)
{
    for (char *const *word = words; *word != NULL; word++) {
        if (rp_cli_is_recording(*word)) {
            if (!read_recordings(word, page, args, error))
                return FALSE;
            break; /* all that follow are of the same run */
        }
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
    return add_predicted(page, error) && match(page, args->range, error);
}

/* ---- what the page says ---- */

/* The text of a page about a run: its steps, its plan, its commands. */

/* Steps that begin a run are not steady (docs/train.md). */
#define UNSTEADY_STEPS 2

/* A row of a table, its cells freed. */
static void
add_row(RpPage *page, const char *title, char *first, char *second)
{
    const char *cells[] = {title, first, second};

    rp_page_row(page, cells, second != NULL ? 3 : 2);
    g_free(first);
    g_free(second);
}

static char *
text_number(double value, guint digits)
{
    return isfinite(value) ? g_strdup_printf("%.*f", (int)digits, value) : g_strdup("-");
}

/* ---- steps ---- */

/* Summary of one number over all lines: first, last and least, and the mean of those that are steady. */
typedef struct {
    double first, last, least, sum;
    guint n;
} Summary;

typedef struct {
    Summary loss, evaluation, step_ms, bubble, tokens_per_s;
    double steps;
} Summaries;

static void
add_to(Summary *summary, double value, gboolean steady)
{
    if (!isfinite(value))
        return;
    if (isnan(summary->last))
        summary->first = summary->least = value;
    summary->last = value;
    summary->least = MIN(summary->least, value);
    if (!steady)
        return;
    summary->sum += value;
    summary->n++;
}

static Summaries
summarize(const GArray *lines)
{
    const Summary none = {NAN, NAN, NAN, 0, 0};
    Summaries all = {none, none, none, none, none, 0};
    guint seen = 0;

    for (guint i = 0; i < lines->len; i++) {
        const RpTrainLine *line = &g_array_index(lines, RpTrainLine, i);
        const gboolean steady = seen >= UNSTEADY_STEPS;

        all.steps = MAX(all.steps, line->step);
        if (rp_cli_is_evaluation(line)) {
            add_to(&all.evaluation, line->eval_loss, FALSE);
            continue;
        }
        seen++;
        add_to(&all.loss, line->loss, FALSE);
        add_to(&all.step_ms, line->step_ms, steady);
        add_to(&all.bubble, line->bubble_ratio, steady);
        add_to(&all.tokens_per_s, rp_cli_tokens_per_s(line), steady);
    }
    return all;
}

static double
mean(const Summary *summary)
{
    return summary->n > 0 ? summary->sum / summary->n : NAN;
}

static char *
text_ratio(double ratio)
{
    return isfinite(ratio) ? rp_text_percent(ratio) : g_strdup("-");
}

/* Beside the prediction, where there is one. */
static void
add_speed(const Sources *sources, const Summaries *all, RpPage *page)
{
    const RpTrainJob *job = &sources->job;
    const gboolean planned = job->plan != NULL;
    const double step_ms = planned ? rp_ms_from_ns(job->steady.iteration_ns) : NAN;
    const double tokens = planned ? job->useful * (double)rp_train_job_step_tokens(job) : NAN;

    rp_page_begin_table(page, NULL);
    rp_page_row(
        page, (const char *const[]){"", "predicted", "measured, mean of steps from the third"}, 3);
    add_row(page, "a step, ms", text_number(step_ms, 3), text_number(mean(&all->step_ms), 3));
    add_row(page, "bubble ratio", text_ratio(planned ? job->steady.ratio : NAN),
            text_ratio(mean(&all->bubble)));
    add_row(page, "tokens/s", text_number(tokens * 1000 / step_ms, 0),
            text_number(mean(&all->tokens_per_s), 0));
    rp_page_end_table(page);
}

/* Curves, those of numbers that the run has. */
static void
add_curves(const GArray *lines, RpPage *page)
{
    static const struct {
        const char *title;
        gsize offset; /* in RpRunPoint */
        gboolean of_evaluations;
    } curves[] = {
        {"loss", offsetof(RpRunPoint, loss)},
        {"validation loss", offsetof(RpRunPoint, eval_loss), TRUE},
        {"tokens/s", offsetof(RpRunPoint, tokens_per_s)},
        {"bubble ratio", offsetof(RpRunPoint, bubble_ratio)},
        {"gradient norm", offsetof(RpRunPoint, grad_norm)},
        {"learning rate", offsetof(RpRunPoint, learning_rate)},
    };
    g_autofree double *steps = g_new(double, lines->len);
    g_autofree double *values = g_new(double, lines->len);

    for (guint c = 0; c < G_N_ELEMENTS(curves); c++) {
        guint n = 0;
        gboolean any = FALSE;

        for (guint i = 0; i < lines->len; i++) {
            const RpTrainLine *line = &g_array_index(lines, RpTrainLine, i);

            if (rp_cli_is_evaluation(line) != curves[c].of_evaluations || !isfinite(line->step))
                continue;
            const RpRunPoint point = rp_cli_point_of(line);

            steps[n] = line->step;
            values[n] = G_STRUCT_MEMBER(double, &point, curves[c].offset);
            any |= isfinite(values[n]) != 0;
            n++;
        }
        if (any)
            rp_page_add_curve(page, "Steps", curves[c].title, steps, values, n);
    }
}

static void
add_steps(const Sources *sources, RpPage *page)
{
    if (sources->steps.lines == NULL)
        return;
    const Summaries all = summarize(sources->steps.lines);

    rp_page_head(page, "Training");
    rp_page_begin_table(page, NULL);
    rp_page_row(page, (const char *const[]){"", sources->steps.title}, 2);
    add_row(page, "steps", text_number(all.steps, 0), NULL);
    add_row(page, "loss, first step", text_number(all.loss.first, 4), NULL);
    add_row(page, "loss, last step", text_number(all.loss.last, 4), NULL);
    if (isfinite(all.evaluation.last)) {
        add_row(page, "validation loss, last", text_number(all.evaluation.last, 4), NULL);
        add_row(page, "validation loss, least", text_number(all.evaluation.least, 4), NULL);
    }
    rp_page_end_table(page);
    add_speed(sources, &all, page);
    add_curves(sources->steps.lines, page);
}

/* ---- the plan ---- */

static void
add_memory(const RpPlan *plan, RpPage *page)
{
    const guint host = rp_plan_gpus(plan);
    const guint fullest = rp_plan_fullest_gpu(plan);

    rp_page_begin_table(page, NULL);
    rp_page_row(page, (const char *const[]){"memory, planned", "fullest device", "host"}, 3);
    for (guint c = 0; c < RP_N_BUFFER_CATEGORIES; c++) {
        const RpBufferCategory category = (RpBufferCategory)c;
        const guint64 device = rp_plan_category_bytes(plan, fullest, category);
        const guint64 home = rp_plan_category_bytes(plan, host, category);

        if (device + home > 0)
            add_row(page, rp_buffer_category_name(category), rp_cli_format_bytes(device),
                    rp_cli_format_bytes(home));
    }
    add_row(page, "all", rp_cli_format_bytes(rp_plan_arena_bytes(plan, fullest)),
            rp_cli_format_bytes(rp_plan_arena_bytes(plan, host)));
    rp_page_end_table(page);
}

static void
add_facts(const RpTrainJob *job, RpPage *page)
{
    const RpRunSpec *run = job->run;
    const RpRequest *request = &job->request;
    const RpPlanOptions *options = &request->options;
    const RpPartition *partition = request->partition;

    rp_page_begin_table(page, NULL);
    rp_page_row(page, (const char *const[]){"", "planned"}, 2);
    add_row(page, "schedule",
            g_strconcat(options->schedule->title, options->async ? " (asynchronous)" : "", NULL),
            NULL);
    add_row(page, "model", g_strdup(run->model), NULL);
    add_row(page, "devices", g_strdup(run->devices), NULL);
    add_row(page, "a step",
            g_strdup_printf("%" G_GINT64_FORMAT " x %u micro-batches of %" G_GINT64_FORMAT
                            " x %" G_GINT64_FORMAT " tokens, rounds of %u",
                            run->gradient_accumulation_steps, options->micro_batches,
                            run->micro_batch_size, run->sequence_length, options->round),
            NULL);
    add_row(page, partition->dispatched ? "forward stages, blocks" : "stages, blocks",
            rp_cli_stage_list(job->profile, partition->forward, partition->n_forward), NULL);
    if (partition->dispatched)
        add_row(page, "backward stages, blocks",
                rp_cli_stage_list(job->profile, partition->backward, partition->n_backward), NULL);
    add_row(page, "recompute", g_strdup(rp_request_recompute(request)), NULL);
    if (request->saved != NULL)
        add_row(page, "saved", g_strdup(request->saved), NULL);
    add_row(page, "layer times", g_strdup(job->profile->source), NULL);
    if (job->profile->device != NULL)
        add_row(page, "timed on", g_strdup(job->profile->device), NULL);
    if (job->profile->date != NULL)
        add_row(page, "timed", g_strdup(job->profile->date), NULL);
    rp_page_end_table(page);
}

static void
add_plan(const Sources *sources, RpPage *page)
{
    if (sources->run_text == NULL)
        return;
    rp_page_head(page, "Plan");
    if (sources->job.plan != NULL) {
        add_facts(&sources->job, page);
        add_memory(sources->job.plan, page);
    }
    if (sources->problem != NULL)
        rp_page_say(page, "It could not be planned again here: %s", sources->problem);
    rp_page_quote(page, "The run file", sources->run_text);
}

/* ---- commands ---- */

/* As a shell takes it. */
static void
add_word(GString *command, const char *word)
{
    g_autofree char *quoted = strpbrk(word, " \t\n'\"\\$`*?[]{}&;|<>()#!~") != NULL || *word == '\0'
                                  ? g_shell_quote(word)
                                  : g_strdup(word);

    g_string_append_printf(command, " %s", quoted);
}

/* (transfer full): the command that makes a page */
static char *
command_of(char *const *words, const RpArgs *args, const char *output)
{
    GString *command = g_string_new("roundpipe report");

    for (char *const *word = words; *word != NULL; word++)
        add_word(command, *word);
    if (args->range != NULL) {
        g_string_append(command, " --iterations");
        add_word(command, args->range);
    }
    if (args->kinds != NULL) {
        g_string_append(command, " --kinds");
        add_word(command, args->kinds);
    }
    g_string_append(command, " -o");
    add_word(command, output);
    return g_string_free(command, FALSE);
}

static void
add_commands(const Sources *sources, const char *command, RpPage *page)
{
    g_autoptr(GString) commands = g_string_new(NULL);

    if (sources->run_path != NULL && sources->run_text != NULL) {
        g_string_append(commands, "roundpipe train");
        add_word(commands, sources->run_path);
        g_string_append_c(commands, '\n');
    }
    g_string_append(commands, command);
    rp_page_head(page, "Commands");
    rp_page_quote(page, NULL, commands->str);
}

#define DEFAULT_OUTPUT "report.html"
#define DEFAULT_TOP 10

static const RpTrace *
shown_trace(const Sources *sources, guint i)
{
    return sources->diff != NULL ? rp_trace_diff_trace(sources->diff, (RpTraceSide)i)
                                 : sources->traces[i];
}

static void
add_traces(const Sources *sources, RpPage *page)
{
    RpPageTrace traces[RP_N_TRACE_SIDES] = {0};
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
make_page(const Sources *sources, char *const *words, const char *command)
{
    g_autofree char *whole =
        g_canonicalize_filename(sources->run_word != NULL ? sources->run_word : words[0], NULL);
    g_autofree char *name = g_path_get_basename(whole);
    g_autofree char *shown = rp_display_name(name);
    g_autofree char *title = g_strdup_printf("%s: a run of roundpipe", shown);
    g_autoptr(RpPage) page = rp_page_new(title);

    add_steps(sources, page);
    if (sources->n > 0)
        add_traces(sources, page);
    add_plan(sources, page);
    add_commands(sources, command, page);
    return rp_page_finish(page);
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
    return g_strv_length((char **)words) == 2 || rp_cli_are_compared(words) ||
           rp_cli_refuse(error, "--late: expected PREDICTED MEASURED, two traces");
}

/* Whether a page is of recordings: of those alone, or with --kinds, which is for nothing else. */
static gboolean
are_recordings(const RpArgs *args, char *const *words)
{
    gboolean any = args->kinds != NULL;

    for (char *const *word = words; *word != NULL; word++)
        any |= rp_cli_is_recording(*word);
    return any && !rp_cli_are_compared(words);
}

static gboolean
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
    const char *output = args->output != NULL ? args->output : DEFAULT_OUTPUT;
    g_auto(Sources) sources = {0};
    guint64 tasks = 0;

    if (!check_late(args, words, error))
        return FALSE;
    if (args->late)
        return rp_cli_late(args, words, report, error);
    g_autofree char *command = command_of(words, args, output);

    if (are_recordings(args, words))
        return rp_cli_recordings(args, words, command, report, error);
    if (!check_files(words, output, error) || !read_sources(&sources, words, args, error))
        return FALSE;
    g_autofree char *html = make_page(&sources, words, command);

    if (!rp_cli_write_text(output, html, error))
        return FALSE;
    for (guint i = 0; i < sources.n; i++)
        tasks += rp_trace_n_records(shown_trace(&sources, i));
    rp_report_text(report, "report", output, "report");
    rp_report_count(report, "tasks", (gint64)tasks, "tasks");
    rp_report_bytes(report, "bytes", strlen(html), "size");
    return TRUE;
}

static const RpUse uses[] = {
    {"output", "the page (default: " DEFAULT_OUTPUT "; of recordings alone none)", "FILE.html"},
    {"iterations:range",
     "show iterations A to B - 1 (default: the steady state of a run that is only planned, else "
     "all; with --late those that both have)"},
    {"late scale:auto top"},
    {"kinds"},
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
        "Traces are written by simulate, replay and train with --trace. Of recordings by\n"
        "torch.profiler (.json, .json.gz) or Nsight Systems (.sqlite), a file a rank, it prints "
        "how\n"
        "busy each device is, and with -o it writes their timeline. Behind a predicted trace\n"
        "recordings are one trace, of the actions that the program annotated.\n\n"
        "Example:\n"
        "  roundpipe report runs/first -o first.html\n"
        "  roundpipe report predicted.json measured.json\n"
        "  roundpipe report --late predicted.json measured.json\n"
        "  roundpipe report rank0.json.gz rank1.json.gz -o recorded.html\n"
        "  roundpipe report --late predicted.json rank0.sqlite rank1.sqlite",
    .uses = uses,
    .defaults = &defaults,
    .run = run,
};
