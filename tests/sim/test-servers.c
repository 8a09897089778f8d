/* Several servers: shares of the optimizer in plans, and what the network between them takes. */
#include "tests/rp-test.h"

#include "core/base/shard.h"
#include "core/base/units.h"
#include "core/catalogue/server-network.h"
#include "core/verify/verify.h"
#include "sim/advise/servers.h"

static RpAdviseQuery
query_of(guint servers)
{
    const RpGpu *gpu = rp_gpu_find("rtx4090", NULL);

    return (RpAdviseQuery){.model = rp_model_find("qwen3-1.7b", NULL),
                           .gpu = gpu,
                           .gpus = 2,
                           .gpu_bytes = rp_gpu_plan_bytes(gpu->memory_bytes),
                           .tokens_per_sequence = 2048,
                           .batch = 32,
                           .servers = servers,
                           .dtype = "bf16",
                           .accumulate = "fp32"};
}

static RpAdvice *
advise(const RpAdviseQuery *query)
{
    const RpScheduleOps *const schedules[] = {rp_schedule_find("roundpipe", NULL), NULL};
    RpAdvice *advice = rp_must(rp_advise, query, schedules);

    assert_non_null(advice->best);
    return advice;
}

/* The plan of N servers without a network, searched for once. Freed by free_alone(). */
static RpAdvice *alone[5];

static const RpAdviseRun *
best_alone(guint servers)
{
    const RpAdviseQuery query = query_of(servers);

    if (alone[servers] == NULL)
        alone[servers] = advise(&query);
    return alone[servers]->best;
}

static int
free_alone(void **state)
{
    (void)state;
    for (guint i = 0; i < G_N_ELEMENTS(alone); i++)
        g_clear_pointer(&alone[i], rp_advice_free);
    return 0;
}

RP_TEST(servers_keep_a_share_of_the_optimizers_state)
{
    const RpAdviseRun *one = best_alone(1), *share = best_alone(4);
    const guint64 *all = one->host.categories, *part = share->host.categories;
    const RpProfile *profile = alone[4]->profile;

    /* decisions and alignment beside it */
    assert_true(part[RP_BUFFER_OPTIMIZER] >= all[RP_BUFFER_OPTIMIZER] / 4);
    assert_true(part[RP_BUFFER_OPTIMIZER] <
                all[RP_BUFFER_OPTIMIZER] / 4 + profile->n_layers * 12 * RP_SHARD_BLOCK);
    /* a step reads sums in fp32, and the norm is taken on the host */
    assert_true(share->optimizer_ns <= one->optimizer_ns / 3);
    g_autoptr(RpPlan) plan = rp_must(rp_plan_make, profile, share->partition, &share->options, 2);

    assert_true(rp_verify_plan(plan, NULL));
    assert_int_equal(rp_plan_arena_bytes(plan, 2), share->host.total);
}

/* On so many servers with a network of @gbit_per_s. */
static RpAdviseServed
serve(guint servers, double gbit_per_s)
{
    const RpServerNetwork network = {"tiny", gbit_per_s, 0, 1};
    RpAdviseQuery query = query_of(servers);
    RpAdviseServed served;
    GError *error = NULL;

    query.network = &network;
    g_autoptr(RpAdvice) advice = advise(&query);

    assert_true(
        rp_advise_serve(&advice->query, advice->best, best_alone(servers), &served, &error));
    rp_assert_no_error(error);
    return served;
}

RP_TEST(a_fast_network_is_hidden_and_a_slow_one_is_told)
{
    const RpAdviseServed fast = serve(4, 100), slow = serve(4, 1);

    assert_false(fast.network);
    assert_int_equal(fast.hiding_batch, 0);
    /* 2 x 3/4 of the gradients, at 1/8 GB/s */
    assert_true(slow.network);
    assert_true(ABS((double)slow.exchange_ns / ((double)slow.sent_bytes * 8) - 1) < 1e-3);
    assert_true((double)slow.step_ns >= (double)slow.exchange_ns * 0.999);
    assert_true(slow.step_ns < slow.exchange_ns + slow.alone_ns);
    assert_true(slow.hiding_batch > 4 * 32);
    assert_int_equal(slow.hiding_batch % (4 * 2), 0);
}

RP_TEST(a_network_beyond_host_memory_is_held_back_by_it)
{
    const RpAdviseServed served = serve(2, 4000);

    assert_true(served.host_limits);
    assert_true(served.bytes_per_s <= 4000e9 / 8);
}

RP_TEST(networks_are_found_by_name)
{
    static const char *const names[] = {"10GbE", "25GbE", "100GbE", "IB400"};

    for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autoptr(RpServerNetwork) found = rp_must(rp_server_network_open, names[i]);

        assert_true(rp_server_network_bytes_per_s(found) <= found->gbit_per_s * 1e9 / 8);
        assert_true(rp_server_network_bytes_per_s(found) > 0);
    }
}

RP_TEST_GROUP(NULL, free_alone)
