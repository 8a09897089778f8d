/* A command's way: its options read, its work done, its report or its error printed. */
#include "cli/cli.h"

#include <string.h>

#include "core/base/quote.h"

#define EXPERTS_HEADING "Options for experts:"

/* ---- options ---- */

static const RpUse every_uses[] = {{"json wide"}, {0}};

/* How GLib reads an option. */
static GOptionArg
arg_of(const RpOption *option)
{
    static const GOptionArg args[] = {
        [RP_OPTION_WORD] = G_OPTION_ARG_STRING,        [RP_OPTION_FILE] = G_OPTION_ARG_FILENAME,
        [RP_OPTION_COUNT] = G_OPTION_ARG_STRING,       [RP_OPTION_INTEGER] = G_OPTION_ARG_INT64,
        [RP_OPTION_NUMBER] = G_OPTION_ARG_DOUBLE,      [RP_OPTION_FLAG] = G_OPTION_ARG_NONE,
        [RP_OPTION_WORDS] = G_OPTION_ARG_STRING_ARRAY, [RP_OPTION_SETTING] = G_OPTION_ARG_STRING,
    };

    return option->setting == NULL               ? args[option->kind]
           : rp_setting_is_flag(option->setting) ? G_OPTION_ARG_NONE
           : option->setting->type == RP_SETTING_TEXT || option->setting->type == RP_SETTING_STAGES
               ? G_OPTION_ARG_FILENAME
               : G_OPTION_ARG_STRING;
}

/* "scale" of "scale:auto" */
static const char *
written_name(const char *name)
{
    g_autofree char *written = g_strndup(name, strcspn(name, ":"));

    return g_intern_string(written);
}

static void
add_option(RpCommandOptions *options, const RpUse *use, const char *name, gboolean expert,
           gboolean swept)
{
    const RpOption option = rp_option_find(name);
    const guint place = expert ? options->entries->len : options->n_common;
    GOptionEntry entry = {
        .long_name = written_name(name),
        .short_name = option.letter,
        .arg = arg_of(&option),
        .description = rp_option_help(&option, use),
        .arg_description = use->value != NULL ? use->value : option.value,
    };

    if (strcmp(name, "resume") == 0 || (swept && entry.arg == G_OPTION_ARG_NONE))
        entry.flags = G_OPTION_FLAG_OPTIONAL_ARG;
    if (swept) {
        entry.arg = G_OPTION_ARG_STRING;
        entry.arg_description = entry.arg_description != NULL ? entry.arg_description : "YES";
    }
    g_ptr_array_add(options->help, (gpointer)entry.description);
    g_array_insert_val(options->entries, place, entry);
    g_array_insert_val(options->options, place, option);
    options->n_common += !expert;
}

/* @swept: each has a text, also where it is a flag */
static void
add_uses(RpCommandOptions *options, const RpUse *uses, gboolean swept)
{
    gboolean expert = FALSE;

    for (const RpUse *use = uses; use != NULL && use->names != NULL; use++) {
        g_auto(GStrv) names = g_strsplit(use->names, " ", -1);

        expert |= *use->names == '\0'; /* RP_FOR_EXPERTS */
        for (char **name = names; *name != NULL && *use->names != '\0'; name++)
            add_option(options, use, *name, expert, swept);
    }
}

RpCommandOptions
rp_command_options(const RpCommand *command)
{
    RpCommandOptions options = {.options = g_array_new(FALSE, FALSE, sizeof(RpOption)),
                                .entries = g_array_new(TRUE, TRUE, sizeof(GOptionEntry)),
                                .help = g_ptr_array_new_with_free_func(g_free)};

    add_uses(&options, command->uses, FALSE);
    if (command->requests != RP_NO_REQUEST)
        add_uses(&options, rp_schedule_uses + (command->requests == RP_REQUESTS),
                 command->requests == RP_SWEPT_REQUEST);
    add_uses(&options, every_uses, FALSE);
    return options;
}

void
rp_command_options_clear(RpCommandOptions *options)
{
    g_array_unref(options->options);
    g_array_unref(options->entries);
    g_ptr_array_unref(options->help);
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

/* GLib reads the text of an option, or whether a flag is given. */
typedef struct {
    char *text;
    gboolean flag;
} Read;

/* Where GLib puts an option's value. */
static gpointer
place_of(const RpOption *option, const GOptionEntry *entry, Read *read, RpArgs *args)
{
    return option->kind == RP_OPTION_INTEGER || option->kind == RP_OPTION_NUMBER ||
                   option->kind == RP_OPTION_WORDS
               ? (gpointer)((char *)args + option->offset)
           : entry->arg == G_OPTION_ARG_NONE ? (gpointer)&read->flag
                                             : (gpointer)&read->text;
}

/* A sweep reads the texts of its schedule options itself. */
static gboolean
store(const RpCommandOptions *options, guint i, const Read *read, gboolean swept, RpArgs *args,
      GError **error)
{
    const RpOption *option = &g_array_index(options->options, RpOption, i);

    for (guint u = 0; swept && rp_schedule_options()[u].name != NULL; u++)
        if (strcmp(rp_schedule_options()[u].name, option->name) == 0) {
            args->swept[u] = (char *)g_intern_string(read->text);
            return TRUE;
        }
    if (read->text != NULL)
        return rp_option_store(option, read->text, args, error);
    return !read->flag ||
           rp_option_store(option, option->setting != NULL ? "true" : "yes", args, error);
}

/* Words that are no option stay in argv[1] ... argv[argc - 1]. @help: (out): where it was asked for, and
 * nothing else counts. */
static gboolean
parse(const RpCommand *command, const RpCommandOptions *options, int *argc, char ***argv,
      RpArgs *args, char **help, GError **error)
{
    const guint n = options->entries->len;
    const gboolean swept = command->requests == RP_SWEPT_REQUEST;
    GOptionGroup *experts = g_option_group_new("experts", EXPERTS_HEADING, "", NULL, NULL);
    g_autoptr(GArray) common = g_array_new(TRUE, TRUE, sizeof(GOptionEntry));
    g_autoptr(GOptionContext) context = g_option_context_new(command->words);
    g_autofree char *program = g_strdup_printf("roundpipe %s", command->name);
    g_autofree Read *read = g_new0(Read, n);
    g_autoptr(GArray) parsed = g_array_copy(options->entries);
    gboolean asked = FALSE;
    const GOptionEntry help_entry = {"help", 'h', 0, G_OPTION_ARG_NONE, &asked, "show this", NULL};
    GError *local = NULL;

    for (guint i = 0; i < n; i++) {
        GOptionEntry *entry = &g_array_index(parsed, GOptionEntry, i);

        if ((entry->flags & G_OPTION_FLAG_OPTIONAL_ARG) != 0)
            end_optional(entry, *argc, *argv);
        entry->flags &= ~G_OPTION_FLAG_OPTIONAL_ARG; /* GLib has that for callbacks only */
        entry->arg_data =
            place_of(&g_array_index(options->options, RpOption, i), entry, &read[i], args);
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
    for (guint i = 0; i < n; i++) {
        if (!store(options, i, &read[i], swept, args, local == NULL ? &local : NULL))
            g_assert(local != NULL);
        g_free(read[i].text);
    }
    if (asked) {
        g_clear_error(&local);
        *help = make_help(context, options->n_common < n ? experts : NULL);
        return TRUE;
    }
    if (local == NULL)
        return check_words(command, *argc, *argv, error);
    return rp_propagate_error(error, local);
}

/* ---- the command ---- */

/* Whether @set is of @key: "lora.rank=8". */
static gboolean
is_set(char *const *sets, const char *key)
{
    for (const gsize n = strlen(key); sets != NULL && *sets != NULL; sets++)
        if (strncmp(*sets, key, n) == 0 && (*sets)[n] == '=')
            return TRUE;
    return FALSE;
}

/* The library names a setting, "KEY: expected ..." or as it was set, "--set KEY: ...": where the command
 * has an option for it, people have typed that. */
static void
name_option(const RpCommandOptions *options, const RpArgs *args, GError *error)
{
    const char *begin = error->message + (g_str_has_prefix(error->message, "--set ") ? 6 : 0);

    for (guint i = 0; i < options->options->len; i++) {
        const RpOption *option = &g_array_index(options->options, RpOption, i);
        const char *key = option->setting != NULL ? option->setting->key : option->key;
        const gsize n = key != NULL ? strlen(key) : 0;

        if (n == 0 || strncmp(begin, key, n) != 0 || begin[n] != ':' || is_set(args->sets, key))
            continue;
        char *message = g_strdup_printf("--%s%s", written_name(option->name), begin + n);

        g_free(error->message);
        error->message = message;
        return;
    }
}

int
rp_command_run(const RpCommand *command, int argc, char **argv)
{
    char *swept[RP_MOST_SCHEDULE_OPTIONS] = {NULL};
    RpArgs args = command->defaults != NULL ? *command->defaults : (RpArgs){0};
    g_autofree char *help = NULL;
    g_auto(RpCommandOptions) options = rp_command_options(command);
    GError *error = NULL;
    int code = RP_EXIT_OK;

    rp_run_spec_init(&args.run);
    args.swept = swept;
    if (parse(command, &options, &argc, &argv, &args, &help, &error)) {
        g_autoptr(RpReport) report = rp_report_new(args.json && help == NULL ? RP_REPORT_JSON
                                                   : args.wide               ? RP_REPORT_WIDE
                                                                             : RP_REPORT_TEXT);

        if (help != NULL)
            rp_report_print_help(help);
        if (help != NULL && command->more_help != NULL)
            command->more_help(report);
        if (help != NULL || command->run(&args, argv + 1, report, &error))
            rp_report_finish(report);
        code = report->exit;
    }
    if (error != NULL) {
        name_option(&options, &args, error);
        code = rp_cli_fail(command->name, error);
    }
    g_strfreev(args.sets);
    return code;
}
