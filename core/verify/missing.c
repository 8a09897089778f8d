/*
 * Which rule is broken by a value that is not where it should be, or by accesses that nothing orders;
 * and which two tasks are to be named. Nothing here is asked of a plan that is right.
 *
 *   found instead of the value demanded                     first task named, second
 *   another version of weights                              who made it, the upload
 *   nothing: the value was there, and is written over       who left it, the reader
 *   it stands elsewhere, or comes later                     who leaves it, the reader
 *   nobody leaves it                                        who makes it at first, or none; the reader
 */
#include "core/verify/private.h"

#define NAME_OF_RACE "is not sure to be there: the second task may start before the first has ended"

/* ---- order ---- */

/* The rule that a task breaks which does not find a value. */
static RpRule
rule_at(const RpVerifier *verifier, RpValueKind kind, guint32 index)
{
    return kind == RP_VALUE_GRADIENTS &&
                   rp_verifier_task(verifier, index)->kind == RP_TASK_GRADIENT_ACCUMULATE
               ? RP_RULE_TRANSFERS
               : rp_values[kind].rule;
}

/* A value that a norm misses ranks behind one that its steps miss. */
static guint
rank_at(const RpVerifier *verifier, RpRule rule, guint32 index)
{
    return rp_verifier_task(verifier, index)->kind == RP_TASK_NORM
               ? MAX(rp_rule_rank(rule), rp_rule_rank(RP_RULE_DECISION))
               : rp_rule_rank(rule);
}

void
rp_verifier_fail_order(RpVerifier *verifier, guint32 first, guint32 second, guint32 buffer,
                       gboolean first_writes, gboolean second_writes, RpValueKind wants)
{
    const RpBuffer *of = rp_plan_buffer(verifier->plan, buffer);
    const gboolean host = of->arena == rp_plan_gpus(verifier->plan);

    if (first_writes && wants != RP_VALUE_NONE && rp_values[wants].rule != RP_RULE_DECISION) {
        const RpRule rule = rule_at(verifier, wants, second);

        if (rp_values[wants].race != NULL)
            rp_verifier_fail_at(verifier, rank_at(verifier, rule, second), rule, first, second,
                                "%s", rp_values[wants].race);
        else
            rp_verifier_fail_at(verifier, rank_at(verifier, rule, second), rule, first, second,
                                "%s " NAME_OF_RACE, rp_values[wants].name);
    } else if (!first_writes && host && of->category == RP_BUFFER_PARAMETERS) {
        fail_tasks(verifier, RP_RULE_WEIGHT_INTEGRITY, first, second,
                   "the weights may be overwritten while they are uploaded");
    } else if (!first_writes && host && of->category == RP_BUFFER_GRADIENTS &&
               rp_verifier_task(verifier, second)->kind == RP_TASK_GRADIENT_DOWNLOAD) {
        const gboolean reduced =
            first < verifier->n_tasks && rp_verifier_task(verifier, first)->kind == RP_TASK_REDUCE;

        fail_tasks(verifier, RP_RULE_GRADIENT_INTEGRITY, first, second,
                   "the gradients may be overwritten before they are %s",
                   reduced ? "reduced" : "read");
    } else {
        g_autofree char *memory = host ? g_strdup("host") : g_strdup_printf("gpu %u", of->arena);

        fail_tasks(verifier, RP_RULE_BUFFERS, first, second,
                   "buffer %u (%s, %s) is %s by the first task and %s by the second, and nothing "
                   "orders the two",
                   buffer, rp_buffer_category_name((RpBufferCategory)of->category), memory,
                   first_writes ? "written" : "read", second_writes ? "written" : "read");
    }
}

/* ---- missing values ---- */

static gboolean
touches(const RpVerifier *verifier, guint32 task, guint32 buffer, guint mode, guint role)
{
    const RpTask *of = rp_verifier_task(verifier, task);
    const RpAccess *accesses = rp_plan_accesses(verifier->plan, of);

    for (guint i = 0; i < of->access_count; i++)
        if (accesses[i].buffer == buffer && (accesses[i].mode & mode) != 0 &&
            (role == RP_ROLE_NONE || accesses[i].role == role))
            return TRUE;
    return FALSE;
}

/* A task that ought to leave a value, and where it does. */
typedef struct {
    guint32 task;
    guint role;
    gboolean short_of; /* parts of it are left by nobody */
} Maker;

/* Whether a row of a task's leaves @wants where @row reads it: a value that travels is left three times. */
static gboolean
makes(const RpExpected *made, const RpExpected *row, const RpSymbol *wants)
{
    return made->mode != RP_ACCESS_READ && rp_symbol_is_same(&made->leaves, wants) &&
           (made->gathers || wants->n == 0 || made->leaves.n == wants->n) &&
           (row->buffer != RP_NONE || made->buffer != RP_NONE || made->device == row->device);
}

/* Finds the task that ought to leave @wants for @reader: one on the same device, if some do; one that does so elsewhere
 * than where the reader looks; a transfer for an action. */
static Maker
find_maker(const RpVerifier *verifier, guint32 reader, const RpExpected *row, const RpSymbol *wants,
           guint32 buffer)
{
    g_autoptr(GArray) rows = g_array_new(FALSE, FALSE, sizeof(RpExpected));
    const gboolean action = rp_task_is_compute(rp_verifier_task(verifier, reader));
    Maker maker = {.task = RP_NO_TASK};
    guint best = 0, n = 0;

    for (guint32 i = 0; i < verifier->n_tasks; i++) {
        const RpTask *task = rp_verifier_task(verifier, i);

        if (task->iteration != wants->iteration || i == reader)
            continue;
        rp_verifier_expect(verifier, task, 0, rows);
        for (guint k = 0; k < rows->len; k++) {
            const RpExpected *made = &g_array_index(rows, RpExpected, k);
            guint score;

            if (!makes(made, row, wants))
                continue;
            n += made->leaves.n;
            score =
                1 + (action && !rp_task_is_compute(task) ? 4 : 0) +
                (!touches(verifier, i, buffer, RP_ACCESS_WRITE, made->role) ? 2 : 0) +
                (made->role == row->role ? 8 : 0) +
                (rp_verifier_device(verifier, i) == rp_verifier_device(verifier, reader) ? 16 : 0);
            if (score > best || (score == best && i < reader)) {
                best = score;
                maker.task = i;
                maker.role = made->role;
            }
        }
    }
    maker.short_of = wants->n > 0 && n < wants->n;
    return maker;
}

guint32
rp_verifier_find_action(const RpVerifier *verifier, guint32 iteration, guint32 micro_batch,
                        guint layer, RpDirection direction)
{
    const guint32 stage = rp_verifier_stage_of(verifier, layer, direction);
    guint32 last = RP_NO_TASK;

    for (guint32 i = 0; i < verifier->n_tasks; i++) {
        const RpTask *task = rp_verifier_task(verifier, i);
        RpActionPart parts[2];
        const guint n = rp_action_parts(verifier, task, parts);

        for (guint k = 0; k < n; k++)
            if (task->iteration == iteration && parts[k].stage == stage &&
                (direction == RP_FORWARD
                     ? parts[k].runs[RP_PART_FORWARD]
                     : parts[k].runs[RP_PART_BACKWARD] || parts[k].runs[RP_PART_WEIGHTS]) &&
                (micro_batch == RP_NONE || parts[k].micro_batch == micro_batch))
                last = i;
    }
    return last;
}

static gboolean
has_norm(const RpVerifier *verifier, guint32 iteration)
{
    for (guint32 i = 0; i < verifier->n_tasks; i++)
        if (rp_verifier_task(verifier, i)->kind == RP_TASK_NORM &&
            rp_verifier_task(verifier, i)->iteration == iteration)
            return TRUE;
    return FALSE;
}

/* Nobody leaves @wants, or not all of it. Returns: whether that was reported */
static gboolean
fail_missing(RpVerifier *verifier, guint32 index, const RpSymbol *wants)
{
    const RpTask *task = rp_verifier_task(verifier, index);
    guint32 layer = wants->of;

    switch ((RpValueKind)wants->kind) {
    case RP_VALUE_GRADIENTS:
        if (task->kind == RP_TASK_GRADIENT_ACCUMULATE && !has_norm(verifier, task->iteration))
            return FALSE;
        fail_task(verifier, RP_RULE_TRANSFERS,
                  rp_verifier_find_action(verifier, task->iteration, RP_NONE, layer, RP_BACKWARD),
                  "gradients of layer %u in iteration %u are never %s", layer, task->iteration,
                  rp_verifier_stages(verifier) ? "summed over all rounds" : "downloaded");
        return TRUE;
    case RP_VALUE_INPUT:
    case RP_VALUE_INPUT_GRADIENT:
    case RP_VALUE_SAVED: {
        const RpDirection gradient = wants->kind == RP_VALUE_INPUT_GRADIENT;
        const gboolean saved = wants->kind == RP_VALUE_SAVED;
        const RpDirection backward = gradient || saved || task->kind == RP_TASK_STASH_UPLOAD;
        guint32 from = RP_NO_TASK, to = index;

        if (layer > 0 || saved)
            from = rp_verifier_find_action(verifier, wants->iteration, wants->item,
                                           gradient || saved ? layer : layer - 1, gradient);
        if (!rp_task_is_compute(task))
            to = rp_verifier_find_action(verifier, wants->iteration, wants->item, layer - gradient,
                                         backward);
        fail_tasks(verifier, RP_RULE_ACTIONS, from, to, "%s is never %s between the two",
                   rp_values[wants->kind].name,
                   rp_task_is_compute(task) ? "uploaded" : "downloaded");
        return TRUE;
    }
    default:
        return FALSE;
    }
}

/* Another version of the weights than the one that is for it. */
static void
fail_version(RpVerifier *verifier, guint32 index, const RpSymbol *wants, const RpSymbol *found,
             guint32 writer)
{
    g_autofree char *wanted = wants->iteration == RP_NONE
                                  ? g_strdup("the initial ones")
                                  : g_strdup_printf("those of iteration %u", wants->iteration);

    if (found->kind == RP_VALUE_WEIGHTS)
        fail_tasks(verifier, RP_RULE_STALENESS, writer, index,
                   "the second task uploads the weights of layer %u made by the first, not %s",
                   found->of, wanted);
    else
        fail_task(verifier, RP_RULE_STALENESS, index,
                  "the upload does not read the weights of layer %u it should: %s", wants->of,
                  wanted);
}

/* Whether the reader looks where @maker left @wants, and that is there no more. */
static gboolean
is_overwritten(const RpVerifier *verifier, const Maker *maker, guint32 reader, guint read_as,
               const RpSymbol *wants)
{
    const RpTask *task = rp_verifier_task(verifier, maker->task);
    const RpAccess *accesses = rp_plan_accesses(verifier->plan, task);

    for (guint i = 0; i < task->access_count; i++) {
        guint32 writer;

        if ((accesses[i].mode & RP_ACCESS_WRITE) == 0 || accesses[i].role != maker->role ||
            !touches(verifier, reader, accesses[i].buffer, RP_ACCESS_READ, read_as))
            continue;
        const RpSymbol found = rp_verifier_find_value(verifier, accesses[i].buffer, &writer);
        if (!rp_symbol_is_same(&found, wants) && writer != maker->task)
            return TRUE;
    }
    return FALSE;
}

void
rp_verifier_fail_value(RpVerifier *verifier, guint32 index, const RpExpected *row, RpSymbol wants,
                       guint32 buffer, const RpSymbol *found, guint32 writer)
{
    const RpTask *task = rp_verifier_task(verifier, index);
    const gboolean norm = task->kind == RP_TASK_NORM;
    const RpRule rule =
        norm && buffer == RP_NONE ? RP_RULE_DECISION : rule_at(verifier, wants.kind, index);
    const guint rank = rank_at(verifier, rule, index);
    const char *name = rp_values[wants.kind].name;
    const gboolean same = rp_symbol_is_same(found, &wants);

    if (verifier->rank <= rank) /* nothing graver can be found: it is not worth the search */
        return;
    if (wants.kind == RP_VALUE_WEIGHTS &&
        (found->kind == RP_VALUE_WEIGHTS || wants.iteration == RP_NONE)) {
        fail_version(verifier, index, &wants, found, writer);
        return;
    }
    if (wants.kind == RP_VALUE_STATE && found->kind == RP_VALUE_STATE && found->of == wants.of &&
        found->iteration > wants.iteration) {
        rp_verifier_fail_at(verifier, rank, rule, index, writer,
                            "%s is changed by the second task before the first has read it", name);
        return;
    }
    if (task->kind == RP_TASK_REDUCE && found->kind == RP_VALUE_GRADIENTS &&
        found->of != wants.of) {
        fail_tasks(verifier, RP_RULE_GRADIENT_INTEGRITY, index, writer,
                   "the gradients of layer %u may be overwritten before they are reduced",
                   wants.of);
        return;
    }
    Maker maker = find_maker(verifier, index, row, &wants, buffer);
    if (maker.task == RP_NO_TASK && row->instead.kind != RP_VALUE_NONE)
        maker = find_maker(verifier, index, row, &row->instead, buffer);
    const gboolean left = maker.task != RP_NO_TASK && (!maker.short_of || buffer == RP_NONE);
    if (!left && buffer != RP_NONE && fail_missing(verifier, index, &wants))
        return;
    if (!left)
        rp_verifier_fail_at(verifier, rank, rule, RP_NO_TASK, index,
                            "the task does not find %s, which no task leaves in full", name);
    else if (wants.kind == RP_VALUE_WEIGHTS)
        fail_version(verifier, index, &wants, found, writer);
    else if (maker.task > index)
        rp_verifier_fail_at(verifier, rank, rule, maker.task, index, "%s " NAME_OF_RACE, name);
    else if (same || !is_overwritten(verifier, &maker, index, row->role, &wants))
        rp_verifier_fail_at(verifier, rank, rule, maker.task, index,
                            "the second task reads no buffer that the first wrote: %s is lost",
                            name);
    else
        rp_verifier_fail_at(verifier, rank, RP_RULE_BUFFERS, maker.task, index,
                            "what the first task wrote is overwritten before the second reads "
                            "it: %s is lost",
                            name);
}
