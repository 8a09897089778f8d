/*
 * Schedules as files: every schedule that is written is read back as the same one, simulated to the same
 * times; both dialects; and what is wrong is told with its line and column.
 */
#include "tests/rp-test.h"

#include <string.h>

#include "core/catalogue/cost/cost-model.h"
#include "core/formats/export.h"
#include "core/formats/schedule-file.h"
#include "core/plan/planner.h"
#include "core/verify/verify.h"
#include "sim/search/partition-cost.h"
#include "sim/simulate.h"

#define MAX_GPUS 5
#define MAX_MICRO_BATCHES 10

typedef struct {
    RpProfile *profile;
    RpPartition *partition;
    RpScheduleOps *given;
    RpPlan *plans[2];
    RpTrace *traces[2];
    char *text;
    GError *error;
} Fixture;

static void
forget(Fixture *f)
{
    for (guint i = 0; i < 2; i++) {
        g_clear_pointer(&f->traces[i], rp_trace_free);
        g_clear_pointer(&f->plans[i], rp_plan_free);
    }
    g_clear_pointer(&f->given, rp_schedule_free_given);
    g_clear_pointer(&f->partition, rp_partition_free);
    g_clear_pointer(&f->text, g_free);
    g_clear_error(&f->error);
}

static int
set_up(void **state)
{
    const RpWorkload workload = {.sequences = 1, .tokens_per_sequence = 256, .gpus = 8};
    Fixture *f = g_new0(Fixture, 1);

    f->profile = rp_cost_model_profile(rp_model_find("qwen3-0.6b", NULL),
                                       rp_gpu_find("rtx4090", NULL), &workload, NULL);
    assert_non_null(f->profile);
    *state = f;
    return 0;
}

static int
tear_down(void **state)
{
    Fixture *f = *state;

    forget(f);
    rp_profile_free(f->profile);
    g_free(f);
    return 0;
}

static void
write_schedule(Fixture *f, const RpScheduleOps *schedule, const RpShape *shape)
{
    g_autoptr(GOutputStream) stream = g_memory_output_stream_new_resizable();

    assert_true(rp_schedule_file_write(schedule, shape, "a comment", stream, &f->error));
    GMemoryOutputStream *memory = G_MEMORY_OUTPUT_STREAM(stream);

    g_free(f->text);
    f->text = g_strndup(g_memory_output_stream_get_data(memory),
                        g_memory_output_stream_get_data_size(memory));
}

static void
read_schedule(Fixture *f)
{
    g_clear_pointer(&f->given, rp_schedule_free_given);
    f->given = rp_must(rp_schedule_file_parse, "order.txt", f->text, strlen(f->text));
}

static void
assert_same_times(const Fixture *f)
{
    const RpTraceRecord *a = rp_trace_records(f->traces[0]), *b = rp_trace_records(f->traces[1]);

    assert_int_equal(rp_trace_n_records(f->traces[0]), rp_trace_n_records(f->traces[1]));
    for (gsize i = 0; i < rp_trace_n_records(f->traces[0]); i++) {
        assert_int_equal(a[i].start_ns, b[i].start_ns);
        assert_int_equal(a[i].end_ns, b[i].end_ns);
        assert_int_equal(a[i].kind, b[i].kind);
        assert_int_equal(a[i].lane, b[i].lane);
        assert_int_equal(a[i].stage, b[i].stage);
        assert_int_equal(a[i].micro_batch, b[i].micro_batch);
    }
}

/* FALSE: the schedule does not take the shape. */
static gboolean
round_trip(Fixture *f, const RpPlanOptions *options, const RpShape *shape)
{
    const RpMachine machine = rp_machine_from_profile(f->profile);
    RpPlanOptions own = *options;

    f->plans[0] = rp_plan_make(f->profile, f->partition, options, 2, &f->error);
    if (f->plans[0] == NULL)
        return FALSE;
    write_schedule(f, options->schedule, shape);
    read_schedule(f);
    own.schedule = f->given;
    f->plans[1] = rp_must(rp_plan_make, f->profile, f->partition, &own, 2);
    for (guint i = 0; i < 2; i++)
        f->traces[i] = rp_must(rp_simulate, f->plans[i], &machine);
    assert_same_times(f);
    RpViolation violation = {0};

    if (!rp_verify_plan(f->plans[1], &violation))
        fail_msg("%s: %s", options->schedule->name, violation.message);
    /* and what was read is written as the same text */
    g_autofree char *first = g_strdup(f->text);

    write_schedule(f, f->given, shape);
    assert_string_equal(f->text, first);
    return TRUE;
}

static RpPartition *
partition_of(const Fixture *f, const RpScheduleOps *schedule, guint parts)
{
    return schedule->dispatched ? rp_partition_even(f->profile, 28 / parts)
                                : rp_partition_min_max(f->profile, parts, NULL);
}

RP_TEST_OF(every_schedule_of_every_size_comes_back_with_the_same_times, Fixture *f)
{
    guint n = 0;

    for (const RpScheduleOps *const *s = rp_schedules(); *s != NULL; s++) {
        guint taken = 0;

        if ((*s)->mirrored) /* refuses_to_write_two_copies() */
            continue;
        for (guint N = 1; N <= MAX_GPUS; N++)
            for (guint M = 1; M <= MAX_MICRO_BATCHES; M += N > 2 ? 3 : 1)
                for (guint v = 1; v <= 3; v++)
                    for (guint round = (*s)->dispatched ? 1 : M; round <= M; round++) {
                        const guint how = N + M + v + round;
                        const RpPlanOptions options = {
                            .schedule = *s,
                            .gpus = N,
                            .micro_batches = M,
                            .slices = 1,
                            .round = round,
                            .async = how % 2 && !(*s)->unflushed, /* a file has one iteration */
                            .fidelity = how % 5 == 0 ? RP_FIDELITY_FULL : RP_FIDELITY_COMPUTE,
                            .reverse_backward = how % 3 == 0,
                        };

                        forget(f);
                        f->partition = partition_of(f, *s, N * v);
                        const RpShape shape = {
                            .gpus = N,
                            .micro_batches = M,
                            .stages = f->partition->n_forward + f->partition->n_backward,
                            .round = round,
                            .forward_slots = (*s)->dispatched ? f->partition->n_forward : 0,
                            .reverse_backward = options.reverse_backward,
                            .gpus_per_root = f->profile->links.gpus_per_root,
                        };

                        taken += round_trip(f, &options, &shape);
                    }
        assert_true(taken > 10);
        n += taken;
    }
    assert_true(n > 400);
}

RP_TEST(refuses_to_write_two_copies)
{
    const RpShape shape = {.gpus = 4, .micro_batches = 8, .stages = 4, .round = 8};
    GError *error = NULL;
    g_autoptr(GOutputStream) memory = g_memory_output_stream_new_resizable();

    assert_false(
        rp_schedule_file_write(rp_schedule_find("chimera", NULL), &shape, NULL, memory, &error));
    assert_string_equal(error->message, "chimera has two copies of each stage, on two GPUs: a "
                                        "schedule file binds all of a stage to one; expected "
                                        "another schedule, or PyTorch's CSV");
    g_clear_error(&error);
}

static RpScheduleOps *
parse(Fixture *f, const char *text)
{
    forget(f);
    f->given = rp_schedule_file_parse("/a/order.txt", text, strlen(text), &f->error);
    return f->given;
}

RP_TEST_OF(reads_what_a_file_may_say, Fixture *f)
{
    const RpGivenOrders *given;

    /* comments, empty lines, idle steps, tabs, CRLF, a GPU without actions */
    assert_non_null(parse(f, "# a comment\r\n\r\nF0.0 - F0.1\tB0.0 B0.1 # more\r\n-\r\n"
                             "  F1.0 B1.0 F1.1 I1.1 W1.1"));
    given = f->given->given;
    assert_string_equal(f->given->name, "order.txt");
    assert_int_equal(given->gpus, 3);
    assert_int_equal(given->stages, 2);
    assert_int_equal(given->micro_batches, 2);
    assert_int_equal(given->gpu_of[1], 2);
    assert_int_equal(given->orders[1]->len, 0);
    assert_true(f->given->split_backward && !f->given->dispatched);
    assert_false(rp_schedule_is_trained(f->given));
    /* RoundPipe's: two rounds, which the order tells */
    assert_non_null(parse(f, "F0.0 FB1.0 B2.0 F0.1 FB1.1 B2.1\n"));
    given = f->given->given;
    assert_true(f->given->dispatched && given->in_turns);
    assert_int_equal(given->round, 1);
    assert_int_equal(given->forward_slots, 1);
    assert_true(rp_schedule_is_trained(f->given));
    /* slots out of turn: simulated, not trained */
    assert_non_null(parse(f, "FB1.0 FB1.1\nF0.0 F0.1 B2.0 B2.1\n"));
    assert_false(f->given->given->in_turns);
    assert_false(rp_schedule_is_trained(f->given));
    assert_int_equal(f->given->given->round, 2);
}

RP_TEST_OF(reads_pytorchs_dialect_with_old_and_new_names, Fixture *f)
{
    assert_non_null(parse(f, "0F0,0F1,,0B0,0B1\n,1F0,1B0,1F1,1B1\n"));
    assert_int_equal(f->given->given->gpus, 2);
    assert_false(f->given->split_backward);
    assert_non_null(parse(f, "0F0,0I0,0W0\n"));
    /* a W without I: B is the input gradient */
    assert_non_null(parse(f, "0F0,0B0,0W0,0F1,0BW1\n"));
    assert_true(f->given->split_backward);
    assert_int_equal(g_array_index(f->given->given->orders[0], RpAction, 1).kind,
                     RP_ACTION_INPUT_GRADIENT);
    assert_null(parse(f, "0F0,0SEND_F0\n1F0,1RECV_F0,1B0\n0B0\n"));
    assert_non_null(f->error);
}

/* ---- PyTorch's test/distributed/pipelining/artifacts ---- */

/* A schedule's orders as PyTorch writes them. */
static void
write_pytorch(Fixture *f, const char *name, const RpShape *shape)
{
    g_autoptr(GOutputStream) stream = g_memory_output_stream_new_resizable();
    g_autoptr(RpOrders) orders = rp_orders_new(name, shape->gpus);

    for (guint g = 0; g < shape->gpus; g++) {
        g_autoptr(GArray) order = g_array_new(FALSE, FALSE, sizeof(RpAction));

        rp_schedule_find(name, NULL)->order(shape, g, order);
        for (guint i = 0; i < order->len; i++)
            rp_orders_append(orders, g, &g_array_index(order, RpAction, i), i + 1);
    }
    assert_true(rp_export_pytorch(orders, stream, NULL, &f->error));
    GMemoryOutputStream *memory = G_MEMORY_OUTPUT_STREAM(stream);

    f->text = g_strndup(g_memory_output_stream_get_data(memory),
                        g_memory_output_stream_get_data_size(memory));
}

static void
replace(Fixture *f, const char *what, const char *with, guint limit)
{
    GString *text = g_string_new(f->text);

    assert_true(g_string_replace(text, what, with, limit) > 0);
    g_free(f->text);
    f->text = g_string_free(text, FALSE);
}

/* Simulated with F = I = W = 1 of each stage, and proved. Returns: the makespan */
static gint64
units(Fixture *f)
{
    read_schedule(f);
    const RpGivenOrders *given = f->given->given;
    const guint S = given->stages;
    const RpPlanOptions options = {.schedule = f->given,
                                   .gpus = given->gpus,
                                   .micro_batches = given->micro_batches,
                                   .recompute = RP_RECOMPUTE_GATED};
    g_autofree RpInterval *stages = g_new(RpInterval, S);
    RpViolation violation = {0};

    f->profile->links.hop_ns = 0;
    for (guint l = 0; l < f->profile->n_layers; l++) {
        RpLayer *layer = &f->profile->layers[l];

        layer->forward_ns = l < S ? 1 : 0;
        layer->backward_ns = l < S ? 2 : 0;
        layer->weight_gradient_ns = l < S ? 1 : 0;
        layer->recompute_ns = layer->recompute_last_ns = 0;
    }
    for (guint s = 0; s < S; s++)
        stages[s] = (RpInterval){s, s + 1 < S ? 1 : f->profile->n_layers - s};
    f->partition = rp_partition_new_bound(stages, S);
    const RpMachine machine = rp_machine_from_profile(f->profile);

    f->plans[0] = rp_must(rp_plan_make, f->profile, f->partition, &options, 1);
    if (!rp_verify_plan(f->plans[0], &violation))
        fail_msg("%s", violation.message);
    f->traces[0] = rp_must(rp_simulate, f->plans[0], &machine);
    return rp_trace_makespan_ns(f->traces[0]);
}

/* The sums are of the published files. */
RP_TEST_OF(runs_what_pytorch_publishes, Fixture *f)
{
    const RpShape folded = {.gpus = 4, .micro_batches = 10, .stages = 8, .round = 10};
    const RpShape looped = {.gpus = 2, .micro_batches = 8, .stages = 4, .round = 8};

    write_pytorch(f, "dualpipe-v", &folded);
    g_autofree char *dualpipe = g_compute_checksum_for_string(G_CHECKSUM_SHA256, f->text, -1);

    assert_string_equal(dualpipe,
                        "16ce4a29936e4c5ad774098add32489b4937942e3f5ab0108f17d2826b184529");
    /* a device's work, and (N - 1)(F&B + B - 3W) */
    assert_int_equal(units(f), 2 * 10 * 3 + 3 * 2);
    assert_int_equal(f->given->given->stages, 8);
    forget(f);

    write_pytorch(f, "interleaved-zb", &looped); /* older names, and where a rank waits */
    replace(f, "I", "B", 0);
    replace(f, "2F0,", "2F0,,", 1);
    replace(f, "\n", "\n,", 1);
    g_autofree char *zb1p = g_compute_checksum_for_string(G_CHECKSUM_SHA256, f->text, -1);

    assert_string_equal(zb1p, "0dd1690c4034ac9d644a32eb48c8540873c6e4a6f8db14919c9b67e9818958db");
    assert_int_equal(units(f), 2 * 8 * 3 + 1); /* v M (F + B) + (N - 1) F */
    assert_int_equal(f->given->given->stages, 4);
}

/* All words of those files, and those of other files of PyTorch; idle cells, rows that end in CR LF. */
RP_TEST(reads_every_word_of_pytorch)
{
    static const struct {
        const char *text;
        gint64 units;
    } files[] = {
        /* as zb1p_2rank_2stagep_comms.csv: both halves at once on the first rank, sends, receives */
        {"0UNSHARD,2UNSHARD,0F0,0SEND_F0,2RECV_F0,0F1,0SEND_F1,2RECV_F1,2F0,2SEND_F0,,2F1,2SEND_F1,"
         "2RECV_B0,2BW0,2SEND_B0,2RECV_B1,2BW1,2SEND_B1,2RESHARD,0RECV_B0,0BW0,0RECV_B1,0BW1,"
         "0RESHARD\r\n"
         "1UNSHARD,3UNSHARD,1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,3RECV_F0,3F0,3RECV_F1,,"
         "3B0,3SEND_B0,1RECV_B0,3F1,3B1,3SEND_B1,1RECV_B1,3W0,1B0,1SEND_B0,3W1,3RESHARD,1B1,"
         "1SEND_B1,1W0,1W1,1RESHARD\r\n",
         2 * 2 * 3 + 1},
        /* stages in a V, as dualpipev_4rank_10mb.csv: overlaps and all three kinds of backward */
        {"0UNSHARD,0F0,3UNSHARD,,0F1,3F0,3I0,3W0,3F1,(0F2;3B1)OVERLAP_F_B,,3F2,3B2,3REDUCE_GRAD,"
         "3RESHARD,0B0,0I1,0W1,0B2,0REDUCE_GRAD,0RESHARD\n"
         "1UNSHARD,2UNSHARD,,1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,2B1,1I1,1W1,2I2,2W2,"
         "1B2,2REDUCE_GRAD,2RESHARD,1REDUCE_GRAD,1RESHARD\n",
         26},
    };

    for (guint i = 0; i < G_N_ELEMENTS(files); i++) {
        Fixture *f = *state;

        f->text = g_strdup(files[i].text);
        assert_int_equal(units(f), files[i].units);
        assert_int_equal(f->given->given->stages, 4);
        assert_int_equal(f->given->given->gpus, 2);
        forget(f);
    }
}

RP_TEST(refuses_bad_files_with_line_and_column)
{
    static const struct {
        const char *text, *part;
    } files[] = {
        {"", "expected 1 to 65536 lines of actions as `F0.0 B0.0`, one for each GPU, found none"},
        {"# nothing\n", "found none"},
        {"F0.0 B0.0 X\n", "line 1, column 11: expected an action as F0.0"},
        {"\nF0 B0\n", "line 2, column 1: expected an action as F0.0"},
        {"F0.0 B0.0x\n", "line 1, column 6: expected an action"},
        {"F99999999999.0 B0.0", "line 1, column 2: expected stages and micro-batches up to"},
        {"F0.0 F0.0&B0.0", "line 1, column 6: expected two actions of different"},
        {"F0.0 B0.0&F0.1", "line 1, column 6: expected a forward and a backward as F0.7&B7.3"},
        {"rund 4\nF0.0 B0.0", "line 1, column 1: expected an action as F0.0"},
        {"round\nFB0.0", "line 1, column 1: expected a number of micro-batches behind it"},
        {"round 0\nFB0.0", "line 1, column 7: expected a number of micro-batches, 1 or more"},
        {"round 1\nround 1\nFB0.0", "line 2, column 1: expected one line of `round`"},
        {"round 1 2\nFB0.0", "line 1, column 9: expected the end of the line"},
        {"round 4\nF0.0 B0.0", "line 1: expected no `round`"},
        {"weights offloaded\nFB0.0", "line 1: expected no `weights offloaded`"},
        {"round 3\nFB0.0 FB0.1", "line 1: expected rounds that divide the 2 micro-batches"},
        /* twice, missing, on another GPU */
        {"F0.0 F0.0 B0.0\n", "`F0.0` (line 1, column 6) is there twice"},
        {"F0.0 I0.0 W0.0 B0.0\n", "`B0.0` (line 1, column 16) is there twice"},
        {"F0.0 B0.0 F0.1\n", "line 1: expected `B0.1`, as of the other micro-batches of stage 0"},
        {"F0.0 I0.0\n", "line 1: expected `W0.0`"},
        {"F0.0 F2.0 B2.0 B0.0\n", "expected `F1.0` on some line"},
        {"F0.0\n# on another\n B0.0\n", "`B0.0` (line 3, column 2) is of stage 0, which runs on "
                                        "line 1"},
        {"F0.0\nF1.0\n", "expected a backward (B, or I and W) of each forward"},
        {"F0.0 B0.0 F9.0", "names stage 9 and micro-batch 0"},
        /* before what it needs */
        {"F0.0 B0.0\nB1.0 F1.0\n", "`B1.0` (line 2, column 1) waits for `F1.0` (line 2, column 6)"},
        {"F0.0 F1.0 B0.0 B1.0\n", "; put `B1.0` (line 1, column 16) before `B0.0` (line 1"},
        {"F0.0 W0.0 I0.0", "`W0.0` (line 1, column 6) waits for `I0.0`"},
        {"F0.0 F0.1 FB1.0 B2.0 FB1.1 B2.1\n",
         "expected FB1.0, found `F0.1` (line 1, column 6): with a fused stage slots run"},
        /* the other dialect */
        {"0F0,0B0,0X0\n", "row 1, cell 3: expected <stage><action><micro-batch>"},
        {"0F0,0F0,0B0\n", "`0F0` (row 1, cell 2) does what another action does as well"},
    };
    Fixture *f = *state;

    for (guint i = 0; i < G_N_ELEMENTS(files); i++)
        if (parse(f, files[i].text) != NULL || strstr(f->error->message, files[i].part) == NULL ||
            strstr(f->error->message, "order.txt: ") == NULL ||
            strchr(f->error->message, '\n') != NULL)
            fail_msg("%s: %s", files[i].text, f->error != NULL ? f->error->message : "taken");
}

RP_TEST(refuses_other_counts_than_the_files)
{
    static const struct {
        guint gpus, micro_batches, stages;
        const char *part;
    } shapes[] = {
        {3, 2, 2, "the file's order has 2 GPUs, found 3"},
        {2, 4, 2, "the file's order has 2 micro-batches, found 4"},
        {2, 2, 4, "the file's order has 2 stages, found 4"},
    };
    Fixture *f = *state;

    for (guint i = 0; i < G_N_ELEMENTS(shapes); i++) {
        assert_non_null(parse(f, "F0.0 F0.1 B0.0 B0.1\nF1.0 B1.0 F1.1 B1.1\n"));
        const RpPlanOptions options = {
            .schedule = f->given, .gpus = shapes[i].gpus, .micro_batches = shapes[i].micro_batches};

        f->partition = rp_partition_min_max(f->profile, shapes[i].stages, NULL);
        f->plans[0] = rp_plan_make(f->profile, f->partition, &options, 1, &f->error);
        assert_null(f->plans[0]);
        rp_assert_error_message_contains(f->error, shapes[i].part);
    }
}

/* 28 blocks in 3, 0 and 25: the stage between takes no time, and its hops do. */
RP_TEST(stages_without_layers_take_no_time)
{
    static const guint with[] = {3, 0, 25}, without[] = {3, 25};
    Fixture *f = *state;
    const RpMachine machine = rp_machine_from_profile(f->profile);

    assert_non_null(parse(f, "F0.0 B0.0\nF1.0 B1.0\nF2.0 B2.0\n"));
    f->partition = rp_must(rp_partition_from_blocks, f->profile, with, 3);
    RpPlanOptions options = {.schedule = f->given, .gpus = 3, .micro_batches = 1};

    f->plans[0] = rp_must(rp_plan_make, f->profile, f->partition, &options, 1);
    assert_true(rp_verify_plan(f->plans[0], NULL));
    f->traces[0] = rp_simulate(f->plans[0], &machine, &f->error);
    rp_partition_free(f->partition);
    f->partition = rp_partition_from_blocks(f->profile, without, 2, &f->error);
    options.schedule = rp_schedule_find("1f1b", NULL);
    options.gpus = 2;
    f->plans[1] = rp_plan_make(f->profile, f->partition, &options, 1, &f->error);
    f->traces[1] = rp_simulate(f->plans[1], &machine, &f->error);
    assert_int_equal(rp_trace_makespan_ns(f->traces[0]),
                     rp_trace_makespan_ns(f->traces[1]) + 2 * f->profile->links.hop_ns);
    /* transfers and weights are those of layers */
    options = (RpPlanOptions){
        .schedule = f->given, .gpus = 3, .micro_batches = 1, .fidelity = RP_FIDELITY_FULL};
    g_autoptr(RpPartition) empty = rp_partition_from_blocks(f->profile, with, 3, NULL);

    rp_refuses("stage 1 of 3 holds no layer", rp_plan_make, f->profile, empty, &options, 1);
}

RP_TEST_OF(finds_a_partition_for_the_slots_of_a_file, Fixture *f)
{
    guint round = 0;

    assert_non_null(parse(f, "F0.0 F0.1 FB2.0 FB2.1 B4.0 B4.1\nF1.0 F1.1 B3.0 B3.1\n"));
    const RpPlanOptions options = {.schedule = f->given, .gpus = 2, .micro_batches = 2, .round = 2};

    f->partition =
        rp_must(rp_partition_choose, f->profile, &options, RP_PARTITION_SIMULATED, 0, 0, &round);
    assert_int_equal(f->partition->n_forward, 2);
    assert_int_equal(f->partition->n_backward, 3);
    f->plans[0] = rp_must(rp_plan_make, f->profile, f->partition, &options, 1);
}

RP_TEST_FIXTURE(set_up, tear_down)
