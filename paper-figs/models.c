/**
 * Figures that follow from the models alone: recompute against reload (Figure 2) and operational
 * intensity (Figure 17).
 */
#include <math.h>

#include "core/catalogue/catalogue.h"
#include "core/catalogue/cost/cost-model.h"
#include "paper-figs/paper.h"

/* Figure 2's micro-batch. */
#define SEQUENCES 4
#define TOKENS 2048

static void
add_pair(RpBarChart *chart, const char *group, const char *what, double recompute_ms,
         double reload_ms)
{
    g_autofree char *first = g_strconcat("recompute, ", what, NULL);
    g_autofree char *second = g_strconcat("reload, ", what, NULL);
    g_autoptr(GString) text = g_string_new(NULL);
    RpBarRow row = {.group = group, .label = first, .values = {recompute_ms, 0}, .marker = NAN};

    rp_bar_chart_add(chart, &row);
    rp_text_append(text, "%.1f  (%.2f times the recompute)", reload_ms, reload_ms / recompute_ms);
    row.label = second;
    row.values[0] = 0;
    row.values[1] = reload_ms;
    row.text = text->str;
    rp_bar_chart_add(chart, &row);
}

gboolean
rp_paper_figure_2(RpPaper *paper, const char *name, GPtrArray *figures, GError **error)
{
    static const RpBarPart parts[] = {
        {"recompute: FLOP at 330 TFLOP/s", RP_COLOUR_BLUE},
        {"reload: bytes at 32 GB/s", RP_COLOUR_ORANGE},
    };
    const RpGpu *gpu = rp_gpu_find("rtx4090", error);
    g_autoptr(RpBarChart) chart =
        rp_bar_chart_new(name, "Figure 2: recomputing one block's activations, or reloading them",
                         "time of one block and micro-batch, ms", 1, parts, G_N_ELEMENTS(parts));

    if (gpu == NULL)
        return FALSE;
    rp_bar_chart_set_subtitle(chart, "predicted; RTX 4090 at its nominal speeds, 4 sequences of "
                                     "2048 tokens");
    for (guint m = 0; m < RP_PAPER_N_MODELS; m++) {
        const RpModel *model = rp_model_find(rp_paper_models[m].name, error);

        if (model == NULL)
            return FALSE;
        double flops = rp_cost_model_matmul_flops(model, SEQUENCES, TOKENS) +
                       rp_cost_model_attention_flops(model, 0, SEQUENCES, TOKENS);
        double bytes = (double)rp_cost_model_activation_bytes(model) * SEQUENCES * TOKENS;
        const char *group = rp_paper_models[m].title;
        add_pair(chart, group, "as printed",
                 1e3 * rp_paper_recompute_s(model, gpu, SEQUENCES, TOKENS),
                 1e3 * rp_paper_reload_s(model, gpu, SEQUENCES, TOKENS));
        add_pair(chart, group, "corrected", 1e3 * flops / (gpu->fp16_accumulate_tflops * 1e12),
                 1e3 * bytes / (gpu->interconnect_gb_per_s * 1e9));
    }
    rp_paper_add_bars(
        paper, figures, chart,
        "Predicted. As printed: equations 1 and 2 of the paper. Corrected: query and output widths "
        "are heads x head size, not hidden (they differ for GPT-OSS-20B, Qwen3-32B and "
        "Qwen3-235B-A22B), attention is causal, GPT-OSS's first block slides over 128 tokens. Both "
        "at the GPU's nominal 330 TFLOP/s (fp16 accumulation) and PCIe's nominal 32 GB/s.",
        NULL);
    return TRUE;
}

gboolean
rp_paper_figure_17(RpPaper *paper, const char *name, GPtrArray *figures, GError **error)
{
    static const char *const gpus[] = {"rtx4090", "rtx5090", "a100", "h100"};
    double batch[10];
    double intensity[G_N_ELEMENTS(batch)];
    g_autoptr(RpLineChart) chart =
        rp_line_chart_new(name, "Figure 17: operational intensity of one block's forward",
                          "batch size, sequences of 2048 tokens", "intensity, FLOP per byte");

    for (guint i = 0; i < G_N_ELEMENTS(batch); i++)
        batch[i] = ldexp(1, (int)i);
    for (guint m = 0; m < RP_PAPER_N_MODELS; m++) {
        const RpModel *model = rp_model_find(rp_paper_models[m].name, error);

        if (model == NULL)
            return FALSE;
        for (guint i = 0; i < G_N_ELEMENTS(batch); i++)
            intensity[i] = rp_paper_forward_intensity(model, batch[i], TOKENS);
        rp_line_chart_add(chart, rp_paper_models[m].title, rp_colour_of_model(model->name),
                          RP_LINE_WITH_POINTS, batch, intensity, G_N_ELEMENTS(batch));
    }
    for (guint g = 0; g < G_N_ELEMENTS(gpus); g++) {
        const RpGpu *gpu = rp_gpu_find(gpus[g], error);

        if (gpu == NULL)
            return FALSE;
        double ridge = rp_paper_ridge_intensity(gpu);
        g_autoptr(GString) title = g_string_new(NULL);
        rp_text_append(title, "%s, %s: %.0f", gpu->title, gpu->interconnect, ridge);
        rp_line_chart_add_level(chart, title->str, ridge);
    }
    rp_line_chart_set_log(chart, 2, 10);
    rp_line_chart_set_x_range(chart, batch[0] / 1.15, batch[G_N_ELEMENTS(batch) - 1] * 1.15);
    rp_line_chart_set_tics_at_points(chart);
    rp_line_chart_set_subtitle(chart, "predicted; above a dashed line the GPU computes longer than "
                                      "its interconnect transfers");
    rp_paper_add_lines(
        paper, figures, chart,
        "Predicted: equations 4 (dense) and 5 (mixture of experts) of the paper as printed, "
        "s = 2048. Dashed: ridge points of the GPUs, 16-bit FLOP/s over the interconnect's "
        "speed (paper Table 2).",
        NULL);
    return TRUE;
}
