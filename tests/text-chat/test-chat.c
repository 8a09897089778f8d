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
    RpTrainOn train_on;
    const char *record;
    const char *shown;
} Case;

static void
check_cases(const Fixture *fixture, const char *template, const Case *cases, guint n)
{
    for (guint i = 0; i < n; i++) {
        g_autoptr(GError) error = NULL;
        char *found = shown(fixture, template, cases[i].train_on, cases[i].record, &error);
        if (g_strcmp0(found, cases[i].shown) != 0)
            fail_msg("%s\nexpected %s\nfound    %s", cases[i].record, cases[i].shown,
                     found != NULL ? found : error->message);
        g_free(found);
    }
}

#define U(text) "{\"role\": \"user\", \"content\": \"" text "\"}"
#define A(text) "{\"role\": \"assistant\", \"content\": \"" text "\"}"

RP_TEST(reads_records_of_every_kind)
{
    static const Case cases[] = {
        {0, "{\"messages\": [" U("q") ", " A("a") "]}", "<user/q>/<assistant/[a>]/"},
        {0,
         "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\"}, {\"from\": \"gpt\", "
         "\"value\": \"a\"}], \"system\": \"s\", \"id\": \"x1\"}",
         "<system/s>/<user/q>/<assistant/[a>]/"},
        {0, "{\"conversations\": [" U("q") ", " A("a") "]}", "<user/q>/<assistant/[a>]/"},
        {0,
         "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\"}, {\"from\": "
         "\"function_call\", \"value\": \"{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": "
         "{}}\"}, {\"from\": \"observation\", \"value\": \"1\"}, {\"from\": \"gpt\", \"value\": "
         "\"a\"}], \"tools\": \"[{\\\"name\\\": \\\"f\\\"}]\"}",
         "<user/q>/<assistant/[[{\"type\": \"function\", \"function\": {\"name\": \"f\", "
         "\"arguments\": {}}}]>]/<tool/1>/<assistant/[a>]/"},
        {0, "{\"instruction\": \"do\", \"input\": \"x\", \"output\": \"y\"}",
         "<user/do/x>/<assistant/[y>]/"},
        {0,
         "{\"instruction\": \"do\", \"input\": \"\", \"output\": \"y\", \"system\": \"s\", "
         "\"history\": [[\"a\", \"b\"]], \"text\": \"all of it\"}",
         "<system/s>/<user/a>/<assistant/[b>]/<user/do>/<assistant/[y>]/"},
        {0, "{\"prompt\": \"2+2=\", \"completion\": \"4\"}", "2+2=[4]"},
        {RP_TRAIN_ON_ALL, "{\"prompt\": \"2+2=\", \"completion\": \"4\"}", "[2+2=4]"},
        {0, "{\"completion\": [" A("b") "], \"prompt\": [" U("q") ", " A("a") ", " U("r") "]}",
         "<user/q>/<assistant/a>/<user/r>/<assistant/[b>]/"},
        {0, "{\"text\": \"words\", \"messages\": null}", "[words]"},
        {0,
         "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": "
         "\"a\"}, {\"type\": \"text\", \"text\": \"b\"}]}, {\"role\": \"assistant\", "
         "\"content\": null, \"name\": null}, " A("c") "]}",
         "<user/a/b>/<assistant/[>]/<assistant/[c>]/"},
        {0,
         "{\"messages\": [" U("q") ", {\"role\": \"assistant\", \"tool_calls\": [{\"function\": "
                                   "{\"name\": \"f\", \"arguments\": \"{}\"}}]}]}",
         "<user/q>/<assistant/[[{\"function\": {\"name\": \"f\", \"arguments\": \"{}\"}}]>]/"},
    };

    check_cases(*state, CHATML, cases, G_N_ELEMENTS(cases));
}

RP_TEST(learns_what_is_asked_for)
{
#define CHAT U("q") ", " A("a") ", " U("r") ", " A("b")
    static const Case cases[] = {
        {RP_TRAIN_ON_ASSISTANT, "{\"messages\": [" CHAT "]}",
         "<user/q>/<assistant/[a>]/<user/r>/<assistant/[b>]/"},
        {RP_TRAIN_ON_LAST, "{\"messages\": [" CHAT "]}",
         "<user/q>/<assistant/a>/<user/r>/<assistant/[b>]/"},
        {RP_TRAIN_ON_LAST, "{\"messages\": [" CHAT ", " U("z") "]}",
         "<user/q>/<assistant/a>/<user/r>/<assistant/[b>]/<user/z>/"},
        {RP_TRAIN_ON_ALL, "{\"messages\": [" CHAT "]}",
         "[<user/q>/<assistant/a>/<user/r>/<assistant/b>/]"},
        {RP_TRAIN_ON_ASSISTANT, "{\"messages\": [" U("q") "]}", "<user/q>/"},
        {RP_TRAIN_ON_ASSISTANT,
         "{\"messages\": [" U(
             "q") ", {\"role\": \"assistant\", \"content\": \"a\", \"train\": "
                  "false}, {\"role\": \"user\", \"content\": \"r\", \"train\": true}, " A("b") "]}",
         "<user/q>/<assistant/a>/<user/[r>]/<assistant/[b>]/"},
        {RP_TRAIN_ON_ASSISTANT,
         "{\"messages\": [" U(
             "q") ", {\"role\": \"assistant\", \"content\": \"a\", \"weight\": "
                  "0}, " U(
                      "r") ", {\"role\": \"assistant\", \"content\": \"b\", \"weight\": 0.5}]}",
         "<user/q>/<assistant/a>/<user/r>/<assistant/[b>]0.5/"},
        {RP_TRAIN_ON_ALL,
         "{\"messages\": [{\"role\": \"user\", \"content\": \"q\", \"train\": false}, "
         "{\"role\": \"assistant\", \"content\": \"b\", \"weight\": 2}]}",
         "<user/q>/[<assistant/b>/]2"},
    };

    check_cases(*state, CHATML, cases, G_N_ELEMENTS(cases));
}

/* Turns are distinguished whatever is in them, and where templates put their marks. */
RP_TEST(finds_turns_of_templates_without_marks)
{
    /* no generation prompt, and the same text in every turn */
    static const char plain[] =
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    static const Case plain_cases[] = {
        {0,
         "{\"messages\": [" U("assistant: a") ", " A("assistant: a") ", " U("a") ", " A("a") "]}",
         "user: assistant: a/assistant: [assistant: a/]user: a/assistant: [a/]"},
    };
    /* no loop over messages */
    static const char indexed[] =
        "{% for i in range(messages | length) %}<{{ messages[i].role[0] }}>"
        "{{ messages[i].content }}</>{% endfor %}{% if add_generation_prompt %}<a>{% endif %}";
    static const Case indexed_cases[] = {
        {0, "{\"messages\": [" CHAT "]}", "<u>q</><a>[a</>]<u>r</><a>[b</>]"},
        {0,
         "{\"messages\": [{\"role\": \"user\", \"content\": \"q\", \"train\": true}, " A("a") "]}",
         "[<u>q</>]<a>[a</>]"},
    };
    /* an end behind the loop */
    static const char ended[] = "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}"
                                "{% endfor %}{% if add_generation_prompt %}<a>{% else %}<eos>"
                                "{% endif %}";
    static const Case ended_cases[] = {
        {0, "{\"messages\": [" CHAT "]}", "<u>q<a>[a]<u>r<a>[b<eos>]"},
        {0, "{\"messages\": [" CHAT ", " U("z") "]}", "<u>q<a>[a]<u>r<a>[b]<u>z<eos>"},
    };
    /* a prompt with a beginning that turns may lack */
    static const char thinks[] =
        "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}</>{% endfor %}"
        "{% if add_generation_prompt %}<a><think>{% endif %}";
    static const Case thinks_cases[] = {
        {0, "{\"messages\": [" U("q") ", " A("<think>b") ", " U("q") ", " A("<b>") "]}",
         "<u>q</><a><think>[b</>]<u>q</><a>[<b></>]"},
    };
    /* a tag that begins as the prompt's */
    static const char closes[] =
        "{% for m in messages %}<{{ m.role[0] }}>{% if m.role == 'assistant' %}</think>"
        "{% endif %}{{ m.content }}</>{% endfor %}"
        "{% if add_generation_prompt %}<a><think>{% endif %}";
    static const Case closes_cases[] = {
        {0, "{\"messages\": [" CHAT "]}", "<u>q</><a>[</think>a</>]<u>r</><a>[</think>b</>]"},
    };
    /* turns have an end, and more stands behind the loop */
    static const char followed[] = "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}</>"
                                   "{% endfor %}<a>";
    static const Case followed_cases[] = {
        {0, "{\"messages\": [" CHAT "]}", "<u>q</><a>[a</>]<u>r</><a>[b</>]<a>"},
    };

    check_cases(*state, plain, plain_cases, G_N_ELEMENTS(plain_cases));
    check_cases(*state, indexed, indexed_cases, G_N_ELEMENTS(indexed_cases));
    check_cases(*state, ended, ended_cases, G_N_ELEMENTS(ended_cases));
    check_cases(*state, thinks, thinks_cases, G_N_ELEMENTS(thinks_cases));
    check_cases(*state, closes, closes_cases, G_N_ELEMENTS(closes_cases));
    check_cases(*state, followed, followed_cases, G_N_ELEMENTS(followed_cases));
}

RP_TEST(gives_content_as_the_template_takes_it)
{
    static const char parts[] = "{% for m in messages %}<{{ m.role[0] }}>{% for p in m.content %}"
                                "{{ p.text }}{% endfor %}{% endfor %}";
    static const Case cases[] = {
        {0, "{\"messages\": [" U("q") ", " A("a") "]}", "<u>q<a>[a]"},
    };

    check_cases(*state, parts, cases, G_N_ELEMENTS(cases));
}

RP_TEST(refuses_bad_records_with_their_place)
{
    static const struct {
        const char *record;
        const char *message;
    } cases[] = {
        {"{\"messages\": [" U("q") ", {\"role\": \"asistant\", \"content\": \"a\"}]}",
         "d: line 7, column 58: messages[1].role: expected one of system, developer, user, "
         "assistant, tool, found \"asistant\""},
        {"{\"messages\": [{\"from\": \"human\", \"value\": \"a\"}]}",
         "d: line 7, column 15: messages[0]: expected a message with `role`, found an object"},
        {"{\"messages\": [{\"role\": \"user\"}]}",
         "d: line 7, column 15: messages[0]: expected a message with `content`, found an object"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": 5}]}",
         "d: line 7, column 43: messages[0].content: expected a string, null, or a list of parts, "
         "found 5"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}",
         "d: line 7, column 44: messages[0].content[0]: expected a part of type \"text\" with a "
         "string `text`, found an object"},
        {"{\"messages\": []}", "d: line 7, column 14: messages: expected at least one message, "
                               "found an empty list"},
        {"{\"messages\": {}}", "d: line 7, column 14: messages: expected an array, found an "
                               "object"},
        {"{\"messages\": [" U(
             "q") ", {\"role\": \"assistant\", \"content\": \"a\", \"train\": 1}]}",
         "d: line 7, column 96: messages[1].train: expected true or false, found 1"},
        {"{\"messages\": [" U("q") ", {\"role\": \"assistant\", \"content\": \"a\", \"weight\": "
                                   "-1}]}",
         "d: line 7, column 97: messages[1].weight: expected a weight from 0 to 1000000, found -1"},
        {"{\"messages\": [" U("q") ", {\"role\": \"assistant\", \"tool_calls\": [{}]}]}",
         "d: line 7, column 86: messages[1].tool_calls[0]: expected a call of a function with a "
         "string `name`, found an object"},
        {"{\"conversations\": [{\"from\": \"bot\", \"value\": \"a\"}]}",
         "d: line 7, column 29: conversations[0].from: expected one of human, gpt, system, "
         "developer, user, assistant, tool, function_call, observation, found \"bot\""},
        {"{\"conversations\": [{\"from\": \"function_call\", \"value\": \"f()\"}]}",
         "d: line 7, column 55: conversations[0].value: expected JSON of a call: a name and "
         "arguments, found \"f()\""},
        {"{\"instruction\": \"a\"}", "d: line 7, column 1: output: expected a string `output`, "
                                     "found nothing"},
        {"{\"prompt\": \"a\"}", NULL},
        {"{\"prompt\": \"a\", \"completion\": []}", NULL},
        {"{\"id\": 1}", "d: line 7, column 1: expected one of messages, conversations, prompt and "
                        "completion, instruction and output, text, input_ids, found none of "
                        "these"},
        {"[]", "d: line 7, column 1: expected an object, found an array"},
        {"", "d: line 7, column 1: expected an object, found the end of the text"},
        {"{\"messages\": [" U("q") "], \"messages\": [" U("q") "]}", NULL},
        {"{\"messages\": [" U("q") "], \"tools\": {}}",
         "d: line 7, column 59: tools: expected a list of tools, each an object, found an object"},
        {"{\"text\": \"a\xff\"}", "d: line 7, column 12: expected UTF-8 text, found byte 0xff"},
        {"{\"messages\": [" U("q") "], \"history\": [[\"a\"]]}", NULL},
        {"{\"input_ids\": [1, 2], \"labels\": [1]}", NULL},
        {"{\"input_ids\": [99999]}", NULL},
    };

    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_auto(RpChatSample) sample = {0};
        g_autoptr(RpChat) chat = open_chat(*state, CHATML, 0, NULL);
        assert_false(rp_chat_sample(chat, "d", 7, cases[i].record, strlen(cases[i].record), &sample,
                                    &error));
        assert_true(g_str_has_prefix(error->message, "d: line 7, column "));
        if (cases[i].message != NULL)
            assert_string_equal(error->message, cases[i].message);
    }
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
    assert_false(rp_chat_render(chat, "d", 7, deep->str, deep->len, &text, &too_deep));
    rp_assert_error_message_contains(too_deep, "expected at most 64 levels, found one more");
    for (guint i = 0; i < 10000000; i++)
        g_string_append(wide, "{},");
    g_string_append(wide, "{}]}]}");
    assert_false(rp_chat_render(chat, "d", 7, wide->str, wide->len, &text, &too_wide));
    rp_assert_error_message_contains(too_wide, "expected a value of less memory");
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
    assert_null(open_chat(*state, "{% if %}", 0, &broken));
    rp_assert_error_message_contains(broken, "chat_template.jinja: line 1, column 7: expected an "
                                             "expression");
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

RP_TEST(makes_samples)
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
        {"{\"input_ids\": [1, 2, 3], \"labels\": [-100, 2, 3]}", 2, FALSE, FALSE},
        {"{\"input_ids\": [1, 2, 3], \"attention_mask\": [1, 1, 0]}", 2, FALSE, FALSE},
    };
    const Fixture *fixture = *state;
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

RP_TEST(weighs_tokens_as_messages_ask)
{
    static const char record[] =
        "{\"messages\": [" U("q") ", {\"role\": \"assistant\", "
                                  "\"content\": \"a\", \"weight\": 0.25}, " U("r") ", " A("b") "]}";
    const Fixture *fixture = *state;
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
