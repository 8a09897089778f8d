/* The published results, row by row (reference: profiles/rtx4090, partition and setting as
 * published). */
#include "tests/rp-test.h"

#include "core/base/units.h"
#include "core/partition/partition.h"
#include "core/plan/planner.h"
#include "core/schedules/schedule.h"
#include "core/trace/report.h"
#include "sim/simulate.h"

typedef struct {
    const char *schedule;
    const char *model;
    const char *partition; /* "forward|backward" for roundpipe */
    double makespan_ms;
    double bubble_pct, fill_pct, switch_pct, drain_pct, intra_pct, comm_exposed_pct;
} Row;

static RpPartition *
read_partition(const RpProfile *profile, const char *text)
{
    g_auto(GStrv) parts = g_strsplit(text, "|", 2);
    g_autoptr(GArray) first = NULL;
    g_autoptr(GArray) second = NULL;
    GError *error = NULL;
    RpPartition *partition;

    first = rp_partition_parse_list(parts[0], &error);
    assert_null(error);
    if (parts[1] == NULL) {
        partition = rp_partition_from_blocks(profile, (const guint *)(void *)first->data,
                                             first->len, &error);
    } else {
        second = rp_partition_parse_list(parts[1], &error);
        assert_null(error);
        partition = rp_partition_from_dispatched_blocks(
            profile, (const guint *)(void *)first->data, first->len,
            (const guint *)(void *)second->data, second->len, &error);
    }
    if (error != NULL)
        fail_msg("%s", error->message);
    return partition;
}

static void
check_percent(const Row *row, const char *name, double found, double expected)
{
    if (fabs(100.0 * found - expected) > 0.0005)
        fail_msg("%s, %s: %s is %.5f %%, published %.5f %%", row->schedule, row->model, name,
                 100.0 * found, expected);
}

static void
check_row(const Row *row)
{
    GError *error = NULL;
    g_autofree char *path =
        g_strdup_printf("%s/profiles/rtx4090/%s.json", RP_SOURCE_ROOT, row->model);
    g_autoptr(RpProfile) profile = rp_profile_load(path, &error);
    if (profile == NULL)
        fail_msg("%s", error->message);
    g_autoptr(RpPartition) partition = read_partition(profile, row->partition);
    RpPlanOptions options = {
        .schedule = rp_schedule_find(row->schedule, &error),
        .gpus = 8,
        .micro_batches = 16,
        .round = 8,
        .fidelity = RP_FIDELITY_COMPUTE,
    };
    assert_non_null(options.schedule);
    rp_plan_follow_paper(&options);
    g_autoptr(RpPlan) plan = rp_plan_make(profile, partition, &options, 1, &error);
    if (plan == NULL)
        fail_msg("%s", error->message);
    g_autoptr(RpTrace) trace = rp_simulate(plan, NULL, &error);
    if (trace == NULL)
        fail_msg("%s", error->message);
    RpBubble bubble = rp_report_bubble(trace);

    if (fabs(rp_ms_from_ns(bubble.makespan_ns) - row->makespan_ms) > 0.001)
        fail_msg("%s, %s: makespan is %.4f ms, published %.4f ms", row->schedule, row->model,
                 rp_ms_from_ns(bubble.makespan_ns), row->makespan_ms);
    check_percent(row, "bubble", bubble.ratio, row->bubble_pct);
    check_percent(row, "fill", bubble.fill, row->fill_pct);
    check_percent(row, "switch", bubble.switch_, row->switch_pct);
    check_percent(row, "drain", bubble.drain, row->drain_pct);
    check_percent(row, "intra", bubble.intra, row->intra_pct);
    check_percent(row, "exposed communication", bubble.comm_exposed, row->comm_exposed_pct);
}

RP_TEST(every_published_row_is_reproduced)
{
    static const Row rows[] = {
#include "tests/sim/published-rows.inc"
    };

    for (gsize i = 0; i < G_N_ELEMENTS(rows); i++)
        check_row(&rows[i]);
}
