/**
 * Steps from one cut to its neighbours. Private to sim/.
 *
 * A step may lead to what is no partition: rp_cut_is_valid() says so.
 */
#pragma once

#include "core/profile/profile.h"
#include "sim/recurrence/cut.h"
#include "sim/search/random.h"

/* Layers that the first forward and the last backward stage cannot be without: an embedding stands
 * with the layer behind it. */
static inline guint
rp_cut_least_first(const RpProfile *profile)
{
    return profile->n_layers > 1 && profile->layers[0].kind == RP_LAYER_EMBEDDING ? 2 : 1;
}

/* Whether every stage has a layer, and the first and last enough of them. */
gboolean rp_cut_is_valid(const RpCut *cut, const RpProfile *profile);

/* Borders that may shift: forward ones first, then backward ones. The one in front of the fused
 * stage belongs to both sides and counts once. */
guint rp_cut_borders(const RpCut *cut);
/* Shifts @n borders from @first on by one layer, @up or down. */
void rp_cut_shift(RpCut *cut, guint first, guint n, gboolean up);

/* Joins stages @s - 1 and @s of a side; backward stages do not join the fused one. Returns: FALSE
 * if there are no such two. */
gboolean rp_cut_join(RpCut *cut, gboolean backward, guint s);
/* Cuts the stage of a side that holds layers @layer - 1 and @layer between them. Returns: FALSE if
 * there is none. */
gboolean rp_cut_split(RpCut *cut, gboolean backward, guint layer);

/**
 * rp_cut_move:
 *
 * One step at random: borders shift by one, alone or as a run, a stage is cut or joined to its
 * neighbour, a border moves elsewhere, or one side gets a stage and the other loses one. A cut of
 * one stage has no neighbours.
 *
 * Returns: FALSE if the step led nowhere; @cut is then of no use
 */
gboolean rp_cut_move(RpCut *cut, const RpProfile *profile, RpRandom *random);
