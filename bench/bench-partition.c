/*
 * Time of one partition: the paper objective and min-max, and the searches with a cost that is
 * free, so that only their own work between two calls of it shows.
 *
 * Figures to hold (design.md §9): paper objective < 1 ms for 96 layers, < 100 ms for 1,000.
 */
#include <stdio.h>

#include "core/partition/partition.h"

#define GPUS 8
#define MICRO_BATCHES 16
#define LEAST_US 200000 /* each figure is repeated for so long */

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
run(RpProfile *profile, What what)
{
    const RpPartitionSearch search = {.gpus = GPUS, .micro_batches = MICRO_BATCHES};
    guint n_stages = MIN(4 * GPUS, profile->n_layers - 1), round = 0;
    switch (what) {
    case PAPER:
        return rp_partition_paper(profile, GPUS, MICRO_BATCHES, 0, NULL);
    case PAPER_MEMORY: /* space for about twelve layers */
        return rp_partition_paper(profile, GPUS, MICRO_BATCHES, 24 << 20, NULL);
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
report(guint n_layers, gboolean uniform, What what)
{
    static const char *const names[N_WHATS] = {"paper objective", "paper objective, memory limit",
                                               "min-max, 32 stages", "search dispatched"};
    g_autoptr(RpProfile) profile = make_profile(n_layers, uniform);
    gint64 start = g_get_monotonic_time(), end = start;
    guint runs = 0;
    do {
        g_autoptr(RpPartition) partition = run(profile, what);
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

int
main(void)
{
    static const guint n_layers[] = {96, 1000};
    for (What what = PAPER; what < N_WHATS; what++) {
        for (guint n = 0; n < G_N_ELEMENTS(n_layers); n++) {
            report(n_layers[n], TRUE, what);
            report(n_layers[n], FALSE, what);
        }
    }
    return 0;
}
