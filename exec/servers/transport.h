/**
 * Carries messages between servers: each transport (mpi.c) is a table of operations. All of them
 * are called on one thread, which the servers' object owns.
 */
#pragma once

#include <glib.h>

/* A message under way; each transport defines it for itself. */
typedef struct _RpTransportMessage RpTransportMessage;

/**
 * RpTransportOps:
 * @open: joins the others. @place: (nullable): as given to rp_servers_new(). Returns: the transport
 * @send, @receive: begin one; messages between two servers on one channel arrive in order. @data
 *   stays until the message is over
 * @cancel: nothing more is to be written for one that is received, unless it has begun to arrive; it
 *   is soon over
 * @test: whether it is over; frees it then. FALSE: it never will be. May move all others on, too
 * @close: @failed: others may be gone: it waits for none, and messages in flight are dropped
 */
typedef struct {
    const char *name;
    gpointer (*open)(gpointer place, guint *rank, guint *count, GError **error);
    RpTransportMessage *(*send)(gpointer transport, guint server, guint channel, const void *data,
                                gsize bytes, GError **error);
    RpTransportMessage *(*receive)(gpointer transport, guint server, guint channel, void *data,
                                   gsize bytes, GError **error);
    void (*cancel)(gpointer transport, RpTransportMessage *message);
    gboolean (*test)(gpointer transport, RpTransportMessage *message, gboolean *over,
                     GError **error);
    void (*close)(gpointer transport, gboolean failed);
} RpTransportOps;

#define RP_TRANSPORT_ERROR (rp_transport_error_quark())
GQuark rp_transport_error_quark(void);
typedef enum {
    RP_TRANSPORT_ERROR_MISSING, /* not built, or not there */
    RP_TRANSPORT_ERROR_FAILED
} RpTransportError;

/* MPI, of the library that it was built with; it is loaded here. Errors: RP_TRANSPORT_ERROR_MISSING */
const RpTransportOps *rp_transport_mpi(GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* "Open MPI 4.1.4" or why there is none, for --version. */
const char *rp_transport_built_text(void);

#define RP_MPI_MODULE_FILE "roundpipe-mpi.so"
#define RP_MPI_MODULE_SYMBOL "rp_mpi_module"

/* The symbol that the module exports. */
const RpTransportOps *rp_mpi_module(void);
