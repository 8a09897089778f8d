/*
 * The body of a request, and errors: keys of OpenAI's protocol. Keys that would change an answer, and which nothing here follows,
 * are refused unless their value changes nothing; keys that concern nobody but the sender are ignored.
 */
#include "run/serve/private.h"

#include <float.h>
#include <string.h>

#include "core/json/json-record.h"
#include "core/json/json-write.h"

#define MAX_STOPS 16
#define MAX_STOP_BYTES 1024

G_DEFINE_QUARK(rp_serve_error, rp_serve_error)

void
rp_serve_request_clear(RpServeRequest *request)
{
    g_clear_pointer(&request->model, g_free);
    g_clear_pointer(&request->stops, g_ptr_array_unref);
    if (request->prompt != NULL)
        g_string_free(g_steal_pointer(&request->prompt), TRUE);
}

/* Their content is read by the template's side (rp_model_text_chat()), of the same text. */
static gboolean
read_messages(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    for (rp_json_pull_enter_array(pull); rp_json_pull_next_element(pull);) {
        if (!rp_json_pull_skip(pull))
            return FALSE;
        ++*(guint *)value;
    }
    return !pull->failed;
}

static gboolean
read_prompt(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    if (rp_json_pull_peek(pull) != RP_JSON_STRING)
        return rp_json_pull_fail(pull, "a text");
    return rp_json_pull_string(pull, *(GString **)value);
}

static gboolean
read_stop(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autoptr(GString) text = g_string_new(NULL);
    RpServeRequest *request = value;

    if (rp_json_pull_peek(pull) != RP_JSON_STRING)
        return rp_json_pull_fail(pull, "a text, or a list of texts");
    if (!rp_json_pull_string(pull, text))
        return FALSE;
    if (text->len == 0 || text->len > MAX_STOP_BYTES || strlen(text->str) < text->len ||
        request->stops->len == MAX_STOPS)
        return rp_json_pull_fail_value(pull, "at most 16 texts of 1 to 1024 bytes, without NUL");
    request->longest_stop = MAX(request->longest_stop, (guint)text->len);
    g_ptr_array_add(request->stops, g_strdup(text->str));
    return TRUE;
}

static gboolean
read_stops(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    return rp_json_pull_peek(pull) == RP_JSON_ARRAY
               ? rp_json_read_each(pull, field, read_stop, value)
               : read_stop(pull, field, value);
}

/* Takes the one value that changes nothing, which stands in the row's note as JSON is written. */
static gboolean
read_unsupported(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    (void)rp_json_pull_peek(pull);
    const char *start = pull->at;

    if (!rp_json_pull_skip(pull))
        return FALSE;
    const gsize length = (gsize)(pull->at - start);

    if (length == strlen(field->note) && memcmp(start, field->note, length) == 0)
        return TRUE;
    g_autofree char *expected =
        g_strdup_printf("no value but %s: it is not supported", field->note);

    return rp_json_pull_refuse(pull, start, NULL, expected, NULL);
}

static const RpJsonField stream_rows[] = {
    {"include_usage", rp_json_read_boolean, G_STRUCT_OFFSET(RpServeRequest, include_usage)},
    {"include_obfuscation", rp_json_read_ignored},
};
static const RpJsonField format_rows[] = {
    {"type", read_unsupported, .note = "\"text\""},
};

#define MEMBER(name) G_STRUCT_OFFSET(RpServeRequest, name)
#define ABSENT .null_is_absent = TRUE
#define UNSUPPORTED(key, harmless)                                                                 \
    {                                                                                              \
        key, read_unsupported, .note = harmless, ABSENT                                            \
    }
#define IGNORED(key)                                                                               \
    {                                                                                              \
        key, rp_json_read_ignored                                                                  \
    }
#define PENALTY(key)                                                                               \
    {                                                                                              \
        key, rp_json_read_number, MEMBER(no_penalty), .expected = "no penalty but 0", ABSENT       \
    }

/* Rows of completions alone, of both, and of chats alone: which of them a request may have is an interval. */
static const RpJsonField rows[] = {
    {"prompt", read_prompt, MEMBER(prompt), .required = TRUE, .expected = "a text"},
    UNSUPPORTED("logprobs", "null"),
    UNSUPPORTED("echo", "false"),
    UNSUPPORTED("suffix", "\"\""),
    UNSUPPORTED("best_of", "1"),
    {"model", rp_json_read_text, MEMBER(model), .max = 1024, ABSENT},
    {"max_tokens", rp_json_read_uint, MEMBER(max_tokens), .min = 1, .max = G_MAXINT32, ABSENT},
    {"n", rp_json_read_uint, MEMBER(n), .min = 1, .max = RP_SERVICE_MAX_CHOICES, ABSENT},
    {"temperature", rp_json_read_number, MEMBER(sampling.temperature), .max = 100,
     .expected = "a number from 0 to 100", ABSENT},
    {"top_p", rp_json_read_number, MEMBER(sampling.top_p), .min = DBL_MIN, .max = 1,
     .expected = "a number above 0, at most 1", ABSENT},
    {"top_k", rp_json_read_uint, MEMBER(sampling.top_k), .max = G_MAXINT32, ABSENT},
    {"seed", rp_json_read_uint64, MEMBER(sampling.seed), ABSENT},
    {"stop", read_stops, ABSENT},
    {"stream", rp_json_read_boolean, MEMBER(stream), ABSENT},
    {"stream_options", RP_JSON_NESTED(stream_rows), ABSENT},
    PENALTY("frequency_penalty"),
    PENALTY("presence_penalty"),
    UNSUPPORTED("logit_bias", "{}"),
    IGNORED("user"),
    {"messages", read_messages, MEMBER(n_messages), .required = TRUE,
     .expected = "a list of messages"},
    {"max_completion_tokens", rp_json_read_uint, MEMBER(max_completion_tokens), .min = 1,
     .max = G_MAXINT32, ABSENT},
    IGNORED("chat_template_kwargs"), /* rp_model_text_chat() reads it */
    {"response_format", RP_JSON_NESTED(format_rows), ABSENT},
    UNSUPPORTED("logprobs", "false"),
    UNSUPPORTED("top_logprobs", "0"),
    UNSUPPORTED("tools", "[]"),
    UNSUPPORTED("functions", "[]"),
    UNSUPPORTED("tool_choice", "\"none\""),
    UNSUPPORTED("modalities", "[\"text\"]"),
    IGNORED("parallel_tool_calls"),
    IGNORED("metadata"),
    IGNORED("store"),
    IGNORED("service_tier"),
    IGNORED("safety_identifier"),
    IGNORED("prompt_cache_key"),
};

static guint
row_of(const char *key)
{
    guint row = 0;

    while (!g_str_equal(rows[row].key, key))
        row++;
    return row;
}

gboolean
rp_serve_request_read(const char *body, gsize length, gboolean chat, const RpSampling *sampling,
                      RpServeRequest *request, char **param, GError **error)
{
    RpJsonRecord record;
    RpJsonPull pull;

    *request = (RpServeRequest){.chat = chat,
                                .prompt = g_string_new(NULL),
                                .n = 1,
                                .sampling = *sampling,
                                .stops = g_ptr_array_new_with_free_func(g_free)};
    if (!rp_json_pull_init(&pull, "body", body, length, RP_SERVE_ERROR, 400, error))
        return FALSE;
    const guint first = row_of(chat ? "model" : "prompt");
    const guint end = chat ? G_N_ELEMENTS(rows) : row_of("messages");

    if (!rp_json_read_record(&pull, rows + first, end - first, request, &record) ||
        !rp_json_pull_end(&pull)) {
        const RpJsonLevel *outermost = &pull.levels[0];

        if (pull.depth > 0 && outermost->key != NULL)
            *param = g_strndup(outermost->key, outermost->key_length);
        return FALSE;
    }
    request->has_seed = rp_json_record_at(&record, "seed") != NULL;
    if (request->sampling.temperature == 0) /* nothing is thrown */
        request->sampling.top_p = 1, request->sampling.top_k = 0;
    return TRUE;
}

char *
rp_serve_error_json(const GError *error, const char *param)
{
    static const struct {
        int status;
        const char *type, *code;
    } kinds[] = {
        {401, "invalid_request_error", "invalid_api_key"},
        {404, "invalid_request_error", "not_found"},
        {429, "rate_limit_error", "rate_limit_exceeded"},
        {500, "server_error", NULL},
        {503, "server_error", NULL},
        {0, "invalid_request_error", NULL},
    };
    RpJsonWriter *json = rp_json_writer_new(RP_JSON_COMPACT);
    guint kind = 0;

    while (kinds[kind].status != 0 && kinds[kind].status != error->code)
        kind++;
    rp_json_object(json, NULL);
    rp_json_object(json, "error");
    rp_json_string(json, "message", error->message);
    rp_json_string(json, "type", kinds[kind].type);
    rp_json_string(json, "param", param);
    rp_json_string(json, "code", kinds[kind].code);
    rp_json_end(json);
    rp_json_end(json);
    return rp_json_writer_finish(json);
}
