/*
 * Checks a plan's table of stages, before any task is looked at: each layer runs
 * forward in one stage and backward in one, and the chunks of a stage carry each byte of its layers
 * once.
 *
 *   layer 3   |--chunk 0--|--chunk 2--|-chunk 1-|    no gap, no overlap, as long in every stage
 */
#include "core/verify/private.h"

#include <stdlib.h>

/* Each layer in exactly one stage of the direction. */
static gboolean
tile_layers(RpVerifier *verifier, RpDirection direction)
{
    const char *name = direction == RP_FORWARD ? "forward" : "backward";

    for (guint l = 0; l < verifier->n_layers; l++)
        verifier->layers[l].stage_of[direction] = RP_NONE;
    for (guint s = 0; s < verifier->n_stages; s++) {
        const RpPlanStage *stage = rp_plan_stage(verifier->plan, s);

        if (stage->layers.first > verifier->n_layers ||
            stage->layers.count > verifier->n_layers - stage->layers.first ||
            (stage->layers.count == 0 && (verifier->full || !stage->bound)))
            return fail_plan(verifier, RP_RULE_ACTIONS,
                             "stage %u holds layers that do not exist, or none", s);
        if (direction == RP_FORWARD ? !stage->runs_forward : !stage->runs_backward)
            continue;
        for (guint l = 0; l < stage->layers.count; l++) {
            guint32 *of = &verifier->layers[stage->layers.first + l].stage_of[direction];

            if (*of != RP_NONE)
                return fail_plan(verifier, RP_RULE_ACTIONS,
                                 "layer %u runs %s in stage %u and again in stage %u",
                                 stage->layers.first + l, name, *of, s);
            *of = s;
        }
    }
    for (guint l = 0; l < verifier->n_layers; l++)
        if (rp_verifier_stage_of(verifier, l, direction) == RP_NONE)
            return fail_plan(verifier, RP_RULE_ACTIONS, "layer %u runs %s in no stage", l, name);
    return TRUE;
}

static int
compare_segments(const void *a, const void *b)
{
    const RpSegment *x = a, *y = b;

    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Every byte of every layer in exactly one segment. */
static gboolean
check_chunks(RpVerifier *verifier, guint32 stage, const RpChunks *chunks, guint64 bytes,
             const char *what)
{
    const gboolean gradients = chunks == &rp_plan_stage(verifier->plan, stage)->gradients;
    RpInterval layers = rp_plan_stage(verifier->plan, stage)->layers;
    guint n = chunks->n_chunks > 0 ? chunks->first_segment[chunks->n_chunks] : 0;
    g_autofree RpSegment *sorted = g_memdup2(chunks->segments, n * sizeof(RpSegment));
    g_autofree guint64 *found = g_new0(guint64, layers.count);
    guint64 total = 0;

    for (guint c = 0; c < chunks->n_chunks; c++)
        if (chunks->first_segment[c] > chunks->first_segment[c + 1])
            return fail_plan(verifier, RP_RULE_TRANSFERS,
                             "%s chunk %u of stage %u ends before it begins", what, c, stage);
    if (n > 0)
        qsort(sorted, n, sizeof(RpSegment), compare_segments);
    for (guint i = 0; i < n; i++) {
        const RpSegment *segment = &sorted[i];

        if (segment->layer < layers.first || segment->layer - layers.first >= layers.count)
            return fail_plan(verifier, RP_RULE_TRANSFERS,
                             "%s of layer %u travel with stage %u, which does not hold it", what,
                             segment->layer, stage);
        guint64 *end = &found[segment->layer - layers.first];
        if (segment->offset != *end)
            return fail_plan(verifier, RP_RULE_TRANSFERS,
                             "bytes %" G_GUINT64_FORMAT " to %" G_GUINT64_FORMAT
                             " of the %s of layer %u travel %s with stage %u",
                             MIN(segment->offset, *end), MAX(segment->offset, *end), what,
                             segment->layer, segment->offset > *end ? "not at all" : "twice",
                             stage);
        *end += segment->bytes;
        total += segment->bytes;
    }
    for (guint c = 0; c < chunks->n_chunks; c++) {
        guint64 sum = 0;

        for (guint i = chunks->first_segment[c]; i < chunks->first_segment[c + 1]; i++) {
            const guint32 layer = chunks->segments[i].layer;

            sum += chunks->segments[i].bytes;
            if (gradients && chunks->chunk_bytes[c] > 0 &&
                (i == chunks->first_segment[c] || layer != chunks->segments[i - 1].layer))
                verifier->layers[layer].gradient_parts++;
        }
        if (sum != chunks->chunk_bytes[c])
            return fail_plan(verifier, RP_RULE_TRANSFERS,
                             "%s chunk %u of stage %u has %" G_GUINT64_FORMAT
                             " bytes, its segments %" G_GUINT64_FORMAT,
                             what, c, stage, chunks->chunk_bytes[c], sum);
    }
    if (total != bytes)
        return fail_plan(verifier, RP_RULE_TRANSFERS,
                         "%" G_GUINT64_FORMAT
                         " bytes of %s travel with stage %u, which has %" G_GUINT64_FORMAT,
                         total, what, stage, bytes);
    for (guint l = 0; l < layers.count; l++) {
        RpLayerFacts *facts = &verifier->layers[layers.first + l];
        guint64 *known = gradients ? &facts->gradient_bytes : &facts->parameter_bytes;

        if (*known != G_MAXUINT64 && *known != found[l])
            return fail_plan(verifier, RP_RULE_TRANSFERS,
                             "%" G_GUINT64_FORMAT
                             " bytes of %s of layer %u travel with stage %u, but %" G_GUINT64_FORMAT
                             " with another",
                             found[l], what, layers.first + l, stage, *known);
        *known = found[l];
    }
    return TRUE;
}

/* Chunks of all stages are numbered one after the other. */
static gboolean
check_chunk_tables(RpVerifier *verifier)
{
    for (guint l = 0; l < verifier->n_layers && verifier->full; l++) {
        verifier->layers[l].parameter_bytes = verifier->layers[l].gradient_bytes = G_MAXUINT64;
        verifier->n_stepped += rp_verifier_is_stepped(verifier, l);
    }
    verifier->first_chunk = g_new0(guint, (gsize)verifier->n_stages + 1);
    for (guint s = 0; s < verifier->n_stages; s++) {
        const RpPlanStage *stage = rp_plan_stage(verifier->plan, s);

        if (verifier->full &&
            (!check_chunks(verifier, s, &stage->parameters, stage->upload_bytes, "parameters") ||
             (stage->runs_backward &&
              !check_chunks(verifier, s, &stage->gradients, stage->gradient_bytes, "gradients"))))
            return FALSE;
        verifier->first_chunk[s + 1] =
            verifier->first_chunk[s] + MAX(stage->parameters.n_chunks, stage->gradients.n_chunks);
    }
    return TRUE;
}

/* Layer by layer: a stage of all layers, each of which travels in a chunk of its own. */
static gboolean
check_layerwise(RpVerifier *verifier)
{
    const RpPlanStage *stage = rp_plan_stage(verifier->plan, 0);
    const RpChunks *const chunks[] = {&stage->parameters, &stage->gradients};

    if (verifier->modes->weights != RP_WEIGHTS_PER_LAYER)
        return TRUE;
    if (!verifier->full || verifier->modes->staleness > 0 || rp_modes_pack(verifier->modes) ||
        verifier->modes->gradients == RP_GRADIENTS_KEPT || verifier->evaluates ||
        verifier->modes->slices > 1 || verifier->n_stages != 1 || stage->bound)
        return fail_plan(verifier, RP_RULE_ACTIONS,
                         "actions cannot go layer by layer in such a plan");
    for (guint i = 0; i < G_N_ELEMENTS(chunks); i++)
        for (guint c = 0; c < chunks[i]->n_chunks; c++)
            if (chunks[i]->first_segment[c + 1] - chunks[i]->first_segment[c] != 1 ||
                chunks[i]->segments[chunks[i]->first_segment[c]].offset != 0)
                return fail_plan(verifier, RP_RULE_TRANSFERS, "chunk %u is not a layer", c);
    return TRUE;
}

/* Modes that exclude each other. */
static gboolean
check_modes(RpVerifier *verifier)
{
    const RpPlanModes *modes = verifier->modes;
    const guint n = rp_modes_decisions(modes);

    if (verifier->full && verifier->storage->element_bytes == 0)
        return fail_plan(verifier, RP_RULE_TABLES, "weights of no bytes");
    if (!verifier->full || verifier->evaluates)
        return TRUE;
    if (rp_plan_n_decisions(verifier->plan) != n)
        return fail_plan(verifier, RP_RULE_DECISION, "%u buffers of decisions, not %u",
                         rp_plan_n_decisions(verifier->plan), n);
    if ((modes->gradients == RP_GRADIENTS_ONE_ROUND) != (modes->rounds == 1) ||
        rp_modes_gradient_buffers(modes) > RP_MOST_ROUNDS_APART)
        return fail_plan(verifier, RP_RULE_TRANSFERS,
                         "gradients of %u rounds cannot be kept in this way", modes->rounds);
    if ((modes->step == RP_STEP_EARLY &&
         (modes->staleness > 0 || modes->copies != RP_COPIES_FUSED || modes->servers > 1)) ||
        (modes->step == RP_STEP_AT_ONCE && modes->copies == RP_COPIES_BLOCKING) ||
        modes->staleness > 1)
        return fail_plan(verifier, RP_RULE_OPTIMIZER_ORDER, "no plan steps in this way");
    return TRUE;
}

gboolean
rp_verify_stages(RpVerifier *verifier)
{
    if (verifier->layers != NULL)
        return TRUE;
    verifier->layers = g_new0(RpLayerFacts, verifier->n_layers);
    if (!tile_layers(verifier, RP_FORWARD) || !tile_layers(verifier, RP_BACKWARD) ||
        !check_chunk_tables(verifier) || !check_layerwise(verifier))
        return FALSE;
    rp_ledger_number(verifier);
    return check_modes(verifier);
}
