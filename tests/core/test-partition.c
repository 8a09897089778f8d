/*
 * Partitions as objects: stage lists, stage costs, balance.
 */
#include "tests/rp-test.h"

#include "core/partition/partition.h"
#include "tests/core/partition-fixture.h"

RP_TEST(a_stage_costs_what_its_phase_runs)
{
    g_autoptr(RpProfile) profile = rp_test_profile(3, 10 * MS, 20 * MS, 5 * MS, 7 * MS);
    profile->layers[0].forward_ns = profile->layers[0].recompute_ns = 1 * MS;
    profile->layers[0].backward_ns = 2 * MS;
    profile->layers[2].recompute_ns = 11 * MS;
    profile->layers[2].weight_gradient_ns = 9 * MS;
    const RpInterval all = {0, 5}, blocks = {1, 3};
    gint64 recompute = -1;
    assert_int_equal(rp_stage_time_ns(profile, all, RP_PHASE_FORWARD, &recompute), 36 * MS);
    assert_int_equal(recompute, 0);
    assert_int_equal(rp_stage_time_ns(profile, all, RP_PHASE_BACKWARD, &recompute), 100 * MS);
    assert_int_equal(recompute, 31 * MS);
    assert_int_equal(rp_stage_time_ns(profile, all, RP_PHASE_FUSED, &recompute), 105 * MS);
    assert_int_equal(recompute, 0);
    assert_int_equal(rp_stage_time_ns(profile, blocks, RP_PHASE_BACKWARD, NULL), 91 * MS);
    assert_int_equal(rp_stage_weight_gradient_ns(profile, blocks), 9 * MS);
}

RP_TEST(a_backward_stage_saves_a_part_of_its_last_recompute)
{
    g_autoptr(RpProfile) profile = rp_test_profile(3, 10 * MS, 20 * MS, 5 * MS, 7 * MS);
    const RpInterval all = {0, 5}, blocks = {1, 3}, lower = {1, 2}, embedding = {0, 1};
    gint64 recompute = -1;
    for (guint l = 0; l < 5; l++)
        profile->layers[l].recompute_last_ns = 6 * MS;
    profile->layers[3].recompute_last_ns = 9 * MS;
    assert_int_equal(rp_stage_time_ns(profile, blocks, RP_PHASE_BACKWARD, &recompute), 89 * MS);
    assert_int_equal(recompute, 29 * MS);
    assert_int_equal(rp_stage_time_ns(profile, lower, RP_PHASE_BACKWARD, &recompute), 56 * MS);
    assert_int_equal(recompute, 16 * MS);
    /* behind the last block stands a head, which needs its output; the others recompute nothing */
    assert_int_equal(rp_stage_time_ns(profile, all, RP_PHASE_BACKWARD, &recompute),
                     30 * MS + 60 * MS + 7 * MS + profile->layers[0].backward_ns);
    assert_int_equal(recompute, 30 * MS);
    rp_stage_time_ns(profile, embedding, RP_PHASE_BACKWARD, &recompute);
    assert_int_equal(recompute, 0);
    assert_int_equal(rp_stage_time_ns(profile, blocks, RP_PHASE_FORWARD, NULL), 30 * MS);
    assert_int_equal(rp_stage_time_ns(profile, blocks, RP_PHASE_FUSED, NULL), 90 * MS);
    profile->layers[3].recompute_last_ns = 0; /* unknown */
    assert_int_equal(rp_stage_time_ns(profile, blocks, RP_PHASE_BACKWARD, NULL), 90 * MS);
}

RP_TEST(a_longer_stage_never_takes_less_time)
{
    GRand *rand = g_rand_new_with_seed(5);
    for (guint i = 0; i < 100; i++) {
        g_autoptr(RpProfile) profile = rp_profile_new(6);
        for (guint l = 0; l < 6; l++) {
            RpLayer *layer = &profile->layers[l];
            layer->backward_ns = g_rand_int_range(rand, 0, 3);
            layer->recompute_ns = g_rand_int_range(rand, 0, 9);
            layer->recompute_last_ns = g_rand_int_range(rand, 0, (gint32)layer->recompute_ns + 1);
        }
        for (guint first = 0; first < 6; first++) {
            for (guint count = 1; first + count < 6; count++) {
                const RpInterval stage = {first, count}, up = {first, count + 1};
                const RpInterval down = {first - 1, count + 1};
                gint64 time = rp_stage_time_ns(profile, stage, RP_PHASE_BACKWARD, NULL);
                assert_true(time <= rp_stage_time_ns(profile, up, RP_PHASE_BACKWARD, NULL));
                assert_true(first == 0 ||
                            time <= rp_stage_time_ns(profile, down, RP_PHASE_BACKWARD, NULL));
            }
        }
    }
    g_rand_free(rand);
}

RP_TEST(a_longer_stage_never_needs_less_memory)
{
    GRand *rand = g_rand_new_with_seed(3);
    for (guint i = 0; i < 200; i++) {
        g_autoptr(RpProfile) profile = rp_test_random_sizes(rand, 8);
        for (RpPhase phase = RP_PHASE_FORWARD; phase <= RP_PHASE_FUSED; phase++) {
            for (guint first = 0; first < 8; first++) {
                for (guint count = 1; first + count < 8; count++) {
                    guint64 bytes =
                        rp_stage_memory_bytes(profile, (RpInterval){first, count}, phase);
                    assert_true(bytes <= rp_stage_memory_bytes(
                                             profile, (RpInterval){first, count + 1}, phase));
                    assert_true(first == 0 ||
                                bytes <= rp_stage_memory_bytes(
                                             profile, (RpInterval){first - 1, count + 1}, phase));
                }
            }
        }
    }
    g_rand_free(rand);

    g_autoptr(RpProfile) huge = rp_profile_new(2);
    huge->layers[0].gradient_bytes = huge->layers[1].gradient_bytes = G_MAXUINT64 / 2;
    assert_true(rp_stage_memory_bytes(huge, (RpInterval){0, 2}, RP_PHASE_BACKWARD) == G_MAXUINT64);
}

static char *
backward_list(const RpProfile *profile, const RpPartition *partition)
{
    g_autoptr(GArray) counts =
        rp_partition_block_counts(profile, partition->backward, partition->n_backward);
    return rp_partition_format_list((const guint *)(const void *)counts->data, counts->len);
}

RP_TEST(reads_and_writes_stage_lists)
{
    const struct {
        const char *text, *written;
    } cases[] = {{"3,3,4*5,2", "3,3,4*5,2"}, {" 7 , 7,7 ", "7*3"},  {"0", "0"},
                 {"1*2,0", "1,1,0"},         {"2*2,2", "2*3"},      {"\t5*1\t,6", "5,6"},
                 {"65536*3", "65536*3"},     {"1*65536", "1*65536"}};
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(GArray) counts = rp_partition_parse_list(cases[i].text, &error);
        assert_null(error);
        g_autofree char *written =
            rp_partition_format_list((const guint *)(const void *)counts->data, counts->len);
        assert_string_equal(written, cases[i].written);
    }
}

RP_TEST(refuses_stage_lists_with_the_position)
{
    const struct {
        const char *text, *position, *what;
    } cases[] = {{"", "position 1:", "expected a block count, found the end"},
                 {"3,,4", "position 3:", "expected a block count, found ','"},
                 {"3,", "position 3:", "expected a block count, found the end"},
                 {"4*", "position 3:", "expected a number of stages, found the end"},
                 {"4*0", "position 3:", "expected a number of stages from 1 to 65536, found 0"},
                 {"4 *2", "position 3:", "expected ',' or the end, found '*'"},
                 {"4x", "position 2:", "expected ',', '*' or the end, found 'x'"},
                 {"-1", "position 1:", "expected a block count, found '-'"},
                 {"2,65537", "position 3:", "from 0 to 65536, found 65537"},
                 {"1*4000000000", "position 3:", "from 1 to 65536, found 4000000000"},
                 {"99999999999999999999999", "position 1:", "found 99999999999999999999..."},
                 {"1*65536,1", "position 9:", "at most 65536 stages"},
                 {"1*40000, 1*40000", "position 10:", "at most 65536 stages"},
                 {"1\xff", "position 2:", "found byte 0xff"}};
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        assert_null(rp_partition_parse_list(cases[i].text, &error));
        assert_true(g_error_matches(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_SYNTAX));
        assert_non_null(strstr(error->message, cases[i].position));
        assert_non_null(strstr(error->message, cases[i].what));
    }
}

RP_TEST(embedding_and_head_join_their_stages)
{
    g_autoptr(RpProfile) profile = rp_test_profile(6, MS, MS, MS, MS);
    g_autoptr(RpPartition) bound =
        rp_partition_from_blocks(profile, (const guint[]){3, 3, 0}, 3, NULL);
    const RpInterval stages[] = {{0, 4}, {4, 3}, {7, 1}};
    g_autoptr(RpPartition) bound_twin = rp_partition_new_bound(stages, 3);
    assert_true(rp_partition_equal(bound, bound_twin));

    g_autoptr(RpPartition) dispatched = rp_partition_from_dispatched_blocks(
        profile, (const guint[]){3, 2}, 2, (const guint[]){1, 2, 3}, 3, NULL);
    const RpInterval forward[] = {{0, 4}, {4, 2}}, backward[] = {{6, 2}, {4, 2}, {0, 4}};
    g_autoptr(RpPartition) twin = rp_partition_new_dispatched(forward, 2, backward, 3);
    assert_true(rp_partition_equal(dispatched, twin));
    assert_false(rp_partition_equal(dispatched, bound));
    g_autoptr(RpPartition) copy = rp_partition_copy(dispatched);
    assert_true(rp_partition_equal(dispatched, copy));
    g_autofree char *list = backward_list(profile, dispatched);
    assert_string_equal(list, "1,2,3");

    g_autoptr(RpPartition) fused =
        rp_partition_from_dispatched_blocks(profile, NULL, 0, (const guint[]){6}, 1, NULL);
    assert_int_equal(fused->backward[0].count, 8);
    g_autoptr(RpPartition) lone_embedding = rp_partition_from_dispatched_blocks(
        profile, (const guint[]){0}, 1, (const guint[]){6, 0}, 2, NULL);
    assert_int_equal(lone_embedding->backward[1].count, 1);
}

static void
assert_dispatched_refused(const RpProfile *profile, const char *forward, const char *backward,
                          const char *why)
{
    g_autoptr(GArray) f = forward[0] != '\0' ? rp_partition_parse_list(forward, NULL)
                                             : g_array_new(FALSE, FALSE, sizeof(guint));
    g_autoptr(GArray) b = rp_partition_parse_list(backward, NULL);
    g_autoptr(GError) error = NULL;
    assert_null(rp_partition_from_dispatched_blocks(profile, (const guint *)(const void *)f->data,
                                                    f->len, (const guint *)(const void *)b->data,
                                                    b->len, &error));
    assert_true(g_error_matches(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_COUNT));
    assert_string_equal(error->message, why);
}

RP_TEST(refuses_stage_lists_that_do_not_add_up)
{
    g_autoptr(RpProfile) profile = rp_test_profile(6, MS, MS, MS, MS);
    g_autoptr(GError) error = NULL;
    assert_null(rp_partition_from_blocks(profile, (const guint[]){3, 2}, 2, &error));
    assert_true(g_error_matches(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_COUNT));
    assert_string_equal(error->message, "the stages hold 5 blocks, but the model has 6");
    g_clear_error(&error);
    g_autoptr(RpPartition) hollow =
        rp_partition_from_blocks(profile, (const guint[]){3, 0, 3}, 3, &error);

    assert_non_null(hollow);
    assert_int_equal(hollow->forward[1].count, 0);
    assert_null(rp_partition_from_blocks(profile, NULL, 0, &error));

    assert_dispatched_refused(profile, "3,2", "0,3,3",
                              "the forward stages and the first backward stage hold 5 blocks, but "
                              "the model has 6");
    assert_dispatched_refused(profile, "3,3", "0,3,2",
                              "the backward stages hold 5 blocks, but the model has 6");
    assert_dispatched_refused(profile, "6,0", "0,6", "forward stage 2 of 2 holds no layer");
    assert_dispatched_refused(profile, "6", "0,3,0,3", "backward stage 3 of 4 holds no layer");
    assert_dispatched_refused(profile, "", "6,0", "backward stage 2 of 2 holds no layer");
    assert_dispatched_refused(
        profile, "0", "6", "no backward stage holds the embedding: add a last stage of 0 blocks");
}

RP_TEST(reports_the_balance)
{
    g_autoptr(RpProfile) profile = rp_test_profile(4, 10, 20, 5, 5);
    g_autoptr(RpPartition) partition = rp_partition_from_dispatched_blocks(
        profile, (const guint[]){4}, 1, (const guint[]){0, 2, 2}, 3, NULL);
    g_autoptr(GArray) times = NULL;
    RpBalance balance = rp_partition_balance(profile, partition, &times);
    const gint64 expected[] = {40, 10, 60, 60};
    assert_int_equal(times->len, 4);
    assert_memory_equal(times->data, expected, sizeof expected);
    assert_int_equal(balance.n_stages, 4);
    assert_int_equal(balance.max_ns, 60);
    assert_int_equal(balance.min_ns, 10);
    assert_int_equal(balance.total_ns, 170);
    assert_true(balance.balance > 170.0 / 240.0 - 1e-12 && balance.balance < 170.0 / 240.0 + 1e-12);
}
