#include "cli/cli.h"

#include <string.h>

#include "cli/reports/reports.h"
#include "core/base/units.h"

#define BAR_WIDTH 24

/* One way to divide the model, and what it leads to. */
typedef struct {
    RpRequest request;
    gint64 search_us;
    RpBalance balance;
    GArray *times_ns; /* (element-type gint64) */
    RpResult synchronous;
    RpResult asynchronous;
} Choice;

static void
clear_choice(gpointer data)
{
    Choice *choice = data;

    rp_request_clear(&choice->request);
    rp_result_clear(&choice->synchronous);
    rp_result_clear(&choice->asynchronous);
    g_clear_pointer(&choice->times_ns, g_array_unref);
}

/* Simulates the partition of @request once with and once without a flush between iterations. */
static gboolean
evaluate(const RpRequest *request, const RpProfile *profile, gboolean async, RpResult *result,
         GError **error)
{
    RpRequest other = *request; /* shares the partition */
    g_autoptr(RpPlan) plan = NULL;

    rp_request_time(&other, async);
    g_autoptr(RpTrace) trace = rp_request_simulate(&other, profile, &plan, error);

    if (trace == NULL)
        return FALSE;
    rp_result_measure(&other, profile, plan, trace, result);
    return TRUE;
}

static gboolean
choose(const RpArgs *args, const char *objective, const char *path, const RpProfile *profile,
       GArray *choices, GError **error)
{
    RpArgs with = *args;
    gint64 begin_us = g_get_monotonic_time();

    rp_args_set(&with, "partition", objective);
    g_array_set_size(choices, choices->len + 1);
    Choice *choice = &g_array_index(choices, Choice, choices->len - 1);
    if (!rp_schedule_args_resolve(&with, profile, &choice->request, error)) {
        if ((*error)->domain == RP_PROFILE_ERROR)
            g_prefix_error(error, "%s: ", path);
        return FALSE;
    }
    choice->search_us = g_get_monotonic_time() - begin_us;
    choice->balance = rp_partition_balance(profile, choice->request.partition, &choice->times_ns);
    return evaluate(&choice->request, profile, FALSE, &choice->synchronous, error) &&
           evaluate(&choice->request, profile, TRUE, &choice->asynchronous, error);
}

/* (M S + N (N - 1)) t_max / N of a dispatched partition: the paper's objective as a time. */
static double
paper_bound_ms(const Choice *choice)
{
    const RpPlanOptions *options = &choice->request.options;
    double N = options->gpus, M = options->micro_batches, S = choice->balance.n_stages;

    return (M * S + N * (N - 1)) / N * rp_ms_from_ns(choice->balance.max_ns);
}

/* "embed, blocks 0-6" */
static char *
describe_layers(const RpProfile *profile, RpInterval stage)
{
    GString *text = g_string_new(NULL);
    guint first_block = rp_profile_first_block(profile);
    guint end = stage.first + stage.count;
    guint n_blocks = 0, block = 0;

    for (guint l = stage.first; l < end; l++) {
        if (profile->layers[l].kind == RP_LAYER_BLOCK) {
            block = n_blocks++ == 0 ? l - first_block : block;
            continue;
        }
        if (profile->layers[l].kind == RP_LAYER_EMBEDDING)
            g_string_append(text, n_blocks + 1 < stage.count ? "embedding, " : "embedding");
    }
    if (n_blocks == 1)
        g_string_append_printf(text, "block %u", block);
    else if (n_blocks > 1)
        g_string_append_printf(text, "blocks %u-%u", block, block + n_blocks - 1);
    if (stage.count > 0 && profile->layers[end - 1].kind == RP_LAYER_HEAD)
        g_string_append(text, n_blocks > 0 ? ", head" : "head");
    return g_string_free(text, FALSE);
}

static RpInterval
stage_layers(const RpPartition *partition, guint s)
{
    return s < partition->n_forward ? partition->forward[s]
                                    : partition->backward[s - partition->n_forward];
}

static const char *
stage_kind(const RpPartition *partition, guint s)
{
    if (!partition->dispatched)
        return "bound";
    if (s < partition->n_forward)
        return "forward";
    return s == partition->n_forward ? "fused" : "backward";
}

static void
report_stage_table(RpReport *report, const Choice *choice, const RpProfile *profile)
{
    const RpPartition *partition = choice->request.partition;
    const gint64 max_ns = choice->balance.max_ns;

    rp_report_head(report, "Stages of the %s partition", choice->request.partition_source);
    rp_report_table(report, NULL, NULL, 0);
    for (guint s = 0; s < choice->times_ns->len; s++) {
        const gint64 time_ns = g_array_index(choice->times_ns, gint64, s);
        g_autofree char *layers = describe_layers(profile, stage_layers(partition, s));
        g_autofree char *bar = g_strnfill(
            max_ns == 0 ? 0 : (gsize)((2 * BAR_WIDTH * time_ns + max_ns) / (2 * max_ns)), '#');

        rp_report_object(report, NULL, NULL);
        rp_report_count(report, NULL, s, "  stage");
        rp_report_text(report, NULL, stage_kind(partition, s), "<kind");
        rp_report_text(report, NULL, layers, "<layers");
        rp_report_ms(report, NULL, time_ns, "ms");
        rp_report_text(report, NULL, bar, "<");
        rp_report_end(report);
    }
    rp_report_end(report);
}

static void
report_above(RpReport *report, const RpResult *result, const char *label)
{
    if (result->bound_ns > 0)
        rp_report_line(report, label, "%.2f", rp_result_above_bound(result));
    else
        rp_report_line(report, label, "-");
}

static void
report_choice(RpReport *report, const Choice *choice, const RpProfile *profile)
{
    const RpResult *synchronous = &choice->synchronous, *asynchronous = &choice->asynchronous;
    const RpBalance *balance = &choice->balance;
    const char *source = choice->request.partition_source;

    rp_report_object(report, NULL, source);
    rp_report_text(report, "partition", source, NULL);
    rp_report_count(report, "round", choice->request.options.round, NULL);
    rp_report_add_partition(report, profile, choice->request.partition, NULL);
    rp_report_count(report, "stages", balance->n_stages, "stages S");
    rp_report_line(report, "round M_R", "%u", choice->request.options.round);
    rp_report_ms(report, "max_ms", balance->max_ns, "largest stage t_max, ms");
    rp_report_ms(report, "min_ms", balance->min_ns, NULL);
    rp_report_ms(report, "total_ms", balance->total_ns, NULL);
    rp_report_real(report, "balance", balance->balance, 9, "balance (mean / max)");
    rp_report_show(report, "%.4f", balance->balance);
    if (choice->request.partition->dispatched) {
        rp_report_real(report, "paper_objective_ms", paper_bound_ms(choice), 6,
                       "(M S + N (N-1)) t_max / N, ms");
        rp_report_show(report, "%.3f", paper_bound_ms(choice));
    }
    rp_report_ms(report, "makespan_ms", synchronous->makespan_ns, "makespan, ms");
    report_above(report, synchronous, "above any partition's least, %");
    rp_report_ratio(report, "bubble_ratio", synchronous->bubble.ratio, "bubble, %");
    if (synchronous->bound_ns > 0) {
        rp_report_ms(report, "bound_ms", synchronous->bound_ns, NULL);
        rp_report_ms(report, "steady_bound_ms", asynchronous->bound_ns, NULL);
    }
    rp_report_ms(report, "steady_iteration_ms", asynchronous->iteration_ns,
                 "steady iteration, ms (async)");
    report_above(report, asynchronous, "above any partition's least, % (async)");
    rp_report_ratio(report, "steady_bubble_ratio", asynchronous->bubble.ratio,
                    "steady bubble, % (async)");
    rp_report_ms(report, "search_ms", choice->search_us * 1000, "search, ms");
    rp_report_list(report, "stage_ms");
    for (guint s = 0; s < choice->times_ns->len; s++)
        rp_report_ms(report, NULL, g_array_index(choice->times_ns, gint64, s), NULL);
    rp_report_end(report);
    rp_report_end(report);
}

/* As options, to be typed again. */
static void
report_lists(RpReport *report, const RpRequest *request, const RpProfile *profile)
{
    const RpPartition *partition = request->partition;
    g_autofree char *forward = rp_cli_stage_list(profile, partition->forward, partition->n_forward);
    g_autofree char *backward =
        rp_cli_stage_list(profile, partition->backward, partition->n_backward);

    if (partition->dispatched)
        rp_report_say(report, "%-9s  --forward-stages %s --backward-stages %s --round %u",
                      request->partition_source, forward, backward, request->options.round);
    else
        rp_report_say(report, "%-9s  --stages %s", request->partition_source, forward);
}

static void
report_choices(RpReport *report, const GArray *choices, const RpProfile *profile)
{
    const RpPlanOptions *options = &g_array_index(choices, Choice, 0).request.options;
    g_autofree char *model = rp_cli_model_name(profile);

    rp_report_say(report,
                  "%s of %s, %u GPUs, %u micro-batches, objective: %s; predicted, %s layer "
                  "times\n",
                  options->schedule->title, model, options->gpus, options->micro_batches,
                  options->async ? "asynchronous iteration" : "makespan", profile->source);
    rp_report_text(report, "origin", "predicted", NULL);
    rp_report_text(report, "model", profile->model, NULL);
    rp_report_text(report, "schedule", options->schedule->name, NULL);
    rp_report_count(report, "gpus", options->gpus, NULL);
    rp_report_count(report, "micro_batches", options->micro_batches, NULL);
    rp_report_bool(report, "async", options->async, NULL);
    rp_report_columns(report, "partitions", "");
    for (guint i = 0; i < choices->len; i++)
        report_choice(report, &g_array_index(choices, Choice, i), profile);
    rp_report_end(report);
    rp_report_say(report, " ");
    for (guint i = 0; i < choices->len; i++)
        report_lists(report, &g_array_index(choices, Choice, i).request, profile);
    for (guint i = 0; i < choices->len; i++)
        report_stage_table(report, &g_array_index(choices, Choice, i), profile);
}

static gboolean
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
    static const char *const objectives[] = {"paper", "simulated"};
    const char *path = words[0];
    g_autoptr(RpProfile) profile =
        rp_cli_load_profile(path, &args->box, args->run.plan.gpus, error);
    g_autoptr(GArray) choices = g_array_new(FALSE, TRUE, sizeof(Choice));

    if (args->schedule == NULL && args->run.schedule_file == NULL)
        args->schedule = (char *)"roundpipe";
    const char *partition = rp_run_spec_given(&args->run, "partition");
    RpArgs searched = *args;

    g_array_set_clear_func(choices, clear_choice);
    const RpScheduleOps *schedule =
        profile == NULL || args->schedule == NULL ? NULL : rp_schedule_find(args->schedule, NULL);
    if (profile == NULL || (schedule != NULL && !rp_schedule_args_check(args, schedule, error)))
        return FALSE;
    searched.run.stages = searched.run.forward_stages = searched.run.backward_stages = NULL;
    for (guint i = 0; i < G_N_ELEMENTS(objectives); i++)
        if ((partition == NULL || strcmp(partition, objectives[i]) == 0) &&
            !choose(&searched, objectives[i], path, profile, choices, error))
            return FALSE;
    if ((args->run.stages != NULL || args->run.forward_stages != NULL ||
         args->run.backward_stages != NULL) &&
        !choose(args, NULL, path, profile, choices, error))
        return FALSE;
    report_choices(report, choices, profile);
    return TRUE;
}

const RpCommand rp_command_partition = {
    .name = "partition",
    .summary = "divide a model into stages",
    .expert = TRUE,
    .words = "PROFILE.json",
    .help = "Divides a model into stages by both objectives and shows what each leads to.\n"
            "A stage list that is given is shown beside them.\n\n"
            "Examples:\n"
            "  roundpipe partition profiles/rtx4090/qwen3-1.7b.json \\\n"
            "    --gpus 8 --micro-batches 16\n"
            "  roundpipe partition profiles/rtx4090/qwen3-1.7b.json \\\n"
            "    --gpus 8 --micro-batches 16 --schedule 1f1b --stages 3,3,4*5,2",
    .requests = RP_REQUEST,
    .run = run,
};
