#include "cli/cli.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/train/train.h"
#include "run/settings.h"

/* roundpipe train --keys: the settings of a run, common ones first. */

static void
report_keys(RpReport *report, gboolean expert)
{
    for (const RpSetting *setting = rp_settings(); setting->key != NULL; setting++) {
        g_autofree char *expects = rp_setting_expects(setting);
        g_autofree char *meaning = rp_setting_meaning(setting);

        if (setting->expert != expert)
            continue;
        rp_report_object(report, NULL, expert ? "for experts" : "common");
        rp_report_text(report, "key", setting->key, "<key");
        rp_report_bool(report, "required", setting->required, NULL);
        rp_report_bool(report, "expert", setting->expert, NULL);
        rp_report_text(report, "default", setting->initial, "<default");
        rp_report_show(report, "%s", rp_setting_default(setting));
        rp_report_text(report, "expects", expects, NULL);
        rp_report_text(report, "meaning", setting->help, "<meaning");
        rp_report_show(report, "%s", meaning);
        rp_report_end(report);
    }
}

/* The settings of a run file. */
static void
report_all_keys(RpReport *report)
{
    rp_report_table(report, NULL, "default", 0);
    report_keys(report, FALSE);
    report_keys(report, TRUE);
    rp_report_end(report);
}

/* A shell reports this code for a program that a signal ended. */
#define SIGNAL_EXIT 128

/* More is not even read. */
#define MAX_RUN_FILE_BYTES (1 << 20)

/* Between lines of progress in a file. */
#define PROGRESS_SECONDS 30.0

/* How it is run, and what is made of it. */
typedef struct {
    const RpArgs *args;
    const char *trace; /* measured, or %NULL; neither this nor --picture with --save-gradients */
    RpTrainHow how;
    RpTrainWords words;
    RpServers *servers; /* this is one of; %NULL: there is one */
} Training;

static gboolean
check_words(const Training *training, GError **error)
{
    const RpArgs *args = training->args;
    const RpCliFile files[] = {
        {"--trace", training->trace, RP_CLI_WRITTEN},
        {"--save-gradients", args->save_gradients, RP_CLI_WRITTEN},
        {"--picture", args->picture, RP_CLI_DRAWN},
    };

    if (!(args->progress_s >= 0 && args->progress_s <= 86400)) /* also refuses NaN */
        return rp_cli_refuse(error, "--progress: expected seconds from 0 to 86400, found %g",
                             args->progress_s);
    if (args->save_gradients != NULL && (training->trace != NULL || args->picture != NULL))
        return rp_cli_refuse(error,
                             "--save-gradients: expected no %s with it, for nothing is trained",
                             training->trace != NULL ? "--trace" : "--picture");
    if (args->save_gradients != NULL && !g_str_has_suffix(args->save_gradients, ".safetensors"))
        return rp_cli_refuse(error, "--save-gradients: expected FILE.safetensors, found \"%s\"",
                             args->save_gradients);
    return rp_cli_check_files(files, G_N_ELEMENTS(files), error);
}

/* A file that is written at the end (nullable) is none that is read or written anyway: said now. */
static gboolean
check_file(const Training *training, const char *option, const char *path, const RpRunSpec *run,
           GError **error)
{
    return path == NULL || (rp_train_check_no_input(option, path, run, &training->how, error) &&
                            rp_train_check_no_output(option, path, run, error));
}

static gboolean
check_files(const Training *training, const RpRunSpec *run, GError **error)
{
    const RpArgs *args = training->args;

    return check_words(training, error) &&
           check_file(training, "--trace", training->trace, run, error) &&
           check_file(training, "--save-gradients", args->save_gradients, run, error) &&
           check_file(training, "--picture", args->picture, run, error);
}

/* Tells, and forgets, why @option's file could not be written. */
static void
tell_unwritten(const char *option, GError **problem, int *code)
{
    g_prefix_error(problem, "%s: ", option);
    (void)rp_cli_fail("train", g_steal_pointer(problem));
    *code = RP_EXIT_FAILED;
}

/* Evaluations have a plan of their own, and a file: run.json -> run-evaluations.json. */
static void
write_evaluations(const Training *training)
{
    const char *dot = strrchr(training->trace, '.');
    const int stem = dot != NULL ? (int)(dot - training->trace) : (int)strlen(training->trace);
    g_autofree char *path =
        g_strdup_printf("%.*s-evaluations%s", stem, training->trace, dot != NULL ? dot : "");
    GError *problem = NULL;

    if (!rp_cli_write_trace(path, training->words.outcome->evaluation_trace, NULL, &problem))
        tell_unwritten("--trace", &problem, &training->words.report->exit);
}

/* @trace (nullable) as a file, and if @draw as a picture; one that fails does not keep the other
 * back. The report stands before: nothing that happens here is to cost it. */
static void
write_trace(const Training *training, RpTrace *trace, gboolean draw)
{
    const char *picture = training->args->picture;
    const RpTrainJob *job = training->words.job;
    int *code = &training->words.report->exit;
    GError *problem = NULL;

    (void)fflush(stdout);
    if (trace == NULL)
        return;
    if (!rp_cli_write_trace(training->trace, trace, NULL, &problem))
        tell_unwritten("--trace", &problem, code);
    if (training->trace != NULL && training->words.outcome->evaluation_trace != NULL)
        write_evaluations(training);
    if (picture != NULL && draw && !rp_train_plot_timeline(job, trace, picture, &problem))
        tell_unwritten("--picture", &problem, code);
}

/* Drawn is only a run that came to its end; its trace is written however it ended. */
static gboolean
train(Training *training, GError **error)
{
    const RpTrainJob *job = training->words.job;
    RpTrainOutcome *outcome = training->words.outcome;
    RpReport *report = training->words.report;
    const gboolean done = rp_train_run(job, &training->how, outcome, error);
    const gboolean stepped = done && outcome->last_step > outcome->first_step;

    rp_cli_leave_within(0);
    if (outcome->left)
        rp_cli_leave();
    if (done) {
        rp_train_report_outcome(report, job, outcome);
        rp_train_report_interrupted(report, job, outcome, &training->how, training->args->sets);
        if (outcome->unsaved)
            report->exit = RP_EXIT_FAILED;
        else if (outcome->signal != 0 && rp_train_is_first(training->servers))
            report->exit = SIGNAL_EXIT + outcome->signal;
        if (training->args->picture != NULL && !stepped)
            rp_cli_note("note", "--picture: no step was run, nothing was drawn");
        rp_report_finish(report);
    }
    write_trace(training, outcome->trace, stepped);
    return done;
}

static gboolean
save_gradients(Training *training, GError **error)
{
    const gboolean saved = rp_train_save_gradients(training->words.job, &training->how,
                                                   training->words.outcome, error);

    rp_progress_clear();
    if (training->words.outcome->left)
        rp_cli_leave();
    if (saved)
        rp_report_say(training->words.report, "gradients of the first step: %s",
                      training->args->save_gradients);
    return saved;
}

/* Output directory of the run that goes on; %NULL: none does. */
static char *
earlier_run(const RpRunSpec *run_file, const RpTrainHow *how)
{
    if (!how->resume)
        return NULL;
    if (how->checkpoint == NULL)
        return g_strdup(run_file->output);
    g_autofree char *checkpoint = g_canonicalize_filename(how->checkpoint, NULL);

    return g_path_get_dirname(checkpoint);
}

/* Server 0 does, for all. */
static gboolean
find_checkpoint(Training *training, const RpRunSpec *run_file, GError **error)
{
    const gboolean dry = training->args->dry_run;
    RpTrainHow *how = &training->how;
    RpServers *servers = training->servers;

    if (servers != NULL && !rp_train_agree_start(servers, run_file, how, dry, error))
        return FALSE;
    if (!dry && rp_train_is_first(servers) && !rp_train_find_checkpoint(run_file, how, error))
        return FALSE;
    return servers == NULL || ((dry || rp_train_check_shared(servers, run_file, error)) &&
                               rp_train_share_checkpoint(servers, how, error));
}

static gboolean
run_as(Training *training, RpRunSpec *run_file, GError **error)
{
    const RpArgs *args = training->args;
    RpTrainHow *how = &training->how;
    g_auto(RpTrainJob) job = {0};
    g_auto(RpTrainOutcome) outcome = {0};

    training->words.job = &job;
    training->words.outcome = &outcome;
    job.servers = training->servers;
    if (!check_files(training, run_file, error) ||
        !rp_train_check_profile(run_file, args->dry_run, error) ||
        !find_checkpoint(training, run_file, error))
        return FALSE;
    g_autofree char *earlier = earlier_run(run_file, how);

    if (!rp_train_job_prepare(&job, run_file, earlier, args->dry_run, how->events, error)) {
        rp_cli_add_remedy(*error, job.remedy);
        return FALSE;
    }
    rp_train_report_plan(training->words.report, &job, how->checkpoint);
    if (!args->dry_run) {
        const gboolean done =
            how->save_gradients != NULL ? save_gradients(training, error) : train(training, error);

        if (!done && outcome.resuming)
            g_prefix_error(error, "--resume: ");
        return done;
    }
    rp_report_finish(training->words.report); /* the plan is all, and its predicted trace */
    write_trace(training, job.trace, TRUE);
    return TRUE;
}

static gboolean
train_file(const RpArgs *args, const char *path, RpServers *servers, RpReport *report,
           GError **error)
{
    const gboolean first = rp_train_is_first(servers);
    g_autoptr(RpRunSpec) run_file = NULL;
    Training training = {
        .args = args,
        .words = {.report = report,
                  .progress = {.log_seconds = args->progress_s},
                  .other = {.log_seconds = args->progress_s},
                  .tells_stop = TRUE},
        .servers = servers,
    };
    RpRunEvents events = rp_train_events(&training.words);

    if (!first)
        rp_train_quieten(&events);
    if (!rp_train_check_regular("", path, MAX_RUN_FILE_BYTES, error))
        return FALSE;
    run_file = rp_run_file_load(path, (const char *const *)args->sets, error);
    if (run_file == NULL)
        return FALSE;
    training.trace = !first ? NULL : args->trace != NULL ? args->trace : run_file->trace;
    /* a key may be there for other runs, an option is not */
    if (args->save_gradients != NULL && args->trace == NULL && run_file->trace != NULL) {
        rp_run_say(&events, "note", "trace: --save-gradients writes none");
        training.trace = NULL;
    }
    training.how = (RpTrainHow){
        .run_file = path,
        .resume = args->resume != NULL,
        .checkpoint = args->resume != NULL && *args->resume != '\0' ? g_strdup(args->resume) : NULL,
        .keep_trace = training.trace != NULL || (args->picture != NULL && first),
        .save_gradients = args->save_gradients,
        .events = &events,
        .lock = -1,
    };
    gboolean done = run_as(&training, run_file, error);
    if (training.how.lock >= 0)
        close(training.how.lock);
    g_free(training.how.checkpoint);
    return done;
}

/* On all that were started together. */
static gboolean
train_on_servers(const RpArgs *args, const char *path, RpReport *report, GError **error)
{
    RpServers *servers = NULL;

    rp_train_catch_save();
    if (!rp_train_join("train", &servers, error))
        return FALSE;
    gboolean done = train_file(args, path, servers, report, error);
    if (servers != NULL)
        rp_train_part("train", servers, done ? NULL : *error);
    return done;
}

/* A run file is named, unless keys of any are asked for. */
static gboolean
run(RpArgs *args, char **words, RpReport *report, GError **error)
{

    if (args->keys != (words[0] == NULL))
        return rp_cli_refuse(error, "%s",
                             args->keys ? "--keys: expected no run file with it; see --help"
                                        : "something is missing: expected RUN.yaml; see --help");
    if (!args->keys)
        return train_on_servers(args, words[0], report, error);
    report_all_keys(report);
    return TRUE;
}

static const RpUse uses[] = {
    {"set keys resume dry-run"},
    RP_FOR_EXPERTS,
    {"save-gradients trace"},
    {"picture",
     "draw the measured timeline: .png, .svg, .pdf or .tex (--dry-run: the predicted one)"},
    {"progress"},
    {0},
};

static const RpArgs defaults = {.progress_s = PROGRESS_SECONDS};

const RpCommand rp_command_train = {
    .name = "train",
    .summary = "train a model as a run file says",
    .words = "[RUN.yaml]",
    .help = "Trains a model as a run file says: plans, predicts, then does it.\n"
            "Its keys follow the options; docs/train.md says more of some.\n\n"
            "Example:\n  roundpipe train run.yaml --set steps=100 --dry-run\n"
            "  roundpipe train run.yaml --resume",
    .more_help = report_all_keys,
    .uses = uses,
    .defaults = &defaults,
    .run = run,
};
