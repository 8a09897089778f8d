/*
 * Rule 1, the values: an action's inputs have been written before, and have travelled all the way
 * (the picture stands in dataflow.c).
 */
#include "core/verify/rules/dataflow.h"

/* @second reads the output of @first, without a transfer. */
static gboolean
check_order(RpDataflow *flow, guint32 first, guint32 second, gboolean late, const char *value)
{
    RpVerifier *verifier = flow->verifier;

    if (rp_verifier_before(verifier, first, second) ||
        (late && rp_verifier_before_late(verifier, first, second)))
        return TRUE;
    return rp_verifier_fail(verifier, RP_RULE_ACTIONS, first, second,
                            "%s is not sure to be there: the second task may start before the "
                            "first has ended",
                            value);
}

/* One leg of a transport: in order, on one device if @near, and through a buffer. */
static gboolean
check_leg(RpDataflow *flow, guint32 first, guint32 second, gboolean near, gboolean late,
          gboolean has_bytes, RpAccessRole from, RpAccessRole to, const char *value)
{
    RpVerifier *verifier = flow->verifier;

    if (near && rp_verifier_device(verifier, first) != rp_verifier_device(verifier, second))
        return rp_verifier_fail(verifier, RP_RULE_ACTIONS, first, second,
                                "%s is carried to or from another gpu than the action's", value);
    return check_order(flow, first, second, late, value) &&
           (!has_bytes ||
            rp_verifier_check_flow(verifier, RP_RULE_ACTIONS, first, second,
                                   (RpCarriage){from, to, RP_CARRY_ACTIVATIONS}, value));
}

/* The role in which an upload's value is read. */
static RpAccessRole
role_of(int up)
{
    return up == RP_TRANSPORT_GRADIENT_UP ? RP_ROLE_GRADIENT : RP_ROLE_INPUT;
}

/* The whole way through host memory. */
static gboolean
check_transport(RpDataflow *flow, guint32 producer, guint32 consumer, int down, int up,
                guint32 boundary, guint32 micro_batch, gboolean late, const char *value)
{
    RpVerifier *verifier = flow->verifier;
    gsize at = (gsize)boundary * verifier->micro_batches + micro_batch;
    guint32 download = flow->transport[down][at], upload = flow->transport[up][at];
    gboolean has_bytes = upload != RP_NO_TASK && rp_verifier_task(verifier, upload)->bytes > 0;

    if (flow->complete && (download == RP_NO_TASK || upload == RP_NO_TASK))
        return rp_verifier_fail(verifier, RP_RULE_ACTIONS, producer, consumer,
                                "%s is never %s between the two", value,
                                download == RP_NO_TASK ? "downloaded" : "uploaded");
    if (download != RP_NO_TASK && upload != RP_NO_TASK &&
        rp_verifier_task(verifier, download)->bytes != rp_verifier_task(verifier, upload)->bytes)
        return rp_verifier_fail(verifier, RP_RULE_ACTIONS, download, upload,
                                "%s is not uploaded in the size in which it was downloaded", value);
    return (producer == RP_NO_TASK || download == RP_NO_TASK ||
            check_leg(flow, producer, download, TRUE, FALSE, has_bytes, RP_ROLE_OUTPUT,
                      RP_ROLE_OUTPUT, value)) &&
           (download == RP_NO_TASK || upload == RP_NO_TASK ||
            check_leg(flow, download, upload, FALSE, FALSE, has_bytes, RP_ROLE_HOST, RP_ROLE_HOST,
                      value)) &&
           (consumer == RP_NO_TASK || upload == RP_NO_TASK ||
            check_leg(flow, upload, consumer, TRUE, late, has_bytes, role_of(up), role_of(up),
                      value));
}

/* Whether a value may stay where it is, on one device. */
static gboolean
stays(const RpDataflow *flow, guint32 producer, guint32 consumer, int up, gsize at)
{
    const RpVerifier *verifier = flow->verifier;
    guint32 stage = rp_verifier_task(verifier, consumer)->stage;

    return rp_plan_stage(verifier->plan, stage)->bound &&
           rp_verifier_device(verifier, producer) == rp_verifier_device(verifier, consumer) &&
           flow->transport[up][at] == RP_NO_TASK;
}

static gboolean
check_value(RpDataflow *flow, guint32 producer, guint32 consumer, int down, int up,
            guint32 boundary, guint32 micro_batch, gboolean late, const char *value)
{
    RpVerifier *verifier = flow->verifier;
    gsize at = (gsize)boundary * verifier->micro_batches + micro_batch;

    if (producer == RP_NO_TASK || consumer == RP_NO_TASK)
        return !verifier->full || check_transport(flow, producer, consumer, down, up, boundary,
                                                  micro_batch, late, value);
    if (!verifier->full)
        return check_order(flow, producer, consumer, late, value);
    if (stays(flow, producer, consumer, up, at))
        return check_leg(flow, producer, consumer, TRUE, late, TRUE, RP_ROLE_OUTPUT, role_of(up),
                         value);
    return check_transport(flow, producer, consumer, down, up, boundary, micro_batch, late, value);
}

static gboolean
is_kind(const RpVerifier *verifier, guint32 task, RpTaskKind kind)
{
    return task != RP_NO_TASK && rp_verifier_task(verifier, task)->kind == kind;
}

/* The input of the forward that begins at @boundary. */
static gboolean
check_forward(RpDataflow *flow, guint32 boundary, guint32 m)
{
    const RpVerifier *verifier = flow->verifier;
    gsize M = verifier->micro_batches;
    guint32 consumer = flow->forward[verifier->forward_of[boundary] * M + m];
    gboolean late = verifier->promises->early_fused && is_kind(verifier, consumer, RP_TASK_FUSED);

    if (boundary == 0) {
        guint32 upload = flow->transport[RP_TRANSPORT_UP][m]; /* token ids: may be left out */

        return upload == RP_NO_TASK || consumer == RP_NO_TASK ||
               check_leg(flow, upload, consumer, TRUE, late,
                         rp_verifier_task(verifier, upload)->bytes > 0, RP_ROLE_INPUT,
                         RP_ROLE_INPUT, "the forward's input");
    }
    return check_value(flow, flow->forward[verifier->forward_of[boundary - 1] * M + m], consumer,
                       RP_TRANSPORT_DOWN, RP_TRANSPORT_UP, boundary, m, late,
                       "the forward's input");
}

static gboolean
check_gradient(RpDataflow *flow, guint32 boundary, guint32 m)
{
    const RpVerifier *verifier = flow->verifier;
    gsize M = verifier->micro_batches;
    guint32 consumer = flow->backward[verifier->backward_of[boundary - 1] * M + m];
    gboolean late = is_kind(verifier, consumer, RP_TASK_BACKWARD) ||
                    is_kind(verifier, consumer, RP_TASK_INPUT_GRADIENT);

    return check_value(flow, flow->backward[verifier->backward_of[boundary] * M + m], consumer,
                       RP_TRANSPORT_GRADIENT_DOWN, RP_TRANSPORT_GRADIENT_UP, boundary, m, late,
                       "the backward's gradient");
}

static gboolean
reads_category(const RpVerifier *verifier, guint32 index, RpBufferCategory category)
{
    const RpTask *task = rp_verifier_task(verifier, index);
    const RpAccess *accesses = rp_plan_accesses(verifier->plan, task);

    for (guint i = 0; i < task->access_count; i++)
        if ((accesses[i].mode & RP_ACCESS_READ) != 0 &&
            rp_plan_buffer(verifier->plan, accesses[i].buffer)->category == (guint32)category)
            return TRUE;
    return FALSE;
}

/* A bound stage keeps its input on the device: an uploaded one, or the output of the stage
 * before. */
static gboolean
check_kept_input(RpDataflow *flow, guint32 own, guint32 consumer, guint32 boundary, guint32 m)
{
    RpVerifier *verifier = flow->verifier;
    gsize M = verifier->micro_batches;
    guint32 source = flow->transport[RP_TRANSPORT_UP][boundary * M + m];
    RpAccessRole from = RP_ROLE_INPUT;

    if (!check_order(flow, own, consumer, FALSE, "the stashed input"))
        return FALSE;
    if (!verifier->full || verifier->promises->stash_on_host)
        return TRUE;
    if (source == RP_NO_TASK && boundary > 0) {
        source = flow->forward[verifier->forward_of[boundary - 1] * M + m];
        from = RP_ROLE_OUTPUT;
    }
    return source == RP_NO_TASK || /* token ids without bytes, or retired */
           rp_verifier_check_flow(verifier, RP_RULE_ACTIONS, source, consumer,
                                  (RpCarriage){from, RP_ROLE_INPUT, RP_CARRY_ACTIVATIONS},
                                  "the stashed input");
}

/* W comes after its I, and reads the same stash. */
static gboolean
check_weight_gradient(RpDataflow *flow, guint32 s, guint32 m)
{
    RpVerifier *verifier = flow->verifier;
    gsize at = (gsize)s * verifier->micro_batches + m;
    guint32 backward = flow->backward[at], weights = flow->weights[at];

    if (weights == backward || weights == RP_NO_TASK || backward == RP_NO_TASK)
        return TRUE;
    if (!check_order(flow, backward, weights, FALSE, "what W needs of its I"))
        return FALSE;
    if (verifier->full && rp_plan_stage(verifier->plan, s)->kept_bytes > 0 &&
        !rp_verifier_check_flow(verifier, RP_RULE_ACTIONS, backward, weights,
                                (RpCarriage){RP_ROLE_KEPT, RP_ROLE_KEPT, RP_CARRY_ACTIVATIONS},
                                "what W needs of its I"))
        return FALSE;
    if (flow->forward[at] == RP_NO_TASK || !reads_category(verifier, weights, RP_BUFFER_STASH))
        return TRUE;
    return check_kept_input(flow, flow->forward[at], weights,
                            rp_plan_stage(verifier->plan, s)->layers.first, m);
}

static gboolean
check_stash(RpDataflow *flow, guint32 s, guint32 m)
{
    const RpVerifier *verifier = flow->verifier;
    const RpPlanStage *stage = rp_plan_stage(verifier->plan, s);
    gsize M = verifier->micro_batches;
    guint32 boundary = stage->layers.first;
    guint32 consumer = flow->backward[s * M + m], own = flow->forward[s * M + m];

    if (stage->bound && own != RP_NO_TASK && consumer != RP_NO_TASK &&
        (!check_kept_input(flow, own, consumer, boundary, m) ||
         (verifier->full && verifier->promises->keeps && stage->kept_bytes > 0 &&
          !rp_verifier_check_flow(flow->verifier, RP_RULE_ACTIONS, own, consumer,
                                  (RpCarriage){RP_ROLE_KEPT, RP_ROLE_KEPT, RP_CARRY_ACTIVATIONS},
                                  "what the forward keeps"))))
        return FALSE;
    if (stage->runs_forward && !(stage->bound && verifier->promises->stash_on_host))
        return TRUE;
    if (boundary == 0) {
        guint32 upload = flow->transport[RP_TRANSPORT_STASH_UP][m];

        return upload == RP_NO_TASK || consumer == RP_NO_TASK ||
               check_leg(flow, upload, consumer, TRUE, FALSE,
                         rp_verifier_task(verifier, upload)->bytes > 0, RP_ROLE_INPUT,
                         RP_ROLE_INPUT, "the stashed input");
    }
    guint32 producer = flow->forward[verifier->forward_of[boundary - 1] * M + m];
    if (!verifier->full)
        return producer == RP_NO_TASK || consumer == RP_NO_TASK ||
               check_order(flow, producer, consumer, FALSE, "the stashed input");
    return check_transport(flow, producer, consumer, RP_TRANSPORT_DOWN, RP_TRANSPORT_STASH_UP,
                           boundary, m, FALSE, "the stashed input");
}

/* Slices of a sequence: forwards read keys and values of the slices before, backwards their gradients,
 * to which the slices behind have added. */
static gboolean
check_slices(RpDataflow *flow, guint32 s, guint32 m)
{
    const gsize at = (gsize)s * flow->verifier->micro_batches + m;
    const guint32 forward = flow->forward[at], backward = flow->backward[at];

    /* the fused stage's, where they are two: a bound stage's are looked at with its input */
    if (forward != backward && forward != RP_NO_TASK && backward != RP_NO_TASK) {
        if (rp_verifier_device(flow->verifier, forward) !=
            rp_verifier_device(flow->verifier, backward))
            return rp_verifier_fail(flow->verifier, RP_RULE_ACTIONS, forward, backward,
                                    "forward and backward of a slice run on two gpus");
        if (!check_order(flow, forward, backward, FALSE, "what the slice's forward keeps"))
            return FALSE;
    }
    if (m % MAX(1, flow->verifier->promises->slices) == 0)
        return TRUE;
    return (flow->forward[at - 1] == RP_NO_TASK || flow->forward[at] == RP_NO_TASK ||
            check_order(flow, flow->forward[at - 1], flow->forward[at], FALSE,
                        "keys and values of the slice before")) &&
           (flow->backward[at] == RP_NO_TASK || flow->backward[at - 1] == RP_NO_TASK ||
            check_order(flow, flow->backward[at], flow->backward[at - 1], FALSE,
                        "gradients of keys and values from the slice behind"));
}

gboolean
rp_dataflow_check_values(RpDataflow *flow, guint32 m)
{
    const RpVerifier *verifier = flow->verifier;

    for (guint b = 0; b < verifier->n_layers; b++) {
        if ((b == 0 || verifier->forward_of[b - 1] != verifier->forward_of[b]) &&
            !check_forward(flow, b, m))
            return FALSE;
        if (b > 0 && !verifier->promises->forward_only &&
            verifier->backward_of[b - 1] != verifier->backward_of[b] && !check_gradient(flow, b, m))
            return FALSE;
    }
    for (guint s = 0; s < verifier->n_stages && !verifier->promises->forward_only; s++) {
        if (!check_slices(flow, s, m))
            return FALSE;
        if (!rp_plan_stage(verifier->plan, s)->runs_backward)
            continue;
        if (!check_stash(flow, s, m) || !check_weight_gradient(flow, s, m))
            return FALSE;
    }
    return TRUE;
}

/* Who takes a value from the action that makes it: the download, or the next action of the device.
 */
static guint32
taker(const RpDataflow *flow, int down, const guint32 *actions, guint32 boundary, guint32 stage,
      guint32 m)
{
    gsize M = flow->verifier->micro_batches;

    if (flow->transport[down][boundary * M + m] != RP_NO_TASK)
        return flow->transport[down][boundary * M + m];
    return actions[stage * M + m];
}

/* An overlapped action makes two values, so it needs two buffers that somebody reads. */
static gboolean
check_overlap(RpDataflow *flow, guint32 index)
{
    RpVerifier *verifier = flow->verifier;
    const RpTask *task = rp_verifier_task(verifier, index);
    RpInterval forward = rp_plan_stage(verifier->plan, task->stage)->layers;
    guint32 end = forward.first + forward.count;
    guint32 first = rp_plan_stage(verifier->plan, task->backward_stage)->layers.first;
    guint32 output, gradient;

    if (end == verifier->n_layers || first == 0)
        return TRUE;
    output = taker(flow, RP_TRANSPORT_DOWN, flow->forward, end, verifier->forward_of[end],
                   task->micro_batch);
    gradient = taker(flow, RP_TRANSPORT_GRADIENT_DOWN, flow->backward, first,
                     verifier->backward_of[first - 1], task->backward_micro_batch);
    if (output == RP_NO_TASK || gradient == RP_NO_TASK ||
        rp_verifier_outputs(verifier, index, output, gradient) != 1)
        return TRUE; /* none: zero bytes, or reported already */
    return rp_verifier_fail(verifier, RP_RULE_ACTIONS, index, gradient,
                            "the output of the forward and the gradient of the backward pass "
                            "through one buffer: one of them is lost");
}

gboolean
rp_dataflow_check_overlaps(RpDataflow *flow)
{
    const RpVerifier *verifier = flow->verifier;

    for (guint32 i = verifier->iteration_start[flow->iteration];
         i < verifier->iteration_start[flow->iteration + 1] && verifier->full; i++)
        if (is_kind(verifier, verifier->by_iteration[i], RP_TASK_OVERLAP) &&
            !check_overlap(flow, verifier->by_iteration[i]))
            return FALSE;
    return TRUE;
}

/* ---- tensors that layers save ----
 *
 * Their forward leaves them in a buffer for each layer; they are downloaded and uploaded again,
 * whole, and their backward reads them in the same place among its buffers.
 *
 *   forward    saved (0) (1) (2) of layers 3 5 6       (layer 4 saves nothing)
 *                     |
 *   download of layer 3 --> host --> upload of layer 3
 *                                     |
 *   backward   saved (0) (1) of layers 3 5
 */

/* Number of the access by which @action reads or writes the tensors that @layer saves; RP_NONE. */
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
check_leaving(RpDataflow *flow, guint32 forward, guint32 download, guint layer)
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
check_returning(RpDataflow *flow, guint32 upload, guint32 backward, guint layer)
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
check_saved(RpDataflow *flow, guint layer, guint32 m)
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
         !check_leaving(flow, forward, download, layer)))
        return FALSE;
    if (download != RP_NO_TASK && upload != RP_NO_TASK &&
        (!check_ends(flow, download, upload, FALSE) ||
         !rp_verifier_check_flow(verifier, RP_RULE_ACTIONS, download, upload,
                                 (RpCarriage){RP_ROLE_HOST, RP_ROLE_HOST, RP_CARRY_ACTIVATIONS},
                                 "what the layer saved")))
        return FALSE;
    return upload == RP_NO_TASK || backward == RP_NO_TASK ||
           (check_ends(flow, upload, backward, TRUE) &&
            check_returning(flow, upload, backward, layer));
}

gboolean
rp_dataflow_check_saved(RpDataflow *flow, guint32 micro_batch)
{
    const RpVerifier *verifier = flow->verifier;

    if (!verifier->full || verifier->promises->forward_only)
        return TRUE;
    for (guint l = 0; l < verifier->n_layers; l++)
        if (rp_plan_layer(verifier->plan, l)->saved_bytes > 0 && !check_saved(flow, l, micro_batch))
            return FALSE;
    return TRUE;
}
