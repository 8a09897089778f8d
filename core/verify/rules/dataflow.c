/*
 * Rule 1: every action runs once, after its inputs were written, and in `full` fidelity the value
 * has travelled all the way.
 *
 *   forward   F(l-1) --> [download l] --> [upload l] --> F(l)
 *   stash     F(l-1) --> [download l] --> [stash upload l] --> B of the stage that begins at l
 *   gradient  B(l) --> [gradient download l] --> [gradient upload l] --> B(l-1)
 *   saved     F of layer l --> [saved download l] --> [saved upload l] --> B of layer l
 *
 * The tasks in brackets are required where the value changes devices, and always for dispatched
 * stages. A backward may receive its gradient late (phase 1), everything else is needed at the
 * start.
 */
#include "core/verify/rules/dataflow.h"

/* Whether some stage begins at @boundary and so has a use for the transport. */
static gboolean
boundary_is_used(const RpVerifier *verifier, int transport, guint32 boundary)
{
    const guint32 *forward = verifier->forward_of, *backward = verifier->backward_of;

    if (boundary >= verifier->n_layers)
        return FALSE;
    if (transport >= RP_TRANSPORT_SAVED_DOWN)
        return !verifier->promises->forward_only &&
               rp_plan_layer(verifier->plan, boundary)->saved_bytes > 0;
    if (boundary == 0)
        return transport == RP_TRANSPORT_UP || transport == RP_TRANSPORT_STASH_UP;

    gboolean forward_border = forward[boundary - 1] != forward[boundary];
    gboolean backward_border = backward[boundary - 1] != backward[boundary];
    if (verifier->promises->forward_only)
        return forward_border && transport <= RP_TRANSPORT_UP;
    if (transport == RP_TRANSPORT_DOWN)
        return forward_border || backward_border;
    return transport == RP_TRANSPORT_UP ? forward_border : backward_border;
}

static gboolean
note_once(RpDataflow *flow, guint32 *place, guint32 task, const char *what)
{
    if (*place != RP_NO_TASK)
        return rp_verifier_fail(flow->verifier, RP_RULE_ACTIONS, *place, task, "%s runs twice",
                                what);
    *place = task;
    return TRUE;
}

static gboolean
note_action(RpDataflow *flow, guint32 index, const RpTask *task)
{
    gsize m = flow->verifier->micro_batches;
    RpActionPart parts[2];
    guint n_parts = rp_action_parts(flow->verifier, task, parts);

    for (guint i = 0; i < n_parts; i++) {
        gsize at = parts[i].stage * m + parts[i].micro_batch;

        if (parts[i].forward && parts[i].begins &&
            !note_once(flow, &flow->forward[at], index, "a forward"))
            return FALSE;
        if (parts[i].backward && parts[i].ends &&
            !note_once(flow, &flow->backward[at], index, "a backward"))
            return FALSE;
        if (parts[i].weights && parts[i].ends &&
            !note_once(flow, &flow->weights[at], index, "a weight gradient"))
            return FALSE;
    }
    return TRUE;
}

static gboolean
note_transport(RpDataflow *flow, guint32 index, const RpTask *task, int transport)
{
    RpVerifier *verifier = flow->verifier;

    if (task->micro_batch >= verifier->micro_batches ||
        !boundary_is_used(verifier, transport, task->layer))
        return rp_verifier_fail(verifier, RP_RULE_ACTIONS, RP_NO_TASK, index,
                                "no stage has a use for this value");
    return note_once(flow,
                     &flow->transport[transport][(gsize)task->layer * verifier->micro_batches +
                                                 task->micro_batch],
                     index, "a transfer");
}

static gboolean
note_tasks(RpDataflow *flow)
{
    const RpVerifier *verifier = flow->verifier;

    for (guint32 i = verifier->iteration_start[flow->iteration];
         i < verifier->iteration_start[flow->iteration + 1]; i++) {
        guint32 index = verifier->by_iteration[i];
        const RpTask *task = rp_verifier_task(verifier, index);
        const int transport = task->kind - RP_TASK_ACTIVATION_DOWNLOAD;

        if (transport >= 0 && transport < RP_N_TRANSPORTS
                ? !note_transport(flow, index, task, transport)
                : !note_action(flow, index, task))
            return FALSE;
    }
    return TRUE;
}

static gboolean
fail_missing(RpDataflow *flow, guint32 stage, guint32 micro_batch, const char *what)
{
    RpVerifier *verifier = flow->verifier;
    gsize at = (gsize)stage * verifier->micro_batches + micro_batch;
    guint32 beside = flow->backward[at] != RP_NO_TASK ? flow->backward[at] : flow->forward[at];

    return rp_verifier_fail(verifier, RP_RULE_ACTIONS, RP_NO_TASK, beside,
                            "no %s of stage %u, micro-batch %u in iteration %u", what, stage,
                            micro_batch, verifier->first_iteration + flow->iteration);
}

/* A slot, one stage of one round in one direction, stays on one device; so does each copy of a mirrored
 * stage. */
static gboolean
check_slot(RpDataflow *flow, const guint32 *actions, guint32 stage)
{
    RpVerifier *verifier = flow->verifier;
    const guint copies = rp_plan_stage(verifier->plan, stage)->mirrored ? 2 : 1;
    guint per_round = verifier->micro_batches / verifier->rounds / copies;
    guint32 first = RP_NO_TASK;

    for (guint m = 0; m < verifier->micro_batches; m++) {
        guint32 action = actions[(gsize)stage * verifier->micro_batches + m];

        if (m % per_round == 0)
            first = RP_NO_TASK;
        if (first != RP_NO_TASK && action != RP_NO_TASK &&
            verifier->lane[first] != verifier->lane[action])
            return rp_verifier_fail(verifier, RP_RULE_ACTIONS, first, action,
                                    "one slot runs on two gpus");
        if (first == RP_NO_TASK)
            first = action;
    }
    return TRUE;
}

static gboolean
check_present(RpDataflow *flow)
{
    const RpVerifier *verifier = flow->verifier;

    for (guint s = 0; s < verifier->n_stages && flow->complete; s++) {
        const RpPlanStage *stage = rp_plan_stage(verifier->plan, s);

        if (!check_slot(flow, flow->forward, s) || !check_slot(flow, flow->backward, s) ||
            !check_slot(flow, flow->weights, s))
            return FALSE;
        for (guint m = 0; m < verifier->micro_batches; m++) {
            gsize at = (gsize)s * verifier->micro_batches + m;

            if (stage->runs_forward && flow->forward[at] == RP_NO_TASK)
                return fail_missing(flow, s, m, "forward");
            if (verifier->promises->forward_only)
                continue;
            if (stage->runs_backward && flow->backward[at] == RP_NO_TASK)
                return fail_missing(flow, s, m, "backward");
            if (stage->runs_backward && flow->weights[at] == RP_NO_TASK)
                return fail_missing(flow, s, m, "weight gradient");
        }
    }
    return TRUE;
}

static gboolean
check_iteration(RpDataflow *flow)
{
    const RpVerifier *verifier = flow->verifier;
    gsize n_actions = (gsize)verifier->n_stages * verifier->micro_batches;
    gsize n_values = (gsize)verifier->n_layers * verifier->micro_batches;

    rp_verify_clear_table(flow->forward, n_actions);
    rp_verify_clear_table(flow->backward, n_actions);
    rp_verify_clear_table(flow->weights, n_actions);
    for (guint t = 0; t < RP_N_TRANSPORTS && verifier->full; t++)
        rp_verify_clear_table(flow->transport[t], n_values);
    if (!note_tasks(flow) || !check_present(flow))
        return FALSE;
    for (guint m = 0; m < verifier->micro_batches; m++)
        if (!rp_dataflow_check_values(flow, m) || !rp_dataflow_check_saved(flow, m))
            return FALSE;
    return rp_dataflow_check_overlaps(flow);
}

/* After the last iteration there may be uploads for the next one; it has no actions yet. */
static gboolean
has_actions(const RpVerifier *verifier, guint32 iteration)
{
    for (guint32 i = verifier->iteration_start[iteration];
         i < verifier->iteration_start[iteration + 1]; i++)
        if (rp_task_is_compute(rp_verifier_task(verifier, verifier->by_iteration[i])))
            return TRUE;
    return FALSE;
}

gboolean
rp_verify_dataflow(RpVerifier *verifier)
{
    RpDataflow flow = {.verifier = verifier};
    gsize n_actions = (gsize)verifier->n_stages * verifier->micro_batches;
    gsize n_values = (gsize)verifier->n_layers * verifier->micro_batches;
    gboolean correct = TRUE;

    if (n_actions > G_MAXUINT32 || n_values > G_MAXUINT32)
        return rp_verifier_fail(verifier, RP_RULE_NONE, RP_NO_TASK, RP_NO_TASK,
                                "too large to verify: %u micro-batches of %u layers",
                                verifier->micro_batches, verifier->n_layers);
    flow.forward = rp_verify_new_table(n_actions);
    flow.backward = rp_verify_new_table(n_actions);
    flow.weights = rp_verify_new_table(n_actions);
    /* boundary 0 is looked at in `compute` fidelity too */
    for (guint t = 0; t < RP_N_TRANSPORTS; t++)
        flow.transport[t] = rp_verify_new_table(n_values);

    for (guint32 t = MAX(verifier->complete_from, verifier->first_flow);
         t < verifier->n_iterations && correct; t++) {
        flow.iteration = t;
        flow.complete = t + 1 < verifier->n_iterations ||
                        (!verifier->open && (t == 0 || has_actions(verifier, t)));
        correct = check_iteration(&flow);
    }
    g_free(flow.forward);
    g_free(flow.backward);
    g_free(flow.weights);
    for (guint t = 0; t < RP_N_TRANSPORTS; t++)
        g_free(flow.transport[t]);
    return correct;
}
