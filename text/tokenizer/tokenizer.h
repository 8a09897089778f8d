/**
 * Text to token ids and back, as a model's tokenizer.json says: the same ids and the same text as
 * Hugging Face tokenizers gives.
 *
 * It reads byte-pair encodings: byte-level ones (Qwen, Llama 3, GPT-OSS, DeepSeek, Mistral since its
 * third), and those of SentencePiece with byte fallback (Llama 2, early Mistral). A file that needs
 * something else is refused by the name of the key. Text is UTF-8.
 *
 *   text -> added tokens cut out -> normalizer -> pre_tokenizer: pieces -> model: merges -> ids
 *
 * A tokenizer may be used by several threads at once.
 */
#pragma once

#include <glib.h>

typedef struct _RpTokenizer RpTokenizer;

#define RP_TOKENIZER_ERROR (rp_tokenizer_error_quark())
GQuark rp_tokenizer_error_quark(void);
typedef enum {
    RP_TOKENIZER_ERROR_FILE, /* no JSON, a wrong value, or something that is not there */
    RP_TOKENIZER_ERROR_TEXT, /* no UTF-8, or too long */
    RP_TOKENIZER_ERROR_ID    /* an id that no token has */
} RpTokenizerError;

/* The most bytes of a text. */
#define RP_TOKENIZER_MAX_TEXT G_MAXINT32

/* Where a token comes from: bytes of the text; empty for those of the template. */
typedef struct {
    guint32 start;
    guint32 end;
} RpTokenSpan;

typedef enum {
    RP_ENCODE_TEXT = 0,          /* special tokens in the text are recognised */
    RP_ENCODE_TEMPLATE = 1 << 0, /* with tokens that the file puts around a text, such as bos */
    RP_ENCODE_PLAIN = 1 << 1     /* words of special tokens are text like any other */
} RpEncodeFlags;

typedef enum {
    RP_DECODE_ALL = 0,
    RP_DECODE_SKIP_SPECIAL = 1 << 0 /* leaves special tokens out */
} RpDecodeFlags;

/* Tokens with a role; tokenizer_config.json beside tokenizer.json names them. */
typedef enum { RP_TOKEN_BOS, RP_TOKEN_EOS, RP_TOKEN_PAD, RP_TOKEN_UNK, RP_TOKEN_ROLES } RpTokenRole;

/**
 * rp_tokenizer_open:
 * @path: a tokenizer.json, or its directory
 *
 * Returns: (transfer full)
 * Errors: G_FILE_ERROR; RP_TOKENIZER_ERROR_FILE with line and column
 */
RpTokenizer *rp_tokenizer_open(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The same of a file's content, without roles. @name: for messages. */
RpTokenizer *rp_tokenizer_parse(const char *name, const char *json, gsize length,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;
void rp_tokenizer_free(RpTokenizer *tokenizer);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpTokenizer, rp_tokenizer_free)

/**
 * rp_tokenizer_encode:
 * @text: @length bytes; may contain NUL
 * @ids: (element-type guint32): ids are appended
 * @spans: (nullable) (element-type RpTokenSpan): one is appended for each id, in ascending order
 *
 * Returns: FALSE on error, with both arrays as they were
 * Errors: RP_TOKENIZER_ERROR_TEXT with the offset of the first byte that is not UTF-8
 */
gboolean rp_tokenizer_encode(const RpTokenizer *tokenizer, const char *text, gsize length,
                             RpEncodeFlags flags, GArray *ids, GArray *spans,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_tokenizer_decode:
 * @text: the text is appended; bytes that are not UTF-8 become U+FFFD
 *
 * Errors: RP_TOKENIZER_ERROR_ID with the index of an id that no token has
 */
gboolean rp_tokenizer_decode(const RpTokenizer *tokenizer, const guint32 *ids, gsize n_ids,
                             RpDecodeFlags flags, GString *text,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* One more than the highest id. */
guint rp_tokenizer_size(const RpTokenizer *tokenizer);
/* The id of the token written so in the file, added ones first; -1: there is none. */
gint64 rp_tokenizer_id(const RpTokenizer *tokenizer, const char *content);
/* As written in the file; %NULL: no token has this id. */
const char *rp_tokenizer_token(const RpTokenizer *tokenizer, guint32 id);
gboolean rp_tokenizer_is_special(const RpTokenizer *tokenizer, guint32 id);
/* 0: the template is that of tokenizer.json; else a hash of add_bos_token and add_eos_token in
 * tokenizer_config.json: the same if those are the same. */
guint64 rp_tokenizer_template_hash(const RpTokenizer *tokenizer);
/* -1: none is named. */
gint64 rp_tokenizer_role(const RpTokenizer *tokenizer, RpTokenRole role);

/* ---- for those who write it in other formats (traits.c) ---- */

/* Whether the token is one of added_tokens. */
gboolean rp_tokenizer_is_added(const RpTokenizer *tokenizer, guint32 id);

typedef struct {
    guint32 left, right;
    guint32 id; /* the token that they make */
} RpTokenMerge;

/* All merges, the first one first. (transfer full) (element-type RpTokenMerge) */
GArray *rp_tokenizer_merges(const RpTokenizer *tokenizer);

typedef struct {
    gboolean byte_level;
    gboolean byte_fallback;
    gboolean ignores_merges; /* for pieces that are tokens */
    gboolean adds_prefix;    /* a space before a text */
    gboolean changes_text;   /* more than by NFC, or by marks for spaces */
    guint32 unk;             /* G_MAXUINT32: none */
    char *patterns; /* (nullable): regular expressions whose matches become pieces, a line each */
} RpTokenizerTraits;

void rp_tokenizer_traits_clear(RpTokenizerTraits *traits);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpTokenizerTraits, rp_tokenizer_traits_clear)
RpTokenizerTraits rp_tokenizer_traits(const RpTokenizer *tokenizer);
