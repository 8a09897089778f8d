/**
 * Shared by the files of rule 4.
 *
 *   rules/parameters.c   records the tasks of slots; parameters to the devices
 *   rules/gradients.c    gradients from them: kept, downloaded, summed
 *   rules/residents.c    parameters that stay on them
 *   rules/layers.c       both, layer by layer
 */
#pragma once

#include "core/verify/private.h"

/* Actions of one slot; tasks in the order of their lane. */
typedef struct {
    guint32 first_forward; /* or the only first: F, FB, B of a backward slot */
    guint32 first_backward;
    guint32 last_weights; /* last action that adds to the gradients */
    guint32 accumulate;
    guint32 staging; /* access of accumulate that reads this round */
    guint32 summed;  /* last action that was seen adding, while walking */
    guint32 leaving; /* access of last_weights by which gradients leave; RP_NONE */
} RpSlot;

typedef struct {
    RpVerifier *verifier;
    guint32 iteration;
    gboolean gradients_complete;
    guint32 *first_parameter_chunk; /* [stage] numbering all chunks; [n_stages] = how many */
    guint32 *first_gradient_chunk;
    RpSlot *slots;       /* [round * n_stages + stage] */
    guint32 *uploads[2]; /* [round * n_chunks + chunk]; [1]: again for the backward */
    guint32 *expands[2]; /* [round * n_stages + stage]; the same */
    guint32 *downloads;
    guint32 *leavers; /* layerwise: [round * n_layers + layer] whose gradients it lets go */
} RpSlots;

static inline RpSlot *
rp_verify_slot(const RpSlots *state, guint round, guint32 stage)
{
    if (state->verifier->promises->resident_weights)
        round = 0;
    return &state->slots[(gsize)round * state->verifier->n_stages + stage];
}

/* @first has ended when @second starts, on the same device unless @second is on the host. */
gboolean rp_verify_slot_order(RpVerifier *verifier, guint32 first, guint32 second,
                              const char *what);

/* rules/layers.c, for a layerwise plan: checks that an action's layers are on the device; records
 * the tasks that let gradients leave; finds the one for chunk @chunk of the slot's gradients,
 * RP_NO_TASK: none. */
gboolean rp_verify_layers(RpSlots *state, guint32 action);
gboolean rp_verify_note_leaving(RpSlots *state, guint32 action);
guint32 rp_verify_leaver(const RpSlots *state, guint round, guint chunk);

/* rules/residents.c; @reader: an action, or the task that expands its parameters, or RP_NO_TASK */
gboolean rp_verify_resident_fields(RpVerifier *verifier, guint32 index, const RpTask *task);
gboolean rp_verify_residents(RpVerifier *verifier, guint32 reader, guint32 stage);

/* rules/gradients.c */
/* Rounds stand apart on the host, all of them, or their sum is fp32. */
gboolean rp_verify_rounds_apart(RpVerifier *verifier);
gboolean rp_verify_sum_fields(RpVerifier *verifier, guint32 index, const RpTask *task);
gboolean rp_verify_note_sum(RpSlots *state, guint32 index, const RpTask *task);
/* The access by which gradients leave after @action; RP_NONE: they do not. */
guint32 rp_verify_find_leaving(const RpVerifier *verifier, guint32 action);
/* A slot's sum begins anew or, where sums stay on the device, is added to that of the round before,
 * and leaves with the last round only. */
gboolean rp_verify_kept(RpSlots *state, guint round, guint32 stage, const RpSlot *slot);
/* Gradients that leave after round @round arrive and are added. */
gboolean rp_verify_downloads(RpSlots *state, guint round, guint32 stage, const RpSlot *slot);
