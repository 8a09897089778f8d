/**
 * Figures that need full fidelity: the asynchronous optimizer (Figure 4), transfers that delay each
 * other and in windows (Figures 6 and 7), blocking copies and events (Figure 8), and their cost
 * (Figure 16).
 */
#include "paper-figs/paper.h"

#include <math.h>

#include "core/base/units.h"

gboolean
rp_paper_figure_4(RpPaper *paper, const char *name, GPtrArray *figures, GError **error)
{
    RpPlanOptions options = {
        .gpus = 4,
        .micro_batches = RP_PAPER_ROUND,
        .round = RP_PAPER_ROUND,
        .async = TRUE,
        .fidelity = RP_FIDELITY_FULL,
    };
    g_autoptr(RpPaperRun) run = rp_paper_simulate_published(paper, options, 4, error);
    g_autoptr(GPtrArray) commands = rp_paper_commands();

    if (run == NULL)
        return FALSE;
    RpTimelinePanel panel = {
        .style = rp_paper_style(paper),
        .trace = run->trace,
        .lanes = RP_TIMELINE_COMPUTE | RP_TIMELINE_HOST,
        .shade = RP_SHADE_ITERATION,
        .label = RP_LABEL_ITERATION,
    };
    RpFigure *figure = rp_timeline_figure(
        name,
        "Figure 4: iterations follow each other while the CPU updates the weights (predicted)",
        &panel, 1);
    g_ptr_array_add(commands, g_strdup(run->command));
    rp_paper_add(
        figures, figure,
        "Predicted: Qwen3-1.7B on 4 RTX 4090, M = 8, RoundPipe asynchronous, full fidelity, "
        "four iterations T to T+3. Shades tell iterations apart. The CPU sums and applies "
        "the gradients of an iteration while the next one runs; the one after that reads "
        "the new weights.",
        commands);
    return TRUE;
}

/* Three blocks that load the link about as long as they compute, with two micro-batches each. */
#define OVERLAP_BLOCKS 3

static RpProfile *
overlap_profile(void)
{
    RpProfile *profile = rp_paper_made_up_profile(OVERLAP_BLOCKS, g_strdup("three-blocks"));

    for (guint i = 0; i < profile->n_layers; i++) {
        RpLayer *layer = &profile->layers[i];

        layer->forward_ns = 20 * RP_NS_PER_MS;
        layer->recompute_ns = 20 * RP_NS_PER_MS;
        layer->backward_ns = 40 * RP_NS_PER_MS;
        layer->weight_gradient_ns = 20 * RP_NS_PER_MS;
        layer->parameter_bytes = 700000000;
        layer->gradient_bytes = 700000000;
        layer->input_bytes = 100000000;
        layer->output_bytes = 100000000;
    }
    profile->has_sizes = TRUE;
    profile->links.h2d_bytes_per_s = 25e9;
    profile->links.d2h_bytes_per_s = 25e9;
    profile->links.host_bytes_per_s = 150e9;
    profile->optimizer_parameters_per_s = 3e9;
    return profile;
}

static RpPaperRun *
overlap_run(const RpProfile *profile, const char *file, RpTransfers transfers, GError **error)
{
    RpPlanOptions options = {
        .schedule = rp_schedule_find("roundpipe", error),
        .gpus = 1,
        .micro_batches = 2,
        .round = 2,
        .fidelity = RP_FIDELITY_FULL,
        .transfers = transfers,
    };

    if (options.schedule == NULL)
        return NULL;
    g_autoptr(RpPartition) partition = rp_paper_parse_partition(profile, "1,1|1,1,1", error);
    if (partition == NULL)
        return NULL;
    return rp_paper_simulate(profile, file, partition, &options, 1, error);
}

#define OVERLAP_CAPTION                                                                            \
    "Predicted, full fidelity, one GPU, two micro-batches; made-up blocks: forward 20 ms, "        \
    "backward 60 ms with recompute, 700 MB of parameters (28 ms on the link), 100 MB of "          \
    "activations (4 ms). Slots 0 and 1 are forward, 2 fused, 3 and 4 backward; numbers are "       \
    "slots. "

/* Figure 7 shows the windows as well, below, on the same axis. */
gboolean
rp_paper_overlap(RpPaper *paper, const char *name, GPtrArray *figures, GError **error)
{
    static const char *const titles[] = {"simple overlap: one parameter transfer a stage",
                                         "windows: a chunk of parameters a micro-batch"};
    static const RpTransfers transfers[] = {RP_TRANSFERS_NAIVE, RP_TRANSFERS_WINDOWS};
    const guint n = g_str_equal(name, "figure-6") ? 1 : 2;
    g_autoptr(RpProfile) profile = overlap_profile();
    g_autofree char *json = rp_profile_to_json(profile);
    g_autofree char *file = g_strconcat(name, ".json", NULL);
    g_autoptr(GPtrArray) runs = g_ptr_array_new_with_free_func((GDestroyNotify)rp_paper_run_free);
    g_autoptr(GPtrArray) commands = rp_paper_commands();
    RpTimelinePanel panels[2] = {{0}};

    for (guint i = 0; i < n; i++) {
        RpPaperRun *run = overlap_run(profile, file, transfers[i], error);

        if (run == NULL)
            return FALSE;
        g_ptr_array_add(runs, run);
        g_ptr_array_add(commands, g_strdup(run->command));
        panels[i] = (RpTimelinePanel){
            .style = rp_paper_style(paper),
            .trace = run->trace,
            .title = titles[i],
            .lanes = RP_TIMELINE_ENGINES,
            .label = RP_LABEL_STAGE,
            .mark_end = TRUE,
            .end_ns = rp_trace_makespan_ns(run->trace),
        };
    }
    RpFigure *figure = rp_timeline_figure(
        name,
        n == 1 ? "Figure 6: simple overlap blocks at the head of the line (predicted)"
               : "Figure 7: parameters travel in the windows between activations (predicted)",
        panels, n);
    rp_figure_set_file(figure, RP_FIGURE_PROFILE, json);
    rp_paper_add(figures, figure,
                 n == 1 ? OVERLAP_CAPTION "A stage's parameters travel in one piece, and "
                                          "activations that the GPU waits for queue behind them."
                        : OVERLAP_CAPTION "Above as Figure 6; below each micro-batch's window "
                                          "carries its activation and one chunk of parameters.",
                 commands);
    return TRUE;
}

gboolean
rp_paper_figure_8(RpPaper *paper, const char *name, GPtrArray *figures, GError **error)
{
    static const struct {
        RpConsistency consistency;
        const char *title;
    } rows[] = {
        {RP_CONSISTENCY_BLOCKING, "(a) blocking: every GPU waits for all copies"},
        {RP_CONSISTENCY_EVENTS, "(b) events: a layer waits for its own copies"},
    };
    g_autoptr(GPtrArray) runs = g_ptr_array_new_with_free_func((GDestroyNotify)rp_paper_run_free);
    g_autoptr(GPtrArray) commands = rp_paper_commands();
    RpTimelinePanel panels[G_N_ELEMENTS(rows)] = {{0}};

    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        const RpPlanOptions options = {
            .gpus = 4,
            .micro_batches = RP_PAPER_ROUND,
            .round = RP_PAPER_ROUND,
            .async = TRUE,
            .fidelity = RP_FIDELITY_FULL,
            .optimizer = RP_OPTIMIZER_LEAN,
            .consistency = rows[i].consistency,
        };

        RpPaperRun *run = rp_paper_simulate_published(paper, options, 4, error);
        if (run == NULL)
            return FALSE;
        g_ptr_array_add(runs, run);
        g_ptr_array_add(commands, g_strdup(run->command));
        panels[i] = (RpTimelinePanel){
            .style = rp_paper_style(paper),
            .trace = run->trace,
            .title = rows[i].title,
            .lanes = RP_TIMELINE_COMPUTE | RP_TIMELINE_HOST,
            .shade = RP_SHADE_ITERATION,
            .label = RP_LABEL_ITERATION,
            .mark_end = TRUE,
        };
    }
    RpFigure *figure = rp_timeline_figure(
        name, "Figure 8: copies between optimizer and weights, blocking and by events (predicted)",
        panels, G_N_ELEMENTS(panels));
    rp_paper_add(
        figures, figure,
        "Predicted: Qwen3-1.7B on 4 RTX 4090, M = 8, RoundPipe asynchronous, full fidelity, "
        "four iterations, weights copied in a pass of their own (--optimizer lean). (a) At an "
        "iteration's end all GPUs wait until gradients and weights are copied. (b) Events between "
        "a layer's copies, uploads and downloads keep the paper's rules 1 to 4; the optimizer's "
        "lane, which runs in order, keeps the fifth.",
        commands);
    return TRUE;
}

gboolean
rp_paper_figure_16(RpPaper *paper, const char *name, GPtrArray *figures, GError **error)
{
    static const RpBarPart parts[] = {{NULL, RP_COLOUR_GREEN}};
    g_autoptr(RpBarChart) chart =
        rp_bar_chart_new(name, "Figure 16: blocking copies against the event-based protocol",
                         "time of an iteration, s", 2, parts, 1);
    g_autoptr(GPtrArray) commands = rp_paper_commands();

    rp_bar_chart_set_subtitle(chart, "predicted, full fidelity; 8 x RTX 4090, RoundPipe "
                                     "asynchronous, M_R = 8, steady state");
    for (guint m = 0; m < RP_PAPER_N_MODELS; m++) {
        const RpPaperModel *model = &rp_paper_models[m];
        const RpProfile *profile = rp_paper_profile(paper, model->name, error);
        g_autofree char *file = rp_paper_profile_path(paper, model->name);
        double seconds[2];

        if (profile == NULL)
            return FALSE;
        RpPlanOptions options = {
            .schedule = rp_schedule_find("roundpipe", error),
            .gpus = RP_PAPER_GPUS,
            .micro_batches = model->global_batch / profile->sequences,
            .round = RP_PAPER_ROUND,
            .async = TRUE,
            .fidelity = RP_FIDELITY_FULL,
        };
        g_autoptr(RpPartition) partition =
            options.schedule != NULL
                ? rp_partition_paper(profile, options.gpus, options.micro_batches,
                                     rp_profile_plan_bytes(profile), error)
                : NULL;
        if (partition == NULL)
            return FALSE;
        for (guint blocking = 0; blocking < 2; blocking++) {
            options.consistency = blocking ? RP_CONSISTENCY_BLOCKING : RP_CONSISTENCY_EVENTS;
            g_autoptr(RpPaperRun) run =
                rp_paper_simulate(profile, file, partition, &options, 0, error);
            if (run == NULL)
                return FALSE;
            seconds[blocking] = (double)run->steady.iteration_ns / (double)RP_NS_PER_S;
            g_ptr_array_add(commands, g_steal_pointer(&run->command));
        }
        g_autoptr(GString) text = g_string_new(NULL);
        rp_text_append(text, "%.2f  (+%.2f s)", seconds[1], seconds[1] - seconds[0]);
        RpBarRow rows[] = {
            {.group = model->trained,
             .label = "events",
             .values = {seconds[0]},
             .marker = NAN,
             .colour = RP_COLOUR_GREEN},
            {.group = model->trained,
             .label = "blocking",
             .values = {seconds[1]},
             .marker = NAN,
             .text = text->str,
             .colour = RP_COLOUR_VERMILLION},
        };
        rp_bar_chart_add(chart, &rows[0]);
        rp_bar_chart_add(chart, &rows[1]);
    }
    rp_paper_add_bars(
        paper, figures, chart,
        "Predicted iteration times in steady state. Events: gradient and parameter copies "
        "run on the optimizer's lane and only the layers concerned wait "
        "(--consistency events). Blocking: every device waits for all copies at the end of "
        "an iteration. Published: 2.6 to 14 s less per iteration, of an implementation that "
        "copies on one Python thread.",
        commands);
    return TRUE;
}
