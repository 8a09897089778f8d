/**
 * Arguments of the kernel of preferences, as exec/kernels/args.h has the others.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "core/catalogue/preference.h"

/* clang-format off */
#define RP_PREFERENCE_KERNELS(K, W)                                                                \
    W(preference, RpPreferenceArgs, "preference")
/* clang-format on */

/*
 * Losses of a micro-batch's documents. Document d has the rows from first[d] to first[d+1], in the order of its tokens;
 * pi[d] = -sum of losses[t] over its rows with a target, in double. Formulas: core/catalogue/preference.h
 *   sums[0] += those of the micro-batch;   logps[d] = pi[d]
 *   loss[0] += sum of losses of pairs or answers + nll_scale (sum of losses[t] of chosen answers)
 *   weights[t] = -scale dloss/dlogp[t]: times the gradient of losses[t] it is the gradient of scale loss; masked rows,
 *   and rows of no document, 0
 * The order in which rows of a document are added up begins with its first row, wherever that stands.
 */
typedef struct {
    RpPreference preference;
    size_t tokens, documents;
    const float *losses;     /* [tokens]: cross entropy of each row, without smoothing */
    const int32_t *labels;   /* [tokens] */
    const int32_t *first;    /* [documents+1], ascending, at most tokens */
    const int32_t *answers;  /* [documents]: RpAnswerKind */
    const float *references; /* [documents] */
    double nll_scale, scale;
    double *loss;           /* [1], += */
    RpPreferenceSums *sums; /* [1], += */
    float *logps;   /* [documents], in the device's memory or pinned memory of the host; or NULL */
    float *weights; /* [tokens], or NULL */
    void *workspace;
} RpPreferenceArgs;

/* Log-probability of a document, and its number of targets; then the gradient of the loss by it. */
typedef struct {
    double logp, n, gradient;
} RpPreferenceDocument;
