/**
 * Reading a PyTorch pipeline CSV neither crashes nor leaks, whatever the bytes; a refusal is one
 * line; an accepted order can be written and read again, and is then the same. An order for which a
 * plan can be made comes out of the plan as it went in, and the verifier proves the plan.
 */
#include "fuzz/harness.h"

#include <gio/gio.h>

#include "core/formats/export.h"
#include "core/verify/verify.h"

/* Orders with more actions are not planned: the time is better spent on other inputs. */
#define MAX_PLANNED 4096
#define MAX_CLOCK_BYTES (1u << 20)

static void
check_export(const RpOrders *orders)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GOutputStream) stream = g_memory_output_stream_new_resizable();
    g_autofree char *note = NULL;

    gboolean written = rp_export_pytorch(orders, stream, &note, &error);
    g_assert_no_error(error);
    g_assert(written);
    GMemoryOutputStream *memory = G_MEMORY_OUTPUT_STREAM(stream);
    g_autoptr(RpOrders) again =
        rp_orders_import_pytorch("again", g_memory_output_stream_get_data(memory),
                                 g_memory_output_stream_get_data_size(memory), 0, &error);
    g_assert_no_error(error);
    g_assert(rp_orders_equal(orders, again));
}

static void
check_plan(const RpOrders *orders)
{
    static const RpStageCost cost = {1, 3, 2, 1, 1};
    static const RpOrderCosts costs = {&cost, 1, 1, 0};
    g_autoptr(GError) error = NULL;

    g_autoptr(RpPlan) plan = rp_plan_from_orders(orders, &costs, &error);
    if (!was_taken(plan != NULL, error))
        return;
    g_autoptr(GError) problem = NULL;
    RpCommunicationProof communications;
    gboolean sound = rp_orders_check_communications(orders, &communications, &problem);
    (void)was_taken(sound, problem);
    g_autoptr(RpOrders) same = rp_orders_from_plan(plan, 0);
    g_assert(rp_orders_equal(orders, same));

    /* a forward-only order is not a whole iteration */
    RpViolation violation = {.rule = RP_RULE_NONE};
    if (rp_plan_stage(plan, rp_plan_n_stages(plan) - 1)->runs_backward &&
        !rp_verify_plan_within(plan, MAX_CLOCK_BYTES, &violation))
        g_assert_cmpint(violation.rule, ==, RP_RULE_NONE);
    rp_violation_clear(&violation);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (guint flags = 0; flags <= RP_PYTORCH_OLD_NAMES; flags++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(RpOrders) orders =
            rp_orders_import_pytorch("fuzz", (const char *)data, size, flags, &error);

        if (!was_taken(orders != NULL, error))
            continue;
        check_export(orders);
        if (rp_orders_n_actions(orders) <= MAX_PLANNED)
            check_plan(orders);
    }
    return 0;
}
