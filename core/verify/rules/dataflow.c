/*
 * Rule 1: every action runs once, after what it reads was written, and in `full` fidelity the value
 * has travelled all the way.
 *
 *   forward   F(l-1) --> [download l] --> [upload l] --> F(l)
 *   stash     F(l-1) --> [download l] --> [stash upload l] --> B of the stage that begins at l
 *   gradient  B(l) --> [gradient download l] --> [gradient upload l] --> B(l-1)
 *
 * What is in brackets is asked for where the value changes devices, and for dispatched stages
 * always. A backward may receive its gradient late (phase 1), everything else is needed at the
 * start.
 */
#include "core/verify/private.h"

enum { DOWN, UP, STASH_UP, GRADIENT_DOWN, GRADIENT_UP, N_TRANSPORTS };

typedef struct {
    RpVerifier *verifier;
    guint32 iteration; /* relative */
    gboolean complete; /* what is not there is missing */
    guint32 *forward;  /* [stage * M + micro-batch] */
    guint32 *backward;
    guint32 *weights;
    guint32 *transport[N_TRANSPORTS]; /* [boundary * M + micro-batch] */
} Dataflow;

static int
transport_of_kind(guint kind)
{
    switch ((RpTaskKind)kind) {
    case RP_TASK_ACTIVATION_DOWNLOAD:
        return DOWN;
    case RP_TASK_ACTIVATION_UPLOAD:
        return UP;
    case RP_TASK_STASH_UPLOAD:
        return STASH_UP;
    case RP_TASK_ACTGRAD_DOWNLOAD:
        return GRADIENT_DOWN;
    case RP_TASK_ACTGRAD_UPLOAD:
        return GRADIENT_UP;
    default:
        return -1;
    }
}

/* Whether some stage begins at @boundary and so has a use for the transport. */
static gboolean
boundary_is_used(const RpVerifier *verifier, int transport, guint32 boundary)
{
    const guint32 *forward = verifier->forward_of, *backward = verifier->backward_of;

    if (boundary >= verifier->n_layers)
        return FALSE;
    if (boundary == 0)
        return transport == UP || transport == STASH_UP;

    gboolean forward_border = forward[boundary - 1] != forward[boundary];
    gboolean backward_border = backward[boundary - 1] != backward[boundary];
    if (transport == DOWN)
        return forward_border || backward_border;
    return transport == UP ? forward_border : backward_border;
}

static gboolean
note_once(Dataflow *flow, guint32 *place, guint32 task, const char *what)
{
    if (*place != RP_NO_TASK)
        return rp_verifier_fail(flow->verifier, RP_RULE_ACTIONS, *place, task, "%s runs twice",
                                what);
    *place = task;
    return TRUE;
}

static gboolean
note_action(Dataflow *flow, guint32 index, const RpTask *task)
{
    gsize m = flow->verifier->micro_batches;
    RpActionPart parts[2];
    guint n_parts = rp_action_parts(task, parts);

    for (guint i = 0; i < n_parts; i++) {
        gsize at = parts[i].stage * m + parts[i].micro_batch;

        if (parts[i].forward && !note_once(flow, &flow->forward[at], index, "a forward"))
            return FALSE;
        if (parts[i].backward && !note_once(flow, &flow->backward[at], index, "a backward"))
            return FALSE;
        if (parts[i].weights && !note_once(flow, &flow->weights[at], index, "a weight gradient"))
            return FALSE;
    }
    return TRUE;
}

static gboolean
note_transport(Dataflow *flow, guint32 index, const RpTask *task, int transport)
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
note_tasks(Dataflow *flow)
{
    const RpVerifier *verifier = flow->verifier;

    for (guint32 i = verifier->iteration_start[flow->iteration];
         i < verifier->iteration_start[flow->iteration + 1]; i++) {
        guint32 index = verifier->by_iteration[i];
        const RpTask *task = rp_verifier_task(verifier, index);
        int transport = transport_of_kind(task->kind);

        if (transport >= 0 ? !note_transport(flow, index, task, transport)
                           : !note_action(flow, index, task))
            return FALSE;
    }
    return TRUE;
}

/* @second reads what @first wrote, without a transfer. */
static gboolean
check_order(Dataflow *flow, guint32 first, guint32 second, gboolean late, const char *value)
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
check_leg(Dataflow *flow, guint32 first, guint32 second, gboolean near, gboolean late,
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

/* As what an upload's value is read. */
static RpAccessRole
role_of(int up)
{
    return up == GRADIENT_UP ? RP_ROLE_GRADIENT : RP_ROLE_INPUT;
}

/* The whole way through host memory. */
static gboolean
check_transport(Dataflow *flow, guint32 producer, guint32 consumer, int down, int up,
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
stays(const Dataflow *flow, guint32 producer, guint32 consumer, int up, gsize at)
{
    const RpVerifier *verifier = flow->verifier;
    guint32 stage = rp_verifier_task(verifier, consumer)->stage;

    return rp_plan_stage(verifier->plan, stage)->bound &&
           rp_verifier_device(verifier, producer) == rp_verifier_device(verifier, consumer) &&
           flow->transport[up][at] == RP_NO_TASK;
}

static gboolean
check_value(Dataflow *flow, guint32 producer, guint32 consumer, int down, int up, guint32 boundary,
            guint32 micro_batch, gboolean late, const char *value)
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
fail_missing(Dataflow *flow, guint32 stage, guint32 micro_batch, const char *what)
{
    RpVerifier *verifier = flow->verifier;
    gsize at = (gsize)stage * verifier->micro_batches + micro_batch;
    guint32 beside = flow->backward[at] != RP_NO_TASK ? flow->backward[at] : flow->forward[at];

    return rp_verifier_fail(verifier, RP_RULE_ACTIONS, RP_NO_TASK, beside,
                            "no %s of stage %u, micro-batch %u in iteration %u", what, stage,
                            micro_batch, verifier->first_iteration + flow->iteration);
}

/* A slot, one stage of one round in one direction, stays on one device. */
static gboolean
check_slot(Dataflow *flow, const guint32 *actions, guint32 stage)
{
    RpVerifier *verifier = flow->verifier;
    guint per_round = verifier->micro_batches / verifier->rounds;
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
check_present(Dataflow *flow)
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
            if (stage->runs_backward && flow->backward[at] == RP_NO_TASK)
                return fail_missing(flow, s, m, "backward");
            if (stage->runs_backward && flow->weights[at] == RP_NO_TASK)
                return fail_missing(flow, s, m, "weight gradient");
        }
    }
    return TRUE;
}

static gboolean
is_kind(const RpVerifier *verifier, guint32 task, RpTaskKind kind)
{
    return task != RP_NO_TASK && rp_verifier_task(verifier, task)->kind == kind;
}

/* The input of the forward that begins at @boundary. */
static gboolean
check_forward(Dataflow *flow, guint32 boundary, guint32 m)
{
    const RpVerifier *verifier = flow->verifier;
    gsize M = verifier->micro_batches;
    guint32 consumer = flow->forward[verifier->forward_of[boundary] * M + m];
    gboolean late = verifier->promises->early_fused && is_kind(verifier, consumer, RP_TASK_FUSED);

    if (boundary == 0) {
        guint32 upload = flow->transport[UP][m]; /* of token ids: may be left out */

        return upload == RP_NO_TASK || consumer == RP_NO_TASK ||
               check_leg(flow, upload, consumer, TRUE, late,
                         rp_verifier_task(verifier, upload)->bytes > 0, RP_ROLE_INPUT,
                         RP_ROLE_INPUT, "the forward's input");
    }
    return check_value(flow, flow->forward[verifier->forward_of[boundary - 1] * M + m], consumer,
                       DOWN, UP, boundary, m, late, "the forward's input");
}

static gboolean
check_gradient(Dataflow *flow, guint32 boundary, guint32 m)
{
    const RpVerifier *verifier = flow->verifier;
    gsize M = verifier->micro_batches;
    guint32 consumer = flow->backward[verifier->backward_of[boundary - 1] * M + m];
    gboolean late = is_kind(verifier, consumer, RP_TASK_BACKWARD) ||
                    is_kind(verifier, consumer, RP_TASK_INPUT_GRADIENT);

    return check_value(flow, flow->backward[verifier->backward_of[boundary] * M + m], consumer,
                       GRADIENT_DOWN, GRADIENT_UP, boundary, m, late, "the backward's gradient");
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

/* A bound stage keeps its input on the device: what came up, or what the stage before left there.
 */
static gboolean
check_kept_input(Dataflow *flow, guint32 own, guint32 consumer, guint32 boundary, guint32 m)
{
    RpVerifier *verifier = flow->verifier;
    gsize M = verifier->micro_batches;
    guint32 source = flow->transport[UP][boundary * M + m];
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

/* W comes after its I, and what it reads of the stash is the same. */
static gboolean
check_weight_gradient(Dataflow *flow, guint32 s, guint32 m)
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
check_stash(Dataflow *flow, guint32 s, guint32 m)
{
    const RpVerifier *verifier = flow->verifier;
    const RpPlanStage *stage = rp_plan_stage(verifier->plan, s);
    gsize M = verifier->micro_batches;
    guint32 boundary = stage->layers.first;
    guint32 consumer = flow->backward[s * M + m], own = flow->forward[s * M + m];

    if (stage->bound && own != RP_NO_TASK && consumer != RP_NO_TASK &&
        !check_kept_input(flow, own, consumer, boundary, m))
        return FALSE;
    if (stage->runs_forward && !(stage->bound && verifier->promises->stash_on_host))
        return TRUE;
    if (boundary == 0) {
        guint32 upload = flow->transport[STASH_UP][m];

        return upload == RP_NO_TASK || consumer == RP_NO_TASK ||
               check_leg(flow, upload, consumer, TRUE, FALSE,
                         rp_verifier_task(verifier, upload)->bytes > 0, RP_ROLE_INPUT,
                         RP_ROLE_INPUT, "the stashed input");
    }
    guint32 producer = flow->forward[verifier->forward_of[boundary - 1] * M + m];
    if (!verifier->full)
        return producer == RP_NO_TASK || consumer == RP_NO_TASK ||
               check_order(flow, producer, consumer, FALSE, "the stashed input");
    return check_transport(flow, producer, consumer, DOWN, STASH_UP, boundary, m, FALSE,
                           "the stashed input");
}

static gboolean
check_values(Dataflow *flow, guint32 m)
{
    const RpVerifier *verifier = flow->verifier;

    for (guint b = 0; b < verifier->n_layers; b++) {
        if ((b == 0 || verifier->forward_of[b - 1] != verifier->forward_of[b]) &&
            !check_forward(flow, b, m))
            return FALSE;
        if (b > 0 && verifier->backward_of[b - 1] != verifier->backward_of[b] &&
            !check_gradient(flow, b, m))
            return FALSE;
    }
    for (guint s = 0; s < verifier->n_stages; s++) {
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
taker(const Dataflow *flow, int down, const guint32 *actions, guint32 boundary, guint32 stage,
      guint32 m)
{
    gsize M = flow->verifier->micro_batches;

    if (flow->transport[down][boundary * M + m] != RP_NO_TASK)
        return flow->transport[down][boundary * M + m];
    return actions[stage * M + m];
}

/* An overlapped action makes two values, so it needs two buffers that somebody reads. */
static gboolean
check_overlap(Dataflow *flow, guint32 index)
{
    RpVerifier *verifier = flow->verifier;
    const RpTask *task = rp_verifier_task(verifier, index);
    RpInterval forward = rp_plan_stage(verifier->plan, task->stage)->layers;
    guint32 end = forward.first + forward.count;
    guint32 first = rp_plan_stage(verifier->plan, task->backward_stage)->layers.first;
    guint32 output, gradient;

    if (end == verifier->n_layers || first == 0)
        return TRUE;
    output = taker(flow, DOWN, flow->forward, end, verifier->forward_of[end], task->micro_batch);
    gradient = taker(flow, GRADIENT_DOWN, flow->backward, first, verifier->backward_of[first - 1],
                     task->backward_micro_batch);
    if (output == RP_NO_TASK || gradient == RP_NO_TASK ||
        rp_verifier_outputs(verifier, index, output, gradient) != 1)
        return TRUE; /* none: zero bytes, or told already */
    return rp_verifier_fail(verifier, RP_RULE_ACTIONS, index, gradient,
                            "the output of the forward and the gradient of the backward pass "
                            "through one buffer: one of them is lost");
}

static gboolean
check_overlaps(Dataflow *flow)
{
    const RpVerifier *verifier = flow->verifier;

    for (guint32 i = verifier->iteration_start[flow->iteration];
         i < verifier->iteration_start[flow->iteration + 1] && verifier->full; i++)
        if (is_kind(verifier, verifier->by_iteration[i], RP_TASK_OVERLAP) &&
            !check_overlap(flow, verifier->by_iteration[i]))
            return FALSE;
    return TRUE;
}

static void
clear(guint32 *table, gsize n)
{
    for (gsize i = 0; i < n; i++)
        table[i] = RP_NO_TASK;
}

static gboolean
check_iteration(Dataflow *flow)
{
    const RpVerifier *verifier = flow->verifier;
    gsize n_actions = (gsize)verifier->n_stages * verifier->micro_batches;
    gsize n_values = (gsize)verifier->n_layers * verifier->micro_batches;

    clear(flow->forward, n_actions);
    clear(flow->backward, n_actions);
    clear(flow->weights, n_actions);
    for (guint t = 0; t < N_TRANSPORTS && verifier->full; t++)
        clear(flow->transport[t], n_values);
    if (!note_tasks(flow) || !check_present(flow))
        return FALSE;
    for (guint m = 0; m < verifier->micro_batches; m++)
        if (!check_values(flow, m))
            return FALSE;
    return check_overlaps(flow);
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
    Dataflow flow = {.verifier = verifier};
    gsize n_actions = (gsize)verifier->n_stages * verifier->micro_batches;
    gsize n_values = (gsize)verifier->n_layers * verifier->micro_batches;
    gboolean correct = TRUE;

    if (n_actions > G_MAXUINT32 || n_values > G_MAXUINT32)
        return rp_verifier_fail(verifier, RP_RULE_NONE, RP_NO_TASK, RP_NO_TASK,
                                "too large to verify: %u micro-batches of %u layers",
                                verifier->micro_batches, verifier->n_layers);
    flow.forward = g_new(guint32, n_actions);
    flow.backward = g_new(guint32, n_actions);
    flow.weights = g_new(guint32, n_actions);
    /* boundary 0 is looked at in `compute` fidelity too */
    for (guint t = 0; t < N_TRANSPORTS; t++) {
        flow.transport[t] = g_new(guint32, n_values);
        clear(flow.transport[t], n_values);
    }
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
    for (guint t = 0; t < N_TRANSPORTS; t++)
        g_free(flow.transport[t]);
    return correct;
}
