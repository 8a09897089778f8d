/*
 * Copies. A slot of eight micro-batches whose next parameters (200 MB) go up beside it:
 *
 *   alone     activation-up  |a0|a1|   |a2|     |a3|   ...       compute m waits for activation m,
 *             compute           |--0--||--1--||--2--| ...        activation m + 2 for compute m
 *   naive     activation-up  .............|a0|a1| ...            behind the block
 *             parameter-up   |-----block-----|
 *   windows   activation-up  |a0|a1|    |a2|     ...             chunk m follows activation m
 *             parameter-up      |c0|c1|    |c2|  ...
 *
 * And memory that is pinned: ours, and the plain ways.
 */
#include "bench/overheads/overheads.h"

#include <stdlib.h>

#include "core/plan/transfer.h"
#include "exec/cuda/base/launch.h"
#include "exec/cuda/host-arena.h"
#include "exec/cuda/kernels/kernels.h"
#include "exec/cuda/runtime/check.h"

#define MICRO_BATCHES 8
#define INPUTS 2 /* buffers */
#define FIRST_LAYER 1
#define N_LAYERS 2 /* blocks of Qwen3-1.7B: 200 MB */
#define COMPUTE_MS 2.
#define FILL_BYTES ((size_t)256 << 20)
#define SLOTS 30
#define WARM_UP 3

typedef enum { MODE_ALONE, MODE_NAIVE, MODE_WINDOWS, N_MODES } Mode;

static const char *const mode_names[N_MODES] = {"no parameters", "naive", "windows"};

typedef struct {
    cudaStream_t compute, activations, parameters;
    cudaEvent_t go;
    cudaEvent_t up[MICRO_BATCHES], done[MICRO_BATCHES];
    cudaEvent_t chunk_start[MICRO_BATCHES], chunk_end[MICRO_BATCHES];
    char *host, *device; /* parameters, then activations */
    float *fill;         /* FILL_BYTES: the memory that compute actions write */
    guint n_fills;       /* fills in an action */
    guint64 layer_bytes, parameter_bytes, activation_bytes;
    RpChunks whole, packed;
} Slot;

/* ---- set-up ---- */

static gboolean
open_streams(Slot *slot, GError **error)
{
    cudaStream_t *streams[] = {&slot->compute, &slot->activations, &slot->parameters};
    cudaEvent_t *events[] = {slot->up, slot->done, slot->chunk_start, slot->chunk_end};
    int least = 0, greatest = 0;

    if (!rp_cuda_ok(cudaSetDevice(0), "cudaSetDevice", error) ||
        !rp_cuda_ok(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                    "cudaDeviceGetStreamPriorityRange", error) ||
        !rp_cuda_ok(cudaEventCreate(&slot->go), "cudaEventCreate", error))
        return FALSE;
    for (guint i = 0; i < G_N_ELEMENTS(streams); i++)
        if (!rp_cuda_ok(cudaStreamCreateWithPriority(streams[i], cudaStreamNonBlocking,
                                                     i == 2 ? least : greatest),
                        "cudaStreamCreateWithPriority", error))
            return FALSE;
    for (guint i = 0; i < G_N_ELEMENTS(events); i++)
        for (guint m = 0; m < MICRO_BATCHES; m++)
            if (!rp_cuda_ok(cudaEventCreate(&events[i][m]), "cudaEventCreate", error))
                return FALSE;
    return TRUE;
}

static gboolean
open_memory(Slot *slot, GError **error)
{
    const size_t bytes = slot->parameter_bytes + INPUTS * slot->activation_bytes;

    return rp_cuda_ok(cudaHostAlloc((void **)&slot->host, bytes, cudaHostAllocPortable),
                      "cudaHostAlloc", error) &&
           rp_cuda_ok(cudaMalloc((void **)&slot->device, bytes), "cudaMalloc", error) &&
           rp_cuda_ok(cudaMalloc((void **)&slot->fill, FILL_BYTES), "cudaMalloc", error);
}

static cudaError_t
compute(const Slot *slot)
{
    cudaError_t status = cudaSuccess;

    for (guint i = 0; i < slot->n_fills && status == cudaSuccess; i++)
        status = rp_cuda_fill(
            &(RpFillArgs){RP_DTYPE_FP32, FILL_BYTES / sizeof(float), slot->fill, 0}, slot->compute);
    return status;
}

/* Number of fills that take COMPUTE_MS. */
static gboolean
calibrate(Slot *slot, GError **error)
{
    float ms = 0;
    cudaError_t status = cudaSuccess;

    slot->n_fills = 8;
    for (guint i = 0; i < 2 && status == cudaSuccess; i++) { /* the first warms up */
        status = cudaEventRecord(slot->go, slot->compute);
        if (status == cudaSuccess)
            status = compute(slot);
        if (status == cudaSuccess)
            status = cudaEventRecord(slot->done[0], slot->compute);
        if (status == cudaSuccess)
            status = cudaStreamSynchronize(slot->compute);
    }
    if (status == cudaSuccess)
        status = cudaEventElapsedTime(&ms, slot->go, slot->done[0]);
    if (!rp_cuda_ok(status, "a kernel", error))
        return FALSE;
    slot->n_fills = (guint)CLAMP(8 * COMPUTE_MS / MAX((double)ms, 1e-3), 1, 60);
    return TRUE;
}

static gboolean
open_slot(Slot *slot, const char *profiles, GError **error)
{
    const RpInterval layers = {FIRST_LAYER, N_LAYERS};
    g_autofree char *path = g_build_filename(profiles, "qwen3-1.7b.json", NULL);
    g_autoptr(RpProfile) profile = rp_profile_load(path, error);

    if (profile == NULL)
        return FALSE;
    slot->layer_bytes = profile->layers[FIRST_LAYER].parameter_bytes;
    slot->parameter_bytes = N_LAYERS * slot->layer_bytes;
    slot->activation_bytes = profile->layers[FIRST_LAYER].input_bytes;
    slot->whole = rp_chunks_pack(profile, layers, RP_CHUNKS_PARAMETERS, 1, 0);
    slot->packed = rp_chunks_pack(profile, layers, FALSE, MICRO_BATCHES, 0);
    return open_streams(slot, error) && open_memory(slot, error) && calibrate(slot, error);
}

static void
close_slot(Slot *slot)
{
    cudaStream_t streams[] = {slot->compute, slot->activations, slot->parameters};
    cudaEvent_t *events[] = {slot->up, slot->done, slot->chunk_start, slot->chunk_end};

    (void)cudaDeviceSynchronize();
    for (guint i = 0; i < G_N_ELEMENTS(streams); i++)
        if (streams[i] != NULL)
            (void)cudaStreamDestroy(streams[i]);
    for (guint i = 0; i < G_N_ELEMENTS(events); i++)
        for (guint m = 0; m < MICRO_BATCHES && events[i][m] != NULL; m++)
            (void)cudaEventDestroy(events[i][m]);
    if (slot->go != NULL)
        (void)cudaEventDestroy(slot->go);
    (void)cudaFree(slot->device);
    (void)cudaFree(slot->fill);
    if (slot->host != NULL)
        (void)cudaFreeHost(slot->host);
    rp_chunks_clear(&slot->whole);
    rp_chunks_clear(&slot->packed);
    (void)cudaGetLastError(); /* clears the error of a part that failed */
}

/* ---- a slot ---- */

static const RpChunks *
chunks_of(const Slot *slot, Mode mode)
{
    return mode == MODE_NAIVE ? &slot->whole : &slot->packed;
}

static cudaError_t
add_chunk(const Slot *slot, const RpChunks *chunks, guint c, cudaEvent_t after)
{
    cudaError_t status = cudaStreamWaitEvent(slot->parameters, after, 0);

    if (status == cudaSuccess)
        status = cudaEventRecord(slot->chunk_start[c], slot->parameters);
    for (guint i = chunks->first_segment[c];
         i < chunks->first_segment[c + 1] && status == cudaSuccess; i++) {
        const RpSegment *segment = &chunks->segments[i];
        const guint64 at = (segment->layer - FIRST_LAYER) * slot->layer_bytes + segment->offset;

        status = cudaMemcpyAsync(slot->device + at, slot->host + at, segment->bytes,
                                 cudaMemcpyHostToDevice, slot->parameters);
    }
    return status == cudaSuccess ? cudaEventRecord(slot->chunk_end[c], slot->parameters) : status;
}

/* When the buffer of micro-batch @m is free. */
static cudaEvent_t
ready_of(const Slot *slot, guint m)
{
    return m < INPUTS ? slot->go : slot->done[m - INPUTS];
}

static cudaError_t
add_micro_batch(const Slot *slot, guint m)
{
    const guint64 at = slot->parameter_bytes + m % INPUTS * slot->activation_bytes;
    cudaError_t status = cudaStreamWaitEvent(slot->activations, ready_of(slot, m), 0);

    if (status == cudaSuccess)
        status = cudaMemcpyAsync(slot->device + at, slot->host + at, slot->activation_bytes,
                                 cudaMemcpyHostToDevice, slot->activations);
    if (status == cudaSuccess)
        status = cudaEventRecord(slot->up[m], slot->activations);
    if (status == cudaSuccess)
        status = cudaStreamWaitEvent(slot->compute, slot->up[m], 0);
    if (status == cudaSuccess)
        status = compute(slot);
    return status == cudaSuccess ? cudaEventRecord(slot->done[m], slot->compute) : status;
}

static cudaError_t
add_slot(const Slot *slot, Mode mode)
{
    cudaError_t status = cudaEventRecord(slot->go, slot->compute);

    if (status == cudaSuccess && mode == MODE_NAIVE)
        status = add_chunk(slot, &slot->whole, 0, slot->go);
    for (guint m = 0; m < MICRO_BATCHES && status == cudaSuccess; m++) {
        status = add_micro_batch(slot, m);
        if (status == cudaSuccess && mode == MODE_WINDOWS && m < slot->packed.n_chunks)
            status = add_chunk(slot, &slot->packed, m, slot->up[m]);
    }
    return status;
}

static gboolean
run_slot(const Slot *slot, Mode mode, GError **error)
{
    RpOverheadsGate gate = {0};
    cudaError_t status = rp_overheads_gate_issue(&gate, slot->compute);

    if (status == cudaSuccess)
        status = add_slot(slot, mode);
    const cudaError_t opened = rp_overheads_gate_open(&gate, slot->compute);
    if (status == cudaSuccess)
        status = opened;
    if (status == cudaSuccess)
        status = cudaStreamSynchronize(slot->activations);
    if (status == cudaSuccess)
        status = cudaStreamSynchronize(slot->parameters);
    return rp_cuda_ok(status, "a slot with its copies", error);
}

typedef struct {
    GArray *worst_ms, *mean_ms, *slot_ms, *gb_per_s;
} Figures;

static gboolean
elapsed(cudaEvent_t start, cudaEvent_t end, double *ms, GError **error)
{
    float value = 0;

    if (!rp_cuda_ok(cudaEventElapsedTime(&value, start, end), "cudaEventElapsedTime", error))
        return FALSE;
    *ms = (double)value;
    return TRUE;
}

static gboolean
note_slot(const Slot *slot, Mode mode, const Figures *figures, GError **error)
{
    const RpChunks *chunks = chunks_of(slot, mode);
    double ms, worst_ms = 0, sum_ms = 0, parameters_ms = 0;

    for (guint m = 0; m < MICRO_BATCHES; m++) {
        if (!elapsed(ready_of(slot, m), slot->up[m], &ms, error))
            return FALSE;
        worst_ms = MAX(worst_ms, ms);
        sum_ms += ms;
    }
    for (guint c = 0; mode != MODE_ALONE && c < chunks->n_chunks; c++) {
        if (!elapsed(slot->chunk_start[c], slot->chunk_end[c], &ms, error))
            return FALSE;
        parameters_ms += ms;
    }
    if (!elapsed(slot->go, slot->done[MICRO_BATCHES - 1], &ms, error))
        return FALSE;
    rp_overheads_note(figures->worst_ms, worst_ms);
    rp_overheads_note(figures->mean_ms, sum_ms / MICRO_BATCHES);
    rp_overheads_note(figures->slot_ms, ms);
    if (parameters_ms > 0)
        rp_overheads_note(figures->gb_per_s, (double)slot->parameter_bytes / parameters_ms / 1e6);
    return TRUE;
}

static void
add_figures(const RpOverheads *overheads, const Slot *slot, Mode mode, const Figures *figures)
{
    const char *name = mode_names[mode];
    g_autofree char *worst = g_strdup_printf("%s: an activation, worst of %u", name, MICRO_BATCHES);
    g_autofree char *mean = g_strdup_printf("%s: an activation, mean of %u", name, MICRO_BATCHES);
    g_autofree char *whole = g_strdup_printf("%s: the slot", name);
    g_autofree char *rate = g_strdup_printf("%s: parameters, while they travel", name);
    g_autofree char *bytes =
        g_strdup_printf("%.1f MB, buffer free to copy done", (double)slot->activation_bytes / 1e6);
    g_autofree char *pace =
        g_strdup_printf("%u actions of about %.0f ms", MICRO_BATCHES, COMPUTE_MS);
    g_autofree char *chunks =
        g_strdup_printf("%.1f MB, chunks: %u", (double)slot->parameter_bytes / 1e6,
                        chunks_of(slot, mode)->n_chunks);

    rp_overheads_add(overheads, worst, "ms", figures->worst_ms, bytes);
    rp_overheads_add(overheads, mean, "ms", figures->mean_ms, NULL);
    rp_overheads_add(overheads, whole, "ms", figures->slot_ms, pace);
    if (mode != MODE_ALONE)
        rp_overheads_add(overheads, rate, "GB/s", figures->gb_per_s, chunks);
}

static gboolean
measure_mode(const RpOverheads *overheads, const Slot *slot, Mode mode, GError **error)
{
    g_autoptr(GArray) worst_ms = rp_overheads_values();
    g_autoptr(GArray) mean_ms = rp_overheads_values();
    g_autoptr(GArray) slot_ms = rp_overheads_values();
    g_autoptr(GArray) gb_per_s = rp_overheads_values();
    const Figures figures = {worst_ms, mean_ms, slot_ms, gb_per_s};

    for (guint i = 0; i < WARM_UP + SLOTS; i++)
        if (!run_slot(slot, mode, error) ||
            (i >= WARM_UP && !note_slot(slot, mode, &figures, error)))
            return FALSE;
    add_figures(overheads, slot, mode, &figures);
    return TRUE;
}

gboolean
rp_overheads_upload(const RpOverheads *overheads, GError **error)
{
    Slot slot = {.n_fills = 0};
    gboolean done = open_slot(&slot, overheads->profiles, error);

    for (Mode mode = MODE_ALONE; done && mode < N_MODES; mode++)
        done = measure_mode(overheads, &slot, mode, error);
    close_slot(&slot);
    return done;
}

/* ---- pinned memory ---- */

#define PINNED_RUNS 3
#define PINNED_BUDGET_NS                                                                           \
    (10 * G_GINT64_CONSTANT(1000000000)) /* limit for one kind of pinning; it runs once at least */

typedef enum { PIN_OURS, PIN_HOST_ALLOC, PIN_REGISTER, N_PINS } Pin;

static const char *const pin_names[N_PINS] = {
    "ours: touched and pinned by threads, huge pages",
    "cudaHostAlloc",
    "malloc and cudaHostRegister",
};

static gboolean
pin_ours(guint64 bytes, gint64 *ns, RpPinnedMemory *report, GError **error)
{
    const gint64 start_ns = rp_clock_ns();
    RpCudaHostArena *arena = rp_cuda_host_arena_new(bytes, NULL, 0, 0, NULL, NULL, error);
    gboolean done = arena != NULL && rp_cuda_host_arena_finish(arena, error);

    *ns = rp_clock_ns() - start_ns;
    if (done)
        *report = rp_cuda_host_arena_report(arena);
    rp_cuda_host_arena_free(arena);
    return done;
}

static gboolean
pin_by_cuda(guint64 bytes, gint64 *ns, GError **error)
{
    const gint64 start_ns = rp_clock_ns();
    void *memory = NULL;
    const gboolean done =
        rp_cuda_ok(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable), "cudaHostAlloc", error);

    *ns = rp_clock_ns() - start_ns;
    return done && rp_cuda_ok(cudaFreeHost(memory), "cudaFreeHost", error);
}

static gboolean
pin_by_register(guint64 bytes, gint64 *ns, GError **error)
{
    const gint64 start_ns = rp_clock_ns();
    void *memory = malloc(bytes);
    gboolean done;

    if (memory == NULL) {
        g_set_error(error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MEMORY,
                    "malloc: no %" G_GUINT64_FORMAT " bytes", bytes);
        return FALSE;
    }
    done = rp_cuda_ok(cudaHostRegister(memory, bytes, cudaHostRegisterPortable), "cudaHostRegister",
                      error);
    *ns = rp_clock_ns() - start_ns;
    done = done && rp_cuda_ok(cudaHostUnregister(memory), "cudaHostUnregister", error);
    free(memory);
    return done;
}

static gboolean
pin(Pin how, guint64 bytes, gint64 *ns, RpPinnedMemory *report, GError **error)
{
    return how == PIN_OURS         ? pin_ours(bytes, ns, report, error)
           : how == PIN_HOST_ALLOC ? pin_by_cuda(bytes, ns, error)
                                   : pin_by_register(bytes, ns, error);
}

static gboolean
measure_pin(const RpOverheads *overheads, Pin how, GError **error)
{
    const double per_100_gib = 100. * (1 << 30) / (double)overheads->pinned_bytes;
    const gint64 begin_ns = rp_clock_ns();
    g_autoptr(GArray) seconds = rp_overheads_values();
    g_autofree char *note = NULL;
    RpPinnedMemory report = {.threads = 1};

    for (guint i = 0; i < PINNED_RUNS && (i == 0 || rp_clock_ns() - begin_ns < PINNED_BUDGET_NS);
         i++) {
        gint64 ns = 0;

        if (!pin(how, overheads->pinned_bytes, &ns, &report, error))
            return FALSE;
        rp_overheads_note(seconds, (double)ns / 1e9 * per_100_gib);
    }
    note = how == PIN_OURS
               ? g_strdup_printf("%.1f GiB; %u threads, together %.2f s touching, %.2f s pinning",
                                 (double)overheads->pinned_bytes / (1 << 30), report.threads,
                                 report.touch_seconds, report.pin_seconds)
               : g_strdup_printf("%.1f GiB, untouched; one thread",
                                 (double)overheads->pinned_bytes / (1 << 30));
    rp_overheads_add(overheads, pin_names[how], "s/100GiB", seconds, note);
    return TRUE;
}

gboolean
rp_overheads_pinned(const RpOverheads *overheads, GError **error)
{
    if (!rp_cuda_ok(cudaSetDevice(0), "cudaSetDevice", error) ||
        !rp_cuda_ok(cudaFree(NULL), "waking the GPU up", error))
        return FALSE;
    for (Pin how = PIN_OURS; how < N_PINS; how++)
        if (!measure_pin(overheads, how, error))
            return FALSE;
    (void)cudaGetLastError();
    return TRUE;
}
