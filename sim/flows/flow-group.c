#include "sim/flows/flow-group.h"

static gboolean
is_before(const RpGroupMember *a, const RpGroupMember *b)
{
    if (a->end.high != b->end.high)
        return a->end.high < b->end.high;
    if (a->end.low != b->end.low)
        return a->end.low < b->end.low;
    return a->class_id < b->class_id;
}

static void
put(RpFlowGroup *group, guint32 place, RpGroupMember member)
{
    group->members[place] = member;
    group->places[member.class_id] = place + 1;
}

/* Lets @member find its place upwards or downwards from the free @place. */
static void
settle(RpFlowGroup *group, guint32 place, RpGroupMember member)
{
    while (place > 0 && is_before(&member, &group->members[(place - 1) / 2])) {
        put(group, place, group->members[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    for (;;) {
        guint32 child = 2 * place + 1;

        if (child >= group->n)
            break;
        if (child + 1 < group->n && is_before(&group->members[child + 1], &group->members[child]))
            child++;
        if (!is_before(&group->members[child], &member))
            break;
        put(group, place, group->members[child]);
        place = child;
    }
    put(group, place, member);
}

void
rp_flow_group_set_rate(RpFlowGroup *group, double bytes_per_ns, gint64 now_ns)
{
    group->served = rp_flow_group_served(group, now_ns);
    group->served_at_ns = now_ns;
    group->bytes_per_ns = bytes_per_ns;
}

void
rp_flow_group_add(RpFlowGroup *group, guint32 class_id, guint32 n_flows, double left_bytes,
                  gint64 now_ns)
{
    if (group->n == 0) {
        /* counts from 0 as often as it can, for the sake of exactness */
        group->served = (RpBytes){0, 0};
        group->served_at_ns = now_ns;
    }
    const RpBytes end = rp_bytes_add(rp_flow_group_served(group, now_ns), left_bytes);

    group->n++;
    group->n_flows += n_flows;
    settle(group, group->n - 1, (RpGroupMember){.end = end, .class_id = class_id});
    group->changed = TRUE;
}

void
rp_flow_group_remove(RpFlowGroup *group, guint32 class_id, guint32 n_flows)
{
    const guint32 place = group->places[class_id] - 1;

    group->places[class_id] = 0;
    group->n--;
    group->n_flows -= n_flows;
    if (place < group->n)
        settle(group, place, group->members[group->n]);
    group->changed = TRUE;
}
