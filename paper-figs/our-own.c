/**
 * Not in the paper: how even the two objectives make the slots; memory of two iterations over time, and by
 * category.
 */
#include "paper-figs/paper.h"

#include <math.h>

#include "core/base/units.h"

gboolean
rp_paper_balance(RpPaper *paper, const char *name, GPtrArray *figures, GError **error)
{
    const char *model = RP_PAPER_EXAMPLE;
    const RpProfile *profile = rp_paper_profile(paper, model, error);
    g_autofree char *file = rp_paper_profile_path(paper, model);
    RpPlanOptions options = {
        .schedule = rp_schedule_find("roundpipe", error),
        .gpus = RP_PAPER_GPUS,
        .micro_batches = RP_PAPER_MICRO_BATCHES,
        .round = RP_PAPER_ROUND,
    };

    if (profile == NULL || options.schedule == NULL)
        return FALSE;
    g_autoptr(RpPartition) by_paper =
        rp_paper_partition(paper, model, &options, RP_PARTITION_PAPER, error);
    g_autoptr(RpPartition) simulated =
        by_paper != NULL ? rp_paper_partition(paper, model, &options, RP_PARTITION_SIMULATED, error)
                         : NULL;
    if (simulated == NULL)
        return FALSE;
    g_autoptr(GPtrArray) commands = rp_paper_commands();
    RpBalancePanel panels[] = {{by_paper, "paper's objective"}, {simulated, "simulated objective"}};
    for (guint i = 0; i < G_N_ELEMENTS(panels); i++) {
        g_autoptr(RpPaperRun) run =
            rp_paper_simulate(profile, file, panels[i].partition, &options, 0, error);

        if (run == NULL)
            return FALSE;
        g_ptr_array_add(commands, g_strdup(run->command));
    }
    RpFigure *figure =
        rp_balance_figure(name, "Balance of Qwen3-1.7B's slots, N = 8, M = 16", profile, panels,
                          G_N_ELEMENTS(panels), rp_paper_style(paper));
    rp_paper_add(
        figures, figure,
        "Compute time of each RoundPipe slot (forward stages, fused stage, backward stages with "
        "recompute) "
        "for one micro-batch, from published RTX 4090 layer times: predicted. Above: the "
        "partition with the least (MS + N(N-1)) t_max. Below: the one with the least "
        "simulated makespan.",
        commands);
    return TRUE;
}

gboolean
rp_paper_memory(RpPaper *paper, const char *name, GPtrArray *figures, GError **error)
{
    const RpProfile *profile = rp_paper_profile(paper, RP_PAPER_EXAMPLE, error);
    RpPlanOptions options = {
        .gpus = 4,
        .micro_batches = RP_PAPER_MICRO_BATCHES,
        .round = RP_PAPER_ROUND,
        .async = TRUE,
        .fidelity = RP_FIDELITY_FULL,
    };

    if (profile == NULL)
        return FALSE;
    g_autoptr(RpPaperRun) run = rp_paper_simulate_published(paper, options, 2, error);
    if (run == NULL)
        return FALSE;
    g_autoptr(GPtrArray) commands = rp_paper_commands();
    RpFigure *curves =
        rp_memory_figure(name, "Memory of two iterations of Qwen3-1.7B on 4 RTX 4090", run->plan,
                         run->trace, rp_profile_plan_bytes(profile), 0, 0, rp_paper_style(paper));
    RpFigure *categories = rp_memory_categories_figure(
        "memory-categories", "What the memory of Qwen3-1.7B on 4 RTX 4090 is for", run->plan,
        rp_paper_style(paper));
    g_ptr_array_add(commands, g_strdup(run->command));
    rp_paper_add(
        figures, curves,
        "Predicted: bytes of planned buffers that hold something still to be read, "
        "RoundPipe asynchronous, full fidelity, M = 16, M_R = 8. Dashed: the arena, which is "
        "what the executor allocates.",
        commands);
    rp_paper_add(figures, categories,
                 "Predicted and, because buffers are planned, what the executor allocates: "
                 "each arena by category. Same plan as the figure memory.",
                 commands);
    return TRUE;
}

/**
 * Schedules that fit in the memory of the card, and the memory that they leave idle: all treated
 * alike.
 */

/* A bound schedule's buffers are all known when its second iteration is planned. */
#define BUFFERED_ITERATIONS 2

static const struct {
    const char *schedule;
    gboolean async;
    const char *label;
} series[] = {
    {"1f1b", FALSE, "1F1B"},
    {"interleaved-1f1b", FALSE, "Interleaved 1F1B"},
    {"looped-bfs", FALSE, "Looped BFS"},
    {"zb-h1", FALSE, "ZB-H1"},
    {"interleaved-zb", FALSE, "Interleaved zero-bubble"},
    {"zb-v", FALSE, "ZB-V"},
    {"dualpipe-v", FALSE, "DualPipeV"},
    {"roundpipe", FALSE, "RoundPipe sync"},
    {"roundpipe", TRUE, "RoundPipe async"},
};

/* Models of the picture: the smallest, and the two of one family size up. */
static const char *const models[] = {"qwen3-1.7b", "llama-3.1-8b", "qwen3-32b"};

static const RpPaperModel *
find_model(const char *name)
{
    for (guint m = 0; m < RP_PAPER_N_MODELS; m++)
        if (g_str_equal(rp_paper_models[m].name, name))
            return &rp_paper_models[m];
    g_assert_not_reached();
}

/* Bytes of the fullest GPU with every buffer. */
static gboolean
find_memory(const RpProfile *profile, const RpPartition *partition, RpPlanOptions options,
            guint64 *bytes, GError **error)
{
    options.fidelity = RP_FIDELITY_FULL;
    g_autoptr(RpPlan) plan = rp_plan_make(profile, partition, &options, BUFFERED_ITERATIONS, error);

    if (plan == NULL)
        return FALSE;
    *bytes = rp_plan_arena_bytes(plan, rp_plan_fullest_gpu(plan));
    return TRUE;
}

static gboolean
add_bar(RpPaper *paper, RpBarChart *chart, const RpPaperModel *model, guint s, GPtrArray *commands,
        GError **error)
{
    const RpProfile *profile = rp_paper_profile(paper, model->name, error);
    g_autofree char *file = rp_paper_profile_path(paper, model->name);
    RpPlanOptions options = {
        .schedule = rp_schedule_find(series[s].schedule, NULL),
        .gpus = RP_PAPER_GPUS,
        .micro_batches = RP_PAPER_MICRO_BATCHES,
        .async = series[s].async,
        .fidelity = RP_FIDELITY_COMPUTE,
    };
    guint64 bytes;

    if (profile == NULL)
        return FALSE;
    g_autoptr(RpPartition) partition =
        rp_paper_partition(paper, model->name, &options, RP_PARTITION_SIMULATED, error);
    if (partition == NULL)
        return FALSE;
    g_autoptr(RpPaperRun) run = rp_paper_simulate(profile, file, partition, &options, 0, error);
    if (run == NULL || !find_memory(profile, partition, options, &bytes, error))
        return FALSE;
    g_ptr_array_add(commands, g_strdup(run->command));

    const double bubble = series[s].async ? run->steady.ratio : run->bubble.ratio;
    const double ratio = 100 * bubble;
    g_autofree char *percent = rp_text_percent(bubble);
    gboolean fits = bytes <= rp_profile_plan_bytes(profile);
    g_autoptr(GString) text = g_string_new(NULL);
    RpBarRow row = {
        .group = model->trained,
        .label = series[s].label,
        .values = {fits && !options.schedule->dispatched ? ratio : 0,
                   fits && options.schedule->dispatched ? ratio : 0, fits ? 0 : ratio},
        .marker = NAN,
    };

    rp_text_append(text, fits ? "%s, %.0f GiB" : "%s, does not fit: %.0f GiB", percent,
                   (double)bytes / (double)RP_GIB);
    row.text = text->str;
    rp_bar_chart_add(chart, &row);
    return TRUE;
}

gboolean
rp_paper_fit(RpPaper *paper, const char *name, GPtrArray *figures, GError **error)
{
    static const RpBarPart parts[] = {
        {"others that fit", RP_COLOUR_SKY},
        {"RoundPipe", RP_COLOUR_VERMILLION},
        {"more than the card has", 0xcccccc},
    };
    g_autoptr(GPtrArray) commands = rp_paper_commands();
    g_autoptr(RpBarChart) chart =
        rp_bar_chart_new(name, "What fits in 24 GB, and how much of the GPUs' time is idle",
                         "bubble ratio, % of GPU time", 1, parts, G_N_ELEMENTS(parts));

    rp_bar_chart_set_subtitle(chart, "predicted; 8 x RTX 4090, M = 16; every schedule recomputes "
                                     "early, no forward runs before its input is there");
    for (guint m = 0; m < G_N_ELEMENTS(models); m++)
        for (guint s = 0; s < G_N_ELEMENTS(series); s++)
            if (!add_bar(paper, chart, find_model(models[m]), s, commands, error))
                return FALSE;

    rp_paper_add_bars(
        paper, figures, chart,
        "Predicted by our simulator from published RTX 4090 layer times, compute fidelity; N = 8, "
        "M = 16. Every schedule has the best partition that our search finds for it, recomputes "
        "before its gradient arrives, and RoundPipe's fused stage waits for its input. Behind each "
        "bar: the bubble ratio, and the memory of the fullest GPU with every buffer, planned to "
        "the byte. Grey: more than the card's memory; the partitions of these schedules are the "
        "ones "
        "that idle least, whatever they need. Asynchronous: steady state over whole "
        "iterations.",
        commands);
    return TRUE;
}
