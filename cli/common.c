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
