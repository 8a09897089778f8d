/**
 * Philox4x32-10: 128 random bits that are a function of a counter and a key alone. Plain C that GPUs
 * share: who wants functions of another kind defines RP_SHARED before.
 *
 * Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11
 */
#pragma once

#include <stdint.h>

#ifndef RP_SHARED
#define RP_SHARED static inline
#endif

#define RP_PHILOX_ROUNDS 10
/* Increments of the key, round by round. */
#define RP_PHILOX_W0 0x9e3779b9u
#define RP_PHILOX_W1 0xbb67ae85u

RP_SHARED void
rp_philox_round(uint32_t *c0, uint32_t *c1, uint32_t *c2, uint32_t *c3, uint32_t k0, uint32_t k1)
{
    const uint64_t product0 = (uint64_t)0xd2511f53u * *c0;
    const uint64_t product1 = (uint64_t)0xcd9e8d57u * *c2;

    *c0 = (uint32_t)(product1 >> 32) ^ *c1 ^ k0;
    *c1 = (uint32_t)product1;
    *c2 = (uint32_t)(product0 >> 32) ^ *c3 ^ k1;
    *c3 = (uint32_t)product0;
}

/* @words: the counter; becomes the random bits */
RP_SHARED void
rp_philox_stir(uint32_t words[4], uint64_t key)
{
    for (uint32_t round = 0; round < RP_PHILOX_ROUNDS; round++)
        rp_philox_round(&words[0], &words[1], &words[2], &words[3],
                        (uint32_t)key + round * RP_PHILOX_W0,
                        (uint32_t)(key >> 32) + round * RP_PHILOX_W1);
}
