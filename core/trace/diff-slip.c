/**
 * Slips: how much of a late start a task's predecessors (needs.h) do not explain. Pairs lie sorted by
 * their end in the first trace.
 */
#include "core/trace/diff-private.h"
#include "core/trace/needs.h"

typedef struct {
    RpTraceDiff *diff;
    RpTraceNeeds *needs;  /* needs of the pairs' first records */
    GArray *ends;         /* RpTraceEnd: of the pairs in the first trace */
    gint64 *lane_ends[2]; /* by pair: end of the task before it on its lane; G_MININT64 = none */
    gint64 hop_ns;        /* between devices, where no transfers are */
} Search;

/* When a task was due, on both sides, by the predecessors seen so far. */
typedef struct {
    const Search *search;
    const RpTaskPair *pair;
    gint64 due_ns[RP_N_TRACE_SIDES];
    gboolean any;
} Due;

static const RpTaskPair *
pair_at(const Search *search, guint i)
{
    return &g_array_index(search->diff->pairs, RpTaskPair, i);
}

/* ---- due times ---- */

static void
wait_for(Due *due, RpTraceSide side, gint64 end_ns)
{
    due->due_ns[side] = due->any ? MAX(due->due_ns[side], end_ns) : end_ns;
}

/* A predecessor that both have. */
static void
add_predecessor(const Search *search, Due *due, guint predecessor)
{
    const RpTaskPair *before = pair_at(search, predecessor);
    const gint64 lag_ns = rp_trace_lag_ns(search->hop_ns, before->record[0], due->pair->record[0]);

    for (guint side = 0; side < RP_N_TRACE_SIDES; side++)
        wait_for(due, side, before->record[side]->end_ns + lag_ns);
    due->any = TRUE;
}

static void
add_needed(guint maker, gpointer user_data)
{
    Due *due = user_data;

    add_predecessor(due->search, due, maker);
}

/* Adds the tasks that ended when this one started: those of its device and the host, or (@far) of
 * other devices. One that ended later than this started in the second trace was not waited for. */
static gboolean
add_gates(const Search *search, Due *due, gboolean far)
{
    const RpTraceRecord *task = due->pair->record[0];
    const RpTrace *trace = search->diff->traces[0];
    guint32 device = rp_trace_lane_device(trace, task->lane);
    const guint first = rp_trace_ends_from(search->ends, task->start_ns);
    gboolean found = FALSE;

    for (guint i = 0; i < RP_TRACE_MOST_AT_ONCE && first + i < search->ends->len; i++) {
        const RpTraceEnd *end = &g_array_index(search->ends, RpTraceEnd, first + i);
        const RpTaskPair *gate = pair_at(search, end->task);
        guint32 other = rp_trace_lane_device(trace, gate->record[0]->lane);
        gboolean near = other == device || other == RP_NONE || device == RP_NONE;

        if (end->end_ns != task->start_ns)
            break;
        if (gate == due->pair || near == far ||
            gate->record[1]->end_ns > due->pair->record[1]->start_ns)
            continue;
        add_predecessor(search, due, end->task);
        found = TRUE;
    }
    return found;
}

static gint64
slip_of(const Search *search, guint i)
{
    Due due = {.search = search, .pair = pair_at(search, i)};
    const RpTraceRecord *const *task = due.pair->record;

    if (search->lane_ends[0][i] != G_MININT64 && search->lane_ends[1][i] != G_MININT64) {
        for (guint side = 0; side < RP_N_TRACE_SIDES; side++)
            wait_for(&due, side, search->lane_ends[side][i]);
        due.any = TRUE;
    }
    rp_trace_needs_visit(search->needs, i, add_needed, &due);
    if (rp_trace_origin(search->diff->traces[0]) == RP_TRACE_PREDICTED &&
        due.due_ns[0] < task[0]->start_ns && !add_gates(search, &due, FALSE))
        add_gates(search, &due, TRUE);
    return (task[1]->start_ns - due.due_ns[1]) - (task[0]->start_ns - due.due_ns[0]);
}

/* ---- uploads that nobody waited for ---- */

/* A value that an action needs and that is uploaded. */
typedef struct {
    RpValueKind kind;
    guint32 number, place;
    gint64 end_ns; /* end of the last upload of it, in the second trace */
} Needed;

/* Calls for each upload of needed values: raises @delays of it to @delay_ns, or finds its end. */
static void
visit_uploads(const Search *search, const RpTraceRecord *action, Needed *needed, gint64 *delays,
              gint64 delay_ns)
{
    const RpTaskValue wanted = {needed->kind, action->iteration, needed->number, needed->place, 0};
    guint n;
    const RpTaskValue *values = rp_trace_needs_find(search->needs, &wanted, &n);

    for (guint i = 0; i < n; i++) {
        const guint maker = values[i].maker;
        const RpTaskPair *upload = pair_at(search, maker);

        if (upload->record[0]->task > action->task)
            continue;
        if (delays != NULL)
            delays[maker] = MAX(delays[maker], delay_ns);
        else
            needed->end_ns = MAX(needed->end_ns, upload->record[1]->end_ns);
    }
}

/* Time by which each kind of upload alone held up the action: behind the uploads before it in its
 * lane, and behind the others. */
static void
note_delays(const Search *search, guint action, gint64 *delays)
{
    const RpTraceRecord *task = pair_at(search, action)->record[0];
    Needed needed[] = {{RP_VALUE_FORWARD_INPUT, task->micro_batch, task->stage, G_MININT64},
                       {RP_VALUE_BACKWARD_INPUT, task->micro_batch, task->stage, G_MININT64},
                       {RP_VALUE_PARAMETERS, task->round, task->stage, G_MININT64}};

    for (guint n = 0; n < G_N_ELEMENTS(needed); n++)
        visit_uploads(search, task, &needed[n], NULL, 0);
    for (guint n = 0; n < G_N_ELEMENTS(needed); n++) {
        gint64 others_ns = search->lane_ends[1][action];

        if (needed[n].end_ns == G_MININT64)
            continue;
        for (guint o = 0; o < G_N_ELEMENTS(needed); o++)
            others_ns = o == n ? others_ns : MAX(others_ns, needed[o].end_ns);
        visit_uploads(search, task, &needed[n], delays,
                      others_ns == G_MININT64 ? G_MAXINT64 : MAX(needed[n].end_ns - others_ns, 0));
    }
}

/* An upload that starts late has slipped by no more than somebody had to wait for it. Most begin
 * late because nothing hurries: for lack of space on the device, or of a call for the iteration. */
static void
forgive_early_uploads(const Search *search)
{
    const guint n = search->diff->pairs->len;
    g_autofree gint64 *delays = g_new(gint64, (gsize)n + 1);

    for (guint i = 0; i < n; i++)
        delays[i] = -1; /* nobody uses it */
    for (guint i = 0; i < n; i++)
        if (pair_at(search, i)->record[0]->kind <= RP_TASK_INPUT_GRADIENT)
            note_delays(search, i, delays);
    for (guint i = 0; i < n; i++) {
        RpTaskPair *pair = &g_array_index(search->diff->pairs, RpTaskPair, i);

        if (delays[i] >= 0)
            pair->slip_ns = MIN(pair->slip_ns, delays[i]);
    }
}

/* ---- all of them ---- */

/* By task of a trace's part: the end of the task before it on its lane. */
static gint64 *
ends_before(const RpTrace *trace)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    gsize n = rp_trace_n_records(trace);
    gsize n_lanes = (gsize)rp_trace_gpus(trace) * RP_LANES_PER_DEVICE + RP_HOST_LANES;
    gint64 *ends = g_new(gint64, n + 1);
    g_autofree gint64 *last = g_new(gint64, n_lanes);

    for (gsize lane = 0; lane < n_lanes; lane++)
        last[lane] = G_MININT64;
    for (gsize i = 0; i < n; i++) {
        ends[i] = last[records[i].lane];
        last[records[i].lane] = records[i].end_ns;
    }
    return ends;
}

void
rp_trace_diff_find_slips(RpTraceDiff *diff)
{
    guint n = diff->pairs->len;
    g_autofree const RpTraceRecord **records = g_new(const RpTraceRecord *, (gsize)n + 1);
    Search search = {
        .diff = diff,
        .hop_ns = rp_trace_hop_ns(diff->traces[0]),
    };

    for (guint side = 0; side < RP_N_TRACE_SIDES; side++) {
        g_autofree gint64 *ends = ends_before(diff->traces[side]);
        const RpTraceRecord *all = rp_trace_records(diff->traces[side]);

        search.lane_ends[side] = g_new(gint64, (gsize)n + 1);
        for (guint i = 0; i < n; i++)
            search.lane_ends[side][i] = ends[pair_at(&search, i)->record[side] - all];
    }
    for (guint i = 0; i < n; i++)
        records[i] = pair_at(&search, i)->record[0];
    search.ends = rp_trace_ends_new(records, n);
    search.needs = rp_trace_needs_new(diff->traces[0], records, n);
    for (guint i = 0; i < n; i++)
        g_array_index(diff->pairs, RpTaskPair, i).slip_ns = slip_of(&search, i);
    forgive_early_uploads(&search);
    rp_trace_needs_free(search.needs);
    g_array_unref(search.ends);
    g_free(search.lane_ends[0]);
    g_free(search.lane_ends[1]);
}
