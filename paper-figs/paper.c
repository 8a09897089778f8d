#include "paper-figs/paper.h"

#include <string.h>

#include "core/base/file.h"
#include "plots/gnuplot.h"
#include "plots/table.h"
#include "sim/steady-window.h"

#define MAX_MEASURED_BYTES ((gsize)1 << 20)

const RpPaperModel rp_paper_models[RP_PAPER_N_MODELS] = {
    {"qwen3-1.7b", "Qwen3-1.7B", "Qwen3-1.7B", "qwen3-1.7b", 512},
    {"llama-3.1-8b", "Llama-3.1-8B", "Llama-3.1-8B", "llama-3.1-8b", 256},
    {"gpt-oss-20b", "GPT-OSS-20B", "GPT-OSS-20B", "gpt-oss-20b", 128},
    {"qwen3-32b", "Qwen3-32B", "Qwen3-32B", "qwen3-32b", 128},
    {"qwen3-235b-a22b", "Qwen3-235B-A22B", "Qwen3-235B-A22B (LoRA)", "qwen3-235b-lora", 64},
};

struct _RpPaper {
    RpFigureStyle style;
    char *profiles_dir;
    char *measured_dir;     /* or NULL */
    GHashTable *profiles;   /* model -> RpProfile */
    GHashTable *partitions; /* key -> Chosen */
    GMutex lock;            /* over both: recipes run at the same time */
    GCond found;
};

typedef struct {
    RpPartition *partition; /* %NULL: another recipe is searching for it */
    guint round;
} Chosen;

static void
free_chosen(gpointer data)
{
    Chosen *chosen = data;

    rp_partition_free(chosen->partition);
    g_free(chosen);
}

RpPaper *
rp_paper_new(const char *profiles_dir, const char *measured_dir)
{
    RpPaper *paper = g_new0(RpPaper, 1);

    paper->profiles_dir = g_strdup(profiles_dir);
    paper->measured_dir = g_strdup(measured_dir);
    paper->profiles =
        g_hash_table_new_full(g_str_hash, g_str_equal, g_free, (GDestroyNotify)rp_profile_free);
    paper->partitions = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, free_chosen);
    return paper;
}

void
rp_paper_set_style(RpPaper *paper, const RpFigureStyle *style)
{
    paper->style = *style;
}

const RpFigureStyle *
rp_paper_style(const RpPaper *paper)
{
    return &paper->style;
}

void
rp_paper_free(RpPaper *paper)
{
    if (paper == NULL)
        return;
    g_free(paper->profiles_dir);
    g_free(paper->measured_dir);
    g_hash_table_unref(paper->profiles);
    g_hash_table_unref(paper->partitions);
    g_mutex_clear(&paper->lock);
    g_cond_clear(&paper->found);
    g_free(paper);
}

char *
rp_paper_profile_path(const RpPaper *paper, const char *model)
{
    g_autofree char *file = g_strconcat(model, ".json", NULL);

    return g_build_filename(paper->profiles_dir, "rtx4090", file, NULL);
}

const RpProfile *
rp_paper_profile(RpPaper *paper, const char *model, GError **error)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&paper->lock);
    RpProfile *profile = g_hash_table_lookup(paper->profiles, model);

    if (profile != NULL)
        return profile;
    g_autofree char *path = rp_paper_profile_path(paper, model);
    profile = rp_profile_load(path, error);
    if (profile != NULL)
        g_hash_table_insert(paper->profiles, g_strdup(model), profile);
    return profile;
}

GPtrArray *
rp_paper_measured(const RpPaper *paper, const char *file, GError **error)
{
    g_autofree char *text = NULL;
    g_autoptr(GError) local = NULL;
    gsize length;

    if (paper->measured_dir == NULL) {
        text = rp_table_built_in(file);
        return rp_measured_parse(text, file, error);
    }
    g_autofree char *path = g_build_filename(paper->measured_dir, file, NULL);
    text = rp_file_read(path, MAX_MEASURED_BYTES, &length, &local);
    if (text == NULL)
        return rp_null(rp_fail(error, RP_PLOT_ERROR,
                               g_error_matches(local, G_FILE_ERROR, G_FILE_ERROR_NOENT)
                                   ? RP_PLOT_ERROR_EMPTY
                                   : RP_PLOT_ERROR_DATA,
                               "%s", local->message));
    return rp_measured_parse(text, path, error);
}

/* Everything that a search depends on: recipes that ask for the same share its result. */
static char *
key_of(const char *model, const RpPlanOptions *options, RpPartitionObjective objective)
{
    const gboolean dispatched = options->schedule->dispatched;
    return g_strdup_printf("%s %s %u %u %u %d %d %d %d", model, options->schedule->name,
                           options->gpus, options->micro_batches, options->round, options->async,
                           options->recompute,
                           dispatched ? options->fused_forward : RP_FUSED_PHYSICAL, objective);
}

/* The result of @key, waiting for another thread that searches for it. Returns: %NULL: the caller
 * must search for it, and others wait. @paper is locked */
static const Chosen *
await_chosen(RpPaper *paper, const char *key)
{
    const Chosen *chosen;

    while ((chosen = g_hash_table_lookup(paper->partitions, key)) != NULL &&
           chosen->partition == NULL)
        g_cond_wait(&paper->found, &paper->lock);
    if (chosen == NULL)
        g_hash_table_insert(paper->partitions, g_strdup(key), g_new0(Chosen, 1));
    return chosen;
}

RpPartition *
rp_paper_partition(RpPaper *paper, const char *model, RpPlanOptions *options,
                   RpPartitionObjective objective, GError **error)
{
    const RpProfile *profile = rp_paper_profile(paper, model, error);
    g_autofree char *key = key_of(model, options, objective);
    guint round = 0;

    if (profile == NULL)
        return NULL;
    g_mutex_lock(&paper->lock);
    const Chosen *chosen = await_chosen(paper, key);
    RpPartition *partition = chosen != NULL ? rp_partition_copy(chosen->partition) : NULL;

    if (chosen != NULL)
        options->round = chosen->round;
    g_mutex_unlock(&paper->lock);
    if (partition != NULL)
        return partition;
    /* bound schedules are compared as published, whether or not they would fit */
    partition = rp_partition_choose(
        profile, options, objective, 0,
        options->schedule->dispatched ? rp_profile_plan_bytes(profile) : 0, &round, error);
    g_mutex_lock(&paper->lock);
    if (partition != NULL) {
        Chosen *found = g_hash_table_lookup(paper->partitions, key);

        *found = (Chosen){rp_partition_copy(partition), round};
        options->round = round;
    } else {
        g_hash_table_remove(paper->partitions, key);
        g_prefix_error(error, "%s, %s: ", options->schedule->title, model);
    }
    g_cond_broadcast(&paper->found);
    g_mutex_unlock(&paper->lock);
    return partition;
}

RpPartition *
rp_paper_parse_partition(const RpProfile *profile, const char *text, GError **error)
{
    g_auto(GStrv) lists = g_strsplit(text, "|", 2);
    g_autoptr(GArray) first = rp_partition_parse_list(lists[0] != NULL ? lists[0] : "", error);

    if (first == NULL)
        return NULL;
    const guint *counts = (const guint *)(const void *)first->data;
    if (lists[1] == NULL)
        return rp_partition_from_blocks(profile, counts, first->len, error);
    g_autoptr(GArray) second = rp_partition_parse_list(lists[1], error);
    if (second == NULL)
        return NULL;
    return rp_partition_from_dispatched_blocks(
        profile, counts, first->len, (const guint *)(const void *)second->data, second->len, error);
}

static char *
format_stages(const RpProfile *profile, const RpInterval *stages, guint n)
{
    g_autoptr(GArray) counts = rp_partition_block_counts(profile, stages, n);

    return rp_partition_format_list((const guint *)(const void *)counts->data, counts->len);
}

static char *
command_of(const RpProfile *profile, const char *file, const RpPartition *partition,
           const RpPlanOptions *options, guint iterations)
{
    GString *command = g_string_new(NULL);
    g_autofree char *forward = format_stages(profile, partition->forward, partition->n_forward);

    if (options->schedule->given != NULL) /* it says how many of both there are */
        g_string_printf(command, "roundpipe simulate %s --schedule-file %s", file,
                        options->schedule->name);
    else
        g_string_printf(command, "roundpipe simulate %s --schedule %s --gpus %u --micro-batches %u",
                        file, options->schedule->name, options->gpus, options->micro_batches);
    if (partition->dispatched) {
        g_autofree char *backward =
            format_stages(profile, partition->backward, partition->n_backward);

        g_string_append_printf(command, " --round %u --forward-stages '%s' --backward-stages '%s'",
                               options->round ? options->round : options->micro_batches, forward,
                               backward);
    } else {
        g_string_append_printf(command, " --stages '%s'", forward);
    }
    if (options->fidelity == RP_FIDELITY_FULL)
        g_string_append(command, " --fidelity full");
    if (partition->dispatched ? options->fused_forward == RP_FUSED_PUBLISHED
                              : options->recompute == RP_RECOMPUTE_GATED)
        g_string_append(command, " --published");
    if (options->transfers == RP_TRANSFERS_NAIVE)
        g_string_append(command, " --transfers naive");
    if (options->consistency == RP_CONSISTENCY_BLOCKING)
        g_string_append(command, " --consistency blocking");
    if (options->optimizer == RP_OPTIMIZER_LEAN)
        g_string_append(command, " --optimizer lean");
    if (options->async)
        g_string_append(command, " --async");
    if (iterations > 1)
        g_string_append_printf(command, " --iterations %u", iterations);
    return g_string_free(command, FALSE);
}

void
rp_paper_run_free(RpPaperRun *run)
{
    if (run == NULL)
        return;
    rp_plan_free(run->plan);
    rp_trace_free(run->trace);
    g_free(run->command);
    g_free(run);
}

RpPaperRun *
rp_paper_simulate(const RpProfile *profile, const char *file, const RpPartition *partition,
                  const RpPlanOptions *options, guint iterations, GError **error)
{
    g_autoptr(RpPaperRun) run = g_new0(RpPaperRun, 1);
    guint round = options->round ? options->round : options->micro_batches;
    guint slots = partition->dispatched ? (partition->n_forward + partition->n_backward) *
                                              (options->micro_batches / round)
                                        : options->gpus;
    RpSteadyWindow window = rp_steady_window(options->gpus, slots);
    RpMachine machine = rp_machine_from_profile(profile);

    if (iterations == 0)
        iterations = options->async ? window.iterations : 1;
    run->command = command_of(profile, file, partition, options, iterations);
    run->plan = rp_plan_make(profile, partition, options, iterations, error);
    if (run->plan != NULL)
        run->trace = rp_simulate(run->plan, &machine, error);
    if (run->trace == NULL)
        return rp_null(rp_prefix_error(error, "%s: ", run->command));
    run->bubble = iterations == 1 ? rp_report_bubble(run->trace)
                                  : rp_report_bubble_of_iteration(run->trace, 0);
    if (options->async && iterations >= window.iterations)
        run->steady = rp_report_steady(run->trace, window.first, window.end);
    return g_steal_pointer(&run);
}

RpPaperRun *
rp_paper_simulate_published(RpPaper *paper, RpPlanOptions options, guint iterations, GError **error)
{
    const RpProfile *profile = rp_paper_profile(paper, RP_PAPER_EXAMPLE, error);
    g_autofree char *file = rp_paper_profile_path(paper, RP_PAPER_EXAMPLE);

    if (profile == NULL)
        return NULL;
    options.schedule = rp_schedule_find("roundpipe", error);
    g_autoptr(RpPartition) partition =
        options.schedule != NULL ? rp_paper_parse_partition(profile, "7*4|0,3*8,2*2", error) : NULL;
    return partition != NULL
               ? rp_paper_simulate(profile, file, partition, &options, iterations, error)
               : NULL;
}

RpProfile *
rp_paper_made_up_profile(guint layers, char *model)
{
    RpProfile *profile = rp_profile_new(layers);

    rp_profile_take(&profile->model, model);
    rp_profile_take(&profile->source, g_strdup("predicted"));
    rp_profile_take(&profile->origin, g_strdup("made up for a figure"));
    return profile;
}

void
rp_paper_add(GPtrArray *figures, RpFigure *figure, const char *caption, const GPtrArray *commands)
{
    g_autofree char *draw = g_strdup_printf("roundpipe figures -o DIR %s", rp_figure_name(figure));

    rp_figure_set_caption(figure, caption);
    if (commands == NULL)
        rp_figure_add_command(figure, draw);
    for (guint i = 0; commands != NULL && i < commands->len; i++)
        rp_figure_add_command(figure, g_ptr_array_index(commands, i));
    g_ptr_array_add(figures, figure);
}

void
rp_paper_add_bars(RpPaper *paper, GPtrArray *figures, RpBarChart *chart, const char *caption,
                  const GPtrArray *commands)
{
    rp_bar_chart_set_style(chart, &paper->style);
    rp_paper_add(figures, rp_bar_chart_figure(chart), caption, commands);
}

void
rp_paper_add_lines(RpPaper *paper, GPtrArray *figures, RpLineChart *chart, const char *caption,
                   const GPtrArray *commands)
{
    rp_line_chart_set_style(chart, &paper->style);
    rp_paper_add(figures, rp_line_chart_figure(chart), caption, commands);
}
