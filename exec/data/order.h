/**
 * In which order samples are trained on: a permutation for each epoch, position by position.
 *
 * No list is shuffled: position -> sample is computed from (seed, epoch, number of samples) alone,
 * so that a place in training is two numbers, and the order has nothing to do with devices.
 *
 * A swap-or-not shuffle: in each of RP_ORDER_ROUNDS rounds x is paired with K - x (mod n) and a
 * hashed bit of the pair says whether the two change places. It works on any n without walking,
 * and on small n too. It is for training order, not for secrets.
 *
 * Source: Hoang, Morris and Rogaway, "An enciphering scheme based on a card shuffle", CRYPTO 2012,
 *   figure 1; the hash is the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)
 */
#pragma once

#include <glib.h>

#define RP_ORDER_ROUNDS 128
#define RP_ORDER_MAX_SAMPLES ((guint64)G_MAXINT64)

/* One epoch's order. A plain value; fields belong to the functions. */
typedef struct {
    guint64 n_samples;
    guint64 seed;
    guint64 epoch;
    gboolean shuffle;
    guint64 pairs[RP_ORDER_ROUNDS]; /* the K of each round, less than n_samples */
    guint64 bits[RP_ORDER_ROUNDS];  /* start of each round's hash */
} RpOrder;

/**
 * rp_order_init:
 * @order: (out)
 * @n_samples: from 1 to RP_ORDER_MAX_SAMPLES
 * @shuffle: or in the order of the file, each epoch
 */
void rp_order_init(RpOrder *order, guint64 n_samples, gboolean shuffle, guint64 seed,
                   guint64 epoch);

/**
 * rp_order_sample:
 * @position: in the epoch, less than the number of samples
 *
 * Returns: the sample's index: over all positions, each once
 */
guint64 rp_order_sample(const RpOrder *order, guint64 position);
