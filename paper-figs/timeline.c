/**
 * Timelines: Figures 1, 4, 6 and 7 of the paper, and one of every schedule.
 */

#include <string.h>

#include "core/base/units.h"
#include "core/formats/schedule-file.h"
#include "paper-figs/paper.h"

/* Figure 1: 12 blocks and a head, 4 GPUs, 8 micro-batches. */
#define FIGURE_1_GPUS 4
#define FIGURE_1_MICRO_BATCHES 8
#define FIGURE_1_BLOCKS 12
#define FIGURE_1_ORDERS "figure-1.orders"
#define UNIT_NS (10 * RP_NS_PER_MS)

/* Blocks of forward 1, recompute 1, backward 2; head of forward 1, backward 2. */
static RpProfile *
unit_profile(guint blocks, gboolean head)
{
    RpProfile *profile =
        rp_paper_made_up_profile(blocks + (head ? 1 : 0), g_strdup_printf("%u-blocks", blocks));

    for (guint i = 0; i < profile->n_layers; i++) {
        RpLayer *layer = &profile->layers[i];

        layer->forward_ns = UNIT_NS;
        layer->recompute_ns = UNIT_NS;
        layer->backward_ns = 2 * UNIT_NS;
        layer->weight_gradient_ns = UNIT_NS;
    }
    if (head) {
        profile->layers[blocks].kind = RP_LAYER_HEAD;
        profile->layers[blocks].name = g_intern_static_string("head");
    }
    return profile;
}

/* "1-3", by layer numbers from 1. (transfer full) */
static GPtrArray *
stage_names(const RpPlan *plan)
{
    GPtrArray *names = g_ptr_array_new_with_free_func(g_free);

    for (guint s = 0; s < rp_plan_n_stages(plan); s++) {
        RpInterval layers = rp_plan_stage(plan, s)->layers;

        if (layers.count == 1)
            g_ptr_array_add(names, g_strdup_printf("%u", layers.first + 1));
        else
            g_ptr_array_add(
                names, g_strdup_printf("%u-%u", layers.first + 1, layers.first + layers.count));
    }
    return names;
}

/* Title of a panel whose end is marked: narrow paper has space for the schedule's name only. */
static char *
panel_title(const RpPaper *paper, const char *schedule, const RpTrace *trace, guint micro_batches,
            guint round)
{
    return rp_paper_style(paper)->width_mm > 0
               ? g_strdup(schedule)
               : rp_timeline_title(schedule, trace, micro_batches, round);
}

/* Looped BFS of a stage a layer, which are not as many on each GPU: the first has one more. (transfer full) */
static char *
uneven_looped_bfs(void)
{
    GString *text = g_string_new("# Looped BFS of 13 stages on 4 GPUs\n");

    for (guint g = 0; g < FIGURE_1_GPUS; g++) {
        const guint last = g + (FIGURE_1_BLOCKS - g) / FIGURE_1_GPUS * FIGURE_1_GPUS;

        for (guint s = g; s <= last; s += FIGURE_1_GPUS)
            for (guint m = 0; m < FIGURE_1_MICRO_BATCHES; m++)
                g_string_append_printf(text, "F%u.%u ", s, m);
        for (guint s = last + FIGURE_1_GPUS; s > g; s -= FIGURE_1_GPUS)
            for (guint m = 0; m < FIGURE_1_MICRO_BATCHES; m++)
                g_string_append_printf(text, "B%u.%u ", s - FIGURE_1_GPUS, m);
        text->str[text->len - 1] = '\n';
    }
    return g_string_free(text, FALSE);
}

gboolean
rp_paper_figure_1(RpPaper *paper, const char *name, GPtrArray *figures, GError **error)
{
    static const struct {
        const char *schedule;
        const char *partition;
        guint round;
        RpRecompute recompute; /* as the paper draws it */
    } rows[] = {
        {"looped-bfs", "1*12", 0, RP_RECOMPUTE_GATED},
        {NULL, "1*12,0", 0, RP_RECOMPUTE_GATED},
        {"roundpipe", "3*4|0,1*12", 4, RP_RECOMPUTE_EARLY},
    };
    g_autoptr(RpProfile) profile = unit_profile(FIGURE_1_BLOCKS, TRUE);
    g_autofree char *orders = uneven_looped_bfs();
    g_autoptr(RpScheduleOps) uneven =
        rp_schedule_file_parse(FIGURE_1_ORDERS, orders, strlen(orders), error);
    g_autoptr(GPtrArray) runs = g_ptr_array_new_with_free_func((GDestroyNotify)rp_paper_run_free);
    g_autoptr(GPtrArray) commands = rp_paper_commands();
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func((GDestroyNotify)g_ptr_array_unref);
    g_autoptr(GPtrArray) titles = g_ptr_array_new_with_free_func(g_free);
    RpTimelinePanel panels[G_N_ELEMENTS(rows)] = {{0}};

    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        RpPlanOptions options = {
            .schedule =
                rows[i].schedule != NULL ? rp_schedule_find(rows[i].schedule, error) : uneven,
            .gpus = FIGURE_1_GPUS,
            .micro_batches = FIGURE_1_MICRO_BATCHES,
            .round = rows[i].round,
            .recompute = rows[i].recompute,
        };
        g_autoptr(RpPartition) partition =
            options.schedule != NULL ? rp_paper_parse_partition(profile, rows[i].partition, error)
                                     : NULL;
        if (partition == NULL)
            return FALSE;
        RpPaperRun *run =
            rp_paper_simulate(profile, "figure-1.json", partition, &options, 1, error);
        if (run == NULL)
            return FALSE;
        GPtrArray *stages = stage_names(run->plan);
        char *title = panel_title(
            paper, rows[i].schedule != NULL ? options.schedule->title : "Looped BFS, 13 stages",
            run->trace, FIGURE_1_MICRO_BATCHES, rows[i].round);

        g_ptr_array_add(runs, run);
        g_ptr_array_add(commands, g_strdup(run->command));
        g_ptr_array_add(names, stages);
        g_ptr_array_add(titles, title);
        panels[i] = (RpTimelinePanel){
            .style = rp_paper_style(paper),
            .trace = run->trace,
            .title = title,
            .label = RP_LABEL_SLOT,
            .stage_names = (const char *const *)stages->pdata,
            .mark_end = TRUE,
        };
    }
    RpFigure *figure = rp_timeline_figure(
        name, "Figure 1: 12 blocks and a head (layer 13) on 4 GPUs", panels, G_N_ELEMENTS(panels));
    g_autofree char *json = rp_profile_to_json(profile);

    rp_figure_set_file(figure, RP_FIGURE_PROFILE, json);
    rp_figure_set_file(figure, RP_FIGURE_ORDERS, orders);
    rp_paper_add(
        figures, figure,
        "Predicted, with made-up layer times: forward and recompute 10 ms, backward 20 ms a "
        "block; head forward 10 ms, backward 20 ms; no time between GPUs. F, B, FB: forward, "
        "backward with recompute, both fused; numbers are the layers of the stage; thin lines "
        "part micro-batches. Looped BFS binds 12 stages to 4 GPUs and waits for the one with "
        "the head; with 13 it waits for the GPU that has a stage more. RoundPipe dispatches 17 "
        "slots of two rounds to whichever GPU is next.",
        commands);
    return TRUE;
}

/* One panel per schedule, uniform stages, unit costs. */
static gboolean
every_schedule(const RpPaper *paper, const char *name, const char *title,
               const char *const *schedules, guint n, const char *caption, GPtrArray *figures,
               GError **error)
{
    g_autoptr(GPtrArray) runs = g_ptr_array_new_with_free_func((GDestroyNotify)rp_paper_run_free);
    g_autoptr(GPtrArray) commands = rp_paper_commands();
    g_autoptr(GPtrArray) titles = g_ptr_array_new_with_free_func(g_free);
    g_autofree RpTimelinePanel *panels = g_new0(RpTimelinePanel, n);
    g_autoptr(RpProfile) profile = unit_profile(8, FALSE);
    g_autofree char *json = rp_profile_to_json(profile);
    g_autofree char *file = g_strconcat(name, ".json", NULL);

    for (guint i = 0; i < n; i++) {
        RpPlanOptions options = {
            .schedule = rp_schedule_find(schedules[i], error),
            .gpus = FIGURE_1_GPUS,
            .micro_batches = FIGURE_1_MICRO_BATCHES,
        };
        if (options.schedule == NULL)
            return FALSE;
        /* 8 blocks for everybody, all stages of a bound schedule alike; RoundPipe as the search
         * divides them */
        gboolean one = !options.schedule->looped && options.schedule->stages_per_gpu <= 1;
        g_autoptr(RpPartition) partition =
            options.schedule->dispatched
                ? rp_partition_choose(profile, &options, RP_PARTITION_SIMULATED, 0, 0,
                                      &options.round, error)
                : rp_paper_parse_partition(profile, one ? "2*4" : "1*8", error);
        if (partition == NULL)
            return FALSE;
        RpPaperRun *run = rp_paper_simulate(profile, file, partition, &options, 1, error);
        if (run == NULL)
            return FALSE;
        g_ptr_array_add(runs, run);
        g_ptr_array_add(commands, g_strdup(run->command));
        g_ptr_array_add(titles, panel_title(paper, options.schedule->title, run->trace,
                                            FIGURE_1_MICRO_BATCHES, options.round));
        panels[i] = (RpTimelinePanel){
            .style = rp_paper_style(paper),
            .trace = run->trace,
            .title = g_ptr_array_index(titles, i),
            .label = RP_LABEL_MICRO_BATCH,
            .mark_end = TRUE,
        };
    }
    RpFigure *figure = rp_timeline_figure(name, title, panels, n);
    rp_figure_set_file(figure, RP_FIGURE_PROFILE, json);
    rp_paper_add(figures, figure, caption, commands);
    return TRUE;
}

/* A published RoundPipe plan as it would run: 8 GPUs, hundreds of actions. */
static gboolean
large_timeline(RpPaper *paper, GPtrArray *figures, GError **error)
{
    RpPlanOptions options = {
        .gpus = RP_PAPER_GPUS,
        .micro_batches = RP_PAPER_MICRO_BATCHES,
        .round = RP_PAPER_ROUND,
    };
    g_autoptr(RpPaperRun) run = rp_paper_simulate_published(paper, options, 1, error);

    g_autoptr(GPtrArray) commands = rp_paper_commands();

    if (run == NULL)
        return FALSE;
    g_autofree char *title = rp_timeline_title("RoundPipe, Qwen3-1.7B", run->trace,
                                               RP_PAPER_MICRO_BATCHES, RP_PAPER_ROUND);
    RpTimelinePanel panel = {
        .style = rp_paper_style(paper), .trace = run->trace, .title = title, .mark_end = TRUE};
    RpFigure *figure = rp_timeline_figure("timeline-roundpipe-qwen3-1.7b", title, &panel, 1);
    g_ptr_array_add(commands, g_strdup(run->command));
    rp_paper_add(figures, figure,
                 "Predicted from published RTX 4090 layer times, published partition. Numbers are "
                 "micro-batches; shades tell neighbouring stages apart.",
                 commands);
    return TRUE;
}

gboolean
rp_paper_timelines(RpPaper *paper, const char *name, GPtrArray *figures, GError **error)
{
    static const char *const full[] = {"gpipe", "1f1b", "interleaved-1f1b", "looped-bfs",
                                       "roundpipe"};
    static const char *const split[] = {"zb-h1", "interleaved-zb", "zb-v", "dualpipe-v"};

    return every_schedule(
               paper, "schedules", "Schedules with a full backward", full, G_N_ELEMENTS(full),
               "Predicted, with made-up layer times: 8 blocks of forward and recompute "
               "10 ms, backward 20 ms; no time between GPUs. RoundPipe has the partition "
               "that our search finds. Numbers are micro-batches, shades stages.",
               figures, error) &&
           every_schedule(paper, "schedules-split", "Schedules with a split backward", split,
                          G_N_ELEMENTS(split),
                          "Predicted, with made-up layer times: 8 blocks of forward and recompute "
                          "10 ms, backward 20 ms, half of it weight gradient; no time between "
                          "GPUs. Numbers are micro-batches, shades stages. A forward and a "
                          "backward that DualPipeV overlaps share a box.",
                          figures, error) &&
           large_timeline(paper, figures, error);
}
