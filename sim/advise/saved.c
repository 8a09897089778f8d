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

/* The recommendation where groups of tensors that bring @least_ns a MiB or more are saved, if that is
 * faster than the one in @fastest. */
static gboolean
try_threshold(const RpAdvice *advice, double least_ns, RpAdvice *fastest, gboolean *is_faster,
              GError **error)
{
    g_autoptr(RpAdvice) saving = g_new0(RpAdvice, 1);

    saving->query = advice->query;
    saving->query.saved_groups = rp_save_groups(RP_SAVE_ALL);
    saving->query.saved_least_ns = least_ns;
    if (!rp_advise_choose_plain(saving, error))
        return FALSE;
    *is_faster =
        saving->best != NULL && fits_host(advice, saving->best) &&
        (fastest->best == NULL || saving->best->tokens_per_s > fastest->best->tokens_per_s);
    if (*is_faster)
        rp_advice_take(fastest, saving);
    return TRUE;
}

gboolean
rp_advise_weigh_saved(RpAdvice *advice, GError **error)
{
    const RpAdviseQuery *query = &advice->query;
    g_autoptr(RpAdvice) fastest = g_new0(RpAdvice, 1);
    double recomputed;

    if (advice->best == NULL || (query->sizes != NULL && query->sizes->host_devices))
        return TRUE;
    if (query->save != RP_SAVE_AUTO) {
        note_saved(advice, 0);
        return TRUE;
    }
    g_autoptr(GArray) row = rp_profile_savings(advice->profile);

    for (guint i = 0; i < MIN(row->len, MOST_TRIED); i++) {
        gboolean is_faster;

        if (!try_threshold(advice, g_array_index(row, double, i), fastest, &is_faster, error))
            return FALSE;
        if (!is_faster && fastest->best != NULL)
            break; /* more is slower all the more */
    }
    recomputed = advice->best->tokens_per_s;
    if (fastest->best == NULL || RP_ADVISE_AS_FAST * fastest->best->tokens_per_s < recomputed)
        return TRUE;
    rp_advice_take(advice, fastest);
    note_saved(advice, recomputed);
    return TRUE;
}
