/**
 * Timelines: Figures 1, 4, 6 and 7 of the paper, and one of every schedule.
 */
#include "plots/charts/timeline.h"

#include "core/base/units.h"
#include "paper-figs/paper.h"

/* Figure 1: 12 blocks and a head, 4 GPUs, 8 micro-batches. */
#define FIGURE_1_GPUS 4
#define FIGURE_1_MICRO_BATCHES 8
#define FIGURE_1_BLOCKS 12
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

static void
add_figure(GPtrArray *figures, RpFigure *figure, const char *caption, RpPaperRun *const *runs,
           guint n_runs)
{
    rp_figure_set_caption(figure, caption);
    for (guint i = 0; i < n_runs; i++)
        rp_figure_add_command(figure, runs[i]->command);
    g_ptr_array_add(figures, figure);
}

/* Of a panel whose end is marked: on narrow paper the schedule, else more of the run. */
static char *
panel_title(const RpPaper *paper, const char *schedule, const RpTrace *trace, guint micro_batches,
            guint round)
{
    return rp_paper_style(paper)->width_mm > 0
               ? g_strdup(schedule)
               : rp_timeline_title(schedule, trace, micro_batches, round);
}

gboolean
rp_paper_figure_1(RpPaper *paper, GPtrArray *figures, GError **error)
{
    static const struct {
        const char *schedule;
        const char *partition;
        guint round;
        RpRecompute recompute; /* as the paper draws it */
    } rows[] = {
        {"looped-bfs", "1*12", 0, RP_RECOMPUTE_GATED},
        {"roundpipe", "3*4|0,1*12", 4, RP_RECOMPUTE_EARLY},
    };
    g_autoptr(RpProfile) profile = unit_profile(FIGURE_1_BLOCKS, TRUE);
    g_autoptr(RpPaperRun) first = NULL;
    g_autoptr(RpPaperRun) second = NULL;
    RpPaperRun **runs[] = {&first, &second};
    g_autoptr(GPtrArray) first_names = NULL;
    g_autoptr(GPtrArray) second_names = NULL;
    GPtrArray **names[] = {&first_names, &second_names};
    g_autofree char *first_title = NULL;
    g_autofree char *second_title = NULL;
    char **titles[] = {&first_title, &second_title};
    RpTimelinePanel panels[G_N_ELEMENTS(rows)] = {{0}};

    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        RpPlanOptions options = {
            .schedule = rp_schedule_find(rows[i].schedule, error),
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
        *runs[i] = rp_paper_simulate(profile, "figure-1.json", partition, &options, 1, error);
        if (*runs[i] == NULL)
            return FALSE;
        *names[i] = stage_names((*runs[i])->plan);
        *titles[i] = panel_title(paper, options.schedule->title, (*runs[i])->trace,
                                 FIGURE_1_MICRO_BATCHES, rows[i].round);
        panels[i] = (RpTimelinePanel){
            .style = rp_paper_style(paper),
            .trace = (*runs[i])->trace,
            .title = *titles[i],
            .label = RP_LABEL_SLOT,
            .stage_names = (const char *const *)(*names[i])->pdata,
            .mark_end = TRUE,
        };
    }
    RpFigure *figure =
        rp_timeline_figure("figure-1", "Figure 1: 12 blocks and a head (layer 13) on 4 GPUs",
                           panels, G_N_ELEMENTS(panels));
    RpPaperRun *const done[] = {first, second};
    g_autofree char *json = rp_profile_to_json(profile);

    rp_figure_set_profile(figure, json);
    add_figure(
        figures, figure,
        "Predicted, with made-up layer times: forward and recompute 10 ms, backward 20 ms a "
        "block; head forward 10 ms, backward 20 ms; no time between GPUs. F, B, FB: forward, "
        "backward with recompute, both fused; numbers are the layers of the stage; thin lines "
        "part micro-batches. Looped BFS binds 12 stages to 4 GPUs and waits for the one with "
        "the head; RoundPipe dispatches 17 slots of two rounds to whichever GPU is next.",
        done, G_N_ELEMENTS(done));
    return TRUE;
}

/* One panel per schedule, uniform stages, unit costs. */
static gboolean
every_schedule(const RpPaper *paper, const char *name, const char *title,
               const char *const *schedules, guint n, const char *caption, GPtrArray *figures,
               GError **error)
{
    g_autoptr(GPtrArray) runs = g_ptr_array_new_with_free_func((GDestroyNotify)rp_paper_run_free);
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
                ? rp_partition_choose(profile, &options, RP_OBJECTIVE_SIMULATED, 0, 0,
                                      &options.round, error)
                : rp_paper_parse_partition(profile, one ? "2*4" : "1*8", error);
        if (partition == NULL)
            return FALSE;
        RpPaperRun *run = rp_paper_simulate(profile, file, partition, &options, 1, error);
        if (run == NULL)
            return FALSE;
        g_ptr_array_add(runs, run);
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
    rp_figure_set_profile(figure, json);
    add_figure(figures, figure, caption, (RpPaperRun *const *)runs->pdata, n);
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

    if (run == NULL)
        return FALSE;
    g_autofree char *title = rp_timeline_title("RoundPipe, Qwen3-1.7B", run->trace,
                                               RP_PAPER_MICRO_BATCHES, RP_PAPER_ROUND);
    RpTimelinePanel panel = {
        .style = rp_paper_style(paper), .trace = run->trace, .title = title, .mark_end = TRUE};
    RpFigure *figure = rp_timeline_figure("timeline-roundpipe-qwen3-1.7b", title, &panel, 1);
    RpPaperRun *const done[] = {run};
    add_figure(figures, figure,
               "Predicted from published RTX 4090 layer times, published partition. Numbers are "
               "micro-batches; shades tell neighbouring stages apart.",
               done, 1);
    return TRUE;
}

gboolean
rp_paper_timelines(RpPaper *paper, GPtrArray *figures, GError **error)
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
