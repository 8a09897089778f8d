/* Plans that only run forward, as evaluations do: on the stages and arenas of those that train. */
#include "tests/rp-test.h"

#include "tests/core/plan-mutate.h"

typedef void (*Check)(const RpTestPlan *test, const RpPlan *plan);

static void
assert_proved(const RpTestPlan *test, const RpPlan *plan)
{
    RpViolation violation;

    if (!rp_verify_plan(plan, &violation))
        fail_msg("%s, %u gpus, %u stages, %u micro-batches: %s", test->schedule, test->gpus,
                 test->stages, test->micro_batches, violation.message);
}

/* Every schedule that is trained, with shapes and modes of every kind. */
static void
for_each(Check check)
{
    static const struct {
        const char *schedule;
        guint stages_per_gpu; /* 0: dispatched */
    } schedules[] = {{"gpipe", 1},      {"1f1b", 1},   {"interleaved-1f1b", 2},
                     {"looped-bfs", 3}, {"mobius", 2}, {"roundpipe", 0}};
    guint n = 0;

    for (guint s = 0; s < G_N_ELEMENTS(schedules); s++)
        for (guint gpus = 1; gpus <= 3; gpus++)
            for (guint kind = 0; kind < 32; kind++) {
                const RpTestPlan test = {
                    .schedule = schedules[s].schedule,
                    .gpus = gpus,
                    .stages = schedules[s].stages_per_gpu > 0 ? schedules[s].stages_per_gpu * gpus
                                                              : kind % 4,
                    .micro_batches = 6,
                    .round = schedules[s].stages_per_gpu == 0 && (kind & 4) != 0 ? 3 : 0,
                    .fidelity = RP_FIDELITY_FULL,
                    .async = (kind & 1) != 0,
                    .lean = (kind & 2) != 0,
                    .calls = (kind & 8) != 0 && schedules[s].stages_per_gpu != 2 ? 2 : 1,
                    .packed = (kind & 16) != 0,
                    .tied = (kind & 4) != 0 && (kind & 16) == 0,
                    .iterations = 4,
                    .forward = TRUE,
                };
                g_autoptr(RpPlan) plan = rp_test_plan(&test);

                if (plan == NULL)
                    continue;
                check(&test, plan);
                n++;
            }
    assert_true(n > 400);
}

RP_TEST(every_schedule_is_proved)
{
    for_each(assert_proved);
}

/* Each layer of each micro-batch once an iteration, and nothing else on the compute lanes. */
static void
check_counts(const RpTestPlan *test, const RpPlan *plan)
{
    guint64 layers = 0;

    for (RpTaskId id = 0; id < rp_plan_end_id(plan); id++) {
        const RpTask *task = rp_plan_task(plan, id);

        if (!rp_task_is_compute(task))
            continue;
        assert_int_equal(task->kind, RP_TASK_FORWARD);
        layers += rp_plan_stage(plan, task->stage)->layers.count;
    }
    assert_int_equal(layers, (guint64)test->iterations * 6 * rp_plan_n_layers(plan));
}

RP_TEST(every_layer_runs_once)
{
    for_each(check_counts);
}

static void
assert_same_place(const RpPlan *plan, guint32 a, const RpPlan *other, guint32 b)
{
    assert_int_equal(a == RP_NONE, b == RP_NONE);
    if (a != RP_NONE)
        assert_int_equal(rp_plan_buffer(plan, a)->offset, rp_plan_buffer(other, b)->offset);
}

/* Buffers that live in the arenas for good lie where they do in training, and the arenas are no
 * larger. */
static void
check_arenas(const RpTestPlan *test, const RpPlan *plan)
{
    RpTestPlan trains = *test;

    trains.forward = FALSE;
    g_autoptr(RpPlan) other = rp_test_plan(&trains);

    assert_int_equal(rp_plan_n_stages(plan), rp_plan_n_stages(other));
    for (guint32 a = 0; a <= test->gpus; a++)
        if (rp_plan_arena_bytes(plan, a) > rp_plan_arena_bytes(other, a))
            fail_msg("%s, %u gpus, %u stages: arena %u has %" G_GUINT64_FORMAT
                     " bytes, in training %" G_GUINT64_FORMAT,
                     test->schedule, test->gpus, test->stages, a, rp_plan_arena_bytes(plan, a),
                     rp_plan_arena_bytes(other, a));
    for (guint l = 0; l < rp_plan_n_layers(plan); l++) {
        const RpPlanLayer *own = rp_plan_layer(plan, l), *its = rp_plan_layer(other, l);

        assert_same_place(plan, own->frozen, other, its->frozen);
        assert_same_place(plan, own->weights[0], other, its->weights[0]);
        assert_same_place(plan, own->weights[1], other, its->weights[1]);
        assert_same_place(plan, own->optimizer, other, its->optimizer);
    }
    for (guint g = 0; g < test->gpus; g++)
        assert_same_place(plan, rp_plan_constants(plan, g), other, rp_plan_constants(other, g));
}

RP_TEST(its_arenas_are_those_of_training)
{
    for_each(check_arenas);
}

static RpPlanDraft *
new_draft(void)
{
    const RpTestPlan test = {.schedule = "roundpipe",
                             .gpus = 2,
                             .stages = 3,
                             .micro_batches = 4,
                             .fidelity = RP_FIDELITY_FULL,
                             .async = TRUE,
                             .iterations = 2,
                             .forward = TRUE};

    return rp_test_draft(&test);
}

static void
assert_names(const RpPlanDraft *draft, RpRule rule, const char *part)
{
    RpViolation violation;

    assert_false(rp_plan_draft_verify(draft, &violation));
    if (violation.rule != rule || strstr(violation.message, part) == NULL)
        fail_msg("not what was expected: %s", violation.message);
    rp_violation_clear(&violation);
}

RP_TEST(names_a_forward_that_is_missing)
{
    g_autoptr(RpPlanDraft) draft = new_draft();

    rp_plan_draft_task(draft, rp_plan_draft_find(draft, RP_TASK_FORWARD, 0, 15))->dropped = TRUE;
    assert_names(draft, RP_RULE_ACTIONS, "no forward of stage 3, micro-batch 3");
}

RP_TEST(names_an_upload_that_is_missing)
{
    g_autoptr(RpPlanDraft) draft = new_draft();

    rp_plan_draft_task(draft, rp_plan_draft_find(draft, RP_TASK_PARAMETER_UPLOAD, 1, 0))->dropped =
        TRUE;
    assert_names(draft, RP_RULE_TRANSFERS, "does not find a chunk of the parameters");
}

RP_TEST(names_a_task_that_changes_something)
{
    g_autoptr(RpPlanDraft) draft = new_draft();
    const guint last = rp_plan_draft_find(draft, RP_TASK_FORWARD, 0, 15);

    rp_plan_draft_task(draft, last)->task.kind = RP_TASK_FUSED;
    assert_names(draft, RP_RULE_ACTIONS, "only runs forward has no such task");
}

RP_TEST(names_a_forward_that_may_start_before_its_input)
{
    g_autoptr(RpPlanDraft) draft = new_draft();
    const guint upload = rp_plan_draft_find(draft, RP_TASK_ACTIVATION_UPLOAD, 0, 4);

    g_array_set_size(rp_plan_draft_task(draft, upload)->dependencies, 0);
    assert_false(rp_plan_draft_verify(draft, NULL));
}
