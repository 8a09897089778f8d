/*
 * A plan that is proved while it grows: every plan of the planner is, and a broken one is refused
 * by the time that a proof of the whole would refuse it.
 */
#include "tests/rp-test.h"

#include "tests/core/plan-mutate.h"

#define ITERATIONS 7

static void
assert_extended(RpVerifier *verifier, RpGrown grown, const RpTestPlan *test, guint iteration)
{
    RpViolation violation;

    if (!rp_verifier_extend(verifier, grown, &violation))
        fail_msg("%s, %u gpus, async %d, lean %d, blocking %d, at once %d, calls %u, resumed %d, "
                 "iteration %u: %s",
                 test->schedule, test->gpus, test->async, test->lean, test->blocking, test->at_once,
                 test->calls, test->resumed, iteration, violation.message);
}

/* Appends, proves and retires as a trainer does; now and then a flush. Returns: FALSE if there is
 * no such plan */
static gboolean
grow(const RpTestPlan *test, guint iterations, guint flush_every)
{
    g_autoptr(RpProfile) profile = rp_test_profile_of(test);
    guint most = 0;

    g_autoptr(RpPlanner) planner = rp_test_planner(test, profile);
    if (planner == NULL)
        return FALSE;
    RpPlan *plan = rp_planner_plan(planner);
    g_autoptr(RpVerifier) verifier = rp_verifier_new(plan);

    for (guint i = 0; i < iterations; i++) {
        for (guint c = 0; c < MAX(1, test->calls); c++) {
            assert_true(rp_planner_append_call(planner, NULL));
            assert_extended(verifier, c + 1 < test->calls ? RP_GROWN_PART : RP_GROWN_CALLS, test,
                            i);
            rp_plan_retire(plan, rp_plan_end_id(plan) - (i + c) % 5);
        }
        rp_planner_append_step(planner);
        assert_extended(verifier, RP_GROWN_STEP, test, i);
        if (flush_every > 0 && i % flush_every == flush_every - 1) {
            rp_planner_flush(planner);
            assert_extended(verifier, RP_GROWN_STEP, test, i);
        }
        rp_plan_retire(plan, rp_plan_end_id(plan));
        if (i <= 4)
            most = MAX(most, rp_verifier_n_held(verifier));
        else /* iterations alternate in the tasks that they leave behind */
            assert_true(rp_verifier_n_held(verifier) <= most + most / 2);
    }
    rp_planner_finish(planner);
    assert_extended(verifier, RP_GROWN_STEP, test, ITERATIONS);
    return TRUE;
}

RP_TEST(proves_every_schedule_while_it_grows)
{
    const guint every = RP_TEST_EVERY(5, 29);
    guint n = 0;

    for (const RpScheduleOps *const *schedule = rp_schedules(); *schedule != NULL; schedule++) {
        for (guint options = 0; options < 1024; options += every) {
            for (guint gpus = 1; gpus <= 3; gpus++) {
                const RpTestPlan test = {
                    .schedule = (*schedule)->name,
                    .gpus = gpus,
                    .stages = gpus * MAX(1, (*schedule)->stages_per_gpu),
                    .micro_batches = 2 * gpus,
                    .round = (*schedule)->dispatched && (options & 64) != 0 ? gpus : 0,
                    .fidelity = options & 256 ? RP_FIDELITY_COMPUTE : RP_FIDELITY_FULL,
                    .async = (options & 2) != 0,
                    .early = TRUE,
                    .blocking = (options & 8) != 0,
                    .lean = (options & 16) != 0,
                    .token_bytes = 512,
                    .calls = 1 + (options & 1),
                    .tied = (options & 4) != 0 ? RP_TEST_TIED + gpus % 3 : 0,
                    .resumed = (options & 32) != 0,
                    .at_once = (options & 128) != 0,
                    .packed = (options & 512) != 0,
                    .early_steps = options % 5 < 2,
                    .saved = (*schedule)->dispatched && options % 5 == 0 ? RP_SAVED(ATTENTION) : 0,
                    .resident = (options & 640) == 640 ? G_MAXUINT64 : 0,
                };

                /* an iteration is not over before the next, and no trainer runs it so */
                if (!(*schedule)->unflushed || !test.async)
                    n += grow(&test, ITERATIONS, options % 3);
            }
        }
    }
    print_message("%u plans proved while they grew\n", n);
    assert_true(n > 20000 / every);
}

/* One stage on more devices than there are micro-batches in a round: each has work in every eighth
 * iteration only, and waits for tasks that have left the window. */
RP_TEST(proves_devices_that_rest)
{
    for (guint options = 0; options < 16; options++) {
        const RpTestPlan test = {.schedule = "roundpipe",
                                 .gpus = 8,
                                 .stages = options & 4 ? 1 : 0,
                                 .micro_batches = 8,
                                 .fidelity = RP_FIDELITY_FULL,
                                 .async = (options & 1) != 0,
                                 .at_once = (options & 2) != 0,
                                 .early = TRUE,
                                 .token_bytes = 512,
                                 .resident = options & 8 ? G_MAXUINT64 : 0};

        assert_true(grow(&test, 40, 0));
    }
}

static const RpTestPlan broken[] = {
    {"roundpipe", 2, 2, 2, 0, RP_FIDELITY_FULL, TRUE, TRUE, FALSE, FALSE, FALSE, 512, ITERATIONS},
    {"roundpipe", 2, 2, 4, 2, RP_FIDELITY_FULL, TRUE, TRUE, FALSE, TRUE, FALSE, 512, ITERATIONS},
    {"roundpipe", 2, 1, 2, 0, RP_FIDELITY_FULL, FALSE, TRUE, FALSE, FALSE, FALSE, 512, ITERATIONS},
    {"roundpipe", 2, 1, 2, 0, RP_FIDELITY_FULL, TRUE, TRUE, TRUE, FALSE, FALSE, 512, ITERATIONS},
    {"roundpipe", 2, 2, 2, 0, RP_FIDELITY_FULL, TRUE, TRUE, FALSE, FALSE, FALSE, 512, ITERATIONS, 1,
     FALSE, TRUE, TRUE},
    {"1f1b", 2, 2, 3, 0, RP_FIDELITY_FULL, FALSE, TRUE, FALSE, FALSE, FALSE, 512, ITERATIONS},
    {"roundpipe", 2, 2, 4, 2, RP_FIDELITY_FULL, FALSE, TRUE, .token_bytes = 512,
     .iterations = ITERATIONS, .tied = RP_TEST_TIED, .early_steps = TRUE},
    {"mobius", 2, 4, 2, 0, RP_FIDELITY_FULL, TRUE, TRUE, FALSE, FALSE, FALSE, 512, ITERATIONS},
    {"zb-h1", 2, 2, 3, 0, RP_FIDELITY_COMPUTE, TRUE, TRUE, FALSE, FALSE, FALSE, 512, ITERATIONS},
    {"roundpipe", 2, 2, 4, 2, RP_FIDELITY_FULL, TRUE, TRUE, .token_bytes = 512,
     .iterations = ITERATIONS, .packed = TRUE},
    {"roundpipe", 2, 2, 4, 2, RP_FIDELITY_FULL, TRUE, TRUE, .token_bytes = 512,
     .iterations = ITERATIONS, .resident = G_MAXUINT64},
    {"roundpipe", 2, 1, 4, 2, RP_FIDELITY_FULL, TRUE, TRUE, .token_bytes = 512,
     .iterations = ITERATIONS, .saved = RP_SAVED(ATTENTION)},
};

/* Ids at which the planner was done with an iteration; the last is the end. */
static GArray *
ends_of_iterations(const RpTestPlan *test)
{
    RpTestPlan empty = *test;
    GArray *ends = g_array_new(FALSE, FALSE, sizeof(RpTaskId));
    g_autoptr(RpProfile) profile = rp_test_profile_of(test);

    empty.iterations = 0;
    g_autoptr(RpPlanner) planner = rp_test_planner(&empty, profile);
    for (guint i = 0; i < test->iterations; i++) {
        assert_true(rp_planner_append_iteration(planner, NULL));
        const RpTaskId end = rp_plan_end_id(rp_planner_plan(planner));
        g_array_append_val(ends, end);
    }
    rp_planner_finish(planner);
    const RpTaskId end = rp_plan_end_id(rp_planner_plan(planner));
    g_array_append_val(ends, end);
    return ends;
}

/* How many tasks of @draft are not dropped up to @end, an id of the plan as it was. */
static RpTaskId
end_without_dropped(const RpPlanDraft *draft, RpTaskId end)
{
    RpTaskId n = 0;

    for (guint i = 0; i < MIN(end, draft->tasks->len); i++)
        n += !rp_plan_draft_task(draft, i)->dropped;
    return n;
}

/* Verifies @plan, made of @draft, iteration by iteration. */
static gboolean
prove_growing(const RpPlanDraft *draft, RpPlan *plan, const GArray *ends, RpViolation *violation)
{
    g_autoptr(RpPlanDraft) empty = rp_plan_draft_new(plan);
    RpTaskId next = 0;

    for (guint i = 0; i < empty->tasks->len; i++)
        rp_plan_draft_task(empty, i)->dropped = TRUE;
    g_autoptr(RpPlan) growing = rp_plan_draft_build(empty);
    g_autoptr(RpVerifier) verifier = rp_verifier_new(growing);
    for (guint i = 0; i < ends->len; i++) {
        const RpTaskId until = end_without_dropped(draft, g_array_index(ends, RpTaskId, i));

        for (; next < until; next++) {
            const RpTask *task = rp_plan_task(plan, next);

            rp_plan_append(growing, task, rp_plan_dependencies(plan, task), task->dependency_count,
                           rp_plan_accesses(plan, task), task->access_count);
        }
        if (!rp_verifier_extend(verifier, RP_GROWN_STEP, violation))
            return FALSE;
        rp_plan_retire(growing, next);
    }
    return TRUE;
}

static void
assert_same_verdict(const RpPlanDraft *draft, const GArray *ends, const RpTestPlan *test,
                    const char *change, guint *n_refused)
{
    g_autoptr(RpPlan) plan = rp_plan_draft_build(draft);
    RpViolation whole, growing;
    const gboolean proved = rp_verify_plan(plan, &whole);
    const gboolean grown = prove_growing(draft, plan, ends, &growing);

    if (proved != grown)
        fail_msg("%s: %s: the whole: %s; growing: %s", test->schedule, change,
                 proved ? "proved" : whole.message, grown ? "proved" : growing.message);
    *n_refused += !proved;
    rp_violation_clear(&whole);
    rp_violation_clear(&growing);
}

static gboolean
is_late(const RpDraftTask *task)
{
    return task->task.iteration == ITERATIONS - 2;
}

/* Edges of an iteration before which others have left the window. */
RP_TEST(misses_the_edges_that_a_proof_of_the_whole_misses)
{
    const guint every = RP_TEST_EVERY(3, 7);
    guint n = 0, n_refused = 0;

    for (guint p = 0; p < G_N_ELEMENTS(broken); p++) {
        g_autoptr(RpPlanDraft) draft = rp_test_draft(&broken[p]);
        g_autoptr(GArray) ends = ends_of_iterations(&broken[p]);

        assert_same_verdict(draft, ends, &broken[p], "nothing", &n_refused);
        for (guint i = p % every; i < draft->tasks->len; i += every) {
            GArray *edges = rp_plan_draft_task(draft, i)->dependencies;

            for (guint k = 0; k < edges->len && is_late(rp_plan_draft_task(draft, i)); k++) {
                const RpDependency edge = g_array_index(edges, RpDependency, k);
                char change[80];

                g_array_remove_index(edges, k);
                g_snprintf(change, sizeof change, "edge %u of task %u left out", k, i);
                assert_same_verdict(draft, ends, &broken[p], change, &n_refused);
                g_array_insert_val(edges, k, edge);
                n++;
            }
        }
    }
    print_message("%u edges left out, %u plans refused\n", n, n_refused);
    assert_true(n > 500 / every && n_refused > 200 / every);
}

RP_TEST(misses_the_accesses_and_tasks_that_a_proof_of_the_whole_misses)
{
    const guint every = RP_TEST_EVERY(3, 7);
    guint n = 0, n_refused = 0;

    for (guint p = 0; p < G_N_ELEMENTS(broken); p++) {
        g_autoptr(RpPlanDraft) draft = rp_test_draft(&broken[p]);
        g_autoptr(GArray) ends = ends_of_iterations(&broken[p]);

        for (guint i = p % every; i < draft->tasks->len; i += every) {
            RpDraftTask *task = rp_plan_draft_task(draft, i);
            char change[80];

            if (!is_late(task))
                continue;
            task->dropped = TRUE;
            g_snprintf(change, sizeof change, "task %u left out", i);
            assert_same_verdict(draft, ends, &broken[p], change, &n_refused);
            task->dropped = FALSE;
            n++;
            for (guint k = 0; k < task->accesses->len; k++) {
                RpAccess *access = rp_plan_draft_access(draft, i, k);
                const guint32 right = access->buffer;
                const RpBuffer *from = &g_array_index(draft->buffers, RpBuffer, right);

                for (guint32 b = 0; b < draft->buffers->len; b++) {
                    const RpBuffer *to = &g_array_index(draft->buffers, RpBuffer, b);

                    if (b == right || to->arena != from->arena || to->category != from->category)
                        continue;
                    access->buffer = b;
                    g_snprintf(change, sizeof change, "task %u in buffer %u", i, b);
                    assert_same_verdict(draft, ends, &broken[p], change, &n_refused);
                    n++;
                    break;
                }
                access->buffer = right;
            }
        }
    }
    print_message("%u changes, %u plans refused\n", n, n_refused);
    assert_true(n > 500 / every && n_refused * 10 > n * 8);
}

/* Work that is handed over is proved before: a call that is broken is refused with the call. */
RP_TEST(refuses_a_call_before_its_step)
{
    const RpTestPlan test = {"roundpipe", 2,     2,     2,     0,   RP_FIDELITY_FULL, TRUE,
                             TRUE,        FALSE, FALSE, FALSE, 512, ITERATIONS};
    g_autoptr(RpPlanDraft) draft = rp_test_draft(&test);
    g_autoptr(GArray) ends = ends_of_iterations(&test);
    const guint forward = rp_plan_draft_find(draft, RP_TASK_FORWARD, 5, 1);
    RpViolation violation;

    g_array_set_size(rp_plan_draft_task(draft, forward)->dependencies, 0);
    /* only up to the end of that call */
    for (guint i = 0; i < draft->tasks->len; i++)
        rp_plan_draft_task(draft, i)->dropped = i > g_array_index(ends, RpTaskId, 5);
    g_autoptr(RpPlan) plan = rp_plan_draft_build(draft);
    assert_false(prove_growing(draft, plan, ends, &violation));
    assert_int_equal(violation.second, forward);
    rp_violation_clear(&violation);
}

/* Its fields are looked at before it has a place in its lane. */
RP_TEST(names_a_new_task_that_works_on_nothing)
{
    const RpTestPlan test = {"roundpipe", 2,     2,     2,     0,   RP_FIDELITY_FULL, TRUE,
                             TRUE,        FALSE, FALSE, FALSE, 512, ITERATIONS};
    g_autoptr(RpPlanDraft) draft = rp_test_draft(&test);
    g_autoptr(GArray) ends = ends_of_iterations(&test);
    const guint forward = rp_plan_draft_find(draft, RP_TASK_FORWARD, 5, 0);
    RpViolation violation;

    rp_plan_draft_task(draft, forward)->task.micro_batch = 2;
    g_autoptr(RpPlan) plan = rp_plan_draft_build(draft);
    assert_false(prove_growing(draft, plan, ends, &violation));
    assert_int_equal(violation.rule, RP_RULE_ACTIONS);
    assert_int_equal(violation.second, forward);
    assert_null(strstr(violation.message, "place"));
    rp_violation_clear(&violation);
}
