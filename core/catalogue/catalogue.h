/**
 * The catalogue: known models, and known GPUs with the servers they usually stand in. Plain tables
 * (models.c, gpus.c); what follows from them, times and sizes, is in core/catalogue/cost/cost-model.h.
 */
#pragma once

#include "core/catalogue/model.h"

typedef enum {
    RP_CATALOGUE_ERROR_MODEL, /* no such model */
    RP_CATALOGUE_ERROR_GPU    /* no such GPU */
} RpCatalogueError;

#define RP_CATALOGUE_ERROR (rp_catalogue_error_quark())
GQuark rp_catalogue_error_quark(void);

/* A GPU and a typical server of up to eight of them. GB = 1e9 bytes, TFLOP/s without sparsity. */
typedef struct {
    const char *name;              /* "rtx4090" */
    const char *title;             /* "RTX 4090" */
    guint64 memory_bytes;          /* that CUDA gives a program, before any context */
    double fp16_accumulate_tflops; /* 16-bit matmul, fp16 accumulation */
    double fp32_accumulate_tflops; /* 16-bit matmul, fp32 accumulation */
    double fp8_tflops;             /* matmul of 8-bit codes, fp32 accumulation; 0 = none */
    double memory_gb_per_s;        /* device memory */
    double l2_mib;                 /* its cache */
    guint processors;              /* streaming multiprocessors */
    double clock_ghz;              /* their boost clock */
    const char *interconnect;      /* between GPUs: "PCIe4", "NVLink3" (paper Table 2) */
    double interconnect_gb_per_s;  /* its nominal speed, one direction */
    double h2d_gb_per_s;           /* achievable, pinned memory, one device alone */
    double d2h_gb_per_s;
    guint gpus_per_root;         /* devices that share a root complex */
    double root_gb_per_s;        /* of one root complex, per direction */
    double host_gb_per_s;        /* host memory, all copies and the optimizer together */
    double matmul_efficiency;    /* reached fraction of the 16-bit peak */
    double grouped_efficiency;   /* of that, what matmuls of all experts in one reach in whole
                                    tiles (core/catalogue/cost/cost-experts.h) */
    double attention_efficiency; /* reached fraction of the fp32-accumulating peak */
    double attention_backward_efficiency;
    double memory_efficiency;          /* reached fraction of memory_gb_per_s */
    gint64 expert_ns;                  /* dispatch of one expert of one block, forward */
    double optimizer_parameters_per_s; /* of the server's processors, all devices together */
    gboolean measured; /* the efficiencies are those of this project's kernels on this GPU */
    gboolean scaled; /* this project's kernels are scaled to it (core/catalogue/cost/cost-rates.h);
                          the efficiencies are those of PyTorch's */
    const char *basis; /* where they come from: "the RTX 4090's" */
} RpGpu;

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
