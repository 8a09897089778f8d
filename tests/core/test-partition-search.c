/*
 * Searches for partitions, with stand-ins for the simulator as their cost: the compute-only
 * recurrences of RoundPipe and 1F1B (schedules.md), written apart from the planner.
 */
#include "tests/rp-test.h"

#include "core/base/units.h"
#include "core/partition/partition.h"

#define MAX_SLOTS 512
#define MAX_DEVICES 16
#define MAX_MICRO_BATCHES 64

typedef struct {
    const char *name;
    guint blocks;
    double forward_ms, backward_ms, head_forward_ms, head_backward_ms, hop_ms;
    double published_sync_ms; /* published-schedules.csv, M_R = 8; 0 = none */
} Model;

/* RTX 4090, published (rtx4090-layer-times.csv). */
static const Model models[] = {
    {"qwen3-1.7b", 28, 7.429, 15.831, 22.0655, 43.707, 1.6, 2286.017},
    {"llama-3.1-8b", 32, 18.50370313, 41.20659375, 37.2255, 74.501, 3.2, 6100.545},
    {"gpt-oss-20b", 24, 21.6445625, 81.780875, 44.2925, 86.264, 2.25, 0},
    {"qwen3-32b", 64, 40.5610625, 91.17429688, 54.928, 108.294, 4, 23978.8338},
    {"qwen3-235b-a22b", 94, 43.016, 58.376, 42.444, 43.294, 3.2, 0}};

static RpProfile *
make_profile(const Model *model)
{
    RpProfile *profile = rp_profile_new(model->blocks + 2);
    for (guint i = 0; i < profile->n_layers; i++) {
        RpLayer *layer = &profile->layers[i];
        gboolean head = i == model->blocks + 1;
        layer->kind = i == 0 ? RP_LAYER_EMBEDDING : head ? RP_LAYER_HEAD : RP_LAYER_BLOCK;
        if (i > 0) {
            layer->forward_ns = rp_ns_from_ms(head ? model->head_forward_ms : model->forward_ms);
            layer->backward_ns = rp_ns_from_ms(head ? model->head_backward_ms : model->backward_ms);
        }
        layer->recompute_ns = layer->forward_ns;
    }
    profile->links.hop_ns = rp_ns_from_ms(model->hop_ms);
    return profile;
}

/* Blocks of their own times, embedding and head, one unit of memory each. */
static RpProfile *
random_profile(GRand *rand, guint n_layers)
{
    RpProfile *profile = rp_profile_new(n_layers);
    for (guint i = 0; i < n_layers; i++) {
        RpLayer *layer = &profile->layers[i];
        layer->forward_ns = layer->recompute_ns = g_rand_int_range(rand, 10, 40);
        layer->backward_ns = g_rand_int_range(rand, 20, 80);
        layer->activation_bytes = 1;
    }
    profile->layers[0].kind = RP_LAYER_EMBEDDING;
    profile->layers[n_layers - 1].kind = RP_LAYER_HEAD;
    return profile;
}

/* Input of a schedule's cost function, and a record of its calls. */
typedef struct {
    const RpProfile *profile;
    guint gpus, micro_batches;
    gboolean async;
    guint n_judged;
    GHashTable *judged; /* every candidate as text */
    gboolean twice, malformed, wrong_round, too_large;
    guint64 memory_bytes;
    gint64 work_ns; /* the last candidate's */
} Schedule;

typedef struct {
    gint64 time_ns, recompute_ns;
} Slot;

/* End of the last backward slot of iteration k - 2 that holds one of @stage's layers: it must have
 * ended before iteration k reads the layer's weights (staleness 1). */
static gint64
weights_ready(const RpPartition *partition, RpInterval stage, const gint64 *backward_ends)
{
    gint64 ready = 0;
    for (guint b = 0; b < partition->n_backward; b++) {
        RpInterval other = partition->backward[b];
        if (other.first < stage.first + stage.count && stage.first < other.first + other.count)
            ready = MAX(ready, backward_ends[b]);
    }
    return ready;
}

/*
 * RoundPipe, compute only. Slot i of a round is on device (g0 + i) mod N and runs its micro-batches
 * in order. Asynchronous: the time per iteration far from both ends; otherwise the makespan of one.
 */
static gint64
round_pipe_ns(const RpPartition *partition, guint round, const Schedule *schedule, gint64 *work_ns)
{
    guint n_forward = partition->n_forward, n_slots = n_forward + partition->n_backward;
    Slot slots[MAX_SLOTS] = {{0, 0}};
    assert_true(n_slots <= MAX_SLOTS && schedule->gpus <= MAX_DEVICES);
    *work_ns = 0;
    for (guint i = 0; i < n_slots; i++) {
        RpInterval stage =
            i < n_forward ? partition->forward[i] : partition->backward[i - n_forward];
        RpPhase phase = i < n_forward    ? RP_PHASE_FORWARD
                        : i == n_forward ? RP_PHASE_FUSED
                                         : RP_PHASE_BACKWARD;
        slots[i].time_ns =
            rp_stage_time_ns(schedule->profile, stage, phase, &slots[i].recompute_ns);
        *work_ns += slots[i].time_ns * schedule->micro_batches;
    }

    static gint64 backward_ends[3][MAX_SLOTS]; /* by iteration mod 3 */
    memset(backward_ends, 0, sizeof backward_ends);
    gint64 device_ends[MAX_DEVICES] = {0}, before = 0, after = 0, end = 0;
    guint iterations = schedule->async ? 6 * schedule->gpus : 1, warm_up = 2 * schedule->gpus;
    for (guint k = 0, device = 0; k < iterations; k++) {
        for (guint r = 0; r < schedule->micro_batches / round; r++) {
            gint64 arrival[MAX_MICRO_BATCHES] = {0};
            for (guint i = 0; i < n_slots; i++, device = (device + 1) % schedule->gpus) {
                gint64 hop = i > 0 && schedule->gpus > 1 ? schedule->profile->links.hop_ns : 0;
                gint64 free = device_ends[device];
                if (k >= 2 && i <= n_forward) {
                    RpInterval stage =
                        i < n_forward ? partition->forward[i] : partition->backward[0];
                    free = MAX(free, weights_ready(partition, stage, backward_ends[(k - 2) % 3]));
                }
                for (guint m = 0; m < round; m++) {
                    gint64 start = MAX(free, arrival[m] + hop - slots[i].recompute_ns);
                    free = arrival[m] = start + slots[i].time_ns;
                }
                device_ends[device] = free;
                end = MAX(end, free);
                if (i >= n_forward)
                    backward_ends[k % 3][i - n_forward] = free;
            }
        }
        if (k + 1 == warm_up || k + 1 == iterations) {
            before = after;
            after = 0;
            for (guint d = 0; d < schedule->gpus; d++)
                after += device_ends[d];
        }
    }
    return schedule->async ? (after - before) / schedule->gpus / (iterations - warm_up) : end;
}

/* Checks a candidate in every respect before its cost is computed. */
static void
inspect(Schedule *schedule, const RpPartition *candidate, guint round)
{
    GString *text = g_string_new(NULL);
    guint at = 0, n_layers = schedule->profile->n_layers;
    g_string_append_printf(text, "%u:", round);
    for (guint s = 0; s < candidate->n_forward; s++) {
        RpInterval stage = candidate->forward[s];
        schedule->malformed |= stage.first != at || stage.count == 0;
        at += stage.count;
        g_string_append_printf(text, " %u", stage.count);
        schedule->too_large |= rp_stage_memory_bytes(schedule->profile, stage, RP_PHASE_FORWARD) >
                               schedule->memory_bytes;
    }
    g_string_append(text, " |");
    schedule->malformed |= candidate->dispatched && candidate->backward[0].first != at;
    at = candidate->dispatched ? n_layers : n_layers - at;
    for (guint s = 0; s < candidate->n_backward; s++) {
        RpInterval stage = candidate->backward[s];
        schedule->malformed |= stage.first + stage.count != at || stage.count == 0;
        at = stage.first;
        g_string_append_printf(text, " %u", stage.count);
        RpPhase phase = s == 0 ? RP_PHASE_FUSED : RP_PHASE_BACKWARD;
        schedule->too_large |=
            rp_stage_memory_bytes(schedule->profile, stage, phase) > schedule->memory_bytes;
    }
    schedule->malformed |= at != 0;
    schedule->wrong_round |= round == 0 || schedule->micro_batches % round != 0;
    schedule->twice |= !g_hash_table_add(schedule->judged, g_string_free(text, FALSE));
    schedule->n_judged++;
}

static gint64
round_pipe_cost(const RpPartition *candidate, guint round, gpointer user_data)
{
    Schedule *schedule = user_data;
    inspect(schedule, candidate, round);
    return round_pipe_ns(candidate, round, schedule, &schedule->work_ns);
}

static void
schedule_init(Schedule *schedule, const RpProfile *profile, guint gpus, guint micro_batches,
              gboolean async)
{
    *schedule = (Schedule){.profile = profile,
                           .gpus = gpus,
                           .micro_batches = micro_batches,
                           .async = async,
                           .memory_bytes = G_MAXUINT64};
    schedule->judged = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
}

static void
schedule_clear(Schedule *schedule)
{
    g_hash_table_unref(schedule->judged);
}

static gint64
search_time_ns(const Model *model, gboolean async, guint round, double *bubble)
{
    g_autoptr(RpProfile) profile = make_profile(model);
    Schedule schedule;
    schedule_init(&schedule, profile, 8, 16, async);
    const RpPartitionSearch search = {.gpus = 8, .micro_batches = 16, .round = round};
    guint best_round = 0;
    g_autoptr(RpPartition) partition = rp_partition_search_dispatched(
        profile, &search, round_pipe_cost, &schedule, &best_round, NULL);
    assert_non_null(partition);
    assert_false(schedule.malformed || schedule.twice || schedule.wrong_round);
    assert_true(schedule.n_judged <= 400);
    gint64 work_ns = 0, time_ns = round_pipe_ns(partition, best_round, &schedule, &work_ns);
    *bubble = 1.0 - (double)work_ns / (8.0 * (double)time_ns);
    schedule_clear(&schedule);
    return time_ns;
}

static void
synchronous_makespans_are_below_the_published_ones(void **state)
{
    for (guint i = 0; i < G_N_ELEMENTS(models); i++) {
        double bubble = 0;
        if (models[i].published_sync_ms > 0) {
            gint64 time_ns = search_time_ns(&models[i], FALSE, 8, &bubble);
            assert_true(rp_ms_from_ns(time_ns) < models[i].published_sync_ms);
            assert_true(search_time_ns(&models[i], FALSE, 0, &bubble) <= time_ns);
        }
    }
}

/* Blocks are indivisible and hops take time, so rounds of N leave something over; a free round does
 * not. The largest model prefers a long fused stage, which saves more recompute than its bubble
 * costs: it is held against the bubble-free time of the paper's partition. */
static void
asynchronous_bubbles_nearly_vanish(void **state)
{
    for (guint i = 0; i < G_N_ELEMENTS(models); i++) {
        g_autoptr(RpProfile) profile = make_profile(&models[i]);
        g_autoptr(RpPartition) paper = rp_partition_paper(profile, 8, 16, 0, NULL);
        gint64 ideal_ns = 16 * rp_partition_balance(profile, paper, NULL).total_ns / 8;
        double bubble = 0;
        assert_true(search_time_ns(&models[i], TRUE, 8, &bubble) < ideal_ns + ideal_ns / 50);
        gint64 time_ns = search_time_ns(&models[i], TRUE, 0, &bubble);
        assert_true(time_ns <= ideal_ns);
        assert_true(bubble < 0.02 || time_ns < ideal_ns - ideal_ns / 20);
    }
}

static void
dispatched_search_is_never_worse_than_the_paper_objective(void **state)
{
    GRand *rand = g_rand_new_with_seed(1);
    for (guint i = 0; i < 60; i++) {
        g_autoptr(RpProfile) profile = random_profile(rand, (guint)g_rand_int_range(rand, 2, 40));
        Schedule schedule;
        schedule_init(&schedule, profile, (guint)g_rand_int_range(rand, 1, 9), 24, i % 2);
        schedule.memory_bytes = i % 3 == 0 ? G_MAXUINT64 : (guint64)g_rand_int_range(rand, 1, 12);
        const RpPartitionSearch search = {.gpus = schedule.gpus,
                                          .micro_batches = 24,
                                          .round = i % 4 == 0 ? 24 : 0,
                                          .memory_bytes = i % 3 == 0 ? 0 : schedule.memory_bytes,
                                          .max_candidates = i % 5 == 0 ? 10 : 120};
        g_autoptr(RpPartition) paper =
            rp_partition_paper(profile, schedule.gpus, 24, search.memory_bytes, NULL);
        guint round = 0;
        g_autoptr(RpPartition) best = rp_partition_search_dispatched(
            profile, &search, round_pipe_cost, &schedule, &round, NULL);
        assert_non_null(best);
        assert_false(schedule.malformed || schedule.twice || schedule.wrong_round);
        assert_false(schedule.too_large);
        assert_true(schedule.n_judged <= search.max_candidates);
        assert_true(round >= schedule.gpus && (search.round == 0 || round == search.round));
        gint64 work_ns = 0, found_ns = round_pipe_ns(best, round, &schedule, &work_ns);
        for (guint r = schedule.gpus; r <= 24; r++)
            if (24 % r == 0 && (search.round == 0 || search.round == r))
                assert_true(found_ns <= round_pipe_ns(paper, r, &schedule, &work_ns));
        guint again_round = 0;
        g_autoptr(RpPartition) again = rp_partition_search_dispatched(
            profile, &search, round_pipe_cost, &schedule, &again_round, NULL);
        assert_true(rp_partition_equal(best, again));
        assert_int_equal(round, again_round);
        schedule_clear(&schedule);
    }
    g_rand_free(rand);
}

static gint64
impossible_cost(const RpPartition *candidate, guint round, gpointer user_data)
{
    return G_MAXINT64;
}

static void
says_so_when_no_candidate_can_run(void **state)
{
    g_autoptr(RpProfile) profile = make_profile(&models[0]);
    const RpPartitionSearch search = {.gpus = 8, .micro_batches = 16};
    g_autoptr(GError) error = NULL;
    guint round = 77;
    assert_null(
        rp_partition_search_dispatched(profile, &search, impossible_cost, NULL, &round, &error));
    assert_true(g_error_matches(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_IMPOSSIBLE));
    assert_int_equal(round, 77);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(synchronous_makespans_are_below_the_published_ones),
        cmocka_unit_test(asynchronous_bubbles_nearly_vanish),
        cmocka_unit_test(dispatched_search_is_never_worse_than_the_paper_objective),
        cmocka_unit_test(says_so_when_no_candidate_can_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
