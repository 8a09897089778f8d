/*
 * CUDA's calls on the host, while their stream has work before them, and events on the device:
 *
 *   one stream     gate |k|k|k|k| ...                    a kernel after the other
 *   as tasks       gate r|k|r r|k|r r|k|r ...            an event before and after each
 *   two streams    gate |k|r    w|k|r    ...             each waits for the other's last one
 *                          w|k|r    w|k|r
 *
 * All is issued before the gate opens: what is left is the device's time.
 */
#include "bench/overheads/overheads.h"

#include "exec/cuda/base/launch.h"
#include "exec/cuda/kernels/kernels.h"
#include "exec/cuda/runtime/check.h"
#include "exec/cuda/runtime/device.h"

#define CALLS 200  /* calls of one kind behind a gate: a stream holds about a thousand */
#define ROUNDS 10  /* rounds of CALLS */
#define KERNELS 64 /* kernels of a chain; even */
#define CHAINS 40
#define WARM_UP 3
#define SCRATCH 4096 /* bytes */
#define GATE_NS (2 * G_GINT64_CONSTANT(1000000000))

/* ---- the gate ---- */

static void CUDART_CB
hold(void *data)
{
    RpOverheadsGate *gate = data;
    const struct timespec nap = {.tv_nsec = 20000};
    const gint64 end_ns = rp_clock_ns() + GATE_NS;

    while (!atomic_load(&gate->open) && rp_clock_ns() < end_ns)
        (void)nanosleep(&nap, NULL);
}

cudaError_t
rp_overheads_gate_issue(RpOverheadsGate *gate, cudaStream_t stream)
{
    atomic_store(&gate->open, 0);
    return cudaLaunchHostFunc(stream, hold, gate);
}

cudaError_t
rp_overheads_gate_open(RpOverheadsGate *gate, cudaStream_t stream)
{
    atomic_store(&gate->open, 1);
    return cudaStreamSynchronize(stream);
}

/* ---- streams ---- */

typedef struct {
    int device;
    cudaStream_t stream;
    void *memory; /* ROOM bytes of the device */
    cudaEvent_t events[2 * KERNELS];
} Side;

typedef struct {
    Side sides[3]; /* two streams of GPU 0, one of GPU 1 */
    guint n_sides;
    void *pinned; /* ROOM bytes */
    cudaEvent_t first, last;
} Rig;

static cudaError_t
launch(const Side *side)
{
    return rp_cuda_fill(&(RpFillArgs){RP_DTYPE_FP32, 1, side->memory, 0}, side->stream);
}

static gboolean
open_side(Side *side, int device, GError **error)
{
    side->device = device;
    if (!rp_cuda_ok(cudaSetDevice(device), "cudaSetDevice", error) ||
        !rp_cuda_ok(cudaStreamCreateWithFlags(&side->stream, cudaStreamNonBlocking),
                    "cudaStreamCreate", error) ||
        !rp_cuda_ok(cudaMalloc(&side->memory, SCRATCH), "cudaMalloc", error))
        return FALSE;
    for (guint i = 0; i < G_N_ELEMENTS(side->events); i++)
        if (!rp_cuda_ok(cudaEventCreate(&side->events[i]), "cudaEventCreate", error))
            return FALSE;
    /* code is loaded at the first launch, which must not stand behind a gate */
    return rp_cuda_ok(launch(side), "a kernel", error) &&
           rp_cuda_ok(cudaStreamSynchronize(side->stream), "a kernel", error);
}

static void
close_side(Side *side)
{
    (void)cudaSetDevice(side->device);
    if (side->stream != NULL)
        (void)cudaStreamSynchronize(side->stream);
    for (guint i = 0; i < G_N_ELEMENTS(side->events) && side->events[i] != NULL; i++)
        (void)cudaEventDestroy(side->events[i]);
    (void)cudaFree(side->memory);
    if (side->stream != NULL)
        (void)cudaStreamDestroy(side->stream);
}

static gboolean
open_rig(Rig *rig, guint gpus, GError **error)
{
    rig->n_sides = gpus > 1 ? 3 : 2;
    for (guint i = rig->n_sides; i-- > 0;)
        if (!open_side(&rig->sides[i], i == 2 ? 1 : 0, error))
            return FALSE;
    /* GPU 0 is current now */
    return rp_cuda_ok(cudaEventCreate(&rig->first), "cudaEventCreate", error) &&
           rp_cuda_ok(cudaEventCreate(&rig->last), "cudaEventCreate", error) &&
           rp_cuda_ok(cudaHostAlloc(&rig->pinned, SCRATCH, cudaHostAllocPortable), "cudaHostAlloc",
                      error);
}

static void
close_rig(Rig *rig)
{
    for (guint i = rig->n_sides; i-- > 0;)
        close_side(&rig->sides[i]);
    if (rig->first != NULL)
        (void)cudaEventDestroy(rig->first);
    if (rig->last != NULL)
        (void)cudaEventDestroy(rig->last);
    if (rig->pinned != NULL)
        (void)cudaFreeHost(rig->pinned);
    (void)cudaGetLastError(); /* clears the error of a part that failed */
}

/* ---- calls ---- */

typedef enum {
    CALL_CLOCK,
    CALL_RECORD,
    CALL_WAIT,
    CALL_WAIT_OTHER,
    CALL_QUERY,
    CALL_LAUNCH,
    CALL_COPY,
    CALL_SWITCH,
    N_CALLS
} Call;

static const char *const call_names[N_CALLS] = {
    "the clock: in every row below",
    "cudaEventRecord",
    "cudaStreamWaitEvent, event of this GPU",
    "cudaStreamWaitEvent, event of another GPU",
    "cudaEventQuery, not yet happened",
    "launch of a kernel",
    "cudaMemcpyAsync, 4 KiB up",
    "cudaSetDevice to another GPU",
};

/* @side->events[0] waits behind a gate of its own. */
static cudaError_t
call(const Rig *rig, Call what, guint i)
{
    const Side *side = &rig->sides[0];
    cudaError_t status;

    switch (what) {
    case CALL_RECORD:
        return cudaEventRecord(side->events[1 + i % KERNELS], side->stream);
    case CALL_WAIT:
        return cudaStreamWaitEvent(side->stream, rig->sides[1].events[0], 0);
    case CALL_WAIT_OTHER:
        return cudaStreamWaitEvent(side->stream, rig->sides[2].events[0], 0);
    case CALL_QUERY:
        status = cudaEventQuery(rig->sides[1].events[0]);
        return status == cudaErrorNotReady ? cudaSuccess : status;
    case CALL_LAUNCH:
        return launch(side);
    case CALL_COPY:
        return cudaMemcpyAsync(side->memory, rig->pinned, SCRATCH, cudaMemcpyHostToDevice,
                               side->stream);
    case CALL_SWITCH:
        return cudaSetDevice(i % 2 == 0 ? 1 : 0);
    default:
        return cudaSuccess;
    }
}

static gboolean
time_calls(const Rig *rig, Call what, GArray *values, GError **error)
{
    cudaError_t status = cudaSuccess;

    for (guint i = 0; i < CALLS && status == cudaSuccess; i++) {
        const gint64 start_ns = rp_clock_ns();

        status = call(rig, what, i);
        rp_overheads_note(values, (double)(rp_clock_ns() - start_ns));
    }
    (void)cudaGetLastError(); /* "not ready" of the query */
    return rp_cuda_ok(status, call_names[what], error);
}

/* Each side begins with a gate; behind those of the other sides, an event that is waited for. */
static gboolean
close_gates(Rig *rig, RpOverheadsGate *gates, GError **error)
{
    for (guint s = rig->n_sides; s-- > 0;) {
        Side *side = &rig->sides[s];

        if (!rp_cuda_ok(cudaSetDevice(side->device), "cudaSetDevice", error) ||
            !rp_cuda_ok(rp_overheads_gate_issue(&gates[s], side->stream), "cudaLaunchHostFunc",
                        error) ||
            !rp_cuda_ok(cudaEventRecord(side->events[0], side->stream), "cudaEventRecord", error))
            return FALSE;
    }
    return TRUE;
}

static gboolean
open_gates(Rig *rig, RpOverheadsGate *gates, GError **error)
{
    gboolean done = TRUE;

    for (guint s = 0; s < rig->n_sides; s++)
        atomic_store(&gates[s].open, 1);
    for (guint s = rig->n_sides; s-- > 0;)
        done = rp_cuda_ok(cudaStreamSynchronize(rig->sides[s].stream), "cudaStreamSynchronize",
                          done ? error : NULL) &&
               done;
    return done;
}

static gboolean
measure_call(const RpOverheads *overheads, Rig *rig, Call what, GError **error)
{
    g_autoptr(GArray) values = rp_overheads_values();

    for (guint round = 0; round <= ROUNDS; round++) {
        RpOverheadsGate gates[3] = {{0}};
        const gboolean closed = close_gates(rig, gates, error);
        const gboolean called = closed && time_calls(rig, what, values, error);

        if (!open_gates(rig, gates, called ? error : NULL) || !called)
            return FALSE;
        if (round == 0)
            g_array_set_size(values, 0);
    }
    rp_overheads_add(overheads, call_names[what], "ns", values, NULL);
    return TRUE;
}

gboolean
rp_overheads_calls(const RpOverheads *overheads, GError **error)
{
    Rig rig = {.n_sides = 0};
    gboolean done = open_rig(&rig, overheads->gpus, error);

    for (Call what = CALL_CLOCK; done && what < N_CALLS; what++)
        if (rig.n_sides > 2 || (what != CALL_WAIT_OTHER && what != CALL_SWITCH))
            done = measure_call(overheads, &rig, what, error);
    close_rig(&rig);
    return done;
}

/* ---- chains ---- */

/* One link of a chain on @side, after the link before on @before (or NULL). @i: of KERNELS */
static cudaError_t
add_kernel(Side *side, const Side *before, gboolean as_task, guint i)
{
    cudaError_t status = cudaSetDevice(side->device);

    if (status == cudaSuccess && before != NULL && i > 0)
        status = cudaStreamWaitEvent(side->stream, before->events[i - 1], 0);
    if (status == cudaSuccess && as_task)
        status = cudaEventRecord(side->events[KERNELS + i], side->stream);
    if (status == cudaSuccess)
        status = launch(side);
    if (status == cudaSuccess && (as_task || before != NULL))
        status = cudaEventRecord(side->events[i], side->stream);
    return status;
}

/* Kernels in turn on @a and @b, or all on @a if @b is NULL. */
static cudaError_t
add_chain(Side *a, Side *b, gboolean as_task)
{
    cudaError_t status = cudaSuccess;

    for (guint i = 0; i < KERNELS && status == cudaSuccess; i++) {
        const gboolean odd = i % 2 == 1;

        status = b == NULL ? add_kernel(a, NULL, as_task, i)
                           : add_kernel(odd ? b : a, odd ? a : b, as_task, i);
    }
    if (status == cudaSuccess && b != NULL)
        status = cudaStreamWaitEvent(a->stream, b->events[KERNELS - 1], 0);
    return status;
}

/* us per kernel */
static gboolean
time_chain(const Rig *rig, Side *a, Side *b, gboolean as_task, double *us, GError **error)
{
    RpOverheadsGate gate = {0};
    float elapsed_ms = 0;
    cudaError_t status = rp_overheads_gate_issue(&gate, a->stream);

    if (status == cudaSuccess)
        status = cudaEventRecord(rig->first, a->stream);
    if (status == cudaSuccess)
        status = add_chain(a, b, as_task);
    if (cudaSetDevice(a->device) == cudaSuccess && status == cudaSuccess)
        status = cudaEventRecord(rig->last, a->stream);
    const cudaError_t ended = rp_overheads_gate_open(&gate, a->stream);
    if (status == cudaSuccess)
        status = ended;
    if (status == cudaSuccess)
        status = cudaEventElapsedTime(&elapsed_ms, rig->first, rig->last);
    *us = 1e3 * (double)elapsed_ms / KERNELS;
    return rp_cuda_ok(status, "a chain of kernels", error);
}

/* Returns: the median, or -1 */
static double
measure_chain(const RpOverheads *overheads, const Rig *rig, const char *name, Side *a, Side *b,
              gboolean as_task, double base_us, GError **error)
{
    g_autoptr(GArray) values = rp_overheads_values();
    g_autofree char *note = NULL;

    for (guint i = 0; i < WARM_UP + CHAINS; i++) {
        double us;

        if (!time_chain(rig, a, b, as_task, &us, error))
            return -1;
        if (i >= WARM_UP)
            rp_overheads_note(values, us);
    }
    if (base_us > 0)
        note = g_strdup_printf("less %.2f of the first row: what it adds", base_us);
    return rp_overheads_add(overheads, name, "us", values, note);
}

gboolean
rp_overheads_events(const RpOverheads *overheads, GError **error)
{
    Rig rig = {.n_sides = 0};
    Side *a = &rig.sides[0], *b = &rig.sides[1], *c = &rig.sides[2];
    double base_us = -1;

    if (open_rig(&rig, overheads->gpus, error))
        base_us = measure_chain(overheads, &rig, "kernel after kernel, one stream", a, NULL, FALSE,
                                0, error);
    const gboolean done =
        base_us >= 0 &&
        measure_chain(overheads, &rig, "the same, an event before and after each", a, NULL, TRUE,
                      base_us, error) >= 0 &&
        measure_chain(overheads, &rig, "kernel, event, kernel in another stream", a, b, FALSE,
                      base_us, error) >= 0 &&
        (rig.n_sides < 3 || measure_chain(overheads, &rig, "kernel, event, kernel on another GPU",
                                          a, c, FALSE, base_us, error) >= 0);
    close_rig(&rig);
    return done;
}
