/**
 * Not in the paper: memory of two iterations over time, and by category.
 */
#include "plots/charts/memory.h"

#include "paper-figs/paper.h"

gboolean
rp_paper_memory(RpPaper *paper, GPtrArray *figures, GError **error)
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
    RpFigure *curves = rp_memory_figure(
        "memory", "Memory of two iterations of Qwen3-1.7B on 4 RTX 4090", run->plan, run->trace,
        rp_profile_plan_bytes(profile), 0, 0, rp_paper_style(paper));
    RpFigure *categories = rp_memory_categories_figure(
        "memory-categories", "What the memory of Qwen3-1.7B on 4 RTX 4090 is for", run->plan,
        rp_paper_style(paper));
    rp_figure_set_caption(
        curves,
        "Predicted: bytes of planned buffers that hold something still to be read, "
        "RoundPipe asynchronous, full fidelity, M = 16, M_R = 8. Dashed: the arena, which is "
        "what the executor allocates.");
    rp_figure_set_caption(
        categories, "Predicted and, because buffers are planned, what the executor allocates: "
                    "each arena by category. Same plan as the figure memory.");
    rp_figure_add_command(curves, run->command);
    rp_figure_add_command(categories, run->command);
    g_ptr_array_add(figures, curves);
    g_ptr_array_add(figures, categories);
    return TRUE;
}
