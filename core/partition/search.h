/**
 * Shared by the searches for partitions: costs of candidates and shifts of borders. Private to
 * core/partition/search*.c.
 */
#pragma once

#include "core/partition/partition.h"

typedef struct {
    const RpProfile *profile;
    RpPartitionSearch limits;
    RpPartitionCost cost;
    gpointer user_data;
    guint lead;        /* 1 if layer 0 is an embedding, which stands with the next layer */
    guint left;        /* candidates whose cost may still be computed */
    guint budget;      /* candidates at first */
    guint refused;     /* found impossible, which does not count as a candidate */
    GHashTable *known; /* GBytes of round and stage lengths -> gint64 *: its cost */
    RpPartition *best; /* NULL until a candidate can run */
    guint best_round;
    gint64 best_cost;
} RpSearch;

void rp_search_init(RpSearch *search, const RpProfile *profile, const RpPartitionSearch *limits,
                    RpPartitionCost cost, gpointer user_data);

/**
 * rp_search_end:
 * @best_round: (out) (optional)
 *
 * Frees the search's memory.
 *
 * Returns: (transfer full): the best candidate
 * Errors: RP_PARTITION_ERROR_IMPOSSIBLE if none could run
 */
RpPartition *rp_search_end(RpSearch *search, guint *best_round, GError **error);

/* The cost of a candidate: known, or computed now. G_MAXINT64 if it cannot run or none are left. */
gint64 rp_search_judge(RpSearch *search, const RpPartition *partition, guint round);

/**
 * rp_search_weights:
 * @k: layers [0, k) are weighed; > 0
 * @downwards: from layer k - 1 to layer 0
 * @weights: (out): times of single layers, an embedding's added to the next layer's
 *
 * Returns: the number of weights, @k less an embedding
 */
guint rp_search_weights(const RpSearch *search, guint k, RpPhase phase, gboolean downwards,
                        gint64 *weights);

/**
 * rp_search_shift_best:
 *
 * Shifts runs of borders by one layer as long as that helps, from the best candidate so far on. A
 * run takes a layer from the stage at one end of it and gives it to the stage at the other end:
 *
 *   [0 1 2][3 4 5][6 7]   both borders up   [0 1 2 3][4 5 6][7]
 */
void rp_search_shift_best(RpSearch *search);
