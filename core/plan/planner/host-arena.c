#include "core/plan/planner/host-arena.h"

#include "core/base/shard.h"
#include "core/plan/job/exchange.h"

#define FP32_BYTES 4
/* If this many slots are between a layer's backward slot and its next forward slot, its saved
 * tensors have left the buffer by then, however long hops take. */
#define LEAST_SLOTS_BETWEEN 4

struct _RpHostArena {
    const RpPlanJob *job;
    guint n_boundaries;
    guint32 *boundary;    /* [layer] -> number; RP_NONE */
    guint replicas;       /* groups of GPUs, each with buffers of its own */
    guint parities;       /* rounds that have buffers of their own */
    guint32 *activations; /* [(parity * n_boundaries + boundary) * M_R + m in round] */
    guint32 *saved;       /* [(turn * n_layers + layer) * M_R + m in round]; RP_NONE */
    guint *saved_turns;   /* [layer] rounds that have buffers of their own */
    guint32 *
        gradients; /* dispatched: [(slot parity * replicas + group) * M_R + m]; bound: [stage * M + m] */
};

static void
lay_out_gradients_home(const RpPlanJob *job, guint l, guint32 *buffers)
{
    const guint shared = rp_exchange_shared_gradients(job, l);
    const guint64 bytes = rp_job_host_bytes(job, job->profile->layers[l].gradient_bytes);

    for (guint i = 0; i < RP_MOST_ROUNDS_APART; i++)
        buffers[i] = shared != RP_NONE
                         ? rp_plan_layer(job->plan, shared)->gradients[i]
                         : rp_job_add_buffer(job, job->shape.gpus, RP_BUFFER_GRADIENTS,
                                             i < rp_modes_gradient_buffers(job->modes) ? bytes : 0);
}

static void
lay_out_layer(const RpPlanJob *job, guint l)
{
    const guint32 host = job->shape.gpus;
    const RpLayer *layer = &job->profile->layers[l];
    const guint64 element = job->storage->element_bytes;
    /* a tied matrix lives with the layer that it is tied to; its gradient is downloaded here */
    const guint64 own = rp_layer_host_bytes(layer) - layer->tied_bytes;
    const guint64 own_gradients = rp_layer_own_gradient_bytes(layer);
    const guint64 trained = MIN(own_gradients, own);
    RpPlanLayer place = {.tied_to = layer->tied_bytes > 0 ? 0 : RP_NONE,
                         .tied_bytes = layer->tied_bytes,
                         .tied_gradient_bytes = layer->tied_gradient_bytes,
                         .resident_bytes = layer->resident_bytes,
                         .input_bytes = layer->input_bytes};

    if (job->partition->dispatched && l < job->partition->backward[0].first) {
        place.saved_bytes = rp_layer_saved_bytes(layer);
        place.saved_groups = place.saved_bytes > 0 ? layer->saved_groups : 0;
    }

    place.frozen = rp_job_add_buffer(job, host, RP_BUFFER_PARAMETERS, own - trained);
    for (guint i = 0; i < 2; i++)
        place.weights[i] =
            rp_job_add_buffer(job, host, RP_BUFFER_PARAMETERS,
                              i == 0 || rp_modes_versions(job->modes) == 2 ? trained : 0);
    lay_out_gradients_home(job, l, place.gradients);
    place.optimizer = rp_job_add_buffer(
        job, host, RP_BUFFER_OPTIMIZER,
        rp_optimizer_state_bytes(job->storage->form,
                                 rp_shard_most(own_gradients / element, job->modes->servers)));
    place.copied = rp_job_add_buffer(job, host, RP_BUFFER_OPTIMIZER,
                                     job->modes->copies == RP_COPIES_BLOCKING
                                         ? layer->gradient_bytes / element * FP32_BYTES
                                         : 0);
    place.reference = rp_job_add_buffer(job, host, RP_BUFFER_PARAMETERS,
                                        job->options.reference_copy ? trained : 0);
    place.reduced = rp_exchange_lay_out_layer(job, l);
    rp_plan_tables(job->plan)->layers[l] = place;
}

static void
lay_out_decisions(const RpPlanJob *job)
{
    const guint n = rp_modes_decisions(job->modes);
    RpPlanTables *tables = rp_plan_tables(job->plan);

    tables->n_decisions = n;
    for (guint i = 0; i < n; i++)
        tables->decisions[i] = rp_job_add_buffer(job, job->shape.gpus, RP_BUFFER_OPTIMIZER,
                                                 RP_DECISION_BYTES(job->profile->n_layers));
}

/* Whether a backward stage reads the input of @layer again. */
static gboolean
is_stashed(const RpPartition *partition, guint layer)
{
    for (guint b = 1; b < partition->n_backward; b++)
        if (partition->backward[b].first == layer)
            return TRUE;
    return FALSE;
}

static void
lay_out_activations(RpHostArena *arena)
{
    const RpPlanJob *job = arena->job;
    const gboolean dispatched = job->partition->dispatched;
    const guint n_layers = job->profile->n_layers;

    arena->boundary = RP_JOB_NONE(job, guint32, n_layers);
    for (guint s = 0; s < job->n_stages; s++) {
        const guint first = rp_plan_stage(job->plan, s)->layers.first;

        if (first > 0 && arena->boundary[first] == RP_NONE)
            arena->boundary[first] = arena->n_boundaries++;
    }
    /* a round may start while the one before it still reads its stash */
    arena->parities =
        arena->replicas * (dispatched && (job->modes->staleness > 0 ||
                                          job->rounds * job->options.calls > arena->replicas)
                               ? 2
                               : 1);
    arena->activations =
        RP_JOB_NONE(job, guint32, (gsize)arena->parities * arena->n_boundaries * job->shape.round);
    for (guint p = 0; p < arena->parities; p++) {
        for (guint l = 1; l < n_layers; l++) {
            const gsize first =
                ((gsize)p * arena->n_boundaries + arena->boundary[l]) * job->shape.round;

            for (gsize m = 0; arena->boundary[l] != RP_NONE && m < job->shape.round; m++)
                arena->activations[first + m] = rp_job_add_buffer(
                    job, job->shape.gpus,
                    is_stashed(job->partition, l) ? RP_BUFFER_STASH : RP_BUFFER_ACTIVATIONS,
                    job->profile->layers[l].input_bytes);
        }
    }
}

/* The slot of a round that runs @layer forward, or backward. */
static guint
slot_of(const RpPlanJob *job, guint layer, gboolean forward)
{
    guint s = forward ? 0 : job->partition->n_forward;
    const RpInterval *at = &rp_plan_stage(job->plan, s)->layers;

    while (layer < at->first || layer >= at->first + at->count)
        at = &rp_plan_stage(job->plan, ++s)->layers;
    return s;
}

/* A layer's saved tensors are read before the next round saves them again, so one buffer does. The
 * first layers may need two: their backward slot is the last of its round, and the next round
 * begins beside it.
 *
 *   slots     |F0|F1|X |B1|B0|F0|F1| ...      on N devices N slots run beside each other
 *   layer 0   |---------------|--            a second buffer, if fewer are between
 *   layer 9      |---------|     |--
 */
static guint
saved_turns(const RpHostArena *arena, guint layer)
{
    const RpPlanJob *job = arena->job;

    if (arena->parities == arena->replicas || rp_plan_layer(job->plan, layer)->saved_bytes == 0)
        return arena->replicas;
    return job->n_stages + slot_of(job, layer, TRUE) - slot_of(job, layer, FALSE) <
                   MIN(rp_shape_group_gpus(&job->shape), LEAST_SLOTS_BETWEEN)
               ? arena->parities
               : arena->replicas;
}

static void
lay_out_saved(RpHostArena *arena)
{
    const RpPlanJob *job = arena->job;
    const gsize n_layers = job->profile->n_layers, round = job->shape.round;

    arena->saved = RP_JOB_NONE(job, guint32, arena->parities * n_layers * round);
    arena->saved_turns = RP_JOB_NEW(job, guint, n_layers);
    for (guint l = 0; l < n_layers; l++) {
        arena->saved_turns[l] = saved_turns(arena, l);
        for (gsize turn = 0; turn < arena->saved_turns[l]; turn++)
            for (gsize m = 0; m < round; m++)
                arena->saved[(turn * n_layers + l) * round + m] =
                    rp_job_add_buffer(job, job->shape.gpus, RP_BUFFER_STASH,
                                      rp_plan_layer(job->plan, l)->saved_bytes);
    }
}

static void
lay_out_gradients(RpHostArena *arena)
{
    const RpPlanJob *job = arena->job;
    const gboolean dispatched = job->partition->dispatched;
    const gsize round = job->shape.round;
    const guint n = dispatched ? 2 * arena->replicas : job->n_stages;
    guint64 bytes = 0; /* dispatched: the largest one's */

    for (guint l = 1; l < job->profile->n_layers; l++)
        if (arena->boundary[l] != RP_NONE)
            bytes = MAX(bytes, job->profile->layers[l].input_bytes);
    arena->gradients = RP_JOB_NONE(job, guint32, n * round);
    for (guint i = dispatched ? 0 : 1; i < n; i++) {
        if (!dispatched)
            bytes = job->profile->layers[rp_plan_stage(job->plan, i)->layers.first].input_bytes;
        for (gsize m = 0; m < round; m++)
            arena->gradients[i * round + m] =
                rp_job_add_buffer(job, job->shape.gpus, RP_BUFFER_ACTIVATIONS, bytes);
    }
}

RpHostArena *
rp_host_arena_new(const RpPlanJob *job)
{
    RpHostArena *arena = RP_JOB_NEW(job, RpHostArena, 1);

    arena->job = job;
    arena->replicas = MAX(1, job->shape.replicas);
    for (guint l = 0; l < job->profile->n_layers; l++)
        lay_out_layer(job, l);
    rp_exchange_lay_out(job);
    lay_out_decisions(job);
    lay_out_activations(arena);
    lay_out_saved(arena);
    lay_out_gradients(arena);
    return arena;
}

/* Rounds until that of @micro_batch, since the first call. */
static guint64
round_of(const RpHostArena *arena, guint32 micro_batch)
{
    return arena->job->rounds_before + micro_batch / arena->job->shape.round;
}

guint32
rp_host_arena_activation(const RpHostArena *arena, guint32 layer, guint32 micro_batch)
{
    const gsize round = arena->job->shape.round;
    const gsize turn = round_of(arena, micro_batch) % arena->parities;
    const guint32 boundary = arena->boundary[layer];

    return boundary == RP_NONE
               ? RP_NONE
               : arena->activations[(turn * arena->n_boundaries + boundary) * round +
                                    micro_batch % round];
}

guint32
rp_host_arena_saved(const RpHostArena *arena, guint32 layer, guint32 micro_batch)
{
    const gsize round = arena->job->shape.round;
    const gsize turn = round_of(arena, micro_batch) % arena->saved_turns[layer];
    const gsize row = turn * arena->job->profile->n_layers + layer;

    return arena->saved[row * round + micro_batch % round];
}

guint32
rp_host_arena_gradient(const RpHostArena *arena, guint32 stage, guint32 micro_batch)
{
    const gsize round = arena->job->shape.round;
    const gsize row =
        arena->job->partition->dispatched
            ? stage % 2 * arena->replicas + round_of(arena, micro_batch) % arena->replicas
            : stage;

    return arena->gradients[row * round + micro_batch % round];
}
