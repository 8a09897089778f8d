/* Every dispatched partition, where there are few. */
#include "sim/search/searcher.h"

#include "sim/search/cut-moves.h"

#define EXHAUSTIVE 100000

/* Borders by the bits of @mask: bit i between layers least_first + i - 1 and least_first + i. */
static void
set_borders(RpCut *cut, guint k, guint least_first, guint up_mask, guint down_mask)
{
    cut->n_forward = cut->n_backward = 1;
    for (guint l = least_first; l < k; l++)
        if ((up_mask >> (l - least_first) & 1) != 0)
            cut->up[cut->n_forward++] = l;
    cut->up[cut->n_forward] = k;
    cut->down[1] = k;
    for (guint l = k; l-- > least_first;)
        if ((down_mask >> (l - least_first) & 1) != 0)
            cut->down[++cut->n_backward] = l;
    cut->down[++cut->n_backward] = 0;
}

void
rp_searcher_try_all(RpSearcher *searcher, guint round)
{
    const guint n = searcher->search->profile->n_layers;
    const guint least_first = rp_cut_least_first(searcher->search->profile);
    g_autoptr(RpCut) cut = rp_cut_new(n);

    cut->down[0] = n;
    for (guint k = least_first; k < n; k++) {
        const guint ways = 1u << (k - least_first);

        for (guint up = 0; up < ways; up++)
            for (guint down = 0; down < ways; down++) {
                set_borders(cut, k, least_first, up, down);
                rp_searcher_try(searcher, cut, round);
            }
    }
}

gboolean
rp_searcher_are_few(const RpDispatchedSearch *search, guint n_rounds)
{
    const guint n = search->profile->n_layers;
    const guint most = search->exhaustive != 0 ? search->exhaustive : EXHAUSTIVE;
    guint64 ways = 0;

    for (guint k = rp_cut_least_first(search->profile), bits = 0; k < n; k++, bits += 2) {
        if (bits >= 32)
            return FALSE;
        ways += G_GUINT64_CONSTANT(1) << bits;
    }
    return ways * n_rounds <= most;
}
