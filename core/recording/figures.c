/* One sweep over the edges of a device's work: which kinds run between two of them. */
#include "core/recording/recording.h"

typedef struct {
    gint64 at_ns;
    gint8 kind;
    gint8 change; /* +1: starts, -1: ends */
} Edge;

static gint
compare_edges(gconstpointer a, gconstpointer b)
{
    const gint64 first = ((const Edge *)a)->at_ns, second = ((const Edge *)b)->at_ns;

    return (first > second) - (first < second);
}

/* Starts and ends of all that takes time in the window, in the order of time. */
static GArray *
edges_of(const RpRecordedDevice *device, const RpRecordedWindow *window)
{
    GArray *edges = g_array_new(FALSE, FALSE, sizeof(Edge));

    for (guint i = 0; i < device->spans->len; i++) {
        const RpWorkSpan *span = &g_array_index(device->spans, RpWorkSpan, i);
        const Edge pair[] = {{MAX(span->start_ns, window->start_ns), (gint8)span->kind, 1},
                             {MIN(span->end_ns, window->end_ns), (gint8)span->kind, -1}};

        if (pair[0].at_ns < pair[1].at_ns)
            g_array_append_vals(edges, pair, G_N_ELEMENTS(pair));
    }
    g_array_sort(edges, compare_edges);
    return edges;
}

/* Where time belongs in which some kinds run, but no compute. */
static gint64 *
part_of(RpRecordedFigures *figures, const guint *running)
{
    if (running[RP_WORK_COLLECTIVE] > 0)
        return running[RP_WORK_COPY] > 0 ? &figures->both_ns : &figures->only_collectives_ns;
    return running[RP_WORK_COPY] > 0 ? &figures->only_copies_ns : NULL;
}

/* Counts @length_ns in which @running runs. @gap_ns: idle time of which only what follows says where it was */
static void
count(RpRecordedFigures *figures, const guint *running, gint64 length_ns, gint64 *gap_ns)
{
    for (guint kind = 0; kind < RP_N_WORK_KINDS; kind++)
        if (running[kind] > 0)
            figures->total_ns[kind] += length_ns;
    gint64 *part = running[RP_WORK_COMPUTE] > 0 ? &figures->busy_ns : part_of(figures, running);

    *(part != NULL ? part : gap_ns) += length_ns;
}

RpRecordedFigures
rp_recorded_figures(const RpRecordedDevice *device, const RpRecordedWindow *window)
{
    g_autoptr(GArray) edges = edges_of(device, window);
    RpRecordedFigures figures = {.window_ns = window->end_ns - window->start_ns,
                                 .events = edges->len / 2};
    guint running[RP_N_WORK_KINDS] = {0};
    gint64 from_ns = window->start_ns, gap_ns = 0;

    for (guint i = 0; i < edges->len; i++) {
        const Edge *edge = &g_array_index(edges, Edge, i);

        count(&figures, running, edge->at_ns - from_ns, &gap_ns);
        *(i == 0 ? &figures.idle_start_ns : &figures.idle_between_ns) += gap_ns;
        gap_ns = 0;
        from_ns = edge->at_ns;
        running[edge->kind] += (guint)edge->change;
    }
    *(edges->len == 0 ? &figures.idle_start_ns : &figures.idle_end_ns) += window->end_ns - from_ns;
    return figures;
}

void
rp_recorded_figures_add(RpRecordedFigures *sum, const RpRecordedFigures *figures)
{
    sum->window_ns += figures->window_ns;
    sum->busy_ns += figures->busy_ns;
    for (guint kind = 0; kind < RP_N_WORK_KINDS; kind++)
        sum->total_ns[kind] += figures->total_ns[kind];
    sum->only_collectives_ns += figures->only_collectives_ns;
    sum->only_copies_ns += figures->only_copies_ns;
    sum->both_ns += figures->both_ns;
    sum->idle_start_ns += figures->idle_start_ns;
    sum->idle_between_ns += figures->idle_between_ns;
    sum->idle_end_ns += figures->idle_end_ns;
    sum->events += figures->events;
}

double
rp_recorded_share(const RpRecordedFigures *figures, gint64 part_ns)
{
    return figures->window_ns > 0 ? (double)part_ns / (double)figures->window_ns : 0;
}
