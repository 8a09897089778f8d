/* Rows of profile x schedule. A row that cannot run says why and the others go on. */
#include "cli/reports/compare.h"

#include <string.h>

#include "core/base/suggest.h"

/* In a list of schedules, behind a name: with an asynchronous optimizer, whatever the others do. */
#define ASYNC_SUFFIX "-async"
#define ASYNC_NAME "roundpipe" ASYNC_SUFFIX

static void
free_entry(gpointer data)
{
    RpCompareEntry *entry = data;

    g_free(entry->path);
    g_free(entry->name);
    rp_profile_free(entry->profile);
    g_free(entry);
}

static void
clear_row(gpointer data)
{
    RpCompareRow *row = data;

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
    RpCompareEntry *entry = g_new0(RpCompareEntry, 1);

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
    const RpCompareEntry *first = *(RpCompareEntry *const *)a,
                         *second = *(RpCompareEntry *const *)b;
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
load_entries(const RpCompareArgs *args, guint gpus, char **paths, GPtrArray *entries,
             GError **error)
{
    g_autofree char *shipped = rp_cli_shipped_profiles("rtx4090");
    const char *directory = g_getenv("ROUNDPIPE_PROFILES");

    if (*paths != NULL && args->profiles_dir != NULL)
        return rp_cli_refuse(error, "--profiles: expected either a directory or files, found both");
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
add_row(GArray *rows, const RpCompareEntry *entry, const RpScheduleOps *schedule, gboolean async)
{
    RpCompareRow row = {.entry = entry, .schedule = schedule, .async = async};

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
add_rows(const char *list, const RpCompareEntry *entry, gboolean async, GArray *rows,
         GError **error)
{
    if (list == NULL) {
        for (const RpScheduleOps *const *s = rp_schedules(); *s != NULL; s++)
            add_row(rows, entry, *s, async);
        if (!async)
            add_row(rows, entry, rp_schedule_find("roundpipe", NULL), TRUE);
        return TRUE;
    }
    g_auto(GStrv) names = g_strsplit(list, ",", -1);

    if (*names == NULL)
        return rp_cli_refuse(error,
                             "--schedules: expected names separated by commas, found nothing");
    for (char **name = names; *name != NULL; name++) {
        gboolean own = g_str_has_suffix(g_strstrip(*name), ASYNC_SUFFIX);
        g_autofree char *base = g_strndup(*name, strlen(*name) - (own ? strlen(ASYNC_SUFFIX) : 0));
        const RpScheduleOps *schedule = rp_schedule_find(base, NULL);

        if (schedule == NULL)
            return set_unknown_schedule(*name, error);
        add_row(rows, entry, schedule, async || own);
    }
    return TRUE;
}

/* ---- running ---- */

static gboolean
run_row(const RpScheduleArgs *args, RpCompareRow *row, GError **error)
{
    RpScheduleArgs own = *args;
    g_autoptr(RpPlan) plan = NULL;

    own.schedule = (char *)row->schedule->name;
    own.ask.options.async = row->async;
    rp_schedule_args_keep_known(&own, row->schedule);
    if (row->schedule->dispatched)
        own.ask.n_stages = 0;
    if (!rp_schedule_args_resolve(&own, row->entry->profile, &row->request, error))
        return FALSE;
    g_autoptr(RpTrace) trace =
        rp_request_simulate(&row->request, row->entry->profile, &plan, error);

    if (trace == NULL)
        return FALSE;
    rp_result_measure(&row->request, row->entry->profile, plan, trace, &row->result);
    if (row->request.options.fidelity == RP_FIDELITY_COMPUTE)
        rp_result_plan_memory(&row->request, row->entry->profile, &row->result);
    return TRUE;
}

static void
run_in_thread(gpointer data, gpointer user_data)
{
    const RpScheduleArgs *args = user_data;
    RpCompareRow *row = data;
    g_autoptr(GError) error = NULL;

    if (!run_row(args, row, &error))
        row->problem = rp_cli_message(error, FALSE);
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
        g_thread_pool_push(pool, &g_array_index(rows, RpCompareRow, i - 1), NULL);
    g_thread_pool_free(pool, FALSE, TRUE);
    return TRUE;
}

static guint64
memory_of(const RpCompareRow *row)
{
    return row->result.gpu_peak_bytes > 0 ? row->result.gpu_peak_bytes : row->result.peak_live;
}

/* Marks the best rows of each profile, synchronous and asynchronous apart. What does not fit in
 * memory is not the best of anything. */
static void
mark_best(GArray *rows)
{
    for (guint i = 0; i < rows->len; i++) {
        RpCompareRow *row = &g_array_index(rows, RpCompareRow, i);

        row->fastest = row->least_bubble = row->least_memory =
            row->problem == NULL && row->result.memory_problem == NULL;
        for (guint j = 0; j < rows->len; j++) {
            const RpCompareRow *other = &g_array_index(rows, RpCompareRow, j);

            if (other->entry != row->entry || other->async != row->async ||
                other->problem != NULL || other->result.memory_problem != NULL)
                continue;
            row->fastest &= row->result.iteration_ns <= other->result.iteration_ns;
            row->least_bubble &= row->result.bubble.ratio <= other->result.bubble.ratio;
            row->least_memory &= memory_of(row) <= memory_of(other);
        }
    }
}

/* ---- command ---- */

/* What makes no sense for several models, and words that every row would stumble over. */
static gboolean
check_args(const RpScheduleArgs *args, const RpCompareArgs *more, GError **error)
{
    RpAsk ask;

    if (args->ask.stages != NULL || args->ask.forward_stages != NULL ||
        args->ask.backward_stages != NULL)
        return rp_cli_refuse(
            error, "a stage list suits one model and one schedule: use `roundpipe simulate`");
    if (more->published && (args->recompute != NULL || args->fused_forward != NULL))
        return rp_cli_refuse(
            error, "--published: expected no --recompute and no --fused-forward beside it");
    return rp_schedule_args_read(args, &ask, error);
}

/* Options that none of the rows knows. */
static gboolean
check_options(const RpScheduleArgs *args, const GArray *rows, GError **error)
{
    g_autoptr(GPtrArray) schedules = g_ptr_array_new();

    for (guint i = 0; i < rows->len; i++)
        g_ptr_array_add(schedules, (gpointer)g_array_index(rows, RpCompareRow, i).schedule);
    g_ptr_array_add(schedules, NULL);
    return rp_schedule_args_check_any(args, (const RpScheduleOps *const *)schedules->pdata, error);
}

/* What one schedule may do every schedule may: recompute before the gradient is there; and a fused
 * stage waits for its input, as every machine does. */
static void
treat_alike(RpScheduleArgs *args)
{
    if (args->recompute == NULL)
        args->recompute = g_strdup("early");
    if (args->fused_forward == NULL)
        args->fused_forward = g_strdup("physical");
}

static gboolean
check_csv(const RpCompareArgs *more, const GPtrArray *entries, GError **error)
{
    for (guint i = 0; i < entries->len; i++) {
        const RpCompareEntry *entry = g_ptr_array_index(entries, i);
        const RpCliFile files[] = {
            {"PROFILE.json", entry->path, RP_CLI_READ},
            {"--csv", more->csv, RP_CLI_PRINTED},
        };

        if (!rp_cli_check_files(files, G_N_ELEMENTS(files), error))
            return FALSE;
    }
    return TRUE;
}

static gboolean
run(gpointer user_args, char **paths, RpReport *report, GError **error)
{
    RpCompareArgs *args = user_args;
    RpScheduleArgs *request = &args->request;
    g_autoptr(GPtrArray) entries = g_ptr_array_new_with_free_func(free_entry);
    g_autoptr(GArray) rows = g_array_new(FALSE, TRUE, sizeof(RpCompareRow));

    g_array_set_clear_func(rows, clear_row);
    if (!check_args(request, args, error) ||
        !load_entries(args, request->ask.options.gpus, paths, entries, error) ||
        !check_csv(args, entries, error))
        return FALSE;
    for (guint i = 0; i < entries->len; i++)
        if (!add_rows(args->schedules, g_ptr_array_index(entries, i), request->ask.options.async,
                      rows, error))
            return FALSE;
    if (!check_options(request, rows, error))
        return FALSE;
    if (!args->published)
        treat_alike(request);
    if (!run_rows(request, rows, error))
        return FALSE;
    mark_best(rows);
    rp_compare_report(report, args, rows);
    report->muted = g_strcmp0(args->csv, "-") == 0;
    return args->csv == NULL || rp_cli_write_file(args->csv, rp_compare_write_csv, report, error);
}

static const GOptionEntry options[] = {
    {"schedules", 's', RP_WORD(RpCompareArgs, schedules),
     "names separated by commas, with " ASYNC_SUFFIX " asynchronous (default: all, " ASYNC_NAME ")",
     "LIST"},
    {"published", 0, RP_FLAG(RpCompareArgs, published),
     "as the paper compares: only roundpipe recomputes early, its fused forward does not wait",
     NULL},
    {"profiles", 0, RP_FILE(RpCompareArgs, profiles_dir),
     "directory of profiles (default: $ROUNDPIPE_PROFILES, or the shipped RTX 4090 ones)", "DIR"},
    {"csv", 0, RP_FILE(RpCompareArgs, csv), "write the rows as CSV; - = instead of the table",
     "FILE.csv"},
    {0},
};

static const RpCompareArgs defaults = {
    .request = {.ask.options = {.gpus = 8, .micro_batches = 16}}};

const RpCommand rp_command_compare = {
    .name = "compare",
    .summary = "several schedules and profiles in one table",
    .words = "[PROFILE.json...]",
    .help = "Compares schedules on models in one table (default: 8 GPUs, 16 micro-batches).\n\n"
            "Examples:\n"
            "  roundpipe compare\n"
            "  roundpipe compare profiles/rtx4090/qwen3-32b.json \\\n"
            "    --schedules 1f1b,looped-bfs,roundpipe,roundpipe-async --gpus 4",
    .requests = RP_REQUESTS,
    .options = options,
    .args_size = sizeof(RpCompareArgs),
    .defaults = &defaults,
    .run = run,
};
