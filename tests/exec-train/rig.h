/**
 * A tiny model with everything that training it takes, up to the point that a test needs.
 */
#pragma once

#include "tests/rp-test.h"

#include "core/plan/planner.h"
#include "exec/device/batch-feed.h"
#include "exec/device/device.h"
#include "exec/device/host-state.h"
#include "exec/engine/engine.h"
#include "exec/network/network.h"

/* 0 and NULL: roundpipe in stages "2,1" and "1,1,2" on one device, one micro-batch, one call. */
typedef struct {
    /* model */
    RpDtype dtype;
    gboolean tied;
    guint lora_rank;          /* 0: no adapters */
    const char *lora_targets; /* "q_proj,layers.1.mlp.up_proj"; NULL: all */
    const char *frozen; /* weights whose names have one of these words: "norm,layers.1"; or NULL */
    const char *base;   /* "nf4": that the frozen base is packed in; NULL: not at all */
    gboolean experts;   /* Qwen3-MoE: 5 experts of 14, 2 of a token */
    gboolean expanded;  /* it was packed and expanded again: 16-bit weights of the same values */
    gboolean wide;      /* matrices of frozen blocks are stored in fp32 */
    /* plan */
    const char *schedule;
    const char *forward;  /* block counts: bound: of the stages; "": none */
    const char *backward; /* dispatched */
    guint gpus;
    guint micro_batches;
    guint round;
    guint calls;
    gboolean async;
    RpConsistency consistency;
    RpOptimizerMode optimizer;
    /* update */
    double max_grad_norm;
    gboolean scale_loss;
    guint warmup;
    guint threads;
    const RpNodes *nodes;
    guint64 device_memory_bytes;
} RigOptions;

#define RIG_TOKENS 6
#define RIG_SEQUENCES 2
#define RIG_BLOCKS 4
#define RIG_LAYERS (RIG_BLOCKS + 2)

typedef struct {
    RigOptions options;
    RpModel config;
    char *directory;
    RpSafetensors *file;
    RpSafetensors *packed; /* the same of options.base; or NULL */
    RpWeights *weights;
    RpNetwork *network;
    RpProfile *profile;
    RpPartition *partition;
    RpPlanner *planner;
    RpPlan *plan; /* the planner's */
    RpHostState *host_state;
    void *memory; /* memory of the host's state, without a backend */
    gsize memory_bytes;
    RpBatchFeed *feed;
    RpBackend *backend;
    RpEngine *engine;
    GPtrArray *batches; /* RpTokenBatch */
    guint64 n_begun;    /* iterations */
    GError *error;
} Rig;

int rig_set_up(void **state);
int rig_tear_down(void **state);
/* Frees all that was opened. */
void rig_clear(Rig *rig);

/* Model, network, planner with the first @iterations appended, and the host's state. */
void rig_open(Rig *rig, const RigOptions *options, guint iterations);
/* Gives the host's state memory of its own and loads the weights. */
void rig_attach(Rig *rig);
/* A backend over it, its arenas open, and an engine. */
void rig_start(Rig *rig);
/* Runs everything that was planned, with random tokens. Returns: whether nothing failed */
gboolean rig_run(Rig *rig, guint iterations);

/* The factor by which the head of @iteration scales its gradients. */
float rig_scale(const Rig *rig, guint64 iteration);
/* Full-precision weights of all layers, one after the other. (transfer full) */
GArray *rig_masters(const Rig *rig);
/* A weight of the file, overwritten before rig_start(). */
void rig_poison(Rig *rig, guint layer, RpWeightKind kind, float value);
