/*
 * Tokens that are looked for before anything else: of those that match at the leftmost place, the
 * longest. A sorted table is narrowed byte by byte.
 */
#include "text/tokenizer/private.h"

#include <string.h>

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
