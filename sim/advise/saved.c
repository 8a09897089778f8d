/* Saved tensors (core/profile/profile.h), where saving is faster than to recompute
 * it, within the memory that there is. */
#include "sim/advise/private.h"

/* The groups of tensors that save most time a byte: this many are tried together. */
#define MOST_TRIED 6

static gboolean
is_tried(const GPtrArray *tried, const RpAdviseRun *run)
{
    for (guint i = 0; i < tried->len; i++)
        if (rp_advise_is_same_choice(g_ptr_array_index(tried, i), run))
            return TRUE;
    return FALSE;
}

/* Adds @plain's micro-batch with forwards that save @choice to @tried. */
static gboolean
add_choice(const RpAdviseRun *plain, const RpAdviseQuery *limits, const RpSavedChoice *choice,
           GPtrArray *tried, GError **error)
{
    RpAdviseQuery query = *limits;

    query.saved = *choice;
    RpAdviseRun *run = rp_advise_run_new(
        &query, rp_advise_roundpipe(), plain->sequences, plain->options.micro_batches,
        rp_advise_next_round(&query, plain->options.micro_batches, 1));

    if (is_tried(tried, run)) {
        rp_advise_run_free(run);
        return TRUE;
    }
    g_autoptr(RpProfile) profile = rp_advise_profile(&query, plain->sequences, error);

    if (profile == NULL) {
        rp_advise_run_free(run);
        return FALSE;
    }
    run->bound_tokens_per_s =
        rp_advise_tokens_per_s(profile, run, rp_advise_bound_ns(&query, profile, run));
    g_ptr_array_add(tried, run);
    return TRUE;
}

/* Adds what forwards of @plain's micro-batch may save: in all layers; or where memory is short in later ones alone,
 * whose values wait least. */
static gboolean
add_choices(const RpAdviseRun *plain, const RpAdviseQuery *limits, GPtrArray *tried, GError **error)
{
    g_autoptr(RpProfile) profile = rp_advise_profile(limits, plain->sequences, error);

    if (profile == NULL)
        return FALSE;
    g_autoptr(GArray) row = rp_profile_savings(profile);

    for (guint i = 0; i < MIN(row->len, MOST_TRIED); i++)
        for (guint part = 0; part < RP_SAVED_PARTS; part++) {
            const RpSavedChoice choice = {rp_save_groups(RP_SAVE_ALL),
                                          part * profile->n_layers / RP_SAVED_PARTS,
                                          g_array_index(row, double, i)};

            if (!add_choice(plain, limits, &choice, tried, error))
                return FALSE;
        }
    return TRUE;
}

gboolean
rp_advise_add_savings(const RpAdvice *advice, const RpAdviseQuery *query, GPtrArray *tried,
                      GError **error)
{
    if (query->save != RP_SAVE_AUTO || (query->sizes != NULL && query->sizes->host_devices))
        return TRUE;
    for (guint i = 0; i < advice->candidates->len; i++) {
        const RpAdviseRun *plain = g_ptr_array_index(advice->candidates, i);

        if (plain->problem == NULL && !add_choices(plain, query, tried, error))
            return FALSE;
    }
    return TRUE;
}
