#include "text/chat/private.h"

#include "core/json/json-record.h"

#include <string.h>

/* A line as it is read, with all that it may hold. */
typedef struct {
    RpRecord *record;
    gboolean has_messages;
    gboolean has_prompt;     /* a list of messages, or a string in record->prompt */
    gboolean has_completion; /* the same */
    gboolean prompt_is_list;
    gboolean completion_is_list;
    GArray *completion; /* (element-type RpMessage): until the prompt's are known */
    RpValue system;
    RpValue instruction;
    RpValue input;
    RpValue output;
    RpValue text;
    RpList *history; /* pairs; NULL: none */
    RpValue variables;
    RpValue tools;
} Line;

static gboolean
read_any(RpJsonPull *pull, RpRecord *record, RpValue *value)
{
    return rp_value_read_json(record->arena, pull, value);
}

/* A string. */
static gboolean
read_string(RpJsonPull *pull, const RpJsonField *field, gpointer data)
{
    Line *line = data;

    if (rp_json_pull_peek(pull) != RP_JSON_STRING)
        return rp_json_pull_fail(pull, "a string");
    RpValue *values[] = {&line->system, &line->instruction, &line->input, &line->output,
                         &line->text};
    return read_any(pull, line->record, values[(gsize)field->min]);
}

static gboolean
read_messages(RpJsonPull *pull, const RpJsonField *field, gpointer data)
{
    Line *line = data;

    if (line->has_messages)
        return rp_json_pull_fail(pull, "either messages or conversations");
    line->has_messages = TRUE;
    rp_json_pull_peek(pull); /* to where the value stands */
    const char *at = pull->at;
    if (!rp_record_read_messages(line->record, pull,
                                 field->key[0] == 'c' ? RP_MESSAGES_FROM : RP_MESSAGES_ROLE))
        return FALSE;
    return line->record->messages->len > 0 ||
           rp_json_pull_refuse(pull, at, NULL, "at least one message", "an empty list");
}

/* A string or messages; those of a prompt and of a completion may come in any order. */
static gboolean
read_side(RpJsonPull *pull, gboolean completion, Line *line)
{
    RpRecord *record = line->record;
    const gboolean list = rp_json_pull_peek(pull) == RP_JSON_ARRAY;

    if (!list && rp_json_pull_peek(pull) != RP_JSON_STRING)
        return rp_json_pull_fail(pull, "a string or a list of messages");
    *(completion ? &line->has_completion : &line->has_prompt) = TRUE;
    *(completion ? &line->completion_is_list : &line->prompt_is_list) = list;
    if (!list)
        return read_any(pull, record, completion ? &record->text : &record->prompt);
    GArray *messages = record->messages;
    GArray *read = g_array_new(FALSE, FALSE, sizeof(RpMessage));
    record->messages = read;
    const gboolean done = rp_record_read_messages(record, pull, RP_MESSAGES_ROLE);
    record->messages = messages;
    /* the record's own come behind: they are put together when all is read */
    if (completion)
        g_array_append_vals(line->completion, read->data, read->len);
    else
        g_array_append_vals(messages, read->data, read->len);
    g_array_free(read, TRUE);
    return done;
}

static gboolean
read_prompt(RpJsonPull *pull, const RpJsonField *field, gpointer data)
{
    return read_side(pull, FALSE, data);
}

static gboolean
read_completion(RpJsonPull *pull, const RpJsonField *field, gpointer data)
{
    return read_side(pull, TRUE, data);
}

/* Pairs of question and answer, earlier than the instruction. */
static gboolean
read_history(RpJsonPull *pull, const RpJsonField *field, gpointer data)
{
    Line *line = data;
    RpArena *arena = line->record->arena;

    line->history = rp_list_new(arena, 0);
    if (!rp_json_pull_enter_array(pull))
        return FALSE;
    while (rp_json_pull_next_element(pull)) {
        guint n = 0;
        if (!rp_json_pull_enter_array(pull))
            return FALSE;
        for (; rp_json_pull_next_element(pull); n++) {
            RpValue text;
            if (n == 2 || rp_json_pull_peek(pull) != RP_JSON_STRING)
                return rp_json_pull_fail(pull, "a pair of strings: question and answer");
            if (!read_any(pull, line->record, &text))
                return FALSE;
            rp_list_append(arena, line->history, text);
        }
        if (!pull->failed && n != 2)
            return rp_json_pull_fail_value(pull, "a pair of strings: question and answer");
    }
    return !pull->failed;
}

/* A list of objects; also as JSON in a string, as LLaMA-Factory has it. */
static gboolean
read_tools(RpJsonPull *pull, const RpJsonField *field, gpointer data)
{
    Line *line = data;
    RpValue tools, text;
    RpJsonPull inner;

    rp_json_pull_peek(pull); /* to where the value stands */
    const char *at = pull->at;
    if (!read_any(pull, line->record, &tools))
        return FALSE;
    text = tools;
    if (text.type == RP_VALUE_STRING) {
        if (text.length == 0)
            return TRUE;
        if (!rp_json_pull_init(&inner, "tools", text.text, text.length, RP_CHAT_ERROR,
                               RP_CHAT_ERROR_RECORD, NULL) ||
            !read_any(&inner, line->record, &tools) || !rp_json_pull_end(&inner))
            return rp_json_pull_refuse(pull, at, NULL, "JSON of a list of tools", NULL);
    }
    gboolean good = tools.type == RP_VALUE_LIST;
    for (guint i = 0; good && i < tools.list->length; i++)
        good = tools.list->items[i].type == RP_VALUE_DICT;
    if (!good)
        return rp_json_pull_refuse(pull, at, NULL, "a list of tools, each an object", NULL);
    if (tools.list->length > 0)
        line->tools = tools;
    return TRUE;
}

static gboolean
read_documents(RpJsonPull *pull, const RpJsonField *field, gpointer data)
{
    Line *line = data;

    if (rp_json_pull_peek(pull) != RP_JSON_ARRAY)
        return rp_json_pull_fail(pull, "a list of documents");
    return read_any(pull, line->record, &line->record->documents);
}

static gboolean
read_variables(RpJsonPull *pull, const RpJsonField *field, gpointer data)
{
    Line *line = data;

    if (rp_json_pull_peek(pull) != RP_JSON_OBJECT)
        return rp_json_pull_fail(pull, "an object");
    return read_any(pull, line->record, &line->variables);
}

/* A system's text in front, where the chat has none. */
static void
put_system_first(Line *line)
{
    RpRecord *record = line->record;
    const RpMessage *first =
        record->messages->len > 0 ? &g_array_index(record->messages, RpMessage, 0) : NULL;

    if (line->system.type != RP_VALUE_STRING || line->system.length == 0 ||
        (first != NULL && rp_value_is_text(*rp_dict_get(first->dict, "role"), "system")))
        return;
    rp_record_add_message(record, "system", line->system);
    const RpMessage system = g_array_index(record->messages, RpMessage, record->messages->len - 1);
    g_array_remove_index(record->messages, record->messages->len - 1);
    g_array_prepend_val(record->messages, system);
}

static gboolean
make_alpaca(Line *line, const RpJsonRecord *fields, RpJsonPull *pull)
{
    RpRecord *record = line->record;
    RpValue question = line->instruction;

    if (line->output.type != RP_VALUE_STRING)
        return rp_json_record_fail(fields, pull, "output", "a string `output`");
    for (guint i = 0; line->history != NULL && i < line->history->length; i++)
        rp_record_add_message(record, i % 2 == 0 ? "user" : "assistant", line->history->items[i]);
    if (line->input.type == RP_VALUE_STRING && line->input.length > 0) {
        g_autofree char *text = g_strdup_printf("%.*s%s%.*s", (int)question.length, question.text,
                                                question.length > 0 ? "\n" : "",
                                                (int)line->input.length, line->input.text);
        question = rp_value_copy(record->arena, text, strlen(text));
    }
    rp_record_add_message(record, "user", question);
    rp_record_add_message(record, "assistant", line->output);
    put_system_first(line);
    return TRUE;
}

static gboolean
make_completion(Line *line, const RpJsonRecord *fields, RpJsonPull *pull)
{
    RpRecord *record = line->record;

    if (!line->has_completion)
        return rp_json_record_fail(fields, pull, "completion", "a `completion` of the prompt");
    if (line->prompt_is_list != line->completion_is_list)
        return rp_json_record_fail(fields, pull, "completion",
                                   line->prompt_is_list ? "messages, as the prompt has"
                                                        : "a string, as the prompt is");
    if (!line->prompt_is_list) {
        record->kind = RP_RECORD_COMPLETION;
        return TRUE;
    }
    if (line->completion->len == 0)
        return rp_json_record_fail(fields, pull, "completion", "at least one message");
    put_system_first(line);
    record->n_prompt = record->messages->len;
    g_array_append_vals(record->messages, line->completion->data, line->completion->len);
    return TRUE;
}

/* Finds the kind of the record. A line that fits several is the first of these. */
static gboolean
choose_kind(Line *line, const RpJsonRecord *fields, RpJsonPull *pull)
{
    RpRecord *record = line->record;

    record->kind = RP_RECORD_CHAT;
    if (line->has_messages) {
        put_system_first(line);
        return TRUE;
    }
    const gboolean other =
        line->instruction.type == RP_VALUE_STRING || line->text.type == RP_VALUE_STRING;
    if (line->has_prompt && (line->has_completion || !other))
        return make_completion(line, fields, pull);
    if (line->instruction.type == RP_VALUE_STRING)
        return make_alpaca(line, fields, pull);
    if (line->text.type == RP_VALUE_STRING) {
        record->kind = RP_RECORD_TEXT;
        record->text = line->text;
        return TRUE;
    }
    return rp_json_pull_refuse(pull, fields->start, NULL,
                               "one of messages, conversations, prompt and completion, "
                               "instruction and output, text, input_ids",
                               "none of these");
}

static gboolean
read_line(RpJsonPull *pull, Line *line)
{
    static const RpJsonField fields[] = {
        {"messages", read_messages, .null_is_absent = TRUE},
        {"conversations", read_messages, .null_is_absent = TRUE},
        {"prompt", read_prompt, .null_is_absent = TRUE},
        {"completion", read_completion, .null_is_absent = TRUE},
        {"system", read_string, .min = 0, .null_is_absent = TRUE},
        {"instruction", read_string, .min = 1, .null_is_absent = TRUE},
        {"input", read_string, .min = 2, .null_is_absent = TRUE},
        {"output", read_string, .min = 3, .null_is_absent = TRUE},
        {"text", read_string, .min = 4, .null_is_absent = TRUE},
        {"history", read_history, .null_is_absent = TRUE},
        {"tools", read_tools, .null_is_absent = TRUE},
        {"documents", read_documents, .null_is_absent = TRUE},
        {"chat_template_kwargs", read_variables, .null_is_absent = TRUE},
        {NULL, rp_json_read_ignored},
    };
    RpJsonRecord record;

    return rp_json_read_record(pull, fields, G_N_ELEMENTS(fields), line, &record) &&
           rp_json_pull_end(pull) && choose_kind(line, &record, pull);
}

gboolean
rp_record_read(const char *file, guint64 line, const char *json, gsize length, RpRecord *record,
               GError **error)
{
    g_autoptr(GArray) completion = g_array_new(FALSE, FALSE, sizeof(RpMessage));
    g_auto(RpRecord) read = {.arena = rp_arena_new(RP_CHAT_MAX_BYTES, G_MAXUINT64),
                             .messages = g_array_new(FALSE, FALSE, sizeof(RpMessage)),
                             .tools = rp_none,
                             .documents = rp_none,
                             .file = file,
                             .line = line};
    Line all = {.record = &read,
                .completion = completion,
                .system = rp_none,
                .instruction = rp_none,
                .input = rp_none,
                .output = rp_none,
                .text = rp_none,
                .variables = rp_none,
                .tools = rp_none};
    RpJsonPull pull;

    if (!rp_json_pull_init_line(&pull, file, line - 1, json, length, RP_CHAT_ERROR,
                                RP_CHAT_ERROR_RECORD, error) ||
        !read_line(&pull, &all))
        return FALSE;
    for (guint i = 0; i < read.messages->len; i++)
        g_array_index(read.messages, RpMessage, i).dict->tag = i + 1;
    read.tools = all.tools;
    read.variables = all.variables.type == RP_VALUE_DICT ? all.variables.dict : NULL;
    *record = read;
    read = (RpRecord){0};
    return TRUE;
}

void
rp_record_clear(RpRecord *record)
{
    rp_arena_free(record->arena);
    if (record->messages != NULL)
        g_array_free(record->messages, TRUE);
    *record = (RpRecord){0};
}
