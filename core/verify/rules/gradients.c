/*
 * Rule 4, gradients: every gradient goes down once, after the last action that adds to it. Rounds
 * are summed in fp32, the first one first, either on the host or on the device:
 *
 *   compute         |B0|B1|B2|
 *   gradient-down            |c0|c1|c2|--> accumulate     of every round
 *
 *   compute         |B0|B1|B2|   |B3|B4|B5|               B5 adds its slot's sum to that of B2
 *   gradient-down                          |c0|c1|c2|     once
 *
 * An accumulate task adds as many rounds as it reads staging buffers, its own round last.
 */
#include "core/verify/rules/slots.h"

gboolean
rp_verify_rounds_apart(RpVerifier *verifier)
{
    const RpPlanPromises *promises = verifier->promises;
    const guint apart = promises->rounds_apart;

    if (apart == 0 || promises->forward_only ||
        (apart == promises->rounds && apart <= RP_MOST_ROUNDS_APART && !promises->wide_gradients &&
         !promises->kept_sums))
        return TRUE;
    return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, RP_NO_TASK,
                            "gradients of %u rounds stand apart, of %u", apart, promises->rounds);
}

static gboolean
reads_staging(const RpAccess *access)
{
    return access->role == RP_ROLE_STAGING && (access->mode & RP_ACCESS_READ) != 0;
}

/* How many rounds an accumulate task adds. */
static guint
n_summed(const RpVerifier *verifier, const RpTask *task)
{
    const RpAccess *accesses = rp_plan_accesses(verifier->plan, task);
    guint n = 0;

    for (guint i = 0; i < task->access_count; i++)
        n += reads_staging(&accesses[i]);
    return n;
}

/* A sum begins with the first round, and the others are added to it. */
static gboolean
check_modes(RpVerifier *verifier, guint32 index, const RpTask *task, gboolean begins)
{
    const RpAccess *accesses = rp_plan_accesses(verifier->plan, task);
    const guint mode = begins ? RP_ACCESS_WRITE : RP_ACCESS_READ | RP_ACCESS_WRITE;

    for (guint i = 0; i < task->access_count; i++)
        if (accesses[i].role == RP_ROLE_HOST && accesses[i].mode != mode)
            return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, index,
                                    begins ? "the first round is added to what was there before"
                                           : "the sum of the rounds before is overwritten");
    return TRUE;
}

gboolean
rp_verify_sum_fields(RpVerifier *verifier, guint32 index, const RpTask *task)
{
    const guint n = n_summed(verifier, task);

    if (!rp_verifier_stages(verifier) || task->stage >= verifier->n_stages ||
        task->round >= verifier->rounds)
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, index,
                                "there are no gradients of such a round to sum");
    if (n == 0 || n > task->round + 1U)
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, index,
                                "gradients of %u rounds are summed, of up to %u", n,
                                task->round + 1U);
    return check_modes(verifier, index, task, n == task->round + 1U);
}

gboolean
rp_verify_note_sum(RpSlots *state, guint32 index, const RpTask *task)
{
    RpVerifier *verifier = state->verifier;
    const RpAccess *accesses = rp_plan_accesses(verifier->plan, task);
    guint round = task->round + 1 - n_summed(verifier, task);

    for (guint i = 0; i < task->access_count; i++) {
        if (!reads_staging(&accesses[i]))
            continue;
        RpSlot *slot = rp_verify_slot(state, round++, task->stage);
        if (slot->accumulate != RP_NO_TASK)
            return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, slot->accumulate, index,
                                    "the same gradients are summed twice");
        slot->accumulate = index;
        slot->staging = i;
    }
    return TRUE;
}

guint32
rp_verify_find_leaving(const RpVerifier *verifier, guint32 action)
{
    const RpTask *task = action != RP_NO_TASK ? rp_verifier_task(verifier, action) : NULL;

    for (guint i = 0; task != NULL && i < task->access_count; i++)
        if (rp_plan_accesses(verifier->plan, task)[i].role == RP_ROLE_LEAVING)
            return i;
    return RP_NONE;
}

/* The sum of round @round is added to that of the round before. */
static gboolean
check_added(RpSlots *state, guint round, guint32 stage, const RpSlot *slot)
{
    RpVerifier *verifier = state->verifier;
    const RpTask *task = rp_verifier_task(verifier, slot->last_weights);
    const guint32 before = rp_verify_slot(state, round - 1, stage)->last_weights;
    const gboolean adds =
        slot->leaving != RP_NONE &&
        (rp_plan_accesses(verifier->plan, task)[slot->leaving].mode & RP_ACCESS_READ) != 0;

    if (slot->leaving == RP_NONE && !state->gradients_complete)
        return TRUE; /* there is more to come of the slot */
    if (before == RP_NO_TASK || !adds)
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, before, slot->last_weights,
                                "the sum of the rounds before is not added to");
    return rp_verify_slot_order(verifier, before, slot->last_weights,
                                "the round before is not sure to be complete") &&
           rp_verifier_check_flow_into(
               verifier, RP_RULE_TRANSFERS, before, slot->last_weights, slot->leaving,
               (RpCarriage){RP_ROLE_LEAVING, RP_ROLE_LEAVING, 1 << RP_BUFFER_GRADIENTS},
               "the sum of the rounds before");
}

gboolean
rp_verify_kept(RpSlots *state, guint round, guint32 stage, const RpSlot *slot)
{
    RpVerifier *verifier = state->verifier;
    const gboolean kept = verifier->promises->kept_sums;
    const gsize at = (gsize)round * state->first_gradient_chunk[verifier->n_stages];

    if (slot->last_weights == RP_NO_TASK ||
        rp_plan_stage(verifier->plan, stage)->gradient_bytes == 0)
        return TRUE;
    if (kept && !verifier->promises->wide_gradients)
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, slot->last_weights,
                                "gradients of rounds are added up that are not fp32");
    if (kept && round > 0 && !check_added(state, round, stage, slot))
        return FALSE;
    if ((!kept || round == 0) && slot->leaving != RP_NONE &&
        rp_plan_accesses(verifier->plan,
                         rp_verifier_task(verifier, slot->last_weights))[slot->leaving]
                .mode != RP_ACCESS_WRITE)
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, slot->last_weights,
                                "the gradients are added to what was there before");
    for (guint32 c = state->first_gradient_chunk[stage];
         kept && round + 1 < verifier->rounds && c < state->first_gradient_chunk[stage + 1]; c++)
        if (state->downloads[at + c] != RP_NO_TASK)
            return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, slot->last_weights,
                                    state->downloads[at + c],
                                    "gradients leave to which the next round is added");
    return TRUE;
}

/* Sums of the stage are added to one another in the order of rounds. */
static gboolean
check_chain(RpSlots *state, guint round, guint32 stage, const RpSlot *slot)
{
    RpVerifier *verifier = state->verifier;
    const guint32 before = rp_verify_slot(state, round - 1, stage)->accumulate;

    if (before == RP_NO_TASK)
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, slot->accumulate,
                                "round %u of the stage has not been summed before", round - 1);
    return before == slot->accumulate ||
           (rp_verify_slot_order(verifier, before, slot->accumulate,
                                 "rounds are not sure to be summed in their order") &&
            rp_verifier_check_flow(verifier, RP_RULE_TRANSFERS, before, slot->accumulate,
                                   (RpCarriage){RP_ROLE_HOST, RP_ROLE_HOST, RP_CARRY_GRADIENTS},
                                   "the sum of the rounds before"));
}

gboolean
rp_verify_downloads(RpSlots *state, guint round, guint32 stage, const RpSlot *slot)
{
    RpVerifier *verifier = state->verifier;
    const RpChunks *chunks = &rp_plan_stage(verifier->plan, stage)->gradients;
    guint32 n_chunks = state->first_gradient_chunk[verifier->n_stages];
    const guint32 *downloads =
        state->downloads + (gsize)round * n_chunks + state->first_gradient_chunk[stage];

    for (guint c = 0; c < chunks->n_chunks && slot->last_weights != RP_NO_TASK; c++) {
        if (chunks->chunk_bytes[c] == 0 ||
            (downloads[c] == RP_NO_TASK && !state->gradients_complete &&
             slot->accumulate == RP_NO_TASK))
            continue;
        if (downloads[c] == RP_NO_TASK)
            return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, slot->last_weights,
                                    "chunk %u of the gradients of stage %u is never downloaded in "
                                    "round %u of iteration %u",
                                    c, stage, round, verifier->first_iteration + state->iteration);
        const guint32 leaver =
            verifier->promises->layerwise ? rp_verify_leaver(state, round, c) : slot->last_weights;

        if (leaver == RP_NO_TASK)
            return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, slot->last_weights, downloads[c],
                                    "the slot's last action does not let go of what leaves");
        if (!rp_verify_slot_order(verifier, leaver, downloads[c],
                                  "the gradients are not sure to be complete") ||
            !rp_verifier_check_flow(
                verifier, RP_RULE_TRANSFERS, leaver, downloads[c],
                (RpCarriage){RP_ROLE_LEAVING, RP_ROLE_LEAVING, RP_CARRY_GRADIENTS},
                "the slot's gradients"))
            return FALSE;
        if (slot->accumulate != RP_NO_TASK &&
            (!rp_verify_slot_order(verifier, downloads[c], slot->accumulate,
                                   "the gradients of a round are not sure to have arrived") ||
             !rp_verifier_check_flow_into(
                 verifier, RP_RULE_TRANSFERS, downloads[c], slot->accumulate, slot->staging,
                 (RpCarriage){RP_ROLE_STAGING, RP_ROLE_STAGING, RP_CARRY_GRADIENTS},
                 "a chunk of a round's gradients")))
            return FALSE;
    }
    if (round > 0 && slot->accumulate != RP_NO_TASK && !check_chain(state, round, stage, slot))
        return FALSE;
    if (rp_verifier_stages(verifier) && slot->accumulate == RP_NO_TASK &&
        state->gradients_complete && slot->last_weights != RP_NO_TASK &&
        rp_plan_stage(verifier->plan, stage)->gradient_bytes > 0)
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, slot->last_weights,
                                "the gradients of stage %u in round %u are never summed", stage,
                                round);
    return TRUE;
}
