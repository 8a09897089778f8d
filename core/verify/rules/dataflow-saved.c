/*
 * Rule 1, what layers save: their forward leaves it in a buffer, of which there is one a layer; it goes
 * down and up again, whole, and their backward reads it in the same place among its buffers.
 *
 *   forward    saved (0) (1) (2) of layers 3 5 6       (layer 4 saves nothing)
 *                     |
 *   download of layer 3 --> host --> upload of layer 3
 *                                     |
 *   backward   saved (0) (1) of layers 3 5
 */
#include "core/verify/rules/dataflow.h"

/* Number of the access by which @action reads or writes what @layer saves; RP_NONE. */
static guint32
access_of(const RpVerifier *verifier, guint32 action, guint layer)
{
    const RpTask *task = rp_verifier_task(verifier, action);
    const RpAccess *accesses = rp_plan_accesses(verifier->plan, task);
    guint before = 0;

    for (guint l = rp_plan_stage(verifier->plan, task->stage)->layers.first; l < layer; l++)
        before += rp_plan_layer(verifier->plan, l)->saved_bytes > 0;
    for (guint32 i = 0; i < task->access_count; i++)
        if (accesses[i].role == RP_ROLE_SAVED && before-- == 0)
            return i;
    return RP_NONE;
}

static gboolean
fail_place(RpDataflow *flow, guint32 first, guint32 second)
{
    return rp_verifier_fail(flow->verifier, RP_RULE_ACTIONS, first, second,
                            "what the layer saves stands in another buffer than the action's");
}

/* The download reads the very buffer that the forward has for this layer. */
static gboolean
check_forward(RpDataflow *flow, guint32 forward, guint32 download, guint layer)
{
    RpVerifier *verifier = flow->verifier;
    const RpTask *task = rp_verifier_task(verifier, forward);
    const guint32 access = access_of(verifier, forward, layer);
    const RpTask *taker = rp_verifier_task(verifier, download);
    const RpAccess *read = rp_plan_accesses(verifier->plan, taker);
    guint i = 0;

    while (i < taker->access_count && read[i].role != RP_ROLE_SAVED)
        i++;
    if (access == RP_NONE || i == taker->access_count ||
        read[i].buffer != rp_plan_accesses(verifier->plan, task)[access].buffer)
        return fail_place(flow, forward, download);
    return rp_verifier_check_flow(verifier, RP_RULE_ACTIONS, forward, download,
                                  (RpCarriage){RP_ROLE_SAVED, RP_ROLE_SAVED, RP_CARRY_ACTIVATIONS},
                                  "what the layer saves");
}

static gboolean
check_backward(RpDataflow *flow, guint32 upload, guint32 backward, guint layer)
{
    RpVerifier *verifier = flow->verifier;
    const guint32 access = access_of(verifier, backward, layer);

    if (access == RP_NONE)
        return fail_place(flow, upload, backward);
    return rp_verifier_check_flow_into(
        verifier, RP_RULE_ACTIONS, upload, backward, access,
        (RpCarriage){RP_ROLE_SAVED, RP_ROLE_SAVED, RP_CARRY_ACTIVATIONS}, "what the layer saved");
}

static gboolean
check_ends(RpDataflow *flow, guint32 first, guint32 second, gboolean near)
{
    RpVerifier *verifier = flow->verifier;

    if (near && rp_verifier_device(verifier, first) != rp_verifier_device(verifier, second))
        return rp_verifier_fail(verifier, RP_RULE_ACTIONS, first, second,
                                "what a layer saves is carried to or from another gpu than the "
                                "action's");
    return rp_verifier_before(verifier, first, second) ||
           rp_verifier_fail(verifier, RP_RULE_ACTIONS, first, second,
                            "what a layer saves is not sure to be there: the second task may "
                            "start before the first has ended");
}

static gboolean
check_layer(RpDataflow *flow, guint layer, guint32 m)
{
    RpVerifier *verifier = flow->verifier;
    const gsize M = verifier->micro_batches, at = (gsize)layer * M + m;
    const guint32 forward = flow->forward[verifier->forward_of[layer] * M + m];
    const guint32 backward = flow->backward[verifier->backward_of[layer] * M + m];
    const guint32 download = flow->transport[RP_TRANSPORT_SAVED_DOWN][at];
    const guint32 upload = flow->transport[RP_TRANSPORT_SAVED_UP][at];

    if (verifier->forward_of[layer] == verifier->backward_of[layer])
        return rp_verifier_fail(verifier, RP_RULE_ACTIONS, forward, RP_NO_TASK,
                                "layer %u saves something, and its forward and backward are of one "
                                "stage",
                                layer);
    if (flow->complete && (download == RP_NO_TASK || upload == RP_NO_TASK))
        return rp_verifier_fail(verifier, RP_RULE_ACTIONS, forward, backward,
                                "what layer %u saves is never %s between the two", layer,
                                download == RP_NO_TASK ? "downloaded" : "uploaded");
    if (forward != RP_NO_TASK && download != RP_NO_TASK &&
        (!check_ends(flow, forward, download, TRUE) ||
         !check_forward(flow, forward, download, layer)))
        return FALSE;
    if (download != RP_NO_TASK && upload != RP_NO_TASK &&
        (!check_ends(flow, download, upload, FALSE) ||
         !rp_verifier_check_flow(verifier, RP_RULE_ACTIONS, download, upload,
                                 (RpCarriage){RP_ROLE_HOST, RP_ROLE_HOST, RP_CARRY_ACTIVATIONS},
                                 "what the layer saved")))
        return FALSE;
    return upload == RP_NO_TASK || backward == RP_NO_TASK ||
           (check_ends(flow, upload, backward, TRUE) &&
            check_backward(flow, upload, backward, layer));
}

gboolean
rp_dataflow_check_saved(RpDataflow *flow, guint32 micro_batch)
{
    const RpVerifier *verifier = flow->verifier;

    if (!verifier->full || verifier->promises->forward_only)
        return TRUE;
    for (guint l = 0; l < verifier->n_layers; l++)
        if (rp_plan_layer(verifier->plan, l)->saved_bytes > 0 && !check_layer(flow, l, micro_batch))
            return FALSE;
    return TRUE;
}
