/* roundpipe plan: what will happen if I train MODEL on N x GPU. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#include "core/cost-model.h"
#include "core/units.h"
#include "sim/advise.h"

/* The words as written. */
typedef struct {
    char *model;
    char *gpu;
    char *profile;
    int gpus;
    char *gpu_memory;
    char *host_memory;
    int sequence;
    int batch;
    int lora_rank;
    int micro_batch;
    int micro_batches;
    int round;
    gboolean sync;
    char *dtype;
    char *accumulate;
    char *optimizer;
    char *schedules;
    gboolean max_sequence;
    gboolean json;
} Args;

/* What they mean. */
typedef struct {
    RpAdviseQuery query;
    RpProfile *profile;
    GPtrArray *schedules; /* (element-type RpScheduleOps), %NULL-terminated */
} Question;

static const char *const dtype_names[] = {"bf16", "fp16", NULL};
static const char *const accumulate_names[] = {"fp32", "fp16", NULL};
static const char *const optimizer_names[] = {"fused", "lean", NULL};

static void
clear_args(Args *args)
{
    g_free(args->model);
    g_free(args->gpu);
    g_free(args->profile);
    g_free(args->gpu_memory);
    g_free(args->host_memory);
    g_free(args->dtype);
    g_free(args->accumulate);
    g_free(args->optimizer);
    g_free(args->schedules);
}

static void
clear_question(Question *question)
{
    rp_profile_free(question->profile);
    g_clear_pointer(&question->schedules, g_ptr_array_unref);
}

/* ---- reading ---- */

static gboolean
refuse(const char *option, const char *message, GError **error)
{
    g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE, "%s: %s", option, message);
    return FALSE;
}

/* What the library refuses because of the words is wrong usage. */
static void
blame_usage(GError **error)
{
    if (*error == NULL || (*error)->domain != RP_ADVISE_ERROR)
        return;
    (*error)->domain = RP_CLI_ERROR;
    (*error)->code = RP_CLI_ERROR_USAGE;
}

/* Counts that cannot be left out. */
static gboolean
check_counts(const Args *args, GError **error)
{
    const struct {
        const char *option;
        gboolean missing;
    } counts[] = {
        {"--gpus", args->gpus == 0},
        {"--sequence", args->sequence == 0 && args->profile == NULL && !args->max_sequence},
        {"--batch", args->batch == 0 && !args->max_sequence &&
                        (args->micro_batch == 0 || args->micro_batches == 0)},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(counts); i++)
        if (counts[i].missing)
            return refuse(counts[i].option, "expected a number of 1 or more, found nothing", error);
    return TRUE;
}

static gboolean
read_schedules(const char *list, Question *question, GError **error)
{
    question->schedules = g_ptr_array_new();
    if (list == NULL) {
        for (const RpScheduleOps *const *at = rp_schedules(); *at != NULL; at++)
            g_ptr_array_add(question->schedules, (gpointer)*at);
    } else {
        g_auto(GStrv) names = g_strsplit(list, ",", -1);

        for (guint i = 0; names[i] != NULL; i++) {
            const RpScheduleOps *schedule = rp_schedule_find(g_strstrip(names[i]), error);

            if (schedule == NULL) {
                g_prefix_error(error, "--schedules: ");
                return FALSE;
            }
            g_ptr_array_add(question->schedules, (gpointer)schedule);
        }
    }
    g_ptr_array_add(question->schedules, NULL);
    return TRUE;
}

/* Options that say what the catalogue's cost model is asked; a timing file has the answers. */
static gboolean
read_profile(const Args *args, Question *question, GError **error)
{
    RpAdviseQuery *query = &question->query;

    if (args->gpu != NULL)
        return refuse("--profile", "the file names its GPU; leave --gpu out", error);
    if (args->dtype != NULL || args->accumulate != NULL || args->lora_rank != 0)
        return refuse(
            "--profile",
            "the file's times have their own --dtype, --accumulate and --lora-rank; leave "
            "them out",
            error);
    if (args->max_sequence)
        return refuse("--max-sequence",
                      "a timing file has sizes for one length only; use --model and --gpu", error);
    question->profile = rp_profile_load(args->profile, error);
    if (question->profile == NULL)
        return FALSE;
    if (!rp_profile_check_full(question->profile, error)) {
        g_prefix_error(error, "%s: ", args->profile);
        return FALSE;
    }
    const RpProfile *profile = question->profile;

    if (args->model != NULL && g_ascii_strcasecmp(args->model, profile->model) != 0) {
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                    "--model: expected \"%s\" as in %s, or nothing, found \"%s\"", profile->model,
                    args->profile, args->model);
        return FALSE;
    }
    if (args->sequence != 0 && (guint)args->sequence != profile->tokens_per_sequence) {
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                    "--sequence: expected %u as in %s, or nothing, found %d",
                    profile->tokens_per_sequence, args->profile, args->sequence);
        return FALSE;
    }
    query->profile = profile;
    query->tokens_per_sequence = profile->tokens_per_sequence;
    query->dtype = profile->dtype;
    query->accumulate = profile->accumulate;
    if (profile->gpu_memory_bytes > RP_ADVISE_GPU_RESERVE_BYTES)
        query->gpu_bytes = profile->gpu_memory_bytes - RP_ADVISE_GPU_RESERVE_BYTES;
    return TRUE;
}

static gboolean
read_catalogue(const Args *args, Question *question, GError **error)
{
    RpAdviseQuery *query = &question->query;
    int index;

    if (args->model == NULL || args->gpu == NULL)
        return refuse(args->model == NULL ? "--model" : "--gpu",
                      "expected a name, found nothing; or give --profile", error);
    query->model = rp_model_find(args->model, error);
    if (query->model == NULL) {
        g_prefix_error(error, "--model: ");
        return FALSE;
    }
    query->gpu = rp_gpu_find(args->gpu, error);
    if (query->gpu == NULL) {
        g_prefix_error(error, "--gpu: ");
        return FALSE;
    }
    index = args->dtype != NULL ? rp_cli_choice("dtype", args->dtype, dtype_names, error) : 0;
    if (index < 0)
        return FALSE;
    query->dtype = dtype_names[index];
    index = args->accumulate != NULL
                ? rp_cli_choice("accumulate", args->accumulate, accumulate_names, error)
                : 0;
    if (index < 0)
        return FALSE;
    query->accumulate = accumulate_names[index];
    query->tokens_per_sequence = (guint)args->sequence;
    query->lora_rank = (guint)args->lora_rank;
    query->gpu_bytes = query->gpu->memory_bytes - RP_ADVISE_GPU_RESERVE_BYTES;
    return TRUE;
}

static gboolean
read_memory(const char *option, const char *text, guint64 *bytes, GError **error)
{
    if (text == NULL)
        return TRUE;
    if (!rp_cli_parse_bytes(option, text, bytes, error))
        return FALSE;
    if (*bytes > 0)
        return TRUE;
    g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE, "--%s: expected more than 0, found \"%s\"",
                option, text);
    return FALSE;
}

static gboolean
read_question(const Args *args, Question *question, GError **error)
{
    RpAdviseQuery *query = &question->query;
    int optimizer = 0;

    query->gpus = (guint)args->gpus;
    query->batch = (guint)args->batch;
    query->micro_batch = (guint)args->micro_batch;
    query->micro_batches = (guint)args->micro_batches;
    query->round = (guint)args->round;
    query->sync = args->sync;
    if (args->optimizer != NULL)
        optimizer = rp_cli_choice("optimizer", args->optimizer, optimizer_names, error);
    if (optimizer < 0)
        return FALSE;
    query->optimizer = (RpOptimizerMode)optimizer;
    if (!check_counts(args, error) || !read_schedules(args->schedules, question, error))
        return FALSE;
    if (!(args->profile != NULL ? read_profile(args, question, error)
                                : read_catalogue(args, question, error)))
        return FALSE;
    return read_memory("gpu-memory", args->gpu_memory, &query->gpu_bytes, error) &&
           read_memory("host-memory", args->host_memory, &query->host_bytes, error);
}

/* ---- words that both outputs use ---- */

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
json_longest(JsonBuilder *json, const RpAdviseQuery *query, const RpAdviseLongest *longest)
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
    rp_json_bool(json, "unlimited", longest->unlimited);
    if (!longest->unlimited) {
        rp_json_string(json, "limited_by", longest->host_limited ? "host" : "gpu");
        rp_json_string(json, "largest", rp_buffer_category_name(longest->largest));
    }
    if (longest->tokens > 0) {
        json_bytes(json, "gpu", &longest->gpu, query->gpu_bytes, 0);
        json_bytes(json, "host", &longest->host, query->host_bytes, 0);
    }
    json_builder_end_object(json);
}

static void
json_query(JsonBuilder *json, const RpAdviseQuery *query, guint gpus_asked)
{
    rp_json_string(json, "origin", "predicted");
    rp_json_string(json, "model", model_name(query));
    rp_json_string(json, "device", device_name(query));
    rp_json_int(json, "gpus", query->gpus);
    rp_json_int(json, "gpus_asked", gpus_asked);
    rp_json_int(json, "gpu_memory_bytes", (gint64)query->gpu_bytes);
    rp_json_int(json, "host_memory_bytes", (gint64)query->host_bytes);
    rp_json_string(json, "dtype", query->dtype);
    rp_json_string(json, "accumulate", query->accumulate);
    rp_json_int(json, "lora_rank", query->lora_rank);
    rp_json_string(json, "optimizer", optimizer_names[query->optimizer]);
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
print_json(const RpAdvice *advice)
{
    g_autoptr(JsonBuilder) json = json_builder_new();
    const RpAdviseQuery *query = &advice->query;
    const RpAdviseRun *shown = shown_run(advice);

    json_builder_begin_object(json);
    json_query(json, query, advice->gpus_asked);
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
    json_longest(json, query, &advice->longest);
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
print_memory(const RpAdvice *advice)
{
    static const char *const columns[] = {"<  category", "each GPU", "host", NULL};
    g_autoptr(RpCliTable) table = rp_cli_table_new(columns);
    const RpAdviseRun *run = shown_run(advice);

    printf("\nMemory%s\n", advice->best != NULL ? "" : " of the plan that needs least");
    for (guint c = 0; c < RP_N_BUFFER_CATEGORIES; c++)
        if (run->gpu.categories[c] + run->host.categories[c] > 0)
            add_memory_row(table, rp_buffer_category_name((RpBufferCategory)c),
                           run->gpu.categories[c], run->host.categories[c]);
    add_memory_row(table, "total", run->gpu.total, run->host.total);
    add_memory_row(table, "limit", advice->query.gpu_bytes, advice->query.host_bytes);
    rp_cli_table_print(table);
    if (advice->query.host_bytes == 0)
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

static void
print_text(const RpAdvice *advice)
{
    const RpAdviseQuery *query = &advice->query;

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
    print_memory(advice);
    if (advice->best == NULL)
        print_no_fit(advice);
    print_schedules(advice);
    print_longest(&advice->longest);
}

/* ---- the command ---- */

static gboolean
run_longest(const Question *question, gboolean as_json, int *code, GError **error)
{
    const RpAdviseQuery *query = &question->query;
    RpAdviseLongest longest;

    if (!rp_advise_longest(query, &longest, error))
        return FALSE;
    *code = longest.tokens > 0 ? RP_EXIT_OK : RP_EXIT_FAILED;
    if (as_json) {
        g_autoptr(JsonBuilder) json = json_builder_new();

        json_builder_begin_object(json);
        json_query(json, query, query->gpus);
        json_longest(json, query, &longest);
        json_builder_end_object(json);
        rp_cli_print_json(json);
    } else {
        print_heading(query);
        printf(", predicted\n");
        print_longest(&longest);
    }
    return TRUE;
}

static gboolean
run(const Args *args, int *code, GError **error)
{
    Question question = {0};
    g_autoptr(RpAdvice) advice = NULL;
    gboolean done = read_question(args, &question, error);

    if (done && args->max_sequence) {
        done = run_longest(&question, args->json, code, error);
    } else if (done) {
        advice = rp_advise(&question.query,
                           (const RpScheduleOps *const *)(void *)question.schedules->pdata, error);
        done = advice != NULL;
    }
    if (advice != NULL) {
        *code = advice->best != NULL ? RP_EXIT_OK : RP_EXIT_FAILED;
        if (args->json)
            print_json(advice);
        else
            print_text(advice);
    }
    clear_question(&question);
    blame_usage(error);
    return done;
}

int
rp_cmd_plan(int argc, char **argv)
{
    Args args = {0};
    const GOptionEntry entries[] = {
        {"model", 0, 0, G_OPTION_ARG_STRING, &args.model, "model, see `roundpipe models`", "NAME"},
        {"gpu", 0, 0, G_OPTION_ARG_STRING, &args.gpu, "GPU, see `roundpipe gpus`", "NAME"},
        {"profile", 0, 0, G_OPTION_ARG_FILENAME, &args.profile,
         "timing file instead of --gpu and --model; fixes the micro-batch", "PROFILE.json"},
        {"gpus", 'n', 0, G_OPTION_ARG_INT, &args.gpus, "number of GPUs", "N"},
        {"gpu-memory", 0, 0, G_OPTION_ARG_STRING, &args.gpu_memory,
         "for a plan on each GPU (default: the card's, less 0.6 GiB for the CUDA context)", "SIZE"},
        {"host-memory", 0, 0, G_OPTION_ARG_STRING, &args.host_memory,
         "for a plan on the host (default: not checked)", "SIZE"},
        {"sequence", 0, 0, G_OPTION_ARG_INT, &args.sequence, "tokens of a sequence", "TOKENS"},
        {"batch", 0, 0, G_OPTION_ARG_INT, &args.batch, "sequences of a step, all GPUs together",
         "SEQUENCES"},
        {"lora-rank", 0, 0, G_OPTION_ARG_INT, &args.lora_rank,
         "train rank-R adapters (default: all parameters)", "R"},
        {"micro-batch", 0, 0, G_OPTION_ARG_INT, &args.micro_batch,
         "sequences of a micro-batch (default: chosen)", "B"},
        {"micro-batches", 'm', 0, G_OPTION_ARG_INT, &args.micro_batches,
         "micro-batches of a step (default: chosen)", "M"},
        {"round", 0, 0, G_OPTION_ARG_INT, &args.round, "micro-batches of a round (default: chosen)",
         "M_R"},
        {"sync", 0, 0, G_OPTION_ARG_NONE, &args.sync, "synchronous optimizer step", NULL},
        {"dtype", 0, 0, G_OPTION_ARG_STRING, &args.dtype, "bf16 (default) or fp16", "NAME"},
        {"accumulate", 0, 0, G_OPTION_ARG_STRING, &args.accumulate,
         "of matmuls: fp32 (default) or fp16", "NAME"},
        {"optimizer", 0, 0, G_OPTION_ARG_STRING, &args.optimizer,
         "fused (default, 18 bytes a parameter) or lean (16)", "NAME"},
        {"schedules", 0, 0, G_OPTION_ARG_STRING, &args.schedules,
         "schedules to compare (default: all)", "LIST"},
        {"max-sequence", 0, 0, G_OPTION_ARG_NONE, &args.max_sequence,
         "tell the longest sequence at micro-batch 1, nothing else", NULL},
        {"json", 0, 0, G_OPTION_ARG_NONE, &args.json, "print JSON", NULL},
        G_OPTION_ENTRY_NULL,
    };
    GError *error = NULL;
    int code = RP_EXIT_OK;

    if (!rp_cli_parse("",
                      "Tells what will happen if a model is trained on these GPUs.\n\n"
                      "Example:\n"
                      "  roundpipe plan --model qwen3-32b --gpu rtx4090 --gpus 8 \\\n"
                      "    --host-memory 800GiB --sequence 2048 --batch 128\n\n"
                      "Exit codes: 0 it fits, 1 it does not, 2 wrong usage.",
                      entries, NULL, 0, 0, &argc, &argv, &error) ||
        !run(&args, &code, &error))
        code = rp_cli_fail("plan", error);
    clear_args(&args);
    return code;
}
