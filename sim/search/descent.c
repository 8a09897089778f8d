/*
 * Descent: every neighbour of a finding in a fixed order, on from each that is better, until none
 * is. What annealing leaves one step away is found here.
 *
 *   runs of 1 to 8 borders shift by one     [0 1 2][3 4 5][6 7] -> [0 1 2 3][4 5 6][7]
 *   two stages are joined                   [0 1 2][3 4]        -> [0 1 2 3 4]
 *   a stage is cut in two                   [0 1 2]             -> [0][1 2], [0 1][2]
 */
#include "sim/search/searcher.h"

#include "sim/search/cut-moves.h"

#define MAX_RUN 8

typedef struct {
    RpSearcher *searcher;
    RpFinding *at;
    RpCut *next;
    guint64 end; /* actions that may have been spent */
} Descent;

static gboolean
is_over(const Descent *descent)
{
    return rp_searcher_spent(descent->searcher) >= descent->end;
}

/* Judges descent->next, and stays there if it is better. */
static gboolean
take_if_better(Descent *descent, gboolean valid)
{
    RpFinding *at = descent->at;

    if (!valid)
        return FALSE;
    const gint64 ns =
        rp_searcher_cost(descent->searcher, descent->next, at->round, at->cost_ns - 1);

    if (ns >= at->cost_ns || !rp_searcher_fits(descent->searcher, descent->next))
        return FALSE;
    rp_cut_copy(at->cut, descent->next);
    at->cost_ns = ns;
    return TRUE;
}

static gboolean
shift_runs(Descent *descent)
{
    const RpProfile *profile = descent->searcher->search->profile;
    gboolean better = FALSE;

    for (guint length = 1; length <= MAX_RUN; length++) {
        const guint n = rp_cut_borders(descent->at->cut);

        for (guint i = 0; i + length <= n && !is_over(descent); i++)
            for (guint up = 0; up < 2; up++) {
                rp_cut_copy(descent->next, descent->at->cut);
                rp_cut_shift(descent->next, i, length, up == 0);
                better |= take_if_better(descent, rp_cut_is_valid(descent->next, profile));
            }
    }
    return better;
}

static gboolean
join_stages(Descent *descent)
{
    const RpProfile *profile = descent->searcher->search->profile;
    gboolean better = FALSE;

    for (guint backward = 0; backward < 2; backward++)
        for (guint s = 0; s < rp_cut_slots(descent->at->cut) && !is_over(descent); s++) {
            rp_cut_copy(descent->next, descent->at->cut);
            better |= take_if_better(descent, rp_cut_join(descent->next, backward != 0, s) &&
                                                  rp_cut_is_valid(descent->next, profile));
        }
    return better;
}

static gboolean
split_stages(Descent *descent)
{
    const RpProfile *profile = descent->searcher->search->profile;
    gboolean better = FALSE;

    for (guint backward = 0; backward < 2; backward++)
        for (guint l = 1; l < profile->n_layers && !is_over(descent); l++) {
            rp_cut_copy(descent->next, descent->at->cut);
            better |= take_if_better(descent, rp_cut_split(descent->next, backward != 0, l) &&
                                                  rp_cut_is_valid(descent->next, profile));
        }
    return better;
}

void
rp_searcher_descend(RpSearcher *searcher, RpFinding *finding, guint64 actions)
{
    Descent descent = {
        .searcher = searcher,
        .at = finding,
        .next = rp_cut_new(searcher->search->profile->n_layers),
        .end = rp_searcher_spent(searcher) + actions,
    };
    gboolean better = finding->cut->n_forward > 0;

    while (better && !is_over(&descent)) {
        better = shift_runs(&descent);
        better |= join_stages(&descent);
        better |= split_stages(&descent);
    }
    rp_cut_free(descent.next);
}
