/* Opens a tokenizer.json: reads its parts, and sees that they fit each other. */
#include "text/tokenizer/tokenizer.h"

#include <string.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "text/tokenizer/private.h"

#define MAX_FILE_BYTES ((gsize)512 << 20)
#define WORD_MARK "\xe2\x96\x81" /* ▁ */

G_DEFINE_QUARK(rp - tokenizer - error - quark, rp_tokenizer_error)

/* ---- making and freeing ---- */

static void
clear_added(gpointer data)
{
    g_free(((RpAddedToken *)data)->content);
}

static GArray *
array_of(guint size, GDestroyNotify clear)
{
    GArray *array = g_array_new(FALSE, TRUE, size);

    if (clear != NULL)
        g_array_set_clear_func(array, clear);
    return array;
}

static RpTokenizer *
tokenizer_new(void)
{
    RpTokenizer *tokenizer = g_new0(RpTokenizer, 1);

    rp_vocabulary_init(&tokenizer->vocabulary);
    tokenizer->unk = RP_TOKEN_NONE;
    tokenizer->cache = rp_piece_cache_new();
    tokenizer->added = array_of(sizeof(RpAddedToken), clear_added);
    for (guint i = 0; i < G_N_ELEMENTS(tokenizer->matched); i++)
        tokenizer->matched[i].tokens = array_of(sizeof(RpAddedToken), clear_added);
    tokenizer->special = g_hash_table_new(NULL, NULL);
    tokenizer->normalizers = array_of(sizeof(RpStep), rp_step_clear);
    tokenizer->splits = array_of(sizeof(RpStep), rp_step_clear);
    tokenizer->before = array_of(sizeof(guint32), NULL);
    tokenizer->after = array_of(sizeof(guint32), NULL);
    tokenizer->decoders = array_of(sizeof(RpStep), rp_step_clear);
    for (guint i = 0; i < RP_TOKEN_ROLES; i++)
        tokenizer->roles[i] = -1;
    return tokenizer;
}

void
rp_tokenizer_free(RpTokenizer *tokenizer)
{
    if (tokenizer == NULL)
        return;
    rp_vocabulary_clear(&tokenizer->vocabulary);
    rp_merges_clear(&tokenizer->merges);
    rp_piece_cache_free(tokenizer->cache);
    g_array_unref(tokenizer->added);
    for (guint i = 0; i < G_N_ELEMENTS(tokenizer->matched); i++)
        g_array_unref(tokenizer->matched[i].tokens);
    g_hash_table_unref(tokenizer->special);
    g_array_unref(tokenizer->normalizers);
    g_array_unref(tokenizer->splits);
    g_array_unref(tokenizer->before);
    g_array_unref(tokenizer->after);
    g_array_unref(tokenizer->decoders);
    g_free(tokenizer->prefix_text);
    rp_step_clear(&tokenizer->spaces);
    g_free(tokenizer);
}

/* ---- consistency of the parts ---- */

/* The content of @token as normalizers leave it. FALSE: that takes too long. */
static gboolean
normalize_added(const RpTokenizer *tokenizer, RpMatch *match, RpAddedToken *token)
{
    g_autoptr(GString) text = g_string_new(token->content);
    g_autoptr(GString) other = g_string_new(NULL);

    for (guint i = 0; i < tokenizer->normalizers->len; i++) {
        const int changed =
            rp_normalize(&g_array_index(tokenizer->normalizers, RpStep, i), match, text->str,
                         text->len, RP_NORMALIZE_MOST(token->length), other, NULL);

        if (changed < 0)
            return FALSE;
        if (changed > 0)
            g_string_assign(text, other->str);
    }
    token->length = (guint32)text->len;
    token->content = g_strdup(text->str);
    return TRUE;
}

static gboolean
settle_added(RpTokenizer *tokenizer, RpMatch *match, RpJsonPull *pull)
{
    for (guint i = 0; i < tokenizer->added->len; i++) {
        const RpAddedToken *token = &g_array_index(tokenizer->added, RpAddedToken, i);
        const guint32 id =
            rp_vocabulary_find(&tokenizer->vocabulary, token->content, token->length);
        RpAddedToken matched = *token;

        if (id == RP_TOKEN_NONE ? !rp_vocabulary_add(&tokenizer->vocabulary, token->content,
                                                     token->length, token->id)
                                : id != token->id) {
            g_autofree char *shown = rp_quote(token->content);
            g_autofree char *found = g_strdup_printf("%u for %s", token->id, shown);

            return rp_json_pull_refuse(pull, token->at, "added_tokens",
                                       "the vocabulary's id, or one that it has not", found);
        }
        if (token->special)
            g_hash_table_add(tokenizer->special, GUINT_TO_POINTER(token->id));
        if (token->normalized && !normalize_added(tokenizer, match, &matched))
            return rp_json_pull_refuse(pull, token->at, "added_tokens",
                                       "a text that is normalized in time", "another");
        if (!token->normalized)
            matched.content = g_strdup(token->content);
        if (matched.length > 0)
            g_array_append_val(tokenizer->matched[token->normalized ? 1 : 0].tokens, matched);
        else
            g_free(matched.content);
    }
    rp_added_settle(&tokenizer->matched[0]);
    rp_added_settle(&tokenizer->matched[1]);
    return TRUE;
}

static gboolean
settle_template(const RpTokenizer *tokenizer, const GArray *ids, RpJsonPull *pull)
{
    for (guint i = 0; i < ids->len; i++) {
        const guint32 id = g_array_index(ids, guint32, i);
        g_autofree char *found = g_strdup_printf("%u", id);

        if (rp_tokenizer_token(tokenizer, id) == NULL)
            return rp_json_pull_refuse(pull, pull->end, "post_processor", "ids of tokens", found);
    }
    return TRUE;
}

/* Whether no token has a ▁ behind another character: no merge crosses the start of a word then. */
static gboolean
words_stand_alone(const RpTokenizer *tokenizer)
{
    const RpVocabulary *vocabulary = &tokenizer->vocabulary;

    if (tokenizer->byte_level || tokenizer->ignore_merges ||
        rp_vocabulary_find(vocabulary, WORD_MARK, strlen(WORD_MARK)) == RP_TOKEN_NONE)
        return FALSE;
    for (guint32 id = 0; id < vocabulary->contents->len; id++) {
        gsize length;
        const char *content = rp_vocabulary_content(vocabulary, id, &length);
        const char *p = content;

        while (g_str_has_prefix(p, WORD_MARK))
            p += strlen(WORD_MARK);
        if (strstr(p, WORD_MARK) != NULL &&
            !g_hash_table_contains(tokenizer->special, GUINT_TO_POINTER(id)))
            return FALSE;
    }
    return TRUE;
}

/* Finds the tokens that bytes become before anything merges. */
static void
find_bytes(RpTokenizer *tokenizer)
{
    for (guint byte = 0; byte < 256; byte++) {
        char text[8] = {(char)byte};
        const guint n = tokenizer->byte_level ? rp_byte_level_character((guint8)byte, text) : 1;

        tokenizer->byte_ids[byte] = rp_vocabulary_find(&tokenizer->vocabulary, text, n);
        g_snprintf(text, sizeof text, "<0x%02X>", byte);
        tokenizer->fallback_ids[byte] =
            rp_vocabulary_find(&tokenizer->vocabulary, text, strlen(text));
    }
}

static gboolean
settle(RpTokenizer *tokenizer, RpJsonPull *pull)
{
    RpMatch *match = rp_match_new();

    find_bytes(tokenizer); /* among the model's tokens: added ones are no bytes */
    const gboolean good = settle_added(tokenizer, match, pull) &&
                          settle_template(tokenizer, tokenizer->before, pull) &&
                          settle_template(tokenizer, tokenizer->after, pull);

    rp_match_free(match);
    if (!good)
        return FALSE;
    rp_vocabulary_settle(&tokenizer->vocabulary);
    for (guint i = 0; i < tokenizer->matched[1].tokens->len; i++) { /* as Hugging Face decodes */
        const RpAddedToken *token = &g_array_index(tokenizer->matched[1].tokens, RpAddedToken, i);

        rp_vocabulary_decode_as(&tokenizer->vocabulary, token->id, token->content, token->length);
    }
    tokenizer->cuts_words = words_stand_alone(tokenizer);
    return TRUE;
}

RpTokenizer *
rp_tokenizer_parse(const char *name, const char *json, gsize length, GError **error)
{
    static const RpJsonField rows[] = {
        {"version", rp_json_read_ignored},
        {"truncation", rp_json_read_ignored}, /* who trains decides on lengths */
        {"padding", rp_json_read_ignored},
        {"added_tokens", rp_tokenizer_read_added, .null_is_absent = TRUE},
        {"normalizer", rp_tokenizer_read_normalizer, .null_is_absent = TRUE},
        {"pre_tokenizer", rp_tokenizer_read_pre_tokenizer, .null_is_absent = TRUE},
        {"post_processor", rp_tokenizer_read_post_processor, .null_is_absent = TRUE},
        {"decoder", rp_tokenizer_read_decoder, .null_is_absent = TRUE},
        {"model", rp_tokenizer_read_model, .required = TRUE, .expected = "an object"},
    };
    g_autoptr(RpTokenizer) tokenizer = tokenizer_new();
    RpJsonPull pull;

    if (!rp_json_pull_init(&pull, name, json, length, RP_TOKENIZER_ERROR, RP_TOKENIZER_ERROR_FILE,
                           error) ||
        !rp_json_read_record(&pull, rows, G_N_ELEMENTS(rows), tokenizer, NULL) ||
        !rp_json_pull_end(&pull) || !settle(tokenizer, &pull))
        return NULL;
    return g_steal_pointer(&tokenizer);
}

/* ---- tokenizer_config.json ---- */

typedef struct {
    char *contents[RP_TOKEN_ROLES];
    gboolean add_bos, add_eos;
} Roles;

/* "text", {"content": "text", …} or null. */
static gboolean
read_role(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    static const RpJsonField rows[] = {
        {"content", rp_json_read_string},
        {NULL, rp_json_read_ignored},
    };

    if (rp_json_pull_peek(pull) == RP_JSON_OBJECT)
        return rp_json_read_record(pull, rows, G_N_ELEMENTS(rows), value, NULL);
    return rp_json_read_string(pull, field, value);
}

/* null: false, but there. */
static gboolean
read_flag(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    return rp_json_pull_peek(pull) == RP_JSON_NULL ? rp_json_pull_null(pull)
                                                   : rp_json_read_boolean(pull, field, value);
}

/* As transformers has it: either key takes the place of the file's template. */
static void
set_template(RpTokenizer *tokenizer, const Roles *roles)
{
    const gint64 bos = tokenizer->roles[RP_TOKEN_BOS], eos = tokenizer->roles[RP_TOKEN_EOS];
    const guint32 ids[] = {(guint32)bos, (guint32)eos};

    g_array_set_size(tokenizer->before, 0);
    g_array_set_size(tokenizer->after, 0);
    if (roles->add_bos && bos >= 0)
        g_array_append_vals(tokenizer->before, &ids[0], 1);
    if (roles->add_eos && eos >= 0)
        g_array_append_vals(tokenizer->after, &ids[1], 1);
    tokenizer->template_hash = 1 + tokenizer->before->len + 2 * tokenizer->after->len;
}

static gboolean
read_roles(RpTokenizer *tokenizer, const char *path, GError **error)
{
#define ROW(key, role)                                                                             \
    {                                                                                              \
        key, read_role, G_STRUCT_OFFSET(Roles, contents[role]), .null_is_absent = TRUE             \
    }
    static const RpJsonField rows[] = {
        ROW("bos_token", RP_TOKEN_BOS),
        ROW("eos_token", RP_TOKEN_EOS),
        ROW("pad_token", RP_TOKEN_PAD),
        ROW("unk_token", RP_TOKEN_UNK),
        {"add_bos_token", read_flag, G_STRUCT_OFFSET(Roles, add_bos)},
        {"add_eos_token", read_flag, G_STRUCT_OFFSET(Roles, add_eos)},
        {NULL, rp_json_read_ignored},
    };
#undef ROW
    g_autofree char *shown = rp_display_name(path);
    gsize length = 0;
    g_autofree char *text = rp_file_read(path, MAX_FILE_BYTES, &length, error);
    Roles roles = {0};
    RpJsonRecord record;
    RpJsonPull pull;
    const gboolean good = text != NULL &&
                          rp_json_pull_init(&pull, shown, text, length, RP_TOKENIZER_ERROR,
                                            RP_TOKENIZER_ERROR_FILE, error) &&
                          rp_json_read_record(&pull, rows, G_N_ELEMENTS(rows), &roles, &record) &&
                          rp_json_pull_end(&pull);

    for (guint i = 0; i < RP_TOKEN_ROLES; i++) {
        if (good && roles.contents[i] != NULL)
            tokenizer->roles[i] = rp_tokenizer_id(tokenizer, roles.contents[i]);
        g_free(roles.contents[i]);
    }
    if (good && (rp_json_record_at(&record, "add_bos_token") != NULL ||
                 rp_json_record_at(&record, "add_eos_token") != NULL))
        set_template(tokenizer, &roles);
    return good;
}

RpTokenizer *
rp_tokenizer_open(const char *path, GError **error)
{
    g_autofree char *file = g_file_test(path, G_FILE_TEST_IS_DIR)
                                ? g_build_filename(path, "tokenizer.json", NULL)
                                : g_strdup(path);
    g_autofree char *directory = g_path_get_dirname(file);
    g_autofree char *config = g_build_filename(directory, "tokenizer_config.json", NULL);
    g_autofree char *shown = rp_display_name(file);
    gsize length = 0;
    g_autofree char *text = rp_file_read(file, MAX_FILE_BYTES, &length, error);

    if (text == NULL)
        return NULL;
    g_autoptr(RpTokenizer) tokenizer = rp_tokenizer_parse(shown, text, length, error);

    if (tokenizer == NULL ||
        (g_file_test(config, G_FILE_TEST_EXISTS) && !read_roles(tokenizer, config, error)))
        return NULL;
    return g_steal_pointer(&tokenizer);
}

/* ---- questions ---- */

guint
rp_tokenizer_size(const RpTokenizer *tokenizer)
{
    return tokenizer->vocabulary.contents->len;
}

gint64
rp_tokenizer_id(const RpTokenizer *tokenizer, const char *content)
{
    const guint32 id = rp_vocabulary_find(&tokenizer->vocabulary, content, strlen(content));

    return id != RP_TOKEN_NONE ? (gint64)id : -1;
}

const char *
rp_tokenizer_token(const RpTokenizer *tokenizer, guint32 id)
{
    gsize length;

    if (id >= tokenizer->vocabulary.contents->len)
        return NULL;
    const char *content = rp_vocabulary_content(&tokenizer->vocabulary, id, &length);

    return length > 0 ? content : NULL;
}

gboolean
rp_tokenizer_is_special(const RpTokenizer *tokenizer, guint32 id)
{
    return g_hash_table_contains(tokenizer->special, GUINT_TO_POINTER(id));
}

guint64
rp_tokenizer_template_hash(const RpTokenizer *tokenizer)
{
    return tokenizer->template_hash;
}

gint64
rp_tokenizer_role(const RpTokenizer *tokenizer, RpTokenRole role)
{
    return tokenizer->roles[role];
}
