/**
 * Byte-pair encoding by longest tokens: the ids of rp_bpe_merge() in time proportional to the length.
 */
#pragma once

#include "text/tokenizer/private.h"

/* %NULL: a tokenizer that this algorithm cannot handle (longest.c): bytes that the vocabulary
 * lacks, merges of those, or merges that come before their parts' own and may still happen. */
RpLongest *rp_longest_new(const RpTokenizer *tokenizer);
void rp_longest_free(RpLongest *longest);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpLongest, rp_longest_free)
/* Splits a piece into @work->symbols by @tokenizer->longest. */
void rp_longest_split(const RpTokenizer *tokenizer, const char *piece, gsize length,
                      RpMergeWork *work);
