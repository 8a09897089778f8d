/* roundpipe plan: the advice as JSON. */
#include "cli/plan/plan.h"
#include "core/base/units.h"
#include "run/settings.h"

static void
json_bytes(RpJsonWriter *json, const char *key, const RpAdviseBytes *bytes, guint64 limit,
           guint64 over)
{
    rp_json_object(json, key);
    for (guint c = 0; c < RP_N_BUFFER_CATEGORIES; c++)
        rp_json_int(json, rp_buffer_category_name((RpBufferCategory)c),
                    (gint64)bytes->categories[c]);
    rp_json_int(json, "total", (gint64)bytes->total);
    if (limit != 0) {
        rp_json_int(json, "limit", (gint64)limit);
        rp_json_int(json, "over", (gint64)over);
    }
    rp_json_end(json);
}

static const char *const waits_names[] = {
    [RP_ADVISE_WAITS_LITTLE] = "nothing",      [RP_ADVISE_WAITS_OPTIMIZER] = "optimizer",
    [RP_ADVISE_WAITS_SUMS] = "sums",           [RP_ADVISE_WAITS_UPLOADS] = "uploads",
    [RP_ADVISE_WAITS_DOWNLOADS] = "downloads", [RP_ADVISE_WAITS_STAGES] = "each other",
};

static void
json_run(RpJsonWriter *json, const char *key, const RpAdvice *advice, const RpAdviseRun *run)
{
    if (!run) {
        rp_json_null(json, key);
        return;
    }
    const RpPlanOptions *options = &run->options;
    const RpPartition *partition = run->partition;
    rp_json_object(json, key);
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
        rp_json_double(json, "optimizer_ms", rp_ms_from_ns(run->optimizer_ns), 6);
        rp_json_string(json, "waits_for", waits_names[run->waits]);
    }
    rp_json_end(json);
}

static void
json_runs(RpJsonWriter *json, const char *key, const RpAdvice *advice, const GPtrArray *runs)
{
    rp_json_array(json, key);
    for (guint i = 0; i < runs->len; i++)
        json_run(json, NULL, advice, g_ptr_array_index(runs, i));
    rp_json_end(json);
}

static void
json_longest(RpJsonWriter *json, const RpPlanQuestion *question, const RpAdviseLongest *longest)
{
    const RpAdviseQuery *query = &question->query;
    const RpPlanNetwork *network = question->sized;

    if (!longest->known) {
        rp_json_null(json, "longest_sequence");
        return;
    }
    rp_json_object(json, "longest_sequence");
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
        rp_json_blocks(json, "forward_stages", longest->forward_blocks);
        rp_json_blocks(json, "backward_stages", longest->backward_blocks);
        json_bytes(json, "gpu", &longest->gpu, query->gpu_bytes, 0);
        json_bytes(json, "host", &longest->host, query->host_bytes, 0);
    }
    rp_json_end(json);
}

static void
json_query(RpJsonWriter *json, const char *name, const RpAdviseQuery *query, guint gpus_asked)
{
    rp_json_string(json, "origin", "predicted");
    rp_json_string(json, "model", name);
    if (rp_plan_device_name(query) != NULL)
        rp_json_string(json, "device", rp_plan_device_name(query));
    if (query->gpu != NULL) {
        rp_json_bool(json, "times_measured", query->gpu->measured);
        rp_json_string(json, "times_basis", query->gpu->basis);
    }
    rp_json_int(json, "gpus", query->gpus);
    rp_json_int(json, "gpus_asked", gpus_asked);
    rp_json_int(json, "gpu_memory_bytes", (gint64)query->gpu_bytes);
    rp_json_int(json, "host_memory_bytes", (gint64)query->host_bytes);
    rp_json_string(json, "dtype", query->dtype);
    rp_json_string(json, "accumulate", query->accumulate);
    rp_json_int(json, "lora_rank", query->lora_rank);
    rp_json_string(json, "optimizer", rp_setting_value_name("optimizer.mode", query->optimizer));
    rp_json_bool(json, "sync", query->sync);
}

static void
json_remedies(RpJsonWriter *json, const GPtrArray *remedies)
{
    rp_json_array(json, "remedies");
    for (guint i = 0; i < remedies->len; i++) {
        const RpAdviseRemedy *remedy = g_ptr_array_index(remedies, i);

        g_autofree char *change = rp_plan_remedy_words(remedy);

        rp_json_object(json, NULL);
        rp_json_string(json, "change", change);
        rp_json_int(json, "gpu_peak_bytes", (gint64)remedy->gpu_total);
        rp_json_int(json, "host_peak_bytes", (gint64)remedy->host_total);
        rp_json_end(json);
    }
    rp_json_end(json);
}

/* Links, host and optimizer: of the timing file, or what the catalogue takes the server to be. */
static void
json_assumed(RpJsonWriter *json, const RpProfile *profile)
{
    const RpLinks *links = &profile->links;

    rp_json_object(json, "assumed");
    rp_json_double(json, "h2d_gb_per_s", links->h2d_bytes_per_s / 1e9, 3);
    rp_json_double(json, "d2h_gb_per_s", links->d2h_bytes_per_s / 1e9, 3);
    rp_json_double(json, "root_gb_per_s", links->root_bytes_per_s / 1e9, 3);
    rp_json_int(json, "gpus_per_root", links->gpus_per_root);
    rp_json_double(json, "host_gb_per_s", links->host_bytes_per_s / 1e9, 3);
    rp_json_double(json, "optimizer_parameters_per_s", profile->optimizer_parameters_per_s, 3);
    rp_json_end(json);
}

/* What a run of the plan shown takes beside memory. */
static void
json_costs(RpJsonWriter *json, const RpAdvice *advice, const RpPlanQuestion *question)
{
    const RpAdviseRun *run = rp_plan_shown_run(advice);
    guint64 parameters, trained;

    rp_plan_count_parameters(advice->profile, &parameters, &trained);
    rp_json_int(json, "parameters", (gint64)parameters);
    rp_json_int(json, "trained_parameters", (gint64)trained);
    rp_json_int(json, "checkpoint_bytes",
                (gint64)rp_plan_checkpoint_bytes(advice->profile, &run->options));
    if (question->tokens > 0 && run->tokens_per_s > 0) {
        rp_json_int(json, "tokens", (gint64)question->tokens);
        rp_json_double(json, "hours", (double)question->tokens / run->tokens_per_s / 3600, 3);
    }
}

void
rp_cmd_plan_json(const RpAdvice *advice, const RpPlanQuestion *question)
{
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_LINES);
    const RpAdviseQuery *query = &advice->query;
    const RpAdviseRun *planned = advice->best != NULL ? advice->best : advice->nearest;

    rp_json_object(json, NULL);
    json_query(json, question->name, query, advice->gpus_asked);
    rp_json_int(json, "sequence", query->tokens_per_sequence);
    rp_json_int(json, "batch", query->batch);
    rp_json_int(json, "batch_asked", advice->batch_asked);
    rp_json_bool(json, "fits", advice->best != NULL);
    json_run(json, "recommendation", advice, advice->best);
    json_run(json, "instead", advice, advice->instead);
    json_costs(json, advice, question);
    json_assumed(json, advice->profile);
    json_bytes(json, "gpu", &planned->gpu, query->gpu_bytes, planned->gpu_over_bytes);
    json_bytes(json, "host", &planned->host, query->host_bytes, planned->host_over_bytes);
    json_runs(json, "candidates", advice, advice->candidates);
    rp_json_int(json, "untried_micro_batches", advice->untried);
    json_remedies(json, advice->remedies);
    json_runs(json, "schedules", advice, advice->schedules);
    json_longest(json, question, &advice->longest);
    rp_json_end(json);
    rp_cli_print_json(json);
}

void
rp_cmd_plan_json_longest(const RpPlanQuestion *question, const RpAdviseLongest *longest)
{
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_LINES);

    rp_json_object(json, NULL);
    json_query(json, question->name, &question->query, question->query.gpus);
    json_longest(json, question, longest);
    rp_json_end(json);
    rp_cli_print_json(json);
}
