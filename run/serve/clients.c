/*
 * Connections, and a thread that looks at their time:
 *
 *   opened |---- sends ----|-- waits for its answer --|-- receives --|-- idle --| closed
 *          |<- client_ms ->|        no limit          |<- client_ms -|<- client_ms
 *
 * A client that has used up its time is cut off; until then it may send or read a byte at a time.
 */
#include "run/serve/private.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#define LOOK_US (G_USEC_PER_SEC / 20)

struct _RpServeClient {
    int socket;
    RpServeClientState state;
    gint64 end_us; /* of its time; of G_MAXINT64 there is no end */
    gboolean cut_off;
};

struct _RpServeClients {
    GMutex lock;
    GCond stopped;
    gboolean stops;
    GHashTable *open; /* (element-type RpServeClient) */
    gint64 client_us;
    GThread *watch;
};

/* Who sends has had no answer yet, and gets one that is short enough to be sent at once. */
static void
cut_off(RpServeClient *client)
{
    g_autoptr(GError) error =
        g_error_new_literal(RP_SERVE_ERROR, 408, "the request came too slowly");
    g_autofree char *json = rp_serve_error_json(error, NULL);
    g_autofree char *answer =
        g_strdup_printf("HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n"
                        "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                        strlen(json), json);

    client->cut_off = TRUE;
    client->end_us = G_MAXINT64;
    if (client->state == RP_CLIENT_SENDS &&
        send(client->socket, answer, strlen(answer), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        client->state = RP_CLIENT_IDLE; /* it is gone already */
    (void)shutdown(client->socket, SHUT_RDWR);
}

static gpointer
watch(gpointer data)
{
    RpServeClients *clients = data;

    g_mutex_lock(&clients->lock);
    while (!clients->stops) {
        const gint64 now_us = g_get_monotonic_time();
        GHashTableIter iter;
        gpointer client;

        g_hash_table_iter_init(&iter, clients->open);
        while (g_hash_table_iter_next(&iter, &client, NULL))
            if (((RpServeClient *)client)->end_us <= now_us)
                cut_off(client);
        (void)g_cond_wait_until(&clients->stopped, &clients->lock, now_us + LOOK_US);
    }
    g_mutex_unlock(&clients->lock);
    return NULL;
}

RpServeClients *
rp_serve_clients_new(guint client_ms)
{
    RpServeClients *clients = g_new0(RpServeClients, 1);

    g_mutex_init(&clients->lock);
    g_cond_init(&clients->stopped);
    clients->open = g_hash_table_new_full(NULL, NULL, g_free, NULL);
    clients->client_us = (gint64)client_ms * 1000;
    clients->watch = g_thread_new("clients", watch, clients);
    return clients;
}

void
rp_serve_clients_free(RpServeClients *clients)
{
    g_mutex_lock(&clients->lock);
    clients->stops = TRUE;
    g_cond_signal(&clients->stopped);
    g_mutex_unlock(&clients->lock);
    g_thread_join(clients->watch);
    g_hash_table_unref(clients->open);
    g_cond_clear(&clients->stopped);
    g_mutex_clear(&clients->lock);
    g_free(clients);
}

RpServeClient *
rp_serve_clients_open(RpServeClients *clients, int socket)
{
    RpServeClient *client = g_new0(RpServeClient, 1);

    client->socket = socket;
    client->state = RP_CLIENT_SENDS;
    client->end_us = g_get_monotonic_time() + clients->client_us;
    g_mutex_lock(&clients->lock);
    g_hash_table_add(clients->open, client);
    g_mutex_unlock(&clients->lock);
    return client;
}

void
rp_serve_clients_close(RpServeClients *clients, RpServeClient *client)
{
    g_mutex_lock(&clients->lock);
    g_hash_table_remove(clients->open, client);
    g_mutex_unlock(&clients->lock);
}

gboolean
rp_serve_clients_set(RpServeClients *clients, RpServeClient *client, RpServeClientState state)
{
    g_mutex_lock(&clients->lock);
    gboolean good = !client->cut_off;
    if (good) {
        client->state = state;
        client->end_us =
            state == RP_CLIENT_WAITS ? G_MAXINT64 : g_get_monotonic_time() + clients->client_us;
    }
    g_mutex_unlock(&clients->lock);
    return good;
}

gboolean
rp_serve_client_is_there(RpServeClient *client)
{
    struct pollfd look = {.fd = client->socket, .events = POLLRDHUP};

    return poll(&look, 1, 0) <= 0;
}
