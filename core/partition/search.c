/*
 * The search for dispatched partitions, from coarse to fine. A cost is far dearer than a candidate, so
 * none is computed twice:
 *
 *   1. seeds    the paper's partition; then, for stage times from the longest layer's upwards, the
 *               stage numbers that greedy packing needs, with the stages evened out
 *   2. shapes   from the best seeds: a forward or backward stage more or less, a layer more or less
 *               in the fused stage, large stages first, last or spread, another round
 *   3. borders  from the best of these: single layers between stages
 *
 * No candidate is dropped by a bound on its cost: a cost may be anything. All orders are fixed, so the
 * same cost gives the same result.
 */
#include "core/partition/partition.h"

#define DEFAULT_CANDIDATES 400
#define REFUSALS_PER_CANDIDATE 20
#define MAX_BORDER_RUN 8
#define SEED_PERCENT 40   /* share of the candidates */
#define SEED_STEP 32      /* stage times rise by 1/SEED_STEP from seed to seed */
#define SEED_STRIDE 8     /* steps between the first seeds; halved until every seed was tried */
#define BORDER_PERCENT 60 /* share of the candidates after seeds, kept for borders */
#define CLIMBS 4          /* one climb may spend 1/CLIMBS of the rest */

typedef struct {
    const RpProfile *profile;
    RpPartitionSearch limits;
    RpPartitionCost cost;
    gpointer user_data;
    guint lead;        /* 1 if layer 0 is an embedding, which stands with the next layer */
    guint left;        /* candidates whose cost may still be computed */
    guint budget;      /* candidates at first */
    guint refused;     /* found impossible, which does not count as a candidate */
    GHashTable *known; /* GBytes of round and stage lengths -> gint64 *: its cost */
    RpPartition *best; /* NULL until a candidate can run */
    guint best_round;
    gint64 best_cost;
} RpSearch;

static void
begin(RpSearch *search, const RpProfile *profile, const RpPartitionSearch *limits,
      RpPartitionCost cost, gpointer user_data)
{
    *search = (RpSearch){.profile = profile,
                         .limits = *limits,
                         .cost = cost,
                         .user_data = user_data,
                         .best_cost = G_MAXINT64};
    search->lead = profile->n_layers > 1 && profile->layers[0].kind == RP_LAYER_EMBEDDING;
    search->left = limits->max_candidates > 0 ? limits->max_candidates : DEFAULT_CANDIDATES;
    search->budget = search->left;
    search->known =
        g_hash_table_new_full(g_bytes_hash, g_bytes_equal, (GDestroyNotify)g_bytes_unref, g_free);
}

static GBytes *
key_of(const RpPartition *partition, guint round)
{
    guint n = 2 + partition->n_forward + partition->n_backward, at = 0;
    guint *key = g_new(guint, n);
    key[at++] = round;
    key[at++] = partition->n_forward;
    for (guint s = 0; s < partition->n_forward; s++)
        key[at++] = partition->forward[s].count;
    for (guint s = 0; s < partition->n_backward; s++)
        key[at++] = partition->backward[s].count;
    return g_bytes_new_take(key, n * sizeof *key);
}

static gboolean
fits_each(const RpSearch *search, const RpInterval *stages, guint n, RpPhase first, RpPhase others)
{
    for (guint s = 0; s < n && search->limits.memory_bytes > 0; s++)
        if (rp_stage_memory_bytes(search->profile, stages[s], s == 0 ? first : others) >
            search->limits.memory_bytes)
            return FALSE;
    return TRUE;
}

static gboolean
fits_memory(const RpSearch *search, const RpPartition *partition)
{
    return fits_each(search, partition->forward, partition->n_forward, RP_PHASE_FORWARD,
                     RP_PHASE_FORWARD) &&
           fits_each(search, partition->backward, partition->n_backward, RP_PHASE_FUSED,
                     RP_PHASE_BACKWARD);
}

/* The cost of a candidate: known, or computed now. G_MAXINT64 if it cannot run or none are left. */
static gint64
judge(RpSearch *search, const RpPartition *partition, guint round)
{
    g_autoptr(GBytes) key = key_of(partition, round);
    const gint64 *known = g_hash_table_lookup(search->known, key);
    if (known != NULL)
        return *known;
    gint64 cost = G_MAXINT64;
    if (fits_memory(search, partition)) {
        if (search->left == 0)
            return G_MAXINT64;
        cost = search->cost(partition, round, search->user_data);
        /* a candidate that cannot run is refused quickly and costs nothing, within reason */
        if (cost < G_MAXINT64 || search->refused >= REFUSALS_PER_CANDIDATE * search->budget)
            search->left--;
        else
            search->refused++;
    }
    g_hash_table_insert(search->known, g_steal_pointer(&key), g_memdup2(&cost, sizeof cost));
    if (cost < search->best_cost) {
        rp_partition_free(search->best);
        search->best = rp_partition_copy(partition);
        search->best_round = round;
        search->best_cost = cost;
    }
    return cost;
}

/* Frees the search's memory. Returns: (transfer full): the best candidate; %NULL with RP_PARTITION_ERROR_IMPOSSIBLE */
static RpPartition *
end_search(RpSearch *search, guint *best_round, GError **error)
{
    RpPartition *best = g_steal_pointer(&search->best);
    if (best == NULL) {
        g_set_error(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_IMPOSSIBLE,
                    "none of the %u partitions that were tried can run",
                    g_hash_table_size(search->known));
    } else if (best_round != NULL) {
        *best_round = search->best_round;
    }
    g_hash_table_unref(search->known);
    return best;
}

/* Times of the single layers [0, @k), an embedding's added to the next layer's; @downwards: from layer k - 1 on.
 * Returns: how many, @k less an embedding */
static guint
read_weights(const RpSearch *search, guint k, RpPhase phase, gboolean downwards, gint64 *weights)
{
    guint lead = k > 1 ? search->lead : 0, n = k - lead;
    for (guint i = 0; i < n; i++)
        weights[i] = 0;
    for (guint i = 0; i < k; i++) {
        guint item = i < lead ? 0 : i - lead;
        gint64 *weight = &weights[downwards ? n - 1 - item : item];
        *weight += rp_stage_time_ns(search->profile, (RpInterval){i, 1}, phase, NULL);
        if (phase == RP_PHASE_BACKWARD) /* most layers are not the last of their stage */
            *weight += rp_layer_saving_ns(&search->profile->layers[i]);
    }
    return n;
}

/* The borders between stages in the order of slots: forward ones upwards, the lower end of the
 * fused stage, backward ones downwards. Returns: how many. */
static guint
read_borders(const RpPartition *partition, guint *borders)
{
    guint n = 0;
    for (guint s = 0; s < partition->n_forward; s++)
        borders[n++] = partition->forward[s].first + partition->forward[s].count;
    for (guint s = 1; s + 1 < partition->n_backward; s++)
        borders[n++] = partition->backward[s].first;
    return n;
}

/* The partition with as many stages as @like and these @borders: the upper borders of the forward
 * stages, upwards, then the lower borders of the backward stages between the fused and the last one,
 * downwards. %NULL if a stage would be empty. */
static RpPartition *
partition_between(const RpSearch *search, const RpPartition *like, const guint *borders)
{
    guint n_layers = search->profile->n_layers, n_forward = like->n_forward;
    g_autofree RpInterval *forward = g_new(RpInterval, n_forward);
    g_autofree RpInterval *backward = g_new(RpInterval, like->n_backward);
    guint at = 0;
    for (guint s = 0; s < n_forward; s++) {
        guint end = borders[s];
        if (end > n_layers || end < at + 1)
            return NULL;
        forward[s] = (RpInterval){at, end - at};
        at = end;
    }
    at = n_layers;
    for (guint s = 0; s < like->n_backward; s++) {
        guint first = s + 1 < like->n_backward ? borders[n_forward - 1 + s] : 0;
        if (first >= at)
            return NULL;
        backward[s] = (RpInterval){first, at - first};
        at = first;
    }
    return rp_partition_new_dispatched(forward, n_forward, backward, like->n_backward);
}

/* Shifts runs of borders by one layer as long as that helps, from the best candidate on: short runs first.
 * A run takes a layer from the stage at one end of it and gives it to the stage at the other end:
 *
 *   [0 1 2][3 4 5][6 7]   both borders up   [0 1 2 3][4 5 6][7]
 */
static void
shift_best(RpSearch *search)
{
    if (search->best == NULL)
        return;
    g_autoptr(RpPartition) at = rp_partition_copy(search->best);
    const guint round = search->best_round;
    g_autofree guint *borders = g_new(guint, 2 * (gsize)search->profile->n_layers + 2);
    guint n = read_borders(at, borders);
    gint64 cost = judge(search, at, round);
    gboolean improved = TRUE;
    while (improved) {
        improved = FALSE;
        for (guint length = 1; length <= MIN(n, MAX_BORDER_RUN); length++) {
            for (guint i = 0; i < 2 * (n - length + 1); i++) {
                guint step = i % 2 == 0 ? 1 : G_MAXUINT; /* up, down */
                if (search->left == 0)
                    return;
                for (guint b = 0; b < length; b++)
                    borders[i / 2 + b] += step;
                g_autoptr(RpPartition) other = partition_between(search, at, borders);
                gint64 found = other != NULL ? judge(search, other, round) : G_MAXINT64;
                if (found < cost) {
                    cost = found;
                    improved = TRUE;
                    continue;
                }
                for (guint b = 0; b < length; b++)
                    borders[i / 2 + b] -= step;
            }
        }
    }
}

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
        guint n = read_weights(search, k, RP_PHASE_FORWARD, FALSE, weights);
        rp_partition_split(weights, n, shape->n_forward, shape->forward_order, counts);
        counts[0] += lead;
        for (guint s = 0, first = 0; s < shape->n_forward; first += counts[s], s++)
            forward[s] = (RpInterval){first, counts[s]};
        read_weights(search, k, RP_PHASE_BACKWARD, TRUE, weights);
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
    return partition != NULL ? judge(search, partition, shape->round) : G_MAXINT64;
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
    guint n = read_weights(search, k, RP_PHASE_FORWARD, FALSE, weights);
    shape.n_forward = count_runs(weights, n, t);
    read_weights(search, k, RP_PHASE_BACKWARD, TRUE, weights);
    shape.n_backward = count_runs(weights, n, t);
    return shape;
}

static gint
compare_seeds(gconstpointer a, gconstpointer b)
{
    const Seed *x = a, *y = b;
    return (x->cost > y->cost) - (x->cost < y->cost);
}

GArray *
rp_partition_rounds(guint gpus, guint micro_batches, guint fixed)
{
    GArray *rounds = g_array_new(FALSE, FALSE, sizeof(guint));

    if (fixed > 0) {
        g_array_append_val(rounds, fixed);
        return rounds;
    }
    for (guint n = 1; n <= micro_batches / gpus; n++) {
        const guint round = micro_batches / n;

        if (micro_batches % n == 0)
            g_array_append_val(rounds, round);
    }
    if (rounds->len == 0) /* fewer micro-batches than devices */
        g_array_append_val(rounds, micro_batches);
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
    begin(&state, profile, search, cost, user_data);
    g_autoptr(GArray) rounds =
        rp_partition_rounds(search->gpus, search->micro_batches, search->round);
    g_autoptr(GArray) seeds = g_array_new(FALSE, FALSE, sizeof(Seed));
    for (guint r = 0; r < rounds->len; r++)
        judge(&state, paper, g_array_index(rounds, guint, r));
    judge_seeds(&state, rounds, seeds);
    climb_seeds(&state, seeds, rounds, (guint)((guint64)state.left * BORDER_PERCENT / 100));
    shift_best(&state);
    climb_seeds(&state, seeds, rounds, 0); /* where borders took less than their share */
    shift_best(&state);
    return end_search(&state, best_round, error);
}
