#include "tests/exec-checkpoint/fail-call.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__x86_64__)

#define NOT_ALLOWED 99
#define MMAP_DESCRIPTOR(registers) ((int)(registers).r8)

/* Calls that deal with files. Memory, threads, signals and time are not here. */
static const struct {
    long number;
    const char *name;
} calls[] = {
    {SYS_open, "open"},           {SYS_openat, "openat"},       {SYS_close, "close"},
    {SYS_read, "read"},           {SYS_pread64, "pread"},       {SYS_write, "write"},
    {SYS_pwrite64, "pwrite"},     {SYS_writev, "writev"},       {SYS_fsync, "fsync"},
    {SYS_fdatasync, "fdatasync"}, {SYS_rename, "rename"},       {SYS_renameat, "renameat"},
    {SYS_renameat2, "renameat2"}, {SYS_getdents64, "getdents"}, {SYS_link, "link"},
    {SYS_unlink, "unlink"},       {SYS_unlinkat, "unlinkat"},   {SYS_rmdir, "rmdir"},
    {SYS_mkdir, "mkdir"},         {SYS_mkdirat, "mkdirat"},     {SYS_ftruncate, "ftruncate"},
    {SYS_fallocate, "fallocate"}, {SYS_mmap, "mmap"},           {SYS_stat, "stat"},
    {SYS_lstat, "lstat"},         {SYS_fstat, "fstat"},         {SYS_newfstatat, "fstatat"},
    {SYS_statfs, "statfs"},       {SYS_fstatfs, "fstatfs"},     {SYS_lseek, "lseek"},
    {SYS_access, "access"},       {SYS_chmod, "chmod"},         {SYS_fchmod, "fchmod"},
};

static const char *
name_of(const struct user_regs_struct *registers)
{
    for (gsize i = 0; i < G_N_ELEMENTS(calls); i++)
        if ((long)registers->orig_rax == calls[i].number)
            /* only calls on files are to fail */
            return calls[i].number == SYS_mmap && MMAP_DESCRIPTOR(*registers) < 0 ? NULL
                                                                                  : calls[i].name;
    return NULL;
}

static void
run_child(int (*work)(gpointer), gpointer data)
{
    cpu_set_t one;

    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    /* one thread does all, so that calls have an order */
    if (sched_setaffinity(0, sizeof one, &one) != 0 || ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
        _exit(NOT_ALLOWED);
    raise(SIGSTOP);
    _exit(work(data));
}

/* At the entry of a call: whether it is to fail; then it is one that the kernel does not know. */
static gboolean
enter(pid_t child, const RpFailure *failure, RpFailOutcome *outcome)
{
    struct user_regs_struct registers;

    if (ptrace(PTRACE_GETREGS, child, NULL, &registers) != 0)
        return FALSE;
    const char *name = name_of(&registers);
    if (name == NULL)
        return FALSE;
    outcome->calls++;
    if (failure->nth == 0 ||
        (failure->onward ? outcome->calls < failure->nth : outcome->calls != failure->nth))
        return FALSE;
    registers.orig_rax = (unsigned long long)-1;
    if (ptrace(PTRACE_SETREGS, child, NULL, &registers) != 0)
        return FALSE;
    if (outcome->name == NULL)
        outcome->name = name;
    return TRUE;
}

static void
leave(pid_t child, int number)
{
    struct user_regs_struct registers;

    if (ptrace(PTRACE_GETREGS, child, NULL, &registers) != 0)
        return;
    registers.rax = (unsigned long long)-(long long)number;
    (void)ptrace(PTRACE_SETREGS, child, NULL, &registers);
}

static RpFailOutcome
end_of(int status, RpFailOutcome outcome)
{
    if (WIFSIGNALED(status)) {
        outcome.end = RP_FAIL_SIGNALLED;
        outcome.code = WTERMSIG(status);
    } else {
        outcome.code = WEXITSTATUS(status);
        outcome.end = outcome.code == NOT_ALLOWED ? RP_FAIL_NOT_ALLOWED : RP_FAIL_EXITED;
    }
    return outcome;
}

RpFailOutcome
rp_fail_call(const RpFailure *failure, int (*work)(gpointer data), gpointer data)
{
    RpFailOutcome outcome = {.end = RP_FAIL_NOT_ALLOWED};
    gboolean inside = FALSE;
    gboolean failing = FALSE;
    int status = 0;
    int signal_number = 0;
    pid_t child = fork();

    if (child == 0)
        run_child(work, data);
    if (child < 0 || waitpid(child, &status, 0) != child)
        return outcome;
    if (WIFSTOPPED(status))
        (void)ptrace(PTRACE_SETOPTIONS, child, NULL,
                     (void *)(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL));
    while (WIFSTOPPED(status)) {
        if (ptrace(PTRACE_SYSCALL, child, NULL, (void *)(gintptr)signal_number) != 0 ||
            waitpid(child, &status, 0) != child)
            return outcome;
        signal_number = 0;
        if (!WIFSTOPPED(status))
            break;
        if (WSTOPSIG(status) != (SIGTRAP | 0x80)) {
            signal_number = WSTOPSIG(status);
            continue;
        }
        inside = !inside;
        if (inside)
            failing = enter(child, failure, &outcome);
        else if (failing)
            leave(child, failure->number);
    }
    return end_of(status, outcome);
}

#else

RpFailOutcome
rp_fail_call(const RpFailure *failure, int (*work)(gpointer data), gpointer data)
{
    return (RpFailOutcome){.end = RP_FAIL_NOT_ALLOWED};
}

#endif
