/**
 * Reading a record neither crashes nor leaks, whatever the bytes; a refusal is one line that names
 * file and line. An accepted record has spans in its text, in order and apart, and as many labels
 * as ids, each its id or masked; a template that marks turns gives the same as one that does not.
 */
#include "fuzz/harness.h"

#include <glib/gstdio.h>

#include "text/chat/chat.h"
#include "text/template/template.h"

#define TURNS(open, close)                                                                         \
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}" open                     \
    "{{ m.content or '' }}{{ (m.tool_calls or []) | tojson }}{{ m.thinking }}</>" close            \
    "{% else %}{{ m.content }}</>{% endif %}{{ '\\n' }}{% endfor %}"                               \
    "{% if add_generation_prompt %}<assistant>{% endif %}"
/* Bytes are tokens. */
#define TOKENIZER                                                                                  \
    "{\"added_tokens\": [], \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": "   \
    "false, \"use_regex\": false}, \"model\": {\"type\": \"BPE\", \"vocab\": {%s}, \"merges\": "   \
    "[]}}"

typedef struct {
    RpTokenizer *tokenizer;
    RpChat *plain;
    RpChat *marked;
} Readers;

static RpChat *
open_chat(const char *folder, const RpTokenizer *tokenizer, const char *template)
{
    g_autoptr(GTimeZone) zone = g_time_zone_new_utc();
    g_autoptr(GDateTime) now = g_date_time_new(zone, 2024, 7, 4, 15, 5, 9);
    g_autofree char *path = g_build_filename(folder, "chat_template.jinja", NULL);
    const RpChatOptions options = {.now = now};

    g_assert(g_file_set_contents(path, template, -1, NULL));
    RpChat *chat = rp_chat_open(folder, tokenizer, &options, NULL);
    g_assert(chat != NULL);
    g_unlink(path);
    return chat;
}

/* The letters by which byte-level vocabularies write bytes. */
static RpTokenizer *
make_tokenizer(void)
{
    g_autoptr(GString) vocabulary = g_string_new(NULL);
    guint n_others = 0;

    for (guint byte = 0; byte < 256; byte++) {
        const gboolean shown = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
        const gunichar letter = shown ? byte : 256 + n_others++;
        g_string_append(vocabulary, byte > 0 ? ", \"" : "\"");
        if (letter == '"' || letter == '\\')
            g_string_append_c(vocabulary, '\\');
        g_string_append_unichar(vocabulary, letter);
        g_string_append_printf(vocabulary, "\": %u", byte);
    }
    g_autofree char *json = g_strdup_printf(TOKENIZER, vocabulary->str);
    g_autoptr(GError) error = NULL;
    RpTokenizer *tokenizer = rp_tokenizer_parse("fuzz", json, strlen(json), &error);
    g_assert_no_error(error);
    return tokenizer;
}

static const Readers *
get_readers(void)
{
    static Readers readers;

    if (readers.tokenizer != NULL)
        return &readers;
    g_autofree char *folder = g_dir_make_tmp("fuzz-chat-XXXXXX", NULL);
    g_assert(folder != NULL);
    readers.tokenizer = make_tokenizer();
    readers.plain = open_chat(folder, readers.tokenizer, TURNS("", ""));
    readers.marked =
        open_chat(folder, readers.tokenizer, TURNS("{% generation %}", "{% endgeneration %}"));
    g_rmdir(folder);
    return &readers;
}

static void
check_text(const RpChat *chat, const char *json, gsize length, const RpChatSample *sample)
{
    g_auto(RpChatText) text = {0};
    g_autoptr(GError) error = NULL;
    gsize last = 0, n_bytes = 0;
    const gboolean done = rp_chat_render(chat, "fuzz", 3, json, length, &text, &error);

    g_assert(was_taken(done, error));
    for (guint i = 0; i < text.spans->len; i++) {
        const RpChatSpan *span = &g_array_index(text.spans, RpChatSpan, i);
        g_assert(span->start >= last && span->start < span->end && span->end <= text.text->len);
        g_assert(span->weight > 0.0);
        last = span->end;
        n_bytes += span->end - span->start;
    }
    g_assert(sample->n_learned == n_bytes);
}

/* Returns: whether there is a sample */
static gboolean
check_sample(const RpChat *chat, const char *json, gsize length, RpChatSample *sample)
{
    g_autoptr(GError) error = NULL;
    const gboolean done = rp_chat_sample(chat, "fuzz", 3, json, length, sample, &error);

    if (!was_taken(done, error)) {
        g_assert(g_str_has_prefix(error->message, "fuzz: line "));
        return FALSE;
    }
    g_assert(sample->labels->len == sample->ids->len);
    g_assert(sample->weights->len == 0 || sample->weights->len == sample->ids->len);
    for (guint i = 0; i < sample->ids->len; i++) {
        const gint32 id = g_array_index(sample->ids, gint32, i);
        const gint32 label = g_array_index(sample->labels, gint32, i);
        g_assert(id >= 0 && id < 256 && (label == RP_CHAT_MASKED || (label >= 0 && label < 256)));
    }
    check_text(chat, json, length, sample);
    return TRUE;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const Readers *readers = get_readers();
    g_auto(RpChatSample) plain = {0}, marked = {0};
    g_autofree char *json = g_strndup((const char *)data, size);

    if (!check_sample(readers->plain, json, strnlen(json, size), &plain) ||
        !check_sample(readers->marked, json, strnlen(json, size), &marked))
        return 0;
    const gsize n_bytes = plain.ids->len * sizeof(gint32);
    g_assert_cmpmem(plain.ids->data, n_bytes, marked.ids->data, marked.ids->len * sizeof(gint32));
    return 0;
}
