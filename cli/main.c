#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/config.h"
#include "core/base/quote.h"
#include "exec/cuda/runtime/device.h"

#define DECLARE(name) extern const RpCommand rp_command_##name;
#define ROW(name) &rp_command_##name,
RP_COMMANDS(DECLARE)
static const RpCommand *const commands[] = {RP_COMMANDS(ROW)};

static void
list_commands(FILE *stream, const char *heading, gboolean expert)
{
    fprintf(stream, "\n%s\n", heading);
    for (gsize i = 0; i < G_N_ELEMENTS(commands); i++)
        if (commands[i]->expert == expert)
            fprintf(stream, "  %-11s %s\n", commands[i]->name, commands[i]->summary);
}

static void
print_help(FILE *stream)
{
    fputs("Usage: roundpipe COMMAND [OPTION…] [ARGUMENT…]\n\n" RP_CLI_PURPOSE "\n", stream);
    list_commands(stream, "Commands:", FALSE);
    list_commands(stream, "Commands for experts:", TRUE);
    fputs("\n`roundpipe COMMAND --help` tells a command's options.\n"
          "Exit codes: 0 done, 1 failed, 2 wrong usage.\n",
          stream);
}

static int
unknown_command(const char *name)
{
    const char *names[G_N_ELEMENTS(commands) + 1] = {NULL};

    for (gsize i = 0; i < G_N_ELEMENTS(commands); i++)
        names[i] = commands[i]->name;
    const char *near = rp_nearest_name(name, names);
    if (near != NULL)
        fprintf(stderr, "roundpipe: no command \"%s\"; did you mean \"%s\"?\n", name, near);
    else
        fprintf(stderr, "roundpipe: no command \"%s\"; `roundpipe --help` lists them\n", name);
    return RP_EXIT_USAGE;
}

/* A closed standard stream would be handed to the next file that is opened. */
static void
secure_streams(void)
{
    signal(SIGPIPE, SIG_IGN); /* a reader that goes away is a write error */
    signal(SIGXFSZ, SIG_IGN); /* and so is a file that may not grow */
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) != fd)
            _exit(RP_EXIT_FAILED);
}

static void
print_version(void)
{
    const guint gpus = rp_cuda_device_count();
    const char *problem = rp_cuda_no_device_text();

    printf("roundpipe %s\nGPU code: %s\n", RP_VERSION, rp_cuda_built_text());
    if (!rp_cuda_built())
        return;
    if (gpus == 0)
        printf("GPUs: none: %s\n", problem != NULL ? problem : "CUDA finds no device");
    for (guint g = 0; g < gpus; g++) {
        g_autoptr(GError) error = NULL;
        RpCudaDeviceInfo info;

        if (rp_cuda_device_info(g, &info, &error))
            printf("GPU %u: %s, compute capability %u\n", g, info.name, info.sm);
        else
            printf("GPU %u: %s\n", g, error->message);
    }
}

static int
run_command(int argc, char **argv)
{
    static char help[] = "--help";

    if (argc < 2) {
        print_help(stderr);
        return RP_EXIT_USAGE;
    }
    if (strcmp(argv[1], "help") == 0 && argc > 2) { /* `help train` is `train --help` */
        argv[1] = argv[2];
        argv[2] = help;
    } else if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
               strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return RP_EXIT_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        print_version();
        return RP_EXIT_OK;
    }
    for (gsize i = 0; i < G_N_ELEMENTS(commands); i++)
        if (strcmp(argv[1], commands[i]->name) == 0)
            return rp_command_run(commands[i], argc - 1, argv + 1);
    return unknown_command(argv[1]);
}

int
main(int argc, char **argv)
{
    setlocale(LC_CTYPE, ""); /* words of the command line; numbers stay as in C */
    secure_streams();
    rp_cli_catch_lost_files();
    int code = run_command(argc, argv);
    errno = 0;
    if (fflush(stdout) != 0 || ferror(stdout)) {
        if (rp_cli_reader_left()) /* `| head` has seen enough */
            return code != RP_EXIT_OK ? code : RP_EXIT_PIPE;
        fprintf(stderr, "roundpipe: cannot write the results to standard output%s%s\n",
                errno != 0 ? ": " : "", errno != 0 ? g_strerror(errno) : "");
        code = code != RP_EXIT_OK ? code : RP_EXIT_FAILED;
    }
    if (rp_cli_leaves())
        _exit(code);
    return code;
}
