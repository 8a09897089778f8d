/* What forwards save for their backwards (core/profile/saved.h), where that is faster than to recompute
 * it, within the memory that there is. */
#include "sim/advise/private.h"

/* So many of the groups of tensors that save most time a byte are tried together. */
#define MOST_TRIED 6
/* Host memory that nobody has told of may be so much more. */
#define MORE_HOST 1.25

static gboolean
fits_host(const RpAdvice *advice, const RpAdviseRun *run)
{
    return advice->query.host_bytes != 0 ||
           (double)run->host.total <= MORE_HOST * (double)advice->best->host.total;
}

/* What layers of @run save. */
static guint64
saved_bytes(const RpProfile *profile, const RpAdviseRun *run)
{
    g_autoptr(RpProfile) own = rp_profile_copy(profile);

    return rp_profile_keep_fused(own, run->partition->backward[0].first);
}

static void
note_saved(RpAdvice *advice, double recomputed_tokens_per_s)
{
    for (guint i = 0; i < advice->candidates->len; i++) {
        RpAdviseRun *run = g_ptr_array_index(advice->candidates, i);

        if (run != advice->best)
            continue;
        run->saved_bytes = saved_bytes(advice->profile, run);
        run->recomputed_tokens_per_s = recomputed_tokens_per_s;
    }
}

/* What @choose recommends where forwards save @choice, if that is faster than @fastest's. */
static gboolean
try_choice(const RpAdvice *advice, const RpSavedChoice *choice,
           gboolean (*choose)(RpAdvice *, GError **), RpAdvice *fastest, gboolean *is_faster,
           GError **error)
{
    g_autoptr(RpAdvice) saving = g_new0(RpAdvice, 1);

    saving->query = advice->query;
    saving->query.saved = *choice;
    if (!choose(saving, error))
        return FALSE;
    *is_faster =
        saving->best != NULL && fits_host(advice, saving->best) &&
        (fastest->best == NULL || saving->best->tokens_per_s > fastest->best->tokens_per_s);
    if (*is_faster)
        rp_advice_take(fastest, saving);
    return TRUE;
}

/* All of a micro-batch. */
static double
work_ns(const RpProfile *profile)
{
    double sum = 0;

    for (guint l = 0; l < profile->n_layers; l++) {
        const RpLayer *layer = &profile->layers[l];

        sum += (double)(layer->forward_ns + layer->backward_ns) +
               (double)(layer->kind == RP_LAYER_BLOCK ? rp_layer_recompute_ns(layer) : 0);
    }
    return sum;
}

/* Whether it may be faster by what predictions can tell apart: at best by as much as is not recomputed. */
static gboolean
may_be_faster(const RpAdvice *advice, const RpSavedChoice *choice, const RpAdvice *fastest)
{
    const double recomputed = advice->best->tokens_per_s;
    const double beside = fastest->best != NULL ? fastest->best->tokens_per_s : 0;
    g_autoptr(RpProfile) profile = rp_profile_copy(advice->profile);
    const double before_ns = work_ns(profile);

    rp_profile_choose_saved(profile, choice);
    const double most = recomputed * before_ns / work_ns(profile);

    return RP_ADVISE_AS_FAST * most > recomputed && most > beside;
}

/* Puts what is recommended in place of @advice, where forwards that save something are faster and that
 * is to be chosen. */
static gboolean
weigh_saved(RpAdvice *advice, GError **error)
{
    const RpAdviseQuery *query = &advice->query;
    g_autoptr(RpAdvice) roughly = g_new0(RpAdvice, 1);
    g_autoptr(RpAdvice) fastest = g_new0(RpAdvice, 1);
    RpSavedChoice chosen = {0};
    gboolean is_faster;
    double recomputed;

    if (advice->best == NULL || (query->sizes != NULL && query->sizes->host_devices))
        return TRUE;
    if (query->save != RP_SAVE_AUTO) {
        note_saved(advice, 0);
        return TRUE;
    }
    g_autoptr(GArray) row = rp_profile_savings(advice->profile);

    /* in all layers; or where memory is short in later ones alone, whose values wait least */
    for (guint i = 0; i < MIN(row->len, MOST_TRIED); i++)
        for (guint part = 0; part < RP_SAVED_PARTS; part++) {
            const RpSavedChoice choice = {rp_save_groups(RP_SAVE_ALL),
                                          part * advice->profile->n_layers / RP_SAVED_PARTS,
                                          g_array_index(row, double, i)};

            is_faster = FALSE;
            if (may_be_faster(advice, &choice, roughly) &&
                !try_choice(advice, &choice, rp_advise_choose_roughly, roughly, &is_faster, error))
                return FALSE;
            if (!is_faster)
                continue;
            chosen = choice;
            break;
        }
    if (roughly->best == NULL)
        return TRUE;
    if (!try_choice(advice, &chosen, rp_advise_choose_plain, fastest, &is_faster, error))
        return FALSE;
    recomputed = advice->best->tokens_per_s;
    if (fastest->best == NULL || RP_ADVISE_AS_FAST * fastest->best->tokens_per_s < recomputed)
        return TRUE;
    rp_advice_take(advice, fastest);
    advice->saved = chosen;
    note_saved(advice, recomputed);
    return TRUE;
}

gboolean
rp_advise_choose(RpAdvice *advice, GError **error)
{
    if (!rp_advise_choose_plain(advice, error))
        return FALSE;
    advice->saved = advice->query.saved;
    return advice->query.save == RP_SAVE_NOTHING || weigh_saved(advice, error);
}
