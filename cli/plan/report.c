/* roundpipe plan: the advice, and the longest sequence: figures for machines, tables for people. */
#include "cli/plan/plan.h"

#include <string.h>

#include "cli/reports/reports.h"
#include "core/base/fp8.h"
#include "core/base/units.h"
#include "run/settings.h"

#define LABEL_WIDTH 15

/* ---- memory ---- */

/* A GPU's or the host's bytes. @key: %NULL: for people only; @label: %NULL: for machines only;
 * @other: bytes beside them, with which a category has a row */
static void
report_bytes(RpReport *report, const char *key, const char *label, const RpAdviseBytes *bytes,
             const RpAdviseBytes *other, guint64 limit, guint64 over)
{
    rp_report_object(report, key, label);
    for (guint c = 0; c < RP_N_BUFFER_CATEGORIES; c++) {
        const char *name = rp_buffer_category_name((RpBufferCategory)c);
        const gboolean shown = label != NULL && bytes->categories[c] + other->categories[c] > 0;
        g_autofree char *row = shown ? g_strconcat("  ", name, NULL) : NULL;

        rp_report_bytes(report, key != NULL ? name : NULL, bytes->categories[c], row);
    }
    rp_report_bytes(report, key != NULL ? "total" : NULL, bytes->total,
                    label != NULL ? "  total" : NULL);
    if (label != NULL)
        rp_report_bytes(report, NULL, limit, "  limit");
    if (key != NULL && limit != 0) {
        rp_report_count(report, "limit", (gint64)limit, NULL);
        rp_report_count(report, "over", (gint64)over, NULL);
    }
    rp_report_end(report);
}

static void
report_memory(RpReport *report, const RpAdviseQuery *query, const RpAdviseBytes *gpu,
              const RpAdviseBytes *host, const char *whose)
{
    rp_report_head(report, "Memory%s", whose);
    rp_report_columns(report, NULL, "  category");
    report_bytes(report, NULL, "each GPU", gpu, host, query->gpu_bytes, 0);
    report_bytes(report, NULL, "host", host, gpu, query->host_bytes, 0);
    rp_report_end(report);
    if (query->host_bytes == 0)
        rp_report_say(report, "  (host memory is reported, not checked: no --host-memory)");
}

/* ---- runs ---- */

/* Cells that the tables of micro-batches and of schedules have in common. */
static void
report_cells(RpReport *report, const RpAdviseRun *run)
{
    const RpPartition *partition = run->partition;

    if (partition != NULL)
        rp_report_line(report, "stages", "%u", partition->n_forward + partition->n_backward);
    else
        rp_report_line(report, "stages", "-");
    rp_report_rate(report, NULL, run->simulated ? run->tokens_per_s : 0, "tokens/s");
    if (run->simulated)
        rp_report_percent(report, "bubble %", 100 * run->bubble_ratio, 2);
    else
        rp_report_line(report, "bubble %", "-");
    rp_report_bytes(report, NULL, partition != NULL ? run->gpu.total : 0, "GPU");
    rp_report_bytes(report, NULL, partition != NULL ? run->host.total : 0, "host");
}

static void
report_run(RpReport *report, const RpAdvice *advice, const RpAdviseRun *run)
{
    const RpPlanOptions *options = &run->options;
    const RpPartition *partition = run->partition;

    rp_report_text(report, "schedule", options->schedule->name, NULL);
    rp_report_bool(report, "async", options->async, NULL);
    rp_report_bool(report, "fits", run->problem == NULL, NULL);
    if (run->problem != NULL)
        rp_report_text(report, "problem", run->problem, NULL);
    rp_report_count(report, "micro_batch", run->sequences, NULL);
    rp_report_count(report, "micro_batches", options->micro_batches, NULL);
    rp_report_count(report, "round", options->round, NULL);
    if (options->replicas > 1) {
        rp_report_count(report, "replicas", options->replicas, NULL);
        rp_report_rate(report, "one_group_tokens_per_s", run->one_group_tokens_per_s, NULL);
    }
    if (partition != NULL) {
        rp_report_add_stages(report, "forward_stages", advice->profile, partition->forward,
                             partition->n_forward, NULL);
        if (partition->dispatched)
            rp_report_add_stages(report, "backward_stages", advice->profile, partition->backward,
                                 partition->n_backward, NULL);
        rp_report_bytes(report, "gpu_peak_bytes", run->gpu.total, NULL);
        rp_report_bytes(report, "host_peak_bytes", run->host.total, NULL);
        if (run->resident_bytes > 0)
            rp_report_bytes(report, "resident_bytes", run->resident_bytes, NULL);
    }
    if (run->saved_bytes > 0) {
        g_autofree char *what = rp_plan_saved_words(advice, run);

        rp_report_text(report, "saved", what, NULL);
        rp_report_bytes(report, "saved_bytes", run->saved_bytes, NULL);
    }
    if (run->recomputed_tokens_per_s > 0)
        rp_report_rate(report, "recomputed_tokens_per_s", run->recomputed_tokens_per_s, NULL);
    if (run->streamed_tokens_per_s > 0)
        rp_report_rate(report, "streamed_tokens_per_s", run->streamed_tokens_per_s, NULL);
    if (run->bound_tokens_per_s > 0)
        rp_report_rate(report, "compute_tokens_per_s", run->bound_tokens_per_s, NULL);
    if (!run->simulated)
        return;
    rp_report_ms(report, "step_ms", run->step_ns, NULL);
    rp_report_ratio(report, "bubble_ratio", run->bubble_ratio, NULL);
    rp_report_rate(report, "tokens_per_s", run->tokens_per_s, NULL);
    rp_report_count(report, "simulated_micro_batches", run->simulated_micro_batches, NULL);
    rp_report_ms(report, "optimizer_ms", run->optimizer_ns, NULL);
    rp_report_text(report, "waits_for", rp_plan_waits[run->waits].waits_for, NULL);
}

static void
report_optional_run(RpReport *report, const char *key, const RpAdvice *advice,
                    const RpAdviseRun *run)
{
    if (run == NULL) {
        rp_report_text(report, key, NULL, NULL);
        return;
    }
    rp_report_object(report, key, NULL);
    report_run(report, advice, run);
    rp_report_end(report);
}

static void
report_candidates(RpReport *report, const RpAdvice *advice)
{
    if (advice->best != NULL)
        rp_report_head(report, "Why: micro-batches compared");
    rp_report_table(report, "candidates", "M_R,stages,host,GPU", 0);
    for (guint i = 0; i < advice->candidates->len; i++) {
        const RpAdviseRun *run = g_ptr_array_index(advice->candidates, i);

        rp_report_object(report, NULL, NULL);
        report_run(report, advice, run);
        if (advice->best != NULL) {
            rp_report_line(report, "  sequences", "%u", run->sequences);
            rp_report_line(report, "M", "%u", run->options.micro_batches);
            rp_report_line(report, "M_R", "%u", run->options.round);
            report_cells(report, run);
            if (run == advice->best)
                rp_report_line(report, "<", "recommended");
            else if (run->problem != NULL)
                rp_report_line(report, "<", "%s", run->problem);
            else if (!run->simulated)
                rp_report_line(report, "<", "%.0f tokens/s before any transfer",
                               run->bound_tokens_per_s);
        }
        rp_report_end(report);
    }
    rp_report_end(report);
    if (advice->best != NULL && advice->untried > 0)
        rp_report_say(report, "  (%u more left out: slower before any transfer is counted)",
                      advice->untried);
    rp_report_count(report, "untried_micro_batches", advice->untried, NULL);
}

/* "roundpipe async", "gpipe" */
static char *
run_name(const RpAdviseRun *run)
{
    if (!run->options.schedule->dispatched)
        return g_strdup(run->options.schedule->name);
    return g_strdup_printf("%s %s", run->options.schedule->name,
                           run->options.async ? "async" : "sync");
}

static void
report_schedules(RpReport *report, const RpAdvice *advice)
{
    rp_report_head(report, "Schedules (predicted; all but \"roundpipe async\" step synchronously)");
    rp_report_table(report, "schedules", "stages,sequences,host,GPU", 0);
    for (guint i = 0; i < advice->schedules->len; i++) {
        const RpAdviseRun *run = g_ptr_array_index(advice->schedules, i);
        g_autofree char *name = run_name(run);

        rp_report_object(report, NULL, NULL);
        report_run(report, advice, run);
        rp_report_line(report, "<  schedule", "  %s", name);
        rp_report_line(report, "sequences", "%u", run->sequences);
        report_cells(report, run);
        rp_report_line(report, "<", "%s", run->problem != NULL ? run->problem : "");
        rp_report_end(report);
    }
    rp_report_end(report);
}

/* ---- the longest sequence ---- */

static void
say_longest(RpReport *report, const RpPlanQuestion *question, const RpAdviseLongest *longest)
{
    const char *devices = question->network != NULL ? question->network->devices->name : NULL;
    g_autofree char *beyond =
        longest->tokens > longest->max_positions
            ? g_strdup_printf(", beyond the model's %u positions", longest->max_positions)
            : g_strdup("");
    g_autofree char *limit = longest->unlimited
                                 ? g_strdup("no memory limit was reached")
                                 : g_strdup_printf("then %s memory is full, most of it %s",
                                                   longest->host_limited ? "host" : "GPU",
                                                   rp_buffer_category_name(longest->largest));

    if (!longest->known)
        rp_report_head(report, "Longest sequence at micro-batch 1: not predicted from a timing "
                               "file, which has sizes for one length only");
    else if (longest->tokens == 0)
        rp_report_head(report, "Longest sequence at micro-batch 1: none, not even %d tokens",
                       RP_ADVISE_SEQUENCE_STEP);
    else
        rp_report_head(report, "Longest sequence at micro-batch 1: %u tokens%s; %s",
                       longest->tokens, beyond, limit);
    if (devices != NULL)
        rp_report_say(report, "  (sizes of what `roundpipe train` runs, with %s kernels%s)",
                      devices,
                      strcmp(devices, "host") == 0
                          ? "; a GPU's differ a little, which a program built with CUDA knows"
                          : "");
}

static void
report_longest(RpReport *report, const RpPlanQuestion *question, const RpAdviseLongest *longest)
{
    const RpAdviseQuery *query = &question->query;
    const RpPlanNetwork *network = question->network;

    say_longest(report, question, longest);
    if (!longest->known) {
        rp_report_text(report, "longest_sequence", NULL, NULL);
        return;
    }
    rp_report_object(report, "longest_sequence", NULL);
    rp_report_count(report, "tokens", longest->tokens, NULL);
    rp_report_count(report, "micro_batch", 1, NULL);
    rp_report_count(report, "max_positions", longest->max_positions, NULL);
    rp_report_bool(report, "beyond_max_positions", longest->tokens > longest->max_positions, NULL);
    rp_report_text(report, "sizes", network != NULL ? network->devices->name : "cost model", NULL);
    rp_report_bool(report, "unlimited", longest->unlimited, NULL);
    if (!longest->unlimited) {
        rp_report_text(report, "limited_by", longest->host_limited ? "host" : "gpu", NULL);
        rp_report_text(report, "largest", rp_buffer_category_name(longest->largest), NULL);
    }
    if (longest->tokens > 0) {
        rp_report_count(report, "micro_batches", longest->micro_batches, NULL);
        rp_report_counts(report, "forward_stages",
                         (const gint32 *)(void *)longest->forward_blocks->data,
                         longest->forward_blocks->len);
        rp_report_counts(report, "backward_stages",
                         (const gint32 *)(void *)longest->backward_blocks->data,
                         longest->backward_blocks->len);
        report_bytes(report, "gpu", NULL, &longest->gpu, &longest->host, query->gpu_bytes, 0);
        report_bytes(report, "host", NULL, &longest->host, &longest->gpu, query->host_bytes, 0);
    }
    rp_report_end(report);
}

static void
say_list(RpReport *report, const char *key, const GArray *blocks)
{
    g_autofree char *list =
        rp_partition_format_list((const guint *)(void *)blocks->data, blocks->len);

    rp_report_say(report, "  %s: %s", key, blocks->len > 0 ? list : "none");
}

/* Writes the run file that makes `train` do it: with its own choice of stages it fits as well, unless host memory is
 * short. */
static void
say_keys(RpReport *report, const RpPlanQuestion *question, const RpAdviseLongest *longest)
{
    const RpAdviseQuery *query = &question->query;

    rp_report_head(report, "In a run file");
    rp_report_say(report, "  sequence_length: %u", longest->tokens);
    rp_report_say(report, "  micro_batches: %u", longest->micro_batches);
    rp_report_say(report, "  device_memory: %" G_GUINT64_FORMAT, query->gpu_bytes);
    rp_report_say(report, "  attention: %s",
                  rp_attention_name(question->network->options.attention));
    say_list(report, "forward_stages", longest->forward_blocks);
    say_list(report, "backward_stages", longest->backward_blocks);
    if (query->sync)
        rp_report_say(report, "  async: false");
    rp_plan_say_optimizer(report, query);
}

/* ---- together ---- */

static void
report_query(RpReport *report, const char *name, const RpAdviseQuery *query, guint gpus_asked)
{
    rp_report_text(report, "origin", "predicted", NULL);
    rp_report_text(report, "model", name, NULL);
    if (rp_plan_device_name(query) != NULL)
        rp_report_text(report, "device", rp_plan_device_name(query), NULL);
    if (query->gpu != NULL) {
        rp_report_bool(report, "times_measured", query->gpu->measured, NULL);
        rp_report_text(report, "times_basis", query->gpu->basis, NULL);
    }
    rp_report_count(report, "gpus", query->gpus, NULL);
    rp_report_count(report, "gpus_asked", gpus_asked, NULL);
    rp_report_bytes(report, "gpu_memory_bytes", query->gpu_bytes, NULL);
    rp_report_bytes(report, "host_memory_bytes", query->host_bytes, NULL);
    rp_report_text(report, "dtype", query->dtype, NULL);
    rp_report_text(report, "accumulate", query->accumulate, NULL);
    if (query->fp8)
        rp_report_text(report, "matmul", rp_fp8_name(query->fp8, query->fp8_head), NULL);
    if (rp_preference_is_used(&query->preference)) {
        rp_report_text(report, "objective", rp_objective_info(query->preference.objective)->name,
                       NULL);
        rp_report_text(report, "reference", rp_reference_name(query->preference.reference), NULL);
    }
    rp_report_count(report, "lora_rank", query->lora_rank, NULL);
    if (query->base != NULL)
        rp_report_text(report, "base", query->base, NULL);
    rp_report_text(report, "optimizer", rp_setting_value_name("optimizer.mode", query->optimizer),
                   NULL);
    rp_plan_report_form(report, &query->form);
    rp_report_bool(report, "sync", query->sync, NULL);
    rp_report_bool(report, "box_measured", query->measured_box != NULL, NULL);
}

static void
report_remedies(RpReport *report, const GPtrArray *remedies)
{
    rp_report_list(report, "remedies");
    for (guint i = 0; i < remedies->len; i++) {
        const RpAdviseRemedy *remedy = g_ptr_array_index(remedies, i);
        g_autofree char *change = rp_plan_remedy_words(remedy);

        rp_report_object(report, NULL, NULL);
        rp_report_text(report, "change", change, NULL);
        if (remedy->tokens_per_s > 0)
            rp_report_rate(report, "tokens_per_s", remedy->tokens_per_s, NULL);
        rp_report_bytes(report, "gpu_peak_bytes", remedy->gpu_total, NULL);
        rp_report_bytes(report, "host_peak_bytes", remedy->host_total, NULL);
        rp_report_end(report);
    }
    rp_report_end(report);
}

/* Links, host and optimizer: of the timing file, or what the catalogue takes the server to be. */
static void
report_assumed(RpReport *report, const RpProfile *profile)
{
    const RpLinks *links = &profile->links;

    rp_report_object(report, "assumed", NULL);
    if (links->both_bytes_per_s > 0)
        rp_report_real(report, "both_gb_per_s", links->both_bytes_per_s / 1e9, 3, NULL);
    rp_report_real(report, "h2d_gb_per_s", links->h2d_bytes_per_s / 1e9, 3, NULL);
    rp_report_real(report, "d2h_gb_per_s", links->d2h_bytes_per_s / 1e9, 3, NULL);
    rp_report_real(report, "root_gb_per_s", links->root_bytes_per_s / 1e9, 3, NULL);
    rp_report_count(report, "gpus_per_root", links->gpus_per_root, NULL);
    rp_report_real(report, "host_gb_per_s", links->host_bytes_per_s / 1e9, 3, NULL);
    rp_report_real(report, "optimizer_parameters_per_s", profile->optimizer_parameters_per_s, 3,
                   NULL);
    rp_report_end(report);
}

/* Each alone, the others as they are taken. */
static void
report_unknowns(RpReport *report, const RpAdviseRange *range)
{
    if (range->all.slow <= 0)
        return;
    rp_report_head(report, "Not known (tokens/s at both ends of each, the others as assumed)");
    rp_report_table(report, "unknowns", "slow,fast,settled by", 0);
    for (guint u = 0; u < RP_N_UNKNOWNS; u++) {
        const RpUnknownInfo *info = rp_unknown_info((RpUnknown)u);

        if (!range->of[u].open)
            continue;
        rp_report_object(report, NULL, NULL);
        rp_report_text(report, "key", info->key, NULL);
        rp_report_text(report, "name", info->name, NULL);
        rp_report_line(report, "<  unknown", "  %s", info->name);
        if (info->unit != NULL) {
            rp_report_real(report, "low", range->of[u].low / 1e9, 3, NULL);
            rp_report_real(report, "high", range->of[u].high / 1e9, 3, NULL);
            rp_report_text(report, "unit", info->unit, NULL);
        }
        g_autofree char *ends = rp_plan_unknown_ends(range, (RpUnknown)u);

        rp_report_line(report, "<ends", "%s", ends);
        rp_report_rate(report, "tokens_per_s_slow", range->of[u].ends.slow, "slow");
        rp_report_rate(report, "tokens_per_s_fast", range->of[u].ends.fast, "fast");
        rp_report_text(report, "source", info->source, NULL);
        rp_report_text(report, "settled_by", info->command, "<settled by");
        rp_report_end(report);
    }
    rp_report_end(report);
}

/* Reports the time and disk space of a run of the plan. */
static void
report_costs(RpReport *report, const RpAdvice *advice, const RpPlanQuestion *question)
{
    const RpAdviseRun *run = rp_plan_shown_run(advice);
    guint64 parameters, trained;

    rp_plan_count_parameters(advice->profile, &parameters, &trained);
    rp_report_count(report, "parameters", (gint64)parameters, NULL);
    rp_report_count(report, "trained_parameters", (gint64)trained, NULL);
    rp_report_bytes(report, "checkpoint_bytes",
                    rp_plan_checkpoint_bytes(advice->profile, &run->options), NULL);
    if (question->tokens > 0 && run->tokens_per_s > 0) {
        rp_report_count(report, "tokens", (gint64)question->tokens, NULL);
        rp_report_real(report, "hours",
                       (double)question->tokens /
                           MAX(question->served.tokens_per_s, run->tokens_per_s) / 3600,
                       3, NULL);
    }
}

static void
report_draws(RpReport *report, const RpRequestDrawn *drawn)
{
    if (drawn->draws == 0)
        return;
    rp_report_object(report, "drawn", NULL);
    rp_report_count(report, "draws", drawn->draws, NULL);
    rp_report_count(report, "seed", (gint64)drawn->seed, NULL);
    rp_report_add_drawn(report, "step_ms", &drawn->iteration_ns, TRUE, "drawn step");
    rp_report_add_drawn(report, "bubble_ratio", &drawn->bubble_ratio, FALSE, "drawn bubbles");
    rp_report_end(report);
}

void
rp_plan_report_advice(RpReport *report, const RpAdvice *advice, const RpPlanQuestion *question,
                      const RpRequestDrawn *drawn, const RpAdviseRange *range)
{
    const RpAdviseQuery *query = &advice->query;
    const RpAdviseRun *planned = advice->best != NULL ? advice->best : advice->nearest;

    rp_plan_say_answer(report, advice, question, range);
    report->label_width = LABEL_WIDTH;
    report_query(report, question->name, query, advice->gpus_asked);
    rp_report_count(report, "sequence", query->tokens_per_sequence, NULL);
    rp_report_count(report, "batch", query->batch, NULL);
    rp_report_count(report, "batch_asked", advice->batch_asked, NULL);
    rp_report_bool(report, "fits", advice->best != NULL, NULL);
    report_optional_run(report, "recommendation", advice, advice->best);
    report_optional_run(report, "faster", advice, advice->faster);
    report_optional_run(report, "instead", advice, advice->instead);
    if (range->all.slow > 0) {
        rp_report_real(report, "tokens_per_s_slow", range->all.slow, 7, NULL);
        rp_report_real(report, "tokens_per_s_fast", range->all.fast, 7, NULL);
        rp_report_text(report, "most_unknown", rp_unknown_info(range->most)->key, NULL);
    }
    report_costs(report, advice, question);
    report_assumed(report, advice->profile);
    report_bytes(report, "gpu", NULL, &planned->gpu, &planned->host, query->gpu_bytes,
                 planned->gpu_over_bytes);
    report_bytes(report, "host", NULL, &planned->host, &planned->gpu, query->host_bytes,
                 planned->host_over_bytes);
    if (advice->best != NULL)
        rp_plan_say_recommendation(report, advice);
    report_draws(report, drawn);
    report_unknowns(report, range);
    report_candidates(report, advice);
    report_memory(report, query, &planned->gpu, &planned->host,
                  advice->best != NULL ? "" : " of RoundPipe's plan that needs least");
    report_remedies(report, advice->remedies);
    report_schedules(report, advice);
    report_longest(report, question, &advice->longest);
}

void
rp_plan_report_longest(RpReport *report, const RpPlanQuestion *question,
                       const RpAdviseLongest *longest)
{
    const RpAdviseQuery *query = &question->query;
    g_autofree char *limit = rp_cli_format_bytes(query->gpu_bytes);

    rp_report_say(report, "%s on %u x %s, %s, predicted", question->name, query->gpus,
                  query->gpu != NULL ? query->gpu->title : limit, query->dtype);
    report_query(report, question->name, query, query->gpus);
    report_longest(report, question, longest);
    if (longest->tokens == 0)
        return;
    report_memory(report, query, &longest->gpu, &longest->host, "");
    if (question->network != NULL)
        say_keys(report, question, longest);
}
