/**
 * Tests that are written as scripts of commands: tests/cli/NAME.script, whose NAME the environment has in SCRIPT.
 *
 *     # A comment. Lines before the first heading run before all tests; `model` there writes train-files.h's files.
 *     ## a heading is the name of a test
 *     $ WORDS             runs `roundpipe`, as rp_cli_run(); it must end with 0 unless `exit` or `refused` follows
 *     % WORDS             the same by the shell
 *     train WORDS         as rp_train_files_train()
 *     < FILE              takes @T/FILE as if it had been printed
 *     learned OUTPUT      takes rp_train_files_learned() so
 *     NAME $ WORDS        each of these may have a name, under which its result is known until the test's end
 *     exit CODE           the exit code
 *     refused CODE TEXT   the exit code, and one line on standard error which has TEXT
 *     > TEXT, >! TEXT     standard output has TEXT, in which escapes are as in C, or has it not
 *     2> TEXT, 2>! TEXT   the same of standard error
 *     = TEXT, 2= TEXT     all of standard output, all of standard error
 *     ~ REGEX             standard output matches
 *     same A B            two results have the same output; `differ A B`: they do not
 *     ? A < B             numbers of script-value.h; also <= > >= == !=; `A` alone: not 0
 *     ? PATH is TEXT      the value at PATH; `? PATH has TEXT`: a part of it
 *     present PATH ..., missing PATH ...
 *     refusals SECTION    as rp_cli_must_refuse_all()
 *     file NAME           writes @T/NAME: the lines behind it that begin with "| ", with the paths of rp_cli_run()
 *     let NAME TEXT       @{NAME} is TEXT; other words in @{} are values, as `@{plan:recommendation.round}`
 *     every PATH          runs what follows, to `end`, for each item of the value at PATH, of whose number @1 is
 *     each A | B          runs what follows, to `end`, for each of these lines, of which @1 is A and @2 is B; within
 *                         another such loop, whose rows a comment parts from its own, numbers go on
 *     also A | B          the same, left out where RP_TEST_FEW is true
 *     all                 the rest is left out where RP_TEST_FEW is true
 *     needs WORDS         skips the test unless the shell does these
 *
 * A line that begins with two spaces belongs to the one before it.
 * Results are of the last command, which expressions call `it`, unless a path begins with a name and a colon.
 */
#include "tests/cli/script-value.h"
#include "tests/cli/train-files.h"

#define JOINED " " /* stands for a line that belongs to the one before it */

typedef struct {
    char *file;
    char **lines; /* of the whole file */
    GPtrArray *results;
    GHashTable *given, *texts; /* of `let` above the first heading, and of the test */
    GPtrArray *columns;        /* of the loops around */
    guint at;                  /* the line that runs; G_MAXUINT: none */
} Script;

static Script script;

/* A section: lines [first, end), counted from 0. */
typedef struct {
    guint first, end;
} Section;

/* ---- words ---- */

static char *
format_number(double number)
{
    char text[G_ASCII_DTOSTR_BUF_SIZE];

    return g_strdup(g_ascii_formatd(text, sizeof text,
                                    number == (double)(gint64)number ? "%.0f" : "%.9g", number));
}

static gboolean
is_path(const char *words)
{
    return words[strspn(words, G_CSET_a_2_z G_CSET_A_2_Z G_CSET_DIGITS "_.:-")] == '\0';
}

/* The text that stands for "@{@words}". (transfer full) */
static char *
value_of(const char *words)
{
    const char *text = g_hash_table_lookup(script.texts, words);

    if (text == NULL)
        text = g_hash_table_lookup(script.given, words);
    if (text != NULL)
        return g_strdup(text);
    if (is_path(words))
        return rp_script_text(script.results, words);
    return format_number(rp_script_number(script.results, words));
}

/* @line with its columns and values. (transfer full) */
static char *
expand(const char *line)
{
    GString *text = g_string_new(NULL);

    for (const char *at = line; *at != '\0'; at++) {
        const guint column = at[0] == '@' ? (guint)(at[1] - '1') : G_MAXUINT;

        if (g_str_has_prefix(at, "@{")) {
            g_autofree char *within = g_strndup(at + 2, strcspn(at + 2, "}"));
            g_autofree char *words = expand(within);
            g_autofree char *value = value_of(words);

            g_string_append(text, value);
            at += 2 + strlen(within);
        } else if (column < script.columns->len) {
            g_string_append(text, g_ptr_array_index(script.columns, column));
            at++;
        } else {
            g_string_append_c(text, *at);
        }
    }
    return g_string_free(text, FALSE);
}

/* ---- what lines do ---- */

static RpScriptResult *
it(void)
{
    return rp_script_find(script.results, "it");
}

static void
keep(const char *name, RpCliRun run)
{
    RpScriptResult *result = g_new0(RpScriptResult, 1);

    result->name = g_strdup(name);
    result->run = run;
    g_ptr_array_add(script.results, result);
}

/* The exit code that the line behind @at asks for. */
static int
expected_code(guint at)
{
    const char *next = script.lines[at + 1];

    while (g_strcmp0(next, JOINED) == 0)
        next = script.lines[++at + 1];
    if (next == NULL || !(g_str_has_prefix(next, "exit ") || g_str_has_prefix(next, "refused ")))
        return 0;
    g_autofree char *line = expand(strchr(next, ' ') + 1);

    return (int)g_ascii_strtoll(line, NULL, 10);
}

static void
run(guint at, const char *name, gboolean shell, const char *words)
{
    const int code = expected_code(at);
    RpCliRun done = shell ? rp_cli_shell("%s", words) : rp_cli_run("%s", words);

    keep(name, done);
    if (done.code != code)
        fail_msg("%s: exit code %d, expected %d: %s%s", words, done.code, code, done.err, done.out);
}

/* @text with its paths and without escapes. (transfer full) */
static char *
literal(const char *text)
{
    g_autofree char *expanded = rp_cli_expand(text);

    return g_strcompress(expanded);
}

static void
check_text(const char *found, const char *text, gboolean wanted)
{
    g_autofree char *part = literal(text);

    if ((strstr(found, part) != NULL) != wanted)
        fail_msg("expected %s\"%s\", found: %s", wanted ? "" : "no ", part, found);
}

static void
check_all(const char *found, const char *text)
{
    g_autofree char *whole = literal(text);

    if (strcmp(found, whole) != 0)
        fail_msg("expected \"%s\", found: \"%s\"", whole, found);
}

static void
check_refused(const char *text)
{
    const char *part = strchr(text, ' ') + 1;

    rp_cli_assert_refused(&it()->run, "it", (int)g_ascii_strtoll(text, NULL, 10), part);
}

/* Whether `A OP B` holds; the parts are those around " OP ". */
static gboolean
compare(const char *op, const char *left, const char *right)
{
    if (g_str_equal(op, "is") || g_str_equal(op, "has")) {
        g_autofree char *found = rp_script_text(script.results, left);
        g_autofree char *expected = g_strcompress(right);

        if (op[0] == 'i' ? strcmp(found, expected) == 0 : strstr(found, expected) != NULL)
            return TRUE;
        fail_msg("%s %s \"%s\": found \"%s\"", left, op, expected, found);
    }
    const double a = rp_script_number(script.results, left);
    const double b = rp_script_number(script.results, right);
    const gboolean holds = g_str_equal(op, "<")    ? a < b
                           : g_str_equal(op, "<=") ? a <= b
                           : g_str_equal(op, ">")  ? a > b
                           : g_str_equal(op, ">=") ? a >= b
                           : g_str_equal(op, "!=") ? a != b
                                                   : a == b;

    if (!holds)
        print_error("%.17g %s %.17g\n", a, op, b);
    return holds;
}

static void
check(const char *text)
{
    static const char *const ops[] = {"is", "has", "<=", "<", ">=", ">", "!=", "=="};

    for (guint i = 0; i < G_N_ELEMENTS(ops); i++) {
        g_autofree char *op = g_strdup_printf(" %s ", ops[i]);
        g_auto(GStrv) sides = g_strsplit(text, op, 2);

        if (sides[1] == NULL)
            continue;
        if (!compare(ops[i], sides[0], sides[1]))
            fail_msg("%s: does not hold", text);
        return;
    }
    if (rp_script_number(script.results, text) == 0)
        fail_msg("%s: does not hold", text);
}

static void
check_members(const char *paths, gboolean wanted)
{
    g_auto(GStrv) each = g_strsplit(paths, " ", -1);

    for (char **path = each; *path != NULL; path++)
        if (rp_script_has(script.results, *path) != wanted)
            fail_msg("%s member %s", wanted ? "no" : "a", *path);
}

static void
check_same(const char *names, gboolean wanted)
{
    g_auto(GStrv) both = g_strsplit(names, " ", 2);
    const char *one = rp_script_find(script.results, both[0])->run.out;
    const char *other = rp_script_find(script.results, both[1])->run.out;

    if ((strcmp(one, other) == 0) != wanted)
        fail_msg("%s:\n%s\n%s", wanted ? "they differ" : "they are the same", one, other);
}

/* Writes the lines "| ..." behind @at. Returns: the last of them */
static guint
write_file(guint at, const char *name)
{
    g_autoptr(GString) text = g_string_new(NULL);

    for (; script.lines[at + 1] != NULL && script.lines[at + 1][0] == '|'; at++) {
        g_autofree char *line = expand(script.lines[at + 1] + 1);

        g_string_append_printf(text, "%s\n", line + (line[0] == ' '));
    }
    g_autofree char *expanded = rp_cli_expand(text->str);

    rp_cli_write(name, expanded);
    return at;
}

static void
define(const char *words)
{
    g_auto(GStrv) parts = g_strsplit(words, " ", 2);

    g_hash_table_insert(script.texts, g_strdup(parts[0]), g_strdup(parts[1]));
}

static void
keep_text(const char *name, char *text)
{
    keep(name, (RpCliRun){.out = text, .err = g_strdup("")});
}

/* Does as the verb @verb says. Returns: the last line that it takes */
static guint
act(guint at, const char *name, const char *verb, const char *words)
{
    if (g_str_equal(verb, "$") || g_str_equal(verb, "%"))
        run(at, name, verb[0] == '%', words);
    else if (g_str_equal(verb, "train"))
        rp_train_files_train(words);
    else if (g_str_equal(verb, "<"))
        keep_text(name, rp_cli_read(words));
    else if (g_str_equal(verb, "learned"))
        keep_text(name, rp_train_files_learned(words));
    else if (g_str_equal(verb, ">") || g_str_equal(verb, ">!"))
        check_text(it()->run.out, words, verb[1] == '\0');
    else if (g_str_equal(verb, "2>") || g_str_equal(verb, "2>!"))
        check_text(it()->run.err, words, verb[2] == '\0');
    else if (g_str_equal(verb, "=") || g_str_equal(verb, "2="))
        check_all(verb[0] == '2' ? it()->run.err : it()->run.out, words);
    else if (g_str_equal(verb, "~"))
        assert_true(g_regex_match_simple(words, it()->run.out, 0, 0));
    else if (g_str_equal(verb, "?"))
        check(words);
    else if (g_str_equal(verb, "same") || g_str_equal(verb, "differ"))
        check_same(words, verb[0] == 's');
    else if (g_str_equal(verb, "present") || g_str_equal(verb, "missing"))
        check_members(words, verb[0] == 'p');
    else if (g_str_equal(verb, "refused"))
        check_refused(words);
    else if (g_str_equal(verb, "refusals"))
        rp_cli_must_refuse_all(words);
    else if (g_str_equal(verb, "let"))
        define(words);
    else if (g_str_equal(verb, "file"))
        return write_file(at, words);
    else if (!g_str_equal(verb, "exit"))
        fail_msg("no verb \"%s\"", verb);
    return at;
}

/* ---- lines ---- */

static gboolean
is_row(const char *line)
{
    return g_str_equal(line, "each") || g_str_has_prefix(line, "each ") ||
           g_str_has_prefix(line, "also ");
}

static gboolean
is_loop(const char *line)
{
    return is_row(line) || g_str_has_prefix(line, "every ");
}

static void run_lines(guint first, guint end);

/* The line `end` of the loop whose lines begin at @first. */
static guint
find_end(guint first, guint end)
{
    guint at = first, depth = 1;
    gboolean after_row = FALSE;

    for (; at < end; at++) {
        const char *line = script.lines[at];

        if (g_str_equal(line, JOINED))
            continue;
        depth += is_loop(line) && !(is_row(line) && after_row);
        depth -= g_str_equal(line, "end");
        if (depth == 0)
            break;
        after_row = is_row(line);
    }
    return at;
}

/* Runs lines with @row as columns beside those of the loops around. */
static void
run_row(const char *row, guint first, guint end)
{
    const guint outer = script.columns->len;
    g_auto(GStrv) columns = g_strsplit(row, " | ", -1);

    if (columns[0] == NULL) /* an empty one */
        g_ptr_array_add(script.columns, g_strdup(""));
    for (char **column = columns; *column != NULL; column++)
        g_ptr_array_add(script.columns, g_strdup(g_strstrip(*column)));
    run_lines(first, end);
    g_ptr_array_set_size(script.columns, (gint)outer);
}

/* Runs a loop that begins at line @at. Returns: its last line */
static guint
run_loop(guint at, guint end)
{
    guint first = at + 1;

    while (is_row(script.lines[at]) && first < end &&
           (is_row(script.lines[first]) || g_str_equal(script.lines[first], JOINED)))
        first++;
    const guint last = find_end(first, end);
    g_autofree char *line = expand(script.lines[at]);

    if (!is_row(line)) {
        g_autofree char *count = g_strdup_printf("len(%s)", line + strlen("every "));
        const guint n = (guint)rp_script_number(script.results, count);

        for (guint i = 0; i < n; i++) {
            g_autofree char *number = g_strdup_printf("%u", i);

            run_row(number, first, last);
        }
        return last;
    }
    for (; at < first; at++) {
        if (!is_row(script.lines[at]))
            continue;
        const char *words = script.lines[at] + strlen("each");
        g_autofree char *row = expand(words + (*words == ' '));

        if (!RP_TEST_FEW || g_str_has_prefix(script.lines[at], "each"))
            run_row(row, first, last);
    }
    return last;
}

/* Runs line @at. Returns: the last line that it takes */
static guint
run_line(guint at)
{
    static const char *const named[] = {"$", "%", "<", "learned", NULL};
    g_autofree char *line = expand(script.lines[at]);
    g_auto(GStrv) words = g_strsplit(line, " ", 3);
    const gboolean has_name =
        words[1] != NULL && g_ascii_isalpha(words[0][0]) && g_strv_contains(named, words[1]);
    const char *rest = line;

    for (guint i = 0; i < (has_name ? 2 : 1) && rest != NULL; i++) {
        rest = strchr(rest, ' ');
        rest = rest != NULL ? rest + 1 : NULL;
    }
    return act(at, has_name ? words[0] : "it", words[has_name], rest != NULL ? rest : "");
}

static void
run_lines(guint first, guint end)
{
    for (guint at = first; at < end; at++) {
        const char *line = script.lines[at];

        if (line[0] == '\0' || line[0] == '#' || g_str_equal(line, JOINED))
            continue;
        if (g_str_equal(line, "all") && RP_TEST_FEW)
            return;
        if (g_str_has_prefix(line, "needs ")) {
            g_auto(RpCliRun) wanted = rp_cli_shell("%s", line + strlen("needs "));

            if (wanted.code != 0)
                skip();
        } else if (is_loop(line)) {
            at = run_loop(at, end);
        } else if (!g_str_equal(line, "all")) {
            script.at = at;
            at = run_line(at);
        }
    }
}

static int
begin(void **state)
{
    (void)state;
    g_hash_table_remove_all(script.texts);
    g_ptr_array_set_size(script.results, 0);
    g_ptr_array_set_size(script.columns, 0);
    script.at = G_MAXUINT;
    return 0;
}

static void
run_section(void **state)
{
    const Section *section = *state;

    run_lines(section->first, section->end);
    script.at = G_MAXUINT;
}

/* Says where a test has failed. */
static int
tear_down(void **state)
{
    (void)state;
    if (script.at != G_MAXUINT)
        print_error("%s:%u: %s\n", script.file, script.at + 1, script.lines[script.at]);
    return 0;
}

static GHashTable *
new_texts(void)
{
    return g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
}

/* Runs the lines above the first heading, before all tests. */
static int
set_up(void **state)
{
    guint end = 0;
    gboolean model = FALSE;

    for (; script.lines[end] != NULL && !g_str_has_prefix(script.lines[end], "## "); end++)
        if (g_str_equal(script.lines[end], "model")) {
            model = TRUE;
            script.lines[end][0] = '#';
        }
    if ((model ? rp_train_files_setup : rp_cli_setup)(state) != 0)
        return 1;
    run_lines(0, end);
    GHashTable *empty = script.given;

    script.given = script.texts;
    script.texts = empty;
    return 0;
}

static char *
name_of(const char *heading)
{
    return g_strdelimit(g_strdup(heading), " ", '_');
}

/* Joins lines that begin with spaces to those before them. */
static void
join_lines(char **lines)
{
    char **begun = lines;

    for (char **line = lines; *line != NULL; line++) {
        if (!g_str_has_prefix(*line, "  ")) {
            begun = line;
            continue;
        }
        char *whole = g_strconcat(*begun, " ", g_strchug(*line), NULL);

        g_free(*begun);
        *begun = whole;
        g_strlcpy(*line, JOINED, sizeof JOINED);
    }
}

RP_TEST_AT_START(add_sections)
{
    g_autofree char *text = NULL;

    script.file = g_strdup_printf(RP_SOURCE_ROOT "/tests/cli/%s.script", g_getenv("SCRIPT"));
    if (!g_file_get_contents(script.file, &text, NULL, NULL))
        g_error("SCRIPT: cannot read %s", script.file);
    script.lines = g_strsplit(text, "\n", -1);
    join_lines(script.lines);
    script.results = g_ptr_array_new_with_free_func((GDestroyNotify)rp_script_result_free);
    script.columns = g_ptr_array_new_with_free_func(g_free);
    script.given = new_texts();
    script.texts = new_texts();
    Section *section = NULL;

    for (guint i = 0; script.lines[i] != NULL; i++) {
        if (section != NULL)
            section->end = i + 1;
        if (!g_str_has_prefix(script.lines[i], "## "))
            continue;
        if (section != NULL)
            section->end = i;
        section = g_new0(Section, 1);
        section->first = i + 1;
        rp_test_add(name_of(script.lines[i] + strlen("## ")), run_section, NULL, NULL, section);
    }
}

RP_TEST_FIXTURE(begin, tear_down)
RP_TEST_GROUP(set_up, rp_cli_teardown)
