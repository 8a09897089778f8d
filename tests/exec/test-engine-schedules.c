/*
 * Every schedule, device count, fidelity and optimizer: the engine runs the plan and the trace
 * follows it, in random order and as fast as it goes.
 */
#include "tests/exec/engine-fixture.h"

#include "exec/replay/replay.h"

#define ITERATIONS 5

static void
run_iterations(Fixture *f)
{
    start_engine(f, &(RpEngineOptions){.keep_trace = TRUE, .ring = 2});
    for (guint k = 0; k < ITERATIONS; k++) {
        plan_iteration(f);
        if (k > 0) /* arenas have their size with the second */
            append_batch(f);
    }
    rp_planner_finish(f->planner);
    append_batch(f);
    finish(f);
}

static void
try_options(Fixture *f, const RpPlanOptions *options, gboolean automatic, guint *n_run)
{
    if (!make_planner(f, options, 16))
        return; /* not a shape of this schedule */
    if (automatic) {
        f->manual = manual_new();
        manual_set_automatic(f->manual, options->gpus);
    } else {
        f->replay = rp_replay_new(options->gpus, &(RpReplayOptions){.scale = 0});
    }
    run_iterations(f);
    (*n_run)++;
}

/* Returns: runs of one schedule with one fidelity */
static guint
try_shapes(Fixture *f, const RpScheduleOps *schedule, RpFidelity fidelity, gboolean automatic,
           guint max_gpus)
{
    guint n_run = 0;

    for (guint gpus = 1; gpus <= max_gpus; gpus++) {
        for (guint async = 0; async <= (schedule->dispatched ? 1u : 0u); async++) {
            const RpPlanOptions options = {
                .schedule = schedule,
                .gpus = gpus,
                .micro_batches = 2 * gpus,
                .slices = 1,
                .round = schedule->dispatched && gpus % 2 == 0 ? gpus : 0, /* two rounds */
                .async = async != 0,
                .fidelity = fidelity,
                .optimizer = gpus % 2 == 0 ? RP_OPTIMIZER_LEAN : RP_OPTIMIZER_FUSED,
                .consistency = gpus % 3 == 0 ? RP_CONSISTENCY_BLOCKING : RP_CONSISTENCY_EVENTS,
            };

            try_options(f, &options, automatic, &n_run);
        }
    }
    return n_run;
}

RP_TEST(runs_every_schedule_as_fast_as_it_goes)
{
    for (const RpScheduleOps *const *schedule = rp_schedules(); *schedule != NULL; schedule++) {
        const guint max_gpus = RP_TEST_FEW ? 5 : 8;

        assert_true(try_shapes(*state, *schedule, RP_FIDELITY_COMPUTE, FALSE, max_gpus) > 0);
        assert_true(try_shapes(*state, *schedule, RP_FIDELITY_FULL, FALSE, max_gpus) > 0 ||
                    (*schedule)->mirrored);
    }
}

RP_TEST(runs_every_schedule_in_random_order)
{
    for (const RpScheduleOps *const *schedule = rp_schedules(); *schedule != NULL; schedule++) {
        assert_true(try_shapes(*state, *schedule, RP_FIDELITY_COMPUTE, TRUE, 3) > 0);
        assert_true(try_shapes(*state, *schedule, RP_FIDELITY_FULL, TRUE, 3) > 0 ||
                    (*schedule)->mirrored);
    }
}

RP_TEST_FIXTURE(set_up, tear_down)
