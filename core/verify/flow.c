/*
 * Transport of values: a value travels from a to b if b reads a buffer that a wrote, in the same
 * generation (rules/buffers.c) and in the role that it was meant for: whole, not overwritten, not
 * yet the next.
 */
#include "core/verify/private.h"

/* Whether @consumer reads the result of write @i of @producer, with access @only unless that is
 * RP_NONE. @writer: the task that overwrote it, if @consumer reads the buffer later than that. */
static gboolean
carries(const RpVerifier *verifier, const RpTask *from, guint i, const RpTask *to, guint32 only,
        const RpCarriage *carriage, guint32 *writer)
{
    const RpAccess *write = rp_plan_accesses(verifier->plan, from) + i;
    const RpAccess *reads = rp_plan_accesses(verifier->plan, to);
    const RpContent *made = rp_verifier_content(verifier, from, i);
    const RpContent *seen = rp_verifier_content(verifier, to, 0);

    if ((write->mode & RP_ACCESS_WRITE) == 0 ||
        (carriage->from != RP_N_ACCESS_ROLES && write->role != carriage->from) ||
        (carriage->categories >> rp_plan_buffer(verifier->plan, write->buffer)->category & 1) == 0)
        return FALSE;
    for (guint k = 0; k < to->access_count; k++) {
        if (reads[k].buffer != write->buffer || (reads[k].mode & RP_ACCESS_READ) == 0 ||
            (carriage->to != RP_N_ACCESS_ROLES && reads[k].role != carriage->to) ||
            (only != RP_NONE && only != k))
            continue;
        if (seen[k].seen == made->made)
            return TRUE;
        *writer = seen[k].writer;
    }
    return FALSE;
}

guint
rp_verifier_outputs(const RpVerifier *verifier, guint32 producer, guint32 a, guint32 b)
{
    const RpTask *from = rp_verifier_task(verifier, producer);
    const RpCarriage any = {RP_N_ACCESS_ROLES, RP_N_ACCESS_ROLES, RP_CARRY_ACTIVATIONS};
    guint32 writer;
    guint n = 0;

    for (guint i = 0; i < from->access_count; i++)
        if (carries(verifier, from, i, rp_verifier_task(verifier, a), RP_NONE, &any, &writer) ||
            carries(verifier, from, i, rp_verifier_task(verifier, b), RP_NONE, &any, &writer))
            n++;
    return n;
}

gboolean
rp_verifier_check_flow_into(RpVerifier *verifier, RpRule rule, guint32 producer, guint32 consumer,
                            guint32 access, RpCarriage carriage, const char *value)
{
    const RpTask *from = rp_verifier_task(verifier, producer);
    const RpTask *to = rp_verifier_task(verifier, consumer);
    guint32 writer = RP_NO_TASK;

    for (guint i = 0; i < from->access_count; i++)
        if (carries(verifier, from, i, to, access, &carriage, &writer))
            return TRUE;
    if (writer == RP_NO_TASK || writer == RP_OLD_TASK)
        return rp_verifier_fail(verifier, rule, producer, consumer,
                                "the second task reads no buffer that the first wrote: %s is lost",
                                value);
    return rp_verifier_fail(verifier, RP_RULE_BUFFERS, producer, consumer,
                            "what the first task wrote is overwritten by task %" G_GUINT64_FORMAT
                            " before the second reads it: %s is lost",
                            verifier->first_id + writer, value);
}

gboolean
rp_verifier_check_flow(RpVerifier *verifier, RpRule rule, guint32 producer, guint32 consumer,
                       RpCarriage carriage, const char *value)
{
    return rp_verifier_check_flow_into(verifier, rule, producer, consumer, RP_NONE, carriage,
                                       value);
}
