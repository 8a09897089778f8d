#include "text/chat/private.h"

#include <string.h>

#include "core/base/hash.h"
#include "core/base/quote.h"

const char *const rp_train_on_names[] = {"assistant", "last", "all", NULL};

/* @content as parts: [{"type": "text", "text": content}]. */
static RpValue
as_parts(RpArena *arena, RpValue content)
{
    RpDict *part = rp_dict_new(arena);
    RpList *parts = rp_list_new(arena, 1);

    rp_dict_put(arena, part, "type", rp_value_static("text"));
    rp_dict_put(arena, part, "text", content);
    rp_list_append(arena, parts, rp_value_dict(part));
    return rp_value_list(parts);
}

/* The texts of parts, a line each, as servers of models join them. */
static RpValue
as_text(RpArena *arena, RpValue parts)
{
    g_autoptr(GString) text = g_string_new(NULL);

    for (guint i = 0; i < parts.list->length; i++) {
        const RpValue *part = rp_dict_get(parts.list->items[i].dict, "text");
        if (i > 0)
            g_string_append_c(text, '\n');
        g_string_append_len(text, part->text, part->length);
    }
    return rp_value_copy(arena, text->str, text->len);
}

/* Content as the template takes it. */
static RpValue
fitting(const RpChat *chat, RpArena *arena, RpValue content)
{
    if (content.type == RP_VALUE_LIST && !chat->takes_parts)
        return as_text(arena, content);
    if (content.type == RP_VALUE_STRING && !chat->takes_text)
        return as_parts(arena, content);
    return content;
}

/* Message @dict with @content instead of its own, and with the same as its thoughts. */
static RpDict *
says(RpArena *arena, const RpDict *dict, RpValue content)
{
    RpDict *other = rp_dict_new(arena);

    for (guint i = 0; i < dict->length; i++) {
        const RpPair pair = dict->pairs[i];
        if (rp_value_is_text(pair.key, "tool_calls"))
            continue;
        const gboolean thought = rp_value_is_text(pair.key, "thinking") ||
                                 rp_value_is_text(pair.key, "reasoning_content") ||
                                 rp_value_is_text(pair.key, "reasoning");
        rp_dict_set(arena, other, pair.key, thought ? content : pair.value);
    }
    rp_dict_put(arena, other, "content", content);
    return other;
}

static RpDict *
make_variables(const RpChat *chat, const RpRecord *record, RpArena *arena, guint n,
               const char *content)
{
    RpDict *variables = rp_dict_copy(arena, chat->tokens);
    RpList *messages = rp_list_new(arena, n);

    for (guint i = 0; i < n; i++) {
        RpDict *dict = g_array_index(record->messages, RpMessage, i).dict;
        const RpValue *said = rp_dict_get(dict, "content");
        const RpValue fits = said != NULL ? fitting(chat, arena, *said) : rp_none;
        const guint tag = dict->tag;
        if (content != NULL) {
            dict = says(arena, dict, fitting(chat, arena, rp_value_static(content)));
        } else if (said != NULL && fits.type != said->type) {
            dict = rp_dict_copy(arena, dict);
            rp_dict_put(arena, dict, "content", fits);
        }
        dict->tag = tag;
        rp_list_append(arena, messages, rp_value_dict(dict));
    }
    rp_dict_put(arena, variables, "messages", rp_value_list(messages));
    rp_dict_put(arena, variables, "tools", record->tools);
    rp_dict_put(arena, variables, "documents", record->documents);
    for (guint i = 0; record->variables != NULL && i < record->variables->length; i++)
        rp_dict_set(arena, variables, record->variables->pairs[i].key,
                    record->variables->pairs[i].value);
    return variables;
}

const RpTemplate *
rp_chat_template_of(const RpChat *chat, const RpRecord *record, GError **error)
{
    const RpTemplate *template =
        record->tools.type == RP_VALUE_LIST && chat->tools != NULL ? chat->tools : chat->plain;

    if (template == NULL)
        g_set_error(error, RP_CHAT_ERROR, RP_CHAT_ERROR_FILE,
                    "%s: line %" G_GUINT64_FORMAT
                    ": expected a chat template in %s (chat_template.jinja, or chat_template in "
                    "tokenizer_config.json), found none: give one with chat_template: FILE",
                    record->file, record->line, chat->checkpoint);
    return template;
}

gboolean
rp_chat_render_messages(const RpChat *chat, const RpRecord *record, guint n, gboolean prompt,
                        const char *content, RpRendered *rendered, GError **error)
{
    const RpTemplate *template = rp_chat_template_of(chat, record, error);
    const RpTemplateOptions options = {.now = chat->options.now};

    if (template == NULL)
        return FALSE;
    g_autoptr(RpArena) arena = rp_arena_new(G_MAXSIZE, G_MAXUINT64);
    RpDict *variables = make_variables(chat, record, arena, n, content);
    rp_dict_put(arena, variables, "add_generation_prompt", rp_value_bool(prompt));
    return rp_template_render(template, variables, &options, rendered, error);
}

/* A chat of one user's message. */
static void
make_probe(RpArena *arena, RpValue content, RpRecord *probe)
{
    *probe = (RpRecord){.arena = arena,
                        .messages = g_array_new(FALSE, FALSE, sizeof(RpMessage)),
                        .tools = rp_none,
                        .documents = rp_none,
                        .file = "probe",
                        .line = 1};
    rp_record_add_message(probe, "user", content);
}

GString *
rp_chat_find_prompt(const RpChat *chat, const RpDict *variables, gboolean tools)
{
    g_auto(RpRecord) probe = {0};
    g_auto(RpRendered) without = {0}, with = {0};
    gsize n = 0;

    make_probe(rp_arena_new(G_MAXSIZE, G_MAXUINT64), rp_value_static("question"), &probe);
    probe.variables = (RpDict *)variables;
    if (tools)
        probe.tools = rp_value_list(rp_list_new(probe.arena, 0));
    if (!rp_chat_render_messages(chat, &probe, 1, FALSE, NULL, &without, NULL) ||
        !rp_chat_render_messages(chat, &probe, 1, TRUE, NULL, &with, NULL))
        return NULL;
    while (n < without.text->len && with.text->str[n] == without.text->str[n])
        n++;
    while (n > 0 && ((guchar)with.text->str[n] & 0xc0) == 0x80)
        n--;
    return g_string_new_len(with.text->str + n, (gssize)(with.text->len - n));
}

/* Whether the template shows a user's @content as it is. */
static gboolean
shows(const RpChat *chat, RpValue content)
{
    g_auto(RpRecord) probe = {0};
    g_auto(RpRendered) rendered = {0};

    make_probe(rp_arena_new(G_MAXSIZE, G_MAXUINT64), content, &probe);
    return rp_chat_render_messages(chat, &probe, 1, FALSE, NULL, &rendered, NULL) &&
           strstr(rendered.text->str, "needle") != NULL &&
           strstr(rendered.text->str, "'type'") == NULL &&
           strstr(rendered.text->str, "\"type\"") == NULL;
}

/* A template may want content as a string, as parts, or take both: both are tried. */
static void
find_content(RpChat *chat)
{
    g_autoptr(RpArena) arena = rp_arena_new(1 << 20, G_MAXUINT64);
    const RpValue needle = rp_value_static("needle");

    chat->takes_text = chat->takes_parts = TRUE; /* for now: nothing is made to fit */
    if (chat->plain == NULL)
        return;
    const gboolean parts = shows(chat, as_parts(arena, needle)), text = shows(chat, needle);
    chat->takes_parts = parts;
    chat->takes_text = text || !parts;
}

RpChat *
rp_chat_open(const char *checkpoint, const RpTokenizer *tokenizer, const RpChatOptions *options,
             GError **error)
{
    g_autoptr(RpChat) chat = g_new0(RpChat, 1);

    chat->tokenizer = tokenizer;
    chat->options = *options;
    chat->options.template_file = g_strdup(options->template_file);
    chat->options.now =
        options->now != NULL ? g_date_time_ref(options->now) : g_date_time_new_now_local();
    chat->checkpoint = g_strdup(checkpoint);
    chat->arena = rp_arena_new(G_MAXSIZE, G_MAXUINT64);
    chat->tokens = rp_dict_new(chat->arena);
    chat->fingerprint = options->train_on;
    if (!rp_chat_read_checkpoint(chat, error))
        return NULL;
    if (rp_tokenizer_template_hash(tokenizer) != 0) {
        const guint64 of_template = GUINT64_TO_LE(rp_tokenizer_template_hash(tokenizer));
        chat->fingerprint = rp_hash64(&of_template, sizeof of_template, chat->fingerprint);
    }
    find_content(chat);
    if (chat->plain != NULL)
        chat->prompt = rp_chat_find_prompt(chat, NULL, FALSE);
    if (chat->plain != NULL && rp_template_uses(chat->plain, "strftime_now")) {
        const int day[] = {g_date_time_get_year(chat->options.now),
                           g_date_time_get_day_of_year(chat->options.now)};
        chat->fingerprint = rp_hash64(day, sizeof day, chat->fingerprint);
    }
    return g_steal_pointer(&chat);
}

void
rp_chat_free(RpChat *chat)
{
    if (chat == NULL)
        return;
    if (chat->prompt != NULL)
        g_string_free(chat->prompt, TRUE);
    rp_template_free(chat->plain);
    rp_template_free(chat->tools);
    rp_arena_free(chat->arena);
    if (chat->options.now != NULL)
        g_date_time_unref(chat->options.now);
    g_free((char *)chat->options.template_file);
    g_free(chat->checkpoint);
    g_free(chat);
}

const char *
rp_chat_template_source(const RpChat *chat)
{
    return chat->plain != NULL ? rp_template_source(chat->plain) : NULL;
}

guint64
rp_chat_fingerprint(const RpChat *chat)
{
    return chat->fingerprint;
}

void
rp_chat_text_clear(RpChatText *text)
{
    if (text->text != NULL)
        g_string_free(text->text, TRUE);
    if (text->spans != NULL)
        g_array_free(text->spans, TRUE);
    *text = (RpChatText){0};
}

GString *
rp_chat_prompt(const RpChat *chat, const char *file, guint64 line, const char *json, gsize length,
               GError **error)
{
    g_auto(RpRecord) record = {0};
    g_auto(RpRendered) rendered = {0};

    if (!rp_record_read(file, line, json, length, RP_ANSWER_NONE, &record, error))
        return NULL;
    if (record.kind != RP_RECORD_CHAT)
        return rp_null(rp_fail(error, RP_CHAT_ERROR, RP_CHAT_ERROR_RECORD,
                               "%s: line %" G_GUINT64_FORMAT
                               ": expected a chat (messages), found another "
                               "record",
                               file, line));
    if (!rp_chat_render_messages(chat, &record, record.messages->len, TRUE, NULL, &rendered, error))
        return rp_null(rp_prefix_error(error, "%s: line %" G_GUINT64_FORMAT ": ", file, line));
    return g_steal_pointer(&rendered.text);
}
