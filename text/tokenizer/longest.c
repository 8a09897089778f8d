/*
 * Byte-pair encoding from left to right, without looking at all merges of a piece: the longest token
 * that may follow the last one, and a shorter one, or one step back, where that leads nowhere.
 *
 *   tokens h e l o he ll hell; merges l+l 1, h+e 2, he+ll 3
 *   hello:  hell  o            the two stay apart: done
 *
 * It rests on these facts (the idea is that of github/rust-gems, crates/bpe):
 *
 *  1. Text within a token has merged as if it stood alone. So a token is made by one merge only,
 *     its own, whatever others give the same text.
 *  2. A text becomes tokens t1 … tn if each becomes itself when it stands alone, and each two
 *     neighbours stay two when they stand alone. For the first merge across a border sees its two
 *     neighbours as they are without the others.
 *  3. Two tokens stay two unless, at some time, the last part of the left one and the first part of
 *     the right one merge before either is merged within its token. Ranks are the time: a part lives
 *     from its own merge to that of the token it goes into.
 *
 *         left   h  e | e born, dies by h+e at 2      right   l  l | l dies by l+l at 1
 *
 *  4. So the tokens before a place depend on the text before it only. A place that they cannot end at
 *     is tried once: time is proportional to the length.
 *
 * Ranks are the time if each token's merge comes after those of its two parts. A merge that comes
 * before one of them does no harm if its two tokens never meet, because parts of them merge earlier;
 * files that list all ways to split a token are full of such merges. A tokenizer in which they may
 * meet is not for this algorithm.
 */
#include "text/tokenizer/private.h"

#include <string.h>

#define FIRST_SYMBOLS 256

/* Tokens are numbered in the order of their texts, so that those of one text share caches. */
typedef struct {
    guint32 left, right; /* the two of its last merge, when alone; the byte, if it is one */
    guint32 born;        /* 1 + the rank of this merge; 0: it is one symbol */
    guint32 shorter;     /* the longest other token that begins it */
    guint32 length;      /* bytes; 0: no text becomes this token */
    guint32 id;
    guint32 pairs;       /* its first slot, if a token is merged of it and others; or NO_PAIRS */
    guint32 pairs_shift; /* shift of a hash of the right one */
} Token;

#define NO_PAIRS G_MAXUINT32

/* A slot of a left token's open-addressing table, of which at most a quarter is taken. */
typedef struct {
    guint32 right;
    guint32 rank; /* RP_TOKEN_NONE: an empty slot */
} Pair;

struct _RpLongest {
    RpTrie *trie;
    Token *tokens;
    Pair *pairs;
    guint32
        *byte_ranks; /* ranks of two tokens of a byte each, the most frequent look-ups; or %NULL */
};

/* ---- two tokens ---- */

/* The rank of the merge of two tokens, if that makes a token. */
typedef guint32 (*RankOf)(gconstpointer data, guint32 left, guint32 right);

/* Whether a merge across the border of @left and @right comes before rank @most. */
static G_ALWAYS_INLINE inline gboolean
merge_before(const Token *tokens, RankOf rank_of, gconstpointer data, guint32 left, guint32 right,
             guint32 most)
{
    guint32 left_dies = most, right_dies = most;

    for (;;) {
        const Token *l = &tokens[left], *r = &tokens[right];
        const guint32 left_born = l->born, right_born = r->born;
        const guint32 rank = rank_of(data, left, right);

        /* the left one of equal merges is first: that within @left, but not that within @right */
        if (rank < left_dies && rank <= right_dies)
            return TRUE;
        if (left_born == 0 && right_born == 0)
            return FALSE;
        if (left_born >= right_born) { /* back to when the younger one was two */
            left_dies = left_born - 1;
            left = l->right;
        }
        if (right_born >= left_born) {
            right_dies = right_born - 1;
            right = r->left;
        }
    }
}

/* The slot of @right, or the empty one where it belongs. */
static inline Pair *
find_pair(const RpLongest *longest, const Token *left, guint32 right)
{
    Pair *slots = longest->pairs + left->pairs;
    const guint32 mask = G_MAXUINT32 >> left->pairs_shift;
    guint32 slot = (right * 0x9e3779b1u) >> left->pairs_shift;

    while (slots[slot].rank != RP_TOKEN_NONE && slots[slot].right != right)
        slot = (slot + 1) & mask;
    return &slots[slot];
}

static inline guint32
rank_in_pairs(gconstpointer data, guint32 left, guint32 right)
{
    const RpLongest *longest = data;
    const Token *l = &longest->tokens[left], *r = &longest->tokens[right];

    if (l->born + r->born == 0 && longest->byte_ranks != NULL)
        return longest->byte_ranks[l->left << 8 | r->left];
    return l->pairs != NO_PAIRS ? find_pair(longest, l, right)->rank : RP_TOKEN_NONE;
}

/* ---- which tokens text becomes ---- */

/* State while a tokenizer is prepared. */
typedef struct {
    const RpTokenizer *tokenizer;
    RpLongest *longest;
    GArray *words;     /* RpTrieWord: all tokens, by number */
    guint32 *numbers;  /* by id */
    gboolean *foreign; /* by id: it stands for text that the vocabulary lacks */
} Making;

static void
number_tokens(Making *making, guint n_ids)
{
    const RpVocabulary *vocabulary = &making->tokenizer->vocabulary;

    for (guint32 id = 0; id < n_ids; id++) {
        gsize length;
        const char *text = making->tokenizer->byte_level
                               ? rp_vocabulary_bytes(vocabulary, id, &length)
                               : rp_vocabulary_content(vocabulary, id, &length);
        const RpTrieWord word = {text, (guint32)length, id};

        if (length > 0)
            g_array_append_val(making->words, word);
    }
    g_array_sort(making->words, rp_trie_compare);
    making->longest->tokens = g_new0(Token, making->words->len);
    for (guint32 i = 0; i < making->words->len; i++) {
        const guint32 id = g_array_index(making->words, RpTrieWord, i).id;

        making->numbers[id] = i;
        making->longest->tokens[i] = (Token){.id = id, .pairs = NO_PAIRS};
    }
}

static void
find_foreign(Making *making)
{
    const RpTokenizer *tokenizer = making->tokenizer;

    if (!tokenizer->byte_level && tokenizer->unk != RP_TOKEN_NONE)
        making->foreign[tokenizer->unk] = TRUE;
    for (guint byte = 0; byte < 256; byte++)
        if (tokenizer->byte_fallback && tokenizer->fallback_ids[byte] != RP_TOKEN_NONE)
            making->foreign[tokenizer->fallback_ids[byte]] = TRUE;
}

/* Merges by rank, some of which none has. %NULL: one is of text that the vocabulary lacks. */
static GPtrArray *
order_merges(const Making *making)
{
    const RpMerges *merges = &making->tokenizer->merges;
    const gboolean *foreign = making->foreign;
    g_autoptr(GPtrArray) ordered = g_ptr_array_sized_new(merges->n);

    for (gsize i = 0; i < rp_merges_n_slots(merges); i++) {
        const RpMerge *merge = &merges->slots[i];

        if (merge->rank == RP_TOKEN_NONE)
            continue;
        if (foreign[merge->pair >> 32] || foreign[(guint32)merge->pair] || foreign[merge->id])
            return NULL;
        if (merge->rank >= ordered->len)
            g_ptr_array_set_size(ordered, (gint)merge->rank + 1);
        ordered->pdata[merge->rank] = (gpointer)merge;
    }
    return g_steal_pointer(&ordered);
}

/* Tokens that merging begins with. FALSE: there are symbols that this algorithm does not know. */
static gboolean
add_symbols(Making *making)
{
    const RpTokenizer *tokenizer = making->tokenizer;
    Token *tokens = making->longest->tokens;

    for (guint byte = 0; byte < 256; byte++) {
        const guint32 id = tokenizer->byte_ids[byte];

        if (tokenizer->byte_level && id == RP_TOKEN_NONE)
            return FALSE;
        if (tokenizer->byte_level) {
            tokens[making->numbers[id]].length = 1;
            tokens[making->numbers[id]].left = byte;
        } else if (tokenizer->unk == RP_TOKEN_NONE &&
                   !(tokenizer->byte_fallback && tokenizer->fallback_ids[byte] != RP_TOKEN_NONE)) {
            return FALSE; /* text that the vocabulary lacks is dropped, and other text becomes
                             adjacent */
        }
    }
    for (guint32 i = 0; !tokenizer->byte_level && i < making->words->len; i++) {
        const RpTrieWord *word = &g_array_index(making->words, RpTrieWord, i);

        if (word->length == (guint32)(g_utf8_next_char(word->text) - word->text))
            tokens[i].length = word->length;
    }
    return TRUE;
}

/* RankOf of merges that are known to make their token. @data: Making */
static guint32
rank_in_merges(gconstpointer data, guint32 left, guint32 right)
{
    const Making *making = data;
    const Token *tokens = making->longest->tokens;
    const RpMerge *merge =
        rp_merges_find(&making->tokenizer->merges, tokens[left].id, tokens[right].id);

    return merge != NULL && tokens[making->numbers[merge->id]].born == merge->rank + 1
               ? merge->rank
               : RP_TOKEN_NONE;
}

/* Finds the merge of each token, in the order in which merges come. Then those whose tokens came
 * later must never meet. FALSE: some may. */
static gboolean
add_merged(Making *making, const GPtrArray *ordered)
{
    Token *tokens = making->longest->tokens;
    g_autoptr(GPtrArray) early = g_ptr_array_new();

    for (guint i = 0; i < ordered->len; i++) {
        const RpMerge *merge = g_ptr_array_index(ordered, i);

        if (merge == NULL)
            continue;
        const guint32 left = making->numbers[merge->pair >> 32];
        const guint32 right = making->numbers[(guint32)merge->pair];
        Token *token = &tokens[making->numbers[merge->id]];

        if (tokens[left].length == 0 || tokens[right].length == 0) {
            g_ptr_array_add(early, (gpointer)merge);
            continue;
        }
        if (token->length > 0 ||
            merge_before(tokens, rank_in_merges, making, left, right, merge->rank))
            continue;
        token->left = left;
        token->right = right;
        token->born = merge->rank + 1;
        token->length = tokens[left].length + tokens[right].length;
    }
    for (guint i = 0; i < early->len; i++) {
        const RpMerge *merge = g_ptr_array_index(early, i);
        const guint32 left = making->numbers[merge->pair >> 32];
        const guint32 right = making->numbers[(guint32)merge->pair];

        if (tokens[left].length > 0 && tokens[right].length > 0 &&
            !merge_before(tokens, rank_in_merges, making, left, right, RP_TOKEN_NONE))
            return FALSE;
    }
    return TRUE;
}

/* Puts tokens' merges where they are found fast. */
static void
make_pairs(Making *making)
{
    RpLongest *longest = making->longest;
    Token *tokens = longest->tokens;
    const guint n = making->words->len;
    g_autofree guint32 *n_pairs = g_new0(guint32, n);
    guint32 n_slots = 0;

    for (guint32 i = 0; i < n; i++)
        if (tokens[i].born > 0)
            n_pairs[tokens[i].left]++;
    for (guint32 i = 0; i < n; i++) {
        guint bits = 1;

        if (n_pairs[i] == 0)
            continue;
        while (1u << bits < 4 * n_pairs[i])
            bits++;
        tokens[i].pairs = n_slots;
        tokens[i].pairs_shift = 32 - bits;
        n_slots += 1u << bits;
    }
    longest->pairs = g_new(Pair, n_slots);
    if (n_slots > 0)
        memset(longest->pairs, 0xff, n_slots * sizeof *longest->pairs);
    for (guint32 i = 0; i < n; i++)
        if (tokens[i].born > 0)
            *find_pair(longest, &tokens[tokens[i].left], tokens[i].right) =
                (Pair){tokens[i].right, tokens[i].born - 1};
}

static void
rank_bytes(const Making *making)
{
    const RpTokenizer *tokenizer = making->tokenizer;
    guint32 *ranks = making->longest->byte_ranks = g_new(guint32, 65536);

    for (guint left = 0; left < 256; left++)
        for (guint right = 0; right < 256; right++)
            ranks[left << 8 | right] =
                rank_in_merges(making, making->numbers[tokenizer->byte_ids[left]],
                               making->numbers[tokenizer->byte_ids[right]]);
}

static void
make_trie(Making *making)
{
    Token *tokens = making->longest->tokens;
    g_autoptr(GArray) words = g_array_new(FALSE, FALSE, sizeof(RpTrieWord));
    g_autofree guint32 *shorter = g_new(guint32, making->words->len);

    for (guint32 i = 0; i < making->words->len; i++) {
        RpTrieWord word = g_array_index(making->words, RpTrieWord, i);

        word.id = i;
        if (tokens[i].length > 0)
            g_array_append_val(words, word);
    }
    making->longest->trie = rp_trie_new(words, shorter);
    for (guint32 i = 0; i < making->words->len; i++)
        tokens[i].shorter = tokens[i].length > 0 ? shorter[i] : RP_TRIE_NONE;
}

RpLongest *
rp_longest_new(const RpTokenizer *tokenizer)
{
    const guint n_ids = tokenizer->vocabulary.contents->len;
    g_autoptr(RpLongest) longest = g_new0(RpLongest, 1);
    g_autoptr(GArray) words = g_array_new(FALSE, FALSE, sizeof(RpTrieWord));
    g_autofree guint32 *numbers = g_new(guint32, n_ids);
    g_autofree gboolean *foreign = g_new0(gboolean, n_ids);
    g_autoptr(GPtrArray) ordered = NULL;
    Making making = {tokenizer, longest, words, numbers, foreign};

    number_tokens(&making, n_ids);
    find_foreign(&making);
    ordered = order_merges(&making);
    if (ordered == NULL || !add_symbols(&making) || !add_merged(&making, ordered))
        return NULL;
    make_pairs(&making);
    if (tokenizer->byte_level)
        rank_bytes(&making);
    make_trie(&making);
    return g_steal_pointer(&longest);
}

void
rp_longest_free(RpLongest *longest)
{
    if (longest == NULL)
        return;
    rp_trie_free(longest->trie);
    g_free(longest->tokens);
    g_free(longest->pairs);
    g_free(longest->byte_ranks);
    g_free(longest);
}

/* ---- a piece ---- */

typedef struct {
    const RpTokenizer *tokenizer;
    const RpLongest *longest;
    RpMergeWork *work;
    guint64 *dead;     /* a bit by byte of the piece: no token of it ends there */
    RpSymbol *symbols; /* symbols of the piece, so far */
    guint32 *numbers;  /* numbers of their tokens */
    guint n;
    guint first; /* symbols before it are behind a character that the vocabulary lacks */
} Walk;

/* As many numbers as symbols, wherever these are now. */
static void
find_space(Walk *walk)
{
    RpMergeWork *work = walk->work;

    g_array_set_size(work->numbers, work->symbols->len);
    walk->symbols = (RpSymbol *)(void *)work->symbols->data;
    walk->numbers = (guint32 *)(void *)work->numbers->data;
}

static inline void
push(Walk *walk, guint32 number, gsize end)
{
    GArray *symbols = walk->work->symbols;

    if (walk->n == symbols->len) {
        g_array_set_size(symbols, MAX(FIRST_SYMBOLS, 2 * symbols->len));
        find_space(walk);
    }
    walk->numbers[walk->n] = number;
    walk->symbols[walk->n++] = (RpSymbol){walk->longest->tokens[number].id, (guint32)end};
}

/* Whether a token may stand behind the last one, from @at on. */
static inline gboolean
may_follow(const Walk *walk, guint32 number, gsize at)
{
    const gsize end = at + walk->longest->tokens[number].length;

    return (walk->dead[end / 64] >> end % 64 & 1) == 0 &&
           (walk->n == walk->first ||
            !merge_before(walk->longest->tokens, rank_in_pairs, walk->longest,
                          walk->numbers[walk->n - 1], number, RP_TOKEN_NONE));
}

/* Encodes up to the end, or to a character that the vocabulary lacks. Returns: where that is */
static gsize
walk_known(Walk *walk, const char *piece, gsize length, gsize at)
{
    const Token *tokens = walk->longest->tokens;
    guint32 number;

    while (at < length && (number = rp_trie_longest(walk->longest->trie, piece + at,
                                                    length - at)) != RP_TRIE_NONE) {
        for (;;) {
            while (number != RP_TRIE_NONE && !may_follow(walk, number, at))
                number = tokens[number].shorter;
            if (number != RP_TRIE_NONE)
                break;
            g_assert(walk->n > walk->first); /* some tokens are right */
            walk->dead[at / 64] |= (guint64)1 << at % 64;
            number = walk->numbers[--walk->n];
            at -= tokens[number].length;
        }
        at += tokens[number].length;
        push(walk, number, at);
    }
    return at;
}

void
rp_longest_split(const RpTokenizer *tokenizer, const char *piece, gsize length, RpMergeWork *work)
{
    Walk walk = {.tokenizer = tokenizer, .longest = tokenizer->longest, .work = work};
    gboolean unknown = FALSE;
    gsize at = 0;

    g_array_set_size(work->dead, 0);
    g_array_set_size(work->dead, (guint)(length / 64 + 1));
    walk.dead = (guint64 *)(void *)work->dead->data;
    find_space(&walk);
    while (at < length) {
        const gsize known = walk_known(&walk, piece, length, at);

        if (known == length)
            break;
        const gsize end = (gsize)(g_utf8_next_char(piece + known) - piece);

        unknown = unknown && known == at;
        g_array_set_size(work->symbols, walk.n);
        rp_bpe_append_unknown(tokenizer, work->symbols, piece, known, end, &unknown);
        find_space(&walk);
        walk.n = walk.first = work->symbols->len;
        at = end;
    }
    g_array_set_size(work->symbols, walk.n);
}
