#include "cli/cli.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/base/bytes.h"
#include "core/base/quote.h"
#include "core/base/suggest.h"
#include "core/catalogue/catalogue.h"
#include "core/catalogue/cost-model.h"
#include "core/schedules/schedule.h"
#include "plots/gnuplot.h"
#include "run/error.h"

G_DEFINE_QUARK(rp_cli_error, rp_cli_error)

/* Errors that the command line causes and not a file. */
static gboolean
is_usage(const GError *error)
{
    if (error->domain == RP_PARTITION_ERROR)
        return error->code != RP_PARTITION_ERROR_MEMORY;
    if (error->domain == RP_SCHEDULE_ERROR)
        return error->code != RP_SCHEDULE_ERROR_DEADLOCK;
    if (error->domain == RP_PLANNER_ERROR)
        return error->code == RP_PLANNER_ERROR_PARTITION;
    if (error->domain == RP_PLOT_ERROR)
        return error->code == RP_PLOT_ERROR_FORMAT;
    if (error->domain == RP_RUN_ERROR)
        return error->code == RP_RUN_ERROR_USAGE;
    return error->domain == RP_CLI_ERROR || error->domain == G_OPTION_ERROR ||
           error->domain == RP_CATALOGUE_ERROR || error->domain == RP_COST_MODEL_ERROR;
}

gboolean
rp_cli_reader_left(void)
{
    struct pollfd output = {.fd = STDOUT_FILENO, .events = POLLOUT};

    return poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0;
}

int
rp_cli_fail(const char *command, GError *error)
{
    int code = is_usage(error) ? RP_EXIT_USAGE : RP_EXIT_FAILED;

    if (g_error_matches(error, RP_CLI_ERROR, RP_CLI_ERROR_HELP) ||
        g_error_matches(error, RP_CLI_ERROR, RP_CLI_ERROR_TOLD)) {
        code = error->code == RP_CLI_ERROR_HELP ? RP_EXIT_OK : RP_EXIT_FAILED;
        g_error_free(error);
        return code;
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
rp_cli_tell(const char *command, GError **error)
{
    (void)rp_cli_fail(command, g_steal_pointer(error));
    g_set_error_literal(error, RP_CLI_ERROR, RP_CLI_ERROR_TOLD, "told");
}

/* "Unknown option --shedule" becomes more helpful. */
static void
suggest_option(const GOptionEntry *const *lists, GError **error)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new();
    const char *wrong;

    if (!g_error_matches(*error, G_OPTION_ERROR, G_OPTION_ERROR_UNKNOWN_OPTION))
        return;
    wrong = strstr((*error)->message, "--");
    for (; *lists != NULL; lists++)
        for (const GOptionEntry *entry = *lists; entry->long_name != NULL; entry++)
            g_ptr_array_add(names, (gpointer)entry->long_name);
    g_ptr_array_add(names, NULL);
    const char *near =
        wrong == NULL ? NULL : rp_nearest_name(wrong + 2, (const char *const *)names->pdata);
    g_autofree char *hint =
        near == NULL ? g_strdup("; see --help") : g_strdup_printf("; did you mean --%s?", near);
    char *message = g_strconcat((*error)->message, hint, NULL);

    g_free((*error)->message);
    (*error)->message = message;
}

/* A command's options as GLib is to read them: counts as text, for no number tells that one was not
 * given. */
typedef struct {
    GArray *entries; /* GOptionEntry, with a last one of zeros */
    GArray *counts;  /* Count */
} OptionTexts;

typedef struct {
    const GOptionEntry *entry; /* the command's, whose arg_data is an int */
    char *text;                /* as given, or %NULL */
} Count;

static void
option_texts_clear(OptionTexts *texts)
{
    for (guint i = 0; i < texts->counts->len; i++)
        g_free(g_array_index(texts->counts, Count, i).text);
    g_array_unref(texts->entries);
    g_array_unref(texts->counts);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(OptionTexts, option_texts_clear)

static OptionTexts
make_option_texts(const GOptionEntry *const *lists)
{
    OptionTexts texts = {.entries = g_array_new(TRUE, TRUE, sizeof(GOptionEntry)),
                         .counts = g_array_new(FALSE, TRUE, sizeof(Count))};
    guint n = 0;

    for (const GOptionEntry *const *list = lists; *list != NULL; list++)
        for (const GOptionEntry *entry = *list; entry->long_name != NULL; entry++) {
            const Count count = {.entry = entry};

            g_array_append_vals(texts.entries, entry, 1);
            if (entry->arg == G_OPTION_ARG_INT)
                g_array_append_val(texts.counts, count);
        }
    /* places of texts, now that they do not move any more */
    for (guint i = 0; i < texts.entries->len; i++) {
        GOptionEntry *entry = &g_array_index(texts.entries, GOptionEntry, i);

        if (entry->arg != G_OPTION_ARG_INT)
            continue;
        entry->arg = G_OPTION_ARG_STRING;
        entry->arg_data = &g_array_index(texts.counts, Count, n++).text;
    }
    return texts;
}

/* Gives the counts that were given to the command. */
static gboolean
take_counts(const OptionTexts *texts, GError **error)
{
    for (guint i = 0; i < texts->counts->len; i++) {
        const Count *count = &g_array_index(texts->counts, Count, i);
        gint64 number = 0;

        if (count->text == NULL)
            continue;
        const gboolean is_number =
            g_ascii_string_to_signed(count->text, 10, G_MININT64, G_MAXINT64, &number, NULL);
        if (!is_number || number < 1 || number > G_MAXINT) {
            g_autofree char *found =
                is_number ? g_strdup_printf("%" G_GINT64_FORMAT, number) : rp_quote(count->text);

            if (*error == NULL)
                g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                            "--%s: expected a number of 1 or more, found %s%s",
                            count->entry->long_name, found,
                            number > G_MAXINT ? ", which is out of range" : "");
            return FALSE;
        }
        *(int *)count->entry->arg_data = (int)number;
    }
    return TRUE;
}

static gboolean
check_words(const RpCommand *command, int argc, char **argv, GError **error)
{
    if (argc - 1 < command->min_words) {
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                    "something is missing: expected %s; see --help", command->words);
        return FALSE;
    }
    if (command->max_words >= 0 && argc - 1 > command->max_words) {
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                    "\"%s\" is one word too many; see --help", argv[command->max_words + 1]);
        return FALSE;
    }
    return TRUE;
}

gboolean
rp_cli_parse(const RpCommand *command, const GOptionEntry *entries, int *argc, char ***argv,
             GError **error)
{
    g_autoptr(GOptionContext) context = g_option_context_new(command->words);
    g_autofree char *program = g_strdup_printf("roundpipe %s", command->name);
    gboolean help = FALSE;
    const GOptionEntry help_entries[] = {
        {"help", 'h', 0, G_OPTION_ARG_NONE, &help, "show this", NULL},
        {0},
    };
    const GOptionEntry *const lists[] = {entries, help_entries, NULL};
    GError *local = NULL;

    g_set_prgname(program);
    g_option_context_set_summary(context, command->help);
    g_option_context_set_help_enabled(context, FALSE); /* GLib's would exit */
    g_auto(OptionTexts) texts = make_option_texts(lists);

    g_option_context_add_main_entries(context, (const GOptionEntry *)(void *)texts.entries->data,
                                      NULL);
    gboolean parsed = g_option_context_parse(context, argc, argv, &local);

    if (!parsed)
        suggest_option(lists, &local);
    parsed = take_counts(&texts, &local) && parsed;
    if (help) {
        g_autofree char *text = g_option_context_get_help(context, TRUE, NULL);

        fputs(text, stdout);
        g_clear_error(&local);
        g_set_error_literal(&local, RP_CLI_ERROR, RP_CLI_ERROR_HELP, "help");
    } else if (parsed) {
        return check_words(command, *argc, *argv, error);
    }
    g_propagate_error(error, local);
    return FALSE;
}

int
rp_cli_choice(const char *option, const char *text, const char *const *names, GError **error)
{
    const char *near;

    for (int i = 0; names[i] != NULL; i++)
        if (strcmp(names[i], text) == 0)
            return i;
    near = rp_nearest_name(text, names);
    g_autofree char *list = g_strjoinv(", ", (char **)names);
    if (near != NULL)
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                    "--%s: \"%s\" is not one of %s; did you mean \"%s\"?", option, text, list,
                    near);
    else
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE, "--%s: \"%s\" is not one of %s",
                    option, text, list);
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
    g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                "--%s: expected A:B, A < B, for iterations A to B - 1, found %s", option, found);
    return FALSE;
}

gboolean
rp_cli_parse_bytes(const char *option, const char *text, guint64 *bytes, GError **error)
{
    if (rp_bytes_parse(text, bytes))
        return TRUE;
    g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                "--%s: expected a size such as 24GiB or 800GB, found \"%s\"", option, text);
    return FALSE;
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
