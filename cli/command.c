/* A command's way: its options read, its work done, its report or its error printed. */
#include "cli/cli.h"

#include <string.h>

#include "run/settings.h"

/* The options of @command, each with the place in @args that it fills, in one list. */
static GArray *
all_options(const RpCommand *command, gpointer args, const GOptionEntry *common)
{
    GArray *all = g_array_new(TRUE, TRUE, sizeof(GOptionEntry));

    for (const GOptionEntry *option = command->options; option != NULL && option->long_name != NULL;
         option++) {
        GOptionEntry own = *option;

        own.flags &= ~G_OPTION_FLAG_OPTIONAL_ARG; /* GLib has that for callbacks only */
        own.arg_data = (char *)args + GPOINTER_TO_SIZE(option->arg_data);
        if (own.description == NULL)
            own.description = rp_setting_find(own.long_name)->help;
        g_array_append_val(all, own);
    }
    if (command->requests != RP_NO_REQUEST) {
        g_autofree GOptionEntry *entries =
            rp_schedule_args_entries(args, command->requests == RP_REQUEST);

        for (const GOptionEntry *entry = entries; entry->long_name != NULL; entry++)
            g_array_append_vals(all, entry, 1);
    }
    for (; common->long_name != NULL; common++)
        g_array_append_vals(all, common, 1);
    return all;
}

static void
free_args(const GArray *options, gpointer args)
{
    for (guint i = 0; i < options->len; i++) {
        const GOptionEntry *option = &g_array_index(options, GOptionEntry, i);

        if (option->arg == G_OPTION_ARG_STRING || option->arg == G_OPTION_ARG_FILENAME)
            g_free(*(char **)option->arg_data);
        else if (option->arg == G_OPTION_ARG_STRING_ARRAY)
            g_strfreev(*(char ***)option->arg_data);
    }
    g_free(args);
}

/* GLib would take the word after an option for its value: "--resume" becomes "--resume=". */
static void
end_optional(const RpCommand *command, int argc, char **argv)
{
    for (const GOptionEntry *option = command->options; option != NULL && option->long_name != NULL;
         option++) {
        g_autofree char *alone = g_strconcat("--", option->long_name, NULL);
        g_autofree char *ended = g_strconcat(alone, "=", NULL);

        for (int i = 1; i < argc && (option->flags & G_OPTION_FLAG_OPTIONAL_ARG) != 0; i++)
            if (strcmp(argv[i], alone) == 0)
                argv[i] = (char *)g_intern_string(ended);
    }
}

int
rp_command_run(const RpCommand *command, int argc, char **argv)
{
    gpointer args = g_malloc0(MAX(command->args_size, 1));
    gboolean json = FALSE, wide = FALSE;
    const GOptionEntry common[] = {
        {"json", 0, 0, G_OPTION_ARG_NONE, &json, "print JSON, with every figure", NULL},
        {"wide", 0, 0, G_OPTION_ARG_NONE, &wide, "print all columns, however narrow the terminal",
         NULL},
        {0},
    };
    g_autoptr(GArray) options = all_options(command, args, common);
    GError *error = NULL;
    int code = RP_EXIT_OK;

    if (command->defaults != NULL)
        memcpy(args, command->defaults, command->args_size);
    end_optional(command, argc, argv);
    if (rp_cli_parse(command, (const GOptionEntry *)(void *)options->data, &argc, &argv, &error)) {
        g_autoptr(RpReport) report = rp_report_new(json   ? RP_REPORT_JSON
                                                   : wide ? RP_REPORT_WIDE
                                                          : RP_REPORT_TEXT);

        if (command->run(args, argv + 1, report, &error))
            rp_report_finish(report);
        code = report->exit;
    }
    if (g_error_matches(error, RP_CLI_ERROR, RP_CLI_ERROR_HELP) && command->more_help != NULL) {
        g_autoptr(RpReport) help = rp_report_new(wide ? RP_REPORT_WIDE : RP_REPORT_TEXT);

        command->more_help(help);
        rp_report_finish(help);
    }
    if (error != NULL)
        code = rp_cli_fail(command->name, error);
    free_args(options, args);
    return code;
}
