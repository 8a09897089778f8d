/* A schedule of one's own, planned, proved and simulated:  schedule PROFILE.json GPUS MICRO_BATCHES
 * After rp_schedule_add() a run file may say `schedule: eager-1f1b`, too. */
#include <stdio.h>
#include <stdlib.h>

#include <roundpipe.h>

static void
order(const RpShape *shape, guint gpu, GArray *actions)
{
    const guint M = shape->micro_batches, ahead = MIN(M, 2 * (shape->gpus - gpu) - 1);

    for (guint i = 0; i < M + ahead; i++) {
        if (i < M)
            rp_order_push(actions, RP_ACTION_FORWARD, gpu, i);
        if (i + 1 >= ahead && i + 1 - ahead < M)
            rp_order_push(actions, RP_ACTION_BACKWARD, gpu, i + 1 - ahead);
    }
}

static const RpScheduleOps eager = {
    .name = "eager-1f1b",
    .title = "Eager 1F1B",
    .summary = "1F1B with twice as many forwards ahead, so that each hop hides",
    .stages_per_gpu = 1,
    .order = order,
};

static int
fail(const char *message)
{
    fprintf(stderr, "schedule: %s\n", message);
    return 1;
}

int
main(int argc, char **argv)
{
    GError *error = NULL;

    if (argc != 4) {
        fprintf(stderr, "usage: schedule PROFILE.json GPUS MICRO_BATCHES\n");
        return 2;
    }
    const guint gpus = (guint)atoi(argv[2]), micro_batches = (guint)atoi(argv[3]);
    g_autoptr(RpProfile) profile =
        rp_schedule_add(&eager, &error) ? rp_profile_load(argv[1], &error) : NULL;
    g_autoptr(RpPartition) stages =
        profile != NULL ? rp_partition_min_max(profile, gpus, &error) : NULL;
    const RpPlanOptions options = {
        .schedule = &eager, .gpus = gpus, .micro_batches = micro_batches};
    g_autoptr(RpPlan) plan =
        stages != NULL ? rp_plan_make(profile, stages, &options, 1, &error) : NULL;
    RpViolation violation = {0};

    if (plan == NULL)
        return fail(error->message);
    if (!rp_verify_plan(plan, &violation))
        return fail(violation.message);
    g_autoptr(RpTrace) trace = rp_simulate(plan, NULL, &error);
    if (trace == NULL)
        return fail(error->message);
    printf("proved; makespan %.4f ms, bubble ratio %.4f %%\n",
           (double)rp_trace_makespan_ns(trace) / 1e6, 100 * rp_report_bubble(trace).ratio);
    return 0;
}
