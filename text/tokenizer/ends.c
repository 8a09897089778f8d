/* post_processor and decoder of a tokenizer.json: tokens around a text, and decoding. */
#include "text/tokenizer/private.h"

#include <string.h>

#include "core/base/quote.h"

/* Limits the tokens of a template. */
#define MOST_TOKENS 64

/* ---- post_processor ---- */

typedef struct {
    RpTokenizer *tokenizer;
    guint type;
    GPtrArray *names;   /* in "single": names of tokens, NULL for the text */
    GHashTable *tokens; /* name -> GArray of ids */
} RawProcessor;

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
        {"id", rp_tokenizer_read_string, G_STRUCT_OFFSET(Piece, token), .required = TRUE},
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
    return rp_tokenizer_read_each(pull, read_piece, ((RawProcessor *)value)->names);
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
    return rp_tokenizer_read_each(pull, read_id, value);
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

    return rp_json_read_record(pull, any, 1, ((RawProcessor *)value)->tokens, NULL);
}

static gboolean
read_processors(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    return rp_tokenizer_read_each(pull, rp_tokenizer_read_post_processor,
                                  ((RawProcessor *)value)->tokenizer);
}

static gboolean
add_template(RpJsonPull *pull, const RpJsonRecord *record, const RawProcessor *raw)
{
    RpTokenizer *tokenizer = raw->tokenizer;
    GArray *side = tokenizer->before;

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
        {"type", rp_json_read_choice_index, G_STRUCT_OFFSET(RawProcessor, type), .required = TRUE,
         .choices = types},
        {"processors", read_processors},
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
    RawProcessor raw = {value, .names = names, .tokens = tokens};
    RpJsonRecord record;

    return rp_json_read_record(pull, rows, G_N_ELEMENTS(rows), &raw, &record) &&
           (raw.type != PROCESSOR_TEMPLATE || add_template(pull, &record, &raw));
}

/* ---- decoder ---- */

typedef struct {
    RpTokenizer *tokenizer;
    guint type;
    char *content;
    char *replacement;
    RpPattern *pattern;
    guint start, stop;
    guint prepend_scheme;
    gboolean add_prefix_space;
} RawDecoder;

/* The first ones stand in the order of RpDecodeKind. */
static const char *const decoder_types[] = {"ByteLevel", "Replace",   "ByteFallback", "Fuse",
                                            "Strip",     "Metaspace", "Sequence",     NULL};
#define DECODER_SEQUENCE 6

static gboolean
read_decoders(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    return rp_tokenizer_read_each(pull, rp_tokenizer_read_decoder,
                                  ((RawDecoder *)value)->tokenizer);
}

static gboolean
add_decoder(RpJsonPull *pull, const RpJsonRecord *record, RawDecoder *raw)
{
    RpDecode step = {.kind = raw->type, .start = raw->start, .stop = raw->stop};

    if (raw->type == DECODER_SEQUENCE)
        return rp_json_record_at(record, "decoders") != NULL ||
               rp_json_record_fail(record, pull, "decoders", "an array");
    if (raw->tokenizer->decoders->len == RP_TOKENIZER_MAX_STEPS)
        return rp_json_pull_fail_value(pull,
                                       "at most " G_STRINGIFY(RP_TOKENIZER_MAX_STEPS) " steps");
    if (step.kind == RP_DECODE_REPLACE && raw->pattern == NULL)
        return rp_json_record_fail(record, pull, "pattern", "a Regex or a String");
    if ((step.kind == RP_DECODE_REPLACE || step.kind == RP_DECODE_STRIP) && raw->content == NULL)
        return rp_json_record_fail(record, pull, "content", "a text");
    if (step.kind == RP_DECODE_STRIP && g_utf8_strlen(raw->content, -1) != 1)
        return rp_json_record_fail(record, pull, "content", "one character");
    if (step.kind == RP_DECODE_METASPACE && (raw->replacement == NULL || *raw->replacement == '\0'))
        return rp_json_record_fail(record, pull, "replacement", "a character");
    step.drop_first = raw->add_prefix_space && raw->prepend_scheme != RP_PREFIX_NEVER;
    step.pattern = g_steal_pointer(&raw->pattern);
    step.content = step.kind == RP_DECODE_METASPACE ? g_steal_pointer(&raw->replacement)
                                                    : g_steal_pointer(&raw->content);
    g_array_append_val(raw->tokenizer->decoders, step);
    return TRUE;
}

gboolean
rp_tokenizer_read_decoder(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    static const char *const schemes[] = {"never", "first", "always", NULL};
#define ROW(key, read, member, ...)                                                                \
    {                                                                                              \
        key, read, G_STRUCT_OFFSET(RawDecoder, member), __VA_ARGS__                                \
    }
    static const RpJsonField rows[] = {
        ROW("type", rp_json_read_choice_index, type, .required = TRUE, .choices = decoder_types),
        {"decoders", read_decoders},
        ROW("pattern", rp_tokenizer_read_pattern, pattern, .required = FALSE),
        ROW("content", rp_tokenizer_read_string, content, .required = FALSE),
        ROW("start", rp_json_read_uint, start, .max = 1024),
        ROW("stop", rp_json_read_uint, stop, .max = 1024),
        ROW("replacement", rp_tokenizer_read_string, replacement, .required = FALSE),
        ROW("prepend_scheme", rp_json_read_choice_index, prepend_scheme, .choices = schemes),
        ROW("add_prefix_space", rp_json_read_boolean, add_prefix_space, .null_is_absent = TRUE),
        {"split", rp_json_read_ignored}, /* it splits texts, not tokens */
        {"str_rep", rp_json_read_ignored},
        {"trim_offsets", rp_json_read_ignored},
        {"use_regex", rp_json_read_ignored},
    };
#undef ROW
    RawDecoder raw = {
        .tokenizer = value, .prepend_scheme = RP_PREFIX_ALWAYS, .add_prefix_space = TRUE};
    RpJsonRecord record;
    const gboolean good = rp_json_read_record(pull, rows, G_N_ELEMENTS(rows), &raw, &record) &&
                          add_decoder(pull, &record, &raw);

    g_free(raw.content);
    g_free(raw.replacement);
    rp_pattern_free(raw.pattern);
    return good;
}
