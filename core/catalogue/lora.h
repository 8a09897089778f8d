/**
 * Low-rank adapters: y = W x + s B (A x), A [r,in] and B [out,r] of some matrices, whose W and all
 * else stay as they are. In a layer, they are weights beside those that they adapt, of kinds of
 * their own (rp_weight_adapter()).
 *
 * Source: Hu et al., "LoRA", 2021; Kalajdzievski, "rsLoRA", 2023; peft's LoraConfig
 */
#pragma once

#include "core/catalogue/model.h"

#define RP_LORA_ERROR (rp_lora_error_quark())
GQuark rp_lora_error_quark(void);
typedef enum {
    RP_LORA_ERROR_RANK,   /* larger than a matrix */
    RP_LORA_ERROR_TARGET, /* a name that is of no matrix, or of no module */
    RP_LORA_ERROR_DROPOUT /* where there is none */
} RpLoraError;

#define RP_LORA_MOST_RANK 65536
#define RP_LORA_ALPHA 8 /* where none is given, as in peft */
#define RP_LORA_MOST_DROPOUT 0.99
#define RP_LORA_ALL_LINEAR "all-linear"
/* Behind a module's name. */
#define RP_LORA_A ".lora_A.weight"
#define RP_LORA_B ".lora_B.weight"

/* A value for modules whose name ends, after a dot, with a match of the regular expression. */
typedef struct {
    char *pattern; /* %NULL: behind the last */
    double value;
} RpLoraPattern;

/* Modules are named as in files, without ".weight": by the whole name, by words at its end, by a
 * pattern with * and ? over the whole, or by a regular expression over the whole: "q_proj",
 * "model.layers.3.*", "regex:.*\\.[0-9]\\.mlp\\..*". */
#define RP_LORA_REGEX "regex:"
struct _RpLora {
    guint rank; /* r; 0: no adapters, everything is trained */
    double alpha;
    gboolean rslora;               /* s = alpha / sqrt(r) instead of alpha / r */
    double dropout;                /* p of elements of x that A does not see while training, < 1 */
    char **targets;                /* (nullable): all-linear, rp_lora_targets() */
    char **saved;                  /* (nullable): modules that are trained whole */
    RpLoraPattern *ranks, *alphas; /* (nullable): for some modules instead: the first that fits */
    gboolean swapped_experts;      /* peft before 0.19 wrote the file (exec/adapter/adapter.c) */
    guint64 seed;                  /* for dropout, and the first A; B begins as zeros */
};

RpLora rp_lora_copy(const RpLora *lora);
void rp_lora_clear(RpLora *lora);
void rp_lora_patterns_free(RpLoraPattern *patterns);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpLora, rp_lora_clear)

/* r and s of a module. */
guint rp_lora_rank(const RpLora *lora, const char *module);
double rp_lora_scale(const RpLora *lora, const char *module);

/* Whether a name of @names is one of @module. */
gboolean rp_lora_names_module(char *const *names, const char *module);

/* "a,b" or "[a, b]" as names; a regular expression may have commas, and stands alone. (transfer
 * full) (nullable): %NULL if @list is */
char **rp_lora_split_names(const char *list);
/* The same of targets: %NULL of all-linear, too. */
char **rp_lora_read_targets(const char *list);

/* Names of the modules that have adapters, or %NULL: all matrices of the blocks. all-linear is as in
 * peft: with routers and experts where files have them as linear layers of their own (Qwen3-MoE), and
 * without where they are parameters (GPT-OSS). */
char *const *rp_lora_targets(const RpLora *lora, const RpModel *model);

/**
 * rp_lora_check:
 * @lora: rank > 0
 *
 * Whether every target is a matrix of @model that can have adapters of that rank, and every saved
 * module is there.
 *
 * Errors: RP_LORA_ERROR_*, one line that begins with the key: "lora.targets: ..."
 */
gboolean rp_lora_check(const RpLora *lora, const RpModel *model,
                       GError **error) G_GNUC_WARN_UNUSED_RESULT;
