/**
 * A tiny model on disk, trained: options in, weights out.
 */
#pragma once

#include "tests/rp-test.h"

#include "exec/train/trainer.h"

/* hidden 32, 5 blocks, 4 heads of 8 in 2 groups, 61 tokens; tied: one matrix */
typedef struct {
    char *directory;
    RpModel config;
    RpSafetensors *file;
    RpSafetensors *packed; /* or NULL */
    RpWeights *weights;
} RpTinyModel;

RpTinyModel *rp_tiny_model_new(gboolean tied);
/* The same in 2 blocks of hidden 160 and MLPs of 640, with 1,000 tokens: layers of several shares. */
RpTinyModel *rp_tiny_model_new_wide(gboolean tied);
/* The same with 5 experts of 9 in each block's MLP, of which a token chooses 2. */
RpTinyModel *rp_tiny_model_new_experts(void);
/* From now on all but adapters is frozen, and stored as @storage. @target: (nullable): the only
 * matrix that has one */
void rp_tiny_model_adapt(RpTinyModel *model, guint rank, const char *target, RpDtype storage);
/* Marks a model whose frozen base is packed. */
void rp_tiny_model_pack(RpTinyModel *model, RpLowbit format);
void rp_tiny_model_free(RpTinyModel *model);

typedef struct {
    const char *schedule;
    guint devices;
    guint micro_batches;
    guint calls;
    guint round;
    guint replicas;
    guint n_stages; /* bound: 0 = one a device; dispatched: blocks of a backward stage, 0 = 2 */
    gboolean async;
    gboolean blocking;
    gboolean lean;
    gboolean naive;
    gboolean gated;
    gboolean reverse;
    RpDtype dtype;
    double max_grad_norm;
    gboolean early_steps; /* weights are written before the norm is known */
    guint max_skipped;    /* 0 = the default */
    guint threads;
    guint64 device_memory_bytes;
    guint64 host_memory_bytes;
    const RpDeviceOps *backend; /* NULL = the host */
    gboolean evaluates;
    gboolean keep_trace;
    guint saved;     /* groups of tensors that forwards save */
    gboolean packed; /* several samples share a sequence */
    double aux_loss; /* coefficient of experts' auxiliary loss */
    RpStateFormat form;
    RpStepDone done;
    gpointer user_data;
    RpServers *servers;      /* this is one of: micro-batches are its own */
    RpPreference preference; /* of packed samples */
} RpTinyRun;

/* %NULL with @error, or a trainer that stands before its first step. */
RpTrainer *rp_tiny_trainer(const RpTinyModel *model, const RpTinyRun *run, GError **error);

#define RP_TINY_SEQUENCES 2
#define RP_TINY_TOKENS 11

/* Batch number @step: random tokens, some masked; the same for the same numbers. Micro-batches
 * [first, first + n) of the step. */
RpTokenBatch *rp_tiny_batch(guint64 step, guint first, guint n);

/* Trains @steps steps; fails the test on an error. Losses may be %NULL. */
void rp_tiny_train(RpTrainer *trainer, const RpTinyRun *run, guint64 first_step, guint steps,
                   double *losses);

/* The same from step 0 on with one batch for all, whose tokens become others when a call has read
 * them. */
void rp_tiny_train_overwriting(RpTrainer *trainer, const RpTinyRun *run, guint steps);

/* Flushes. Masters, moments and next weights as one hash. */
char *rp_tiny_hash(RpTrainer *trainer);

/* Both at once. */
char *rp_tiny_run_hash(const RpTinyModel *model, const RpTinyRun *run, guint steps);
