/*
 * The search for dispatched partitions, from coarse to fine:
 *
 *   1. seeds    the paper's partition; then, for stage times from the longest layer's upwards, the
 *               stage numbers that greedy packing needs, with the stages evened out
 *   2. shapes   from the best seeds: a forward or backward stage more or less, a layer more or less
 *               in the fused stage, large stages first, last or spread, another round
 *   3. borders  from the best of these: single layers between stages (rp_search_shift_best())
 */
#include "core/partition/search.h"

#define SEED_PERCENT 40   /* share of the candidates */
#define SEED_STEP 32      /* stage times rise by 1/SEED_STEP from seed to seed */
#define SEED_STRIDE 8     /* steps between the first seeds; halved until every seed was tried */
#define BORDER_PERCENT 60 /* share of the candidates after seeds, kept for borders */
#define CLIMBS 4          /* one climb may spend 1/CLIMBS of the rest */

/* A dispatched partition by its numbers. */
typedef struct {
    guint fused;      /* layers of the fused stage */
    guint n_forward;  /* 0 only if all layers are fused */
    guint n_backward; /* without the fused stage */
    RpSplitOrder forward_order;
    RpSplitOrder backward_order; /* "first" is the first to run */
    guint round;
} Shape;

typedef struct {
    Shape shape;
    gint64 cost;
} Seed;

/* The change of a shape by one step to a neighbour. */
typedef struct {
    gint8 n_forward, n_backward, fused;
} Step;

/* The partition of a shape; NULL if it has more stages than the layers allow. */
static RpPartition *
build(const RpSearch *search, const Shape *shape)
{
    guint n_layers = search->profile->n_layers;
    if (shape->fused == 0 || shape->fused > n_layers)
        return NULL;
    guint k = n_layers - shape->fused;
    guint lead = k > 1 ? search->lead : 0;
    if (shape->n_forward > k - lead || shape->n_backward > k - lead ||
        (k > 0) != (shape->n_forward > 0) || (k > 0) != (shape->n_backward > 0))
        return NULL;
    g_autofree gint64 *weights = g_new(gint64, k + 1);
    g_autofree guint *counts = g_new(guint, k + 1);
    g_autofree RpInterval *forward = g_new(RpInterval, k + 1);
    g_autofree RpInterval *backward = g_new(RpInterval, k + 1);
    backward[0] = (RpInterval){k, shape->fused};
    if (k > 0) {
        guint n = rp_search_weights(search, k, RP_PHASE_FORWARD, FALSE, weights);
        rp_partition_split(weights, n, shape->n_forward, shape->forward_order, counts);
        counts[0] += lead;
        for (guint s = 0, first = 0; s < shape->n_forward; first += counts[s], s++)
            forward[s] = (RpInterval){first, counts[s]};
        rp_search_weights(search, k, RP_PHASE_BACKWARD, TRUE, weights);
        rp_partition_split(weights, n, shape->n_backward, shape->backward_order, counts);
        counts[shape->n_backward - 1] += lead;
        for (guint s = 0, end = k; s < shape->n_backward; end -= counts[s], s++)
            backward[s + 1] = (RpInterval){end - counts[s], counts[s]};
    }
    return rp_partition_new_dispatched(forward, shape->n_forward, backward, 1 + shape->n_backward);
}

static gint64
judge_shape(RpSearch *search, const Shape *shape)
{
    g_autoptr(RpPartition) partition = build(search, shape);
    return partition != NULL ? rp_search_judge(search, partition, shape->round) : G_MAXINT64;
}

/* How many runs of at most @t the weights need; a longer single weight is a run of its own. */
static guint
count_runs(const gint64 *weights, guint n, gint64 t)
{
    guint runs = 0;
    gint64 sum = 0;
    for (guint i = 0; i < n; i++) {
        sum += weights[i];
        if (i == 0 || sum > t) {
            runs++;
            sum = weights[i];
        }
    }
    return runs;
}

/* The stage numbers for stages of about @t, the fused one as long as it may be. */
static Shape
shape_for_time(const RpSearch *search, gint64 t, gint64 *weights)
{
    const RpProfile *profile = search->profile;
    guint k = profile->n_layers;
    gint64 fused = 0;
    while (k > 0) {
        fused += rp_stage_time_ns(profile, (RpInterval){k - 1, 1}, RP_PHASE_FUSED, NULL);
        if (fused > t && k < profile->n_layers)
            break;
        k--;
    }
    Shape shape = {.fused = profile->n_layers - k,
                   .forward_order = RP_SPLIT_SMALL_FIRST,
                   .backward_order = RP_SPLIT_LARGE_FIRST};
    guint n = rp_search_weights(search, k, RP_PHASE_FORWARD, FALSE, weights);
    shape.n_forward = count_runs(weights, n, t);
    rp_search_weights(search, k, RP_PHASE_BACKWARD, TRUE, weights);
    shape.n_backward = count_runs(weights, n, t);
    return shape;
}

static gint
compare_seeds(gconstpointer a, gconstpointer b)
{
    const Seed *x = a, *y = b;
    return (x->cost > y->cost) - (x->cost < y->cost);
}

/* Rounds that may be tried: (element-type guint), largest first. */
static GArray *
list_rounds(const RpPartitionSearch *limits)
{
    GArray *rounds = g_array_new(FALSE, FALSE, sizeof(guint));
    if (limits->round > 0) {
        g_array_append_val(rounds, limits->round);
        return rounds;
    }
    guint m = limits->micro_batches;
    for (guint n = 1; n <= m / limits->gpus; n++) {
        guint round = m / n;
        if (m % n == 0)
            g_array_append_val(rounds, round);
    }
    if (rounds->len == 0) /* fewer micro-batches than devices */
        g_array_append_val(rounds, m);
    return rounds;
}

static gboolean
has_seed(const GArray *seeds, const Shape *shape)
{
    for (guint s = 0; s < seeds->len; s++) {
        const Shape *other = &g_array_index(seeds, Seed, s).shape;
        if (other->fused == shape->fused && other->n_forward == shape->n_forward &&
            other->n_backward == shape->n_backward && other->round == shape->round)
            return TRUE;
    }
    return FALSE;
}

static void
add_seeds(RpSearch *search, Shape shape, const GArray *rounds, GArray *seeds)
{
    for (guint r = 0; r < rounds->len; r++) {
        shape.round = g_array_index(rounds, guint, r);
        if (has_seed(seeds, &shape))
            continue;
        Seed seed = {shape, judge_shape(search, &shape)};
        if (seed.cost < G_MAXINT64)
            g_array_append_val(seeds, seed);
    }
}

/* Seeds for stage times from the longest layer's to that of all layers, in coarse steps first.
 * All layers in one stage first of all: its rounds run beside each other and recompute nothing. */
static void
judge_seeds(RpSearch *search, const GArray *rounds, GArray *seeds)
{
    guint n_layers = search->profile->n_layers;
    g_autofree gint64 *weights = g_new(gint64, n_layers + 1);
    gint64 least = 1, total = 1;
    for (guint i = 0; i < n_layers; i++) {
        RpInterval layer = {i, 1};
        least = MAX(least, rp_stage_time_ns(search->profile, layer, RP_PHASE_FORWARD, NULL));
        total += rp_stage_time_ns(search->profile, layer, RP_PHASE_FUSED, NULL);
    }
    g_autoptr(GArray) times = g_array_new(FALSE, FALSE, sizeof(gint64));
    for (gint64 t = least; t <= total; t += t / SEED_STEP + 1)
        g_array_append_val(times, t);
    guint stop = search->left - (guint)((guint64)search->left * SEED_PERCENT / 100);
    add_seeds(search, shape_for_time(search, total, weights), rounds, seeds);
    for (guint stride = SEED_STRIDE; stride > 0; stride /= 2) {
        for (guint i = 0; i < times->len && search->left > stop; i += stride) {
            gint64 t = g_array_index(times, gint64, i);
            add_seeds(search, shape_for_time(search, t, weights), rounds, seeds);
        }
    }
    g_array_sort(seeds, compare_seeds);
}

/* The @i-th neighbour of @shape; FALSE if there is none with that number. */
static gboolean
neighbour(const Shape *shape, guint i, const GArray *rounds, Shape *other)
{
    static const Step steps[] = {{1, 0, 0}, {0, 1, 0},   {-1, 0, 0}, {0, -1, 0},
                                 {0, 0, 1}, {0, 0, -1},  {1, -1, 0}, {-1, 1, 0},
                                 {1, 1, 0}, {-1, -1, 0}, {0, -1, 1}, {0, 1, -1}};
    *other = *shape;
    if (i < G_N_ELEMENTS(steps)) {
        other->n_forward += (guint)steps[i].n_forward;
        other->n_backward += (guint)steps[i].n_backward;
        other->fused += (guint)steps[i].fused;
        return TRUE;
    }
    i -= G_N_ELEMENTS(steps);
    if (i <= RP_SPLIT_EVEN) {
        other->forward_order = (RpSplitOrder)i;
        return TRUE;
    }
    i -= RP_SPLIT_EVEN + 1;
    if (i <= RP_SPLIT_EVEN) {
        other->backward_order = (RpSplitOrder)i;
        return TRUE;
    }
    i -= RP_SPLIT_EVEN + 1;
    if (i < rounds->len) {
        other->round = g_array_index(rounds, guint, i);
        return TRUE;
    }
    return FALSE;
}

/* Goes to the best neighbour while it is better; spends @most candidates. */
static void
climb(RpSearch *search, Seed seed, const GArray *rounds, guint most)
{
    guint stop = search->left - MIN(most, search->left);
    for (;;) {
        Seed best = seed;
        Shape other;
        for (guint i = 0; neighbour(&seed.shape, i, rounds, &other); i++) {
            if (search->left <= stop)
                return;
            gint64 cost = judge_shape(search, &other);
            if (cost < best.cost)
                best = (Seed){other, cost};
        }
        if (best.cost == seed.cost)
            return;
        seed = best;
    }
}

/* Climbs from the best seed of each round, then the second best, ..., until @reserve is left. */
static void
climb_seeds(RpSearch *search, const GArray *seeds, const GArray *rounds, guint reserve)
{
    guint share = MAX(search->left / CLIMBS, 1);
    g_autofree guint *next = g_new0(guint, rounds->len);
    for (guint idle = 0, r = 0; idle < rounds->len; r = (r + 1) % rounds->len) {
        guint round = g_array_index(rounds, guint, r), s = next[r];
        while (s < seeds->len && g_array_index(seeds, Seed, s).shape.round != round)
            s++;
        next[r] = s + 1;
        if (s >= seeds->len) {
            next[r] = seeds->len;
            idle++;
            continue;
        }
        idle = 0;
        if (search->left <= reserve)
            return;
        climb(search, g_array_index(seeds, Seed, s), rounds, MIN(share, search->left - reserve));
    }
}

RpPartition *
rp_partition_search_dispatched(const RpProfile *profile, const RpPartitionSearch *search,
                               RpPartitionCost cost, gpointer user_data, guint *best_round,
                               GError **error)
{
    g_return_val_if_fail(profile != NULL && profile->n_layers > 0 && search != NULL, NULL);
    g_return_val_if_fail(search->gpus > 0 && search->micro_batches > 0 && cost != NULL, NULL);

    g_autoptr(RpPartition) paper = rp_partition_paper(profile, search->gpus, search->micro_batches,
                                                      search->memory_bytes, error);
    if (paper == NULL)
        return NULL;
    RpSearch state;
    rp_search_init(&state, profile, search, cost, user_data);
    g_autoptr(GArray) rounds = list_rounds(search);
    g_autoptr(GArray) seeds = g_array_new(FALSE, FALSE, sizeof(Seed));
    for (guint r = 0; r < rounds->len; r++)
        rp_search_judge(&state, paper, g_array_index(rounds, guint, r));
    judge_seeds(&state, rounds, seeds);
    climb_seeds(&state, seeds, rounds, (guint)((guint64)state.left * BORDER_PERCENT / 100));
    rp_search_shift_best(&state);
    climb_seeds(&state, seeds, rounds, 0); /* where borders took less than their share */
    rp_search_shift_best(&state);
    return rp_search_end(&state, best_round, error);
}
