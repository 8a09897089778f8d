/* normalizer and pre_tokenizer of a tokenizer.json: lists of steps, however deep they are nested. */
#include "text/tokenizer/private.h"

#include <string.h>

/* GPT-2's, where ByteLevel cuts by itself. */
#define GPT2_PATTERN                                                                               \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
/* ASCII's punctuation, and that of Unicode. */
#define PUNCTUATION_PATTERN "[\\p{P}$+<=>\\^`|~]"

gboolean
rp_tokenizer_read_string(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autoptr(GString) text = g_string_new(NULL);

    if (!rp_json_pull_string(pull, text))
        return FALSE;
    g_free(*(char **)value);
    *(char **)value = g_strdup(text->str);
    return TRUE;
}

gboolean
rp_tokenizer_read_each(RpJsonPull *pull, RpJsonRead read, gpointer value)
{
    if (!rp_json_pull_enter_array(pull))
        return FALSE;
    while (rp_json_pull_next_element(pull))
        if (!read(pull, NULL, value))
            return FALSE;
    return !pull->failed;
}

gboolean
rp_tokenizer_read_pattern(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    typedef struct {
        char *regex;
        char *text;
    } Words;
    static const RpJsonField rows[] = {
        {"Regex", rp_tokenizer_read_string, G_STRUCT_OFFSET(Words, regex)},
        {"String", rp_tokenizer_read_string, G_STRUCT_OFFSET(Words, text)},
    };
    Words words = {0};
    const char *at = (rp_json_pull_peek(pull), pull->at);
    g_autofree char *fault = NULL;
    RpPattern *pattern = NULL;

    if (rp_json_read_record(pull, rows, G_N_ELEMENTS(rows), &words, NULL)) {
        if ((words.regex == NULL) == (words.text == NULL))
            rp_json_pull_refuse(pull, at, NULL, "a Regex or a String", NULL);
        else if (words.text != NULL)
            pattern = rp_pattern_new_literal(words.text);
        else if ((pattern = rp_pattern_new_regex(words.regex, &fault)) == NULL)
            rp_json_pull_refuse(pull, at, NULL,
                                "a regular expression that Oniguruma and PCRE2 read alike", fault);
    }
    g_free(words.regex);
    g_free(words.text);
    if (pattern == NULL)
        return FALSE;
    rp_pattern_free(*(RpPattern **)value);
    *(RpPattern **)value = pattern;
    return TRUE;
}

/* Sees that one more step may be. */
static gboolean
has_space(RpJsonPull *pull, const GArray *steps)
{
    return steps->len < RP_TOKENIZER_MAX_STEPS ||
           rp_json_pull_fail_value(pull, "at most " G_STRINGIFY(RP_TOKENIZER_MAX_STEPS) " steps");
}

/* ---- normalizer ---- */

typedef struct {
    RpTokenizer *tokenizer;
    guint type;
    char *prepend;
    char *content;
    RpPattern *pattern;
} RawNormalizer;

/* The first ones stand in the order of RpNormalizeKind. */
static const char *const normalizer_types[] = {"NFC",     "NFD",     "NFKC",     "NFKD",
                                               "Prepend", "Replace", "Sequence", NULL};
#define NORMALIZER_SEQUENCE 6

static gboolean
read_normalizers(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    return rp_tokenizer_read_each(pull, rp_tokenizer_read_normalizer,
                                  ((RawNormalizer *)value)->tokenizer);
}

static gboolean
add_normalizer(RpJsonPull *pull, const RpJsonRecord *record, RawNormalizer *raw)
{
    RpNormalize step = {.kind = raw->type};

    if (raw->type == NORMALIZER_SEQUENCE)
        return rp_json_record_at(record, "normalizers") != NULL ||
               rp_json_record_fail(record, pull, "normalizers", "an array");
    if (!has_space(pull, raw->tokenizer->normalizers))
        return FALSE;
    if (step.kind == RP_NORMALIZE_PREPEND && raw->prepend == NULL)
        return rp_json_record_fail(record, pull, "prepend", "a text");
    if (step.kind == RP_NORMALIZE_REPLACE && raw->pattern == NULL)
        return rp_json_record_fail(record, pull, "pattern", "a Regex or a String");
    if (step.kind == RP_NORMALIZE_REPLACE && raw->content == NULL)
        return rp_json_record_fail(record, pull, "content", "a text");
    step.pattern = g_steal_pointer(&raw->pattern);
    step.content = step.kind == RP_NORMALIZE_PREPEND ? g_steal_pointer(&raw->prepend)
                                                     : g_steal_pointer(&raw->content);
    g_array_append_val(raw->tokenizer->normalizers, step);
    return TRUE;
}

gboolean
rp_tokenizer_read_normalizer(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    static const RpJsonField rows[] = {
        {"type", rp_json_read_choice_index, G_STRUCT_OFFSET(RawNormalizer, type), .required = TRUE,
         .choices = normalizer_types},
        {"normalizers", read_normalizers},
        {"prepend", rp_tokenizer_read_string, G_STRUCT_OFFSET(RawNormalizer, prepend)},
        {"content", rp_tokenizer_read_string, G_STRUCT_OFFSET(RawNormalizer, content)},
        {"pattern", rp_tokenizer_read_pattern, G_STRUCT_OFFSET(RawNormalizer, pattern)},
    };
    RawNormalizer raw = {.tokenizer = value};
    RpJsonRecord record;
    const gboolean good = rp_json_read_record(pull, rows, G_N_ELEMENTS(rows), &raw, &record) &&
                          add_normalizer(pull, &record, &raw);

    g_free(raw.prepend);
    g_free(raw.content);
    rp_pattern_free(raw.pattern);
    return good;
}

/* ---- pre_tokenizer ---- */

typedef struct {
    RpTokenizer *tokenizer;
    guint type;
    guint behavior;
    guint prepend_scheme;
    char *replacement;
    RpPattern *pattern;
    gboolean invert;
    gboolean add_prefix_space;
    gboolean use_regex;
    gboolean individual_digits;
    gboolean split;
} RawPreTokenizer;

enum { BYTE_LEVEL, DIGITS, METASPACE, PUNCTUATION, SEQUENCE, SPLIT, WHITESPACE_SPLIT };
static const char *const pre_tokenizer_types[] = {"ByteLevel",       "Digits",   "Metaspace",
                                                  "Punctuation",     "Sequence", "Split",
                                                  "WhitespaceSplit", NULL};
static const char *const behaviors[] = {"Removed",        "Isolated",   "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous", NULL};
static const char *const prepend_schemes[] = {"never", "first", "always", NULL};

static gboolean
read_pre_tokenizers(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    return rp_tokenizer_read_each(pull, rp_tokenizer_read_pre_tokenizer,
                                  ((RawPreTokenizer *)value)->tokenizer);
}

static void
add_split(RpTokenizer *tokenizer, RpPattern *pattern, RpSplitBehavior behavior, gboolean invert)
{
    const RpSplit split = {pattern, behavior, invert};

    g_array_append_val(tokenizer->splits, split);
}

/* A pattern of this file; it compiles. */
static RpPattern *
known_pattern(const char *regex)
{
    g_autofree char *fault = NULL;
    RpPattern *pattern = rp_pattern_new_regex(regex, &fault);

    g_assert(pattern != NULL);
    return pattern;
}

/* Text that is put in front of all there is can be put there before anything is cut only. */
static gboolean
is_first(RpJsonPull *pull, const RpJsonRecord *record, const RpTokenizer *tokenizer,
         const char *key)
{
    return (tokenizer->splits->len == 0 && tokenizer->prefix == RP_PREFIX_NEVER &&
            tokenizer->spaces == NULL) ||
           rp_json_record_fail(record, pull, key, "this in the first pre_tokenizer only");
}

static gboolean
add_byte_level(RpJsonPull *pull, const RpJsonRecord *record, const RawPreTokenizer *raw)
{
    RpTokenizer *tokenizer = raw->tokenizer;

    if (raw->add_prefix_space) {
        if (!is_first(pull, record, tokenizer, "add_prefix_space"))
            return FALSE;
        tokenizer->prefix = RP_PREFIX_ALWAYS;
        tokenizer->prefix_text = g_strdup(" ");
    }
    if (raw->use_regex)
        add_split(tokenizer, known_pattern(GPT2_PATTERN), RP_SPLIT_ISOLATED, FALSE);
    tokenizer->byte_level = TRUE;
    return TRUE;
}

static gboolean
add_metaspace(RpJsonPull *pull, const RpJsonRecord *record, RawPreTokenizer *raw)
{
    RpTokenizer *tokenizer = raw->tokenizer;

    if (raw->replacement == NULL || *raw->replacement == '\0')
        return rp_json_record_fail(record, pull, "replacement", "a character");
    if (!is_first(pull, record, tokenizer, "type"))
        return FALSE;
    tokenizer->spaces = g_new0(RpNormalize, 1);
    *tokenizer->spaces = (RpNormalize){.kind = RP_NORMALIZE_REPLACE,
                                       .pattern = rp_pattern_new_literal(" "),
                                       .content = g_strdup(raw->replacement)};
    tokenizer->prefix = raw->add_prefix_space ? raw->prepend_scheme : RP_PREFIX_NEVER;
    tokenizer->prefix_text = g_strdup(raw->replacement);
    if (raw->split)
        add_split(tokenizer, rp_pattern_new_literal(raw->replacement), RP_SPLIT_MERGED_WITH_NEXT,
                  FALSE);
    return TRUE;
}

static gboolean
add_pre_tokenizer(RpJsonPull *pull, const RpJsonRecord *record, RawPreTokenizer *raw)
{
    RpTokenizer *tokenizer = raw->tokenizer;

    if (!has_space(pull, tokenizer->splits))
        return FALSE;
    if (tokenizer->byte_level && raw->type != SEQUENCE)
        return rp_json_record_fail(record, pull, "type", "nothing behind ByteLevel");
    switch (raw->type) {
    case BYTE_LEVEL:
        return add_byte_level(pull, record, raw);
    case DIGITS:
        add_split(tokenizer, known_pattern("\\p{N}"),
                  raw->individual_digits ? RP_SPLIT_ISOLATED : RP_SPLIT_CONTIGUOUS, FALSE);
        return TRUE;
    case METASPACE:
        return add_metaspace(pull, record, raw);
    case PUNCTUATION:
        add_split(tokenizer, known_pattern(PUNCTUATION_PATTERN), raw->behavior, FALSE);
        return TRUE;
    case SPLIT:
        if (raw->pattern == NULL)
            return rp_json_record_fail(record, pull, "pattern", "a Regex or a String");
        if (rp_json_record_at(record, "behavior") == NULL)
            return rp_json_record_fail(record, pull, "behavior", "a word such as \"Isolated\"");
        add_split(tokenizer, g_steal_pointer(&raw->pattern), raw->behavior, raw->invert);
        return TRUE;
    case WHITESPACE_SPLIT:
        add_split(tokenizer, known_pattern("\\s"), RP_SPLIT_REMOVED, FALSE);
        return TRUE;
    default:
        return rp_json_record_at(record, "pretokenizers") != NULL ||
               rp_json_record_fail(record, pull, "pretokenizers", "an array");
    }
}

gboolean
rp_tokenizer_read_pre_tokenizer(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
#define ROW(key, read, member, ...)                                                                \
    {                                                                                              \
        key, read, G_STRUCT_OFFSET(RawPreTokenizer, member), __VA_ARGS__                           \
    }
    static const RpJsonField rows[] = {
        ROW("type", rp_json_read_choice_index, type, .required = TRUE,
            .choices = pre_tokenizer_types),
        {"pretokenizers", read_pre_tokenizers},
        ROW("pattern", rp_tokenizer_read_pattern, pattern, .required = FALSE),
        ROW("behavior", rp_json_read_choice_index, behavior, .choices = behaviors),
        ROW("invert", rp_json_read_boolean, invert, .required = FALSE),
        ROW("add_prefix_space", rp_json_read_boolean, add_prefix_space, .null_is_absent = TRUE),
        {"trim_offsets", rp_json_read_ignored}, /* it moves offsets, which only people see */
        ROW("use_regex", rp_json_read_boolean, use_regex, .required = FALSE),
        ROW("individual_digits", rp_json_read_boolean, individual_digits, .required = FALSE),
        ROW("replacement", rp_tokenizer_read_string, replacement, .required = FALSE),
        {"str_rep", rp_json_read_ignored}, /* the same again */
        ROW("prepend_scheme", rp_json_read_choice_index, prepend_scheme,
            .choices = prepend_schemes),
        ROW("split", rp_json_read_boolean, split, .required = FALSE),
    };
#undef ROW
    RawPreTokenizer raw = {.tokenizer = value,
                           .behavior = RP_SPLIT_ISOLATED,
                           .prepend_scheme = RP_PREFIX_ALWAYS,
                           .add_prefix_space = TRUE,
                           .use_regex = TRUE,
                           .split = TRUE};
    RpJsonRecord record;
    const gboolean good = rp_json_read_record(pull, rows, G_N_ELEMENTS(rows), &raw, &record) &&
                          add_pre_tokenizer(pull, &record, &raw);

    g_free(raw.replacement);
    rp_pattern_free(raw.pattern);
    return good;
}
