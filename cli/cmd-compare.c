/* Rows of profile x schedule. A row that cannot run says why and the others go on. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#include "cli/result.h"
#include "core/schedule.h"
#include "core/suggest.h"
#include "core/units.h"

/* In a list of schedules: RoundPipe with an asynchronous optimizer, whatever the others do. */
#define ASYNC_NAME "roundpipe-async"

typedef struct {
    char *schedules;
    char *profiles_dir;
    char *csv;
} CompareArgs;

typedef struct {
    char *path;
    char *name; /* of the file, without .json */
    RpProfile *profile;
} Entry;

typedef struct {
    const Entry *entry;
    const RpScheduleOps *schedule;
    gboolean async;
    RpRequest request;
    RpResult result;
    char *problem; /* why it cannot run; %NULL if it ran */
    gboolean fastest;
    gboolean least_bubble;
    gboolean least_memory;
} Row;

static void
free_entry(gpointer data)
{
    Entry *entry = data;

    g_free(entry->path);
    g_free(entry->name);
    rp_profile_free(entry->profile);
    g_free(entry);
}

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
load_entry(const char *path, guint gpus, GPtrArray *entries, GError **error)
{
    RpProfile *profile = rp_cli_load_profile(path, gpus, error);

    if (profile == NULL)
        return FALSE;
    Entry *entry = g_new0(Entry, 1);

    entry->profile = profile;
    entry->path = rp_cli_profile_path(path);
    entry->name = g_path_get_basename(path);
    if (g_str_has_suffix(entry->name, ".json"))
        entry->name[strlen(entry->name) - strlen(".json")] = '\0';
    g_ptr_array_add(entries, entry);
    return TRUE;
}

static gint64
model_time_ns(const RpProfile *profile)
{
    gint64 time_ns = 0;

    for (guint l = 0; l < profile->n_layers; l++)
        time_ns += profile->layers[l].forward_ns + profile->layers[l].backward_ns;
    return time_ns;
}

/* Small models first. */
static gint
compare_entries(gconstpointer a, gconstpointer b)
{
    const Entry *first = *(Entry *const *)a, *second = *(Entry *const *)b;
    gint64 first_ns = model_time_ns(first->profile), second_ns = model_time_ns(second->profile);

    if (first_ns != second_ns)
        return first_ns < second_ns ? -1 : 1;
    return strcmp(first->name, second->name);
}

static gboolean
load_directory(const char *directory, guint gpus, GPtrArray *entries, GError **error)
{
    g_autoptr(GDir) files = g_dir_open(directory, 0, error);
    const char *name;

    if (files == NULL)
        return FALSE;
    while ((name = g_dir_read_name(files)) != NULL) {
        g_autofree char *path = g_build_filename(directory, name, NULL);

        if (g_str_has_suffix(name, ".json") && !load_entry(path, gpus, entries, error))
            return FALSE;
    }
    if (entries->len == 0) {
        g_set_error(error, G_FILE_ERROR, G_FILE_ERROR_NOENT,
                    "%s: expected profiles (*.json), found none", directory);
        return FALSE;
    }
    g_ptr_array_sort(entries, compare_entries);
    return TRUE;
}

static gboolean
load_entries(const CompareArgs *args, guint gpus, char **paths, GPtrArray *entries, GError **error)
{
    g_autofree char *shipped = rp_cli_shipped_profiles("rtx4090");
    const char *directory = g_getenv("ROUNDPIPE_PROFILES");

    if (*paths != NULL && args->profiles_dir != NULL) {
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                    "--profiles: expected either a directory or files, found both");
        return FALSE;
    }
    for (char **path = paths; *path != NULL; path++)
        if (!load_entry(*path, gpus, entries, error))
            return FALSE;
    if (entries->len > 0)
        return TRUE;
    if (args->profiles_dir != NULL)
        directory = args->profiles_dir;
    else if (directory == NULL || *directory == '\0')
        directory = shipped;
    return load_directory(directory, gpus, entries, error);
}

static void
add_row(GArray *rows, const Entry *entry, const RpScheduleOps *schedule, gboolean async)
{
    Row row = {.entry = entry, .schedule = schedule, .async = async};

    g_array_append_val(rows, row);
}

static gboolean
set_unknown_schedule(const char *name, GError **error)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new();

    for (const RpScheduleOps *const *s = rp_schedules(); *s != NULL; s++)
        g_ptr_array_add(names, (gpointer)(*s)->name);
    g_ptr_array_add(names, (gpointer)ASYNC_NAME);
    g_ptr_array_add(names, NULL);
    return rp_cli_choice("schedules", name, (const char *const *)names->pdata, error) >= 0;
}

static gboolean
add_rows(const char *list, const Entry *entry, gboolean async, GArray *rows, GError **error)
{
    if (list == NULL) {
        for (const RpScheduleOps *const *s = rp_schedules(); *s != NULL; s++)
            add_row(rows, entry, *s, async);
        if (!async)
            add_row(rows, entry, rp_schedule_find("roundpipe", NULL), TRUE);
        return TRUE;
    }
    g_auto(GStrv) names = g_strsplit(list, ",", -1);

    if (*names == NULL) {
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                    "--schedules: expected names separated by commas, found nothing");
        return FALSE;
    }
    for (char **name = names; *name != NULL; name++) {
        gboolean own = strcmp(g_strstrip(*name), ASYNC_NAME) == 0;
        const RpScheduleOps *schedule = rp_schedule_find(own ? "roundpipe" : *name, NULL);

        if (schedule == NULL)
            return set_unknown_schedule(*name, error);
        add_row(rows, entry, schedule, async || own);
    }
    return TRUE;
}

/* ---- running ---- */

static gboolean
run_row(const RpScheduleArgs *args, Row *row, GError **error)
{
    RpScheduleArgs own = *args;
    g_autoptr(RpPlan) plan = NULL;

    own.schedule = (char *)row->schedule->name;
    own.async = row->async;
    rp_schedule_args_keep_known(&own, row->schedule);
    if (row->schedule->dispatched)
        own.n_stages = 0;
    if (!rp_request_resolve(&own, row->entry->profile, &row->request, error))
        return FALSE;
    g_autoptr(RpTrace) trace =
        rp_request_simulate(&row->request, row->entry->profile, &plan, error);

    if (trace == NULL)
        return FALSE;
    rp_result_measure(&row->request, row->entry->profile, plan, trace, &row->result);
    return TRUE;
}

static void
run_in_thread(gpointer data, gpointer user_data)
{
    const RpScheduleArgs *args = user_data;
    Row *row = data;
    g_autoptr(GError) error = NULL;

    if (!run_row(args, row, &error))
        row->problem = g_strdup(error->message);
}

/* Rows know nothing of each other: as many at once as there are processors. */
static gboolean
run_rows(RpScheduleArgs *args, GArray *rows, GError **error)
{
    int n_threads = (int)MIN(g_get_num_processors(), rows->len);
    GThreadPool *pool = g_thread_pool_new(run_in_thread, args, MAX(1, n_threads), TRUE, error);

    if (pool == NULL)
        return FALSE;
    /* the last models are the largest: begin with them */
    for (guint i = rows->len; i > 0; i--)
        g_thread_pool_push(pool, &g_array_index(rows, Row, i - 1), NULL);
    g_thread_pool_free(pool, FALSE, TRUE);
    return TRUE;
}

static guint64
memory_of(const Row *row)
{
    return row->result.gpu_peak_bytes > 0 ? row->result.gpu_peak_bytes : row->result.peak_live;
}

/* Marks the best rows of each profile. What does not fit in memory is not the best of anything. */
static void
mark_best(GArray *rows)
{
    for (guint i = 0; i < rows->len; i++) {
        Row *row = &g_array_index(rows, Row, i);

        row->fastest = row->least_bubble = row->least_memory =
            row->problem == NULL && row->result.memory_problem == NULL;
        for (guint j = 0; j < rows->len; j++) {
            const Row *other = &g_array_index(rows, Row, j);

            if (other->entry != row->entry || other->problem != NULL ||
                other->result.memory_problem != NULL)
                continue;
            row->fastest &= row->result.iteration_ns <= other->result.iteration_ns;
            row->least_bubble &= row->result.bubble.ratio <= other->result.bubble.ratio;
            row->least_memory &= memory_of(row) <= memory_of(other);
        }
    }
}

/* ---- printing ---- */

static const char *
row_label(const Row *row, char *label, gsize size)
{
    g_snprintf(label, size, "%s%s", row->schedule->name, row->async ? " (async)" : "");
    return label;
}

static void
add_figures(RpCliTable *table, const Row *row, gboolean full)
{
    const RpResult *result = &row->result;
    const RpBubble *bubble = &result->bubble;

    rp_cli_table_add(table, "%.3f%s", rp_ms_from_ns(result->iteration_ns),
                     row->fastest ? "*" : " ");
    rp_cli_table_add(table, "%.3f%s", 100 * bubble->ratio, row->least_bubble ? "*" : " ");
    rp_cli_table_add(table, "%.3f", 100 * bubble->fill);
    rp_cli_table_add(table, "%.3f", 100 * bubble->switch_);
    rp_cli_table_add(table, "%.3f", 100 * bubble->drain);
    rp_cli_table_add(table, "%.3f", 100 * bubble->intra);
    rp_cli_table_add(table, "%.3f", 100 * bubble->comm_exposed);
    if (result->tokens_per_s > 0)
        rp_cli_table_add(table, "%.0f", result->tokens_per_s);
    else
        rp_cli_table_add(table, "-");
    if (full)
        rp_cli_table_add(table, "%.2f%s", (double)result->gpu_peak_bytes / (double)RP_GIB,
                         result->memory_problem != NULL ? "!"
                         : row->least_memory            ? "*"
                                                        : " ");
    else
        rp_cli_table_add(table, "%u%s", result->peak_live, row->least_memory ? "*" : " ");
}

static void
print_table(const GArray *rows, gboolean full)
{
    const char *columns[] = {"<profile",
                             "<schedule",
                             "iteration ms ",
                             "bubble % ",
                             "fill",
                             "switch",
                             "drain",
                             "intra",
                             "exposed",
                             "tokens/s",
                             full ? "GPU GiB " : "live ",
                             NULL};
    g_autoptr(RpCliTable) table = rp_cli_table_new(columns);

    for (guint i = 0; i < rows->len; i++) {
        const Row *row = &g_array_index(rows, Row, i);
        char label[64];

        rp_cli_table_add(table, "%s", row->entry->name);
        rp_cli_table_add(table, "%s", row_label(row, label, sizeof label));
        if (row->problem != NULL) {
            g_autofree char *reason = g_strconcat("cannot run: ", row->problem, NULL);

            rp_cli_table_span(table, reason);
        } else {
            add_figures(table, row, full);
        }
    }
    rp_cli_table_print(table);
}

static void
print_text(const RpScheduleArgs *args, const GArray *rows)
{
    gboolean full = args->fidelity != NULL && strcmp(args->fidelity, "full") == 0;

    printf("%d GPUs, %d micro-batches; predicted, %s fidelity; partition: %s; recompute: %s\n\n",
           args->gpus, args->micro_batches, full ? "full" : "compute",
           args->partition != NULL ? args->partition : "simulated",
           args->recompute != NULL ? args->recompute : "roundpipe early, others gated");
    print_table(rows, full);
    puts("\n* best of the profile. Bubble = 1 - busy / (N x makespan) = fill + switch + drain + "
         "intra; exposed is a slice\n  of it. (async): steady state, without a flush between "
         "iterations.");
    puts(full ? "  GPU GiB: the fullest GPU, planned to the byte; ! = more than the GPU has."
              : "  live: stage inputs held on the fullest GPU (not comparable in bytes between "
                "different numbers of stages).");
}

static void
json_row(JsonBuilder *json, const Row *row, gboolean full)
{
    const RpResult *result = &row->result;

    json_builder_begin_object(json);
    rp_json_string(json, "profile", row->entry->name);
    rp_json_string(json, "model", row->entry->profile->model);
    rp_json_string(json, "schedule", row->schedule->name);
    rp_json_bool(json, "async", row->async);
    if (row->problem != NULL) {
        rp_json_string(json, "error", row->problem);
        json_builder_end_object(json);
        return;
    }
    rp_json_string(json, "recompute", rp_request_recompute(&row->request));
    rp_json_int(json, "round", row->request.options.round);
    rp_json_partition(json, row->entry->profile, row->request.partition);
    rp_json_double(json, "iteration_ms", rp_ms_from_ns(result->iteration_ns), 6);
    rp_json_bubble(json, &result->bubble);
    rp_json_double(json, "tokens_per_s", result->tokens_per_s, 3);
    rp_json_int(json, "tasks", (gint64)result->actions);
    rp_json_int(json, "peak_live", result->peak_live);
    if (full) {
        rp_json_int(json, "gpu_peak_bytes", (gint64)result->gpu_peak_bytes);
        rp_json_int(json, "host_peak_bytes", (gint64)result->host_peak_bytes);
        rp_json_bool(json, "fits_gpu_memory", result->memory_problem == NULL);
    }
    rp_json_bool(json, "fastest", row->fastest);
    rp_json_bool(json, "least_bubble", row->least_bubble);
    json_builder_end_object(json);
}

static void
print_json(const RpScheduleArgs *args, const GArray *rows)
{
    g_autoptr(JsonBuilder) json = json_builder_new();
    gboolean full = args->fidelity != NULL && strcmp(args->fidelity, "full") == 0;

    json_builder_begin_object(json);
    rp_json_string(json, "origin", "predicted");
    rp_json_int(json, "gpus", args->gpus);
    rp_json_int(json, "micro_batches", args->micro_batches);
    rp_json_string(json, "fidelity", full ? "full" : "compute");
    rp_json_string(json, "partition", args->partition != NULL ? args->partition : "simulated");
    json_builder_set_member_name(json, "rows");
    json_builder_begin_array(json);
    for (guint i = 0; i < rows->len; i++)
        json_row(json, &g_array_index(rows, Row, i), full);
    json_builder_end_array(json);
    json_builder_end_object(json);
    rp_cli_print_json(json);
}

static gboolean
write_csv(GOutputStream *stream, gpointer user_data, GError **error)
{
    const GArray *rows = user_data;
    g_autoptr(GString) csv =
        g_string_new("profile,schedule,async,iteration_ms,bubble_pct,fill_pct,switch_pct,"
                     "drain_pct,intra_pct,comm_exposed_pct,tokens_per_s,peak_live,"
                     "gpu_peak_bytes,error\n");

    for (guint i = 0; i < rows->len; i++) {
        const Row *row = &g_array_index(rows, Row, i);
        const RpBubble *bubble = &row->result.bubble;

        rp_csv_append(csv, FALSE, "%s", row->entry->name);
        rp_csv_append(csv, FALSE, "%s", row->schedule->name);
        rp_csv_append(csv, FALSE, "%d", row->async ? 1 : 0);
        if (row->problem != NULL) {
            g_string_append(csv, ",,,,,,,,,,");
            rp_csv_append(csv, TRUE, "%s", row->problem);
            continue;
        }
        g_string_append_printf(csv, "%.6f,%.6f,%.6f,%.6f,%.6f,%.6f,%.6f,%.3f,%u,",
                               rp_ms_from_ns(row->result.iteration_ns), 100 * bubble->ratio,
                               100 * bubble->fill, 100 * bubble->switch_, 100 * bubble->drain,
                               100 * bubble->intra, 100 * bubble->comm_exposed,
                               row->result.tokens_per_s, row->result.peak_live);
        if (row->result.gpu_peak_bytes > 0)
            g_string_append_printf(csv, "%" G_GUINT64_FORMAT, row->result.gpu_peak_bytes);
        g_string_append(csv, ",\n");
    }
    return g_output_stream_write_all(stream, csv->str, csv->len, NULL, NULL, error);
}

/* ---- command ---- */

/* What makes no sense for several models, and words that every row would stumble over. */
static gboolean
check_args(const RpScheduleArgs *args, const CompareArgs *more, GError **error)
{
    RpPlanOptions options;

    if (args->stages != NULL || args->forward_stages != NULL || args->backward_stages != NULL) {
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                    "a stage list suits one model and one schedule: use `roundpipe simulate`");
        return FALSE;
    }
    return rp_schedule_args_options(args, &options, error) &&
           (more->csv == NULL || rp_cli_check_writable(more->csv, error));
}

/* Options that none of the rows knows. */
static gboolean
check_options(const RpScheduleArgs *args, const GArray *rows, GError **error)
{
    g_autoptr(GPtrArray) schedules = g_ptr_array_new();

    for (guint i = 0; i < rows->len; i++)
        g_ptr_array_add(schedules, (gpointer)g_array_index(rows, Row, i).schedule);
    g_ptr_array_add(schedules, NULL);
    return rp_schedule_args_check_any(args, (const RpScheduleOps *const *)schedules->pdata, error);
}

static gboolean
check_csv(const CompareArgs *more, const GPtrArray *entries, GError **error)
{
    for (guint i = 0; i < entries->len; i++) {
        const Entry *entry = g_ptr_array_index(entries, i);
        const RpCliFile files[] = {
            {"PROFILE.json", entry->path, FALSE},
            {"--csv", more->csv, TRUE},
        };

        if (!rp_cli_check_files(files, G_N_ELEMENTS(files), error))
            return FALSE;
    }
    return TRUE;
}

static gboolean
run(RpScheduleArgs *args, const CompareArgs *more, char **paths, GError **error)
{
    g_autoptr(GPtrArray) entries = g_ptr_array_new_with_free_func(free_entry);
    g_autoptr(GArray) rows = g_array_new(FALSE, TRUE, sizeof(Row));
    gboolean csv_only = more->csv != NULL && strcmp(more->csv, "-") == 0;

    g_array_set_clear_func(rows, clear_row);
    if (!check_args(args, more, error) ||
        !load_entries(more, (guint)MAX(0, args->gpus), paths, entries, error) ||
        !check_csv(more, entries, error))
        return FALSE;
    for (guint i = 0; i < entries->len; i++)
        if (!add_rows(more->schedules, g_ptr_array_index(entries, i), args->async, rows, error))
            return FALSE;
    if (!check_options(args, rows, error) || !run_rows(args, rows, error))
        return FALSE;
    mark_best(rows);
    if (more->csv != NULL && !rp_cli_write_file(more->csv, write_csv, rows, error))
        return FALSE;
    if (args->json)
        print_json(args, rows);
    else if (!csv_only)
        print_text(args, rows);
    return TRUE;
}

int
rp_cmd_compare(int argc, char **argv)
{
    RpScheduleArgs args = {.gpus = 8, .micro_batches = 16};
    CompareArgs compare = {0};
    const GOptionEntry more[] = {
        {"schedules", 's', 0, G_OPTION_ARG_STRING, &compare.schedules,
         "names separated by commas; also " ASYNC_NAME " (default: all)", "LIST"},
        {"profiles", 0, 0, G_OPTION_ARG_FILENAME, &compare.profiles_dir,
         "directory of profiles (default: $ROUNDPIPE_PROFILES, or the shipped RTX 4090 ones)",
         "DIR"},
        {"csv", 0, 0, G_OPTION_ARG_FILENAME, &compare.csv,
         "write the rows as CSV; - = instead of the table", "FILE.csv"},
        {0},
    };
    g_autofree GOptionEntry *entries = rp_schedule_args_entries(&args, FALSE);
    GError *error = NULL;
    int code = RP_EXIT_OK;

    if (!rp_cli_parse("[PROFILE.json...]",
                      "Compares schedules on models in one table (default: 8 GPUs, 16 "
                      "micro-batches).\n\n"
                      "Examples:\n"
                      "  roundpipe compare\n"
                      "  roundpipe compare profiles/rtx4090/qwen3-32b.json \\\n"
                      "    --schedules 1f1b,looped-bfs,roundpipe,roundpipe-async --gpus 4",
                      entries, more, 0, -1, &argc, &argv, &error) ||
        !run(&args, &compare, argv + 1, &error))
        code = rp_cli_fail("compare", error);
    rp_schedule_args_clear(&args);
    g_free(compare.schedules);
    g_free(compare.profiles_dir);
    g_free(compare.csv);
    return code;
}
