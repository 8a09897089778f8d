/**
 * PyTorch pipeline CSV.
 *
 *   compact          timed, F = 1, B = 2
 *   0F0,0F1,0B0      0F0,0F1,,0B0
 *   1F0,1B0          ,1F0,1B0,,        1B0 takes the columns 2 and 3
 */
#include "core/base/quote.h"
#include "core/base/units.h"
#include "core/formats/private.h"

/* A file cannot hold every trace: one that was read may lack a number or have one out of range. */
static gboolean
is_action(guint8 kind, guint32 stage, guint32 micro_batch, guint32 backward_stage,
          guint32 backward_micro_batch)
{
    if (kind > RP_TASK_OVERLAP || MAX(stage, micro_batch) > RP_PYTORCH_MAX_INDEX)
        return FALSE;
    return kind != RP_TASK_OVERLAP ||
           MAX(backward_stage, backward_micro_batch) <= RP_PYTORCH_MAX_INDEX;
}

static void
append_action(RpOrders *orders, guint rank, guint8 kind, guint32 stage, guint32 micro_batch,
              guint32 backward_stage, guint32 backward_micro_batch)
{
    gboolean overlap = kind == RP_TASK_OVERLAP;
    RpAction action = {
        .stage = stage,
        .micro_batch = micro_batch,
        .backward_stage = overlap ? backward_stage : RP_NONE,
        .backward_micro_batch = overlap ? backward_micro_batch : RP_NONE,
        .kind = kind, /* kinds of actions are the first kinds of tasks */
    };

    rp_orders_append(orders, rank, &action, orders->ranks[rank]->len + 1);
}

RpOrders *
rp_orders_from_plan(const RpPlan *plan, guint iteration)
{
    RpOrders *orders = rp_orders_new("plan", rp_plan_gpus(plan));

    for (RpTaskId id = rp_plan_first_id(plan); id < rp_plan_end_id(plan); id++) {
        const RpTask *task = rp_plan_task(plan, id);
        guint32 rank = rp_plan_lane_device(plan, task->lane);

        if (task->iteration == iteration && rank != RP_NONE &&
            is_action(task->kind, task->stage, task->micro_batch, task->layer, task->chunk))
            append_action(orders, rank, task->kind, task->stage, task->micro_batch, task->layer,
                          task->chunk);
    }
    return orders;
}

static gboolean
is_action_of(const RpTrace *trace, const RpTraceRecord *record, guint iteration)
{
    return record->iteration == iteration && rp_trace_lane_device(trace, record->lane) != RP_NONE &&
           is_action(record->kind, record->stage, record->micro_batch, record->layer,
                     record->chunk);
}

RpOrders *
rp_orders_from_trace(const RpTrace *trace, guint iteration)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    RpOrders *orders = rp_orders_new("trace", rp_trace_gpus(trace));

    for (gsize i = 0; i < rp_trace_n_records(trace); i++)
        if (is_action_of(trace, &records[i], iteration))
            append_action(orders, rp_trace_lane_device(trace, records[i].lane), records[i].kind,
                          records[i].stage, records[i].micro_batch, records[i].layer,
                          records[i].chunk);
    return orders;
}

/* Why PyTorch would not run the order; %NULL if it would. */
static char *
note_superset(const RpOrders *orders)
{
    g_autofree guint32 *rank_of = g_new(guint32, orders->n_stages);
    g_autoptr(GString) note = g_string_new(NULL);
    guint32 moved = RP_NONE, fused = RP_NONE, other_rank = 0;

    for (guint s = 0; s < orders->n_stages; s++)
        rank_of[s] = RP_NONE;
    for (guint r = 0; r < orders->n_ranks; r++) {
        for (guint i = 0; i < orders->ranks[r]->len; i++) {
            const RpAction *action = &g_array_index(orders->ranks[r], RpAction, i);
            guint32 s = action->stage;

            if (action->kind == RP_ACTION_FUSED && fused == RP_NONE)
                fused = s;
            if (rank_of[s] == RP_NONE)
                rank_of[s] = r;
            if (rank_of[s] != r && moved == RP_NONE) {
                moved = s;
                other_rank = r;
            }
        }
    }
    if (moved != RP_NONE)
        g_string_append_printf(note, "stage %u runs on rank %u and on rank %u", moved,
                               rank_of[moved], other_rank);
    if (fused != RP_NONE)
        g_string_append_printf(note,
                               "%sstage %u runs forward and backward as one action, written as an "
                               "overlap of the two; the stages before it only run forward, those "
                               "after it only backward",
                               note->len ? "; " : "", fused);
    if (note->len == 0)
        return NULL;
    g_string_prepend(note, "a superset of PyTorch's format, which PyTorch itself refuses: ");
    return g_string_free(g_steal_pointer(&note), FALSE);
}

gboolean
rp_export_pytorch(const RpOrders *orders, GOutputStream *stream, char **note, GError **error)
{
    RpSink sink;

    rp_sink_init(&sink, stream);
    for (guint r = 0; r < orders->n_ranks; r++) {
        for (guint i = 0; i < orders->ranks[r]->len && rp_sink_step(&sink); i++) {
            if (i > 0)
                g_string_append_c(sink.text, ',');
            rp_action_format(sink.text, &g_array_index(orders->ranks[r], RpAction, i));
        }
        g_string_append_c(sink.text, '\n');
    }
    if (!rp_sink_finish(&sink, error))
        return FALSE;
    if (note != NULL)
        *note = note_superset(orders);
    return TRUE;
}

/* The time grid of an iteration. */
typedef struct {
    gint64 origin_ns;
    gint64 end_ns;
    gint64 step_ns;
    GArray **starts; /* (element-type gint64) of each rank, as in its order */
} Grid;

static gboolean
fail_grid(const RpTraceRecord *record, const char *why, GError **error)
{
    return rp_fail(error, RP_EXPORT_ERROR, RP_EXPORT_ERROR_GRID,
                   "no time grid: the %s of stage %u, micro-batch %u at %" G_GINT64_FORMAT " ns %s",
                   rp_task_kind_name((RpTaskKind)record->kind), record->stage, record->micro_batch,
                   record->start_ns, why);
}

static gboolean
measure_grid(const RpTrace *trace, guint iteration, Grid *grid, GError **error)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    gsize n_records = rp_trace_n_records(trace);
    g_autofree gint64 *free_ns = g_new(gint64, rp_trace_gpus(trace));

    for (guint r = 0; r < rp_trace_gpus(trace); r++)
        free_ns[r] = G_MININT64;
    grid->origin_ns = G_MAXINT64;
    grid->end_ns = G_MININT64;
    for (gsize i = 0; i < n_records; i++)
        if (is_action_of(trace, &records[i], iteration))
            grid->origin_ns = MIN(grid->origin_ns, records[i].start_ns);
    for (gsize i = 0; i < n_records; i++) {
        if (!is_action_of(trace, &records[i], iteration))
            continue;
        guint rank = rp_trace_lane_device(trace, records[i].lane);
        gint64 start_ns = records[i].start_ns - grid->origin_ns;

        if (records[i].end_ns <= records[i].start_ns)
            return fail_grid(&records[i], "takes no time", error);
        if (records[i].start_ns < free_ns[rank])
            return fail_grid(&records[i], "starts before the one before it ends", error);
        free_ns[rank] = records[i].end_ns;
        grid->end_ns = MAX(grid->end_ns, records[i].end_ns);
        grid->step_ns = rp_greatest_common_divisor(grid->step_ns, start_ns);
        grid->step_ns =
            rp_greatest_common_divisor(grid->step_ns, records[i].end_ns - records[i].start_ns);
        g_array_append_val(grid->starts[rank], start_ns);
    }
    return TRUE;
}

static gboolean
write_grid(const RpOrders *orders, const Grid *grid, GOutputStream *stream, GError **error)
{
    guint64 columns =
        grid->step_ns > 0 ? (guint64)((grid->end_ns - grid->origin_ns) / grid->step_ns) : 0;
    RpSink sink;

    if (columns > RP_PYTORCH_MAX_CELLS / MAX(1, orders->n_ranks))
        return rp_fail(error, RP_EXPORT_ERROR, RP_EXPORT_ERROR_GRID,
                       "no time grid: the longest step that divides every time is %" G_GINT64_FORMAT
                       " ns, which makes %" G_GUINT64_FORMAT " columns for each of %u ranks, more "
                       "than %u cells in all",
                       grid->step_ns, columns, orders->n_ranks, RP_PYTORCH_MAX_CELLS);
    rp_sink_init(&sink, stream);
    for (guint r = 0; r < orders->n_ranks; r++) {
        guint i = 0;

        for (guint64 c = 0; c < columns && rp_sink_step(&sink); c++) {
            if (c > 0)
                g_string_append_c(sink.text, ',');
            if (i < grid->starts[r]->len &&
                g_array_index(grid->starts[r], gint64, i) == (gint64)c * grid->step_ns)
                rp_action_format(sink.text, &g_array_index(orders->ranks[r], RpAction, i++));
        }
        g_string_append_c(sink.text, '\n');
    }
    return rp_sink_finish(&sink, error);
}

gboolean
rp_export_pytorch_timed(const RpTrace *trace, guint iteration, GOutputStream *stream, char **note,
                        GError **error)
{
    g_autoptr(RpOrders) orders = rp_orders_from_trace(trace, iteration);
    Grid grid = {.starts = g_new(GArray *, orders->n_ranks)};

    for (guint r = 0; r < orders->n_ranks; r++)
        grid.starts[r] = g_array_new(FALSE, FALSE, sizeof(gint64));
    gboolean written =
        measure_grid(trace, iteration, &grid, error) && write_grid(orders, &grid, stream, error);
    for (guint r = 0; r < orders->n_ranks; r++)
        g_array_unref(grid.starts[r]);
    g_free(grid.starts);
    if (written && note != NULL)
        *note = note_superset(orders);
    return written;
}
