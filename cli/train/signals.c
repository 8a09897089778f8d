/*
 * roundpipe train: signals.
 *
 *   SIGUSR1    save: from the command's start to its end
 *   the table  stop after the step: while there are steps; before and after as without us
 *
 * A second SIGINT or SIGTERM ends the process at once, as without us: something may hang. SIGTERM
 * takes a second in between, for some programs (timeout) send it to a process and to its group. A
 * terminal that closes may send SIGHUP twice, and the limit of processor time sends SIGXCPU every
 * second: those never end a run that is saving.
 */
#include "cli/train/train.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_NS G_GINT64_CONSTANT(1000000000)

typedef struct {
    int number;
    gboolean twice;          /* the second ends the process */
    gboolean unless_ignored; /* stays ignored where it was: nohup */
    gint64 patience_ns;      /* after the first */
} StopSignal;

static const StopSignal stops[] = {
    {.number = SIGINT, .twice = TRUE},
    {.number = SIGTERM, .twice = TRUE, .patience_ns = PATIENCE_NS},
    {.number = SIGHUP, .unless_ignored = TRUE},
    {.number = SIGXCPU, .unless_ignored = TRUE},
};

/* Lock-free: handlers run on any thread. */
static atomic_int stop_signal;
static atomic_int save_signal;
static atomic_llong first_ns[G_N_ELEMENTS(stops)]; /* when each came first; 0: not yet */

/* The first signal prints a line of this: the step under way, with TOLD once it was printed: from
 * then on none begins. */
#define TOLD (1ULL << 63)
static atomic_ullong step_in_progress, step_saved;
static gboolean tells, terminal;

static struct sigaction before[G_N_ELEMENTS(stops)];

static long long
now_ns(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* may be called in a handler */
    return now.tv_sec * G_GINT64_CONSTANT(1000000000) + now.tv_nsec;
}

/* Ends the process as @number does without us, when the handler returns. */
static void
let_end(int number)
{
    struct sigaction action = {.sa_handler = SIG_DFL};

    sigemptyset(&action.sa_mask);
    (void)sigaction(number, &action, NULL);
    (void)raise(number);
}

/* ---- the line, of nothing that a handler may not call ---- */

typedef struct {
    char text[200];
    gsize length;
} Line;

static void
add(Line *line, const char *text)
{
    const gsize n = MIN(strlen(text), sizeof line->text - line->length);

    memcpy(line->text + line->length, text, n);
    line->length += n;
}

static void
add_step(Line *line, unsigned long long step)
{
    char digits[24];
    guint at = sizeof digits - 1;

    digits[at] = '\0';
    do {
        digits[--at] = (char)('0' + step % 10);
        step /= 10;
    } while (step > 0);
    add(line, digits + at);
}

/* At once, for the step may take minutes. @again: the same signal ends the run */
static void
tell_stop(gboolean again)
{
    const unsigned long long step = atomic_fetch_or(&step_in_progress, TOLD) & ~TOLD;
    const unsigned long long saved = step_saved;
    const int code = errno;
    Line line = {.length = 0};

    add(&line, terminal ? "\r\033[K" : "roundpipe train: note: ");
    add(&line, step > 0 ? "finishing step " : "stopping");
    if (step > 0) {
        add_step(&line, step);
        add(&line, ", then saving");
    }
    if (again) {
        add(&line, " (again: stop now, nothing ");
        add(&line, saved > 0 ? "saved since step " : "is saved");
        if (saved > 0)
            add_step(&line, saved);
        add(&line, ")");
    }
    add(&line, "\n");
    const gssize written = write(STDERR_FILENO, line.text, line.length);

    (void)written; /* of a terminal that is gone nobody reads */
    errno = code;
}

static void
note_stop(int number)
{
    const int earlier = atomic_exchange(&stop_signal, number);
    gboolean twice = FALSE;

    for (guint i = 0; i < G_N_ELEMENTS(stops); i++) {
        long long none = 0;

        if (stops[i].number != number)
            continue;
        twice = stops[i].twice;
        if (!atomic_compare_exchange_strong(&first_ns[i], &none, now_ns()) && stops[i].twice &&
            now_ns() - none >= stops[i].patience_ns)
            let_end(number);
    }
    if (tells && earlier == 0)
        tell_stop(twice);
}

static void
note_save(int number)
{
    save_signal = 1;
}

static void
catch_signal(int number, void (*handler)(int), struct sigaction *old)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = (int)SA_RESTART};

    sigemptyset(&action.sa_mask);
    (void)sigaction(number, &action, old);
}

void
rp_train_catch_save(void)
{
    save_signal = 0;
    catch_signal(SIGUSR1, note_save, NULL);
}

gboolean
rp_train_begin_step(gpointer user_data, guint64 step, guint64 saved)
{
    unsigned long long earlier = step_in_progress;

    step_saved = saved;
    return (earlier & TOLD) == 0 &&
           atomic_compare_exchange_strong(&step_in_progress, &earlier, (unsigned long long)step);
}

void
rp_train_catch_stop(gboolean with_words)
{
    tells = with_words;
    terminal = isatty(STDERR_FILENO) == 1;
    stop_signal = 0;
    step_in_progress = 0;
    for (guint i = 0; i < G_N_ELEMENTS(stops); i++) {
        first_ns[i] = 0;
        (void)sigaction(stops[i].number, NULL, &before[i]);
        if (!stops[i].unless_ignored || before[i].sa_handler != SIG_IGN)
            catch_signal(stops[i].number, note_stop, NULL);
    }
}

void
rp_train_release_stop(void)
{
    for (guint i = 0; i < G_N_ELEMENTS(stops); i++)
        (void)sigaction(stops[i].number, &before[i], NULL);
}

int
rp_train_stop_signal(void)
{
    return stop_signal;
}

gboolean
rp_train_take_save(void)
{
    return atomic_exchange(&save_signal, 0) != 0;
}
