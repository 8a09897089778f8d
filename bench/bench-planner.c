/**
 * Measures the cost of planning and proving: Qwen3-235B with LoRA on 8 GPUs, 64 micro-batches,
 * `full` fidelity.
 *
 *   bench-planner [PROFILE.json]
 */
#include <stdio.h>

#include "core/plan/planner.h"
#include "core/verify/verify.h"

#define ITERATIONS 30
#define PROVED 3

static RpPlanner *
new_planner(const RpProfile *profile, const RpPartition *partition, guint round, GError **error)
{
    RpPlanOptions options = {.gpus = 8,
                             .micro_batches = 64,
                             .round = round,
                             .async = TRUE,
                             .fidelity = RP_FIDELITY_FULL};

    options.schedule = rp_schedule_find("roundpipe", error);
    if (options.schedule == NULL)
        return NULL;
    return rp_planner_new(profile, partition, &options, error);
}

/* Appends and retires iterations as a run does; prints the first and the best. */
static gboolean
time_planning(const RpProfile *profile, const RpPartition *partition, guint round, GError **error)
{
    g_autoptr(RpPlanner) planner = new_planner(profile, partition, round, error);
    gint64 first = 0;
    gint64 best = G_MAXINT64;
    RpTaskId before = 0;

    if (planner == NULL)
        return FALSE;
    for (guint i = 0; i < ITERATIONS; i++) {
        RpPlan *plan = rp_planner_plan(planner);
        RpTaskId begin = rp_plan_end_id(plan);
        gint64 start = g_get_monotonic_time();

        if (!rp_planner_append_iteration(planner, error))
            return FALSE;
        gint64 took = g_get_monotonic_time() - start;
        first = i == 0 ? took : first;
        best = MIN(best, took);
        rp_plan_retire(plan, before);
        before = begin;
    }
    printf("plan    rounds of %2u  %6" G_GUINT64_FORMAT " tasks  first %.2f ms, best %.2f ms\n",
           round, rp_plan_end_id(rp_planner_plan(planner)) - before, (double)first / 1e3,
           (double)best / 1e3);
    return TRUE;
}

static gboolean
time_proof(const RpProfile *profile, const RpPartition *partition, guint round, GError **error)
{
    g_autoptr(RpPlanner) planner = new_planner(profile, partition, round, error);
    RpViolation violation = {0};

    if (planner == NULL)
        return FALSE;
    for (guint i = 0; i < PROVED; i++)
        if (!rp_planner_append_iteration(planner, error))
            return FALSE;
    rp_planner_finish(planner);
    gint64 start = g_get_monotonic_time();
    gboolean proved = rp_verify_plan(rp_planner_plan(planner), &violation);
    printf("verify  rounds of %2u  %6" G_GUINT64_FORMAT " tasks  %.2f ms  %s\n", round,
           rp_plan_end_id(rp_planner_plan(planner)), (double)(g_get_monotonic_time() - start) / 1e3,
           proved ? "proved" : violation.message);
    rp_violation_clear(&violation);
    return TRUE;
}

/* Proves each iteration before it would run, twice: its calls, then its step. */
static gboolean
time_growing_proof(const RpProfile *profile, const RpPartition *partition, guint round,
                   GError **error)
{
    g_autoptr(RpPlanner) planner = new_planner(profile, partition, round, error);
    gint64 best = G_MAXINT64;
    guint64 n = 0;

    if (planner == NULL)
        return FALSE;
    RpPlan *plan = rp_planner_plan(planner);
    g_autoptr(RpVerifier) verifier = rp_verifier_new(plan);
    for (guint i = 0; i < ITERATIONS; i++) {
        const RpTaskId begin = rp_plan_end_id(plan);
        RpViolation violation;
        gint64 took = 0;

        for (guint part = 0; part < 2; part++) {
            if (part == 0 && !rp_planner_append_call(planner, error))
                return FALSE;
            if (part == 1)
                rp_planner_append_step(planner);
            const gint64 start = g_get_monotonic_time();
            if (!rp_verifier_extend(verifier, part == 0 ? RP_GROWN_CALLS : RP_GROWN_STEP,
                                    &violation)) {
                printf("%s\n", violation.message);
                rp_violation_clear(&violation);
                return TRUE;
            }
            took += g_get_monotonic_time() - start;
        }
        n = rp_plan_end_id(plan) - begin;
        best = MIN(best, took);
        rp_plan_retire(plan, rp_plan_end_id(plan));
    }
    printf("growing rounds of %2u  %6" G_GUINT64_FORMAT
           " tasks  best %.2f ms, %.2f us a task; %u tasks held\n",
           round, n, (double)best / 1e3, (double)best / (double)n, rp_verifier_n_held(verifier));
    return TRUE;
}

int
main(int argc, char **argv)
{
    g_autoptr(GError) error = NULL;
    const char *path = argc > 1 ? argv[1] : RP_BENCH_PROFILE;
    g_autoptr(RpProfile) profile = rp_profile_load(path, &error);
    g_autoptr(RpPartition) partition = NULL;

    if (profile != NULL)
        partition = rp_partition_paper(profile, 8, 64, profile->gpu_memory_bytes, &error);
    for (guint round = 8; partition != NULL && error == NULL && round <= 64; round *= 8)
        if (time_planning(profile, partition, round, &error))
            if (time_proof(profile, partition, round, &error))
                (void)time_growing_proof(profile, partition, round, &error);
    if (error == NULL)
        return 0;
    fprintf(stderr, "bench-planner: %s\n", error->message);
    return 1;
}
