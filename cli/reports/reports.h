/**
 * Reports that several commands print.
 *
 * The result of a simulated request: the figures that `simulate`, `compare` and `partition` print.
 */
#pragma once

#include <glib.h>

#include "cli/cli.h"
#include "cli/report.h"
#include "core/profile/profile.h"
#include "core/trace/diff.h"
#include "core/trace/report.h"
#include "exec/device/device.h"
#include "plots/charts/charts.h"
#include "plots/figure.h"
#include "run/train/train.h"
#include "sim/draws.h"
#include "sim/plan-bound.h"
#include "sim/systems/systems.h"

/*
 * Profiles that are compared.
 */

typedef struct {
    char *path;
    char *name; /* of the file, without .json */
    RpProfile *profile;
} RpCliEntry;

/* A GDestroyNotify. */
void rp_cli_entry_free(gpointer entry);

/**
 * rp_cli_load_entries:
 * @paths: %NULL-terminated
 * @profiles_dir: (nullable): without @paths all of it; %NULL: $ROUNDPIPE_PROFILES, or the shipped ones
 * @args: its box and GPUs as for rp_cli_load_profile()
 * @entries: (element-type RpCliEntry): appended to; those of a directory by size
 *
 * Errors: RP_CLI_ERROR_USAGE, G_FILE_ERROR, RP_PROFILE_ERROR_*
 */
gboolean rp_cli_load_entries(char **paths, const char *profiles_dir, const RpArgs *args,
                             GPtrArray *entries, GError **error) G_GNUC_WARN_UNUSED_RESULT;

#define RP_CLI_MOST_DRAWS 100000

typedef struct {
    gint64 makespan_ns; /* of the whole run: 0 to the end of its last action */
    gint64
        bound_ns; /* no partition's iteration is shorter (sim/search/partition-cost.h); 0 = unknown:
                            full     fidelity */
    RpPlanBound plan_bound; /* no order of the plan's tasks is faster; of an iteration */
    gint64 iteration_ns;    /* steady: mean period; else the run, with its last task, divided */
    gboolean steady;        /* `bubble` is of the window [first, end), not of the whole run */
    guint first_iteration;
    guint end_iteration;
    gint64 least_ns;   /* iteration_ns if every layer took its 10th percentile, */
    gint64 most_ns;    /* or its 90th; both 0: the profile has no spreads */
    RpBubble bubble;   /* ratio = fill + switch + drain + intra; asynchronous: fill = drain = 0 */
    RpBubble isolated; /* asynchronous: the first iteration alone */
    double tokens_per_s;
    guint64 actions; /* compute tasks */
    guint64 tasks;
    guint peak_live;         /* stage inputs on the fullest GPU (rp_schedule_peak_live()) */
    guint64 gpu_peak_bytes;  /* full fidelity, or rp_result_plan_memory(); 0 = not known */
    guint64 host_peak_bytes; /* the same */
    char *memory_problem;    /* why it does not fit the profile's GPU, or %NULL */
} RpResult;

void rp_result_clear(RpResult *result);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpResult, rp_result_clear)

/* Zero-initialise @result. */
void rp_result_measure(const RpRequest *request, const RpProfile *profile, const RpPlan *plan,
                       const RpTrace *trace, RpResult *result);

/* The memory that the request's partition takes with every buffer, also where it was simulated in
 * `compute` fidelity; a profile without sizes has none, and where its plan would take too much
 * memory it is not known. */
void rp_result_plan_memory(const RpRequest *request, const RpProfile *profile, RpResult *result);

/* By how much the iteration is longer than the bound, %; 0 if that is not known. */
double rp_result_above_bound(const RpResult *result);

/* lower_bound {ms, of, busy_ms, path_ms, above_order_ratio, above_busy_ratio}: how much a better
 * order could gain, and a pipeline without bubbles (busy / N). @label:
 * (nullable): for a table's column, in percent; @words: else, in words */
void rp_report_add_plan_bound(RpReport *report, const RpResult *result, const char *label,
                              gboolean words);

/* bubble_ratio, bubble {fill, switch, drain, intra}, comm_exposed_ratio, and where
 * weights are packed expand_ratio. @labels: (nullable): of
 * the six; %NULL: for machines */
void rp_report_add_bubble(RpReport *report, const RpBubble *bubble, const char *const *labels);

/* Reports which tensors forwards save instead of recomputing them, and how much faster that is. */
void rp_report_add_saved(RpReport *report, const RpRequest *request);
/* Frozen weights that stay on devices, if any do, and what they bring. */
void rp_report_add_resident(RpReport *report, const RpRequest *request);

/* Reports a figure over draws (sim/draws.h). @ms: nanoseconds, printed in milliseconds; else a ratio,
 * for people in percent */
void rp_report_add_drawn(RpReport *report, const char *key, const RpDrawn *drawn, gboolean ms,
                         const char *label);

/* Block counts of stages: a list of numbers, "7*4" for people. */
void rp_report_add_stages(RpReport *report, const char *key, const RpProfile *profile,
                          const RpInterval *stages, guint n, const char *label);

/* forward_stages and backward_stages (bound: the same list in the opposite order). @source:
 * (nullable): how it came about: for people, too */
void rp_report_add_partition(RpReport *report, const RpProfile *profile,
                             const RpPartition *partition, const char *source);

/* "7*4" of stages. (transfer full) */
char *rp_cli_stage_list(const RpProfile *profile, const RpInterval *stages, guint n);

/*
 * Times as they are on real machines: drawn from distributions, and a card that is slower than the
 * others: options of `simulate` and `compare`.
 */

/* Before long work. Errors: what an option says wrong, and options that
 * miss another */
gboolean rp_cli_noise_check(const RpArgs *args, guint gpus,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Reports figures over draws of the times, if they are requested and the times have a
 * distribution. @drawn: (out): draws = 0: they are not; @distributed: (out): whether they have */
gboolean rp_cli_noise_draw(const RpArgs *args, const RpRequest *request, const RpProfile *profile,
                           RpRequestDrawn *drawn, gboolean *distributed,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* noise, slow {gpu: factor}, drawn {draws, seed, makespan_ms, iteration_ms, bubble_ratio}, as far as
 * they are asked for. @words: for people, too */
void rp_report_add_noise(RpReport *report, const RpArgs *args, const RpRequest *request,
                         const RpRequestDrawn *drawn, gboolean words);

/*
 * Pictures of one run, drawn by plots/.
 */

/* Draws @figure as the one file @path; of a .tex the graphics beside it, as .pdf. Errors: RP_PLOT_ERROR_*, G_IO_ERROR, G_FILE_ERROR */
gboolean rp_cli_picture_write(const RpFigure *figure, const char *path,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* @drawn: whether a picture is asked for; without one the options have no effect. Errors:
 * RP_CLI_ERROR_USAGE */
gboolean rp_cli_picture_style(const RpArgs *args, gboolean drawn, RpFigureStyle *style,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The part of a run that is drawn. */
typedef struct {
    guint first; /* iteration */
    guint end;   /* excluded */
    gint64 from_ns;
    gint64 end_ns; /* not after from_ns: all of it */
} RpPictureWindow;

/**
 * rp_cli_picture_window:
 * @text: (nullable): "A:B", iterations A to B - 1; %NULL: the steady state if the run has one, as
 *   the report has it, else all
 *
 * From the start of the first iteration to that of the one after the last, as rp_report_steady().
 * Errors: RP_CLI_ERROR_USAGE
 */
gboolean rp_cli_picture_window(const RpRequest *request, const RpTrace *trace, const char *text,
                               RpPictureWindow *window, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Every device's lanes (compute only in `compute` fidelity). @window: (nullable): all of it. The
 * bubble ratio of its title is that of what is drawn. @style: (nullable). (transfer full) */
RpFigure *rp_cli_timeline(const RpRequest *request, const char *model, const RpTrace *trace,
                          const RpPictureWindow *window, const RpFigureStyle *style);

/* Bytes in the buffers of each GPU and of the host over time. (transfer full) */
RpFigure *rp_cli_memory_chart(const RpRequest *request, const RpProfile *profile,
                              const RpPlan *plan, const RpTrace *trace,
                              const RpPictureWindow *window, const RpFigureStyle *style);

/*
 * `roundpipe report --late`: its lists and its picture.
 */

/* Reports what differs between two traces of one plan; the second may be one of recordings, all paths from the second on. */
gboolean rp_cli_late(const RpArgs *args, char *const *paths, RpReport *report, GError **error);

/* Whether a file is a recording by torch.profiler or nsys. */
gboolean rp_cli_is_recording(const char *path);
/* Whether recordings, all words from the second on, are compared with a trace, the first. */
gboolean rp_cli_are_compared(char *const *words);

/* Reports how busy each device of recordings is, and writes the page that args->output names. @command: for the page */
gboolean rp_cli_recordings(const RpArgs *args, char *const *paths, const char *command,
                           RpReport *report, GError **error);

/* (transfer full): the actions that recordings of one run have notes of. */
char *rp_cli_recordings_name(char *const *paths); /* for people: "rank0.json and 3 more" */
RpTrace *rp_cli_recordings_trace(const RpArgs *args, char *const *paths, GError **error);

/* "predicted" and "measured", or where both traces are of one origin "first" and "second". */
const char *rp_diff_label(const RpTraceDiff *diff, RpTraceSide side);

/* Each device's two timelines one above the other, the first trace's on top. @style: (nullable). (transfer full) */
RpFigure *rp_diff_figure(const RpTraceDiff *diff, const RpFigureStyle *style);

/*
 * The report of `roundpipe profile` (cli/commands/profile.c).
 */

/* GPU code, driver, and what was found when this was built. @gpus: (nullable) */
void rp_report_built(RpReport *report, const RpDeviceOps *gpus);
/* The first @n. @problems: (element-type utf8): a line is added for each that does not answer */
void rp_report_gpus(RpReport *report, guint n, GPtrArray *problems);

/* The measured model and device. @output: the file; @weights: "given" or "random" */
void rp_report_profile_subject(RpReport *report, const RpProfile *profile, const char *output,
                               const char *weights);
void rp_report_profile_layers(RpReport *report, const RpProfile *profile);
/* Copies, also those at once where they were measured. */
void rp_report_profile_links(RpReport *report, const RpLinks *links);
/* @threads: of the optimizer */
void rp_report_profile_optimizer(RpReport *report, const RpProfile *profile, guint threads);

/*
 * `compare --systems`: rows of profile x system.
 */

/* The table of systems, for --help. */
void rp_cli_list_systems(RpReport *report);

/* Without --systems: that none of the others is there. Errors: RP_CLI_ERROR_USAGE */
gboolean rp_cli_check_no_systems(const RpArgs *args, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_cli_compare_systems:
 * @args: of it the box, GPUs, and micro-batches of the profile's size: the tokens of a step, of every system
 * @entries: (element-type RpCliEntry)
 *
 * A row that cannot run says why, and the others go on. Writes --csv.
 * Errors: RP_CLI_ERROR_USAGE, G_FILE_ERROR
 */
gboolean rp_cli_compare_systems(const RpArgs *args, const GPtrArray *entries, RpReport *report,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;

/*
 * The steps of a training run, as its metrics.jsonl has them.
 */

typedef struct {
    char *title;   /* what the run is called: its directory */
    GArray *lines; /* RpTrainLine, of steps and evaluations */
} RpCliSteps;

void rp_cli_steps_clear(RpCliSteps *steps);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpCliSteps, rp_cli_steps_clear)

#define RP_CLI_METRICS "metrics.jsonl"

/**
 * rp_cli_steps_read:
 * @word: the output directory of a run, or its metrics.jsonl
 * @steps: (out): set on success
 *
 * Errors: G_FILE_ERROR naming the file, also of one without a line
 */
gboolean rp_cli_steps_read(const char *word, RpCliSteps *steps,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The numbers of a line that pictures have. */
RpRunPoint rp_cli_point_of(const RpTrainLine *line);
/* Draws what they measured, one over the other. @runs: (element-type RpCliSteps). Errors: RP_PLOT_ERROR_*,
 * G_IO_ERROR, G_FILE_ERROR */
gboolean rp_cli_steps_draw(const GArray *runs, const char *title, const char *path,
                           gboolean logarithmic, const RpFigureStyle *style,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The line is of an evaluation, not of a step. */
gboolean rp_cli_is_evaluation(const RpTrainLine *line);
/* NAN where it is not known. */
double rp_cli_tokens_per_s(const RpTrainLine *line);
