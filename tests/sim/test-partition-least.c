/* The partition with the least device memory, and that one is found wherever one fits. */
#include "tests/rp-test.h"

#include "core/plan/planner.h"
#include "sim/search/partition-cost.h"

#define KIB 1024
#define SHAPES 40
#define CONSTANTS (3 * KIB)

static guint64
size_up_to(GRand *rand, gint32 most)
{
    return (guint64)g_rand_int_range(rand, 1, most) * KIB;
}

/* Embedding, @n_blocks equal blocks and a head, of random sizes. */
static RpProfile *
network_of(GRand *rand, guint n_blocks)
{
    RpProfile *profile = rp_profile_new(n_blocks + 2);
    const guint64 hidden = size_up_to(rand, 40);

    profile->has_sizes = TRUE;
    profile->links.h2d_bytes_per_s = 1e9;
    profile->links.d2h_bytes_per_s = 1e9;
    rp_profile_take(&profile->dtype, g_strdup("bf16"));
    for (guint l = 0; l < profile->n_layers; l++) {
        RpLayer *layer = &profile->layers[l];

        if (l > 1 && l + 1 < profile->n_layers) {
            *layer = profile->layers[1];
            layer->name = "block";
            continue;
        }
        layer->kind = l == 0                      ? RP_LAYER_EMBEDDING
                      : l + 1 < profile->n_layers ? RP_LAYER_BLOCK
                                                  : RP_LAYER_HEAD;
        layer->name = "layer";
        layer->forward_ns = 1000;
        layer->recompute_ns = 1000;
        layer->backward_ns = 2000;
        layer->parameter_bytes = size_up_to(rand, 60);
        layer->gradient_bytes = layer->parameter_bytes;
        layer->input_bytes = l == 0 ? KIB : hidden;
        layer->output_bytes = l + 1 == profile->n_layers ? 0 : hidden;
        layer->activation_bytes = l == 0 ? 0 : size_up_to(rand, 100);
        layer->forward_workspace_bytes = size_up_to(rand, 50);
        layer->backward_workspace_bytes = size_up_to(rand, 100);
    }
    return profile;
}

/* Cuts [first, first + n) where @borders has a bit: bit i between layers i and i + 1 of them. */
static guint
cut(guint first, guint n, guint borders, gboolean downwards, RpInterval *stages)
{
    guint n_stages = 0;

    for (guint i = 0, begin = 0; i < n; i++) {
        if (i + 1 < n && !(borders >> i & 1))
            continue;
        stages[n_stages++] = (RpInterval){first + begin, i + 1 - begin};
        begin = i + 1;
    }
    for (guint i = 0; downwards && i < n_stages / 2; i++) {
        const RpInterval stage = stages[i];

        stages[i] = stages[n_stages - 1 - i];
        stages[n_stages - 1 - i] = stage;
    }
    return n_stages;
}

/* Least memory of all dispatched partitions, one after another, whose slots are @step apart on a device. */
static guint64
least_by_brute_force(const RpProfile *profile, guint step)
{
    const guint n = profile->n_layers;
    guint64 least = G_MAXUINT64;
    RpInterval forward[8], backward[8];

    for (guint k = 0; k < n; k++) { /* layers in front of the fused stage */
        const guint ways = k > 1 ? 1u << (k - 1) : 1;

        for (guint f = 0; f < ways; f++) {
            for (guint b = 0; b < ways; b++) {
                const guint n_forward = cut(0, k, f, FALSE, forward);
                const guint n_backward = 1 + cut(0, k, b, TRUE, backward + 1);

                backward[0] = (RpInterval){k, n - k};
                g_autoptr(RpPartition) partition =
                    rp_partition_new_dispatched(forward, n_forward, backward, n_backward);
                least = MIN(least, rp_plan_dispatched_gpu_bytes(profile, partition, FALSE, step));
            }
        }
    }
    return least;
}

RP_TEST(no_partition_needs_less_device_memory)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(7);
    guint whole = 0, even = 0;

    for (guint i = 0; i < SHAPES; i++) {
        g_autoptr(RpProfile) profile = network_of(rand, 1 + i % 4);
        g_autoptr(RpPartition) least = rp_partition_least(profile);

        assert_int_equal(rp_plan_dispatched_gpu_bytes(profile, least, FALSE, 0),
                         least_by_brute_force(profile, 0));
        whole += least->n_forward == 0;
        even += least->n_forward > 0;
    }
    assert_true(whole > 0 && even > 0); /* both kinds were seen */
}

/* With @bytes of memory: what a plan of the chosen partition takes, or 0. */
static guint64
chosen_bytes(const RpProfile *profile, guint gpus, RpPartitionObjective objective, guint64 bytes)
{
    const RpPlanOptions options = {
        .schedule = rp_schedule_find("roundpipe", NULL),
        .gpus = gpus,
        .micro_batches = 2 * gpus,
        .round = 2 * gpus,
        .async = TRUE,
        .fidelity = RP_FIDELITY_FULL,
    };
    g_autoptr(GError) error = NULL;
    guint round = 0;
    g_autoptr(RpPartition) partition =
        rp_partition_choose(profile, &options, objective, 0, bytes, &round, &error);

    if (partition == NULL) {
        assert_true(g_error_matches(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_MEMORY));
        return 0;
    }
    g_autoptr(RpPlan) plan = rp_plan_make(profile, partition, &options, 1, &error);

    assert_non_null(plan);
    return rp_plan_arena_bytes(plan, 0);
}

RP_TEST(a_partition_is_found_wherever_one_fits)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(8);

    for (guint i = 0; i < SHAPES / 4; i++) {
        g_autoptr(RpProfile) profile = network_of(rand, 1 + i % 4);
        profile->constant_bytes = CONSTANTS;
        g_autoptr(RpPartition) least = rp_partition_least(profile);
        const RpPartitionObjective objective =
            i % 2 == 0 ? RP_PARTITION_SIMULATED : RP_PARTITION_PAPER;
        const guint gpus = 1 + i % 3;
        /* slots of unlike neighbours may need less than it does */
        const guint64 bytes = rp_plan_dispatched_gpu_bytes(profile, least, FALSE, gpus);
        const guint64 none = least_by_brute_force(profile, gpus);

        assert_in_range(chosen_bytes(profile, gpus, objective, bytes), none, bytes);
        assert_int_equal(chosen_bytes(profile, gpus, objective, none - 1), 0);
        assert_in_range(chosen_bytes(profile, gpus, objective, bytes + bytes / 8), none,
                        bytes + bytes / 8);
    }
}

/* With memory for all layers nothing has to be recomputed: N rounds beside each other. */
RP_TEST(every_device_runs_the_whole_model_where_it_fits)
{
    g_autofree char *path = rp_test_source_path("profiles/h200/qwen3-1.7b-8x2048.json");
    g_autoptr(RpProfile) profile = rp_profile_load(path, NULL);

    assert_non_null(profile);
    for (guint gpus = 1; gpus <= 4; gpus++) {
        const RpPlanOptions options = {
            .schedule = rp_schedule_find("roundpipe", NULL),
            .gpus = gpus,
            .micro_batches = 4 * gpus,
            .async = TRUE,
            .fidelity = RP_FIDELITY_FULL,
        };
        guint round = 0;
        g_autoptr(RpPartition) whole = rp_partition_choose(
            profile, &options, RP_PARTITION_SIMULATED, 0, (guint64)100 << 30, &round, NULL);
        g_autoptr(RpPartition) parts = rp_partition_choose(
            profile, &options, RP_PARTITION_SIMULATED, 0, (guint64)24 << 30, &round, NULL);

        assert_int_equal(whole->n_forward, 0);
        assert_int_equal(whole->n_backward, 1);
        assert_true(parts->n_forward > 0);
    }
}

RP_TEST(stages_of_as_many_blocks_cover_the_model)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(9);
    g_autoptr(RpProfile) profile = network_of(rand, 5);
    g_autoptr(RpPartition) even = rp_partition_even(profile, 2);
    g_autoptr(GArray) forward = rp_partition_block_counts(profile, even->forward, even->n_forward);
    g_autoptr(GArray) backward =
        rp_partition_block_counts(profile, even->backward, even->n_backward);
    g_autofree char *up =
        rp_partition_format_list((const guint *)(void *)forward->data, forward->len);
    g_autofree char *down =
        rp_partition_format_list((const guint *)(void *)backward->data, backward->len);

    assert_string_equal(up, "0,2,2,1");
    assert_string_equal(down, "0,1,2,2,0");
}
