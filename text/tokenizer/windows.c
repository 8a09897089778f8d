/*
 * Byte-pair encoding of strings of any length, window by window:
 *
 *   |------- window -------|
 *   t t t t t t t t | u u u u        the tokens of the window; those at its end may be others in the
 *                   |------- window -------|                                     whole string
 *                   u' u u u u u u u u | …
 *
 * The next window begins at a token well before the end of this one. The tokens before that are right
 * if t and u' stay two when they are encoded together. For this rule it suffices that all neighbours
 * do: where merges ascend (rp_merges_ascend()), the first merge across a border between two tokens
 * sees these two as they are when they stand alone, so it would join them then too. (The rule is that
 * of github/rust-gems, crates/bpe, "valid pairs".) Else the window grows.
 */
#include "text/tokenizer/private.h"

#define WINDOW_BYTES 8192
#define OVERLAP_BYTES 1024

typedef struct {
    const RpTokenizer *tokenizer;
    const char *piece;
    gsize length;
    RpMergeWork *work;
} Windows;

/* Encodes @piece from @start to @end, with ends of symbols in the piece. */
static void
encode(const Windows *windows, gsize start, gsize end)
{
    GArray *symbols = windows->work->symbols;

    rp_bpe_merge(windows->tokenizer, windows->piece + start, end - start, windows->work);
    for (guint i = 0; i < symbols->len; i++)
        g_array_index(symbols, RpSymbol, i).end += (guint32)start;
}

/* The end of a window of @bytes, between characters. */
static gsize
end_of(const Windows *windows, gsize start, gsize bytes)
{
    gsize end = windows->length - start > bytes ? start + bytes : windows->length;

    while (!windows->tokenizer->byte_level && end < windows->length &&
           (windows->piece[end] & 0xc0) == 0x80)
        end++;
    return end;
}

/* How many of the window's tokens lie before the next window: up to OVERLAP_BYTES before @end. */
static guint
count_before(const Windows *windows, gsize end)
{
    const RpSymbol *symbols = (const RpSymbol *)(const void *)windows->work->window->data;
    guint n = windows->work->window->len;

    while (n > 0 && (symbols[n - 1].end + OVERLAP_BYTES > end ||
                     (!windows->tokenizer->byte_level &&
                      (windows->piece[symbols[n - 1].end] & 0xc0) == 0x80)))
        n--;
    return n;
}

/* Whether the window's token before @n and the first of work->symbols stay two. @asked: work->symbols
 * are those of the question now */
static gboolean
stay_apart(const Windows *windows, guint n, gsize start, gboolean *asked)
{
    RpMergeWork *work = windows->work;
    const RpSymbol *left = &g_array_index(work->window, RpSymbol, n - 1);
    const RpSymbol right = g_array_index(work->symbols, RpSymbol, 0);
    const RpSymbol *was = left + 1;

    *asked = n == work->window->len || was->id != right.id || was->end != right.end;
    if (!*asked)
        return TRUE;
    encode(windows, n > 1 ? left[-1].end : start, right.end);
    const RpSymbol *both = (const RpSymbol *)(const void *)work->symbols->data;

    return work->symbols->len == 2 && both[0].id == left->id && both[0].end == left->end &&
           both[1].id == right.id;
}

/* Makes work->symbols the window. */
static void
take_window(RpMergeWork *work)
{
    GArray *window = work->window;

    work->window = work->symbols;
    work->symbols = window;
}

void
rp_bpe_split(const RpTokenizer *tokenizer, const char *piece, gsize length, RpMergeWork *work)
{
    const Windows windows = {tokenizer, piece, length, work};
    gsize start = 0, bytes = WINDOW_BYTES, end;

    if (length <= WINDOW_BYTES || !tokenizer->ascends) {
        rp_bpe_merge(tokenizer, piece, length, work);
        return;
    }
    g_array_set_size(work->done, 0);
    encode(&windows, 0, end = end_of(&windows, 0, bytes));
    take_window(work);
    while (end < length) {
        const guint n = count_before(&windows, end);
        const gsize next = n > 0 ? g_array_index(work->window, RpSymbol, n - 1).end : start;
        const gsize next_end = end_of(&windows, next, WINDOW_BYTES);

        gboolean asked = FALSE;

        if (n > 0)
            encode(&windows, next, next_end);
        if (n == 0 || work->symbols->len == 0 || !stay_apart(&windows, n, start, &asked)) {
            bytes *= 2;
            encode(&windows, start, end = end_of(&windows, start, bytes));
            take_window(work);
            continue;
        }
        if (asked)
            encode(&windows, next, next_end);
        g_array_append_vals(work->done, work->window->data, n);
        take_window(work);
        start = next;
        end = next_end;
        bytes = WINDOW_BYTES;
    }
    g_array_append_vals(work->done, work->window->data, work->window->len);
    GArray *all = work->done;

    work->done = work->symbols;
    work->symbols = all;
}
