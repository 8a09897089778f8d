/*
 * Times of a stream. One run in front keeps the device busy while the next ones are issued, so that
 * the device never waits:
 *
 *   stream   |part 0|part 1|e0|part 0|e1|part 1|e2|part 0|e3| ...
 *             not timed        e1-e0     e2-e1
 */
#include "exec/cuda/probe.h"

#include <math.h>
#include <string.h>

#include "core/base/units.h"
#include "exec/cuda/kernels/kernels.h"
#include "exec/cuda/runtime/split.h"

#define N_EVENTS (RP_PROBE_MAX_PARTS * RP_PROBE_MAX_REPEATS + 1)
#define WARM_UP_SECONDS 1.4 /* a card comes down to the clocks that its power limit allows */
/* Device memory that a plan leaves free for streams, events, losses, the driver and other
 * programs. */
#define RP_CUDA_MARGIN_BYTES (160 * RP_MIB)
#define MOST_PINNED_BYTES (8 * RP_MIB) /* of uploads */
#define SWING_SECONDS 2.5              /* they swing about that, a second up and down on an H200 */

typedef struct {
    RpProbe base;
    RpRuntimeGpu gpu;
    RpCudaDeviceInfo info;
    RpRuntimeStream *stream;
    RpKernelStream *kernels;
    RpRuntimeEvent *events[N_EVENTS];
    void *pinned; /* buffer that copies go through */
    gsize pinned_bytes;
    RpRuntimeStream *fetches; /* from the first fetch on */
    RpRuntimeEvent *issued, *fetched[RP_PROBE_BUFFERS];
} CudaProbe;

static void
probe_free(RpProbe *probe)
{
    CudaProbe *cuda = (CudaProbe *)probe;

    for (guint i = 0; i < probe->n_beside; i++)
        probe_free(probe->beside[i]);
    g_free(probe->beside);
    if (cuda->stream != NULL)
        (void)rp_runtime_use(&cuda->gpu, NULL);
    for (guint i = 0; i < N_EVENTS; i++)
        rp_runtime_event_free(cuda->events[i]);
    if (cuda->pinned != NULL)
        rp_runtime_give_pinned(cuda->pinned);
    for (guint b = 0; b < RP_PROBE_BUFFERS; b++)
        rp_runtime_event_free(cuda->fetched[b]);
    rp_runtime_event_free(cuda->issued);
    rp_runtime_stream_free(cuda->fetches);
    rp_cuda_stream_free(cuda->kernels);
    rp_runtime_stream_free(cuda->stream);
    g_free(cuda);
}

static void *
take(RpProbe *probe, gsize bytes, GError **error)
{
    const CudaProbe *cuda = (const CudaProbe *)probe;
    void *memory = NULL;

    if (!rp_runtime_use(&cuda->gpu, error) ||
        !rp_runtime_take(&cuda->gpu, MAX(bytes, 1), &memory, error))
        return NULL;
    if (rp_runtime_clear(&cuda->gpu, memory, MAX(bytes, 1), error))
        return memory;
    rp_runtime_give(memory);
    return NULL;
}

static void
give(RpProbe *probe, void *memory)
{
    rp_runtime_give(memory);
}

/* Pinned memory for copies of up to @bytes. */
static gboolean
take_pinned(CudaProbe *cuda, gsize bytes, GError **error)
{
    if (cuda->pinned_bytes >= bytes)
        return TRUE;
    if (cuda->pinned != NULL)
        rp_runtime_give_pinned(g_steal_pointer(&cuda->pinned));
    cuda->pinned_bytes = 0;
    if (!rp_runtime_take_pinned(&cuda->gpu, bytes, &cuda->pinned, error))
        return FALSE;
    cuda->pinned_bytes = bytes;
    return TRUE;
}

/* By pieces through pinned memory, in the probe's own stream: other threads may use the device, too. */
static gboolean
upload(RpProbe *probe, void *to, const void *from, gsize bytes, GError **error)
{
    CudaProbe *cuda = (CudaProbe *)probe;

    if (!rp_runtime_use(&cuda->gpu, error) ||
        !take_pinned(cuda, MIN(bytes, MOST_PINNED_BYTES), error))
        return FALSE;
    for (gsize first = 0; first < bytes; first += MOST_PINNED_BYTES) {
        const gsize some = MIN(MOST_PINNED_BYTES, bytes - first);

        memcpy(cuda->pinned, (const guint8 *)from + first, some);
        if (!rp_runtime_copy(&cuda->gpu, (guint8 *)to + first, cuda->pinned, some, TRUE,
                             cuda->stream, error) ||
            !rp_runtime_stream_finish(&cuda->gpu, cuda->stream, error))
            return FALSE;
    }
    return TRUE;
}

static gboolean
download(RpProbe *probe, void *to, const void *from, gsize bytes, GError **error)
{
    CudaProbe *cuda = (CudaProbe *)probe;

    if (!rp_runtime_use(&cuda->gpu, error) || !take_pinned(cuda, bytes, error) ||
        !rp_runtime_copy(&cuda->gpu, cuda->pinned, from, bytes, FALSE, cuda->stream, error) ||
        !rp_runtime_stream_finish(&cuda->gpu, cuda->stream, error) ||
        !rp_cuda_kernels()->check(cuda->kernels, error))
        return FALSE;
    memcpy(to, cuda->pinned, bytes);
    return TRUE;
}

static void *
take_host(RpProbe *probe, gsize bytes, GError **error)
{
    const CudaProbe *cuda = (const CudaProbe *)probe;
    void *memory = NULL;

    return rp_runtime_use(&cuda->gpu, error) &&
                   rp_runtime_take_pinned(&cuda->gpu, bytes, &memory, error)
               ? memory
               : NULL;
}

static gboolean
open_fetches(CudaProbe *cuda, GError **error)
{
    gboolean good =
        cuda->fetches != NULL || (rp_runtime_event_new(&cuda->gpu, FALSE, &cuda->issued, error) &&
                                  rp_runtime_stream_new(&cuda->gpu, FALSE, &cuda->fetches, error));

    for (guint b = 0; good && b < RP_PROBE_BUFFERS; b++)
        good = cuda->fetched[b] != NULL ||
               rp_runtime_event_new(&cuda->gpu, FALSE, &cuda->fetched[b], error);
    return good;
}

static gboolean
fetch(RpProbe *probe, guint buffer, void *to, const void *from, gsize bytes, GError **error)
{
    CudaProbe *cuda = (CudaProbe *)probe;

    return rp_runtime_use(&cuda->gpu, error) && open_fetches(cuda, error) &&
           rp_runtime_record(&cuda->gpu, cuda->issued, cuda->stream, error) &&
           rp_runtime_wait(&cuda->gpu, cuda->fetches, cuda->issued, FALSE, error) &&
           rp_runtime_copy(&cuda->gpu, to, from, bytes, TRUE, cuda->fetches, error) &&
           rp_runtime_record(&cuda->gpu, cuda->fetched[buffer], cuda->fetches, error);
}

static gboolean
await(RpProbe *probe, guint buffer, GError **error)
{
    const CudaProbe *cuda = (const CudaProbe *)probe;

    return rp_runtime_use(&cuda->gpu, error) &&
           rp_runtime_wait(&cuda->gpu, cuda->stream, cuda->fetched[buffer], FALSE, error);
}

static RpKernelStream *
stream(RpProbe *probe)
{
    return ((const CudaProbe *)probe)->kernels;
}

static gboolean
measure_links(RpProbe *probe, RpMeasurer *measurer, RpProfile *profile, GError **error)
{
    return rp_cuda_measure_links(probe, ((CudaProbe *)probe)->stream, measurer, profile, error);
}

/* Returns: whether all that the parts issued could be issued, and ran */
static gboolean
run_parts(const CudaProbe *cuda, const RpProbePart *parts, guint n_parts, guint repeats,
          gpointer data, GError **error)
{
    const guint n = n_parts * repeats;

    for (guint p = 0; p < n_parts; p++)
        parts[p](data);
    if (!rp_runtime_record(&cuda->gpu, cuda->events[0], cuda->stream, error))
        return FALSE;
    for (guint i = 0; i < n; i++) {
        parts[i % n_parts](data);
        if (!rp_runtime_record(&cuda->gpu, cuda->events[i + 1], cuda->stream, error))
            return FALSE;
    }
    return rp_runtime_stream_finish(&cuda->gpu, cuda->stream, error) &&
           rp_cuda_kernels()->check(cuda->kernels, error);
}

static gboolean
time_parts(RpProbe *probe, const RpProbePart *parts, guint n_parts, guint repeats, gpointer data,
           gint64 *ns, GError **error)
{
    const CudaProbe *cuda = (const CudaProbe *)probe;

    g_return_val_if_fail(n_parts <= RP_PROBE_MAX_PARTS && repeats <= RP_PROBE_MAX_REPEATS, FALSE);

    if (!rp_runtime_use(&cuda->gpu, error) ||
        !run_parts(cuda, parts, n_parts, repeats, data, error)) {
        /* @data's memory is about to be freed */
        (void)rp_runtime_stream_finish(&cuda->gpu, cuda->stream, NULL);
        return FALSE;
    }
    for (guint i = 0; i < n_parts * repeats; i++) {
        double elapsed_ns;

        if (!rp_runtime_elapsed_ns(&cuda->gpu, cuda->events[i], cuda->events[i + 1], &elapsed_ns,
                                   error))
            return FALSE;
        ns[i] = llround(elapsed_ns);
    }
    return TRUE;
}

/* Finds the free bytes of the device that has least. Kernels will take as much of the others as
 * they took of this one since the probe was made, as CUDA loads kernels when they first run. */
static guint64
find_least_free(const CudaProbe *cuda, guint devices)
{
    RpCudaDeviceInfo info;
    guint64 least = cuda->info.free_bytes, kernels;

    if (rp_cuda_device_info(cuda->gpu.index, &info, NULL))
        least = MIN(least, info.free_bytes);
    kernels = cuda->info.free_bytes - least;
    for (guint g = 0; g < MIN(devices, rp_cuda_device_count()); g++)
        if (g != cuda->gpu.index && rp_cuda_device_info(g, &info, NULL))
            least = MIN(least, info.free_bytes - MIN(kernels, info.free_bytes));
    (void)rp_runtime_use(&cuda->gpu, NULL);
    return least;
}

/* A plan may use all memory that is free beside the context, the libraries and all kernels that
 * have run, less a margin and the targets of a head, which stand beside its arena. */
static void
describe(RpProbe *probe, RpProfile *profile)
{
    const CudaProbe *cuda = (const CudaProbe *)probe;
    const guint64 free_bytes = find_least_free(cuda, profile->gpus);
    const guint64 other_bytes =
        RP_CUDA_MARGIN_BYTES + 2 * rp_profile_micro_batch_tokens(profile) * sizeof(gint32);

    rp_profile_take(&profile->device, g_utf8_make_valid(cuda->info.name, -1));
    profile->gpu_memory_bytes = MAX(free_bytes, other_bytes + 1) - other_bytes;
}

static gpointer
record(RpProbe *probe, RpProbePart part, gpointer data, GError **error)
{
    const CudaProbe *cuda = (const CudaProbe *)probe;

    if (!rp_runtime_use(&cuda->gpu, error))
        return NULL;
    return rp_cuda_stream_record(cuda->kernels, part, data, error);
}

static gboolean
replay(RpProbe *probe, gpointer recording, GError **error)
{
    const CudaProbe *cuda = (const CudaProbe *)probe;

    return rp_runtime_use(&cuda->gpu, error) &&
           rp_cuda_stream_replay(cuda->kernels, recording, error);
}

static void
forget(RpProbe *probe, gpointer recording)
{
    rp_cuda_stream_forget(recording);
}

static const RpProbeOps ops = {
    .name = "cuda",
    .most_repeats = RP_PROBE_MAX_REPEATS,
    .warm_up_seconds = WARM_UP_SECONDS,
    .swing_seconds = SWING_SECONDS,
    .n_link_measures = RP_CUDA_LINK_MEASURES,
    .free = probe_free,
    .take = take,
    .give = give,
    .upload = upload,
    .download = download,
    .stream = stream,
    .time = time_parts,
    .describe = describe,
    .measure_links = measure_links,
    .begin_copies = rp_cuda_begin_copies,
    .end_copies = rp_cuda_end_copies,
    .record = record,
    .replay = replay,
    .forget = forget,
    .take_pinned = take_host,
    .give_pinned = rp_runtime_give_pinned,
    .fetch = fetch,
    .await = await,
};

static gboolean
open_probe(CudaProbe *cuda, GError **error)
{
    if (!rp_cuda_device_info(cuda->gpu.index, &cuda->info, error) ||
        !rp_runtime_use(&cuda->gpu, error) ||
        !rp_runtime_stream_new(&cuda->gpu, FALSE, &cuda->stream, error))
        return FALSE;
    cuda->kernels = rp_cuda_stream_new(cuda->gpu.physical, cuda->stream, error);
    if (cuda->kernels == NULL)
        return FALSE;
    for (guint i = 0; i < N_EVENTS; i++)
        if (!rp_runtime_event_new(&cuda->gpu, TRUE, &cuda->events[i], error))
            return FALSE;
    return rp_cuda_device_info(cuda->gpu.index, &cuda->info, error); /* free now */
}

static RpProbe *
new_probe(guint device, GError **error)
{
    CudaProbe *cuda = g_new0(CudaProbe, 1);

    cuda->base.ops = &ops;
    cuda->gpu = (RpRuntimeGpu){.index = device, .physical = (int)device};
    if (open_probe(cuda, error))
        return &cuda->base;
    probe_free(&cuda->base);
    return NULL;
}

RpProbe *
rp_cuda_probe_new(guint device, GError **error)
{
    const guint parts = (guint)rp_cuda_parts_per_card(), first = device / parts * parts;
    RpProbe *probe = new_probe(device, error);

    for (guint d = first; probe != NULL && d < first + parts; d++) {
        RpProbe *other = d != device ? new_probe(d, error) : NULL;

        if (other != NULL) {
            probe->beside = g_renew(RpProbe *, probe->beside, probe->n_beside + 1);
            probe->beside[probe->n_beside++] = other;
        } else if (d != device) {
            probe_free(g_steal_pointer(&probe));
        }
    }
    return probe;
}
