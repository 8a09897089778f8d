/*
 * A tokenizer as llama.cpp has it. Of two kinds: byte-level, where text is cut by a pattern that has a name there, and
 * SentencePiece's, whose merges follow from scores of tokens.
 */
#include "exec/gguf/private.h"

#include <string.h>

#include "core/base/quote.h"

#define WORD_MARK "\xe2\x96\x81" /* ▁ */

typedef enum {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER_DEFINED = 4,
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6
} TokenType;

/* ---- how text is cut ---- */

#define WORDS(letters, numbers, marks)                                                             \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?" letters "+|" numbers                     \
    "| ?[^\\s\\p{L}" marks "\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASES(behind, numbers)                                                                     \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" behind "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER  \
    "*" behind "|" numbers "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* Patterns with a newline between them, and the name under which llama.cpp has them. */
static const struct {
    const char *patterns, *name;
    gboolean ignores_merges; /* llama.cpp takes whole pieces that are tokens first */
} cuts[] = {
    {WORDS("\\p{L}", "\\p{N}{1,3}", ""), "llama-bpe", TRUE},
    {WORDS("\\p{L}", "\\p{N}{1,3}", ""), "smaug-bpe", FALSE},
    {WORDS("\\p{L}", "\\p{N}", ""), "qwen2", FALSE},
    {WORDS("[\\p{L}\\p{M}]", "\\p{N}", "\\p{M}"), "qwen35", FALSE},
    {CASES("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "\\p{N}{1,3}"), "gpt-4o", FALSE},
    {CASES("", "\\p{N}"), "tekken", TRUE},
    {GPT2, "gpt-2", FALSE},
    {"\\p{N}\n" GPT2, "smollm", FALSE},
};

/* The name of the way in which @tokenizer cuts text; of two that differ in merges, that which does them alike. */
static const char *
find_cut(const RpTokenizerTraits *traits)
{
    const char *found = NULL;

    for (guint i = 0; traits->patterns != NULL && i < G_N_ELEMENTS(cuts); i++)
        if (strcmp(cuts[i].patterns, traits->patterns) == 0 &&
            (found == NULL || !cuts[i].ignores_merges == !traits->ignores_merges))
            found = cuts[i].name;
    return found;
}

static gboolean
refuse(GError **error, const char *key, const char *expected, const char *found)
{
    return rp_fail(error, RP_GGUF_ERROR, RP_GGUF_ERROR_TOKENIZER,
                   "tokenizer.json: %s: expected %s, found %s", key, expected, found);
}

/* ---- tokens ---- */

/* Tokens that transformers' files do not always mark as special, and llama.cpp's converter does. */
static gboolean
looks_special(const char *content)
{
    return strcmp(content, "<pad>") == 0 || strcmp(content, "<mask>") == 0 ||
           (g_str_has_prefix(content, "<|") && g_str_has_suffix(content, "|>"));
}

static gboolean
is_byte(const char *content)
{
    return strlen(content) == strlen("<0x00>") && g_str_has_prefix(content, "<0x") &&
           g_ascii_isxdigit(content[3]) && g_ascii_isxdigit(content[4]) && content[5] == '>';
}

static TokenType
type_of(const RpTokenizer *tokenizer, const RpTokenizerTraits *traits, guint id,
        const char *content)
{
    if (content == NULL)
        return TOKEN_UNUSED;
    if (!traits->byte_level && id == traits->unk)
        return TOKEN_UNKNOWN;
    if (rp_tokenizer_is_special(tokenizer, id) ||
        (rp_tokenizer_is_added(tokenizer, id) && looks_special(content)))
        return TOKEN_CONTROL;
    if (rp_tokenizer_is_added(tokenizer, id))
        return TOKEN_USER_DEFINED;
    return !traits->byte_level && is_byte(content) ? TOKEN_BYTE : TOKEN_NORMAL;
}

/* Contents and types of the model's @vocab ids. */
static void
add_tokens(RpGgufFile *file, const RpTokenizer *tokenizer, const RpTokenizerTraits *traits,
           guint vocab)
{
    g_autofree gint32 *types = g_new(gint32, vocab);

    rp_gguf_add_texts(file, "tokenizer.ggml.tokens", vocab);
    for (guint id = 0; id < vocab; id++) {
        const char *content = rp_tokenizer_token(tokenizer, id);
        g_autofree char *unused = content == NULL ? g_strdup_printf("[PAD%u]", id) : NULL;
        g_autoptr(GString) text = g_string_new(content != NULL ? content : unused);

        types[id] = (gint32)type_of(tokenizer, traits, id, content);
        if (types[id] == TOKEN_USER_DEFINED) /* it is looked for in text as it was */
            g_string_replace(text, WORD_MARK, " ", 0);
        rp_gguf_add_element(file, text->str, text->len);
    }
    rp_gguf_add_integers(file, "tokenizer.ggml.token_type", types, vocab);
}

static void
add_merges(RpGgufFile *file, const RpTokenizer *tokenizer, const GArray *merges)
{
    rp_gguf_add_texts(file, "tokenizer.ggml.merges", merges->len);
    for (guint i = 0; i < merges->len; i++) {
        const RpTokenMerge merge = g_array_index(merges, RpTokenMerge, i);
        g_autofree char *text = g_strconcat(rp_tokenizer_token(tokenizer, merge.left), " ",
                                            rp_tokenizer_token(tokenizer, merge.right), NULL);

        rp_gguf_add_element(file, text, strlen(text));
    }
}

/* SentencePiece's scores: minus the place of a token among those that merges make; those of others are lower. */
static gboolean
add_scores(RpGgufFile *file, const GArray *merges, guint vocab, GError **error)
{
    g_autofree float *scores = g_new(float, vocab);
    g_autofree guint *places = g_new0(guint, vocab); /* from 1 on */
    guint n = 0;

    for (guint i = 0; i < merges->len; i++) {
        const guint32 id = g_array_index(merges, RpTokenMerge, i).id;

        if (places[id] == 0)
            places[id] = ++n;
        else if (places[id] != n)
            return refuse(error, "merges",
                          "those of a token one after the other, as SentencePiece "
                          "has them",
                          "others between them");
    }
    for (guint id = 0; id < vocab; id++)
        scores[id] = -(float)(places[id] > 0 ? places[id] - 1 : n);
    rp_gguf_add_floats(file, "tokenizer.ggml.scores", scores, vocab);
    return TRUE;
}

/* ---- ids with a role, and what stands around a text ---- */

static gboolean
is_end(const RpGgufOptions *options, gint64 id)
{
    for (guint i = 0; i < options->n_ends; i++)
        if (options->ends[i] == id)
            return TRUE;
    return FALSE;
}

static void
add_role(RpGgufFile *file, const char *key, gint64 id, gint64 otherwise)
{
    const gint64 value = id >= 0 ? id : otherwise;

    if (value >= 0)
        rp_gguf_add_uint(file, key, (guint32)value);
}

/* llama.cpp stops at eos and at eot: the first tokens that end answers here. */
static void
add_roles(RpGgufFile *file, const RpModel *model, const RpGgufOptions *options, guint32 unk)
{
    const RpTokenizer *tokenizer = options->tokenizer;
    gint64 eos = rp_tokenizer_role(tokenizer, RP_TOKEN_EOS), eot = -1;

    if (options->n_ends > 0 && !is_end(options, eos))
        eos = options->ends[0];
    for (guint i = 0; i < options->n_ends && eot < 0; i++)
        eot = options->ends[i] != eos ? options->ends[i] : -1;
    add_role(file, "tokenizer.ggml.bos_token_id", rp_tokenizer_role(tokenizer, RP_TOKEN_BOS),
             model->bos_id);
    add_role(file, "tokenizer.ggml.eos_token_id", eos, -1);
    add_role(file, "tokenizer.ggml.eot_token_id", eot, -1);
    add_role(file, "tokenizer.ggml.unknown_token_id", unk < model->vocab ? (gint64)unk : -1,
             rp_tokenizer_role(tokenizer, RP_TOKEN_UNK));
    add_role(file, "tokenizer.ggml.padding_token_id", rp_tokenizer_role(tokenizer, RP_TOKEN_PAD),
             model->pad_id);
}

/* Only bos may stand before a text, and eos behind it. */
static gboolean
add_template(RpGgufFile *file, const RpModel *model, const RpTokenizer *tokenizer, GError **error)
{
    const gint64 bos = rp_tokenizer_role(tokenizer, RP_TOKEN_BOS) >= 0
                           ? rp_tokenizer_role(tokenizer, RP_TOKEN_BOS)
                           : model->bos_id;
    const gint64 eos = rp_tokenizer_role(tokenizer, RP_TOKEN_EOS);
    g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(guint32));

    if (!rp_tokenizer_encode(tokenizer, "", 0, RP_ENCODE_TEMPLATE, ids, NULL, error))
        return FALSE;
    const guint32 *id = (const guint32 *)(const void *)ids->data;
    const gboolean begins = ids->len > 0 && id[0] == bos;
    const gboolean ends = ids->len > (guint)begins && id[ids->len - 1] == eos;

    if (ids->len != (guint)begins + (guint)ends)
        return refuse(error, "post_processor", "bos before a text and eos behind it, or neither",
                      "other tokens");
    rp_gguf_add_boolean(file, "tokenizer.ggml.add_bos_token", begins);
    rp_gguf_add_boolean(file, "tokenizer.ggml.add_eos_token", ends);
    return TRUE;
}

static gboolean
check(const RpTokenizerTraits *traits, const GArray *merges, guint size, guint vocab,
      GError **error)
{
    if (size > vocab) {
        g_autofree char *expected =
            g_strdup_printf("ids below the model's vocabulary of %u", vocab);
        g_autofree char *found = g_strdup_printf("%u", size - 1);

        return refuse(error, "vocab", expected, found);
    }
    if (merges->len == 0)
        return refuse(error, "merges", "pairs of tokens", "none");
    if (!traits->byte_level && !traits->byte_fallback)
        return refuse(error, "model", "byte-level tokens or byte_fallback, as llama.cpp has them",
                      "neither");
    if (traits->changes_text)
        return refuse(error, "normalizer", "one that leaves text as it is, but for NFC or spaces",
                      "another");
    if (traits->byte_level && find_cut(traits) == NULL)
        return refuse(error, "pre_tokenizer",
                      "the pattern of Llama 3, Qwen, GPT-OSS, Tekken, SmolLM or GPT-2, which "
                      "llama.cpp knows by name",
                      "another");
    return TRUE;
}

gboolean
rp_gguf_add_tokenizer(RpGgufFile *file, const RpModel *model, const RpGgufOptions *options,
                      GError **error)
{
    const RpTokenizer *tokenizer = options->tokenizer;
    g_auto(RpTokenizerTraits) traits = rp_tokenizer_traits(tokenizer);
    g_autoptr(GArray) merges = rp_tokenizer_merges(tokenizer);

    if (!check(&traits, merges, rp_tokenizer_size(tokenizer), model->vocab, error))
        return FALSE;
    rp_gguf_add_text(file, "tokenizer.ggml.model", traits.byte_level ? "gpt2" : "llama");
    rp_gguf_add_text(file, "tokenizer.ggml.pre", traits.byte_level ? find_cut(&traits) : "default");
    add_tokens(file, tokenizer, &traits, model->vocab);
    if (traits.byte_level)
        add_merges(file, tokenizer, merges);
    else if (!add_scores(file, merges, model->vocab, error))
        return FALSE;
    if (!traits.byte_level)
        rp_gguf_add_boolean(file, "tokenizer.ggml.add_space_prefix", traits.adds_prefix);
    add_roles(file, model, options, traits.unk);
    if (!add_template(file, model, tokenizer, error))
        return FALSE;
    if (options->chat_template != NULL)
        rp_gguf_add_text(file, "tokenizer.chat_template", options->chat_template);
    return TRUE;
}
