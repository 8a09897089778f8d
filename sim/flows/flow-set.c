#include "sim/flows/flow-set.h"

#include <math.h>

#include "core/base/units.h"
#include "sim/flows/bandwidth.h"
#include "sim/flows/flow-group.h"
#include "sim/flows/flow-kinds.h"

#define NO_LANE G_MAXUINT32
#define NO_CLASS G_MAXUINT32

/* A flow that takes longer ends then: longer than any run may take (cli/options.c), and far from
 * the end of 64 bits. */
#define MOST_NS 0x1p61

/* Rounding may add this to an exact number of nanoseconds before it counts as one more. */
#define ROUNDING_NS 1e-3

typedef struct {
    guint32 count; /* of flows */
    guint32 kind;
    guint32 group;       /* index of; if the class is in one, as group->places says */
    guint32 n_grouped;   /* its flows then */
    RpBytes joined;      /* the group's clock then */
    double served_bytes; /* each flow then, or by now if it is in none */
    double bytes_per_ns; /* in the last group */
    guint32 first;       /* lane of the flow that is over next */
    guint32 last;
    gboolean changed; /* in RpFlowSet.changed */
} FlowClass;

/* One flow per lane, linked within its class in the order in which they are over. */
typedef struct {
    double end_bytes; /* over when the class has served so many */
    guint32 previous;
    guint32 next;
} LaneFlow;

struct _RpFlowSet {
    guint n_classes;
    guint n_groups;
    guint n_flows;
    guint n_copies;            /* classes of copies */
    guint processors;          /* 0 = not shared */
    guint gpus;                /* which share the power for actions; 0 = nobody shares it */
    double optimizer_weight;   /* 0 = host tasks are flows like others */
    double beside_bytes_per_s; /* of a copy up while a host task runs; INFINITY = as alone */
    RpFlowKinds of;
    RpFlowKind *kinds; /* of.kinds */
    RpBandwidth *bandwidth;
    RpFlow *flows; /* per listed group */
    double *rates; /* of them, bytes/s */
    FlowClass *classes;
    LaneFlow *lanes;
    RpFlowGroup *groups;
    RpGroupMember *members; /* of all groups */
    guint32 *places;        /* per class */
    guint32 *listed;        /* groups that have members or an event */
    guint32 *changed;       /* classes whose flows have begun or ended */
    guint n_listed;
    guint n_changed;
    guint32 ending; /* class whose flows were the last to end at this moment, or NO_CLASS */

    double
        beside_down_bytes_per_s; /* of a copy up while its device copies down; INFINITY = as alone */
    guint n_devices;
    guint n_down; /* flows down */
};

static double
limit(double bytes_per_s)
{
    return bytes_per_s > 0 ? bytes_per_s : INFINITY;
}

/* Empty classes, and groups with room for all classes of their kind. */
static void
init_groups(RpFlowSet *set, guint n_roots)
{
    RpGroupMember *members;

    set->groups = g_new0(RpFlowGroup, set->n_groups);
    set->listed = g_new(guint32, set->n_groups);
    set->flows = g_new0(RpFlow, set->n_groups);
    set->rates = g_new0(double, set->n_groups);
    set->classes = g_new0(FlowClass, set->n_classes);
    set->changed = g_new(guint32, set->n_classes);
    set->places = g_new0(guint32, set->n_classes);
    set->members = members = g_new(RpGroupMember, (gsize)set->n_groups * n_roots);
    for (guint g = 0; g < set->n_groups; g++) {
        set->groups[g].places = set->places;
        set->groups[g].members = members;
        members += n_roots;
    }
    for (guint c = 0; c < set->n_classes; c++) {
        set->classes[c].first = NO_LANE;
        set->classes[c].last = NO_LANE;
        set->classes[c].kind = c < set->n_copies ? c % set->of.n_copies
                                                 : rp_flow_kind_host(&set->of) + c - set->n_copies;
    }
}

RpFlowSet *
rp_flow_set_new(const RpMachine *machine, guint gpus, guint n_lanes)
{
    static const RpMachine no_limits = {0};
    RpFlowSet *set = g_new0(RpFlowSet, 1);
    guint n_links;

    if (machine == NULL)
        machine = &no_limits;
    /* class rp_flow_kinds_place() + direction, then the host's, then that of actions */
    rp_flow_kinds_init(&set->of, machine, gpus);
    set->kinds = set->of.kinds;
    set->n_groups = set->of.n_groups;
    g_autofree double *capacities = rp_flow_kinds_capacities(&set->of, machine, &n_links);

    set->bandwidth = rp_bandwidth_new(capacities, n_links);
    set->processors = machine->processors;
    set->gpus = machine->alone_speed > 1 ? gpus : 0;
    set->optimizer_weight = set->processors > 0 ? 0 : machine->optimizer_weight;
    set->beside_bytes_per_s =
        set->processors > 0 ? INFINITY : limit(machine->beside_optimizer_bytes_per_s);
    set->beside_down_bytes_per_s =
        set->processors > 0 ? INFINITY : limit(machine->beside_down_bytes_per_s);
    set->n_devices = MAX(gpus, 1);
    set->n_copies = set->of.n_roots * set->of.n_cards * 2;
    set->n_classes = set->n_copies + RP_FLOW_OTHERS;
    set->lanes = g_new0(LaneFlow, n_lanes);
    set->ending = NO_CLASS;
    init_groups(set, MAX(set->of.n_roots, 1));
    return set;
}

void
rp_flow_set_free(RpFlowSet *set)
{
    if (set == NULL)
        return;
    rp_bandwidth_free(set->bandwidth);
    rp_flow_kinds_clear(&set->of);
    g_free(set->flows);
    g_free(set->rates);
    g_free(set->classes);
    g_free(set->lanes);
    g_free(set->groups);
    g_free(set->members);
    g_free(set->places);
    g_free(set->listed);
    g_free(set->changed);
    g_free(set);
}

guint
rp_flow_set_n_groups(const RpFlowSet *set)
{
    return set->n_groups;
}

guint
rp_flow_set_copy_class(const RpFlowSet *set, guint device, RpFlowDirection direction)
{
    return rp_flow_kinds_place(&set->of, device) + direction;
}

guint
rp_flow_set_host_class(const RpFlowSet *set)
{
    return set->n_copies;
}

guint
rp_flow_set_network_class(const RpFlowSet *set, gboolean gather)
{
    return set->n_copies + rp_flow_kind_network(&set->of, gather) - rp_flow_kind_host(&set->of);
}

guint
rp_flow_set_action_class(const RpFlowSet *set)
{
    return set->n_copies + 1;
}

gboolean
rp_flow_set_unlimited(const RpFlowSet *set, guint class_id)
{
    return isinf(set->kinds[set->classes[class_id].kind].alone_bytes_per_s);
}

static gboolean
is_grouped(const RpFlowSet *set, guint32 class_id)
{
    return set->places[class_id] != 0;
}

static double
served_bytes(const RpFlowSet *set, guint32 class_id, gint64 now_ns)
{
    const FlowClass *class = &set->classes[class_id];

    if (!is_grouped(set, class_id))
        return class->served_bytes;
    return class->served_bytes +
           rp_bytes_minus(rp_flow_group_served(&set->groups[class->group], now_ns), class->joined);
}

/* Takes a class out of its group, if it is in one. */
static void
leave_group(RpFlowSet *set, guint32 class_id, gint64 now_ns)
{
    FlowClass *class = &set->classes[class_id];
    RpFlowGroup *group = &set->groups[class->group];

    if (!is_grouped(set, class_id))
        return;
    class->served_bytes = served_bytes(set, class_id, now_ns);
    class->bytes_per_ns = group->bytes_per_ns;
    rp_flow_group_remove(group, class_id, class->n_grouped);
}

static void
join_group(RpFlowSet *set, guint32 class_id, gint64 now_ns)
{
    FlowClass *class = &set->classes[class_id];
    const RpFlowKind *kind = &set->kinds[class->kind];

    class->group = kind->first_group + MIN(class->count, kind->n_groups) - 1;
    class->n_grouped = class->count;
    RpFlowGroup *group = &set->groups[class->group];

    rp_flow_group_add(group, class_id, class->count,
                      set->lanes[class->first].end_bytes - class->served_bytes, now_ns);
    class->joined = rp_flow_group_served(group, now_ns);
    if (!group->listed) {
        group->listed = TRUE;
        set->listed[set->n_listed++] = class->group;
    }
}

static gboolean
is_down(const RpFlowSet *set, guint32 class_id)
{
    return class_id < set->n_copies && class_id % 2 == RP_FLOW_DOWN;
}

static void
list_change(RpFlowSet *set, guint32 class_id)
{
    FlowClass *class = &set->classes[class_id];

    if (!class->changed)
        set->changed[set->n_changed++] = class_id;
    class->changed = TRUE;
}

void
rp_flow_set_begin(RpFlowSet *set, guint class_id, guint32 lane, guint64 bytes, gint64 now_ns)
{
    FlowClass *class = &set->classes[class_id];
    LaneFlow *flow = &set->lanes[lane];

    if (class->count == 0)
        class->served_bytes = 0;
    flow->end_bytes = served_bytes(set, class_id, now_ns) + (double)bytes;

    guint32 before = class->last;
    while (before != NO_LANE && set->lanes[before].end_bytes > flow->end_bytes)
        before = set->lanes[before].previous;
    flow->previous = before;
    flow->next = before == NO_LANE ? class->first : set->lanes[before].next;
    *(before == NO_LANE ? &class->first : &set->lanes[before].next) = lane;
    *(flow->next == NO_LANE ? &class->last : &set->lanes[flow->next].previous) = lane;

    class->count++;
    set->n_flows++;
    set->n_down += is_down(set, class_id);
    list_change(set, class_id);
}

/* When @left_bytes more are served at a rate that began at @since_ns. */
static gint64
end_ns(gint64 since_ns, double left_bytes, double bytes_per_ns)
{
    const double left_ns = ceil(left_bytes / bytes_per_ns - ROUNDING_NS);

    return since_ns + (gint64)CLAMP(left_ns, 0.0, MOST_NS);
}

static gint64
next_end_ns(const RpFlowGroup *group)
{
    return end_ns(group->served_at_ns, rp_bytes_minus(group->members[0].end, group->served),
                  group->bytes_per_ns);
}

/* Returns: a class of @group whose next flow is over, or NO_CLASS */
static guint32
class_that_ends(const RpFlowSet *set, const RpFlowGroup *group, gint64 now_ns)
{
    if (set->ending != NO_CLASS) {
        const FlowClass *class = &set->classes[set->ending];

        if (class->count > 0 &&
            end_ns(now_ns, set->lanes[class->first].end_bytes - class->served_bytes,
                   class->bytes_per_ns) <= now_ns)
            return set->ending;
    }
    return group->n > 0 && next_end_ns(group) <= now_ns ? group->members[0].class_id : NO_CLASS;
}

guint32
rp_flow_set_end(RpFlowSet *set, guint group_id, gint64 now_ns)
{
    const guint32 class_id = class_that_ends(set, &set->groups[group_id], now_ns);

    g_assert(class_id != NO_CLASS);
    FlowClass *class = &set->classes[class_id];
    const guint32 lane = class->first;

    leave_group(set, class_id, now_ns);
    class->first = set->lanes[lane].next;
    *(class->first == NO_LANE ? &class->last : &set->lanes[class->first].previous) = NO_LANE;
    class->count--;
    set->n_flows--;
    set->n_down -= is_down(set, class_id);
    set->ending = class_id;
    list_change(set, class_id);
    return lane;
}

gboolean
rp_flow_set_is_over(const RpFlowSet *set, guint group_id, gint64 now_ns)
{
    return class_that_ends(set, &set->groups[group_id], now_ns) != NO_CLASS;
}

/* With all devices at work an action takes its time; fewer get what the others leave. */
static double
share_of_power(const RpFlowSet *set, double alone_bytes_per_s)
{
    const guint k = rp_flow_kind_actions(&set->of);
    const guint n = set->groups[set->kinds[k].first_group].n_flows;

    return MIN(alone_bytes_per_s, (double)RP_NS_PER_S * set->gpus / MAX(n, 1));
}

/* The most that a flow of each kind gets: its part of a processor, or, of a copy up beside the
 * host's tasks or copies down, less than alone. */
static void
set_caps(RpFlowSet *set)
{
    const gboolean shared = set->processors > 0 && set->n_flows > set->processors;
    const gboolean beside =
        isfinite(set->beside_bytes_per_s) &&
        set->groups[set->kinds[rp_flow_kind_host(&set->of)].first_group].n_flows > 0;
    const double busy =
        isfinite(set->beside_down_bytes_per_s) ? MIN(1, (double)set->n_down / set->n_devices) : 0;

    for (guint k = 0; k < set->of.n_copies + RP_FLOW_OTHERS; k++) {
        const double alone = set->kinds[k].alone_bytes_per_s;

        set->kinds[k].cap_bytes_per_s = shared ? alone * set->processors / set->n_flows : alone;
        if (k == rp_flow_kind_actions(&set->of) && set->gpus > 0)
            set->kinds[k].cap_bytes_per_s = share_of_power(set, alone);
        if (k >= set->of.n_copies || k % 2 != RP_FLOW_UP || isinf(alone))
            continue;
        if (busy > 0)
            set->kinds[k].cap_bytes_per_s =
                (1 - busy) * alone + busy * MIN(alone, set->beside_down_bytes_per_s);
        if (beside)
            set->kinds[k].cap_bytes_per_s =
                MIN(set->kinds[k].cap_bytes_per_s, set->beside_bytes_per_s);
    }
}

static guint
kind_of_group(const RpFlowSet *set, guint32 group_id)
{
    guint k = set->of.n_copies + RP_FLOW_OTHERS - 1;

    while (set->kinds[k].first_group > group_id)
        k--;
    return k;
}

/* A group as a flow that only shares host memory: its root complexes have the same number of flows
 * each, and share it evenly. */
static RpFlow
flow_of_group(const RpFlowSet *set, guint32 group_id)
{
    const guint k = kind_of_group(set, group_id);
    const RpFlowKind *kind = &set->kinds[k];
    RpFlow flow = {
        .cap_bytes_per_s =
            MIN(kind->cap_bytes_per_s, kind->root_bytes_per_s / (1 + group_id - kind->first_group)),
        .weight = 1,
        .count = set->groups[group_id].n_flows,
    };

    while (flow.n_links < rp_flow_kind_touches(&set->of, k))
        flow.links[flow.n_links++] = RP_FLOW_HOST;
    if (kind->root_link > 0)
        flow.links[flow.n_links++] = kind->root_link;
    if (k == rp_flow_kind_host(&set->of) && set->optimizer_weight > 0) {
        flow.links[flow.n_links++] = RP_FLOW_TASKS;
        flow.weight = set->optimizer_weight / flow.count;
    }
    return flow;
}

/* Forgets the groups that have become empty. */
static void
drop_empty_groups(RpFlowSet *set, RpEventHeap *events, guint32 first_slot)
{
    guint n = 0;

    for (guint i = 0; i < set->n_listed; i++) {
        const guint32 g = set->listed[i];

        if (set->groups[g].n > 0) {
            set->listed[n++] = g;
            continue;
        }
        set->groups[g].listed = FALSE;
        rp_event_heap_remove(events, first_slot + g);
    }
    set->n_listed = n;
}

void
rp_flow_set_reshare(RpFlowSet *set, gint64 now_ns, RpEventHeap *events, guint32 first_slot)
{
    if (set->n_changed == 0)
        return;
    for (guint i = 0; i < set->n_changed; i++)
        leave_group(set, set->changed[i], now_ns);
    for (guint i = 0; i < set->n_changed; i++) {
        const guint32 c = set->changed[i];

        if (set->classes[c].count > 0)
            join_group(set, c, now_ns);
        set->classes[c].changed = FALSE;
    }
    set->n_changed = 0;
    set->ending = NO_CLASS;
    drop_empty_groups(set, events, first_slot);
    set_caps(set);
    for (guint i = 0; i < set->n_listed; i++)
        set->flows[i] = flow_of_group(set, set->listed[i]);
    rp_bandwidth_share(set->bandwidth, set->flows, set->n_listed, set->rates);
    for (guint i = 0; i < set->n_listed; i++) {
        RpFlowGroup *group = &set->groups[set->listed[i]];
        const double bytes_per_ns = set->rates[i] / (double)RP_NS_PER_S;

        if (!group->changed && bytes_per_ns == group->bytes_per_ns)
            continue;
        if (bytes_per_ns != group->bytes_per_ns)
            rp_flow_group_set_rate(group, bytes_per_ns, now_ns);
        group->changed = FALSE;
        rp_event_heap_set(events, first_slot + set->listed[i], next_end_ns(group));
    }
}
