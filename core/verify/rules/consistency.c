/*
 * Rule 5: the consistency protocol of §4.3.1, per layer, and staleness.
 *
 * G(T) is the first task that reads the gradients of iteration T: their copy, or the step itself.
 * W(T) is the task that publishes the weights made of them: their copy, or the step itself.
 * Iteration R reads version R-1 (synchronous) or R-2 (asynchronous, staleness 1).
 *
 *   gpu   |uploads R|--downloads R|       |uploads R+1|--downloads R+1|
 *   host                          |G(R) step(R) W(R)|
 *
 *   (1) weight integrity      uploads R  -->  the W that overwrites those weights
 *   (2) torn weights          W of the version they read  -->  uploads R
 *   (3) incomplete gradients  downloads and sums of T  -->  G(T)
 *   (4) gradient integrity    G(T)  -->  downloads T+1
 *   (5) optimizer order       step(T-1) --> G(T) --> step(T) --> W(T) --> step(T+1)
 *
 * With early steps, these read the gradients first and late steps last, and both they and the steps
 * write the weights:
 *
 *   late(T-1) --> early(T) --> norm(T) --> step(T) --> late(T) --> early(T+1)
 *   uploads T --> early(T), step(T) --> uploads T+1;   downloads T --> early(T), late(T) --> downloads T+1
 *
 * With several servers, the reduce is G(T), which each gradient has once, and W(T) writes a share
 * of the weights, which a gather makes whole:
 *
 *   downloads T --> reduce(T) --> step(T) --> W(T) --> gather(T) --> uploads;   reduce(T) --> downloads T+1
 */
#include "core/verify/rules/consistency.h"

/* The buffer of 16-bit weights that @task writes; RP_NONE. */
static guint32
written_weights(const RpPlan *plan, const RpTask *task)
{
    const RpAccess *accesses = rp_plan_accesses(plan, task);

    for (guint i = 0; i < task->access_count; i++)
        if ((accesses[i].mode & RP_ACCESS_WRITE) != 0 &&
            rp_plan_buffer(plan, accesses[i].buffer)->category == RP_BUFFER_PARAMETERS)
            return accesses[i].buffer;
    return RP_NONE;
}

/* Whether gradients of @layer stand in @buffer. */
static gboolean
holds_gradients(const RpVerifier *verifier, guint layer, guint32 buffer)
{
    const RpPlanLayer *row = rp_plan_layer(verifier->plan, layer);

    for (guint i = 0; i < rp_plan_gradient_buffers(verifier->promises); i++)
        if (row->gradients[i] == buffer)
            return TRUE;
    return row->copied == buffer || row->reduced == buffer;
}

/* A step also reads the gradients of the layers that are tied to its own. */
static gboolean
is_tied_gradient(const RpVerifier *verifier, const RpTask *task, const RpAccess *access)
{
    if ((task->kind != RP_TASK_OPTIMIZER_STEP && task->kind != RP_TASK_EARLY_STEP &&
         task->kind != RP_TASK_LATE_STEP) ||
        access->mode != RP_ACCESS_READ)
        return FALSE;
    const guint tied = rp_plan_tied_from(verifier->plan, task->layer);

    return tied != RP_NONE && holds_gradients(verifier, tied, access->buffer);
}

/* A buffer of weights or gradients on the host is one layer's, for good, but for gradients that are reduced. */
static gboolean
note_owners(RpProtocol *protocol, guint32 index, const RpTask *task)
{
    RpVerifier *verifier = protocol->verifier;
    const RpAccess *accesses = rp_plan_accesses(verifier->plan, task);

    for (guint i = 0; i < task->access_count; i++) {
        guint32 category = rp_plan_buffer(verifier->plan, accesses[i].buffer)->category;
        guint32 *owner = &protocol->owner[accesses[i].buffer];

        if ((category != RP_BUFFER_PARAMETERS && category != RP_BUFFER_GRADIENTS) ||
            is_tied_gradient(verifier, task, &accesses[i]) ||
            (rp_verifier_may_share(verifier) &&
             holds_gradients(verifier, task->layer, accesses[i].buffer)))
            continue;
        if (*owner != RP_NONE && *owner != task->layer)
            return rp_verifier_fail(verifier,
                                    category == RP_BUFFER_PARAMETERS ? RP_RULE_WEIGHT_INTEGRITY
                                                                     : RP_RULE_GRADIENT_INTEGRITY,
                                    RP_NO_TASK, index, "buffer %u is that of layer %u",
                                    accesses[i].buffer, *owner);
        *owner = task->layer;
    }
    return TRUE;
}

/* -1: none of them */
static int
host_kind(const RpTask *task)
{
    const int kind = task->kind - RP_TASK_EARLY_STEP;

    return task->kind == RP_TASK_REDUCE             ? RP_HOST_REDUCE
           : task->kind == RP_TASK_GATHER           ? RP_HOST_GATHER
           : kind >= 0 && kind <= RP_HOST_LATE_STEP ? kind
                                                    : -1;
}

static gboolean
note_host_tasks(RpProtocol *protocol)
{
    RpVerifier *verifier = protocol->verifier;

    for (guint32 i = 0; i < verifier->n_tasks; i++) {
        const RpTask *task = rp_verifier_task(verifier, i);
        guint32 iteration = task->iteration - verifier->first_iteration;
        const int kind = host_kind(task);

        if (rp_task_is_compute(task))
            protocol->last_actions = MAX(protocol->last_actions, iteration);
        if (task->kind == RP_TASK_NORM)
            protocol->has_norm[iteration] = TRUE;
        if (kind < 0)
            continue;
        if (task->layer >= verifier->n_layers ||
            !rp_protocol_has_kind(protocol, task->layer, (guint)kind))
            return rp_verifier_fail(verifier, RP_RULE_OPTIMIZER_ORDER, RP_NO_TASK, i,
                                    "the layer has no gradients");
        if ((kind == RP_HOST_EARLY_STEP && !protocol->has[kind]) ||
            (kind == RP_HOST_LATE_STEP && !rp_protocol_is_early(protocol, task->layer)))
            return rp_verifier_fail(verifier, RP_RULE_OPTIMIZER_ORDER, RP_NO_TASK, i,
                                    "the plan has no early steps of the layer");
        if ((kind == RP_HOST_REDUCE || kind == RP_HOST_GATHER) && !protocol->has[kind])
            return rp_verifier_fail(verifier, RP_RULE_OPTIMIZER_ORDER, RP_NO_TASK, i,
                                    "the plan is that of one server");
        guint32 *place = rp_protocol_task(protocol, iteration, task->layer, (guint)kind);
        if (*place != RP_NO_TASK)
            return rp_verifier_fail(verifier, RP_RULE_OPTIMIZER_ORDER, *place, i,
                                    "the same update is done twice");
        *place = i;
        if (!note_owners(protocol, i, task))
            return FALSE;
    }
    return TRUE;
}

/* Each kind in use has a task for every layer or, in the last iteration of a growing plan, for
 * none; for some, if layers are stepped one by one. */
static gboolean
check_present(RpProtocol *protocol)
{
    RpVerifier *verifier = protocol->verifier;
    static const char *const names[] = {"early step",     "gradient copy", "optimizer step",
                                        "parameter copy", "late step",     "reduce",
                                        "gather"};

    for (guint32 t = rp_verifier_first_to_check(verifier); t <= protocol->last_actions; t++) {
        const gboolean past = t + verifier->pending < protocol->last_actions;

        for (guint kind = 0; kind < RP_N_HOST_KINDS; kind++) {
            guint32 some = RP_NO_TASK;
            guint missing = RP_NONE;

            for (guint l = 0; l < verifier->n_layers; l++) {
                guint32 task = *rp_protocol_task(protocol, t, l, kind);

                if (rp_protocol_has_kind(protocol, l, kind) && task == RP_NO_TASK &&
                    (kind != RP_HOST_LATE_STEP || rp_protocol_is_early(protocol, l)))
                    missing = l;
                else if (task != RP_NO_TASK)
                    some = task;
            }
            /* late copies of layers that are stepped one by one come one by one, too */
            const gboolean late = kind == RP_HOST_PARAMETER_COPY ||
                                  (kind == RP_HOST_GATHER && protocol->has[RP_HOST_PARAMETER_COPY]);
            const gboolean closed = protocol->has_norm[t] && (!late || t >= protocol->last_actions);
            const gboolean at_once =
                verifier->promises->gated && kind != RP_HOST_EARLY_STEP && kind != RP_HOST_REDUCE;
            if (missing != RP_NONE &&
                ((some != RP_NO_TASK && (at_once || closed)) || (past && protocol->has[kind])))
                return rp_verifier_fail(verifier, RP_RULE_OPTIMIZER_ORDER, RP_NO_TASK, some,
                                        "no %s of layer %u in iteration %u", names[kind], missing,
                                        verifier->first_iteration + t);
        }
    }
    return TRUE;
}

/* (5), and the copies carry the right values. */
static gboolean
check_optimizer_order(RpProtocol *protocol, guint32 t, guint32 layer)
{
    static const struct {
        guint first, second;
        guint32 later; /* iterations from the first to the second */
        const char *text;
    } orders[] = {
        {RP_HOST_EARLY_STEP, RP_HOST_STEP, 0, "the step may start before the early step has ended"},
        {RP_HOST_STEP, RP_HOST_LATE_STEP, 0, "the late step may start before the step has ended"},
        {RP_HOST_LATE_STEP, RP_HOST_EARLY_STEP, 1,
         "the early step may start before the last late step has ended"},
        {RP_HOST_GRADIENT_COPY, RP_HOST_STEP, 0,
         "the step may start before its gradients have been copied"},
        {RP_HOST_STEP, RP_HOST_PARAMETER_COPY, 0,
         "the weights may be copied before the step has ended"},
        {RP_HOST_STEP, RP_HOST_STEP, 1,
         "the step may start before the step of the last iteration has ended"},
        {RP_HOST_STEP, RP_HOST_GRADIENT_COPY, 1,
         "the gradients may be copied before the last step has ended"},
        {RP_HOST_PARAMETER_COPY, RP_HOST_STEP, 1,
         "the step may start before the last weights have been copied"},
        {RP_HOST_REDUCE, RP_HOST_STEP, 0,
         "the step may start before its gradients have been reduced"},
        {RP_HOST_STEP, RP_HOST_GATHER, 0, "the weights may be gathered before they are stepped"},
        {RP_HOST_PARAMETER_COPY, RP_HOST_GATHER, 0,
         "the weights may be gathered before they are copied"},
    };

    for (guint i = 0; i < G_N_ELEMENTS(orders); i++)
        if (t + orders[i].later < protocol->verifier->n_iterations &&
            !rp_protocol_check_follows(
                protocol->verifier, RP_RULE_OPTIMIZER_ORDER,
                *rp_protocol_task(protocol, t, layer, orders[i].first),
                *rp_protocol_task(protocol, t + orders[i].later, layer, orders[i].second),
                orders[i].text))
            return FALSE;
    return TRUE;
}

/* The kind of task that last wrote the optimizer's buffers that @task reads; @state: buffers of the
 * state, which it adds to or previews. */
static RpTaskKind
writer_kind(const RpProtocol *protocol, const RpTask *task, gboolean state)
{
    if (task->kind == RP_TASK_OPTIMIZER_STEP && !state)
        return RP_TASK_GRADIENT_COPY;
    if (task->kind == RP_TASK_EARLY_STEP ||
        (task->kind == RP_TASK_OPTIMIZER_STEP && rp_protocol_is_early(protocol, task->layer)))
        return RP_TASK_LATE_STEP;
    return RP_TASK_OPTIMIZER_STEP;
}

/* Checks whose writes a host task finds in the optimizer's buffers: a step adds to the state that
 * steps of its layer left, and reads its own gradient copy; a parameter copy reads its own step. An
 * early step reads the state that a step adds to. */
static gboolean
check_optimizer_reads(RpProtocol *protocol, guint32 index)
{
    RpVerifier *verifier = protocol->verifier;
    const RpTask *task = rp_verifier_task(verifier, index);
    const RpAccess *accesses = rp_plan_accesses(verifier->plan, task);

    for (guint i = 0; i < task->access_count; i++) {
        guint32 buffer = accesses[i].buffer;
        guint32 writer = rp_verifier_content(verifier, task, i)->writer;
        gboolean state = accesses[i].mode == (RP_ACCESS_READ | RP_ACCESS_WRITE) ||
                         task->kind == RP_TASK_EARLY_STEP;

        if ((accesses[i].mode & RP_ACCESS_READ) == 0 || accesses[i].role == RP_ROLE_DECISION ||
            buffer == rp_plan_exchange(verifier->plan).squares ||
            rp_plan_buffer(verifier->plan, buffer)->category != RP_BUFFER_OPTIMIZER ||
            (writer == RP_NO_TASK && (state || !verifier->whole)))
            continue;
        if (writer != RP_NO_TASK && writer != RP_OLD_TASK) {
            const RpTask *from = rp_verifier_task(verifier, writer);

            if ((from->layer == task->layer || is_tied_gradient(verifier, task, &accesses[i])) &&
                (state || from->iteration == task->iteration) &&
                from->kind == writer_kind(protocol, task, state))
                continue;
        }
        return rp_verifier_fail(verifier, RP_RULE_OPTIMIZER_ORDER, writer, index,
                                "buffer %u does not hold what the optimizer expects there", buffer);
    }
    return TRUE;
}

/* If a layer has a step, the early step's weights reach it, and its state reaches the late step. */
static gboolean
check_early_values(RpProtocol *protocol, guint32 t, guint32 layer)
{
    RpVerifier *verifier = protocol->verifier;
    const guint32 early = *rp_protocol_task(protocol, t, layer, RP_HOST_EARLY_STEP);
    const guint32 step = *rp_protocol_task(protocol, t, layer, RP_HOST_STEP);
    const guint32 late = *rp_protocol_task(protocol, t, layer, RP_HOST_LATE_STEP);

    if (early == RP_NO_TASK || late == RP_NO_TASK)
        return TRUE;
    return check_optimizer_reads(protocol, early) && check_optimizer_reads(protocol, late) &&
           rp_verifier_check_flow(verifier, RP_RULE_OPTIMIZER_ORDER, early, step,
                                  (RpCarriage){RP_ROLE_HOST, RP_ROLE_HOST, RP_CARRY_PARAMETERS},
                                  "the early step's weights") &&
           rp_verifier_check_flow(verifier, RP_RULE_OPTIMIZER_ORDER, step, late,
                                  (RpCarriage){RP_ROLE_HOST, RP_ROLE_HOST, RP_CARRY_OPTIMIZER},
                                  "the optimizer's state");
}

/* With several servers, the sum of a layer's gradients, and of those that are tied to it, reaches
 * the step, and new weights reach the gather. */
static gboolean
check_exchange(RpProtocol *protocol, guint32 t, guint32 layer)
{
    RpVerifier *verifier = protocol->verifier;
    const guint32 step = *rp_protocol_task(protocol, t, layer, RP_HOST_STEP);
    const guint32 gather = *rp_protocol_task(protocol, t, layer, RP_HOST_GATHER);
    const guint32 writer = rp_protocol_weight_writer(protocol, t, layer);
    const RpCarriage gradients = {RP_ROLE_HOST, RP_ROLE_HOST, RP_CARRY_GRADIENTS};
    const RpCarriage weights = {RP_ROLE_HOST, RP_ROLE_HOST, RP_CARRY_PARAMETERS};

    const guint of[] = {layer, rp_plan_tied_from(verifier->plan, layer)};

    for (guint i = 0; i < G_N_ELEMENTS(of) && protocol->has[RP_HOST_REDUCE]; i++) {
        const guint32 reduce =
            of[i] != RP_NONE ? *rp_protocol_task(protocol, t, of[i], RP_HOST_REDUCE) : RP_NO_TASK;

        if (reduce != RP_NO_TASK && step != RP_NO_TASK &&
            (!rp_protocol_check_follows(
                 verifier, RP_RULE_INCOMPLETE_GRADIENTS, reduce, step,
                 "the gradients may be read before they have been reduced") ||
             !rp_verifier_check_flow(verifier, RP_RULE_INCOMPLETE_GRADIENTS, reduce, step,
                                     gradients, "the sum of all servers' gradients")))
            return FALSE;
    }
    return gather == RP_NO_TASK || writer == RP_NO_TASK ||
           rp_verifier_check_flow(verifier, RP_RULE_TORN_WEIGHTS, writer, gather, weights,
                                  "this server's share of the new weights");
}

/* Values that one host task passes to the next arrive, and two weight buffers are written
 * alternately. */
static gboolean
check_optimizer_values(RpProtocol *protocol, guint32 t, guint32 layer)
{
    RpVerifier *verifier = protocol->verifier;
    const RpRule rule = RP_RULE_OPTIMIZER_ORDER;
    guint32 step = *rp_protocol_task(protocol, t, layer, RP_HOST_STEP);
    guint32 in = *rp_protocol_task(protocol, t, layer, RP_HOST_GRADIENT_COPY);
    guint32 out = *rp_protocol_task(protocol, t, layer, RP_HOST_PARAMETER_COPY);
    guint32 writer = rp_protocol_weight_writer(protocol, t, layer);
    const RpCarriage state = {RP_ROLE_HOST, RP_ROLE_HOST, RP_CARRY_OPTIMIZER};

    if (step == RP_NO_TASK)
        return TRUE;
    if (!check_optimizer_reads(protocol, step) ||
        (out != RP_NO_TASK && !check_optimizer_reads(protocol, out)) ||
        !check_early_values(protocol, t, layer) || !check_exchange(protocol, t, layer))
        return FALSE;
    if (writer != RP_NO_TASK &&
        written_weights(verifier->plan, rp_verifier_task(verifier, writer)) == RP_NONE)
        return rp_verifier_fail(verifier, rule, RP_NO_TASK, writer,
                                "the updated weights are not written anywhere");
    if ((in != RP_NO_TASK &&
         !rp_verifier_check_flow(verifier, rule, in, step, state, "the copied gradient")) ||
        (out != RP_NO_TASK &&
         !rp_verifier_check_flow(verifier, rule, step, out, state, "the updated weights")))
        return FALSE;
    if (t + 1 >= verifier->n_iterations)
        return TRUE;
    const guint32 last = rp_protocol_is_early(protocol, layer)
                             ? *rp_protocol_task(protocol, t, layer, RP_HOST_LATE_STEP)
                             : step;
    guint32 next = *rp_protocol_task(protocol, t + 1, layer, RP_HOST_STEP);
    guint32 next_writer = rp_protocol_weight_writer(protocol, t + 1, layer);
    if (next == RP_NO_TASK || writer == RP_NO_TASK || next_writer == RP_NO_TASK)
        return TRUE;
    if (verifier->promises->double_weights &&
        written_weights(verifier->plan, rp_verifier_task(verifier, writer)) ==
            written_weights(verifier->plan, rp_verifier_task(verifier, next_writer)))
        return rp_verifier_fail(verifier, RP_RULE_WEIGHT_INTEGRITY, writer, next_writer,
                                "two iterations in a row write the same of two weight buffers");
    return rp_verifier_check_flow(verifier, rule, last, next, state, "the optimizer's state");
}

static gboolean
check_protocol(RpProtocol *protocol)
{
    RpVerifier *verifier = protocol->verifier;

    if (!note_host_tasks(protocol) || !check_present(protocol))
        return FALSE;
    if (!rp_protocol_check_transfers(protocol))
        return FALSE;
    /* one back: from its step to the next */
    const guint32 first = MAX(1, verifier->first_dirty) - 1;
    for (guint32 t = first; t < verifier->n_iterations; t++)
        for (guint l = 0; l < verifier->n_layers; l++)
            if (!check_optimizer_order(protocol, t, l))
                return FALSE;
    for (guint32 t = first; t < verifier->n_iterations; t++)
        for (guint l = 0; l < verifier->n_layers; l++)
            if (!check_optimizer_values(protocol, t, l))
                return FALSE;
    return TRUE;
}

gboolean
rp_verify_consistency(RpVerifier *verifier)
{
    const gboolean several = verifier->promises->servers > 1;
    RpProtocol protocol = {.verifier = verifier,
                           .has = {verifier->promises->early_steps,
                                   verifier->promises->gradient_copies, TRUE,
                                   verifier->promises->parameter_copies,
                                   verifier->promises->early_steps, several, several}};
    guint64 n = (guint64)verifier->n_iterations * verifier->n_layers * RP_N_HOST_KINDS;

    if (!verifier->full)
        return rp_verify_staleness(verifier);
    if (n > verifier->clock_bytes / sizeof(guint32))
        return rp_verifier_fail(verifier, RP_RULE_NONE, RP_NO_TASK, RP_NO_TASK,
                                "too large to verify: %u iterations of %u layers",
                                verifier->n_iterations, verifier->n_layers);
    g_autofree guint32 *host = protocol.host = rp_verify_new_table(n);
    g_autofree guint32 *owner = protocol.owner =
        rp_verify_new_table(rp_plan_n_buffers(verifier->plan));
    g_autofree gboolean *has_norm = protocol.has_norm = g_new0(gboolean, verifier->n_iterations);

    return check_protocol(&protocol);
}
