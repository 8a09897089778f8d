/* Writes a page or a script to standard output, for the build:
 *   roundpipe-pages manual | manual-run | manual-COMMAND | bash | zsh | fish */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/config.h"
#include "core/catalogue/catalogue.h"
#include "core/schedules/schedule.h"
#include "run/settings.h"

/* Completions of shells: commands, options, their values, keys of run files. */

/* The words that may follow an option, with spaces between: words, or keys and =, behind which more
 * stands; %NULL: a file, or anything. */
static char *
values_of(const GOptionEntry *option)
{
    const RpSetting *setting = rp_setting_of_option(option->long_name);
    g_autoptr(GPtrArray) keys = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GPtrArray) names = g_ptr_array_new();
    guint n = 0;

    if (strcmp(option->long_name, "schedule") == 0) {
        for (const RpScheduleOps *const *schedule = rp_schedules(); *schedule != NULL; schedule++)
            g_ptr_array_add(names, (gpointer)(*schedule)->name);
    } else if (strcmp(option->long_name, "gpu") == 0) {
        const RpGpu *gpus = rp_gpu_list(&n);

        for (guint i = 0; i < n; i++)
            g_ptr_array_add(names, (gpointer)gpus[i].name);
    } else if (strcmp(option->long_name, "set") == 0) {
        for (setting = rp_settings(); setting->key != NULL; setting++) {
            g_ptr_array_add(keys, g_strconcat(setting->key, "=", NULL));
            g_ptr_array_add(names, g_ptr_array_index(keys, keys->len - 1));
        }
    } else if (setting != NULL && setting->choices != NULL) {
        g_autofree const char **choices = rp_setting_names(setting);

        for (guint i = 0; choices[i] != NULL; i++)
            g_ptr_array_add(names, (gpointer)choices[i]);
    } else {
        return NULL;
    }
    g_ptr_array_add(names, NULL);
    return g_strjoinv(" ", (char **)names->pdata);
}

/* ---- bash ---- */

static void
add_bash_command(GString *script, const RpCommand *command)
{
    g_auto(RpCommandOptions) options = rp_command_options(command);

    g_string_append_printf(script, "    %s)\n        options='", command->name);
    for (guint i = 0; i < options.entries->len; i++) {
        const GOptionEntry *option = &g_array_index(options.entries, GOptionEntry, i);

        g_string_append_printf(script, "--%s%s ", option->long_name,
                               option->arg_description != NULL ? "=" : "");
    }
    g_string_append(script, "--help'\n        case $option in\n");
    for (guint i = 0; i < options.entries->len; i++) {
        const GOptionEntry *option = &g_array_index(options.entries, GOptionEntry, i);
        g_autofree char *values = values_of(option);

        if (values != NULL)
            g_string_append_printf(script, "        --%s) values='%s' ;;\n", option->long_name,
                                   values);
    }
    g_string_append(script, "        esac ;;\n");
}

static void
completion_bash(GString *script, const RpCommand *const *commands)
{
    g_string_append(script, "# Completion of roundpipe in bash.\n_roundpipe() {\n"
                            "    local word=${COMP_WORDS[COMP_CWORD]} option= options= values=\n"
                            "    COMPREPLY=()\n"
                            "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
                            "        COMPREPLY=($(compgen -W '");
    for (const RpCommand *const *command = commands; *command != NULL; command++)
        g_string_append_printf(script, "%s ", (*command)->name);
    g_string_append(script, "' -- \"$word\"))\n        return\n    fi\n"
                            "    # readline divides --option=value in three\n"
                            "    option=${COMP_WORDS[COMP_CWORD - 1]}\n"
                            "    if [ \"$word\" = = ]; then\n        word=\n"
                            "    elif [ \"$option\" = = ]; then\n"
                            "        option=${COMP_WORDS[COMP_CWORD - 2]}\n    fi\n"
                            "    case ${COMP_WORDS[1]} in\n");
    for (; *commands != NULL; commands++)
        add_bash_command(script, *commands);
    g_string_append(script, "    esac\n"
                            "    case $word in\n"
                            "    -*) COMPREPLY=($(compgen -W \"$options\" -- \"$word\")) ;;\n"
                            "    *) if [ -n \"$values\" ]; then\n"
                            "            COMPREPLY=($(compgen -W \"$values\" -- \"$word\"))\n"
                            "        else\n"
                            "            mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
                            "        fi ;;\n"
                            "    esac\n"
                            "    [[ ${COMPREPLY[0]-} != *= ]] || compopt -o nospace\n"
                            "}\ncomplete -o filenames -F _roundpipe roundpipe\n");
}

/* ---- zsh ---- */

/* In brackets of _arguments. (transfer full) */
static char *
escape(const char *text)
{
    GString *escaped = g_string_new(NULL);

    for (; *text != '\0'; text++) {
        if (strchr("[]:\\", *text) != NULL)
            g_string_append_c(escaped, '\\');
        g_string_append_c(escaped, *text);
    }
    return g_string_free(escaped, FALSE);
}

static void
add_zsh_option(GString *script, const GOptionEntry *option)
{
    g_autofree char *help = escape(option->description);
    g_autofree char *values = values_of(option);
    g_autofree char *action = values == NULL ? g_strdup("_files")
                              : g_str_has_suffix(values, "=")
                                  ? g_strdup_printf("{compadd -S \"\" -- %s}", values)
                                  : g_strdup_printf("(%s)", values);
    g_autofree char *spec = option->arg_description == NULL
                                ? g_strdup_printf("--%s[%s]", option->long_name, help)
                                : g_strdup_printf("--%s=[%s]:%s:%s", option->long_name, help,
                                                  option->arg_description, action);
    g_autofree char *word = g_shell_quote(spec);

    g_string_append_printf(script, " \\\n            %s", word);
}

static void
completion_zsh(GString *script, const RpCommand *const *commands)
{
    g_string_append(script, "#compdef roundpipe\n# Completion of roundpipe in zsh.\n"
                            "_roundpipe() {\n    local -a commands\n    commands=(\n");
    for (const RpCommand *const *command = commands; *command != NULL; command++) {
        g_autofree char *summary = escape((*command)->summary);
        g_autofree char *line = g_strdup_printf("%s:%s", (*command)->name, summary);
        g_autofree char *word = g_shell_quote(line);

        g_string_append_printf(script, "        %s\n", word);
    }
    g_string_append(script, "    )\n    if (( CURRENT == 2 )); then\n"
                            "        _describe command commands\n        return\n    fi\n"
                            "    local name=$words[2]\n    shift words\n    (( CURRENT-- ))\n"
                            "    case $name in\n");
    for (; *commands != NULL; commands++) {
        g_auto(RpCommandOptions) options = rp_command_options(*commands);

        g_string_append_printf(script, "    %s)\n        _arguments", (*commands)->name);
        for (guint i = 0; i < options.entries->len; i++)
            add_zsh_option(script, &g_array_index(options.entries, GOptionEntry, i));
        g_string_append(script, " \\\n            '*:file:_files' ;;\n");
    }
    g_string_append(script, "    esac\n}\n_roundpipe \"$@\"\n");
}

/* ---- fish ---- */

static void
add_fish_option(GString *script, const RpCommand *command, const GOptionEntry *option)
{
    g_autofree char *values = values_of(option);
    g_autofree char *quoted = values != NULL ? g_shell_quote(values) : NULL;
    g_autofree char *help = g_shell_quote(option->description);

    g_string_append_printf(script, "complete -c roundpipe -n '__roundpipe_command_is %s' -l %s",
                           command->name, option->long_name);
    if (option->short_name != 0)
        g_string_append_printf(script, " -s %c", option->short_name);
    if (option->arg_description != NULL)
        g_string_append(script, quoted != NULL ? " -x -a " : " -r");
    g_string_append_printf(script, "%s -d %s\n", quoted != NULL ? quoted : "", help);
}

static void
completion_fish(GString *script, const RpCommand *const *commands)
{
    g_string_append(script, "# Completion of roundpipe in fish.\n"
                            "function __roundpipe_command_is\n"
                            "    set -l words (commandline -opc)\n"
                            "    test (count $words) -gt 1; and test $words[2] = $argv[1]\n"
                            "end\n");
    for (; *commands != NULL; commands++) {
        g_auto(RpCommandOptions) options = rp_command_options(*commands);
        g_autofree char *summary = g_shell_quote((*commands)->summary);

        g_string_append_printf(script,
                               "complete -c roundpipe -n __fish_use_subcommand -f -a %s -d %s\n",
                               (*commands)->name, summary);
        for (guint i = 0; i < options.entries->len; i++)
            add_fish_option(script, *commands, &g_array_index(options.entries, GOptionEntry, i));
    }
}

/* Manual pages, in roff's man macros. */

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
add_exit_status(GString *page)
{
    g_string_append(page, ".SH EXIT STATUS\n0 done, 1 failed, 2 wrong usage.\n");
}

/* roff of a command's page in section 1. */
static void
manual_command(GString *page, const RpCommand *command)
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
    add_exit_status(page);
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

/* roff of roundpipe(1). */
static void
manual_overview(GString *page, const RpCommand *const *commands)
{
    begin(page, "roundpipe", 1, "predict and train models under pipeline schedules");
    g_string_append(page, ".SH SYNOPSIS\n\\fBroundpipe\\fR \\fICOMMAND\\fR [\\fIOPTION\\fR...] "
                          "[\\fIARGUMENT\\fR...]\n.SH DESCRIPTION\n");
    add_line(page, "", RP_CLI_PURPOSE);
    g_string_append(page, ".SH COMMANDS\n");
    list_commands(page, commands, FALSE);
    g_string_append(page, ".SH COMMANDS FOR EXPERTS\n");
    list_commands(page, commands, TRUE);
    add_exit_status(page);
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

/* roff of roundpipe-run(5). */
static void
manual_run_file(GString *page)
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

#define DECLARE(name) extern const RpCommand rp_command_##name;
#define ROW(name) &rp_command_##name,
RP_COMMANDS(DECLARE)
static const RpCommand *const commands[] = {RP_COMMANDS(ROW) NULL};

static const struct {
    const char *name;
    void (*make)(GString *text, const RpCommand *const *commands);
} pages[] = {
    {"manual", manual_overview},
    {"bash", completion_bash},
    {"zsh", completion_zsh},
    {"fish", completion_fish},
};

int
main(int argc, char **argv)
{
    g_autoptr(GString) text = g_string_new(NULL);
    const char *name = argc == 2 ? argv[1] : "";

    for (gsize i = 0; i < G_N_ELEMENTS(pages); i++)
        if (strcmp(name, pages[i].name) == 0)
            pages[i].make(text, commands);
    if (strcmp(name, "manual-run") == 0)
        manual_run_file(text);
    for (gsize i = 0; commands[i] != NULL; i++)
        if (g_str_has_prefix(name, "manual-") && strcmp(name + 7, commands[i]->name) == 0)
            manual_command(text, commands[i]);
    if (text->len == 0) {
        fprintf(stderr, "roundpipe-pages: expected the name of a page, found \"%s\"\n", name);
        return RP_EXIT_USAGE;
    }
    return fputs(text->str, stdout) < 0 || fflush(stdout) != 0 ? RP_EXIT_FAILED : RP_EXIT_OK;
}
