/*
 * Links of GPUs: pinned memory copied up and down, alone, in growing groups, and all at once. The
 * memory is a host arena, as a run has it: where it lies decides how fast several devices read it.
 * Each run copies 1 GiB a device and direction, in pieces that alternate between devices:
 *
 *   device 0   up    |chunk|chunk|chunk|chunk|
 *              down  |chunk|chunk|chunk|chunk|
 *   device 1   up    |chunk|chunk|chunk|chunk|       ... until all have arrived
 *
 * Layers are at work meanwhile, where there are some to measure: on an H200 copies beside them get 48 GB/s of the 55
 * that they have alone.
 *
 * A group that is slower than its devices alone shares a root complex. If all together are slower
 * than even that explains, host memory limits them.
 */
#include "exec/cuda/probe.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "core/base/units.h"
#include "exec/cuda/host-arena.h"
#include "exec/device/error.h"
#include "exec/system/memory-limit.h"

#define CHUNK_BYTES (256 * RP_MIB)
#define RUN_CHUNKS 4 /* chunks of a device and direction, and of those that memory is pinned for */
#define MEMORY_SHARE 8           /* part of the available memory */
#define MOST_HOST_BYTES (RP_GIB) /* bytes that processors copy */
#define MOST_GROUPS 6            /* sizes that are tried */
#define LIMITED 0.9              /* share of the sum of their speeds: slower ones share something */
#define SMALL_BYTES 64
#define SMALL_COPIES 64

G_STATIC_ASSERT(RP_CUDA_LINK_MEASURES == 8 + 2 * MOST_GROUPS);

enum { UP, DOWN, N_DIRECTIONS };

/* One direction of a device's link. */
typedef struct {
    RpRuntimeStream *stream;
    void *memory;
    guint8 *chunks; /* the first of n_chunks, pinned; the others a stride apart */
} Direction;

typedef struct {
    RpMeasurer *measurer;
    RpProbe *probe;
    RpRuntimeStream *stream; /* its */
    guint n_devices;
    guint n_chunks; /* chunks that a direction rotates through */
    /* bytes; directions' chunks alternate, in case memory differs from place to place */
    guint64 stride;
    RpCudaHostArena *arena;
    Direction (*directions)[N_DIRECTIONS];
    guint active; /* the first devices, which copy ... */
    guint first_direction, end_direction;
    GError *failure; /* the first; nothing is copied after it */
} Lines;

static gboolean
check(const Lines *lines, GError **error)
{
    if (lines->failure != NULL)
        g_propagate_error(error, g_error_copy(lines->failure));
    return lines->failure == NULL;
}

/* @stream: of @device */
static void
issue(Lines *lines, guint device, guint direction, guint chunk, gsize bytes,
      RpRuntimeStream *stream)
{
    const Direction *line = &lines->directions[device][direction];
    const RpRuntimeGpu gpu = {device, (int)device};
    void *host = line->chunks + chunk % lines->n_chunks * lines->stride;

    if (lines->failure == NULL)
        (void)rp_runtime_copy(&gpu, direction == UP ? line->memory : host,
                              direction == UP ? host : line->memory, bytes, direction == UP, stream,
                              &lines->failure);
}

static void
copy_all(gpointer data)
{
    Lines *lines = data;

    for (guint c = 0; c < RUN_CHUNKS; c++)
        for (guint d = 0; d < lines->active; d++)
            for (guint w = lines->first_direction; w < lines->end_direction; w++)
                issue(lines, d, w, c, CHUNK_BYTES, lines->directions[d][w].stream);
    for (guint d = 0; d < lines->active; d++)
        for (guint w = lines->first_direction; w < lines->end_direction; w++)
            (void)rp_runtime_stream_finish(&(RpRuntimeGpu){d, (int)d},
                                           lines->directions[d][w].stream,
                                           lines->failure == NULL ? &lines->failure : NULL);
}

/* Measures the rate of the first @n devices together, in the directions [@first_direction,
 * @end_direction). */
static gboolean
measure_rate(Lines *lines, guint n, guint first_direction, guint end_direction, double *bytes_per_s,
             GError **error)
{
    static const RpProbePart part[] = {copy_all};
    const double bytes = (double)CHUNK_BYTES * RUN_CHUNKS * n * (end_direction - first_direction);
    RpTimes times;

    lines->active = n;
    lines->first_direction = first_direction;
    lines->end_direction = end_direction;
    if (!rp_measurer_run(lines->measurer, NULL, part, 1, lines, &times, error) ||
        !check(lines, error))
        return FALSE;
    *bytes_per_s = rp_times_rate(&times, bytes);
    return TRUE;
}

/* ---- latency ---- */

static void
copy_small(Lines *lines, guint direction)
{
    for (guint i = 0; i < SMALL_COPIES; i++)
        issue(lines, 0, direction, 0, SMALL_BYTES, lines->stream);
}

static void
copy_small_up(gpointer data)
{
    copy_small(data, UP);
}

static void
copy_small_down(gpointer data)
{
    copy_small(data, DOWN);
}

static gboolean
measure_latency(Lines *lines, gint64 *latency_ns, GError **error)
{
    static const RpProbePart parts[] = {copy_small_up, copy_small_down};
    RpTimes times[G_N_ELEMENTS(parts)];

    if (!rp_measurer_run(lines->measurer, lines->probe, parts, G_N_ELEMENTS(parts), lines, times,
                         error) ||
        !check(lines, error))
        return FALSE;
    *latency_ns = MAX(times[UP].median_ns, times[DOWN].median_ns) / SMALL_COPIES;
    return TRUE;
}

/* ---- shared links ---- */

/* Sizes of groups: 2, 4, 8, ..., and all. Returns: the one after @n, 0 after the last */
static guint
next_group(const Lines *lines, guint n)
{
    return n == lines->n_devices ? 0 : MIN(2 * n, lines->n_devices);
}

/* The smallest group that is limited in a direction, if one is; or a larger one, if all together get no
 * more: these share that root as well. */
static gboolean
measure_roots(Lines *lines, RpLinks *links, GError **error)
{
    gboolean apart = FALSE;
    guint tried = 0;

    for (guint n = next_group(lines, 1); n > 0 && tried < MOST_GROUPS && !apart;
         n = next_group(lines, n), tried++) {
        const gboolean first = links->gpus_per_root == 0;
        double up, down;

        if (!measure_rate(lines, n, UP, UP + 1, &up, error) ||
            !measure_rate(lines, n, DOWN, DOWN + 1, &down, error))
            return FALSE;
        apart = !first && MIN(up, down) > links->root_bytes_per_s / LIMITED;
        if (first ? up < LIMITED * n * links->h2d_bytes_per_s ||
                        down < LIMITED * n * links->d2h_bytes_per_s
                  : !apart) {
            links->gpus_per_root = n;
            links->root_bytes_per_s = MIN(up, down);
        }
        if (n == lines->n_devices) {
            links->all_h2d_bytes_per_s = up;
            links->all_d2h_bytes_per_s = down;
        }
    }
    rp_measurer_skip(lines->measurer, 2 * (MOST_GROUPS - tried));
    return TRUE;
}

/* All devices in one direction, unless they were the last group. */
static gboolean
measure_all(Lines *lines, RpLinks *links, GError **error)
{
    const guint n = lines->n_devices;

    if (n == 1 || links->all_h2d_bytes_per_s > 0) {
        rp_measurer_skip(lines->measurer, 2);
        return TRUE;
    }
    return measure_rate(lines, n, UP, UP + 1, &links->all_h2d_bytes_per_s, error) &&
           measure_rate(lines, n, DOWN, DOWN + 1, &links->all_d2h_bytes_per_s, error);
}

/* All devices in both directions. */
static gboolean
measure_together(Lines *lines, RpLinks *links, double *bytes_per_s, GError **error)
{
    if (lines->n_devices == 1) {
        *bytes_per_s = links->both_bytes_per_s;
        rp_measurer_skip(lines->measurer, 1);
        return TRUE;
    }
    if (!measure_rate(lines, lines->n_devices, UP, N_DIRECTIONS, bytes_per_s, error))
        return FALSE;
    links->all_both_bytes_per_s = *bytes_per_s;
    return TRUE;
}

/* Rate of all devices in one direction if only their roots limited them. */
static double
expected(const Lines *lines, const RpLinks *links, double alone_bytes_per_s)
{
    const double devices = lines->n_devices * alone_bytes_per_s;

    if (links->gpus_per_root == 0)
        return devices;
    const double roots = (double)lines->n_devices / links->gpus_per_root;

    return MIN(devices, roots * links->root_bytes_per_s);
}

static gboolean
measure_host(Lines *lines, RpLinks *links, GError **error)
{
    const double sum = expected(lines, links, links->h2d_bytes_per_s) +
                       expected(lines, links, links->d2h_bytes_per_s);
    double together, copies;

    if (!measure_together(lines, links, &together, error) ||
        !rp_measurer_end_work(lines->measurer, error) ||
        !rp_measure_host_copies(lines->measurer, rp_measure_buffer_bytes(MOST_HOST_BYTES),
                                rp_usable_processors(), &copies, error))
        return FALSE;
    /* a processor reads and writes each byte that it copies */
    links->host_bytes_per_s = together < LIMITED * sum ? together : MAX(together, 2 * copies);
    return TRUE;
}

/* ---- memory ---- */

static gboolean
open_direction(Direction *line, guint device, GError **error)
{
    const RpRuntimeGpu gpu = {device, (int)device};

    /* chunks that come down later have been written before */
    return rp_runtime_stream_new(&gpu, FALSE, &line->stream, error) &&
           rp_runtime_take(&gpu, CHUNK_BYTES, &line->memory, error) &&
           rp_runtime_clear(&gpu, line->memory, CHUNK_BYTES, error);
}

/* A piece of the arena has whole chunks only: no copy reaches from one into the next. */
G_STATIC_ASSERT(RP_CUDA_PIECE_BYTES % CHUNK_BYTES == 0);

static gboolean
open_lines(Lines *lines, GError **error)
{
    const guint n_directions = lines->end_direction - lines->first_direction;

    lines->stride = lines->n_devices * n_directions * CHUNK_BYTES;
    lines->arena =
        rp_cuda_host_arena_new(lines->n_chunks * lines->stride, NULL, 0, 0, NULL, NULL, error);
    if (lines->arena == NULL || !rp_cuda_host_arena_finish(lines->arena, error))
        return FALSE;
    for (guint d = 0; d < lines->n_devices; d++) {
        if (!rp_runtime_use(&(RpRuntimeGpu){d, (int)d}, error))
            return FALSE;
        for (guint w = lines->first_direction; w < lines->end_direction; w++) {
            lines->directions[d][w].chunks =
                rp_cuda_host_arena_memory(lines->arena) +
                (d * n_directions + w - lines->first_direction) * CHUNK_BYTES;
            if (!open_direction(&lines->directions[d][w], d, error))
                return FALSE;
        }
    }
    return TRUE;
}

static void
close_lines(Lines *lines)
{
    for (guint d = 0; d < lines->n_devices; d++) {
        for (guint w = 0; w < N_DIRECTIONS; w++) {
            Direction *line = &lines->directions[d][w];

            if (line->stream != NULL)
                (void)rp_runtime_stream_finish(&(RpRuntimeGpu){d, (int)d}, line->stream, NULL);
            rp_runtime_stream_free(line->stream);
            rp_runtime_give(line->memory);
        }
    }
    rp_cuda_host_arena_free(lines->arena);
    g_free(lines->directions);
    g_clear_error(&lines->failure);
}

/* Prepares lines for the directions [@first_direction, @end_direction). */
static Lines
new_lines(guint n_devices, guint first_direction, guint end_direction)
{
    const guint64 chunks = rp_available_memory() / MEMORY_SHARE /
                           (n_devices * (end_direction - first_direction) * CHUNK_BYTES);

    return (Lines){.n_devices = n_devices,
                   .active = n_devices,
                   .first_direction = first_direction,
                   .end_direction = end_direction,
                   .n_chunks = (guint)CLAMP(chunks, 1, RUN_CHUNKS),
                   .directions = g_malloc0_n(n_devices, sizeof(Direction[N_DIRECTIONS]))};
}

gboolean
rp_cuda_measure_links(RpProbe *probe, RpRuntimeStream *stream, RpMeasurer *measurer,
                      RpProfile *profile, GError **error)
{
    RpLinks *links = &profile->links;
    Lines lines = new_lines(MAX(profile->gpus, 1), UP, N_DIRECTIONS);

    lines.measurer = measurer;
    lines.probe = probe;
    lines.stream = stream;
    const gboolean measured =
        open_lines(&lines, error) && measure_latency(&lines, &links->copy_latency_ns, error) &&
        rp_measurer_begin_work(measurer, probe, profile, error) &&
        measure_rate(&lines, 1, UP, UP + 1, &links->h2d_bytes_per_s, error) &&
        measure_rate(&lines, 1, DOWN, DOWN + 1, &links->d2h_bytes_per_s, error) &&
        measure_rate(&lines, 1, UP, N_DIRECTIONS, &links->both_bytes_per_s, error) &&
        measure_roots(&lines, links, error) && measure_all(&lines, links, error) &&
        measure_host(&lines, links, error);

    (void)rp_measurer_end_work(measurer, NULL); /* after a failure */
    close_lines(&lines);
    return measured;
}

/* ---- beside the optimizer ---- */

typedef struct {
    Lines lines;
    pthread_t thread;
    atomic_bool ending;
    /* the thread's, until it has ended */
    guint64 bytes;
    gint64 us;
} Load;

static void *
copy_until_ended(void *data)
{
    Load *load = data;
    Lines *lines = &load->lines;
    const gint64 begin_us = g_get_monotonic_time();

    while (!atomic_load(&load->ending) && lines->failure == NULL) {
        copy_all(lines);
        load->bytes += CHUNK_BYTES * RUN_CHUNKS * lines->active;
    }
    load->us = MAX(g_get_monotonic_time() - begin_us, 1);
    return NULL;
}

static void
load_free(Load *load)
{
    close_lines(&load->lines);
    g_free(load);
}

gpointer
rp_cuda_begin_copies(RpProbe *probe, guint devices, GError **error)
{
    Load *load = g_new0(Load, 1);
    sigset_t all, before;

    load->lines = new_lines(devices, UP, UP + 1);
    atomic_init(&load->ending, FALSE);
    if (!open_lines(&load->lines, error)) {
        load_free(load);
        return NULL;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int status = pthread_create(&load->thread, NULL, copy_until_ended, load);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status != 0) {
        g_set_error(error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MEMORY, "cannot start a thread: %s",
                    g_strerror(status));
        load_free(load);
        return NULL;
    }
    return load;
}

gboolean
rp_cuda_end_copies(RpProbe *probe, gpointer copies, double *bytes_per_s, GError **error)
{
    Load *load = copies;

    atomic_store(&load->ending, TRUE);
    pthread_join(load->thread, NULL);
    const gboolean copied = check(&load->lines, error);
    if (copied)
        *bytes_per_s = (double)load->bytes / (double)load->us * G_USEC_PER_SEC;
    load_free(load);
    return copied;
}
