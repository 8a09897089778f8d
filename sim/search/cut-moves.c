#include "sim/search/cut-moves.h"

#include <string.h>

#define MAX_RUN 8

gboolean
rp_cut_is_valid(const RpCut *cut, const RpProfile *profile)
{
    const guint least_first = rp_cut_least_first(profile);
    const guint k = cut->up[cut->n_forward];

    if (k != cut->down[1] || k >= profile->n_layers || cut->up[1] < least_first ||
        cut->down[cut->n_backward - 1] < least_first)
        return FALSE;
    for (guint s = 0; s < cut->n_forward; s++)
        if (cut->up[s] >= cut->up[s + 1])
            return FALSE;
    for (guint b = 0; b < cut->n_backward; b++)
        if (cut->down[b] <= cut->down[b + 1])
            return FALSE;
    return TRUE;
}

guint
rp_cut_borders(const RpCut *cut)
{
    return cut->n_forward + cut->n_backward - 2;
}

void
rp_cut_shift(RpCut *cut, guint first, guint n, gboolean up)
{
    const guint step = up ? 1 : G_MAXUINT;

    for (guint border = first; border < first + n; border++) {
        if (border < cut->n_forward)
            cut->up[border + 1] += step;
        if (border + 1 == cut->n_forward)
            cut->down[1] += step;
        if (border >= cut->n_forward)
            cut->down[border - cut->n_forward + 2] += step;
    }
}

gboolean
rp_cut_join(RpCut *cut, gboolean backward, guint s)
{
    guint *borders = backward ? cut->down : cut->up;
    guint *n = backward ? &cut->n_backward : &cut->n_forward;

    if (s < (backward ? 2 : 1) || s >= *n)
        return FALSE;
    memmove(&borders[s], &borders[s + 1], (*n - s) * sizeof *borders);
    (*n)--;
    return TRUE;
}

gboolean
rp_cut_split(RpCut *cut, gboolean backward, guint layer)
{
    guint *borders = backward ? cut->down : cut->up;
    guint *n = backward ? &cut->n_backward : &cut->n_forward;
    guint s = backward ? 2 : 1; /* the border that comes behind the new one */

    if (layer >= cut->up[cut->n_forward])
        return FALSE;
    while (backward ? borders[s] > layer : borders[s] < layer)
        s++;
    if (borders[s] == layer)
        return FALSE;
    memmove(&borders[s + 1], &borders[s], (*n - s + 1) * sizeof *borders);
    borders[s] = layer;
    (*n)++;
    return TRUE;
}

static void
shift_some(RpCut *cut, RpRandom *random)
{
    const guint n = rp_cut_borders(cut);
    const gboolean up = rp_random_below(random, 2) == 0;
    const guint length =
        rp_random_below(random, 2) == 0 ? 1 : 1 + rp_random_below(random, MIN(MAX_RUN, n));

    rp_cut_shift(cut, rp_random_below(random, n - length + 1), length, up);
}

static gboolean
join_some(RpCut *cut, gboolean backward, RpRandom *random)
{
    return rp_cut_join(cut, backward,
                       rp_random_below(random, backward ? cut->n_backward : cut->n_forward));
}

static gboolean
split_some(RpCut *cut, gboolean backward, RpRandom *random)
{
    const guint k = cut->up[cut->n_forward];

    return k > 1 && rp_cut_split(cut, backward, 1 + rp_random_below(random, k - 1));
}

gboolean
rp_cut_move(RpCut *cut, const RpProfile *profile, RpRandom *random)
{
    const guint what = rp_random_below(random, 16);
    const gboolean side = rp_random_below(random, 2) != 0;
    gboolean done = TRUE;

    if (cut->n_forward == 0)
        return FALSE;
    if (what < 10)
        shift_some(cut, random);
    else if (what < 11)
        done = split_some(cut, side, random);
    else if (what < 12)
        done = join_some(cut, side, random);
    else if (what < 14)
        done = join_some(cut, side, random) && split_some(cut, side, random);
    else
        done = join_some(cut, side, random) && split_some(cut, !side, random);
    return done && rp_cut_is_valid(cut, profile);
}
