/* What forwards save for their backwards (core/profile/saved.h), where that is faster than to recompute
 * it, within the memory that there is. */
#include "sim/advise/private.h"

/* So many of the groups of tensors that save most time a byte are tried together. */
#define MOST_TRIED 6
/* Choices that are nearly as fast in few tries, which are good for so much, and are then weighed with all. */
#define MOST_WEIGHED 3
#define ROUGHLY_AS_FAST 0.9

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

/* What @choose recommends where forwards save @choice and the host has @host_bytes, if that is
 * faster than @fastest's. @tokens_per_s: (out): its speed, 0: nothing fits */
static gboolean
try_choice(const RpAdvice *advice, const RpSavedChoice *choice, guint64 host_bytes,
           gboolean (*choose)(RpAdvice *, GError **), RpAdvice *fastest, double *tokens_per_s,
           gboolean *is_faster, GError **error)
{
    g_autoptr(RpAdvice) saving = g_new0(RpAdvice, 1);

    saving->query = advice->query;
    saving->query.saved = *choice;
    saving->query.host_bytes = host_bytes;
    if (!choose(saving, error))
        return FALSE;
    *tokens_per_s = saving->best != NULL ? saving->best->tokens_per_s : 0;
    *is_faster = *tokens_per_s > (fastest->best != NULL ? fastest->best->tokens_per_s : 0);
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

/* What is saved, and how fast that is in few tries. */
typedef struct {
    RpSavedChoice choice;
    double tokens_per_s;
} Rough;

static gint
by_speed(gconstpointer a, gconstpointer b)
{
    const double first = ((const Rough *)a)->tokens_per_s,
                 second = ((const Rough *)b)->tokens_per_s;

    return (first < second) - (first > second);
}

/* Choices (Rough) where the host has @host_bytes, the fastest first. %NULL: an error */
static GArray *
try_roughly(const RpAdvice *advice, guint64 host_bytes, GError **error)
{
    g_autoptr(RpAdvice) fastest = g_new0(RpAdvice, 1);
    g_autoptr(GArray) row = rp_profile_savings(advice->profile);
    g_autoptr(GArray) tried = g_array_new(FALSE, FALSE, sizeof(Rough));
    gboolean is_faster = FALSE;

    /* in all layers; or where memory is short in later ones alone, whose values wait least */
    for (guint i = 0; i < MIN(row->len, MOST_TRIED); i++, is_faster = FALSE)
        for (guint part = 0; part < RP_SAVED_PARTS && !is_faster; part++) {
            Rough rough = {{rp_save_groups(RP_SAVE_ALL),
                            part * advice->profile->n_layers / RP_SAVED_PARTS,
                            g_array_index(row, double, i)},
                           0};

            if (!may_be_faster(advice, &rough.choice, fastest))
                continue;
            if (!try_choice(advice, &rough.choice, host_bytes, rp_advise_choose_roughly, fastest,
                            &rough.tokens_per_s, &is_faster, error))
                return NULL;
            if (rough.tokens_per_s > 0)
                g_array_append_val(tried, rough);
        }
    g_array_sort(tried, by_speed);
    return g_steal_pointer(&tried);
}

/* The fastest that saves something, and what it saves; or none. */
static gboolean
choose_saving(const RpAdvice *advice, RpAdvice *fastest, RpSavedChoice *chosen, GError **error)
{
    const guint64 little = (guint64)(RP_ADVISE_HOST_GROWTH * (double)advice->best->host.total);
    const guint64 host_bytes = advice->query.host_bytes != 0 ? advice->query.host_bytes : little;
    g_autoptr(GArray) tried = try_roughly(advice, host_bytes, error);

    if (tried == NULL)
        return FALSE;
    for (guint i = 0; i < MIN(tried->len, MOST_WEIGHED); i++) {
        const Rough *rough = &g_array_index(tried, Rough, i);
        double tokens_per_s;
        gboolean is_faster;

        if (rough->tokens_per_s < ROUGHLY_AS_FAST * g_array_index(tried, Rough, 0).tokens_per_s)
            break;
        if (!try_choice(advice, &rough->choice, host_bytes, rp_advise_choose_plain, fastest,
                        &tokens_per_s, &is_faster, error))
            return FALSE;
        if (is_faster)
            *chosen = rough->choice;
    }
    return TRUE;
}

/* Nobody has said that they take too much. */
static void
forget_too_large(RpAdvice *advice)
{
    for (guint i = advice->candidates->len; i > 0; i--) {
        const RpAdviseRun *run = g_ptr_array_index(advice->candidates, i - 1);

        if (run->host_over_bytes > 0 && run->gpu_over_bytes == 0)
            g_ptr_array_remove_index(advice->candidates, i - 1);
    }
}

/* Puts what is recommended in place of @advice, where forwards that save something are faster and that
 * is to be chosen. */
static gboolean
weigh_saved(RpAdvice *advice, GError **error)
{
    const RpAdviseQuery *query = &advice->query;
    g_autoptr(RpAdvice) fastest = g_new0(RpAdvice, 1);
    RpSavedChoice chosen = {0};
    double recomputed;

    if (advice->best == NULL || (query->sizes != NULL && query->sizes->host_devices))
        return TRUE;
    if (query->save != RP_SAVE_AUTO) {
        note_saved(advice, 0);
        return TRUE;
    }
    if (!choose_saving(advice, fastest, &chosen, error))
        return FALSE;
    recomputed = advice->best->tokens_per_s;
    if (fastest->best == NULL || RP_ADVISE_AS_FAST * fastest->best->tokens_per_s < recomputed)
        return TRUE;
    if (query->host_bytes == 0)
        forget_too_large(fastest);
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
    advice->plain_host_bytes = advice->best != NULL ? advice->best->host.total : 0;
    return (advice->query.save == RP_SAVE_NOTHING || weigh_saved(advice, error)) &&
           rp_advise_weigh_replicas(advice, error);
}
