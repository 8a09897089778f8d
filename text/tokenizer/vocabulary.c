/* Tokens by id and by content: one open-addressing table over texts that stand in one array. */
#include "text/tokenizer/private.h"

#include <string.h>

#include "core/base/hash.h"

#define FIRST_SLOTS 1024

void
rp_vocabulary_init(RpVocabulary *vocabulary)
{
    *vocabulary = (RpVocabulary){
        .texts = g_byte_array_new(),
        .contents = g_array_new(FALSE, TRUE, sizeof(RpVocabularyText)),
        .bytes = g_array_new(FALSE, TRUE, sizeof(RpVocabularyText)),
        .slots = g_new(guint32, FIRST_SLOTS),
        .mask = FIRST_SLOTS - 1,
    };
    memset(vocabulary->slots, 0xff, FIRST_SLOTS * sizeof *vocabulary->slots);
    g_byte_array_append(vocabulary->texts, (const guint8 *)"", 1); /* the text of no token */
}

void
rp_vocabulary_clear(RpVocabulary *vocabulary)
{
    g_clear_pointer(&vocabulary->texts, g_byte_array_unref);
    g_clear_pointer(&vocabulary->contents, g_array_unref);
    g_clear_pointer(&vocabulary->bytes, g_array_unref);
    g_clear_pointer(&vocabulary->slots, g_free);
}

static const char *
text_of(const RpVocabulary *vocabulary, const GArray *texts, guint32 id, gsize *length)
{
    const RpVocabularyText *text = &g_array_index(texts, RpVocabularyText, id);

    *length = text->length;
    return (const char *)vocabulary->texts->data + text->at;
}

const char *
rp_vocabulary_content(const RpVocabulary *vocabulary, guint32 id, gsize *length)
{
    return text_of(vocabulary, vocabulary->contents, id, length);
}

const char *
rp_vocabulary_bytes(const RpVocabulary *vocabulary, guint32 id, gsize *length)
{
    return text_of(vocabulary, vocabulary->bytes, id, length);
}

/* The slot of @content, or the empty one where it belongs. */
static guint32
find_slot(const RpVocabulary *vocabulary, const char *content, gsize length)
{
    guint32 slot = (guint32)rp_hash64(content, length, 0) & vocabulary->mask;

    for (;; slot = (slot + 1) & vocabulary->mask) {
        gsize other_length;

        if (vocabulary->slots[slot] == RP_TOKEN_NONE)
            return slot;
        const char *other =
            rp_vocabulary_content(vocabulary, vocabulary->slots[slot], &other_length);
        if (other_length == length && memcmp(other, content, length) == 0)
            return slot;
    }
}

guint32
rp_vocabulary_find(const RpVocabulary *vocabulary, const char *content, gsize length)
{
    return vocabulary->slots[find_slot(vocabulary, content, length)];
}

static void
grow(RpVocabulary *vocabulary)
{
    const gsize n = 2 * ((gsize)vocabulary->mask + 1);

    vocabulary->slots = g_renew(guint32, vocabulary->slots, n);
    memset(vocabulary->slots, 0xff, n * sizeof *vocabulary->slots);
    vocabulary->mask = (guint32)(n - 1);
    for (guint32 id = 0; id < vocabulary->contents->len; id++) {
        gsize length;
        const char *content = rp_vocabulary_content(vocabulary, id, &length);

        if (length > 0)
            vocabulary->slots[find_slot(vocabulary, content, length)] = id;
    }
}

gboolean
rp_vocabulary_add(RpVocabulary *vocabulary, const char *content, gsize length, guint32 id)
{
    RpVocabularyText text = {vocabulary->texts->len, (guint32)length};
    guint32 slot;

    if (id >= vocabulary->contents->len)
        g_array_set_size(vocabulary->contents, id + 1);
    if (g_array_index(vocabulary->contents, RpVocabularyText, id).length > 0)
        return FALSE;
    if (2 * (guint64)vocabulary->n_tokens > vocabulary->mask)
        grow(vocabulary);
    slot = find_slot(vocabulary, content, length);
    if (vocabulary->slots[slot] != RP_TOKEN_NONE)
        return FALSE;
    g_byte_array_append(vocabulary->texts, (const guint8 *)content, (guint)length);
    g_byte_array_append(vocabulary->texts, (const guint8 *)"", 1);
    g_array_index(vocabulary->contents, RpVocabularyText, id) = text;
    vocabulary->slots[slot] = id;
    vocabulary->n_tokens++;
    return TRUE;
}

/* ---- byte-level files: printable characters for all bytes ---- */

/* The character of a byte: itself where Latin-1 prints it, else one from U+0100 on, in order. */
static gunichar
character_of(guint8 byte)
{
    if ((byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad))
        return byte;
    return byte <= 0x20 ? 0x100u + byte : byte == 0xad ? 0x143 : 0x121u + (byte - 0x7fu);
}

/* Its byte; -1: none is written so. */
static int
byte_of(gunichar c)
{
    if (c < 0x100)
        return character_of((guint8)c) == c ? (int)c : -1;
    return c <= 0x120   ? (int)(c - 0x100)
           : c <= 0x142 ? (int)(c - 0x121 + 0x7f)
           : c == 0x143 ? 0xad
                        : -1;
}

guint
rp_byte_level_character(guint8 byte, char text[2])
{
    const gunichar c = character_of(byte);

    if (c < 0x80) {
        text[0] = (char)c;
        return 1;
    }
    text[0] = (char)(0xc0 | c >> 6);
    text[1] = (char)(0x80 | (c & 0x3f));
    return 2;
}

/* A content with a character that no byte is written as stands for itself. */
static RpVocabularyText
add_bytes(RpVocabulary *vocabulary, const RpVocabularyText *content)
{
    RpVocabularyText text = {vocabulary->texts->len, 0};

    for (guint32 at = 0; at < content->length;) {
        const char *p = (const char *)vocabulary->texts->data + content->at + at;
        const int byte = byte_of(g_utf8_get_char(p));
        const guint8 value = (guint8)byte;

        if (byte < 0) {
            g_byte_array_set_size(vocabulary->texts, text.at);
            return *content;
        }
        at += (guint32)(g_utf8_next_char(p) - p);
        g_byte_array_append(vocabulary->texts, &value, 1);
        text.length++;
    }
    return text;
}

void
rp_vocabulary_decode_as(RpVocabulary *vocabulary, guint32 id, const char *content, gsize length)
{
    const RpVocabularyText text = {vocabulary->texts->len, (guint32)length};

    g_byte_array_append(vocabulary->texts, (const guint8 *)content, (guint)length);
    g_array_index(vocabulary->bytes, RpVocabularyText, id) = add_bytes(vocabulary, &text);
}

void
rp_vocabulary_settle(RpVocabulary *vocabulary)
{
    g_array_set_size(vocabulary->bytes, vocabulary->contents->len);
    for (guint32 id = 0; id < vocabulary->contents->len; id++) {
        const RpVocabularyText *content =
            &g_array_index(vocabulary->contents, RpVocabularyText, id);

        if (content->length > 0)
            g_array_index(vocabulary->bytes, RpVocabularyText, id) = add_bytes(vocabulary, content);
    }
}
