/*
 * One request's answers. A generator's thread leaves tokens with a choice; the thread of the connection makes text of
 * them, finds where it stops, and writes it.
 *
 *   generator    take ids .... take ids ....... done
 *                     \             \             \
 *   connection   wait  text  write   text  write   text, finish
 *
 * Text that a stop may begin with is held back until it is known whether it does.
 */
#include "run/serve/private.h"

#include <string.h>

#include "core/json/json-write.h"

/* How often a connection is looked at while nothing comes. */
#define LOOK_US (G_USEC_PER_SEC / 5)

typedef struct {
    RpServeAnswer *answer;
    guint64 id; /* of its request */
    /* of the lock: */
    GArray *ids; /* (element-type gint32): that have come */
    gboolean ended;
    RpRequestEnd end;
    /* of the connection: */
    guint n_read; /* of ids */
    RpAnswerText text;
    gsize searched;     /* bytes in which no stop begins */
    gsize sent;         /* bytes that were written */
    const char *finish; /* %NULL: not yet */
} Choice;

struct _RpServeAnswer {
    const char *model;
    RpRequests *requests;
    RpServeAlive alive;
    gpointer user_data; /* of alive */
    RpServeRequest request;
    guint n_prompt;
    gint64 created_s;
    GMutex lock;
    GCond news;
    gboolean has_news;
    gint cancelled;
    Choice *choices;
    guint n_finished;
    gboolean failed;
    gboolean begun, ended; /* of a stream: its first and its last part are written */
    GString *out;          /* of a stream, */
    gsize out_at;          /* sent up to here */
};

/* ---- from the generators ---- */

/* Under the lock. */
static void
take_ids(Choice *choice, const gint32 *answer, guint n_answer)
{
    const guint n = choice->ids->len;

    if (n_answer > n)
        g_array_append_vals(choice->ids, answer + n, n_answer - n);
}

static void
tell(RpServeAnswer *answer)
{
    answer->has_news = TRUE;
    g_cond_signal(&answer->news);
}

static gboolean
take_token(gpointer user_data, const gint32 *ids, guint n_answer)
{
    Choice *choice = user_data;
    RpServeAnswer *answer = choice->answer;
    const gboolean waited_for = answer->request.stream || answer->request.stops->len > 0;

    g_mutex_lock(&answer->lock);
    take_ids(choice, ids, n_answer);
    if (waited_for)
        tell(answer);
    g_mutex_unlock(&answer->lock);
    return !g_atomic_int_get(&answer->cancelled);
}

static void
take_end(gpointer user_data, RpRequestEnd end, const gint32 *ids, guint n_answer)
{
    Choice *choice = user_data;
    RpServeAnswer *answer = choice->answer;

    g_mutex_lock(&answer->lock);
    take_ids(choice, ids, n_answer);
    choice->ended = TRUE;
    choice->end = end;
    tell(answer);
    g_mutex_unlock(&answer->lock);
    rp_serve_answer_unref(answer);
}

/* ---- its life ---- */

static void
answer_clear(gpointer data)
{
    RpServeAnswer *answer = data;

    for (guint i = 0; i < answer->request.n; i++) {
        g_array_unref(answer->choices[i].ids);
        rp_answer_text_clear(&answer->choices[i].text);
    }
    rp_serve_request_clear(&answer->request);
    g_string_free(answer->out, TRUE);
    g_free(answer->choices);
    g_cond_clear(&answer->news);
    g_mutex_clear(&answer->lock);
}

void
rp_serve_answer_unref(RpServeAnswer *answer)
{
    g_atomic_rc_box_release_full(answer, answer_clear);
}

/* As rp_talk_answer() samples: a choice is a number, and the first has that of a talk. */
static gboolean
add_choices(RpServeAnswer *answer, const GArray *ids, guint most_tokens, GError **error)
{
    const RpServeRequest *request = &answer->request;
    const guint n = request->n;
    g_autofree RpPromptRequest *prompts = g_new0(RpPromptRequest, n);
    g_autofree guint64 *numbers = g_new0(guint64, n);

    for (guint i = 0; i < n; i++) {
        g_atomic_rc_box_acquire(answer);
        prompts[i] = (RpPromptRequest){.prompt = (const gint32 *)(const void *)ids->data,
                                       .n_prompt = ids->len,
                                       .most_tokens = most_tokens,
                                       .sampling = request->sampling,
                                       .number = (request->chat ? request->n_messages : 1) +
                                                 ((guint64)i << 32),
                                       .group = n > 1 ? (guintptr)answer : 0,
                                       .token = take_token,
                                       .done = take_end,
                                       .user_data = &answer->choices[i]};
    }
    const gboolean good = rp_requests_add(answer->requests, prompts, n, numbers, error);

    for (guint i = 0; i < n; i++) {
        answer->choices[i].id = numbers[i];
        if (!good)
            rp_serve_answer_unref(answer);
    }
    return good;
}

RpServeAnswer *
rp_serve_answer_new(const RpServiceOptions *options, RpRequests *requests, RpServeRequest *request,
                    const GArray *ids, guint most_tokens, RpServeAlive alive, gpointer user_data,
                    GError **error)
{
    RpServeAnswer *answer = g_atomic_rc_box_new0(RpServeAnswer);

    g_mutex_init(&answer->lock);
    g_cond_init(&answer->news);
    answer->model = options->model;
    answer->requests = requests;
    answer->alive = alive;
    answer->user_data = user_data;
    answer->n_prompt = ids->len;
    answer->created_s = g_get_real_time() / G_USEC_PER_SEC;
    answer->out = g_string_new(NULL);
    answer->request = *request;
    *request = (RpServeRequest){0};
    answer->choices = g_new0(Choice, answer->request.n);
    for (guint i = 0; i < answer->request.n; i++) {
        answer->choices[i].answer = answer;
        answer->choices[i].ids = g_array_new(FALSE, FALSE, sizeof(gint32));
        rp_answer_text_init(&answer->choices[i].text, options->text->tokenizer);
    }
    if (add_choices(answer, ids, most_tokens, error))
        return answer;
    rp_serve_answer_unref(answer);
    return NULL;
}

void
rp_serve_answer_cancel(RpServeAnswer *answer)
{
    g_atomic_int_set(&answer->cancelled, TRUE);
    for (guint i = 0; i < answer->request.n; i++)
        rp_requests_cancel(answer->requests, answer->choices[i].id);
}

guint
rp_serve_answer_tokens(const RpServeAnswer *answer, guint *n_prompt)
{
    guint n = 0;

    *n_prompt = answer->n_prompt;
    for (guint i = 0; i < answer->request.n; i++)
        n += answer->choices[i].n_read;
    return n;
}

/* ---- text ---- */

/* Where the earliest stop begins in the first @end bytes, of which choice->searched are known to have none. Returns: @end:
 * there is none */
static gsize
find_stop(Choice *choice, const RpServeRequest *request, gsize end)
{
    const char *text = choice->text.text->str;
    gsize found = end;

    for (guint i = 0; i < request->stops->len; i++) {
        const char *stop = g_ptr_array_index(request->stops, i);
        const char *at =
            g_strstr_len(text + choice->searched, (gssize)(end - choice->searched), stop);

        if (at != NULL)
            found = MIN(found, (gsize)(at - text));
    }
    if (request->longest_stop > 0 && end + 1 >= request->longest_stop)
        choice->searched = MAX(choice->searched, end + 1 - request->longest_stop);
    return found;
}

/* Bytes before @end that a stop may begin with. */
static gsize
held_back(const Choice *choice, const RpServeRequest *request, gsize end)
{
    const char *text = choice->text.text->str;
    gsize held = 0;

    for (guint i = 0; i < request->stops->len; i++) {
        const char *stop = g_ptr_array_index(request->stops, i);

        for (gsize n = MIN(strlen(stop) - 1, end); n > held; n--)
            if (memcmp(text + end - n, stop, n) == 0)
                held = n;
    }
    return held;
}

/* Adds tokens to the text, one by one where it may stop. Returns: bytes of it that may be written */
static gsize
add_tokens(RpServeAnswer *answer, Choice *choice, const gint32 *ids, guint n)
{
    const RpServeRequest *request = &answer->request;
    const guint step = request->stops->len > 0 ? 1 : n;

    for (guint i = 0; i < n; i += step) {
        rp_answer_text_add(&choice->text, ids + i, step);
        choice->n_read += step;
        const gsize end = find_stop(choice, request, choice->text.whole);

        if (end == choice->text.whole)
            continue;
        choice->finish = "stop";
        rp_requests_cancel(answer->requests, choice->id);
        return end;
    }
    return choice->text.whole - held_back(choice, request, choice->text.whole);
}

/* All has come: the end of the text, and why it is one. */
static gsize
finish(RpServeAnswer *answer, Choice *choice, RpRequestEnd end)
{
    const gsize length = choice->text.text->len;
    const gsize stop = find_stop(choice, &answer->request, length);

    if (end == RP_REQUEST_FAILED)
        answer->failed = TRUE;
    choice->finish = stop == length && end == RP_REQUEST_FULL ? "length" : "stop";
    return stop;
}

/* Reads what has come for a choice. Returns: bytes of its text that may be written */
static gsize
read_choice(RpServeAnswer *answer, Choice *choice)
{
    g_autofree gint32 *ids = NULL;
    gboolean ended;
    RpRequestEnd end;

    g_mutex_lock(&answer->lock);
    guint n = choice->ids->len - choice->n_read;
    ids = g_memdup2((const gint32 *)(const void *)choice->ids->data + choice->n_read,
                    n * sizeof *ids);
    ended = choice->ended;
    end = choice->end;
    g_mutex_unlock(&answer->lock);
    gsize bytes = add_tokens(answer, choice, ids, n);
    if (choice->finish == NULL && ended)
        bytes = finish(answer, choice, end);
    if (choice->finish != NULL)
        answer->n_finished++;
    return bytes;
}

/* ---- writing ---- */

/* Begins an object that the protocol has: a whole answer, or a part of a stream, with its choices. */
static RpJsonWriter *
begin_object(const RpServeAnswer *answer)
{
    const gboolean is_chat = answer->request.chat;
    RpJsonWriter *json = rp_json_writer_new(RP_JSON_COMPACT);
    g_autofree char *id = g_strdup_printf("%s-%" G_GUINT64_FORMAT, is_chat ? "chatcmpl" : "cmpl",
                                          answer->choices[0].id);

    rp_json_object(json, NULL);
    rp_json_string(json, "id", id);
    rp_json_string(json, "object",
                   !is_chat                 ? "text_completion"
                   : answer->request.stream ? "chat.completion.chunk"
                                            : "chat.completion");
    rp_json_int(json, "created", answer->created_s);
    rp_json_string(json, "model", answer->model);
    rp_json_array(json, "choices");
    return json;
}

static void
write_usage(RpJsonWriter *json, const RpServeAnswer *answer)
{
    guint n_prompt;
    const guint n = rp_serve_answer_tokens(answer, &n_prompt);

    rp_json_object(json, "usage");
    rp_json_uint(json, "prompt_tokens", n_prompt);
    rp_json_uint(json, "completion_tokens", n);
    rp_json_uint(json, "total_tokens", (guint64)n_prompt + n);
    rp_json_end(json);
}

static void
write_choice(RpJsonWriter *json, const RpServeAnswer *answer, const Choice *choice,
             const char *member, const char *role, const char *text, gsize length,
             const char *finish)
{
    rp_json_object(json, NULL);
    rp_json_int(json, "index", choice - answer->choices);
    if (answer->request.chat)
        rp_json_object(json, member);
    if (role != NULL)
        rp_json_string(json, "role", role);
    if (text != NULL)
        rp_json_bytes(json, answer->request.chat ? "content" : "text", text, length);
    if (answer->request.chat)
        rp_json_end(json);
    rp_json_null(json, "logprobs");
    rp_json_string(json, "finish_reason", finish);
    rp_json_end(json);
}

static void
write_event(RpServeAnswer *answer, const char *data)
{
    g_string_append_printf(answer->out, "data: %s\n\n", data);
}

/* Frees @json. */
static void
write_object(RpServeAnswer *answer, RpJsonWriter *json)
{
    rp_json_end(json);
    g_autofree char *data = rp_json_writer_finish(json);

    write_event(answer, data);
}

/* A part of a choice's text. */
static void
write_part(RpServeAnswer *answer, const Choice *choice, const char *role, const char *text,
           gsize length, const char *finish)
{
    RpJsonWriter *json = begin_object(answer);

    write_choice(json, answer, choice, "delta", role, text, length, finish);
    rp_json_end(json);
    if (answer->request.include_usage)
        rp_json_null(json, "usage");
    write_object(answer, json);
}

static void
write_last(RpServeAnswer *answer)
{
    if (answer->request.include_usage) {
        RpJsonWriter *json = begin_object(answer);

        rp_json_end(json);
        write_usage(json, answer);
        write_object(answer, json);
    }
    write_event(answer, "[DONE]");
}

static GError *
failure(void)
{
    return g_error_new_literal(RP_SERVE_ERROR, 500, "the model has failed; see the server's log");
}

static void
write_news(RpServeAnswer *answer, Choice *choice, gsize bytes)
{
    const char *text = choice->text.text->str + choice->sent;
    const gboolean chat = answer->request.chat;

    if (bytes > choice->sent) {
        write_part(answer, choice, NULL, text, bytes - choice->sent, NULL);
        choice->sent = bytes;
    }
    if (choice->finish != NULL)
        write_part(answer, choice, NULL, chat ? NULL : "", 0, choice->finish);
}

/* ---- reading ---- */

/* Waits for news and reads them. Returns: whether the client is there, and nothing was cancelled */
static gboolean
advance(RpServeAnswer *answer)
{
    gboolean there = TRUE;

    g_mutex_lock(&answer->lock);
    while (!answer->has_news && there) {
        if (g_cond_wait_until(&answer->news, &answer->lock, g_get_monotonic_time() + LOOK_US))
            continue;
        g_mutex_unlock(&answer->lock);
        there = answer->alive(answer->user_data);
        g_mutex_lock(&answer->lock);
    }
    answer->has_news = FALSE;
    g_mutex_unlock(&answer->lock);
    for (guint i = 0; i < answer->request.n && there; i++) {
        Choice *choice = &answer->choices[i];

        if (choice->finish != NULL)
            continue;
        const gsize bytes = read_choice(answer, choice);

        if (answer->request.stream && !answer->failed)
            write_news(answer, choice, bytes);
        else if (choice->finish != NULL)
            choice->sent = bytes; /* all of it */
    }
    if (!there)
        rp_serve_answer_cancel(answer);
    return there;
}

char *
rp_serve_answer_whole(RpServeAnswer *answer, GError **error)
{
    while (answer->n_finished < answer->request.n && !answer->failed)
        if (!advance(answer))
            return NULL;
    if (answer->failed) {
        rp_serve_answer_cancel(answer);
        g_propagate_error(error, failure());
        return NULL;
    }
    RpJsonWriter *json = begin_object(answer);

    for (guint i = 0; i < answer->request.n; i++) {
        const Choice *choice = &answer->choices[i];

        write_choice(json, answer, choice, "message", answer->request.chat ? "assistant" : NULL,
                     choice->text.text->str, choice->sent, choice->finish);
    }
    rp_json_end(json);
    write_usage(json, answer);
    rp_json_end(json);
    return rp_json_writer_finish(json);
}

/* Writes the parts that frame the others. */
static void
frame(RpServeAnswer *answer)
{
    if (!answer->begun && answer->request.chat)
        for (guint i = 0; i < answer->request.n; i++)
            write_part(answer, &answer->choices[i], "assistant", "", 0, NULL);
    answer->begun = TRUE;
    if (answer->ended || (answer->n_finished < answer->request.n && !answer->failed))
        return;
    answer->ended = TRUE;
    if (!answer->failed) {
        write_last(answer);
        return;
    }
    g_autoptr(GError) error = failure();
    g_autofree char *text = rp_serve_error_json(error, NULL);

    rp_serve_answer_cancel(answer);
    write_event(answer, text);
}

gssize
rp_serve_answer_stream(RpServeAnswer *answer, char *part, gsize space)
{
    frame(answer);
    while (answer->out_at == answer->out->len) {
        g_string_truncate(answer->out, 0);
        answer->out_at = 0;
        if (answer->ended)
            return 0;
        if (!advance(answer))
            return -1;
        frame(answer);
    }
    const gsize n = MIN(space, answer->out->len - answer->out_at);

    memcpy(part, answer->out->str + answer->out_at, n);
    answer->out_at += n;
    return (gssize)n;
}
