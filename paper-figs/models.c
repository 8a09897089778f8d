/**
 * Figures that follow from the models alone: recompute against reload (Figure 2) and operational
 * intensity (Figure 17).
 */
#include <math.h>

#include "core/catalogue/catalogue.h"
#include "core/catalogue/cost/cost-model.h"
#include "paper-figs/paper.h"
#include "plots/figure.h"

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

/**
 * The parts of a run and their messages (Figure 5).
 */

/* Pixels, from the lower left corner. */
#define WIDTH 1000
#define HEIGHT 600

typedef struct {
    double x, y, width, height;
    RpColour colour;
    const char *title;
    const char *text; /* lines below it */
} Box;

/* @text: beside its middle */
typedef struct {
    double x, y, to_x, to_y;
    gboolean both;
    const char *text;
    double text_x, text_y;
} Arrow;

#define GPU_Y 250
#define GPU_WIDTH 185
#define GPU_HEIGHT 130
#define HOST_TOP 130
#define GPU(n, title)                                                                              \
    {                                                                                              \
        40 + (n)*205, GPU_Y, GPU_WIDTH, GPU_HEIGHT, RP_COLOUR_BLUE, title,                         \
            "compute\nactivations up, down\nparameters up\ngradients down"                         \
    }
#define GPU_MIDDLE(n) (40 + (n)*205 + GPU_WIDTH / 2)

static const Box boxes[] = {
    {250, 465, 375, 75, RP_COLOUR_GREY, "controller",
     "the caller's thread: plans iterations, dispatches\nslots in turn, returns losses"},
    GPU(0, "GPU worker 0"),
    GPU(1, "GPU worker 1"),
    GPU(2, "GPU worker N - 1"),
    {40, 35, 595, 95, RP_COLOUR_ORANGE, "host memory, pinned",
     "16-bit weights and gradients of every layer\ninputs of every stage, for the recompute"},
    {765, 35, 200, 95, RP_COLOUR_GREEN, "optimizer worker",
     "fp32 weights, moments\nsums, copies, steps"},
};

static const Arrow arrows[] = {
    {350, 465, GPU_MIDDLE(0), GPU_Y + GPU_HEIGHT, FALSE, "tasks", 155, 437},
    {437, 465, GPU_MIDDLE(1), GPU_Y + GPU_HEIGHT, FALSE, NULL, 0, 0},
    {525, 465, GPU_MIDDLE(2), GPU_Y + GPU_HEIGHT, FALSE, NULL, 0, 0},
    {625, 510, 865, HOST_TOP, FALSE, "step()", 775, 335},
    {GPU_MIDDLE(0), GPU_Y, GPU_MIDDLE(0), HOST_TOP, TRUE,
     "weights, activations up;\n"
     "gradients, activations down",
     GPU_MIDDLE(0) + 12, 198},
    {GPU_MIDDLE(1), GPU_Y, GPU_MIDDLE(1), HOST_TOP, TRUE, NULL, 0, 0},
    {GPU_MIDDLE(2), GPU_Y, GPU_MIDDLE(2), HOST_TOP, TRUE, NULL, 0, 0},
    {635, 105, 765, 105, FALSE, "gradients", 655, 118},
    {765, 60, 635, 60, FALSE, "weights", 660, 73},
};

static void
add_label(GString *script, const char *text, double x, double y, const char *how)
{
    g_autofree char *quoted = rp_gnuplot_quote(text);

    rp_text_append(script, "set label %s at first %.0f, first %.0f %s\n", quoted, x, y, how);
}

static void
add_box(RpFigure *figure, const Box *box)
{
    const double middle = box->x + box->width / 2;

    rp_text_append(rp_figure_data(figure), "%.0f %.0f %.0f %.0f %.0f %.0f %u\n", middle,
                   box->y + box->height / 2, box->x, box->x + box->width, box->y,
                   box->y + box->height, rp_colour_lighten(box->colour, 0.75));
    add_label(rp_figure_script(figure), box->title, middle, box->y + box->height - 18,
              "center font font_bold front");
    add_label(rp_figure_script(figure), box->text, middle, box->y + box->height - 44,
              "center front");
}

gboolean
rp_paper_figure_5(RpPaper *paper, const char *name, GPtrArray *figures, GError **error)
{
    static const char *const title = "Figure 5: a run's parts, and what goes between them";
    RpFigure *figure = rp_figure_new(name, title, WIDTH, HEIGHT);
    GString *script = rp_figure_script(figure);

    (void)paper;
    (void)error;
    rp_figure_add_titles(figure, title, NULL);
    g_string_append(rp_figure_data(figure),
                    "# boxes: x y left right bottom top colour(decimal RRGGBB)\n");
    for (guint i = 0; i < G_N_ELEMENTS(boxes); i++)
        add_box(figure, &boxes[i]);
    g_string_append(rp_figure_data(figure), "\n\n# arrows: x y dx dy\n");
    for (guint both = 0; both < 2; both++) {
        for (guint i = 0; i < G_N_ELEMENTS(arrows); i++) {
            const Arrow *arrow = &arrows[i];

            if (arrow->both != (both == 1))
                continue;
            rp_text_append(rp_figure_data(figure), "%.0f %.0f %.0f %.0f\n", arrow->x, arrow->y,
                           arrow->to_x - arrow->x, arrow->to_y - arrow->y);
            if (arrow->text != NULL)
                add_label(script, arrow->text, arrow->text_x, arrow->text_y,
                          "left font font_small");
        }
        if (both == 0)
            g_string_append(rp_figure_data(figure), "\n\n# arrows of two heads: the same\n");
    }
    rp_text_append(
        script,
        "set lmargin at screen 0\nset rmargin at screen 1\nset bmargin at screen 0\n"
        "set tmargin at screen 1\nunset border\nunset tics\nunset grid\n"
        "set xrange [0:%d]\nset yrange [0:%d]\n"
        "plot DATA index 0 using 1:2:3:4:5:6:7 with boxxyerror fillstyle solid border "
        "linecolor rgb '#555555' linecolor rgb variable notitle, \\\n"
        "  DATA index 1 using 1:2:3:4 with vectors head filled size 12,18 linecolor rgb "
        "'#333333' linewidth 1.2 notitle, \\\n"
        "  DATA index 2 using 1:2:3:4 with vectors heads filled size 12,18 linecolor rgb "
        "'#333333' linewidth 1.2 notitle\n",
        WIDTH, HEIGHT);
    rp_paper_add(
        figures, figure,
        "Not measured: a drawing of this project's parts, as the paper's Figure 5 has them. The "
        "controller is the caller's thread (exec/train), workers issue a plan's tasks in order "
        "(exec/engine), each GPU to five lanes; events between lanes, and between GPUs and the "
        "optimizer, are the plan's dependencies.",
        NULL);
    return TRUE;
}
