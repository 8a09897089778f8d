/*
 * Trace files: Chrome JSON there and back, CSV, PyTorch CSV compact and timed.
 */
#include "tests/rp-test.h"

#include "core/formats/export.h"

typedef struct {
    RpTrace *trace;
    RpTrace *read;
    RpPlan *plan;
    RpOrders *orders;
    GOutputStream *stream;
    GString *text;
    char *note;
    GError *error;
} Fixture;

static void
set_up(Fixture *fixture)
{
    fixture->stream = g_memory_output_stream_new_resizable();
    fixture->text = g_string_new(NULL);
}

static void
tear_down(Fixture *fixture)
{
    rp_trace_free(fixture->trace);
    rp_trace_free(fixture->read);
    rp_plan_free(fixture->plan);
    rp_orders_free(fixture->orders);
    g_clear_object(&fixture->stream);
    g_string_free(fixture->text, TRUE);
    g_free(fixture->note);
    g_clear_error(&fixture->error);
}

/* Puts the text written so far into fixture->text. */
static void
collect(Fixture *fixture)
{
    GMemoryOutputStream *memory = G_MEMORY_OUTPUT_STREAM(fixture->stream);

    g_string_truncate(fixture->text, 0);
    g_string_append_len(fixture->text, g_memory_output_stream_get_data(memory),
                        (gssize)g_memory_output_stream_get_data_size(memory));
}

/* One record of every kind, with extreme numbers. */
static void
make_trace(Fixture *fixture)
{
    fixture->trace = rp_trace_new_empty(2, RP_TRACE_MEASURED);
    rp_trace_set_dispatched(fixture->trace, TRUE);
    for (guint8 kind = 0; kind < RP_N_TASK_KINDS; kind++) {
        gboolean compute = kind <= RP_TASK_OVERLAP;
        RpTraceRecord record = {
            .task = kind * 3u,
            .kind = kind,
            .lane = compute ? (kind % 2) * RP_LANES_PER_DEVICE : kind % 12,
            .start_ns = kind * G_GINT64_CONSTANT(1234567),
            .end_ns = kind * G_GINT64_CONSTANT(1234567) + (kind == RP_TASK_BARRIER ? 0 : 999),
            .transfer_ns = kind == RP_TASK_BACKWARD ? 1600001 : 0,
            .bytes = compute ? 0 : G_GUINT64_CONSTANT(12345678901234567) + kind,
            .iteration = kind,
            .round = kind % 2 ? G_MAXUINT16 : 0,
            .stage = kind == RP_TASK_BARRIER ? RP_NONE : kind,
            .micro_batch = compute ? 7 : RP_NONE,
            .layer = kind >= RP_TASK_OVERLAP ? kind + 1u : RP_NONE,
            .chunk = kind == RP_TASK_OVERLAP || kind == RP_TASK_PARAMETER_UPLOAD ? 2 : RP_NONE,
        };
        rp_trace_append(fixture->trace, &record);
    }
}

static void
assert_same_trace(const RpTrace *a, const RpTrace *b)
{
    assert_int_equal(rp_trace_gpus(a), rp_trace_gpus(b));
    assert_int_equal(rp_trace_origin(a), rp_trace_origin(b));
    assert_int_equal(rp_trace_dispatched(a), rp_trace_dispatched(b));
    assert_int_equal(rp_trace_n_records(a), rp_trace_n_records(b));
    for (gsize i = 0; i < rp_trace_n_records(a); i++)
        assert_memory_equal(&rp_trace_records(a)[i], &rp_trace_records(b)[i],
                            sizeof(RpTraceRecord));
}

static void
write_chrome(Fixture *fixture, guint flags)
{
    gboolean written =
        rp_must(rp_export_chrome, fixture->trace, fixture->plan, flags, fixture->stream);
    assert_true(written);
    collect(fixture);
}

static void
read_chrome(Fixture *fixture)
{
    rp_trace_free(fixture->read);
    fixture->read =
        rp_trace_parse_chrome("t.json", fixture->text->str, fixture->text->len, &fixture->error);
}

RP_TEST_OF(a_chrome_trace_is_read_back_exactly, Fixture *fixture)
{
    make_trace(fixture);
    write_chrome(fixture, 0);
    read_chrome(fixture);
    rp_assert_no_error(fixture->error);
    assert_same_trace(fixture->trace, fixture->read);
}

RP_TEST_OF(an_empty_chrome_trace_and_times_before_the_origin_are_read_back, Fixture *fixture)
{
    const RpTraceRecord early = {.start_ns = -1, .end_ns = 1000, .task = 5};

    fixture->trace = rp_trace_new_empty(1, RP_TRACE_PREDICTED);
    write_chrome(fixture, 0);
    read_chrome(fixture);
    rp_assert_no_error(fixture->error);
    assert_same_trace(fixture->trace, fixture->read);

    rp_trace_append(fixture->trace, &early);
    g_clear_object(&fixture->stream);
    fixture->stream = g_memory_output_stream_new_resizable();
    write_chrome(fixture, 0);
    assert_non_null(strstr(fixture->text->str, "\"ts\":-0.001,\"dur\":1.001"));
    read_chrome(fixture);
    rp_assert_no_error(fixture->error);
    assert_same_trace(fixture->trace, fixture->read);
}

/* Two devices, one dependency between them. */
static void
make_plan(Fixture *fixture)
{
    RpTask tasks[2] = {
        {.kind = RP_TASK_FORWARD, .stage = 0, .layer = RP_NONE, .chunk = RP_NONE, .lane = 0},
        {.kind = RP_TASK_FORWARD, .stage = 1, .layer = RP_NONE, .chunk = RP_NONE, .lane = 5},
    };
    RpDependency dependency = {.task = 0};

    fixture->plan = rp_plan_new(2, RP_FIDELITY_FULL, 2, 1);
    guint32 buffer = rp_plan_add_buffer(fixture->plan, 0, RP_BUFFER_ACTIVATIONS, 512);
    RpAccess access = {buffer, RP_ACCESS_WRITE};
    rp_plan_append(fixture->plan, &tasks[0], NULL, 0, &access, 1);
    rp_plan_append(fixture->plan, &tasks[1], &dependency, 1, NULL, 0);
    fixture->trace = rp_trace_new(fixture->plan, RP_TRACE_PREDICTED);
    for (RpTaskId id = 0; id < 2; id++) {
        RpTraceRecord record;
        rp_trace_record_init(&record, id, rp_plan_task(fixture->plan, id));
        record.start_ns = (gint64)id * 1500;
        record.end_ns = record.start_ns + 1500;
        rp_trace_append(fixture->trace, &record);
    }
}

static guint
count(const char *text, const char *part)
{
    g_auto(GStrv) parts = g_strsplit(text, part, -1);

    return g_strv_length(parts) - 1;
}

RP_TEST_OF(a_chrome_trace_has_complete_events_names_counters_and_arrows, Fixture *fixture)
{
    make_plan(fixture);
    write_chrome(fixture, RP_CHROME_MEMORY | RP_CHROME_FLOWS);
    const char *text = fixture->text->str;
    assert_non_null(strstr(text, "\n{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\","
                                 "\"args\":{\"name\":\"gpu 0\"}}\n,{"));
    assert_non_null(strstr(text, "\n,{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"ts\":0.000,\"dur\":1.500,"
                                 "\"name\":\"0F0\",\"cat\":\"forward\","
                                 "\"cname\":\"thread_state_runnable\",\"args\":{\"task\":0,"
                                 "\"iteration\":0,\"round\":0,\"stage\":0,\"micro_batch\":0}}\n"));
    assert_non_null(strstr(text, "\n,{\"ph\":\"X\",\"pid\":2,\"tid\":6,\"ts\":1.500,\"dur\":1.500,"
                                 "\"name\":\"1F0\",\"cat\":\"forward\","));
    assert_non_null(strstr(text, "\n,{\"ph\":\"f\",\"id\":0,\"pid\":2,\"tid\":6,\"ts\":1.500,"
                                 "\"name\":\"dependency\",\"cat\":\"dependency\",\"bp\":\"e\"}\n"));
    assert_int_equal(count(text, "\"ph\":\"X\""), 2);
    assert_int_equal(count(text, "\"ph\":\"M\""), 2 * 3 + 2 * (5 + 5 + 2));
    assert_int_equal(count(text, "\"ph\":\"C\""), 2); /* 512 bytes, then none */
    assert_int_equal(count(text, "\"ph\":\"s\""), 1);
    assert_int_equal(count(text, "\"ph\":\"f\""), 1);

    read_chrome(fixture);
    rp_assert_no_error(fixture->error);
    assert_same_trace(fixture->trace, fixture->read);
}

/* The refusal of the written text with the first PART of "PART -> OTHER" replaced. (transfer full) */
static char *
refusal(const char *words, gpointer data)
{
    Fixture *fixture = data;
    g_auto(GStrv) change = g_strsplit(words, " -> ", 2);
    GString *good = g_string_new_len(fixture->text->str, (gssize)fixture->text->len);

    assert_true(g_string_replace(fixture->text, change[0], change[1], 1) == 1);
    read_chrome(fixture);
    g_string_assign(fixture->text, good->str);
    g_string_free(good, TRUE);
    return rp_test_refusal(&fixture->error);
}

RP_TEST_OF(refuses_a_chrome_trace_that_lacks_something_or_has_it_wrong, Fixture *fixture)
{
    make_plan(fixture);
    write_chrome(fixture, RP_CHROME_MEMORY | RP_CHROME_FLOWS);
    rp_test_lines("tests/core/messages.txt", "export: chrome traces that are wrong", refusal,
                  fixture);
}

RP_TEST_OF(every_cut_of_a_chrome_trace_is_refused, Fixture *fixture)
{
    make_plan(fixture);
    write_chrome(fixture, RP_CHROME_MEMORY | RP_CHROME_FLOWS);
    for (gsize length = 0; length + 1 < fixture->text->len; length++) {
        char *cut = g_memdup2(fixture->text->str, length);
        fixture->read = rp_trace_parse_chrome("t.json", cut, length, &fixture->error);
        g_free(cut);
        assert_null(fixture->read);
        assert_non_null(fixture->error);
        g_clear_error(&fixture->error);
    }
}

RP_TEST_OF(a_missing_file_is_an_error, Fixture *fixture)
{
    rp_refuses("/nowhere/t.json", rp_trace_load_chrome, "/nowhere/t.json");
}

RP_TEST_OF(csv_has_one_line_per_task_and_empty_cells_for_what_does_not_apply, Fixture *fixture)
{
    const RpTraceRecord records[] = {
        {.kind = RP_TASK_FORWARD,
         .lane = 0,
         .end_ns = 5,
         .stage = 3,
         .micro_batch = 2,
         .layer = RP_NONE,
         .chunk = RP_NONE,
         .task = 0},
        {.kind = RP_TASK_OVERLAP,
         .lane = 5,
         .start_ns = 5,
         .end_ns = 9,
         .stage = 0,
         .micro_batch = 7,
         .layer = 7,
         .chunk = 3,
         .task = 1,
         .iteration = 4,
         .round = 1},
        {.kind = RP_TASK_PARAMETER_UPLOAD,
         .lane = 8,
         .start_ns = 1,
         .end_ns = 3,
         .stage = 6,
         .micro_batch = RP_NONE,
         .layer = RP_NONE,
         .chunk = 5,
         .bytes = 4096,
         .task = 2},
        {.kind = RP_TASK_OPTIMIZER_STEP,
         .lane = 10,
         .start_ns = 9,
         .end_ns = 12,
         .stage = RP_NONE,
         .micro_batch = RP_NONE,
         .layer = 8,
         .chunk = RP_NONE,
         .bytes = 64,
         .task = 3},
    };

    fixture->trace = rp_trace_new_empty(2, RP_TRACE_PREDICTED);
    for (guint i = 0; i < G_N_ELEMENTS(records); i++)
        rp_trace_append(fixture->trace, &records[i]);
    assert_true(rp_export_csv(fixture->trace, fixture->stream, &fixture->error));
    collect(fixture);
    assert_string_equal(fixture->text->str,
                        "task,kind,device,lane,iteration,round,stage,micro_batch,layer,chunk,"
                        "start_ns,end_ns,bytes\n"
                        "0,forward,0,compute,0,0,3,2,,,0,5,0\n"
                        "1,overlap,1,compute,4,1,0,7,7,3,5,9,0\n"
                        "2,parameter-upload,1,parameter-up,0,0,6,,,5,1,3,4096\n"
                        "3,optimizer-step,host,optimizer,0,0,,,8,,9,12,64\n");
}

RP_TEST_OF(long_traces_reach_the_stream_whole, Fixture *fixture)
{
    fixture->trace = rp_trace_new_empty(1, RP_TRACE_PREDICTED);
    for (guint i = 0; i < 5000; i++) {
        RpTraceRecord record = {.task = i, .start_ns = i, .end_ns = i + 1};
        rp_trace_append(fixture->trace, &record);
    }
    write_chrome(fixture, 0);
    read_chrome(fixture);
    rp_assert_no_error(fixture->error);
    assert_same_trace(fixture->trace, fixture->read);
}

RP_TEST_OF(a_stream_that_fails_is_an_error, Fixture *fixture)
{
    char room[100];

    make_trace(fixture);
    g_clear_object(&fixture->stream);
    fixture->stream = g_memory_output_stream_new(room, sizeof room, NULL, NULL);
    assert_false(rp_export_chrome(fixture->trace, NULL, 0, fixture->stream, &fixture->error));
    assert_non_null(fixture->error);
    g_clear_error(&fixture->error);
    assert_false(rp_export_csv(fixture->trace, fixture->stream, &fixture->error));
    assert_non_null(fixture->error);
}

/* F = 2, B = 4, and a hop of 2 between the ranks. */
static const RpTraceRecord one_f_one_b[] = {
    {.kind = RP_TASK_FORWARD, .lane = 0, .start_ns = 10, .end_ns = 12, .micro_batch = 0},
    {.kind = RP_TASK_FORWARD, .lane = 0, .start_ns = 12, .end_ns = 14, .micro_batch = 1},
    {.kind = RP_TASK_FORWARD, .lane = 5, .start_ns = 14, .end_ns = 16, .stage = 1},
    {.kind = RP_TASK_BACKWARD, .lane = 5, .start_ns = 16, .end_ns = 20, .stage = 1},
    {.kind = RP_TASK_BACKWARD, .lane = 0, .start_ns = 22, .end_ns = 26},
    {.kind = RP_TASK_INPUT_GRADIENT, .lane = 0, .start_ns = 26, .end_ns = 28, .micro_batch = 1},
    {.kind = RP_TASK_WEIGHT_GRADIENT, .lane = 0, .start_ns = 28, .end_ns = 30, .micro_batch = 1},
    {.kind = RP_TASK_FORWARD, .lane = 0, .start_ns = 30, .end_ns = 37, .iteration = 1},
    {.kind = RP_TASK_PARAMETER_UPLOAD, .lane = 3, .start_ns = 0, .end_ns = 37},
};

static void
make_one_f_one_b(Fixture *fixture)
{
    fixture->trace = rp_trace_new_empty(2, RP_TRACE_PREDICTED);
    for (guint i = 0; i < G_N_ELEMENTS(one_f_one_b); i++) {
        RpTraceRecord record = one_f_one_b[i];
        record.task = i;
        rp_trace_append(fixture->trace, &record);
    }
}

RP_TEST_OF(pytorch_csv_lists_the_actions_of_one_iteration_in_order, Fixture *fixture)
{
    make_one_f_one_b(fixture);
    fixture->orders = rp_orders_from_trace(fixture->trace, 0);
    assert_true(
        rp_export_pytorch(fixture->orders, fixture->stream, &fixture->note, &fixture->error));
    collect(fixture);
    assert_string_equal(fixture->text->str, "0F0,0F1,0B0,0I1,0W1\n1F0,1B0\n");
    assert_null(fixture->note);
}

RP_TEST_OF(timed_pytorch_csv_has_a_column_for_each_step, Fixture *fixture)
{
    make_one_f_one_b(fixture);
    assert_true(rp_export_pytorch_timed(fixture->trace, 0, fixture->stream, &fixture->note,
                                        &fixture->error));
    collect(fixture);
    assert_string_equal(fixture->text->str, "0F0,0F1,,,,,0B0,,0I1,0W1\n"
                                            ",,1F0,1B0,,,,,,\n");
    fixture->orders =
        rp_must(rp_orders_import_pytorch, "t.csv", fixture->text->str, fixture->text->len, 0);
    RpOrders *same = rp_orders_from_trace(fixture->trace, 0);
    gboolean equal = rp_orders_equal(fixture->orders, same);
    rp_orders_free(same);
    assert_true(equal);
}

RP_TEST_OF(refuses_a_time_grid_that_is_too_fine_or_impossible, Fixture *fixture)
{
    const RpTraceRecord more[] = {
        {.kind = RP_TASK_FORWARD, .task = 20, .start_ns = 100000000, .end_ns = 100000001},
        {.kind = RP_TASK_FORWARD, .task = 21, .start_ns = 5, .end_ns = 5, .iteration = 2},
        {.kind = RP_TASK_FORWARD, .task = 22, .start_ns = 7, .end_ns = 9, .iteration = 3},
        {.kind = RP_TASK_FORWARD, .task = 23, .start_ns = 8, .end_ns = 10, .iteration = 3},
    };
    const char *const messages[] = {"longest step", NULL, "takes no time", "before the one before"};

    make_one_f_one_b(fixture);
    for (guint i = 0; i < G_N_ELEMENTS(more); i++)
        rp_trace_append(fixture->trace, &more[i]);
    for (guint i = 0; i < G_N_ELEMENTS(messages); i++) {
        if (messages[i] == NULL)
            continue;
        assert_false(
            rp_export_pytorch_timed(fixture->trace, i, fixture->stream, NULL, &fixture->error));
        rp_assert_error_message_contains(fixture->error, messages[i]);
        assert_true(g_error_matches(fixture->error, RP_EXPORT_ERROR, RP_EXPORT_ERROR_GRID));
        g_clear_error(&fixture->error);
    }
}

RP_TEST_OF(says_what_pytorch_would_refuse, Fixture *fixture)
{
    const RpAction actions[] = {
        {.kind = RP_ACTION_FORWARD, .stage = 0, .micro_batch = 0},
        {.kind = RP_ACTION_FUSED, .stage = 1, .micro_batch = 0},
        {.kind = RP_ACTION_BACKWARD, .stage = 2, .micro_batch = 0},
        {.kind = RP_ACTION_FORWARD, .stage = 0, .micro_batch = 1},
    };

    fixture->orders = rp_orders_new("rp", 3);
    for (guint i = 0; i < 4; i++)
        rp_orders_append(fixture->orders, i % 3, &actions[i], 1);
    rp_orders_append(fixture->orders, 1, &actions[3], 2);
    assert_true(
        rp_export_pytorch(fixture->orders, fixture->stream, &fixture->note, &fixture->error));
    collect(fixture);
    assert_string_equal(fixture->text->str, "0F0,0F1\n(1F0;1B0)OVERLAP_F_B,0F1\n2B0\n");
    assert_non_null(strstr(fixture->note, "stage 0 runs on rank 0 and on rank 1"));
    assert_non_null(strstr(fixture->note, "stage 1 runs forward and backward as one action"));
}

RP_TEST_STATE(Fixture, set_up, tear_down)
