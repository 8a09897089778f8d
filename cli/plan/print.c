/* roundpipe plan: tables of the advice, and the longest sequence. */
#include "cli/plan/plan.h"

#include <stdio.h>
#include <string.h>

#include "core/base/units.h"

static void
print_stages(const char *label, const RpProfile *profile, const RpInterval *stages, guint n)
{
    g_autoptr(GArray) counts = rp_partition_block_counts(profile, stages, n);
    g_autofree char *list =
        rp_partition_format_list((const guint *)(void *)counts->data, counts->len);

    printf("  %-15s %s\n", label, n > 0 ? list : "none");
}

static void
print_recommendation(const RpAdvice *advice)
{
    const RpAdviseRun *run = advice->best;
    const RpPlanOptions *options = &run->options;
    guint rounds = options->micro_batches / options->round;

    printf("\nHow (roundpipe, %s optimizer)\n", options->async ? "asynchronous" : "synchronous");
    printf("  %-15s %u sequence%s, %u micro-batches, %u round%s of M_R = %u\n", "micro-batch",
           run->sequences, run->sequences == 1 ? "" : "s", options->micro_batches, rounds,
           rounds == 1 ? "" : "s", options->round);
    print_stages("forward stages", advice->profile, run->partition->forward,
                 run->partition->n_forward);
    print_stages("backward stages", advice->profile, run->partition->backward,
                 run->partition->n_backward);
    printf("  %-15s %.0f tokens/s, %.3f s a step, bubble ratio %.2f %% (steady state)\n",
           "predicted", run->tokens_per_s, (double)run->step_ns / (double)RP_NS_PER_S,
           100 * run->bubble_ratio);
    if (run->bound_tokens_per_s > 0)
        printf("  %-15s %.0f tokens/s in compute fidelity: no transfer, no optimizer\n", "against",
               run->bound_tokens_per_s);
    if (run->simulated_micro_batches < options->micro_batches)
        printf("  %-15s from %u of %u micro-batches, scaled\n", "simulated",
               run->simulated_micro_batches, options->micro_batches);
}

/* Sizes of a run, two cells. */
static void
add_sizes(RpCliTable *table, const RpAdviseRun *run)
{
    g_autofree char *gpu = rp_cli_format_bytes(run->gpu.total);
    g_autofree char *host = rp_cli_format_bytes(run->host.total);

    rp_cli_table_add(table, "%s", run->partition != NULL ? gpu : "-");
    rp_cli_table_add(table, "%s", run->partition != NULL ? host : "-");
}

static void
add_figures(RpCliTable *table, const RpAdviseRun *run)
{
    if (run->simulated) {
        rp_cli_table_add(table, "%.0f", run->tokens_per_s);
        rp_cli_table_add(table, "%.2f", 100 * run->bubble_ratio);
    } else {
        rp_cli_table_add(table, "-");
        rp_cli_table_add(table, "-");
    }
}

static void
print_candidates(const RpAdvice *advice)
{
    static const char *const columns[] = {"  sequences", "M",   "M_R",  "stages", "tokens/s",
                                          "bubble %",    "GPU", "host", "<",      NULL};
    g_autoptr(RpCliTable) table = rp_cli_table_new(columns);

    printf("\nWhy: micro-batches compared\n");
    for (guint i = 0; i < advice->candidates->len; i++) {
        const RpAdviseRun *run = g_ptr_array_index(advice->candidates, i);

        rp_cli_table_add(table, "%u", run->sequences);
        rp_cli_table_add(table, "%u", run->options.micro_batches);
        rp_cli_table_add(table, "%u", run->options.round);
        rp_cli_table_add(table, "%u", run->partition->n_forward + run->partition->n_backward);
        add_figures(table, run);
        add_sizes(table, run);
        if (run == advice->best)
            rp_cli_table_add(table, "recommended");
        else if (run->problem != NULL)
            rp_cli_table_add(table, "%s", run->problem);
        else if (!run->simulated)
            rp_cli_table_add(table, "%.0f tokens/s before any transfer", run->bound_tokens_per_s);
        else
            rp_cli_table_add(table, "%s", "");
    }
    rp_cli_table_print(table);
    if (advice->untried > 0)
        printf("  (%u more left out: slower before any transfer is counted)\n", advice->untried);
}

static void
add_memory_row(RpCliTable *table, const char *name, guint64 gpu, guint64 host)
{
    g_autofree char *gpu_text = rp_cli_format_bytes(gpu);
    g_autofree char *host_text = rp_cli_format_bytes(host);

    rp_cli_table_add(table, "  %s", name);
    rp_cli_table_add(table, "%s", gpu > 0 ? gpu_text : "-");
    rp_cli_table_add(table, "%s", host > 0 ? host_text : "-");
}

static void
print_memory(const RpAdviseQuery *query, const RpAdviseBytes *gpu, const RpAdviseBytes *host,
             const char *whose)
{
    static const char *const columns[] = {"<  category", "each GPU", "host", NULL};
    g_autoptr(RpCliTable) table = rp_cli_table_new(columns);

    printf("\nMemory%s\n", whose);
    for (guint c = 0; c < RP_N_BUFFER_CATEGORIES; c++)
        if (gpu->categories[c] + host->categories[c] > 0)
            add_memory_row(table, rp_buffer_category_name((RpBufferCategory)c), gpu->categories[c],
                           host->categories[c]);
    add_memory_row(table, "total", gpu->total, host->total);
    add_memory_row(table, "limit", query->gpu_bytes, query->host_bytes);
    rp_cli_table_print(table);
    if (query->host_bytes == 0)
        printf("  (host memory is reported, not checked: no --host-memory)\n");
}

static void
print_schedules(const RpAdvice *advice)
{
    static const char *const columns[] = {
        "<  schedule", "sequences", "stages", "tokens/s", "bubble %", "GPU", "host", "<", NULL};
    g_autoptr(RpCliTable) table = rp_cli_table_new(columns);

    printf("\nSchedules (predicted; all but \"roundpipe async\" step synchronously)\n");
    for (guint i = 0; i < advice->schedules->len; i++) {
        const RpAdviseRun *run = g_ptr_array_index(advice->schedules, i);
        g_autofree char *name = rp_plan_run_name(run);

        rp_cli_table_add(table, "  %s", name);
        rp_cli_table_add(table, "%u", run->sequences);
        if (run->partition != NULL)
            rp_cli_table_add(table, "%u", run->partition->n_forward + run->partition->n_backward);
        else
            rp_cli_table_add(table, "-");
        add_figures(table, run);
        add_sizes(table, run);
        rp_cli_table_add(table, "%s", run->problem != NULL ? run->problem : "");
    }
    rp_cli_table_print(table);
}

static void
print_longest(const RpAdviseLongest *longest)
{
    printf("\nLongest sequence at micro-batch 1: ");
    if (!longest->known) {
        printf("not predicted from a timing file, which has sizes for one length only\n");
        return;
    }
    if (longest->tokens == 0) {
        printf("none, not even %d tokens\n", RP_ADVISE_SEQUENCE_STEP);
        return;
    }
    printf("%u tokens", longest->tokens);
    if (longest->tokens > longest->max_positions)
        printf(", beyond the model's %u positions", longest->max_positions);
    if (longest->unlimited)
        printf("; no memory limit was reached\n");
    else
        printf("; then %s memory is full, most of it %s\n", longest->host_limited ? "host" : "GPU",
               rp_buffer_category_name(longest->largest));
}

/* Whose sizes the longest sequence was found with. */
static void
print_sizes(const RpPlanNetwork *network)
{
    if (network == NULL)
        return;
    printf("  (sizes of what `roundpipe train` runs, with %s kernels%s)\n",
           rp_plan_network_devices(network),
           strcmp(rp_plan_network_devices(network), "host") == 0
               ? "; a GPU's need more room, which a program built with CUDA knows"
               : "");
}

static void
print_list(const char *key, const GArray *blocks)
{
    g_autofree char *list =
        rp_partition_format_list((const guint *)(void *)blocks->data, blocks->len);

    printf("  %s: %s\n", key, blocks->len > 0 ? list : "none");
}

/* What makes `train` do it: with its own choice of stages it fits as well, unless host memory is
 * short. */
static void
print_keys(const RpAdviseQuery *query, const RpAdviseLongest *longest, const RpPlanNetwork *network)
{
    printf("\nIn a run file\n");
    printf("  sequence_length: %u\n", longest->tokens);
    printf("  micro_batches: %u\n", longest->micro_batches);
    printf("  device_memory: %" G_GUINT64_FORMAT "\n", query->gpu_bytes);
    printf("  attention: %s\n", rp_plan_network_attention(network));
    print_list("forward_stages", longest->forward_blocks);
    print_list("backward_stages", longest->backward_blocks);
    if (query->sync)
        printf("  async: false\n");
    if (query->optimizer == RP_OPTIMIZER_LEAN)
        printf("  optimizer: {mode: lean}\n");
}

void
rp_cmd_plan_print_tables(const RpAdvice *advice, const RpPlanQuestion *question)
{
    const RpAdviseRun *planned = advice->best != NULL ? advice->best : advice->nearest;

    if (advice->best != NULL) {
        print_recommendation(advice);
        print_candidates(advice);
    }
    print_memory(&advice->query, &planned->gpu, &planned->host,
                 advice->best != NULL ? "" : " of RoundPipe's plan that needs least");
    print_schedules(advice);
    print_longest(&advice->longest);
    print_sizes(question->sized);
}

void
rp_cmd_plan_print_longest(const RpPlanQuestion *question, const RpAdviseLongest *longest)
{
    const RpAdviseQuery *query = &question->query;
    g_autofree char *limit = rp_cli_format_bytes(query->gpu_bytes);

    printf("%s on %u x %s, %s, predicted\n", question->name, query->gpus,
           query->gpu != NULL ? query->gpu->title : limit, query->dtype);
    print_longest(longest);
    print_sizes(question->sized);
    if (longest->tokens == 0)
        return;
    print_memory(query, &longest->gpu, &longest->host, "");
    if (question->sized != NULL)
        print_keys(query, longest, question->sized);
}
