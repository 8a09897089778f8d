/* A command's way: its options read, its work done, its report or its error printed. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#include "core/base/quote.h"
#include "core/base/suggest.h"

#define EXPERTS_HEADING "Options for experts:"

/* ---- options ---- */

static const GOptionEntry every_options[] = {
    {"json", 0, RP_FLAG(RpEveryArgs, json), "print JSON, with every figure", NULL},
    {"wide", 0, RP_FLAG(RpEveryArgs, wide), "print all columns, however narrow the terminal", NULL},
    {0},
};

static void
add_options(RpCommandOptions *options, const GOptionEntry *table, gpointer args)
{
    gboolean expert = FALSE;

    for (const GOptionEntry *option = table; option != NULL && option->long_name != NULL;
         option++) {
        GOptionEntry own = *option;

        if (*option->long_name == '\0') {
            expert = TRUE;
            continue;
        }
        own.arg_data = GSIZE_TO_POINTER((gsize)args + GPOINTER_TO_SIZE(option->arg_data));
        if (own.description == NULL || g_str_has_suffix(own.description, ": ")) {
            own.description = rp_cli_option_help(&own);
            g_ptr_array_add(options->help, (gpointer)own.description);
        }
        g_array_insert_val(options->entries, expert ? options->entries->len : options->n_common,
                           own);
        options->n_common += !expert;
    }
}

/* The options of a request, each a text for the command to read: @args begins with their members. */
static void
add_swept(RpCommandOptions *options, gpointer args)
{
    g_autoptr(GArray) table = g_array_new(TRUE, TRUE, sizeof(GOptionEntry));

    for (const GOptionEntry *option = rp_schedule_options; option->long_name != NULL; option++) {
        GOptionEntry swept = *option;

        swept.arg_data = GSIZE_TO_POINTER(table->len * sizeof(char *));
        if (option->arg == G_OPTION_ARG_NONE)
            swept.flags |= G_OPTION_FLAG_OPTIONAL_ARG;
        swept.arg = G_OPTION_ARG_STRING;
        if (swept.arg_description == NULL)
            swept.arg_description = "YES";
        g_array_append_val(table, swept);
    }
    add_options(options, (const GOptionEntry *)(void *)table->data, args);
}

RpCommandOptions
rp_command_options(const RpCommand *command, gpointer args, RpEveryArgs *every)
{
    RpCommandOptions options = {.entries = g_array_new(TRUE, TRUE, sizeof(GOptionEntry)),
                                .help = g_ptr_array_new_with_free_func(g_free)};

    add_options(&options, command->options, args);
    if (command->requests == RP_SWEPT_REQUEST)
        add_swept(&options, args);
    else if (command->requests != RP_NO_REQUEST)
        add_options(&options, rp_schedule_options + (command->requests == RP_REQUESTS), args);
    add_options(&options, every_options, every);
    return options;
}

void
rp_command_options_clear(RpCommandOptions *options)
{
    g_array_unref(options->entries);
    g_ptr_array_unref(options->help);
}

/* As the last user of them. */
static void
free_texts(const RpCommandOptions *options)
{
    for (guint i = 0; i < options->entries->len; i++) {
        const GOptionEntry *option = &g_array_index(options->entries, GOptionEntry, i);

        if (option->arg == G_OPTION_ARG_STRING || option->arg == G_OPTION_ARG_FILENAME)
            g_free(*(char **)option->arg_data);
        else if (option->arg == G_OPTION_ARG_STRING_ARRAY)
            g_strfreev(*(char ***)option->arg_data);
    }
}

/* GLib would take the word after an option for its value: "--resume" becomes "--resume=". */
static void
end_optional(const GOptionEntry *option, int argc, char **argv)
{
    g_autofree char *alone = g_strconcat("--", option->long_name, NULL);
    g_autofree char *ended = g_strconcat(alone, "=", NULL);

    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], alone) == 0)
            argv[i] = (char *)g_intern_string(ended);
}

/* "Unknown option --shedule" becomes more helpful. */
static void
suggest_option(const GArray *entries, GError **error)
{
    g_autofree const char **names = g_new0(const char *, entries->len + 1);
    const char *wrong = strstr((*error)->message, "--");

    if (!g_error_matches(*error, G_OPTION_ERROR, G_OPTION_ERROR_UNKNOWN_OPTION))
        return;
    for (guint i = 0; i < entries->len; i++)
        names[i] = g_array_index(entries, GOptionEntry, i).long_name;
    const char *near = wrong == NULL ? NULL : rp_nearest_name(wrong + 2, names);
    g_autofree char *old = (*error)->message;

    (*error)->message = near == NULL ? g_strconcat(old, "; see --help", NULL)
                                     : g_strdup_printf("%s; did you mean --%s?", old, near);
}

gboolean
rp_cli_take_count(const GOptionEntry *option, const char *text, int *count, GError **error)
{
    gint64 number = 0;
    const gboolean is_number =
        g_ascii_string_to_signed(text, 10, G_MININT64, G_MAXINT64, &number, NULL);

    if (is_number && number >= 1 && number <= G_MAXINT) {
        *count = (int)number;
        return TRUE;
    }
    g_autofree char *found =
        is_number ? g_strdup_printf("%" G_GINT64_FORMAT, number) : rp_quote(text);

    if (error != NULL && *error == NULL)
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                    "--%s: expected a number of 1 or more, found %s%s", option->long_name, found,
                    number > G_MAXINT ? ", which is out of range" : "");
    return FALSE;
}

static gboolean
check_words(const RpCommand *command, int argc, char **argv, GError **error)
{
    const char *words = command->words != NULL ? command->words : "";
    const char *optional = strchr(words, '[');
    const int n = *words == '\0' ? 0 : strchr(words, ' ') == NULL ? 1 : 2;

    if (argc - 1 < n - (optional != NULL))
        return rp_cli_refuse(error, "something is missing: expected %s; see --help", words);
    if (argc - 1 > n && strstr(words, "...") == NULL)
        return rp_cli_refuse(error, "\"%s\" is one word too many; see --help", argv[n + 1]);
    return TRUE;
}

/* GLib prints groups before the main options, or not at all. @experts: (nullable): has options */
static char *
make_help(GOptionContext *context, GOptionGroup *experts)
{
    g_autofree char *common = g_option_context_get_help(context, TRUE, NULL);
    g_autofree char *all =
        experts != NULL ? g_option_context_get_help(context, FALSE, experts) : g_strdup("");
    GString *help = g_string_new(common);

    g_string_replace(help, "\nApplication Options:\n", "\nOptions:\n", 1);
    g_string_append(help, experts != NULL ? strstr(all, EXPERTS_HEADING) : "");
    return g_string_free(help, FALSE);
}

/* Words that are no option stay in argv[1] ... argv[argc - 1]. @help: (out): where it was asked for, and
 * nothing else counts. GLib reads counts as text, for no number tells that one was not given. */
static gboolean
parse(const RpCommand *command, const RpCommandOptions *options, int *argc, char ***argv,
      char **help, GError **error)
{
    const GArray *entries = options->entries;
    GOptionGroup *experts = g_option_group_new("experts", EXPERTS_HEADING, "", NULL, NULL);
    g_autoptr(GArray) common = g_array_new(TRUE, TRUE, sizeof(GOptionEntry));
    g_autoptr(GOptionContext) context = g_option_context_new(command->words);
    g_autofree char *program = g_strdup_printf("roundpipe %s", command->name);
    g_autofree char **texts = g_new0(char *, entries->len);
    g_autoptr(GArray) parsed = g_array_copy((GArray *)entries);
    gboolean asked = FALSE;
    const GOptionEntry help_entry = {"help", 'h', 0, G_OPTION_ARG_NONE, &asked, "show this", NULL};
    GError *local = NULL;

    for (guint i = 0; i < parsed->len; i++) {
        GOptionEntry *entry = &g_array_index(parsed, GOptionEntry, i);

        if ((entry->flags & G_OPTION_FLAG_OPTIONAL_ARG) != 0)
            end_optional(entry, *argc, *argv);
        entry->flags &= ~G_OPTION_FLAG_OPTIONAL_ARG; /* GLib has that for callbacks only */
        if (entry->arg == G_OPTION_ARG_INT) {
            entry->arg = G_OPTION_ARG_STRING;
            entry->arg_data = &texts[i];
        }
    }
    g_option_group_add_entries(experts, &g_array_index(parsed, GOptionEntry, options->n_common));
    g_array_append_vals(common, parsed->data, options->n_common);
    g_array_append_val(common, help_entry);
    g_array_append_val(parsed, help_entry);
    g_set_prgname(program);
    g_option_context_set_summary(context, command->help);
    g_option_context_set_help_enabled(context, FALSE); /* GLib's would exit */
    g_option_context_add_main_entries(context, (const GOptionEntry *)(void *)common->data, NULL);
    g_option_context_add_group(context, experts);
    if (!g_option_context_parse(context, argc, argv, &local))
        suggest_option(parsed, &local);
    for (guint i = 0; i < entries->len; i++)
        if (texts[i] != NULL) {
            const GOptionEntry *entry = &g_array_index(entries, GOptionEntry, i);

            if (!rp_cli_take_count(entry, texts[i], entry->arg_data, &local))
                g_assert(local != NULL);
            g_free(texts[i]);
        }
    if (asked) {
        g_clear_error(&local);
        *help = make_help(context, options->n_common < entries->len ? experts : NULL);
        return TRUE;
    }
    if (local == NULL)
        return check_words(command, *argc, *argv, error);
    g_propagate_error(error, local);
    return FALSE;
}

/* ---- the command ---- */

int
rp_command_run(const RpCommand *command, int argc, char **argv)
{
    g_autofree gpointer args = g_malloc0(MAX(command->args_size, 1));
    g_autofree char *help = NULL;
    RpEveryArgs every = {0};
    g_auto(RpCommandOptions) options = rp_command_options(command, args, &every);
    GError *error = NULL;
    int code = RP_EXIT_OK;

    if (command->defaults != NULL)
        memcpy(args, command->defaults, command->args_size);
    if (parse(command, &options, &argc, &argv, &help, &error)) {
        g_autoptr(RpReport) report = rp_report_new(every.json && help == NULL ? RP_REPORT_JSON
                                                   : every.wide               ? RP_REPORT_WIDE
                                                                              : RP_REPORT_TEXT);

        if (help != NULL)
            rp_report_print_help(help);
        if (help != NULL && command->more_help != NULL)
            command->more_help(report);
        if (help != NULL || command->run(args, argv + 1, report, &error))
            rp_report_finish(report);
        code = report->exit;
    }
    if (error != NULL)
        code = rp_cli_fail(command->name, error);
    free_texts(&options);
    return code;
}
