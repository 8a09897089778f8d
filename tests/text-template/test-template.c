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

/* The refusal of @source, compiled and rendered without variables. (transfer full) */
static char *
refusal(const char *source, gpointer data)
{
    g_autoptr(RpArena) arena = rp_arena_new(1 << 20, G_MAXUINT64);
    const RpTemplateOptions options = {.max_bytes = 32 << 20};
    GError *error = NULL;
    g_auto(RpRendered) rendered = {0};
    g_autoptr(RpTemplate) template = rp_template_new("t", source, strlen(source), &error);

    (void)data;
    if (template != NULL &&
        rp_template_render(template, rp_dict_new(arena), &options, &rendered, &error))
        return NULL;
    return rp_test_refusal(&error);
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
    rp_test_lines("tests/text-template/messages.txt", "template: refused", refusal, NULL);
}

RP_TEST(refuses_bytes_that_are_not_utf8)
{
    g_autoptr(GError) error = NULL;

    assert_null(rp_template_new("t", "ab\xff", 3, &error));
    assert_string_equal(error->message, "t: byte 2: expected UTF-8 text, found byte 0xff");
}

/* Loops, depth, memory, much text from shared parts: all have bounds. */
RP_TEST(ends_whatever_a_template_does)
{
    rp_test_lines("tests/text-template/messages.txt", "template: ends", refusal, NULL);
}

/* The refusal of an @expression over a text s of 4 MB and a part p of 1 MB that is nearly in it, over and over. */
static char *
refusal_of_work(const char *expression, gpointer data)
{
    g_autofree char *source = g_strdup_printf(
        "{%% set s = 'abcdefgh' * 500000 ~ '!' %%}{%% set t = 'abcdefgh' * 500000 ~ '?' %%}"
        "{%% set p = 'x' ~ 'abcdefgh' * 125000 %%}{%% set d = {t: 1} %%}"
        "{%% for a in range(99999) %%}{%% for b in range(99999) %%}{%% set x = %s %%}"
        "{%% endfor %%}{%% endfor %%}",
        expression);
    g_autoptr(RpArena) arena = rp_arena_new(1 << 20, G_MAXUINT64);
    const RpTemplateOptions options = {.max_steps = RP_TEMPLATE_MAX_STEPS / 20};
    GError *error = NULL;
    g_auto(RpRendered) rendered = {0};
    g_autoptr(RpTemplate) template = rp_template_new("t", source, strlen(source), &error);
    const clock_t start = clock();

    (void)data;
    assert_non_null(template);
    assert_false(rp_template_render(template, rp_dict_new(arena), &options, &rendered, &error));
    const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    if (seconds > MOST_SECONDS)
        fail_msg("%s: %.1f s: %s", expression, seconds, error->message);
    return rp_test_refusal(&error);
}

/* Work is counted by the bytes that it goes over: an operation in a loop ends by a bound, of which this is a
 * twentieth, within seconds of processor time. */
RP_TEST(counts_work_by_bytes)
{
    if (RP_TEST_FEW) /* the address sanitizer looks at all bytes that a search might pass: minutes, which say nothing */
        return;
    rp_test_lines("tests/text-template/messages.txt", "template: long work", refusal_of_work, NULL);
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
        for (guint n = 0; n < 50000; n++)
            g_string_append(source, parts[i][1]);
        for (guint n = 0; n < 50000; n++)
            g_string_append(source, parts[i][2]);
        g_string_append(source, *parts[i][0] != '\0' ? " }}" : "");
        g_autofree char *message = refusal(source->str, NULL);
        if (strstr(message, "expected at most 100 levels") == NULL)
            fail_msg("%s: %s", parts[i][1], message);
    }
    g_autoptr(GString) sum = g_string_new("{{ 1");
    for (guint n = 0; n < 50000; n++)
        g_string_append(sum, "+1");
    g_string_append(sum, " }}");
    GError *error = g_error_new(RP_TEMPLATE_ERROR, RP_TEMPLATE_ERROR_BOUND, "*");
    g_autofree char *bound = rp_test_refusal(&error);
    g_autofree char *message = refusal(sum->str, NULL);
    assert_true(g_pattern_match_simple(bound, message));
    assert_non_null(strstr(message, "the template takes more than 1000 levels"));
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
