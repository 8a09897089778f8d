/* The optimizer's state of a whole layer, cut into shares. */
#include "exec/shares/private.h"

/* Scales after those of @n parameters, which are whole blocks. */
static const float *
beyond_scales(const float *scales, RpStateFormat form, guint64 n)
{
    return scales != NULL ? scales + rp_moment_scales(form.moments, 0, n) : NULL;
}

static const void *
beyond(const void *values, RpMoments kept_as, guint64 n)
{
    return values != NULL ? (const guint8 *)values + n * rp_moment_bytes(kept_as) : NULL;
}

RpOptimizerState
rp_shares_cut(const RpShares *shares, guint layer, const RpOptimizerState *whole)
{
    const RpShard share = rp_shares_own(shares, layer);
    const RpStateFormat form = whole->form;
    RpOptimizerState cut = *whole;

    cut.n_parameters = share.n;
    cut.weight = beyond(whole->weight, form.master, share.first);
    cut.moment1 = beyond(whole->moment1, form.moments, share.first);
    cut.moment2 = beyond(whole->moment2, form.moments, share.first);
    cut.scale1 = beyond_scales(whole->scale1, form, share.first);
    cut.scale2 = beyond_scales(whole->scale2, form, share.first);
    return cut;
}
