/*
 * A disk that takes as long as a test wants, by LD_PRELOAD: the first sync of a checkpoint's file
 * waits until a file has so many lines, and ends the process if it has not within a minute.
 *
 *   SYNC_GATE=FILE:LINES
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOOKS 6000
#define LOOK_US 10000
#define LATE 97 /* exit code */

static atomic_flag waited = ATOMIC_FLAG_INIT;

static int
of_checkpoint(int fd)
{
    char link[64], path[4096];
    ssize_t n;

    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    return strstr(path, "/.checkpoint-") != NULL;
}

static long
count_lines(const char *path)
{
    FILE *file = fopen(path, "re");
    long lines = 0;
    int c;

    while (file != NULL && (c = getc(file)) != EOF)
        lines += c == '\n';
    if (file != NULL)
        (void)fclose(file);
    return lines;
}

int fsync(int fd);

int
fsync(int fd)
{
    const char *gate = getenv("SYNC_GATE");
    const char *colon = gate != NULL ? strrchr(gate, ':') : NULL;

    if (colon != NULL && of_checkpoint(fd) && !atomic_flag_test_and_set(&waited)) {
        char *path = strndup(gate, (size_t)(colon - gate));
        long lines = strtol(colon + 1, NULL, 10);
        int looks = 0;

        while (count_lines(path) < lines && looks++ < LOOKS)
            (void)usleep(LOOK_US);
        free(path);
        if (looks > LOOKS)
            _exit(LATE);
    }
    return (int)syscall(SYS_fsync, fd);
}
