/**
 * Chooses the next token by the logits of all tokens, as transformers does: temperature, then the
 * likeliest K, then the likeliest that together have P of the probability, then sampling.
 */
#pragma once

#include <glib.h>

typedef struct {
    double temperature; /* 0: the likeliest token; of equal ones the lower id */
    double top_p;       /* (0,1]; 1 = all */
    guint top_k;        /* 0 = all */
    guint64 seed;
} RpSampling;

/**
 * rp_sample:
 * @logits: [n]
 * @prompt, @token: number of the prompt, and of the answer's token: sampling depends on seed,
 *   prompt and token alone
 */
gint32 rp_sample(const RpSampling *sampling, const float *logits, guint n, guint64 prompt,
                 guint token);
