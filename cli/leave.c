/* The end of a process that a failed GPU may hold on to, or whose file is gone. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
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

/* ---- files that are cut short while they are mapped ---- */

/* One line of /proc/self/maps: START-END PERMISSIONS OFFSET DEVICE INODE PATH. It is read in a signal's
 * handler, where neither stdio nor malloc() may be used. */
typedef struct {
    char text[4608];
    gsize length;
} MapLine;

static guint64
read_hex(const char **at)
{
    guint64 value = 0;

    for (; g_ascii_isxdigit(**at); ++*at)
        value = value * 16 + (guint64)g_ascii_xdigit_value(**at);
    return value;
}

/* Whether @address is of the mapping of a file. @path, @byte: (out): of the file */
static gboolean
is_mapped_by(MapLine *line, guint64 address, char **path, guint64 *byte)
{
    const char *at = line->text;
    const guint64 start = read_hex(&at);
    const guint64 end = *at++ == '-' ? read_hex(&at) : 0;

    *path = strchr(line->text, '/');
    if (address < start || address >= end || *path == NULL || *at != ' ')
        return FALSE;
    at += strlen(" r--p ");
    *byte = read_hex(&at) + (address - start);
    for (char *p = *path; *p != '\0'; p++) /* a terminal obeys control characters */
        if (g_ascii_iscntrl(*p))
            *p = '?';
    return TRUE;
}

static gboolean
find_file(guint64 address, MapLine *line, char **path, guint64 *byte)
{
    const int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    gboolean found = FALSE;
    char piece[1024];
    gssize n;

    while (maps >= 0 && !found && (n = read(maps, piece, sizeof piece)) > 0)
        for (gssize i = 0; i < n && !found; i++) {
            if (piece[i] != '\n') {
                line->text[line->length] = piece[i];
                line->length += line->length + 1 < sizeof line->text;
                continue;
            }
            line->text[line->length] = '\0';
            line->length = 0;
            found = is_mapped_by(line, address, path, byte);
        }
    if (maps >= 0)
        (void)close(maps);
    return found;
}

static void
put(const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) < 0)
        return; /* nobody is there to read it */
}

static void
lose_file(int number, siginfo_t *info, void *context)
{
    static MapLine line; /* the first thread that comes here ends the process */
    static gint entered;
    guint64 byte = 0;
    char *path = NULL, digits[24];
    gsize n = sizeof digits;

    (void)context;
    if (!g_atomic_int_compare_and_exchange(&entered, 0, 1))
        for (;;)
            (void)pause();
    if (!find_file((guint64)(guintptr)info->si_addr, &line, &path, &byte)) {
        (void)signal(number, SIG_DFL); /* it comes again */
        return;
    }
    digits[--n] = '\0';
    do
        digits[--n] = (char)('0' + byte % 10);
    while ((byte /= 10) > 0);
    put("roundpipe: ");
    put(path);
    put(": byte ");
    put(digits + n);
    put(" cannot be read: the file was cut short while it was read, or its disk failed; put the "
        "file "
        "back and start again\n");
    _exit(RP_EXIT_FAILED);
}

void
rp_cli_catch_lost_files(void)
{
    struct sigaction action = {.sa_sigaction = lose_file, .sa_flags = SA_SIGINFO};

    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGBUS, &action, NULL);
}
