/**
 * Baseline systems beside RoundPipe: memory of a GPU and of the host, and the time of a step, of
 * ZeRO-2, FSDP, ZeRO-Infinity, Megatron's pipeline and tensor parallel, Mobius and RoundPipe on one
 * server. A system is a row, each in a file of its kind.
 *
 * Systems that a plan can express are planned and simulated: pipelines, and all of RoundPipe. Collectives are
 * closed formulas: a plan's copies run between a device and its host, never from device to device, so a
 * ring is nothing that the simulator could carry, and what it reaches is fitted anyway.
 *
 * Symbols: P weights, X of them trained (all, or adapters), N GPUs, L blocks, h hidden, V vocabulary, T
 * tokens of a micro-batch, M micro-batches of a step, g of them after each other on one GPU.
 *
 * Source: docs/results.md, which has formulas, constants and errors
 */
#pragma once

#include "core/catalogue/catalogue.h"
#include "core/profile/profile.h"

#define RP_SYSTEM_ERROR (rp_system_error_quark())
GQuark rp_system_error_quark(void);

typedef enum {
    RP_SYSTEM_ERROR_MODEL, /* a model, or a profile, that the system cannot take */
    RP_SYSTEM_ERROR_BATCH  /* a step that does not divide, or is too large to simulate */
} RpSystemError;

/* ---- constants; fitted ones say to what ---- */

/* FITTED to the five published throughputs of DeepSpeed on 8 x RTX 4090: bytes/s of a GPU's ring over PCIe
 * 4, with copies and optimizer counted beside it. Without those, 2.3 GB/s fits the same five. */
#define RP_SYSTEM_DEEPSPEED_PCIE4 2.4e9
/* FITTED to the four published throughputs of FSDP and Megatron-TP on 8 x RTX 4090. */
#define RP_SYSTEM_NCCL_PCIE4 2.7e9
/* The link that both were fitted on, host to device: other cards' rings are faster as theirs is. */
#define RP_SYSTEM_PCIE4 25e9
/* Over NVLink: of its nominal speed; 150 of an A800's 200 GB/s. ASSUMED, and hidden by computing. */
#define RP_SYSTEM_NVLINK_SHARE 0.75
/* FITTED to ZeRO-Infinity on 8 x A800, 0.75 to 1.3 s for each 1e9 parameters: CPU Adam that nothing hides. */
#define RP_SYSTEM_OPTIMIZER_PER_S 1e9
/* FITTED to two published throughputs of Megatron-PP on 8 x RTX 4090, 0.64 and 0.83: its speed where matmuls
 * with fp32 accumulation run at half rate; layer times are with fp16's. */
#define RP_SYSTEM_FP32_SPEED 0.73
/* Bytes of a logit in a head that holds them all: 16-bit logits and their gradients, fp32 copy, softmax
 * and gradient; where the loss takes the copy's place, less. FITTED to published longest sequences. */
#define RP_SYSTEM_LOGIT_BYTES 16
#define RP_SYSTEM_LOGIT_BYTES_IN_PLACE 12
/* Bytes for each token and hidden unit that a block's backward holds. Source: Korthikanti et al. 2022 */
#define RP_SYSTEM_BLOCK_BYTES 34

/* ---- what is trained, and on what ---- */

/* Read from a profile; counts are elements. */
typedef struct {
    const RpProfile *profile; /* borrowed */
    const RpModel *catalogue; /* %NULL: not known there */
    guint blocks;
    guint hidden;
    guint vocab;
    double parameters; /* P; a tied matrix counts once */
    double trained;    /* X, the same */
    double block;      /* of the largest block */
    double block_trained;
    double embedding; /* of the layer before the blocks, and behind them; tied: each has all */
    double embedding_trained;
    double head;
    double head_trained;
    double tied;        /* of both, counted twice by them */
    gint64 sequence_ns; /* forward, recompute and backward of all layers, of one sequence */
} RpSystemModel;

/* Errors: RP_SYSTEM_ERROR_MODEL: it has no sizes, blocks or tokens */
gboolean rp_system_model_read(const RpProfile *profile, RpSystemModel *model,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* One server; bytes per second. */
typedef struct {
    guint gpus;
    guint64 gpu_bytes;            /* that a program may use of a GPU; 0 = unknown */
    double deepspeed_bytes_per_s; /* of a GPU's part of a ring */
    double nccl_bytes_per_s;
    double h2d_bytes_per_s;
    double d2h_bytes_per_s;
    double fp32_speed; /* of layer times, where matmuls accumulate in fp32 */
} RpSystemServer;

/* The profile's card, by its name in the catalogue where that knows it. @gpus: > 0 */
RpSystemServer rp_system_server(const RpProfile *profile, guint gpus);

/* The same for a card that the catalogue does not have. */
void rp_system_server_take(RpSystemServer *server, const RpProfile *profile, const RpGpu *gpu);

/* Sequences of a step, and GPUs of a server, at most; and actions of a plan. */
#define RP_SYSTEM_MOST_BATCH (1u << 16)
#define RP_SYSTEM_MOST_GPUS 1024
#define RP_SYSTEM_MOST_ACTIONS 5000000

/* The question to a system. */
typedef struct {
    const RpSystemModel *model;
    const RpSystemServer *server;
    guint64 batch;         /* sequences of a step */
    guint sequences;       /* of a micro-batch; 0 = the most that fit, a power of two */
    guint tokens;          /* of a sequence */
    gboolean chunked_head; /* logits of RP_COST_MODEL_HEAD_CHUNK tokens at once, and a fused loss */
} RpSystemJob;

/* ---- what comes of it ---- */

/* Bytes of the fullest GPU, and of the host. */
typedef struct {
    double state;       /* weights, gradients, optimizer */
    double activations; /* with logits */
    double gpu;         /* both, or of a plan its arena */
    double host;        /* of weights and optimizer; of a plan its arena */
} RpSystemMemory;

/* Parts of a step, s. Their sum may be longer than the step: the rest is hidden. */
typedef struct {
    double compute;     /* of one GPU, mean */
    double wait;        /* of a pipeline: the rest of its simulated time */
    double collectives; /* nothing hides them */
    double copies;      /* between GPU and host, the same */
    double optimizer;
    double step;
    double link_bytes; /* of collectives, a GPU */
} RpSystemTime;

typedef struct {
    guint sequences; /* of a micro-batch */
    guint in_turn;   /* micro-batches after each other on a GPU, or through a pipeline */
    RpSystemMemory memory;
    gboolean fits; /* into the GPU's memory, or that is not known */
    RpSystemTime time;
    double tokens_per_s;
} RpSystemPrediction;

/* One system. Functions of a row take a job whose micro-batch is known. */
typedef struct {
    const char *name;     /* "zero-2" */
    const char *title;    /* "DeepSpeed ZeRO-2" */
    const char *summary;  /* one line */
    gboolean own_batches; /* each GPU has micro-batches of its own, else all work on one */
    gboolean synchronous;
    double logit_bytes;
    guint least_turns; /* of a micro-batch that is chosen: for each GPU; 0 = 1 */
    /* Whether it can train the model on so many GPUs; %NULL: any. Errors: RP_SYSTEM_ERROR_MODEL */
    gboolean (*takes)(const RpSystemJob *job, GError **error);
    /* Closed formulas; %NULL: of the plan that `time` simulates, whose micro-batch is the profile's */
    RpSystemMemory (*memory)(const RpSystemJob *job, double logit_bytes);
    /* @memory: (inout): of a plan. Errors: those of planning */
    gboolean (*time)(const RpSystemJob *job, RpSystemTime *time, RpSystemMemory *memory,
                     GError **error);
} RpSystem;

/* Every system, RoundPipe last; %NULL-terminated. */
const RpSystem *const *rp_systems(void);

/**
 * rp_system_predict:
 * @prediction: (out): set on success. Not fitting is an answer, with what it would take
 *
 * Errors: RP_SYSTEM_ERROR_MODEL, RP_SYSTEM_ERROR_BATCH, those of planning
 */
gboolean rp_system_predict(const RpSystem *system, const RpSystemJob *job,
                           RpSystemPrediction *prediction,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Memory of a micro-batch of job->sequences >= 1 by the row's formula; all 0 if it has none. */
RpSystemMemory rp_system_memory(const RpSystem *system, const RpSystemJob *job);

/**
 * rp_system_longest:
 * @job: its batch, sequences and tokens are not read
 * @tokens: (out): the most of a sequence that fit at micro-batch 1, in steps of RP_SYSTEM_STEP; 0: not
 *   even one step; G_MAXUINT: no limit is known
 *
 * RoundPipe's is that of the plan that needs least, whose activations grow with the tokens.
 *
 * Errors: RP_SYSTEM_ERROR_MODEL
 */
#define RP_SYSTEM_STEP 64
gboolean rp_system_longest(const RpSystem *system, const RpSystemJob *job, guint *tokens,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;
