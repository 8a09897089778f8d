/* A program for mpirun: the same exchanges over MPI. Exits 0 if all is well. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec/servers/transport.h"
#include "tests/exec-servers/exchanges.h"

static int
fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    fflush(stderr);
    _exit(1);
}

/* Server 1 fails by itself ("fails"), or is killed; the others print the message. */
static int
meet(RpServers *servers, const char *how)
{
    g_autoptr(GError) error = NULL;

    if (rp_servers_rank(servers) == 1 && strcmp(how, "fails") == 0)
        rp_servers_fail(servers, "no luck");
    if (rp_servers_rank(servers) == 1 && strcmp(how, "dies") == 0)
        abort();
    if (rp_servers_barrier(servers, RP_SERVERS_NETWORK, &error))
        return fail("the barrier held");
    return fail(error->message);
}

int
main(int argc, char **argv)
{
    const RpServersOptions options = {.silence_ns = 3 * G_GINT64_CONSTANT(1000000000)};
    g_autoptr(GError) error = NULL;
    g_autoptr(RpServers) servers = rp_servers_new(rp_mpi_module(), NULL, &options, &error);
    g_autofree char *wrong = NULL;

    if (servers == NULL)
        return fail(error->message);
    if (argc > 2 && rp_servers_count(servers) != (guint)atoi(argv[2]))
        return fail("not as many servers as were started");
    if (argc > 1 && strcmp(argv[1], "works") != 0)
        return meet(servers, argv[1]);
    wrong = exchanges_find_wrong(servers, 20000000);
    if (wrong != NULL) {
        rp_servers_fail(servers, wrong);
        return fail(wrong);
    }
    return 0;
}
