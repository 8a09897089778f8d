/**
 * A device's times on the host's clock. CUDA reports only how long after another event an event
 * happened, in float milliseconds; so a device has anchors, events whose host time was measured,
 * about one a second.
 *
 *   device time    d0 ------------ d1 ------------ d2          sums of elapsed times
 *   host time      h0 ------------ h1 ------------ h2          measured, each off by some µs
 *   shown          F0 ------------ F1 ------------ F2          continuous and rising
 *
 * The shown time continues at the rate of all anchors so far, and makes up for the error that the
 * last anchor found within one second. So no measurement shows as a jump: durations are
 * exact to their resolution and to the change of rate (some 1e-5), and clocks of devices and host
 * agree to the errors of the anchors. Only an error of more than a millisecond (a machine that was
 * suspended) jumps.
 *
 * Plain arithmetic; whoever uses it locks.
 */
#pragma once

#include <glib.h>

#define RP_CUDA_CLOCK_RING 256 /* anchors kept */
#define RP_CUDA_CLOCK_PERIOD_NS G_GINT64_CONSTANT(1000000000)

typedef struct {
    double device_ns;  /* since anchor 0 */
    double shown_ns;   /* host time since first_ns */
    double rate;       /* host nanoseconds in one of the device's */
    double pending_ns; /* to take up within the period */
} RpCudaAnchor;

typedef struct {
    guint64 n; /* anchors so far */
    gint64 first_ns;
    gint64 last_ns;        /* host time of the last anchor, as measured */
    gint64 worst_error_ns; /* the worst of all measurements */
    RpCudaAnchor anchors[RP_CUDA_CLOCK_RING];
} RpCudaClock;

/**
 * rp_cuda_clock_add:
 * @elapsed_ns: since the last anchor, by the device; not looked at for the first, nor after so long
 *   (16 s) that a float of milliseconds is coarser than the host's clock
 * @host_ns: when the new anchor happened, measured
 * @error_ns: by how much that may be off
 */
void rp_cuda_clock_add(RpCudaClock *clock, double elapsed_ns, gint64 host_ns, gint64 error_ns);

/* Oldest anchor that may be named (its event is not about to be recorded anew). */
guint64 rp_cuda_clock_oldest(const RpCudaClock *clock);

/* Host time of an event @elapsed_ns after anchor number @anchor, rp_cuda_clock_oldest() or later.
 */
gint64 rp_cuda_clock_host_ns(const RpCudaClock *clock, guint64 anchor, double elapsed_ns);
