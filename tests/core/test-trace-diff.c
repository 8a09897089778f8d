/*
 * Two traces beside each other: matching, unmatched tasks, slips, rankings.
 *
 *   1F1B-like, N = 2, M = 2, F = 10, B = 20
 *   gpu 0 |F0|F1|     | B0 | | B1 |      0 10 20 | 40 60 | 70 90
 *   gpu 1    |F0| B0 |F1| B1 |           10 20 40 50 70
 */
#include "tests/rp-test.h"

#include "core/trace/diff.h"

typedef struct {
    RpTrace *traces[2];
    RpTraceDiff *diff;
    GArray *list;
    GError *error;
} Fixture;

static const char *const names[] = {"a.json", "b.json"};

static void
tear_down(Fixture *fixture)
{
    rp_trace_diff_free(fixture->diff);
    rp_trace_free(fixture->traces[0]);
    rp_trace_free(fixture->traces[1]);
    g_clear_pointer(&fixture->list, g_array_unref);
    g_clear_error(&fixture->error);
}

static void
add(RpTrace *trace, guint8 kind, guint32 gpu, guint32 stage, guint32 micro_batch, gint64 start_ns,
    gint64 end_ns)
{
    RpTraceRecord record = {
        .task = rp_trace_n_records(trace),
        .kind = kind,
        .lane = gpu * RP_LANES_PER_DEVICE,
        .stage = stage,
        .micro_batch = micro_batch,
        .layer = RP_NONE,
        .chunk = RP_NONE,
        .start_ns = start_ns,
        .end_ns = end_ns,
    };

    rp_trace_append(trace, &record);
}

/* The one above. */
static RpTrace *
small_trace(RpTraceOrigin origin)
{
    RpTrace *trace = rp_trace_new_empty(2, origin);

    add(trace, RP_TASK_FORWARD, 0, 0, 0, 0, 10);
    add(trace, RP_TASK_FORWARD, 0, 0, 1, 10, 20);
    add(trace, RP_TASK_FORWARD, 1, 1, 0, 10, 20);
    add(trace, RP_TASK_BACKWARD, 1, 1, 0, 20, 40);
    add(trace, RP_TASK_FORWARD, 1, 1, 1, 40, 50);
    add(trace, RP_TASK_BACKWARD, 0, 0, 0, 40, 60);
    add(trace, RP_TASK_BACKWARD, 1, 1, 1, 50, 70);
    add(trace, RP_TASK_BACKWARD, 0, 0, 1, 70, 90);
    return trace;
}

static RpTraceRecord *
record(RpTrace *trace, gsize i)
{
    return (RpTraceRecord *)rp_trace_records(trace) + i;
}

static void
shift(RpTrace *trace, gsize first, gint64 start_ns, gint64 end_ns)
{
    record(trace, first)->start_ns += start_ns;
    record(trace, first)->end_ns += end_ns;
}

static void
both_small(Fixture *fixture)
{
    fixture->traces[0] = small_trace(RP_TRACE_PREDICTED);
    fixture->traces[1] = small_trace(RP_TRACE_MEASURED);
}

static gboolean
compare(Fixture *fixture, const RpTraceDiffOptions *options)
{
    const RpTraceDiffOptions plain = {.scale = 1};
    const RpTrace *const traces[] = {fixture->traces[0], fixture->traces[1]};

    fixture->diff =
        rp_trace_diff_new(traces, names, options != NULL ? options : &plain, &fixture->error);
    return fixture->diff != NULL;
}

static const RpTaskPair *
pair(const Fixture *fixture, gsize i)
{
    gsize n;
    const RpTaskPair *pairs = rp_trace_diff_pairs(fixture->diff, &n);

    assert_true(i < n);
    return &pairs[i];
}

RP_TEST_OF(a_trace_does_not_differ_from_itself, Fixture *fixture)
{
    gsize n;

    both_small(fixture);
    assert_true(compare(fixture, NULL));
    (void)rp_trace_diff_pairs(fixture->diff, &n);
    assert_int_equal(n, 8);
    for (gsize i = 0; i < n; i++) {
        assert_int_equal(pair(fixture, i)->record[0]->task, i);
        assert_int_equal(pair(fixture, i)->record[1]->task, i);
        assert_int_equal(pair(fixture, i)->slip_ns, 0);
    }
    assert_null(rp_trace_diff_reordered(fixture->diff));
    fixture->list = rp_trace_diff_rank(fixture->diff, RP_RANK_DURATION, 10);
    assert_int_equal(fixture->list->len, 0);
}

/* B(1, 0) takes 5 longer: everything after it is later, nothing slipped. */
RP_TEST_OF(a_longer_task_is_listed_and_what_waits_for_it_is_not, Fixture *fixture)
{
    both_small(fixture);
    shift(fixture->traces[1], 3, 0, 5);
    for (gsize i = 4; i < 8; i++)
        shift(fixture->traces[1], i, 5, 5);
    assert_true(compare(fixture, NULL));
    fixture->list = rp_trace_diff_rank(fixture->diff, RP_RANK_SLIP, 10);
    assert_int_equal(fixture->list->len, 0);
    g_array_unref(fixture->list);
    fixture->list = rp_trace_diff_rank(fixture->diff, RP_RANK_DURATION, 10);
    assert_int_equal(fixture->list->len, 1);
    const RpTaskPair *longest = &g_array_index(fixture->list, RpTaskPair, 0);
    assert_int_equal(longest->record[0]->task, 3);
    assert_int_equal(rp_task_pair_longer_ns(longest), 5);
}

/* F(1, 1) starts 7 late for no reason: it alone slipped. */
RP_TEST_OF(a_late_task_slips_and_what_waits_for_it_does_not, Fixture *fixture)
{
    both_small(fixture);
    shift(fixture->traces[1], 4, 7, 7);
    shift(fixture->traces[1], 6, 7, 7);
    shift(fixture->traces[1], 7, 7, 7);
    assert_true(compare(fixture, NULL));
    fixture->list = rp_trace_diff_rank(fixture->diff, RP_RANK_SLIP, 10);
    assert_int_equal(fixture->list->len, 1);
    assert_int_equal(g_array_index(fixture->list, RpTaskPair, 0).record[0]->task, 4);
    assert_int_equal(g_array_index(fixture->list, RpTaskPair, 0).slip_ns, 7);
}

/* With a hop of 3 between the devices, either predecessor may be the one that is waited for. */
RP_TEST_OF(a_hop_is_no_slip_when_another_predecessor_becomes_the_last, Fixture *fixture)
{
    for (guint side = 0; side < 2; side++) {
        RpTrace *trace = rp_trace_new_empty(2, RP_TRACE_PREDICTED);
        gint64 late_ns = side == 0 ? 0 : 20;

        add(trace, RP_TASK_FORWARD, 0, 0, 0, 0, 10 + late_ns);
        add(trace, RP_TASK_FORWARD, 1, 1, 0, 13 + late_ns, 23 + late_ns);
        record(trace, 1)->transfer_ns = 3;
        add(trace, RP_TASK_FORWARD, 0, 0, 1, 10 + late_ns, 14 + (side == 0 ? 0 : 40));
        /* due by its device (23), in the second by its input (54 and the hop) */
        add(trace, RP_TASK_FORWARD, 1, 1, 1, side == 0 ? 23 : 57, side == 0 ? 33 : 67);
        fixture->traces[side] = trace;
    }
    assert_true(compare(fixture, NULL));
    for (gsize i = 0; i < 4; i++)
        assert_int_equal(pair(fixture, i)->slip_ns, 0);
}

/* Nothing that a trace names links the two, but the one started the moment the other was over. */
RP_TEST_OF(what_ended_when_a_predicted_task_started_is_what_it_waited_for, Fixture *fixture)
{
    for (guint side = 0; side < 2; side++) {
        gint64 late_ns = side == 0 ? 0 : 6;
        RpTrace *trace = small_trace(side == 0 ? RP_TRACE_PREDICTED : RP_TRACE_MEASURED);

        add(trace, RP_TASK_OPTIMIZER_STEP, 0, RP_NONE, RP_NONE, 90, 100 + late_ns);
        record(trace, 8)->lane = 2 * RP_LANES_PER_DEVICE;
        record(trace, 8)->layer = 3;
        add(trace, RP_TASK_PARAMETER_UPLOAD, 0, 0, RP_NONE, 100 + late_ns, 104 + late_ns);
        record(trace, 9)->lane = RP_LANE_PARAMETER_UP;
        record(trace, 9)->bytes = 64;
        record(trace, 9)->chunk = 0;
        fixture->traces[side] = trace;
    }
    assert_true(compare(fixture, NULL));
    assert_int_equal(pair(fixture, 9)->record[0]->kind, RP_TASK_PARAMETER_UPLOAD);
    assert_int_equal(pair(fixture, 9)->slip_ns, 0);
}

/* Device 0 uploads the input of F(0, 1) at 2 in the prediction. Late, but there before F(0, 0) is
 * over, it slipped by nothing; 3 behind it, by 3 of the 11 that it was late. */
RP_TEST_OF(an_upload_slips_by_what_was_waited_for_it, Fixture *fixture)
{
    static const gint64 start_ns[] = {7, 11}, slip_ns[] = {0, 3};

    for (guint c = 0; c < 2; c++) {
        const gint64 wait_ns = slip_ns[c];

        for (guint side = 0; side < 2; side++) {
            RpTrace *trace =
                rp_trace_new_empty(1, side == 0 ? RP_TRACE_PREDICTED : RP_TRACE_MEASURED);

            add(trace, RP_TASK_FORWARD, 0, 0, 0, 0, 10);
            add(trace, RP_TASK_ACTIVATION_UPLOAD, 0, 0, 1, side == 0 ? 0 : start_ns[c],
                (side == 0 ? 0 : start_ns[c]) + 2);
            record(trace, 1)->lane = RP_LANE_ACTIVATION_UP;
            record(trace, 1)->layer = 0;
            add(trace, RP_TASK_FORWARD, 0, 0, 1, 10 + (side == 0 ? 0 : wait_ns),
                20 + (side == 0 ? 0 : wait_ns));
            rp_trace_free(fixture->traces[side]);
            fixture->traces[side] = trace;
        }
        g_clear_pointer(&fixture->diff, rp_trace_diff_free);
        assert_true(compare(fixture, NULL));
        assert_int_equal(pair(fixture, 1)->slip_ns, slip_ns[c]);
        assert_int_equal(pair(fixture, 2)->slip_ns, 0);
    }
}

/* One task adds rounds 1 and 2. In the second trace it waits for round 1, which came after 2. */
RP_TEST_OF(a_sum_of_rounds_waits_for_each_of_them, Fixture *fixture)
{
    for (guint side = 0; side < 2; side++) {
        const gint64 late_ns = side == 0 ? 0 : 20;
        RpTrace *trace = small_trace(side == 0 ? RP_TRACE_PREDICTED : RP_TRACE_MEASURED);

        for (guint round = 1; round <= 2; round++) {
            const gint64 start_ns = 90 + (round == 1 ? late_ns : 5);

            add(trace, RP_TASK_GRADIENT_DOWNLOAD, round - 1, 0, RP_NONE, start_ns, start_ns + 10);
            record(trace, 7 + round)->lane += RP_LANE_GRADIENT_DOWN;
            record(trace, 7 + round)->chunk = 0;
            record(trace, 7 + round)->bytes = 64;
            record(trace, 7 + round)->round = (guint16)round;
        }
        add(trace, RP_TASK_GRADIENT_ACCUMULATE, 0, 0, RP_NONE, side == 0 ? 105 : 120,
            side == 0 ? 115 : 130);
        record(trace, 10)->lane = 2 * RP_LANES_PER_DEVICE + RP_HOST_LANE_ACCUMULATE;
        record(trace, 10)->round = 2;
        fixture->traces[side] = trace;
    }
    assert_true(compare(fixture, NULL));
    for (gsize i = 8; i < 11; i++)
        if (pair(fixture, i)->record[0]->kind == RP_TASK_GRADIENT_ACCUMULATE)
            assert_int_equal(pair(fixture, i)->slip_ns, 0);
        else if (pair(fixture, i)->record[0]->round == 1)
            assert_int_equal(pair(fixture, i)->slip_ns, 20);
}

RP_TEST_OF(times_count_from_the_first_action_and_are_divided_by_the_scale, Fixture *fixture)
{
    const RpTraceDiffOptions by_work = {.scale = 0};

    both_small(fixture);
    for (gsize i = 0; i < 8; i++) {
        RpTraceRecord *task = record(fixture->traces[1], i);

        task->start_ns = 1000 + 4 * task->start_ns;
        task->end_ns = 1000 + 4 * task->end_ns;
    }
    assert_true(compare(fixture, &by_work));
    assert_true(rp_trace_diff_scale(fixture->diff) == 4.0);
    for (gsize i = 0; i < 8; i++)
        assert_int_equal(pair(fixture, i)->record[1]->start_ns,
                         pair(fixture, i)->record[0]->start_ns);
}

RP_TEST_OF(compares_the_common_iterations_or_those_that_are_asked_for, Fixture *fixture)
{
    const RpTraceDiffOptions last = {.first_iteration = 2, .end_iteration = 3, .scale = 1};
    const RpTraceDiffOptions beyond = {.first_iteration = 2, .end_iteration = 4, .scale = 1};

    for (guint side = 0; side < 2; side++) {
        fixture->traces[side] = rp_trace_new_empty(1, RP_TRACE_PREDICTED);
        for (guint32 i = side; i < 3 + side; i++) { /* 0 to 2, and 1 to 3 */
            add(fixture->traces[side], RP_TASK_FORWARD, 0, 0, 0, 10 * i, 10 * i + 10);
            record(fixture->traces[side], i - side)->iteration = i;
        }
    }
    assert_true(compare(fixture, NULL));
    assert_int_equal(rp_trace_diff_first_iteration(fixture->diff), 1);
    assert_int_equal(rp_trace_diff_end_iteration(fixture->diff), 3);
    assert_int_equal(rp_trace_n_records(rp_trace_diff_trace(fixture->diff, RP_TRACE_SECOND)), 2);
    rp_trace_diff_free(fixture->diff);
    assert_true(compare(fixture, &last));
    assert_int_equal(rp_trace_diff_first_iteration(fixture->diff), 2);
    assert_int_equal(pair(fixture, 0)->record[0]->start_ns, 0);
    rp_trace_diff_free(fixture->diff);
    assert_false(compare(fixture, &beyond));
    rp_assert_error_message_contains(fixture->error, "a.json, which has 0:3, found 2:4");
}

RP_TEST_OF(repeated_tasks_are_matched_in_their_order, Fixture *fixture)
{
    both_small(fixture);
    for (guint side = 0; side < 2; side++)
        for (gint64 i = 0; i < 2; i++) {
            add(fixture->traces[side], RP_TASK_PARAMETER_UPLOAD, 0, 0, RP_NONE, 10 * i, 10 * i + 4);
            record(fixture->traces[side], 8 + (gsize)i)->lane = RP_LANE_PARAMETER_UP;
        }
    assert_true(compare(fixture, NULL));
    assert_int_equal(pair(fixture, 8)->record[1]->task, 8);
    assert_int_equal(pair(fixture, 9)->record[1]->task, 9);
}

RP_TEST_OF(tasks_that_only_one_has_are_counted, Fixture *fixture)
{
    both_small(fixture);
    add(fixture->traces[1], RP_TASK_BARRIER, 0, RP_NONE, RP_NONE, 90, 90);
    record(fixture->traces[1], 8)->lane = 2 * RP_LANES_PER_DEVICE;
    assert_true(compare(fixture, NULL));
    assert_int_equal(rp_trace_diff_only(fixture->diff, RP_TRACE_FIRST, RP_TASK_BARRIER), 0);
    assert_int_equal(rp_trace_diff_only(fixture->diff, RP_TRACE_SECOND, RP_TASK_BARRIER), 1);
}

RP_TEST_OF(another_order_on_a_device_is_found, Fixture *fixture)
{
    both_small(fixture);
    record(fixture->traces[1], 0)->micro_batch = 1;
    record(fixture->traces[1], 1)->micro_batch = 0;
    assert_true(compare(fixture, NULL));
    assert_non_null(rp_trace_diff_reordered(fixture->diff));
    assert_int_equal(rp_trace_diff_reordered(fixture->diff)->record[0]->task, 1);
}

RP_TEST_OF(sums_by_kind_and_stage_come_largest_difference_first, Fixture *fixture)
{
    both_small(fixture);
    shift(fixture->traces[1], 7, 0, 9);  /* backward of stage 0: +9 */
    shift(fixture->traces[1], 4, 0, -6); /* forward of stage 1: -6 */
    assert_true(compare(fixture, NULL));
    fixture->list = rp_trace_diff_groups(fixture->diff);
    assert_int_equal(fixture->list->len, 4);
    const RpTaskGroup *groups = (const RpTaskGroup *)(const void *)fixture->list->data;
    assert_int_equal(groups[0].kind, RP_TASK_BACKWARD);
    assert_int_equal(groups[0].stage, 0);
    assert_int_equal(groups[0].count, 2);
    assert_int_equal(groups[0].total_ns[0], 40);
    assert_int_equal(groups[0].total_ns[1], 49);
    assert_int_equal(groups[1].kind, RP_TASK_FORWARD);
    assert_int_equal(groups[1].stage, 1);
    assert_int_equal(groups[1].total_ns[1] - groups[1].total_ns[0], -6);
}

RP_TEST_OF(rankings_hold_the_largest_and_ties_stay_in_task_order, Fixture *fixture)
{
    static const gint64 longer_ns[] = {1, -3, 2, 3, 0, 3, -5, 2};
    static const RpTaskId expected[] = {6, 1, 3, 5};

    both_small(fixture);
    for (gsize i = 0; i < 8; i++)
        shift(fixture->traces[1], i, 0, longer_ns[i]);
    assert_true(compare(fixture, NULL));
    fixture->list = rp_trace_diff_rank(fixture->diff, RP_RANK_DURATION, 4);
    assert_int_equal(fixture->list->len, 4);
    for (guint i = 0; i < 4; i++)
        assert_int_equal(g_array_index(fixture->list, RpTaskPair, i).record[0]->task, expected[i]);
}

static void
refuses(Fixture *fixture, const char *message)
{
    assert_false(compare(fixture, NULL));
    rp_assert_error(&fixture->error, message);
    rp_trace_free(fixture->traces[0]);
    rp_trace_free(fixture->traces[1]);
    both_small(fixture);
}

RP_TEST_OF(names_the_first_difference_of_traces_that_do_not_belong_together, Fixture *fixture)
{
    both_small(fixture);
    rp_trace_free(fixture->traces[1]);
    fixture->traces[1] = rp_trace_new_empty(3, RP_TRACE_MEASURED);
    refuses(fixture, "a.json has 2 devices, b.json has 3");

    rp_trace_set_dispatched(fixture->traces[1], TRUE);
    refuses(fixture, "bound to devices in a.json, dispatched in b.json");

    record(fixture->traces[1], 6)->stage = 2;
    refuses(fixture, "a.json has 2 stages, b.json has 3");

    record(fixture->traces[1], 6)->micro_batch = 2;
    refuses(fixture, "a.json has the backward of stage 1, micro-batch 1, iteration 0 on gpu 1, "
                     "b.json has not");

    record(fixture->traces[1], 5)->lane = RP_LANES_PER_DEVICE;
    refuses(fixture, "a.json has the backward of stage 0, micro-batch 0, iteration 0 on gpu 0, "
                     "b.json has it on gpu 1");

    for (guint side = 0; side < 2; side++) {
        add(fixture->traces[side], RP_TASK_PARAMETER_UPLOAD, 0, 1, RP_NONE, 0, 1);
        record(fixture->traces[side], 8)->bytes = 10 + side;
    }
    refuses(fixture, "stage 1 uploads 10 bytes of parameters in a.json, 11 in b.json");

    for (gsize i = 0; i < 8; i++)
        record(fixture->traces[1], i)->iteration = 5;
    refuses(fixture, "no iteration in common: a.json has 0 to 0, b.json has 5 to 5");

    rp_trace_free(fixture->traces[0]);
    fixture->traces[0] = rp_trace_new_empty(2, RP_TRACE_PREDICTED);
    refuses(fixture, "a.json: expected compute actions, found none");

    rp_trace_free(fixture->traces[0]);
    rp_trace_free(fixture->traces[1]);
    fixture->traces[0] = small_trace(RP_TRACE_MEASURED);
    fixture->traces[1] = small_trace(RP_TRACE_PREDICTED);
    refuses(fixture, "expected the predicted trace first");
}

RP_TEST_STATE(Fixture, rp_test_no_state, tear_down)
