/* Text for people: what a narrow terminal leaves out, and where colours are. */
#include "tests/cli/run-cli.h"

#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#define SHOWN "--gpus 8 --micro-batches 16 --schedule roundpipe"
#define COMPARE "compare llama-3.1-8b --schedules 1f1b,zb-v,roundpipe"
#define STAGES " --round 8 --forward-stages 7*4 --backward-stages 0,3*8,2*2"

static const char *const lines[] = {
    "models",
    "gpus",
    COMPARE,
    "simulate @Q " SHOWN " --async --fidelity full",
    "partition @Q " SHOWN STAGES,
    "verify @Q " SHOWN,
    "replay @Q --gpus 2 --micro-batches 4 --schedule 1f1b --seconds 0.2",
    "report --late @T/first.json @T/second.json",
    "plan --model qwen3-8b --gpu rtx4090 --gpus 4 --host-memory 144 --sequence 80000",
    "plan --model qwen3-8b --gpu rtx4090 --gpus 4 --host-memory 256",
    "train --keys",
};

static void
write_trace(const char *name, const char *options)
{
    rp_cli_must_run("simulate @Q " SHOWN STAGES " --fidelity full --trace @T/%s %s", name, options);
}

RP_TEST(fits_80_columns)
{
    write_trace("first.json", "");
    write_trace("second.json", "--recompute gated");
    for (gsize i = 0; i < G_N_ELEMENTS(lines); i++) {
        g_auto(RpCliRun) run = rp_cli_shell("COLUMNS=80 \"$ROUNDPIPE\" %s", lines[i]);
        g_auto(GStrv) rows = g_strsplit(run.out, "\n", -1);

        if (g_strv_length(rows) < 6)
            fail_msg("%s: %s%s", lines[i], run.out, run.err);
        for (char **row = rows; *row != NULL; row++)
            if (g_utf8_strlen(*row, -1) > 80)
                fail_msg("%s: %ld columns: %s", lines[i], g_utf8_strlen(*row, -1), *row);
    }
}

RP_TEST(names_the_columns_that_it_leaves_out)
{
    g_auto(RpCliRun) narrow = rp_cli_shell("COLUMNS=80 \"$ROUNDPIPE\" " COMPARE);
    g_auto(RpCliRun) wide = rp_cli_shell("COLUMNS=80 \"$ROUNDPIPE\" " COMPARE " --wide");
    g_auto(RpCliRun) pipe = rp_cli_shell("unset COLUMNS; \"$ROUNDPIPE\" " COMPARE);

    assert_non_null(strstr(narrow.out, "(left out: exposed, intra, drain, switch, fill"));
    assert_non_null(strstr(narrow.out, "iteration ms"));
    assert_null(strstr(narrow.out, "exposed  "));
    assert_non_null(strstr(wide.out, "  exposed  "));
    assert_null(strstr(wide.out, "left out"));
    assert_string_equal(wide.out, pipe.out);
}

/* Output of `roundpipe models` on a terminal of 100 columns. */
static char *
on_terminal(const char *name, const char *value)
{
    const struct winsize size = {.ws_row = 40, .ws_col = 100};
    GString *text = g_string_new(NULL);
    char bytes[4096];
    int terminal;
    pid_t child = forkpty(&terminal, NULL, NULL, &size);

    assert_true(child >= 0);
    if (child == 0) {
        (void)unsetenv("COLUMNS");
        (void)unsetenv("NO_COLOR");
        (void)setenv("TERM", "xterm", 1);
        (void)setenv(name, value, 1);
        (void)execl(g_getenv("ROUNDPIPE"), "roundpipe", "models", NULL);
        _exit(127);
    }
    for (ssize_t n; (n = read(terminal, bytes, sizeof bytes)) > 0;)
        g_string_append_len(text, bytes, n);
    (void)close(terminal);
    assert_int_equal(waitpid(child, NULL, 0), child);
    return g_string_free(text, FALSE);
}

RP_TEST(colours_a_terminal_that_wants_them)
{
    g_auto(RpCliRun) pipe = rp_cli_shell("TERM=xterm \"$ROUNDPIPE\" models");
    g_autofree char *coloured = on_terminal("LANG", "C.UTF-8");
    g_autofree char *refused = on_terminal("NO_COLOR", "1");
    g_autofree char *dumb = on_terminal("TERM", "dumb");

    assert_non_null(strstr(coloured, "\033[1m"));
    assert_non_null(strstr(coloured, "qwen3-0.6b"));
    assert_non_null(strstr(coloured, "left out"));
    assert_null(strchr(refused, '\033'));
    assert_non_null(strstr(refused, "qwen3-0.6b"));
    assert_null(strchr(dumb, '\033'));
    assert_null(strchr(pipe.out, '\033'));
}

RP_TEST_GROUP(rp_cli_setup, rp_cli_teardown)
