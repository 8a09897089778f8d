#include "text/chat/private.h"

#include <string.h>

G_DEFINE_QUARK(rp_chat_error, rp_chat_error)

#define ROLES "system, developer, user, assistant, tool"

/* Roles as they are written, and as templates know them. */
static const struct {
    const char *written;
    const char *role;
    gboolean from; /* ShareGPT only */
} roles[] = {
    {"system", "system", FALSE},
    {"developer", "developer", FALSE},
    {"user", "user", FALSE},
    {"assistant", "assistant", FALSE},
    {"tool", "tool", FALSE},
    {"human", "user", TRUE},
    {"gpt", "assistant", TRUE},
    {"chatgpt", "assistant", TRUE},
    {"function_call", NULL, TRUE},
    {"observation", "tool", TRUE},
    {"function_response", "tool", TRUE},
};

typedef struct {
    RpRecord *record;
    RpJsonPull *pull;
    RpMessageStyle style;
    RpMessage message;
    const char *role; /* NULL: not yet */
    gboolean call;    /* its content is JSON of calls */
    gboolean has_content;
    RpValue content;
    const char *start;
    const char *content_at;
    const char *content_key;
} Reading;

static gboolean
refuse(const Reading *reading, const char *at, const char *expected)
{
    return rp_json_pull_refuse(reading->pull, at, NULL, expected, NULL);
}

/* The content, when its message has been left. */
static gboolean
refuse_content(const Reading *reading, const char *expected)
{
    return rp_json_pull_refuse(reading->pull, reading->content_at, reading->content_key, expected,
                               NULL);
}

static gboolean
read_role(Reading *reading)
{
    g_autoptr(GString) text = g_string_new(NULL);

    if (!rp_json_pull_string(reading->pull, text))
        return FALSE;
    for (guint i = 0; i < G_N_ELEMENTS(roles); i++)
        if (strcmp(text->str, roles[i].written) == 0 &&
            (!roles[i].from || reading->style == RP_MESSAGES_FROM)) {
            reading->call = roles[i].role == NULL;
            reading->role = reading->call ? "assistant" : roles[i].role;
            return TRUE;
        }
    return rp_json_pull_fail_value(reading->pull, reading->style == RP_MESSAGES_FROM
                                                      ? "one of human, gpt, " ROLES
                                                        ", function_call, observation"
                                                      : "one of " ROLES);
}

/* One part of a content: {"type": "text", "text": "..."}. */
static gboolean
check_part(const Reading *reading, const char *at, RpValue part)
{
    const RpValue *type = part.type == RP_VALUE_DICT ? rp_dict_get(part.dict, "type") : NULL;
    const RpValue *text = part.type == RP_VALUE_DICT ? rp_dict_get(part.dict, "text") : NULL;

    if (type == NULL || !rp_value_is_text(*type, "text") || text == NULL ||
        text->type != RP_VALUE_STRING)
        return refuse(reading, at, "a part of type \"text\" with a string `text`");
    return TRUE;
}

/* A string, null, or a list of parts. */
static gboolean
read_content(Reading *reading, const char *key)
{
    RpJsonPull *pull = reading->pull;
    RpArena *arena = reading->record->arena;

    const RpJsonType type = rp_json_pull_peek(pull);

    reading->has_content = TRUE;
    reading->content_key = key;
    reading->content_at = pull->at;
    switch (type) {
    case RP_JSON_STRING:
    case RP_JSON_NULL:
        return rp_value_read_json(arena, pull, &reading->content);
    case RP_JSON_ARRAY:
        break;
    default:
        return rp_json_pull_fail(pull, "a string, null, or a list of parts");
    }
    reading->content = rp_value_list(rp_list_new(arena, 0));
    for (rp_json_pull_enter_array(pull); rp_json_pull_next_element(pull);) {
        const char *at = pull->at;
        RpValue part;
        if (!rp_value_read_json(arena, pull, &part) || !check_part(reading, at, part))
            return FALSE;
        rp_list_append(arena, reading->content.list, part);
    }
    return !pull->failed;
}

/* A call of a function: its name and arguments, perhaps within `function`. */
static gboolean
is_call(RpValue call)
{
    const RpValue *function =
        call.type == RP_VALUE_DICT ? rp_dict_get(call.dict, "function") : NULL;
    const RpDict *dict = function != NULL && function->type == RP_VALUE_DICT ? function->dict
                         : call.type == RP_VALUE_DICT                        ? call.dict
                                                                             : NULL;
    const RpValue *name = dict != NULL ? rp_dict_get(dict, "name") : NULL;

    return name != NULL && name->type == RP_VALUE_STRING;
}

static gboolean
read_calls(Reading *reading, RpValue *calls)
{
    RpJsonPull *pull = reading->pull;
    RpArena *arena = reading->record->arena;

    *calls = rp_value_list(rp_list_new(arena, 0));
    for (rp_json_pull_enter_array(pull); rp_json_pull_next_element(pull);) {
        const char *at = pull->at;
        RpValue call;
        if (!rp_value_read_json(arena, pull, &call))
            return FALSE;
        if (!is_call(call))
            return refuse(reading, at, "a call of a function with a string `name`");
        rp_list_append(arena, calls->list, call);
    }
    return !pull->failed;
}

static gboolean
read_weight(Reading *reading)
{
    double weight = 0.0;

    if (!rp_json_pull_number(reading->pull, &weight))
        return FALSE;
    if (!(weight >= 0.0 && weight <= 1e6))
        return rp_json_pull_fail_value(reading->pull, "a weight from 0 to 1000000");
    reading->message.weight = weight;
    return TRUE;
}

static gboolean
read_train(Reading *reading)
{
    gboolean train = FALSE;

    if (!rp_json_pull_boolean(reading->pull, &train))
        return FALSE;
    reading->message.train = train ? RP_TRAIN_YES : RP_TRAIN_NO;
    return TRUE;
}

/* A member that is a string where it is there. */
static gboolean
read_text(Reading *reading, RpValue *value)
{
    if (rp_json_pull_peek(reading->pull) != RP_JSON_STRING)
        return rp_json_pull_fail(reading->pull, "a string or null");
    return rp_value_read_json(reading->record->arena, reading->pull, value);
}

/* The value of @key. Null is as if the key were not there, but for content. */
static gboolean
read_member(Reading *reading, const char *key)
{
    static const char *const texts[] = {"reasoning_content", "thinking", "reasoning", "name",
                                        "tool_call_id",      NULL};
    RpJsonPull *pull = reading->pull;
    const gboolean from = reading->style == RP_MESSAGES_FROM;
    RpDict *dict = reading->message.dict;
    RpArena *arena = reading->record->arena;
    RpValue value;

    if (strcmp(key, "role") == 0 || (from && strcmp(key, "from") == 0))
        return reading->role == NULL ? read_role(reading)
                                     : rp_json_pull_fail(pull, "one role of a message");
    if (strcmp(key, "content") == 0 || (from && strcmp(key, "value") == 0))
        return !reading->has_content
                   ? read_content(reading, strcmp(key, "value") == 0 ? "value" : "content")
                   : rp_json_pull_fail(pull, "one content of a message");
    if (rp_json_pull_peek(pull) == RP_JSON_NULL)
        return rp_json_pull_null(pull);
    if (strcmp(key, "train") == 0)
        return read_train(reading);
    if (strcmp(key, "weight") == 0)
        return read_weight(reading);
    if (strcmp(key, "tool_calls") == 0 ? !read_calls(reading, &value)
        : g_strv_contains(texts, key)  ? !read_text(reading, &value)
                                       : !rp_value_read_json(arena, pull, &value))
        return FALSE;
    rp_dict_set(arena, dict, rp_value_copy(arena, key, strlen(key)), value);
    return TRUE;
}

/* ShareGPT's function_call: the content is JSON of one call or of several. */
static gboolean
parse_calls(Reading *reading)
{
    RpArena *arena = reading->record->arena;
    const RpValue text = reading->content;
    RpJsonPull pull;
    RpValue calls;

    if (text.type != RP_VALUE_STRING ||
        !rp_json_pull_init(&pull, "call", text.text, text.length, RP_CHAT_ERROR,
                           RP_CHAT_ERROR_RECORD, NULL) ||
        !rp_value_read_json(arena, &pull, &calls) || !rp_json_pull_end(&pull))
        return refuse_content(reading, "JSON of a call: a name and arguments");
    if (calls.type != RP_VALUE_LIST) {
        RpList *list = rp_list_new(arena, 1);
        rp_list_append(arena, list, calls);
        calls = rp_value_list(list);
    }
    for (guint i = 0; i < calls.list->length; i++) {
        RpDict *call = rp_dict_new(arena);
        if (!is_call(calls.list->items[i]))
            return refuse_content(reading, "JSON of a call: a name and arguments");
        rp_dict_put(arena, call, "type", rp_value_static("function"));
        rp_dict_put(arena, call, "function", calls.list->items[i]);
        calls.list->items[i] = rp_value_dict(call);
    }
    rp_dict_put(arena, reading->message.dict, "tool_calls", calls);
    reading->content = rp_none;
    return TRUE;
}

/* Thoughts have several names; templates find them under two (as transformers has it). */
static void
name_thoughts(RpArena *arena, RpDict *dict)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    const RpValue *thoughts = NULL;

    for (guint i = 0; thoughts == NULL && i < G_N_ELEMENTS(names); i++)
        thoughts = rp_dict_get(dict, names[i]);
    if (thoughts == NULL)
        return;
    const RpValue text = *thoughts;
    if (rp_dict_get(dict, "thinking") == NULL)
        rp_dict_put(arena, dict, "thinking", text);
    rp_dict_put(arena, dict, "reasoning_content", text);
}

static gboolean
finish_message(Reading *reading)
{
    RpRecord *record = reading->record;
    RpDict *dict = reading->message.dict;
    const gboolean from = reading->style == RP_MESSAGES_FROM;

    if (reading->role == NULL)
        return refuse(reading, reading->start,
                      from ? "a message with `from`" : "a message with `role`");
    if (reading->call && reading->has_content && !parse_calls(reading))
        return FALSE;
    reading->message.assistant = strcmp(reading->role, "assistant") == 0;
    const gboolean calls = rp_dict_get(dict, "tool_calls") != NULL;
    if (!reading->has_content && !(reading->message.assistant && calls))
        return refuse(reading, reading->start,
                      from ? "a message with `value`" : "a message with `content`");
    if (reading->content.type == RP_VALUE_NONE && !reading->message.assistant)
        return refuse_content(reading, "a content (null is for assistants)");
    rp_record_add_message(record, reading->role, reading->content);
    RpMessage *message = &g_array_index(record->messages, RpMessage, record->messages->len - 1);
    if (!reading->has_content) {
        message->dict->length = 0; /* absent content stays undefined */
        rp_dict_put(record->arena, message->dict, "role", rp_value_static(reading->role));
    }
    for (guint i = 0; i < dict->length; i++)
        rp_dict_set(record->arena, message->dict, dict->pairs[i].key, dict->pairs[i].value);
    name_thoughts(record->arena, message->dict);
    message->train = reading->message.train;
    message->weight = reading->message.weight;
    return TRUE;
}

gboolean
rp_record_read_messages(RpRecord *record, RpJsonPull *pull, RpMessageStyle style)
{
    g_autoptr(GString) key = g_string_new(NULL);

    for (rp_json_pull_enter_array(pull); rp_json_pull_next_element(pull);) {
        Reading reading = {.record = record,
                           .pull = pull,
                           .style = style,
                           .message = {.dict = rp_dict_new(record->arena), .weight = 1.0},
                           .content = rp_none,
                           .start = pull->at};
        for (rp_json_pull_enter_object(pull); rp_json_pull_next_key(pull, key);)
            if (!read_member(&reading, key->str))
                return FALSE;
        if (pull->failed || !finish_message(&reading))
            return FALSE;
    }
    return !pull->failed;
}

void
rp_record_add_message(RpRecord *record, const char *role, RpValue content)
{
    RpMessage message = {.dict = rp_dict_new(record->arena),
                         .assistant = strcmp(role, "assistant") == 0,
                         .weight = 1.0};

    rp_dict_put(record->arena, message.dict, "role", rp_value_static(role));
    rp_dict_put(record->arena, message.dict, "content", content);
    message.dict->tag = record->messages->len + 1;
    g_array_append_val(record->messages, message);
}
