/**
 * The longest of many words that begins a text.
 *
 *   words a, ab, abcd; text abce:  root - a - b - c    deepest node abc; the longest word on its way: ab
 */
#pragma once

#include <glib.h>

#define RP_TRIE_NONE G_MAXUINT32

typedef struct {
    const char *text;
    guint32 length; /* bytes, at least 1 */
    guint32 id;
} RpTrieWord;

typedef struct _RpTrie RpTrie;

/* Compares two RpTrieWord by their bytes. */
int rp_trie_compare(gconstpointer a, gconstpointer b);

/**
 * rp_trie_new:
 * @words: (element-type RpTrieWord): each text once, in the order of rp_trie_compare()
 * @shorter: (out): by id of a word, the longest other word that begins it, or %RP_TRIE_NONE
 *
 * Returns: (transfer full)
 */
RpTrie *rp_trie_new(const GArray *words, guint32 *shorter);
void rp_trie_free(RpTrie *trie);
/* The word's id, or %RP_TRIE_NONE: none begins @text, which has @length bytes, at least 1. */
guint32 rp_trie_longest(const RpTrie *trie, const char *text, gsize length);
