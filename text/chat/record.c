#include "text/chat/private.h"

#include "core/json/json-record.h"

#include <string.h>

/* A prompt or an answer: a string, or messages. */
typedef struct {
    const char *key; /* NULL: it is not there */
    gboolean is_list;
    RpValue text;
    GArray *messages; /* (element-type RpMessage): until all are known */
} Side;

enum { PROMPT, COMPLETION, CHOSEN, REJECTED, N_SIDES };

/* A line as it is read, with all that it may hold. */
typedef struct {
    RpRecord *record;
    RpAnswerKind answer;
    gboolean has_messages;
    gboolean has_pair; /* answers that an imitation does not read */
    Side sides[N_SIDES];
    RpValue label;
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

/* A string or messages; sides may come in any order. @field: min is the side */
static gboolean
read_side(RpJsonPull *pull, const RpJsonField *field, gpointer data)
{
    Line *line = data;
    RpRecord *record = line->record;
    Side *side = &line->sides[(gsize)field->min];
    const gboolean list = rp_json_pull_peek(pull) == RP_JSON_ARRAY;

    if (field->min >= CHOSEN && line->answer == RP_ANSWER_NONE) {
        line->has_pair = TRUE;
        return rp_json_pull_skip(pull);
    }
    if (!list && rp_json_pull_peek(pull) != RP_JSON_STRING)
        return rp_json_pull_fail(pull, "a string or a list of messages");
    side->key = field->key;
    side->is_list = list;
    if (!list)
        return read_any(pull, record, &side->text);
    /* the record's own come behind: they are put together when all is read */
    GArray *messages = record->messages;
    record->messages = side->messages;
    const gboolean done = rp_record_read_messages(record, pull, RP_MESSAGES_ROLE);
    record->messages = messages;
    return done;
}

/* Ids of a pair, which no text is made of. */
static gboolean
note_pair(RpJsonPull *pull, const RpJsonField *field, gpointer data)
{
    ((Line *)data)->has_pair = TRUE;
    return rp_json_pull_skip(pull);
}

static gboolean
read_label(RpJsonPull *pull, const RpJsonField *field, gpointer data)
{
    Line *line = data;

    return read_any(pull, line->record, &line->label);
}

/* Pairs of question and answer, earlier than the instruction. */
static gboolean
read_history(RpJsonPull *pull, const RpJsonField *field, gpointer data)
{
    Line *line = data;
    RpArena *arena = line->record->arena;

    line->history = rp_list_new(arena, 0);
    for (rp_json_pull_enter_array(pull); rp_json_pull_next_element(pull);) {
        guint n = 0;
        for (rp_json_pull_enter_array(pull); rp_json_pull_next_element(pull); n++) {
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

static void
add_messages(RpRecord *record, const GArray *messages)
{
    g_array_append_vals(record->messages, messages->data, messages->len);
}

/* The prompt and the answer behind it; both are strings or both are messages. */
static gboolean
make_completion(Line *line, guint answer, const RpJsonRecord *fields, RpJsonPull *pull)
{
    const Side *prompt = &line->sides[PROMPT], *side = &line->sides[answer];
    RpRecord *record = line->record;

    if (side->key == NULL)
        return rp_json_record_fail(fields, pull, "completion",
                                   line->has_pair ? "a `completion` of the prompt; chosen and "
                                                    "rejected are for objective: dpo"
                                                  : "a `completion` of the prompt");
    if (prompt->is_list != side->is_list)
        return rp_json_record_fail(fields, pull, side->key,
                                   prompt->is_list ? "messages, as the prompt has"
                                                   : "a string, as the prompt is");
    if (!prompt->is_list) {
        record->kind = RP_RECORD_COMPLETION;
        record->prompt = prompt->text;
        record->text = side->text;
        return TRUE;
    }
    if (side->messages->len == 0)
        return rp_json_record_fail(fields, pull, side->key, "at least one message");
    add_messages(record, prompt->messages);
    put_system_first(line);
    record->n_prompt = record->messages->len;
    add_messages(record, side->messages);
    return TRUE;
}

/* Messages with which both begin. */
static guint
shared_messages(RpArena *arena, const GArray *a, const GArray *b)
{
    guint n = 0;

    while (n < a->len && n < b->len &&
           rp_value_equal(arena, rp_value_dict(g_array_index(a, RpMessage, n).dict),
                          rp_value_dict(g_array_index(b, RpMessage, n).dict)))
        n++;
    return n;
}

/* Bytes with which both begin, in whole letters and without a space at the end, as TRL has it. */
static gsize
shared_text(RpValue a, RpValue b)
{
    gsize n = 0;

    while (n < a.length && n < b.length && a.text[n] == b.text[n])
        n++;
    while (n > 0 && n < MAX(a.length, b.length) &&
           ((n < a.length && (a.text[n] & 0xc0) == 0x80) ||
            (n < b.length && (b.text[n] & 0xc0) == 0x80)))
        n--;
    return n > 0 && a.text[n - 1] == ' ' ? n - 1 : n;
}

/* Takes the prompt out of two answers that begin with it. */
static void
extract_prompt(Line *line)
{
    Side *prompt = &line->sides[PROMPT], *chosen = &line->sides[CHOSEN],
         *rejected = &line->sides[REJECTED];

    prompt->key = "prompt";
    prompt->is_list = chosen->is_list;
    if (prompt->is_list) {
        const guint n = shared_messages(line->record->arena, chosen->messages, rejected->messages);
        g_array_append_vals(prompt->messages, chosen->messages->data, n);
        g_array_remove_range(chosen->messages, 0, n);
        g_array_remove_range(rejected->messages, 0, n);
        return;
    }
    const gsize n = shared_text(chosen->text, rejected->text);
    prompt->text = rp_value_text(chosen->text.text, n);
    chosen->text = rp_value_text(chosen->text.text + n, chosen->text.length - n);
    rejected->text = rp_value_text(rejected->text.text + n, rejected->text.length - n);
}

/* Two answers to compare. */
static gboolean
make_pair(Line *line, const RpJsonRecord *fields, RpJsonPull *pull)
{
    Side *chosen = &line->sides[CHOSEN], *rejected = &line->sides[REJECTED];

    if (chosen->key == NULL || rejected->key == NULL)
        return rp_json_record_fail(fields, pull, chosen->key == NULL ? "chosen" : "rejected",
                                   line->sides[COMPLETION].key != NULL
                                       ? "chosen and rejected (a completion and its label are "
                                         "for objective: kto)"
                                       : "chosen and rejected, two answers to one prompt");
    if (chosen->is_list != rejected->is_list)
        return rp_json_record_fail(fields, pull, "rejected",
                                   chosen->is_list ? "messages, as chosen has"
                                                   : "a string, as chosen is");
    if (chosen->is_list
            ? shared_messages(line->record->arena, chosen->messages, rejected->messages) ==
                  MAX(chosen->messages->len, rejected->messages->len)
            : chosen->text.length == rejected->text.length &&
                  memcmp(chosen->text.text, rejected->text.text, chosen->text.length) == 0)
        return rp_json_record_fail(fields, pull, "rejected",
                                   "an answer that differs from chosen: remove the record, or set "
                                   "skip_bad_samples");
    if (line->sides[PROMPT].key == NULL)
        extract_prompt(line);
    return make_completion(line, line->answer == RP_ANSWER_CHOSEN ? CHOSEN : REJECTED, fields,
                           pull);
}

/* An answer with a label: true or false; cells of tables have it as a word. */
static gboolean
make_labelled(Line *line, const RpJsonRecord *fields, RpJsonPull *pull)
{
    static const char *const words[] = {"false", "False", "0", "true", "True", "1"};
    gboolean known = line->label.type == RP_VALUE_BOOLEAN;

    line->record->desirable = known && line->label.boolean;
    for (guint i = 0; i < G_N_ELEMENTS(words); i++)
        if (rp_value_is_text(line->label, words[i])) {
            line->record->desirable = i >= G_N_ELEMENTS(words) / 2;
            known = TRUE;
        }
    for (guint i = 0; i <= COMPLETION; i++)
        if (line->sides[i].key == NULL)
            return rp_json_record_fail(fields, pull, i == PROMPT ? "prompt" : "completion",
                                       line->sides[CHOSEN].key != NULL
                                           ? "prompt, completion and label (chosen and rejected "
                                             "are for objective: dpo)"
                                           : "prompt, completion and label");
    if (!known)
        return rp_json_record_fail(fields, pull, "label",
                                   "true if the completion is desirable, or false");
    return make_completion(line, COMPLETION, fields, pull);
}

/* Finds the kind of the record. A line that fits several is the first of these. */
static gboolean
choose_kind(Line *line, const RpJsonRecord *fields, RpJsonPull *pull)
{
    RpRecord *record = line->record;

    record->kind = RP_RECORD_CHAT;
    if (line->answer != RP_ANSWER_NONE)
        return (line->answer == RP_ANSWER_DESIRABLE ? make_labelled : make_pair)(line, fields,
                                                                                 pull);
    if (line->has_messages) {
        put_system_first(line);
        return TRUE;
    }
    const gboolean other =
        line->instruction.type == RP_VALUE_STRING || line->text.type == RP_VALUE_STRING;
    if (line->sides[PROMPT].key != NULL && (line->sides[COMPLETION].key != NULL || !other))
        return make_completion(line, COMPLETION, fields, pull);
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
                               line->has_pair ? "a pair, which is for objective: dpo"
                                              : "none of these");
}

static gboolean
read_line(RpJsonPull *pull, Line *line)
{
    static const RpJsonField fields[] = {
        {"messages", read_messages, .null_is_absent = TRUE},
        {"conversations", read_messages, .null_is_absent = TRUE},
        {"prompt", read_side, .min = PROMPT, .null_is_absent = TRUE},
        {"completion", read_side, .min = COMPLETION, .null_is_absent = TRUE},
        {"chosen", read_side, .min = CHOSEN, .null_is_absent = TRUE},
        {"rejected", read_side, .min = REJECTED, .null_is_absent = TRUE},
        {"chosen_ids", note_pair, .null_is_absent = TRUE},
        {"label", read_label, .null_is_absent = TRUE},
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
rp_record_read(const char *file, guint64 line, const char *json, gsize length, RpAnswerKind answer,
               RpRecord *record, GError **error)
{
    g_auto(RpRecord) read = {.arena = rp_arena_new(RP_CHAT_MAX_BYTES, G_MAXUINT64),
                             .messages = g_array_new(FALSE, FALSE, sizeof(RpMessage)),
                             .tools = rp_none,
                             .documents = rp_none,
                             .file = file,
                             .line = line};
    Line all = {.record = &read,
                .answer = answer,
                .label = rp_none,
                .system = rp_none,
                .instruction = rp_none,
                .input = rp_none,
                .output = rp_none,
                .text = rp_none,
                .variables = rp_none,
                .tools = rp_none};
    RpJsonPull pull;

    for (guint i = 0; i < N_SIDES; i++)
        all.sides[i].messages = g_array_new(FALSE, FALSE, sizeof(RpMessage));
    const gboolean known = rp_json_pull_init_line(&pull, file, line - 1, json, length,
                                                  RP_CHAT_ERROR, RP_CHAT_ERROR_RECORD, error) &&
                           read_line(&pull, &all);
    for (guint i = 0; i < N_SIDES; i++)
        g_array_unref(all.sides[i].messages);
    if (!known)
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
