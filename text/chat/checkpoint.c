#include "text/chat/private.h"

#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/json/json-record.h"

#include <string.h>

#define MAX_FILE ((gsize)64 << 20)

/* Keys of tokenizer_config.json and special_tokens_map.json; those that templates know come
 * first. */
static const char *const token_names[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                          "sep_token", "cls_token", "mask_token"};

/* The part of a file that is read. */
typedef struct {
    RpChat *chat;
    char *plain; /* sources of the templates */
    char *tools;
    gboolean with_templates;
} Source;

/* A string, or an object with `content`; null: no token. */
static gboolean
read_token(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    RpChat *chat = ((Source *)value)->chat;
    RpValue token;

    rp_json_pull_peek(pull); /* to where the value stands */
    const char *at = pull->at;
    if (!rp_value_read_json(chat->arena, pull, &token))
        return FALSE;
    if (token.type == RP_VALUE_DICT) {
        const RpValue *content = rp_dict_get(token.dict, "content");
        token = content != NULL ? *content : rp_none;
        if (token.type != RP_VALUE_STRING)
            return rp_json_pull_refuse(pull, at, NULL, "a token with a string `content`", NULL);
    }
    if (token.type == RP_VALUE_NONE)
        return TRUE;
    if (token.type != RP_VALUE_STRING)
        return rp_json_pull_refuse(pull, at, NULL, "a token: a string, or an object", NULL);
    rp_dict_put(chat->arena, chat->tokens, field->key, token);
    return TRUE;
}

static gboolean
read_name_and_template(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    Source *source = value;
    g_autoptr(GString) key = g_string_new(NULL);
    g_autoptr(GString) name = g_string_new(NULL);
    g_autoptr(GString) text = g_string_new(NULL);

    if (!rp_json_pull_enter_object(pull))
        return FALSE;
    while (rp_json_pull_next_key(pull, key))
        if (strcmp(key->str, "name") == 0       ? !rp_json_pull_string(pull, name)
            : strcmp(key->str, "template") == 0 ? !rp_json_pull_string(pull, text)
                                                : !rp_json_pull_skip(pull))
            return FALSE;
    char **place = strcmp(name->str, "default") == 0    ? &source->plain
                   : strcmp(name->str, "tool_use") == 0 ? &source->tools
                                                        : NULL;
    if (!pull->failed && place != NULL && source->with_templates) {
        g_free(*place);
        *place = g_strdup(text->str);
    }
    return !pull->failed;
}

/* A template, or several with names. */
static gboolean
read_template(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    Source *source = value;
    g_autoptr(GString) text = g_string_new(NULL);

    if (rp_json_pull_peek(pull) == RP_JSON_STRING) {
        if (!rp_json_pull_string(pull, text))
            return FALSE;
        if (source->with_templates) {
            g_free(source->plain);
            source->plain = g_strdup(text->str);
        }
        return TRUE;
    }
    if (rp_json_pull_peek(pull) != RP_JSON_ARRAY)
        return rp_json_pull_fail(pull, "a template, or a list of named ones");
    return rp_json_read_each(pull, field, read_name_and_template, source);
}

/* @name in the checkpoint, if it is there. */
static gboolean
read_json(Source *source, const char *name, GError **error)
{
    RpChat *chat = source->chat;
    RpJsonField fields[G_N_ELEMENTS(token_names) + 2] = {0};
    g_autofree char *path = g_build_filename(chat->checkpoint, name, NULL);
    gsize length = 0;
    RpJsonPull pull;

    if (!g_file_test(path, G_FILE_TEST_EXISTS))
        return TRUE;
    g_autofree char *text = rp_file_read(path, MAX_FILE, &length, error);
    if (text == NULL)
        return FALSE;
    for (guint i = 0; i < G_N_ELEMENTS(token_names); i++)
        fields[i] = (RpJsonField){.key = token_names[i], .read = read_token};
    fields[G_N_ELEMENTS(token_names)] =
        (RpJsonField){.key = "chat_template", .read = read_template, .null_is_absent = TRUE};
    fields[G_N_ELEMENTS(token_names) + 1] = (RpJsonField){.read = rp_json_read_ignored};
    return rp_json_pull_init(&pull, path, text, length, RP_CHAT_ERROR, RP_CHAT_ERROR_FILE, error) &&
           rp_json_read_record(&pull, fields, G_N_ELEMENTS(fields), source, NULL) &&
           rp_json_pull_end(&pull);
}

static RpTemplate *
open_template(const char *name, const char *source, RpChat *chat, GError **error)
{
    const gsize length = strlen(source);

    chat->fingerprint = rp_hash64(source, length, chat->fingerprint);
    return rp_template_new(name, source, length, error);
}

static RpTemplate *
read_template_file(RpChat *chat, const char *path, GError **error)
{
    gsize length = 0;
    g_autofree char *source = rp_file_read(path, MAX_FILE, &length, error);

    return source != NULL ? open_template(path, source, chat, error) : NULL;
}

/* Files come before keys of tokenizer_config.json, as in transformers. */
static gboolean
open_templates(Source *source, GError **error)
{
    RpChat *chat = source->chat;
    g_autofree char *plain = g_build_filename(chat->checkpoint, "chat_template.jinja", NULL);
    g_autofree char *tools =
        g_build_filename(chat->checkpoint, "additional_chat_templates", "tool_use.jinja", NULL);

    if (chat->options.template_file != NULL) {
        chat->plain = read_template_file(chat, chat->options.template_file, error);
        return chat->plain != NULL;
    }
    if (g_file_test(plain, G_FILE_TEST_EXISTS)) {
        chat->plain = read_template_file(chat, plain, error);
        if (chat->plain == NULL || !g_file_test(tools, G_FILE_TEST_EXISTS))
            return chat->plain != NULL;
        chat->tools = read_template_file(chat, tools, error);
        return chat->tools != NULL;
    }
    if (source->plain != NULL)
        chat->plain = open_template("chat_template", source->plain, chat, error);
    if (source->plain != NULL && chat->plain == NULL)
        return FALSE;
    if (source->tools != NULL)
        chat->tools = open_template("chat_template tool_use", source->tools, chat, error);
    return source->tools == NULL || chat->tools != NULL;
}

gboolean
rp_chat_read_checkpoint(RpChat *chat, GError **error)
{
    Source source = {.chat = chat};
    gboolean done = read_json(&source, "special_tokens_map.json", error);

    source.with_templates = TRUE;
    done = done && read_json(&source, "chat_template.json", error) &&
           read_json(&source, "tokenizer_config.json", error) && open_templates(&source, error);
    g_free(source.plain);
    g_free(source.tools);
    for (guint i = 0; done && i < chat->tokens->length; i++) {
        const RpPair pair = chat->tokens->pairs[i];
        chat->fingerprint = rp_hash64(pair.key.text, pair.key.length, chat->fingerprint);
        chat->fingerprint = rp_hash64(pair.value.text, pair.value.length, chat->fingerprint);
    }
    return done;
}
