/*
 * Rule 4, parameters: they reach the device before the first action that reads them and stay until
 * the last.
 *
 *   parameter-up    |c0|c1|c2|             slot = one stage of one round (resident weights: of one
 *   compute                  |F0|F1|F2|    iteration); a bound stage whose weights are offloaded
 *                                          may be uploaded twice: for its F and again for its B
 *
 * Packed, they reach the device before they are expanded, and so do expanded ones the action:
 *
 *   parameter-up    |c0|c1|c2|
 *   compute                  |expand|F0|F1|F2|
 *
 * Frozen weights may stay on the device: rules/residents.c.
 *
 * The actions and transfers of each slot are recorded here, for rules/gradients.c too.
 */
#include "core/verify/rules/slots.h"

#include <string.h>

/* Records the later of two tasks of one slot or, if @first, the earlier. */
static gboolean
note_action(RpSlots *state, guint32 *place, guint32 task, gboolean first)
{
    RpVerifier *verifier = state->verifier;

    if (*place != RP_NO_TASK && verifier->lane[*place] != verifier->lane[task])
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, *place, task,
                                "one slot runs on two gpus");
    if (*place == RP_NO_TASK || (verifier->position[task] < verifier->position[*place]) == first)
        *place = task;
    return TRUE;
}

static gboolean
note_actions(RpSlots *state, guint32 index, const RpTask *task)
{
    RpActionPart parts[2];
    guint n_parts = rp_action_parts(state->verifier, task, parts);

    for (guint i = 0; i < n_parts; i++) {
        guint per_round = state->verifier->micro_batches / state->verifier->rounds;
        RpSlot *slot = rp_verify_slot(state, parts[i].micro_batch / per_round, parts[i].stage);

        if (parts[i].forward && !note_action(state, &slot->first_forward, index, TRUE))
            return FALSE;
        if ((parts[i].backward || parts[i].weights) &&
            !note_action(state, &slot->first_backward, index, TRUE))
            return FALSE;
        if (parts[i].weights && !note_action(state, &slot->last_weights, index, FALSE))
            return FALSE;
    }
    return TRUE;
}

/* A stage of which one half-iteration's upload may be followed by another's. */
static gboolean
uploads_twice(const RpSlots *state, guint32 stage)
{
    return rp_plan_stage(state->verifier->plan, stage)->bound &&
           !state->verifier->promises->resident_weights;
}

static gboolean
check_chunk_fields(RpVerifier *verifier, guint32 index, const RpTask *task)
{
    if (task->stage >= verifier->n_stages || task->round >= verifier->rounds)
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, index,
                                "a stage or round that does not exist");
    const RpPlanStage *stage = rp_plan_stage(verifier->plan, task->stage);
    const RpChunks *chunks =
        task->kind == RP_TASK_PARAMETER_UPLOAD ? &stage->parameters : &stage->gradients;
    if (task->chunk >= chunks->n_chunks)
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, index,
                                "a chunk that does not exist");
    if (task->bytes != chunks->chunk_bytes[task->chunk])
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, index,
                                "%" G_GUINT64_FORMAT
                                " bytes are transferred, the chunk has %" G_GUINT64_FORMAT,
                                task->bytes, chunks->chunk_bytes[task->chunk]);
    return TRUE;
}

static gboolean
check_expand_fields(RpVerifier *verifier, guint32 index, const RpTask *task)
{
    if (!verifier->promises->packed)
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, index,
                                "nothing of the plan is packed");
    if (task->stage >= verifier->n_stages || task->round >= verifier->rounds ||
        rp_plan_stage(verifier->plan, task->stage)->parameter_bytes == 0)
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, index,
                                "a stage or round that does not exist, or has no parameters");
    return TRUE;
}

static gboolean
check_fields(RpVerifier *verifier)
{
    for (guint32 i = verifier->first_new; i < verifier->n_tasks; i++) {
        const RpTask *task = rp_verifier_task(verifier, i);

        if ((task->kind == RP_TASK_PARAMETER_UPLOAD || task->kind == RP_TASK_GRADIENT_DOWNLOAD) &&
            !check_chunk_fields(verifier, i, task))
            return FALSE;
        if (task->kind == RP_TASK_EXPAND && !check_expand_fields(verifier, i, task))
            return FALSE;
        if (task->kind == RP_TASK_RESIDENT_UPLOAD && !rp_verify_resident_fields(verifier, i, task))
            return FALSE;
        if (task->kind == RP_TASK_GRADIENT_ACCUMULATE && !rp_verify_sum_fields(verifier, i, task))
            return FALSE;
    }
    return TRUE;
}

static gboolean
note_chunk(RpSlots *state, guint32 index, const RpTask *task)
{
    RpVerifier *verifier = state->verifier;
    gboolean up = task->kind == RP_TASK_PARAMETER_UPLOAD;
    const guint32 *first = up ? state->first_parameter_chunk : state->first_gradient_chunk;
    guint round = verifier->promises->resident_weights ? 0 : task->round;
    gsize at = (gsize)round * first[verifier->n_stages] + first[task->stage] + task->chunk;

    guint32 *place = up ? &state->uploads[0][at] : &state->downloads[at];
    if (up && *place != RP_NO_TASK && uploads_twice(state, task->stage))
        place = &state->uploads[1][at];
    if (*place != RP_NO_TASK)
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, *place, index,
                                "the same chunk is %s twice", up ? "uploaded" : "downloaded");
    *place = index;
    return TRUE;
}

static gboolean
note_expand(RpSlots *state, guint32 index, const RpTask *task)
{
    RpVerifier *verifier = state->verifier;
    const guint round = verifier->promises->resident_weights ? 0 : task->round;
    const gsize at = (gsize)round * verifier->n_stages + task->stage;
    guint32 *place = &state->expands[0][at];

    if (*place != RP_NO_TASK && uploads_twice(state, task->stage))
        place = &state->expands[1][at];
    if (*place != RP_NO_TASK)
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, *place, index,
                                "the same parameters are expanded twice");
    *place = index;
    return TRUE;
}

static gboolean
note_tasks(RpSlots *state)
{
    RpVerifier *verifier = state->verifier;

    for (guint32 i = verifier->iteration_start[state->iteration];
         i < verifier->iteration_start[state->iteration + 1]; i++) {
        guint32 index = verifier->by_iteration[i];
        const RpTask *task = rp_verifier_task(verifier, index);

        if (rp_task_is_compute(task) &&
            (!note_actions(state, index, task) || !rp_verify_note_leaving(state, index)))
            return FALSE;
        if ((task->kind == RP_TASK_PARAMETER_UPLOAD || task->kind == RP_TASK_GRADIENT_DOWNLOAD) &&
            !note_chunk(state, index, task))
            return FALSE;
        if (task->kind == RP_TASK_EXPAND && !note_expand(state, index, task))
            return FALSE;
        if (task->kind == RP_TASK_NORM) /* before all steps, or behind them */
            state->gradients_complete = TRUE;
        if (task->kind == RP_TASK_GRADIENT_ACCUMULATE && !rp_verify_note_sum(state, index, task))
            return FALSE;
    }
    return TRUE;
}

/* The task that reads the weights uploaded for @action: @action or, if they are packed, the task
 * that expands them for it. */
static gboolean
find_reader(RpSlots *state, guint round, guint32 stage, guint session, guint32 action,
            guint32 *reader)
{
    RpVerifier *verifier = state->verifier;

    *reader = action;
    if (!verifier->promises->packed || action == RP_NO_TASK ||
        rp_plan_stage(verifier->plan, stage)->parameter_bytes == 0)
        return TRUE;
    *reader = state->expands[session][(gsize)round * verifier->n_stages + stage];
    if (*reader == RP_NO_TASK)
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, action,
                                "the parameters of stage %u are never expanded for round %u of "
                                "iteration %u",
                                stage, round, verifier->first_iteration + state->iteration);
    return rp_verify_slot_order(verifier, *reader, action,
                                "the parameters are not sure to be expanded") &&
           rp_verifier_check_flow(
               verifier, RP_RULE_TRANSFERS, *reader, action,
               (RpCarriage){RP_ROLE_PARAMETERS, RP_ROLE_PARAMETERS, RP_CARRY_PARAMETERS},
               "what was expanded");
}

static gboolean
check_upload_session(RpSlots *state, guint round, guint32 stage, guint session, guint32 action)
{
    RpVerifier *verifier = state->verifier;
    const RpChunks *chunks = &rp_plan_stage(verifier->plan, stage)->parameters;
    const RpAccessRole role = verifier->promises->packed ? RP_ROLE_PACKED : RP_ROLE_PARAMETERS;
    gsize at = (gsize)round * state->first_parameter_chunk[verifier->n_stages] +
               state->first_parameter_chunk[stage];
    guint32 reader;

    if (!find_reader(state, round, stage, session, action, &reader) ||
        !rp_verify_residents(verifier, reader, stage))
        return FALSE;
    for (guint c = 0; c < chunks->n_chunks && action != RP_NO_TASK; c++) {
        guint32 upload = state->uploads[session][at + c];

        if (chunks->chunk_bytes[c] == 0)
            continue;
        if (upload == RP_NO_TASK)
            return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, action,
                                    "chunk %u of the parameters of stage %u is never uploaded for "
                                    "round %u of iteration %u",
                                    c, stage, round, verifier->first_iteration + state->iteration);
        if (!rp_verify_slot_order(verifier, upload, reader,
                                  "the parameters are not sure to be on the device") ||
            !rp_verifier_check_flow(verifier, RP_RULE_TRANSFERS, upload, reader,
                                    (RpCarriage){role, role, RP_CARRY_PARAMETERS},
                                    "a chunk of the parameters"))
            return FALSE;
    }
    return TRUE;
}

/* The upload that the backward of a slot reads: its own if there is one. */
static guint
backward_session(const RpSlots *state, guint round, guint32 stage)
{
    const RpVerifier *verifier = state->verifier;
    gsize at = (gsize)round * state->first_parameter_chunk[verifier->n_stages];

    for (guint32 c = state->first_parameter_chunk[stage];
         c < state->first_parameter_chunk[stage + 1]; c++)
        if (state->uploads[1][at + c] != RP_NO_TASK)
            return 1;
    return 0;
}

/* Each parameter buffer that @reference reads is read by @action, in the same generation. */
static gboolean
check_stays(RpSlots *state, guint32 reference, guint32 action)
{
    RpVerifier *verifier = state->verifier;
    const RpTask *a = rp_verifier_task(verifier, reference);
    const RpTask *b = rp_verifier_task(verifier, action);
    const RpAccess *reads_a = rp_plan_accesses(verifier->plan, a);
    const RpAccess *reads_b = rp_plan_accesses(verifier->plan, b);
    const RpContent *seen_a = rp_verifier_content(verifier, a, 0);
    const RpContent *seen_b = rp_verifier_content(verifier, b, 0);

    for (guint i = 0; i < a->access_count; i++) {
        guint k = 0;

        if (rp_plan_buffer(verifier->plan, reads_a[i].buffer)->category != RP_BUFFER_PARAMETERS)
            continue;
        while (k < b->access_count && reads_b[k].buffer != reads_a[i].buffer)
            k++;
        if (k == b->access_count)
            return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, reference, action,
                                    "the second action does not read the parameters that the "
                                    "first one of its slot was given");
        if (seen_a[i].seen != seen_b[k].seen)
            return rp_verifier_fail(verifier, RP_RULE_BUFFERS, reference, action,
                                    "the parameters are overwritten by task %" G_GUINT64_FORMAT
                                    " between the first action of the slot and the second",
                                    verifier->first_id + seen_b[k].writer);
    }
    return TRUE;
}

/* The sum starts anew with the slot's first action and then only grows. */
static gboolean
check_sum(RpSlots *state, RpSlot *slot, guint32 action)
{
    RpVerifier *verifier = state->verifier;
    const RpTask *task = rp_verifier_task(verifier, action);
    const RpAccess *accesses = rp_plan_accesses(verifier->plan, task);
    const RpAccess *sum = NULL;

    for (guint i = 0; i < task->access_count && sum == NULL; i++)
        if (rp_plan_buffer(verifier->plan, accesses[i].buffer)->category == RP_BUFFER_ACCUMULATORS)
            sum = &accesses[i];
    if (sum == NULL || (sum->mode & RP_ACCESS_WRITE) == 0)
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, action,
                                "the action adds its gradients to nothing");
    gboolean adds = (sum->mode & RP_ACCESS_READ) != 0;
    if (slot->summed == RP_NO_TASK ? adds : !adds)
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, slot->summed, action,
                                adds ? "the slot's first gradients are added to what was there"
                                     : "gradients of the slot overwrite those before them");
    guint32 before = slot->summed;
    slot->summed = action;
    return before == RP_NO_TASK ||
           rp_verifier_check_flow(verifier, RP_RULE_TRANSFERS, before, action,
                                  (RpCarriage){RP_ROLE_SUM, RP_ROLE_SUM, RP_CARRY_SUMS},
                                  "the sum of the gradients so far");
}

static gboolean
check_actions(RpSlots *state)
{
    RpVerifier *verifier = state->verifier;
    guint per_round = verifier->micro_batches / verifier->rounds;

    for (guint32 i = verifier->iteration_start[state->iteration];
         i < verifier->iteration_start[state->iteration + 1]; i++) {
        guint32 index = verifier->by_iteration[i];
        RpActionPart parts[2];
        guint n_parts = rp_action_parts(verifier, rp_verifier_task(verifier, index), parts);

        for (guint k = 0; k < n_parts; k++) {
            guint round =
                verifier->promises->resident_weights ? 0 : parts[k].micro_batch / per_round;
            RpSlot *slot = rp_verify_slot(state, round, parts[k].stage);
            guint32 reference = parts[k].forward ? slot->first_forward : slot->first_backward;
            guint session = parts[k].forward ? 0 : backward_session(state, round, parts[k].stage);
            /* an overlapped action reads two stages' parameters: not to be compared with */
            gboolean alone = reference == RP_NO_TASK ||
                             rp_verifier_task(verifier, reference)->kind == RP_TASK_OVERLAP;

            if (verifier->promises->layerwise ? !rp_verify_layers(state, index)
                : alone ? !check_upload_session(state, round, parts[k].stage, session, index)
                        : !check_stays(state, reference, index))
                return FALSE;
            if (parts[k].weights &&
                rp_plan_stage(verifier->plan, parts[k].stage)->gradient_bytes > 0 &&
                !check_sum(state, slot, index))
                return FALSE;
        }
    }
    return TRUE;
}

static gboolean
check_slots(RpSlots *state)
{
    RpVerifier *verifier = state->verifier;
    guint rounds = verifier->promises->resident_weights ? 1 : verifier->rounds;

    for (guint r = 0; r < rounds; r++) {
        for (guint s = 0; s < verifier->n_stages; s++) {
            const RpSlot *slot = rp_verify_slot(state, r, s);

            if (!rp_verify_kept(state, r, s, slot) ||
                (!verifier->promises->layerwise &&
                 (!check_upload_session(state, r, s, 0, slot->first_forward) ||
                  !check_upload_session(state, r, s, backward_session(state, r, s),
                                        slot->first_backward))) ||
                ((!verifier->promises->kept_sums || r + 1 == rounds) &&
                 !rp_verify_downloads(state, r, s, slot)))
                return FALSE;
        }
    }
    return TRUE;
}

static gboolean
check_iteration(RpSlots *state)
{
    const RpVerifier *verifier = state->verifier;
    gsize n_slots = (gsize)verifier->rounds * verifier->n_stages;
    gsize n_chunks = (gsize)verifier->rounds * state->first_parameter_chunk[verifier->n_stages];

    memset(state->slots, 0xff, n_slots * sizeof(RpSlot)); /* RP_NO_TASK and RP_NONE */
    rp_verify_clear_table(state->uploads[0], n_chunks);
    rp_verify_clear_table(state->uploads[1], n_chunks);
    rp_verify_clear_table(state->expands[0], n_slots);
    rp_verify_clear_table(state->expands[1], n_slots);
    rp_verify_clear_table(state->leavers, (gsize)verifier->rounds * verifier->n_layers);
    rp_verify_clear_table(state->downloads, (gsize)verifier->rounds *
                                                state->first_gradient_chunk[verifier->n_stages]);
    if (!note_tasks(state))
        return FALSE;
    for (gsize i = 0; i < n_slots; i++)
        state->slots[i].leaving = rp_verify_find_leaving(verifier, state->slots[i].last_weights);
    return check_slots(state) && check_actions(state);
}

static void
number_chunks(RpSlots *state)
{
    const RpVerifier *verifier = state->verifier;

    state->first_parameter_chunk = g_new0(guint32, verifier->n_stages + 1);
    state->first_gradient_chunk = g_new0(guint32, verifier->n_stages + 1);
    for (guint s = 0; s < verifier->n_stages; s++) {
        const RpPlanStage *stage = rp_plan_stage(verifier->plan, s);

        state->first_parameter_chunk[s + 1] =
            state->first_parameter_chunk[s] + stage->parameters.n_chunks;
        state->first_gradient_chunk[s + 1] =
            state->first_gradient_chunk[s] + stage->gradients.n_chunks;
    }
}

gboolean
rp_verify_parameters(RpVerifier *verifier)
{
    RpSlots state = {.verifier = verifier};
    gboolean correct = TRUE;

    if (!verifier->full)
        return TRUE;
    if (!rp_verify_rounds_apart(verifier) || !check_fields(verifier))
        return FALSE;
    number_chunks(&state);
    gsize n_parameters = (gsize)verifier->rounds * state.first_parameter_chunk[verifier->n_stages];
    gsize n_gradients = (gsize)verifier->rounds * state.first_gradient_chunk[verifier->n_stages];

    state.slots = g_new(RpSlot, (gsize)verifier->rounds * verifier->n_stages);
    for (guint session = 0; session < 2; session++) {
        state.uploads[session] = rp_verify_new_table(n_parameters);
        state.expands[session] = rp_verify_new_table((gsize)verifier->rounds * verifier->n_stages);
    }
    state.downloads = rp_verify_new_table(n_gradients);
    state.leavers = rp_verify_new_table((gsize)verifier->rounds * verifier->n_layers);
    for (guint32 t = rp_verifier_first_to_check(verifier); t < verifier->n_iterations && correct;
         t++) {
        state.iteration = t;
        state.gradients_complete = rp_verifier_is_past(verifier, t);
        correct = check_iteration(&state);
    }
    g_free(state.first_parameter_chunk);
    g_free(state.first_gradient_chunk);
    g_free(state.slots);
    for (guint session = 0; session < 2; session++) {
        g_free(state.uploads[session]);
        g_free(state.expands[session]);
    }
    g_free(state.downloads);
    g_free(state.leavers);
    return correct;
}
