/* The rows of `roundpipe compare`. */
#include "cli/reports/compare.h"

#include <string.h>

#include "core/base/units.h"

static gboolean
is_full(const RpCompareArgs *args)
{
    return g_strcmp0(args->request.fidelity, "full") == 0;
}

/* "recompute early, fused forward physical, alike for all" */
static char *
convention(const RpCompareArgs *args)
{
    const char *fused = args->request.fused_forward;

    if (args->published)
        return g_strconcat("as published: recompute roundpipe early, others gated",
                           is_full(args) ? NULL : "; fused forward published", NULL);
    return g_strdup_printf("recompute %s, fused forward %s, alike for all", args->request.recompute,
                           fused != NULL ? fused : "physical");
}

static char
star(gboolean best)
{
    return best ? '*' : ' ';
}

/* @memory: some row has bytes; else stage inputs are counted */
static void
report_memory(RpReport *report, const RpCompareRow *row, gboolean memory)
{
    const RpResult *result = &row->result;
    const guint64 bytes = result->gpu_peak_bytes;

    rp_report_count(report, "peak_live", result->peak_live, memory ? NULL : "live ");
    rp_report_show(report, "%u%c", result->peak_live, star(row->least_memory));
    if (bytes == 0) {
        rp_report_line(report, memory ? "GPU GiB " : NULL, "- ");
        return;
    }
    rp_report_bytes(report, "gpu_peak_bytes", bytes, "GPU GiB ");
    rp_report_show(report, "%.2f%c", (double)bytes / (double)RP_GIB,
                   result->memory_problem != NULL ? '!' : star(row->least_memory));
    rp_report_bytes(report, "host_peak_bytes", result->host_peak_bytes, NULL);
    rp_report_bool(report, "fits_gpu_memory", result->memory_problem == NULL, NULL);
}

static void
report_figures(RpReport *report, const RpCompareRow *row, gboolean memory)
{
    static const char *const labels[] = {NULL, "fill", "switch", "drain", "intra", "exposed"};
    const RpResult *result = &row->result;

    rp_report_text(report, "recompute", rp_request_recompute(&row->request), NULL);
    rp_report_count(report, "round", row->request.options.round, NULL);
    rp_report_add_partition(report, row->entry->profile, row->request.partition, NULL);
    rp_report_ms(report, "iteration_ms", result->iteration_ns, "iteration ms ");
    rp_report_show(report, "%.3f%c", rp_ms_from_ns(result->iteration_ns), star(row->fastest));
    rp_report_line(report, "bubble % ", "%.3f%c", 100 * result->bubble.ratio,
                   star(row->least_bubble));
    if (result->bound_ns > 0) {
        rp_report_ms(report, "bound_ms", result->bound_ns, "above least %");
        rp_report_show(report, "%.1f", rp_result_above_bound(result));
    } else {
        rp_report_line(report, "above least %", "-");
    }
    rp_report_add_bubble(report, &result->bubble, labels);
    rp_report_rate(report, "tokens_per_s", result->tokens_per_s, "tokens/s");
    rp_report_count(report, "tasks", (gint64)result->actions, NULL);
    report_memory(report, row, memory);
    rp_report_bool(report, "fastest", row->fastest, NULL);
    rp_report_bool(report, "least_bubble", row->least_bubble, NULL);
}

static void
report_row(RpReport *report, const RpCompareRow *row, gboolean memory)
{
    rp_report_object(report, NULL,
                     row->async ? "Asynchronous: no flush between iterations, weights one "
                                  "iteration old; steady state"
                                : "Synchronous");
    rp_report_text(report, "profile", row->entry->name, "<profile");
    rp_report_text(report, "model", row->entry->profile->model, NULL);
    rp_report_text(report, "schedule", row->schedule->name, "<schedule");
    rp_report_bool(report, "async", row->async, NULL);
    if (row->problem != NULL) {
        rp_report_text(report, "error", row->problem, NULL);
        rp_report_span(report, "cannot run: %s", row->problem);
    } else {
        report_figures(report, row, memory);
    }
    rp_report_end(report);
}

void
rp_compare_report(RpReport *report, const RpCompareArgs *args, const GArray *rows)
{
    const char *fidelity = is_full(args) ? "full" : "compute";
    const char *partition = args->request.partition != NULL ? args->request.partition : "simulated";
    g_autofree char *alike = convention(args);
    gboolean memory = FALSE;

    for (guint i = 0; i < rows->len; i++)
        memory |= g_array_index(rows, RpCompareRow, i).result.gpu_peak_bytes > 0;
    rp_report_say(report, "%d GPUs, %d micro-batches; predicted, %s fidelity; partition: %s; %s",
                  args->request.ask.options.gpus, args->request.ask.options.micro_batches, fidelity,
                  partition, alike);
    rp_report_text(report, "origin", "predicted", NULL);
    rp_report_count(report, "gpus", args->request.ask.options.gpus, NULL);
    rp_report_count(report, "micro_batches", args->request.ask.options.micro_batches, NULL);
    rp_report_text(report, "fidelity", fidelity, NULL);
    rp_report_bool(report, "published", args->published, NULL);
    rp_report_text(report, "partition", partition, NULL);
    rp_report_table(report, "rows", "exposed,intra,drain,switch,fill,above least %,tokens/s", 0);
    for (guint i = 0; i < rows->len; i++)
        report_row(report, &g_array_index(rows, RpCompareRow, i), memory);
    rp_report_end(report);
    rp_report_say(report,
                  "\n* best of the profile in its group, of what fits. Bubble = 1 - busy / (N x "
                  "makespan) = fill + switch\n  + drain + intra; exposed is a slice of it. Above "
                  "least: how much longer the iteration is than a\n  bound that no partition of "
                  "the schedule is below.");
    rp_report_say(report, memory ? "  GPU GiB: the fullest GPU with every buffer, planned to the "
                                   "byte; ! = more than it has."
                                 : "  live: stage inputs held on the fullest GPU (not comparable "
                                   "in bytes between different numbers of stages).");
}

gboolean
rp_compare_write_csv(GOutputStream *stream, gpointer report, GError **error)
{
    g_autofree char *csv = rp_report_to_csv(
        report, "rows",
        "profile,schedule,async,iteration_ms,bubble_ratio=bubble_pct,fill=fill_pct,"
        "switch=switch_pct,drain=drain_pct,intra=intra_pct,comm_exposed_ratio=comm_exposed_pct,"
        "tokens_per_s,peak_live,gpu_peak_bytes,error");

    return g_output_stream_write_all(stream, csv, strlen(csv), NULL, NULL, error);
}
