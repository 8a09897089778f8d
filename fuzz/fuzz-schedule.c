/**
 * Reading a schedule's file neither crashes nor leaks, whatever the bytes; a refusal is one line;
 * an accepted schedule is written in the text dialect and read as the same again, and a plan of it
 * is made and proved.
 */
#include "fuzz/harness.h"

#include <string.h>

#include "core/formats/schedule-file.h"
#include "core/plan/planner.h"
#include "core/verify/verify.h"

/* Larger orders are not planned: the time is better spent on other inputs. */
#define MAX_PLANNED 4096
#define MAX_CLOCK_BYTES (1u << 20)

static RpShape
shape_of(const RpGivenOrders *given)
{
    return (RpShape){
        .gpus = given->gpus,
        .micro_batches = given->micro_batches,
        .stages = given->stages,
        .round = given->round > 0 ? given->round : given->micro_batches,
        .forward_slots = given->forward_slots,
    };
}

static void
check_again(const RpScheduleOps *schedule)
{
    const RpShape shape = shape_of(schedule->given);
    g_autoptr(GError) error = NULL;
    g_autoptr(GOutputStream) stream = g_memory_output_stream_new_resizable();

    gboolean written = rp_schedule_file_write(schedule, &shape, NULL, stream, &error);
    g_assert_no_error(error);
    g_assert(written);
    GMemoryOutputStream *memory = G_MEMORY_OUTPUT_STREAM(stream);
    g_autoptr(RpScheduleOps) again =
        rp_schedule_file_parse("again", g_memory_output_stream_get_data(memory),
                               g_memory_output_stream_get_data_size(memory), &error);

    g_assert_no_error(error);
    g_assert(again->dispatched == schedule->dispatched);
    g_assert(again->offloads_weights == schedule->offloads_weights);
    g_assert(again->given->round == schedule->given->round);
    g_assert(again->given->gpus == schedule->given->gpus);
    for (guint g = 0; g < again->given->gpus; g++) {
        const GArray *a = again->given->orders[g], *b = schedule->given->orders[g];

        g_assert(a->len == b->len);
        for (guint i = 0; i < a->len; i++) { /* bytes between members are of no value */
            const RpAction *x = &g_array_index(a, RpAction, i), *y = &g_array_index(b, RpAction, i);

            g_assert(x->stage == y->stage && x->micro_batch == y->micro_batch);
            g_assert(x->backward_stage == y->backward_stage);
            g_assert(x->backward_micro_batch == y->backward_micro_batch);
            g_assert(x->kind == y->kind && x->late == y->late);
        }
    }
}

/* A layer a stage; in a dispatched plan blocks for the longer half. */
static void
check_plan(const RpScheduleOps *schedule)
{
    const RpGivenOrders *given = schedule->given;
    const guint n = schedule->dispatched ? MAX(given->stages, 2) : given->stages;
    g_autoptr(RpProfile) profile = rp_profile_new(n);
    g_autofree guint *forward = g_new0(guint, given->stages + 1);
    g_autofree guint *backward = g_new0(guint, given->stages + 1);
    g_autoptr(RpPartition) partition = NULL;
    const RpPlanOptions options = {.schedule = schedule,
                                   .gpus = given->gpus,
                                   .micro_batches = given->micro_batches,
                                   .round = given->round};

    for (guint l = 0; l < n; l++) {
        profile->layers[l].forward_ns = 2;
        profile->layers[l].backward_ns = 4;
        profile->layers[l].weight_gradient_ns = 2;
    }
    if (schedule->dispatched) {
        const guint f = given->forward_slots, b = given->stages - f - 1;

        for (guint s = 0; s < f; s++)
            forward[s] = s == 0 ? n - (f - 1) - (n > f ? 1 : 0) : 1;
        backward[0] = f == 0 ? n : n > f ? 1 : 0;
        for (guint s = 1; s <= b; s++)
            backward[s] = s == 1 ? n - backward[0] - (b - 1) : 1;
        partition = rp_partition_from_dispatched_blocks(profile, forward, f, backward, b + 1, NULL);
        if (partition == NULL)
            return;
    } else {
        for (guint s = 0; s < n; s++)
            forward[s] = 1;
        partition = rp_partition_from_blocks(profile, forward, n, NULL);
    }
    g_autoptr(GError) error = NULL;
    g_autoptr(RpPlan) plan = rp_plan_make(profile, partition, &options, 2, &error);

    g_assert_no_error(error);
    RpViolation violation = {.rule = RP_RULE_NONE};

    if (!rp_verify_plan_within(plan, MAX_CLOCK_BYTES, &violation))
        g_assert_cmpint(violation.rule, ==, RP_RULE_NONE);
    rp_violation_clear(&violation);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(RpScheduleOps) schedule =
        rp_schedule_file_parse("fuzz", (const char *)data, size, &error);

    if (!was_taken(schedule != NULL, error))
        return 0;
    check_again(schedule);
    if ((guint64)schedule->given->stages * schedule->given->micro_batches <= MAX_PLANNED)
        check_plan(schedule);
    return 0;
}
