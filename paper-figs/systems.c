/**
 * Baseline systems: throughput (Figures 9 and 11) and longest sequence (Figures 10 and 12) on both
 * servers, predicted bars beside published points, with every error in a table.
 */
#include <math.h>
#include <string.h>

#include "core/base/units.h"
#include "paper-figs/paper.h"
#include "plots/table.h"
#include "sim/systems/systems.h"

typedef struct {
    const char *name; /* in the published tables */
    const char *title;
    const char *device; /* in the catalogue; %NULL: the profiles' own */
    guint64 gpu_memory_bytes;
    /* times of the layers beside an RTX 4090's, a model each: docs/results.md */
    double times[RP_PAPER_N_MODELS];
    gboolean times_assumed[RP_PAPER_N_MODELS]; /* the mean of the others */
} Server;

static const Server rtx4090 = {"8x4090", "8 x RTX 4090", NULL, 0, {1, 1, 1, 1, 1}, {FALSE}};
static const Server a800 = {
    "8xA800",    "8 x A800", "A800 80GB SXM", 80 * RP_GIB, {0.83, 0.86, 0.80, 0.90, 0.85},
    {[4] = TRUE}};

/* One system on one model. */
typedef struct {
    double predicted;      /* NAN: out of memory, or it cannot run */
    double published;      /* the same, or unknown */
    double today;          /* with a chunked head and a micro-batch of its own */
    double gib, limit_gib; /* a GPU's: predicted, and usable */
    guint sequences;       /* in a micro-batch */
    guint today_sequences;
    const char *said; /* as published where it is no number: "OOM" */
    char *problem;    /* why it cannot run, or %NULL */
} Cell;

/* A model on a server. */
typedef struct {
    RpProfile *profile;
    RpSystemModel model;
    RpSystemServer server;
} Subject;

static void
subject_clear(Subject *subject)
{
    rp_profile_free(subject->profile);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Subject, subject_clear)

static void
cell_clear(Cell *cell)
{
    g_free(cell->problem);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Cell, cell_clear)

static void
scale_times(RpProfile *profile, double times)
{
    for (guint i = 0; i < profile->n_layers; i++) {
        RpLayer *layer = &profile->layers[i];
        gint64 *const ns[] = {&layer->forward_ns, &layer->backward_ns, &layer->recompute_ns,
                              &layer->weight_gradient_ns};

        for (guint k = 0; k < G_N_ELEMENTS(ns); k++)
            *ns[k] = (gint64)((double)*ns[k] * times);
    }
}

static gboolean
open_subject(RpPaper *paper, const Server *server, guint model, Subject *subject, GError **error)
{
    const RpProfile *profile = rp_paper_profile(paper, rp_paper_models[model].name, error);

    if (profile == NULL)
        return FALSE;
    subject->profile = rp_profile_copy(profile);
    scale_times(subject->profile, server->times[model]);
    if (server->device != NULL) {
        rp_profile_take(&subject->profile->device, g_strdup(server->device));
        subject->profile->gpu_memory_bytes = server->gpu_memory_bytes;
    }
    subject->server = rp_system_server(subject->profile, RP_PAPER_GPUS);
    return rp_system_model_read(subject->profile, &subject->model, error);
}

/* The name of a system in the published tables. */
static const char *
published_name(const RpSystem *system)
{
    static const char *const others[][2] = {{"zero-2", "deepspeed-zero2"},
                                            {"zero-infinity", "deepspeed-zero-infinity"}};

    for (guint i = 0; i < G_N_ELEMENTS(others); i++)
        if (strcmp(system->name, others[i][0]) == 0)
            return others[i][1];
    return system->name;
}

/* Returns: FALSE if the system was not run on the server */
static gboolean
find_published(const RpTable *table, const RpSystem *system, const Server *server, guint model,
               Cell *cell)
{
    const guint row =
        rp_table_find(table, "system", published_name(system), "server", server->name);

    if (row == RP_TABLE_NONE)
        return FALSE;
    cell->said = rp_table_text(table, row, rp_paper_models[model].column);
    cell->published = rp_table_number(table, row, rp_paper_models[model].column);
    return TRUE;
}

/* Sequences of a micro-batch and of a step, as published where it ran. */
static void
find_config(const RpTable *configs, const RpSystem *system, const Server *server, guint model,
            RpSystemJob *job)
{
    for (guint row = 0; row < rp_table_n_rows(configs); row++)
        if (strcmp(rp_table_text(configs, row, "system"), system->name) == 0 &&
            strcmp(rp_table_text(configs, row, "server"), server->name) == 0 &&
            strcmp(rp_table_text(configs, row, "model"), rp_paper_models[model].column) == 0) {
            job->sequences = (guint)rp_table_number(configs, row, "micro_batch");
            job->batch = (guint)rp_table_number(configs, row, "batch");
        }
}

/* ---- one row of each figure ---- */

typedef struct {
    const RpTable *published;
    const RpTable *configs;
    const Server *server;
} Tables;

typedef gboolean (*MeasureCell)(const RpSystem *system, const Subject *subject,
                                const Tables *tables, guint model, Cell *cell, GError **error);

/* A system that cannot take a model says so in its row; any other error ends the figure. */
static gboolean
take_problem(GError *problem, Cell *cell, GError **error)
{
    if (problem->domain != RP_SYSTEM_ERROR)
        return rp_propagate_error(error, problem);
    cell->problem = g_strdup(problem->message);
    g_error_free(problem);
    return TRUE;
}

/* With a chunked head: the micro-batch that the system chooses, or the published one if that is
 * faster. A planned system has one already. */
static gboolean
predict_today(const RpSystem *system, const RpSystemJob *job, const RpSystemPrediction *published,
              guint global_batch, RpSystemPrediction *today, GError **error)
{
    RpSystemJob chunked = *job;
    RpSystemPrediction same = *published;

    *today = *published;
    if (system->memory == NULL)
        return TRUE;
    chunked.chunked_head = TRUE;
    if (!rp_system_predict(system, &chunked, &same, error))
        return FALSE;
    chunked.sequences = 0;
    chunked.batch = global_batch;
    if (!rp_system_predict(system, &chunked, today, error))
        return FALSE;
    if (same.fits && (!today->fits || same.tokens_per_s > today->tokens_per_s))
        *today = same;
    return TRUE;
}

static gboolean
measure_throughput(const RpSystem *system, const Subject *subject, const Tables *tables,
                   guint model, Cell *cell, GError **error)
{
    const guint batch = rp_paper_models[model].global_batch;
    RpSystemJob job = {.model = &subject->model,
                       .server = &subject->server,
                       .batch = batch,
                       .tokens = subject->profile->tokens_per_sequence};
    RpSystemPrediction is, today;
    GError *problem = NULL;

    find_config(tables->configs, system, tables->server, model, &job);
    if (!rp_system_predict(system, &job, &is, &problem) ||
        !predict_today(system, &job, &is, batch, &today, &problem))
        return take_problem(problem, cell, error);
    cell->gib = is.memory.gpu / (double)RP_GIB;
    cell->limit_gib = (double)subject->server.gpu_bytes / (double)RP_GIB;
    cell->predicted = is.fits ? is.tokens_per_s : NAN;
    cell->today = today.fits ? today.tokens_per_s : NAN;
    cell->sequences = is.sequences;
    cell->today_sequences = today.sequences;
    return TRUE;
}

static gboolean
measure_longest(const RpSystem *system, const Subject *subject, const Tables *tables, guint model,
                Cell *cell, GError **error)
{
    RpSystemJob job = {.model = &subject->model, .server = &subject->server};
    GError *problem = NULL;
    guint tokens, today;

    (void)tables;
    (void)model;
    if (!rp_system_longest(system, &job, &tokens, &problem))
        return take_problem(problem, cell, error);
    job.chunked_head = TRUE;
    if (!rp_system_longest(system, &job, &today, &problem))
        return take_problem(problem, cell, error);
    cell->predicted = tokens > 0 ? tokens : NAN;
    cell->today = today > 0 ? today : NAN;
    cell->sequences = cell->today_sequences = 1;
    return TRUE;
}

/* ---- words ---- */

/* "10,884, +7 %": the diamond stands where it is published. */
static char *
describe(const Cell *cell)
{
    g_autofree char *predicted = rp_text_thousands(cell->predicted);
    GString *text = g_string_new(NULL);
    const gboolean out = strcmp(cell->said, "OOM") == 0;

    if (cell->problem != NULL)
        g_string_append(text, "cannot run");
    else if (isfinite(cell->predicted))
        g_string_append(text, predicted);
    else
        g_string_append(text, out ? "out of memory, as published" : "out of memory");
    if (isfinite(cell->predicted) && isfinite(cell->published))
        rp_text_append(text, ", %+.0f %%", 100 * (cell->predicted / cell->published - 1));
    else if (isfinite(cell->predicted) && out)
        g_string_append(text, "; published: out of memory");
    return g_string_free(text, FALSE);
}

static void
append_field(GString *csv, double value)
{
    if (isfinite(value))
        rp_text_append(csv, ",%.6g", value);
    else
        g_string_append_c(csv, ',');
}

static void
append_line(GString *csv, const RpSystem *system, guint model, const Cell *cell)
{
    const gboolean both = isfinite(cell->predicted) && isfinite(cell->published);
    const char *state = cell->problem != NULL       ? "cannot run"
                        : isfinite(cell->predicted) ? "runs"
                                                    : "OOM";
    const char *said = isfinite(cell->published) ? "runs" : cell->said;

    rp_text_append(csv, "%s,%s,%s,%s", system->name, rp_paper_models[model].column, state, said);
    rp_text_append(csv, ",%u", cell->sequences);
    append_field(csv, cell->predicted);
    append_field(csv, cell->published);
    append_field(csv, both ? 100 * (cell->predicted / cell->published - 1) : NAN);
    rp_text_append(csv, ",%u", cell->today_sequences);
    append_field(csv, cell->today);
    g_string_append_c(csv, '\n');
}

static RpColour
colour_of(const RpSystem *system)
{
    if (system->memory != NULL)
        return RP_COLOUR_GREY;
    return system->synchronous ? RP_COLOUR_SKY : RP_COLOUR_BLUE;
}

/* ---- figures ---- */

typedef struct {
    const char *name;
    const char *title;
    const char *what;      /* that the bars are of */
    const char *published; /* table */
    const Server *server;
    MeasureCell measure;
} Recipe;

#define THROUGHPUT "tokens/s"
#define LONGEST "tokens of the longest sequence"

static const Recipe recipes[] = {
    {"figure-9", "Figure 9: throughput of eight systems on 8 x RTX 4090", THROUGHPUT,
     "published-throughput.csv", &rtx4090, measure_throughput},
    {"figure-10", "Figure 10: longest sequence of seven systems on 8 x RTX 4090", LONGEST,
     "published-max-sequence.csv", &rtx4090, measure_longest},
    {"figure-11", "Figure 11: throughput of seven systems on 8 x A800", THROUGHPUT,
     "published-throughput.csv", &a800, measure_throughput},
    {"figure-12", "Figure 12: longest sequence of six systems on 8 x A800", LONGEST,
     "published-max-sequence.csv", &a800, measure_longest},
};

/* Bars of a model: as long as their share of its largest figure. Hatched where the layers' times are assumed. */
static void
add_model(RpBarChart *chart, const Server *server, guint model, const RpSystem *const *systems,
          const Cell *cells, guint n)
{
    double largest = 0;

    for (guint i = 0; i < n; i++) {
        largest = isfinite(cells[i].predicted) ? MAX(largest, cells[i].predicted) : largest;
        largest = isfinite(cells[i].published) ? MAX(largest, cells[i].published) : largest;
    }
    for (guint i = 0; i < n; i++) {
        g_autofree char *text = describe(&cells[i]);
        const RpBarRow row = {
            .group = rp_paper_models[model].trained,
            .label = systems[i]->title,
            .values = {isfinite(cells[i].predicted) ? 100 * cells[i].predicted / largest : 0},
            .hatched = server->times_assumed[model] && isfinite(cells[i].predicted)
                           ? 100 * cells[i].predicted / largest
                           : 0,
            .marker = 100 * cells[i].published / largest,
            .text = text,
            .colour = colour_of(systems[i]),
        };

        rp_bar_chart_add(chart, &row);
    }
}

static gboolean
measure_model(RpPaper *paper, const Recipe *recipe, const Tables *tables, guint model,
              RpBarChart *chart, GString *csv, GError **error)
{
    g_auto(Subject) subject = {0};
    const RpSystem *systems[16];
    Cell cells[G_N_ELEMENTS(systems)] = {{0}};
    gboolean done = open_subject(paper, recipe->server, model, &subject, error);
    guint n = 0;

    for (const RpSystem *const *s = rp_systems(); done && *s != NULL; s++) {
        Cell *cell = &cells[n];

        *cell = (Cell){.predicted = NAN, .published = NAN, .today = NAN};
        if (!find_published(tables->published, *s, recipe->server, model, cell))
            continue;
        done = recipe->measure(*s, &subject, tables, model, cell, error);
        systems[n++] = *s;
        if (done)
            append_line(csv, *s, model, cell);
    }
    if (done)
        add_model(chart, recipe->server, model, systems, cells, n);
    for (guint i = 0; i < n; i++)
        cell_clear(&cells[i]);
    return done;
}

gboolean
rp_paper_systems(RpPaper *paper, const char *name, GPtrArray *figures, GError **error)
{
    const Recipe *recipe = recipes;

    while (strcmp(recipe->name, name) != 0)
        recipe++;
    static const RpBarPart parts[] = {{NULL, RP_COLOUR_GREY}};
    g_autoptr(RpTable) published = rp_table_published(recipe->published);
    g_autoptr(RpTable) configs = rp_table_published("published-run-configs.csv");
    const Tables tables = {published, configs, recipe->server};
    g_autofree char *axis = g_strdup_printf("%s, %% of the model's most", recipe->what);
    g_autofree char *caption = g_strdup_printf(
        "Predicted beside published %s. Grey: baselines by docs/results.md, with the published "
        "micro-batches where there are any; blue: RoundPipe, planned and simulated in full "
        "fidelity. Layer times: published, of an RTX 4090%s. %s.csv lists every error, and in its "
        "last columns the same with a chunked head and a fused loss.",
        recipe->what,
        recipe->server == &a800 ? "; an A800's are 0.80 to 0.90 of them, fitted to its throughput"
                                : "",
        recipe->name);
    g_autoptr(RpBarChart) chart =
        rp_bar_chart_new(recipe->name, recipe->title, axis, 0, parts, G_N_ELEMENTS(parts));
    g_autoptr(GString) csv =
        g_string_new("system,model,predicted_state,published_state,micro_batch,predicted,published,"
                     "error_pct,today_micro_batch,today\n");

    rp_bar_chart_set_subtitle(chart, "bars and the first figure are predicted, diamonds published");
    rp_bar_chart_set_marker_title(chart, "published");
    rp_bar_chart_set_hatched_title(chart, "layer times assumed");
    for (guint m = 0; m < RP_PAPER_N_MODELS; m++)
        if (!measure_model(paper, recipe, &tables, m, chart, csv, error))
            return FALSE;
    rp_paper_add_bars(paper, figures, chart, caption, NULL);
    rp_figure_set_file(g_ptr_array_index(figures, 0), RP_FIGURE_TABLE, csv->str);
    return TRUE;
}
