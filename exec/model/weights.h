/**
 * The tensors that a model needs (core/catalogue/model.h), layer by layer, and where a checkpoint
 * has them. A tied head's lm_head.weight is not in the file, and its data are the embedding's.
 */
#pragma once

#include <glib.h>

#include "core/catalogue/lora.h"
#include "core/catalogue/model.h"
#include "exec/lowbit/lowbit-file.h"
#include "exec/model/hf-config.h"
#include "exec/safetensors/safetensors.h"

/*
 * Places of the elements of experts' adapters in tensors of a file: A [E,r,in] and B [E,out,r]
 * in one tensor of two dimensions each, or in tensors of each expert's matrices.
 */

/**
 * RpAdapterMap:
 * @stride: of one tensor: element (e, i, j) stands at e stride[0] + i stride[1] + j stride[2]
 * @parts: of tensors of experts: matrices that the stack joins (gate, up), each with as large a share
 *   of rows and of the rank; A's stand one below the other, and of B a part's rows are zeros but for
 *   its share of the rank:
 *
 *     A   |A of gate|       B   |B of gate|    0    |
 *         |A of up  |           |    0    |B of up  |
 *
 * @tensors: one, or @parts for each expert
 */
typedef struct {
    guint64 stride[RP_WEIGHT_MAX_RANK];
    guint parts; /* 0: one tensor */
    RpAdapterPart side;
    const RpSafetensor *tensors[];
} RpAdapterMap;

/* Where the values of a weight come from. Without a tensor and packed parts they are made: all of them
 * (rp_weights_bind_random()), or those of an adapter that begins as new ones do (rp_init_fill(), the seed
 * of rp_weights_lora()). */
typedef struct {
    const RpSafetensor *tensor; /* its own, or its part of the one with all experts'; of a tied head
                                     the embedding's; the first of @map */
    const RpSafetensor *base; /* the base's, which @tensor was when it was bound; without data where
                                     it is made */
    const RpLowbitSource *packed; /* in place of @tensor; those of a stack share it */
    RpAdapterMap *map;            /* or %NULL: @tensor has its elements in their order */
} RpWeightOrigin;

typedef enum {
    RP_WEIGHTS_ERROR_MISSING, /* the config needs a tensor that the checkpoint lacks */
    RP_WEIGHTS_ERROR_EXTRA,   /* a tensor that the model does not have */
    RP_WEIGHTS_ERROR_SHAPE,
    RP_WEIGHTS_ERROR_DTYPE,
    RP_WEIGHTS_ERROR_TIED, /* config says one matrix, checkpoint has two different ones */
    RP_WEIGHTS_ERROR_VALUE /* NaN or infinity */
} RpWeightsError;

#define RP_WEIGHTS_ERROR (rp_weights_error_quark())
GQuark rp_weights_error_quark(void);

typedef struct _RpWeights RpWeights;

/* The list of @model, in layer order. */
RpWeights *rp_weights_new(const RpModel *model);
/* The same list, bound to nothing; with the hash of the base, if it was computed. */
RpWeights *rp_weights_copy(const RpWeights *weights);
/* The same with adapters, or without where @lora (nullable) is of rank 0. Copied. */
RpWeights *rp_weights_new_adapted(const RpModel *model, const RpLora *lora);
void rp_weights_free(RpWeights *weights);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpWeights, rp_weights_free)

guint rp_weights_count(const RpWeights *weights);
const RpWeight *rp_weights_nth(const RpWeights *weights, guint index);

const RpModel *rp_weights_model(const RpWeights *weights);
/* Embedding, blocks and head. */
guint rp_weights_n_layers(const RpWeights *weights);
/* The layer's weights are number @first to @first + returned - 1. @first: (out) */
guint rp_weights_layer(const RpWeights *weights, guint layer, guint *first);
/* The number of a layer's weight of that kind, or -1. */
int rp_weights_find(const RpWeights *weights, guint layer, RpWeightKind kind);

/* Weight @index has no gradient from now on, and its own storage; with a tied embedding so has the
 * head's matrix. Another storage than the run's is for matrices of matmuls that the kernels can mix (the
 * host's can). Before a network is made of @weights. */
void rp_weights_freeze(RpWeights *weights, guint index, RpDtype storage);

/**
 * rp_weights_freeze_named:
 * @name: of modules or their tensors, as rp_lora_names_module() has names: "embed_tokens",
 *   "model.layers.0.*", "*.bias"
 *
 * Freezes them. A head that is tied is frozen with its embedding, and the final norm beside it with both.
 *
 * Returns: how many tensors have such a name
 */
guint rp_weights_freeze_named(RpWeights *weights, const char *name, RpDtype storage);

/* Frozen weights are all stored so: with adapters, before a network is made of @weights. */
void rp_weights_store_base(RpWeights *weights, RpDtype storage);

/* Frozen matrices are held in @format (rp_weight_packs()): before a network is made of @weights, and
 * before they are bound. */
void rp_weights_pack_base(RpWeights *weights, RpLowbit format);

/**
 * rp_weights_adopt:
 * @checkpoint: of which some weights may be packed
 *
 * Frozen weights are held as @checkpoint has them: those that are packed there stay so. Before
 * rp_weights_bind().
 *
 * Errors: RP_LOWBIT_ERROR_*, RP_WEIGHTS_ERROR_DTYPE: a weight is packed that is none of
 *   rp_weight_packs(), or trained
 */
gboolean rp_weights_adopt(RpWeights *weights, const RpSafetensors *checkpoint,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The format that rp_weights_pack_base() gave to the base's values, or "bf16": they are the file's, also for a packed
 * base, which expands to the same bits wherever it is expanded. */
const char *rp_weights_base_format(const RpWeights *weights);
/* Whether any is packed. */
gboolean rp_weights_is_packed(const RpWeights *weights);

/* Whether a tensor belongs to another part of the larger model that has this one as its text part. */
gboolean rp_weights_is_other(const RpModel *model, const char *name);
/* Adds such tensors of @base (nullable) to a file. Returns: the first one's number */
guint rp_weights_add_others(const RpModel *model, const RpSafetensors *base,
                            RpSafetensorsWriter *writer);
/* Writes them as they are. @first: as rp_weights_add_others() has returned it */
gboolean rp_weights_write_others(const RpModel *model, const RpSafetensors *base, guint first,
                                 RpSafetensorsWriter *writer,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Elements of all weights; a tied matrix counts once. */
guint64 rp_weights_elements(const RpWeights *weights);

/**
 * rp_weights_bind:
 * @checkpoint: must outlive @weights
 *
 * Finds each weight in @checkpoint and checks that the two agree, tensor by tensor:
 * - each is there, with the shape that the config requires, and no other tensor is, but for those of other parts of a
 *   larger model (rp_weights_is_other());
 * - each has the type that the config names or, where it names none, that of the first;
 * - a tied model may hold lm_head.weight all the same (Qwen3-0.6B does) if its bytes are those of
 *   the embedding. Old files' rotary_emb.inv_freq is ignored, as transformers does;
 * - all experts' matrices of a kind may stand in one tensor [E,out,in] (RpWeight.stack_name);
 * - stacks [E,in,out] may be packed as mxfp4 [E,out,in], as GPT-OSS is published;
 * - other matrices of blocks may be packed, experts' one by one or as a stack. They are expanded when they are read,
 *   unless rp_weights_adopt() keeps them packed.
 *
 * Errors: RP_WEIGHTS_ERROR_*, one line: `FILE: tensor "NAME": expected ..., found ...`
 */
gboolean rp_weights_bind(RpWeights *weights, const RpSafetensors *checkpoint,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Binds the weights to no file: they are made as they are read, and are those that rp_init_write() writes of
 * @seed, bit for bit, in the type of the config or else bf16. None may be packed. */
void rp_weights_bind_random(RpWeights *weights, guint64 seed);

/**
 * rp_weights_check_finite:
 * @weights: bound to a file
 * @dtype: that they will be computed in
 *
 * Looks at every value for a NaN or an infinity, in several threads: also for one that becomes
 * infinite when it is rounded to @dtype, such as 70000 in fp16. No token may ever reach it, and
 * yet no checkpoint could be saved with it.
 *
 * Errors: RP_WEIGHTS_ERROR_VALUE with tensor and index of the first
 */
gboolean rp_weights_check_finite(const RpWeights *weights, RpDtype dtype,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same for weights with an optimizer's state: beside a base, adapters and modules trained
 * whole, each in its own type. */
gboolean rp_weights_check_finite_trained(const RpWeights *weights,
                                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Whether there are adapters, and which; %NULL: none. */
const RpLora *rp_weights_lora(const RpWeights *weights);

/* Before binding all of it is %NULL. */
RpWeightOrigin rp_weights_origin(const RpWeights *weights, guint index);
/* Its tensor, and its packed parts; %NULL: there are none. */
const RpSafetensor *rp_weights_source(const RpWeights *weights, guint index);
const RpLowbitSource *rp_weights_packed(const RpWeights *weights, guint index);
/**
 * rp_weights_read:
 * @weights: bound
 * @values: (out): elements @first to @first + @n, as the network has them
 *
 * From the bound tensor, expanded (and transposed) where it is packed and does not stay so; without one made:
 * rp_weights_bind_random(), or an adapter as new ones begin. From any thread.
 */
void rp_weights_read(const RpWeights *weights, guint index, guint64 first, float *values, gsize n);
/* The same rounded to @dtype, at @at. */
void rp_weights_read_as(const RpWeights *weights, guint index, RpDtype dtype, guint64 first,
                        void *at, gsize n);
/* Hash of the model that the weights are bound to, or of the base of adapters: names, shapes, types and bytes of its
 * tensors. NULL before they are bound */
const char *rp_weights_model_hash(const RpWeights *weights);
/* Hash of the bound base of adapters, which are refused beside another: SHA-256, 64 digits, of names, types, shapes and
 * all bytes of its tensors (weights-hash.c). They are read when the hash is first asked for. %NULL without adapters, or
 * before binding. */
const char *rp_weights_base_hash(const RpWeights *weights);
#define RP_WEIGHTS_HASH_DIGITS 64
/* 16 digits for each layer, of a hash of its values that does not see their type, with a space between
 * them. */
const char *rp_weights_base_values(const RpWeights *weights);
/* Keeps these two hashes of the base itself when the weights are bound to another format of it. */
void rp_weights_set_base_hash(RpWeights *weights, const char *base_hash, const char *base_values);
/* Weight @index comes from @tensor, of its shape, or by @map from tensors of experts, which must outlive
 * @weights. @map: (nullable) (transfer full): g_free() */
void rp_weights_set_tensor(RpWeights *weights, guint index, const RpSafetensor *tensor,
                           RpAdapterMap *map);
/* The type of all bound tensors; adapters and modules trained whole may be fp32 instead. */
RpDtype rp_weights_dtype(const RpWeights *weights);
