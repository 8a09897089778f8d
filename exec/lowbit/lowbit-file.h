/**
 * Weights in few bits in safetensors, as others write them. For a weight NAME the file has
 *
 *   nf4     NAME U8 [n/2,1], NAME.absmax U8, NAME.quant_map F32 [16], NAME.nested_absmax F32,
 *           NAME.nested_quant_map F32 [256], NAME.quant_state.bitsandbytes__nf4 U8: JSON with the
 *           shape; nf4-single has absmax in F32 and nothing nested (bitsandbytes)
 *   mxfp4   NAME_blocks U8 [.., rows, columns/32, 16], NAME_scales U8 [.., rows, columns/32] (GPT-OSS)
 *   fp8     NAME F8_E4M3 [.., rows, columns], NAME_scale_inv F32 or BF16 [.., rows/128, columns/128]
 *           (Qwen3-FP8, DeepSeek-V3); or one scale [] of all (Ministral-3-FP8), which all blocks get in memory
 */
#pragma once

#include "core/lowbit/lowbit.h"
#include "exec/safetensors/safetensors.h"
#include "exec/system/pool.h"

typedef enum {
    RP_LOWBIT_ERROR_UNSUPPORTED, /* a format that we do not read, named */
    RP_LOWBIT_ERROR_MISSING,     /* a weight, or a part of it */
    RP_LOWBIT_ERROR_SHAPE,       /* a part of another type or size */
    RP_LOWBIT_ERROR_STATE,       /* the JSON of bitsandbytes */
    RP_LOWBIT_ERROR_VALUE        /* infinite or NaN */
} RpLowbitError;

#define RP_LOWBIT_ERROR (rp_lowbit_error_quark())
GQuark rp_lowbit_error_quark(void);

/* A weight of a checkpoint: its parts, or itself if it is not packed; or a stack of such. */
typedef struct _RpLowbitSource RpLowbitSource;
struct _RpLowbitSource {
    const char *name;           /* the caller's */
    const RpSafetensor *tensor; /* the quantized values, or the plain weight */
    gboolean is_packed;
    RpLowbit format; /* if it is */
    guint rank;      /* rank of the weight */
    guint64 shape[RP_SAFETENSORS_MAX_RANK];
    const RpSafetensor *parts[RP_N_LOWBIT_PARTS]; /* NULL: none, or the offset */
    float offset;                                 /* nf4 only */
    gboolean one_scale;                           /* fp8: for all of the weight */
    /* matrices of a stack that stand one by one: in their order, of one size */
    const RpLowbitSource *pieces;
    guint n_pieces;
};

/**
 * rp_lowbit_source_find:
 * @name: of the weight, "model.layers.0.self_attn.q_proj.weight", "…experts.gate_up_proj"
 * @source: (out): points into @tensors
 *
 * Finds a weight in any of the forms, and checks types and sizes of its parts.
 *
 * Errors: one line, `FILE: tensor "NAME": expected ..., found ...`; AWQ, GPTQ, int8 and fp4 of
 *   bitsandbytes, compressed-tensors and NVFP4 are refused by name
 */
gboolean rp_lowbit_source_find(const RpSafetensors *tensors, const char *name,
                               RpLowbitSource *source, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The name of the format that a weight is packed in, also of one that we do not read: "mxfp4", "GPTQ".
 * NULL: it is plain, not there, or its parts do not fit. */
const char *rp_lowbit_source_format(const RpSafetensors *tensors, const char *name);

/* All but the last two dimensions are matrices. */
RpLowbitShape rp_lowbit_shape_of(const guint64 *shape, guint rank);

/* The format of a stack of matrices that were packed one by one: nf4's scales, which are numbers around a
 * mean of each matrix, become those of nf4-single, and values stay the same. */
RpLowbit rp_lowbit_stacked_format(RpLowbit format);

/**
 * rp_lowbit_source_stack:
 * @stack: with name, rank, shape and pieces, found one by one; gets the rest
 *
 * Errors: RP_LOWBIT_ERROR_SHAPE: a piece that is packed in another format than the first, or whose last block would
 *   hold a part of the next one
 */
gboolean rp_lowbit_source_stack(RpLowbitSource *stack, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Finds the piece of a stack that holds element *@element, which becomes the piece's element;
 * @source if it has no pieces. */
const RpLowbitSource *rp_lowbit_source_piece(const RpLowbitSource *source, guint64 *element);

/* Copies the parts to @packed, rp_lowbit_layout().total bytes; gaps are zeros. @pool: (nullable) */
void rp_lowbit_source_load(const RpLowbitSource *source, void *packed, RpPool *pool);

/**
 * rp_lowbit_source_check:
 * @packed: as loaded
 * @dtype: that it will be expanded to
 * @pool: (nullable)
 *
 * Errors: RP_LOWBIT_ERROR_VALUE with tensor and index of the first weight that is not finite
 */
gboolean rp_lowbit_source_check(const RpLowbitSource *source, const void *packed, RpDtype dtype,
                                RpPool *pool, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_lowbit_pack_tensor:
 * @tensor: of one of RpDtype
 * @packed: (out): of @format
 * @pool: (nullable): strips are packed by its threads; the bytes are the same
 *
 * Errors: RP_LOWBIT_ERROR_VALUE with tensor and index of the first value that is not finite, or if
 *   all are so large that nf4's sum of scales is beyond fp32's range
 */
gboolean rp_lowbit_pack_tensor(RpLowbit format, const RpSafetensor *tensor, void *packed,
                               RpPool *pool, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Numbers of the tensors that a weight takes in a file, as rp_safetensors_writer_add() gave them. */
typedef struct {
    RpLowbit format;
    RpLowbitShape shape;
    guint parts[RP_N_LOWBIT_PARTS];
    guint map;        /* nf4: quant_map */
    guint state;      /* nf4: the JSON */
    char *state_text; /* without the offset */
    gsize state_bytes;
} RpLowbitTarget;

void rp_lowbit_target_clear(RpLowbitTarget *target);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpLowbitTarget, rp_lowbit_target_clear)

/**
 * rp_lowbit_target_add:
 * @dtype: of the weight before it was packed; bitsandbytes keeps it
 * @target: (out)
 *
 * Declares the tensors of a weight before @writer begins. mxfp4 needs columns in multiples of 32,
 * as readers know no others.
 *
 * Errors: RP_LOWBIT_ERROR_SHAPE
 */
gboolean rp_lowbit_target_add(RpSafetensorsWriter *writer, const char *name, RpLowbit format,
                              const guint64 *shape, guint rank, RpDtype dtype,
                              RpLowbitTarget *target, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Writes them. Errors: the writer's */
gboolean rp_lowbit_target_write(RpSafetensorsWriter *writer, const RpLowbitTarget *target,
                                const void *packed, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_lowbit_cache_name:
 *
 * "model.nf4-1f0c….safetensors": of @format and the first 16 digits of a SHA-256 over names, types,
 * shapes and the first and last 4 KiB of every tensor of @checkpoint, in the order of their names.
 *
 * Returns: (transfer full): a name for beside the checkpoint
 */
char *rp_lowbit_cache_name(RpLowbit format, const RpSafetensors *checkpoint);
