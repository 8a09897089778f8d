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
tile_layers(RpVerifier *verifier, guint32 *stage_of, gboolean forward)
{
    const char *direction = forward ? "forward" : "backward";

    for (guint l = 0; l < verifier->n_layers; l++)
        stage_of[l] = RP_NONE;
    for (guint s = 0; s < verifier->n_stages; s++) {
        const RpPlanStage *stage = rp_plan_stage(verifier->plan, s);

        if (stage->layers.first > verifier->n_layers ||
            stage->layers.count > verifier->n_layers - stage->layers.first ||
            (stage->layers.count == 0 && (verifier->full || !stage->bound)))
            return rp_verifier_fail(verifier, RP_RULE_ACTIONS, RP_NO_TASK, RP_NO_TASK,
                                    "stage %u holds layers that do not exist, or none", s);
        if (forward ? !stage->runs_forward : !stage->runs_backward)
            continue;
        for (guint l = 0; l < stage->layers.count; l++) {
            guint32 *of = &stage_of[stage->layers.first + l];

            if (*of != RP_NONE)
                return rp_verifier_fail(verifier, RP_RULE_ACTIONS, RP_NO_TASK, RP_NO_TASK,
                                        "layer %u runs %s in stage %u and again in stage %u",
                                        stage->layers.first + l, direction, *of, s);
            *of = s;
        }
    }
    for (guint l = 0; l < verifier->n_layers; l++)
        if (stage_of[l] == RP_NONE)
            return rp_verifier_fail(verifier, RP_RULE_ACTIONS, RP_NO_TASK, RP_NO_TASK,
                                    "layer %u runs %s in no stage", l, direction);
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

/* Every byte of every layer in exactly one segment. @layer_bytes: sizes found in other stages. */
static gboolean
check_chunks(RpVerifier *verifier, guint32 stage, const RpChunks *chunks, guint64 bytes,
             guint64 *layer_bytes, const char *what)
{
    RpInterval layers = rp_plan_stage(verifier->plan, stage)->layers;
    guint n = chunks->n_chunks > 0 ? chunks->first_segment[chunks->n_chunks] : 0;
    g_autofree RpSegment *sorted = g_memdup2(chunks->segments, n * sizeof(RpSegment));
    g_autofree guint64 *found = g_new0(guint64, layers.count);
    guint64 total = 0;

    for (guint c = 0; c < chunks->n_chunks; c++)
        if (chunks->first_segment[c] > chunks->first_segment[c + 1])
            return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, RP_NO_TASK,
                                    "%s chunk %u of stage %u ends before it begins", what, c,
                                    stage);
    if (n > 0)
        qsort(sorted, n, sizeof(RpSegment), compare_segments);
    for (guint i = 0; i < n; i++) {
        const RpSegment *segment = &sorted[i];

        if (segment->layer < layers.first || segment->layer - layers.first >= layers.count)
            return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, RP_NO_TASK,
                                    "%s of layer %u travel with stage %u, which does not hold it",
                                    what, segment->layer, stage);
        guint64 *end = &found[segment->layer - layers.first];
        if (segment->offset != *end)
            return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, RP_NO_TASK,
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

        for (guint i = chunks->first_segment[c]; i < chunks->first_segment[c + 1]; i++)
            sum += chunks->segments[i].bytes;
        if (sum != chunks->chunk_bytes[c])
            return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, RP_NO_TASK,
                                    "%s chunk %u of stage %u has %" G_GUINT64_FORMAT
                                    " bytes, its segments %" G_GUINT64_FORMAT,
                                    what, c, stage, chunks->chunk_bytes[c], sum);
    }
    if (total != bytes)
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, RP_NO_TASK,
                                "%" G_GUINT64_FORMAT " bytes of %s travel with stage %u, which has "
                                "%" G_GUINT64_FORMAT,
                                total, what, stage, bytes);
    for (guint l = 0; l < layers.count; l++) {
        guint64 *known = &layer_bytes[layers.first + l];

        if (*known != G_MAXUINT64 && *known != found[l])
            return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, RP_NO_TASK,
                                    "%" G_GUINT64_FORMAT " bytes of %s of layer %u travel with "
                                    "stage %u, but %" G_GUINT64_FORMAT " with another",
                                    found[l], what, layers.first + l, stage, *known);
        *known = found[l];
    }
    return TRUE;
}

static gboolean
check_chunk_tables(RpVerifier *verifier)
{
    guint64 *parameters = g_new(guint64, verifier->n_layers);
    guint64 *gradients = g_new(guint64, verifier->n_layers);

    verifier->parameter_bytes = parameters;
    verifier->gradient_bytes = gradients;
    for (guint l = 0; l < verifier->n_layers; l++)
        parameters[l] = gradients[l] = G_MAXUINT64;
    for (guint s = 0; s < verifier->n_stages; s++) {
        const RpPlanStage *stage = rp_plan_stage(verifier->plan, s);

        if (!check_chunks(verifier, s, &stage->parameters, stage->upload_bytes, parameters,
                          "parameters"))
            return FALSE;
        if (stage->runs_backward && !check_chunks(verifier, s, &stage->gradients,
                                                  stage->gradient_bytes, gradients, "gradients"))
            return FALSE;
    }
    verifier->trainable = g_new0(gboolean, verifier->n_layers);
    for (guint l = 0; l < verifier->n_layers; l++) /* each runs in some stage in both directions */
        verifier->trainable[l] = gradients[l] > 0;
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
        return rp_verifier_fail(verifier, RP_RULE_ACTIONS, RP_NO_TASK, RP_NO_TASK,
                                "actions cannot go layer by layer in such a plan");
    for (guint i = 0; i < G_N_ELEMENTS(chunks); i++)
        for (guint c = 0; c < chunks[i]->n_chunks; c++)
            if (chunks[i]->first_segment[c + 1] - chunks[i]->first_segment[c] != 1 ||
                chunks[i]->segments[chunks[i]->first_segment[c]].offset != 0)
                return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, RP_NO_TASK,
                                        "chunk %u is not a layer", c);
    return TRUE;
}

/* Chunks of all stages are numbered one after the other; and of each layer it is counted in how many of
 * them its gradients travel. */
static void
count_chunks(RpVerifier *verifier)
{
    const guint n = verifier->n_stages;

    verifier->first_parameter = g_new0(guint, (gsize)n + 1);
    verifier->first_gradient = g_new0(guint, (gsize)n + 1);
    verifier->gradient_parts = g_new0(guint, verifier->n_layers);
    for (guint s = 0; s < n; s++) {
        const RpPlanStage *stage = rp_plan_stage(verifier->plan, s);
        const RpChunks *chunks = &stage->gradients;

        verifier->first_parameter[s + 1] =
            verifier->first_parameter[s] + stage->parameters.n_chunks;
        verifier->first_gradient[s + 1] = verifier->first_gradient[s] + chunks->n_chunks;
        for (guint c = 0; stage->runs_backward && c < chunks->n_chunks; c++)
            for (guint i = chunks->first_segment[c];
                 chunks->chunk_bytes[c] > 0 && i < chunks->first_segment[c + 1]; i++)
                if (i == chunks->first_segment[c] ||
                    chunks->segments[i].layer != chunks->segments[i - 1].layer)
                    verifier->gradient_parts[chunks->segments[i].layer]++;
    }
    for (guint l = 0; l < verifier->n_layers && verifier->full; l++)
        verifier->n_stepped += rp_verifier_is_stepped(verifier, l);
}

/* Modes that exclude each other. */
static gboolean
check_modes(RpVerifier *verifier)
{
    const RpPlanModes *modes = verifier->modes;
    const guint n = rp_modes_decisions(modes);

    if (!verifier->full || verifier->evaluates)
        return TRUE;
    if (rp_plan_n_decisions(verifier->plan) != n)
        return rp_verifier_fail(verifier, RP_RULE_DECISION, RP_NO_TASK, RP_NO_TASK,
                                "%u buffers of decisions, not %u",
                                rp_plan_n_decisions(verifier->plan), n);
    if ((modes->gradients == RP_GRADIENTS_ONE_ROUND) != (modes->rounds == 1) ||
        rp_modes_gradient_buffers(modes) > RP_MOST_ROUNDS_APART)
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, RP_NO_TASK,
                                "gradients of %u rounds cannot be kept in this way", modes->rounds);
    if ((modes->step == RP_STEP_EARLY &&
         (modes->staleness > 0 || modes->copies != RP_COPIES_FUSED || modes->servers > 1)) ||
        (modes->step == RP_STEP_AT_ONCE && modes->copies == RP_COPIES_BLOCKING) ||
        modes->staleness > 1)
        return rp_verifier_fail(verifier, RP_RULE_OPTIMIZER_ORDER, RP_NO_TASK, RP_NO_TASK,
                                "no plan steps in this way");
    return TRUE;
}

gboolean
rp_verify_stages(RpVerifier *verifier)
{
    if (verifier->forward_of != NULL)
        return TRUE;
    verifier->forward_of = g_new(guint32, verifier->n_layers);
    verifier->backward_of = g_new(guint32, verifier->n_layers);
    if (!tile_layers(verifier, verifier->forward_of, TRUE) ||
        !tile_layers(verifier, verifier->backward_of, FALSE) ||
        (verifier->full && !check_chunk_tables(verifier)) || !check_layerwise(verifier))
        return FALSE;
    count_chunks(verifier);
    rp_ledger_number(verifier);
    return check_modes(verifier);
}
