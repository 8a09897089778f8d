/**
 * Shared by the parts of exec/gguf. Within this folder.
 */
#pragma once

#include "exec/gguf/gguf.h"

/* ---- file.c: values and tensors, in the order in which they are added ---- */

typedef struct _RpGgufFile RpGgufFile;

RpGgufFile *rp_gguf_file_new(void);
/* Before finish: removes what is written of it. */
void rp_gguf_file_free(RpGgufFile *file);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpGgufFile, rp_gguf_file_free)

void rp_gguf_add_text(RpGgufFile *file, const char *key, const char *text);
void rp_gguf_add_uint(RpGgufFile *file, const char *key, guint32 value);
void rp_gguf_add_float(RpGgufFile *file, const char *key, double value);
void rp_gguf_add_boolean(RpGgufFile *file, const char *key, gboolean value);
/* Arrays, of texts whose @n follow, of 32-bit integers, and of floats. */
void rp_gguf_add_texts(RpGgufFile *file, const char *key, guint n);
void rp_gguf_add_element(RpGgufFile *file, const char *text, gsize length);
void rp_gguf_add_integers(RpGgufFile *file, const char *key, const gint32 *values, guint n);
void rp_gguf_add_floats(RpGgufFile *file, const char *key, const float *values, guint n);

/* @shape: the outermost dimension first */
void rp_gguf_add_tensor(RpGgufFile *file, const char *name, RpGgufType type, const guint64 *shape,
                        guint rank);

/* Makes a file beside @path and writes everything but the data, whose tensors follow one after the other, each by one
 * call or more of rp_gguf_file_write(). Errors: G_FILE_ERROR */
gboolean rp_gguf_file_begin(RpGgufFile *file, const char *path,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean rp_gguf_file_write(RpGgufFile *file, const void *data, gsize bytes,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* After all of a tensor: zeros up to the next one. */
gboolean rp_gguf_file_pad(RpGgufFile *file, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Syncs and renames. */
gboolean rp_gguf_file_finish(RpGgufFile *file, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- family.c: architectures ---- */

/* How llama.cpp has an architecture. */
typedef struct {
    const char *name; /* general.architecture; NULL: llama.cpp, or this writer, does not know it */
    const char *post_norm;     /* the norm before the MLP */
    gboolean pairs;            /* its rope rotates neighbours: rows of q and k are reordered */
    gboolean o_bias, mlp_bias; /* it reads these */
    gboolean hidden_heads;     /* heads x head_dim is the hidden size */
    gboolean rope_factors;     /* it reads rope_freqs.weight */
    gboolean own_head;         /* it reads output.weight, also where that is the embedding's */
    guint no_rope_period;      /* the last of so many blocks has no rope; 0: all have */
} RpGgufFamily;

const RpGgufFamily *rp_gguf_family(const RpModel *model);
/* Sizes, rope and experts. */
void rp_gguf_add_model(RpGgufFile *file, const RpModel *model);

/* ---- tokens.c ---- */

/* Errors: RP_GGUF_ERROR_TOKENIZER */
gboolean rp_gguf_add_tokenizer(RpGgufFile *file, const RpModel *model, const RpGgufOptions *options,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- tensors.c ---- */

/* The type of values of @dtype, without loss. */
RpGgufType rp_gguf_type_of_dtype(RpDtype dtype);

/**
 * RpGgufTensor: where the rows of a tensor of the file come from
 *
 * Row i of expert e is row, or column if @transposed, s = first + step i of a matrix: of weight
 * index + e index_step, or of the e-th matrix of a stack.
 */
typedef struct {
    char *name;
    RpGgufType type;
    guint rank;
    guint64 shape[RP_WEIGHT_MAX_RANK]; /* the outermost dimension first */
    guint64 experts, rows, columns;    /* their product is that of the shape */
    guint index, index_step;
    guint64 source_rows; /* rows of a matrix, or columns of a transposed one */
    guint64 first, step;
    gboolean transposed;
    guint pair_head; /* head_dim where rows of heads are reordered for pairs; else 0 */
    float factor;    /* multiplies an adapter's B; else 1 */
    float *values;   /* (nullable): all of it, fp32, instead of a weight */
} RpGgufTensor;

/* All tensors of a model in the order of its weights. (transfer full) (element-type RpGgufTensor) */
GArray *rp_gguf_list_model(const RpWeights *weights, RpGgufType type);
/**
 * rp_gguf_list_adapter:
 * @alpha: (out): llama.cpp multiplies every B A by alpha / rank; where ours is another factor, B is scaled
 *
 * Returns: (transfer full) (element-type RpGgufTensor)
 * Errors: RP_GGUF_ERROR_UNSUPPORTED: a module that is trained whole
 */
GArray *rp_gguf_list_adapter(const RpWeights *weights, RpGgufType type, double *alpha,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Writes all data of @tensor. */
gboolean rp_gguf_write_tensor(const RpWeights *weights, const RpGgufTensor *tensor,
                              RpGgufFile *file, GError **error) G_GNUC_WARN_UNUSED_RESULT;
