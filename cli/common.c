#include "cli/cli.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/base/quote.h"
#include "core/base/units.h"
#include "core/catalogue/catalogue.h"
#include "core/catalogue/cost/cost-model.h"
#include "core/catalogue/lora.h"
#include "core/schedules/schedule.h"
#include "exec/servers/servers.h"
#include "plots/gnuplot.h"
#include "run/settings.h"

G_DEFINE_QUARK(rp_cli_error, rp_cli_error)

/* Errors that the command line causes and not a file. */
static gboolean
is_usage(const GError *error)
{
    if (error->domain == RP_PARTITION_ERROR)
        return error->code != RP_PARTITION_ERROR_MEMORY;
    if (error->domain == RP_SCHEDULE_ERROR)
        return error->code != RP_SCHEDULE_ERROR_DEADLOCK;
    if (error->domain == RP_CATALOGUE_ERROR)
        return error->code != RP_CATALOGUE_ERROR_FILE;
    if (error->domain == RP_PLANNER_ERROR)
        return error->code == RP_PLANNER_ERROR_PARTITION;
    if (error->domain == RP_PLOT_ERROR)
        return error->code == RP_PLOT_ERROR_FORMAT;
    if (error->domain == RP_RUN_ERROR)
        return error->code == RP_RUN_ERROR_USAGE;
    if (error->domain == RP_SERVERS_ERROR)
        return error->code == RP_SERVERS_ERROR_DIFFERS;
    return error->domain == RP_CLI_ERROR || error->domain == G_OPTION_ERROR ||
           error->domain == RP_COST_MODEL_ERROR;
}

gboolean
rp_cli_reader_left(void)
{
    struct pollfd output = {.fd = STDOUT_FILENO, .events = POLLOUT};

    return poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0;
}

gboolean
rp_cli_has_colour(int fd)
{
    const char *term = g_getenv("TERM"), *none = g_getenv("NO_COLOR");

    return isatty(fd) == 1 && (none == NULL || *none == '\0') && term != NULL &&
           strcmp(term, "dumb") != 0;
}

int
rp_cli_fail(const char *command, GError *error)
{
    const int code = is_usage(error) ? RP_EXIT_USAGE : RP_EXIT_FAILED;

    if (g_error_matches(error, RP_CLI_ERROR, RP_CLI_ERROR_REPORTED)) {
        g_error_free(error);
        return RP_EXIT_FAILED;
    }
    if (g_error_matches(error, G_IO_ERROR, G_IO_ERROR_BROKEN_PIPE) && rp_cli_reader_left()) {
        g_error_free(error);
        return RP_EXIT_PIPE;
    }
    g_autofree char *message = rp_cli_message(error, strcmp(command, "train") == 0);

    g_strdelimit(message, "\r\n", ' '); /* a file's name may hold one */
    g_strchomp(message);
    fprintf(stderr, "roundpipe %s: %s\n", command, message);
    g_error_free(error);
    return code;
}

void
rp_cli_note(const char *kind, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *text = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    rp_progress_clear();
    g_strdelimit(text, "\r\n", ' '); /* a file's name may hold one */
    fprintf(stderr, "%s: %s: %s\n", g_get_prgname(), kind, text);
}

void
rp_cli_tell(const char *command, GError **error)
{
    (void)rp_cli_fail(command, g_steal_pointer(error));
    g_set_error_literal(error, RP_CLI_ERROR, RP_CLI_ERROR_REPORTED, "told");
}

gboolean
rp_cli_refuse(GError **error, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_propagate_error(error,
                      g_error_new_valist(RP_CLI_ERROR, RP_CLI_ERROR_USAGE, format, arguments));
    va_end(arguments);
    return FALSE;
}

int
rp_cli_choice(const char *option, const char *text, const char *const *names, GError **error)
{
    for (int i = 0; names[i] != NULL; i++)
        if (strcmp(names[i], text) == 0)
            return i;
    const char *near = rp_nearest_name(text, names);
    g_autofree char *list = g_strjoinv(", ", (char **)names);
    g_autofree char *hint =
        near != NULL ? g_strdup_printf("; did you mean \"%s\"?", near) : g_strdup("");

    (void)rp_cli_refuse(error, "--%s: \"%s\" is not one of %s%s", option, text, list, hint);
    return -1;
}

gboolean
rp_cli_parse_range(const char *option, const char *text, guint64 *first, guint64 *end,
                   GError **error)
{
    g_auto(GStrv) parts = g_strsplit(text, ":", 3);

    if (g_strv_length(parts) == 2 &&
        g_ascii_string_to_unsigned(parts[0], 10, 0, G_MAXUINT32 - 1, first, NULL) &&
        g_ascii_string_to_unsigned(parts[1], 10, *first + 1, G_MAXUINT32, end, NULL))
        return TRUE;
    g_autofree char *found = rp_quote(text);
    return rp_cli_refuse(error, "--%s: expected A:B, A < B, for iterations A to B - 1, found %s",
                         option, found);
}

double
rp_cli_parse_positive(const char *text)
{
    char *end = NULL;
    const double number = g_ascii_strtod(text, &end);

    return end != text && *end == '\0' && number > 0 && number <= 1e6 ? number : 0;
}

gboolean
rp_cli_parse_bytes(const char *option, const char *text, guint64 *bytes, GError **error)
{
    if (rp_bytes_parse(text, bytes))
        return TRUE;
    return rp_cli_refuse(error, "--%s: expected a size such as 24GiB or 800GB, found \"%s\"",
                         option, text);
}

char *
rp_cli_format_bytes(guint64 bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    guint unit = 0;

    while (value >= 1024 && unit + 1 < G_N_ELEMENTS(units)) {
        value /= 1024;
        unit++;
    }
    return g_strdup_printf(unit == 0    ? "%.0f %s"
                           : value < 10 ? "%.2f %s"
                                        : "%.1f %s",
                           value, units[unit]);
}

gboolean
rp_cli_check_lora(const RpModel *model, guint rank, char **targets, GError **error)
{
    const RpLora lora = {.rank = rank, .alpha = RP_LORA_ALPHA, .targets = targets};
    g_autoptr(GError) problem = NULL;

    if (rank == 0 || rp_lora_check(&lora, model, &problem))
        return TRUE;
    /* of the keys that it checks only two are options */
    return rp_cli_refuse(error, "%s%s",
                         g_str_has_prefix(problem->message, "lora.targets") ? "--lora-targets"
                                                                            : "--lora-rank",
                         strchr(problem->message, ':'));
}

/* Remedies of errors, in words of a command's options or of a run file. */

/* "--optimizer lean", or "optimizer.mode: lean". */
static char *
setting(const char *key, const char *value, gboolean as_keys)
{
    return as_keys ? g_strdup_printf("%s: %s", key, value)
                   : g_strdup_printf("%s %s", rp_setting_option(rp_setting_find(key)), value);
}

char *
rp_cli_remedy(RpRemedy remedy, gboolean as_keys)
{
    static const struct {
        const char *begin;
        const char *key; /* of a setting, named behind it */
        const char *value;
        const char *end;
    } texts[] = {
        [RP_REMEDY_NONE] = {"a smaller micro-batch"},
        [RP_REMEDY_LEAN_OPTIMIZER] = {"", "optimizer.mode", "lean",
                                      ", a smaller model or more host memory"},
        [RP_REMEDY_MORE_STAGES] = {"more, smaller stages"},
        [RP_REMEDY_SMALLER_BACKWARD_STAGES] = {"smaller backward stages"},
        [RP_REMEDY_SMALLER_MICRO_BATCH] = {"a smaller micro-batch or a shorter sequence"},
        [RP_REMEDY_SMALLER_WORKSPACE] = {"smaller backward stages, a smaller head_chunk, a smaller "
                                         "micro-batch or a shorter sequence"},
        [RP_REMEDY_SMALLER_ROUND] = {"fewer micro-batches per round (", "round", "M",
                                     ") or a "
                                     "smaller micro-batch"},
        [RP_REMEDY_ONE_ROUND] = {"one round of all micro-batches (", "round", "M", ")"},
        [RP_REMEDY_STASH_ON_HOST] = {"roundpipe, which keeps stage inputs in host memory, or fewer "
                                     "micro-batches"},
        [RP_REMEDY_PRECOMPUTED] = {"", "reference", "precomputed"},
        [RP_REMEDY_FEWER_DEVICES] = {"fewer devices, a smaller micro-batch or a shorter sequence"},
    };
    const char *key = texts[remedy].key;
    g_autofree char *named =
        key != NULL ? setting(key, texts[remedy].value, as_keys) : g_strdup("");

    return g_strconcat("use ", texts[remedy].begin, named, texts[remedy].end, NULL);
}

void
rp_cli_add_remedy(GError *error, RpRemedy remedy)
{
    g_autofree char *problem = NULL, *words = NULL;

    if (remedy == RP_REMEDY_NONE)
        return;
    problem = error->message;
    words = rp_cli_remedy(remedy, TRUE);
    error->message = g_strdup_printf("%s: %s", problem, words);
}

static void
append(GString *text, RpShapeRemedy remedy, gboolean as_keys)
{
    static const struct {
        const char *key;  /* of a run file */
        const char *flag; /* where there is no such key */
    } parts[] = {[RP_SHAPE_GPUS] = {"devices"},
                 [RP_SHAPE_MICRO_BATCHES] = {"micro_batches"},
                 [RP_SHAPE_STAGES] = {NULL, "--stage-count"},
                 [RP_SHAPE_ROUND] = {"round"},
                 [RP_SHAPE_GROUP] = {NULL, "--group"},
                 [RP_SHAPE_LIVE] = {NULL, "--live"},
                 [RP_SHAPE_SLICES] = {NULL, "--slices"}};
    static const char *const bounds[] = {"", " or more", " or fewer"};
    const char *key = parts[remedy.part].key;
    g_autofree char *number = g_strdup_printf("%u%s", remedy.number, bounds[remedy.bound]);
    g_autofree char *named = key != NULL ? setting(key, number, as_keys) : NULL;

    g_string_append(text, text->len > 0 ? ", or " : "; use ");
    if (named != NULL)
        g_string_append(text, named);
    else
        g_string_append_printf(text, "%s %s", as_keys ? "stages:" : parts[remedy.part].flag,
                               number);
}

/* NULL: nothing is known to help. */
static const char *
run_remedy(RpRunError code)
{
    switch (code) {
    case RP_RUN_ERROR_BUSY:
        return "wait for its end, or choose another with --set output=DIRECTORY";
    case RP_RUN_ERROR_CHECKPOINT:
        return "go on from the last with --resume, or choose another with --set output=DIRECTORY";
    case RP_RUN_ERROR_OVERWRITTEN:
        return "choose another with --set output=DIRECTORY, or move it away";
    case RP_RUN_ERROR_NO_CHECKPOINT:
        return "begin without --resume";
    case RP_RUN_ERROR_NO_MODEL:
        return "name the model with --model; of a run as a directory with tokenizer.json, or "
               "random:DIR of one";
    default:
        return NULL;
    }
}

char *
rp_cli_message(GError *error, gboolean as_keys)
{
    const RpScheduleErrorPrivate *remedies = rp_schedule_error_remedies(error);
    g_autoptr(GString) text = g_string_new(NULL);
    const char *remedy = error->domain == RP_RUN_ERROR ? run_remedy((RpRunError)error->code) : NULL;

    if (g_error_matches(error, RP_RUN_ERROR, RP_RUN_ERROR_NO_CHECKPOINT))
        g_string_append(text, "--resume: ");
    if (remedy != NULL)
        return g_strconcat(text->str, error->message, "; ", remedy, NULL);
    if (g_error_matches(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_MEMORY)) {
        g_autofree char *smaller = rp_cli_remedy(RP_REMEDY_SMALLER_MICRO_BATCH, as_keys);

        return g_strconcat(error->message, ": ", smaller, NULL);
    }

    if (remedies != NULL)
        append(text, remedies->one, as_keys);
    if (remedies != NULL && remedies->other.part != RP_SHAPE_NOTHING)
        append(text, remedies->other, as_keys);
    return g_strconcat(error->message, text->str, NULL);
}

/* ---- progress ---- */

#define TERMINAL_INTERVAL_US (G_USEC_PER_SEC / 10)
#define CLEAR "\r\033[K"

RpProgress
rp_progress_begin(const char *what, double log_seconds)
{
    const gboolean terminal = isatty(STDERR_FILENO) == 1;
    const gint64 now_us = g_get_monotonic_time();

    return (RpProgress){
        .what = what,
        .log_seconds = log_seconds,
        .terminal = terminal,
        .interval_us = terminal ? TERMINAL_INTERVAL_US : (gint64)(log_seconds * G_USEC_PER_SEC),
        .begin_us = now_us,
        .shown_us = terminal ? 0 : now_us,
    };
}

gboolean
rp_progress_is_due(RpProgress *progress)
{
    const gint64 now_us = g_get_monotonic_time();

    if (progress->interval_us <= 0 || now_us - progress->shown_us < progress->interval_us)
        return FALSE;
    progress->shown_us = now_us;
    return TRUE;
}

void
rp_progress_print(const RpProgress *progress, const char *format, ...)
{
    va_list arguments;

    fputs(progress->terminal ? CLEAR : "", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputs(progress->terminal ? "" : "\n", stderr);
    fflush(stderr);
}

/* "596 x 10^6", "1200" */
static char *
format_count(double count)
{
    return count < 1e6 ? g_strdup_printf("%.*f", count < 10 && count != (guint)count ? 1 : 0, count)
                       : g_strdup_printf("%.0f x 10^6", count / 1e6);
}

void
rp_progress_show(RpProgress *progress, guint64 done, guint64 total)
{
    if (done == 0 || total == 0 || !rp_progress_is_due(progress))
        return;
    const double seconds =
        (double)(progress->shown_us - progress->begin_us + 1) / (double)G_USEC_PER_SEC;
    g_autofree char *whole = format_count((double)total);
    g_autofree char *rate = format_count((double)done / seconds);
    g_autofree char *left =
        rp_progress_format_time(seconds * (double)(total - done) / (double)done);

    rp_progress_print(progress, "%s: %.0f %% of %s, %s/s, %s left", progress->what,
                      100 * (double)done / (double)total, whole, rate, left);
}

void
rp_progress_event(gpointer data, const char *what, guint64 done, guint64 total)
{
    RpProgress *progress = data;

    if (total == 0) {
        rp_progress_clear();
        progress->what = NULL;
    } else if (progress->what == NULL) {
        *progress = rp_progress_begin(what, progress->log_seconds);
    }
    rp_progress_show(progress, done, total);
}

void
rp_progress_counted(guint64 done, guint64 total, gpointer progress)
{
    rp_progress_show(progress, done, total);
}

gboolean
rp_progress_counted_on(guint64 done, guint64 total, gpointer progress)
{
    rp_progress_show(progress, done, total);
    return TRUE;
}

void
rp_progress_clear(void)
{
    if (isatty(STDERR_FILENO) == 1)
        fputs(CLEAR, stderr);
}

char *
rp_progress_format_time(double seconds)
{
    if (seconds < 120)
        return g_strdup_printf("%.0f s", seconds);
    return seconds < 7200 ? g_strdup_printf("%.0f min", seconds / 60)
                          : g_strdup_printf("%.1f h", seconds / 3600);
}
