/* The rows of `roundpipe compare` as text, JSON and CSV. */
#include "cli/reports/compare.h"

#include <stdio.h>
#include <string.h>

#include "core/base/units.h"

static void
add_memory(RpCliTable *table, const RpCompareRow *row, gboolean memory)
{
    const RpResult *result = &row->result;

    if (!memory)
        rp_cli_table_add(table, "%u%s", result->peak_live, row->least_memory ? "*" : " ");
    else if (result->gpu_peak_bytes == 0)
        rp_cli_table_add(table, "- ");
    else
        rp_cli_table_add(table, "%.2f%s", (double)result->gpu_peak_bytes / (double)RP_GIB,
                         result->memory_problem != NULL ? "!"
                         : row->least_memory            ? "*"
                                                        : " ");
}

static void
add_figures(RpCliTable *table, const RpCompareRow *row, gboolean memory)
{
    const RpResult *result = &row->result;
    const RpBubble *bubble = &result->bubble;

    rp_cli_table_add(table, "%.3f%s", rp_ms_from_ns(result->iteration_ns),
                     row->fastest ? "*" : " ");
    rp_cli_table_add(table, "%.3f%s", 100 * bubble->ratio, row->least_bubble ? "*" : " ");
    if (result->bound_ns > 0)
        rp_cli_table_add(table, "%.1f", rp_result_above_bound(result));
    else
        rp_cli_table_add(table, "-");
    rp_cli_table_add(table, "%.3f", 100 * bubble->fill);
    rp_cli_table_add(table, "%.3f", 100 * bubble->switch_);
    rp_cli_table_add(table, "%.3f", 100 * bubble->drain);
    rp_cli_table_add(table, "%.3f", 100 * bubble->intra);
    rp_cli_table_add(table, "%.3f", 100 * bubble->comm_exposed);
    if (result->tokens_per_s > 0)
        rp_cli_table_add(table, "%.0f", result->tokens_per_s);
    else
        rp_cli_table_add(table, "-");
    add_memory(table, row, memory);
}

/* The rows with or without a flush between iterations. */
static void
print_group(const GArray *rows, gboolean async, gboolean memory)
{
    const char *columns[] = {"<profile",  "<schedule",     "iteration ms ",
                             "bubble % ", "above least %", "fill",
                             "switch",    "drain",         "intra",
                             "exposed",   "tokens/s",      memory ? "GPU GiB " : "live ",
                             NULL};
    g_autoptr(RpCliTable) table = rp_cli_table_new(columns);
    guint n = 0;

    for (guint i = 0; i < rows->len; i++) {
        const RpCompareRow *row = &g_array_index(rows, RpCompareRow, i);

        if (row->async != async)
            continue;
        n++;
        rp_cli_table_add(table, "%s", row->entry->name);
        rp_cli_table_add(table, "%s", row->schedule->name);
        if (row->problem != NULL) {
            g_autofree char *reason = g_strconcat("cannot run: ", row->problem, NULL);

            rp_cli_table_span(table, reason);
        } else {
            add_figures(table, row, memory);
        }
    }
    if (n == 0)
        return;
    puts(async ? "\nAsynchronous: no flush between iterations, weights one iteration old; steady "
                 "state"
               : "\nSynchronous");
    rp_cli_table_print(table);
}

static gboolean
is_full(const RpScheduleArgs *args)
{
    return args->fidelity != NULL && strcmp(args->fidelity, "full") == 0;
}

/* "recompute early, fused forward physical, alike for all" */
static char *
convention(const RpCompareReport *report)
{
    if (report->published)
        return g_strdup(is_full(report->args)
                            ? "as published: recompute roundpipe early, others gated"
                            : "as published: recompute roundpipe early, others gated; fused "
                              "forward published");
    return g_strdup_printf("recompute %s, fused forward %s, alike for all", report->args->recompute,
                           report->args->fused_forward != NULL ? report->args->fused_forward
                                                               : "physical");
}

void
rp_compare_print(const RpCompareReport *report, const GArray *rows)
{
    const RpScheduleArgs *args = report->args;
    g_autofree char *alike = convention(report);
    gboolean memory = FALSE;

    for (guint i = 0; i < rows->len; i++)
        memory |= g_array_index(rows, RpCompareRow, i).result.gpu_peak_bytes > 0;
    printf("%d GPUs, %d micro-batches; predicted, %s fidelity; partition: %s; %s\n", args->gpus,
           args->micro_batches, is_full(args) ? "full" : "compute",
           args->partition != NULL ? args->partition : "simulated", alike);
    print_group(rows, FALSE, memory);
    print_group(rows, TRUE, memory);
    puts("\n* best of the profile in its group, of what fits. Bubble = 1 - busy / (N x makespan) = "
         "fill + switch\n  + drain + intra; exposed is a slice of it. Above least: how much longer "
         "the "
         "iteration is than a\n  bound that no partition of the schedule is below.");
    puts(memory
             ? "  GPU GiB: the fullest GPU with every buffer, planned to the byte; ! = more than "
               "it has."
             : "  live: stage inputs held on the fullest GPU (not comparable in bytes between "
               "different numbers of stages).");
}

static void
json_row(RpJsonWriter *json, const RpCompareRow *row)
{
    const RpResult *result = &row->result;

    rp_json_object(json, NULL);
    rp_json_string(json, "profile", row->entry->name);
    rp_json_string(json, "model", row->entry->profile->model);
    rp_json_string(json, "schedule", row->schedule->name);
    rp_json_bool(json, "async", row->async);
    if (row->problem != NULL) {
        rp_json_string(json, "error", row->problem);
        rp_json_end(json);
        return;
    }
    rp_json_string(json, "recompute", rp_request_recompute(&row->request));
    rp_json_int(json, "round", row->request.options.round);
    rp_json_partition(json, row->entry->profile, row->request.partition);
    rp_json_double(json, "iteration_ms", rp_ms_from_ns(result->iteration_ns), 6);
    if (result->bound_ns > 0)
        rp_json_double(json, "bound_ms", rp_ms_from_ns(result->bound_ns), 6);
    rp_json_bubble(json, &result->bubble);
    rp_json_double(json, "tokens_per_s", result->tokens_per_s, 3);
    rp_json_int(json, "tasks", (gint64)result->actions);
    rp_json_int(json, "peak_live", result->peak_live);
    if (result->gpu_peak_bytes > 0) {
        rp_json_int(json, "gpu_peak_bytes", (gint64)result->gpu_peak_bytes);
        rp_json_int(json, "host_peak_bytes", (gint64)result->host_peak_bytes);
        rp_json_bool(json, "fits_gpu_memory", result->memory_problem == NULL);
    }
    rp_json_bool(json, "fastest", row->fastest);
    rp_json_bool(json, "least_bubble", row->least_bubble);
    rp_json_end(json);
}

void
rp_compare_print_json(const RpCompareReport *report, const GArray *rows)
{
    const RpScheduleArgs *args = report->args;
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_LINES);

    rp_json_object(json, NULL);
    rp_json_string(json, "origin", "predicted");
    rp_json_int(json, "gpus", args->gpus);
    rp_json_int(json, "micro_batches", args->micro_batches);
    rp_json_string(json, "fidelity", is_full(args) ? "full" : "compute");
    rp_json_bool(json, "published", report->published);
    rp_json_string(json, "partition", args->partition != NULL ? args->partition : "simulated");
    rp_json_array(json, "rows");
    for (guint i = 0; i < rows->len; i++)
        json_row(json, &g_array_index(rows, RpCompareRow, i));
    rp_json_end(json);
    rp_json_end(json);
    rp_cli_print_json(json);
}

gboolean
rp_compare_write_csv(GOutputStream *stream, gpointer user_data, GError **error)
{
    const GArray *rows = user_data;
    g_autoptr(GString) csv =
        g_string_new("profile,schedule,async,iteration_ms,bubble_pct,fill_pct,switch_pct,"
                     "drain_pct,intra_pct,comm_exposed_pct,tokens_per_s,peak_live,"
                     "gpu_peak_bytes,error\n");

    for (guint i = 0; i < rows->len; i++) {
        const RpCompareRow *row = &g_array_index(rows, RpCompareRow, i);
        const RpBubble *bubble = &row->result.bubble;

        rp_csv_append(csv, FALSE, "%s", row->entry->name);
        rp_csv_append(csv, FALSE, "%s", row->schedule->name);
        rp_csv_append(csv, FALSE, "%d", row->async ? 1 : 0);
        if (row->problem != NULL) {
            g_string_append(csv, ",,,,,,,,,,");
            rp_csv_append(csv, TRUE, "%s", row->problem);
            continue;
        }
        g_string_append_printf(csv, "%.6f,%.6f,%.6f,%.6f,%.6f,%.6f,%.6f,%.3f,%u,",
                               rp_ms_from_ns(row->result.iteration_ns), 100 * bubble->ratio,
                               100 * bubble->fill, 100 * bubble->switch_, 100 * bubble->drain,
                               100 * bubble->intra, 100 * bubble->comm_exposed,
                               row->result.tokens_per_s, row->result.peak_live);
        if (row->result.gpu_peak_bytes > 0)
            g_string_append_printf(csv, "%" G_GUINT64_FORMAT, row->result.gpu_peak_bytes);
        g_string_append(csv, ",\n");
    }
    return g_output_stream_write_all(stream, csv->str, csv->len, NULL, NULL, error);
}
