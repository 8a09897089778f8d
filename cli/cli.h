/**
 * Shared by the subcommands: exit codes, messages, files, and the options that name a schedule and
 * a partition. Only cli/ prints.
 */
#pragma once

#include <gio/gio.h>
#include <glib.h>

#include "cli/args.h"
#include "cli/report.h"
#include "core/catalogue/catalogue.h"
#include "core/catalogue/cost/cost-model.h"
#include "core/profile/profile.h"
#include "run/request.h"

#define RP_EXIT_OK 0
#define RP_EXIT_FAILED 1
#define RP_EXIT_USAGE 2
#define RP_EXIT_PIPE 141 /* nobody reads on: as a shell reports SIGPIPE */

/**
 * RpCommand: a subcommand, one file in cli/commands or cli/expert and one word in cli/meson.build
 * @summary: its line of `roundpipe --help`
 * @expert: stands in the second list of `roundpipe --help`
 * @words: that are no options, as `MODEL_DIR` or `A B`; in brackets they may be left out, with `...`
 *   they may be many; %NULL: none
 * @help: what it does, and an example
 * @more_help: (nullable): tables behind its options
 * @requests: whether it takes rp_schedule_uses; swept: their texts, in RpArgs.swept
 * @uses: (nullable): the options that it takes besides; those behind RP_FOR_EXPERTS stand in a list of
 *   their own
 * @defaults: (nullable): values of options that are not given
 * @run: @words are %NULL-terminated. What it tells goes into @report, which is printed when it has
 *   returned %TRUE
 *
 * --json, --wide and --help are every command's.
 */
typedef struct {
    const char *name;
    const char *summary;
    gboolean expert;
    const char *words;
    const char *help;
    void (*more_help)(RpReport *report);
    enum {
        RP_NO_REQUEST,
        RP_REQUESTS,
        RP_REQUEST,
        RP_SWEPT_REQUEST
    } requests; /* RP_REQUESTS: of several schedules */
    const RpUse *uses;
    const RpArgs *defaults;
    gboolean (*run)(RpArgs *args, char **words, RpReport *report, GError **error);
} RpCommand;

/* The first lines of `roundpipe --help`. */
#define RP_CLI_PURPOSE                                                                             \
    "Predicts how a model trains under pipeline schedules, RoundPipe first, and trains it."

/* The options of a command, all in one list. */
typedef struct {
    GArray *options; /* RpOption */
    GArray *entries; /* GOptionEntry of each, with a last one of zeros; they store nothing */
    guint n_common;  /* those behind are for experts */
    GPtrArray *help; /* lines of help */
} RpCommandOptions;

RpCommandOptions rp_command_options(const RpCommand *command);
void rp_command_options_clear(RpCommandOptions *options);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpCommandOptions, rp_command_options_clear)

/* Reads the command line, runs it, prints its report or its error. Returns: an exit code */
int rp_command_run(const RpCommand *command, int argc, char **argv);

/* Wrong words on the command line: exit code 2. */
#define RP_CLI_ERROR (rp_cli_error_quark())
GQuark rp_cli_error_quark(void);
typedef enum {
    RP_CLI_ERROR_USAGE,
    RP_CLI_ERROR_REPORTED /* rp_cli_tell() has printed it */
} RpCliError;

/* Wrong usage. Returns: FALSE */
gboolean rp_cli_refuse(GError **error, const char *format, ...) G_GNUC_PRINTF(2, 3);

/* Whether standard output is a pipe that nobody reads any more. */
gboolean rp_cli_reader_left(void);

/* Prints "roundpipe COMMAND: MESSAGE" on stderr as one line, frees @error. Returns: its exit code:
 * 2 where the command line is to blame (also a shape that a schedule refuses, a stage list that
 * does not add up, an unknown model or GPU), else 1. */
int rp_cli_fail(const char *command, GError *error);
/* Whether what is printed there may have colours: a terminal that has some, and $NO_COLOR is not set. */
gboolean rp_cli_has_colour(int fd);

/* Prints "roundpipe COMMAND: KIND: TEXT" on stderr as one line. @kind: "note", "warning" */
void rp_cli_note(const char *kind, const char *format, ...) G_GNUC_PRINTF(2, 3);
/* Prints it now, before what takes a while. @error becomes RP_CLI_ERROR_REPORTED, of exit code 1. */
void rp_cli_tell(const char *command, GError **error);

/* ---- when the process cannot go on (cli/leave.c) ---- */

/* From now on a mapped file that is cut short while it is read (SIGBUS) ends the process with a line and
 * exit code 1. */
void rp_cli_catch_lost_files(void);

/* From now on the end of main() ends the process at once: threads may be left that a driver holds,
 * and its exit handlers would wait for them. */
void rp_cli_leave(void);
gboolean rp_cli_leaves(void);
/* Ends the process after so many seconds, with exit code 1; 0: no more. */
void rp_cli_leave_within(guint seconds);

/* ---- the command line ---- */

/* One of @names by @text, with "did you mean". Returns: its index, or -1.
 * Errors: RP_CLI_ERROR_USAGE */
int rp_cli_choice(const char *option, const char *text, const char *const *names, GError **error);

/* Whether @model can have the adapters of --lora-rank (0: none) and --lora-targets.
 * Errors: RP_CLI_ERROR_USAGE */
gboolean rp_cli_check_lora(const RpModel *model, guint rank, char **targets,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* "A:B": iterations A to B - 1. Errors: RP_CLI_ERROR_USAGE */
gboolean rp_cli_parse_range(const char *option, const char *text, guint64 *first, guint64 *end,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* A number above 0 and up to 1e6: more is a slip of the hand. Returns: 0: it is none */
double rp_cli_parse_positive(const char *text);

/* A size such as 24GiB, 800GB, 1.5TiB or plain bytes. Errors: RP_CLI_ERROR_USAGE */
gboolean rp_cli_parse_bytes(const char *option, const char *text, guint64 *bytes,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* "21.5 GiB", three significant digits or more. */
char *rp_cli_format_bytes(guint64 bytes);

/* ---- files (cli/file.c) ---- */

typedef gboolean (*RpCliWrite)(GOutputStream *stream, gpointer user_data, GError **error);

typedef enum {
    RP_CLI_READ,
    RP_CLI_WRITTEN, /* a file; standard output has the report */
    RP_CLI_PRINTED, /* the same, or "-": standard output */
    RP_CLI_DRAWN,   /* a picture: .png, .svg, .pdf or .tex */
    RP_CLI_FILLED   /* a directory */
} RpCliUse;

/* A file that a command line names. */
typedef struct {
    const char *what; /* "--trace", "PROFILE.json" */
    const char *path; /* %NULL: not given */
    RpCliUse use;
} RpCliFile;

/**
 * rp_cli_check_files:
 *
 * Sees that no file is written over one that is read, nor two of them to one place, and that those
 * which are written can be. Every command that writes asks this before it does anything.
 * Errors: RP_CLI_ERROR_USAGE naming both, or a wrong name; G_FILE_ERROR; RP_PLOT_ERROR_*
 */
gboolean rp_cli_check_files(const RpCliFile *files, gsize n_files,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same with what simulations read: the timing file @word, and --schedule-file. */
gboolean rp_cli_check_outputs(const char *word, const RpArgs *args, const RpCliFile *files,
                              gsize n_files, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Makes the directory of a model; without @force one with a model in it is refused: that would be
 * loaded, or mixed with what is written. Errors: G_FILE_ERROR */
gboolean rp_cli_make_model_directory(const char *path, gboolean force,
                                     GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Most bytes of a model's file, as transformers divides checkpoints. */
#define RP_CLI_SHARD_BYTES G_GUINT64_CONSTANT(5000000000)

/* Whether @path can be written, before long work. Errors: G_FILE_ERROR */
gboolean rp_cli_check_writable(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Lets @write fill @path (`-` = stdout); a file is replaced as a whole or not at all.
 * Errors: G_IO_ERROR naming @path, those of @write */
gboolean rp_cli_write_file(const char *path, RpCliWrite write, gpointer user_data,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The same with a text. */
gboolean rp_cli_write_text(const char *path, const char *text,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The same with the table "rows" of @report, by rp_report_to_csv(); %NULL: nowhere. In place of the
 * report's text where @path is "-". */
gboolean rp_cli_write_csv(const char *path, RpReport *report, const char *columns,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Writes a trace in Chrome's format, with memory and flows of its @plan (nullable), and as CSV; where @path
 * is %NULL neither. Errors: G_IO_ERROR naming @path */
gboolean rp_cli_write_trace(const char *path, const RpTrace *trace, const RpPlan *plan,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean rp_cli_write_tasks(const char *path, const RpTrace *trace,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* A directory of the shipped profiles, as "rtx4090", or (%NULL) the one above them. It is searched where an
 * installation has it, seen from the program; in the source tree; where `meson install` puts it. (transfer full) */
char *rp_cli_shipped_profiles(const char *part);

/* ---- profiles by name (cli/profile-name.c) ---- */

/* A profile that the cost model makes has these, unless options say otherwise. */
#define RP_CLI_SEQUENCES 4
#define RP_CLI_TOKENS 2048
#define RP_CLI_GPUS 8

/**
 * rp_box_open:
 * @usual: (nullable): the card where none is given
 *
 * Returns: (transfer full): the card, with the links of the box
 * Errors: RP_CATALOGUE_ERROR_* behind "--gpu: ", RP_CLI_ERROR_USAGE
 */
RpGpu *rp_box_open(const RpBoxArgs *box, const char *usual,
                   GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The same for each of its cards, @card: [device] which of them. Returns: (transfer full)
 * (element-type RpGpu); of one kind @card is empty */
GPtrArray *rp_box_open_cards(const RpBoxArgs *box, const char *usual, GArray **card,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* "2 x RTX 4090 + 2 x RTX 3090". (transfer full) */
char *rp_box_describe(const GPtrArray *cards, const GArray *card);
/* Whether it says how many of a card there are. */
gboolean rp_box_has_counts(const RpBoxArgs *box);
/* Whether it names several cards. */
gboolean rp_box_is_mixed(const RpBoxArgs *box);
/* Sets *@gpus, 0 or as given, where the box says how many. Errors: RP_CLI_ERROR_USAGE: they differ */
gboolean rp_box_count(const RpBoxArgs *box, guint *gpus, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Sets *@measured, (transfer full), to the measured box, or to %NULL where none is given. Errors:
 * RP_PROFILE_ERROR_* behind "--box: "; RP_CLI_ERROR_USAGE: links are given beside it */
gboolean rp_box_measured(const RpBoxArgs *box, RpProfile **measured,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Gives a profile what was measured, if a file is named; and the network between servers, if one is. Errors:
 * RP_CATALOGUE_ERROR_FILE, those of rp_box_measured() */
gboolean rp_box_connect(const RpBoxArgs *box, RpProfile *profile,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The same, and the links of the box, to a profile that was read. Errors: RP_CLI_ERROR_USAGE */
gboolean rp_box_change(const RpBoxArgs *box, RpProfile *profile,
                       GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_cli_load_profiles:
 * @word: a timing file; or a model: its config.json or directory, or its name. Its times are the shipped
 *   profile's, or those of the cost model, both for an RTX 4090; with a card, a sequence or a
 *   micro-batch in @box those of the cost model for it
 * @box: (nullable): whose links the profile gets
 * @gpus: that the machine is made for, where the cost model makes it; 0: as usual
 *
 * Errors: RP_PROFILE_ERROR_*, G_FILE_ERROR with where a file comes from, RP_CLI_ERROR_USAGE,
 *   RP_CATALOGUE_ERROR_*, RP_HF_CONFIG_ERROR_*
 */
RpProfile *rp_cli_load_profiles(const char *word, const RpBoxArgs *box, guint gpus,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The same for who needs times of one micro-batch, and refuses a file of several. */
RpProfile *rp_cli_load_profile(const char *word, const RpBoxArgs *box, guint gpus,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;
/**
 * rp_cli_predict_profile:
 * @run: of which sizes of a micro-batch, GPUs, devices, numbers and adapters are read, as by
 *   rp_plan_network_of() and rp_cli_workload()
 *
 * Times of the cost model, and where `train` takes the model the sizes that it has then: those of its executor.
 *
 * Errors: RP_COST_MODEL_ERROR_WORKLOAD; with devices those of rp_plan_network_of()
 */
RpProfile *rp_cli_predict_profile(const RpModel *model, const RpGpu *gpu, const RpRunSpec *run,
                                  GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_cli_open_model:
 * @word: a name of the catalogue, or a config.json or its directory
 * @name: (out) (transfer full): what the model is called, also in @model
 *
 * Errors: RP_CATALOGUE_ERROR_MODEL, RP_HF_CONFIG_ERROR_*, G_FILE_ERROR
 */
gboolean rp_cli_open_model(const char *word, RpModel *model, char **name,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The file that rp_cli_load_profile() reads, or @word. (transfer full) */
char *rp_cli_profile_path(const char *word);
/* "qwen3-1.7b", or that it has none. (transfer full) */
char *rp_cli_model_name(const RpProfile *profile);
/* "qwen3-1.7b on 8 x RTX 4090", or as much as the profile says. (transfer full) */
char *rp_cli_subject(const RpProfile *profile, guint gpus);

/* ---- schedule and partition options (cli/options.c, cli/options.c) ---- */

/* The name of part @index (RP_CLI_FORM_PARTS) of @form, if it is not the default; @setting: (out): its
 * setting. Returns: (nullable) */
#define RP_CLI_FORM_PARTS 3
const char *rp_cli_form_name(const RpStateFormat *form, guint index, const char **setting);

/**
 * rp_schedule_args_check:
 *
 * Sees that every option that was given has an effect on @schedule, and on the fidelity. What
 * rp_request_load() asks first. Errors: RP_CLI_ERROR_USAGE with the option and the reason
 */
gboolean rp_schedule_args_check(const RpArgs *args, const RpScheduleOps *schedule,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The same for several at once (%NULL-terminated): each option suits one of them at least. */
gboolean rp_schedule_args_check_any(const RpArgs *args, const RpScheduleOps *const *schedules,
                                    GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Forgets options that @schedule does not know; frees nothing. */
void rp_schedule_args_keep_known(RpArgs *args, const RpScheduleOps *schedule);

/* Reads the words into a request; its schedule is not looked for. Errors: RP_CLI_ERROR_USAGE */
gboolean rp_schedule_args_read(const RpArgs *args, RpRunSpec *run,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Where the schedule is a file's: reads it and takes from it what was not given. @given: (out)
 * (transfer full): %NULL where it is not. Errors: RP_CLI_ERROR_USAGE, those of
 * rp_schedule_file_load() */
gboolean rp_schedule_args_open(RpArgs *args, RpScheduleOps **given,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Reads the words and resolves what they ask for. Errors: RP_CLI_ERROR_USAGE, those of
 * rp_request_resolve() */
gboolean rp_schedule_args_resolve(const RpArgs *args, const RpProfile *profile, RpRequest *request,
                                  GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same for a file, once rp_schedule_args_check() is content. Errors: also RP_PROFILE_ERROR_* */
gboolean rp_request_load(const RpArgs *args, const char *path, RpProfile **profile,
                         RpRequest *request, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- what helps, in words of options or (@as_keys) of a run file ---- */

/* Against a plan that does not fit. (transfer full) */
char *rp_cli_remedy(RpRemedy remedy, gboolean as_keys);
/* The same, if any, behind the message of @error, in words of a run file. */
void rp_cli_add_remedy(GError *error, RpRemedy remedy);
/* The message of @error, with what helps where that is known. (transfer full) */
char *rp_cli_message(GError *error, gboolean as_keys);

typedef struct {
    const char *what;   /* "reading data"; %NULL: nothing yet */
    double log_seconds; /* where standard error is no terminal, between lines; 0: none */
    gboolean terminal;
    gint64 interval_us; /* 0: never */
    gint64 begin_us;
    gint64 shown_us;
} RpProgress;

RpProgress rp_progress_begin(const char *what, double log_seconds);
/* Whether it is time for a line. */
gboolean rp_progress_is_due(RpProgress *progress);
/* The line, due or not. */
void rp_progress_print(const RpProgress *progress, const char *format, ...) G_GNUC_PRINTF(2, 3);
/* "reading data: 34 % of 1200, 56/s, 14 s left", if it is due. */
void rp_progress_show(RpProgress *progress, guint64 done, guint64 total);
/* RpRunEvents.progress with an RpProgress of zeros: each @what begins anew. */
void rp_progress_event(gpointer progress, const char *what, guint64 done, guint64 total);
/* As callbacks, with an RpProgress; the second lets work go on. */
void rp_progress_counted(guint64 done, guint64 total, gpointer progress);
gboolean rp_progress_counted_on(guint64 done, guint64 total, gpointer progress);
/* Removes the line of a terminal, before something else is printed. */
void rp_progress_clear(void);
/* "45 s", "12 min", "3.5 h" (transfer full) */
char *rp_progress_format_time(double seconds);
