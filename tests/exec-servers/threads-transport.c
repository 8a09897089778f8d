#include "tests/exec-servers/threads-transport.h"

#include <pthread.h>
#include <string.h>

#include "tests/rp-test.h"

typedef struct {
    ThreadsNet *net;
    guint rank;
} Place;

struct _ThreadsNet {
    pthread_mutex_t lock;
    guint count;
    Place *places;
    gboolean *stopped;
    GHashTable *queues;  /* Queue, by "from to channel" */
    GPtrArray *messages; /* not over */
};

/* Messages between two servers on a channel: who begins to receive first gets the first. */
typedef struct {
    guint to;
    gboolean held;
    GQueue *sent;    /* GBytes */
    GQueue *awaited; /* RpTransportMessage */
} Queue;

struct _RpTransportMessage {
    Queue *queue; /* %NULL: was sent */
    void *data;
    gsize bytes;
    gboolean over;
    gboolean wrong; /* another size was sent */
};

static void
free_queue(gpointer data)
{
    Queue *queue = data;

    g_queue_free_full(queue->sent, (GDestroyNotify)g_bytes_unref);
    g_queue_free(queue->awaited);
    g_free(queue);
}

ThreadsNet *
threads_net_new(guint count)
{
    ThreadsNet *net = g_new0(ThreadsNet, 1);

    pthread_mutex_init(&net->lock, NULL);
    net->count = count;
    net->places = g_new0(Place, count);
    net->stopped = g_new0(gboolean, count);
    net->queues = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, free_queue);
    net->messages = g_ptr_array_new_with_free_func(g_free);
    for (guint r = 0; r < count; r++)
        net->places[r] = (Place){net, r};
    return net;
}

void
threads_net_free(ThreadsNet *net)
{
    g_hash_table_unref(net->queues);
    g_ptr_array_unref(net->messages);
    g_free(net->places);
    g_free(net->stopped);
    pthread_mutex_destroy(&net->lock);
    g_free(net);
}

gpointer
threads_net_place(ThreadsNet *net, guint rank)
{
    return &net->places[rank];
}

void
threads_net_stop(ThreadsNet *net, guint rank)
{
    pthread_mutex_lock(&net->lock);
    net->stopped[rank] = TRUE;
    pthread_mutex_unlock(&net->lock);
}

/* Called under the lock. */
static Queue *
queue_of(ThreadsNet *net, guint from, guint to, guint channel)
{
    char *key = g_strdup_printf("%u %u %u", from, to, channel);
    Queue *queue = g_hash_table_lookup(net->queues, key);

    if (queue != NULL) {
        g_free(key);
        return queue;
    }
    queue = g_new0(Queue, 1);
    queue->to = to;
    queue->sent = g_queue_new();
    queue->awaited = g_queue_new();
    g_hash_table_insert(net->queues, key, queue);
    return queue;
}

void
threads_net_hold(ThreadsNet *net, guint from, guint to, guint channel, gboolean held)
{
    pthread_mutex_lock(&net->lock);
    queue_of(net, from, to, channel)->held = held;
    pthread_mutex_unlock(&net->lock);
}

static gpointer
threads_open(gpointer place, guint *rank, guint *count, GError **error)
{
    const Place *here = place;

    (void)error;
    *rank = here->rank;
    *count = here->net->count;
    return place;
}

static RpTransportMessage *
threads_send(gpointer transport, guint server, guint channel, const void *data, gsize bytes,
             GError **error)
{
    const Place *here = transport;
    ThreadsNet *net = here->net;
    RpTransportMessage *message = g_new0(RpTransportMessage, 1);

    (void)error;
    pthread_mutex_lock(&net->lock);
    g_ptr_array_add(net->messages, message);
    message->over = TRUE;
    if (!net->stopped[here->rank] && !net->stopped[server])
        g_queue_push_tail(queue_of(net, here->rank, server, channel)->sent,
                          g_bytes_new(data, bytes));
    pthread_mutex_unlock(&net->lock);
    return message;
}

static RpTransportMessage *
threads_receive(gpointer transport, guint server, guint channel, void *data, gsize bytes,
                GError **error)
{
    const Place *here = transport;
    RpTransportMessage *message = g_new0(RpTransportMessage, 1);

    (void)error;
    pthread_mutex_lock(&here->net->lock);
    message->queue = queue_of(here->net, server, here->rank, channel);
    message->data = data;
    message->bytes = bytes;
    g_queue_push_tail(message->queue->awaited, message);
    g_ptr_array_add(here->net->messages, message);
    pthread_mutex_unlock(&here->net->lock);
    return message;
}

static void
threads_cancel(gpointer transport, RpTransportMessage *message)
{
    const Place *here = transport;

    pthread_mutex_lock(&here->net->lock);
    if (message->queue != NULL)
        g_queue_remove(message->queue->awaited, message);
    message->over = TRUE;
    pthread_mutex_unlock(&here->net->lock);
}

/* Like MPI, writes all messages that have come for server @rank, whichever one is tested. A stopped server receives
 * nothing. */
static void
deliver(ThreadsNet *net, guint rank)
{
    GHashTableIter iter;
    gpointer value;

    g_hash_table_iter_init(&iter, net->queues);
    while (!net->stopped[rank] && g_hash_table_iter_next(&iter, NULL, &value)) {
        Queue *queue = value;

        while (queue->to == rank && !queue->held && !g_queue_is_empty(queue->sent) &&
               !g_queue_is_empty(queue->awaited)) {
            g_autoptr(GBytes) bytes = g_queue_pop_head(queue->sent);
            RpTransportMessage *message = g_queue_pop_head(queue->awaited);

            message->over = TRUE;
            message->wrong = g_bytes_get_size(bytes) != message->bytes;
            if (!message->wrong)
                memcpy(message->data, g_bytes_get_data(bytes, NULL), message->bytes);
        }
    }
}

static gboolean
threads_test(gpointer transport, RpTransportMessage *message, gboolean *over, GError **error)
{
    const Place *here = transport;
    ThreadsNet *net = here->net;
    gboolean wrong;

    pthread_mutex_lock(&net->lock);
    deliver(net, here->rank);
    *over = message->over;
    wrong = message->wrong;
    if (*over)
        g_ptr_array_remove_fast(net->messages, message);
    pthread_mutex_unlock(&net->lock);
    if (wrong)
        g_set_error_literal(error, RP_TRANSPORT_ERROR, RP_TRANSPORT_ERROR_FAILED,
                            "sent a message of another size");
    return !wrong;
}

static void
threads_close(gpointer transport, gboolean failed)
{
    (void)transport;
    (void)failed;
}

const RpTransportOps *
threads_transport(void)
{
    static const RpTransportOps ops = {
        .name = "threads",
        .open = threads_open,
        .send = threads_send,
        .receive = threads_receive,
        .cancel = threads_cancel,
        .test = threads_test,
        .close = threads_close,
    };

    return &ops;
}

typedef struct {
    ThreadsNet *net;
    guint rank;
    const RpServersOptions *options;
    ThreadsServer run;
    gpointer user_data;
} Server;

static void *
run_server(void *data)
{
    const Server *server = data;
    const RpServersOptions defaults = {0};
    g_autoptr(GError) error = NULL;
    g_autoptr(RpServers) servers =
        rp_servers_new(threads_transport(), threads_net_place(server->net, server->rank),
                       server->options != NULL ? server->options : &defaults, &error);

    g_assert_no_error(error);
    server->run(servers, server->user_data);
    return NULL;
}

void
threads_run(ThreadsNet *net, guint count, const RpServersOptions *options, ThreadsServer run,
            gpointer user_data)
{
    g_autofree pthread_t *threads = g_new(pthread_t, count);
    g_autofree Server *of = g_new(Server, count);

    (void)g_get_host_name(); /* made once, by one thread */
    for (guint r = 0; r < count; r++) {
        of[r] = (Server){net, r, options, run, user_data};
        g_assert(pthread_create(&threads[r], NULL, run_server, &of[r]) == 0);
    }
    for (guint r = 0; r < count; r++)
        pthread_join(threads[r], NULL);
}
