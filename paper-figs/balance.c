/**
 * Not in the paper: how even the two objectives make the slots.
 */
#include "plots/charts/balance.h"

#include "paper-figs/paper.h"

gboolean
rp_paper_balance(RpPaper *paper, GPtrArray *figures, GError **error)
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
    RpBalancePanel panels[] = {{by_paper, "paper's objective"}, {simulated, "simulated objective"}};
    RpFigure *figure =
        rp_balance_figure("balance", "Balance of Qwen3-1.7B's slots, N = 8, M = 16", profile,
                          panels, G_N_ELEMENTS(panels), rp_paper_style(paper));
    g_ptr_array_add(figures, figure);
    rp_figure_set_caption(
        figure,
        "Compute time of each RoundPipe slot (forward stages, fused stage, backward stages with "
        "recompute) "
        "for one micro-batch, from published RTX 4090 layer times: predicted. Above: the "
        "partition with the least (MS + N(N-1)) t_max. Below: the one with the least "
        "simulated makespan.");
    for (guint i = 0; i < G_N_ELEMENTS(panels); i++) {
        g_autoptr(RpPaperRun) run =
            rp_paper_simulate(profile, file, panels[i].partition, &options, 0, error);

        if (run == NULL)
            return FALSE;
        rp_figure_add_command(figure, run->command);
    }
    return TRUE;
}
