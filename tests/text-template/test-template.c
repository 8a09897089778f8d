/**
 * Templates give the text that Jinja gives; unknown features are refused with their place; whatever
 * they do, they end.
 */
#include "tests/rp-test.h"

#include <time.h>

#include "core/base/file.h"
#include "tests/text-template/template-case.h"
#include "text/template/template.h"

#define MOST_SECONDS 4 /* a sanitized build on a busy machine needs most of it */

/* The error of @source, compiled and rendered without variables; NULL: it is rendered. */
static char *
error_of(const char *source, int *code)
{
    g_autoptr(RpArena) arena = rp_arena_new(1 << 20, G_MAXUINT64);
    const RpTemplateOptions options = {.max_bytes = 32 << 20};
    g_autoptr(GError) error = NULL;
    g_auto(RpRendered) rendered = {0};
    g_autoptr(RpTemplate) template = rp_template_new("t", source, strlen(source), &error);

    if (template != NULL &&
        rp_template_render(template, rp_dict_new(arena), &options, &rendered, &error))
        return NULL;
    *code = error->code;
    return g_strdup(error->message);
}

RP_TEST(renders_as_jinja_does)
{
    g_autofree char *path = rp_test_source_path("tests/text-template/fixtures/templates.jsonl");
    gsize length = 0;
    g_autofree char *text = rp_file_read(path, 64 << 20, &length, NULL);
    guint n = 0;

    assert_non_null(text);
    for (char *line = text; *line != '\0'; n++) {
        char *end = strchr(line, '\n');
        char *difference = rp_template_case_check(line, (gsize)(end - line));
        if (difference != NULL)
            fail_msg("%s", difference);
        line = end + 1;
    }
    assert_true(n > 200);
}

RP_TEST(refuses_with_line_and_column)
{
    static const struct {
        const char *source;
        const char *message;
    } cases[] = {
        {"a\n  {% include 'x' %}", "t: line 2, column 6: expected one of the tags for, if, set, "
                                   "macro, generation, break, continue, with, filter, raw, found "
                                   "\"include\""},
        {"{% if a %}\n{% block b %}", "t: line 2, column 4: expected a tag that is known, or the "
                                      "end of `if`, found \"block\""},
        {"{{ a | batch(2) }}", "t: line 1, column 8: expected a filter that is known, found "
                               "\"batch\""},
        {"{{ a is filter }}", "t: line 1, column 9: expected a test that is known, found "
                              "\"filter\""},
        {"{{ f(*a) }}", "t: line 1, column 6: expected an argument (`*` and `**` are not "
                        "supported), found \"*\""},
        {"{% for a in b recursive %}{% endfor %}",
         "t: line 1, column 15: expected a loop that is not recursive (not supported), found "
         "\"recursive\""},
        {"{% if a %}\n\n", "t: line 2, column 1: expected the end of `if`, found the end of the "
                           "template"},
        {"\n{{ 'a\n }}", "t: line 2, column 4: expected a closed string, found the end of the "
                         "template"},
        {"é{{ ) }}", "t: line 1, column 6: expected no closing bracket, found `)`"},
        {"{{ a }} {{ $ }}", "t: line 1, column 12: expected a word of Jinja, found \"$\""},
        {"x {{ no.thing }}", "t: line 1, column 8: expected a value to take an attribute of, found "
                             "\"no\", which is undefined"},
        {"{{ none() }}", "t: line 1, column 8: expected a function to call, found none"},
        {"\n\n {{ 1 + 'a' }}", "t: line 3, column 7: expected operands of `+` that fit, found an "
                               "integer and a string"},
        {"{{ 9223372036854775807 + 1 }}", "t: line 1, column 24: expected a whole number of 64 "
                                          "bits, found a larger one"},
        {"{{ raise_exception('roles\nalternate') }}",
         "t: line 1, column 19: the template refuses the chat: roles alternate"},
        {"{{ [1].append(2) }}", "t: line 1, column 14: expected no change of a list or dict: "
                                "templates may not change them (use a namespace, and `+`)"},
    };

    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        int code = 0;
        g_autofree char *message = error_of(cases[i].source, &code);
        assert_non_null(message);
        assert_string_equal(message, cases[i].message);
        assert_int_equal(code == RP_TEMPLATE_ERROR_RAISED,
                         strstr(message, "refuses the chat") != NULL);
    }
}

RP_TEST(refuses_bytes_that_are_not_utf8)
{
    g_autoptr(GError) error = NULL;

    assert_null(rp_template_new("t", "ab\xff", 3, &error));
    assert_string_equal(error->message, "t: byte 2: expected UTF-8 text, found byte 0xff");
}

RP_TEST(ends_whatever_a_template_does)
{
    static const char *const sources[] = {
        /* loops */
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% set x = 'a' * 1000000 %}{% endfor %}",
        /* depth */
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set n = namespace(x=[]) %}{% for a in range(9999) %}{% set n.x = [n.x] %}{% endfor %}"
        "{{ n.x }}",
        "{% set n = namespace(x=[]) %}{% set m = namespace(x=[]) %}{% for a in range(9999) %}"
        "{% set n.x = [n.x] %}{% set m.x = [m.x] %}{% endfor %}{{ n.x == m.x }}",
        "{% set n = namespace() %}{% set n.n = [n] %}{{ n }}",
        "{% set n = namespace(x={}) %}{% for a in range(9999) %}{% set n.x = {'a': n.x} %}"
        "{% endfor %}{{ n.x | tojson }}",
        /* memory */
        "{{ 'a' * 9999999999 }}",
        "{{ [0] * 9999999999 }}",
        "{% set n = namespace(x='aaaaaaaa') %}{% for a in range(99) %}{% set n.x = n.x + n.x %}"
        "{% endfor %}",
        "{% set n = namespace(x='aaaaaaaa') %}{% for a in range(99) %}"
        "{% set n.x = n.x | replace('a', n.x) %}{% endfor %}",
        "{% set n = namespace(x='a\\n' * 9999) %}{% for a in range(99) %}"
        "{% set n.x = n.x | indent(1000) %}{% endfor %}",
        /* much from little: shared parts */
        "{% set n = namespace(x=[]) %}{% for a in range(64) %}{% set n.x = [n.x, n.x] %}"
        "{% endfor %}{{ n.x }}",
        "{% set n = namespace(x=[]) %}{% for a in range(64) %}{% set n.x = [n.x, n.x] %}"
        "{% endfor %}{{ n.x | tojson(indent=1000) }}",
        "{% set n = namespace(x=[1], y=[1]) %}{% for a in range(64) %}{% set n.x = [n.x, n.x] %}"
        "{% set n.y = [n.y, n.y] %}{% endfor %}{{ n.x == n.y }}",
        /* text */
        "{% for a in range(99999) %}{{ 'aaaaaaaaaa' * 100 }}{% endfor %}",
    };

    for (guint i = 0; i < G_N_ELEMENTS(sources); i++) {
        int code = 0;
        g_autofree char *message = error_of(sources[i], &code);
        if (message == NULL)
            fail_msg("%s: expected an error", sources[i]);
        assert_non_null(strstr(message, "t: line 1, column "));
    }
}

/* Expressions over a text @s of 4 MB and a part @p of 1 MB that is nearly in it, over and over. */
static const char *const long_work[] = {"s | upper",
                                        "s.find(p)",
                                        "s.rfind(p)",
                                        "s.count('ab')",
                                        "s.lower()",
                                        "s | title",
                                        "p in s",
                                        "s.split('ab') | length",
                                        "s.rsplit(p) | length",
                                        "s.split() | length",
                                        "s.splitlines() | length",
                                        "s.replace('ab', '')",
                                        "s.replace(p, '')",
                                        "s | trim",
                                        "s.strip(p)",
                                        "s.isalpha()",
                                        "s | length",
                                        "s[5]",
                                        "s[-1]",
                                        "s[:5]",
                                        "s[::-1]",
                                        "s == t",
                                        "s < t",
                                        "s | reverse",
                                        "s | tojson",
                                        "s | indent",
                                        "s is upper",
                                        "s.startswith(s)",
                                        "s.endswith(s)",
                                        "s | first",
                                        "s | last",
                                        "[s] | join",
                                        "'%s' | format(s)",
                                        "'{}'.format(s)",
                                        "s | string",
                                        "[s, t] | max",
                                        "[t, s] | sort",
                                        "[s, t] | unique | list | length",
                                        "s | int",
                                        "s | float",
                                        "{s: 1}[t]",
                                        "s * 2",
                                        "s ~ p",
                                        "s + p",
                                        "s | list | length",
                                        "s % ()",
                                        "s.format()",
                                        "s.join([p, p])",
                                        "s.removeprefix(s)",
                                        "s | capitalize",
                                        "s | replace('a', 'b', 1)",
                                        "s is in t",
                                        "d[s]",
                                        "d.get(s)"};

/* Work is counted by the bytes that it goes over: an operation in a loop ends by a bound, of which this is a
 * twentieth, within seconds of processor time. */
RP_TEST(counts_work_by_bytes)
{
    /* the address sanitizer looks at all bytes that a search might pass: minutes, which say nothing */
    const guint n = RP_TEST_FEW ? 0 : G_N_ELEMENTS(long_work);

    for (guint i = 0; i < n; i++) {
        g_autofree char *source = g_strdup_printf(
            "{%% set s = 'abcdefgh' * 500000 ~ '!' %%}{%% set t = 'abcdefgh' * 500000 ~ '?' %%}"
            "{%% set p = 'x' ~ 'abcdefgh' * 125000 %%}{%% set d = {t: 1} %%}"
            "{%% for a in range(99999) %%}{%% for b in range(99999) %%}{%% set x = %s %%}"
            "{%% endfor %%}{%% endfor %%}",
            long_work[i]);
        g_autoptr(RpArena) arena = rp_arena_new(1 << 20, G_MAXUINT64);
        const RpTemplateOptions options = {.max_steps = RP_TEMPLATE_MAX_STEPS / 20};
        g_autoptr(GError) error = NULL;
        g_auto(RpRendered) rendered = {0};
        g_autoptr(RpTemplate) template = rp_template_new("t", source, strlen(source), &error);
        const clock_t start = clock();

        assert_non_null(template);
        assert_false(rp_template_render(template, rp_dict_new(arena), &options, &rendered, &error));
        const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        if (seconds > MOST_SECONDS)
            fail_msg("%s: %.1f s: %s", long_work[i], seconds, error->message);
    }
}

RP_TEST(refuses_brackets_and_blocks_that_are_too_deep)
{
    static const char *const parts[][3] = {
        {"{{ ", "(", ")"},   {"{{ ", "[", "]"},           {"{{ ", "-", ""},
        {"{{ ", "not ", ""}, {"{{ ", "{1: ", "}"},        {"{{ ", "f(", ")"},
        {"{{ ", "a[", "]"},  {"{{ ", "1 if 1 else ", ""}, {"", "{% if a %}", ""},
    };

    for (guint i = 0; i < G_N_ELEMENTS(parts); i++) {
        g_autoptr(GString) source = g_string_new(parts[i][0]);
        int code = 0;
        for (guint n = 0; n < 50000; n++)
            g_string_append(source, parts[i][1]);
        for (guint n = 0; n < 50000; n++)
            g_string_append(source, parts[i][2]);
        g_string_append(source, *parts[i][0] != '\0' ? " }}" : "");
        g_autofree char *message = error_of(source->str, &code);
        if (strstr(message, "expected at most 100 levels") == NULL)
            fail_msg("%s: %s", parts[i][1], message);
    }
    g_autoptr(GString) sum = g_string_new("{{ 1");
    for (guint n = 0; n < 50000; n++)
        g_string_append(sum, "+1");
    g_string_append(sum, " }}");
    int code = 0;
    g_autofree char *message = error_of(sum->str, &code);
    assert_non_null(strstr(message, "the template takes more than 1000 levels"));
    assert_int_equal(code, RP_TEMPLATE_ERROR_BOUND);
}

/* The dicts that loops are over show which text is theirs. */
RP_TEST(traces_loops_over_tagged_dicts)
{
    static const char source[] =
        "<{% for m in messages[1:] %}{% set text %}{{ m.c }}{% endset %}[{{ text }}]{% endfor %}>"
        "{% set x %}{% for m in messages %}{{ m.c }}{% endfor %}{% endset %}"
        "{% for m in messages if m.c != 'b' %}{% endfor %}";
    g_autoptr(RpArena) arena = rp_arena_new(1 << 20, G_MAXUINT64);
    RpDict *variables = rp_dict_new(arena);
    RpList *messages = rp_list_new(arena, 0);
    const RpTemplateOptions options = {0};
    g_autoptr(GError) error = NULL;
    g_auto(RpRendered) rendered = {0};
    g_autoptr(RpTemplate) template = rp_template_new("t", source, strlen(source), &error);

    for (guint i = 0; i < 3; i++) {
        RpDict *message = rp_dict_new(arena);
        message->tag = 10 + i;
        rp_dict_put(arena, message, "c", rp_value_text(&"abc"[i], 1));
        rp_list_append(arena, messages, rp_value_dict(message));
    }
    rp_dict_put(arena, variables, "messages", rp_value_list(messages));
    assert_true(rp_template_render(template, variables, &options, &rendered, &error));
    assert_string_equal(rendered.text->str, "<[b][c]>");
    assert_int_equal(rendered.traces->len, 2);
    for (guint i = 0; i < 2; i++) {
        const RpTextTrace trace = g_array_index(rendered.traces, RpTextTrace, i);
        assert_int_equal(trace.tag, 11 + i);
        assert_int_equal(trace.span.start, 1 + 3 * i);
        assert_int_equal(trace.span.end, 4 + 3 * i);
    }
    assert_true(rp_template_uses(template, "messages"));
    assert_false(rp_template_uses(template, "strftime_now"));
}

RP_TEST(says_where_generation_blocks_were_lost)
{
    static const char source[] =
        "{% macro m() %}{% generation %}a{% endgeneration %}{% endmacro %}{{ m() }}";
    g_autoptr(RpArena) arena = rp_arena_new(1 << 20, G_MAXUINT64);
    const RpTemplateOptions options = {0};
    g_autoptr(GError) error = NULL;
    g_auto(RpRendered) rendered = {0};
    g_autoptr(RpTemplate) template = rp_template_new("t", source, strlen(source), &error);

    assert_true(rp_template_marks_generation(template));
    assert_true(rp_template_render(template, rp_dict_new(arena), &options, &rendered, &error));
    assert_true(rendered.hidden);
    assert_int_equal(rendered.generations->len, 0);
}

RP_TEST(finds_the_last_part)
{
    static const char source[] = "{{ 'aabaaab'.rfind('aab') }} {{ 'ababab'.rfind('abab') }} "
                                 "{{ 'aaaa'.rfind('aa') }} {{ 'abab'.rfind('ba') }} "
                                 "{{ 'abc'.rfind('d') }} {{ 'aaab'.rfind('aaab') }} "
                                 "{{ 'xaabaabaaabx'.rsplit('aaba') }}";
    g_autoptr(RpArena) arena = rp_arena_new(1 << 20, G_MAXUINT64);
    const RpTemplateOptions options = {0};
    g_autoptr(GError) error = NULL;
    g_auto(RpRendered) rendered = {0};
    g_autoptr(RpTemplate) template = rp_template_new("t", source, strlen(source), &error);

    assert_true(rp_template_render(template, rp_dict_new(arena), &options, &rendered, &error));
    assert_string_equal(rendered.text->str, "4 2 2 1 -1 0 ['xaab', 'aabx']");
}
