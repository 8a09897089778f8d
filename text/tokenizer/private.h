/**
 * The content of a tokenizer.json, as encode.c and decode.c use it. Nothing changes after it is
 * read, but the cache of pieces, whose places are filled once each.
 */
#pragma once

#include <glib.h>

#include "core/json/json-record.h"
#include "text/tokenizer/tokenizer.h"

#define RP_TOKEN_NONE G_MAXUINT32
/* Limits a file's ids; the largest vocabularies that are published have 262,144. */
#define RP_TOKENIZER_MAX_ID ((1u << 24) - 1)

/* ---- vocabulary.c ---- */

typedef struct {
    guint32 at; /* in the texts; content is NUL-terminated */
    guint32 length;
} RpVocabularyText;

/* Tokens by id, and ids by the text that the file writes for them. */
typedef struct {
    GByteArray *texts;
    GArray *contents; /* RpVocabularyText by id; length 0: no token */
    GArray *bytes;    /* RpVocabularyText by id: the bytes that a byte-level decoder makes */
    guint32 *slots;   /* ids by the hash of their content */
    guint32 mask;
    guint n_tokens;
} RpVocabulary;

void rp_vocabulary_init(RpVocabulary *vocabulary);
void rp_vocabulary_clear(RpVocabulary *vocabulary);
/* FALSE: the id, or the content, is already that of another token. */
gboolean rp_vocabulary_add(RpVocabulary *vocabulary, const char *content, gsize length, guint32 id);
/* RP_TOKEN_NONE: it is not there. */
guint32 rp_vocabulary_find(const RpVocabulary *vocabulary, const char *content, gsize length);
const char *rp_vocabulary_content(const RpVocabulary *vocabulary, guint32 id, gsize *length);
const char *rp_vocabulary_bytes(const RpVocabulary *vocabulary, guint32 id, gsize *length);
/* Fills bytes of all tokens. */
void rp_vocabulary_settle(RpVocabulary *vocabulary);
/* The same for one token as if @content stood in the file. */
void rp_vocabulary_decode_as(RpVocabulary *vocabulary, guint32 id, const char *content,
                             gsize length);
/* The character that byte-level files write for a byte, as UTF-8. Returns: its bytes, 1 or 2 */
guint rp_byte_level_character(guint8 byte, char text[2]);

/* ---- bpe.c ---- */

typedef struct {
    guint64 pair; /* left id << 32 | right id */
    guint32 rank; /* RP_TOKEN_NONE: an empty slot */
    guint32 id;
} RpMerge;

typedef struct {
    RpMerge *slots;
    guint8 *filter; /* bits by hash; 0: there is no such pair */
    guint shift;
    guint n;
} RpMerges;

/* A later merge of the same pair takes its place. */
void rp_merges_add(RpMerges *merges, guint32 left, guint32 right, guint32 rank, guint32 id);
void rp_merges_clear(RpMerges *merges);

typedef struct {
    guint32 id;
    guint32 end; /* in the piece */
} RpSymbol;

/* Memory that merging needs beside the piece; one thread uses it. */
typedef struct {
    GArray *symbols; /* RpSymbol: the result */
    GArray *links;
    GArray *heap;
} RpMergeWork;

void rp_merge_work_init(RpMergeWork *work);
void rp_merge_work_clear(RpMergeWork *work);
/* Splits a piece into @work->symbols merge by merge. */
void rp_bpe_merge(const RpTokenizer *tokenizer, const char *piece, gsize length, RpMergeWork *work);

/* ---- bpe.c: pieces that were split before ---- */

typedef struct _RpPieceCache RpPieceCache;

#define RP_CACHED_SYMBOLS 14
#define RP_CACHED_BYTES 52

RpPieceCache *rp_piece_cache_new(void);
void rp_piece_cache_free(RpPieceCache *cache);
/* Returns: how many symbols it has; 0: the piece is not there. @place: for the next. */
guint rp_piece_cache_find(RpPieceCache *cache, const char *piece, gsize length,
                          RpSymbol symbols[RP_CACHED_SYMBOLS]);
/* Keeps a piece as long as there is space. */
void rp_piece_cache_add(RpPieceCache *cache, const char *piece, gsize length,
                        const RpSymbol *symbols, guint n);

/* ---- pattern.c ---- */

typedef struct _RpPattern RpPattern;
/* One thread uses it. */
typedef struct _RpMatch RpMatch;

/* A regular expression as Oniguruma reads it, which Hugging Face tokenizers uses. Returns: %NULL
 * with its fault (transfer full) */
RpPattern *rp_pattern_new_regex(const char *regex, char **fault);
RpPattern *rp_pattern_new_literal(const char *text);
void rp_pattern_free(RpPattern *pattern);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpPattern, rp_pattern_free)
/* The regular expression or the literal. */
const char *rp_pattern_text(const RpPattern *pattern);
RpMatch *rp_match_new(void);
void rp_match_free(RpMatch *match);
/* The next match from @from on. Returns: 1 found, 0 none, -1 it takes too long to find out */
int rp_pattern_next(const RpPattern *pattern, RpMatch *match, const char *text, gsize length,
                    gsize from, gsize *start, gsize *end);

/* ---- steps.c ---- */

/* The first ones are normalizers'; SPLIT is pre-tokenizers', and REPLACE and the rest are decoders'. */
typedef enum {
    RP_STEP_NFC,
    RP_STEP_NFD,
    RP_STEP_NFKC,
    RP_STEP_NFKD,
    RP_STEP_PREPEND,
    RP_STEP_REPLACE,
    RP_STEP_SPLIT,
    RP_STEP_BYTE_LEVEL,
    RP_STEP_BYTE_FALLBACK,
    RP_STEP_FUSE,
    RP_STEP_STRIP,
    RP_STEP_METASPACE
} RpStepKind;

typedef enum {
    RP_SPLIT_REMOVED,
    RP_SPLIT_ISOLATED,
    RP_SPLIT_MERGED_WITH_PREVIOUS,
    RP_SPLIT_MERGED_WITH_NEXT,
    RP_SPLIT_CONTIGUOUS
} RpSplitBehavior;

typedef struct {
    RpStepKind kind;
    RpPattern *pattern;       /* REPLACE, SPLIT */
    char *content;            /* PREPEND, REPLACE, STRIP, METASPACE */
    RpSplitBehavior behavior; /* SPLIT */
    gboolean invert;
    guint start, stop;   /* STRIP */
    gboolean drop_first; /* METASPACE */
} RpStep;

void rp_step_clear(gpointer step);

/* ---- normalize.c ---- */

/* Bytes of a text that became others. */
typedef struct {
    guint32 new_start, new_end;
    guint32 old_start, old_end;
} RpEdit;

/* Returns: 1 @out is the new text, 0 it is the old one, -1 as rp_pattern_next(), or it would have more
 * than @most bytes. @edits: (nullable) (element-type RpEdit): appended */
int rp_normalize(const RpStep *step, RpMatch *match, const char *text, gsize length, gsize most,
                 GString *out, GArray *edits);
/* The most bytes that normalizers may make of @length: a few words of the file could fill memory. */
#define RP_NORMALIZE_MOST(length) (32 * (gsize)(length) + 65536)

/* ---- added tokens (vocabulary.c) ---- */

typedef struct {
    char *content;  /* as it is looked for */
    guint32 length; /* bytes */
    guint32 id;
    const char *at; /* in the file, while that is read */
    gboolean special, normalized, single_word, lstrip, rstrip;
} RpAddedToken;

typedef struct {
    gsize start, end;
    guint32 id; /* RP_TOKEN_NONE: text between tokens */
} RpAddedMatch;

/* Tokens that are looked for in the same text. */
typedef struct {
    GArray *tokens;       /* RpAddedToken, by content */
    gboolean starts[256]; /* one begins with this byte */
} RpAddedSet;

/* Sorts @set->tokens, for rp_added_next(). */
void rp_added_settle(RpAddedSet *set);
/* Cuts the next part off: text, or a token. FALSE behind the last. @state: zeroed at first. */
typedef struct {
    gsize at, search;
    gboolean held;
    RpAddedMatch match;
} RpAddedState;
gboolean rp_added_next(const RpAddedSet *set, gboolean plain, const char *text, gsize length,
                       RpAddedState *state, RpAddedMatch *part);

/* ---- the whole ---- */

typedef enum {
    RP_PREFIX_NEVER,
    RP_PREFIX_FIRST, /* where the text begins */
    RP_PREFIX_ALWAYS
} RpPrefix;

struct _RpTokenizer {
    RpVocabulary vocabulary;
    RpMerges merges;
    gboolean byte_level;
    gboolean ignore_merges;
    gboolean byte_fallback;
    gboolean fuse_unk;
    guint32 unk;               /* or RP_TOKEN_NONE */
    guint32 byte_ids[256];     /* a byte-level file's, by byte; else ASCII's */
    guint32 fallback_ids[256]; /* <0x00> to <0xFF> */
    gboolean cuts_words;       /* no merge joins a word to the ▁ of the next */
    RpPieceCache *cache;
    GArray *added;         /* RpAddedToken: all, in the file's order */
    RpAddedSet matched[2]; /* the same: looked for in text as it is, and in normalized text */
    GHashTable *special;   /* ids */
    GArray *normalizers;   /* RpStep */
    RpPrefix prefix;       /* before pieces are cut */
    char *prefix_text;
    RpStep spaces;  /* Metaspace's; without content there is none */
    GArray *splits; /* RpStep */
    GArray *before; /* guint32: the template's tokens */
    GArray *after;
    guint64 template_hash; /* rp_tokenizer_template_hash() */
    GArray *decoders;      /* RpStep */
    gint64 roles[RP_TOKEN_ROLES];
};

/* How many bytes of @text, which may contain NUL, are UTF-8. */
gsize rp_utf8_length(const char *text, gsize length);

/*
 * The parts of a tokenizer.json, each a reader of a row (core/json/json-record.h) whose value is the
 * tokenizer.
 */

/* Steps of one kind, with those within others. */
#define RP_TOKENIZER_MAX_STEPS 64

gboolean rp_tokenizer_read_normalizer(RpJsonPull *pull, const RpJsonField *field, gpointer value);
gboolean rp_tokenizer_read_pre_tokenizer(RpJsonPull *pull, const RpJsonField *field,
                                         gpointer value);
gboolean rp_tokenizer_read_post_processor(RpJsonPull *pull, const RpJsonField *field,
                                          gpointer value);
gboolean rp_tokenizer_read_decoder(RpJsonPull *pull, const RpJsonField *field, gpointer value);
gboolean rp_tokenizer_read_model(RpJsonPull *pull, const RpJsonField *field, gpointer value);
gboolean rp_tokenizer_read_added(RpJsonPull *pull, const RpJsonField *field, gpointer value);
