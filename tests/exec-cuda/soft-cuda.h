/**
 * A CUDA of threads: the part of the runtime that the backend calls, the kernel table of the host
 * behind streams, two devices. It shows the backend's order of things where there is no GPU: every
 * stream is a thread, so that a wait that is missing is a race (which the thread sanitizer sees).
 *
 *   stream     |copy|record|wait ..... |kernel|host function|
 *
 * A queue holds a fixed number of commands, and a thread that issues one more waits, for ever if
 * need be.
 *
 * It is strict: an asynchronous copy must lie in one piece of device memory and one piece of pinned
 * memory, memory that is pinned must have been touched, a stream and an event must be of one
 * device, and nothing may be left behind at the end.
 */
#pragma once

#include <glib.h>

/* The @n-th piece of asynchronous work from now on fails, and all of CUDA with it; 0: none does.
 * Forgets an earlier failure. */
void soft_cuda_fail_at(guint64 n);

/* The same with the work of one device, which then fails alone. @lose_events: its events never
 * happen, so that streams of other devices wait for ever; their data stay until the failure is
 * forgotten, and beyond. */
void soft_cuda_fail_device_at(guint device, guint64 n, gboolean lose_events);

/* From now on calls succeed for so long after a device has failed. */
void soft_cuda_tell_late(guint ns);

/* From now on a stream's queue holds @n commands (0: as many as at first), and a thread that issues
 * one more blocks. @hold: meanwhile the thread keeps the device's lock, as drivers do: no other
 * thread can issue or query. */
void soft_cuda_bound_queues(guint n, gboolean hold);
/* Threads that wait for space in a queue, or for such threads. */
guint soft_cuda_n_blocked(void);
/* When work failed, on the monotonic clock. */
gint64 soft_cuda_failed_ns(void);

/* Answer to requests for memory from now on. */
typedef enum { SOFT_CUDA_GIVES, SOFT_CUDA_IS_FULL, SOFT_CUDA_IS_BUSY } SoftCudaAnswer;
void soft_cuda_answer(SoftCudaAnswer answer);

/* From now on, asynchronous copies take so long, host functions ten times as long. */
void soft_cuda_delay(guint ns);

/* From now on host memory can be pinned @n times, then no more; G_MAXUINT: always. */
void soft_cuda_allow_pins(guint n);
/* Number of attempts since then, and bytes of the first. */
guint soft_cuda_n_pins(void);
guint64 soft_cuda_first_pin(void);
/* Whether a pin that was refused is still there for the calling thread's next call to find. */
gboolean soft_cuda_error_is_left(void);

/* Whether the driver has no green contexts, soft-driver.c. */
void soft_cuda_age_driver(gboolean old);

/* Streams, events and memory that nobody has freed. */
guint soft_cuda_n_left(void);
