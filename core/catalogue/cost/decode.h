/**
 * Answers to prompts in continuous batches (exec/generate), predicted.
 *
 *   step of n sequences = weights / bandwidth + FLOP of n rows / rate of matmuls of few rows
 *                       + keys, values and states / bandwidth + kernels x time of a kernel + sampling
 *
 * or as long as copies of weights that the device does not hold, if they take longer. Matmuls whose rows do not depend on
 * each other (exec/cuda/decode/rows.cu) hardly read and multiply at once, so that both are added. Rates are the card's; of
 * decoding itself there are three constants (cost-parts.h).
 */
#pragma once

#include "core/catalogue/catalogue.h"

/* One device. */
typedef struct {
    const RpModel *model; /* in 16 bits */
    const RpGpu *gpu;
    guint slots;            /* answers at once, > 0 */
    guint begin_tokens;     /* of prompts that are computed in one call, at most */
    guint64 tokens;         /* that the cache has space for */
    guint64 streamed_bytes; /* of weights that each call copies to the device */
    gboolean samples;       /* a temperature above 0 */
} RpDecodeQuery;

/* Tokens of a prompt and of its answer, both > 0. */
typedef struct {
    guint n_prompt, n_answer;
} RpDecodeLengths;

typedef struct {
    double seconds;         /* from the first prompt to the last token */
    double prefill_seconds; /* of these, for prompts */
    double step_ms;         /* mean */
} RpDecodePrediction;

/**
 * rp_decode_predict:
 * @lengths: [@n]: in the order in which prompts are taken
 *
 * Prompts enter as slots and space are free, and then all that are there take a step, as in exec/generate/serve.c.
 */
RpDecodePrediction rp_decode_predict(const RpDecodeQuery *query, const RpDecodeLengths *lengths,
                                     guint n);
