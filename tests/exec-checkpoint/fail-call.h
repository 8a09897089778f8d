/**
 * One system call of a child fails: the N-th that deals with files.
 *
 * The child is stopped in front of each call (ptrace); the chosen one is replaced by none, and its
 * result by an error. So also the calls are met that libraries make among themselves.
 */
#pragma once

#include <glib.h>

typedef struct {
    guint nth;       /* from 1; 0 = none fails */
    int number;      /* errno */
    gboolean onward; /* and all such calls after it, as on a disk that is full or broken */
} RpFailure;

typedef enum {
    RP_FAIL_EXITED,     /* @code: the child's exit code */
    RP_FAIL_SIGNALLED,  /* @code: the signal */
    RP_FAIL_NOT_ALLOWED /* ptrace, or a processor that this is not written for */
} RpFailEnd;

typedef struct {
    RpFailEnd end;
    int code;
    guint calls;      /* calls that deal with files */
    const char *name; /* name of the first that failed; %NULL: the child ended before the N-th */
} RpFailOutcome;

/* Runs @work(@data) in a child, on one processor; its result is the exit code. */
RpFailOutcome rp_fail_call(const RpFailure *failure, int (*work)(gpointer data), gpointer data);
