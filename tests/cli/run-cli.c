#include "tests/cli/run-cli.h"

static char *directory;

int
rp_cli_setup(void **state)
{
    (void)state;
    g_unsetenv("COLUMNS"); /* text of any width */
    directory = g_dir_make_tmp("test-cli-XXXXXX", NULL);
    /* layer times that one test has measured are not another's */
    g_autofree char *cache = g_build_filename(directory != NULL ? directory : "", "cache", NULL);
    g_setenv("XDG_CACHE_HOME", cache, TRUE);
    return directory == NULL || g_getenv("ROUNDPIPE") == NULL;
}

int
rp_cli_teardown(void **state)
{
    g_auto(RpCliRun) removed = rp_cli_shell("rm -rf '@T'");

    (void)state;
    g_clear_pointer(&directory, g_free);
    return removed.code;
}

char *
rp_cli_temporary(const char *name)
{
    return g_build_filename(directory, name, NULL);
}

void
rp_cli_write(const char *name, const char *text)
{
    g_autofree char *path = rp_cli_temporary(name);

    if (!g_file_set_contents(path, text, -1, NULL))
        fail_msg("cannot write %s", path);
}

char *
rp_cli_read_bytes(const char *name, gsize *length)
{
    g_autofree char *path = rp_cli_temporary(name);
    char *data = NULL;

    if (!g_file_get_contents(path, &data, length, NULL))
        fail_msg("cannot read %s", path);
    return data;
}

char *
rp_cli_read(const char *name)
{
    return rp_cli_read_bytes(name, NULL);
}

void
rp_cli_run_clear(RpCliRun *run)
{
    g_clear_pointer(&run->out, g_free);
    g_clear_pointer(&run->err, g_free);
}

char *
rp_cli_expand(const char *line)
{
    g_autofree char *base = g_path_get_basename(directory);
    GString *text = g_string_new(line);

    g_string_replace(text, "@B", base, 0);
    g_string_replace(text, "@Q", RP_SOURCE_ROOT "/profiles/rtx4090/qwen3-1.7b.json", 0);
    g_string_replace(text, "@R", RP_SOURCE_ROOT, 0);
    g_string_replace(text, "@T", directory, 0);
    return g_string_free(text, FALSE);
}

static RpCliRun
spawn(char **argv)
{
    g_autoptr(GError) error = NULL;
    RpCliRun run = {0};
    int status = 0;

    if (!g_spawn_sync(NULL, argv, NULL, G_SPAWN_DEFAULT, NULL, NULL, &run.out, &run.err, &status,
                      &error))
        fail_msg("%s", error->message);
    run.code = g_spawn_check_wait_status(status, &error) ? 0
               : error->domain == G_SPAWN_EXIT_ERROR     ? error->code
                                                         : -1;
    return run;
}

/* Runs `roundpipe` with @words, or /bin/sh with them. */
static RpCliRun
run(gboolean shell, const char *words)
{
    g_autoptr(GError) error = NULL;
    g_auto(GStrv) argv = NULL;
    g_autofree char *expanded = rp_cli_expand(words);
    g_autofree char *line = g_strdup_printf("roundpipe %s", expanded);
    char *sh[] = {(char *)"/bin/sh", (char *)"-c", expanded, NULL};

    if (shell)
        return spawn(sh);
    if (!g_shell_parse_argv(line, NULL, &argv, &error))
        fail_msg("%s: %s", line, error->message);
    g_free(argv[0]);
    argv[0] = g_strdup(g_getenv("ROUNDPIPE"));
    return spawn(argv);
}

/* Runs @words, and fails unless they end well. */
static RpCliRun
run_well(gboolean shell, const char *words)
{
    RpCliRun result = run(shell, words);

    if (result.code != 0)
        fail_msg("%s: exit code %d: %s%s", words, result.code, result.err, shell ? result.out : "");
    return result;
}

/* The words of a format and what follows it. */
#define WORDS(words, format)                                                                       \
    va_list arguments;                                                                             \
    va_start(arguments, format);                                                                   \
    g_autofree char *words = g_strdup_vprintf(format, arguments);                                  \
    va_end(arguments)

RpCliRun
rp_cli_run(const char *format, ...)
{
    WORDS(words, format);
    return run(FALSE, words);
}

RpCliRun
rp_cli_shell(const char *format, ...)
{
    WORDS(words, format);
    return run(TRUE, words);
}

void
rp_cli_must_run(const char *format, ...)
{
    WORDS(words, format);
    g_auto(RpCliRun) result = run_well(FALSE, words);
}

void
rp_cli_must_shell(const char *format, ...)
{
    WORDS(words, format);
    g_auto(RpCliRun) result = run_well(TRUE, words);
}

RpTree *
rp_cli_run_json(const char *format, ...)
{
    WORDS(words, format);
    g_auto(RpCliRun) result = run_well(FALSE, words);

    return rp_cli_json(&result);
}

void
rp_cli_assert_refused(const RpCliRun *run, const char *words, int code, const char *part)
{
    const char *end = strchr(run->err, '\n');

    if (run->code != code || strstr(run->err, part) == NULL || end == NULL || end[1] != '\0')
        fail_msg("%s: expected exit code %d and a line with \"%s\", found %d: %s", words, code,
                 part, run->code, run->err);
}

/* Runs @words, by the shell if they name $ROUNDPIPE; *@expected is "CODE MESSAGE" or "CODE+ MESSAGE". */
static void
must_refuse(const char *words, char **expected, gpointer data)
{
    g_auto(RpCliRun) result =
        strstr(words, "$ROUNDPIPE") != NULL ? rp_cli_shell("%s", words) : rp_cli_run("%s", words);
    g_autofree char *pattern = rp_cli_expand(*expected);
    g_autofree char *line = g_strdup_printf("%d%s %s", result.code, *result.out != '\0' ? "+" : "",
                                            g_strchomp(result.err));
    g_autofree char *base = g_path_get_basename(directory);
    GString *found = g_string_new(line);
    const gboolean is_message =
        strchr(result.err, '\n') == NULL && g_str_has_prefix(result.err, "roundpipe");

    (void)data;
    g_string_replace(found, directory, "@T", 0);
    g_string_replace(found, base, "@B", 0);
    g_string_replace(found, RP_SOURCE_ROOT, "@R", 0);
    if (is_message && g_pattern_match_simple(pattern, line)) {
        g_string_free(found, TRUE);
        return;
    }
    if (!is_message || !rp_test_writes())
        fail_msg("%s: expected \"%s\", found \"%s\"", words, *expected, found->str);
    g_free(*expected);
    *expected = g_string_free(found, FALSE);
}

void
rp_cli_must_refuse_all(const char *section)
{
    rp_test_golden("tests/cli/messages.txt", section, must_refuse, NULL);
}

RpTree *
rp_cli_json(const RpCliRun *run)
{
    if (run->code != 0)
        fail_msg("exit code %d: %s", run->code, run->err);
    RpTree *root = rp_tree_parse(run->out);

    if (root == NULL)
        fail_msg("not JSON: %.200s", run->out);
    return root;
}

const RpTree *
rp_cli_member(const RpTree *root, const char *path)
{
    const RpTree *found = rp_tree_find(root, path);

    if (found == NULL)
        fail_msg("no member %s", path);
    return found;
}

double
rp_cli_number(const RpTree *root, const char *path)
{
    return rp_cli_member(root, path)->number;
}
