/**
 * Shared by the files of the servers' object.
 *
 *   servers.c    life, and the public functions
 *   measure.c    the speed between servers
 *   progress.c   the thread: messages, beats, silence
 */
#pragma once

#include <pthread.h>

#include "exec/servers/servers.h"
#include "exec/system/clock.h"

#define RP_SERVERS_BEATS RP_SERVERS_CHANNELS /* a channel of its own */
#define RP_SERVERS_TEXT 1024

/* A piece of a block. */
typedef struct {
    guint server;
    gboolean sent;
    guint8 *data;
    gsize bytes;
    RpTransportMessage *message; /* %NULL: not begun, or over */
    gint64 due_ns;               /* emulated: when it has left; 0: not known yet */
} RpServersPiece;

/* A call under way. The caller makes it and waits; the thread does the rest. */
typedef struct {
    GArray *pieces; /* (element-type RpServersPiece): in order */
    guint first;    /* first piece that is not over */
    gint64 start_ns;
    gboolean over;
    gboolean told; /* its slowness was reported */
} RpServersCall;

typedef enum {
    RP_SERVERS_BEAT_ALIVE,
    RP_SERVERS_BEAT_FAILED,    /* the text says why */
    RP_SERVERS_BEAT_PASSES_ON, /* another did */
    RP_SERVERS_BEAT_LEAVES
} RpServersBeatKind;

typedef struct {
    guint32 kind; /* RpServersBeatKind */
    gint32 code;  /* RpServersError */
    char text[RP_SERVERS_TEXT];
} RpServersBeat;

/* Another server. */
typedef struct {
    char *name;
    gint64 heard_ns;
    gboolean left; /* nothing more comes */
    RpServersBeat in;
    RpServersBeat out;
    RpTransportMessage *receiving;
    RpTransportMessage *sending;
} RpServersPeer;

struct _RpServers {
    const RpTransportOps *ops;
    gpointer place;
    gpointer transport;
    RpServersOptions options;
    guint rank, count;
    RpServersPeer *peers; /* [count] */
    gboolean started;     /* the thread */
    pthread_t thread;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under the lock */
    RpServersCall *calls[RP_SERVERS_CHANNELS];
    gboolean opened;
    GError *failure; /* failure of any server */
    char *why;       /* failure of this one */
    gboolean leaving;
    gboolean stopped;   /* nothing moves any more */
    double bytes_per_s; /* emulated; 0: no limit */

    /* the thread's */
    gint64 beat_ns; /* next beat */
    gint64 free_ns; /* emulated: when all pieces so far have left */
};

/* The thread. */
void *rp_servers_run(void *servers);
