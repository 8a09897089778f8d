/*
 * Rule 5: the norm and the decision that follows from it (rp_plan_decision()).
 *
 *   gated         downloads, sums T  -->  norm T  -->  every step of T
 *                                         norm T  -->  heads of T + n    n: decisions in turn
 *   otherwise     every step of T    -->  norm T, heads read none
 *
 * A norm reads the gradients of every trained layer, in the state in which the layer's optimizer
 * reads them; or the layers' early steps do, and add to the decision before the norm. Steps, late
 * steps and heads read the output of the right norm and of nobody else.
 *
 * With several servers the norm is that of a share, and the agree behind it decides:
 *
 *   gated         reduces T --> norm T --> agree T --> every step of T, heads of T + n
 */
#include "core/verify/private.h"

typedef struct {
    RpVerifier *verifier;
    guint n; /* decisions that alternate */
    gboolean gated;
    guint32 *early; /* [iteration * n_layers + layer] early step; %NULL: there are none */
    guint *n_early; /* [iteration] */
    guint32 *norm;  /* [iteration] */
    guint32 *agree; /* [iteration] several servers */
    guint32 *steps; /* [iteration] one of its steps */
    guint *n_steps; /* [iteration] */
    guint32 last_actions;
} Decisions;

/* The task's access of the decision on its iteration; RP_NONE. */
static guint
decision_access(const RpVerifier *verifier, const RpTask *task)
{
    const guint32 buffer = rp_plan_decision(verifier->plan, task->iteration);
    const RpAccess *accesses = rp_plan_accesses(verifier->plan, task);

    for (guint i = 0; i < task->access_count; i++)
        if (accesses[i].role == RP_ROLE_DECISION)
            return accesses[i].buffer == buffer ? i : RP_NONE;
    return RP_NONE;
}

static gboolean
note_tasks(Decisions *decisions)
{
    RpVerifier *verifier = decisions->verifier;
    guint trained = 0;

    for (guint l = 0; l < verifier->n_layers; l++)
        trained += rp_verifier_is_stepped(verifier, l);
    for (guint32 i = 0; i < verifier->n_tasks; i++) {
        const RpTask *task = rp_verifier_task(verifier, i);
        const guint32 t = task->iteration - verifier->first_iteration;

        if (rp_task_is_compute(task))
            decisions->last_actions = MAX(decisions->last_actions, t);
        if (task->kind == RP_TASK_OPTIMIZER_STEP) {
            decisions->steps[t] = i;
            decisions->n_steps[t]++;
        }
        if (task->kind == RP_TASK_EARLY_STEP && decisions->early != NULL) {
            decisions->early[(gsize)t * verifier->n_layers + task->layer] = i;
            decisions->n_early[t]++;
        }
        if (task->kind != RP_TASK_NORM && task->kind != RP_TASK_AGREE)
            continue;
        guint32 *place = task->kind == RP_TASK_NORM ? &decisions->norm[t] : &decisions->agree[t];
        if (*place != RP_NO_TASK)
            return rp_verifier_fail(verifier, RP_RULE_DECISION, *place, i,
                                    "two norms decide on one iteration");
        *place = i;
    }
    for (guint32 t = rp_verifier_first_to_check(verifier); t < verifier->n_iterations; t++) {
        const guint32 step = decisions->steps[t];

        if (decisions->norm[t] == RP_NO_TASK &&
            (t + verifier->pending < decisions->last_actions ||
             (step != RP_NO_TASK && (decisions->gated || decisions->n_steps[t] == trained))))
            return rp_verifier_fail(verifier, RP_RULE_DECISION, RP_NO_TASK, step,
                                    "iteration %u has no norm", verifier->first_iteration + t);
        if (verifier->promises->servers > 1 &&
            (decisions->norm[t] == RP_NO_TASK) != (decisions->agree[t] == RP_NO_TASK))
            return rp_verifier_fail(
                verifier, RP_RULE_DECISION, decisions->norm[t], decisions->agree[t],
                "servers do not agree on the norm of iteration %u", verifier->first_iteration + t);
        if (decisions->early != NULL && decisions->norm[t] != RP_NO_TASK &&
            decisions->n_early[t] != trained)
            return rp_verifier_fail(verifier, RP_RULE_DECISION, RP_NO_TASK, decisions->norm[t],
                                    "the norm is made of %u layers, not %u", decisions->n_early[t],
                                    trained);
    }
    return TRUE;
}

/* The access of @task that reads @buffer; RP_NONE. */
static guint
read_of(const RpVerifier *verifier, const RpTask *task, guint32 buffer)
{
    const RpAccess *accesses = rp_plan_accesses(verifier->plan, task);

    for (guint i = 0; i < task->access_count; i++)
        if (accesses[i].buffer == buffer && (accesses[i].mode & RP_ACCESS_READ) != 0)
            return i;
    return RP_NONE;
}

/* Does check_layer_of_norm()'s check for one buffer of gradients. */
static gboolean
check_buffer_of_norm(RpVerifier *verifier, guint32 norm, guint32 reader, guint32 gradients)
{
    const RpTask *of = rp_verifier_task(verifier, norm);
    const RpTask *to = rp_verifier_task(verifier, reader);
    const guint in_norm = read_of(verifier, of, gradients);
    const guint in_reader = read_of(verifier, to, gradients);

    if (in_norm == RP_NONE)
        return rp_verifier_fail(verifier, RP_RULE_DECISION, RP_NO_TASK, norm,
                                "the norm leaves out the gradients of layer %u", to->layer);
    if (in_reader != RP_NONE && rp_verifier_content(verifier, of, in_norm)->seen !=
                                    rp_verifier_content(verifier, to, in_reader)->seen)
        return rp_verifier_fail(verifier, RP_RULE_INCOMPLETE_GRADIENTS, norm, reader,
                                "the gradients of layer %u are not those that the norm was made of",
                                to->layer);
    return TRUE;
}

/* Gated: the norm, or the early step, reads the same gradients of a layer as @reader, its copy or
 * step. */
static gboolean
check_layer_of_norm(const Decisions *decisions, guint32 norm, guint32 reader)
{
    RpVerifier *verifier = decisions->verifier;
    const RpTask *task = rp_verifier_task(verifier, reader);
    const guint layer = task->layer;

    if (decisions->early != NULL)
        norm =
            decisions
                ->early[(gsize)(task->iteration - verifier->first_iteration) * verifier->n_layers +
                        layer];
    if (norm == RP_NO_TASK)
        return TRUE; /* not held any more */

    for (guint i = 0; i < rp_verifier_local_gradients(verifier); i++)
        if (!check_buffer_of_norm(verifier, norm, reader,
                                  rp_plan_layer(verifier->plan, layer)->gradients[i]))
            return FALSE;
    return verifier->promises->servers <= 1 ||
           check_buffer_of_norm(verifier, norm, reader,
                                rp_plan_layer(verifier->plan, layer)->reduced);
}

/* [iteration] the last of the tasks that make a decision */
static const guint32 *
decides(const Decisions *decisions)
{
    return decisions->verifier->promises->servers > 1 ? decisions->agree : decisions->norm;
}

/* @task reads the decision that the norm of its own iteration less @age has left. */
static gboolean
check_reads(Decisions *decisions, guint32 index, guint age, const char *who)
{
    RpVerifier *verifier = decisions->verifier;
    const RpTask *task = rp_verifier_task(verifier, index);
    const gint64 made = (gint64)task->iteration - verifier->first_iteration - age;
    const guint access = decision_access(verifier, task);
    const RpAccess *accesses = rp_plan_accesses(verifier->plan, task);
    guint32 writer, norm;

    if (access == RP_NONE || accesses[access].mode != RP_ACCESS_READ)
        return rp_verifier_fail(verifier, RP_RULE_DECISION, RP_NO_TASK, index,
                                "%s does not read the decision that is for it", who);
    norm = made < 0 ? RP_NO_TASK : decides(decisions)[made];
    writer = rp_verifier_content(verifier, task, access)->writer;
    if (norm == writer || (norm == RP_NO_TASK && !verifier->whole) ||
        (writer == RP_NO_TASK && !verifier->whole && made < verifier->complete_from))
        return TRUE;
    return rp_verifier_fail(verifier, RP_RULE_DECISION, norm, index,
                            "%s reads another decision than the one that is for it", who);
}

/* An access of decisions where there should be none, or of another kind. */
static gboolean
check_adds(Decisions *decisions, guint32 index)
{
    RpVerifier *verifier = decisions->verifier;
    const RpTask *task = rp_verifier_task(verifier, index);
    const guint access = decision_access(verifier, task);

    if (access != RP_NONE &&
        rp_plan_accesses(verifier->plan, task)[access].mode == (RP_ACCESS_READ | RP_ACCESS_WRITE))
        return TRUE;
    return rp_verifier_fail(verifier, RP_RULE_DECISION, RP_NO_TASK, index,
                            "the task does not add to the decision on its iteration");
}

gboolean
rp_verifier_makes_loss(const RpVerifier *verifier, const RpTask *task)
{
    RpActionPart parts[2];
    const guint n = rp_action_parts(verifier, task, parts);

    for (guint i = 0; i < n; i++) {
        const RpInterval layers = rp_plan_stage(verifier->plan, parts[i].stage)->layers;

        if (parts[i].backward && parts[i].top && layers.first + layers.count == verifier->n_layers)
            return TRUE;
    }
    return FALSE;
}

static gboolean
check_before_norm(Decisions *decisions, guint32 index, const char *text)
{
    RpVerifier *verifier = decisions->verifier;
    const guint32 t = rp_verifier_task(verifier, index)->iteration - verifier->first_iteration;
    const guint32 norm = decisions->norm[t];

    if (norm == RP_NO_TASK || rp_verifier_before(verifier, index, norm))
        return TRUE;
    return rp_verifier_fail(verifier, RP_RULE_INCOMPLETE_GRADIENTS, index, norm, "%s", text);
}

/* Several servers: it finds the norm's part of the decision, and of the squares. */
static gboolean
check_agree(Decisions *decisions, guint32 index)
{
    RpVerifier *verifier = decisions->verifier;
    const RpTask *task = rp_verifier_task(verifier, index);
    const RpAccess *accesses = rp_plan_accesses(verifier->plan, task);
    const guint32 norm = decisions->norm[task->iteration - verifier->first_iteration];

    for (guint i = 0; i < task->access_count; i++)
        if ((accesses[i].mode & RP_ACCESS_READ) != 0 && norm != RP_NO_TASK &&
            rp_verifier_content(verifier, task, i)->writer != norm)
            return rp_verifier_fail(verifier, RP_RULE_DECISION, norm, index,
                                    "servers agree on something else than this norm");
    return check_adds(decisions, index);
}

static gboolean
check_gated(Decisions *decisions, guint32 index, const RpTask *task)
{
    RpVerifier *verifier = decisions->verifier;
    const guint32 norm = decisions->norm[task->iteration - verifier->first_iteration];

    switch ((RpTaskKind)task->kind) {
    case RP_TASK_GRADIENT_DOWNLOAD:
    case RP_TASK_GRADIENT_ACCUMULATE:
        return verifier->promises->servers > 1 || /* their reduces read them */
               check_before_norm(decisions, index,
                                 "the norm may be taken before every gradient has arrived");
    case RP_TASK_REDUCE:
        return check_before_norm(decisions, index,
                                 "the norm may be taken before every gradient is reduced");
    case RP_TASK_NORM:
        return check_adds(decisions, index);
    case RP_TASK_AGREE:
        return check_agree(decisions, index);
    case RP_TASK_GRADIENT_COPY:
        return norm == RP_NO_TASK || check_layer_of_norm(decisions, norm, index);
    case RP_TASK_EARLY_STEP:
        return check_adds(decisions, index) &&
               check_before_norm(decisions, index, "the norm may be taken before every early step");
    case RP_TASK_OPTIMIZER_STEP:
    case RP_TASK_LATE_STEP:
        return (norm == RP_NO_TASK || check_layer_of_norm(decisions, norm, index)) &&
               check_reads(decisions, index, 0, "the step");
    default:
        return !rp_verifier_makes_loss(verifier, task) ||
               check_reads(decisions, index, decisions->n, "the head");
    }
}

static gboolean
check_alone(Decisions *decisions, guint32 index, const RpTask *task)
{
    if (task->kind == RP_TASK_NORM)
        return check_adds(decisions, index);
    if (task->kind == RP_TASK_AGREE)
        return check_agree(decisions, index);
    if (task->kind != RP_TASK_OPTIMIZER_STEP)
        return TRUE;
    return check_adds(decisions, index) &&
           check_before_norm(decisions, index,
                             "the norm may close the iteration before every step");
}

static gboolean
check_tasks(Decisions *decisions)
{
    const RpVerifier *verifier = decisions->verifier;

    for (guint32 i = 0; i < verifier->n_tasks; i++) {
        const RpTask *task = rp_verifier_task(verifier, i);

        if (task->iteration - verifier->first_iteration < verifier->first_dirty)
            continue;
        if (decisions->gated ? !check_gated(decisions, i, task) : !check_alone(decisions, i, task))
            return FALSE;
    }
    return TRUE;
}

gboolean
rp_verify_decisions(RpVerifier *verifier)
{
    Decisions decisions = {.verifier = verifier,
                           .n = rp_plan_n_decisions(verifier->plan),
                           .gated = verifier->promises->gated};
    const guint n = decisions.gated && verifier->promises->async ? 2 : 1;

    if (!verifier->full)
        return TRUE;
    if (decisions.n != n)
        return rp_verifier_fail(verifier, RP_RULE_DECISION, RP_NO_TASK, RP_NO_TASK,
                                "%u buffers of decisions, not %u", decisions.n, n);
    g_autofree guint32 *norm = decisions.norm = rp_verify_new_table(verifier->n_iterations);
    g_autofree guint32 *agree = decisions.agree = rp_verify_new_table(verifier->n_iterations);
    g_autofree guint32 *steps = decisions.steps = rp_verify_new_table(verifier->n_iterations);
    g_autofree guint *n_steps = decisions.n_steps = g_new0(guint, verifier->n_iterations);
    g_autofree guint *n_early = decisions.n_early = g_new0(guint, verifier->n_iterations);
    g_autofree guint32 *early = decisions.early =
        verifier->promises->early_steps
            ? rp_verify_new_table((gsize)verifier->n_iterations * verifier->n_layers)
            : NULL;

    return note_tasks(&decisions) && check_tasks(&decisions);
}
