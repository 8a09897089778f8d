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

    if (id >= vocabulary->contents->len)
        g_array_set_size(vocabulary->contents, id + 1);
    if (g_array_index(vocabulary->contents, RpVocabularyText, id).length > 0)
        return FALSE;
    if (2 * (guint64)vocabulary->n_tokens > vocabulary->mask)
        grow(vocabulary);
    guint32 slot = find_slot(vocabulary, content, length);
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

/*
 * Tokens that are looked for before anything else: of those that match at the leftmost place, the
 * longest. A sorted table is narrowed byte by byte.
 */

static int
compare(gconstpointer a, gconstpointer b)
{
    const RpAddedToken *left = a, *right = b;
    const int order = memcmp(left->content, right->content, MIN(left->length, right->length));

    return order != 0 ? order : (left->length > right->length) - (left->length < right->length);
}

void
rp_added_settle(RpAddedSet *set)
{
    g_array_sort(set->tokens, compare);
    for (guint i = 0; i < set->tokens->len; i++)
        set->starts[(guint8)*g_array_index(set->tokens, RpAddedToken, i).content] = TRUE;
}

/* The first of @tokens from @low to @high whose byte @depth is at least @byte; all have as many
 * bytes, but the first perhaps. */
static guint
lower(const RpAddedToken *tokens, guint low, guint high, guint depth, guint byte)
{
    while (low < high) {
        const guint middle = low + (high - low) / 2;

        if (tokens[middle].length <= depth || (guint8)tokens[middle].content[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest token that stands at @text, or %NULL. */
static const RpAddedToken *
longest_at(const GArray *array, const char *text, gsize length)
{
    const RpAddedToken *tokens = (const RpAddedToken *)(const void *)array->data;
    const RpAddedToken *longest = NULL;
    guint low = 0, high = array->len;

    for (guint depth = 0; low < high; depth++) {
        if (depth > 0 && tokens[low].length == depth)
            longest = &tokens[low];
        if (depth == length)
            break;
        const guint8 byte = (guint8)text[depth];

        low = lower(tokens, low, high, depth, byte);
        high = lower(tokens, low, high, depth, byte + 1u);
    }
    return longest;
}

/* ---- neighbours ---- */

static gboolean
is_word(gunichar c)
{
    return g_unichar_isalpha(c) || g_unichar_isdigit(c) || g_unichar_ismark(c) ||
           g_unichar_type(c) == G_UNICODE_CONNECT_PUNCTUATION ||
           g_unichar_type(c) == G_UNICODE_LETTER_NUMBER || c == 0x200c || c == 0x200d;
}

static gboolean
is_space(gunichar c)
{
    return g_unichar_isspace(c) || c == 0x0b || c == 0x85;
}

static gboolean
stands_alone(const char *text, gsize length, gsize start, gsize end)
{
    return (start == 0 || !is_word(g_utf8_get_char(g_utf8_prev_char(text + start)))) &&
           (end == length || !is_word(g_utf8_get_char(text + end)));
}

/* The next token from state->search on, with the space that it takes. */
static gboolean
find_next(const RpAddedSet *set, gboolean plain, const char *text, gsize length,
          RpAddedState *state, RpAddedMatch *match)
{
    while (state->search < length) {
        if (!set->starts[(guint8)text[state->search]]) {
            state->search++;
            continue;
        }
        const RpAddedToken *token =
            longest_at(set->tokens, text + state->search, length - state->search);
        gsize start = state->search, end;

        if (token == NULL) {
            state->search++;
            continue;
        }
        state->search = end = start + token->length;
        if ((plain && token->special) ||
            (token->single_word && !stands_alone(text, length, start, end)))
            continue;
        while (token->lstrip && start > state->at &&
               is_space(g_utf8_get_char(g_utf8_prev_char(text + start))))
            start = (gsize)(g_utf8_prev_char(text + start) - text);
        while (token->rstrip && end < length && is_space(g_utf8_get_char(text + end)))
            end = (gsize)(g_utf8_next_char(text + end) - text);
        *match = (RpAddedMatch){MAX(start, state->at), MAX(end, state->at), token->id};
        return TRUE;
    }
    return FALSE;
}

gboolean
rp_added_next(const RpAddedSet *set, gboolean plain, const char *text, gsize length,
              RpAddedState *state, RpAddedMatch *part)
{
    if (!state->held && set->tokens->len > 0)
        state->held = find_next(set, plain, text, length, state, &state->match);

    const gsize text_end = state->held ? state->match.start : length;

    if (state->at < text_end) {
        *part = (RpAddedMatch){state->at, text_end, RP_TOKEN_NONE};
        state->at = text_end;
        return TRUE;
    }
    if (!state->held)
        return FALSE;
    *part = state->match;
    state->at = state->match.end;
    state->held = FALSE;
    return TRUE;
}
