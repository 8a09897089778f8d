/* Manual pages, in roff's man macros. */
#include "cli/pages/pages.h"

#include <string.h>

#include "cli/config.h"
#include "run/settings.h"

/* As it stands: no escapes, no dash that is not one, no request. */
static void
add_text(GString *page, const char *text)
{
    if (*text == '.' || *text == '\'')
        g_string_append(page, "\\&");
    for (; *text != '\0'; text++)
        if (*text == '\\')
            g_string_append(page, "\\e");
        else if (*text == '-')
            g_string_append(page, "\\-");
        else
            g_string_append_c(page, *text);
}

static void
add_line(GString *page, const char *request, const char *text)
{
    g_string_append(page, request);
    add_text(page, text);
    g_string_append_c(page, '\n');
}

static void
begin(GString *page, const char *name, guint section, const char *summary)
{
    g_autofree char *upper = g_ascii_strup(name, -1);

    g_string_append_printf(page, ".TH %s %u \"\" \"roundpipe " RP_VERSION "\"\n.SH NAME\n", upper,
                           section);
    add_text(page, name);
    g_string_append(page, " \\- ");
    add_text(page, summary);
    g_string_append_c(page, '\n');
}

/* Paragraphs; lines that begin with a space, as commands, stay as they are. */
static void
add_paragraphs(GString *page, const char *text)
{
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    gboolean literal = FALSE;

    for (guint i = 0; lines[i] != NULL; i++) {
        const gboolean is_literal = lines[i][0] == ' ';

        if (is_literal != literal)
            g_string_append(page, is_literal ? ".nf\n" : ".fi\n");
        literal = is_literal;
        add_line(page, *lines[i] == '\0' ? ".PP" : "", lines[i]);
    }
    if (literal)
        g_string_append(page, ".fi\n");
}

static void
add_option(GString *page, const GOptionEntry *option)
{
    g_autofree char *value = option->arg_description == NULL
                                 ? g_strdup("")
                                 : g_strdup_printf("=\\fI%s\\fR", option->arg_description);

    g_string_append(page, ".TP\n");
    if (option->short_name != 0)
        g_string_append_printf(page, "\\fB\\-%c\\fR, ", option->short_name);
    g_string_append(page, "\\fB\\-\\-");
    add_text(page, option->long_name);
    g_string_append_printf(page, "\\fR%s\n", value);
    add_line(page, "", option->description);
}

static void
add_exit_fp8(GString *page)
{
    g_string_append(page, ".SH EXIT STATUS\n0 done, 1 failed, 2 wrong usage.\n");
}

void
rp_manual_command(GString *page, const RpCommand *command)
{
    g_auto(RpCommandOptions) options = rp_command_options(command);
    g_autofree char *name = g_strdup_printf("roundpipe-%s", command->name);

    begin(page, name, 1, command->summary);
    g_string_append_printf(page, ".SH SYNOPSIS\n\\fBroundpipe %s\\fR [\\fIOPTION\\fR...] ",
                           command->name);
    add_line(page, "", command->words != NULL ? command->words : "");
    g_string_append(page, ".SH DESCRIPTION\n");
    add_paragraphs(page, command->help);
    for (guint i = 0; i < options.entries->len; i++) {
        if (i == 0)
            g_string_append(page, ".SH OPTIONS\n");
        if (i == options.n_common)
            g_string_append(page, ".SH OPTIONS FOR EXPERTS\n");
        add_option(page, &g_array_index(options.entries, GOptionEntry, i));
    }
    add_exit_fp8(page);
    g_string_append(page, ".SH SEE ALSO\n.BR roundpipe (1),\n.BR roundpipe\\-run (5)\n");
}

static void
list_commands(GString *page, const RpCommand *const *commands, gboolean expert)
{
    for (; *commands != NULL; commands++) {
        if ((*commands)->expert != expert)
            continue;
        g_string_append(page, ".TP\n");
        g_string_append_printf(page, ".BR roundpipe\\-%s (1)\n", (*commands)->name);
        add_line(page, "", (*commands)->summary);
    }
}

void
rp_manual_overview(GString *page, const RpCommand *const *commands)
{
    begin(page, "roundpipe", 1, "predict and train models under pipeline schedules");
    g_string_append(page, ".SH SYNOPSIS\n\\fBroundpipe\\fR \\fICOMMAND\\fR [\\fIOPTION\\fR...] "
                          "[\\fIARGUMENT\\fR...]\n.SH DESCRIPTION\n");
    add_line(page, "", RP_CLI_PURPOSE);
    g_string_append(page, ".SH COMMANDS\n");
    list_commands(page, commands, FALSE);
    g_string_append(page, ".SH COMMANDS FOR EXPERTS\n");
    list_commands(page, commands, TRUE);
    add_exit_fp8(page);
    g_string_append(page, ".SH SEE ALSO\n.BR roundpipe\\-run (5)\n");
}

static void
list_settings(GString *page, gboolean expert)
{
    for (const RpSetting *setting = rp_settings(); setting->key != NULL; setting++) {
        g_autofree char *meaning = rp_setting_meaning(setting);
        const char *initial = rp_setting_default(setting);

        if (setting->expert != expert)
            continue;
        g_string_append(page, ".TP\n\\fB");
        add_text(page, setting->key);
        g_string_append(page, "\\fR (");
        add_text(page, setting->required ? initial : "default: ");
        add_text(page, setting->required ? "" : initial);
        g_string_append(page, ")\n");
        add_line(page, "", meaning);
    }
}

void
rp_manual_run_file(GString *page)
{
    begin(page, "roundpipe-run", 5, "run files of roundpipe train");
    g_string_append(page, ".SH DESCRIPTION\n");
    add_line(page, "",
             "A run file is YAML: a key and its value a line. A key with a dot stands in the "
             "mapping of its first word. roundpipe new writes one for this machine.");
    g_string_append(page, ".SH KEYS\n");
    list_settings(page, FALSE);
    g_string_append(page, ".SH KEYS FOR EXPERTS\n");
    list_settings(page, TRUE);
    g_string_append(page, ".SH SEE ALSO\n.BR roundpipe\\-train (1),\n.BR roundpipe\\-new (1)\n");
}
