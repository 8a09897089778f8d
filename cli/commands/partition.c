#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#include "cli/reports/result.h"
#include "core/base/units.h"

#define BAR_WIDTH 32

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

    other.options.async = async;
    other.iterations = async ? request->window.iterations : 1;
    other.steady = async;
    g_autoptr(RpTrace) trace = rp_request_simulate(&other, profile, &plan, error);

    if (trace == NULL)
        return FALSE;
    rp_result_measure(&other, profile, plan, trace, result);
    return TRUE;
}

static gboolean
choose(const RpScheduleArgs *args, const char *objective, const char *path,
       const RpProfile *profile, GArray *choices, GError **error)
{
    RpScheduleArgs with = *args;
    Choice *choice;
    gint64 begin_us = g_get_monotonic_time();

    with.partition = (char *)objective;
    g_array_set_size(choices, choices->len + 1);
    choice = &g_array_index(choices, Choice, choices->len - 1);
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
print_stage_table(const Choice *choice, const RpProfile *profile)
{
    static const char *const columns[] = {"  stage", "<kind", "<layers", "ms", "<", NULL};
    const RpPartition *partition = choice->request.partition;
    g_autoptr(RpCliTable) table = rp_cli_table_new(columns);

    printf("\nStages of the %s partition\n", choice->request.partition_source);
    for (guint s = 0; s < choice->times_ns->len; s++) {
        gint64 time_ns = g_array_index(choice->times_ns, gint64, s);
        g_autofree char *layers = describe_layers(profile, stage_layers(partition, s));
        gint64 width =
            choice->balance.max_ns == 0
                ? 0
                : (2 * BAR_WIDTH * time_ns + choice->balance.max_ns) / (2 * choice->balance.max_ns);
        g_autofree char *bar = g_strnfill((gsize)width, '#');

        rp_cli_table_add(table, "%u", s);
        rp_cli_table_add(table, "%s", stage_kind(partition, s));
        rp_cli_table_add(table, "%s", layers);
        rp_cli_table_add(table, "%.3f", rp_ms_from_ns(time_ns));
        rp_cli_table_add(table, "%s", bar);
    }
    rp_cli_table_print(table);
}

typedef enum {
    ROW_STAGES,
    ROW_ROUND,
    ROW_MAX,
    ROW_BALANCE,
    ROW_BOUND,
    ROW_MAKESPAN,
    ROW_ABOVE,
    ROW_BUBBLE,
    ROW_STEADY,
    ROW_STEADY_ABOVE,
    ROW_STEADY_BUBBLE,
    ROW_SEARCH,
    N_ROWS
} RowKind;

static const char *const row_names[N_ROWS] = {
    "stages S",
    "round M_R",
    "largest stage t_max, ms",
    "balance (mean / max)",
    "(M S + N (N-1)) t_max / N, ms",
    "makespan, ms",
    "above the least that any partition may take, %",
    "bubble, %",
    "steady iteration, ms (async)",
    "above the least that any partition may take, % (async)",
    "steady bubble, % (async)",
    "search, ms",
};

static void
add_above(RpCliTable *table, const RpResult *result)
{
    if (result->bound_ns > 0)
        rp_cli_table_add(table, "%.2f", rp_result_above_bound(result));
    else
        rp_cli_table_add(table, "-");
}

static void
add_cell(RpCliTable *table, const Choice *choice, RowKind row)
{
    switch (row) {
    case ROW_STAGES:
        rp_cli_table_add(table, "%u", choice->balance.n_stages);
        return;
    case ROW_ROUND:
        rp_cli_table_add(table, "%u", choice->request.options.round);
        return;
    case ROW_MAX:
        rp_cli_table_add(table, "%.3f", rp_ms_from_ns(choice->balance.max_ns));
        return;
    case ROW_BALANCE:
        rp_cli_table_add(table, "%.4f", choice->balance.balance);
        return;
    case ROW_BOUND:
        rp_cli_table_add(table, "%.3f", paper_bound_ms(choice));
        return;
    case ROW_MAKESPAN:
        rp_cli_table_add(table, "%.3f", rp_ms_from_ns(choice->synchronous.makespan_ns));
        return;
    case ROW_ABOVE:
        add_above(table, &choice->synchronous);
        return;
    case ROW_STEADY_ABOVE:
        add_above(table, &choice->asynchronous);
        return;
    case ROW_BUBBLE:
        rp_cli_table_add(table, "%.3f", 100 * choice->synchronous.bubble.ratio);
        return;
    case ROW_STEADY:
        rp_cli_table_add(table, "%.3f", rp_ms_from_ns(choice->asynchronous.iteration_ns));
        return;
    case ROW_STEADY_BUBBLE:
        rp_cli_table_add(table, "%.3f", 100 * choice->asynchronous.bubble.ratio);
        return;
    case ROW_SEARCH:
        rp_cli_table_add(table, "%.3f", (double)choice->search_us / 1000);
        return;
    case N_ROWS:
        return;
    }
}

static void
print_text(const GArray *choices, const RpProfile *profile)
{
    const Choice *first = &g_array_index(choices, Choice, 0);
    const RpPlanOptions *options = &first->request.options;
    const char *columns[5] = {"<", NULL};

    for (guint i = 0; i < choices->len; i++)
        columns[i + 1] = g_array_index(choices, Choice, i).request.partition_source;
    g_autoptr(RpCliTable) table = rp_cli_table_new(columns);

    g_autofree char *model = rp_cli_model_name(profile);

    printf("%s of %s, %u GPUs, %u micro-batches, objective: %s; predicted, %s layer times\n\n",
           options->schedule->title, model, options->gpus, options->micro_batches,
           options->async ? "asynchronous iteration" : "makespan", profile->source);
    for (guint row = 0; row < N_ROWS; row++) {
        if (row == ROW_BOUND && !options->schedule->dispatched)
            continue;
        rp_cli_table_add(table, "%s", row_names[row]);
        for (guint i = 0; i < choices->len; i++)
            add_cell(table, &g_array_index(choices, Choice, i), (RowKind)row);
    }
    rp_cli_table_print(table);
    putchar('\n');
    for (guint i = 0; i < choices->len; i++) {
        const RpRequest *request = &g_array_index(choices, Choice, i).request;
        const RpPartition *partition = request->partition;
        g_autofree char *forward =
            rp_cli_stage_list(profile, partition->forward, partition->n_forward);
        g_autofree char *backward =
            rp_cli_stage_list(profile, partition->backward, partition->n_backward);

        if (partition->dispatched)
            printf("%-9s  --forward-stages %s --backward-stages %s --round %u\n",
                   request->partition_source, forward, backward, request->options.round);
        else
            printf("%-9s  --stages %s\n", request->partition_source, forward);
    }
    for (guint i = 0; i < choices->len; i++)
        print_stage_table(&g_array_index(choices, Choice, i), profile);
}

static void
json_choice(RpJsonWriter *json, const Choice *choice, const RpProfile *profile)
{
    rp_json_object(json, NULL);
    rp_json_string(json, "partition", choice->request.partition_source);
    rp_json_int(json, "round", choice->request.options.round);
    rp_json_partition(json, profile, choice->request.partition);
    rp_json_int(json, "stages", choice->balance.n_stages);
    rp_json_double(json, "max_ms", rp_ms_from_ns(choice->balance.max_ns), 6);
    rp_json_double(json, "min_ms", rp_ms_from_ns(choice->balance.min_ns), 6);
    rp_json_double(json, "total_ms", rp_ms_from_ns(choice->balance.total_ns), 6);
    rp_json_double(json, "balance", choice->balance.balance, 9);
    if (choice->request.partition->dispatched)
        rp_json_double(json, "paper_objective_ms", paper_bound_ms(choice), 6);
    rp_json_double(json, "makespan_ms", rp_ms_from_ns(choice->synchronous.makespan_ns), 6);
    rp_json_double(json, "bubble_ratio", choice->synchronous.bubble.ratio, 9);
    if (choice->synchronous.bound_ns > 0) {
        rp_json_double(json, "bound_ms", rp_ms_from_ns(choice->synchronous.bound_ns), 6);
        rp_json_double(json, "steady_bound_ms", rp_ms_from_ns(choice->asynchronous.bound_ns), 6);
    }
    rp_json_double(json, "steady_iteration_ms", rp_ms_from_ns(choice->asynchronous.iteration_ns),
                   6);
    rp_json_double(json, "steady_bubble_ratio", choice->asynchronous.bubble.ratio, 9);
    rp_json_double(json, "search_ms", (double)choice->search_us / 1000, 3);
    rp_json_array(json, "stage_ms");
    for (guint s = 0; s < choice->times_ns->len; s++)
        rp_json_double(json, NULL, rp_ms_from_ns(g_array_index(choice->times_ns, gint64, s)), 6);
    rp_json_end(json);
    rp_json_end(json);
}

static void
print_json(const GArray *choices, const RpProfile *profile)
{
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_LINES);
    const RpPlanOptions *options = &g_array_index(choices, Choice, 0).request.options;

    rp_json_object(json, NULL);
    rp_json_string(json, "origin", "predicted");
    rp_json_string(json, "model", profile->model);
    rp_json_string(json, "schedule", options->schedule->name);
    rp_json_int(json, "gpus", options->gpus);
    rp_json_int(json, "micro_batches", options->micro_batches);
    rp_json_bool(json, "async", options->async);
    rp_json_array(json, "partitions");
    for (guint i = 0; i < choices->len; i++)
        json_choice(json, &g_array_index(choices, Choice, i), profile);
    rp_json_end(json);
    rp_json_end(json);
    rp_cli_print_json(json);
}

static gboolean
run(const RpScheduleArgs *args, const char *path, GError **error)
{
    static const char *const objectives[] = {"paper", "simulated"};
    g_autoptr(RpProfile) profile = rp_cli_load_profile(path, (guint)MAX(0, args->gpus), error);
    g_autoptr(GArray) choices = g_array_new(FALSE, TRUE, sizeof(Choice));
    RpScheduleArgs searched = *args;

    g_array_set_clear_func(choices, clear_choice);
    const RpScheduleOps *schedule = profile == NULL ? NULL : rp_schedule_find(args->schedule, NULL);
    if (profile == NULL || (schedule != NULL && !rp_schedule_args_check(args, schedule, error)))
        return FALSE;
    searched.stages = searched.forward_stages = searched.backward_stages = NULL;
    for (guint i = 0; i < G_N_ELEMENTS(objectives); i++)
        if ((args->partition == NULL || strcmp(args->partition, objectives[i]) == 0) &&
            !choose(&searched, objectives[i], path, profile, choices, error))
            return FALSE;
    if ((args->stages != NULL || args->forward_stages != NULL || args->backward_stages != NULL) &&
        !choose(args, NULL, path, profile, choices, error))
        return FALSE;
    if (choices->len == 0) /* an unknown objective: let the parser say so */
        return choose(&searched, args->partition, path, profile, choices, error);
    if (args->json)
        print_json(choices, profile);
    else
        print_text(choices, profile);
    return TRUE;
}

int
rp_cmd_partition(int argc, char **argv)
{
    RpScheduleArgs args = {0};
    g_autofree GOptionEntry *entries = rp_schedule_args_entries(&args, TRUE);
    GError *error = NULL;
    int code = RP_EXIT_OK;

    if (!rp_cli_parse("PROFILE.json",
                      "Divides a model into stages by both objectives and shows what each leads "
                      "to.\nA stage list that is given is shown beside them.\n\n"
                      "Examples:\n"
                      "  roundpipe partition profiles/rtx4090/qwen3-1.7b.json \\\n"
                      "    --gpus 8 --micro-batches 16\n"
                      "  roundpipe partition profiles/rtx4090/qwen3-1.7b.json \\\n"
                      "    --gpus 8 --micro-batches 16 --schedule 1f1b --stages 3,3,4*5,2",
                      entries, NULL, 1, 1, &argc, &argv, &error))
        code = rp_cli_fail("partition", error);
    else {
        if (args.schedule == NULL)
            args.schedule = g_strdup("roundpipe");
        if (!run(&args, argv[1], &error))
            code = rp_cli_fail("partition", error);
    }
    rp_schedule_args_clear(&args);
    return code;
}
