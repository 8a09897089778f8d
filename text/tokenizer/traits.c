/* A tokenizer's parts for those who write it in other formats. */
#include "text/tokenizer/private.h"

#include <string.h>

#define WORD_MARK "\xe2\x96\x81" /* ▁ */

gboolean
rp_tokenizer_is_added(const RpTokenizer *tokenizer, guint32 id)
{
    for (guint i = 0; i < tokenizer->added->len; i++)
        if (g_array_index(tokenizer->added, RpAddedToken, i).id == id)
            return TRUE;
    return FALSE;
}

/* ---- merges ---- */

static int
compare_ranks(gconstpointer a, gconstpointer b)
{
    const RpMerge *left = a, *right = b;

    return (left->rank > right->rank) - (left->rank < right->rank);
}

GArray *
rp_tokenizer_merges(const RpTokenizer *tokenizer)
{
    const RpMerges *merges = &tokenizer->merges;
    const gsize slots = merges->slots != NULL ? (gsize)1 << (64 - merges->shift) : 0;
    g_autoptr(GArray) sorted = g_array_sized_new(FALSE, FALSE, sizeof(RpMerge), merges->n);
    GArray *result = g_array_sized_new(FALSE, FALSE, sizeof(RpTokenMerge), merges->n);

    for (gsize i = 0; i < slots; i++)
        if (merges->slots[i].rank != RP_TOKEN_NONE)
            g_array_append_val(sorted, merges->slots[i]);
    g_array_sort(sorted, compare_ranks);
    for (guint i = 0; i < sorted->len; i++) {
        const RpMerge *merge = &g_array_index(sorted, RpMerge, i);
        const RpTokenMerge pair = {(guint32)(merge->pair >> 32), (guint32)merge->pair, merge->id};

        g_array_append_val(result, pair);
    }
    return result;
}

/* ---- traits ---- */

/* Whether @step only marks spaces, as SentencePiece does. */
static gboolean
marks_spaces(const RpStep *step)
{
    if (step->kind == RP_STEP_PREPEND)
        return strcmp(step->content, WORD_MARK) == 0;
    return step->kind == RP_STEP_REPLACE && strcmp(step->content, WORD_MARK) == 0 &&
           strcmp(rp_pattern_text(step->pattern), " ") == 0;
}

static void
look_at_normalizers(const RpTokenizer *tokenizer, RpTokenizerTraits *traits)
{
    for (guint i = 0; i < tokenizer->normalizers->len; i++) {
        const RpStep *step = &g_array_index(tokenizer->normalizers, RpStep, i);
        const gboolean harmless =
            tokenizer->byte_level ? step->kind == RP_STEP_NFC : marks_spaces(step);

        traits->adds_prefix |= step->kind == RP_STEP_PREPEND;
        traits->changes_text |= !harmless;
    }
}

/* (transfer full) (nullable) */
static char *
list_patterns(const GArray *splits)
{
    g_autoptr(GString) text = g_string_new(NULL);

    for (guint i = 0; i < splits->len; i++) {
        const RpStep *step = &g_array_index(splits, RpStep, i);

        if (step->behavior != (step->invert ? RP_SPLIT_REMOVED : RP_SPLIT_ISOLATED))
            return NULL;
        g_string_append_printf(text, "%s%s", i > 0 ? "\n" : "", rp_pattern_text(step->pattern));
    }
    return text->len > 0 ? g_string_free(g_steal_pointer(&text), FALSE) : NULL;
}

RpTokenizerTraits
rp_tokenizer_traits(const RpTokenizer *tokenizer)
{
    RpTokenizerTraits traits = {.byte_level = tokenizer->byte_level,
                                .byte_fallback = tokenizer->byte_fallback,
                                .ignores_merges = tokenizer->ignore_merges,
                                .adds_prefix = tokenizer->prefix != RP_PREFIX_NEVER,
                                .unk = tokenizer->unk,
                                .patterns = list_patterns(tokenizer->splits)};

    /* byte-level files may put a space before a text: only SentencePiece's have a name for that */
    traits.changes_text = traits.byte_level && traits.adds_prefix;
    look_at_normalizers(tokenizer, &traits);
    return traits;
}

void
rp_tokenizer_traits_clear(RpTokenizerTraits *traits)
{
    g_clear_pointer(&traits->patterns, g_free);
}
