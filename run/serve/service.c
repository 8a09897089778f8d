/*
 * HTTP by libmicrohttpd, with a thread for each connection:
 *
 *   headers            body                 answer
 *   begin -> receive -> receive -> handle -> respond, or a stream -> complete
 *
 * A request that its headers show to be wrong is refused when its body has been read and thrown away, for a client that
 * is still sending would not see the answer; one that is far too long is refused at once.
 */
#include "run/serve/private.h"

#include <gio/gio.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <nettle/memops.h>
#include <string.h>
#include <unistd.h>

#include "core/base/quote.h"
#include "core/json/json-write.h"
#include "run/settings.h"

/* Bytes that are thrown away, at most. */
#define MOST_WASTE (8 * RP_SERVICE_MAX_BODY)
/* Connections beside those that wait for answers. */
#define SPARE_CONNECTIONS 64
#define STREAM_BLOCK 4096
/* Bytes of an answer that the system keeps for a client that does not read. */
#define SEND_BUFFER (64 << 10)
#define LOOK_US (G_USEC_PER_SEC / 50)

struct _RpService {
    RpServiceOptions options;
    char *token;
    gint64 created_s;
    guint16 port;
    struct MHD_Daemon *daemon;
    RpRequests *requests;
    RpServeClients *clients;
    GMutex lock;     /* of the log */
    gint n_unseeded; /* sampled requests without a seed */
    gint n_open;     /* requests that are being answered */
    gint stops;      /* no more are taken */
    gint is_over;    /* none is answered any more */
};

typedef struct _Exchange Exchange;

typedef struct {
    const char *method, *path;
    gboolean is_open; /* without a token */
    /* Sends the answer. @param: (out) (nullable): the key that was wrong. Errors: %RP_SERVE_ERROR, which becomes one;
     * MHD_NO without an error closes the connection */
    enum MHD_Result (*answer)(Exchange *exchange, char **param, GError **error);
} Route;

/* One request and its answer. */
struct _Exchange {
    RpService *service;
    struct MHD_Connection *connection;
    RpServeClient *client;
    char *method, *path;
    gint64 begin_us;
    GString *body;
    gsize wasted;
    const Route *route; /* %NULL: its path has none */
    GError *refusal;    /* that it will get when its body is there */
    RpServeAnswer *said;
    guint status;
    gboolean counted; /* in n_open */
};

/* ---- responses ---- */

static void
add_header(struct MHD_Response *response, const char *name, const char *value)
{
    const enum MHD_Result added = MHD_add_response_header(response, name, value);

    g_assert(added == MHD_YES);
}

static enum MHD_Result
send_response(Exchange *exchange, guint status, struct MHD_Response *response, const char *type)
{
    enum MHD_Result queued;

    add_header(response, "Content-Type", type);
    add_header(response, "Cache-Control", "no-store");
    exchange->status = status;
    queued = rp_serve_clients_set(exchange->service->clients, exchange->client, RP_CLIENT_RECEIVES)
                 ? MHD_queue_response(exchange->connection, status, response)
                 : MHD_NO;
    MHD_destroy_response(response);
    return queued;
}

/* Takes @json. */
static struct MHD_Response *
make_response(char *json)
{
    return MHD_create_response_from_buffer(strlen(json), json, MHD_RESPMEM_MUST_FREE);
}

static enum MHD_Result
refuse(Exchange *exchange, const GError *error, const char *param)
{
    struct MHD_Response *response = make_response(rp_serve_error_json(error, param));

    if (error->code == 401)
        add_header(response, "WWW-Authenticate", "Bearer");
    if (error->code == 405)
        add_header(response, "Allow", exchange->route->method);
    if (error->code == 429 || error->code == 503)
        add_header(response, "Retry-After", "1");
    return send_response(exchange, (guint)error->code, response, "application/json");
}

/* ---- routes ---- */

static enum MHD_Result
answer_health(Exchange *exchange, char **param, GError **error)
{
    return send_response(exchange, MHD_HTTP_OK, make_response(g_strdup("{\"status\":\"ok\"}")),
                         "application/json");
}

static enum MHD_Result
answer_models(Exchange *exchange, char **param, GError **error)
{
    RpJsonWriter *json = rp_json_writer_new(RP_JSON_COMPACT);

    rp_json_object(json, NULL);
    rp_json_string(json, "object", "list");
    rp_json_array(json, "data");
    rp_json_object(json, NULL);
    rp_json_string(json, "id", exchange->service->options.model);
    rp_json_string(json, "object", "model");
    rp_json_int(json, "created", exchange->service->created_s);
    rp_json_string(json, "owned_by", "roundpipe");
    rp_json_end(json);
    rp_json_end(json);
    rp_json_end(json);
    return send_response(exchange, MHD_HTTP_OK, make_response(rp_json_writer_finish(json)),
                         "application/json");
}

static gboolean
is_there(gpointer user_data)
{
    Exchange *exchange = user_data;

    return !g_atomic_int_get(&exchange->service->is_over) &&
           rp_serve_client_is_there(exchange->client);
}

static ssize_t
read_stream(void *cls, uint64_t position, char *part, size_t space)
{
    Exchange *exchange = cls;
    RpServeClients *clients = exchange->service->clients;

    (void)position;
    if (!rp_serve_clients_set(clients, exchange->client, RP_CLIENT_WAITS))
        return MHD_CONTENT_READER_END_WITH_ERROR;
    gssize n = rp_serve_answer_stream(exchange->said, part, space);
    if (n < 0 || !rp_serve_clients_set(clients, exchange->client, RP_CLIENT_RECEIVES))
        return MHD_CONTENT_READER_END_WITH_ERROR;
    return n > 0 ? n : MHD_CONTENT_READER_END_OF_STREAM;
}

/* Turns the request's text into ids. @most_tokens: (out): of the answer */
static gboolean
read_prompt(const Exchange *exchange, const RpServeRequest *request, GArray *ids,
            guint *most_tokens, char **param, GError **error)
{
    const RpServiceOptions *options = &exchange->service->options;
    const char *key = request->max_completion_tokens > 0 ? "max_completion_tokens" : "max_tokens";
    const guint asked =
        request->max_completion_tokens > 0 ? request->max_completion_tokens : request->max_tokens;

    *param = g_strdup(request->chat ? "messages" : "prompt");
    if (!(request->chat
              ? rp_model_text_chat(options->text, "body", exchange->body->str, exchange->body->len,
                                   ids, error)
              : rp_model_text_encode(options->text, "prompt", request->prompt->str,
                                     request->prompt->len, RP_ENCODE_TEMPLATE, ids, error)))
        return FALSE;
    g_free(*param);
    *param = g_strdup(key);
    return rp_answer_length(key, options->positions, ids->len,
                            asked > 0 ? asked : options->most_tokens, most_tokens, error);
}

static gboolean
check_model(const Exchange *exchange, const RpServeRequest *request, char **param, GError **error)
{
    const char *model = exchange->service->options.model;

    if (request->model == NULL || *request->model == '\0' || strcmp(request->model, model) == 0)
        return TRUE;
    g_autofree char *found = rp_quote(request->model);

    *param = g_strdup("model");
    return rp_fail(error, RP_SERVE_ERROR, 404, "model: expected \"%s\", found %s", model, found);
}

/* Adds the request to those that generators serve: exchange->said. */
static gboolean
ask(Exchange *exchange, RpServeRequest *request, char **param, GError **error)
{
    RpService *service = exchange->service;
    const RpServiceOptions *options = &service->options;
    g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(guint32));
    guint most_tokens, status = MHD_HTTP_BAD_REQUEST;
    GError *local = NULL;

    if (!check_model(exchange, request, param, error))
        return FALSE;
    if (read_prompt(exchange, request, ids, &most_tokens, param, &local)) {
        g_clear_pointer(param, g_free);
        if (!request->has_seed && request->sampling.temperature > 0)
            request->sampling.seed += (guint)g_atomic_int_add(&service->n_unseeded, 1);
        exchange->said = rp_serve_answer_new(options, service->requests, request, ids, most_tokens,
                                             is_there, exchange, &local);
        status = g_error_matches(local, RP_GENERATE_ERROR, RP_GENERATE_ERROR_BUSY)
                     ? MHD_HTTP_TOO_MANY_REQUESTS
                     : MHD_HTTP_INTERNAL_SERVER_ERROR;
    }
    if (local == NULL)
        return TRUE;
    g_set_error_literal(error, RP_SERVE_ERROR, (int)status, local->message);
    g_error_free(local);
    return FALSE;
}

static enum MHD_Result
answer_request(Exchange *exchange, gboolean chat, char **param, GError **error)
{
    g_auto(RpServeRequest) request = {0};

    if (!rp_serve_request_read(exchange->body->str, exchange->body->len, chat,
                               &exchange->service->options.sampling, &request, param, error))
        return MHD_NO;
    const gboolean stream = request.stream;

    if (!ask(exchange, &request, param, error))
        return MHD_NO;
    if (stream)
        return send_response(exchange, MHD_HTTP_OK,
                             MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK,
                                                               read_stream, exchange, NULL),
                             "text/event-stream");
    char *json = rp_serve_answer_whole(exchange->said, error);

    return json != NULL
               ? send_response(exchange, MHD_HTTP_OK, make_response(json), "application/json")
               : MHD_NO;
}

static enum MHD_Result
answer_chat(Exchange *exchange, char **param, GError **error)
{
    return answer_request(exchange, TRUE, param, error);
}

static enum MHD_Result
answer_completion(Exchange *exchange, char **param, GError **error)
{
    return answer_request(exchange, FALSE, param, error);
}

static const Route routes[] = {
    {"POST", "/v1/chat/completions", FALSE, answer_chat},
    {"POST", "/v1/completions", FALSE, answer_completion},
    {"GET", "/v1/models", FALSE, answer_models},
    {"GET", "/health", TRUE, answer_health},
};

/* ---- what headers say ---- */

static const char *
header(const Exchange *exchange, const char *name)
{
    return MHD_lookup_connection_value(exchange->connection, MHD_HEADER_KIND, name);
}

static gboolean
check_route(Exchange *exchange, GError **error)
{
    g_autofree char *shown = rp_quote(exchange->path);
    guint i = 0;

    while (i < G_N_ELEMENTS(routes) && strcmp(routes[i].path, exchange->path) != 0)
        i++;
    if (i == G_N_ELEMENTS(routes))
        return rp_fail(error, RP_SERVE_ERROR, MHD_HTTP_NOT_FOUND,
                       "expected /v1/chat/completions, /v1/completions, /v1/models or /health, "
                       "found %s",
                       shown);
    exchange->route = &routes[i];
    if (strcmp(exchange->method, routes[i].method) == 0 ||
        (strcmp(exchange->method, "HEAD") == 0 && strcmp(routes[i].method, "GET") == 0))
        return TRUE;
    return rp_fail(error, RP_SERVE_ERROR, MHD_HTTP_METHOD_NOT_ALLOWED, "%s: expected %s, found %s",
                   routes[i].path, routes[i].method, exchange->method);
}

/* The time that it takes does not depend on how much of @found is right. */
static gboolean
is_token(const char *token, const char *found)
{
    return strlen(found) == strlen(token) && memeql_sec(found, token, strlen(token));
}

static gboolean
check_token(const Exchange *exchange, GError **error)
{
    const char *token = exchange->service->token;
    const char *found = header(exchange, "Authorization");

    if (token == NULL || exchange->route->is_open)
        return TRUE;
    if (found != NULL && g_ascii_strncasecmp(found, "Bearer ", strlen("Bearer ")) == 0 &&
        is_token(token, found + strlen("Bearer ")))
        return TRUE;
    return rp_fail(error, RP_SERVE_ERROR, MHD_HTTP_UNAUTHORIZED,
                   "Authorization: expected \"Bearer \" and the server's token, found %s",
                   found != NULL ? "another" : "nothing");
}

/* A page of the web that has given its own name the address of this machine must not ask, where no token is needed. */
static gboolean
check_host(const Exchange *exchange, GError **error)
{
    const char *found = header(exchange, "Host");
    g_autoptr(GSocketConnectable) address =
        g_network_address_parse(found != NULL ? found : "localhost", 0, NULL);
    const char *host =
        address != NULL ? g_network_address_get_hostname(G_NETWORK_ADDRESS(address)) : "";

    if (exchange->service->token != NULL || g_ascii_strcasecmp(host, "localhost") == 0 ||
        g_hostname_is_ip_address(host))
        return TRUE;
    g_autofree char *shown = rp_quote(found);

    return rp_fail(error, RP_SERVE_ERROR, MHD_HTTP_FORBIDDEN,
                   "Host: expected localhost or an IP address, found %s", shown);
}

/* No page of the web can send JSON elsewhere without being allowed to: it could send other types. */
static gboolean
check_type(const Exchange *exchange, GError **error)
{
    static const char json[] = "application/json";
    const char *found = header(exchange, "Content-Type");

    if (strcmp(exchange->route->method, "POST") != 0 ||
        (found != NULL && g_ascii_strncasecmp(found, json, strlen(json)) == 0 &&
         strchr("; ", found[strlen(json)]) != NULL))
        return TRUE;
    g_autofree char *shown = found != NULL ? rp_quote(found) : g_strdup("nothing");

    return rp_fail(error, RP_SERVE_ERROR, MHD_HTTP_UNSUPPORTED_MEDIA_TYPE,
                   "Content-Type: expected application/json, found %s", shown);
}

static gboolean
fail_length(GError **error)
{
    return rp_fail(error, RP_SERVE_ERROR, MHD_HTTP_CONTENT_TOO_LARGE,
                   "body: expected at most %d bytes", RP_SERVICE_MAX_BODY);
}

static guint64
announced_length(const Exchange *exchange)
{
    const char *length = header(exchange, "Content-Length");

    return length != NULL ? g_ascii_strtoull(length, NULL, 10) : 0;
}

static gboolean
check_headers(Exchange *exchange, GError **error)
{
    if (g_atomic_int_get(&exchange->service->stops))
        return rp_fail(error, RP_SERVE_ERROR, MHD_HTTP_SERVICE_UNAVAILABLE, "the server stops");
    return check_route(exchange, error) && check_token(exchange, error) &&
           check_host(exchange, error) && check_type(exchange, error) &&
           (announced_length(exchange) <= RP_SERVICE_MAX_BODY || fail_length(error));
}

/* ---- a request ---- */

static enum MHD_Result
begin(RpService *service, struct MHD_Connection *connection, const char *path, const char *method,
      void **context)
{
    Exchange *exchange = *context = g_new0(Exchange, 1);

    exchange->service = service;
    exchange->connection = connection;
    exchange->client =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    exchange->method = g_strdup(method);
    exchange->path = g_strdup(path);
    exchange->begin_us = g_get_monotonic_time();
    exchange->body = g_string_new(NULL);
    if (!rp_serve_clients_set(service->clients, exchange->client, RP_CLIENT_SENDS))
        return MHD_NO;
    if (!check_headers(exchange, &exchange->refusal) &&
        (announced_length(exchange) > MOST_WASTE || header(exchange, "Expect") != NULL))
        return refuse(exchange, exchange->refusal, NULL);
    return MHD_YES;
}

static enum MHD_Result
receive(Exchange *exchange, const char *data, size_t *length)
{
    if (exchange->refusal == NULL && exchange->body->len + *length > RP_SERVICE_MAX_BODY)
        (void)fail_length(&exchange->refusal);
    if (exchange->refusal == NULL)
        g_string_append_len(exchange->body, data, (gssize)*length);
    else if ((exchange->wasted += *length) > MOST_WASTE)
        return MHD_NO;
    *length = 0;
    return MHD_YES;
}

static enum MHD_Result
handle(Exchange *exchange)
{
    g_autoptr(GError) error = g_steal_pointer(&exchange->refusal);
    g_autofree char *param = NULL;
    enum MHD_Result answered = MHD_NO;

    if (!rp_serve_clients_set(exchange->service->clients, exchange->client, RP_CLIENT_WAITS))
        return MHD_NO;
    g_atomic_int_inc(&exchange->service->n_open);
    exchange->counted = TRUE;
    if (error == NULL)
        answered = exchange->route->answer(exchange, &param, &error);
    return error != NULL ? refuse(exchange, error, param) : answered;
}

/* Called when the headers are there, with each part of the body, and behind the last. */
static enum MHD_Result
take_request(void *cls, struct MHD_Connection *connection, const char *path, const char *method,
             const char *version, const char *data, size_t *length, void **context)
{
    (void)version;
    if (*context == NULL)
        return begin(cls, connection, path, method, context);
    return *length > 0 ? receive(*context, data, length) : handle(*context);
}

static void
log_exchange(Exchange *exchange, gboolean left)
{
    const RpServiceOptions *options = &exchange->service->options;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(exchange->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    g_autoptr(GSocketAddress) address =
        g_socket_address_new_from_native(info->client_addr, sizeof(struct sockaddr_in6));
    g_autofree char *client =
        g_inet_address_to_string(g_inet_socket_address_get_address(G_INET_SOCKET_ADDRESS(address)));
    RpServiceRecord record = {.client = client,
                              .method = exchange->method,
                              .path = exchange->path,
                              .status = exchange->status,
                              .left = left,
                              .seconds = (double)(g_get_monotonic_time() - exchange->begin_us) /
                                         G_USEC_PER_SEC};

    if (exchange->said != NULL)
        record.n_answer = rp_serve_answer_tokens(exchange->said, &record.n_prompt);
    g_mutex_lock(&exchange->service->lock);
    if (options->log != NULL)
        options->log(options->user_data, &record);
    g_mutex_unlock(&exchange->service->lock);
}

static void
complete(void *cls, struct MHD_Connection *connection, void **context,
         enum MHD_RequestTerminationCode how)
{
    Exchange *exchange = *context;
    RpService *service = cls;

    (void)connection;
    if (exchange == NULL)
        return;
    log_exchange(exchange, how != MHD_REQUEST_TERMINATED_COMPLETED_OK);
    if (exchange->said != NULL) {
        rp_serve_answer_cancel(exchange->said);
        rp_serve_answer_unref(exchange->said);
    }
    (void)rp_serve_clients_set(service->clients, exchange->client, RP_CLIENT_IDLE);
    if (exchange->counted)
        g_atomic_int_add(&service->n_open, -1);
    g_clear_error(&exchange->refusal);
    g_string_free(exchange->body, TRUE);
    g_free(exchange->method);
    g_free(exchange->path);
    g_free(exchange);
    *context = NULL;
}

static void
watch_connection(void *cls, struct MHD_Connection *connection, void **context,
                 enum MHD_ConnectionNotificationCode what)
{
    RpService *service = cls;

    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        *context = rp_serve_clients_open(
            service->clients,
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd);
    else
        rp_serve_clients_close(service->clients, *context);
}

/* ---- the service ---- */

/* Returns: (transfer full): a socket that listens */
static GSocket *
listen_at(const RpServiceOptions *options, GError **error)
{
    const char *text = options->address != NULL ? options->address : RP_SERVICE_ADDRESS;
    g_autoptr(GInetAddress) address = g_inet_address_new_from_string(text);

    if (address == NULL)
        return rp_null(rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
                               "bind: expected an IP address such as 0.0.0.0, found %s", text));
    if (options->token == NULL && !g_inet_address_get_is_loopback(address))
        return rp_null(rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
                               "bind: expected a token beside %s, which other machines reach",
                               text));
    g_autoptr(GSocketAddress) at = g_inet_socket_address_new(address, options->port);
    g_autoptr(GSocket) socket = g_socket_new(g_inet_address_get_family(address),
                                             G_SOCKET_TYPE_STREAM, G_SOCKET_PROTOCOL_TCP, error);

    if (socket == NULL || !g_socket_bind(socket, at, TRUE, error) ||
        !g_socket_set_option(socket, SOL_SOCKET, SO_SNDBUF, SEND_BUFFER, error) ||
        !g_socket_listen(socket, error))
        return rp_null(rp_prefix_error(error, "port: "));
    return g_steal_pointer(&socket);
}

/* Takes @socket over. */
static gboolean
start(RpService *service, int socket, GError **error)
{
    service->daemon =
        MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION |
                             MHD_USE_POLL | MHD_USE_ITC,
                         0, NULL, NULL, take_request, service, MHD_OPTION_LISTEN_SOCKET, socket,
                         MHD_OPTION_CONNECTION_LIMIT, service->options.requests + SPARE_CONNECTIONS,
                         MHD_OPTION_NOTIFY_COMPLETED, complete, service,
                         MHD_OPTION_NOTIFY_CONNECTION, watch_connection, service, MHD_OPTION_END);
    if (service->daemon != NULL)
        return TRUE;
    (void)close(socket);
    return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE, "the server cannot start");
}

RpService *
rp_service_new(const RpServiceOptions *options, GError **error)
{
    g_autoptr(GSocket) socket = listen_at(options, error);
    g_autoptr(GSocketAddress) address =
        socket != NULL ? g_socket_get_local_address(socket, error) : NULL;

    if (address == NULL)
        return NULL;
    RpService *service = g_new0(RpService, 1);

    g_mutex_init(&service->lock);
    service->options = *options;
    service->token = g_strdup(options->token);
    service->created_s = g_get_real_time() / G_USEC_PER_SEC;
    service->port = g_inet_socket_address_get_port(G_INET_SOCKET_ADDRESS(address));
    service->requests = rp_requests_new(options->requests);
    rp_requests_serve(service->requests, options->generators, options->n_generators, FALSE);
    service->clients = rp_serve_clients_new(options->client_ms);
    if (start(service, dup(g_socket_get_fd(socket)), error))
        return service;
    if (!rp_service_stop(service, NULL))
        g_clear_error(error);
    return NULL;
}

guint16
rp_service_port(const RpService *service)
{
    return service->port;
}

gboolean
rp_service_has_failed(RpService *service)
{
    return rp_requests_have_failed(service->requests);
}

/* Waits until no request is answered, or as long as they have. */
static void
let_end(RpService *service)
{
    const gint64 end_us = g_get_monotonic_time() + (gint64)service->options.grace_ms * 1000;

    while (g_atomic_int_get(&service->n_open) > 0 && g_get_monotonic_time() < end_us)
        g_usleep(LOOK_US);
}

gboolean
rp_service_stop(RpService *service, GError **error)
{
    g_atomic_int_set(&service->stops, TRUE);
    if (service->daemon != NULL) {
        const int socket = MHD_quiesce_daemon(service->daemon);

        let_end(service);
        g_atomic_int_set(&service->is_over, TRUE);
        MHD_stop_daemon(service->daemon);
        (void)close(socket);
    }
    rp_serve_clients_free(service->clients);
    gboolean good = rp_requests_finish(service->requests, error);
    g_mutex_clear(&service->lock);
    g_free(service->token);
    g_free(service);
    return good;
}
