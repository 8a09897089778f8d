/* Measures the cost of windows in planning, once and in every iteration. */
#include "bench/overheads/overheads.h"

#include "core/plan/planner.h"

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

gboolean
rp_overheads_windows(const RpOverheads *overheads, GError **error)
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
