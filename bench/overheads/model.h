/* The real engine and the real CUDA backend on a tiny model, whose backend is watched: its table of
 * operations is replaced by one that counts and times them. */
#pragma once

#include <stdatomic.h>

#include "bench/overheads/overheads.h"
#include "exec/cuda/backend-private.h"
#include "exec/cuda/runtime/check.h"
#include "exec/train/trainer.h"

#define RP_OVERHEADS_WARM_UP 5 /* iterations: matmul plans are chosen, arrays grow */
#define RP_OVERHEADS_MOST_SAMPLES (1 << 17)

typedef enum { OP_LAUNCH, OP_COPY, OP_RECORD, OP_WAIT, N_OPS } RpOverheadsOp;

typedef struct {
    const RpBackendOps *real;
    RpBackendOps table; /* in its place */
    RpDeviceOps devices;
    RpBackend *backend;
    const RpPlan *plan;
    gboolean timing;
    _Atomic guint n[N_OPS];
    _Atomic gint64 launch_ns; /* processor time of all launches */
    guint32 *samples[N_OPS];  /* [RP_OVERHEADS_MOST_SAMPLES] ns */
    _Atomic gint64 host_cpu_ns[RP_HOST_LANES];
    _Atomic guint64 n_host_tasks;
} RpOverheadsWatch;

/* Only one exists at a time, because operations get only the backend. */
extern RpOverheadsWatch rp_overheads_watch;

extern const char *const rp_overheads_op_names[N_OPS];

typedef struct {
    guint gpus;
    gboolean async;
    RpConsistency consistency;
    gboolean keep_trace;
    gboolean timing;
} RpOverheadsRun;

typedef struct {
    char *directory;
    RpModel config;
    RpSafetensors *file;
    RpWeights *weights;
    RpTrainer *trainer;
    RpTokenBatch *batch;
} RpOverheadsModel;

/* Opens the model and runs the warm-up. Also after it has failed: rp_overheads_close(). */
gboolean rp_overheads_open(RpOverheadsModel *tiny, const RpOverheadsRun *options, GError **error);
void rp_overheads_close(RpOverheadsModel *tiny);

gboolean rp_overheads_step(RpOverheadsModel *tiny, GError **error);
/* Each step by itself: no queue of a GPU is ever full. */
gboolean rp_overheads_steps_apart(RpOverheadsModel *tiny, guint steps, GError **error);
