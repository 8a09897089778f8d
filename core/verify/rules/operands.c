/*
 * Rule 2, operands: each task accesses the buffers that its kind must, and no others. Every access
 * is one of those that are expected (expect.c), in its role, mode, category, arena and size,
 * and nothing that is needed is left out. Nobody accesses constants.
 */
#include "core/verify/private.h"

typedef struct {
    RpVerifier *verifier;
    const RpTask *task;
    guint32 index;
    GArray *expected; /* RpExpected */
} Operands;

/* Bytes of the value that an activation lane carries. */
static guint64
value_bytes(const RpVerifier *verifier, const RpTask *task)
{
    const RpPlanLayer *layer = rp_plan_layer(verifier->plan, task->layer);

    return task->kind == RP_TASK_SAVED_DOWNLOAD || task->kind == RP_TASK_SAVED_UPLOAD
               ? layer->saved_bytes
               : layer->input_bytes;
}

static gboolean
mode_fits(const RpExpected *what, guint16 mode)
{
    return what->mode == RP_MAY_ADD
               ? (mode == RP_ACCESS_WRITE || mode == (RP_ACCESS_READ | RP_ACCESS_WRITE))
               : what->mode == mode;
}

/* The next that is needed; else one that may be there, or a place that was named before. */
static RpExpected *
find_expected(Operands *operands, const RpAccess *access)
{
    RpExpected *other = NULL;

    for (guint i = 0; i < operands->expected->len; i++) {
        RpExpected *what = &g_array_index(operands->expected, RpExpected, i);

        if (what->role != access->role || !mode_fits(what, access->mode) ||
            (what->buffer != RP_NONE && what->buffer != access->buffer))
            continue;
        if (!what->seen && !what->optional)
            return what;
        if (other == NULL && (!what->seen || what->buffer != RP_NONE))
            other = what;
    }
    return other;
}

static gboolean
check_value(const Operands *operands, const RpAccess *access, const RpExpected *what)
{
    RpVerifier *verifier = operands->verifier;
    const RpBuffer *buffer = rp_plan_buffer(verifier->plan, access->buffer);
    const guint32 arena = what->device ? rp_plan_lane_device(verifier->plan, operands->task->lane)
                                       : rp_plan_gpus(verifier->plan);
    const char *role = rp_access_role_name((RpAccessRole)access->role);

    if (what->buffer != RP_NONE)
        return TRUE;
    if (verifier->claimed[access->buffer])
        return rp_verifier_fail(verifier, RP_RULE_OPERANDS, RP_NO_TASK, operands->index,
                                "the %s of the task lies where a table has something else "
                                "(buffer %u)",
                                role, access->buffer);
    if (buffer->arena != arena)
        return rp_verifier_fail(verifier, RP_RULE_OPERANDS, RP_NO_TASK, operands->index,
                                "the %s of the task lies in the wrong memory (buffer %u)", role,
                                access->buffer);
    if ((what->categories >> buffer->category & 1) == 0)
        return rp_verifier_fail(verifier, RP_RULE_OPERANDS, RP_NO_TASK, operands->index,
                                "the %s of the task lies among the %s (buffer %u)", role,
                                rp_buffer_category_name((RpBufferCategory)buffer->category),
                                access->buffer);
    if (buffer->bytes < what->bytes)
        return rp_verifier_fail(verifier, RP_RULE_OPERANDS, RP_NO_TASK, operands->index,
                                "the %s of the task takes %" G_GUINT64_FORMAT
                                " bytes, buffer %u has %" G_GUINT64_FORMAT,
                                role, what->bytes, access->buffer, buffer->bytes);
    return TRUE;
}

static gboolean
check_task(Operands *operands)
{
    RpVerifier *verifier = operands->verifier;
    const RpTask *task = operands->task;
    const RpAccess *accesses = rp_plan_accesses(verifier->plan, task);

    rp_verifier_expect(verifier, task, operands->expected);
    rp_verifier_expect_saved(verifier, task, operands->expected);
    rp_verifier_expect_exchange(verifier, task, operands->expected);
    for (guint i = 0; i < task->access_count; i++) {
        RpExpected *what = find_expected(operands, &accesses[i]);

        if (what == NULL)
            return rp_verifier_fail(
                verifier, RP_RULE_OPERANDS, RP_NO_TASK, operands->index,
                "buffer %u (%s) is none that the task %s as %s", accesses[i].buffer,
                rp_buffer_category_name(
                    (RpBufferCategory)rp_plan_buffer(verifier->plan, accesses[i].buffer)->category),
                accesses[i].mode == RP_ACCESS_READ ? "may read" : "may write",
                rp_access_role_name((RpAccessRole)accesses[i].role));
        what->seen = TRUE;
        if (!check_value(operands, &accesses[i], what))
            return FALSE;
    }
    for (guint i = 0; i < operands->expected->len; i++) {
        const RpExpected *what = &g_array_index(operands->expected, RpExpected, i);

        if (!what->seen && !what->optional)
            return rp_verifier_fail(verifier, RP_RULE_OPERANDS, RP_NO_TASK, operands->index,
                                    "the task accesses no %s, or not as it must",
                                    rp_access_role_name((RpAccessRole)what->role));
    }
    if (rp_task_is_transfer(task) && task->kind < RP_TASK_PARAMETER_UPLOAD &&
        task->bytes != value_bytes(verifier, task))
        return rp_verifier_fail(verifier, RP_RULE_OPERANDS, RP_NO_TASK, operands->index,
                                "%" G_GUINT64_FORMAT
                                " bytes are transferred, the value has %" G_GUINT64_FORMAT,
                                task->bytes, value_bytes(verifier, task));
    return TRUE;
}

gboolean
rp_verify_operands(RpVerifier *verifier)
{
    Operands operands = {.verifier = verifier};
    gboolean correct = TRUE;

    if (!verifier->full)
        return TRUE;
    operands.expected = g_array_new(FALSE, FALSE, sizeof(RpExpected));
    for (guint32 i = verifier->first_new; i < verifier->n_tasks && correct; i++) {
        operands.index = i;
        operands.task = rp_verifier_task(verifier, i);
        correct = check_task(&operands);
    }
    g_array_unref(operands.expected);
    return correct;
}
