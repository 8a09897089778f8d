/*
 * Nodes are numbered level by level, so the children of a node stand together, and those of the next
 * node behind them: two arrays hold all. The first two bytes are looked up in a table.
 */
#include "text/tokenizer/private.h"

#include <string.h>

#define PAIRS 65536
#define FEW 8

typedef struct {
    guint32 children; /* the first; those of the next node follow its last */
    guint32 longest;  /* word on the way to it */
} Node;

struct _RpTrie {
    Node *nodes;
    guint8 *labels; /* by node: its last byte */
    guint32 *pairs; /* nodes by first and second byte; 0: there is none */
    guint32 singles[256];
};

/* A node while it waits for its children: words that begin alike. */
typedef struct {
    guint32 from, to, depth;
    guint32 longest;
} Words;

int
rp_trie_compare(gconstpointer a, gconstpointer b)
{
    const RpTrieWord *one = a, *other = b;
    const int order = memcmp(one->text, other->text, MIN(one->length, other->length));

    return order != 0 ? order : (one->length > other->length) - (one->length < other->length);
}

/* Appends the children of a node of @words. */
static void
append_children(GArray *waiting, GByteArray *labels, const GArray *all, Words words)
{
    const RpTrieWord *word = (const RpTrieWord *)(const void *)all->data;

    for (guint32 i = words.from, from; i < words.to;) {
        const guint8 label = (guint8)word[i].text[words.depth];

        for (from = i; i < words.to && (guint8)word[i].text[words.depth] == label;)
            i++;
        const Words child = {from, i, words.depth + 1, words.longest};

        g_array_append_val(waiting, child);
        g_byte_array_append(labels, &label, 1);
    }
}

static void
fill_tables(RpTrie *trie)
{
    trie->pairs = g_new0(guint32, PAIRS);
    memset(trie->singles, 0xff, sizeof trie->singles);
    for (guint32 i = trie->nodes[0].children; i < trie->nodes[1].children; i++) {
        trie->singles[trie->labels[i]] = trie->nodes[i].longest;
        for (guint32 j = trie->nodes[i].children; j < trie->nodes[i + 1].children; j++)
            trie->pairs[(guint)trie->labels[i] << 8 | trie->labels[j]] = j;
    }
}

RpTrie *
rp_trie_new(const GArray *words, guint32 *shorter)
{
    RpTrie *trie = g_new0(RpTrie, 1);
    g_autoptr(GArray) waiting = g_array_new(FALSE, FALSE, sizeof(Words));
    GArray *nodes = g_array_new(FALSE, FALSE, sizeof(Node));
    GByteArray *labels = g_byte_array_new();
    const Words root = {0, words->len, 0, RP_TRIE_NONE};

    g_array_append_val(waiting, root);
    g_byte_array_append(labels, (const guint8 *)"", 1);
    for (guint32 i = 0; i < waiting->len; i++) {
        Words here = g_array_index(waiting, Words, i);
        const RpTrieWord *first = &g_array_index(words, RpTrieWord, here.from);

        if (here.from < here.to && first->length == here.depth) {
            shorter[first->id] = here.longest;
            here.longest = first->id;
            here.from++;
        }
        const Node node = {waiting->len, here.longest};

        g_array_append_val(nodes, node);
        append_children(waiting, labels, words, here);
    }
    const Node end = {waiting->len, RP_TRIE_NONE};

    g_array_append_val(nodes, end);
    trie->nodes = (Node *)(void *)g_array_free(nodes, FALSE);
    trie->labels = g_byte_array_free(labels, FALSE);
    fill_tables(trie);
    return trie;
}

void
rp_trie_free(RpTrie *trie)
{
    if (trie == NULL)
        return;
    g_free(trie->nodes);
    g_free(trie->labels);
    g_free(trie->pairs);
    g_free(trie);
}

/* 0: it has no such child. */
static inline guint32
find_child(const RpTrie *trie, guint32 node, guint8 label)
{
    guint32 at = trie->nodes[node].children;
    const guint32 end = trie->nodes[node + 1].children;

    if (end - at > FEW) {
        const guint8 *found = memchr(trie->labels + at, label, end - at);

        return found != NULL ? (guint32)(found - trie->labels) : 0;
    }
    for (; at < end; at++)
        if (trie->labels[at] == label)
            return at;
    return 0;
}

guint32
rp_trie_longest(const RpTrie *trie, const char *text, gsize length)
{
    const guint8 *bytes = (const guint8 *)text;
    guint32 node = length > 1 ? trie->pairs[(guint)bytes[0] << 8 | bytes[1]] : 0, child;

    if (node == 0)
        return trie->singles[bytes[0]];
    for (gsize at = 2; at < length && (child = find_child(trie, node, bytes[at])) != 0; at++)
        node = child;
    return trie->nodes[node].longest;
}
