/**
 * Servers that are threads of one process: a transport over queues, for tests.
 */
#pragma once

#include "exec/servers/servers.h"

typedef struct _ThreadsNet ThreadsNet;

ThreadsNet *threads_net_new(guint count);
void threads_net_free(ThreadsNet *net);

/* Place of server @rank, for rp_servers_new(). Owned by @net. */
gpointer threads_net_place(ThreadsNet *net, guint rank);
/* From now on nothing leaves server @rank, nor comes to it: it stands still. */
void threads_net_stop(ThreadsNet *net, guint rank);

/* Holds back messages of server @from to server @to on @channel until they are no longer held. */
void threads_net_hold(ThreadsNet *net, guint from, guint to, guint channel, gboolean held);

const RpTransportOps *threads_transport(void);

/* Calls @run on @count threads, each a server, and waits for all. @options: %NULL: the defaults */
typedef void (*ThreadsServer)(RpServers *servers, gpointer user_data);
void threads_run(ThreadsNet *net, guint count, const RpServersOptions *options, ThreadsServer run,
                 gpointer user_data);
