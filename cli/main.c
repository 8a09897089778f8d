#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/config.h"
#include "core/base/suggest.h"
#include "exec/cuda/runtime/device.h"
#include "exec/cuda/toolkit/toolkit.h"

static const RpCommand commands[] = {
    {"models", "list the models of the catalogue", rp_cmd_models},
    {"gpus", "list the GPUs of the catalogue", rp_cmd_gpus},
    {"plan", "what will happen if I train MODEL on N x GPU", rp_cmd_plan},
    {"simulate", "run one schedule in virtual time", rp_cmd_simulate},
    {"replay", "run one schedule for real; tasks only take their time", rp_cmd_replay},
    {"compare", "several schedules and profiles in one table", rp_cmd_compare},
    {"diff", "predicted beside measured: the tasks that differ most", rp_cmd_diff},
    {"partition", "divide a model into stages", rp_cmd_partition},
    {"verify", "prove that a plan is correct, or name the rule it breaks", rp_cmd_verify},
    {"export", "write a profile, a trace or a schedule for other tools", rp_cmd_export},
    {"init", "make a model with random weights", rp_cmd_init},
    {"profile", "measure a model's layers on this machine", rp_cmd_profile},
    {"train", "train a model as a run file says", rp_cmd_train},
    {"generate", "answer prompts of token ids with a trained model", rp_cmd_generate},
    {"figures", "make every figure that needs no GPU", rp_cmd_figures},
};

static void
print_help(FILE *stream)
{
    fputs("Usage: roundpipe COMMAND [OPTION…] [ARGUMENT…]\n\n"
          "Predicts how a model trains under pipeline schedules, RoundPipe first, and trains it."
          "\n\nCommands:\n",
          stream);
    for (gsize i = 0; i < G_N_ELEMENTS(commands); i++)
        fprintf(stream, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fputs("\n`roundpipe COMMAND --help` tells a command's options.\n"
          "Exit codes: 0 done, 1 failed, 2 wrong usage.\n",
          stream);
}

static int
unknown_command(const char *name)
{
    const char *names[G_N_ELEMENTS(commands) + 1] = {NULL};
    const char *near;

    for (gsize i = 0; i < G_N_ELEMENTS(commands); i++)
        names[i] = commands[i].name;
    near = rp_nearest_name(name, names);
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
    if (argc < 2) {
        print_help(stderr);
        return RP_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return RP_EXIT_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        print_version();
        return RP_EXIT_OK;
    }
    for (gsize i = 0; i < G_N_ELEMENTS(commands); i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    return unknown_command(argv[1]);
}

int
main(int argc, char **argv)
{
    int code;

    setlocale(LC_CTYPE, ""); /* words of the command line; numbers stay as in C */
    secure_streams();
    code = run_command(argc, argv);
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
