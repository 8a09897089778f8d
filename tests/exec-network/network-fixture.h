/**
 * Networks over the host's kernels, run stage by stage in memory that shows which bytes were
 * touched.
 *
 * Every buffer that a stage writes to begins as NaN, and ends exactly where the contract says, with
 * a guard behind it; the workspace is as large as core/plan/device-layout.h computes from the
 * profile. Gaps between weights are NaN too.
 */
#pragma once

#include "tests/exec-host/host-fixture.h"

#include "exec/network/network.h"

typedef struct {
    RpModel config;
    RpWeights *weights;
    RpNetwork *network;
    RpProfile *profile;
    size_t tokens;
    guint64 elements; /* elements of all layers */
    guint8 *parameters;
    guint8 *upload; /* upload that they are made of before each run; NULL: they stand there */
    guint8 *constants;
    gint32 *ids, *targets;
    guint n_samples, longest; /* samples that share sequences; 0: as constants were filled */
    gboolean has_gaps;        /* RpStageCall.has_gaps */
    const gint32 *rows;       /* rows of packed targets, or NULL */
    guint n_rows;
    float scale;
    float aux_scale;            /* scale of the auxiliary loss, where options have one */
    gboolean drops;             /* as the first micro-batch of step 1 */
    guint32 padded;             /* RpStageCall.padded */
    RpStageDocuments documents; /* of a preference */
    gboolean adapters_off;
    guint saved;     /* groups that forwards save; as the profile's layers have them */
    gboolean begins; /* sums are NaN before a run, whose stages begin them */
    RpNetworkObserver observe;
    gpointer observe_data;
} Model;

/* Results of a run. */
typedef struct {
    double loss;
    double aux_loss;
    float *sums;       /* all layers */
    guint8 **hidden;   /* input of layer l, where a stage began there; [0]: NULL */
    guint8 **d_hidden; /* its gradient, where a backward stage began there */
    guint8 **saved;    /* values that each layer's forward saved */
    /* bytes at the end of the last stage's workspace that stayed as they were */
    gsize workspace_unused;
} Run;

typedef enum { STAGE_FORWARD, STAGE_BACKWARD, STAGE_FUSED } StageVariant;

/* Small, with everything that a config can have. */
RpModel network_config(RpArchitecture architecture, gboolean tied);
/* Qwen3 whose q, k and v are one matrix, and whose gate and up are. */
RpModel network_config_fused(void);
/* DeltaNet, then gated attention with half a head rotated. */
RpModel network_config_qwen3_5(void);

/* Random weights and batch, the same ones for every storage. */
Model *network_random(const RpModel *config, const RpNetworkOptions *options);
Model *network_random_adapted(const RpModel *config, const RpLora *lora,
                              const RpNetworkOptions *options);
/* The same, frozen matrices in @format. */
Model *network_random_packed(const RpModel *config, const RpLora *lora, RpLowbit format,
                             const RpNetworkOptions *options);
/* Weights NaN, ids and targets 0, scale 1. */
Model *network_new(const RpModel *config, const RpNetworkOptions *options);
Model *network_new_adapted(const RpModel *config, const RpLora *lora,
                           const RpNetworkOptions *options);
void network_free(Model *model);
/* Kernels that take no more workspace than the host's. @kernels: borrowed */
void network_use_kernels(Model *model, const RpKernels *kernels);

/* @n_elements values of a weight, by its index. */
void network_set_weight(Model *model, guint index, const float *values);
/* Address of the gradient of weight @index. */
float *network_gradient(const Model *model, const Run *run, guint index);
/* Ids and targets, a quarter of them masked; the same for a seed. */
void network_random_batch(Model *model, guint32 seed);

Run network_run_new(const Model *model);
/* One micro-batch of one stage. Adds to @run. */
void network_stage(const Model *model, StageVariant variant, RpInterval layers,
                   const guint *boundaries, guint n_boundaries, Run *run);
/* The whole model as one fused stage. */
Run network_whole(const Model *model);

/**
 * network_cut:
 * @forward: bit l - 1: a forward stage begins at layer l (and one at 0)
 * @backward: the same for backward stages; the last of them is fused
 *
 *   layers     0 1 2 3 4       backward = 0b1010: [0 1][2 3][4]
 */
Run network_cut(const Model *model, guint forward, guint backward);

/* sqrt(sum (a - b)^2 / sum b^2) */
double network_error(const float *a, const float *b, gsize n);
