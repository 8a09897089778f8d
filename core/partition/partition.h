/**
 * Partitions: which consecutive layers run together.
 *
 * A bound partition has one list: stage s runs forward and backward on the device it is bound to.
 * A dispatched partition (RoundPipe, paper §3.2) has two: forward stages, then backward stages in
 * execution order, the first of which is the fused stage (forward and backward of the last layers).
 *
 *   layers        e 0 1 2 3 4 5 h
 *   forward       [e 0 1 2][3 4 5]                 2 forward stages
 *   backward                        [h] fused      backward[0]
 *                             [4 5]                backward[1]
 *                        [2 3] ...                 backward[2], backward[3] = [e 0 1]
 */
#pragma once

#include <glib.h>

#include "core/profile/profile.h"

/* No layer, stage, micro-batch or buffer. */
#define RP_NONE G_MAXUINT32

typedef enum {
    RP_PARTITION_ERROR_SYNTAX,    /* a stage list that cannot be read */
    RP_PARTITION_ERROR_COUNT,     /* a stage list that does not add up */
    RP_PARTITION_ERROR_MEMORY,    /* a layer alone exceeds the memory limit */
    RP_PARTITION_ERROR_IMPOSSIBLE /* fewer layers than stages, ... */
} RpPartitionError;

#define RP_PARTITION_ERROR (rp_partition_error_quark())
GQuark rp_partition_error_quark(void);

/* @count consecutive layers from @first on. */
typedef struct {
    guint first;
    guint count;
} RpInterval;

/* The work of a stage, which decides its cost. */
typedef enum {
    RP_PHASE_FORWARD,  /* sum of forward */
    RP_PHASE_BACKWARD, /* sum of recompute + backward; embedding and head are not recomputed */
    RP_PHASE_FUSED     /* sum of forward + backward: the forward is the recompute (§3.2) */
} RpPhase;

typedef struct {
    gboolean dispatched;
    guint n_forward;      /* dispatched: without the fused stage */
    RpInterval *forward;  /* from the first layer to the last */
    guint n_backward;     /* bound: 0 */
    RpInterval *backward; /* in execution order: from the last layer to the first; [0] is fused */
} RpPartition;

/* Dispatched: the stage of slot @s of a round. */
static inline const RpInterval *
rp_partition_stage(const RpPartition *partition, guint s)
{
    return s < partition->n_forward ? &partition->forward[s]
                                    : &partition->backward[s - partition->n_forward];
}

RpPartition *rp_partition_new_bound(const RpInterval *stages, guint n_stages);
RpPartition *rp_partition_new_dispatched(const RpInterval *forward, guint n_forward,
                                         const RpInterval *backward, guint n_backward);
RpPartition *rp_partition_copy(const RpPartition *partition);
gboolean rp_partition_equal(const RpPartition *a, const RpPartition *b);
void rp_partition_free(RpPartition *partition);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpPartition, rp_partition_free)

/**
 * rp_stage_time_ns:
 * @stage: layers
 * @phase: its work on them
 * @recompute_ns: (out) (optional): the leading part that is recompute (needs only the stashed
 *   input); 0 for forward and fused stages
 *
 * Sums over the stage's layers, except that a backward stage does without the output of its last
 * one (rp_layer_saving_ns()). Monotone: a longer stage never takes less.
 *
 * Returns: compute time of one micro-batch, ns
 * Source: schedules.md "What an action costs"
 */
gint64 rp_stage_time_ns(const RpProfile *profile, RpInterval stage, RpPhase phase,
                        gint64 *recompute_ns);

/* Attention's share of a forward of the stage, of timing files that have saved_attention_ms; else 0. */
double rp_stage_attention(const RpProfile *profile, RpInterval stage);

/* Sum of weight_gradient_ns: the W of a split backward; I = backward - W. */
gint64 rp_stage_weight_gradient_ns(const RpProfile *profile, RpInterval stage);

/**
 * rp_stage_memory_bytes:
 *
 * Device bytes a dispatched stage needs at most, with everything that is in flight around it: two
 * parameter slots, two input and two output buffers, scratch, and for backward and fused stages the
 * fp32 gradient accumulator (2 x gradient_bytes), the leaving 16-bit gradients and the activations
 * between recompute and backward. Monotone: a longer stage never needs less.
 */
guint64 rp_stage_memory_bytes(const RpProfile *profile, RpInterval stage, RpPhase phase);

/**
 * rp_partition_parse_list:
 * @text: block counts as `3,3,4*5,2` (4*5 = four blocks, five times; 0 is allowed)
 *
 * Returns: (transfer full) (element-type guint): the counts
 * Errors: RP_PARTITION_ERROR_SYNTAX with the position
 */
GArray *rp_partition_parse_list(const char *text, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The opposite: runs are folded, `3,3,4*5,2` style, runs of two or fewer are written out. */
char *rp_partition_format_list(const guint *counts, guint n);

/* Block counts of each stage (embedding and head are not counted), in the partition's order. */
GArray *rp_partition_block_counts(const RpProfile *profile, const RpInterval *stages, guint n);

/**
 * rp_partition_from_blocks:
 * @stages: block counts, first stage first; the embedding joins the first stage, the head the last
 *
 * A stage of 0 blocks between others holds no layer: it takes no time (`compute` fidelity only).
 *
 * Errors: RP_PARTITION_ERROR_COUNT when the sum is not the profile's block count
 */
RpPartition *rp_partition_from_blocks(const RpProfile *profile, const guint *stages, guint n_stages,
                                      GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_partition_from_dispatched_blocks:
 * @forward: block counts of the forward stages, without the fused stage; may be empty if the fused
 *   stage holds every block
 * @backward: block counts in execution order; [0] is the fused stage, which also holds the head;
 *   the embedding joins the first forward stage (the fused one if there is none) and the last
 *   backward stage
 *
 * Errors: RP_PARTITION_ERROR_COUNT unless sum(forward) + backward[0] = sum(backward) = blocks
 */
RpPartition *rp_partition_from_dispatched_blocks(const RpProfile *profile, const guint *forward,
                                                 guint n_forward, const guint *backward,
                                                 guint n_backward,
                                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_partition_paper:
 * @gpus: N
 * @micro_batches: M of the iteration
 * @memory_bytes: limit on rp_stage_memory_bytes() of each stage; 0 = none
 *
 * The dispatched partition with the least (M S + N (N-1)) t_max, exactly, among those whose first
 * backward stage is filled first. Ties: fewer stages, then the smaller t_max.
 *
 * Errors: RP_PARTITION_ERROR_MEMORY naming the layer
 * Source: paper §4.4
 */
RpPartition *rp_partition_paper(const RpProfile *profile, guint gpus, guint micro_batches,
                                guint64 memory_bytes, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Where the larger parts of an uneven split stand. 10 equal weights in 4 parts: */
typedef enum {
    RP_SPLIT_SMALL_FIRST, /* 2,2,3,3 */
    RP_SPLIT_LARGE_FIRST, /* 3,3,2,2 */
    RP_SPLIT_EVEN         /* 3,2,3,2: each border where its share of the sum is nearest */
} RpSplitOrder;

/**
 * rp_partition_split:
 * @weights: (array length=n): >= 0
 * @parts: 1 to @n
 * @counts: (out) (array length=parts): items of each part, each >= 1
 *
 * Cuts a row of weights into runs. Unless RP_SPLIT_EVEN, the largest run is as small as possible;
 * the last (first) run is as long as that allows, and the rest is split in the same way.
 */
void rp_partition_split(const gint64 *weights, guint n, guint parts, RpSplitOrder order,
                        guint *counts);

/**
 * rp_partition_min_max:
 * @n_stages: the exact number of stages, each of at least one layer, the first of at least one
 * block
 *
 * The bound partition whose largest stage (forward + backward with recompute) is smallest, exactly.
 * Ties go to filling late stages first, then to the smallest largest stage of the rest, and so
 * on.
 *
 * Errors: RP_PARTITION_ERROR_IMPOSSIBLE when there are too few layers
 */
RpPartition *rp_partition_min_max(const RpProfile *profile, guint n_stages,
                                  GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * RpPartitionCost:
 *
 * Cost of a candidate, lower is better (e.g. its simulated makespan, ns); G_MAXINT64 = not
 * possible.
 */
typedef gint64 (*RpPartitionCost)(const RpPartition *candidate, guint round, gpointer user_data);

/* Rounds that may be tried, largest first: every divisor of @micro_batches that is >= @gpus;
 * @fixed alone if it is not 0. (transfer full) (element-type guint) */
GArray *rp_partition_rounds(guint gpus, guint micro_batches, guint fixed);

/* Limits within which a search varies. */
typedef struct {
    guint gpus;
    guint micro_batches;
    guint round;          /* fixed M_R; 0 = every divisor of M that is >= N is tried */
    guint64 memory_bytes; /* per stage; 0 = none */
    guint max_candidates; /* evaluations of the cost function at most; 0 = a default */
} RpPartitionSearch;

/**
 * rp_partition_search_dispatched:
 * @cost: returns the cost of a candidate with a round size
 * @best_round: (out): the round that goes with the result
 *
 * The best of: rp_partition_paper(), candidates around it (other t_max, forward stages packed from
 * either end, evened-out leftovers, more or fewer stages, other rounds) and a local search that
 * moves single blocks between neighbouring stages. Never worse than rp_partition_paper() on @cost.
 * Deterministic.
 */
RpPartition *rp_partition_search_dispatched(const RpProfile *profile,
                                            const RpPartitionSearch *search, RpPartitionCost cost,
                                            gpointer user_data, guint *best_round,
                                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Stage times and their balance. */
typedef struct {
    guint n_stages;
    gint64 max_ns;
    gint64 min_ns;
    gint64 total_ns; /* one micro-batch through every stage */
    double balance;  /* mean / max, 1 = perfectly even */
} RpBalance;

/* @times_ns: (element-type gint64) (transfer full): forward slots, then backward slots (bound:
 * forward + backward of each stage). */
RpBalance rp_partition_balance(const RpProfile *profile, const RpPartition *partition,
                               GArray **times_ns);
