/**
 * Records of every kind become text, spans and ids; bad ones are refused with their place.
 */
#include "tests/rp-test.h"

#include "core/base/file.h"
#include "text/chat/chat.h"
#include "text/template/template.h"

#include <glib/gstdio.h>

/* ChatML without marks. */
#define CHATML                                                                                     \
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') }}"             \
    "{{ (m.tool_calls | tojson) if m.tool_calls else '' }}{{ '<|im_end|>\\n' }}{% endfor %}"       \
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

typedef struct {
    char *folder;
    RpTokenizer *tokenizer;
} Fixture;

static int
set_up(void **state)
{
    static Fixture fixture;
    g_autofree char *path = rp_test_source_path("tests/text/fixtures/qwen.json");
    gsize length = 0;
    g_autofree char *json = rp_file_read(path, 1 << 20, &length, NULL);

    fixture.folder = g_dir_make_tmp("test-chat-XXXXXX", NULL);
    g_autofree char *copy = g_build_filename(fixture.folder, "tokenizer.json", NULL);
    g_autofree char *config = g_build_filename(fixture.folder, "tokenizer_config.json", NULL);
    assert_true(g_file_set_contents(copy, json, (gssize)length, NULL));
    assert_true(g_file_set_contents(config, "{\"eos_token\": \"<|end|>\"}", -1, NULL));
    fixture.tokenizer = rp_tokenizer_open(fixture.folder, NULL);
    assert_non_null(fixture.tokenizer);
    *state = &fixture;
    return 0;
}

static int
tear_down(void **state)
{
    Fixture *fixture = *state;

    rp_tokenizer_free(fixture->tokenizer);
    rp_file_remove_directory(fixture->folder);
    g_free(fixture->folder);
    return 0;
}

static void
write_file(const Fixture *fixture, const char *name, const char *text)
{
    g_autofree char *path = g_build_filename(fixture->folder, name, NULL);

    if (text == NULL)
        g_unlink(path);
    else
        assert_true(g_file_set_contents(path, text, -1, NULL));
}

static RpChat *
open_chat(const Fixture *fixture, const char *template, RpTrainOn train_on, GError **error)
{
    g_autoptr(GTimeZone) zone = g_time_zone_new_utc();
    g_autoptr(GDateTime) now = g_date_time_new(zone, 2024, 7, 4, 15, 5, 9);
    const RpChatOptions options = {.train_on = train_on, .now = now};

    write_file(fixture, "chat_template.jinja", template);
    return rp_chat_open(fixture->folder, fixture->tokenizer, &options, error);
}

/* The text of @record with the learned parts in [...], weights other than 1 behind. NULL:
 * refused */
static char *
shown(const Fixture *fixture, const char *template, RpTrainOn train_on, const char *record,
      GError **error)
{
    g_auto(RpChatText) text = {0};
    g_autoptr(RpChat) chat = open_chat(fixture, template, train_on, error);
    g_autoptr(GString) marked = g_string_new(NULL);
    gsize at = 0;

    if (chat == NULL || !rp_chat_render(chat, "d", 7, record, strlen(record), &text, error))
        return NULL;
    for (guint i = 0; i < text.spans->len; i++) {
        const RpChatSpan span = g_array_index(text.spans, RpChatSpan, i);
        g_string_append_len(marked, text.text->str + at, (gssize)(span.start - at));
        g_string_append_c(marked, '[');
        g_string_append_len(marked, text.text->str + span.start, (gssize)(span.end - span.start));
        g_string_append_c(marked, ']');
        if (span.weight != 1.0)
            g_string_append_printf(marked, "%g", span.weight);
        at = span.end;
    }
    g_string_append(marked, text.text->str + at);
    g_string_replace(marked, "<|im_start|>", "<", 0);
    g_string_replace(marked, "<|im_end|>", ">", 0);
    g_string_replace(marked, "\n", "/", 0);
    return g_strdup(marked->str);
}

typedef struct {
    const Fixture *fixture;
    const char *template;
} Template;

/* The text shown of "RECORD", or, where not only answers are learned, of "last RECORD" or "all RECORD". */
static char *
shown_line(const char *words, gpointer data)
{
    const Template *with = data;
    const gboolean last = g_str_has_prefix(words, "last "), all = g_str_has_prefix(words, "all ");
    const char *record = words + (last || all ? strcspn(words, " ") + 1 : 0);

    return shown(with->fixture, with->template,
                 last  ? RP_TRAIN_ON_LAST
                 : all ? RP_TRAIN_ON_ALL
                       : RP_TRAIN_ON_ASSISTANT,
                 record, NULL);
}

static void
check_lines(const Fixture *fixture, const char *template, const char *section)
{
    Template with = {fixture, template};

    rp_test_lines("tests/text-chat/messages.txt", section, shown_line, &with);
}

#define U(text) "{\"role\": \"user\", \"content\": \"" text "\"}"
#define A(text) "{\"role\": \"assistant\", \"content\": \"" text "\"}"

RP_TEST(reads_records_of_every_kind)
{
    check_lines(*state, CHATML, "chat: records of every kind");
}

RP_TEST(learns_what_is_asked_for)
{
    check_lines(*state, CHATML, "chat: what is learned");
}

/* Turns are distinguished whatever is in them, and where templates put their marks. */
RP_TEST(finds_turns_of_templates_without_marks)
{
    check_lines(*state, "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
                "chat: no generation prompt and the same text in every turn");
    check_lines(
        *state,
        "{% for i in range(messages | length) %}<{{ messages[i].role[0] }}>"
        "{{ messages[i].content }}</>{% endfor %}{% if add_generation_prompt %}<a>{% endif %}",
        "chat: no loop over messages");
    check_lines(*state,
                "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}"
                "{% endfor %}{% if add_generation_prompt %}<a>{% else %}<eos>{% endif %}",
                "chat: an end behind the loop");
    check_lines(*state,
                "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}</>{% endfor %}"
                "{% if add_generation_prompt %}<a><think>{% endif %}",
                "chat: a prompt with a beginning that turns may lack");
    check_lines(*state,
                "{% for m in messages %}<{{ m.role[0] }}>{% if m.role == 'assistant' %}</think>"
                "{% endif %}{{ m.content }}</>{% endfor %}"
                "{% if add_generation_prompt %}<a><think>{% endif %}",
                "chat: a tag that begins as the prompt's");
    check_lines(*state, "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}</>{% endfor %}<a>",
                "chat: turns with an end and more behind the loop");
}

RP_TEST(gives_content_as_the_template_takes_it)
{
    check_lines(*state,
                "{% for m in messages %}<{{ m.role[0] }}>{% for p in m.content %}"
                "{{ p.text }}{% endfor %}{% endfor %}",
                "chat: content as the template takes it");
}

static char *
refusal(const char *record, gpointer fixture)
{
    GError *error = NULL;
    g_auto(RpChatSample) sample = {0};
    g_autoptr(RpChat) chat = open_chat(fixture, CHATML, 0, NULL);

    assert_false(rp_chat_sample(chat, "d", 7, record, strlen(record), &sample, &error));
    return rp_test_refusal(&error);
}

RP_TEST(refuses_bad_records_with_their_place)
{
    rp_test_lines("tests/text-chat/messages.txt", "chat: bad records", refusal, *state);
}

RP_TEST(refuses_bombs)
{
    g_autoptr(RpChat) chat = open_chat(*state, CHATML, 0, NULL);
    g_autoptr(GString) deep = g_string_new("{\"messages\": [{\"role\": \"user\", \"content\": "
                                           "\"a\", \"x\": ");
    g_autoptr(GString) wide = g_string_new("{\"messages\": [{\"role\": \"user\", \"content\": "
                                           "\"a\", \"x\": [");
    g_autoptr(GError) too_deep = NULL;
    g_autoptr(GError) too_wide = NULL;
    g_auto(RpChatText) text = {0};

    for (guint i = 0; i < 100000; i++)
        g_string_append_c(deep, '[');
    rp_refuses("expected at most 64 levels, found one more", rp_chat_render, chat, "d", 7,
               deep->str, deep->len, &text);
    for (guint i = 0; i < 10000000; i++)
        g_string_append(wide, "{},");
    g_string_append(wide, "{}]}]}");
    rp_refuses("expected a value of less memory", rp_chat_render, chat, "d", 7, wide->str,
               wide->len, &text);
}

RP_TEST(refuses_what_the_template_refuses)
{
    static const char *const templates[] = {
        "{{ raise_exception('roles must alternate') }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ messages[0].nothing.more }}",
    };
    static const char *const messages[] = {
        "the template refuses the chat: roles must alternate",
        "the template takes more than 512 MiB of memory",
        "the template takes more than 1000 levels",
        "expected a value to take an attribute of, found \"nothing\", which is undefined",
    };

    for (guint i = 0; i < G_N_ELEMENTS(templates); i++) {
        g_autoptr(GError) error = NULL;
        char *found = shown(*state, templates[i], 0, "{\"messages\": [" U("q") "]}", &error);
        assert_null(found);
        assert_true(g_str_has_prefix(error->message, "d: line 7: "));
        rp_assert_error_message_contains(error, "chat_template.jinja: line 1, column ");
        rp_assert_error_message_contains(error, messages[i]);
    }
}

RP_TEST(says_how_to_give_a_template)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GError) broken = NULL;
    char *found = shown(*state, NULL, 0, "{\"messages\": [" U("q") "]}", &error);

    assert_null(found);
    rp_assert_error_message_contains(error, "d: line 7: expected a chat template in ");
    rp_assert_error_message_contains(error, "give one with chat_template: FILE");
    found = shown(*state, NULL, 0, "{\"text\": \"needs none\"}", NULL);
    assert_string_equal(found, "[needs none]");
    g_free(found);
    rp_refuses("chat_template.jinja: line 1, column 7: expected an "
               "expression",
               open_chat, *state, "{% if %}", 0);
}

RP_TEST(takes_templates_of_tokenizer_config)
{
    static const char one[] = "{\"chat_template\": \"1{{ bos_token }}{{ eos_token }}"
                              "{{ messages[0].content }}\", \"bos_token\": \"B\", \"eos_token\": "
                              "{\"content\": \"E\", \"lstrip\": false}, \"model_max_length\": 5}";
    static const char named[] =
        "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"tools\"}, {\"name\": "
        "\"default\", \"template\": \"plain {{ tools is none }}\"}]}";
    char *found = NULL;

    write_file(*state, "tokenizer_config.json", one);
    found = shown(*state, NULL, 0, "{\"messages\": [" U("q") "]}", NULL);
    assert_string_equal(found, "1BEq");
    g_free(found);
    write_file(*state, "tokenizer_config.json", named);
    found = shown(*state, NULL, 0, "{\"messages\": [" U("q") "]}", NULL);
    assert_string_equal(found, "plain True");
    g_free(found);
    found = shown(*state, NULL, 0, "{\"messages\": [" U("q") "], \"tools\": [{}]}", NULL);
    assert_string_equal(found, "tools");
    g_free(found);
    found = shown(*state, "file", 0, "{\"messages\": [" U("q") "]}", NULL);
    assert_string_equal(found, "file");
    g_free(found);
    g_autofree char *more =
        g_build_filename(((const Fixture *)*state)->folder, "additional_chat_templates", NULL);
    assert_int_equal(g_mkdir(more, 0700), 0);
    write_file(*state, "additional_chat_templates/tool_use.jinja", "with tools");
    found = shown(*state, "file", 0, "{\"messages\": [" U("q") "], \"tools\": [{}]}", NULL);
    assert_string_equal(found, "with tools");
    g_free(found);
    rp_file_remove_directory(more);
    write_file(*state, "tokenizer_config.json", "{\"eos_token\": \"<|end|>\"}");
}

RP_TEST(fingerprints_tell_templates_apart)
{
    g_autoptr(RpChat) a = open_chat(*state, "a", RP_TRAIN_ON_ASSISTANT, NULL);
    g_autoptr(RpChat) again = open_chat(*state, "a", RP_TRAIN_ON_ASSISTANT, NULL);
    g_autoptr(RpChat) last = open_chat(*state, "a", RP_TRAIN_ON_LAST, NULL);
    g_autoptr(RpChat) b = open_chat(*state, "b", RP_TRAIN_ON_ASSISTANT, NULL);

    assert_true(rp_chat_fingerprint(a) == rp_chat_fingerprint(again));
    assert_true(rp_chat_fingerprint(a) != rp_chat_fingerprint(last));
    assert_true(rp_chat_fingerprint(a) != rp_chat_fingerprint(b));
}

RP_TEST_OF(makes_samples, const Fixture *fixture)
{
    static const struct {
        const char *record;
        gsize n_learned;
        gboolean weighted;
        gboolean ends; /* in eos */
    } cases[] = {
        {"{\"text\": \"some words\"}", G_MAXSIZE, FALSE, TRUE},
        {"{\"text\": \"some words<|end|>\"}", G_MAXSIZE, FALSE, TRUE},
        {"{\"messages\": [" U("q") "]}", 0, FALSE, FALSE},
    };
    g_autoptr(RpChat) chat = open_chat(fixture, CHATML, 0, NULL);
    const gint32 eos = (gint32)rp_tokenizer_role(fixture->tokenizer, RP_TOKEN_EOS);

    assert_true(eos >= 0);
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_auto(RpChatSample) sample = {0};
        assert_true(
            rp_chat_sample(chat, "d", 7, cases[i].record, strlen(cases[i].record), &sample, NULL));
        const gsize n = sample.ids->len;
        assert_int_equal(sample.labels->len, n);
        assert_int_equal(sample.n_learned,
                         cases[i].n_learned == G_MAXSIZE ? n : cases[i].n_learned);
        assert_int_equal(g_array_index(sample.ids, gint32, n - 1) == eos, cases[i].ends);
        if (n > 1)
            assert_false(g_array_index(sample.ids, gint32, n - 2) == eos);
        assert_int_equal(sample.weights->len, 0);
    }
}

RP_TEST_OF(weighs_tokens_as_messages_ask, const Fixture *fixture)
{
    static const char record[] =
        "{\"messages\": [" U("q") ", {\"role\": \"assistant\", "
                                  "\"content\": \"a\", \"weight\": 0.25}, " U("r") ", " A("b") "]}";
    g_autoptr(RpChat) chat = open_chat(fixture, CHATML, 0, NULL);
    g_auto(RpChatSample) sample = {0};
    guint n_quarters = 0, n_ones = 0;

    assert_true(rp_chat_sample(chat, "d", 7, record, strlen(record), &sample, NULL));
    assert_int_equal(sample.weights->len, sample.ids->len);
    for (guint i = 0; i < sample.ids->len; i++) {
        const float weight = g_array_index(sample.weights, float, i);
        if (g_array_index(sample.labels, gint32, i) == RP_CHAT_MASKED)
            continue;
        n_quarters += weight == 0.25f;
        n_ones += weight == 1.0f;
    }
    assert_true(n_quarters > 0 && n_quarters == n_ones);
    assert_int_equal(sample.n_learned, n_quarters + n_ones);
}

RP_TEST(prompts_end_where_an_answer_begins)
{
    static const char record[] = "{\"messages\": [" U("q") "]}";
    static const char other[] = "{\"text\": \"a\"}";
    g_autoptr(RpChat) chat = open_chat(*state, CHATML, 0, NULL);
    g_autoptr(GError) error = NULL;
    g_autoptr(GString) prompt = rp_chat_prompt(chat, "d", 7, record, strlen(record), NULL);

    assert_string_equal(prompt->str, "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n");
    assert_null(rp_chat_prompt(chat, "d", 7, other, strlen(other), &error));
    assert_string_equal(error->message, "d: line 7: expected a chat (messages), found another "
                                        "record");
}

RP_TEST_GROUP(set_up, tear_down)
