#include "tests/rp-test.h"

#include "core/verify/verify.h"
#include "tests/core/plan-mutate.h"

static void
assert_proved(const RpPlan *plan, const char *what)
{
    RpViolation violation;

    if (!rp_verify_plan(plan, &violation))
        fail_msg("%s: %s", what, violation.message);
    assert_int_equal(violation.rule, RP_RULE_NONE);
    assert_null(violation.message);
}

static void
assert_broken(const RpPlan *plan, RpRule rule, RpTaskId first, RpTaskId second, const char *part)
{
    RpViolation violation;

    assert_false(rp_verify_plan(plan, NULL));
    assert_false(rp_verify_plan(plan, &violation));
    if (violation.rule != rule || violation.first != first || violation.second != second ||
        strstr(violation.message, part) == NULL)
        fail_msg("not what was expected: %s", violation.message);
    rp_violation_clear(&violation);
    assert_null(violation.message);
}

/* Two gpus, a stage of one layer each, one micro-batch:
 *
 *   gpu 0   |F0|                |B0|
 *   gpu 1       |F1| |B1|
 */
enum { F0, F1, B1, B0 };

static RpPlan *
two_stages(void)
{
    RpPlan *plan = rp_plan_new(2, RP_FIDELITY_COMPUTE, 2, 1);

    for (guint s = 0; s < 2; s++) {
        RpPlanStage stage = {.layers = {s, 1},
                             .runs_forward = TRUE,
                             .runs_backward = TRUE,
                             .bound = TRUE,
                             .device = s};

        rp_plan_add_stage(plan, &stage);
    }
    return plan;
}

static RpTaskId
append_action(RpPlan *plan, RpTaskKind kind, guint stage, RpTaskId dependency)
{
    RpDependency edge = {.task = dependency, .hop_ns = 10};
    RpTask task = {.kind = (guint8)kind,
                   .lane = rp_plan_lane(plan, stage, RP_LANE_COMPUTE),
                   .stage = stage,
                   .layer = RP_NONE,
                   .chunk = RP_NONE,
                   .duration_ns = 100};

    return rp_plan_append(plan, &task, &edge, dependency == RP_TASK_NONE ? 0 : 1, NULL, 0);
}

static RpPlan *
two_stage_plan(void)
{
    RpPlan *plan = two_stages();

    append_action(plan, RP_TASK_FORWARD, 0, RP_TASK_NONE);
    append_action(plan, RP_TASK_FORWARD, 1, F0);
    append_action(plan, RP_TASK_BACKWARD, 1, RP_TASK_NONE);
    append_action(plan, RP_TASK_BACKWARD, 0, B1);
    return plan;
}

RP_TEST(proves_an_empty_plan)
{
    RpPlan *plan = rp_plan_new(2, RP_FIDELITY_FULL, 4, 1);

    assert_proved(plan, "empty");
    rp_plan_free(plan);
}

RP_TEST(proves_a_plan_by_hand)
{
    RpPlan *plan = two_stage_plan();

    assert_proved(plan, "two stages");
    assert_true(rp_verify_plan(plan, NULL));
    rp_plan_free(plan);
}

RP_TEST(names_the_forward_that_a_forward_does_not_wait_for)
{
    RpPlan *plan = two_stages();

    append_action(plan, RP_TASK_FORWARD, 0, RP_TASK_NONE);
    append_action(plan, RP_TASK_FORWARD, 1, RP_TASK_NONE);
    append_action(plan, RP_TASK_BACKWARD, 1, RP_TASK_NONE);
    append_action(plan, RP_TASK_BACKWARD, 0, B1);
    assert_broken(plan, RP_RULE_ACTIONS, F0, F1,
                  "rule 1 (actions): the forward's input is not sure to be there");
    assert_broken(plan, RP_RULE_ACTIONS, F0, F1, "place 1 of the compute lane");
    rp_plan_free(plan);
}

RP_TEST(names_the_action_that_is_missing)
{
    RpPlan *plan = two_stages();

    append_action(plan, RP_TASK_FORWARD, 0, RP_TASK_NONE);
    append_action(plan, RP_TASK_FORWARD, 1, F0);
    append_action(plan, RP_TASK_BACKWARD, 1, RP_TASK_NONE);
    assert_broken(plan, RP_RULE_ACTIONS, RP_TASK_NONE, F0, "no backward of stage 0");
    append_action(plan, RP_TASK_INPUT_GRADIENT, 0, B1);
    assert_broken(plan, RP_RULE_ACTIONS, RP_TASK_NONE, 3, "no weight gradient of stage 0");
    append_action(plan, RP_TASK_WEIGHT_GRADIENT, 0, RP_TASK_NONE);
    assert_proved(plan, "split backward");
    append_action(plan, RP_TASK_BACKWARD, 0, B1);
    assert_broken(plan, RP_RULE_ACTIONS, 3, 5, "a backward runs twice");
    rp_plan_free(plan);
}

RP_TEST(refuses_a_layer_that_no_stage_runs)
{
    RpPlan *plan = rp_plan_new(2, RP_FIDELITY_COMPUTE, 2, 1);
    RpPlanStage stage = {.layers = {0, 1}, .runs_forward = TRUE, .device = RP_NONE};

    rp_plan_add_stage(plan, &stage);
    append_action(plan, RP_TASK_FORWARD, 0, RP_TASK_NONE);
    assert_broken(plan, RP_RULE_ACTIONS, RP_TASK_NONE, RP_TASK_NONE, "layer 1 runs forward in no");
    rp_plan_free(plan);
}

RP_TEST(finds_a_cycle_and_names_two_of_its_tasks)
{
    RpPlan *plan = two_stages();

    /* gpu 0: F0, B0; gpu 1: B1, F1 -- B1 waits for F1 through its own lane */
    append_action(plan, RP_TASK_FORWARD, 0, RP_TASK_NONE);
    append_action(plan, RP_TASK_BACKWARD, 1, 2);
    append_action(plan, RP_TASK_FORWARD, 1, F0);
    append_action(plan, RP_TASK_BACKWARD, 0, 1);
    assert_broken(plan, RP_RULE_DEADLOCK, 2, 1, "rule 3 (deadlock): a cycle of 2 tasks");
    rp_plan_free(plan);
}

RP_TEST(finds_a_dependency_on_a_later_task)
{
    RpPlan *plan = two_stages();

    append_action(plan, RP_TASK_FORWARD, 1, 1);
    append_action(plan, RP_TASK_FORWARD, 0, RP_TASK_NONE);
    append_action(plan, RP_TASK_BACKWARD, 1, RP_TASK_NONE);
    append_action(plan, RP_TASK_BACKWARD, 0, B1);
    assert_broken(plan, RP_RULE_DEADLOCK, 1, 0, "which the plan lists later");
    rp_plan_free(plan);
}

RP_TEST(finds_dependencies_that_nothing_can_meet)
{
    RpPlan *plan = two_stages();

    append_action(plan, RP_TASK_FORWARD, 0, 7);
    assert_broken(plan, RP_RULE_DEADLOCK, RP_TASK_NONE, 0, "task 7, which the plan does not have");
    rp_plan_free(plan);
    plan = two_stages();
    append_action(plan, RP_TASK_FORWARD, 0, 0);
    assert_broken(plan, RP_RULE_DEADLOCK, 0, 0, "waits for itself");
    rp_plan_free(plan);
}

/* One gpu, one layer, one micro-batch, synchronous, by hand:
 *
 *   parameter-up    |upload|
 *   compute                 |F||B|
 *   gradient-down                 |download|
 *   optimizer                               |step|norm|
 */
enum { UPLOAD, FORWARD, BACKWARD, DOWNLOAD, STEP };
enum { WEIGHTS, HOME, SUM, LEAVING, GRADIENTS, STATE, DECISION };

static guint32
append_full(RpPlan *plan, RpTask task, RpTaskId dependency, const RpAccess *accesses, guint n)
{
    RpDependency edge = {.task = dependency};

    return (guint32)rp_plan_append(plan, &task, &edge, dependency == RP_TASK_NONE ? 0 : 1, accesses,
                                   n);
}

static RpPlan *
one_layer_plan(gboolean step_waits)
{
    RpPlan *plan = rp_plan_new(1, RP_FIDELITY_FULL, 1, 1);
    RpPlanTables *tables = rp_plan_tables(plan);
    const RpPlanLayer layer = {.frozen = RP_NONE,
                               .weights = {HOME, RP_NONE},
                               .gradients = {GRADIENTS, RP_NONE, RP_NONE, RP_NONE},
                               .optimizer = STATE,
                               .copied = RP_NONE,
                               .reduced = RP_NONE,
                               .tied_to = RP_NONE};
    static const guint first_segment[2] = {0, 1};
    static const RpSegment segment = {.layer = 0, .offset = 0, .bytes = 4096};
    RpPlanStage stage = {.layers = {0, 1},
                         .runs_forward = TRUE,
                         .runs_backward = TRUE,
                         .bound = TRUE,
                         .parameter_bytes = 4096,
                         .upload_bytes = 4096,
                         .gradient_bytes = 4096};
    RpChunks *chunks[] = {&stage.parameters, &stage.gradients};
    const guint32 arenas[] = {0, 1, 0, 0, 1, 1, 1};
    const RpBufferCategory categories[] = {
        RP_BUFFER_PARAMETERS, RP_BUFFER_PARAMETERS, RP_BUFFER_ACCUMULATORS, RP_BUFFER_GRADIENTS,
        RP_BUFFER_GRADIENTS,  RP_BUFFER_OPTIMIZER,  RP_BUFFER_OPTIMIZER};

    for (guint i = 0; i < 2; i++) {
        chunks[i]->n_chunks = 1;
        chunks[i]->first_segment = g_memdup2(first_segment, sizeof first_segment);
        chunks[i]->chunk_bytes = g_memdup2(&segment.bytes, sizeof segment.bytes);
        chunks[i]->segments = g_memdup2(&segment, sizeof segment);
    }
    tables->modes.weights = RP_WEIGHTS_PER_ITERATION;
    tables->storage.element_bytes = 2;
    rp_plan_add_stage(plan, &stage);
    for (guint i = 0; i < G_N_ELEMENTS(arenas); i++) {
        RpBuffer buffer = {.arena = arenas[i],
                           .category = categories[i],
                           .offset = 32768 * (guint64)i,
                           .bytes = 32768};

        rp_plan_place_buffer(plan, &buffer);
    }
    tables->layers[0] = layer;
    tables->decisions[0] = DECISION;
    tables->n_decisions = 1;
    const RpTask base = {.stage = 0, .layer = RP_NONE, .chunk = RP_NONE, .micro_batch = RP_NONE};
    RpTask task = base;
    task.kind = RP_TASK_PARAMETER_UPLOAD;
    task.lane = rp_plan_lane(plan, 0, RP_LANE_PARAMETER_UP);
    task.chunk = 0;
    task.bytes = 4096;
    append_full(plan, task, RP_TASK_NONE,
                (RpAccess[]){{HOME, RP_ACCESS_READ, RP_ROLE_HOST},
                             {WEIGHTS, RP_ACCESS_WRITE, RP_ROLE_PARAMETERS}},
                2);
    task = base;
    task.kind = RP_TASK_FORWARD;
    task.lane = rp_plan_lane(plan, 0, RP_LANE_COMPUTE);
    task.micro_batch = 0;
    append_full(plan, task, UPLOAD, (RpAccess[]){{WEIGHTS, RP_ACCESS_READ, RP_ROLE_PARAMETERS}}, 1);
    task.kind = RP_TASK_BACKWARD;
    append_full(plan, task, RP_TASK_NONE,
                (RpAccess[]){{WEIGHTS, RP_ACCESS_READ, RP_ROLE_PARAMETERS},
                             {SUM, RP_ACCESS_WRITE, RP_ROLE_SUM},
                             {LEAVING, RP_ACCESS_WRITE, RP_ROLE_LEAVING}},
                3);
    task = base;
    task.kind = RP_TASK_GRADIENT_DOWNLOAD;
    task.lane = rp_plan_lane(plan, 0, RP_LANE_GRADIENT_DOWN);
    task.chunk = 0;
    task.bytes = 4096;
    append_full(plan, task, BACKWARD,
                (RpAccess[]){{LEAVING, RP_ACCESS_READ, RP_ROLE_LEAVING},
                             {GRADIENTS, RP_ACCESS_WRITE, RP_ROLE_HOST}},
                2);
    task = base;
    task.kind = RP_TASK_OPTIMIZER_STEP;
    task.lane = rp_plan_host_lane(plan, RP_HOST_LANE_OPTIMIZER);
    task.layer = 0;
    append_full(plan, task, step_waits ? DOWNLOAD : UPLOAD,
                (RpAccess[]){{GRADIENTS, RP_ACCESS_READ, RP_ROLE_HOST},
                             {STATE, RP_ACCESS_READ | RP_ACCESS_WRITE, RP_ROLE_HOST},
                             {HOME, RP_ACCESS_WRITE, RP_ROLE_HOST},
                             {DECISION, RP_ACCESS_READ | RP_ACCESS_WRITE, RP_ROLE_DECISION}},
                4);
    task.kind = RP_TASK_NORM;
    task.layer = RP_NONE;
    append_full(plan, task, RP_TASK_NONE,
                (RpAccess[]){{DECISION, RP_ACCESS_READ | RP_ACCESS_WRITE, RP_ROLE_DECISION}}, 1);
    return plan;
}

RP_TEST(proves_a_full_plan_by_hand)
{
    RpPlan *plan = one_layer_plan(TRUE);

    assert_proved(plan, "one layer");
    rp_plan_free(plan);
}

RP_TEST(names_the_gradient_that_a_step_does_not_wait_for)
{
    RpPlan *plan = one_layer_plan(FALSE);

    assert_broken(plan, RP_RULE_INCOMPLETE_GRADIENTS, DOWNLOAD, STEP,
                  "rule 5 (incomplete gradients): the gradients may be read before they have");
    rp_plan_free(plan);
}

RP_TEST(proves_every_schedule)
{
    guint n = 0;

    for (const RpScheduleOps *const *schedule = rp_schedules(); *schedule != NULL; schedule++) {
        for (guint options = 0; options < 64; options += RP_TEST_FEW ? 5 : 1) {
            for (guint gpus = 1; gpus <= 4; gpus += gpus == 2 ? 2 : 1) {
                for (guint m = 1; m <= 8; m += m < 4 ? 1 : 2) {
                    guint per_gpu = (*schedule)->stages_per_gpu > 0 ? (*schedule)->stages_per_gpu
                                                                    : 1 + options % 2;
                    RpTestPlan test = {
                        .schedule = (*schedule)->name,
                        .gpus = gpus,
                        .stages = gpus * per_gpu,
                        .micro_batches = m,
                        .round = (*schedule)->dispatched && m == 2 * gpus ? gpus : 0,
                        .fidelity = options & 1 ? RP_FIDELITY_FULL : RP_FIDELITY_COMPUTE,
                        .async = (options & 2) != 0,
                        .early = (options & 4) != 0,
                        .blocking = (options & 8) != 0,
                        .apart = options % 3 == 0,
                        .lean = (options & 16) != 0,
                        .naive = (options & 32) != 0,
                        .token_bytes = m % 2 * 512,
                        .iterations = 4,
                    };
                    RpPlan *plan = rp_test_plan(&test);

                    if (plan == NULL)
                        continue;
                    assert_proved(plan, test.schedule);
                    rp_plan_free(plan);
                    n++;
                }
            }
        }
    }
    print_message("%u plans proved\n", n);
    assert_true(n > (RP_TEST_FEW ? 500 : 3000));
}

RP_TEST(proves_ties_calls_and_resumed_plans)
{
    guint n = 0;

    for (const RpScheduleOps *const *schedule = rp_schedules(); *schedule != NULL; schedule++) {
        for (guint options = 0; options < 256; options += RP_TEST_FEW ? 7 : 1) {
            for (guint gpus = 1; gpus <= 3; gpus++) {
                RpTestPlan test = {
                    .schedule = (*schedule)->name,
                    .gpus = gpus,
                    .stages = gpus * MAX(1, (*schedule)->stages_per_gpu),
                    .micro_batches = 2 * gpus,
                    .round = (*schedule)->dispatched && (options & 64) != 0 ? gpus : 0,
                    .fidelity = RP_FIDELITY_FULL,
                    .async = (options & 2) != 0,
                    .early = TRUE,
                    .blocking = (options & 8) != 0,
                    .lean = (options & 16) != 0,
                    .token_bytes = 512,
                    .iterations = 4,
                    .calls = 1 + (options & 1),
                    .tied = (options & 4) != 0 ? RP_TEST_TIED + gpus % 3 : 0,
                    .resumed = (options & 32) != 0,
                    .at_once = (options & 128) != 0,
                };
                RpPlan *plan = rp_test_plan(&test);

                if (plan == NULL)
                    continue;
                assert_proved(plan, test.schedule);
                rp_plan_free(plan);
                n++;
            }
        }
    }
    print_message("%u plans proved\n", n);
    assert_true(n > (RP_TEST_FEW ? 150 : 1500));
}

/* k calls of M micro-batches are one call of k M in rounds of M. */
RP_TEST(plans_calls_like_rounds)
{
    RpTestPlan calls = {"roundpipe", 2,    2,     2,     0,     RP_FIDELITY_FULL,
                        TRUE,        TRUE, FALSE, FALSE, FALSE, 512,
                        3,           3,    TRUE,  FALSE};
    RpTestPlan rounds = {"roundpipe", 2,    2,     6,     2,     RP_FIDELITY_FULL,
                         TRUE,        TRUE, FALSE, FALSE, FALSE, 512,
                         3,           1,    TRUE,  FALSE};
    RpPlan *a = rp_test_plan(&calls);
    RpPlan *b = rp_test_plan(&rounds);

    assert_int_equal(rp_plan_end_id(a), rp_plan_end_id(b));
    for (RpTaskId id = 0; id < rp_plan_end_id(a); id++) {
        const RpTask *x = rp_plan_task(a, id), *y = rp_plan_task(b, id);

        assert_memory_equal(x, y, sizeof *x);
        assert_memory_equal(rp_plan_dependencies(a, x), rp_plan_dependencies(b, y),
                            x->dependency_count * sizeof(RpDependency));
    }
    rp_plan_free(a);
    rp_plan_free(b);
}

/* The matrix is kept once, its step reads both gradients and it is uploaded twice. */
RP_TEST(keeps_a_tied_matrix_once)
{
    RpTestPlan test = {"roundpipe", 2,    2,     2,     0,     RP_FIDELITY_FULL,
                       TRUE,        TRUE, FALSE, FALSE, FALSE, 512,
                       3,           1,    TRUE,  FALSE};
    RpPlan *plan = rp_test_plan(&test);
    guint last = rp_plan_n_layers(plan) - 1;
    const RpPlanLayer *head = rp_plan_layer(plan, last), *embedding = rp_plan_layer(plan, 0);
    RpPlanDraft *draft;
    RpViolation violation;

    assert_int_equal(head->tied_to, 0);
    assert_int_equal(embedding->tied_to, RP_NONE);
    assert_int_equal(rp_plan_buffer(plan, head->weights[0])->bytes, 1024);
    assert_int_equal(rp_plan_buffer(plan, head->gradients[0])->bytes, 5120);
    assert_int_equal(rp_plan_buffer(plan, head->optimizer)->bytes, 6 * 1024);
    /* a step that does not wait for the head's gradient is found out */
    draft = rp_plan_draft_new(plan);
    for (guint i = 0; i < draft->tasks->len; i++) {
        RpDraftTask *task = rp_plan_draft_task(draft, i);

        if (task->task.kind != RP_TASK_OPTIMIZER_STEP || task->task.layer != 0)
            continue;
        for (guint k = 0; k < task->accesses->len; k++)
            if (g_array_index(task->accesses, RpAccess, k).buffer == head->gradients[0])
                g_array_remove_index(task->accesses, k--);
    }
    assert_false(rp_plan_draft_verify(draft, &violation));
    assert_int_equal(violation.rule, RP_RULE_INCOMPLETE_GRADIENTS);
    rp_violation_clear(&violation);
    rp_plan_draft_free(draft);
    rp_plan_free(plan);
}

/* A flush in the middle changes no value: the plan around it still proves right. */
RP_TEST(proves_a_plan_that_is_flushed)
{
    for (guint options = 0; options < 8; options++) {
        RpTestPlan test = {"roundpipe",
                           2,
                           2,
                           4,
                           2,
                           RP_FIDELITY_FULL,
                           (options & 1) != 0,
                           TRUE,
                           (options & 2) != 0,
                           (options & 4) != 0,
                           FALSE,
                           512,
                           0,
                           1,
                           TRUE,
                           FALSE};
        RpProfile *profile = rp_test_profile(rp_test_n_layers(&test), 512);
        RpPlanner *planner;

        rp_test_tie(profile, RP_TEST_TIED);
        planner = rp_test_planner(&test, profile);
        for (guint i = 0; i < 4; i++) {
            assert_true(rp_planner_append_iteration(planner, NULL));
            if (i % 2 == 1)
                rp_planner_flush(planner);
            if (i > 0) /* before, nothing shows that copies are going to publish the weights */
                assert_proved(rp_planner_plan(planner), "flushed");
        }
        rp_planner_finish(planner);
        assert_proved(rp_planner_plan(planner), "flushed");
        rp_planner_free(planner);
        rp_profile_free(profile);
    }
}

static const RpTestPlan growing[] = {
    {"roundpipe", 2, 2, 4, 2, RP_FIDELITY_FULL, TRUE, TRUE, FALSE, FALSE, FALSE, 512, 0},
    {"roundpipe", 2, 2, 4, 2, RP_FIDELITY_FULL, TRUE, TRUE, FALSE, TRUE, FALSE, 512, 0},
    {"roundpipe", 2, 2, 4, 0, RP_FIDELITY_FULL, FALSE, TRUE, TRUE, FALSE, FALSE, 512, 0},
    {"mobius", 2, 4, 4, 0, RP_FIDELITY_FULL, TRUE, TRUE, FALSE, TRUE, FALSE, 512, 0},
    {"1f1b", 2, 2, 4, 0, RP_FIDELITY_FULL, TRUE, TRUE, FALSE, FALSE, FALSE, 512, 0},
    {"zb-v", 2, 4, 3, 0, RP_FIDELITY_COMPUTE, TRUE, TRUE, FALSE, FALSE, FALSE, 512, 0},
};

RP_TEST(proves_a_plan_at_every_stage_of_its_growth)
{
    for (guint p = 0; p < G_N_ELEMENTS(growing); p++) {
        RpProfile *profile = rp_test_profile(rp_test_n_layers(&growing[p]), 512);
        RpPlanner *planner = rp_test_planner(&growing[p], profile);

        assert_non_null(planner);
        for (guint i = 0; i < 5; i++) {
            assert_true(rp_planner_append_iteration(planner, NULL));
            assert_proved(rp_planner_plan(planner), growing[p].schedule);
        }
        rp_planner_finish(planner);
        assert_proved(rp_planner_plan(planner), growing[p].schedule);
        rp_planner_free(planner);
        rp_profile_free(profile);
    }
}

RP_TEST(proves_what_is_left_after_retiring)
{
    for (guint p = 0; p < G_N_ELEMENTS(growing); p++) {
        RpTestPlan test = growing[p];
        RpPlan *plan;

        test.iterations = 5;
        plan = rp_test_plan(&test);
        for (RpTaskId id = 0; id < rp_plan_end_id(plan); id += 7) {
            rp_plan_retire(plan, id);
            assert_proved(plan, test.schedule);
        }
        rp_plan_free(plan);
    }
}

RP_TEST(still_finds_what_is_wrong_after_retiring)
{
    RpTestPlan test = growing[0];
    RpPlan *whole, *plan;
    RpPlanDraft *draft;
    RpTaskId first = 0;
    guint upload;

    test.iterations = 5;
    whole = rp_test_plan(&test);
    draft = rp_plan_draft_new(whole);
    upload = rp_plan_draft_find(draft, RP_TASK_ACTIVATION_UPLOAD, 3, 7);
    g_array_set_size(rp_plan_draft_task(draft, upload)->dependencies, 0);
    while (rp_plan_task(whole, first)->iteration == 0)
        first++;
    plan = rp_plan_draft_build(draft);
    rp_plan_retire(plan, first);
    assert_false(rp_verify_plan(plan, NULL));
    rp_plan_free(plan);
    rp_plan_draft_free(draft);
    rp_plan_free(whole);
}

RP_TEST(does_not_decide_what_is_too_large)
{
    RpTestPlan test = growing[0];
    RpViolation violation;
    RpPlan *plan;

    test.iterations = 3;
    plan = rp_test_plan(&test);
    assert_false(rp_verify_plan_within(plan, 1024, &violation));
    assert_int_equal(violation.rule, RP_RULE_NONE);
    assert_non_null(strstr(violation.message, "too large to verify"));
    rp_violation_clear(&violation);
    assert_true(rp_verify_plan_within(plan, 1 << 20, &violation));
    rp_plan_free(plan);
}

/* A trace in which every task starts as early as it may and transfers take 7 ns. */
static RpTrace *
earliest(const RpPlan *plan, RpTraceOrigin origin)
{
    RpTrace *trace = rp_trace_new(plan, origin);
    gint64 *lane_end_ns = g_new0(gint64, rp_plan_n_lanes(plan));

    for (RpTaskId id = 0; id < rp_plan_end_id(plan); id++) {
        const RpTask *task = rp_plan_task(plan, id);
        const RpDependency *dependencies = rp_plan_dependencies(plan, task);
        RpTraceRecord record;

        rp_trace_record_init(&record, id, task);
        record.start_ns = lane_end_ns[task->lane];
        for (guint i = 0; i < task->dependency_count; i++)
            record.start_ns =
                MAX(record.start_ns, rp_trace_records(trace)[dependencies[i].task].end_ns +
                                         dependencies[i].hop_ns -
                                         (dependencies[i].phase > 0 ? task->lead_ns : 0));
        record.end_ns = record.start_ns + (rp_task_is_compute(task) ? task->duration_ns : 7);
        lane_end_ns[task->lane] = record.end_ns;
        rp_trace_append(trace, &record);
    }
    g_free(lane_end_ns);
    return trace;
}

RP_TEST(proves_a_trace)
{
    for (guint p = 0; p < G_N_ELEMENTS(growing); p++) {
        RpTestPlan test = growing[p];
        RpViolation violation;
        RpTrace *trace;
        RpPlan *plan;

        test.iterations = 3;
        plan = rp_test_plan(&test);
        for (guint origin = 0; origin < 2; origin++) {
            trace = earliest(plan, (RpTraceOrigin)origin);
            if (!rp_verify_trace(plan, trace, &violation))
                fail_msg("%s", violation.message);
            rp_trace_free(trace);
        }
        rp_plan_free(plan);
    }
}

typedef struct {
    RpTaskId task;
    gint64 start_ns, end_ns; /* added */
    RpTaskId first, second;
    const char *message;
} TraceChange;

RP_TEST(names_what_is_wrong_with_a_trace)
{
    static const TraceChange changes[] = {
        {F1, -1, -1, F0, F1, "1 ns before what it waits for was done"},
        {F1, 0, -1, RP_TASK_NONE, F1, "took 99 ns, the plan says 100"},
        {F1, 0, -200, RP_TASK_NONE, F1, "ended 100 ns before it started"},
        {B1, -3, -3, F1, B1, "two tasks of one lane overlap"},
    };
    RpPlan *plan = two_stage_plan();
    RpViolation violation;

    for (guint i = 0; i < G_N_ELEMENTS(changes); i++) {
        RpTrace *right = earliest(plan, RP_TRACE_PREDICTED);
        RpTrace *trace = rp_trace_new(plan, RP_TRACE_PREDICTED);

        for (gsize k = 0; k < rp_trace_n_records(right); k++) {
            RpTraceRecord record = rp_trace_records(right)[k];

            if (record.task == changes[i].task) {
                record.start_ns += changes[i].start_ns;
                record.end_ns += changes[i].end_ns;
            }
            rp_trace_append(trace, &record);
        }
        assert_false(rp_verify_trace(plan, trace, &violation));
        assert_int_equal(violation.rule, RP_RULE_TRACE);
        if (violation.first != changes[i].first || violation.second != changes[i].second ||
            strstr(violation.message, changes[i].message) == NULL)
            fail_msg("%s", violation.message);
        rp_violation_clear(&violation);
        rp_trace_free(trace);
        rp_trace_free(right);
    }
    rp_plan_free(plan);
}

RP_TEST(misses_no_task_in_a_trace)
{
    RpPlan *plan = two_stage_plan();
    RpTrace *right = earliest(plan, RP_TRACE_PREDICTED);
    RpTraceRecord record = rp_trace_records(right)[F1];
    RpTrace *trace = rp_trace_new(plan, RP_TRACE_PREDICTED);
    RpViolation violation;

    rp_trace_append(trace, &record);
    assert_false(rp_verify_trace(plan, trace, &violation));
    assert_int_equal(violation.first, F0);
    rp_violation_clear(&violation);
    rp_trace_append(right, &record);
    assert_false(rp_verify_trace(plan, right, &violation));
    assert_non_null(strstr(violation.message, "ran twice"));
    rp_violation_clear(&violation);
    record.task = 9;
    rp_trace_append(trace, &record);
    assert_false(rp_verify_trace(plan, trace, &violation));
    assert_non_null(strstr(violation.message, "task 9 ran, which the plan does not have"));
    rp_violation_clear(&violation);
    rp_trace_free(trace);
    rp_trace_free(right);
    rp_plan_free(plan);
}

RP_TEST(compares_the_bytes_of_a_trace_with_the_plan)
{
    RpTestPlan test = growing[0];
    RpPlan *plan;
    guint transfers = 0;

    test.iterations = 2;
    plan = rp_test_plan(&test);
    for (RpTaskId id = 0; id < rp_plan_end_id(plan); id++) {
        RpTrace *right = earliest(plan, RP_TRACE_MEASURED);
        RpTrace *trace = rp_trace_new(plan, RP_TRACE_MEASURED);
        RpViolation violation;

        for (gsize k = 0; k < rp_trace_n_records(right); k++) {
            RpTraceRecord record = rp_trace_records(right)[k];

            record.bytes += record.task == id;
            rp_trace_append(trace, &record);
        }
        assert_false(rp_verify_trace(plan, trace, &violation));
        assert_int_equal(violation.rule, RP_RULE_TRACE);
        assert_int_equal(violation.second, id);
        assert_non_null(strstr(violation.message, "bytes were moved, the plan says"));
        transfers += rp_plan_task(plan, id)->bytes > 0;
        rp_violation_clear(&violation);
        rp_trace_free(trace);
        rp_trace_free(right);
    }
    assert_true(transfers > 10);
    rp_plan_free(plan);
}

RP_TEST(forgives_a_measured_trace_its_clocks)
{
    RpPlan *plan = two_stage_plan();
    RpTrace *right = earliest(plan, RP_TRACE_PREDICTED);
    RpTrace *trace = rp_trace_new(plan, RP_TRACE_MEASURED);
    RpViolation violation;

    for (gsize k = 0; k < rp_trace_n_records(right); k++) {
        RpTraceRecord record = rp_trace_records(right)[k];

        record.start_ns = record.start_ns * 1000 - (k == F1 ? RP_VERIFY_CLOCK_SLACK_NS : 0);
        record.end_ns *= 1000;
        rp_trace_append(trace, &record);
    }
    assert_true(rp_verify_trace(plan, trace, &violation));
    rp_trace_free(trace);
    rp_trace_free(right);
    rp_plan_free(plan);
}

RP_TEST(names_every_rule)
{
    for (guint r = 0; r < RP_N_RULES; r++)
        assert_string_not_equal(rp_rule_name((RpRule)r), "");
    assert_string_equal(rp_rule_name(RP_N_RULES), "unknown");
    assert_int_equal(rp_rule_number(RP_RULE_STALENESS), 5);
    assert_int_equal(rp_rule_number(RP_RULE_ARENA), 2);
    assert_int_equal(rp_rule_number(RP_RULE_TRACE), 0);
}
