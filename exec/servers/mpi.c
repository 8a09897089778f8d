/* All calls of MPI, of version 3.1 and earlier; on one thread (MPI_THREAD_FUNNELED). */
#include <limits.h>
#include <mpi.h>

#include "core/base/quote.h"

#include "exec/servers/transport.h"

struct _RpTransportMessage {
    MPI_Request request;
};

typedef struct {
    MPI_Comm comm;
} Transport;

static gboolean
check(int code, const char *what, GError **error)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;

    if (code == MPI_SUCCESS)
        return TRUE;
    MPI_Error_string(code, text, &length);
    return rp_fail(error, RP_TRANSPORT_ERROR, RP_TRANSPORT_ERROR_FAILED,
                   "cannot be reached: %s: %s", what, text);
}

/* It has a communicator of its own, so that other users of MPI in this process meet none of our
 * messages. */
static gpointer
transport_open(gpointer place, guint *rank, guint *count, GError **error)
{
    int provided = 0, here = 0, all = 0, begun = 0;
    Transport *transport;

    (void)place;
    if (!check(MPI_Initialized(&begun), "MPI_Initialized", error))
        return NULL;
    if (begun) {
        g_set_error_literal(error, RP_TRANSPORT_ERROR, RP_TRANSPORT_ERROR_FAILED,
                            "MPI has been started by somebody else in this process");
        return NULL;
    }
    if (!check(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread",
               error))
        return NULL;
    if (provided < MPI_THREAD_FUNNELED) {
        g_set_error_literal(error, RP_TRANSPORT_ERROR, RP_TRANSPORT_ERROR_FAILED,
                            "this MPI does not run in a program of several threads: "
                            "expected MPI_THREAD_FUNNELED");
        return NULL;
    }
    transport = g_new0(Transport, 1);
    if (!check(MPI_Comm_dup(MPI_COMM_WORLD, &transport->comm), "MPI_Comm_dup", error) ||
        !check(MPI_Comm_set_errhandler(transport->comm, MPI_ERRORS_RETURN),
               "MPI_Comm_set_errhandler", error) ||
        !check(MPI_Comm_rank(transport->comm, &here), "MPI_Comm_rank", error) ||
        !check(MPI_Comm_size(transport->comm, &all), "MPI_Comm_size", error)) {
        g_free(transport);
        return NULL;
    }
    *rank = (guint)here;
    *count = (guint)all;
    return transport;
}

static RpTransportMessage *
finish(RpTransportMessage *message, int code, const char *what, GError **error)
{
    if (check(code, what, error))
        return message;
    g_free(message);
    return NULL;
}

static RpTransportMessage *
transport_send(gpointer data, guint server, guint channel, const void *bytes, gsize n,
               GError **error)
{
    const Transport *transport = data;
    RpTransportMessage *message = g_new(RpTransportMessage, 1);

    g_assert(n <= INT_MAX);
    return finish(message,
                  MPI_Isend(bytes, (int)n, MPI_BYTE, (int)server, (int)channel, transport->comm,
                            &message->request),
                  "MPI_Isend", error);
}

static RpTransportMessage *
transport_receive(gpointer data, guint server, guint channel, void *bytes, gsize n, GError **error)
{
    const Transport *transport = data;
    RpTransportMessage *message = g_new(RpTransportMessage, 1);

    g_assert(n <= INT_MAX);
    return finish(message,
                  MPI_Irecv(bytes, (int)n, MPI_BYTE, (int)server, (int)channel, transport->comm,
                            &message->request),
                  "MPI_Irecv", error);
}

static void
transport_cancel(gpointer data, RpTransportMessage *message)
{
    (void)data;
    (void)MPI_Cancel(&message->request);
}

static gboolean
transport_test(gpointer data, RpTransportMessage *message, gboolean *over, GError **error)
{
    int flag = 0;
    const gboolean tested =
        check(MPI_Test(&message->request, &flag, MPI_STATUS_IGNORE), "MPI_Test", error);

    (void)data;
    *over = flag != 0;
    if (!tested || *over)
        g_free(message);
    return tested;
}

/* After a failure MPI is left as it is: to finalize it is to wait for those that are gone. */
static void
transport_close(gpointer data, gboolean failed)
{
    Transport *transport = data;

    if (!failed) {
        MPI_Comm_free(&transport->comm);
        MPI_Finalize();
    }
    g_free(transport);
}

const RpTransportOps *
rp_mpi_module(void)
{
    static const RpTransportOps ops = {
        .name = "MPI",
        .open = transport_open,
        .send = transport_send,
        .receive = transport_receive,
        .cancel = transport_cancel,
        .test = transport_test,
        .close = transport_close,
    };

    return &ops;
}
