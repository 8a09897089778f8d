/*
 * The exact partitions: the paper's objective and min-max against brute force and published lists.
 */
#include "tests/rp-test.h"

#include "core/partition/partition.h"
#include "tests/core/partition-fixture.h"

/* Any layers at all: with and without embedding and head, with zeros, recompute != forward. */
static RpProfile *
random_profile(GRand *rand, guint n_layers)
{
    RpProfile *profile = rp_profile_new(n_layers);
    gint32 scale = g_rand_boolean(rand) ? 4 : 1000;
    for (guint i = 0; i < n_layers; i++) {
        RpLayer *layer = &profile->layers[i];
        layer->forward_ns = g_rand_int_range(rand, 0, scale);
        layer->backward_ns = g_rand_int_range(rand, 0, 2 * scale);
        layer->recompute_ns =
            g_rand_boolean(rand) ? layer->forward_ns : g_rand_int_range(rand, 0, scale);
        if (g_rand_boolean(rand)) /* 0: the same */
            layer->recompute_last_ns = g_rand_int_range(rand, 0, (gint32)layer->recompute_ns + 1);
        rp_test_set_random_sizes(rand, layer);
    }
    if (n_layers > 1 && g_rand_boolean(rand))
        profile->layers[0].kind = RP_LAYER_EMBEDDING;
    if (n_layers > 1 && g_rand_boolean(rand))
        profile->layers[n_layers - 1].kind = RP_LAYER_HEAD;
    return profile;
}

/* The stages that a set of borders cuts out: bit i = a border before layer i + 1. Returns: how
 * many. */
static guint
cut(guint n_layers, guint borders, RpInterval *stages)
{
    guint n = 0, first = 0;
    for (guint i = 1; i <= n_layers; i++) {
        if (i == n_layers || (borders >> (i - 1) & 1)) {
            stages[n++] = (RpInterval){first, i - first};
            first = i;
        }
    }
    return n;
}

static gint64
longest(const RpProfile *profile, const RpInterval *stages, guint n, RpPhase phase,
        guint64 memory_bytes)
{
    gint64 most = 0;
    for (guint s = 0; s < n; s++) {
        if (memory_bytes > 0 && rp_stage_memory_bytes(profile, stages[s], phase) > memory_bytes)
            return G_MAXINT64;
        most = MAX(most, rp_stage_time_ns(profile, stages[s], phase, NULL));
    }
    return most;
}

typedef struct {
    gint64 value;
    guint stages;
} Objective;

/* Every fused stage x every forward cut x every backward cut. */
static Objective
paper_by_brute_force(const RpProfile *profile, guint gpus, guint micro_batches, guint64 memory)
{
    Objective best = {G_MAXINT64, G_MAXUINT};
    RpInterval forward[16], backward[16];
    guint n = profile->n_layers;
    for (guint k = 0; k < n; k++) {
        RpInterval fused = {k, n - k};
        gint64 fused_longest = longest(profile, &fused, 1, RP_PHASE_FUSED, memory);
        guint cuts = k == 0 ? 1 : 1U << (k - 1);
        for (guint f = 0; f < cuts; f++) {
            guint n_forward = cut(k, f, forward);
            gint64 t =
                MAX(fused_longest, longest(profile, forward, n_forward, RP_PHASE_FORWARD, memory));
            for (guint b = 0; b < cuts; b++) {
                guint n_backward = cut(k, b, backward);
                gint64 most =
                    MAX(t, longest(profile, backward, n_backward, RP_PHASE_BACKWARD, memory));
                guint stages = 1 + n_forward + n_backward;
                if (most == G_MAXINT64)
                    continue;
                gint64 value = ((gint64)micro_batches * stages + (gint64)gpus * (gpus - 1)) * most;
                if (value < best.value || (value == best.value && stages < best.stages))
                    best = (Objective){value, stages};
            }
        }
    }
    return best;
}

/* A dispatched partition covers all layers that it must. */
static void
assert_well_formed(const RpProfile *profile, const RpPartition *partition)
{
    assert_true(partition->dispatched);
    assert_true(partition->n_backward > 0);
    guint at = 0;
    for (guint s = 0; s < partition->n_forward; s++) {
        assert_int_equal(partition->forward[s].first, at);
        assert_true(partition->forward[s].count > 0);
        at += partition->forward[s].count;
    }
    assert_int_equal(partition->backward[0].first, at);
    at = profile->n_layers;
    for (guint s = 0; s < partition->n_backward; s++) {
        assert_true(partition->backward[s].count > 0);
        assert_int_equal(partition->backward[s].first + partition->backward[s].count, at);
        at = partition->backward[s].first;
    }
    assert_int_equal(at, 0);
}

static void
check_paper_case(const RpProfile *profile, guint gpus, guint micro_batches, guint64 memory)
{
    Objective best = paper_by_brute_force(profile, gpus, micro_batches, memory);
    g_autoptr(GError) error = NULL;
    g_autoptr(RpPartition) partition =
        rp_partition_paper(profile, gpus, micro_batches, memory, &error);
    if (best.value == G_MAXINT64) {
        assert_null(partition);
        assert_true(g_error_matches(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_MEMORY));
        return;
    }
    assert_non_null(partition);
    assert_well_formed(profile, partition);
    for (guint s = 0; memory > 0 && s < partition->n_forward; s++) {
        assert_true(rp_stage_memory_bytes(profile, partition->forward[s], RP_PHASE_FORWARD) <=
                    memory);
    }
    for (guint s = 0; memory > 0 && s < partition->n_backward; s++) {
        RpPhase phase = s == 0 ? RP_PHASE_FUSED : RP_PHASE_BACKWARD;
        assert_true(rp_stage_memory_bytes(profile, partition->backward[s], phase) <= memory);
    }
    RpBalance balance = rp_partition_balance(profile, partition, NULL);
    gint64 weight = (gint64)micro_batches * balance.n_stages + (gint64)gpus * ((gint64)gpus - 1);
    assert_int_equal(weight * balance.max_ns, best.value);
    assert_int_equal(balance.n_stages, best.stages);
}

static void
paper_objective_equals_brute_force(void **state)
{
    GRand *rand = g_rand_new_with_seed(20260429);
    for (guint i = 0; i < 6000; i++) {
        g_autoptr(RpProfile) profile =
            random_profile(rand, (guint)g_rand_int_range(rand, 1, i < 4000 ? 7 : 8));
        guint gpus = (guint)g_rand_int_range(rand, 1, 9);
        guint micro_batches = (guint)g_rand_int_range(rand, 1, 20);
        guint64 memory = i % 2 == 0 ? 0 : (guint64)g_rand_int_range(rand, 50, 600);
        check_paper_case(profile, gpus, micro_batches, memory);
    }
    g_rand_free(rand);
}

static gint64
min_max_by_brute_force(const RpProfile *profile, guint n_stages)
{
    gint64 best = G_MAXINT64;
    guint n = profile->n_layers;
    for (guint borders = 0; borders < 1U << (n - 1); borders++) {
        RpInterval stages[16];
        if (cut(n, borders, stages) != n_stages ||
            (n > 1 && profile->layers[0].kind == RP_LAYER_EMBEDDING && stages[0].count == 1))
            continue;
        gint64 most = 0;
        for (guint s = 0; s < n_stages; s++) {
            most = MAX(most, rp_stage_time_ns(profile, stages[s], RP_PHASE_FORWARD, NULL) +
                                 rp_stage_time_ns(profile, stages[s], RP_PHASE_BACKWARD, NULL));
        }
        best = MIN(best, most);
    }
    return best;
}

static void
min_max_equals_brute_force(void **state)
{
    GRand *rand = g_rand_new_with_seed(7);
    for (guint i = 0; i < 3000; i++) {
        g_autoptr(RpProfile) profile = random_profile(rand, (guint)g_rand_int_range(rand, 1, 10));
        guint n_stages = (guint)g_rand_int_range(rand, 1, (gint32)profile->n_layers + 2);
        gint64 best = min_max_by_brute_force(profile, n_stages);
        g_autoptr(GError) error = NULL;
        g_autoptr(RpPartition) partition = rp_partition_min_max(profile, n_stages, &error);
        if (best == G_MAXINT64) {
            assert_null(partition);
            assert_true(g_error_matches(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_IMPOSSIBLE));
            continue;
        }
        assert_non_null(partition);
        assert_int_equal(partition->n_forward, n_stages);
        guint at = 0;
        for (guint s = 0; s < n_stages; s++) {
            assert_int_equal(partition->forward[s].first, at);
            assert_true(partition->forward[s].count > 0);
            at += partition->forward[s].count;
        }
        assert_int_equal(at, profile->n_layers);
        assert_int_equal(rp_partition_balance(profile, partition, NULL).max_ns, best);
    }
    g_rand_free(rand);
}

static char *
forward_list(const RpProfile *profile, const RpPartition *partition)
{
    g_autoptr(GArray) counts =
        rp_partition_block_counts(profile, partition->forward, partition->n_forward);
    return rp_partition_format_list((const guint *)(const void *)counts->data, counts->len);
}

static char *
backward_list(const RpProfile *profile, const RpPartition *partition)
{
    g_autoptr(GArray) counts =
        rp_partition_block_counts(profile, partition->backward, partition->n_backward);
    return rp_partition_format_list((const guint *)(const void *)counts->data, counts->len);
}

static void
assert_min_max(const RpProfile *profile, guint n_stages, const char *list)
{
    g_autoptr(RpPartition) partition = rp_partition_min_max(profile, n_stages, NULL);
    assert_non_null(partition);
    g_autofree char *found = forward_list(profile, partition);
    assert_string_equal(found, list);
}

/* Times: rtx4090-layer-times.csv; lists: published-schedules.csv. */
static void
min_max_yields_the_published_interleaved_partition(void **state)
{
    g_autoptr(RpProfile) small = rp_test_profile(28, 7429000, 15831000, 22065500, 43707000);
    assert_min_max(small, 24, "1*18,2*5,0");
    assert_min_max(small, 8, "3,4*6,1"); /* published: 3,3,4*5,2, whose largest is larger */
}

static void
paper_objective_agrees_with_the_published_stage_numbers(void **state)
{
    g_autoptr(RpProfile) small = rp_test_profile(28, 7429000, 15831000, 22065500, 43707000);
    g_autoptr(RpPartition) a = rp_partition_paper(small, 8, 16, 0, NULL);
    g_autofree char *forward_a = forward_list(small, a);
    g_autofree char *backward_a = backward_list(small, a);
    assert_string_equal(forward_a, "9*3,1"); /* published evened out: 7*4 */
    assert_string_equal(backward_a, "0,3*9,1");

    g_autoptr(RpProfile) llama = rp_test_profile(32, 18503703, 41206594, 37225500, 74501000);
    g_autoptr(RpPartition) b = rp_partition_paper(llama, 8, 16, 0, NULL);
    g_autofree char *forward_b = forward_list(llama, b);
    g_autofree char *backward_b = backward_list(llama, b);
    assert_string_equal(forward_b, "6*5,2"); /* published: 5*4,6*2 */
    assert_string_equal(backward_b, "0,2*16");
}

static void
assert_split(guint n, guint parts, RpSplitOrder order, const char *list)
{
    gint64 weights[64];
    guint counts[64];
    for (guint i = 0; i < n; i++)
        weights[i] = 5;
    rp_partition_split(weights, n, parts, order, counts);
    g_autofree char *found = rp_partition_format_list(counts, parts);
    assert_string_equal(found, list);
}

static void
splits_equal_weights_in_the_order_asked_for(void **state)
{
    assert_split(10, 4, RP_SPLIT_SMALL_FIRST, "2,2,3,3");
    assert_split(10, 4, RP_SPLIT_LARGE_FIRST, "3,3,2,2");
    assert_split(10, 4, RP_SPLIT_EVEN, "3,2,3,2");
    assert_split(28, 8, RP_SPLIT_SMALL_FIRST, "3*4,4*4");
    assert_split(3, 3, RP_SPLIT_EVEN, "1*3");
    assert_split(5, 1, RP_SPLIT_LARGE_FIRST, "5");
}

static void
zero_times_and_a_lone_layer_are_partitioned(void **state)
{
    g_autoptr(RpProfile) nothing = rp_test_profile(6, 0, 0, 0, 0);
    g_autoptr(RpPartition) a = rp_partition_paper(nothing, 4, 8, 0, NULL);
    assert_well_formed(nothing, a);
    assert_int_equal(a->n_forward + a->n_backward, 1);

    g_autoptr(RpProfile) lone = rp_profile_new(1);
    lone->layers[0].forward_ns = 3;
    g_autoptr(RpPartition) b = rp_partition_paper(lone, 1, 1, 0, NULL);
    assert_well_formed(lone, b);
    g_autoptr(RpPartition) c = rp_partition_min_max(lone, 1, NULL);
    assert_int_equal(c->forward[0].count, 1);
}

static void
names_the_layer_that_exceeds_the_memory(void **state)
{
    g_autoptr(RpProfile) profile = rp_test_profile(3, MS, MS, MS, MS);
    profile->layers[2].name = g_intern_string("wide");
    profile->layers[2].activation_bytes = 1000;
    g_autoptr(GError) error = NULL;
    assert_null(rp_partition_paper(profile, 2, 2, 999, &error));
    assert_true(g_error_matches(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_MEMORY));
    assert_string_equal(error->message, "layer 2 (wide) alone needs 1000 bytes of device memory to "
                                        "run backward, the limit is 999 bytes");
    g_autoptr(RpPartition) fits = rp_partition_paper(profile, 2, 2, 1000, NULL);
    assert_non_null(fits);
}

/* The most that a timing file may say: 1e9 ms, all layers together. */
static void
the_longest_times_of_a_file_are_partitioned(void **state G_GNUC_UNUSED)
{
    static const gint64 ms[] = {100000000, 100000000, 50000000};
    g_autoptr(RpProfile) profile =
        rp_test_profile(4, ms[0] * MS, ms[1] * MS, ms[2] * MS, ms[2] * MS);
    for (guint i = 0; i < profile->n_layers; i++)
        profile->layers[i].recompute_last_ns = 1;
    g_autoptr(RpPartition) partition = rp_must(rp_partition_paper, profile, 65536, 1u << 24, 0);
    assert_non_null(partition);
    for (guint i = 0; i < partition->n_backward; i++)
        assert_true(rp_stage_time_ns(profile, partition->backward[i], RP_PHASE_BACKWARD, NULL) > 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paper_objective_equals_brute_force),
        cmocka_unit_test(min_max_equals_brute_force),
        cmocka_unit_test(min_max_yields_the_published_interleaved_partition),
        cmocka_unit_test(paper_objective_agrees_with_the_published_stage_numbers),
        cmocka_unit_test(splits_equal_weights_in_the_order_asked_for),
        cmocka_unit_test(zero_times_and_a_lone_layer_are_partitioned),
        cmocka_unit_test(the_longest_times_of_a_file_are_partitioned),
        cmocka_unit_test(names_the_layer_that_exceeds_the_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
