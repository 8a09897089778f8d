/* Completions of shells: commands, options, their values, keys of run files. */
#include "cli/pages/pages.h"

#include <string.h>

#include "core/catalogue/catalogue.h"
#include "core/schedules/schedule.h"
#include "run/settings.h"

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

/* "'it'\''s'": one word of a shell. (transfer full) */
static char *
quote(const char *text)
{
    return g_shell_quote(text);
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

void
rp_completion_bash(GString *script, const RpCommand *const *commands)
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
    g_autofree char *word = quote(spec);

    g_string_append_printf(script, " \\\n            %s", word);
}

void
rp_completion_zsh(GString *script, const RpCommand *const *commands)
{
    g_string_append(script, "#compdef roundpipe\n# Completion of roundpipe in zsh.\n"
                            "_roundpipe() {\n    local -a commands\n    commands=(\n");
    for (const RpCommand *const *command = commands; *command != NULL; command++) {
        g_autofree char *summary = escape((*command)->summary);
        g_autofree char *line = g_strdup_printf("%s:%s", (*command)->name, summary);
        g_autofree char *word = quote(line);

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
    g_autofree char *quoted = values != NULL ? quote(values) : NULL;
    g_autofree char *help = quote(option->description);

    g_string_append_printf(script, "complete -c roundpipe -n '__roundpipe_command_is %s' -l %s",
                           command->name, option->long_name);
    if (option->short_name != 0)
        g_string_append_printf(script, " -s %c", option->short_name);
    if (option->arg_description != NULL)
        g_string_append(script, quoted != NULL ? " -x -a " : " -r");
    g_string_append_printf(script, "%s -d %s\n", quoted != NULL ? quoted : "", help);
}

void
rp_completion_fish(GString *script, const RpCommand *const *commands)
{
    g_string_append(script, "# Completion of roundpipe in fish.\n"
                            "function __roundpipe_command_is\n"
                            "    set -l words (commandline -opc)\n"
                            "    test (count $words) -gt 1; and test $words[2] = $argv[1]\n"
                            "end\n");
    for (; *commands != NULL; commands++) {
        g_auto(RpCommandOptions) options = rp_command_options(*commands);
        g_autofree char *summary = quote((*commands)->summary);

        g_string_append_printf(script,
                               "complete -c roundpipe -n __fish_use_subcommand -f -a %s -d %s\n",
                               (*commands)->name, summary);
        for (guint i = 0; i < options.entries->len; i++)
            add_fish_option(script, *commands, &g_array_index(options.entries, GOptionEntry, i));
    }
}
