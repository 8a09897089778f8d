/*
 * A service as its clients see it: answers are those of a talk, whoever else asks; whatever one client does, others are
 * answered.
 */
#include "tests/run/serve-rig.h"

#include <gio/gio.h>
#include <sys/socket.h>
#include <unistd.h>

#define HELLO "{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}],\"max_tokens\":24%s}"
/* An answer that takes longer than a test waits. */
#define LONG "{\"prompt\":\"long\",\"max_tokens\":8000%s}"

/* A talk answers. (transfer full): its text */
static char *
talk(gboolean chat, const char *prompt, guint most_tokens, const RpSampling *sampling)
{
    const RpTalkOptions options = {.model = serve_model.directory, .chat = chat};
    g_autoptr(RpTalk) talk = rp_must(rp_talk_new, &options);
    RpTalkAnswer answer;

    (void)rp_must(rp_talk_answer, talk, prompt, most_tokens, sampling, NULL, NULL, &answer);
    return g_strdup(answer.text);
}

/* Whether the service still answers as ever. */
static void
check_up(const Served *served)
{
    const RpSampling greedy = {.top_p = 1};
    g_autofree char *expected = talk(FALSE, "up", 8, &greedy);
    g_auto(Reply) reply = serve_ask(served, TEXT, "{\"prompt\":\"up\",\"max_tokens\":8}");

    assert_string_equal(reply_text(&reply, "choices.0.text"), expected);
}

/* Sends a request, and leaves its answer. @keep: the connection is used again. Returns: the socket */
static int
begin_with(const Served *served, const char *path, const char *body, gboolean keep)
{
    const int client = serve_connect(served);
    g_autofree char *request =
        g_strdup_printf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                        "Connection: %s\r\nContent-Length: %zu\r\n\r\n%s",
                        path, keep ? "keep-alive" : "close", strlen(body), body);

    serve_write(client, request, -1);
    return client;
}

static int
begin(const Served *served, const char *path, const char *body)
{
    return begin_with(served, path, body, FALSE);
}

RP_TEST_OF(answers_as_a_talk_does, Served *f)
{
    const RpSampling greedy = {.top_p = 1};
    const RpSampling sampled = {.temperature = 0.9, .top_p = 0.8, .top_k = 40, .seed = 5};

    serve_open(f);
    g_autofree char *body = g_strdup_printf(HELLO, "");
    g_autofree char *expected = talk(TRUE, "hello", 24, &greedy);
    g_auto(Reply) reply = serve_ask(f, CHAT, body);

    assert_string_equal(reply_text(&reply, "choices.0.message.content"), expected);
    assert_string_equal(reply_text(&reply, "choices.0.message.role"), "assistant");
    assert_string_equal(reply_text(&reply, "choices.0.finish_reason"), "length");
    assert_string_equal(reply_text(&reply, "object"), "chat.completion");
    assert_int_equal(reply_number(&reply, "usage.prompt_tokens"), strlen("<user>hello<assistant>"));
    assert_int_equal(reply_number(&reply, "usage.completion_tokens"), 24);

    g_autofree char *again = talk(FALSE, "hello", 24, &sampled);
    g_auto(Reply) thrown =
        serve_ask(f, TEXT,
                  "{\"prompt\":\"hello\",\"max_tokens\":24,\"temperature\":0.9,\"top_p\":0.8,"
                  "\"top_k\":40,\"seed\":5,\"n\":3,\"model\":\"tiny\",\"user\":\"me\"}");

    assert_string_equal(reply_text(&thrown, "choices.0.text"), again);
    assert_string_not_equal(reply_text(&thrown, "choices.1.text"), again);
    assert_string_not_equal(reply_text(&thrown, "choices.2.text"),
                            reply_text(&thrown, "choices.1.text"));
    assert_int_equal(reply_number(&thrown, "usage.completion_tokens"), 72);
}

RP_TEST_OF(samples_anew_without_a_seed, Served *f)
{
    static const char body[] = "{\"prompt\":\"a\",\"max_tokens\":24,\"temperature\":2}";

    serve_open(f);
    g_auto(Reply) first = serve_ask(f, TEXT, body);
    g_auto(Reply) second = serve_ask(f, TEXT, body);

    assert_string_not_equal(reply_text(&first, "choices.0.text"),
                            reply_text(&second, "choices.0.text"));
}

RP_TEST_OF(streams_the_same_text, Served *f)
{
    g_autofree char *whole = g_strdup_printf(HELLO, ",\"n\":2,\"temperature\":1,\"seed\":1");
    g_autofree char *parts = g_strdup_printf(
        HELLO, ",\"n\":2,\"temperature\":1,\"seed\":1,\"stream\":true,\"stream_options\":"
               "{\"include_usage\":true}");

    serve_open(f);
    g_auto(Reply) reply = serve_ask(f, CHAT, whole);
    g_auto(Reply) stream = serve_ask(f, CHAT, parts);

    for (guint i = 0; i < 2; i++) {
        g_autofree char *path = g_strdup_printf("choices.%u.message.content", i);
        g_autofree char *finish = NULL;
        g_autofree char *text = reply_stream(&stream, i, &finish);

        assert_string_equal(text, reply_text(&reply, path));
        assert_string_equal(finish, "length");
    }
    assert_non_null(strstr(stream.head, "text/event-stream"));
    assert_non_null(strstr(stream.body, "\"choices\":[],\"usage\":{\"prompt_tokens\":22,"
                                        "\"completion_tokens\":48,\"total_tokens\":70}}"));
}

RP_TEST_OF(streams_in_chunks_over_one_connection, Served *f)
{
    g_autofree char *body = g_strdup_printf(HELLO, ",\"stream\":true");

    serve_open(f);
    const int client = begin_with(f, CHAT, body, TRUE);

    serve_write(client, "GET /health HTTP/1.1\r\nHost: [::1]:80\r\nConnection: close\r\n\r\n", -1);
    g_autofree char *answer = serve_read(client);
    const char *end = strstr(answer, "data: [DONE]\n\n\r\n0\r\n\r\nHTTP/1.1 200 OK");

    assert_non_null(strstr(answer, "Transfer-Encoding: chunked"));
    assert_non_null(end);
    assert_non_null(strstr(end, "{\"status\":\"ok\"}"));
}

/* Wherever it stands, and though parts of it come with different tokens. */
RP_TEST_OF(stops_before_a_text, Served *f)
{
    serve_open(f);
    g_autofree char *plain = g_strdup_printf(HELLO, "");
    g_auto(Reply) reply = serve_ask(f, CHAT, plain);
    const char *text = reply_text(&reply, "choices.0.message.content");
    const glong length = g_utf8_strlen(text, -1);

    for (glong at = 0; at + 3 <= length; at += RP_TEST_SMALL ? 4 : 1) {
        g_autofree char *stop = g_utf8_substring(text, at, at + 3);
        g_autofree char *quoted = serve_quote(stop);
        g_autofree char *more = g_strdup_printf(",\"stop\":[\"never\",%s]", quoted);
        g_autofree char *streams = g_strdup_printf("%s,\"stream\":true", more);
        g_autofree char *body = g_strdup_printf(HELLO, more);
        g_autofree char *parts = g_strdup_printf(HELLO, streams);
        g_autofree char *expected = g_strndup(text, (gsize)(strstr(text, stop) - text));
        g_autofree char *finish = NULL;
        g_auto(Reply) stopped = serve_ask(f, CHAT, body);
        g_auto(Reply) stream = serve_ask(f, CHAT, parts);
        g_autofree char *streamed = reply_stream(&stream, 0, &finish);

        assert_string_equal(reply_text(&stopped, "choices.0.message.content"), expected);
        assert_string_equal(reply_text(&stopped, "choices.0.finish_reason"), "stop");
        assert_string_equal(streamed, expected);
        assert_string_equal(finish, "stop");
    }
}

/* ---- many ---- */

#define CLIENTS 8

typedef struct {
    const Served *served;
    guint number;
    char *text;
} Client;

static gpointer
ask_as(gpointer data)
{
    Client *client = data;
    g_autofree char *body = g_strdup_printf(
        "{\"prompt\":\"client %u\",\"max_tokens\":%u,\"stream\":%s}", client->number,
        20 + 7 * client->number, client->number % 2 == 0 ? "true" : "false");
    g_auto(Reply) reply = serve_ask(client->served, TEXT, body);
    g_autofree char *finish = NULL;

    client->text = client->number % 2 == 0 ? reply_stream(&reply, 0, &finish)
                                           : g_strdup(reply_text(&reply, "choices.0.text"));
    return NULL;
}

RP_TEST_OF(answers_many_as_each_alone, Served *f)
{
    Client alone[CLIENTS], together[CLIENTS];
    GThread *threads[CLIENTS];

    f->options.n_generators = 2;
    serve_open(f);
    for (guint i = 0; i < CLIENTS; i++) {
        alone[i] = together[i] = (Client){f, i, NULL};
        (void)ask_as(&alone[i]);
    }
    for (guint i = 0; i < CLIENTS; i++)
        threads[i] = g_thread_new("client", ask_as, &together[i]);
    for (guint i = 0; i < CLIENTS; i++) {
        g_thread_join(threads[i]);
        assert_string_equal(together[i].text, alone[i].text);
        g_free(together[i].text);
        g_free(alone[i].text);
    }
}

RP_TEST_OF(refuses_more_than_there_may_be_at_once, Served *f)
{
    g_autofree char *stream = g_strdup_printf(LONG, ",\"stream\":true");
    char byte;

    f->options.requests = 2;
    serve_open(f);
    const int first = begin(f, TEXT, stream), second = begin(f, TEXT, stream);

    assert_int_equal(recv(first, &byte, 1, 0), 1); /* it is under way */
    assert_int_equal(recv(second, &byte, 1, 0), 1);
    g_auto(Reply) third = serve_post(f, TEXT, "{\"prompt\":\"x\"}");

    assert_int_equal(third.status, 429);
    assert_non_null(strstr(third.head, "Retry-After: 1"));
    assert_string_equal(reply_text(&third, "error.code"), "rate_limit_exceeded");
    (void)close(first);
    (void)close(second);
    serve_wait_for(f, 3);
    g_auto(Reply) many = serve_post(f, TEXT, "{\"prompt\":\"x\",\"n\":3}");

    assert_int_equal(many.status, 429);
    check_up(f);
}

/* ---- what is wrong ---- */

RP_TEST_OF(refuses_wrong_bodies, Served *f)
{
    static const struct {
        const char *path, *body;
        guint status;
        const char *param, *part;
    } rows[] = {
        {TEXT, "", 400, "", "expected an object"},
        {TEXT, "{\"prompt\":\"x\"", 400, "", "line 1, column 14"},
        {TEXT, "{\"prompt\":\"x\"} {}", 400, "", "the end"},
        {TEXT, "[]", 400, "", "expected an object"},
        {TEXT, "{}", 400, "", "prompt: expected a text, found nothing"},
        {TEXT, "{\"prompt\":7}", 400, "prompt", "expected a text, found 7"},
        {TEXT, "{\"prompt\":\"\"}", 400, "prompt", "expected a text, found none"},
        {TEXT, "{\"prompt\":\"a\\u0000b\"}", 400, "prompt", "\\\\u"},
        {TEXT, "{\"prompt\":\"\xff\"}", 400, "", "UTF-8"},
        {TEXT, "{\"prompt\":\"x\",\"prompt\":\"y\"}", 400, "", "a second time"},
        {TEXT, "{\"prompt\":\"x\",\"max_tokens\":0}", 400, "max_tokens", "from 1 to"},
        {TEXT, "{\"prompt\":\"x\",\"max_tokens\":-1}", 400, "max_tokens", "found -1"},
        {TEXT, "{\"prompt\":\"x\",\"max_tokens\":\"9\"}", 400, "max_tokens", "expected a number"},
        {TEXT, "{\"prompt\":\"x\",\"max_tokens\":1e999}", 400, "max_tokens", "1e999"},
        {TEXT, "{\"prompt\":\"x\",\"max_tokens\":99999999999999999999}", 400, "max_tokens", "2^64"},
        {TEXT, "{\"prompt\":\"x\",\"max_tokens\":8192}", 400, "max_tokens",
         "expected at most 8191, which 8192 positions leave after a prompt of 1 tokens"},
        {TEXT, "{\"prompt\":\"x\",\"temperature\":-1}", 400, "temperature", "from 0 to 100"},
        {TEXT, "{\"prompt\":\"x\",\"temperature\":NaN}", 400, "temperature", "NaN"},
        {TEXT, "{\"prompt\":\"x\",\"top_p\":0}", 400, "top_p", "above 0"},
        {TEXT, "{\"prompt\":\"x\",\"n\":129}", 400, "n", "from 1 to 128"},
        {TEXT, "{\"prompt\":\"x\",\"seed\":1.5}", 400, "seed", "1.5"},
        {TEXT, "{\"prompt\":\"x\",\"stop\":\"\"}", 400, "stop", "1 to 1024 bytes"},
        {TEXT, "{\"prompt\":\"x\",\"stop\":[1]}", 400, "stop", "list of texts"},
        {TEXT, "{\"prompt\":\"x\",\"stream\":1}", 400, "stream", "found 1"},
        {TEXT, "{\"prompt\":\"x\",\"logit_bias\":{\"1\":2}}", 400, "logit_bias", "not supported"},
        {TEXT, "{\"prompt\":\"x\",\"presence_penalty\":1}", 400, "presence_penalty", "penalty"},
        {TEXT, "{\"prompt\":\"x\",\"temprature\":1}", 400, "", "such as \\\"temperature\\\""},
        {TEXT, "{\"prompt\":\"x\",\"model\":\"gpt\"}", 404, "model", "expected \\\"tiny\\\""},
        {CHAT, "{\"messages\":[]}", 400, "messages", "at least one message"},
        {CHAT, "{\"messages\":{}}", 400, "messages", "an array"},
        {CHAT, "{\"messages\":[7]}", 400, "messages", "messages[0]"},
        {CHAT, "{\"messages\":[{\"role\":\"bob\",\"content\":\"x\"}]}", 400, "messages",
         "one of system, developer, user"},
        {CHAT, "{\"messages\":[{\"role\":\"user\"}]}", 400, "messages", "`content`"},
        {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{}]}", 400,
         "tools", "not supported"},
        {CHAT, "{\"prompt\":\"x\"}", 400, "", "known key"},
    };

    serve_open(f);
    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_auto(Reply) reply = serve_post(f, rows[i].path, rows[i].body);

        if (reply.status != rows[i].status || reply.json == NULL ||
            strstr(reply.body, rows[i].part) == NULL)
            fail_msg("%s: %u %s", rows[i].body, reply.status, reply.body);
        if (*rows[i].param != '\0')
            assert_string_equal(reply_text(&reply, "error.param"), rows[i].param);
        else
            assert_int_equal(rp_tree_find(reply.json, "error.param")->type, RP_JSON_NULL);
    }
    g_autofree char *deep = g_strnfill(100000, '[');
    g_autofree char *body = g_strdup_printf("{\"messages\":%s", deep);
    g_auto(Reply) reply = serve_post(f, CHAT, body);

    assert_int_equal(reply.status, 400);
    g_auto(Reply) raw =
        serve_request(f, "POST " TEXT, "Content-Type: application/json\r\n", "\1{}");

    assert_int_equal(raw.status, 400);
    check_up(f);
}

RP_TEST_OF(refuses_what_headers_show, Served *f)
{
#define JSON "Content-Type: application/json\r\n"
    static const struct {
        const char *line, *headers;
        guint status;
        const char *part;
    } rows[] = {
        {"GET /", "", 404, "/v1/models"},
        {"GET /v1/chat/completions/..", "", 404, "found"},
        {"POST /v2/completions", JSON, 404, "found"},
        {"GET " CHAT, "", 405, "expected POST"},
        {"DELETE /v1/models", "", 405, "expected GET"},
        {"PUT " TEXT, JSON, 405, "expected POST"},
        {"POST " TEXT, "", 415, "found nothing"},
        {"POST " TEXT, "Content-Type: text/plain\r\n", 415, "text/plain"},
        {"POST " TEXT, "Content-Type: application/jsonx\r\n", 415, "application/jsonx"},
        {"POST " TEXT, JSON "Host: example.com\r\n", 403, "example.com"},
        {"POST " TEXT, JSON "Host: localhost.example.com:80\r\n", 403, "an IP address"},
        {"GET /v1/models", "Host: 127.0.0.1:80\r\n", 200, "\"id\":\"tiny\""},
        {"GET /v1/models", "Host: [::1]:80\r\n", 200, "\"object\":\"list\""},
        {"GET /health?now=1", "", 200, "ok"},
    };

    serve_open(f);
    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_auto(Reply) reply = serve_request(f, rows[i].line, rows[i].headers, "{\"prompt\":\"x\"}");

        if (reply.status != rows[i].status || strstr(reply.body, rows[i].part) == NULL)
            fail_msg("%s %s: %u %s", rows[i].line, rows[i].headers, reply.status, reply.body);
    }
    check_up(f);
}

/* Clients see the answer though they send all of it first; what is announced as longer still is not read. */
RP_TEST_OF(refuses_huge_bodies, Served *f)
{
    g_autofree char *filled = g_strnfill(2 * RP_SERVICE_MAX_BODY, ' ');

    serve_open(f);
    g_auto(Reply) reply = serve_post(f, TEXT, filled);

    assert_int_equal(reply.status, 413);
    assert_non_null(strstr(reply.body, "at most 1048576 bytes"));
    for (guint i = 0; i < 2; i++) {
        const int client = serve_connect(f);
        g_autofree char *request = g_strdup_printf(
            "POST " TEXT " HTTP/1.1\r\nHost: localhost\r\n" JSON "%sContent-Length: %s\r\n\r\n",
            i == 0 ? "" : "Expect: 100-continue\r\n", i == 0 ? "1000000000000" : "2000000");

        serve_write(client, request, -1);
        g_auto(Reply) announced = serve_parse(serve_read(client));

        assert_int_equal(announced.status, 413);
    }
    /* in chunks nothing is announced */
    const int client = serve_connect(f);

    serve_write(client,
                "POST " TEXT " HTTP/1.1\r\nHost: localhost\r\n" JSON
                "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n",
                -1);
    for (guint i = 0; i < 20; i++) {
        serve_write(client, "100000\r\n", -1);
        serve_write(client, filled, 0x100000);
        serve_write(client, "\r\n", -1);
    }
    g_free(serve_read(client)); /* an answer, or a connection that was cut */
    check_up(f);
}

RP_TEST_OF(cuts_off_who_is_slow, Served *f)
{
    static const char *const begun[] = {"", "GET /he",
                                        "POST " TEXT " HTTP/1.1\r\nHost: localhost\r\n" JSON
                                        "Content-Length: 50\r\n\r\n{"};
    int clients[G_N_ELEMENTS(begun)];

    f->options.client_ms = 800;
    serve_open(f);
    const gint64 begin_us = g_get_monotonic_time();

    for (guint i = 0; i < G_N_ELEMENTS(begun); i++) {
        clients[i] = serve_connect(f);
        serve_write(clients[i], begun[i], -1);
    }
    check_up(f);
    for (guint n = 0; n < 35; n++) { /* a byte now and then does not help */
        g_usleep(30000);
        serve_write(clients[1], "X", -1);
        serve_write(clients[2], " ", -1);
    }
    for (guint i = 0; i < G_N_ELEMENTS(begun); i++) {
        g_auto(Reply) reply = serve_parse(serve_read(clients[i]));

        assert_int_equal(reply.status, 408);
        assert_non_null(reply.json);
    }
    assert_true(g_get_monotonic_time() - begin_us < 8 * G_USEC_PER_SEC);
    check_up(f);
}

/* Answers that nobody reads fill the sockets. */
RP_TEST_OF(cuts_off_who_does_not_read, Served *f)
{
    g_autofree char *body = g_strdup_printf(LONG, ",\"stream\":true,\"n\":16");

    f->options.client_ms = 800;
    serve_open(f);
    const int client = begin(f, TEXT, body);

    serve_wait_for(f, 1);
    assert_int_equal(f->n_left, 1);
    assert_true(f->n_last < 16 * 8000);
    (void)close(client);
    check_up(f);
}

/* While it waits for an answer, or reads one. */
RP_TEST_OF(stops_answers_whose_clients_have_left, Served *f)
{
    serve_open(f);
    for (guint i = 0; i < 2; i++) {
        g_autofree char *body = g_strdup_printf(LONG, i == 0 ? ",\"stream\":true" : "");
        const int client = begin(f, TEXT, body);
        char part[512];

        if (i == 0)
            assert_true(recv(client, part, sizeof part, 0) > 0);
        else
            g_usleep(50000);
        (void)close(client);
        serve_wait_for(f, i + 1);
        assert_int_equal(f->n_left, i + 1);
        assert_true(f->n_last < 8000);
    }
    check_up(f);
}

/* ---- a model that fails ---- */

static gint fails; /* atomic */
static gboolean (*host_download)(RpProbe *probe, void *to, const void *from, gsize bytes,
                                 GError **error);

static gboolean
download_or_fail(RpProbe *probe, void *to, const void *from, gsize bytes, GError **error)
{
    if (!g_atomic_int_get(&fails))
        return host_download(probe, to, from, bytes, error);
    g_set_error_literal(error, G_IO_ERROR, G_IO_ERROR_FAILED, "the card fell off");
    return FALSE;
}

/* It ends answers that are under way, requests that wait, and those that come later. */
RP_TEST_OF(tells_clients_that_the_model_has_failed, Served *f)
{
    g_autofree char *stream = g_strdup_printf(LONG, ",\"stream\":true,\"n\":16");
    g_autofree char *waits = g_strdup_printf(LONG, ",\"n\":16");
    RpProbe *probe = serve_model.model.probe;
    const RpProbeOps *good = probe->ops;
    RpProbeOps failing = *good;
    g_autoptr(GError) error = NULL;
    char byte;

    host_download = good->download;
    failing.download = download_or_fail;
    probe->ops = &failing;
    f->options.requests = 32;
    serve_open(f);
    const int first = begin(f, TEXT, stream), second = begin(f, TEXT, waits);

    assert_int_equal(recv(first, &byte, 1, 0), 1);
    g_usleep(100000);
    g_atomic_int_set(&fails, TRUE);
    g_autofree char *begun = serve_read(first);
    g_auto(Reply) none = serve_parse(serve_read(second));
    g_auto(Reply) later = serve_post(f, TEXT, "{\"prompt\":\"x\"}");

    assert_null(strstr(begun, "[DONE]"));
    assert_non_null(strstr(begun, "\"type\":\"server_error\""));
    assert_int_equal(none.status, 500);
    assert_int_equal(later.status, 500);
    assert_non_null(strstr(later.body, "fell off"));
    assert_true(rp_service_has_failed(f->service));
    assert_false(rp_service_stop(g_steal_pointer(&f->service), &error));
    rp_assert_error_message_contains(error, "fell off");
    g_atomic_int_set(&fails, FALSE);
    probe->ops = good;
    serve_open(f);
    check_up(f);
}

/* ---- who may ask, and where ---- */

RP_TEST_OF(asks_for_its_token, Served *f)
{
    static const char *const wrong[] = {"", "Authorization: Bearer\r\n",
                                        "Authorization: Bearer sixteen-letters-\r\n",
                                        "Authorization: Bearer sixteen-letters-xy\r\n",
                                        "Authorization: Basic sixteen-letters-x\r\n"};

    f->options.address = "0.0.0.0";
    rp_refuses("expected a token", rp_service_new, &f->options);
    f->options.address = "localhost";
    rp_refuses("expected an IP address", rp_service_new, &f->options);
    f->options.token = "sixteen-letters-x";
    f->options.address = "127.0.0.1";
    serve_open(f);
    for (guint i = 0; i < G_N_ELEMENTS(wrong); i++) {
        g_auto(Reply) reply = serve_request(f, "GET /v1/models", wrong[i], "");

        assert_int_equal(reply.status, 401);
        assert_non_null(strstr(reply.head, "WWW-Authenticate: Bearer"));
        assert_null(strstr(reply.body, "sixteen"));
    }
    g_auto(Reply) health = serve_request(f, "GET /health", "", "");
    g_auto(Reply) right =
        serve_request(f, "GET /v1/models",
                      "Host: example.com\r\nAuthorization: bearer sixteen-letters-x\r\n", "");

    assert_int_equal(health.status, 200);
    assert_int_equal(right.status, 200);
}

RP_TEST_OF(refuses_a_port_in_use, Served *f)
{
    serve_open(f);
    RpServiceOptions other = f->options;

    other.port = rp_service_port(f->service);
    rp_refuses("in use", rp_service_new, &other);
    check_up(f);
}

/* ---- the end ---- */

static gpointer
stop(gpointer data)
{
    (void)rp_must(rp_service_stop, data);
    return NULL;
}

/* An answer that is under way comes to its end, if it has the time. */
RP_TEST_OF(lets_answers_end, Served *f)
{
    g_autofree char *body =
        g_strdup_printf(HELLO, ",\"stream\":true,\"max_completion_tokens\":600");
    char byte;

    serve_open(f);
    const int client = begin(f, CHAT, body);

    assert_int_equal(recv(client, &byte, 1, 0), 1);
    GThread *stopping = g_thread_new("stop", stop, g_steal_pointer(&f->service));
    g_autofree char *rest = serve_read(client);

    g_thread_join(stopping);
    assert_non_null(strstr(rest, "[DONE]"));
}

RP_TEST_OF(cuts_answers_that_do_not_end, Served *f)
{
    g_autofree char *stream = g_strdup_printf(LONG, ",\"stream\":true");
    g_autofree char *whole = g_strdup_printf(LONG, "");
    char byte;

    f->options.grace_ms = 50;
    serve_open(f);
    const int first = begin(f, TEXT, stream), second = begin(f, TEXT, whole);

    assert_int_equal(recv(first, &byte, 1, 0), 1);
    stop(g_steal_pointer(&f->service));
    g_autofree char *begun = serve_read(first);
    g_autofree char *nothing = serve_read(second);

    assert_null(strstr(begun, "[DONE]"));
    assert_null(strstr(nothing, "200 OK"));
}

RP_TEST_STATE(Served, serve_fill, serve_clear)
RP_TEST_GROUP(serve_model_setup, serve_model_teardown)
