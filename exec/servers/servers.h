/**
 * Several servers that train one model: their ranks, and their messages.
 *
 *   any thread       |--exchange: waits----------------------------|
 *   servers' thread     |send 1|send 2| ...  |receive 1| ...       |beat|      |beat|
 *
 * One thread owns the transport (transport.h) and moves everything. Large blocks go in pieces. Each
 * server beats once a second, so that one which dies, or stops, is known by its silence; one that
 * only computes for long still beats.
 *
 * An exchange is a call that all servers make, on a channel: on each channel in the same order.
 * Channels do not wait for each other. The network adds nothing up: the receiver adds, in the order
 * of ranks, so that the result has the same bits whatever the network does.
 */
#pragma once

#include "exec/servers/transport.h"

#define RP_SERVERS_ERROR (rp_servers_error_quark())
GQuark rp_servers_error_quark(void);
typedef enum {
    RP_SERVERS_ERROR_LOST,   /* a server is gone, or silent */
    RP_SERVERS_ERROR_FAILED, /* a server has reported that it failed */
    RP_SERVERS_ERROR_DIFFERS /* a value that all must share differs */
} RpServersError;

/* Who calls: at most one thread each at a time. */
typedef enum {
    RP_SERVERS_CONTROL, /* the caller of the trainer */
    RP_SERVERS_NETWORK, /* the host's lane of that name */
    RP_SERVERS_SAVING, /* who writes a checkpoint: waits as long as disks take, and nobody is slow */
    RP_SERVERS_CHANNELS
} RpServersChannel;

typedef struct _RpServers RpServers;

/* A server that beats was waited for so long: on the servers' thread, once an exchange. */
typedef void (*RpServersSlow)(gpointer user_data, const RpServers *servers, guint rank,
                              gint64 waited_ns);

typedef struct {
    gint64 silence_ns;   /* after which a server counts as lost; 0 = 20 s */
    gint64 patience_ns;  /* after which one that beats is slow; 0 = 30 s */
    guint64 piece_bytes; /* 0 = 4 MiB */
    double bytes_per_s;  /* emulated: no more leave this server; 0 = no limit */
    RpServersSlow slow;  /* may be %NULL */
    gpointer user_data;
} RpServersOptions;

/* Bytes for a server, or from it. */
typedef struct {
    guint server;
    void *data;
    gsize bytes; /* 0: no message */
} RpServersBlock;

/**
 * rp_servers_new:
 * @place: (nullable): for the transport
 *
 * Joins the others. Errors: RP_TRANSPORT_ERROR_*, RP_SERVERS_ERROR_LOST
 */
RpServers *rp_servers_new(const RpTransportOps *ops, gpointer place,
                          const RpServersOptions *options,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Leaves: waits for the others to come here too, unless something has failed. */
void rp_servers_free(RpServers *servers);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpServers, rp_servers_free)

guint rp_servers_rank(const RpServers *servers);
guint rp_servers_count(const RpServers *servers);
/* "server 1 (node7)" */
const char *rp_servers_name(const RpServers *servers, guint rank);

/**
 * rp_servers_exchange:
 * @sends, @receives: to and from others; blocks of one server in the order in which the other has
 *   them, with the same bytes
 *
 * Errors: RP_SERVERS_ERROR_LOST and _FAILED, naming the server, now and of every call that follows
 */
gboolean rp_servers_exchange(RpServers *servers, RpServersChannel channel,
                             const RpServersBlock *sends, guint n_sends,
                             const RpServersBlock *receives, guint n_receives,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Each server's part of @all goes to all others: bytes [offsets[r], offsets[r + 1]) are those of
 * server r. Errors: as above */
gboolean rp_servers_gather(RpServers *servers, RpServersChannel channel, void *all,
                           const gsize *offsets, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same where each server has @bytes_each of @all, in order of ranks. Errors: as above */
gboolean rp_servers_gather_each(RpServers *servers, RpServersChannel channel, void *all,
                                gsize bytes_each, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same of texts that may differ in length: (transfer full) (array length=count): in order of
 * ranks. Errors: as above */
GStrv rp_servers_gather_texts(RpServers *servers, RpServersChannel channel, const char *text,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Waits until all servers have come here. Errors: as above */
gboolean rp_servers_barrier(RpServers *servers, RpServersChannel channel,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_servers_check_same:
 * @what: "the model"
 * @text: a hash, or lines, of which the first that differs is reported
 *
 * Errors: RP_SERVERS_ERROR_DIFFERS, on all servers the same: the first server whose @text is not
 *   that of server 0, with both
 */
gboolean rp_servers_check_same(RpServers *servers, const char *what, const char *text,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_servers_tell_problem:
 * @problem: (transfer full) (nullable): of this server
 * @domain, @code: for problems of others
 *
 * All call it once they know that one of them has a problem; they continue. Returns: %FALSE
 * Errors: @problem, or that of the first server with one, behind its name; those of an exchange
 */
gboolean rp_servers_tell_problem(RpServers *servers, RpServersChannel channel, GError *problem,
                                 GQuark domain, int code, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Emulates a slower network from now on: no more bytes leave this server in a second; 0: no
 * limit. */
void rp_servers_emulate(RpServers *servers, double bytes_per_s);

/* This server fails: it reports the reason to the others, within two seconds; every exchange
 * fails. */
void rp_servers_fail(RpServers *servers, const char *why);

/* Speed between servers while all send to all. */
typedef struct {
    double bytes_per_s; /* bytes that leave a server; as many arrive there */
    gint64 latency_ns;  /* latency of a message to one other server, before its bytes */
} RpServersSpeed;

/**
 * rp_servers_measure:
 * @most_bytes: that a server has for this, and that leave it at once; on slow networks fewer
 * @all: (out): [count]: medians, as each server sees them
 *
 * Errors: as rp_servers_exchange()
 */
gboolean rp_servers_measure(RpServers *servers, gsize most_bytes, RpServersSpeed *all,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The lowest rate and the longest latency of @n servers, as all wait for the slowest. */
RpServersSpeed rp_servers_slowest(const RpServersSpeed *all, guint n);

/* After rp_servers_fail(): why server @rank said that it failed, or another did; %NULL: it said nothing. */
const char *rp_servers_said(const RpServers *servers, guint rank);
