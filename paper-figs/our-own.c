/**
 * Not in the paper: how even the two objectives make the slots; memory of two iterations over time, and by
 * category.
 */

#include "paper-figs/paper.h"

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
        rp_paper_partition(paper, model, &options, RP_OBJECTIVE_PAPER, error);
    g_autoptr(RpPartition) simulated =
        by_paper != NULL ? rp_paper_partition(paper, model, &options, RP_OBJECTIVE_SIMULATED, error)
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
