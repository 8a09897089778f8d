/**
 * The parts of a run and their messages (Figure 5).
 */
#include "paper-figs/paper.h"
#include "plots/figure.h"

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
