#include "sim/recurrence/cut.h"

#include <string.h>

RpCut *
rp_cut_new(guint n_layers)
{
    RpCut *cut = g_new0(RpCut, 1);

    cut->up = g_new0(guint, (gsize)n_layers + 2);
    cut->down = g_new0(guint, (gsize)n_layers + 2);
    return cut;
}

void
rp_cut_free(RpCut *cut)
{
    if (cut == NULL)
        return;
    g_free(cut->up);
    g_free(cut->down);
    g_free(cut);
}

void
rp_cut_copy(RpCut *to, const RpCut *from)
{
    to->n_forward = from->n_forward;
    to->n_backward = from->n_backward;
    memcpy(to->up, from->up, (from->n_forward + 1) * sizeof *to->up);
    memcpy(to->down, from->down, (from->n_backward + 1) * sizeof *to->down);
}

void
rp_cut_read(RpCut *cut, const RpPartition *partition)
{
    g_return_if_fail(partition->dispatched);

    cut->n_forward = partition->n_forward;
    cut->n_backward = partition->n_backward;
    cut->up[0] = 0;
    for (guint s = 0; s < partition->n_forward; s++)
        cut->up[s + 1] = partition->forward[s].first + partition->forward[s].count;
    cut->down[0] = partition->backward[0].first + partition->backward[0].count;
    for (guint b = 0; b < partition->n_backward; b++)
        cut->down[b + 1] = partition->backward[b].first;
}

RpPartition *
rp_cut_partition(const RpCut *cut)
{
    g_autofree RpInterval *forward = g_new(RpInterval, cut->n_forward + 1);
    g_autofree RpInterval *backward = g_new(RpInterval, cut->n_backward);

    for (guint s = 0; s < cut->n_forward; s++)
        forward[s] = (RpInterval){cut->up[s], cut->up[s + 1] - cut->up[s]};
    for (guint b = 0; b < cut->n_backward; b++)
        backward[b] = (RpInterval){cut->down[b + 1], cut->down[b] - cut->down[b + 1]};
    return rp_partition_new_dispatched(forward, cut->n_forward, backward, cut->n_backward);
}
