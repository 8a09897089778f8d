/*
 * Rule 4, frozen weights that stay on devices: they reach one once, before the first task that reads
 * them, and nothing ever overwrites them. rules/tables.c proves that their places are theirs alone.
 *
 *   parameter-up    |stays|c0|c1|          slot = one stage of one round
 *   compute                     |F0|F1|    reads its slot, and resident weights
 */
#include "core/verify/rules/slots.h"

gboolean
rp_verify_resident_fields(RpVerifier *verifier, guint32 index, const RpTask *task)
{
    if (task->layer >= verifier->n_layers ||
        rp_plan_resident(verifier->plan, rp_verifier_device(verifier, index), task->layer) ==
            RP_NONE)
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, index,
                                "a layer that does not exist, or does not stay on the device");
    if (task->iteration != verifier->promises->first_iteration)
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, index,
                                "weights that stay are uploaded after the first iteration");
    const guint64 bytes = rp_plan_layer(verifier->plan, task->layer)->resident_bytes;
    if (task->bytes != bytes)
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, index,
                                "%" G_GUINT64_FORMAT " bytes are transferred, %" G_GUINT64_FORMAT
                                " stay of the layer",
                                task->bytes, bytes);
    const RpAccess *accesses = rp_plan_accesses(verifier->plan, task);
    for (guint i = 0; i < task->access_count; i++) {
        const guint32 writer = rp_verifier_content(verifier, task, i)->writer;

        if ((accesses[i].mode & RP_ACCESS_WRITE) != 0 && writer != RP_NO_TASK)
            return rp_verifier_fail(verifier, RP_RULE_TRANSFERS,
                                    writer == RP_OLD_TASK ? RP_NO_TASK : writer, index,
                                    "weights that stay are uploaded twice");
    }
    return TRUE;
}

/* The resident weights of layer @layer were uploaded to the device of @reader before. */
static gboolean
check_layer(RpVerifier *verifier, guint32 reader, guint layer)
{
    const RpTask *task = rp_verifier_task(verifier, reader);
    const guint32 device = rp_verifier_device(verifier, reader);
    const guint32 buffer = rp_plan_resident(verifier->plan, device, layer);
    const RpAccess *accesses = rp_plan_accesses(verifier->plan, task);
    guint i = 0;

    while (i < task->access_count && (buffer == RP_NONE || accesses[i].buffer != buffer))
        i++;
    if (i == task->access_count)
        return rp_verifier_fail(
            verifier, RP_RULE_TRANSFERS, RP_NO_TASK, reader,
            "layer %u stays on its devices, and the task does not read it there", layer);
    const guint32 writer = rp_verifier_content(verifier, task, i)->writer;
    if (writer == RP_NO_TASK && verifier->whole)
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, RP_NO_TASK, reader,
                                "layer %u stays on gpu %u, but is never uploaded there before it "
                                "is read",
                                layer, device);
    return writer == RP_NO_TASK || writer == RP_OLD_TASK ||
           rp_verify_slot_order(verifier, writer, reader,
                                "the weights that stay are not sure to be on the device");
}

gboolean
rp_verify_residents(RpVerifier *verifier, guint32 reader, guint32 stage)
{
    const RpInterval layers = rp_plan_stage(verifier->plan, stage)->layers;

    for (guint l = layers.first; l < layers.first + layers.count && reader != RP_NO_TASK; l++)
        if (rp_plan_layer(verifier->plan, l)->resident_bytes > 0 &&
            !check_layer(verifier, reader, l))
            return FALSE;
    return TRUE;
}
