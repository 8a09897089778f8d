/*
 * PyTorch pipeline CSV in, and plans from orders.
 */
#include "tests/rp-test.h"

#include "core/formats/export.h"
#include "core/formats/import-pytorch.h"
#include "core/verify/verify.h"

typedef struct {
    RpOrders *orders;
    RpOrders *again;
    RpPlan *plan;
    GOutputStream *stream;
    GString *text;
    GArray *array;
    RpViolation violation;
    GError *error;
} Fixture;

static void
tear_down(Fixture *fixture)
{
    rp_orders_free(fixture->orders);
    rp_orders_free(fixture->again);
    rp_plan_free(fixture->plan);
    g_clear_object(&fixture->stream);
    if (fixture->text != NULL)
        g_string_free(fixture->text, TRUE);
    if (fixture->array != NULL)
        g_array_unref(fixture->array);
    rp_violation_clear(&fixture->violation);
    g_clear_error(&fixture->error);
}

static void
import(Fixture *fixture, const char *text, guint flags)
{
    g_clear_pointer(&fixture->orders, rp_orders_free);
    fixture->orders = rp_orders_import_pytorch("o.csv", text, strlen(text), flags, &fixture->error);
}

static void
import_well(Fixture *fixture, const char *text, guint flags)
{
    import(fixture, text, flags);
    rp_assert_no_error(fixture->error);
    assert_non_null(fixture->orders);
}

static void
assert_action(Fixture *fixture, guint rank, guint i, RpActionKind kind, guint32 stage,
              guint32 micro_batch)
{
    assert_true(rank < fixture->orders->n_ranks);
    assert_true(i < fixture->orders->ranks[rank]->len);
    const RpAction *action = &g_array_index(fixture->orders->ranks[rank], RpAction, i);
    assert_int_equal(action->kind, kind);
    assert_int_equal(action->stage, stage);
    assert_int_equal(action->micro_batch, micro_batch);
}

RP_TEST_OF(reads_rows_as_ranks_and_skips_idle_cells, Fixture *fixture)
{
    import_well(fixture, "0F0,0F1,,0B0, 0I1 ,0W1\n,1F0,1B0\n", 0);
    assert_int_equal(fixture->orders->n_ranks, 2);
    assert_int_equal(fixture->orders->n_stages, 2);
    assert_int_equal(fixture->orders->micro_batches, 2);
    assert_int_equal(rp_orders_n_actions(fixture->orders), 7);
    assert_action(fixture, 0, 0, RP_ACTION_FORWARD, 0, 0);
    assert_action(fixture, 0, 2, RP_ACTION_BACKWARD, 0, 0);
    assert_action(fixture, 0, 3, RP_ACTION_INPUT_GRADIENT, 0, 1);
    assert_action(fixture, 0, 4, RP_ACTION_WEIGHT_GRADIENT, 0, 1);
    assert_action(fixture, 1, 1, RP_ACTION_BACKWARD, 1, 0);
    assert_int_equal(g_array_index(fixture->orders->cells[0], guint32, 2), 4);
}

RP_TEST_OF(lines_end_in_lf_crlf_or_the_file, Fixture *fixture)
{
    const char *const texts[] = {"0F0\n1F0\n", "0F0\r\n1F0\r\n", "0F0\n1F0", "0F0\r\n1F0\r"};

    for (guint i = 0; i < G_N_ELEMENTS(texts); i++) {
        import_well(fixture, texts[i], 0);
        assert_int_equal(fixture->orders->n_ranks, 2);
        assert_int_equal(rp_orders_n_actions(fixture->orders), 2);
    }
    import_well(fixture, "0F0\n\n1F0\n", 0); /* the rank in the middle has nothing to do */
    assert_int_equal(fixture->orders->n_ranks, 3);
    assert_int_equal(fixture->orders->ranks[1]->len, 0);
}

RP_TEST_OF(cells_that_do_not_compute_are_kept_apart, Fixture *fixture)
{
    import_well(fixture,
                "0UNSHARD,0F0,0SEND_F0,1RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n"
                "1RECV_F0,1F0,1B0,1SEND_B0\n",
                0);
    assert_int_equal(rp_orders_n_actions(fixture->orders), 4);
    assert_int_equal(rp_orders_n_communications(fixture->orders), 7);
    const RpCommunication *last =
        &g_array_index(fixture->orders->communications[0], RpCommunication, 4);
    assert_int_equal(last->kind, RP_COMMUNICATION_RESHARD);
    assert_int_equal(last->micro_batch, RP_NONE);
    assert_int_equal(last->cell, 7);
    assert_int_equal(last->position, 2);
}

RP_TEST_OF(an_overlap_is_one_action_and_of_the_same_stage_a_fused_one, Fixture *fixture)
{
    import_well(fixture, "(0F7;7B3)OVERLAP_F_B,(2F1;2B1)OVERLAP_F_B,(2F2;2B1)OVERLAP_F_B\n", 0);
    assert_action(fixture, 0, 0, RP_ACTION_OVERLAP, 0, 7);
    const RpAction *action = &g_array_index(fixture->orders->ranks[0], RpAction, 0);
    assert_int_equal(action->backward_stage, 7);
    assert_int_equal(action->backward_micro_batch, 3);
    assert_action(fixture, 0, 1, RP_ACTION_FUSED, 2, 1);
    assert_action(fixture, 0, 2, RP_ACTION_OVERLAP, 2, 2);
    assert_int_equal(fixture->orders->n_stages, 8);
    assert_int_equal(fixture->orders->micro_batches, 8);
}

RP_TEST_OF(older_names_are_read_only_if_asked_for, Fixture *fixture)
{
    import_well(fixture, "0F0,0B0,0W0,0F1,0BW1\n", RP_PYTORCH_OLD_NAMES);
    assert_action(fixture, 0, 1, RP_ACTION_INPUT_GRADIENT, 0, 0);
    assert_action(fixture, 0, 2, RP_ACTION_WEIGHT_GRADIENT, 0, 0);
    assert_action(fixture, 0, 4, RP_ACTION_BACKWARD, 0, 1);
    import(fixture, "0F0,0BW0\n", 0);
    rp_assert_error(&fixture->error, "cell 2: expected");
    import(fixture, "0F0,0I0\n", RP_PYTORCH_OLD_NAMES);
    rp_assert_error_message_contains(fixture->error, "cell 2: expected");
}

static char *
refusal(const char *text, gpointer data)
{
    Fixture *fixture = data;

    import(fixture, text, 0);
    return rp_test_refusal(&fixture->error);
}

RP_TEST(refuses_a_wrong_cell_with_its_place)
{
    rp_test_lines("tests/core/messages.txt", "import-pytorch: wrong cells", refusal, *state);
}

RP_TEST_OF(refuses_too_many_rows_and_cells, Fixture *fixture)
{
    fixture->text = g_string_new(NULL);
    for (guint i = 0; i <= RP_PYTORCH_MAX_ROWS; i++)
        g_string_append_c(fixture->text, '\n');
    import(fixture, fixture->text->str, 0);
    assert_null(fixture->orders);
    assert_true(g_error_matches(fixture->error, RP_IMPORT_ERROR, RP_IMPORT_ERROR_LIMIT));
    g_clear_error(&fixture->error);

    g_string_set_size(fixture->text, RP_PYTORCH_MAX_CELLS);
    memset(fixture->text->str, ',', fixture->text->len);
    import(fixture, fixture->text->str, 0);
    assert_null(fixture->orders);
    rp_assert_error(&fixture->error, "at most 16777216 cells");
    g_string_truncate(fixture->text, RP_PYTORCH_MAX_CELLS - 1);
    import_well(fixture, fixture->text->str, 0);
}

static void
make_plan(Fixture *fixture, const RpStageCost *cost, guint32 hop_ns)
{
    RpOrderCosts costs = {cost, 1, hop_ns, 0};

    g_clear_pointer(&fixture->plan, rp_plan_free);
    fixture->plan = rp_plan_from_orders(fixture->orders, &costs, &fixture->error);
}

static void
assert_proved(Fixture *fixture)
{
    if (!rp_verify_plan(fixture->plan, &fixture->violation))
        fail_msg("%s", fixture->violation.message);
}

static const RpStageCost unit_cost = {1, 2, 1, 1, 0};

static void
export_again(Fixture *fixture, const RpOrders *orders)
{
    g_clear_object(&fixture->stream);
    fixture->stream = g_memory_output_stream_new_resizable();
    assert_true(rp_export_pytorch(orders, fixture->stream, NULL, &fixture->error));
    GMemoryOutputStream *memory = G_MEMORY_OUTPUT_STREAM(fixture->stream);
    g_clear_pointer(&fixture->again, rp_orders_free);
    fixture->again =
        rp_must(rp_orders_import_pytorch, "again.csv", g_memory_output_stream_get_data(memory),
                g_memory_output_stream_get_data_size(memory), 0);
}

/* Every schedule, written and read, planned and taken out of the plan again, is the same. */
RP_TEST_OF(every_schedule_survives_the_way_through_a_file_and_a_plan, Fixture *fixture)
{
    for (const RpScheduleOps *const *s = rp_schedules(); *s != NULL; s++) {
        const RpScheduleOps *schedule = *s;
        guint v = schedule->stages_per_gpu ? schedule->stages_per_gpu : 2;
        RpShape shape = {
            .gpus = 4,
            .micro_batches = 8,
            .stages = schedule->dispatched ? 9 : 4 * v,
            .round = schedule->dispatched ? 4 : 8,
            .forward_slots = schedule->dispatched ? 3 : 0,
        };

        if (schedule->mirrored) /* a stage on two ranks */
            continue;
        if (!rp_schedule_check(schedule, &shape, NULL))
            shape.stages = 4;
        assert_true(rp_schedule_check(schedule, &shape, &fixture->error));
        g_clear_pointer(&fixture->orders, rp_orders_free);
        fixture->orders = rp_orders_new(schedule->name, shape.gpus);
        for (guint g = 0; g < shape.gpus; g++) {
            fixture->array = g_array_new(FALSE, FALSE, sizeof(RpAction));
            schedule->order(&shape, g, fixture->array);
            for (guint i = 0; i < fixture->array->len; i++)
                rp_orders_append(fixture->orders, g, &g_array_index(fixture->array, RpAction, i),
                                 i + 1);
            g_clear_pointer(&fixture->array, g_array_unref);
        }
        export_again(fixture, fixture->orders);
        assert_true(rp_orders_equal(fixture->orders, fixture->again));

        make_plan(fixture, &unit_cost, 1);
        rp_assert_no_error(fixture->error);
        assert_int_equal(rp_plan_end_id(fixture->plan), rp_orders_n_actions(fixture->orders));
        assert_proved(fixture);
        rp_orders_free(fixture->again);
        fixture->again = rp_orders_from_plan(fixture->plan, 0);
        assert_true(rp_orders_equal(fixture->orders, fixture->again));
    }
}

/* The dependency of @task on the task that does @kind of a stage and micro-batch; NULL if none. */
static const RpDependency *
dependency_on(Fixture *fixture, const RpTask *task, RpTaskKind kind, guint32 stage)
{
    const RpDependency *dependencies = rp_plan_dependencies(fixture->plan, task);

    for (guint k = 0; k < task->dependency_count; k++) {
        const RpTask *from = rp_plan_task(fixture->plan, dependencies[k].task);
        if (from->kind == kind && from->stage == stage && from->micro_batch == task->micro_batch)
            return &dependencies[k];
    }
    return NULL;
}

static const RpTask *
find_task(Fixture *fixture, RpTaskKind kind, guint32 stage)
{
    for (RpTaskId id = 0; id < rp_plan_end_id(fixture->plan); id++) {
        const RpTask *task = rp_plan_task(fixture->plan, id);
        if (task->kind == kind && task->stage == stage)
            return task;
    }
    fail_msg("no such task");
    return NULL;
}

RP_TEST_OF(actions_wait_for_what_they_need_and_hops_lie_between_ranks, Fixture *fixture)
{
    const RpStageCost cost = {10, 30, 25, 5, 10};

    /* stages 1 and 2 share a rank */
    import_well(fixture, "0F0,0I0,0W0\n1F0,2F0,2B0,1B0\n", 0);
    make_plan(fixture, &cost, 7);
    rp_assert_no_error(fixture->error);
    assert_int_equal(rp_plan_gpus(fixture->plan), 2);
    assert_int_equal(rp_plan_n_stages(fixture->plan), 3);
    assert_true(rp_plan_stage(fixture->plan, 2)->bound);
    assert_int_equal(rp_plan_stage(fixture->plan, 2)->device, 1);

    const RpTask *task = find_task(fixture, RP_TASK_FORWARD, 1);
    assert_int_equal(task->dependency_count, 1);
    assert_int_equal(dependency_on(fixture, task, RP_TASK_FORWARD, 0)->hop_ns, 7);
    assert_int_equal(task->duration_ns, 10);
    task = find_task(fixture, RP_TASK_BACKWARD, 2);
    assert_int_equal(task->dependency_count, 1);
    assert_int_equal(dependency_on(fixture, task, RP_TASK_FORWARD, 2)->hop_ns, 0);
    assert_int_equal(task->duration_ns, 30);
    assert_int_equal(task->lead_ns, 10);
    task = find_task(fixture, RP_TASK_BACKWARD, 1);
    assert_int_equal(dependency_on(fixture, task, RP_TASK_FORWARD, 1)->phase, 0);
    assert_int_equal(dependency_on(fixture, task, RP_TASK_BACKWARD, 2)->phase, 1);
    assert_int_equal(dependency_on(fixture, task, RP_TASK_BACKWARD, 2)->hop_ns, 0);
    task = find_task(fixture, RP_TASK_INPUT_GRADIENT, 0);
    assert_int_equal(dependency_on(fixture, task, RP_TASK_BACKWARD, 1)->hop_ns, 7);
    assert_int_equal(task->duration_ns, 25);
    task = find_task(fixture, RP_TASK_WEIGHT_GRADIENT, 0);
    assert_int_equal(task->dependency_count, 1);
    assert_non_null(dependency_on(fixture, task, RP_TASK_INPUT_GRADIENT, 0));
    assert_int_equal(task->duration_ns, 5);
    assert_int_equal(task->lead_ns, 0);
}

RP_TEST_OF(fused_actions_make_a_dispatched_plan, Fixture *fixture)
{
    const RpStageCost cost = {10, 30, 0, 0, 10};

    import_well(fixture, "0F0,3B0\n1F0,4B0\n(2F0;2B0)OVERLAP_F_B,5B0\n", 0);
    make_plan(fixture, &cost, 7);
    rp_assert_no_error(fixture->error);
    assert_int_equal(rp_plan_n_layers(fixture->plan), 2 * 3 + 1);
    assert_proved(fixture);
    for (guint32 s = 0; s < 6; s++) {
        const RpPlanStage *stage = rp_plan_stage(fixture->plan, s);
        assert_false(stage->bound);
        assert_int_equal(stage->runs_forward, s <= 2);
        assert_int_equal(stage->runs_backward, s >= 2);
        assert_int_equal(stage->layers.count, s < 2 ? 3 : s == 2 ? 1 : 2);
    }
    assert_int_equal(rp_plan_stage(fixture->plan, 5)->layers.first, 0);
    const RpTask *task = find_task(fixture, RP_TASK_FUSED, 2);
    assert_int_equal(task->duration_ns, 30);
    assert_int_equal(dependency_on(fixture, task, RP_TASK_FORWARD, 1)->hop_ns, 7);
    task = find_task(fixture, RP_TASK_BACKWARD, 3);
    assert_int_equal(dependency_on(fixture, task, RP_TASK_FUSED, 2)->phase, 1);
    assert_int_equal(dependency_on(fixture, task, RP_TASK_FORWARD, 1)->phase, 0);
}

RP_TEST_OF(rounds_of_a_dispatched_order_are_found_where_slots_move, Fixture *fixture)
{
    /* N = 2, S = 3, M_R = 2: slot 0 is on rank 0, then on rank 1 */
    import_well(fixture,
                "0F0,0F1,2B0,2B1,(1F2;1B2)OVERLAP_F_B,(1F3;1B3)OVERLAP_F_B\n"
                "(1F0;1B0)OVERLAP_F_B,(1F1;1B1)OVERLAP_F_B,0F2,0F3,2B2,2B3\n",
                0);
    make_plan(fixture, &unit_cost, 0);
    rp_assert_no_error(fixture->error);
    assert_proved(fixture);
    assert_int_equal(rp_plan_rounds(fixture->plan), 2);
    for (RpTaskId id = 0; id < rp_plan_end_id(fixture->plan); id++) {
        const RpTask *task = rp_plan_task(fixture->plan, id);
        assert_int_equal(task->round, task->micro_batch / 2);
    }
}

RP_TEST_OF(a_forward_only_order_makes_a_plan, Fixture *fixture)
{
    import_well(fixture, "0F0,0F1\n1F0,1F1\n", 0);
    make_plan(fixture, &unit_cost, 0);
    rp_assert_no_error(fixture->error);
    assert_int_equal(rp_plan_end_id(fixture->plan), 4);
    assert_false(rp_plan_stage(fixture->plan, 0)->runs_backward);
}

static char *
refusal_of_plan(const char *text, gpointer data)
{
    Fixture *fixture = data;

    import_well(fixture, text, 0);
    make_plan(fixture, &unit_cost, 0);
    return rp_test_refusal(&fixture->error);
}

RP_TEST(refuses_orders_that_no_plan_can_hold)
{
    rp_test_lines("tests/core/messages.txt", "import-pytorch: orders that no plan can hold",
                  refusal_of_plan, *state);
}

RP_TEST_OF(refuses_costs_that_do_not_suit, Fixture *fixture)
{
    const RpStageCost costs[] = {{1, 2, 1, 1, 0}, {1, 2, 1, 1, 3}, {-1, 2, 1, 1, 0}};

    import_well(fixture, "0F0,0B0,1F0,1B0,2F0,2B0\n", 0);
    RpOrderCosts two = {costs, 2, 0, 0};
    rp_refuses("has 3 stages, but costs are given for 2", rp_plan_from_orders, fixture->orders,
               &two);
    make_plan(fixture, &costs[1], 0);
    rp_assert_error(&fixture->error, "the cost of stage 0");
    make_plan(fixture, &costs[2], 0);
    rp_assert_error_message_contains(fixture->error, "the cost of stage 0");
}

RP_TEST(a_deadlock_names_the_actions_that_wait_for_each_other)
{
    rp_test_lines("tests/core/messages.txt", "import-pytorch: deadlocks", refusal_of_plan, *state);
}

RP_TEST_STATE(Fixture, rp_test_no_state, tear_down)
