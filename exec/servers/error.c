#include "exec/servers/servers.h"

G_DEFINE_QUARK(rp_transport_error, rp_transport_error)
G_DEFINE_QUARK(rp_servers_error, rp_servers_error)
