/*
 * Layerwise plans (RpPlanPromises.layerwise), in which actions may go in pieces.
 *
 * Rule 1: the pieces of an action stand one after the other in its lane, from its first step to the
 * last, and each finds the workspace as the one before has left it.
 *
 * Rule 4: the layers that an action or a piece of one runs are on the device before it starts.
 * Gradients of a layer go down after the part of the slot's last action that has made them
 * complete.
 *
 *   parameter-up   |0|1|2|
 *   compute          |up 0|up 1|up 2, down 2|down 1|down 0|
 *   gradient-down                           |2|    |1|    |0|
 */
#include "core/verify/rules/slots.h"

/* ---- rule 1 ---- */

static gboolean
are_of_one_action(const RpTask *a, const RpTask *b)
{
    return a->iteration == b->iteration && a->stage == b->stage &&
           a->micro_batch == b->micro_batch && a->round == b->round;
}

static gboolean
is_open(const RpVerifier *verifier, guint32 index)
{
    const RpTask *task = index != RP_NO_TASK ? rp_verifier_task(verifier, index) : NULL;

    return task != NULL && rp_task_is_piece(task) &&
           task->end_step < 2 * rp_plan_stage(verifier->plan, task->stage)->layers.count;
}

static gboolean
check_next(RpVerifier *verifier, guint32 before, guint32 index)
{
    const RpTask *task = rp_verifier_task(verifier, index);
    const gboolean goes_on = rp_task_is_piece(task) && task->first_step > 0;

    if (!goes_on && !is_open(verifier, before))
        return TRUE;
    if (goes_on && before == RP_NO_TASK && !verifier->whole)
        return TRUE; /* not held any more */
    if (!goes_on || !is_open(verifier, before) ||
        !are_of_one_action(rp_verifier_task(verifier, before), task) ||
        rp_verifier_task(verifier, before)->end_step != task->first_step)
        return rp_verifier_fail(verifier, RP_RULE_ACTIONS, before, index,
                                "the pieces of an action do not follow each other");
    return rp_verifier_check_flow(
        verifier, RP_RULE_ACTIONS, before, index,
        (RpCarriage){RP_ROLE_WORKSPACE, RP_ROLE_WORKSPACE, 1 << RP_BUFFER_WORKSPACE},
        "what the layers before have left");
}

gboolean
rp_verify_pieces(RpVerifier *verifier)
{
    const guint n_lanes = rp_plan_n_lanes(verifier->plan);

    if (!verifier->promises->layerwise)
        return TRUE;
    g_autofree guint32 *last = rp_verify_new_table(n_lanes);

    for (guint32 i = 0; i < verifier->n_tasks; i++) {
        const RpTask *task = rp_verifier_task(verifier, i);

        if (!rp_task_is_compute(task))
            continue;
        if (!check_next(verifier, last[task->lane], i))
            return FALSE;
        last[task->lane] = i;
    }
    for (guint lane = 0; lane < n_lanes; lane++)
        if (is_open(verifier, last[lane]))
            return rp_verifier_fail(verifier, RP_RULE_ACTIONS, RP_NO_TASK, last[lane],
                                    "the action ends in the middle");
    return TRUE;
}

/* ---- rule 4 ---- */

/* The chunk that is @layer; n_chunks: it has none. */
static guint
chunk_of(const RpChunks *chunks, guint layer)
{
    guint c = 0;

    while (c < chunks->n_chunks && chunks->segments[chunks->first_segment[c]].layer != layer)
        c++;
    return c;
}

static gboolean
check_layer(RpSlots *state, guint32 action, guint layer)
{
    RpVerifier *verifier = state->verifier;
    const RpTask *task = rp_verifier_task(verifier, action);
    const RpChunks *chunks = &rp_plan_stage(verifier->plan, task->stage)->parameters;
    const guint c = chunk_of(chunks, layer);
    guint32 upload;

    if (c == chunks->n_chunks)
        return TRUE;
    upload = state->uploads[0][(gsize)task->round * state->first_parameter_chunk[1] + c];
    if (upload == RP_NO_TASK)
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, action,
                                "the parameters of layer %u are never uploaded for round %u of "
                                "iteration %u",
                                layer, task->round, task->iteration);
    return rp_verify_slot_order(verifier, upload, action,
                                "the parameters are not sure to be on the device") &&
           rp_verifier_check_flow(
               verifier, RP_RULE_TRANSFERS, upload, action,
               (RpCarriage){RP_ROLE_PARAMETERS, RP_ROLE_PARAMETERS, RP_CARRY_PARAMETERS},
               "the parameters of a layer");
}

gboolean
rp_verify_layers(RpSlots *state, guint32 action)
{
    const RpTask *task = rp_verifier_task(state->verifier, action);
    const RpInterval layers = rp_plan_stage(state->verifier->plan, task->stage)->layers;
    const RpInterval up = rp_task_upward(task, layers), down = rp_task_downward(task, layers);

    for (guint i = 0; i < up.count; i++)
        if (!check_layer(state, action, up.first + i))
            return FALSE;
    for (guint i = 0; i < down.count; i++)
        if (down.first + i - up.first >= up.count && !check_layer(state, action, down.first + i))
            return FALSE;
    return rp_verify_residents(state->verifier, action, task->stage);
}

gboolean
rp_verify_note_leaving(RpSlots *state, guint32 action)
{
    RpVerifier *verifier = state->verifier;
    const RpTask *task = rp_verifier_task(verifier, action);
    const RpAccess *accesses = rp_plan_accesses(verifier->plan, task);
    const guint32 device = rp_verifier_device(verifier, action);

    if (!verifier->promises->layerwise)
        return TRUE;
    const RpInterval down =
        rp_task_downward(task, rp_plan_stage(verifier->plan, task->stage)->layers);

    for (guint i = 0; i < task->access_count; i++)
        for (guint k = 0; k < down.count && accesses[i].role == RP_ROLE_LEAVING; k++) {
            const guint layer = down.first + k;
            guint32 *leaver = &state->leavers[(gsize)task->round * verifier->n_layers + layer];

            if (rp_plan_slot_layer(verifier->plan, device, layer).leaving != accesses[i].buffer)
                continue;
            if (*leaver != RP_NO_TASK)
                return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, *leaver, action,
                                        "the gradients of layer %u leave twice", layer);
            *leaver = action;
        }
    return TRUE;
}

guint32
rp_verify_leaver(const RpSlots *state, guint round, guint chunk)
{
    const RpVerifier *verifier = state->verifier;
    const RpChunks *chunks = &rp_plan_stage(verifier->plan, 0)->gradients;
    const guint layer = chunks->segments[chunks->first_segment[chunk]].layer;
    const guint32 leaver = state->leavers[(gsize)round * verifier->n_layers + layer];
    const guint32 last = rp_verify_slot(state, round, 0)->last_weights;

    if (leaver == RP_NO_TASK ||
        !are_of_one_action(rp_verifier_task(verifier, leaver), rp_verifier_task(verifier, last)))
        return RP_NO_TASK;
    return leaver;
}
