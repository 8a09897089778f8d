/*
 * Gates: which task another waited for, by a plan's dependencies and without them; and memory that comes
 * back from a trace's file.
 */
#include "tests/sim/plan-fixture.h"

#include <glib/gstdio.h>

#include "core/formats/export.h"
#include "core/schedules/schedule.h"
#include "core/trace/needs.h"
#include "core/trace/report.h"
#include "sim/search/partition-cost.h"

RP_TEST_OF(the_gate_is_the_last_predecessor, Fixture *f)
{
    begin(f, 2, RP_FIDELITY_COMPUTE);
    RpTaskId a = compute(f, 0, 10, AT_ONCE);
    RpTaskId b = compute(f, 0, 20, AT_ONCE);
    RpTaskId c = compute(f, 1, 50, AFTER({.task = a, .hop_ns = 5}));
    RpTaskId d = compute(f, 1, 10, AFTER({.task = b, .hop_ns = 5}));
    RpTaskId e = compute(f, 0, 10, AFTER({.task = c, .hop_ns = 5}));
    simulate(f);
    g_autofree guint32 *gates = rp_trace_gates(f->trace, f->plan);

    assert_int_equal(gates[a], RP_NONE);
    assert_int_equal(gates[b], a); /* its lane */
    assert_int_equal(gates[c], a);
    assert_int_equal(gates[d], c); /* its lane was busy longer than b */
    assert_int_equal(gates[e], c);
}

RP_TEST_OF(a_recompute_waits_for_less, Fixture *f)
{
    begin(f, 2, RP_FIDELITY_COMPUTE);
    RpTaskId early = compute(f, 0, 30, AT_ONCE);
    RpTaskId late = compute(f, 1, 40, AT_ONCE);
    RpTaskId back = backward(f, 0, 20, 10, AFTER({.task = late, .phase = 1}));
    simulate(f);
    g_autofree guint32 *gates = rp_trace_gates(f->trace, f->plan);

    assert_times(f, back, 30, 50); /* it could from 40 - 10 on */
    assert_int_equal(gates[back], early);
}

/* A plan of a shipped profile, simulated. */
static void
simulate_profile(Fixture *f, const char *file, const char *name, RpFidelity fidelity)
{
    g_autofree char *path = rp_test_source_path(file);
    g_autoptr(RpProfile) profile = rp_profile_load(path, &f->error);
    RpPlanOptions options = {
        .schedule = rp_schedule_find(name, NULL),
        .gpus = 4,
        .micro_batches = 8,
        .fidelity = fidelity,
    };

    rp_assert_no_error(f->error);
    g_autoptr(RpPartition) partition =
        rp_must(rp_partition_choose, profile, &options, RP_PARTITION_PAPER, 0, 0, &options.round);
    f->machine = rp_machine_from_profile(profile);
    f->plan = rp_must(rp_plan_make, profile, partition, &options, 2);
    simulate(f);
}

static void
simulate_schedule(Fixture *f, const char *name, RpFidelity fidelity)
{
    simulate_profile(f, "profiles/rtx4090/qwen3-1.7b.json", name, fidelity);
}

/* Buffers in use at once never have more bytes than their arena. */
RP_TEST(memory_in_use_stays_within_its_arena)
{
    static const char *const files[] = {"rtx4090/gpt-oss-20b",    "rtx4090/llama-3.1-8b",
                                        "rtx4090/qwen3-1.7b",     "rtx4090/qwen3-235b-a22b",
                                        "rtx4090/qwen3-32b",      "h200/qwen3-1.7b-8x2048-one-gpu",
                                        "h200/qwen3-1.7b-8x2048", "h200/qwen3-4b-8x2048-one-gpu",
                                        "h200/qwen3-8b-4x2048"};
    static const char *const names[] = {"roundpipe", "1f1b", "looped-bfs"};
    Fixture *f = *state;

    for (guint i = 0; i < G_N_ELEMENTS(files) * G_N_ELEMENTS(names); i += RP_TEST_EVERY(1, 4)) {
        const char *file = files[i / G_N_ELEMENTS(names)], *name = names[i % G_N_ELEMENTS(names)];
        g_autofree char *path = g_strdup_printf("profiles/%s.json", file);

        begin(f, 1, RP_FIDELITY_COMPUTE); /* frees the last one */
        g_clear_pointer(&f->plan, rp_plan_free);
        simulate_profile(f, path, name, RP_FIDELITY_FULL);
        for (guint arena = 0; arena <= rp_plan_gpus(f->plan); arena++) {
            g_autoptr(GArray) curve = rp_report_memory_curve(f->plan, f->trace, arena);
            guint64 most = 0;

            for (guint s = 0; s < curve->len; s++)
                most = MAX(most, g_array_index(curve, RpMemoryStep, s).bytes);
            assert_true(most > 0);
            if (most > rp_plan_arena_bytes(f->plan, arena))
                fail_msg("%s, %s: %" G_GUINT64_FORMAT
                         " bytes in use of arena %u, which has %" G_GUINT64_FORMAT,
                         file, name, most, arena, rp_plan_arena_bytes(f->plan, arena));
        }
    }
}

/* Every task but the first of all has a gate that ended a hop at most before it could start. */
static void
assert_explained(const Fixture *f, const RpPlan *plan)
{
    g_autofree guint32 *gates = rp_trace_gates(f->trace, plan);
    const RpTraceRecord *records = rp_trace_records(f->trace);
    const gint64 hop_ns = rp_trace_hop_ns(f->trace);
    guint waits = 0, found = 0;

    for (gsize i = 0; i < rp_trace_n_records(f->trace); i++) {
        if (gates[i] == RP_NONE) {
            assert_int_equal(records[i].start_ns, 0);
            continue;
        }
        const RpTraceRecord *gate = &records[gates[i]];

        assert_true(gate->end_ns <= records[i].end_ns); /* a recompute runs before */
        waits++;
        found += gate->end_ns + hop_ns >= records[i].start_ns;
    }
    assert_true(waits > 0);
    assert_int_equal(found, waits);
}

RP_TEST(gates_explain_when_tasks_start)
{
    static const char *const names[] = {"1f1b", "gpipe", "interleaved-1f1b", "zb-h1", "roundpipe"};
    Fixture *f = *state;

    for (guint i = 0; i < G_N_ELEMENTS(names); i++)
        for (guint full = 0; full < 2; full++) {
            begin(f, 1, RP_FIDELITY_COMPUTE); /* frees the last one */
            g_clear_pointer(&f->plan, rp_plan_free);
            simulate_schedule(f, names[i], full ? RP_FIDELITY_FULL : RP_FIDELITY_COMPUTE);
            assert_explained(f, f->plan);
            assert_explained(f, NULL);
        }
}

RP_TEST_OF(memory_comes_back_from_the_file, Fixture *f)
{
    g_autofree char *directory = g_dir_make_tmp("rp-gates-XXXXXX", NULL);
    g_autofree char *path = g_build_filename(directory, "t.json", NULL);
    g_autoptr(GFile) file = g_file_new_for_path(path);
    GPtrArray *memory = NULL;

    simulate_schedule(f, "roundpipe", RP_FIDELITY_FULL);
    GOutputStream *stream =
        G_OUTPUT_STREAM(g_file_replace(file, NULL, FALSE, G_FILE_CREATE_NONE, NULL, NULL));

    assert_true(rp_export_chrome(f->trace, f->plan, RP_CHROME_MEMORY, stream, &f->error));
    assert_true(g_output_stream_close(stream, NULL, NULL));
    g_object_unref(stream);
    RpTrace *read = rp_must(rp_trace_load_chrome_memory, path, &memory);
    assert_same_records(read, f->trace);
    assert_int_equal(memory->len, 5);
    for (guint arena = 0; arena < memory->len; arena++) {
        g_autoptr(GArray) expected = rp_report_memory_curve(f->plan, f->trace, arena);
        const GArray *found = g_ptr_array_index(memory, arena);

        assert_true(found->len > 0);
        assert_int_equal(found->len, expected->len);
        assert_memory_equal(found->data, expected->data, found->len * sizeof(RpMemoryStep));
    }
    g_ptr_array_unref(memory);
    rp_trace_free(read);
    assert_int_equal(g_unlink(path), 0);
    assert_int_equal(g_rmdir(directory), 0);
}

RP_TEST_FIXTURE(set_up, tear_down)
