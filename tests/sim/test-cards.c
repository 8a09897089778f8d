/*
 * Boxes with cards of several kinds: what they are together, and plans and times that follow from each
 * device's own card.
 */
#include "tests/rp-test.h"

#include "core/base/units.h"
#include "core/plan/planner.h"
#include "core/profile/cards.h"
#include "core/verify/verify.h"
#include "sim/search/bound.h"
#include "sim/simulate.h"

#define LAYERS 6

static RpProfile *
load(void)
{
    g_autofree char *path = rp_test_source_path("profiles/rtx4090/qwen3-1.7b.json");
    return rp_must(rp_profile_load, path);
}

static RpProfile *
blocks_of(gint64 time_ns, const char *device)
{
    RpProfile *profile = rp_profile_new(LAYERS);

    rp_profile_take(&profile->device, g_strdup(device));
    for (guint l = 0; l < LAYERS; l++)
        profile->layers[l] = (RpLayer){.kind = RP_LAYER_BLOCK,
                                       .name = "block",
                                       .forward_ns = time_ns,
                                       .recompute_ns = time_ns,
                                       .backward_ns = time_ns};
    return profile;
}

RP_TEST(a_box_has_mean_times_the_largest_sizes_and_the_least_of_all_else)
{
    g_autoptr(RpProfile) fast = blocks_of(1000, "A"), slow = blocks_of(3000, "B");
    const guint card_of[] = {0, 1, 0};

    fast->gpu_memory_bytes = 24;
    slow->gpu_memory_bytes = 12;
    fast->layers[2].activation_bytes = 5;
    slow->layers[2].activation_bytes = 7;
    fast->links = (RpLinks){.hop_ns = 5, .h2d_bytes_per_s = 20, .d2h_bytes_per_s = 20};
    slow->links = (RpLinks){
        .hop_ns = 9, .h2d_bytes_per_s = 10, .d2h_bytes_per_s = 30, .host_bytes_per_s = 40};
    g_autoptr(RpProfile) box = rp_profile_box((const RpProfile *const[]){fast, slow}, card_of, 3);
    g_autoptr(RpProfile) copy = rp_profile_copy(box);

    /* 2 / 1000 + 1 / 3000 a ns, of three */
    assert_int_equal(copy->layers[0].forward_ns, 1286);
    assert_int_equal(copy->layers[2].activation_bytes, 7);
    assert_int_equal(copy->gpu_memory_bytes, 12);
    assert_int_equal(copy->links.hop_ns, 9);
    assert_true(copy->links.h2d_bytes_per_s == 10 && copy->links.d2h_bytes_per_s == 20);
    assert_true(copy->links.host_bytes_per_s == 40);
    assert_string_equal(copy->device, "2 x A + 1 x B");
    assert_int_equal(rp_profile_of(copy, 0)->layers[0].forward_ns, 1000);
    assert_int_equal(rp_profile_of(copy, 1)->layers[0].forward_ns, 3000);
    assert_int_equal(rp_profile_card(copy, 2), 0);
    rp_profile_clear_cards(copy);
    assert_false(rp_profile_is_mixed(copy));
    assert_ptr_equal(rp_profile_of(copy, 1), copy);
}

RP_TEST(slower_devices_are_cards_of_their_own)
{
    g_autoptr(RpProfile) profile = load();
    const RpSlow none[] = {{1, 1}, {1, 1}}, some[] = {{1, 1}, {1.5, 1}, {1, 2}, {1.5, 1}};
    g_autoptr(RpProfile) alike = rp_profile_slowed(profile, none, 2);
    g_autoptr(RpProfile) box = rp_profile_slowed(profile, some, 4);
    const RpSlow more[] = {{1, 1}, {1, 1}, {2, 1}, {1, 1}};
    g_autoptr(RpProfile) twice = rp_profile_slowed(box, more, 4);

    assert_false(rp_profile_is_mixed(alike));
    assert_int_equal(box->n_cards, 3);
    assert_int_equal(rp_profile_card(box, 3), rp_profile_card(box, 1));
    assert_int_equal(rp_profile_of(box, 1)->layers[1].backward_ns,
                     (gint64)(1.5 * (double)profile->layers[1].backward_ns + 0.5));
    assert_true(rp_profile_of(box, 2)->links.h2d_bytes_per_s == profile->links.h2d_bytes_per_s / 2);
    assert_int_equal(rp_profile_of(box, 2)->layers[1].backward_ns, profile->layers[1].backward_ns);
    assert_int_equal(twice->n_cards, 3);
    assert_int_equal(rp_profile_of(twice, 2)->layers[1].forward_ns,
                     2 * profile->layers[1].forward_ns);
    assert_true(rp_profile_of(twice, 2)->links.h2d_bytes_per_s ==
                profile->links.h2d_bytes_per_s / 2);
}

/* The faster card gets as many more blocks as it is faster. */
RP_TEST(bound_stages_suit_the_card_that_they_are_on)
{
    g_autoptr(RpProfile) fast = blocks_of(1000, "A"), slow = blocks_of(2000, "B");
    const guint orders[][2] = {{0, 1}, {1, 0}};

    for (gsize i = 0; i < G_N_ELEMENTS(orders); i++) {
        const RpProfile *cards[] = {orders[i][0] == 0 ? fast : slow,
                                    orders[i][0] == 0 ? slow : fast};
        g_autoptr(RpProfile) box = rp_profile_box(cards, (const guint[]){0, 1}, 2);
        const RpBoundSearch search = {
            .profile = box,
            .options = {.schedule = rp_schedule_find("1f1b", NULL),
                        .gpus = 2,
                        .micro_batches = 16,
                        .round = 16},
        };
        g_autoptr(RpPartition) partition = rp_must(rp_search_bound, &search);

        assert_int_equal(partition->forward[0].count, i == 0 ? 4 : 2);
        assert_int_equal(partition->forward[1].count, i == 0 ? 2 : 4);
        g_autoptr(RpPlan) plan = rp_must(rp_plan_make, box, partition, &search.options, 1);

        for (RpTaskId id = rp_plan_first_id(plan); id < rp_plan_end_id(plan); id++) {
            const RpTask *task = rp_plan_task(plan, id);

            assert_int_equal(task->duration_ns, task->kind == RP_TASK_FORWARD ? 4000 : 8000);
        }
    }
}

static RpPlan *
full_plan(const RpProfile *box, guint gpus)
{
    const RpPlanOptions options = {
        .schedule = rp_schedule_find("roundpipe", NULL),
        .fidelity = RP_FIDELITY_FULL,
        .gpus = gpus,
        .micro_batches = 2 * gpus,
        .round = gpus,
        .async = TRUE,
    };
    g_autoptr(RpPartition) partition = rp_partition_even(box, 4);
    return rp_must(rp_plan_make, box, partition, &options, 4);
}

static gboolean
is_copy(const RpPlan *plan, const RpTraceRecord *record, guint32 *device)
{
    *device = rp_plan_lane_device(plan, record->lane);
    return *device != RP_NONE && rp_plan_lane_kind(plan, record->lane) != RP_LANE_COMPUTE &&
           rp_plan_task(plan, record->task)->bytes > 0;
}

/* Without other limits a copy takes its bytes over its own link. */
RP_TEST(copies_take_their_devices_links)
{
    g_autoptr(RpProfile) alike = load();
    const RpSlow slow[] = {{1, 1}, {1, 3}, {1.5, 1}};
    RpMachine machine;
    guint copies = 0;

    alike->links.host_bytes_per_s = alike->links.root_bytes_per_s = 0;
    alike->links.beside_optimizer_bytes_per_s = 0;
    alike->links.copy_latency_ns = 1000;
    g_autoptr(RpProfile) box = rp_profile_slowed(alike, slow, 3);
    g_autoptr(RpPlan) plan = full_plan(box, 3);

    machine = rp_machine_from_profile(box);
    g_autoptr(RpTrace) trace = rp_must(rp_simulate, plan, &machine);

    for (gsize i = 0; i < rp_trace_n_records(trace); i++) {
        const RpTraceRecord *record = &rp_trace_records(trace)[i];
        const guint kind = rp_plan_lane_kind(plan, record->lane);
        guint32 device;

        if (!is_copy(plan, record, &device))
            continue;
        const double rate = kind == RP_LANE_ACTIVATION_UP || kind == RP_LANE_PARAMETER_UP
                                ? alike->links.h2d_bytes_per_s
                                : alike->links.d2h_bytes_per_s;
        const double ns = (double)rp_plan_task(plan, record->task)->bytes / rate * RP_NS_PER_S;

        assert_float_equal((double)(record->end_ns - record->start_ns),
                           slow[device].link * (ns + 1000), 2);
        copies++;
    }
    assert_true(copies > 100);
}

/* Links that are the same are shared the same, whether each card's flows are counted alone or not. */
RP_TEST(root_complexes_are_shared_among_cards)
{
    g_autoptr(RpProfile) alike = load();
    const RpSlow slow[] = {{1, 1}, {1.25, 1}, {1, 1}, {1.5, 1}};
    g_autoptr(GError) error = NULL;

    alike->links.gpus_per_root = 2;
    alike->links.root_bytes_per_s = 1.2 * alike->links.h2d_bytes_per_s;
    alike->links.host_bytes_per_s = 1.9 * alike->links.h2d_bytes_per_s;
    g_autoptr(RpProfile) box = rp_profile_slowed(alike, slow, 4);
    g_autoptr(RpPlan) plan = full_plan(box, 4);
    RpMachine machine = rp_machine_from_profile(box);
    RpMachine counted = machine;

    assert_null(machine.cards);
    counted.cards = box;
    g_autoptr(RpTrace) one = rp_simulate(plan, &machine, &error);
    g_autoptr(RpTrace) other = rp_must(rp_simulate, plan, &counted);

    assert_int_equal(rp_trace_n_records(one), rp_trace_n_records(other));
    /* sums of rates are rounded in another order */
    assert_float_equal((double)rp_trace_end_ns(one), (double)rp_trace_end_ns(other),
                       1e-6 * (double)rp_trace_end_ns(one));
}
