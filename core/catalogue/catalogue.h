/**
 * The catalogue: known models, and known GPUs with the servers they usually stand in. Plain tables
 * (models.c, gpus.c); times and sizes that follow from them are in
 * core/catalogue/cost/cost-model.h.
 */
#pragma once

#include "core/catalogue/model.h"

typedef enum {
    RP_CATALOGUE_ERROR_MODEL, /* no such model */
    RP_CATALOGUE_ERROR_GPU,   /* no such GPU */
    RP_CATALOGUE_ERROR_FILE   /* a card's file that is not one */
} RpCatalogueError;

#define RP_CATALOGUE_ERROR (rp_catalogue_error_quark())
GQuark rp_catalogue_error_quark(void);

/* A GPU and a typical server of up to eight of them. GB = 1e9 bytes, TFLOP/s without sparsity. */
typedef struct {
    const char *name;                  /* "rtx4090" */
    const char *title;                 /* "RTX 4090" */
    guint64 memory_bytes;              /* that CUDA gives a program, before any context */
    double fp16_accumulate_tflops;     /* 16-bit matmul, fp16 accumulation */
    double fp32_accumulate_tflops;     /* 16-bit matmul, fp32 accumulation */
    double fp8_tflops;                 /* fp8 matmul, fp32 accumulation; 0 = none */
    double fp8_fp16_accumulate_tflops; /* the same, fp16 accumulation: no kernel of this project */
    const char *rates_source;          /* where these four rates stand */
    const char *rates_shown;           /* matmuls that users have published; %NULL = none known */
    double memory_gb_per_s;            /* device memory */
    double copy_gb_per_s;              /* read and written by published copies; 0 = none known */
    double l2_mib;                     /* its cache */
    guint processors;                  /* streaming multiprocessors */
    double clock_ghz;                  /* their boost clock */
    const char *interconnect;          /* between GPUs: "PCIe4", "NVLink3" (paper Table 2) */
    double interconnect_gb_per_s;      /* its nominal speed, one direction */
    double h2d_gb_per_s;               /* achievable, pinned memory, one device alone */
    double d2h_gb_per_s;
    guint gpus_per_root;         /* devices that share a root complex */
    double root_gb_per_s;        /* one root complex, per direction */
    double host_gb_per_s;        /* host memory, all copies and the optimizer together */
    double matmul_efficiency;    /* reached fraction of the 16-bit peak */
    double grouped_efficiency;   /* fraction of that which matmuls of all experts in one launch
                                    reach in whole tiles (core/catalogue/cost/cost-parts.h) */
    double attention_efficiency; /* reached fraction of the fp32-accumulating peak */
    double attention_backward_efficiency;
    double memory_efficiency;          /* reached fraction of memory_gb_per_s */
    gint64 expert_ns;                  /* dispatch of one expert of one block, forward */
    double optimizer_parameters_per_s; /* the server's processors, all devices together */
    gboolean measured; /* the efficiencies are those of this project's kernels on this GPU */
    gboolean scaled;  /* this project's kernels are scaled to it (core/catalogue/cost/cost-parts.h);
                          the efficiencies are those of PyTorch's */
    gboolean foreign; /* this project has no backend for it: simulated and planned, not trained */
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

/* Whether @word may name a model of Hugging Face's hub: "Qwen/Qwen3-8B" or, with a branch, a tag or a commit behind it,
 * "Qwen/Qwen3-8B@v2", if nothing here is called so. */
gboolean rp_model_is_hub_name(const char *word);
/* Takes the @revision off a name that the hub may have; it is %NULL if there is none. @revision: (out) (optional)
 * (transfer full). Returns: (transfer full) (nullable): %NULL: it is no such name */
char *rp_model_hub_name(const char *word, char **revision);
/* The folder of its cache for the model @name, without a revision: in HF_HUB_CACHE, HF_HOME/hub, or the user's cache.
 * (transfer full) */
char *rp_model_hub_directory(const char *name);
/**
 * rp_model_path:
 * @word: a model's directory, a name of Hugging Face's hub, or a folder of its cache
 *
 * Returns: (transfer full): the directory that the cache has for it, of its revision or else of main; else
 *   @word
 */
char *rp_model_path(const char *word);

/**
 * rp_model_hint:
 * @path: a model's directory or file that cannot be read as one
 *
 * Returns: (transfer full) (nullable): its nature and a remedy: a name of the hub that has to be
 *   downloaded, a folder of the hub's cache, GGUF, or weights as PyTorch pickles them
 */
char *rp_model_hint(const char *path);

/* The same as rp_model_find() for a GPU, by name or title; spaces, hyphens and makers' words are ignored, too: "3090",
 * "NVIDIA GeForce RTX 3090". */
const RpGpu *rp_gpu_find(const char *name, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_gpu_open:
 * @word: a name as rp_gpu_find() takes it, or a card's file: one JSON object of an RpGpu's members,
 *   as `roundpipe gpus --json` has them
 *
 * A word with a '/' or a ".json" is a file. `"like": NAME` in a file fills in the keys that it
 * leaves out; without it every rate, size and share must be there.
 *
 * Returns: (transfer full): a copy
 * Errors: RP_CATALOGUE_ERROR_GPU, RP_CATALOGUE_ERROR_FILE with file, line and column
 */
RpGpu *rp_gpu_open(const char *word, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The same of a file's text. */
RpGpu *rp_gpu_parse(const char *name, const char *text, gsize length,
                    GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Frees a result of rp_gpu_open() or rp_gpu_parse() only. */
void rp_gpu_free(RpGpu *gpu);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpGpu, rp_gpu_free)

/* Rate of copies over a PCIe link of @lanes, GB/s; for 16 lanes the table of GPUs' own. 0: no such
 * link. */
double rp_pcie_gb_per_s(guint generation, guint lanes);

/* The whole tables: smallest model first; cards of desks, workstations and servers, each the oldest first,
 * then those of other vendors. */
const RpModel *rp_model_list(guint *n_models);
const RpGpu *rp_gpu_list(guint *n_gpus);
