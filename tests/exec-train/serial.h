/**
 * Training as a plain serial program: one pass over the whole model at a time, no plan, no engine,
 * no devices. The trainer must equal it bit for bit.
 *
 *   delay 0   w = w - update(g(w))
 *   delay 1   the gradient is taken at weights that lack the last update
 */
#pragma once

#include "tests/exec-train/train-fixture.h"

typedef struct {
    guint delay; /* 0 synchronous, 1 asynchronous */
    guint micro_batches;
    RpDtype dtype;
    double max_grad_norm;
} RpSerialRun;

/* Trains and returns the hash as rp_tiny_hash() makes it, masters and moments only. Losses of each
 * step may be %NULL. */
char *rp_serial_hash(const RpTinyModel *model, const RpSerialRun *run, guint steps, double *losses);

/**
 * rp_serial_gradient:
 * @scale: of the summed loss
 *
 * Gradients of each weight at the model's initial weights, of step 0, rounds of @round
 * micro-batches each: a round's is an fp32 sum, those of all rounds are added in double. A tied
 * matrix has both.
 *
 * Returns: (transfer full): of all weights, one after the other as rp_weights_nth() has them
 */
double *rp_serial_gradient(const RpTinyModel *model, const RpSerialRun *run, guint round,
                           float scale);

/* The same of a flushed trainer. */
char *rp_masters_hash(RpTrainer *trainer);
