#include "cli/cli.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/reports/picture.h"
#include "cli/train/train.h"
#include "run/settings.h"

/* What a shell reports for a program that a signal ended. */
#define SIGNAL_EXIT 128

/* More is not even read. */
#define MAX_RUN_FILE_BYTES (1 << 20)

/* Between lines of progress in a file. */
#define PROGRESS_SECONDS 30.0

typedef struct {
    char **sets;
    char *resume; /* "" = the last checkpoint */
    char *save_gradients;
    char *trace;
    char *picture;
    gboolean dry_run;
    gboolean keys;
    double progress_s;
} TrainArgs;

static gboolean
check_words(const RpTrainHow *how, GError **error)
{
    const RpCliFile files[] = {
        {"--trace", how->trace, TRUE},
        {"--picture", how->picture, TRUE},
    };

    if (!(how->progress_s >= 0 && how->progress_s <= 86400)) { /* also refuses NaN */
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                    "--progress: expected seconds from 0 to 86400, found %g", how->progress_s);
        return FALSE;
    }
    if (how->save_gradients != NULL && (how->trace != NULL || how->picture != NULL)) {
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                    "--save-gradients: expected no %s with it, for nothing is trained",
                    how->trace != NULL ? "--trace" : "--picture");
        return FALSE;
    }
    if (how->trace != NULL && strcmp(how->trace, "-") == 0) {
        g_set_error_literal(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                            "--trace: expected a file; standard output has the report");
        return FALSE;
    }
    if (how->save_gradients != NULL && !g_str_has_suffix(how->save_gradients, ".safetensors")) {
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                    "--save-gradients: expected FILE.safetensors, found \"%s\"",
                    how->save_gradients);
        return FALSE;
    }
    return rp_cli_check_files(files, G_N_ELEMENTS(files), error);
}

/* Files that are written at the end can be written, and are not those that are read or written
 * anyway: said now. */
static gboolean
check_files(const RpRunFile *run_file, const RpTrainHow *how, GError **error)
{
    return check_words(how, error) &&
           (how->trace == NULL || rp_cli_check_writable(how->trace, error)) &&
           (how->save_gradients == NULL || rp_cli_check_writable(how->save_gradients, error)) &&
           rp_train_check_no_input("--trace", how->trace, run_file, how, error) &&
           rp_train_check_no_output("--trace", how->trace, run_file, error) &&
           rp_train_check_no_input("--save-gradients", how->save_gradients, run_file, how, error) &&
           (how->picture == NULL || rp_cli_picture_check("picture", how->picture, error)) &&
           rp_train_check_no_input("--picture", how->picture, run_file, how, error) &&
           rp_train_check_no_output("--picture", how->picture, run_file, error);
}

/* Tells, and forgets, why @option's file could not be written. */
static void
tell_unwritten(const char *option, GError **problem, int *code)
{
    g_prefix_error(problem, "%s: ", option);
    (void)rp_cli_fail("train", g_steal_pointer(problem));
    *code = RP_EXIT_FAILED;
}

/* @trace (nullable) as a file, and if @draw as a picture; one that fails does not keep the other
 * back. The report stands before: nothing that happens here is to cost it. */
static void
write_trace(const RpTrainHow *how, const RpTrainJob *job, RpTrace *trace, gboolean draw, int *code)
{
    GError *problem = NULL;

    (void)fflush(stdout);
    if (trace == NULL)
        return;
    if (how->trace != NULL && !rp_cli_write_trace(how->trace, trace, &problem))
        tell_unwritten("--trace", &problem, code);
    if (how->picture != NULL && draw && !rp_train_plot_timeline(job, trace, how->picture, &problem))
        tell_unwritten("--picture", &problem, code);
}

/* Drawn is only a run that came to its end; its trace is written however it ended. */
static gboolean
train(RpTrainHow *how, const RpTrainJob *job, GError **error)
{
    RpReport *report = how->report;
    g_auto(RpTrainOutcome) outcome = {0};
    gboolean stepped;

    if (!rp_train_run(job, how, &outcome, error)) {
        write_trace(how, job, outcome.trace, FALSE, &report->exit);
        return FALSE;
    }
    rp_train_report_outcome(report, job, &outcome);
    if (outcome.unsaved)
        report->exit = RP_EXIT_FAILED;
    else if (outcome.signal != 0)
        report->exit = SIGNAL_EXIT + outcome.signal;
    stepped = outcome.last_step > outcome.first_step;
    if (how->picture != NULL && !stepped)
        fprintf(stderr, "roundpipe train: note: --picture: no step was run, nothing was drawn\n");
    rp_report_finish(report);
    write_trace(how, job, outcome.trace, stepped, &report->exit);
    return TRUE;
}

/* Output directory of the run that goes on; %NULL: none does. */
static char *
earlier_run(const RpRunFile *run_file, const RpTrainHow *how)
{
    if (!how->resume)
        return NULL;
    if (how->checkpoint == NULL)
        return g_strdup(run_file->output);
    g_autofree char *checkpoint = g_canonicalize_filename(how->checkpoint, NULL);

    return g_path_get_dirname(checkpoint);
}

static void
note(const char *text)
{
    fprintf(stderr, "roundpipe train: note: %s\n", text);
}

static void
show_progress(const char *what, guint64 done, guint64 total)
{
    static RpProgress progress;

    if (total == 0) {
        rp_progress_clear();
        progress.what = NULL;
    } else if (progress.what == NULL) {
        progress = rp_progress_begin(what, 0);
    }
    rp_progress_show(&progress, done, total);
}

static gboolean
run_as(const TrainArgs *args, const RpRunFile *run_file, RpTrainHow *how, GError **error)
{
    g_auto(RpTrainJob) job = {0};
    const RpRunEvents events = {note, show_progress};

    if (!check_files(run_file, how, error) ||
        (strcmp(run_file->profile, "auto") != 0 &&
         !rp_train_check_regular("profile: ", run_file->profile, G_MAXUINT64, error)) ||
        (!args->dry_run && !rp_train_find_checkpoint(run_file, how, error)))
        return FALSE;
    g_autofree char *earlier = earlier_run(run_file, how);

    if (!rp_train_job_prepare(&job, run_file, earlier, args->dry_run, &events, error)) {
        if (job.remedy != RP_REMEDY_NONE) {
            g_autofree char *problem = g_steal_pointer(&(*error)->message);
            g_autofree char *remedy = rp_cli_remedy(job.remedy, TRUE);

            (*error)->message = g_strdup_printf("%s: %s", problem, remedy);
        }
        return FALSE;
    }
    rp_train_report_plan(how->report, &job);
    if (args->dry_run) { /* the plan is all, and its predicted trace */
        rp_report_finish(how->report);
        write_trace(how, &job, job.trace, TRUE, &how->report->exit);
        return TRUE;
    }
    if (how->save_gradients == NULL)
        return train(how, &job, error);
    if (!rp_train_save_gradients(&job, how, error))
        return FALSE;
    rp_report_say(how->report, "gradients of the first step: %s", how->save_gradients);
    return TRUE;
}

static gboolean
train_file(const TrainArgs *args, const char *path, RpReport *report, GError **error)
{
    g_autoptr(RpRunFile) run_file = NULL;
    gboolean done;

    if (!rp_train_check_regular("", path, MAX_RUN_FILE_BYTES, error))
        return FALSE;
    run_file = rp_run_file_load(path, (const char *const *)args->sets, error);
    if (run_file == NULL)
        return FALSE;

    /* a key may be there for other runs, an option is not */
    gboolean ignored =
        args->save_gradients != NULL && args->trace == NULL && run_file->trace != NULL;
    if (ignored)
        fprintf(stderr, "roundpipe train: note: trace: --save-gradients writes none\n");

    RpTrainHow how = {
        .run_file = path,
        .resume = args->resume != NULL,
        .checkpoint = args->resume != NULL && *args->resume != '\0' ? g_strdup(args->resume) : NULL,
        .trace = args->trace != NULL ? args->trace
                 : ignored           ? NULL
                                     : run_file->trace,
        .picture = args->picture,
        .save_gradients = args->save_gradients,
        .report = report,
        .progress_s = args->progress_s,
        .lock = -1,
    };

    done = run_as(args, run_file, &how, error);
    if (how.lock >= 0)
        close(how.lock);
    g_free(how.checkpoint);
    return done;
}

/* A run file is named, unless keys of any are asked for. */
static gboolean
run(gpointer user_args, char **words, RpReport *report, GError **error)
{
    const TrainArgs *args = user_args;

    if (args->keys != (words[0] == NULL)) {
        g_set_error_literal(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                            args->keys ? "--keys: expected no run file with it; see --help"
                                       : "something is missing: expected RUN.yaml; see --help");
        return FALSE;
    }
    if (!args->keys) {
        rp_train_catch_save();
        return train_file(args, words[0], report, error);
    }
    rp_train_report_keys(report);
    return TRUE;
}

static const GOptionEntry options[] = {
    {"set", 0, 0, G_OPTION_ARG_STRING_ARRAY, RP_ARG(TrainArgs, sets),
     "set a key of the run file, as optimizer.learning_rate=3e-4; any number of times",
     "KEY=VALUE"},
    {"keys", 0, 0, G_OPTION_ARG_NONE, RP_ARG(TrainArgs, keys),
     "list the keys of a run file, with their defaults, and stop", NULL},
    {"resume", 0, G_OPTION_FLAG_OPTIONAL_ARG, G_OPTION_ARG_FILENAME, RP_ARG(TrainArgs, resume),
     "go on from a checkpoint; --resume alone: from the last one of the output directory", "DIR"},
    {"dry-run", 0, 0, G_OPTION_ARG_NONE, RP_ARG(TrainArgs, dry_run),
     "stop when the plan is printed", NULL},
    {"save-gradients", 0, 0, G_OPTION_ARG_FILENAME, RP_ARG(TrainArgs, save_gradients),
     "write the first step's gradients instead of training", "FILE.safetensors"},
    {"trace", 0, 0, G_OPTION_ARG_FILENAME, RP_ARG(TrainArgs, trace), NULL, "FILE.json"},
    {"picture", 0, 0, G_OPTION_ARG_FILENAME, RP_ARG(TrainArgs, picture),
     "draw the measured timeline: .png, .svg or .pdf (--dry-run: the predicted one)", "FILE"},
    {"progress", 0, 0, G_OPTION_ARG_DOUBLE, RP_ARG(TrainArgs, progress_s),
     "in a log file: a line of progress every S seconds (default: 30; 0 = none)", "S"},
    {0},
};

static const TrainArgs defaults = {.progress_s = PROGRESS_SECONDS};

const RpCommand rp_command_train = {
    .name = "train",
    .summary = "train a model as a run file says",
    .words = "RUN.yaml",
    .max_words = 1,
    .help = "Trains a model as a run file says: plans, predicts, then does it.\n"
            "Its keys follow the options; docs/train.md says more of some.\n\n"
            "Example:\n  roundpipe train run.yaml --set steps=100 --dry-run\n"
            "  roundpipe train run.yaml --resume",
    .more_help = rp_train_report_keys,
    .options = options,
    .args_size = sizeof(TrainArgs),
    .defaults = &defaults,
    .run = run,
};
