/*
 * Accesses of several servers' tasks: those of the network lane, and those that the norm and the
 * steps have only with several servers.
 */
#include "core/verify/private.h"

#define READ RP_ACCESS_READ
#define WRITE RP_ACCESS_WRITE
#define ADD (RP_ACCESS_READ | RP_ACCESS_WRITE)

static void
expect(GArray *expected, guint32 buffer, RpAccessRole role, guint16 mode)
{
    const RpExpected what = {.buffer = buffer, .role = role, .mode = mode};

    if (buffer != RP_NONE)
        g_array_append_val(expected, what);
}

static void
expect_reduced(const RpVerifier *verifier, guint layer, GArray *expected)
{
    expect(expected, rp_plan_layer(verifier->plan, layer)->reduced, RP_ROLE_HOST, READ);
}

/* The shares of the layer's gradients, and of those that are tied to it. */
static void
expect_update(const RpVerifier *verifier, const RpTask *task, GArray *expected)
{
    const guint tied = rp_plan_tied_from(verifier->plan, task->layer);

    expect_reduced(verifier, task->layer, expected);
    if (tied != RP_NONE)
        expect_reduced(verifier, tied, expected);
}

void
rp_verifier_expect_exchange(const RpVerifier *verifier, const RpTask *task, GArray *expected)
{
    const RpPlan *plan = verifier->plan;
    const RpPlanPromises *promises = verifier->promises;
    const RpPlanExchange exchange = rp_plan_exchange(plan);
    const RpPlanLayer *row =
        task->layer < verifier->n_layers ? rp_plan_layer(plan, task->layer) : NULL;

    if (promises->servers <= 1 ||
        ((task->kind == RP_TASK_REDUCE || task->kind == RP_TASK_GATHER) && row == NULL))
        return;
    switch ((RpTaskKind)task->kind) {
    case RP_TASK_REDUCE:
        for (guint i = 0; i < rp_plan_gradient_buffers(promises); i++)
            expect(expected, row->gradients[i], RP_ROLE_HOST, READ);
        expect(expected, row->reduced, RP_ROLE_HOST, WRITE);
        expect(expected, exchange.room, RP_ROLE_STAGING, WRITE);
        return;
    case RP_TASK_AGREE:
        expect(expected, exchange.squares, RP_ROLE_HOST, ADD);
        expect(expected, rp_plan_decision(plan, task->iteration), RP_ROLE_DECISION, ADD);
        expect(expected, exchange.room, RP_ROLE_STAGING, WRITE);
        return;
    case RP_TASK_GATHER:
        expect(expected, row->weights[promises->double_weights ? task->iteration % 2 : 0],
               RP_ROLE_HOST, ADD);
        return;
    case RP_TASK_NORM:
        for (guint l = 0; promises->gated && l < verifier->n_layers; l++)
            expect_reduced(verifier, l, expected);
        expect(expected, exchange.squares, RP_ROLE_HOST, promises->gated ? WRITE : ADD);
        return;
    case RP_TASK_OPTIMIZER_STEP:
        expect_update(verifier, task, expected);
        if (!promises->gated)
            expect(expected, exchange.squares, RP_ROLE_HOST, ADD);
        return;
    default:
        return;
    }
}
