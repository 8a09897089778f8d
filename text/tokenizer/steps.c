/*
 * normalizer, pre_tokenizer, post_processor and decoder of a tokenizer.json: lists of steps, however
 * deep they are nested.
 */
#include "text/tokenizer/private.h"

#include <string.h>

#include "core/base/quote.h"

/* GPT-2's, where ByteLevel cuts by itself. */
#define GPT2_PATTERN                                                                               \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
/* ASCII's punctuation, and that of Unicode. */
#define PUNCTUATION_PATTERN "[\\p{P}$+<=>\\^`|~]"
/* Limits the tokens of a template. */
#define MOST_TOKENS 64

/* {"String": …} or {"Regex": …}, into an RpPattern *. */
static gboolean
read_pattern(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    typedef struct {
        char *regex;
        char *text;
    } Words;
    static const RpJsonField rows[] = {
        {"Regex", rp_json_read_string, G_STRUCT_OFFSET(Words, regex)},
        {"String", rp_json_read_string, G_STRUCT_OFFSET(Words, text)},
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

/* A step as the file has it: the words of all kinds of steps. */
typedef struct {
    RpTokenizer *tokenizer;
    RpJsonRead read; /* of steps within it */
    guint type;
    RpStep step;
    char *prepend, *replacement;
    guint prepend_scheme;
    gboolean add_prefix_space, use_regex, individual_digits, split;
    GPtrArray *names;   /* in "single": names of tokens, NULL for the text */
    GHashTable *tokens; /* name -> GArray of ids */
} RawStep;

#define ROW(key, read, member, ...)                                                                \
    {                                                                                              \
        key, read, G_STRUCT_OFFSET(RawStep, member), __VA_ARGS__                                   \
    }

static const char *const prepend_schemes[] = {"never", "first", "always", NULL};

void
rp_step_clear(gpointer data)
{
    RpStep *step = data;

    rp_pattern_free(step->pattern);
    g_free(step->content);
}

static gboolean
read_steps(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    const RawStep *raw = value;

    return rp_json_read_each(pull, field, raw->read, raw->tokenizer);
}

/* Reads a step and adds it to the tokenizer. */
static gboolean
read_step(RpJsonPull *pull, const RpJsonField *rows, guint n_rows, RawStep raw,
          gboolean (*add)(RpJsonPull *pull, const RpJsonRecord *record, RawStep *raw))
{
    RpJsonRecord record;
    const gboolean good =
        rp_json_read_record(pull, rows, n_rows, &raw, &record) && add(pull, &record, &raw);

    rp_step_clear(&raw.step);
    g_free(raw.prepend);
    g_free(raw.replacement);
    return good;
}

/* Sees that one more step may be. */
static gboolean
has_space(RpJsonPull *pull, const GArray *steps)
{
    return steps->len < RP_TOKENIZER_MAX_STEPS ||
           rp_json_pull_fail_value(pull, "at most " G_STRINGIFY(RP_TOKENIZER_MAX_STEPS) " steps");
}

/* Moves @step to the end of @steps. */
static void
add_step(GArray *steps, RpStep *step)
{
    g_array_append_vals(steps, step, 1);
    *step = (RpStep){0};
}

static void
replace_content(RpStep *step, char **content)
{
    g_free(step->content);
    step->content = g_steal_pointer(content);
}

/* ---- normalizer ---- */

/* The first ones stand in the order of RpStepKind. */
static const char *const normalizer_types[] = {"NFC",     "NFD",     "NFKC",     "NFKD",
                                               "Prepend", "Replace", "Sequence", NULL};
#define NORMALIZER_SEQUENCE 6

static gboolean
add_normalizer(RpJsonPull *pull, const RpJsonRecord *record, RawStep *raw)
{
    RpStep *step = &raw->step;

    if (raw->type == NORMALIZER_SEQUENCE)
        return rp_json_record_at(record, "normalizers") != NULL ||
               rp_json_record_fail(record, pull, "normalizers", "an array");
    if (!has_space(pull, raw->tokenizer->normalizers))
        return FALSE;
    step->kind = raw->type;
    if (step->kind == RP_STEP_PREPEND && raw->prepend == NULL)
        return rp_json_record_fail(record, pull, "prepend", "a text");
    if (step->kind == RP_STEP_REPLACE && step->pattern == NULL)
        return rp_json_record_fail(record, pull, "pattern", "a Regex or a String");
    if (step->kind == RP_STEP_REPLACE && step->content == NULL)
        return rp_json_record_fail(record, pull, "content", "a text");
    if (step->kind == RP_STEP_PREPEND)
        replace_content(step, &raw->prepend);
    add_step(raw->tokenizer->normalizers, step);
    return TRUE;
}

gboolean
rp_tokenizer_read_normalizer(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    static const RpJsonField rows[] = {
        ROW("type", rp_json_read_choice_index, type, .required = TRUE, .choices = normalizer_types),
        {"normalizers", read_steps},
        ROW("prepend", rp_json_read_string, prepend, .required = FALSE),
        ROW("content", rp_json_read_string, step.content, .required = FALSE),
        ROW("pattern", read_pattern, step.pattern, .required = FALSE),
    };
    const RawStep raw = {.tokenizer = value, .read = rp_tokenizer_read_normalizer};

    return read_step(pull, rows, G_N_ELEMENTS(rows), raw, add_normalizer);
}

/* ---- pre_tokenizer ---- */

enum { BYTE_LEVEL, DIGITS, METASPACE, PUNCTUATION, SEQUENCE, SPLIT, WHITESPACE_SPLIT };
static const char *const pre_tokenizer_types[] = {"ByteLevel",       "Digits",   "Metaspace",
                                                  "Punctuation",     "Sequence", "Split",
                                                  "WhitespaceSplit", NULL};
static const char *const behaviors[] = {"Removed",        "Isolated",   "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous", NULL};

/* A pattern of this file; it compiles. */
static RpPattern *
known_pattern(const char *regex)
{
    g_autofree char *fault = NULL;
    RpPattern *pattern = rp_pattern_new_regex(regex, &fault);

    g_assert(pattern != NULL);
    return pattern;
}

/* Cuts at @pattern, which it takes. */
static void
add_split(RpTokenizer *tokenizer, RpPattern *pattern, RpSplitBehavior behavior)
{
    RpStep step = {.kind = RP_STEP_SPLIT, .pattern = pattern, .behavior = behavior};

    add_step(tokenizer->splits, &step);
}

/* Text that is put in front of all there is can be put there before anything is cut only. */
static gboolean
is_first(RpJsonPull *pull, const RpJsonRecord *record, const RpTokenizer *tokenizer,
         const char *key)
{
    return (tokenizer->splits->len == 0 && tokenizer->prefix == RP_PREFIX_NEVER &&
            tokenizer->spaces.content == NULL) ||
           rp_json_record_fail(record, pull, key, "this in the first pre_tokenizer only");
}

static gboolean
add_byte_level(RpJsonPull *pull, const RpJsonRecord *record, const RawStep *raw)
{
    RpTokenizer *tokenizer = raw->tokenizer;

    if (raw->add_prefix_space) {
        if (!is_first(pull, record, tokenizer, "add_prefix_space"))
            return FALSE;
        tokenizer->prefix = RP_PREFIX_ALWAYS;
        tokenizer->prefix_text = g_strdup(" ");
    }
    if (raw->use_regex)
        add_split(tokenizer, known_pattern(GPT2_PATTERN), RP_SPLIT_ISOLATED);
    tokenizer->byte_level = TRUE;
    return TRUE;
}

static gboolean
add_metaspace(RpJsonPull *pull, const RpJsonRecord *record, RawStep *raw)
{
    RpTokenizer *tokenizer = raw->tokenizer;

    if (raw->replacement == NULL || *raw->replacement == '\0')
        return rp_json_record_fail(record, pull, "replacement", "a character");
    if (!is_first(pull, record, tokenizer, "type"))
        return FALSE;
    tokenizer->spaces = (RpStep){.kind = RP_STEP_REPLACE,
                                 .pattern = rp_pattern_new_literal(" "),
                                 .content = g_strdup(raw->replacement)};
    tokenizer->prefix = raw->add_prefix_space ? raw->prepend_scheme : RP_PREFIX_NEVER;
    tokenizer->prefix_text = g_strdup(raw->replacement);
    if (raw->split)
        add_split(tokenizer, rp_pattern_new_literal(raw->replacement), RP_SPLIT_MERGED_WITH_NEXT);
    return TRUE;
}

static gboolean
add_pre_tokenizer(RpJsonPull *pull, const RpJsonRecord *record, RawStep *raw)
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
                  raw->individual_digits ? RP_SPLIT_ISOLATED : RP_SPLIT_CONTIGUOUS);
        return TRUE;
    case METASPACE:
        return add_metaspace(pull, record, raw);
    case PUNCTUATION:
        add_split(tokenizer, known_pattern(PUNCTUATION_PATTERN), raw->step.behavior);
        return TRUE;
    case SPLIT:
        if (raw->step.pattern == NULL)
            return rp_json_record_fail(record, pull, "pattern", "a Regex or a String");
        if (rp_json_record_at(record, "behavior") == NULL)
            return rp_json_record_fail(record, pull, "behavior", "a word such as \"Isolated\"");
        raw->step.kind = RP_STEP_SPLIT;
        add_step(tokenizer->splits, &raw->step);
        return TRUE;
    case WHITESPACE_SPLIT:
        add_split(tokenizer, known_pattern("\\s"), RP_SPLIT_REMOVED);
        return TRUE;
    default:
        return rp_json_record_at(record, "pretokenizers") != NULL ||
               rp_json_record_fail(record, pull, "pretokenizers", "an array");
    }
}

gboolean
rp_tokenizer_read_pre_tokenizer(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    static const RpJsonField rows[] = {
        ROW("type", rp_json_read_choice_index, type, .required = TRUE,
            .choices = pre_tokenizer_types),
        {"pretokenizers", read_steps},
        ROW("pattern", read_pattern, step.pattern, .required = FALSE),
        ROW("behavior", rp_json_read_choice_index, step.behavior, .choices = behaviors),
        ROW("invert", rp_json_read_boolean, step.invert, .required = FALSE),
        ROW("add_prefix_space", rp_json_read_boolean, add_prefix_space, .null_is_absent = TRUE),
        {"trim_offsets", rp_json_read_ignored}, /* it moves offsets, which only people see */
        ROW("use_regex", rp_json_read_boolean, use_regex, .required = FALSE),
        ROW("individual_digits", rp_json_read_boolean, individual_digits, .required = FALSE),
        ROW("replacement", rp_json_read_string, replacement, .required = FALSE),
        {"str_rep", rp_json_read_ignored}, /* the same again */
        ROW("prepend_scheme", rp_json_read_choice_index, prepend_scheme,
            .choices = prepend_schemes),
        ROW("split", rp_json_read_boolean, split, .required = FALSE),
    };
    const RawStep raw = {.tokenizer = value,
                         .read = rp_tokenizer_read_pre_tokenizer,
                         .step.behavior = RP_SPLIT_ISOLATED,
                         .prepend_scheme = RP_PREFIX_ALWAYS,
                         .add_prefix_space = TRUE,
                         .use_regex = TRUE,
                         .split = TRUE};

    return read_step(pull, rows, G_N_ELEMENTS(rows), raw, add_pre_tokenizer);
}

/* ---- post_processor ---- */

enum { PROCESSOR_BYTE_LEVEL, PROCESSOR_SEQUENCE, PROCESSOR_TEMPLATE };

typedef struct {
    char *token;
    char *sequence;
} Piece;

static gboolean
read_piece(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    static const char *const sequences[] = {"A", NULL};
    static const RpJsonField token_rows[] = {
        {"id", rp_json_read_string, G_STRUCT_OFFSET(Piece, token), .required = TRUE},
        {"type_id", rp_json_read_ignored},
    };
    static const RpJsonField sequence_rows[] = {
        {"id", rp_json_read_choice, G_STRUCT_OFFSET(Piece, sequence), .required = TRUE,
         .choices = sequences},
        {"type_id", rp_json_read_ignored},
    };
    static const RpJsonField rows[] = {
        {"SpecialToken", RP_JSON_NESTED(token_rows)},
        {"Sequence", RP_JSON_NESTED(sequence_rows)},
    };
    GPtrArray *names = value;
    Piece piece = {0};
    const char *at = (rp_json_pull_peek(pull), pull->at);
    gboolean good = rp_json_read_record(pull, rows, G_N_ELEMENTS(rows), &piece, NULL);

    if (good && ((piece.token == NULL) == (piece.sequence == NULL) || names->len == MOST_TOKENS))
        good = rp_json_pull_refuse(pull, at, NULL, "a SpecialToken or a Sequence", NULL);
    g_free(piece.sequence);
    if (good)
        g_ptr_array_add(names, piece.token);
    else
        g_free(piece.token);
    return good;
}

static gboolean
read_single(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    return rp_json_read_each(pull, field, read_piece, ((RawStep *)value)->names);
}

static gboolean
read_id(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    GArray *ids = value;
    guint64 id;

    if (!rp_json_pull_whole(pull, &id))
        return FALSE;
    const guint32 narrow = (guint32)MIN(id, RP_TOKEN_NONE);

    if (id > RP_TOKENIZER_MAX_ID || ids->len == MOST_TOKENS)
        return rp_json_pull_fail_value(pull, "the id of a token");
    g_array_append_val(ids, narrow);
    return TRUE;
}

static gboolean
read_ids(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    return rp_json_read_each(pull, field, read_id, value);
}

/* One of special_tokens; its name is the key. */
static gboolean
read_special(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    static const RpJsonField rows[] = {
        {"id", rp_json_read_ignored},
        {"ids", read_ids, .required = TRUE, .expected = "an array of ids"},
        {"tokens", rp_json_read_ignored},
    };
    GHashTable *tokens = value;
    GArray *ids = g_array_new(FALSE, FALSE, sizeof(guint32));

    g_hash_table_replace(tokens, g_strdup(pull->key), ids);
    return rp_json_read_record(pull, rows, G_N_ELEMENTS(rows), ids, NULL);
}

static gboolean
read_specials(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    static const RpJsonField any[] = {{NULL, read_special}};

    return rp_json_read_record(pull, any, 1, ((RawStep *)value)->tokens, NULL);
}

static gboolean
add_processor(RpJsonPull *pull, const RpJsonRecord *record, RawStep *raw)
{
    RpTokenizer *tokenizer = raw->tokenizer;
    GArray *side = tokenizer->before;

    if (raw->type != PROCESSOR_TEMPLATE)
        return TRUE;
    if (tokenizer->before->len + tokenizer->after->len > 0)
        return rp_json_record_fail(record, pull, "type", "one TemplateProcessing");
    for (guint i = 0; i < raw->names->len; i++) {
        const char *name = g_ptr_array_index(raw->names, i);
        const GArray *ids = name != NULL ? g_hash_table_lookup(raw->tokens, name) : NULL;

        if (name == NULL && side == tokenizer->after)
            return rp_json_record_fail(record, pull, "single", "the text once");
        if (name == NULL) {
            side = tokenizer->after;
        } else if (ids == NULL) {
            g_autofree char *shown = rp_quote(name);

            return rp_json_pull_refuse(pull, rp_json_record_at(record, "single"), "single",
                                       "tokens of special_tokens", shown);
        } else {
            g_array_append_vals(side, ids->data, ids->len);
        }
    }
    return side == tokenizer->after ||
           rp_json_record_fail(record, pull, "single", "an array with the text");
}

gboolean
rp_tokenizer_read_post_processor(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    static const char *const types[] = {"ByteLevel", "Sequence", "TemplateProcessing", NULL};
    static const RpJsonField rows[] = {
        ROW("type", rp_json_read_choice_index, type, .required = TRUE, .choices = types),
        {"processors", read_steps},
        {"single", read_single},
        {"pair", rp_json_read_ignored}, /* a template of two texts */
        {"special_tokens", read_specials},
        {"add_prefix_space", rp_json_read_ignored}, /* ByteLevel's are of offsets */
        {"trim_offsets", rp_json_read_ignored},
        {"use_regex", rp_json_read_ignored},
    };
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GHashTable) tokens =
        g_hash_table_new_full(g_str_hash, g_str_equal, g_free, (GDestroyNotify)g_array_unref);
    const RawStep raw = {.tokenizer = value,
                         .read = rp_tokenizer_read_post_processor,
                         .names = names,
                         .tokens = tokens};

    return read_step(pull, rows, G_N_ELEMENTS(rows), raw, add_processor);
}

/* ---- decoder ---- */

static const char *const decoder_types[] = {"ByteLevel", "Replace",   "ByteFallback", "Fuse",
                                            "Strip",     "Metaspace", "Sequence",     NULL};
#define DECODER_SEQUENCE 6

static gboolean
add_decoder(RpJsonPull *pull, const RpJsonRecord *record, RawStep *raw)
{
    static const RpStepKind kinds[] = {RP_STEP_BYTE_LEVEL, RP_STEP_REPLACE, RP_STEP_BYTE_FALLBACK,
                                       RP_STEP_FUSE,       RP_STEP_STRIP,   RP_STEP_METASPACE};
    RpStep *step = &raw->step;

    if (raw->type == DECODER_SEQUENCE)
        return rp_json_record_at(record, "decoders") != NULL ||
               rp_json_record_fail(record, pull, "decoders", "an array");
    if (!has_space(pull, raw->tokenizer->decoders))
        return FALSE;
    step->kind = kinds[raw->type];
    if (step->kind == RP_STEP_REPLACE && step->pattern == NULL)
        return rp_json_record_fail(record, pull, "pattern", "a Regex or a String");
    if ((step->kind == RP_STEP_REPLACE || step->kind == RP_STEP_STRIP) && step->content == NULL)
        return rp_json_record_fail(record, pull, "content", "a text");
    if (step->kind == RP_STEP_STRIP && g_utf8_strlen(step->content, -1) != 1)
        return rp_json_record_fail(record, pull, "content", "one character");
    if (step->kind == RP_STEP_METASPACE && (raw->replacement == NULL || *raw->replacement == '\0'))
        return rp_json_record_fail(record, pull, "replacement", "a character");
    step->drop_first = raw->add_prefix_space && raw->prepend_scheme != RP_PREFIX_NEVER;
    if (step->kind == RP_STEP_METASPACE)
        replace_content(step, &raw->replacement);
    add_step(raw->tokenizer->decoders, step);
    return TRUE;
}

gboolean
rp_tokenizer_read_decoder(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    static const RpJsonField rows[] = {
        ROW("type", rp_json_read_choice_index, type, .required = TRUE, .choices = decoder_types),
        {"decoders", read_steps},
        ROW("pattern", read_pattern, step.pattern, .required = FALSE),
        ROW("content", rp_json_read_string, step.content, .required = FALSE),
        ROW("start", rp_json_read_uint, step.start, .max = 1024),
        ROW("stop", rp_json_read_uint, step.stop, .max = 1024),
        ROW("replacement", rp_json_read_string, replacement, .required = FALSE),
        ROW("prepend_scheme", rp_json_read_choice_index, prepend_scheme,
            .choices = prepend_schemes),
        ROW("add_prefix_space", rp_json_read_boolean, add_prefix_space, .null_is_absent = TRUE),
        {"split", rp_json_read_ignored}, /* it splits texts, not tokens */
        {"str_rep", rp_json_read_ignored},
        {"trim_offsets", rp_json_read_ignored},
        {"use_regex", rp_json_read_ignored},
    };
    const RawStep raw = {.tokenizer = value,
                         .read = rp_tokenizer_read_decoder,
                         .prepend_scheme = RP_PREFIX_ALWAYS,
                         .add_prefix_space = TRUE};

    return read_step(pull, rows, G_N_ELEMENTS(rows), raw, add_decoder);
}
