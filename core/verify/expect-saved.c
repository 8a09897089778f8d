/*
 * Accesses to the tensors that layers save: forwards and backwards access one buffer for each layer
 * that saves something. The fused stage has none, since its forward is its backward's, nor has a
 * plan that trains nothing.
 */
#include "core/verify/private.h"

static void
expect(GArray *expected, RpAccessRole role, guint16 mode, RpBufferCategory category, guint64 bytes)
{
    const RpExpected what = {.buffer = RP_NONE,
                             .role = role,
                             .mode = mode,
                             .device = role == RP_ROLE_SAVED,
                             .categories = 1u << category,
                             .bytes = bytes};

    g_array_append_val(expected, what);
}

static void
expect_action(const RpVerifier *verifier, const RpTask *task, guint16 mode, GArray *expected)
{
    const RpInterval layers = rp_plan_stage(verifier->plan, task->stage)->layers;

    for (guint l = layers.first; l < layers.first + layers.count; l++) {
        const guint64 bytes = rp_plan_layer(verifier->plan, l)->saved_bytes;

        if (bytes > 0)
            expect(expected, RP_ROLE_SAVED, mode, RP_BUFFER_ACTIVATIONS, bytes);
    }
}

void
rp_verifier_expect_saved(const RpVerifier *verifier, const RpTask *task, GArray *expected)
{
    const gboolean up = task->kind == RP_TASK_SAVED_UPLOAD;

    if (up || task->kind == RP_TASK_SAVED_DOWNLOAD) {
        const guint64 bytes = rp_plan_layer(verifier->plan, task->layer)->saved_bytes;

        expect(expected, RP_ROLE_HOST, up ? RP_ACCESS_READ : RP_ACCESS_WRITE, RP_BUFFER_STASH,
               bytes);
        expect(expected, RP_ROLE_SAVED, up ? RP_ACCESS_WRITE : RP_ACCESS_READ,
               RP_BUFFER_ACTIVATIONS, bytes);
    } else if (!verifier->promises->forward_only && task->kind == RP_TASK_FORWARD) {
        expect_action(verifier, task, RP_ACCESS_WRITE, expected);
    } else if (!verifier->promises->forward_only &&
               (task->kind == RP_TASK_BACKWARD || task->kind == RP_TASK_INPUT_GRADIENT ||
                task->kind == RP_TASK_WEIGHT_GRADIENT)) {
        expect_action(verifier, task, RP_ACCESS_READ | RP_ACCESS_WRITE, expected);
    }
}
