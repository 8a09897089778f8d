/**
 * When is keeping each stage's weights bound to a GPU as good as streaming them? Model, sequence,
 * memory and link are swept through the simulator, LoRA and full training, synchronous steps.
 *
 *   weight-binding sweep >weight-binding.csv && weight-binding draw weight-binding.csv DIR
 *
 * Bound: the fastest that fits of every schedule whose stages stay on their GPUs with their weights,
 * of LoRA for good.
 * Streamed: RoundPipe with synchronous and with asynchronous steps. Each has its best micro-batch,
 * round and partition. Resident: streamed, but frozen weights of LoRA stay on GPUs that have space.
 * Layers' times are the cost model's.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/file.h"
#include "core/base/units.h"
#include "plots/charts/charts.h"
#include "plots/figure.h"
#include "plots/table.h"
#include "sim/advise/advise.h"

#define GPUS 8
#define CANDIDATES 24
#define LORA_RANK 16
#define ROOT_GPUS 4
#define HOST_GB_PER_S 150.0
#define HOST_LINKS 6 /* host memory is at least this many times as fast as a link */

static const char *const models[] = {"qwen3-1.7b", "qwen3-4b",  "qwen3-8b",
                                     "qwen3-14b",  "qwen3-32b", "llama-3.1-70b"};
static const guint ranks[] = {LORA_RANK, 0};
static const guint sequences[] = {2048, 8192, 32768};
static const double memories[] = {16, 24, 48, 96};  /* GiB */
static const double links[] = {6.25, 12.5, 25, 50}; /* GB/s, each direction */

static const guint step_sequences[] = {32, 64, 256, 512}; /* the usual case, beside 128 */

/* The case that pictures vary one number of. */
#define USUAL_STEP_TOKENS (128 * USUAL_SEQUENCE)
#define USUAL_SEQUENCE 2048
#define USUAL_MEMORY 24
#define USUAL_LINK 25

/* The fastest run seen so far. */
typedef struct {
    const char *schedule; /* or NULL: nothing fits */
    double tokens_per_s;
} Best;

static void
note(Best *best, const RpAdviseRun *run)
{
    if (run->simulated && run->tokens_per_s > best->tokens_per_s)
        *best = (Best){run->options.schedule->name, run->tokens_per_s};
}

/* ---- one case ---- */

static void
try_bound(const RpAdviseQuery *query, const RpProfile *profile, guint micro_batch, Best *best)
{
    for (const RpScheduleOps *const *at = rp_schedules(); *at != NULL; at++) {
        if ((*at)->dispatched || (*at)->offloads_weights)
            continue;
        g_autoptr(RpAdviseRun) run =
            rp_advise_run_new(query, *at, micro_batch, query->batch / micro_batch, 0);

        if (rp_advise_fit_bound(query, profile, run) && rp_advise_simulate(profile, run, NULL))
            note(best, run);
    }
}

static void
try_streamed(const RpAdviseQuery *query, const RpProfile *profile, guint micro_batch, Best *best)
{
    const guint micro_batches = query->batch / micro_batch;

    for (guint round = GPUS; round <= micro_batches; round *= 2) {
        if (micro_batches % round != 0 ||
            (round != GPUS && round != 2 * GPUS && round != micro_batches))
            continue;
        g_autoptr(RpAdviseRun) run = rp_advise_run_new(query, rp_schedule_find("roundpipe", NULL),
                                                       micro_batch, micro_batches, round);

        if (!rp_advise_fit(query, profile, run))
            continue;
        rp_advise_improve(query, profile, run, CANDIDATES);
        if (rp_advise_simulate(profile, run, NULL))
            note(best, run);
    }
}

/* The fastest run of each kind. */
typedef struct {
    Best bound, sync, async, resident_sync, resident_async;
} Fastest;

/* @fastest: the runs that fit in less memory; they fit here, too */
static void
sweep_case(const RpModel *model, guint rank, guint sequence, guint batch, double memory_gib,
           double link, Fastest *fastest)
{
    RpGpu gpu = *rp_gpu_find("rtx4090", NULL);

    gpu.h2d_gb_per_s = gpu.d2h_gb_per_s = link;
    gpu.gpus_per_root = ROOT_GPUS;
    gpu.root_gb_per_s = 2 * link;
    gpu.host_gb_per_s = fmax(HOST_GB_PER_S, HOST_LINKS * link);
    RpAdviseQuery query = {
        .model = model,
        .gpu = &gpu,
        .gpus = GPUS,
        .gpu_bytes = rp_gpu_plan_bytes((guint64)(memory_gib * (double)RP_GIB)),
        .tokens_per_sequence = sequence,
        .batch = batch,
        .dtype = "fp16",
        .accumulate = "fp16",
        .lora_rank = rank,
    };

    for (guint micro_batch = 1; query.batch / micro_batch >= GPUS; micro_batch *= 2) {
        g_autoptr(RpProfile) profile = rp_advise_profile(&query, micro_batch, NULL);

        if ((guint64)micro_batch * sequence > 4 * 8192 && micro_batch > 1)
            break;
        query.sync = TRUE;
        query.resident = RP_RESIDENT_ON; /* full training freezes nothing */
        try_bound(&query, profile, micro_batch, &fastest->bound);
        query.resident = RP_RESIDENT_OFF;
        try_streamed(&query, profile, micro_batch, &fastest->sync);
        query.sync = FALSE;
        try_streamed(&query, profile, micro_batch, &fastest->async);
        if (rank == 0)
            continue;
        query.resident = RP_RESIDENT_ON;
        try_streamed(&query, profile, micro_batch, &fastest->resident_async);
        query.sync = TRUE;
        try_streamed(&query, profile, micro_batch, &fastest->resident_sync);
    }
    printf("%s,%s,%.2f,%u,%u,%g,%g,%s,%.0f,%.0f,%.0f,%.0f,%.0f\n", rank > 0 ? "lora" : "full",
           model->name, (double)rp_model_parameters(model) / 1e9, sequence, batch, memory_gib, link,
           fastest->bound.schedule != NULL ? fastest->bound.schedule : "-",
           fastest->bound.tokens_per_s, fastest->sync.tokens_per_s, fastest->async.tokens_per_s,
           fmax(fastest->sync.tokens_per_s, fastest->resident_sync.tokens_per_s),
           fmax(fastest->async.tokens_per_s, fastest->resident_async.tokens_per_s));
    fflush(stdout);
}

/* Every sequence, memory and link with the usual tokens of a step, then other steps. */
static void
sweep_model(const RpModel *model, guint rank)
{
    for (guint s = 0; s < G_N_ELEMENTS(sequences); s++) {
        Fastest fastest[G_N_ELEMENTS(links)] = {0};

        for (guint g = 0; g < G_N_ELEMENTS(memories); g++)
            for (guint l = 0; l < G_N_ELEMENTS(links); l++)
                sweep_case(model, rank, sequences[s], USUAL_STEP_TOKENS / sequences[s], memories[g],
                           links[l], &fastest[l]);
    }
    for (guint b = 0; b < G_N_ELEMENTS(step_sequences); b++)
        sweep_case(model, rank, USUAL_SEQUENCE, step_sequences[b], USUAL_MEMORY, USUAL_LINK,
                   &(Fastest){0});
}

static int
sweep(void)
{
    printf("# weight-binding sweep: predicted tokens/s of %d GPUs that compute as an RTX 4090, 0 "
           "where nothing fits\n",
           GPUS);
    printf("train,model,billion_parameters,sequence,batch,memory_gib,link_gb_per_s,bound_schedule,"
           "bound,streamed_sync,streamed_async,resident_sync,resident_async\n");
    for (guint t = 0; t < G_N_ELEMENTS(ranks); t++)
        for (guint m = 0; m < G_N_ELEMENTS(models); m++)
            sweep_model(rp_model_find(models[m], NULL), ranks[t]);
    return EXIT_SUCCESS;
}

/* ---- pictures ---- */

#define MOST_POINTS 8

/* A line: cases that differ in one column. */
typedef struct {
    double x[MOST_POINTS], y[MOST_POINTS];
    guint n;
} Line;

/* Keeps x ascending. */
static void
line_add(Line *line, double x, double y)
{
    guint i = MIN(line->n, MOST_POINTS - 1);

    line->n = i + 1;
    for (; i > 0 && line->x[i - 1] > x; i--) {
        line->x[i] = line->x[i - 1];
        line->y[i] = line->y[i - 1];
    }
    line->x[i] = x;
    line->y[i] = y;
}

/* The fixed values of a case; a name that is NULL, and the varied column, match anything. */
typedef struct {
    const char *train, *model, *varied;
    double memory_gib;
} Choice;

static gboolean
is_usual(const RpTable *table, guint row, const char *column, const char *varied, double usual)
{
    return strcmp(column, varied) == 0 || rp_table_number(table, row, column) == usual;
}

static gboolean
is_chosen(const RpTable *table, guint row, const Choice *choice)
{
    const double sequence = rp_table_number(table, row, "sequence");
    const double tokens = sequence * rp_table_number(table, row, "batch");

    return strcmp(rp_table_text(table, row, "train"), choice->train) == 0 &&
           (choice->model == NULL ||
            strcmp(rp_table_text(table, row, "model"), choice->model) == 0) &&
           is_usual(table, row, "sequence", choice->varied, USUAL_SEQUENCE) &&
           is_usual(table, row, "memory_gib", choice->varied, choice->memory_gib) &&
           is_usual(table, row, "link_gb_per_s", choice->varied, USUAL_LINK) &&
           (strcmp(choice->varied, "batch") == 0 || tokens == USUAL_STEP_TOKENS);
}

/* Column @what as a share of column @of, %. */
static Line
read_line(const RpTable *table, const Choice *choice, const char *what, const char *of)
{
    Line line = {.n = 0};

    for (guint row = 0; row < rp_table_n_rows(table); row++) {
        const double bound = rp_table_number(table, row, what);
        const double other = rp_table_number(table, row, of);

        if (is_chosen(table, row, choice))
            line_add(&line, rp_table_number(table, row, choice->varied),
                     bound > 0 && other > 0 ? 100 * bound / other : NAN);
    }
    return line;
}

static const RpColour colours[] = {RP_COLOUR_SKY,    RP_COLOUR_BLUE,       RP_COLOUR_GREEN,
                                   RP_COLOUR_ORANGE, RP_COLOUR_VERMILLION, RP_COLOUR_PURPLE};

/* Draws the comparison with both kinds of steps by size of the model, a colour a memory. */
static void
add_sizes(RpLineChart *chart, const RpTable *table, const char *train)
{
    for (guint g = 0; g < G_N_ELEMENTS(memories); g++) {
        const Choice choice = {
            .train = train, .varied = "billion_parameters", .memory_gib = memories[g]};
        const Line sync = read_line(table, &choice, "bound", "resident_sync");
        const Line async = read_line(table, &choice, "bound", "resident_async");
        g_autofree char *title = g_strdup_printf("%g GiB", memories[g]);

        rp_line_chart_add(chart, title, colours[g], RP_LINE_WITH_POINTS, sync.x, sync.y, sync.n);
        rp_line_chart_add(chart, NULL, colours[g], RP_LINE_DASHED, async.x, async.y, async.n);
    }
    rp_line_chart_explain(chart, "of synchronous", RP_LINE_WITH_POINTS);
    rp_line_chart_explain(chart, "of asynchronous", RP_LINE_DASHED);
}

/* Draws the gain of resident frozen weights by size of the model, a colour a memory. */
static void
add_residents(RpLineChart *chart, const RpTable *table)
{
    for (guint g = 0; g < G_N_ELEMENTS(memories); g++) {
        const Choice choice = {
            .train = "lora", .varied = "billion_parameters", .memory_gib = memories[g]};
        const Line sync = read_line(table, &choice, "resident_sync", "streamed_sync");
        const Line async = read_line(table, &choice, "resident_async", "streamed_async");
        g_autofree char *title = g_strdup_printf("%g GiB", memories[g]);

        rp_line_chart_add(chart, title, colours[g], RP_LINE_WITH_POINTS, sync.x, sync.y, sync.n);
        rp_line_chart_add(chart, NULL, colours[g], RP_LINE_DASHED, async.x, async.y, async.n);
    }
    rp_line_chart_explain(chart, "synchronous", RP_LINE_WITH_POINTS);
    rp_line_chart_explain(chart, "asynchronous", RP_LINE_DASHED);
}

/* Draws LoRA and full training, synchronous, by the column @varied, a colour a model. */
static void
add_models(RpLineChart *chart, const RpTable *table, const char *varied)
{
    for (guint m = 0; m < G_N_ELEMENTS(models); m++) {
        Choice choice = {"lora", models[m], varied, USUAL_MEMORY};
        const Line lora = read_line(table, &choice, "bound", "resident_sync");

        choice.train = "full";
        const Line full = read_line(table, &choice, "bound", "resident_sync");

        rp_line_chart_add(chart, models[m], colours[m], RP_LINE_WITH_POINTS, lora.x, lora.y,
                          lora.n);
        rp_line_chart_add(chart, NULL, colours[m], RP_LINE_DASHED, full.x, full.y, full.n);
    }
    rp_line_chart_explain(chart, "LoRA, rank 16", RP_LINE_WITH_POINTS);
    rp_line_chart_explain(chart, "full training", RP_LINE_DASHED);
}

typedef struct {
    const char *name;
    const char *train;  /* names pictures by size */
    const char *varied; /* names the other pictures */
    double low, high;
    const char *title;
    const char *x_title;
    gboolean residents; /* shows these */
} Picture;

static const Picture pictures[] = {
    {"weight-binding-lora", "lora", NULL, 1.5, 80, "Bound weights against RoundPipe's: LoRA",
     "parameters of the model, billion"},
    {"weight-binding-full", "full", NULL, 1.5, 80,
     "Bound weights against RoundPipe's: full training", "parameters of the model, billion"},
    {"weight-binding-resident", "lora", NULL, 1.5, 80,
     "LoRA with frozen weights that stay on their GPUs", "parameters of the model, billion", TRUE},
    {"weight-binding-link", NULL, "link_gb_per_s", 5.8, 54,
     "Bound weights against RoundPipe's, by link", "link of a GPU, GB/s each way"},
    {"weight-binding-sequence", NULL, "sequence", 1900, 35000,
     "Bound weights against RoundPipe's, by sequence", "tokens of a sequence"},
    {"weight-binding-step", NULL, "batch", 30, 550,
     "Bound weights against RoundPipe's, by size of a step", "sequences of a step"},
};

static gboolean
draw_one(const RpTable *table, const Picture *picture, const char *directory, GError **error)
{
    g_autoptr(RpLineChart) chart =
        rp_line_chart_new(picture->name, picture->title, picture->x_title,
                          picture->residents ? "resident, % of streamed" : "bound, % of RoundPipe");

    if (picture->residents)
        add_residents(chart, table);
    else if (picture->train != NULL)
        add_sizes(chart, table, picture->train);
    else
        add_models(chart, table, picture->varied);
    rp_line_chart_set_log(chart, 2, 0);
    rp_line_chart_set_tics_at_points(chart);
    rp_line_chart_set_x_range(chart, picture->low, picture->high);
    rp_line_chart_set_y_range(chart, picture->residents ? 95 : 50, picture->residents ? 145 : 115);
    rp_line_chart_set_subtitle(chart, "predicted tokens/s; 8 GPUs that compute as an RTX 4090; "
                                      "else 24 GiB, 25 GB/s, 128 sequences of 2048 tokens");
    g_autoptr(RpFigure) figure = rp_line_chart_figure(chart);

    rp_figure_set_caption(
        figure, picture->residents
                    ? "Predicted by our simulator at full fidelity, layer times of the cost model: "
                      "RoundPipe whose frozen weights stay on the GPUs as far as memory goes, as a "
                      "share of its tokens/s where they go up in each round."
                    : "Predicted by our simulator at full fidelity, layer times of the cost "
                      "model: the fastest synchronous schedule whose stages stay on their GPUs "
                      "with their weights, as a share of RoundPipe's tokens/s. A line begins "
                      "where a bound schedule fits.");
    rp_figure_add_command(figure, "weight-binding sweep >weight-binding.csv");
    rp_figure_add_command(figure, "weight-binding draw weight-binding.csv DIR");
    return rp_figure_write(figure, directory, RP_PICTURE_PNG, error);
}

static int
draw(const char *path, const char *directory)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *text = NULL;
    g_autoptr(RpTable) table = NULL;

    if (g_file_get_contents(path, &text, NULL, &error))
        table = rp_table_parse(text, &error);
    gboolean good = table != NULL && rp_gnuplot_check_formats(RP_PICTURE_PNG, &error) &&
                    rp_output_directory_check(directory, &error);

    for (guint i = 0; good && i < G_N_ELEMENTS(pictures); i++)
        good = draw_one(table, &pictures[i], directory, &error);
    if (!good)
        fprintf(stderr, "weight-binding: %s\n", error->message);
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

int
main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "sweep") == 0)
        return sweep();
    if (argc == 4 && strcmp(argv[1], "draw") == 0)
        return draw(argv[2], argv[3]);
    fprintf(stderr, "usage: weight-binding sweep | weight-binding draw FILE.csv DIR\n");
    return 2;
}
