/*
 * Measures each mechanism by itself; docs/lab/overheads.md explains the rows.
 *
 *   bench-cuda-overheads [--csv FILE] [--only PART] [--pinned-gib N] [--profiles DIR]
 *
 * Medians with p10 and p90. A part that fails prints its error, and the next one runs. Without a
 * GPU only the planner is timed, and the exit status is 77.
 */
#include "bench/overheads/overheads.h"

#include <errno.h>
#include <string.h>

#include "core/plan/planner.h"
#include "exec/cuda/runtime/device.h"

#define GPUS 8
#define MICRO_BATCHES 64
#define MADE 15
#define ITERATIONS 40

static gboolean
time_making(const RpProfile *profile, const RpPartition *partition, const RpPlanOptions *options,
            GArray *made_us, GError **error)
{
    for (guint i = 0; i < MADE; i++) {
        const gint64 start_ns = rp_clock_ns();
        g_autoptr(RpPlanner) planner = rp_planner_new(profile, partition, options, error);

        if (planner == NULL)
            return FALSE;
        rp_overheads_note(made_us, (double)(rp_clock_ns() - start_ns) / 1e3);
    }
    return TRUE;
}

/* Appends and retires iterations as a run does. The first two grow arrays, and do not count. */
static gboolean
time_iterations(const RpProfile *profile, const RpPartition *partition,
                const RpPlanOptions *options, GArray *ns_per_task, guint64 *tasks, GError **error)
{
    g_autoptr(RpPlanner) planner = rp_planner_new(profile, partition, options, error);
    RpTaskId before = 0;

    if (planner == NULL)
        return FALSE;
    for (guint i = 0; i < ITERATIONS; i++) {
        RpPlan *plan = rp_planner_plan(planner);
        const RpTaskId first = rp_plan_end_id(plan);
        const gint64 start_ns = rp_clock_ns();

        if (!rp_planner_append_iteration(planner, error))
            return FALSE;
        *tasks = rp_plan_end_id(plan) - first;
        if (i >= 2)
            rp_overheads_note(ns_per_task, (double)(rp_clock_ns() - start_ns) / (double)*tasks);
        rp_plan_retire(plan, before);
        before = first;
    }
    return TRUE;
}

static gboolean
time_transfers(const RpOverheads *overheads, const RpProfile *profile, const RpPartition *partition,
               RpTransfers transfers, GError **error)
{
    const char *name = transfers == RP_TRANSFERS_WINDOWS ? "windows" : "naive";
    const RpPlanOptions options = {.schedule = rp_schedule_find("roundpipe", NULL),
                                   .gpus = GPUS,
                                   .micro_batches = MICRO_BATCHES,
                                   .round = GPUS,
                                   .async = TRUE,
                                   .fidelity = RP_FIDELITY_FULL,
                                   .transfers = transfers};
    g_autoptr(GArray) made_us = rp_overheads_values();
    g_autoptr(GArray) ns_per_task = rp_overheads_values();
    guint64 tasks = 0;

    if (!time_making(profile, partition, &options, made_us, error) ||
        !time_iterations(profile, partition, &options, ns_per_task, &tasks, error))
        return FALSE;
    g_autofree char *once = g_strdup_printf("%s, %s: a planner, once a run", profile->model, name);
    g_autofree char *each = g_strdup_printf("%s, %s: an iteration", profile->model, name);
    g_autofree char *note =
        g_strdup_printf("%" G_GUINT64_FORMAT " tasks, %u GPUs, %u micro-batches in rounds of %u",
                        tasks, GPUS, MICRO_BATCHES, GPUS);

    rp_overheads_add(overheads, once, "us", made_us, NULL);
    rp_overheads_add(overheads, each, "ns/task", ns_per_task, note);
    return TRUE;
}

/* Needs no GPU: planning with and without windows. */
static gboolean
measure_windows(const RpOverheads *overheads, GError **error)
{
    static const char *const names[] = {"qwen3-1.7b", "qwen3-235b-a22b"};

    for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autofree char *path = g_strdup_printf("%s/%s.json", overheads->profiles, names[i]);
        g_autoptr(RpProfile) profile = rp_profile_load(path, error);
        g_autoptr(RpPartition) partition =
            profile == NULL ? NULL
                            : rp_partition_paper(profile, GPUS, MICRO_BATCHES,
                                                 profile->gpu_memory_bytes, error);

        if (partition == NULL)
            return FALSE;
        for (RpTransfers t = RP_TRANSFERS_WINDOWS; t <= RP_TRANSFERS_NAIVE; t++)
            if (!time_transfers(overheads, profile, partition, t, error))
                return FALSE;
    }
    return TRUE;
}

#define NO_GPU 77 /* Meson: skipped */

typedef struct {
    const char *name;
    gboolean needs_gpu;
    gboolean (*run)(const RpOverheads *overheads, GError **error);
} Part;

static const Part parts[] = {
    {"windows", FALSE, measure_windows},     {"calls", TRUE, rp_overheads_calls},
    {"events", TRUE, rp_overheads_events},   {"dispatch", TRUE, rp_overheads_dispatch},
    {"waiting", TRUE, rp_overheads_waiting}, {"handover", TRUE, rp_overheads_handover},
    {"upload", TRUE, rp_overheads_upload},   {"pinned", TRUE, rp_overheads_pinned},
};

static int
compare(gconstpointer a, gconstpointer b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double
percentile(const GArray *values, guint percent)
{
    return g_array_index(values, double, (values->len - 1) * percent / 100);
}

double
rp_overheads_add(const RpOverheads *overheads, const char *what, const char *unit, GArray *values,
                 const char *note)
{
    if (values->len == 0) {
        printf("%-9s %-58s nothing measured\n", overheads->part, what);
        return 0;
    }
    g_array_sort(values, compare);
    const double low = percentile(values, 10), middle = percentile(values, 50);
    const double high = percentile(values, 90);

    printf("%-9s %-58s %6u %11.3f %11.3f %11.3f  %-10s %s\n", overheads->part, what, values->len,
           low, middle, high, unit, note != NULL ? note : "");
    (void)fflush(stdout);
    if (overheads->csv != NULL)
        fprintf(overheads->csv, "%s,\"%s\",%u,%.4f,%.4f,%.4f,%s,\"%s\"\n", overheads->part, what,
                values->len, low, middle, high, unit, note != NULL ? note : "");
    return middle;
}

static gboolean
is_part(const char *name)
{
    for (guint i = 0; i < G_N_ELEMENTS(parts); i++)
        if (strcmp(parts[i].name, name) == 0)
            return TRUE;
    fprintf(stderr, "bench-cuda-overheads: --only: no part \"%s\"; there are", name);
    for (guint i = 0; i < G_N_ELEMENTS(parts); i++)
        fprintf(stderr, " %s", parts[i].name);
    fprintf(stderr, "\n");
    return FALSE;
}

static void
print_devices(RpOverheads *overheads)
{
    overheads->gpus = rp_cuda_device_count();
    for (guint g = 0; g < overheads->gpus; g++) {
        g_autoptr(GError) error = NULL;
        RpCudaDeviceInfo info;

        if (rp_cuda_device_info(g, &info, &error))
            printf("gpu %u: %s\n", g, info.name);
        else
            fprintf(stderr, "gpu %u: %s\n", g, error->message);
    }
    printf("%u processors\n\n", g_get_num_processors());
}

/* Returns: exit status */
static int
run(RpOverheads *overheads, const char *only)
{
    gboolean skipped = FALSE, failed = FALSE;

    print_devices(overheads);
    printf("%-9s %-58s %6s %11s %11s %11s  %-10s %s\n", "part", "what", "n", "p10", "median", "p90",
           "unit", "note");
    if (overheads->csv != NULL)
        fprintf(overheads->csv, "part,what,n,p10,median,p90,unit,note\n");
    for (guint i = 0; i < G_N_ELEMENTS(parts); i++) {
        g_autoptr(GError) error = NULL;

        if (only != NULL && strcmp(parts[i].name, only) != 0)
            continue;
        if (parts[i].needs_gpu && overheads->gpus == 0) {
            skipped = TRUE;
            continue;
        }
        overheads->part = parts[i].name;
        if (parts[i].run(overheads, &error))
            continue;
        fflush(stdout);
        fprintf(stderr, "bench-cuda-overheads: %s: %s\n", parts[i].name, error->message);
        failed = TRUE;
    }
    if (skipped)
        printf("no GPU: what needs one is skipped\n");
    return failed ? 1 : skipped ? NO_GPU : 0;
}

int
main(int argc, char **argv)
{
    RpOverheads overheads = {.pinned_bytes = 0};
    g_autofree char *csv = NULL, *only = NULL, *profiles = NULL;
    gint gib = 8;
    const GOptionEntry entries[] = {
        {"csv", 0, 0, G_OPTION_ARG_FILENAME, &csv, "Also write comma-separated values", "FILE"},
        {"only", 0, 0, G_OPTION_ARG_STRING, &only, "Run one part", "PART"},
        {"pinned-gib", 0, 0, G_OPTION_ARG_INT, &gib, "GiB to pin at a time (8)", "N"},
        {"profiles", 0, 0, G_OPTION_ARG_FILENAME, &profiles, "Where profiles/rtx4090 is", "DIR"},
        {NULL, 0, 0, G_OPTION_ARG_NONE, NULL, NULL, NULL},
    };
    g_autoptr(GOptionContext) context = g_option_context_new(NULL);
    g_autoptr(GError) error = NULL;

    g_option_context_add_main_entries(context, entries, NULL);
    if (!g_option_context_parse(context, &argc, &argv, &error)) {
        fprintf(stderr, "bench-cuda-overheads: %s\n", error->message);
        return 2;
    }
    if (gib < 1 || argc > 1) {
        fprintf(stderr, "bench-cuda-overheads: expected options only, --pinned-gib from 1 on\n");
        return 2;
    }
    if (only != NULL && !is_part(only))
        return 2;
    if (csv != NULL && (overheads.csv = fopen(csv, "w")) == NULL) {
        fprintf(stderr, "bench-cuda-overheads: cannot write \"%s\": %s\n", csv, g_strerror(errno));
        return 1;
    }
    overheads.profiles = profiles != NULL ? profiles : RP_BENCH_PROFILES;
    overheads.pinned_bytes = (guint64)gib << 30;
    const int status = run(&overheads, only);
    if (overheads.csv != NULL && fclose(overheads.csv) != 0) {
        fprintf(stderr, "bench-cuda-overheads: cannot write \"%s\": %s\n", csv, g_strerror(errno));
        return 1;
    }
    return status;
}
