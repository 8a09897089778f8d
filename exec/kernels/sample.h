/**
 * The arithmetic of sampling (RpSampleArgs), which backends share, to the bit. Plain C that GPUs read as well: who wants
 * functions of another kind defines RP_SHARED before, and RP_TIMES, RP_PLUS where a compiler may contract the two.
 *
 *   keys       logits as whole numbers of the same order
 *   weights    whole numbers: their sums are the same in any order
 *
 *   falling logits   |  w0  | w1 |w2|w3|w4| ...      target: one of the units of w0 + ... + w3
 *                    top_k or top_p end here ^
 */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "exec/kernels/decode-args.h"
#include "exec/kernels/philox.h"

#ifndef RP_TIMES
#define RP_TIMES(a, b) ((a) * (b))
#define RP_PLUS(a, b) ((a) + (b))
#endif

/* Larger logits have larger keys. -0 = 0; a NaN has the smallest key. */
RP_SHARED uint32_t
rp_sample_key(float logit)
{
    uint32_t bits;

    if (logit != logit)
        return 0;
    logit += 0.0f; /* -0 becomes 0 */
    memcpy(&bits, &logit, sizeof bits);
    return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

RP_SHARED float
rp_sample_logit(uint32_t key)
{
    const uint32_t bits = (key >> 31) != 0 ? key & 0x7fffffffu : ~key;
    float logit;

    memcpy(&logit, &bits, sizeof logit);
    return logit;
}

RP_SHARED bool
rp_sample_is_greedy(const RpSampleChoice *choice)
{
    return choice->temperature <= 0 || choice->top_k == 1;
}

/* exp(x) 2^RP_SAMPLE_BITS, x <= 0, without a fraction: Cephes' expf (exec/host/host-private.h). */
RP_SHARED uint64_t
rp_sample_exp(float x)
{
    const float round = 12582912.0f; /* 1.5 x 2^23 */
    const float shifted = RP_PLUS(RP_TIMES(x, 1.44269504f), round);
    const float n = RP_PLUS(shifted, -round);
    const float r = RP_PLUS(RP_PLUS(x, RP_TIMES(n, -0.693359375f)), RP_TIMES(n, 2.12194440e-4f));
    float p = 1.9875691500e-4f;

    if (!(x > -28.0f)) /* 2^40 exp(-28) < 1 */
        return 0;
    p = RP_PLUS(RP_TIMES(p, r), 1.3981999507e-3f);
    p = RP_PLUS(RP_TIMES(p, r), 8.3334519073e-3f);
    p = RP_PLUS(RP_TIMES(p, r), 4.1665795894e-2f);
    p = RP_PLUS(RP_TIMES(p, r), 1.6666665459e-1f);
    p = RP_PLUS(RP_TIMES(p, r), 5.0000001201e-1f);
    p = RP_PLUS(RP_PLUS(RP_TIMES(p, RP_TIMES(r, r)), r), 1.0f);
    /* n is -40 to 0; p has 24 bits */
    return (uint64_t)RP_TIMES(p, (float)((uint64_t)1 << (RP_SAMPLE_BITS + 1 + (int)n))) >> 1;
}

/* w of a key; @largest: the row's largest. */
RP_SHARED uint64_t
rp_sample_weight(const RpSampleChoice *choice, uint32_t key, uint32_t largest)
{
    const float below = RP_PLUS(rp_sample_logit(key), -rp_sample_logit(largest));

    if (key == largest)
        return (uint64_t)1 << RP_SAMPLE_BITS;
    if (!(below < 0)) /* a NaN, or all are infinite */
        return 0;
    return rp_sample_exp(below / (float)choice->temperature);
}

/* The sum that the most likely must reach, of @sum. */
RP_SHARED uint64_t
rp_sample_needed(const RpSampleChoice *choice, uint64_t sum)
{
    const uint64_t needed = (uint64_t)ceil(choice->top_p * (double)sum);

    return choice->top_p >= 1 || needed > sum ? sum : needed;
}

/* A number below @sum. */
RP_SHARED uint64_t
rp_sample_target(const RpSampleChoice *choice, uint64_t sum)
{
    uint32_t words[4] = {choice->token, (uint32_t)choice->number, (uint32_t)(choice->number >> 32),
                         0};
    uint64_t target;

    rp_philox_stir(words, choice->seed);
    target =
        (uint64_t)((ldexp((double)(words[0] >> 5), -27) + ldexp((double)(words[1] >> 6), -53)) *
                   (double)sum);
    return target < sum ? target : sum - 1;
}
