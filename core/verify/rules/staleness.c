/*
 * Rule 5 in `compute` fidelity. There are no weights to look at, only actions: an action that reads
 * a version of the weights comes after every action whose gradients make it.
 *
 *   synchronous    all of T-1  -->  all of T (the flush)
 *   asynchronous   backward of a layer in T-2  -->  forward of that layer in T (staleness 1)
 */
#include "core/verify/private.h"

#include <string.h>

typedef struct {
    RpVerifier *verifier;
    guint32 *made;  /* [stage * n_lanes + lane] last action that makes the version's gradients */
    gboolean *seen; /* [stage * n_lanes + lane] a forward of this iteration stood here before */
} Staleness;

static void
note_makers(Staleness *staleness, guint32 iteration)
{
    const RpVerifier *verifier = staleness->verifier;
    gsize n = (gsize)verifier->n_stages * verifier->n_lanes;

    rp_verify_clear_table(staleness->made, n);
    for (guint32 i = verifier->iteration_start[iteration];
         i < verifier->iteration_start[iteration + 1]; i++) {
        guint32 index = verifier->by_iteration[i];
        RpActionPart parts[2];
        guint n_parts = rp_action_parts(verifier, rp_verifier_task(verifier, index), parts);

        for (guint k = 0; k < n_parts; k++)
            if (parts[k].weights) /* in the order of their lane: the last one stays */
                staleness->made[(gsize)parts[k].stage * verifier->n_lanes + verifier->lane[index]] =
                    index;
    }
}

static gboolean
check_makers(const Staleness *staleness, guint32 index, guint32 stage)
{
    RpVerifier *verifier = staleness->verifier;
    RpInterval layers = rp_plan_stage(verifier->plan, stage)->layers;

    if (!verifier->promises->async)
        layers = (RpInterval){.first = 0, .count = verifier->n_layers};
    for (guint l = layers.first; l < layers.first + layers.count; l++) {
        guint32 maker = verifier->backward_of[l];

        if (l > layers.first && maker == verifier->backward_of[l - 1])
            continue;
        for (guint lane = 0; lane < verifier->n_lanes; lane++) {
            guint32 task = staleness->made[(gsize)maker * verifier->n_lanes + lane];

            if (task != RP_NO_TASK && !rp_verifier_before(verifier, task, index))
                return rp_verifier_fail(verifier, RP_RULE_STALENESS, task, index,
                                        "the second action may start before the first has ended, "
                                        "whose gradients make the weights it reads");
        }
    }
    return TRUE;
}

static gboolean
check_readers(Staleness *staleness, guint32 iteration)
{
    const RpVerifier *verifier = staleness->verifier;
    gsize n = (gsize)verifier->n_stages * verifier->n_lanes;

    memset(staleness->seen, 0, n * sizeof *staleness->seen);
    for (guint32 i = verifier->iteration_start[iteration];
         i < verifier->iteration_start[iteration + 1]; i++) {
        guint32 index = verifier->by_iteration[i];
        RpActionPart parts[2];
        guint n_parts = rp_action_parts(verifier, rp_verifier_task(verifier, index), parts);

        if (n_parts == 0 || !parts[0].forward) /* a backward comes after its forward */
            continue;
        gboolean *seen =
            &staleness->seen[(gsize)parts[0].stage * verifier->n_lanes + verifier->lane[index]];
        if (!*seen && !check_makers(staleness, index, parts[0].stage))
            return FALSE;
        *seen = TRUE;
    }
    return TRUE;
}

gboolean
rp_verify_staleness(RpVerifier *verifier)
{
    guint32 age = verifier->promises->async ? 2 : 1;
    gsize n = (gsize)verifier->n_stages * verifier->n_lanes;
    Staleness staleness = {
        .verifier = verifier,
        .made = rp_verify_new_table(n),
        .seen = g_new(gboolean, n),
    };
    gboolean correct = TRUE;

    for (guint32 t = MAX(age, verifier->first_dirty); t < verifier->n_iterations && correct; t++) {
        note_makers(&staleness, t - age);
        correct = check_readers(&staleness, t);
    }
    g_free(staleness.made);
    g_free(staleness.seen);
    return correct;
}
