/**
 * Shared by the recipes of the paper's figures. Private to plots/.
 */
#pragma once

#include "core/plan/planner.h"
#include "core/trace/report.h"
#include "plots/charts/charts.h"
#include "sim/search/partition-cost.h"
#include "sim/simulate.h"

/* The setting of §5.6.1, which most figures use. */
#define RP_PAPER_GPUS 8
#define RP_PAPER_MICRO_BATCHES 16
#define RP_PAPER_ROUND 8

/* The model of figures that show one. */
#define RP_PAPER_EXAMPLE "qwen3-1.7b"

/* The five models of the evaluation. */
#define RP_PAPER_N_MODELS 5
typedef struct {
    const char *name;    /* catalogue, and profiles/rtx4090/NAME.json */
    const char *title;   /* as in the paper */
    const char *trained; /* the same, and how it is trained */
    const char *column;  /* in published-throughput.csv */
    guint global_batch;  /* sequences, §5.1 */
} RpPaperModel;
extern const RpPaperModel rp_paper_models[RP_PAPER_N_MODELS];

typedef struct _RpPaper RpPaper;

/* @profiles_dir: the project's profiles/. @measured_dir: (nullable): where figure-13.csv and others
 * are; %NULL = those built in */
RpPaper *rp_paper_new(const char *profiles_dir, const char *measured_dir);
/* The style of every figure; the usual one unless it is set. */
void rp_paper_set_style(RpPaper *paper, const RpFigureStyle *style);
const RpFigureStyle *rp_paper_style(const RpPaper *paper);
void rp_paper_free(RpPaper *paper);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpPaper, rp_paper_free)

/* The RTX 4090 profile of a model, read once. (transfer none) */
const RpProfile *rp_paper_profile(RpPaper *paper, const char *model, GError **error);
/* How commands call it: "profiles/rtx4090/MODEL.json". (transfer full) */
char *rp_paper_profile_path(const RpPaper *paper, const char *model);

/* Rows of one of the files that paper-figs/measure writes (paper-figs/paper.h). A file that is not
 * there has none. Errors: RP_PLOT_ERROR_EMPTY, RP_PLOT_ERROR_DATA. (transfer full) */
GPtrArray *rp_paper_measured(const RpPaper *paper, const char *file,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* rp_partition_choose() for @options, found once for each model and options. (transfer full) */
RpPartition *rp_paper_partition(RpPaper *paper, const char *model, RpPlanOptions *options,
                                RpPartitionObjective objective, GError **error);

/* "7*4|0,3*8,2*2" or "4*8", as the published table writes partitions. (transfer full) */
RpPartition *rp_paper_parse_partition(const RpProfile *profile, const char *text,
                                      GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* One simulated plan. */
typedef struct {
    RpPlan *plan;
    RpTrace *trace;
    RpBubble bubble; /* the first iteration's, if there are several */
    RpSteady steady; /* asynchronous runs only */
    char *command;   /* the `roundpipe simulate` call that gives the same */
} RpPaperRun;
void rp_paper_run_free(RpPaperRun *run);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpPaperRun, rp_paper_run_free)

/**
 * rp_paper_simulate:
 * @file: how the command calls the profile
 * @iterations: 0 = one, or as many as the steady state of an asynchronous run takes
 */
RpPaperRun *rp_paper_simulate(const RpProfile *profile, const char *file,
                              const RpPartition *partition, const RpPlanOptions *options,
                              guint iterations, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_paper_simulate_published:
 * @options: schedule is set here
 *
 * Qwen3-1.7B (RP_PAPER_EXAMPLE) under RoundPipe with the published partition.
 */
RpPaperRun *rp_paper_simulate_published(RpPaper *paper, RpPlanOptions options, guint iterations,
                                        GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* A profile of blocks without times, called @model, for a figure that shows a principle. Takes
 * @model. (transfer full) */
RpProfile *rp_paper_made_up_profile(guint layers, char *model);

/* Texts of commands, for rp_paper_add(). */
static inline GPtrArray *
rp_paper_commands(void)
{
    return g_ptr_array_new_with_free_func(g_free);
}

/* Appends @figure to @figures, with the commands of @commands (element-type utf8); %NULL: the one that draws it. Takes
 * @figure. */
void rp_paper_add(GPtrArray *figures, RpFigure *figure, const char *caption,
                  const GPtrArray *commands);
/* The same with a chart in the paper's style. */
void rp_paper_add_bars(RpPaper *paper, GPtrArray *figures, RpBarChart *chart, const char *caption,
                       const GPtrArray *commands);
void rp_paper_add_lines(RpPaper *paper, GPtrArray *figures, RpLineChart *chart, const char *caption,
                        const GPtrArray *commands);

/* Makes the figures of its @name, or those that begin with it, and appends them (element-type RpFigure) to @figures. */
typedef gboolean RpPaperRecipe(RpPaper *paper, const char *name, GPtrArray *figures,
                               GError **error);

RpPaperRecipe rp_paper_figure_1, rp_paper_figure_2, rp_paper_figure_3, rp_paper_figure_4,
    rp_paper_figure_5, rp_paper_overlap, rp_paper_figure_8, rp_paper_systems, rp_paper_figure_13,
    rp_paper_figure_13_measured, rp_paper_figure_14, rp_paper_figure_14_measured,
    rp_paper_figure_15, rp_paper_figure_15_published, rp_paper_figure_15_measured,
    rp_paper_figure_16, rp_paper_figure_16_measured, rp_paper_figure_17;
/* Not in the paper: models that fit in the card, a timeline of every schedule, memory over time,
 * balance of the stages. */
RpPaperRecipe rp_paper_fit, rp_paper_timelines, rp_paper_memory, rp_paper_balance;

/*
 * Rows that paper-figs/measure wrote: figure-13.csv, figure-14.csv and figure-16.csv, all with the
 * same columns. The committed ones are built in. Private to plots/.
 */

/* One run. Texts are owned. */
typedef struct {
    char *model;
    char *title; /* as it is drawn: "Qwen3-1.7B" */
    char *schedule;
    char *mode;        /* "async" or "sync" */
    char *consistency; /* "events" or "blocking" */
    char *device_memory;
    char *device;
    guint gpus;
    guint sequence;
    guint micro_batch; /* sequences */
    guint micro_batches;
    double tokens; /* in a step */
    double tokens_per_s;
    double predicted_tokens_per_s; /* NAN = not known */
} RpMeasured;

/**
 * rp_measured_parse:
 * @text: a file's
 * @file: its name, for messages
 *
 * If several rows have the same configuration, the last one counts.
 *
 * Returns: (element-type RpMeasured) (transfer full): not empty
 * Errors: RP_PLOT_ERROR_EMPTY without rows, RP_PLOT_ERROR_DATA naming row and column
 */
GPtrArray *rp_measured_parse(const char *text, const char *file,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* "Qwen3-1.7B, looped-bfs sync, 24GiB": the name of a line or a group. @several_devices: the name
 * includes theirs. (transfer full) */
char *rp_measured_title(const RpMeasured *row, gboolean several_devices);

/* Whether model, schedule, mode, limit and device are the same. */
gboolean rp_measured_alike(const RpMeasured *a, const RpMeasured *b);

/* Seconds of a step. */
double rp_measured_seconds(const RpMeasured *row);
double rp_measured_predicted_seconds(const RpMeasured *row);

/* The devices' names, if there is more than one; else %NULL. (transfer none) */
const char *rp_measured_one_device(const GPtrArray *rows);
