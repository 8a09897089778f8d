#include "text/template/values/value.h"

#include <string.h>

gboolean
rp_is_space(gunichar c)
{
    return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

guint
rp_string_length(RpValue string)
{
    guint n = 0;

    for (guint i = 0; i < string.length; i++)
        n += ((guchar)string.text[i] & 0xc0) != 0x80;
    return n;
}

RpList *
rp_string_characters(RpArena *arena, RpValue string)
{
    RpList *list = rp_list_new(arena, rp_string_length(string));
    guint bytes = 0;

    for (guint i = 0; i < string.length; i += bytes) {
        rp_char_at(string.text + i, &bytes);
        rp_list_append(arena, list, rp_value_text(string.text + i, bytes));
    }
    return list;
}

/* Whether the character of @bytes at @text goes. */
static gboolean
strips(const char *text, guint bytes, const RpValue *chars)
{
    if (chars == NULL)
        return rp_is_space(g_utf8_get_char(text));
    return chars->length > 0 && memmem(chars->text, chars->length, text, bytes) != NULL;
}

RpValue
rp_string_strip(RpValue string, const RpValue *chars, gboolean left, gboolean right)
{
    const char *start = string.text, *end = start + string.length;

    while (left && start < end && strips(start, g_utf8_skip[(guchar)*start], chars))
        start += g_utf8_skip[(guchar)*start];
    while (right && start < end) {
        const char *last = end - 1;
        while (((guchar)*last & 0xc0) == 0x80)
            last--;
        if (!strips(last, (guint)(end - last), chars))
            break;
        end = last;
    }
    return rp_value_text(start, (gsize)(end - start));
}

RpValue
rp_string_case(RpArena *arena, RpValue string, RpCase kind)
{
    g_autoptr(GString) text = g_string_sized_new(string.length);
    gboolean starts = TRUE; /* a word, or the string */
    guint bytes = 0;

    for (guint i = 0; i < string.length; i += bytes) {
        const gunichar c = rp_char_at(string.text + i, &bytes);
        const gboolean border = c < 0x80 && strchr("-({[<", (int)c) != NULL && c != 0;
        const gboolean upper = kind == RP_CASE_UPPER || (starts && kind != RP_CASE_LOWER);
        if (c < 0x80)
            g_string_append_c(
                text, (gchar)(upper ? g_ascii_toupper((gchar)c) : g_ascii_tolower((gchar)c)));
        else if (kind == RP_CASE_UPPER || (starts && kind == RP_CASE_FILTER_TITLE))
            g_string_append_unichar(text, g_unichar_toupper(c));
        else if (kind != RP_CASE_LOWER && starts)
            g_string_append_unichar(text, g_unichar_totitle(c));
        else
            g_string_append_unichar(text, g_unichar_tolower(c));
        if (kind == RP_CASE_TITLE)
            starts = !g_unichar_isalpha(c);
        else
            starts = kind == RP_CASE_FILTER_TITLE && (border || rp_is_space(c));
    }
    return rp_value_copy(arena, text->str, text->len);
}

/* Finds the last @part in @string, matching from its end on: each byte is looked at twice. */
static gssize
find_last(RpValue string, RpValue part)
{
    const guint n = part.length;
    const char *tail = part.text + n - 1, *end = string.text + string.length - 1;
    g_autofree guint *border =
        g_new0(guint, n); /* [length] the longest part that both begins and ends it */

    for (guint i = 1, k = 0; i < n; i++) {
        while (k > 0 && tail[-(gssize)k] != tail[-(gssize)i])
            k = border[k - 1];
        k += tail[-(gssize)k] == tail[-(gssize)i];
        border[i] = k;
    }
    for (guint i = 0, k = 0; i < string.length; i++) {
        while (k > 0 && tail[-(gssize)k] != end[-(gssize)i])
            k = border[k - 1];
        k += tail[-(gssize)k] == end[-(gssize)i];
        if (k == n)
            return (gssize)(string.length - 1 - i);
    }
    return -1;
}

gssize
rp_string_find(RpValue string, RpValue part, gboolean last)
{
    if (part.length > string.length)
        return -1;
    if (part.length == 0)
        return last ? (gssize)string.length : 0;
    if (!last) {
        const char *found = memmem(string.text, string.length, part.text, part.length);
        return found == NULL ? -1 : found - string.text;
    }
    return find_last(string, part);
}

gboolean
rp_string_starts(RpValue string, RpValue part)
{
    return part.length <= string.length &&
           (part.length == 0 || memcmp(string.text, part.text, part.length) == 0);
}

gboolean
rp_string_ends(RpValue string, RpValue part)
{
    return part.length <= string.length &&
           (part.length == 0 ||
            memcmp(string.text + string.length - part.length, part.text, part.length) == 0);
}

static RpValue
part_of(RpValue string, gsize from, gsize to)
{
    return rp_value_text(string.text + from, to - from);
}

static void
reverse(RpList *list)
{
    for (guint i = 0; i < list->length / 2; i++) {
        RpValue item = list->items[i];
        list->items[i] = list->items[list->length - 1 - i];
        list->items[list->length - 1 - i] = item;
    }
}

/* At space: no empty parts. */
static RpList *
split_at_space(RpArena *arena, RpValue string, gint64 most, gboolean right)
{
    RpList *list = rp_list_new(arena, 0);
    RpValue rest = rp_string_strip(string, NULL, !right, right);

    while (rest.length > 0) {
        guint from = right ? rest.length : 0, bytes = 0;
        if (most >= 0 && list->length >= most) {
            rp_list_append(arena, list, rest);
            break;
        }
        if (right) {
            while (from > 0) {
                guint start = from - 1;
                while (((guchar)rest.text[start] & 0xc0) == 0x80)
                    start--;
                if (rp_is_space(g_utf8_get_char(rest.text + start)))
                    break;
                from = start;
            }
            rp_list_append(arena, list, part_of(rest, from, rest.length));
            rest = rp_string_strip(part_of(rest, 0, from), NULL, FALSE, TRUE);
        } else {
            while (from < rest.length && !rp_is_space(rp_char_at(rest.text + from, &bytes)))
                from += bytes;
            rp_list_append(arena, list, part_of(rest, 0, from));
            rest = rp_string_strip(part_of(rest, from, rest.length), NULL, TRUE, FALSE);
        }
    }
    return list;
}

RpList *
rp_string_split(RpArena *arena, RpValue string, RpValue separator, gint64 most, gboolean right)
{
    if (separator.type != RP_VALUE_STRING) {
        RpList *words = split_at_space(arena, string, most, right);
        if (right)
            reverse(words);
        return words;
    }
    RpList *list = rp_list_new(arena, 0);
    RpValue rest = string;

    while (most < 0 || list->length < most) {
        gssize at = rp_string_find(rest, separator, right);
        if (at < 0)
            break;
        if (right) {
            rp_list_append(arena, list, part_of(rest, (gsize)at + separator.length, rest.length));
            rest = part_of(rest, 0, (gsize)at);
        } else {
            rp_list_append(arena, list, part_of(rest, 0, (gsize)at));
            rest = part_of(rest, (gsize)at + separator.length, rest.length);
        }
    }
    rp_list_append(arena, list, rest);
    if (right)
        reverse(list);
    return list;
}

RpList *
rp_string_lines(RpArena *arena, RpValue string)
{
    RpList *list = rp_list_new(arena, 0);
    guint start = 0, bytes = 0;

    for (guint i = 0; i < string.length; i += bytes) {
        const gunichar c = rp_char_at(string.text + i, &bytes);
        if ((c < 0x0a || c > 0x0d) && (c < 0x1c || c > 0x1e) && c != 0x85 && c != 0x2028 &&
            c != 0x2029)
            continue;
        rp_list_append(arena, list, part_of(string, start, i));
        if (c == '\r' && i + 1 < string.length && string.text[i + 1] == '\n')
            bytes = 2;
        start = i + bytes;
    }
    if (start < string.length)
        rp_list_append(arena, list, part_of(string, start, string.length));
    return list;
}

gboolean
rp_string_replace(RpArena *arena, RpValue string, RpValue old, RpValue with, gint64 most,
                  RpValue *replaced)
{
    g_autoptr(GString) text = g_string_sized_new(string.length);
    RpValue rest = string;
    guint bytes = 0;

    for (gint64 n = 0; most < 0 || n < most; n++) {
        gssize at = rp_string_find(rest, old, FALSE);
        if (at < 0)
            break;
        g_string_append_len(text, rest.text, at);
        g_string_append_len(text, with.text, with.length);
        if (!rp_arena_has_space(arena, text->len))
            return FALSE;
        rest = part_of(rest, (gsize)at + old.length, rest.length);
        if (old.length > 0)
            continue;
        if (rest.length == 0) /* an empty one stands before each character and at the end */
            break;
        rp_char_at(rest.text, &bytes);
        g_string_append_len(text, rest.text, bytes);
        rest = part_of(rest, bytes, rest.length);
    }
    g_string_append_len(text, rest.text, rest.length);
    if (!rp_arena_has_space(arena, text->len))
        return FALSE;
    *replaced = rp_value_copy(arena, text->str, text->len);
    return TRUE;
}
