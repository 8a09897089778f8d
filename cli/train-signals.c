/*
 * roundpipe train: signals.
 *
 *   SIGUSR1           save: from the command's start to its end
 *   SIGINT, SIGTERM   stop after the step: while there are steps; before and after as without us
 */
#include "cli/train.h"

#include <signal.h>
#include <stdatomic.h>

/* Lock-free: handlers run on any thread. */
static atomic_int stop_signal;
static atomic_int save_signal;

static const int stop_numbers[2] = {SIGINT, SIGTERM};
static struct sigaction before[G_N_ELEMENTS(stop_numbers)];

static void
note_signal(int number)
{
    if (number == SIGUSR1)
        save_signal = 1;
    else
        stop_signal = number;
}

/* @flags: besides SA_RESTART */
static void
catch_signal(int number, int flags, struct sigaction *old)
{
    struct sigaction action = {.sa_handler = note_signal, .sa_flags = (int)SA_RESTART | flags};

    sigemptyset(&action.sa_mask);
    (void)sigaction(number, &action, old);
}

void
rp_train_catch_save(void)
{
    save_signal = 0;
    catch_signal(SIGUSR1, 0, NULL);
}

void
rp_train_catch_stop(void)
{
    stop_signal = 0;
    for (guint i = 0; i < G_N_ELEMENTS(stop_numbers); i++)
        catch_signal(stop_numbers[i], stop_numbers[i] == SIGINT ? (int)SA_RESETHAND : 0,
                     &before[i]);
}

void
rp_train_release_stop(void)
{
    for (guint i = 0; i < G_N_ELEMENTS(stop_numbers); i++)
        (void)sigaction(stop_numbers[i], &before[i], NULL);
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
