#include "tests/run/serve-rig.h"

#include <arpa/inet.h>
#include <glib/gstdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/json/json-write.h"
#include "exec/model/init.h"

#define CONFIG                                                                                     \
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 16, " \
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"intermediate_size\": 24, "            \
    "\"vocab_size\": 256, \"max_position_embeddings\": 16384, \"torch_dtype\": \"float32\", "      \
    "\"initializer_range\": 0.5}"
#define TEMPLATE                                                                                   \
    "{\"chat_template\": \"{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"       \
    "{% if add_generation_prompt %}<assistant>{% endif %}\"}"

ServeModel serve_model;

/* ---- the model ---- */

static gboolean
write_file(const char *name, const char *text)
{
    g_autofree char *path = g_build_filename(serve_model.directory, name, NULL);

    return g_file_set_contents(path, text, -1, NULL);
}

/* Each byte is a token. The letters are those by which byte-level vocabularies write bytes. */
static gboolean
write_tokenizer(void)
{
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_COMPACT);
    guint n_others = 0;

    rp_json_object(json, NULL);
    rp_json_raw(json, "pre_tokenizer",
                "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}");
    rp_json_raw(json, "decoder", "{\"type\":\"ByteLevel\"}");
    rp_json_object(json, "model");
    rp_json_string(json, "type", "BPE");
    rp_json_raw(json, "merges", "[]");
    rp_json_object(json, "vocab");
    for (guint byte = 0; byte < 256; byte++) {
        const gboolean shown = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
        char letter[7] = {0};

        (void)g_unichar_to_utf8(shown ? byte : 256 + n_others++, letter);
        rp_json_uint(json, letter, byte);
    }
    rp_json_end(json);
    rp_json_end(json);
    rp_json_end(json);
    return write_file("tokenizer.json", rp_json_writer_text(json)->str);
}

int
serve_model_setup(void **state)
{
    ServeModel *m = &serve_model;
    const RpInitOptions seed = {.seed = 3};
    RpGeneratorOptions options = {.slots = 16, .tokens = SERVE_POSITIONS};
    g_autoptr(GError) error = NULL;
    RpModel config = {0};

    m->directory = g_dir_make_tmp("rp-serve-XXXXXX", NULL);
    if (!write_file("config.json", CONFIG) || !write_file("tokenizer_config.json", TEMPLATE) ||
        !write_tokenizer() || !rp_hf_config_load(m->directory, &config, &error) ||
        !rp_init_write(&config, m->directory, &seed, &error) ||
        !rp_trained_open(&m->model, m->directory, NULL, NULL, &error) ||
        !rp_trained_text(&m->model, TRUE, &m->text, &error))
        print_error("%s\n", error != NULL ? error->message : "cannot write");
    for (guint i = 0; i < 2 && error == NULL; i++)
        m->generators[i] = rp_generator_new(&m->model.config, m->model.weights, m->model.kernels,
                                            m->model.probe, &options, &error);
    return m->generators[1] == NULL;
}

int
serve_model_teardown(void **state)
{
    static const char *const names[] = {"config.json", "model.safetensors", "tokenizer.json",
                                        "tokenizer_config.json"};
    ServeModel *m = &serve_model;

    for (guint i = 0; i < 2; i++)
        g_clear_pointer(&m->generators[i], rp_generator_free);
    rp_model_text_clear(&m->text);
    rp_trained_clear(&m->model);
    for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autofree char *path = g_build_filename(m->directory, names[i], NULL);

        (void)g_remove(path);
    }
    rp_file_remove_directory(m->directory);
    g_free(m->directory);
    return 0;
}

/* ---- the service ---- */

static void
count(gpointer user_data, const RpServiceRecord *record)
{
    Served *served = user_data;

    if (record->left)
        g_atomic_int_inc((gint *)&served->n_left);
    served->n_last = record->n_answer;
    g_atomic_int_inc((gint *)&served->n_logged);
}

void
serve_fill(Served *served)
{
    served->options = (RpServiceOptions){.model = "tiny",
                                         .text = &serve_model.text,
                                         .generators = serve_model.generators,
                                         .n_generators = 1,
                                         .positions = SERVE_POSITIONS,
                                         .sampling = {.top_p = 1},
                                         .requests = 16,
                                         .client_ms = 10000,
                                         .grace_ms = 10000,
                                         .log = count,
                                         .user_data = served};
}

void
serve_open(Served *served)
{
    served->service = rp_must(rp_service_new, &served->options);
}

void
serve_clear(Served *served)
{
    if (served->service != NULL)
        (void)rp_must(rp_service_stop, served->service);
}

void
serve_wait_for(Served *served, guint n)
{
    for (guint i = 0; i < 2000 && (guint)g_atomic_int_get((gint *)&served->n_logged) < n; i++)
        g_usleep(5000);
    assert_true((guint)g_atomic_int_get((gint *)&served->n_logged) >= n);
}

/* ---- clients ---- */

int
serve_connect(const Served *served)
{
    const struct timeval patience = {.tv_sec = 10};
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons(rp_service_port(served->service)),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const int small = 4096; /* bytes that it takes in before it reads */
    const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(client >= 0);
    (void)setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    (void)setsockopt(client, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    assert_int_equal(connect(client, (struct sockaddr *)&at, sizeof at), 0);
    return client;
}

void
serve_write(int client, const char *text, gssize length)
{
    gsize left = length < 0 ? strlen(text) : (gsize)length;

    while (left > 0) {
        const gssize n = send(client, text, left, MSG_NOSIGNAL);

        if (n <= 0) /* the server has seen enough */
            return;
        text += n;
        left -= (gsize)n;
    }
}

char *
serve_read(int client)
{
    GString *text = g_string_new(NULL);
    char part[4096];
    gssize n;

    while ((n = recv(client, part, sizeof part, 0)) > 0)
        g_string_append_len(text, part, n);
    (void)close(client);
    return g_string_free(text, FALSE);
}

void
reply_clear(Reply *reply)
{
    g_clear_pointer(&reply->json, rp_tree_free);
    g_clear_pointer(&reply->head, g_free);
    g_clear_pointer(&reply->body, g_free);
}

Reply
serve_parse(char *answer)
{
    const char *end = strstr(answer, "\r\n\r\n");
    Reply reply = {0};

    if (end == NULL)
        fail_msg("no answer of HTTP: \"%s\"", answer);
    reply.head = g_strndup(answer, (gsize)(end - answer));
    reply.body = g_strdup(end + 4);
    reply.status = (guint)atoi(answer + strlen("HTTP/1.1 "));
    reply.json = *reply.body == '{' ? rp_tree_parse(reply.body) : NULL;
    g_free(answer);
    return reply;
}

/* HTTP/1.0 leaves a stream as it is, and has the connection closed. */
Reply
serve_request(const Served *served, const char *line, const char *headers, const char *body)
{
    const int client = serve_connect(served);
    g_autofree char *request = g_strdup_printf("%s HTTP/1.0\r\n%sContent-Length: %zu\r\n\r\n%s",
                                               line, headers, strlen(body), body);

    serve_write(client, request, -1);
    return serve_parse(serve_read(client));
}

Reply
serve_post(const Served *served, const char *path, const char *body)
{
    g_autofree char *line = g_strdup_printf("POST %s", path);

    return serve_request(served, line, "Content-Type: application/json\r\n", body);
}

Reply
serve_ask(const Served *served, const char *path, const char *body)
{
    Reply reply = serve_post(served, path, body);

    for (guint i = 0; i < 500 && reply.status == 429;
         i++) { /* generators end others after a token */
        reply_clear(&reply);
        g_usleep(10000);
        reply = serve_post(served, path, body);
    }
    if (reply.status != 200)
        fail_msg("%s: %u %s", body, reply.status, reply.body);
    return reply;
}

static const RpTree *
find(const Reply *reply, const char *path)
{
    const RpTree *found = reply->json != NULL ? rp_tree_find(reply->json, path) : NULL;

    if (found == NULL)
        fail_msg("no %s in %s", path, reply->body);
    return found;
}

const char *
reply_text(const Reply *reply, const char *path)
{
    return find(reply, path)->text;
}

double
reply_number(const Reply *reply, const char *path)
{
    return find(reply, path)->number;
}

/* Adds what an event says of choice @index. */
static void
read_event(const char *data, guint index, GString *text, char **finish)
{
    g_autoptr(RpTree) event = rp_tree_parse(data);
    const RpTree *choices = event != NULL ? rp_tree_find(event, "choices") : NULL;

    if (choices == NULL)
        fail_msg("no part of a stream: %s", data);
    for (guint i = 0; i < choices->items->len; i++) {
        const RpTree *choice = rp_tree_nth(choices, i);
        const RpTree *content = rp_tree_find(choice, "delta.content");
        const RpTree *end = rp_tree_find(choice, "finish_reason");

        if (content == NULL)
            content = rp_tree_find(choice, "text");
        if (rp_tree_find(choice, "index")->number != index)
            continue;
        assert_null(*finish);
        if (content != NULL)
            g_string_append(text, content->text);
        if (end->type == RP_JSON_STRING)
            *finish = g_strdup(end->text);
    }
}

char *
reply_stream(const Reply *reply, guint index, char **finish)
{
    g_auto(GStrv) events = g_strsplit(reply->body, "\n\n", -1);
    const guint n = g_strv_length(events);
    GString *text = g_string_new(NULL);

    *finish = NULL;
    assert_true(n >= 3);
    assert_string_equal(events[n - 2], "data: [DONE]");
    for (guint i = 0; i < n - 2; i++) {
        assert_true(g_str_has_prefix(events[i], "data: {"));
        read_event(events[i] + strlen("data: "), index, text, finish);
    }
    assert_non_null(*finish);
    return g_string_free(text, FALSE);
}

char *
serve_quote(const char *text)
{
    RpJsonWriter *json = rp_json_writer_new(RP_JSON_COMPACT);

    rp_json_string(json, NULL, text);
    return rp_json_writer_finish(json);
}
