/* roundpipe plan: the advice as text and as JSON. */
#include "cli/cmd-plan.h"

#include <stdio.h>
#include <string.h>

#include "core/units.h"

/* ---- words that both outputs use ---- */

/* Of a whole advice; the longest sequence has a name of its own. */
static const char *
model_name(const RpAdviseQuery *query)
{
    return query->model != NULL ? query->model->name : query->profile->model;
}

static const char *
device_name(const RpAdviseQuery *query)
{
    return query->gpu != NULL ? query->gpu->title : query->profile->device;
}

/* The run that the memory table is of. */
static const RpAdviseRun *
shown_run(const RpAdvice *advice)
{
    return advice->best != NULL ? advice->best : advice->nearest;
}

static char *
row_name(const RpAdviseRun *run)
{
    if (!run->options.schedule->dispatched)
        return g_strdup(run->options.schedule->name);
    return g_strdup_printf("%s %s", run->options.schedule->name,
                           run->options.async ? "async" : "sync");
}

/* ---- JSON ---- */

static void
json_bytes(JsonBuilder *json, const char *key, const RpAdviseBytes *bytes, guint64 limit,
           guint64 over)
{
    json_builder_set_member_name(json, key);
    json_builder_begin_object(json);
    for (guint c = 0; c < RP_N_BUFFER_CATEGORIES; c++)
        rp_json_int(json, rp_buffer_category_name((RpBufferCategory)c),
                    (gint64)bytes->categories[c]);
    rp_json_int(json, "total", (gint64)bytes->total);
    if (limit != 0) {
        rp_json_int(json, "limit", (gint64)limit);
        rp_json_int(json, "over", (gint64)over);
    }
    json_builder_end_object(json);
}

static void
json_run(JsonBuilder *json, const RpAdvice *advice, const RpAdviseRun *run)
{
    const RpPlanOptions *options = &run->options;
    const RpPartition *partition = run->partition;

    json_builder_begin_object(json);
    rp_json_string(json, "schedule", options->schedule->name);
    rp_json_bool(json, "async", options->async);
    rp_json_bool(json, "fits", run->problem == NULL);
    if (run->problem != NULL)
        rp_json_string(json, "problem", run->problem);
    rp_json_int(json, "micro_batch", run->sequences);
    rp_json_int(json, "micro_batches", options->micro_batches);
    rp_json_int(json, "round", options->round);
    if (partition != NULL) {
        rp_json_counts(json, "forward_stages", advice->profile, partition->forward,
                       partition->n_forward);
        if (partition->dispatched)
            rp_json_counts(json, "backward_stages", advice->profile, partition->backward,
                           partition->n_backward);
        rp_json_int(json, "gpu_peak_bytes", (gint64)run->gpu.total);
        rp_json_int(json, "host_peak_bytes", (gint64)run->host.total);
    }
    if (run->bound_tokens_per_s > 0)
        rp_json_double(json, "compute_tokens_per_s", run->bound_tokens_per_s, 3);
    if (run->simulated) {
        rp_json_double(json, "step_ms", rp_ms_from_ns(run->step_ns), 6);
        rp_json_double(json, "bubble_ratio", run->bubble_ratio, 9);
        rp_json_double(json, "tokens_per_s", run->tokens_per_s, 3);
        rp_json_int(json, "simulated_micro_batches", run->simulated_micro_batches);
    }
    json_builder_end_object(json);
}

static void
json_runs(JsonBuilder *json, const char *key, const RpAdvice *advice, const GPtrArray *runs)
{
    json_builder_set_member_name(json, key);
    json_builder_begin_array(json);
    for (guint i = 0; i < runs->len; i++)
        json_run(json, advice, g_ptr_array_index(runs, i));
    json_builder_end_array(json);
}

static void
json_blocks(JsonBuilder *json, const char *key, const GArray *blocks)
{
    json_builder_set_member_name(json, key);
    json_builder_begin_array(json);
    for (guint i = 0; i < blocks->len; i++)
        json_builder_add_int_value(json, g_array_index(blocks, guint, i));
    json_builder_end_array(json);
}

static void
json_longest(JsonBuilder *json, const RpAdviseQuery *query, const RpAdviseLongest *longest,
             const RpPlanNetwork *network)
{
    json_builder_set_member_name(json, "longest_sequence");
    if (!longest->known) {
        json_builder_add_null_value(json);
        return;
    }
    json_builder_begin_object(json);
    rp_json_int(json, "tokens", longest->tokens);
    rp_json_int(json, "micro_batch", 1);
    rp_json_int(json, "max_positions", longest->max_positions);
    rp_json_bool(json, "beyond_max_positions", longest->tokens > longest->max_positions);
    rp_json_string(json, "sizes",
                   network != NULL ? rp_plan_network_devices(network) : "cost model");
    rp_json_bool(json, "unlimited", longest->unlimited);
    if (!longest->unlimited) {
        rp_json_string(json, "limited_by", longest->host_limited ? "host" : "gpu");
        rp_json_string(json, "largest", rp_buffer_category_name(longest->largest));
    }
    if (longest->tokens > 0) {
        rp_json_int(json, "micro_batches", longest->micro_batches);
        json_blocks(json, "forward_stages", longest->forward_blocks);
        json_blocks(json, "backward_stages", longest->backward_blocks);
        json_bytes(json, "gpu", &longest->gpu, query->gpu_bytes, 0);
        json_bytes(json, "host", &longest->host, query->host_bytes, 0);
    }
    json_builder_end_object(json);
}

static void
json_query(JsonBuilder *json, const char *name, const RpAdviseQuery *query, guint gpus_asked)
{
    rp_json_string(json, "origin", "predicted");
    rp_json_string(json, "model", name);
    if (query->gpu != NULL || query->profile != NULL)
        rp_json_string(json, "device", device_name(query));
    rp_json_int(json, "gpus", query->gpus);
    rp_json_int(json, "gpus_asked", gpus_asked);
    rp_json_int(json, "gpu_memory_bytes", (gint64)query->gpu_bytes);
    rp_json_int(json, "host_memory_bytes", (gint64)query->host_bytes);
    rp_json_string(json, "dtype", query->dtype);
    rp_json_string(json, "accumulate", query->accumulate);
    rp_json_int(json, "lora_rank", query->lora_rank);
    rp_json_string(json, "optimizer", rp_cmd_plan_optimizers[query->optimizer]);
    rp_json_bool(json, "sync", query->sync);
}

static void
json_remedies(JsonBuilder *json, const GPtrArray *remedies)
{
    json_builder_set_member_name(json, "remedies");
    json_builder_begin_array(json);
    for (guint i = 0; i < remedies->len; i++) {
        const RpAdviseRemedy *remedy = g_ptr_array_index(remedies, i);

        json_builder_begin_object(json);
        rp_json_string(json, "change", remedy->change);
        rp_json_int(json, "gpu_peak_bytes", (gint64)remedy->gpu_total);
        rp_json_int(json, "host_peak_bytes", (gint64)remedy->host_total);
        json_builder_end_object(json);
    }
    json_builder_end_array(json);
}

static void
print_json(const RpAdvice *advice, const RpPlanNetwork *network)
{
    g_autoptr(JsonBuilder) json = json_builder_new();
    const RpAdviseQuery *query = &advice->query;
    const RpAdviseRun *shown = shown_run(advice);

    json_builder_begin_object(json);
    json_query(json, model_name(query), query, advice->gpus_asked);
    rp_json_int(json, "sequence", query->tokens_per_sequence);
    rp_json_int(json, "batch", query->batch);
    rp_json_bool(json, "fits", advice->best != NULL);
    json_builder_set_member_name(json, "recommendation");
    if (advice->best != NULL)
        json_run(json, advice, advice->best);
    else
        json_builder_add_null_value(json);
    json_bytes(json, "gpu", &shown->gpu, query->gpu_bytes, shown->gpu_over_bytes);
    json_bytes(json, "host", &shown->host, query->host_bytes, shown->host_over_bytes);
    json_runs(json, "candidates", advice, advice->candidates);
    rp_json_int(json, "untried_micro_batches", advice->untried);
    json_remedies(json, advice->remedies);
    json_runs(json, "schedules", advice, advice->schedules);
    json_longest(json, query, &advice->longest, network);
    json_builder_end_object(json);
    rp_cli_print_json(json);
}

/* ---- text ---- */

static void
print_heading(const RpAdviseQuery *query)
{
    printf("%s on %u x %s, %s with %s sums, ", model_name(query), query->gpus, device_name(query),
           query->dtype, query->accumulate);
    if (query->profile != NULL)
        printf("%s times", query->profile->source);
    else if (query->lora_rank > 0)
        printf("LoRA rank %u", query->lora_rank);
    else
        printf("full-parameter");
}

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

    printf("\nRecommended (roundpipe, %s optimizer)\n",
           options->async ? "asynchronous" : "synchronous");
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
print_missing(const char *where, const RpAdviseBytes *bytes, guint64 over)
{
    g_autofree char *text = rp_cli_format_bytes(over);
    RpBufferCategory largest = rp_advise_largest_category(bytes);
    g_autofree char *part = rp_cli_format_bytes(bytes->categories[largest]);

    if (over > 0)
        printf("  %s: %s too much (%" G_GUINT64_FORMAT " bytes); the largest part is %s, %s\n",
               where, text, over, rp_buffer_category_name(largest), part);
}

static void
print_no_fit(const RpAdvice *advice)
{
    const RpAdviseRun *run = advice->nearest;

    printf("\nDoes not fit\n");
    print_missing("GPU memory", &run->gpu, run->gpu_over_bytes);
    print_missing("host memory", &run->host, run->host_over_bytes);
    if (run->gpu_over_bytes == 0 && run->host_over_bytes == 0)
        printf("  %s\n", run->problem);
    printf("\nWhat would make it fit (each was planned)\n");
    for (guint i = 0; i < advice->remedies->len; i++) {
        const RpAdviseRemedy *remedy = g_ptr_array_index(advice->remedies, i);
        g_autofree char *gpu = rp_cli_format_bytes(remedy->gpu_total);
        g_autofree char *host = rp_cli_format_bytes(remedy->host_total);

        printf("  %s  (%s on each GPU, %s on the host)\n", remedy->change, gpu, host);
    }
    if (advice->remedies->len == 0)
        printf("  nothing that was tried: choose a smaller model\n");
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
        g_autofree char *name = row_name(run);

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

static void
print_text(const RpAdvice *advice, const RpPlanNetwork *network)
{
    const RpAdviseQuery *query = &advice->query;
    const RpAdviseRun *shown = shown_run(advice);

    print_heading(query);
    printf(": %u sequences of %u tokens a step, predicted\n", query->batch,
           query->tokens_per_sequence);
    if (query->gpus < advice->gpus_asked)
        printf("note: %u micro-batches keep only %u of the %u GPUs busy; the rest of this is for "
               "%u GPUs,\n  a batch of %u sequences or more would use all\n",
               query->gpus, query->gpus, advice->gpus_asked, query->gpus,
               advice->gpus_asked * MAX(1, query->micro_batch));
    if (query->model != NULL && query->tokens_per_sequence > query->model->max_positions)
        printf("note: sequences of %u tokens are beyond the model's %u positions\n",
               query->tokens_per_sequence, query->model->max_positions);
    if (advice->best != NULL) {
        print_recommendation(advice);
        print_candidates(advice);
    }
    print_memory(query, &shown->gpu, &shown->host,
                 advice->best != NULL ? "" : " of the plan that needs least");
    if (advice->best == NULL)
        print_no_fit(advice);
    print_schedules(advice);
    print_longest(&advice->longest);
    print_sizes(network);
}

/* ---- either ---- */

void
rp_cmd_plan_print(const RpAdvice *advice, const RpPlanNetwork *network, gboolean as_json)
{
    if (as_json)
        print_json(advice, network);
    else
        print_text(advice, network);
}

static void
print_longest_text(const char *name, const RpAdviseQuery *query, const RpAdviseLongest *longest,
                   const RpPlanNetwork *network)
{
    g_autofree char *limit = rp_cli_format_bytes(query->gpu_bytes);

    if (network == NULL) {
        print_heading(query);
        printf(", predicted\n");
    } else {
        printf("%s on %u x %s, %s, predicted\n", name, query->gpus,
               query->gpu != NULL ? query->gpu->title : limit, query->dtype);
    }
    print_longest(longest);
    print_sizes(network);
    if (longest->tokens == 0)
        return;
    print_memory(query, &longest->gpu, &longest->host, "");
    if (network != NULL)
        print_keys(query, longest, network);
}

void
rp_cmd_plan_print_longest(const char *name, const RpAdviseQuery *query,
                          const RpAdviseLongest *longest, const RpPlanNetwork *network,
                          gboolean as_json)
{
    if (!as_json) {
        print_longest_text(name, query, longest, network);
        return;
    }
    g_autoptr(JsonBuilder) json = json_builder_new();

    json_builder_begin_object(json);
    json_query(json, name, query, query->gpus);
    json_longest(json, query, longest, network);
    json_builder_end_object(json);
    rp_cli_print_json(json);
}
