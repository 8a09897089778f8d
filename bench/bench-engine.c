/*
 * Measures the engine's cost per task: it runs the shipped profiles on 8 devices, on the replay
 * backend with tasks that take no time, so that only the engine's own time is left.
 *
 *   bench-engine [PROFILE.json…]
 *
 * elapsed: from the first hand-over to the last end, over the tasks; workers: processor time of the
 * engine's threads, of which there are three a device and one a host lane. The caller's planning is
 * in the elapsed time, too, as it is in training.
 *
 * Figure to hold (design.md §9): < 20 µs host time per task.
 */
#include <stdio.h>

#include "core/plan/planner.h"
#include "exec/engine/engine.h"
#include "exec/replay/replay.h"

#define GPUS 8
#define MICRO_BATCHES 16
#define ITERATIONS 20
#define RUNS 3 /* the fastest counts */

typedef struct {
    guint64 tasks;
    gint64 elapsed_ns;
    gint64 worker_ns;
} Cost;

static gboolean
hand_over(RpPlanner *planner, RpEngine *engine, GError **error)
{
    for (guint i = 0; i < ITERATIONS; i++) {
        if (!rp_planner_append_iteration(planner, error))
            return FALSE;
        /* a bound schedule's buffers are only all known with its second iteration */
        if (i > 0 && !rp_engine_append(engine, error))
            return FALSE;
    }
    rp_planner_finish(planner);
    return rp_engine_append(engine, error) && rp_engine_finish(engine, error);
}

static gboolean
run_once(const RpProfile *profile, const RpPartition *partition, const RpPlanOptions *options,
         Cost *cost, GError **error)
{
    const RpReplayOptions no_time = {0};
    const RpEngineOptions engine_options = {.retire = TRUE};
    g_autoptr(RpPlanner) planner = rp_planner_new(profile, partition, options, error);

    if (planner == NULL)
        return FALSE;
    RpBackend *backend = rp_replay_new(options->gpus, &no_time);
    RpEngine *engine = rp_engine_new(rp_planner_plan(planner), backend, &engine_options, error);
    const gint64 begin_us = g_get_monotonic_time();
    const gboolean done = engine != NULL && hand_over(planner, engine, error);

    if (done) {
        const RpEngineCost engine_cost = rp_engine_cost(engine);

        *cost = (Cost){engine_cost.tasks, 1000 * (g_get_monotonic_time() - begin_us),
                       engine_cost.worker_cpu_ns};
    }
    rp_engine_free(engine);
    rp_replay_free(backend);
    return done;
}

static gboolean
run_case(const RpProfile *profile, const char *schedule, RpFidelity fidelity, GError **error)
{
    const RpScheduleOps *ops = rp_schedule_find(schedule, error);
    const RpPlanOptions options = {.schedule = ops,
                                   .gpus = GPUS,
                                   .micro_batches = MICRO_BATCHES,
                                   .round = ops != NULL && ops->dispatched ? GPUS : 0,
                                   .async = TRUE,
                                   .fidelity = fidelity};
    g_autoptr(RpPartition) partition = ops == NULL ? NULL
                                       : ops->dispatched
                                           ? rp_partition_paper(profile, GPUS, GPUS, 0, error)
                                           : rp_partition_min_max(profile, GPUS, error);
    Cost best = {.elapsed_ns = G_MAXINT64};

    if (partition == NULL)
        return FALSE;
    for (guint run = 0; run < RUNS; run++) {
        Cost cost;

        if (!run_once(profile, partition, &options, &cost, error))
            return FALSE;
        if (cost.elapsed_ns < best.elapsed_ns)
            best = cost;
    }
    printf("%-18s %-10s %-8s %9" G_GUINT64_FORMAT " %12.2f %12.2f\n", profile->model, schedule,
           fidelity == RP_FIDELITY_FULL ? "full" : "compute", best.tasks,
           (double)best.elapsed_ns / (double)best.tasks / 1e3,
           (double)best.worker_ns / (double)best.tasks / 1e3);
    return TRUE;
}

static gboolean
run_profile(const char *path, GError **error)
{
    static const char *const schedules[] = {"roundpipe", "1f1b"};
    g_autoptr(RpProfile) profile = rp_profile_load(path, error);

    if (profile == NULL)
        return FALSE;
    for (guint i = 0; i < G_N_ELEMENTS(schedules); i++)
        for (RpFidelity fidelity = RP_FIDELITY_COMPUTE; fidelity <= RP_FIDELITY_FULL; fidelity++)
            if (!run_case(profile, schedules[i], fidelity, error))
                return FALSE;
    return TRUE;
}

int
main(int argc, char **argv)
{
    static const char *const shipped[] = {"qwen3-1.7b", "llama-3.1-8b", "gpt-oss-20b", "qwen3-32b",
                                          "qwen3-235b-a22b"};
    g_autoptr(GError) error = NULL;

    printf("%-18s %-10s %-8s %9s %12s %12s\n", "profile", "schedule", "fidelity", "tasks",
           "elapsed us", "workers us");
    for (int i = 1; i < argc && error == NULL; i++)
        (void)run_profile(argv[i], &error);
    for (guint i = 0; argc == 1 && i < G_N_ELEMENTS(shipped) && error == NULL; i++) {
        g_autofree char *path = g_strdup_printf("%s/%s.json", RP_BENCH_PROFILES, shipped[i]);

        (void)run_profile(path, &error);
    }
    if (error == NULL)
        return 0;
    fprintf(stderr, "bench-engine: %s\n", error->message);
    return 1;
}
