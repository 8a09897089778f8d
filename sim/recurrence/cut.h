/**
 * A dispatched partition by its borders, in arrays that a search changes in place.
 *
 *   layers   e 0 1 2 3 4 5 h
 *   up       0     3     6     [e 0 1][2 3 4]          forward stages, upwards
 *   down     8     6   4   0   [5 h][3 4][e 0 1 2]     backward stages, downwards; the first fused
 *
 * up[n_forward] = down[1]. Without forward stages all layers are fused.
 */
#pragma once

#include <glib.h>

#include "core/partition/partition.h"

typedef struct {
    guint n_forward;
    guint n_backward;
    guint *up;   /* n_forward + 1 borders, from 0 on */
    guint *down; /* n_backward + 1 borders, from the number of layers on down to 0 */
} RpCut;

/* Room for any partition of so many layers. */
RpCut *rp_cut_new(guint n_layers);
void rp_cut_free(RpCut *cut);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpCut, rp_cut_free)

void rp_cut_copy(RpCut *to, const RpCut *from);
void rp_cut_read(RpCut *cut, const RpPartition *partition);
RpPartition *rp_cut_partition(const RpCut *cut);

static inline guint
rp_cut_slots(const RpCut *cut)
{
    return cut->n_forward + cut->n_backward;
}
