/*
 * Plans of one of several servers: shares, and the order of messages between servers. That each
 * edge of it is needed is shown by test-verify-mutations.c.
 */
#include "tests/rp-test.h"

#include "core/base/shard.h"
#include "tests/core/plan-mutate.h"

RP_TEST(shares_deal_out_every_block_once)
{
    static const guint64 sizes[] = {0,
                                    1,
                                    RP_SHARD_BLOCK - 1,
                                    RP_SHARD_BLOCK,
                                    RP_SHARD_BLOCK + 1,
                                    7 * RP_SHARD_BLOCK,
                                    100 * RP_SHARD_BLOCK + 5};

    for (gsize i = 0; i < G_N_ELEMENTS(sizes); i++) {
        for (guint servers = 1; servers <= 9; servers++) {
            guint64 next = 0;

            for (guint r = 0; r < servers; r++) {
                const RpShard shard = rp_shard(sizes[i], servers, r);

                assert_int_equal(shard.first, next);
                assert_true(shard.n == 0 || shard.first % RP_SHARD_BLOCK == 0);
                assert_true(shard.n <= rp_shard_most(sizes[i], servers));
                /* no more than a block apart */
                assert_true(shard.n + 2 * RP_SHARD_BLOCK > rp_shard_most(sizes[i], servers));
                next = shard.first + shard.n;
            }
            assert_int_equal(next, sizes[i]);
        }
    }
}

static const RpTestPlan tests[] = {
    {"roundpipe", 2, 2, 4, 0, RP_FIDELITY_FULL, TRUE, TRUE, .token_bytes = 512, .iterations = 4,
     .tied = RP_TEST_TIED, .servers = 3},
    {"roundpipe", 2, 2, 4, 2, RP_FIDELITY_FULL, TRUE, TRUE, .lean = TRUE, .token_bytes = 512,
     .iterations = 4, .servers = 3},
    {"roundpipe", 2, 2, 4, 2, RP_FIDELITY_FULL, FALSE, TRUE, .token_bytes = 512, .iterations = 4,
     .apart = TRUE, .servers = 3},
    {"1f1b", 2, 2, 4, 0, RP_FIDELITY_FULL, FALSE, TRUE, .token_bytes = 512, .iterations = 4,
     .at_once = TRUE, .servers = 3},
    {"roundpipe", 2, 2, 4, 0, RP_FIDELITY_FULL, TRUE, TRUE, .token_bytes = 512, .iterations = 4,
     .resident = G_MAXUINT64, .servers = 3},
};

/* A finished iteration has a reduce and a gather for each trained layer, and one agree between
 * them. */
RP_TEST(every_iteration_reduces_agrees_and_gathers_once)
{
    for (gsize p = 0; p < G_N_ELEMENTS(tests); p++) {
        g_autoptr(RpPlan) plan = rp_test_plan(&tests[p]);
        const guint n_layers = rp_plan_n_layers(plan);
        const guint32 network = rp_plan_host_lane(plan, RP_HOST_LANE_NETWORK);
        g_autofree guint *reduces = g_new0(guint, 4 * n_layers);
        g_autofree guint *gathers = g_new0(guint, 4 * n_layers);
        guint agrees[4] = {0}, trained = 0;

        for (RpTaskId id = 0; id < rp_plan_end_id(plan); id++) {
            const RpTask *task = rp_plan_task(plan, id);

            assert_true((task->kind >= RP_TASK_REDUCE) == (task->lane == network));
            assert_int_not_equal(task->kind, RP_TASK_EARLY_STEP);
            if (task->kind == RP_TASK_REDUCE) {
                assert_int_equal(agrees[task->iteration], 0);
                reduces[task->iteration * n_layers + task->layer]++;
            } else if (task->kind == RP_TASK_AGREE) {
                agrees[task->iteration]++;
            } else if (task->kind == RP_TASK_GATHER) {
                assert_true(agrees[task->iteration] == 1 || tests[p].at_once);
                gathers[task->iteration * n_layers + task->layer]++;
            }
        }
        for (guint l = 0; l < n_layers; l++) {
            const gboolean is = rp_plan_layer(plan, l)->gradients[0] != RP_NONE;

            trained += is;
            for (guint t = 0; t < 2; t++) {
                assert_int_equal(agrees[t], 1);
                assert_int_equal(reduces[t * n_layers + l], is);
                assert_int_equal(gathers[t * n_layers + l], is);
            }
        }
        assert_true(trained > 0);
    }
}

/* The same bytes of each task but those of norms and steps, which become less. */
RP_TEST(one_server_is_none)
{
    for (gsize p = 0; p < G_N_ELEMENTS(tests); p++) {
        RpTestPlan one = tests[p], none = tests[p];

        one.servers = 1;
        none.servers = 0;
        g_autoptr(RpPlan) a = rp_test_plan(&one);
        g_autoptr(RpPlan) b = rp_test_plan(&none);

        assert_int_equal(rp_plan_end_id(a), rp_plan_end_id(b));
        assert_int_equal(rp_plan_n_buffers(a), rp_plan_n_buffers(b));
        assert_int_equal(rp_plan_exchange(a).squares, RP_NONE);
        assert_int_equal(rp_plan_exchange(a).space, RP_NONE);
        for (guint l = 0; l < rp_plan_n_layers(a); l++)
            assert_int_equal(rp_plan_layer(a, l)->reduced, RP_NONE);
        for (RpTaskId id = 0; id < rp_plan_end_id(a); id++) {
            assert_memory_equal(rp_plan_task(a, id), rp_plan_task(b, id), sizeof(RpTask));
            assert_true(rp_plan_task(a, id)->kind < RP_TASK_REDUCE);
        }
    }
}

/* Layers of stages of which one leaves each device, and of one more, have gradients of their own. */
RP_TEST(gradients_that_are_reduced_make_room_for_others)
{
    RpTestPlan test = {
        "roundpipe",     1,           4, 2, 0, RP_FIDELITY_FULL, FALSE, TRUE, .token_bytes = 512,
        .iterations = 2, .servers = 2};

    g_autoptr(RpPlan) plan = rp_test_plan(&test);
    test.async = TRUE;
    g_autoptr(RpPlan) async = rp_test_plan(&test);
    const guint n = rp_plan_n_layers(plan);

    assert_int_equal(n, 7);
    for (guint a = 0; a < n; a++)
        for (guint b = 0; b < a; b++) {
            assert_int_equal(rp_plan_layer(plan, a)->gradients[0] ==
                                 rp_plan_layer(plan, b)->gradients[0],
                             (a - b) % 3 == 0);
            assert_int_not_equal(rp_plan_layer(async, a)->gradients[0],
                                 rp_plan_layer(async, b)->gradients[0]);
        }
    assert_true(rp_plan_category_bytes(plan, 1, RP_BUFFER_GRADIENTS) <
                rp_plan_category_bytes(async, 1, RP_BUFFER_GRADIENTS));
}

/* The layer's download arrives in the buffer of the layer above, whose gradients are reduced
 * later. */
RP_TEST(gradients_that_are_not_reduced_are_not_overwritten)
{
    const RpTestPlan test = {
        "roundpipe",     1,           4, 2, 0, RP_FIDELITY_FULL, FALSE, TRUE, .token_bytes = 512,
        .iterations = 1, .servers = 2};
    RpViolation violation;

    g_autoptr(RpPlan) plan = rp_test_plan(&test);
    g_autoptr(RpPlanDraft) draft = rp_plan_draft_new(plan);
    const guint32 above = rp_plan_layer(plan, 3)->gradients[0];
    const guint32 below = rp_plan_layer(plan, 2)->gradients[0];

    assert_true(rp_plan_draft_verify(draft, &violation));
    for (guint l = 0; l < draft->n_layers; l++) {
        RpPlanLayer *row = &draft->tables.layers[l];

        row->gradients[0] = row->gradients[0] == below ? above : row->gradients[0];
    }
    for (guint i = 0; i < draft->tasks->len; i++) {
        RpDraftTask *task = rp_plan_draft_task(draft, i);

        for (guint a = 0; a < task->accesses->len; a++)
            if (rp_plan_draft_access(draft, i, a)->buffer == below)
                rp_plan_draft_access(draft, i, a)->buffer = above;
    }
    assert_false(rp_plan_draft_verify(draft, &violation));
    assert_int_equal(violation.rule, RP_RULE_GRADIENT_INTEGRITY);
    assert_non_null(strstr(violation.message, "may be overwritten before they are reduced"));
    rp_violation_clear(&violation);
}

static void
assert_refused(const RpPlanOptions *options, const char *text)
{
    g_autoptr(RpProfile) profile = rp_test_profile(6, 512);
    const RpInterval backward[] = {{0, 6}};
    g_autoptr(RpPartition) partition = rp_partition_new_dispatched(NULL, 0, backward, 1);
    g_autoptr(GError) error = NULL;

    assert_null(rp_planner_new(profile, partition, options, &error));
    assert_true(g_error_matches(error, RP_PLANNER_ERROR, RP_PLANNER_ERROR_SERVERS));
    assert_string_equal(error->message, text);
}

RP_TEST(refuses_what_is_not_planned_for_several)
{
    RpPlanOptions options = {.schedule = rp_schedule_find("roundpipe", NULL),
                             .gpus = 1,
                             .micro_batches = 2,
                             .fidelity = RP_FIDELITY_FULL,
                             .early_steps = RP_EARLY_ON,
                             .servers = 2};

    assert_refused(&options, "early steps: planned for one server alone, found 2");
    options.early_steps = RP_EARLY_AUTO;
    options.consistency = RP_CONSISTENCY_BLOCKING;
    assert_refused(&options, "a blocking optimizer: planned for one server alone, found 2");
}
