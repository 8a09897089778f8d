#include "sim/recurrence/recurrence.h"

#include <string.h>

#define STATES 4         /* ends of rounds that the next one is compared with */
#define SLOT_OVERHEAD 10 /* what a slot costs beside its micro-batches, in actions */

#define LEAST_ASKED 1000 /* before that nothing is kept */
#define PLACES 32768     /* cuts whose answers are kept, each in one place; ... */
#define MOST_MARKS 256   /* ... not those with more marks */

/* Where an answer may be given up: what is asked for is below @bound_ns, after so many actions. */
typedef struct {
    gint64 bound_ns;
    guint64 actions;
} Mark;

/* The answer for a cut. A search comes back to the same cuts again and again. */
typedef struct {
    guint64 hash;
    RpSpan span;
    gint64 ns; /* G_MAXINT64: it was given up at the last mark */
    guint64 actions;
    guint n_forward, n_backward, n_marks;
    Mark *marks;     /* synchronous: each bound is above those before it */
    guint borders[]; /* up, then down; behind them the marks */
} Known;

/*
 * Ends of a slot's first and last action; those between are not computed. A slot's actions take equally long, d, so
 *
 *   end(m) = max(lane + (m + 1) d, max over k <= m: ready(k) + (m - k + 1) d)
 *
 * Where ready is convex in m, as ends of slots before are, ready(k) - k d is largest at k = 0 or m:
 *
 *   end(m) = max(max(lane, ready(0)) + (m + 1) d, ready(m) + d)
 *
 * which is convex again. The first slot's ends are a straight line.
 */
typedef struct {
    gint64 first_ns, last_ns;
} Ends;

/* A slot of a round, ready to run. */
typedef struct {
    gint64 duration_ns;
    gint64 lead_ns;    /* may run before the slot in front of it has delivered */
    gint64 weight_ns;  /* split: W, behind what it delivers */
    guint stash;       /* forward slot that makes the input; RP_NONE: not waited for */
    guint weight_slot; /* asynchronous: makes the weights that it reads, an iteration ago, ... */
    guint weight_from; /* ... split: as do all slots from this one on */
} Slot;

struct _RpRecurrence {
    guint n_layers;
    guint gpus;
    gint64 hop_ns;
    gboolean async, early, early_fused, split;
    /* sums over the layers before an index */
    gint64 *forward, *recompute, *backward, *weight;
    gint64 *saving; /* of a backward stage that ends before an index */
    /* of the cut that runs */
    Slot *slots;
    guint n_slots;
    Ends *ends;       /* by slot of the round that runs */
    gint64 *lasts[3]; /* [iteration mod 3][slot]: end of its last action */
    gint64 *lanes;    /* by device: end of its last action, ns */
    gint64 *left;     /* by device: work that has not run */
    gint64 *states;   /* synchronous: relative lanes after the last rounds */
    gint64 *tails;    /* by slot: the least from its end to the end of the round */
    guint64 actions;
    Known **known; /* by hash; NULL: few were asked yet */
    guint n_asked;
    Mark marks[MOST_MARKS];
    guint n_marks;
    guint64 begin; /* actions before the cut that runs */
};

RpRecurrence *
rp_recurrence_new(const RpProfile *profile, const RpPlanOptions *options)
{
    RpRecurrence *recurrence = g_new0(RpRecurrence, 1);
    const gsize n = profile->n_layers;

    recurrence->n_layers = profile->n_layers;
    recurrence->gpus = options->gpus;
    recurrence->hop_ns =
        options->gpus > 1 ? MIN(profile->links.hop_ns, (gint64)G_MAXUINT32 - 1) : 0;
    recurrence->async = options->async;
    recurrence->early = options->recompute == RP_RECOMPUTE_EARLY;
    recurrence->early_fused = recurrence->early && options->fused_forward == RP_FUSED_PUBLISHED;
    recurrence->split = options->schedule->split_backward;
    recurrence->forward = g_new0(gint64, n + 1);
    recurrence->recompute = g_new0(gint64, n + 1);
    recurrence->backward = g_new0(gint64, n + 1);
    recurrence->weight = g_new0(gint64, n + 1);
    recurrence->saving = g_new0(gint64, n + 1);
    for (gsize l = 0; l < n; l++) {
        const RpLayer *layer = &profile->layers[l];

        recurrence->forward[l + 1] = recurrence->forward[l] + layer->forward_ns;
        recurrence->backward[l + 1] = recurrence->backward[l] + layer->backward_ns;
        recurrence->weight[l + 1] = recurrence->weight[l] + layer->weight_gradient_ns;
        recurrence->recompute[l + 1] =
            recurrence->recompute[l] +
            (layer->kind == RP_LAYER_BLOCK ? rp_layer_recompute_ns(layer) : 0);
        recurrence->saving[l + 1] = rp_layer_saving_ns(layer);
    }
    recurrence->slots = g_new0(Slot, 2 * n + 1);
    recurrence->ends = g_new0(Ends, 2 * n + 1);
    recurrence->tails = g_new0(gint64, 2 * n + 1);
    for (guint i = 0; i < 3; i++)
        recurrence->lasts[i] = g_new0(gint64, 2 * n + 1);
    recurrence->lanes = g_new0(gint64, options->gpus);
    recurrence->left = g_new0(gint64, options->gpus);
    recurrence->states = g_new0(gint64, (gsize)STATES * options->gpus);
    return recurrence;
}

void
rp_recurrence_free(RpRecurrence *recurrence)
{
    if (recurrence == NULL)
        return;
    g_free(recurrence->forward);
    g_free(recurrence->recompute);
    g_free(recurrence->backward);
    g_free(recurrence->weight);
    g_free(recurrence->saving);
    g_free(recurrence->slots);
    g_free(recurrence->tails);
    g_free(recurrence->ends);
    for (guint i = 0; i < 3; i++)
        g_free(recurrence->lasts[i]);
    g_free(recurrence->lanes);
    g_free(recurrence->left);
    g_free(recurrence->states);
    for (guint i = 0; recurrence->known != NULL && i < PLACES; i++)
        g_free(recurrence->known[i]);
    g_free(recurrence->known);
    g_free(recurrence);
}

guint64
rp_recurrence_actions(const RpRecurrence *recurrence)
{
    return recurrence->actions;
}

static inline gint64
sum(const gint64 *sums, guint first, guint end)
{
    return sums[end] - sums[first];
}

/* Time of @cut's slots, one micro-batch each; @slot counts forward stages first. */
static gint64
slot_ns(const RpRecurrence *recurrence, const RpCut *cut, guint slot)
{
    if (slot < cut->n_forward)
        return sum(recurrence->forward, cut->up[slot], cut->up[slot + 1]);

    const guint b = slot - cut->n_forward;
    const guint first = cut->down[b + 1], end = cut->down[b];
    const gint64 backward = sum(recurrence->backward, first, end);

    return b == 0 ? backward + sum(recurrence->forward, first, end)
                  : backward + sum(recurrence->recompute, first, end) - recurrence->saving[end];
}

gint64
rp_recurrence_work_ns(const RpRecurrence *recurrence, const RpCut *cut)
{
    gint64 work = 0;

    for (guint i = 0; i < rp_cut_slots(cut); i++)
        work += slot_ns(recurrence, cut, i);
    return work;
}

/* Lays the slots of @cut out as the planner does (core/plan/planner.c). */
static void
lay_slots(RpRecurrence *recurrence, const RpCut *cut)
{
    guint stash = cut->n_forward, maker = 0, from = 0;

    recurrence->n_slots = rp_cut_slots(cut);
    for (guint b = 0; b < cut->n_backward; b++) {
        const guint first = cut->down[b + 1], end = cut->down[b];
        Slot *slot = &recurrence->slots[cut->n_forward + b];

        *slot = (Slot){.duration_ns = sum(recurrence->backward, first, end), .stash = RP_NONE};
        slot->weight_slot = b == 0 ? cut->n_forward : RP_NONE;
        slot->weight_from = slot->weight_slot;
        if (b == 0) {
            const gint64 forward = sum(recurrence->forward, first, end);

            slot->duration_ns += forward;
            slot->lead_ns = recurrence->early_fused ? forward : 0;
            continue;
        }
        const gint64 recompute = sum(recurrence->recompute, first, end) - recurrence->saving[end];

        slot->duration_ns += recompute;
        slot->weight_ns = recurrence->split ? sum(recurrence->weight, first, end) : 0;
        if (!recurrence->early)
            continue;
        slot->lead_ns = recompute;
        while (stash > 0 && cut->up[stash - 1] >= first)
            stash--;
        if (first > 0)
            slot->stash = stash - 1;
    }
    for (guint s = cut->n_forward; s-- > 0;) {
        while (cut->down[maker + 1] > cut->up[s])
            maker++;
        while (recurrence->split && cut->down[from + 1] >= cut->up[s + 1])
            from++;
        recurrence->slots[s] = (Slot){
            .duration_ns = sum(recurrence->forward, cut->up[s], cut->up[s + 1]),
            .stash = RP_NONE,
            .weight_slot = cut->n_forward + maker,
            .weight_from = cut->n_forward + (recurrence->split ? from : maker),
        };
    }
    gint64 tail = 0; /* from what the slot delivers */
    for (guint i = recurrence->n_slots; i-- > 0;) {
        const Slot *slot = &recurrence->slots[i];

        recurrence->tails[i] = MAX(0, tail - slot->weight_ns);
        tail = MAX(tail, slot->weight_ns) + slot->duration_ns - slot->weight_ns - slot->lead_ns +
               (i > 0 ? recurrence->hop_ns : 0);
    }
}

/* The @n actions of one slot on a device that is free at @lane_ns. @ready: when the first and the last may start */
static inline Ends
run_slot(gint64 lane_ns, const Ends *ready, gint64 duration_ns, guint n)
{
    const gint64 start_ns = MAX(lane_ns, ready->first_ns);

    return (Ends){start_ns + duration_ns,
                  MAX(start_ns + n * duration_ns, ready->last_ns + duration_ns)};
}

/* No less than @bound_ns, as the actions until now have shown. Returns: whether that is above @most_ns */
static gboolean
gives_up(RpRecurrence *recurrence, gint64 bound_ns, gint64 most_ns)
{
    const guint n = recurrence->n_marks;

    if (n <= MOST_MARKS && (n == 0 || bound_ns > recurrence->marks[n - 1].bound_ns)) {
        if (n < MOST_MARKS)
            recurrence->marks[n] = (Mark){bound_ns, recurrence->actions - recurrence->begin};
        recurrence->n_marks++;
    }
    return bound_ns > most_ns;
}

/* One round, its first slot on @first_gpu. Returns: FALSE if it cannot end by @most_ns. */
static gboolean
run_round(RpRecurrence *recurrence, const RpSpan *span, guint first_gpu, guint iteration,
          gint64 most_ns, gint64 *start_ns)
{
    const guint n = span->round;
    const gint64 *waited = iteration >= 2 ? recurrence->lasts[(iteration - 2) % 3] : NULL;
    gint64 *last = recurrence->lasts[iteration % 3];
    const gint64 hop_ns = recurrence->hop_ns;
    guint gpu = first_gpu;

    for (guint i = 0; i < recurrence->n_slots; i++) {
        const Slot *slot = &recurrence->slots[i];
        gint64 lane = recurrence->lanes[gpu];
        Ends ready = {lane, lane};

        if (recurrence->async && waited != NULL && slot->weight_slot != RP_NONE)
            for (guint w = slot->weight_from; w <= slot->weight_slot; w++)
                lane = MAX(lane, waited[w]);
        if (i > 0) {
            const Ends *from = &recurrence->ends[i - 1];
            const gint64 late_ns = hop_ns - slot->lead_ns - slot[-1].weight_ns;

            ready = (Ends){from->first_ns + late_ns, from->last_ns + late_ns};
        }
        if (slot->stash != RP_NONE) {
            const Ends *stash = &recurrence->ends[slot->stash];
            /* the same device: no hop */
            const gint64 late_ns = (i - slot->stash) % recurrence->gpus == 0 ? 0 : hop_ns;

            ready = (Ends){MAX(ready.first_ns, stash->first_ns + late_ns),
                           MAX(ready.last_ns, stash->last_ns + late_ns)};
        }
        const Ends ends = run_slot(lane, &ready, slot->duration_ns, n);

        recurrence->ends[i] = ends;
        lane = ends.last_ns;
        recurrence->lanes[gpu] = lane;
        *start_ns = MIN(*start_ns, ends.first_ns - slot->duration_ns);
        last[i] = MAX(last[i], lane);
        recurrence->left[gpu] -= n * slot->duration_ns;
        recurrence->actions += n;
        if (!recurrence->async &&
            gives_up(recurrence, lane + MAX(recurrence->left[gpu], recurrence->tails[i]), most_ns))
            return FALSE;
        gpu = gpu + 1 < recurrence->gpus ? gpu + 1 : 0;
    }
    return TRUE;
}

/* The work of each device. Returns: the largest. */
static gint64
deal_out(RpRecurrence *recurrence, const RpSpan *span)
{
    const guint gpus = recurrence->gpus;
    const guint rounds = span->micro_batches / span->round;
    /* as rounds rotate, all is as before after so many */
    gint64 most = 0;
    guint gpu = 0;

    memset(recurrence->left, 0, gpus * sizeof *recurrence->left);
    for (guint r = 0; r < rounds; r++) {
        for (guint i = 0; i < recurrence->n_slots; i++) {
            recurrence->left[gpu] += span->round * recurrence->slots[i].duration_ns;
            gpu = gpu + 1 < gpus ? gpu + 1 : 0;
        }
        recurrence->actions += recurrence->n_slots;
        if (gpu == 0 && rounds % (r + 1) == 0) { /* whole turns of all devices */
            for (guint g = 0; g < gpus; g++)
                recurrence->left[g] *= rounds / (r + 1);
            break;
        }
    }
    for (guint g = 0; g < gpus; g++)
        most = MAX(most, recurrence->left[g]);
    return most;
}

/* Whether the round ended as one of the last ones did, relative to its first device. Then all that
 * follows repeats. Returns: how many rounds ago, or 0; @shift_ns: by how much later. */
static guint
find_state(RpRecurrence *recurrence, guint round, guint next_gpu, gint64 *references,
           gint64 *shift_ns)
{
    const guint gpus = recurrence->gpus;
    const gint64 reference = recurrence->lanes[next_gpu];
    gint64 *state = recurrence->states + (gsize)(round % STATES) * gpus;

    for (guint g = 0; g < gpus; g++) {
        const guint gpu = next_gpu + g < gpus ? next_gpu + g : next_gpu + g - gpus;

        state[g] = recurrence->lanes[gpu] - reference;
    }
    references[round % STATES] = reference;
    for (guint ago = 1; ago < STATES && ago <= round; ago++) {
        const guint other = (round - ago) % STATES;

        if (memcmp(state, recurrence->states + (gsize)other * gpus, gpus * sizeof *state) == 0) {
            *shift_ns = reference - references[other];
            return ago;
        }
    }
    return 0;
}

/* One iteration with a flush at its end. */
static gint64
run_sync(RpRecurrence *recurrence, const RpSpan *span, gint64 most_ns)
{
    const guint gpus = recurrence->gpus;
    const guint rounds = span->micro_batches / span->round;
    gint64 references[STATES], unused = 0, end_ns = 0;
    guint gpu = 0;

    if (gives_up(recurrence, deal_out(recurrence, span), most_ns))
        return G_MAXINT64;
    for (guint r = 0; r < rounds; r++) {
        gint64 shift_ns = 0;

        if (!run_round(recurrence, span, gpu, 0, most_ns, &unused))
            return G_MAXINT64;
        gpu = (gpu + recurrence->n_slots) % gpus;
        if (r + 1 == rounds || rounds < STATES)
            continue;
        const guint ago = find_state(recurrence, r, gpu, references, &shift_ns);
        if (ago == 0)
            continue;
        /* all rounds from here on follow in steps of @ago: those before the rest are skipped */
        const guint steps = (rounds - 1 - r) / ago;

        for (guint g = 0; g < gpus; g++)
            recurrence->lanes[g] += steps * shift_ns;
        gint64 *turned = recurrence->states;
        const guint turn = (guint)((guint64)steps * ago % gpus * recurrence->n_slots % gpus);

        for (guint g = 0; g < gpus; g++)
            turned[(g + turn) % gpus] = recurrence->lanes[g];
        memcpy(recurrence->lanes, turned, gpus * sizeof *turned);
        gpu = (gpu + turn) % gpus;
        memset(recurrence->left, 0, gpus * sizeof *recurrence->left);
        for (r += steps * ago; r + 1 < rounds; r++) {
            if (!run_round(recurrence, span, gpu, 0, most_ns, &unused))
                return G_MAXINT64;
            gpu = (gpu + recurrence->n_slots) % gpus;
        }
        break;
    }
    for (guint g = 0; g < gpus; g++)
        end_ns = MAX(end_ns, recurrence->lanes[g]);
    return end_ns;
}

/* Whether two iterations have shifted every device by the same, @gpu being the first of the next
 * iteration. Iterations may take turns of two: an update is for the one after the next. */
static gboolean
is_steady(RpRecurrence *recurrence, guint iteration, guint gpu, gint64 *two_ns)
{
    const guint gpus = recurrence->gpus;
    gint64 *before = recurrence->states + (gsize)(iteration % 2) * gpus;
    gboolean same = iteration >= 2;

    *two_ns = recurrence->lanes[gpu] - before[0];
    for (guint g = 0; g < gpus; g++) {
        const guint of = gpu + g < gpus ? gpu + g : gpu + g - gpus;

        same = same && recurrence->lanes[of] - before[g] == *two_ns;
        before[g] = recurrence->lanes[of];
    }
    return same;
}

static double
sum_of_ends(const RpRecurrence *recurrence)
{
    double sum = 0;

    for (guint g = 0; g < recurrence->gpus; g++)
        sum += (double)recurrence->lanes[g];
    return sum;
}

/* Iterations one after the other. */
static gint64
run_async(RpRecurrence *recurrence, const RpSpan *span)
{
    const guint rounds = span->micro_batches / span->round;
    const gboolean settle = span->first == span->end;
    const guint half = span->end / 2;
    gint64 from_ns = 0, start_ns = 0, two_ns = 0;
    double half_ns = 0; /* settling: ends of all devices together */
    guint gpu = 0;

    for (guint t = 0; t <= span->end; t++) {
        start_ns = G_MAXINT64;
        memset(recurrence->lasts[t % 3], 0, recurrence->n_slots * sizeof(gint64));
        for (guint r = 0; r < rounds; r++) {
            run_round(recurrence, span, gpu, t, G_MAXINT64 / 2, &start_ns);
            gpu = (gpu + recurrence->n_slots) % recurrence->gpus;
        }
        if (settle && is_steady(recurrence, t, gpu, &two_ns))
            return (two_ns + 1) / 2;
        if (settle && t == half)
            half_ns = sum_of_ends(recurrence);
        if (t == span->first)
            from_ns = start_ns;
    }
    if (settle)
        return (gint64)((sum_of_ends(recurrence) - half_ns) / recurrence->gpus /
                        MAX(1, span->end - half));
    const gint64 n = MAX(1, span->end - span->first);

    return (start_ns - from_ns + n / 2) / n;
}

/* ---- answers that are known ---- */

static guint64
hash_of(const RpCut *cut, const RpSpan *span)
{
    const guint64 prime = G_GUINT64_CONSTANT(1099511628211); /* FNV-1a */
    guint64 hash = (G_GUINT64_CONSTANT(14695981039346656037) ^ span->round) * prime;

    hash = ((hash ^ span->micro_batches) * prime ^ span->end) * prime;
    for (guint s = 0; s <= cut->n_forward; s++)
        hash = (hash ^ cut->up[s]) * prime;
    for (guint b = 0; b <= cut->n_backward; b++)
        hash = (hash ^ cut->down[b]) * prime;
    return hash ^ hash >> 32;
}

static gboolean
is_known(const Known *known, guint64 hash, const RpCut *cut, const RpSpan *span)
{
    return known != NULL && known->hash == hash && known->n_forward == cut->n_forward &&
           known->n_backward == cut->n_backward && memcmp(&known->span, span, sizeof *span) == 0 &&
           memcmp(known->borders, cut->up, (cut->n_forward + 1) * sizeof *cut->up) == 0 &&
           memcmp(known->borders + cut->n_forward + 1, cut->down,
                  (cut->n_backward + 1) * sizeof *cut->down) == 0;
}

/* As if it were computed. Returns: FALSE: it must be, for it was given up earlier than now */
static gboolean
answer(RpRecurrence *recurrence, const Known *known, gint64 most_ns, gint64 *ns)
{
    for (guint i = 0; i < known->n_marks; i++)
        if (known->marks[i].bound_ns > most_ns) {
            recurrence->actions += known->marks[i].actions;
            *ns = G_MAXINT64;
            return TRUE;
        }
    if (known->ns == G_MAXINT64)
        return FALSE;
    recurrence->actions += known->actions;
    *ns = known->ns;
    return TRUE;
}

static void
keep(RpRecurrence *recurrence, guint64 hash, const RpCut *cut, const RpSpan *span, gint64 ns)
{
    const guint n = recurrence->n_marks, n_borders = rp_cut_slots(cut) + 2;
    const gsize borders = (n_borders + n_borders % 2) * sizeof(guint);
    Known **place = &recurrence->known[hash % PLACES];

    if (n > MOST_MARKS)
        return;
    g_free(*place);
    Known *known = g_malloc(sizeof *known + borders + n * sizeof(Mark));

    *known = (Known){
        .hash = hash,
        .span = *span,
        .ns = ns,
        .actions = recurrence->actions - recurrence->begin,
        .n_forward = cut->n_forward,
        .n_backward = cut->n_backward,
        .n_marks = n,
        .marks = (Mark *)(gpointer)((char *)known->borders + borders),
    };
    memcpy(known->borders, cut->up, (cut->n_forward + 1) * sizeof *cut->up);
    memcpy(known->borders + cut->n_forward + 1, cut->down,
           (cut->n_backward + 1) * sizeof *cut->down);
    memcpy(known->marks, recurrence->marks, n * sizeof(Mark));
    *place = known;
}

static gint64
compute(RpRecurrence *recurrence, const RpCut *cut, const RpSpan *span, gint64 most_ns)
{
    lay_slots(recurrence, cut);
    recurrence->actions += (guint64)recurrence->n_slots * SLOT_OVERHEAD;
    memset(recurrence->lanes, 0, recurrence->gpus * sizeof *recurrence->lanes);
    if (!recurrence->async)
        return run_sync(recurrence, span, MIN(most_ns, G_MAXINT64 / 2));
    memset(recurrence->left, 0, recurrence->gpus * sizeof *recurrence->left);
    return run_async(recurrence, span);
}

gint64
rp_recurrence_time_ns(RpRecurrence *recurrence, const RpCut *cut, const RpSpan *span,
                      gint64 most_ns)
{
    const guint64 hash = hash_of(cut, span);
    gint64 ns;

    if (recurrence->known == NULL && ++recurrence->n_asked == LEAST_ASKED)
        recurrence->known = g_new0(Known *, PLACES);
    const Known *known = recurrence->known != NULL ? recurrence->known[hash % PLACES] : NULL;

    if (is_known(known, hash, cut, span) && answer(recurrence, known, most_ns, &ns))
        return ns;
    recurrence->begin = recurrence->actions;
    recurrence->n_marks = 0;
    ns = compute(recurrence, cut, span, most_ns);
    if (recurrence->known != NULL)
        keep(recurrence, hash, cut, span, ns);
    return ns;
}
