/**
 * Interface of the parts of bench-cuda-overheads. A part measures one thing by itself: it adds
 * rows, or fails with an error and leaves the others alone.
 */
#pragma once

#include <glib.h>
#include <stdatomic.h>
#include <stdio.h>

#include "exec/cuda/runtime/check.h"
#include "exec/system/clock.h"

typedef struct {
    FILE *csv;            /* or NULL */
    const char *part;     /* the part that runs */
    guint gpus;           /* GPUs of the machine; 0: only parts that need none run */
    guint64 pinned_bytes; /* bytes pinned at a time */
    const char *profiles; /* directory of qwen3-1.7b.json and qwen3-235b-a22b.json */
} RpOverheads;

/**
 * rp_overheads_add:
 * @values: (element-type double): one a repetition; sorted by this
 * @note: or NULL
 *
 * One row: n, p10, median, p90. Returns: the median
 */
double rp_overheads_add(const RpOverheads *overheads, const char *what, const char *unit,
                        GArray *values, const char *note);

static inline GArray *
rp_overheads_values(void)
{
    return g_array_new(FALSE, FALSE, sizeof(double));
}

static inline void
rp_overheads_note(GArray *values, double value)
{
    g_array_append_val(values, value);
}

/* windows.c; needs no GPU: planning with and without windows. */
gboolean rp_overheads_windows(const RpOverheads *overheads, GError **error);
/* events.c: the cost of CUDA's calls on the host, and of events on the device. */
gboolean rp_overheads_calls(const RpOverheads *overheads, GError **error);
gboolean rp_overheads_events(const RpOverheads *overheads, GError **error);
/* engine.c: engine and CUDA backend on a tiny model: dispatch, how the host learns of
 * events, and the optimizer's hand-over to devices. */
gboolean rp_overheads_dispatch(const RpOverheads *overheads, GError **error);
gboolean rp_overheads_waiting(const RpOverheads *overheads, GError **error);
gboolean rp_overheads_handover(const RpOverheads *overheads, GError **error);
/* copies.c: parameters beside activations; pinned memory. */
gboolean rp_overheads_upload(const RpOverheads *overheads, GError **error);
gboolean rp_overheads_pinned(const RpOverheads *overheads, GError **error);

/*
 * A gate in a stream: work issued behind it waits until the host opens it, so that the host's time
 * is not measured. It opens by itself after two seconds, should a call wait for the stream.
 */

typedef struct {
    _Atomic int open;
} RpOverheadsGate;

/* Closes it and issues it to @stream. */
cudaError_t rp_overheads_gate_issue(RpOverheadsGate *gate, cudaStream_t stream);
/* Opens it; waits for @stream. */
cudaError_t rp_overheads_gate_open(RpOverheadsGate *gate, cudaStream_t stream);
