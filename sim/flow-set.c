#include "sim/flow-set.h"

#include <math.h>

#include "core/base/units.h"
#include "sim/bandwidth.h"

#define NO_LANE G_MAXUINT32

/* What rounding may add to an exact number of nanoseconds before it counts as one more. */
/* A flow that takes longer ends then: longer than any run may take (cli/options.c), and far from
 * the end of 64 bits. */
#define MOST_NS 0x1p61
#define ROUNDING_NS 1e-3

typedef struct {
    double alone_bytes_per_s; /* own limit of a flow that has a processor to itself */
    double bytes_per_ns;      /* of each flow */
    double served_bytes;      /* by each flow of the class, up to served_at_ns */
    gint64 served_at_ns;
    guint32 first; /* lane of the flow that is over next */
    guint32 last;
    gboolean changed; /* flows have begun or ended */
} FlowClass;

/* One flow per lane, linked within its class in the order in which they are over. */
typedef struct {
    double end_bytes; /* over when the class has served so many */
    guint32 previous;
    guint32 next;
} LaneFlow;

struct _RpFlowSet {
    guint n_classes;
    guint host_class;
    guint gpus_per_root;
    guint processors;          /* 0 = not shared */
    double optimizer_weight;   /* 0 = host tasks are flows like others */
    double beside_bytes_per_s; /* of a copy up while a host task runs; INFINITY = as alone */
    RpBandwidth *bandwidth;
    RpFlow *flows; /* per class: its links and number of flows */
    double *rates; /* per class, bytes/s */
    FlowClass *classes;
    LaneFlow *lanes;
    gboolean changed;
};

static double
limit(double bytes_per_s)
{
    return bytes_per_s > 0 ? bytes_per_s : INFINITY;
}

/* Links and limits of every class. */
static void
init_classes(RpFlowSet *set, const RpMachine *machine, double root_bytes_per_s)
{
    const RpLinks *links = &machine->links;
    const guint host = set->host_class, tasks = host + 1;
    g_autofree double *capacities = g_new(double, tasks + 1);

    for (guint c = 0; c < set->n_classes; c++) {
        set->classes[c].first = NO_LANE;
        set->classes[c].last = NO_LANE;
        set->classes[c].alone_bytes_per_s = RP_NS_PER_S;
        set->flows[c].weight = 1;
    }
    for (guint c = 0; c <= host; c++) {
        RpFlow *flow = &set->flows[c];

        flow->links[flow->n_links++] = host;
        if (c != host)
            flow->links[flow->n_links++] = c;
        else if (set->optimizer_weight > 0)
            flow->links[flow->n_links++] = tasks;
        set->classes[c].alone_bytes_per_s = limit(c == host ? machine->optimizer_bytes_per_s
                                                  : c % 2 == RP_FLOW_UP ? links->h2d_bytes_per_s
                                                                        : links->d2h_bytes_per_s);
        capacities[c] = root_bytes_per_s;
    }
    capacities[host] = limit(links->host_bytes_per_s);
    capacities[tasks] = set->classes[host].alone_bytes_per_s;
    set->bandwidth = rp_bandwidth_new(capacities, tasks + 1);
    for (guint c = 0; c < set->n_classes; c++) {
        double *alone = &set->classes[c].alone_bytes_per_s;

        /* nothing is oversubscribed at this point: from here on a class's own cap says it all */
        if (c <= host)
            *alone = MIN(*alone, MIN(capacities[c], capacities[host]));
        set->flows[c].cap_bytes_per_s = *alone;
    }
}

RpFlowSet *
rp_flow_set_new(const RpMachine *machine, guint gpus, guint n_lanes)
{
    static const RpMachine no_limits = {0};
    RpFlowSet *set = g_new0(RpFlowSet, 1);

    if (machine == NULL)
        machine = &no_limits;
    const RpLinks *links = &machine->links;
    const gboolean has_roots = links->gpus_per_root > 0 && links->root_bytes_per_s > 0;
    set->gpus_per_root = MAX(has_roots ? links->gpus_per_root : gpus, 1);
    const guint n_roots = (gpus + set->gpus_per_root - 1) / set->gpus_per_root;

    /* class and link 2 root + direction, then the host's; a class of actions, without a link */
    set->processors = machine->processors;
    set->optimizer_weight = set->processors > 0 ? 0 : machine->optimizer_weight;
    set->beside_bytes_per_s =
        set->processors > 0 ? INFINITY : limit(machine->beside_optimizer_bytes_per_s);
    set->host_class = n_roots * 2;
    set->n_classes = set->host_class + (set->processors > 0 ? 2 : 1);
    set->flows = g_new0(RpFlow, set->n_classes);
    set->rates = g_new0(double, set->n_classes);
    set->classes = g_new0(FlowClass, set->n_classes);
    set->lanes = g_new0(LaneFlow, n_lanes);
    init_classes(set, machine, has_roots ? links->root_bytes_per_s : INFINITY);
    return set;
}

void
rp_flow_set_free(RpFlowSet *set)
{
    if (set == NULL)
        return;
    rp_bandwidth_free(set->bandwidth);
    g_free(set->flows);
    g_free(set->rates);
    g_free(set->classes);
    g_free(set->lanes);
    g_free(set);
}

guint
rp_flow_set_n_classes(const RpFlowSet *set)
{
    return set->n_classes;
}

guint
rp_flow_set_copy_class(const RpFlowSet *set, guint device, RpFlowDirection direction)
{
    return device / set->gpus_per_root * 2 + direction;
}

guint
rp_flow_set_host_class(const RpFlowSet *set)
{
    return set->host_class;
}

guint
rp_flow_set_action_class(const RpFlowSet *set)
{
    g_assert(set->processors > 0);
    return set->host_class + 1;
}

gboolean
rp_flow_set_unlimited(const RpFlowSet *set, guint class_id)
{
    return isinf(set->flows[class_id].cap_bytes_per_s);
}

static void
serve_until(FlowClass *class, gint64 now_ns)
{
    class->served_bytes += class->bytes_per_ns * (double)(now_ns - class->served_at_ns);
    class->served_at_ns = now_ns;
}

void
rp_flow_set_begin(RpFlowSet *set, guint class_id, guint32 lane, guint64 bytes, gint64 now_ns)
{
    FlowClass *class = &set->classes[class_id];
    LaneFlow *flow = &set->lanes[lane];

    if (set->flows[class_id].count == 0) {
        /* counts from 0 as often as it can, for the sake of exactness */
        class->served_bytes = 0;
        class->served_at_ns = now_ns;
    }
    serve_until(class, now_ns);
    flow->end_bytes = class->served_bytes + (double)bytes;

    guint32 before = class->last;
    while (before != NO_LANE && set->lanes[before].end_bytes > flow->end_bytes)
        before = set->lanes[before].previous;
    flow->previous = before;
    flow->next = before == NO_LANE ? class->first : set->lanes[before].next;
    *(before == NO_LANE ? &class->first : &set->lanes[before].next) = lane;
    *(flow->next == NO_LANE ? &class->last : &set->lanes[flow->next].previous) = lane;

    set->flows[class_id].count++;
    class->changed = TRUE;
    set->changed = TRUE;
}

guint32
rp_flow_set_end(RpFlowSet *set, guint class_id, gint64 now_ns)
{
    FlowClass *class = &set->classes[class_id];
    const guint32 lane = class->first;

    g_assert(lane != NO_LANE);
    serve_until(class, now_ns);
    class->first = set->lanes[lane].next;
    *(class->first == NO_LANE ? &class->last : &set->lanes[class->first].previous) = NO_LANE;

    set->flows[class_id].count--;
    class->changed = TRUE;
    set->changed = TRUE;
    return lane;
}

static gint64
next_end_ns(const RpFlowSet *set, const FlowClass *class)
{
    const double left_bytes = set->lanes[class->first].end_bytes - class->served_bytes;
    const double left_ns = ceil(left_bytes / class->bytes_per_ns - ROUNDING_NS);

    return class->served_at_ns + (gint64)CLAMP(left_ns, 0.0, MOST_NS);
}

gboolean
rp_flow_set_is_over(const RpFlowSet *set, guint class_id, gint64 now_ns)
{
    const FlowClass *class = &set->classes[class_id];

    return class->first != NO_LANE && next_end_ns(set, class) <= now_ns;
}

/* Gives each flow its part of a processor. */
static void
share_processors(RpFlowSet *set)
{
    guint threads = 0;

    for (guint c = 0; c < set->n_classes; c++)
        threads += set->flows[c].count;
    for (guint c = 0; c < set->n_classes; c++) {
        const double alone = set->classes[c].alone_bytes_per_s;

        set->flows[c].cap_bytes_per_s =
            threads > set->processors ? alone * set->processors / threads : alone;
    }
}

/* Slows copies up while the host's tasks keep its memory busy. */
static void
slow_copies_up(RpFlowSet *set)
{
    const gboolean busy = set->flows[set->host_class].count > 0;

    for (guint c = RP_FLOW_UP; c < set->host_class; c += 2) {
        const double alone = set->classes[c].alone_bytes_per_s;

        if (isfinite(alone))
            set->flows[c].cap_bytes_per_s = busy ? MIN(alone, set->beside_bytes_per_s) : alone;
    }
}

void
rp_flow_set_reshare(RpFlowSet *set, gint64 now_ns, RpEventHeap *events, guint32 first_slot)
{
    if (!set->changed)
        return;
    if (set->processors > 0)
        share_processors(set);
    if (isfinite(set->beside_bytes_per_s))
        slow_copies_up(set);
    if (set->optimizer_weight > 0)
        set->flows[set->host_class].weight =
            set->optimizer_weight / MAX(set->flows[set->host_class].count, 1);
    rp_bandwidth_share(set->bandwidth, set->flows, set->n_classes, set->rates);
    for (guint c = 0; c < set->n_classes; c++) {
        FlowClass *class = &set->classes[c];
        const double bytes_per_ns = set->rates[c] / (double)RP_NS_PER_S;

        if (!class->changed && bytes_per_ns == class->bytes_per_ns)
            continue;
        serve_until(class, now_ns);
        class->bytes_per_ns = bytes_per_ns;
        class->changed = FALSE;
        if (class->first == NO_LANE)
            rp_event_heap_remove(events, first_slot + c);
        else
            rp_event_heap_set(events, first_slot + c, next_end_ns(set, class));
    }
    set->changed = FALSE;
}
