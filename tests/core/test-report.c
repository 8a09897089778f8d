/*
 * Reports: each part of the bubble ratio on traces small enough to count by hand, whole schedules
 * against an independent reference, steady state, use and memory.
 */
#include "tests/rp-test.h"

#include <math.h>
#include <stdio.h>

#include "core/formats/import-pytorch.h"
#include "core/trace/report.h"
#include "core/verify/verify.h"

typedef struct {
    RpTrace *trace;
    RpPlan *plan;
    RpOrders *orders;
    GArray *array;
    GError *error;
} Fixture;

static void
tear_down(Fixture *fixture)
{
    rp_trace_free(fixture->trace);
    rp_plan_free(fixture->plan);
    rp_orders_free(fixture->orders);
    if (fixture->array != NULL)
        g_array_unref(fixture->array);
    g_clear_error(&fixture->error);
}

/* One action: device, iteration, `F`, `B`, `X` (fused), `I`, `W` or `&`, start, end, gating hop; `E`
 * is an expansion. */
typedef struct {
    guint device;
    guint iteration;
    char kind;
    gint64 start_ns;
    gint64 end_ns;
    gint64 transfer_ns;
} Row;

static guint8
kind_of(char letter)
{
    static const char letters[] = {
        [RP_TASK_FORWARD] = 'F',        [RP_TASK_BACKWARD] = 'B',        [RP_TASK_FUSED] = 'X',
        [RP_TASK_INPUT_GRADIENT] = 'I', [RP_TASK_WEIGHT_GRADIENT] = 'W', [RP_TASK_OVERLAP] = '&',
        [RP_TASK_EXPAND] = 'E',
    };

    for (guint8 kind = 0; kind < sizeof letters; kind++)
        if (letters[kind] == letter)
            return kind;
    fail_msg("no such action: %c", letter);
    return 0;
}

static void
make_trace(Fixture *fixture, guint gpus, gboolean dispatched, const Row *rows, gsize n)
{
    fixture->trace = rp_trace_new_empty(gpus, RP_TRACE_PREDICTED);
    rp_trace_set_dispatched(fixture->trace, dispatched);
    for (gsize i = 0; i < n; i++) {
        RpTraceRecord record = {
            .task = i,
            .lane = rows[i].device * RP_LANES_PER_DEVICE,
            .iteration = rows[i].iteration,
            .kind = kind_of(rows[i].kind),
            .start_ns = rows[i].start_ns,
            .end_ns = rows[i].end_ns,
            .transfer_ns = rows[i].transfer_ns,
        };
        rp_trace_append(fixture->trace, &record);
    }
}

#define MAKE_TRACE(fixture, gpus, dispatched, rows)                                                \
    make_trace(fixture, gpus, dispatched, rows, G_N_ELEMENTS(rows))

/* Times, not shares, as the reference counts. */
typedef struct {
    gint64 makespan_ns, busy_ns, fill_ns, switch_ns, drain_ns, intra_ns, exposed_ns;
} Expected;

static void
assert_bubble(RpBubble bubble, guint gpus, Expected expected)
{
    double all = (double)gpus * (double)expected.makespan_ns;

    assert_int_equal(bubble.makespan_ns, expected.makespan_ns);
    assert_int_equal(bubble.busy_ns, expected.busy_ns);
    assert_float_equal(bubble.ratio * all, all - (double)expected.busy_ns, 1e-6);
    assert_float_equal(bubble.fill * all, (double)expected.fill_ns, 1e-6);
    assert_float_equal(bubble.switch_ * all, (double)expected.switch_ns, 1e-6);
    assert_float_equal(bubble.drain * all, (double)expected.drain_ns, 1e-6);
    assert_float_equal(bubble.intra * all, (double)expected.intra_ns, 1e-6);
    assert_float_equal(bubble.comm_exposed * all, (double)expected.exposed_ns, 1e-6);
    assert_float_equal(bubble.ratio, bubble.fill + bubble.switch_ + bubble.drain + bubble.intra,
                       1e-12);
}

/* The bubble of "GPUS bound: 0F 0-1, 1B 2-4+3@1": device, kind, start and end of each action, its gating hop and its
 * iteration. (transfer full) */
static char *
bubble_line(const char *words, gpointer data)
{
    Fixture *fixture = data;
    const guint gpus = (guint)g_ascii_strtoull(words, NULL, 10);
    g_auto(GStrv) items = g_strsplit(strchr(words, ':') + 2, ", ", -1);
    g_autofree Row *rows = g_new0(Row, g_strv_length(items));
    guint n = 0;

    for (; items[n] != NULL; n++) {
        const char *hop = strchr(items[n], '+'), *iteration = strchr(items[n], '@');

        assert_int_equal(sscanf(items[n], "%u%c %" G_GINT64_FORMAT "-%" G_GINT64_FORMAT,
                                &rows[n].device, &rows[n].kind, &rows[n].start_ns, &rows[n].end_ns),
                         4);
        rows[n].transfer_ns = hop != NULL ? g_ascii_strtoll(hop + 1, NULL, 10) : 0;
        rows[n].iteration =
            iteration != NULL ? (guint)g_ascii_strtoull(iteration + 1, NULL, 10) : 0;
    }
    g_clear_pointer(&fixture->trace, rp_trace_free);
    make_trace(fixture, gpus, strstr(words, "dispatched") != NULL, rows, n);
    const RpBubble bubble = rp_report_bubble(fixture->trace);
    const double all = (double)gpus * (double)bubble.makespan_ns;
    const Expected times = {bubble.makespan_ns,
                            bubble.busy_ns,
                            llround(bubble.fill * all),
                            llround(bubble.switch_ * all),
                            llround(bubble.drain * all),
                            llround(bubble.intra * all),
                            llround(bubble.comm_exposed * all)};

    assert_bubble(bubble, gpus, times);
    return g_strdup_printf(
        "makespan %d, busy %d, fill %d, switch %d, drain %d, intra %d, exposed %d",
        (int)times.makespan_ns, (int)times.busy_ns, (int)times.fill_ns, (int)times.switch_ns,
        (int)times.drain_ns, (int)times.intra_ns, (int)times.exposed_ns);
}

RP_TEST(each_idle_time_is_fill_switch_drain_or_intra)
{
    rp_test_lines("tests/core/messages.txt", "report: bubbles", bubble_line, *state);
}

RP_TEST_OF(expansions_are_busy_wherever_they_stand, Fixture *fixture)
{
    /*  gpu 0  |E|F0|-|F1|-|E|B0--|E|F2|--|E|------|    switch 1, intra 1, drain 2 + 6
     *  gpu 1  |---|E|F0|-----|EE|B0-|-----------|F1|   fill 3, switch 5, drain 6
     */
    const Row rows[] = {
        {0, 0, 'E', 0, 1, 0},   {0, 0, 'F', 1, 3, 0},   {0, 0, 'F', 4, 6, 3},
        {0, 0, 'E', 7, 8, 0},   {0, 0, 'B', 8, 12, 2},  {0, 0, 'E', 12, 13, 0},
        {0, 0, 'F', 13, 15, 2}, {0, 0, 'E', 17, 18, 0}, {1, 0, 'E', 3, 4, 0},
        {1, 0, 'F', 4, 6, 9},   {1, 0, 'E', 11, 13, 0}, {1, 0, 'B', 13, 16, 4},
        {1, 0, 'F', 22, 24, 0},
    };
    const gint64 expand_ns = 1 + 1 + 1 + 1 + 1 + 2, all = 2 * 24;

    MAKE_TRACE(fixture, 2, FALSE, rows);
    const RpBubble bubble = rp_report_bubble(fixture->trace);
    assert_bubble(bubble, 2,
                  (Expected){.makespan_ns = 24,
                             .busy_ns = 2 + 2 + 4 + 2 + 2 + 3 + 2 + expand_ns,
                             .fill_ns = 3,
                             .switch_ns = 1 + 5,
                             .drain_ns = 24 - 12 - 2 - 2 + (24 - 16 - 2),
                             .intra_ns = 1,
                             .exposed_ns = 1 + 1 + 3 + 4});
    assert_float_equal(bubble.expand * (double)all, (double)expand_ns, 1e-9);
    assert_float_equal(rp_report_ratio_between(fixture->trace, 3, 5), 1 - 3.0 / 4, 1e-12);
}

/* The longest times that the reader of traces takes, on enough devices to pass 64 bits. */
RP_TEST_OF(sums_over_devices_do_not_wrap, Fixture *fixture)
{
    const gint64 end_ns = G_MAXINT64 / 2;
    Row rows[8];

    for (guint g = 0; g < G_N_ELEMENTS(rows); g++)
        rows[g] = (Row){g, 0, 'B', g < 6 ? 0 : end_ns / 2, end_ns, 0};
    MAKE_TRACE(fixture, G_N_ELEMENTS(rows), TRUE, rows);
    RpBubble bubble = rp_report_bubble(fixture->trace);
    assert_float_equal(bubble.ratio, 1.0 / 8, 1e-12);
    assert_float_equal(bubble.fill, 1.0 / 8, 1e-12);
    assert_float_equal(rp_report_ratio_between(fixture->trace, 0, end_ns), 1.0 / 8, 1e-12);
}

RP_TEST_OF(an_empty_trace_has_no_bubble, Fixture *fixture)
{
    fixture->trace = rp_trace_new_empty(2, RP_TRACE_PREDICTED);
    assert_float_equal(rp_report_bubble(fixture->trace).ratio, 0, 0);
    assert_int_equal(rp_report_bubble_of_iteration(fixture->trace, 3).makespan_ns, 0);
}

/* Two iterations with a gap of 1 before the second and switch windows of 2 and 3.
 *
 *   0   2   4       10 11  13     16      20
 *   |F--|--|B-------|-|F---|------|B------|   gpu 0
 *   |---|F--|B--|-----|-|F---|B---|-------|   gpu 1 */
static const Row two_iterations[] = {
    {0, 0, 'F', 0, 2, 0},   {1, 0, 'F', 2, 4, 0},   {1, 0, 'B', 4, 6, 0},   {0, 0, 'B', 4, 10, 0},
    {0, 1, 'F', 11, 13, 0}, {1, 1, 'F', 12, 14, 0}, {1, 1, 'B', 14, 16, 0}, {0, 1, 'B', 16, 20, 0},
};

RP_TEST_OF(one_iteration_is_measured_from_its_own_start, Fixture *fixture)
{
    MAKE_TRACE(fixture, 2, FALSE, two_iterations);
    assert_bubble(
        rp_report_bubble_of_iteration(fixture->trace, 1), 2,
        (Expected){.makespan_ns = 9, .busy_ns = 10, .fill_ns = 1, .switch_ns = 3, .drain_ns = 4});
}

RP_TEST_OF(steady_state_clips_work_to_whole_periods, Fixture *fixture)
{
    /* iteration 1 starts at 11 on gpu 0 although gpu 1 comes to it at 12 */
    MAKE_TRACE(fixture, 2, FALSE, two_iterations);
    RpSteady steady = rp_report_steady(fixture->trace, 0, 1);

    assert_int_equal(steady.iteration_ns, 11);
    assert_float_equal(steady.ratio, 1 - 12.0 / 22, 1e-12);
}

RP_TEST_OF(work_of_the_iteration_before_counts_in_the_steady_window, Fixture *fixture)
{
    /*  gpu 0 |0 0|1 1|2 2|    window [2, 4): gpu 1 works on iteration 0 until 3, then on 1
     *  gpu 1 |-|0 0|1 1|2 2| */
    const Row rows[] = {
        {0, 0, 'X', 0, 2, 0}, {1, 0, 'X', 1, 3, 0}, {0, 1, 'X', 2, 4, 0},
        {1, 1, 'X', 3, 5, 0}, {0, 2, 'X', 4, 6, 0}, {1, 2, 'X', 5, 7, 0},
    };

    MAKE_TRACE(fixture, 2, TRUE, rows);
    RpSteady steady = rp_report_steady(fixture->trace, 1, 2);
    assert_int_equal(steady.iteration_ns, 2);
    assert_float_equal(steady.ratio, 0, 1e-12);
}

RP_TEST_OF(the_parts_of_a_steady_bubble_are_switch_and_intra, Fixture *fixture)
{
    /* two_iterations with hops: 3 before gpu 1's first forward, which idles 2 for it; 9 before its
     * second one, which idles 6 for it but only 5 of them in the window [0, 11) */
    Row rows[G_N_ELEMENTS(two_iterations)];

    memcpy(rows, two_iterations, sizeof rows);
    rows[1].transfer_ns = 3;
    rows[5].transfer_ns = 9;
    MAKE_TRACE(fixture, 2, TRUE, rows);
    RpSteady steady = rp_report_steady(fixture->trace, 0, 1);

    assert_bubble(
        rp_report_steady_bubble(fixture->trace, &steady, FALSE), 2,
        (Expected){
            .makespan_ns = 11, .busy_ns = 12, .switch_ns = 2, .intra_ns = 8, .exposed_ns = 2 + 5});
}

/* Plays a plan of `compute` fidelity: its tasks stand in an order in which they can run. */
static void
play(Fixture *fixture)
{
    g_autofree gint64 *free_ns = g_new0(gint64, rp_plan_n_lanes(fixture->plan));

    fixture->trace = rp_trace_new(fixture->plan, RP_TRACE_PREDICTED);
    for (RpTaskId id = 0; id < rp_plan_end_id(fixture->plan); id++) {
        const RpTask *task = rp_plan_task(fixture->plan, id);
        const RpDependency *needs = rp_plan_dependencies(fixture->plan, task);
        RpTraceRecord record;

        rp_trace_record_init(&record, id, task);
        record.start_ns = free_ns[task->lane];
        for (guint k = 0; k < task->dependency_count; k++) {
            gint64 ready_ns = rp_trace_records(fixture->trace)[needs[k].task].end_ns +
                              needs[k].hop_ns - (needs[k].phase ? task->lead_ns : 0);
            if (ready_ns > record.start_ns)
                record.transfer_ns = needs[k].hop_ns;
            else if (ready_ns == record.start_ns)
                record.transfer_ns = MAX(record.transfer_ns, (gint64)needs[k].hop_ns);
            record.start_ns = MAX(record.start_ns, ready_ns);
        }
        record.end_ns = record.start_ns + task->duration_ns;
        free_ns[task->lane] = record.end_ns;
        rp_trace_append(fixture->trace, &record);
    }
}

/* A schedule, its costs, and the results of an independent reference. */
typedef struct {
    const char *schedule;
    guint gpus, micro_batches, stages, round, forward_slots;
    RpStageCost cost;
    guint32 hop_ns;
    Expected expected;
} Case;

static const Case cases[] = {
    {"1f1b", 2, 2, 2, 2, 0, {1, 2, 1, 1, 0}, 0, {9, 12, 1, 2, 2, 1, 0}},
    {"gpipe", 4, 8, 4, 8, 0, {1, 2, 1, 1, 0}, 0, {33, 96, 6, 18, 12, 0, 0}},
    {"1f1b", 4, 8, 4, 8, 0, {1, 2, 1, 1, 0}, 0, {33, 96, 6, 12, 12, 6, 0}},
    {"gpipe", 4, 8, 4, 8, 0, {10, 20, 12, 8, 0}, 3, {348, 960, 78, 216, 138, 0, 18}},
    {"1f1b", 4, 8, 4, 8, 0, {10, 20, 12, 8, 0}, 3, {378, 960, 78, 156, 138, 180, 81}},
    {"1f1b", 4, 8, 4, 8, 0, {10, 30, 12, 18, 10}, 3, {428, 1280, 78, 156, 138, 60, 36}},
    {"1f1b", 4, 2, 4, 2, 0, {10, 20, 12, 8, 0}, 3, {168, 240, 78, 186, 138, 30, 27}},
    {"zb-h1", 4, 8, 4, 8, 0, {10, 20, 12, 8, 0}, 3, {318, 960, 78, 108, 42, 84, 54}},
    {"dualpipe-v", 4, 8, 8, 8, 0, {10, 20, 12, 8, 0}, 3, {614, 1920, 78, 74, 42, 342, 99}},
    {"roundpipe", 4, 8, 8, 4, 3, {10, 30, 0, 0, 0}, 0, {590, 1520, 60, 150, 180, 450, 0}},
    {"roundpipe", 4, 8, 8, 4, 3, {10, 30, 0, 0, 0}, 3, {623, 1520, 78, 186, 198, 510, 91}},
    {"roundpipe", 4, 8, 8, 4, 3, {10, 30, 0, 0, 10}, 3, {519, 1440, 78, 96, 222, 240, 27}},
};

RP_TEST(schedules_have_the_bubbles_of_the_reference)
{
    for (guint c = 0; c < G_N_ELEMENTS(cases); c++) {
        Fixture *fixture = *state;
        const Case *test = &cases[c];
        const RpScheduleOps *schedule = rp_must(rp_schedule_find, test->schedule);
        RpOrderCosts costs = {&test->cost, 1, test->hop_ns, 0};
        RpShape shape = {
            .gpus = test->gpus,
            .micro_batches = test->micro_batches,
            .stages = test->stages,
            .round = test->round,
            .forward_slots = test->forward_slots,
        };

        fixture->orders = rp_orders_new(test->schedule, test->gpus);
        for (guint g = 0; g < test->gpus; g++) {
            fixture->array = g_array_new(FALSE, FALSE, sizeof(RpAction));
            schedule->order(&shape, g, fixture->array);
            for (guint i = 0; i < fixture->array->len; i++)
                rp_orders_append(fixture->orders, g, &g_array_index(fixture->array, RpAction, i),
                                 i + 1);
            g_clear_pointer(&fixture->array, g_array_unref);
        }
        fixture->plan = rp_must(rp_plan_from_orders, fixture->orders, &costs);
        play(fixture);
        assert_true(rp_verify_trace(fixture->plan, fixture->trace, NULL));
        assert_bubble(rp_report_bubble(fixture->trace), test->gpus, test->expected);
        assert_bubble(rp_report_bubble_of_iteration(fixture->trace, 0), test->gpus, test->expected);
        g_clear_pointer(&fixture->orders, rp_orders_free);
        g_clear_pointer(&fixture->plan, rp_plan_free);
        g_clear_pointer(&fixture->trace, rp_trace_free);
    }
}

RP_TEST_OF(device_use_counts_each_lane_and_direction, Fixture *fixture)
{
    const RpTraceRecord records[] = {
        {.lane = 5, .kind = RP_TASK_FORWARD, .start_ns = 3, .end_ns = 7},
        {.lane = 6, .kind = RP_TASK_ACTIVATION_UPLOAD, .start_ns = 0, .end_ns = 3, .bytes = 10},
        {.lane = 7, .kind = RP_TASK_ACTIVATION_DOWNLOAD, .start_ns = 7, .end_ns = 9, .bytes = 20},
        {.lane = 8, .kind = RP_TASK_PARAMETER_UPLOAD, .start_ns = 0, .end_ns = 2, .bytes = 30},
        {.lane = 9, .kind = RP_TASK_GRADIENT_DOWNLOAD, .start_ns = 9, .end_ns = 10, .bytes = 40},
        {.lane = 10, .kind = RP_TASK_OPTIMIZER_STEP, .start_ns = 10, .end_ns = 30, .bytes = 50},
    };

    fixture->trace = rp_trace_new_empty(2, RP_TRACE_PREDICTED);
    for (guint i = 0; i < G_N_ELEMENTS(records); i++)
        rp_trace_append(fixture->trace, &records[i]);
    fixture->array = rp_report_device_use(fixture->trace);
    assert_int_equal(fixture->array->len, 2);

    const RpDeviceUse *idle = &g_array_index(fixture->array, RpDeviceUse, 0);
    const RpDeviceUse *use = &g_array_index(fixture->array, RpDeviceUse, 1);
    assert_int_equal(idle->actions, 0);
    assert_int_equal(idle->busy_ns[RP_LANE_COMPUTE], 0);
    assert_int_equal(use->actions, 1);
    assert_int_equal(use->first_start_ns, 3);
    assert_int_equal(use->last_end_ns, 7);
    assert_int_equal(use->busy_ns[RP_LANE_COMPUTE], 4);
    assert_int_equal(use->busy_ns[RP_LANE_ACTIVATION_UP], 3);
    assert_int_equal(use->busy_ns[RP_LANE_ACTIVATION_DOWN], 2);
    assert_int_equal(use->busy_ns[RP_LANE_PARAMETER_UP], 2);
    assert_int_equal(use->busy_ns[RP_LANE_GRADIENT_DOWN], 1);
    assert_int_equal(use->bytes_up, 40);
    assert_int_equal(use->bytes_down, 60);
}

/* Appends a task that uses one buffer, and its record. */
static void
use_buffer(Fixture *fixture, guint32 buffer, guint32 mode, gint64 start_ns, gint64 end_ns)
{
    RpTask task = {.kind = RP_TASK_FORWARD, .stage = 0};
    RpAccess access = {buffer, mode};
    RpTraceRecord record;

    RpTaskId id = rp_plan_append(fixture->plan, &task, NULL, 0, &access, 1);
    rp_trace_record_init(&record, id, rp_plan_task(fixture->plan, id));
    record.start_ns = start_ns;
    record.end_ns = end_ns;
    rp_trace_append(fixture->trace, &record);
}

static void
assert_curve(Fixture *fixture, guint32 arena, const RpMemoryStep *expected, guint n)
{
    if (fixture->array != NULL)
        g_array_unref(fixture->array);
    fixture->array = rp_report_memory_curve(fixture->plan, fixture->trace, arena);
    assert_int_equal(fixture->array->len, n);
    for (guint i = 0; i < n; i++) {
        const RpMemoryStep *step = &g_array_index(fixture->array, RpMemoryStep, i);
        assert_int_equal(step->time_ns, expected[i].time_ns);
        assert_int_equal(step->bytes, expected[i].bytes);
    }
}

RP_TEST_OF(a_buffer_counts_from_the_first_write_of_a_value_to_its_last_read, Fixture *fixture)
{
    fixture->plan = rp_plan_new(1, RP_FIDELITY_FULL, 1, 1);
    fixture->trace = rp_trace_new_empty(1, RP_TRACE_PREDICTED);
    guint32 b = rp_plan_add_buffer(fixture->plan, 0, RP_BUFFER_ACTIVATIONS, 512);
    use_buffer(fixture, b, RP_ACCESS_WRITE, 1, 2); /* in two pieces */
    use_buffer(fixture, b, RP_ACCESS_WRITE, 3, 4);
    use_buffer(fixture, b, RP_ACCESS_READ | RP_ACCESS_WRITE, 5, 6);
    use_buffer(fixture, b, RP_ACCESS_READ, 7, 9);
    use_buffer(fixture, b, RP_ACCESS_WRITE, 12, 13); /* another value */
    use_buffer(fixture, b, RP_ACCESS_READ, 13, 15);
    const RpMemoryStep expected[] = {{0, 0}, {1, 512}, {9, 0}, {12, 512}, {15, 0}};
    assert_curve(fixture, 0, expected, G_N_ELEMENTS(expected));
    assert_curve(fixture, 1, NULL, 0);
}

RP_TEST_OF(steps_at_the_same_time_are_one_and_no_change_is_none, Fixture *fixture)
{
    fixture->plan = rp_plan_new(1, RP_FIDELITY_FULL, 1, 1);
    fixture->trace = rp_trace_new_empty(1, RP_TRACE_PREDICTED);
    guint32 a = rp_plan_add_buffer(fixture->plan, 0, RP_BUFFER_ACTIVATIONS, 512);
    guint32 b = rp_plan_add_buffer(fixture->plan, 0, RP_BUFFER_ACTIVATIONS, 512);
    guint32 c = rp_plan_add_buffer(fixture->plan, 0, RP_BUFFER_STASH, 1024);
    use_buffer(fixture, a, RP_ACCESS_WRITE, 0, 5);
    use_buffer(fixture, b, RP_ACCESS_WRITE, 5, 8); /* where a ends: no step */
    use_buffer(fixture, c, RP_ACCESS_WRITE, 8, 10);
    const RpMemoryStep expected[] = {{0, 512}, {8, 1024}, {10, 0}};
    assert_curve(fixture, 0, expected, G_N_ELEMENTS(expected));
}

RP_TEST_OF(host_weights_and_what_is_never_written_count_all_the_time, Fixture *fixture)
{
    fixture->plan = rp_plan_new(1, RP_FIDELITY_FULL, 1, 1);
    fixture->trace = rp_trace_new_empty(1, RP_TRACE_PREDICTED);
    guint32 weights = rp_plan_add_buffer(fixture->plan, 1, RP_BUFFER_PARAMETERS, 512);
    guint32 input = rp_plan_add_buffer(fixture->plan, 1, RP_BUFFER_ACTIVATIONS, 1024);
    guint32 gradients = rp_plan_add_buffer(fixture->plan, 1, RP_BUFFER_GRADIENTS, 4096);
    use_buffer(fixture, weights, RP_ACCESS_READ, 1, 2);
    use_buffer(fixture, input, RP_ACCESS_READ, 2, 3);
    use_buffer(fixture, gradients, RP_ACCESS_WRITE, 4, 5);
    use_buffer(fixture, gradients, RP_ACCESS_READ, 6, 8);
    use_buffer(fixture, weights, RP_ACCESS_WRITE, 6, 10);
    const RpMemoryStep expected[] = {{0, 1536}, {4, 5632}, {8, 1536}, {10, 0}};
    assert_curve(fixture, 1, expected, G_N_ELEMENTS(expected));
}

RP_TEST_OF(the_peak_never_exceeds_the_arena_even_where_uses_overlap, Fixture *fixture)
{
    fixture->plan = rp_plan_new(1, RP_FIDELITY_FULL, 1, 1);
    fixture->trace = rp_trace_new_empty(1, RP_TRACE_MEASURED);
    guint32 b = rp_plan_add_buffer(fixture->plan, 0, RP_BUFFER_ACTIVATIONS, 512);
    use_buffer(fixture, b, RP_ACCESS_WRITE, 0, 2);
    use_buffer(fixture, b, RP_ACCESS_READ, 2, 6);
    use_buffer(fixture, b, RP_ACCESS_WRITE, 5, 7); /* too early: a broken trace */
    const RpMemoryStep expected[] = {{0, 512}, {7, 0}};
    assert_curve(fixture, 0, expected, G_N_ELEMENTS(expected));
}

RP_TEST_STATE(Fixture, rp_test_no_state, tear_down)
