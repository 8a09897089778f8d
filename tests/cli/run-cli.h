/**
 * Runs the built `roundpipe` as a user would and keeps what it said.
 */
#pragma once

#include "tests/rp-test.h"

#include <gio/gio.h>

#include "tests/json-tree.h"

/* A program run to its end. */
typedef struct {
    int code; /* exit code; -1 = ended by a signal */
    char *out;
    char *err;
} RpCliRun;

void rp_cli_run_clear(RpCliRun *run);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpCliRun, rp_cli_run_clear)

/**
 * rp_cli_run:
 * @format: words as in a shell: `simulate @Q --schedule 1f1b`; @Q is the Qwen3-1.7B profile, @R the
 *   root of the sources, @T a directory of the test's own, @B its name without the path
 */
RpCliRun rp_cli_run(const char *format, ...) G_GNUC_PRINTF(1, 2);

/* The same by /bin/sh, where $ROUNDPIPE is the program. */
RpCliRun rp_cli_shell(const char *format, ...) G_GNUC_PRINTF(1, 2);

/* The same; fail unless they end well. */
void rp_cli_must_run(const char *format, ...) G_GNUC_PRINTF(1, 2);
void rp_cli_must_shell(const char *format, ...) G_GNUC_PRINTF(1, 2);

/* As rp_cli_must_run(). Returns: what was printed, as JSON. (transfer full) */
RpTree *rp_cli_run_json(const char *format, ...) G_GNUC_PRINTF(1, 2);

/**
 * rp_cli_assert_refused:
 * @words: what ran, for the message
 * @code: exit code: 2 for wrong usage, 1 for a file that is wrong (docs/cli.md)
 *
 * Fails unless @run ended with @code and said one line, with @part in it.
 */
void rp_cli_assert_refused(const RpCliRun *run, const char *words, int code, const char *part);
/* @line with the paths that @B, @Q, @R and @T stand for. (transfer full) */
char *rp_cli_expand(const char *line);

/* Runs every command of a section of tests/cli/messages.txt, which has the exit code and the one line of each. */
void rp_cli_must_refuse_all(const char *section);

/* Fails unless the exit code is 0. Returns: what was printed, as JSON. (transfer full) */
RpTree *rp_cli_json(const RpCliRun *run);

/* A member by its path, `bubble.fill` or `rows.3.schedule`; fails if it is missing. */
const RpTree *rp_cli_member(const RpTree *root, const char *path);
double rp_cli_number(const RpTree *root, const char *path);

/* @name in the directory @T; (transfer full) */
char *rp_cli_temporary(const char *name);
/* Writes @name in @T; fails if it cannot. */
void rp_cli_write(const char *name, const char *text);
/* Reads @name in @T; fails if it cannot. (transfer full) */
char *rp_cli_read(const char *name);
char *rp_cli_read_bytes(const char *name, gsize *length);
/* Group fixtures: make and remove @T. */
int rp_cli_setup(void **state);
int rp_cli_teardown(void **state);
