/**
 * The CPU optimizer: each layer's full-precision weights and moments, and their step.
 *
 * `fused`: one pass over memory reads the gradients, updates the state and writes the weights that
 * devices read: 28 bytes a parameter with 16-bit gradients and weights. `lean`: the same step
 * without the writing, and a copy later, when nothing reads the old weights any more: 32 bytes a
 * parameter, but no second buffer of weights.
 *
 *   fused   g ----> [ w m v ] ----> published            26 + 2 bytes
 *   lean    g ----> [ w m v ]                            26
 *                   [ w     ] ----> published             4 + 2
 *
 * One step of a run, once all sums of squares are known:
 *   clip = rp_clip_by_norm(); rp_loss_scale_update() says whether to step; then for each layer
 *   rp_optimizer_layer_apply() over all its parameters, in one or more ranges, and
 *   rp_optimizer_layer_finish(). A skipped step calls neither, and so changes nothing.
 *
 * Weights may be kept in 16 bits, moments in 16 or 8 (core/base/moments.h): a step widens a piece of
 * them, steps it, and rounds it again. Devices then read weights that were rounded so.
 *
 * The bits of the result depend on neither the variant, the threads nor the ranges.
 */
#pragma once

#include "exec/optim/adamw/adamw.h"
#include "exec/optim/rules.h"
#include "exec/system/pool.h"

/*
 * Sums and copies of gradients in any storage, on the threads of a pool. The bits of the result
 * depend on neither the variant nor the threads.
 */

#define RP_GRADIENT_MOST_ROUNDS 4

/* A gradient: one array, or several rounds of it, which are added in fp32, the first one first. */
typedef struct {
    const void *rounds[RP_GRADIENT_MOST_ROUNDS]; /* NULL behind the last */
} RpGradient;

/**
 * rp_gradient_add:
 * @gradient, @added: rp_gradient_is_sum(); the second has as many rounds as the first, or none
 * @first: of their values
 * @sum: (out): @n values
 *
 * @sum = the sum of @gradient's rounds + that of @added's, which may have none; values @first up to
 * @first + @n, at most RP_GRADIENT_PIECE, which stay in the L1 cache.
 */
void rp_gradient_add(const RpAdamwOps *ops, const RpGradient *gradient, const RpGradient *added,
                     RpDtype dtype, gsize first, float *sum, gsize n);
#define RP_GRADIENT_PIECE ((gsize)4096)

static inline gboolean
rp_gradient_is_sum(const RpGradient *gradient, const RpGradient *added)
{
    return gradient->rounds[1] != NULL || added->rounds[0] != NULL;
}

/* Value @first of @values. */
static inline const void *
rp_gradient_at(const void *values, RpDtype dtype, gsize first)
{
    return (const char *)values + first * rp_dtype_size(dtype);
}

/**
 * rp_sums_accumulate:
 * @pool: (nullable): threads to use
 * @ops: variant
 * @added: (array length=n_added): addends, @n values each, > 0 of them
 * @dtype: their storage
 * @begin: @sum is overwritten with the addends' sum
 *
 * For k = 0, 1, ...: @sum[i] += @added[k][i] for @n values, in fp32. @sum goes through memory once,
 * however many are added.
 */
void rp_sums_accumulate(RpPool *pool, const RpAdamwOps *ops, float *sum, const void *const *added,
                        guint n_added, RpDtype dtype, gboolean begin, gsize n);

/**
 * rp_sums_widen:
 * @pool: (nullable): threads to use
 * @ops: variant
 *
 * @wide[i] = @values[i] for @n values.
 */
void rp_sums_widen(RpPool *pool, const RpAdamwOps *ops, const void *values, RpDtype dtype,
                   float *wide, gsize n);

typedef enum {
    RP_OPTIMIZER_ERROR_VALUE, /* an option out of range */
    RP_OPTIMIZER_ERROR_STATE  /* a saved state that is not of this layer */
} RpOptimizerError;

#define RP_OPTIMIZER_ERROR (rp_optimizer_error_quark())
GQuark rp_optimizer_error_quark(void);

typedef struct _RpOptimizer RpOptimizer;
typedef struct _RpOptimizerLayer RpOptimizerLayer;

/* A layer's state as a checkpoint keeps it. The arrays have @n_parameters values each. */
typedef struct {
    guint64 n_steps; /* done */
    gsize n_parameters;
    const void *weight; /* as @form says, here and below */
    const void *moment1;
    const void *moment2; /* Lion: NULL */
    const float *scale1; /* int8: one a block; else NULL */
    const float *scale2;
    RpStateFormat form;
    guint64 first; /* parameter, of part of a layer: scales are of the blocks that hold any */
} RpOptimizerState;

/* Operands of one step on parameters [@first, @first + @n_parameters) of a layer. */
typedef struct {
    double learning_rate;
    double gradient_scale; /* 1 / (loss scale * tokens) * clip coefficient */
    gsize first;
    gsize n_parameters;
    RpGradient gradient; /* gradient of the range; read */
    RpGradient added;    /* a second gradient of the range, whose sum of rounds is added to that of
                            the first, in fp32 (tied matrix); or of no rounds */
    void *published;     /* weights of the range that devices read; or NULL (lean, not shared) */
    RpDtype gradient_dtype; /* type of both */
    RpDtype published_dtype;
} RpOptimizerStep;

/**
 * rp_optimizer_new:
 * @options: copied
 * @ops: variant, or %NULL: the best for this processor
 * @pool: (nullable): threads to use; outlives the optimizer
 *
 * Returns: (transfer full): the optimizer, or %NULL
 * Errors: %RP_OPTIMIZER_ERROR_VALUE
 */
RpOptimizer *rp_optimizer_new(const RpAdamwOptions *options, const RpAdamwOps *ops, RpPool *pool,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;
void rp_optimizer_free(RpOptimizer *optimizer);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpOptimizer, rp_optimizer_free)

/* The variant in use. */
const RpAdamwOps *rp_optimizer_ops(const RpOptimizer *optimizer);

/* Sum of squares of @n gradients, for rp_clip_by_norm(); the same bits for any threads. */
double rp_optimizer_sum_squares(RpOptimizer *optimizer, const void *gradient, RpDtype dtype,
                                gsize n);

/* The same of a gradient that is added up in fp32: @gradient, and @added, which may have no rounds.
 * The result of several rounds has the bits that their sum as an array has. */
double rp_optimizer_sum_squares_of_sum(RpOptimizer *optimizer, RpGradient gradient,
                                       RpGradient added, RpDtype dtype, gsize n);

/* The sums of its blocks of RP_SUM_SQUARES_BLOCK, which added in order are that sum: @sums has one of
 * each, also of the last, which may be shorter. */
void rp_optimizer_block_squares(RpOptimizer *optimizer, RpGradient gradient, RpGradient added,
                                RpDtype dtype, gsize n, double *sums);

/* Offsets of arrays in the state of a layer, bytes; scales come first. */
typedef struct {
    guint64 weight; /* not of shared ones */
    guint64 moment[RP_OPTIMIZER_MOST_MOMENTS];
} RpOptimizerPlaces;

RpOptimizerPlaces rp_optimizer_places(RpStateFormat form, guint64 n_parameters);

/* A step is divided among the threads of its pool in multiples of this many parameters: whole
 * pages, and enough work to wake a thread for. */
#define RP_OPTIMIZER_GRANULE ((gsize)16384)

/**
 * rp_optimizer_layer_new:
 * @optimizer: its threads touch the memory first, so that it is NUMA-local to them
 * @memory: rp_optimizer_state_bytes(), aligned to 4: scales of the moments, then weights and first and
 *   second moments, one after the other, the wider ones first. Borrowed: outlives the layer; zeroed here
 * @n_parameters: of the layer; > 0
 * @spans: which of them decay, in order, @n_parameters in all; or %NULL: all do
 * @n_spans: number of spans
 *
 * Makes the state of a layer: all zero, no step done.
 *
 * Returns: (transfer full): the state
 */
RpOptimizerLayer *rp_optimizer_layer_new(RpOptimizer *optimizer, void *memory, gsize n_parameters,
                                         const RpParameterSpan *spans,
                                         gsize n_spans) G_GNUC_WARN_UNUSED_RESULT;
void rp_optimizer_layer_free(RpOptimizerLayer *layer);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpOptimizerLayer, rp_optimizer_layer_free)

/* For a state format whose weights are shared: sets where the newest weights are, before any other call on the layer;
 * steps then read these, and the weights that they publish become the newest. */
void rp_optimizer_layer_share(RpOptimizerLayer *layer, void *weights);

/* Sets the number of the layer in the model, for stochastic rounding: 0 until it is set; and where a part of a layer
 * begins, at a block of moments. */
void rp_optimizer_layer_set_number(RpOptimizerLayer *layer, guint32 number, guint64 first);

/* Weights from parameter @first on, for who begins with others than zeros: rounded to the nearest if
 * they are kept in 16 bits. Not in the middle of a step. */
void rp_optimizer_layer_set_weights(RpOptimizerLayer *layer, gsize first, const float *values,
                                    gsize n);

/* Applies @step to its range, which begins and ends with blocks of moments or with the layer. Each
 * parameter once before rp_optimizer_layer_finish(). */
void rp_optimizer_layer_apply(RpOptimizer *optimizer, RpOptimizerLayer *layer,
                              const RpOptimizerStep *step);

/**
 * rp_optimizer_layer_preview:
 * @step: with @published; not of shared weights
 *
 * Writes the weights that rp_optimizer_layer_apply() would publish, bit for bit, and changes nothing
 * else. Not in the middle of a step.
 */
void rp_optimizer_layer_preview(RpOptimizer *optimizer, const RpOptimizerLayer *layer,
                                const RpOptimizerStep *step);

/* Ends a step that has been applied to every parameter. */
void rp_optimizer_layer_finish(RpOptimizerLayer *layer);

/* Writes the weights of parameters [@first, @first + @n) to @published, rounded. */
void rp_optimizer_layer_publish(RpOptimizer *optimizer, const RpOptimizerLayer *layer, gsize first,
                                gsize n, void *published, RpDtype dtype);

/* A view of the state, valid until @layer changes; not in the middle of a step. */
RpOptimizerState rp_optimizer_layer_state(const RpOptimizerLayer *layer);

/**
 * rp_optimizer_layer_restore:
 * @layer: of as many parameters as @state
 * @state: copied
 *
 * Returns: %TRUE on success; on failure @layer is as before
 * Errors: %RP_OPTIMIZER_ERROR_STATE
 */
gboolean rp_optimizer_layer_restore(RpOptimizer *optimizer, RpOptimizerLayer *layer,
                                    const RpOptimizerState *state,
                                    GError **error) G_GNUC_WARN_UNUSED_RESULT;
