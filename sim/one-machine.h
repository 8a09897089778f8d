/**
 * One machine and jobs that need it, each after others elsewhere (head) and before others (tail).
 */
#pragma once

#include <glib.h>

/* A task's work on one resource. */
typedef struct {
    gint64 head_ns; /* before it can begin */
    gint64 work_ns;
    gint64 tail_ns; /* after its end */
} RpJob;

/**
 * rp_one_machine_ns:
 * @jobs: (array length=n): by head, ascending
 * @heap: room for as many
 *
 * The job with the longest tail first, others interrupted for it: nobody does better who may
 * interrupt. That is the largest, over all sets of jobs, of least head + sum of works + least tail.
 *
 * Returns: when the last tail is over; n log n
 * Source: Carlier, The one-machine sequencing problem, 1982, §2
 */
gint64 rp_one_machine_ns(const RpJob *jobs, gsize n, RpJob *heap);
