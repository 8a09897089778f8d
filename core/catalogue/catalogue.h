/**
 * The catalogue: known models with the exact shapes of their tensors, and known GPUs with the
 * servers they usually stand in. Plain tables (models.c, gpus.c); what follows
 * from them, times and sizes, is in core/catalogue/cost-model.h.
 */
#pragma once

#include <glib.h>

#include "core/profile/profile.h"

typedef enum {
    RP_CATALOGUE_ERROR_MODEL, /* no such model */
    RP_CATALOGUE_ERROR_GPU    /* no such GPU */
} RpCatalogueError;

#define RP_CATALOGUE_ERROR (rp_catalogue_error_quark())
GQuark rp_catalogue_error_quark(void);

/* A decoder-only transformer with grouped-query attention and SwiGLU. */
typedef struct {
    const char *name;    /* "qwen3-1.7b" */
    const char *hf_name; /* "Qwen/Qwen3-1.7B" */
    guint blocks;
    guint hidden;         /* h */
    guint heads;          /* a */
    guint kv_heads;       /* k */
    guint head_size;      /* d; heads x head_size need not be hidden */
    guint intermediate;   /* m, of one expert */
    guint experts;        /* E; 1 = dense */
    guint active_experts; /* E_act; 1 = dense */
    guint vocabulary;
    gboolean tied;           /* the head multiplies with the embedding matrix */
    gboolean qk_norm;        /* RMSNorm over each query and key head */
    gboolean attention_bias; /* of q, k, v and o */
    gboolean mlp_bias;       /* of router and experts */
    gboolean sinks;          /* one learned attention sink a head */
    gboolean clamped_swiglu; /* GPT-OSS's variant, in more element-wise steps */
    gboolean fused_experts;  /* one tensor for all experts instead of three an expert */
    guint sliding_window;    /* tokens that a sliding block attends to; 0 = every block is full */
    guint sliding_period;    /* of each so many blocks the last is full, the others slide */
    const char *dtype;       /* of the published weights; experts dequantised */
    guint max_positions;
} RpModel;

/* A GPU and a typical server of up to eight of them. GB = 1e9 bytes, TFLOP/s without sparsity. */
typedef struct {
    const char *name;              /* "rtx4090" */
    const char *title;             /* "RTX 4090" */
    guint64 memory_bytes;          /* that CUDA gives a program, before any context */
    double fp16_accumulate_tflops; /* 16-bit matmul, fp16 accumulation */
    double fp32_accumulate_tflops; /* 16-bit matmul, fp32 accumulation */
    double memory_gb_per_s;        /* device memory */
    const char *interconnect;      /* between GPUs: "PCIe4", "NVLink3" (paper Table 2) */
    double interconnect_gb_per_s;  /* its nominal speed, one direction */
    double h2d_gb_per_s;           /* achievable, pinned memory, one device alone */
    double d2h_gb_per_s;
    guint gpus_per_root;         /* devices that share a root complex */
    double root_gb_per_s;        /* of one root complex, per direction */
    double host_gb_per_s;        /* host memory, all copies and the optimizer together */
    double matmul_efficiency;    /* reached fraction of the 16-bit peak */
    double attention_efficiency; /* reached fraction of the fp32-accumulating peak */
    double attention_backward_efficiency;
    double memory_efficiency;          /* reached fraction of memory_gb_per_s */
    gint64 expert_ns;                  /* dispatch of one expert of one block, forward */
    double optimizer_parameters_per_s; /* of the server's processors, all devices together */
    gboolean measured; /* the efficiencies are those of this project's kernels on this GPU */
    const char *basis; /* where they come from: "the RTX 4090's" */
} RpGpu;

/* One weight tensor of a layer. */
typedef struct {
    const char *name; /* within the layer, as in Hugging Face files; interned */
    guint matrices;   /* 1, or the experts of a fused tensor */
    guint rows;       /* output features; length of a vector */
    guint columns;    /* input features; 1 for a vector */
    guint64 elements; /* matrices x rows x columns */
    gboolean trained; /* has a gradient: everything, or with LoRA the adapters only */
} RpTensor;

/**
 * rp_model_find:
 * @name: name or Hugging Face name, letter case and organisation ignored
 *
 * Returns: (transfer none): the model, or %NULL
 * Errors: RP_CATALOGUE_ERROR_MODEL, suggesting the nearest name and listing all
 */
const RpModel *rp_model_find(const char *name, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same for a GPU, by name or title. */
const RpGpu *rp_gpu_find(const char *name, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The whole tables, smallest model and oldest GPU first. */
const RpModel *rp_model_list(guint *n_models);
const RpGpu *rp_gpu_list(guint *n_gpus);

/* Whether block @block (from 0) attends to a sliding window only. */
gboolean rp_model_block_slides(const RpModel *model, guint block);

/**
 * rp_model_tensors:
 * @lora_rank: 0 = every tensor is trained; otherwise the base is frozen and rank-r adapters
 *   (lora_A: r x in, lora_B: out x r) follow it: on q, k, v, o and, in dense models, gate, up and
 *   down. Experts, router, embedding and head have none.
 *
 * The tensors of one layer in file order. A tied model's head lists `lm_head.weight` all the same:
 * the matrix is uploaded for the embedding and again for the head, and each of the two layers
 * computes a full gradient; the two are summed where they arrive, in host memory.
 *
 * Returns: (transfer full) (element-type RpTensor)
 */
GArray *rp_model_tensors(const RpModel *model, RpLayerKind kind, guint lora_rank);

/* Elements of all tensors of one layer, without adapters. */
guint64 rp_model_layer_parameters(const RpModel *model, RpLayerKind kind);

/* Distinct parameters of the model: a tied matrix counts once. */
guint64 rp_model_parameters(const RpModel *model);
