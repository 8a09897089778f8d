/*
 * Compares the search for dispatched partitions with brute force on 150 small random cases,
 * without trying all of them itself.
 *
 * Figures to hold: 95 % optimal at least, none more than 1 % off.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/brute-force.h"

#define CASES 150
#define MOST_BLOCKS 8
#define LEAST_OPTIMAL 0.95
#define MOST_OFF 0.01

int
main(int argc, char **argv)
{
    GRand *rand = g_rand_new_with_seed(argc > 1 ? (guint32)atoi(argv[1]) : 150);
    guint optimal = 0;
    double worst = 0;
    gint64 search_us = 0;

    for (guint i = 0; i < CASES; i++) {
        g_autoptr(RpProfile) profile = NULL;
        RpDispatchedSearch search = rp_test_random_case(rand, MOST_BLOCKS, &profile);
        const gint64 begin_us = g_get_monotonic_time();

        search.exhaustive = 1;
        g_autoptr(GPtrArray) found = rp_search_dispatched(&search, 1);
        search_us += g_get_monotonic_time() - begin_us;
        const RpFinding *best = g_ptr_array_index(found, 0);
        const gint64 least_ns = rp_test_least_ns(&search);
        const double off = (double)(best->cost_ns - least_ns) / (double)least_ns;

        optimal += best->cost_ns == least_ns;
        worst = MAX(worst, off);
        if (off > 0)
            printf("case %u: %u GPUs, %u micro-batches%s, %u layers: %.3f %% off\n", i,
                   search.options.gpus, search.options.micro_batches,
                   search.options.async ? " async" : "", profile->n_layers, 100 * off);
    }
    printf("%u of %u cases optimal, the worst %.3f %% off, %.1f ms a search\n", optimal, CASES,
           100 * worst, (double)search_us / 1000 / CASES);
    g_rand_free(rand);
    return optimal >= LEAST_OPTIMAL * CASES && worst <= MOST_OFF ? EXIT_SUCCESS : EXIT_FAILURE;
}
