/**
 * Models and adapters as llama.cpp reads them: one file, GGUF version 3.
 *
 *   "GGUF" | u32 3 | u64 tensors | u64 values | values | names, shapes, types and offsets | data
 *
 * A model's file has its sizes, tokenizer, chat template and tensors; an adapter's has pairs of tensors
 * NAME.lora_a and NAME.lora_b. docs/lora.md and docs/fine-tuning.md describe what users do with it.
 *
 * Source: gguf 0.19 (PyPI) constants.py, tensor_mapping.py, quants.py; llama.cpp src/models, src/llama-vocab.cpp
 */
#pragma once

#include "exec/model/weights.h"
#include "text/tokenizer/tokenizer.h"

#define RP_GGUF_ERROR (rp_gguf_error_quark())
GQuark rp_gguf_error_quark(void);
typedef enum {
    RP_GGUF_ERROR_UNSUPPORTED, /* a family, or a value of config.json, that llama.cpp does not compute */
    RP_GGUF_ERROR_TOKENIZER /* one that llama.cpp has no name for */
} RpGgufError;

/* Types of matrices; norms, biases and routers are fp32 always. */
typedef enum {
    RP_GGUF_F32,
    RP_GGUF_F16,
    RP_GGUF_BF16,
    RP_GGUF_Q8_0, /* 32 values a block: fp16 scale, 8 bits each */
    RP_GGUF_Q4_0, /* the same with 4 bits each; the head's matrix is q8_0 */
    RP_GGUF_MXFP4, /* experts' matrices: a power of two and 32 values of 4 bits; all else is as it is */
} RpGgufType;
#define RP_N_GGUF_TYPES (RP_GGUF_MXFP4 + 1)
/* "f32", "f16", "bf16", "q8_0", "q4_0", "mxfp4"; NULL behind the last */
extern const char *const rp_gguf_type_names[RP_N_GGUF_TYPES + 1];
/* The type that keeps every value: of a model whose experts are packed as mxfp4 this one. */
RpGgufType rp_gguf_type_of(const RpWeights *weights);

/* Bytes of @n values; of blocks, a multiple of 32. */
guint64 rp_gguf_bytes(RpGgufType type, guint64 n);
/**
 * rp_gguf_encode:
 * @out: (out): rp_gguf_bytes()
 *
 *   q8_0   d = max |x| / 127, q = x / d rounded half away from zero
 *   q4_0   d = m / -8 of the value m with the largest |m|, q = trunc(x / d + 8.5), at most 15; the low
 *          nibbles of the 16 bytes are values 0 to 15
 *   mxfp4  exponent e = floor(log2 max |x|) - 2, values the nearest of 2^e times 0, 0.5, 1, 1.5, 2, 3, 4, 6, the
 *          smaller of two; nibbles as q4_0. Values that mxfp4 holds stay the same
 *
 * Source: gguf/quants.py, Q8_0, Q4_0 and MXFP4, operation by operation in fp32
 */
void rp_gguf_encode(RpGgufType type, const float *values, gsize n, guint8 *out);

/* Whether llama.cpp computes @model as we do. Errors: RP_GGUF_ERROR_UNSUPPORTED naming the key */
gboolean rp_gguf_check_model(const RpModel *model, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* A note for users about what llama.cpp computes otherwise; NULL: nothing. (transfer full) */
char *rp_gguf_difference(const RpModel *model);

/* @done and @total in elements. */
typedef void (*RpGgufProgress)(guint64 done, guint64 total, gpointer user_data);

typedef struct {
    const char *name; /* of the model, for people */
    RpGgufType type;
    /* of a model: */
    const RpTokenizer *tokenizer;
    const char *chat_template; /* (nullable) */
    const gint32 *ends;        /* tokens that end an answer */
    guint n_ends;
    RpGgufProgress progress; /* (nullable) */
    gpointer user_data;
} RpGgufOptions;

/**
 * rp_gguf_write:
 * @weights: bound; with adapters, which are bound too, the adapters alone are written
 * @path: a file that was there is replaced when all of the new one is on the disk
 *
 * Tensors are read, converted and written a piece at a time: memory is a few MiB, or one expert's matrix of
 * models that store these transposed. The same weights make the same bytes.
 *
 * Errors: RP_GGUF_ERROR_*, RP_WEIGHTS_ERROR_VALUE: a value that is not finite in @type, G_FILE_ERROR
 */
gboolean rp_gguf_write(const RpWeights *weights, const char *path, const RpGgufOptions *options,
                       GError **error) G_GNUC_WARN_UNUSED_RESULT;
