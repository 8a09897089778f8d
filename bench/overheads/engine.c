/*
 * The real engine and the real CUDA backend, on a model so small that only their own cost is left:
 * one block a stage, 16 tokens a micro-batch.
 *
 *   dispatch   |wait|record|launch|record| ...     host, per task of a device
 *   handover   last compute action ... norm ... steps ... upload ... first compute action
 */
#include "bench/overheads/overheads.h"

#define SERIES 15
#define ITERATIONS 10 /* iterations of a series */

/* ---- dispatch ---- */

typedef struct {
    gint64 issue_ns; /* processor time of the threads that issue */
    gint64 wall_ns;
    gint64 launch_ns; /* time of the first launch, in launches; 0 if they are not timed */
    guint64 tasks;    /* tasks of devices */
} Costs;

static Costs
read_costs(const RpOverheadsModel *tiny)
{
    const RpEngineCost cost = rp_trainer_cost(tiny->trainer);
    Costs costs = {.issue_ns = cost.worker_cpu_ns,
                   .wall_ns = rp_clock_ns(),
                   .launch_ns = atomic_load(&rp_overheads_watch.launch_ns),
                   .tasks = cost.tasks - atomic_load(&rp_overheads_watch.n_host_tasks)};

    for (guint lane = 0; lane < RP_HOST_LANES; lane++)
        costs.issue_ns -= atomic_load(&rp_overheads_watch.host_cpu_ns[lane]);
    return costs;
}

/* Per task of a device, us: one value a series. */
typedef struct {
    GArray *issue, *wall, *rest;
    guint64 tasks; /* tasks of a step */
} Series;

static gboolean
run_series(RpOverheadsModel *tiny, Series *series, GError **error)
{
    for (guint i = 0; i < SERIES; i++) {
        const Costs before = read_costs(tiny);

        if (!rp_overheads_steps_apart(tiny, ITERATIONS, error))
            return FALSE;
        const Costs after = read_costs(tiny);
        const double tasks = (double)(after.tasks - before.tasks);
        const double issue_us = (double)(after.issue_ns - before.issue_ns) / 1e3;
        const double launch_us = (double)(after.launch_ns - before.launch_ns) / 1e3;

        series->tasks = (after.tasks - before.tasks) / ITERATIONS;
        rp_overheads_note(series->issue, issue_us / tasks);
        rp_overheads_note(series->rest, (issue_us - launch_us) / tasks);
        rp_overheads_note(series->wall, (double)(after.wall_ns - before.wall_ns) / 1e3 / tasks);
    }
    return TRUE;
}

static char *
name_row(guint gpus, const char *what)
{
    return g_strdup_printf("%u GPU%s: %s", gpus, gpus == 1 ? "" : "s", what);
}

static void
add_op(const RpOverheads *overheads, guint gpus, RpOverheadsOp op)
{
    g_autoptr(GArray) values = rp_overheads_values();
    g_autofree char *name = name_row(gpus, rp_overheads_op_names[op]);
    g_autofree char *remark = g_strdup_printf(
        "%.1f a step", (double)atomic_load(&rp_overheads_watch.n[op]) / (SERIES * ITERATIONS));
    const guint n = MIN(atomic_load(&rp_overheads_watch.n[op]), RP_OVERHEADS_MOST_SAMPLES);

    for (guint i = 0; i < n; i++)
        rp_overheads_note(values, (double)rp_overheads_watch.samples[op][i] / 1e3);
    rp_overheads_add(overheads, name, "us", values, remark);
}

static void
add_series(const RpOverheads *overheads, const RpOverheadsRun *options, Series *series)
{
    g_autofree char *whole = name_row(options->gpus, "a task, processor time");
    g_autofree char *wall = name_row(options->gpus, "a task, time that passes");
    g_autofree char *rest = name_row(options->gpus, "a task, less launching its kernels");
    g_autofree char *remark = g_strdup_printf(
        "figure to hold: 20; %" G_GUINT64_FORMAT " device tasks a step", series->tasks);

    if (options->timing) {
        rp_overheads_add(overheads, rest, "us/task", series->rest, "the next four rows are timed");
        for (RpOverheadsOp op = 0; op < N_OPS; op++)
            add_op(overheads, options->gpus, op);
    } else {
        rp_overheads_add(overheads, whole, "us/task", series->issue, remark);
        rp_overheads_add(overheads, wall, "us/task", series->wall,
                         "steps one at a time; the devices' time is in it");
    }
}

static gboolean
measure_dispatch(const RpOverheads *overheads, guint gpus, gboolean timing, GError **error)
{
    const RpOverheadsRun options = {.gpus = gpus, .timing = timing};
    g_autoptr(GArray) issue = rp_overheads_values();
    g_autoptr(GArray) wall = rp_overheads_values();
    g_autoptr(GArray) rest = rp_overheads_values();
    Series series = {.issue = issue, .wall = wall, .rest = rest};
    RpOverheadsModel tiny;
    gboolean done = rp_overheads_open(&tiny, &options, error);

    for (RpOverheadsOp op = 0; op < N_OPS; op++) /* the warm-up's */
        atomic_store(&rp_overheads_watch.n[op], 0);
    done = done && run_series(&tiny, &series, error);
    if (done)
        add_series(overheads, &options, &series);
    rp_overheads_close(&tiny);
    return done;
}

gboolean
rp_overheads_dispatch(const RpOverheads *overheads, GError **error)
{
    const guint all = overheads->gpus;

    return measure_dispatch(overheads, 1, FALSE, error) &&
           measure_dispatch(overheads, 1, TRUE, error) &&
           (all < 2 || (measure_dispatch(overheads, all, FALSE, error) &&
                        measure_dispatch(overheads, all, TRUE, error)));
}

/* ---- hand-over ---- */

#define TURNS 60 /* from one iteration to the next */

/* Times of one iteration in the trace, ns; -1: not seen. */
typedef struct {
    gint64 compute_start, compute_end;
    gint64 upload_start; /* the first */
    gint64 norm_end;
    gint64 barrier_end;
    gint64 ready; /* the last step of a layer of which that upload reads */
} Turn;

/* Whether the first upload of an iteration reads @layer. */
static gboolean
is_first_to_go(guint layer)
{
    const RpChunks *chunks = &rp_plan_stage(rp_overheads_watch.plan, 0)->parameters;

    for (guint i = 0; chunks->n_chunks > 0 && i < chunks->first_segment[1]; i++)
        if (chunks->segments[i].layer == layer)
            return TRUE;
    return FALSE;
}

static gint64
earliest(gint64 a, gint64 b)
{
    return a < 0 ? b : MIN(a, b);
}

static void
note_record(Turn *turn, const RpTraceRecord *record)
{
    if (record->kind <= RP_TASK_OVERLAP) {
        turn->compute_start = earliest(turn->compute_start, record->start_ns);
        turn->compute_end = MAX(turn->compute_end, record->end_ns);
    } else if (record->kind == RP_TASK_PARAMETER_UPLOAD) {
        turn->upload_start = earliest(turn->upload_start, record->start_ns);
    } else if (record->kind == RP_TASK_NORM) {
        turn->norm_end = record->end_ns;
    } else if (record->kind == RP_TASK_BARRIER) {
        turn->barrier_end = MAX(turn->barrier_end, record->end_ns);
    } else if (record->kind == RP_TASK_OPTIMIZER_STEP && is_first_to_go(record->layer)) {
        turn->ready = MAX(turn->ready, record->end_ns);
    }
}

/* (element-type Turn), by iteration */
static GArray *
read_turns(const RpTrace *trace)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    const Turn unseen = {-1, -1, -1, -1, -1, -1};
    GArray *turns = g_array_new(FALSE, FALSE, sizeof(Turn));

    for (gsize i = 0; i < rp_trace_n_records(trace); i++) {
        while (turns->len <= records[i].iteration)
            g_array_append_val(turns, unseen);
        note_record(&g_array_index(turns, Turn, records[i].iteration), &records[i]);
    }
    return turns;
}

static void
add_turns(const RpOverheads *overheads, const RpOverheadsRun *options, const RpTrace *trace)
{
    const gboolean blocking = options->consistency == RP_CONSISTENCY_BLOCKING;
    const char *mode = options->async ? "async" : "sync";
    const char *protocol = blocking ? "blocking" : "events";
    g_autoptr(GArray) turns = read_turns(trace);
    g_autoptr(GArray) idle_us = rp_overheads_values();
    g_autoptr(GArray) handover_us = rp_overheads_values();
    g_autoptr(GArray) update_us = rp_overheads_values();
    g_autofree char *idle =
        g_strdup_printf("%s, %s: last compute action to the next first one", mode, protocol);
    g_autofree char *handover = g_strdup_printf("%s, %s: %s to upload", mode, protocol,
                                                blocking ? "barrier" : "layer's step");
    g_autofree char *update = g_strdup_printf("%s, %s: norm known to upload", mode, protocol);

    /* the first after the warm-up begins from a standstill, and the last ends in one */
    for (guint t = RP_OVERHEADS_WARM_UP + 2; t + 1 < turns->len; t++) {
        const Turn *turn = &g_array_index(turns, Turn, t);
        const Turn *next = &g_array_index(turns, Turn, t + 1);
        const gint64 ready = blocking ? turn->barrier_end : turn->ready;

        if (turn->compute_end >= 0 && next->compute_start >= 0)
            rp_overheads_note(idle_us, (double)(next->compute_start - turn->compute_end) / 1e3);
        if (ready >= 0 && next->upload_start >= 0)
            rp_overheads_note(handover_us, (double)(next->upload_start - ready) / 1e3);
        if (turn->norm_end >= 0 && next->upload_start >= 0)
            rp_overheads_note(update_us, (double)(next->upload_start - turn->norm_end) / 1e3);
    }
    rp_overheads_add(overheads, idle, "us", idle_us, NULL);
    if (options->async)
        return; /* nothing waits for this iteration's update */
    rp_overheads_add(overheads, handover, "us", handover_us,
                     "host's clock to the device's: within the clocks' error");
    rp_overheads_add(overheads, update, "us", update_us,
                     blocking ? "all layers' copies and steps" : "steps of the layers it reads");
}

static gboolean
measure_turns(const RpOverheads *overheads, gboolean async, RpConsistency consistency,
              GError **error)
{
    const RpOverheadsRun options = {
        .gpus = 1, .async = async, .consistency = consistency, .keep_trace = TRUE};
    RpOverheadsModel tiny;
    gboolean done = rp_overheads_open(&tiny, &options, error);

    for (guint i = 0; done && i < TURNS; i++)
        done = rp_overheads_step(&tiny, error);
    done = done && rp_trainer_flush(tiny.trainer, error);
    if (done) {
        g_autoptr(RpTrace) trace = rp_trainer_steal_trace(tiny.trainer);

        add_turns(overheads, &options, trace);
    }
    rp_overheads_close(&tiny);
    return done;
}

gboolean
rp_overheads_handover(const RpOverheads *overheads, GError **error)
{
    for (guint async = 0; async <= 1; async++)
        for (RpConsistency c = RP_CONSISTENCY_EVENTS; c <= RP_CONSISTENCY_BLOCKING; c++)
            if (!measure_turns(overheads, async == 1, c, error))
                return FALSE;
    return TRUE;
}
