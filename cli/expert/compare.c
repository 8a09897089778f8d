/* Rows of profile x schedule. A row that cannot run says why and the others go on. */
#include <string.h>

#include "cli/cli.h"
#include "cli/reports/reports.h"
#include "core/base/threads.h"
#include "core/base/units.h"
#include "core/schedules/given.h"

/* In a list of schedules, behind a name: with an asynchronous optimizer, whatever the others do. */
#define ASYNC_SUFFIX "-async"
#define ASYNC_NAME "roundpipe" ASYNC_SUFFIX

/* Unless told otherwise, by a schedule's file too. */
#define GPUS 8
#define MICRO_BATCHES 16

#define STAR(best) ((best) ? '*' : ' ')

typedef struct {
    const RpCliEntry *entry;
    const RpScheduleOps *schedule;
    gboolean async;
    RpRequest request;
    RpResult result;
    RpRequestDrawn drawn; /* draws = 0: not asked for, or the times have no distribution */
    char *problem;        /* why it cannot run; %NULL if it ran */
    gboolean fastest;
    gboolean least_bubble;
    gboolean least_memory;
} Row;

static void
clear_row(gpointer data)
{
    Row *row = data;

    rp_request_clear(&row->request);
    rp_result_clear(&row->result);
    g_free(row->problem);
}

/* ---- what is compared ---- */

static gboolean
add_rows(const char *list, const RpCliEntry *entry, gboolean async, GArray *rows, GError **error)
{
    g_autoptr(GString) all = g_string_new(NULL);

    for (const RpScheduleOps *const *s = rp_schedules(); *s != NULL; s++)
        g_string_append_printf(all, "%s%s%s", all->len > 0 ? "," : "", (*s)->name,
                               (*s)->unflushed && !async ? ASYNC_SUFFIX : "");
    if (!async)
        g_string_append(all, "," ASYNC_NAME);
    g_auto(GStrv) known = g_strsplit(all->str, ",", -1);
    g_auto(GStrv) names = g_strsplit(list != NULL ? list : all->str, ",", -1);

    if (*names == NULL)
        return rp_cli_refuse(error,
                             "--schedules: expected names separated by commas, found nothing");
    for (char **name = names; *name != NULL; name++) {
        gboolean own = g_str_has_suffix(g_strstrip(*name), ASYNC_SUFFIX);
        g_autofree char *base = g_strndup(*name, strlen(*name) - (own ? strlen(ASYNC_SUFFIX) : 0));
        const Row row = {
            .entry = entry, .schedule = rp_schedule_find(base, NULL), .async = async || own};

        if (row.schedule == NULL)
            return rp_cli_choice("schedules", *name, (const char *const *)known, error) >= 0;
        g_array_append_val(rows, row);
    }
    return TRUE;
}

/* ---- running ---- */

static gboolean
run_row(const RpArgs *args, Row *row, GError **error)
{
    RpArgs own = *args;
    g_autoptr(RpPlan) plan = NULL;

    if (row->schedule->given == NULL) {
        own.schedule = (char *)row->schedule->name;
        own.run.schedule_file = NULL;
    }
    own.run.plan.async = row->async;
    rp_schedule_args_keep_known(&own, row->schedule);
    if (row->schedule->dispatched)
        own.run.n_stages = 0;
    if (!rp_schedule_args_resolve(&own, row->entry->profile, &row->request, error))
        return FALSE;
    row->request.noise = args->noise;
    g_autoptr(RpTrace) trace =
        rp_request_simulate(&row->request, row->entry->profile, &plan, error);

    if (trace == NULL)
        return FALSE;
    rp_result_measure(&row->request, row->entry->profile, plan, trace, &row->result);
    if (row->request.options.fidelity == RP_FIDELITY_COMPUTE)
        rp_result_plan_memory(&row->request, row->entry->profile, &row->result);
    gboolean distributed;

    return rp_cli_noise_draw(args, &row->request, row->entry->profile, &row->drawn, &distributed,
                             error);
}

/* Rows under way. */
typedef struct {
    RpArgs *args;
    GArray *rows;
    guint done;
    RpProgress progress;
    GMutex lock; /* over done and progress */
} Work;

/* The last models are the largest: they come first. */
static gboolean
run_piece(guint i, gpointer data, GError **error)
{
    Work *work = data;
    Row *row = &g_array_index(work->rows, Row, work->rows->len - 1 - i);
    g_autoptr(GError) problem = NULL;

    if (!run_row(work->args, row, &problem))
        row->problem = rp_cli_message(problem, FALSE);
    g_mutex_lock(&work->lock);
    rp_progress_show(&work->progress, ++work->done, work->rows->len);
    g_mutex_unlock(&work->lock);
    return TRUE;
}

/* Rows know nothing of each other: as many at once as there are processors. */
static void
run_rows(RpArgs *args, GArray *rows)
{
    args->run.beside = rp_threads_for(rows->len);
    args->run.memory_bytes = rp_run_memory_now();
    Work work = {
        .args = args, .rows = rows, .progress = rp_progress_begin("searching partitions", 0)};

    (void)rp_run_pieces(rows->len, run_piece, &work, NULL);
    g_mutex_clear(&work.lock);
    rp_progress_clear();
}

static guint64
memory_of(const Row *row)
{
    return row->result.gpu_peak_bytes > 0 ? row->result.gpu_peak_bytes : row->result.peak_live;
}

/* Whether it runs and fits, as far as anything is known of the profile's memory. */
static gboolean
may_be_best(const GArray *rows, const Row *row)
{
    gboolean unknown = row->result.gpu_peak_bytes == 0;

    for (guint i = 0; unknown && i < rows->len; i++) {
        const Row *other = &g_array_index(rows, Row, i);

        if (other->entry == row->entry && other->result.gpu_peak_bytes > 0)
            return FALSE;
    }
    return row->problem == NULL && row->result.memory_problem == NULL;
}

/* Marks the best rows of each profile, synchronous and asynchronous apart. What does not fit in
 * memory, or holds weights twice so that nobody knows, is not the best of anything. */
static void
mark_best(GArray *rows)
{
    for (guint i = 0; i < rows->len; i++) {
        Row *row = &g_array_index(rows, Row, i);

        row->fastest = row->least_bubble = row->least_memory = may_be_best(rows, row);
        for (guint j = 0; j < rows->len; j++) {
            const Row *other = &g_array_index(rows, Row, j);

            if (other->entry != row->entry || other->async != row->async ||
                !may_be_best(rows, other))
                continue;
            row->fastest &= row->result.iteration_ns <= other->result.iteration_ns;
            row->least_bubble &= row->result.bubble.ratio <= other->result.bubble.ratio;
            row->least_memory &= memory_of(row) <= memory_of(other);
        }
    }
}

/* ---- command ---- */

/* Systems bring schedules of their own. */
static gboolean
check_systems(const RpArgs *args, GError **error)
{
    static const char *const known[] = {"gpus", "micro-batches",  "gpu", "sequence", "micro-batch",
                                        "pcie", "host-bandwidth", "box", "network",  NULL};
    gboolean others = args->schedules != NULL;

    if (args->systems == NULL)
        return rp_cli_check_no_systems(args, error);
    for (const RpOption *option = rp_schedule_options(); option->name != NULL; option++)
        others |= !g_strv_contains(known, option->name) && rp_args_has(args, option->name);
    if (!others)
        return TRUE;
    return rp_cli_refuse(error, "--systems: expected of the options that describe schedules only "
                                "--gpus and --micro-batches beside it");
}

/* Refuses options that make no sense for several models, and words that every row would refuse. */
static gboolean
check_args(const RpArgs *args, GError **error)
{
    RpRunSpec run;

    if (args->run.stages != NULL || args->run.forward_stages != NULL ||
        args->run.backward_stages != NULL)
        return rp_cli_refuse(
            error, "a stage list suits one model and one schedule: use `roundpipe simulate`");
    if (args->systems != NULL && (args->run.host_slow != NULL || args->draws > 0))
        return rp_cli_refuse(error, "--systems: expected no --slow and no --draws beside it: "
                                    "systems have no timeline");
    return check_systems(args, error) && rp_cli_noise_check(args, args->run.plan.gpus, error) &&
           rp_schedule_args_read(args, &run, error);
}

/* Options that none of the rows knows. */
static gboolean
check_options(const RpArgs *args, const GArray *rows, GError **error)
{
    g_autoptr(GPtrArray) schedules = g_ptr_array_new();

    for (guint i = 0; i < rows->len; i++)
        g_ptr_array_add(schedules, (gpointer)g_array_index(rows, Row, i).schedule);
    g_ptr_array_add(schedules, NULL);
    return rp_schedule_args_check_any(args, (const RpScheduleOps *const *)schedules->pdata, error);
}

static gboolean
check_csv(const RpArgs *args, const GPtrArray *entries, GError **error)
{
    for (guint i = 0; i < entries->len; i++) {
        const RpCliEntry *entry = g_ptr_array_index(entries, i);
        const RpCliFile files[] = {
            {"PROFILE.json", entry->path, RP_CLI_READ},
            {"--csv", args->csv, RP_CLI_PRINTED},
        };

        if (!rp_cli_check_files(files, G_N_ELEMENTS(files), error))
            return FALSE;
    }
    return TRUE;
}

/* ---- the report ---- */

/* "recompute early, fused forward physical, alike for all" */
static char *
convention(const RpArgs *args, gboolean full)
{
    const char *recompute = rp_run_spec_given(&args->run, "recompute");

    if (args->published)
        return g_strconcat("as published: recompute roundpipe early, others gated",
                           full ? NULL : "; fused forward published", NULL);
    return g_strdup_printf("recompute %s, fused forward physical, alike for all",
                           recompute != NULL ? recompute : "early");
}

/* @memory: some row has bytes; else stage inputs are counted */
static void
report_memory(RpReport *report, const Row *row, gboolean memory)
{
    const RpResult *result = &row->result;
    const guint64 bytes = result->gpu_peak_bytes;

    rp_report_count(report, "peak_live", result->peak_live, memory ? NULL : "live ");
    rp_report_show(report, "%u%c", result->peak_live, STAR(row->least_memory));
    if (bytes == 0) {
        rp_report_line(report, memory ? "GPU GiB " : NULL, "- ");
        return;
    }
    rp_report_bytes(report, "gpu_peak_bytes", bytes, "GPU GiB ");
    rp_report_show(report, "%.2f%c", (double)bytes / (double)RP_GIB,
                   result->memory_problem != NULL ? '!' : STAR(row->least_memory));
    rp_report_bytes(report, "host_peak_bytes", result->host_peak_bytes, NULL);
    rp_report_bool(report, "fits_gpu_memory", result->memory_problem == NULL, NULL);
}

static void
report_figures(RpReport *report, const RpArgs *args, const Row *row, gboolean memory)
{
    static const char *const labels[] = {NULL, "fill", "switch", "drain", "intra", "exposed"};
    const RpResult *result = &row->result;

    rp_report_text(report, "recompute", rp_request_recompute(&row->request), NULL);
    rp_report_count(report, "round", row->request.options.round, NULL);
    rp_report_add_partition(report, row->entry->profile, row->request.partition, NULL);
    rp_report_ms(report, "iteration_ms", result->iteration_ns, "iteration ms ");
    rp_report_show(report, "%.3f%c", rp_ms_from_ns(result->iteration_ns), STAR(row->fastest));
    rp_report_line(report, "bubble % ", "%.3f%c", 100 * result->bubble.ratio,
                   STAR(row->least_bubble));
    if (result->bound_ns > 0) {
        rp_report_ms(report, "bound_ms", result->bound_ns, "above least %");
        rp_report_show_percent(report, rp_result_above_bound(result), 1);
    } else {
        rp_report_line(report, "above least %", "-");
    }
    rp_report_add_plan_bound(report, result, "above order %", FALSE);
    rp_report_add_bubble(report, &result->bubble, labels);
    rp_report_add_noise(report, args, &row->request, &row->drawn, FALSE);
    if (args->draws > 0 && row->drawn.draws == 0) {
        rp_report_line(report, "p50 ms", "-");
        rp_report_line(report, "p95 ms", "-");
    } else if (row->drawn.draws > 0) {
        rp_report_line(report, "p50 ms", "%.3f", row->drawn.iteration_ns.p50 / 1e6);
        rp_report_line(report, "p95 ms", "%.3f", row->drawn.iteration_ns.p95 / 1e6);
    }
    rp_report_rate(report, "tokens_per_s", result->tokens_per_s, "tokens/s");
    rp_report_count(report, "tasks", (gint64)result->actions, NULL);
    report_memory(report, row, memory);
    rp_report_bool(report, "fastest", row->fastest, NULL);
    rp_report_bool(report, "least_bubble", row->least_bubble, NULL);
}

static void
report_row(RpReport *report, const RpArgs *args, const Row *row, gboolean memory)
{
    rp_report_object(report, NULL,
                     row->async ? "Asynchronous: no flush between iterations, weights one "
                                  "iteration old; steady state"
                                : "Synchronous");
    rp_report_text(report, "profile", row->entry->name, "<profile");
    rp_report_text(report, "model", row->entry->profile->model, NULL);
    rp_report_text(report, "schedule", row->schedule->name, "<schedule");
    rp_report_bool(report, "async", row->async, NULL);
    if (row->problem != NULL) {
        rp_report_text(report, "error", row->problem, NULL);
        rp_report_span(report, "cannot run: %s", row->problem);
    } else {
        report_figures(report, args, row, memory);
    }
    rp_report_end(report);
}

static void
report_rows(RpReport *report, const RpArgs *args, const GArray *rows)
{
    const RpPlanOptions *options = &args->run.plan;
    const char *fidelity = args->fidelity != NULL ? args->fidelity : "compute";
    const char *partition = rp_setting_value_name("partition", args->run.partition_choice);
    g_autofree char *alike = convention(args, strcmp(fidelity, "full") == 0);
    gboolean memory = FALSE;

    for (guint i = 0; i < rows->len; i++)
        memory |= g_array_index(rows, Row, i).result.gpu_peak_bytes > 0;
    rp_report_say(report, "%d GPUs, %d micro-batches; predicted, %s fidelity; partition: %s; %s",
                  options->gpus, options->micro_batches, fidelity, partition, alike);
    rp_report_text(report, "origin", "predicted", NULL);
    rp_report_count(report, "gpus", options->gpus, NULL);
    rp_report_count(report, "micro_batches", options->micro_batches, NULL);
    if (args->run.replicas > 1)
        rp_report_count(report, "replicas", args->run.replicas, NULL);
    rp_report_text(report, "fidelity", fidelity, NULL);
    rp_report_bool(report, "published", args->published, NULL);
    rp_report_text(report, "partition", partition, NULL);
    rp_report_table(report, "rows",
                    "exposed,intra,drain,switch,fill,above order %,above least %,p50 ms,tokens/s",
                    0);
    for (guint i = 0; i < rows->len; i++)
        report_row(report, args, &g_array_index(rows, Row, i), memory);
    rp_report_end(report);
    rp_report_say(report,
                  "\n* best of the profile in its group, of what fits. Bubble = 1 - busy / (N x "
                  "makespan) = fill + switch\n  + drain + intra; exposed is a slice of it. Above "
                  "least: how much longer the iteration is than a\n  bound that no partition of "
                  "the schedule is below; above order: than one that no order of the\n  same "
                  "actions on the same GPUs is below.");
    rp_report_say(report, memory ? "  GPU GiB: the fullest GPU with every buffer, planned to the "
                                   "byte; ! = more than it has."
                                 : "  live: stage inputs held on the fullest GPU (not comparable "
                                   "in bytes between different numbers of stages).");
}

#define CSV_COLUMNS                                                                                \
    "profile,schedule,async,iteration_ms,bubble_ratio=bubble_pct,fill=fill_pct,"                   \
    "switch=switch_pct,drain=drain_pct,intra=intra_pct,comm_exposed_ratio=comm_exposed_pct,"       \
    "tokens_per_s,peak_live,gpu_peak_bytes,error,above_order_ratio=above_order_pct,"               \
    "above_busy_ratio=above_busy_pct"

/* Without names one model is compared, so that the answer comes at once. */
static const char *const usual_names[] = {"qwen3-1.7b", NULL};

static gboolean
run(RpArgs *args, char **paths, RpReport *report, GError **error)
{
    g_autoptr(GPtrArray) entries = g_ptr_array_new_with_free_func(rp_cli_entry_free);
    g_autoptr(GArray) rows = g_array_new(FALSE, TRUE, sizeof(Row));
    g_autoptr(RpScheduleOps) given = NULL;

    g_array_set_clear_func(rows, clear_row);
    if (!rp_schedule_args_open(args, &given, error) ||
        !rp_box_count(&args->box, &args->run.plan.gpus, error))
        return FALSE;
    args->run.plan.gpus = args->run.plan.gpus > 0 ? args->run.plan.gpus : GPUS;
    if (args->run.plan.micro_batches == 0)
        args->run.plan.micro_batches = MICRO_BATCHES;
    const gboolean usual = paths[0] == NULL && args->profiles_dir == NULL &&
                           args->systems == NULL && g_getenv("ROUNDPIPE_PROFILES") == NULL;

    if (!check_args(args, error) ||
        !rp_cli_load_entries(usual ? (char **)usual_names : paths, args->profiles_dir, args,
                             entries, error) ||
        !check_csv(args, entries, error))
        return FALSE;
    if (args->systems != NULL)
        return rp_cli_compare_systems(args, entries, report, error);
    for (guint i = 0; i < entries->len; i++) {
        const RpCliEntry *entry = g_ptr_array_index(entries, i);
        const Row own = {.entry = entry, .schedule = given, .async = args->run.plan.async};

        if (!add_rows(args->schedules, entry, own.async, rows, error))
            return FALSE;
        if (given != NULL)
            g_array_append_val(rows, own);
    }
    if (!check_options(args, rows, error))
        return FALSE;
    run_rows(args, rows);
    mark_best(rows);
    report_rows(report, args, rows);
    return rp_cli_write_csv(args->csv, report, CSV_COLUMNS, error);
}

static const RpUse uses[] = {
    {"schedules", "names separated by commas, with " ASYNC_SUFFIX
                  " asynchronous (default: all, " ASYNC_NAME ")"},
    {"systems price chunked-head " RP_USE_NOISE},
    {"profiles",
     "all profiles of a directory, as $ROUNDPIPE_PROFILES names one; with neither nor PROFILE: "
     "Qwen3-1.7B on RTX 4090 (--systems: all shipped ones)"},
    {"csv", "write the rows as CSV; - = instead of the table"},
    {0},
};

const RpCommand rp_command_compare = {
    .name = "compare",
    .summary = "several schedules or systems, and profiles, in one table",
    .expert = TRUE,
    .words = "[PROFILE.json...]",
    .help = "Compares schedules, or systems, on models in one table (default: 8 GPUs, 16 "
            "micro-batches).\n\n"
            "Examples:\n"
            "  roundpipe compare\n"
            "  roundpipe compare profiles/rtx4090/qwen3-32b.json \\\n"
            "    --schedules 1f1b,looped-bfs,roundpipe,roundpipe-async --gpus 4\n"
            "  roundpipe compare qwen3-1.7b --systems all --micro-batches 128 --price 2.32",
    .more_help = rp_cli_list_systems,
    .requests = RP_REQUESTS,
    .uses = uses,
    .run = run,
};
