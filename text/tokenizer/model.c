/* The large parts of a tokenizer.json: model and added_tokens. */
#include "text/tokenizer/private.h"

#include <string.h>

typedef struct {
    RpTokenizer *tokenizer;
    char *unk;
    char *prefix;
    char *suffix;
    gboolean fuse_unk, byte_fallback, ignore_merges;
    double dropout;
    gboolean has_vocabulary;
    RpJsonPull merges; /* where they stand, if before the vocabulary */
    gboolean merges_wait;
} RawModel;

/* ---- vocab ---- */

static gboolean
read_vocabulary(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    RawModel *raw = value;
    g_autoptr(GString) content = g_string_new(NULL);
    guint64 id;

    if (!rp_json_pull_enter_object(pull))
        return FALSE;
    while (rp_json_pull_next_key(pull, content)) {
        if (!rp_json_pull_whole(pull, &id))
            return FALSE;
        if (id > RP_TOKENIZER_MAX_ID)
            return rp_json_pull_fail_value(pull, "an id of at most " G_STRINGIFY(16777215));
        if (content->len > 0 && !rp_vocabulary_add(&raw->tokenizer->vocabulary, content->str,
                                                   content->len, (guint32)id))
            return rp_json_pull_fail_value(pull, "each token and each id once");
    }
    raw->has_vocabulary = TRUE;
    return !pull->failed;
}

/* ---- merges ---- */

/* "a b", or ["a", "b"]; the two follow each other in @both, the second from @second on. */
static gboolean
read_pair(RpJsonPull *pull, GString *both, GString *word, gsize *second)
{
    guint n = 0;

    if (rp_json_pull_peek(pull) == RP_JSON_STRING) {
        if (!rp_json_pull_string(pull, both))
            return FALSE;
        const char *space = memchr(both->str, ' ', both->len);

        if (space == NULL || strchr(space + 1, ' ') != NULL)
            return rp_json_pull_fail_value(pull, "two tokens with a space between them");
        *second = (gsize)(space - both->str);
        g_string_erase(both, (gssize)*second, 1);
        return TRUE;
    }
    if (!rp_json_pull_enter_array(pull))
        return FALSE;
    g_string_truncate(both, 0);
    while (rp_json_pull_next_element(pull)) {
        if (!rp_json_pull_string(pull, word))
            return FALSE;
        if (n++ == 1)
            *second = both->len;
        g_string_append_len(both, word->str, (gssize)word->len);
    }
    return !pull->failed && (n == 2 || rp_json_pull_fail_value(pull, "two tokens"));
}

static gboolean
read_merge(RpJsonPull *pull, RpTokenizer *tokenizer, guint32 rank, GString *both, GString *word)
{
    const RpVocabulary *vocabulary = &tokenizer->vocabulary;
    gsize second = 0;

    if (!read_pair(pull, both, word, &second))
        return FALSE;
    const guint32 left = rp_vocabulary_find(vocabulary, both->str, second);
    const guint32 right = rp_vocabulary_find(vocabulary, both->str + second, both->len - second);
    const guint32 id = rp_vocabulary_find(vocabulary, both->str, both->len);

    if (left == RP_TOKEN_NONE || right == RP_TOKEN_NONE || id == RP_TOKEN_NONE)
        return rp_json_pull_fail_value(pull, "two tokens of the vocabulary that make a third");
    rp_merges_add(&tokenizer->merges, left, right, rank, id);
    return TRUE;
}

static gboolean
read_merges(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    RawModel *raw = value;
    g_autoptr(GString) both = g_string_new(NULL);
    g_autoptr(GString) word = g_string_new(NULL);
    guint32 rank = 0;

    if (!raw->has_vocabulary) {
        raw->merges = *pull;
        raw->merges_wait = TRUE;
        return rp_json_pull_skip(pull);
    }
    raw->merges_wait = FALSE;
    for (rp_json_pull_enter_array(pull); rp_json_pull_next_element(pull);)
        if (!read_merge(pull, raw->tokenizer, rank++, both, word))
            return FALSE;
    return !pull->failed;
}

/* ---- the model ---- */

/* @text: "" and null are the same: nothing. */
static gboolean
is_off(RpJsonPull *pull, const RpJsonRecord *record, const char *key, const char *text)
{
    return text == NULL || *text == '\0' || rp_json_record_fail(record, pull, key, "null");
}

static gboolean
add_model(RpJsonPull *pull, const RpJsonRecord *record, RawModel *raw)
{
    RpTokenizer *tokenizer = raw->tokenizer;

    if (!is_off(pull, record, "continuing_subword_prefix", raw->prefix) ||
        !is_off(pull, record, "end_of_word_suffix", raw->suffix))
        return FALSE;
    if (raw->dropout != 0)
        return rp_json_record_fail(record, pull, "dropout", "0 or null");
    if (raw->merges_wait && !read_merges(&raw->merges, NULL, raw)) {
        pull->failed = TRUE; /* the copy has set the error */
        return FALSE;
    }
    if (raw->unk != NULL) {
        tokenizer->unk = rp_vocabulary_find(&tokenizer->vocabulary, raw->unk, strlen(raw->unk));
        if (tokenizer->unk == RP_TOKEN_NONE)
            return rp_json_record_fail(record, pull, "unk_token", "a token of the vocabulary");
    }
    tokenizer->fuse_unk = raw->fuse_unk;
    tokenizer->byte_fallback = raw->byte_fallback;
    tokenizer->ignore_merges = raw->ignore_merges;
    return TRUE;
}

gboolean
rp_tokenizer_read_model(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    static const char *const types[] = {"BPE", NULL};
#define ROW(key, read, member, ...)                                                                \
    {                                                                                              \
        key, read, G_STRUCT_OFFSET(RawModel, member), __VA_ARGS__                                  \
    }
    static const RpJsonField rows[] = {
        {"type", rp_json_read_constant, .choices = types},
        ROW("dropout", rp_json_read_number, dropout, .null_is_absent = TRUE, .max = 1),
        ROW("unk_token", rp_json_read_string, unk, .null_is_absent = TRUE),
        ROW("continuing_subword_prefix", rp_json_read_string, prefix, .null_is_absent = TRUE),
        ROW("end_of_word_suffix", rp_json_read_string, suffix, .null_is_absent = TRUE),
        ROW("fuse_unk", rp_json_read_boolean, fuse_unk, .required = FALSE),
        ROW("byte_fallback", rp_json_read_boolean, byte_fallback, .required = FALSE),
        ROW("ignore_merges", rp_json_read_boolean, ignore_merges, .required = FALSE),
        {"vocab", read_vocabulary, .required = TRUE, .expected = "an object of tokens and ids"},
        {"merges", read_merges, .required = TRUE, .expected = "an array of pairs"},
    };
#undef ROW
    RawModel raw = {.tokenizer = value};
    RpJsonRecord record;
    const gboolean good = rp_json_read_record(pull, rows, G_N_ELEMENTS(rows), &raw, &record) &&
                          add_model(pull, &record, &raw);

    g_free(raw.unk);
    g_free(raw.prefix);
    g_free(raw.suffix);
    return good;
}

/* ---- added_tokens ---- */

static gboolean
read_added_token(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
#define ROW(key, read, member, ...)                                                                \
    {                                                                                              \
        key, read, G_STRUCT_OFFSET(RpAddedToken, member), __VA_ARGS__                              \
    }
    static const RpJsonField rows[] = {
        ROW("id", rp_json_read_uint, id, .required = TRUE, .max = RP_TOKENIZER_MAX_ID),
        ROW("content", rp_json_read_string, content, .required = TRUE, .expected = "a text"),
        ROW("single_word", rp_json_read_boolean, single_word, .required = FALSE),
        ROW("lstrip", rp_json_read_boolean, lstrip, .required = FALSE),
        ROW("rstrip", rp_json_read_boolean, rstrip, .required = FALSE),
        ROW("normalized", rp_json_read_boolean, normalized, .required = FALSE),
        ROW("special", rp_json_read_boolean, special, .required = FALSE),
    };
#undef ROW
    RpTokenizer *tokenizer = value;
    RpAddedToken token = {.at = (rp_json_pull_peek(pull), pull->at), .normalized = TRUE};
    const gboolean good = rp_json_read_record(pull, rows, G_N_ELEMENTS(rows), &token, NULL);

    if (!good || *token.content == '\0') {
        g_free(token.content);
        return good;
    }
    token.length = (guint32)strlen(token.content);
    g_array_append_val(tokenizer->added, token);
    return TRUE;
}

gboolean
rp_tokenizer_read_added(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    return rp_json_read_each(pull, field, read_added_token, value);
}
