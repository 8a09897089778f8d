/* The end of a process that a failed GPU may hold on to. */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "cli/cli.h"

static gboolean leaves;

static void
leave(int signal)
{
    _exit(RP_EXIT_FAILED);
}

void
rp_cli_leave(void)
{
    leaves = TRUE;
}

gboolean
rp_cli_leaves(void)
{
    return leaves;
}

void
rp_cli_leave_within(guint seconds)
{
    const struct sigaction action = {.sa_handler = leave};

    (void)fflush(NULL);
    if (seconds > 0)
        (void)sigaction(SIGALRM, &action, NULL);
    (void)alarm(seconds);
}
