/**
 * Texts and the ids expected for them, as fixtures/make-tokenizers.py writes them: a line of JSON each.
 */
#pragma once

#include "text/tokenizer/tokenizer.h"

typedef struct {
    char *text;
    GArray *ids;           /* guint32 */
    GArray *spans;         /* guint32: start and end of each */
    GArray *with_template; /* or %NULL: as ids */
    GArray *plain;         /* or %NULL: as ids */
    char *decoded;         /* or %NULL: as text */
    char *skipped;         /* the same without special tokens */
} RpExpected;

/* All of @texts, with the results in @expected of each. (element-type RpExpected) (transfer
 * full) */
GArray *rp_expected_load(const char *texts, const char *expected);

/* Compares all results in @expected with @tokenizer's. Returns: %NULL, or the difference (transfer
 * full) */
char *rp_expected_compare(const RpTokenizer *tokenizer, const RpExpected *expected);
