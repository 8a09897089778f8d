/**
 * Measures the cost of planning and proving: Qwen3-235B with LoRA on 8 GPUs, 64 micro-batches,
 * `full` fidelity, with windows and without.
 *
 * Before them, the time of one partition: the paper objective and min-max, and the search with a cost that
 * is free, so that only its own work between two calls of it shows.
 *
 * Figures to hold (design.md §9): paper objective < 1 ms for 96 layers, < 100 ms for 1,000.
 *
 *   bench-planner [PROFILE.json]
 */
#include <stdio.h>

#include "core/partition/partition.h"
#include "core/plan/planner.h"
#include "core/verify/verify.h"

#define ITERATIONS 30
#define PROVED 3
#define GPUS 8
#define MICRO_BATCHES 64
#define MADE 15
#define PARTITION_MICRO_BATCHES 16
#define LEAST_US 200000 /* each partition is repeated for so long */

static RpPlanner *
new_planner(const RpProfile *profile, const RpPartition *partition, guint round,
            RpTransfers transfers, GError **error)
{
    RpPlanOptions options = {.gpus = GPUS,
                             .micro_batches = MICRO_BATCHES,
                             .round = round,
                             .async = TRUE,
                             .fidelity = RP_FIDELITY_FULL,
                             .transfers = transfers};

    options.schedule = rp_schedule_find("roundpipe", error);
    if (options.schedule == NULL)
        return NULL;
    return rp_planner_new(profile, partition, &options, error);
}

/* Makes planners; then appends and retires iterations as a run does. */
static gboolean
time_planning(const RpProfile *profile, const RpPartition *partition, guint round,
              RpTransfers transfers, GError **error)
{
    const gint64 made = g_get_monotonic_time();

    for (guint i = 0; i < MADE; i++) {
        g_autoptr(RpPlanner) planner = new_planner(profile, partition, round, transfers, error);

        if (planner == NULL)
            return FALSE;
    }
    const double make_ms = (double)(g_get_monotonic_time() - made) / 1e3 / MADE;
    g_autoptr(RpPlanner) planner = new_planner(profile, partition, round, transfers, error);
    gint64 first = 0;
    gint64 best = G_MAXINT64;
    RpTaskId before = 0;

    for (guint i = 0; i < ITERATIONS; i++) {
        RpPlan *plan = rp_planner_plan(planner);
        RpTaskId begin = rp_plan_end_id(plan);
        gint64 start = g_get_monotonic_time();

        if (!rp_planner_append_iteration(planner, error))
            return FALSE;
        gint64 took = g_get_monotonic_time() - start;
        first = i == 0 ? took : first;
        best = MIN(best, took);
        rp_plan_retire(plan, before);
        before = begin;
    }
    const guint64 tasks = rp_plan_end_id(rp_planner_plan(planner)) - before;

    printf("plan    rounds of %2u  %6" G_GUINT64_FORMAT
           " tasks  first %.2f ms, best %.2f ms, %.0f ns a task; a planner %.2f ms; %s\n",
           round, tasks, (double)first / 1e3, (double)best / 1e3,
           1e3 * (double)best / (double)tasks, make_ms,
           transfers == RP_TRANSFERS_NAIVE ? "naive" : "windows");
    return TRUE;
}

static gboolean
time_proof(const RpProfile *profile, const RpPartition *partition, guint round, GError **error)
{
    g_autoptr(RpPlanner) planner =
        new_planner(profile, partition, round, RP_TRANSFERS_WINDOWS, error);
    RpViolation violation = {0};

    if (planner == NULL)
        return FALSE;
    for (guint i = 0; i < PROVED; i++)
        if (!rp_planner_append_iteration(planner, error))
            return FALSE;
    rp_planner_finish(planner);
    gint64 start = g_get_monotonic_time();
    gboolean proved = rp_verify_plan(rp_planner_plan(planner), &violation);
    printf("verify  rounds of %2u  %6" G_GUINT64_FORMAT " tasks  %.2f ms  %s\n", round,
           rp_plan_end_id(rp_planner_plan(planner)), (double)(g_get_monotonic_time() - start) / 1e3,
           proved ? "proved" : violation.message);
    rp_violation_clear(&violation);
    return TRUE;
}

/* Proves each iteration before it would run, twice: its calls, then its step. */
static gboolean
time_growing_proof(const RpProfile *profile, const RpPartition *partition, guint round,
                   GError **error)
{
    g_autoptr(RpPlanner) planner =
        new_planner(profile, partition, round, RP_TRANSFERS_WINDOWS, error);
    gint64 best = G_MAXINT64;
    guint64 n = 0;

    if (planner == NULL)
        return FALSE;
    RpPlan *plan = rp_planner_plan(planner);
    g_autoptr(RpVerifier) verifier = rp_verifier_new(plan);
    for (guint i = 0; i < ITERATIONS; i++) {
        const RpTaskId begin = rp_plan_end_id(plan);
        RpViolation violation;
        gint64 took = 0;

        for (guint part = 0; part < 2; part++) {
            if (part == 0 && !rp_planner_append_call(planner, error))
                return FALSE;
            if (part == 1)
                rp_planner_append_step(planner);
            const gint64 start = g_get_monotonic_time();
            if (!rp_verifier_extend(verifier, part == 0 ? RP_GROWN_CALLS : RP_GROWN_STEP,
                                    &violation)) {
                printf("%s\n", violation.message);
                rp_violation_clear(&violation);
                return TRUE;
            }
            took += g_get_monotonic_time() - start;
        }
        n = rp_plan_end_id(plan) - begin;
        best = MIN(best, took);
        rp_plan_retire(plan, rp_plan_end_id(plan));
    }
    printf("growing rounds of %2u  %6" G_GUINT64_FORMAT
           " tasks  best %.2f ms, %.2f us a task; %u tasks held\n",
           round, n, (double)best / 1e3, (double)best / (double)n, rp_verifier_n_held(verifier));
    return TRUE;
}

/* ---- partitions ---- */

/* Embedding, blocks, head; every block alike (like a published model), or each of its own. */
static RpProfile *
make_profile(guint n_layers, gboolean uniform)
{
    GRand *rand = g_rand_new_with_seed(n_layers);
    RpProfile *profile = rp_profile_new(n_layers);
    for (guint i = 0; i < n_layers; i++) {
        RpLayer *layer = &profile->layers[i];
        layer->forward_ns = uniform ? 43016000 : g_rand_int_range(rand, 5000000, 50000000);
        layer->backward_ns = uniform ? 58376000 : g_rand_int_range(rand, 5000000, 120000000);
        layer->recompute_ns = layer->forward_ns;
        layer->parameter_bytes = uniform ? 1 << 20 : (guint64)g_rand_int_range(rand, 1, 1 << 21);
    }
    profile->layers[0].kind = RP_LAYER_EMBEDDING;
    profile->layers[0].forward_ns = profile->layers[0].backward_ns = 0;
    profile->layers[n_layers - 1].kind = RP_LAYER_HEAD;
    g_rand_free(rand);
    return profile;
}

typedef enum { PAPER, PAPER_MEMORY, MIN_MAX, SEARCH_DISPATCHED, N_WHATS } What;

static gint64
even_cost(const RpPartition *candidate, guint round, gpointer user_data)
{
    RpBalance balance = rp_partition_balance(user_data, candidate, NULL);
    return balance.max_ns * balance.n_stages;
}

static RpPartition *
partition_by(RpProfile *profile, What what)
{
    const RpPartitionSearch search = {.gpus = GPUS, .micro_batches = PARTITION_MICRO_BATCHES};
    guint n_stages = MIN(4 * GPUS, profile->n_layers - 1), round = 0;
    switch (what) {
    case PAPER:
        return rp_partition_paper(profile, GPUS, PARTITION_MICRO_BATCHES, 0, NULL);
    case PAPER_MEMORY: /* space for about twelve layers */
        return rp_partition_paper(profile, GPUS, PARTITION_MICRO_BATCHES, 24 << 20, NULL);
    case MIN_MAX:
        return rp_partition_min_max(profile, n_stages, NULL);
    case SEARCH_DISPATCHED:
        return rp_partition_search_dispatched(profile, &search, even_cost, profile, &round, NULL);
    case N_WHATS:
        break;
    }
    return NULL;
}

static void
time_partition(guint n_layers, gboolean uniform, What what)
{
    static const char *const names[N_WHATS] = {"paper objective", "paper objective, memory limit",
                                               "min-max, 32 stages", "search dispatched"};
    g_autoptr(RpProfile) profile = make_profile(n_layers, uniform);
    gint64 start = g_get_monotonic_time(), end = start;
    guint runs = 0;
    do {
        g_autoptr(RpPartition) partition = partition_by(profile, what);
        runs++;
        end = g_get_monotonic_time();
        if (partition == NULL) {
            printf("%-32s %5u layers, %-8s   no partition\n", names[what], n_layers,
                   uniform ? "uniform" : "random");
            return;
        }
    } while (end - start < LEAST_US);
    printf("%-32s %5u layers, %-8s %12.1f us\n", names[what], n_layers,
           uniform ? "uniform" : "random", (double)(end - start) / runs);
}

static void
time_partitions(void)
{
    static const guint n_layers[] = {96, 1000};
    for (What what = PAPER; what < N_WHATS; what++) {
        for (guint n = 0; n < G_N_ELEMENTS(n_layers); n++) {
            time_partition(n_layers[n], TRUE, what);
            time_partition(n_layers[n], FALSE, what);
        }
    }
}

int
main(int argc, char **argv)
{
    g_autoptr(GError) error = NULL;
    const char *path = argc > 1 ? argv[1] : RP_BENCH_PROFILE;
    g_autoptr(RpProfile) profile = rp_profile_load(path, &error);
    g_autoptr(RpPartition) partition = NULL;

    time_partitions();
    if (profile != NULL)
        partition =
            rp_partition_paper(profile, GPUS, MICRO_BATCHES, profile->gpu_memory_bytes, &error);
    for (guint round = 8; partition != NULL && error == NULL && round <= 64; round *= 8)
        if (time_planning(profile, partition, round, RP_TRANSFERS_WINDOWS, &error) &&
            time_planning(profile, partition, round, RP_TRANSFERS_NAIVE, &error))
            if (time_proof(profile, partition, round, &error))
                (void)time_growing_proof(profile, partition, round, &error);
    if (error == NULL)
        return 0;
    fprintf(stderr, "bench-planner: %s\n", error->message);
    return 1;
}
