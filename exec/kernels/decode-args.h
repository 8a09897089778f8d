/**
 * Arguments of the kernels that generate: keys and values in blocks of a cache, the recurrent form of gated DeltaNet,
 * and sampling. exec/kernels/args.h includes this file and has the rules common to all kernels.
 *
 * A sequence's keys and values stand in blocks of RP_CACHE_BLOCK tokens anywhere in the cache; its table names them:
 *
 *   sequence   tokens 0 to 63    64 to 127    128 to 140         table   7 2 9
 *   cache      block 7           block 2      block 9            row of token 130: 9 64 + 2
 *
 * Every row of an output is the same whatever other rows and sequences a call has.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/dtype.h"

/* clang-format off */
#define RP_DECODE_KERNELS(K, W)                                                                    \
    K(cache_rows, RpCacheRowsArgs, "keys and values to the cache")                                 \
    W(attention_cached, RpCachedAttentionArgs, "attention to the cache")                           \
    K(conv_step, RpConvStepArgs, "convolution from a state")                                       \
    K(delta_step, RpDeltaStepArgs, "delta rule from a state")                                      \
    K(sample, RpSampleArgs, "sampling")
/* clang-format on */

#define RP_CACHE_BLOCK 64

/* keys[rows[i]] = k[tokens[i]], values[rows[i]] = v[tokens[i]], i < n. No row twice, but row 0, which nothing reads. */
typedef struct {
    RpDtype dtype;
    size_t n, width;              /* elements of a token's keys */
    size_t k_stride, v_stride;    /* elements from a token to the next */
    const int32_t *tokens, *rows; /* [n] */
    const void *k, *v;            /* [T,width] */
    void *keys, *values;          /* [rows of the cache,width] */
} RpCacheRowsArgs;

/*
 * One query of each of N sequences, at position p of it: as RpAttentionArgs, to keys 0 to p of the cache.
 * Keys are taken in parts of RP_CACHE_PART, whose results are added in order: the order of sums depends on p and
 * window alone.
 */
typedef struct {
    RpDtype dtype;
    size_t queries, heads, kv_heads, head_size; /* N; kv_heads divides heads */
    size_t window;      /* keys that a query sees, itself included; 0 = all */
    size_t longest;     /* no position is as large; a launch depends on it, no number does */
    size_t most_blocks; /* of a table */
    float scale;
    const int32_t *positions;  /* [N] */
    const int32_t *tables;     /* [N,most_blocks]: blocks of the sequence */
    const void *q;             /* [N,heads,D] */
    const void *keys, *values; /* [rows of the cache,kv_heads,D] */
    void *out;                 /* [N,heads,D] */
    float *lse;                /* [heads,N] */
    void *workspace;
} RpCachedAttentionArgs;

#define RP_CACHE_PART 256

/*
 * RpConvArgs' forward for some ranges of tokens, each of which continues a sequence or begins one: x before a range is in
 * the state of its slot, or 0 with @begins. Afterwards the state holds the last K - 1 inputs. Ranges are alike or
 * apart; no slot is named twice, but slot 0, which nothing reads.
 */
typedef struct {
    RpDtype dtype;
    size_t ranges, n;
    size_t kernel; /* K, at most RP_MOST_CONV */
    bool begins;
    const int32_t *firsts, *ends; /* [ranges]: tokens */
    const int32_t *slots;         /* [ranges] */
    const void *x;                /* [T,n] */
    const void *weight;           /* [n,K] */
    void *y;                      /* [T,n] */
    void *states;                 /* [slots,K - 1,n] */
} RpConvStepArgs;

/* RpDeltaArgs' forward in its recurrent form, for ranges as RpConvStepArgs has them: S comes from the slot and goes
 * there. */
typedef struct {
    RpDtype dtype;
    size_t ranges;
    size_t key_heads, value_heads; /* the former divides the latter */
    size_t key_dim, value_dim;     /* Dk, Dv */
    bool begins;
    const int32_t *firsts, *ends; /* [ranges]: tokens */
    const int32_t *slots;         /* [ranges] */
    const void *qkv;              /* [T,2 Hk Dk + Hv Dv] */
    const void *b, *a;            /* [T,Hv] */
    const void *log, *bias;       /* [Hv] */
    void *out;                    /* [T,Hv,Dv] */
    float *states;                /* [slots,Hv,Dk,Dv] */
} RpDeltaStepArgs;

/* How the next token of a row is chosen. */
typedef struct {
    double temperature; /* 0: the largest logit; of equal ones the lower id */
    double top_p;       /* (0,1] */
    uint64_t seed, number;
    uint32_t top_k; /* 0: all */
    uint32_t token;
} RpSampleChoice;

/*
 * ids[r] = a token, as transformers chooses it: logits / temperature, then the top_k largest, then the first of these that
 * together have top_p of their probability, then one of them at random.
 *
 * Weights are whole numbers, w = floor(exp((l - largest) / temperature) 2^RP_SAMPLE_BITS), so that their sums have no
 * order. In the order of falling logits, equal ones by id: of the first top_k, n is the fewest whose sum reaches
 * top_p x the sum of all of them; the token is the first whose sum of weights is beyond u x the sum of n, where u in
 * [0,1) is of Philox4x32-10 with key seed and counter (token, number, 0). A NaN is taken as the smallest.
 */
typedef struct {
    RpDtype dtype;
    size_t rows, vocabulary;
    const void *logits;            /* [rows,vocabulary] */
    const RpSampleChoice *choices; /* [rows] */
    int32_t *ids;                  /* [rows] */
} RpSampleArgs;

#define RP_SAMPLE_BITS 40
