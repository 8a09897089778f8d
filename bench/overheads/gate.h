/**
 * A gate in a stream: work issued behind it waits until the host opens it, so that the host's time
 * is not measured. It opens by itself after two seconds, should a call wait for the stream.
 */
#pragma once

#include <glib.h>
#include <stdatomic.h>

#include "exec/cuda/runtime/check.h"

typedef struct {
    _Atomic int open;
} RpOverheadsGate;

/* Closes it and issues it to @stream. */
cudaError_t rp_overheads_gate_issue(RpOverheadsGate *gate, cudaStream_t stream);
/* Opens it; waits for @stream. */
cudaError_t rp_overheads_gate_open(RpOverheadsGate *gate, cudaStream_t stream);
