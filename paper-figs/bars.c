/**
 * Bubble ratios: Figures 3 and 15 of the paper and Figure 15 with the recompute rule that suits
 * everybody.
 */
#include "paper-figs/paper.h"

#include <math.h>
#include <string.h>

#include "plots/table.h"

/* The six series of Figure 15. */
static const struct {
    const char *schedule;
    gboolean async;
    const char *label;
} series[] = {
    {"gpipe", FALSE, "GPipe"},
    {"1f1b", FALSE, "1F1B"},
    {"interleaved-1f1b", FALSE, "Interleaved 1F1B"},
    {"looped-bfs", FALSE, "Looped BFS"},
    {"roundpipe", FALSE, "RoundPipe sync"},
    {"roundpipe", TRUE, "RoundPipe async"},
};

/* @recompute: the bound schedules' */
static gboolean
paper_options(const char *schedule, gboolean async, RpRecompute recompute, RpPlanOptions *options,
              GError **error)
{
    *options = (RpPlanOptions){
        .schedule = rp_schedule_find(schedule, error),
        .gpus = RP_PAPER_GPUS,
        .micro_batches = RP_PAPER_MICRO_BATCHES,
        .async = async,
        .fidelity = RP_FIDELITY_COMPUTE,
    };
    if (options->schedule != NULL && !options->schedule->dispatched)
        options->recompute = recompute;
    return options->schedule != NULL;
}

/* Total of a published row; asynchronous: switch + intra of one iteration, as published. */
static double
published_ratio(const RpTable *table, const char *schedule, const char *model, gboolean async)
{
    guint row = rp_table_find(table, "schedule", schedule, "model", model);

    if (row == RP_TABLE_NONE)
        return NAN;
    if (async)
        return rp_table_number(table, row, "switch_pct") + rp_table_number(table, row, "intra_pct");
    return rp_table_number(table, row, "bubble_pct");
}

/* @published: a partition as the table writes it; %NULL = the one that our search finds for
 * @objective, with its round in @options. Records the command. */
static RpPaperRun *
simulate_model(RpPaper *paper, const RpPaperModel *model, const char *published,
               RpPartitionObjective objective, RpPlanOptions *options, GPtrArray *commands,
               GError **error)
{
    const RpProfile *profile = rp_paper_profile(paper, model->name, error);
    g_autofree char *file = rp_paper_profile_path(paper, model->name);

    if (profile == NULL)
        return NULL;
    g_autoptr(RpPartition) partition =
        published != NULL ? rp_paper_parse_partition(profile, published, error)
                          : rp_paper_partition(paper, model->name, options, objective, error);
    if (partition == NULL)
        return NULL;
    RpPaperRun *run = rp_paper_simulate(profile, file, partition, options, 0, error);
    if (run != NULL)
        g_ptr_array_add(commands, g_strdup(run->command));
    return run;
}

static void
add_run(RpBarChart *chart, const char *group, const char *label, const RpPaperRun *run,
        gboolean async, double published)
{
    if (async)
        rp_bubble_chart_add_steady(chart, group, label, &run->steady, published);
    else
        rp_bubble_chart_add(chart, group, label, &run->bubble, published);
}

gboolean
rp_paper_figure_15_published(RpPaper *paper, const char *name, GPtrArray *figures, GError **error)
{
    g_autoptr(RpTable) table = rp_table_published("published-schedules.csv");
    g_autoptr(GPtrArray) commands = rp_paper_commands();
    g_autoptr(RpBarChart) chart =
        rp_bubble_chart_new(name, "Figure 15 as published: the same partitions, simulated by us");

    rp_bar_chart_set_subtitle(chart, "predicted bars, published diamonds; 8 x RTX 4090, M = 16, "
                                     "RoundPipe M_R = 8; bound schedules gate recompute");
    rp_bar_chart_set_marker_title(chart, "published");
    for (guint m = 0; m < RP_PAPER_N_MODELS; m++) {
        const RpPaperModel *model = &rp_paper_models[m];

        for (guint s = 0; s < G_N_ELEMENTS(series); s++) {
            guint row = rp_table_find(table, "schedule", series[s].schedule, "model", model->name);
            RpPlanOptions options;

            if (row == RP_TABLE_NONE)
                continue;
            if (!paper_options(series[s].schedule, series[s].async, RP_RECOMPUTE_GATED, &options,
                               error))
                return FALSE;
            rp_plan_follow_paper(&options);
            options.round = RP_PAPER_ROUND;
            g_autoptr(RpPaperRun) run =
                simulate_model(paper, model, rp_table_text(table, row, "partition"),
                               RP_PARTITION_PAPER, &options, commands, error);
            if (run == NULL)
                return FALSE;
            add_run(chart, model->trained, series[s].label, run, series[s].async,
                    published_ratio(table, series[s].schedule, model->name, series[s].async));
        }
    }
    rp_paper_add_bars(
        paper, figures, chart,
        "Bars: predicted by our simulator (compute fidelity) from published layer times and "
        "published partitions. Diamonds: published bubble ratios; for RoundPipe async the "
        "published switch + intra of one isolated iteration, while our bar is the steady "
        "state over whole iterations. M = 16, N = 8, M_R = 8. Bound schedules start a "
        "recompute when the gradient has arrived (gated); RoundPipe starts it early. Bubble "
        "ratio = 1 - busy compute / (N x makespan).",
        commands);
    return TRUE;
}

/* Figure 15 with partitions that our own search finds, all five models. */
static const struct {
    const char *name, *title, *subtitle;
    RpRecompute recompute;
    const char *caption; /* the beginning */
} searched[] = {
    {"figure-15", "Figure 15: bubble ratio of six schedules on five models",
     "predicted; 8 x RTX 4090, M = 16; partitions found by simulation; bound schedules gate "
     "recompute, RoundPipe does not",
     RP_RECOMPUTE_GATED,
     "Every schedule has the best partition that our search finds for it "
     "(--partition simulated); RoundPipe's must fit in the GPU's memory, the others' need not. "
     "Bound schedules start a recompute when the gradient has arrived "
     "(gated, as published), RoundPipe starts it early: figure-15-early treats all alike."},
    {"figure-15-early", "Figure 15 with early recompute for every schedule",
     "predicted; 8 x RTX 4090, M = 16; partitions found by simulation; every schedule "
     "recomputes before the gradient arrives",
     RP_RECOMPUTE_EARLY,
     "As figure-15, but every schedule may recompute a stage before its gradient has "
     "arrived (the default of our commands), which the published comparison grants to RoundPipe "
     "alone."},
};

gboolean
rp_paper_figure_15(RpPaper *paper, const char *name, GPtrArray *figures, GError **error)
{
    const guint which = g_str_equal(name, searched[1].name);
    g_autoptr(GPtrArray) commands = rp_paper_commands();
    g_autoptr(RpBarChart) chart = rp_bubble_chart_new(name, searched[which].title);
    g_autoptr(GString) text = g_string_new(
        "Predicted by our simulator from published RTX 4090 layer times, compute fidelity: a fixed "
        "time per hop, no parameter transfers and no optimizer; N = 8, M = 16. ");

    rp_bar_chart_set_subtitle(chart, searched[which].subtitle);
    g_string_append_printf(
        text,
        "%s The forward of RoundPipe's fused stage waits for its input (physical), as on a "
        "machine. "
        "Asynchronous: steady state over whole iterations. Bubble ratio = 1 - busy compute / (N x "
        "makespan).",
        searched[which].caption);
    g_string_append(text, " M_R chosen for RoundPipe (sync, async):");
    for (guint m = 0; m < RP_PAPER_N_MODELS; m++) {
        const RpPaperModel *model = &rp_paper_models[m];

        g_string_append_printf(text, "%s %s", m > 0 ? ";" : "", model->trained);
        for (guint s = 0; s < G_N_ELEMENTS(series); s++) {
            RpPlanOptions options;

            if (!paper_options(series[s].schedule, series[s].async, searched[which].recompute,
                               &options, error))
                return FALSE;
            g_autoptr(RpPaperRun) run = simulate_model(paper, model, NULL, RP_PARTITION_SIMULATED,
                                                       &options, commands, error);
            if (run == NULL)
                return FALSE;
            add_run(chart, model->trained, series[s].label, run, series[s].async, NAN);
            if (options.schedule->dispatched)
                g_string_append_printf(text, "%s %u", series[s].async ? "," : "", options.round);
        }
    }
    g_string_append_c(text, '.');
    rp_paper_add_bars(paper, figures, chart, text->str, commands);
    return TRUE;
}

/* Rows of bench/schedules-on-parts, each run beside its prediction. */
gboolean
rp_paper_figure_15_measured(RpPaper *paper, const char *name, GPtrArray *figures, GError **error)
{
    static const RpBarPart parts[] = {{"measured", RP_COLOUR_SKY}};
    g_autoptr(GPtrArray) commands = rp_paper_commands();
    g_autoptr(RpTable) table = rp_table_published("figure-15.csv");
    g_autoptr(RpBarChart) chart =
        rp_bar_chart_new(name, "Figure 15 on four devices: bubble ratio, predicted and measured",
                         "bubble ratio, % of GPU time", 1, parts, G_N_ELEMENTS(parts));

    rp_bar_chart_set_subtitle(chart, "four parts of an H200, each with an RTX 4090's matmul rate "
                                     "and 24 GiB, behind one link");
    rp_bar_chart_set_marker_title(chart, "predicted before the run");
    for (guint row = 0; row < rp_table_n_rows(table); row++) {
        const double measured = rp_table_number(table, row, "measured bubble %");
        const double tokens_per_s = rp_table_number(table, row, "tokens/s");
        g_autofree char *text = g_strdup_printf("%.1f %%; %.0f tokens/s", measured, tokens_per_s);
        const RpBarRow bar = {
            .group = rp_table_text(table, row, "group"),
            .label = rp_table_text(table, row, "run"),
            .values = {measured},
            .marker = rp_table_number(table, row, "predicted bubble %"),
            .text = text,
        };

        rp_bar_chart_add(chart, &bar);
    }
    g_ptr_array_add(commands, g_strdup("bench/schedules-on-parts (docs/measurements.md)"));
    rp_paper_add_bars(
        paper, figures, chart,
        "Bars: measured by roundpipe train, steps after the second. Diamonds: predicted for "
        "the same run before it began. Four devices that are parts of one H200 "
        "(device_split: 4*24), measured with all four at work; steps of 64 sequences of "
        "2,048 tokens in 16 micro-batches.",
        commands);
    return TRUE;
}

static void
add_ideal_and_rest(RpBarChart *chart, const RpPaperModel *model, const char *label,
                   const RpPaperRun *run, double published)
{
    guint stages = rp_plan_n_stages(run->plan);
    double overhead = RP_PAPER_GPUS * (RP_PAPER_GPUS - 1);
    double ideal = overhead / ((double)stages * RP_PAPER_MICRO_BATCHES + overhead);
    g_autoptr(GString) text = g_string_new(NULL);
    g_autofree char *named = g_strdup_printf("%s, S = %u", label, stages);
    RpBarRow bar = {
        .group = model->trained,
        .label = named,
        .values = {100 * ideal, 100 * (run->bubble.ratio - ideal)},
        .marker = published,
    };

    g_autofree char *real = rp_text_percent(run->bubble.ratio);
    g_autofree char *least = rp_text_percent(ideal);

    rp_text_append(text, "%s (ideal %s)", real, least);
    bar.text = text->str;
    rp_bar_chart_add(chart, &bar);
}

gboolean
rp_paper_figure_3(RpPaper *paper, const char *name, GPtrArray *figures, GError **error)
{
    static const RpBarPart parts[] = {
        {"ideal: equal stages, no hops", RP_COLOUR_SKY},
        {"added by unequal stages and hops", RP_COLOUR_VERMILLION},
    };
    static const char *const names[] = {"interleaved-1f1b", "looped-bfs"};
    g_autoptr(RpTable) table = rp_table_published("published-schedules.csv");
    g_autoptr(GPtrArray) commands = rp_paper_commands();
    g_autoptr(RpBarChart) chart =
        rp_bar_chart_new(name, "Figure 3: looped schedules, ideal and real bubble ratio",
                         "bubble ratio, % of GPU time", 1, parts, G_N_ELEMENTS(parts));

    rp_bar_chart_set_subtitle(chart, "predicted bars, published diamonds; 8 x RTX 4090, M = 16, "
                                     "gated recompute");
    rp_bar_chart_set_marker_title(chart, "published");
    for (guint m = 0; m < RP_PAPER_N_MODELS; m++) {
        const RpPaperModel *model = &rp_paper_models[m];

        for (guint s = 0; s < G_N_ELEMENTS(names); s++) {
            guint row = rp_table_find(table, "schedule", names[s], "model", model->name);
            RpPlanOptions options;

            if (!paper_options(names[s], FALSE, RP_RECOMPUTE_GATED, &options, error))
                return FALSE;
            const char *published =
                row == RP_TABLE_NONE ? NULL : rp_table_text(table, row, "partition");
            g_autoptr(RpPaperRun) run = simulate_model(paper, model, published, RP_PARTITION_PAPER,
                                                       &options, commands, error);
            if (run == NULL)
                return FALSE;
            add_ideal_and_rest(chart, model, options.schedule->title, run,
                               published_ratio(table, names[s], model->name, FALSE));
        }
    }
    rp_paper_add_bars(
        paper, figures, chart,
        "Bars: predicted. Ideal is N(N-1) / (SM + N(N-1)), the ratio with S equal stages and "
        "no time between GPUs; the rest of the bar is what our simulator adds with "
        "published layer times, hop times and partitions (published where there are any, "
        "else the min-max partition with as many stages as possible). Diamonds: published "
        "ratios. N = 8, M = 16, recompute gated on the gradient.",
        commands);
    return TRUE;
}
