/**
 * Ids and masks of chats are those of transformers where a template marks turns, and the same where
 * the marks are taken out.
 */
#include "tests/rp-test.h"

#include "core/base/file.h"
#include "text/chat/chat.h"
#include "text/template/values/value.h"

#include <glib/gstdio.h>

static char *folder; /* a checkpoint's */

static int
make_folder(void **state)
{
    folder = g_dir_make_tmp("test-chat-XXXXXX", NULL);
    return folder == NULL;
}

static int
remove_folder(void **state)
{
    rp_file_remove_directory(folder);
    g_free(folder);
    return 0;
}

static void
write_file(const char *name, const char *text)
{
    g_autofree char *path = g_build_filename(folder, name, NULL);

    assert_true(g_file_set_contents(path, text, -1, NULL));
}

static char *
read_source(const char *folder_name, const char *name, const char *suffix)
{
    g_autofree char *relative = g_strconcat(folder_name, "/", name, suffix, NULL);
    g_autofree char *path = rp_test_source_path(relative);
    char *text = NULL;

    assert_true(g_file_get_contents(path, &text, NULL, NULL));
    return text;
}

static GArray *
numbers(const RpDict *line, const char *key)
{
    const RpList *list = rp_dict_get(line, key)->list;
    GArray *array = g_array_new(FALSE, FALSE, sizeof(gint32));

    for (guint i = 0; i < list->length; i++) {
        const gint32 number = (gint32)list->items[i].integer;
        g_array_append_val(array, number);
    }
    return array;
}

/* Compares the sample of @record with @ids and @mask. */
static void
check_sample(const RpTokenizer *tokenizer, const char *record, const GArray *ids,
             const GArray *mask, const char *what)
{
    g_autoptr(GTimeZone) zone = g_time_zone_new_utc();
    g_autoptr(GDateTime) now = g_date_time_new(zone, 2024, 7, 4, 15, 5, 9);
    const RpChatOptions options = {.now = now};
    g_autoptr(GError) error = NULL;
    g_auto(RpChatSample) sample = {0};
    g_auto(RpChatText) text = {0};
    g_autoptr(RpChat) chat = rp_must(rp_chat_open, folder, tokenizer, &options);

    if (!rp_chat_sample(chat, "data", 1, record, strlen(record), &sample, &error))
        fail_msg("%s: %s", what, error->message);
    assert_true(rp_chat_render(chat, "data", 1, record, strlen(record), &text, NULL));
    assert_int_equal(sample.ids->len, ids->len);
    for (guint i = 0; i < ids->len; i++) {
        const gint32 id = g_array_index(ids, gint32, i);
        const gboolean learned = g_array_index(mask, gint32, i) == 1;
        assert_int_equal(g_array_index(sample.ids, gint32, i), id);
        if (g_array_index(sample.labels, gint32, i) != (learned ? id : RP_CHAT_MASKED))
            fail_msg("%s: token %u: expected %s\n%s", what, i, learned ? "learned" : "masked",
                     text.text->str);
    }
    assert_int_equal(sample.weights->len, 0);
}

/* Compares one answer with @ids, of which @n_prompt are the prompt. TRL also learns what a template writes behind the
 * answer's end mark. */
static void
check_answer(const RpTokenizer *tokenizer, RpAnswerKind answer, const char *record,
             const GArray *ids, guint n_prompt)
{
    g_autoptr(GTimeZone) zone = g_time_zone_new_utc();
    g_autoptr(GDateTime) now = g_date_time_new(zone, 2024, 7, 4, 15, 5, 9);
    const RpChatOptions options = {.now = now};
    g_autoptr(GError) error = NULL;
    g_auto(RpChatSample) sample = {0};
    g_autoptr(RpChat) chat = rp_must(rp_chat_open, folder, tokenizer, &options);
    gboolean ended = FALSE;

    if (!rp_chat_answer(chat, answer, "data", 1, record, strlen(record), &sample, &error))
        fail_msg("%s: %s", record, error->message);
    if (sample.ids->len != ids->len ||
        memcmp(sample.ids->data, ids->data, ids->len * sizeof(gint32)) != 0)
        fail_msg("%s: answer %u: other ids than TRL", record, answer);
    for (guint i = 0; i < ids->len; i++) {
        const gboolean learned = g_array_index(sample.labels, gint32, i) != RP_CHAT_MASKED;

        ended = ended || (i > n_prompt && !learned);
        if (learned != (i >= n_prompt && !ended))
            fail_msg("%s: token %u of the answer %u: not as TRL", record, i, answer);
    }
    assert_true(sample.n_learned > 0);
}

static char *
without_marks(const char *template)
{
    g_autoptr(GString) text = g_string_new(template);

    g_string_replace(text, "{%- generation %}", "{%- if true %}", 0);
    g_string_replace(text, "{%- endgeneration %}", "{%- endif %}", 0);
    assert_null(strstr(text->str, "generation %}"));
    return g_strdup(text->str);
}

/* A line of masks.jsonl, or of pairs.jsonl, which has an answer. */
static void
check_line(const char *text, gsize length)
{
    g_autoptr(RpArena) arena = rp_arena_new(1 << 24, G_MAXUINT64);
    g_autoptr(GString) record = g_string_new(NULL);
    const RpJsonStyle style = {.indent = rp_none};
    const char *wrong = NULL;
    g_autoptr(GError) error = NULL;
    RpJsonPull pull;
    RpValue line;

    assert_true(rp_json_pull_init(&pull, "masks", text, length, G_FILE_ERROR, 0, NULL));
    assert_true(rp_value_read_json(arena, &pull, &line));
    const RpValue *name = rp_dict_get(line.dict, "tokenizer");
    const RpValue *template = rp_dict_get(line.dict, "template");
    g_autofree char *tokenizer_name = g_strndup(name->text, name->length);
    g_autofree char *template_name = g_strndup(template->text, template->length);
    assert_true(rp_value_to_json(arena, *rp_dict_get(line.dict, "record"), &style, record, &wrong));
    g_autofree char *tokenizer_json = read_source("tests/text/fixtures", tokenizer_name, ".json");
    g_autofree char *marked = read_source("tests/text-template/fixtures", template_name, "");
    g_autofree char *unmarked = without_marks(marked);
    g_autoptr(RpTokenizer) tokenizer =
        rp_tokenizer_parse(tokenizer_name, tokenizer_json, strlen(tokenizer_json), &error);
    g_autoptr(GArray) ids = numbers(line.dict, "ids");
    const RpValue *answer = rp_dict_get(line.dict, "answer");

    rp_assert_no_error(error);
    if (answer != NULL) {
        const RpAnswerKind kind =
            rp_value_is_text(*answer, "chosen") ? RP_ANSWER_CHOSEN : RP_ANSWER_REJECTED;

        write_file("chat_template.jinja", marked);
        write_file("tokenizer.json", tokenizer_json);
        g_autoptr(RpTokenizer) with_end = rp_must(rp_tokenizer_open, folder);
        check_answer(with_end, kind, record->str, ids,
                     (guint)rp_dict_get(line.dict, "prompt")->integer);
        return;
    }
    g_autoptr(GArray) mask = numbers(line.dict, "mask");
    g_autofree char *what = g_strconcat(tokenizer_name, ", ", template_name, NULL);
    write_file("chat_template.jinja", marked);
    check_sample(tokenizer, record->str, ids, mask, what);
    g_autofree char *bare = g_strconcat(what, " without marks: ", record->str, NULL);
    write_file("chat_template.jinja", unmarked);
    check_sample(tokenizer, record->str, ids, mask, bare);
}

/* Returns: how many */
static guint
check_lines(const char *name)
{
    g_autofree char *text = read_source("tests/text-chat/fixtures", name, "");
    guint n = 0;

    write_file("tokenizer_config.json",
               "{\"bos_token\": {\"content\": \"<|begin|>\"}, \"eos_token\": \"<|end|>\"}");
    for (char *line = text; *line != '\0'; n++) {
        char *end = strchr(line, '\n');
        check_line(line, (gsize)(end - line));
        line = end + 1;
    }
    return n;
}

RP_TEST(learns_what_transformers_does)
{
    assert_true(check_lines("masks.jsonl") > 150);
}

RP_TEST(answers_of_preferences_have_the_ids_and_the_prompt_of_TRL)
{
    assert_true(check_lines("pairs.jsonl") > 80);
}

RP_TEST_FIXTURE(make_folder, remove_folder)
