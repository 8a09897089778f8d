/* Tests measuring links of GPUs: exec/cuda/measure-links.c over made-up machines, whose copies take
 * the time that their links, roots and host memory allow, by arithmetic. */
#include "tests/rp-test.h"

#include <math.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "core/base/units.h"
#include "exec/cuda/host-arena.h"
#include "exec/cuda/probe.h"
#include "exec/device/error.h"
#include "exec/system/memory-limit.h"

#define MOST_DEVICES 128
#define MOST_RUNS 64
#define UP_GB 50.0 /* rate of one device alone, GB/s */
#define DOWN_GB 40.0
#define BOTH_GB 72.0
#define COPIES_GB 1.0 /* rate of the processors' copies */
#define SMALL_NS 3000 /* a copy's */
#define REPEATS 5     /* repeats of a measurement; the fewest that there are */
#define CHUNK_BYTES (256 * RP_MIB)
#define MOST_CHUNKS 4 /* chunks of a direction */
#define ARENA_CHUNKS (MOST_DEVICES * N_DIRECTIONS * MOST_CHUNKS)
#define NOBODY 0

enum { UP, DOWN, N_DIRECTIONS };

struct CUstream_st {
    guint device;
};

struct _RpCudaHostArena {
    void *memory;
    gsize bytes;
};

/* One measured run: the number of devices that copied, and the bits of their directions. */
typedef struct {
    guint devices;
    guint directions;
} Run;

static struct {
    /* the machine */
    guint per_root; /* 0: no roots */
    double root_gb; /* rate of a root in one direction */
    double host_gb; /* 0: no limit */
    guint64 available_bytes;
    /* the measured requests */
    double bytes[MOST_DEVICES][N_DIRECTIONS];
    guint n_copies; /* copies of all sizes */
    Run runs[MOST_RUNS];
    guint n_runs, n_skipped;
    RpCudaHostArena *arena;
    /* users of the arena's chunks: directions, or nobody */
    guint users[ARENA_CHUNKS];
    guint n_chunks[MOST_DEVICES][N_DIRECTIONS]; /* chunks that a direction has used */
    guint n_outside, n_across,
        n_shared;           /* copies: the arena, several chunks, with another direction */
    guint fail_at, n_calls; /* copies; 0: none fails */
    gint n_left;            /* streams and memory */
} machine;

static _Atomic guint n_copied; /* in all, for those who wait */

G_DEFINE_QUARK(rp_device_error, rp_device_error)

/* ---- exec/cuda/runtime.h ---- */

gboolean
rp_runtime_use(const RpRuntimeGpu *gpu, GError **error)
{
    return TRUE;
}

gboolean
rp_runtime_stream_new(const RpRuntimeGpu *gpu, gboolean urgent, RpRuntimeStream **stream,
                      GError **error)
{
    *stream = g_new(RpRuntimeStream, 1);
    (*stream)->device = gpu->index;
    machine.n_left++;
    return TRUE;
}

gboolean
rp_runtime_stream_finish(const RpRuntimeGpu *gpu, RpRuntimeStream *stream, GError **error)
{
    return TRUE;
}

void
rp_runtime_stream_free(RpRuntimeStream *stream)
{
    machine.n_left -= stream != NULL;
    g_free(stream);
}

gboolean
rp_runtime_take(const RpRuntimeGpu *gpu, guint64 bytes, void **memory, GError **error)
{
    *memory = g_malloc(1);
    machine.n_left++;
    return TRUE;
}

gboolean
rp_runtime_clear(const RpRuntimeGpu *gpu, void *memory, guint64 bytes, GError **error)
{
    return TRUE;
}

void
rp_runtime_give(void *memory)
{
    machine.n_left -= memory != NULL;
    g_free(memory);
}

/* Checks that each chunk of the arena has one user. Threads call it, too, so it makes no
 * assertions. */
static void
note_chunk(guint device, guint direction, const guint8 *host, gsize bytes)
{
    const guint64 at = (guint64)(host - rp_cuda_host_arena_memory(machine.arena));
    const guint64 chunk = at / CHUNK_BYTES;
    const guint user = 1 + device * N_DIRECTIONS + direction;

    if (at + bytes > machine.arena->bytes || chunk >= ARENA_CHUNKS) {
        machine.n_outside++;
    } else if (at % CHUNK_BYTES != 0 || bytes > CHUNK_BYTES) {
        machine.n_across++;
    } else if (machine.users[chunk] == NOBODY) {
        machine.users[chunk] = user;
        machine.n_chunks[device][direction]++;
    } else if (machine.users[chunk] != user) {
        machine.n_shared++;
    }
}

gboolean
rp_runtime_copy(const RpRuntimeGpu *gpu, void *to, const void *from, guint64 bytes, gboolean up,
                RpRuntimeStream *stream, GError **error)
{
    const guint direction = up ? UP : DOWN;

    if (++machine.n_calls == machine.fail_at) {
        g_set_error(error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MISSING, "device %u: cudaMemcpyAsync",
                    gpu->index);
        return FALSE;
    }
    note_chunk(stream->device, direction, up ? from : to, bytes);
    machine.bytes[stream->device][direction] += (double)bytes;
    machine.n_copies++;
    atomic_fetch_add(&n_copied, 1);
    return TRUE;
}

/* ---- memory of the host, which nobody touches ---- */

RpCudaHostArena *
rp_cuda_host_arena_new(guint64 bytes, const RpCudaSpan *unpinned, guint n_unpinned, int device,
                       RpCudaSettle settle, gpointer data, GError **error)
{
    RpCudaHostArena *arena = g_new(RpCudaHostArena, 1);

    arena->bytes = bytes;
    arena->memory =
        mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(arena->memory, MAP_FAILED);
    machine.n_left++;
    machine.arena = arena;
    memset(machine.users, NOBODY, sizeof machine.users);
    memset(machine.n_chunks, 0, sizeof machine.n_chunks);
    return arena;
}

void
rp_cuda_host_arena_free(RpCudaHostArena *arena)
{
    if (arena == NULL)
        return;
    munmap(arena->memory, arena->bytes);
    g_free(arena);
    machine.n_left--;
}

guint8 *
rp_cuda_host_arena_memory(const RpCudaHostArena *arena)
{
    return arena->memory;
}

gboolean
rp_cuda_host_arena_finish(RpCudaHostArena *arena, GError **error)
{
    return TRUE;
}

guint64
rp_available_memory(void)
{
    return machine.available_bytes;
}

/* ---- time ---- */

/* Each link, each root in each direction and host memory run at their limits. */
static double
copy_seconds(void)
{
    double roots[MOST_DEVICES][N_DIRECTIONS] = {{0}};
    double sum = 0, seconds = 0;

    for (guint d = 0; d < MOST_DEVICES; d++) {
        const double up = machine.bytes[d][UP], down = machine.bytes[d][DOWN];
        const guint root = machine.per_root > 0 ? d / machine.per_root : 0;

        seconds = MAX(seconds, up / (UP_GB * 1e9));
        seconds = MAX(seconds, down / (DOWN_GB * 1e9));
        seconds = MAX(seconds, (up + down) / (BOTH_GB * 1e9));
        roots[root][UP] += up;
        roots[root][DOWN] += down;
        sum += up + down;
    }
    for (guint r = 0; r < MOST_DEVICES && machine.per_root > 0; r++)
        seconds = MAX(seconds, MAX(roots[r][UP], roots[r][DOWN]) / (machine.root_gb * 1e9));
    return machine.host_gb > 0 ? MAX(seconds, sum / (machine.host_gb * 1e9)) : seconds;
}

static void
note_run(void)
{
    Run run = {0};

    for (guint d = 0; d < MOST_DEVICES; d++) {
        run.devices += machine.bytes[d][UP] + machine.bytes[d][DOWN] > 0;
        run.directions |= (machine.bytes[d][UP] > 0) << UP | (machine.bytes[d][DOWN] > 0) << DOWN;
    }
    assert_true(machine.n_runs < MOST_RUNS);
    machine.runs[machine.n_runs++] = run;
}

gboolean
rp_measurer_begin_work(RpMeasurer *measurer, RpProbe *probe, const RpProfile *profile,
                       GError **error)
{
    return TRUE;
}

gboolean
rp_measurer_end_work(RpMeasurer *measurer, GError **error)
{
    return TRUE;
}

gboolean
rp_measurer_run(RpMeasurer *measurer, RpProbe *probe, const RpProbePart *parts, guint n_parts,
                gpointer data, RpTimes *times, GError **error)
{
    for (guint p = 0; p < n_parts; p++) {
        for (guint r = 0; r < REPEATS; r++) {
            memset(machine.bytes, 0, sizeof machine.bytes);
            machine.n_copies = 0;
            parts[p](data);
        }
        times[p] = (RpTimes){.n = 1};
        times[p].median_ns =
            probe != NULL ? machine.n_copies * SMALL_NS : llround(copy_seconds() * 1e9);
    }
    if (probe != NULL)
        memset(machine.bytes, 0, sizeof machine.bytes); /* how long a copy takes is no rate */
    note_run();
    return TRUE;
}

void
rp_measurer_skip(RpMeasurer *measurer, guint n)
{
    machine.n_skipped += n;
}

double
rp_times_rate(const RpTimes *times, double amount)
{
    return amount / (double)times->median_ns * 1e9;
}

gsize
rp_measure_buffer_bytes(gsize most)
{
    return most;
}

guint
rp_usable_processors(void)
{
    return 2;
}

gboolean
rp_measure_host_copies(RpMeasurer *measurer, gsize bytes, guint threads, double *bytes_per_s,
                       GError **error)
{
    memset(machine.bytes, 0, sizeof machine.bytes);
    note_run();
    *bytes_per_s = COPIES_GB * 1e9;
    return TRUE;
}

/* ---- tests ---- */

typedef struct {
    RpProfile profile;
    GError *error;
} Fixture;

static int
set_up(void **state)
{
    memset(&machine, 0, sizeof machine);
    machine.available_bytes = 16 * RP_GIB;
    *state = g_new0(Fixture, 1);
    return 0;
}

static int
tear_down(void **state)
{
    Fixture *f = *state;

    g_clear_error(&f->error);
    g_free(f);
    return 0;
}

static void
assert_chunks_are_nobody_elses(void)
{
    assert_int_equal(machine.n_outside, 0);
    assert_int_equal(machine.n_across, 0);
    assert_int_equal(machine.n_shared, 0);
}

/* Any probe does: only the measurer reads it. */
static gboolean
measure(Fixture *f, guint gpus)
{
    RpProbe probe = {NULL};
    RpRuntimeStream stream = {0};
    RpMeasurer measurer = {.n_measures = RP_CUDA_LINK_MEASURES};

    machine.n_runs = machine.n_skipped = machine.n_calls = 0;
    f->profile = (RpProfile){.gpus = gpus};
    const gboolean measured =
        rp_cuda_measure_links(&probe, &stream, &measurer, &f->profile, &f->error);
    assert_chunks_are_nobody_elses();
    return measured;
}

static void
assert_gb(double bytes_per_s, double gb)
{
    if (fabs(bytes_per_s / 1e9 - gb) > 1e-6 * gb)
        fail_msg("%.9g GB/s, expected %.9g", bytes_per_s / 1e9, gb);
}

static guint
n_runs_of(guint devices, guint directions)
{
    guint n = 0;

    for (guint r = 0; r < machine.n_runs; r++)
        n += machine.runs[r].devices == devices && machine.runs[r].directions == directions;
    return n;
}

#define DIRECTION_UP (1 << UP)
#define DIRECTION_DOWN (1 << DOWN)

RP_TEST_OF(one_gpu_is_measured_one_way_and_both_ways, Fixture *f)
{
    assert_true(measure(f, 1));
    const RpLinks *links = &f->profile.links;
    assert_gb(links->h2d_bytes_per_s, UP_GB);
    assert_gb(links->d2h_bytes_per_s, DOWN_GB);
    assert_gb(links->both_bytes_per_s, BOTH_GB);
    assert_int_equal(links->copy_latency_ns, SMALL_NS);
    /* there is no other */
    assert_true(links->all_h2d_bytes_per_s == 0);
    assert_true(links->all_d2h_bytes_per_s == 0);
    assert_true(links->all_both_bytes_per_s == 0);
    assert_int_equal(links->gpus_per_root, 0);
    /* less than 90 % of both directions: host memory is taken for the limit */
    assert_gb(links->host_bytes_per_s, BOTH_GB);
    assert_int_equal(machine.n_runs, 5);
}

RP_TEST_OF(all_gpus_are_measured_together_although_they_share_nothing, Fixture *f)
{
    assert_true(measure(f, 6));
    const RpLinks *links = &f->profile.links;
    assert_gb(links->both_bytes_per_s, BOTH_GB);
    assert_gb(links->all_h2d_bytes_per_s, 6 * UP_GB);
    assert_gb(links->all_d2h_bytes_per_s, 6 * DOWN_GB);
    assert_gb(links->all_both_bytes_per_s, 6 * BOTH_GB);
    assert_int_equal(links->gpus_per_root, 0);
}

/* Pairs are slower than two, and four get no more, nor do all but the half behind another root. */
RP_TEST_OF(finds_how_many_share_a_root, Fixture *f)
{
    machine.root_gb = 60;
    for (machine.per_root = 4; machine.per_root <= 16; machine.per_root *= 2)
        for (guint gpus = 4; gpus <= 16; gpus *= 2) {
            assert_true(measure(f, gpus));
            assert_int_equal(f->profile.links.gpus_per_root, MIN(machine.per_root, gpus));
            assert_gb(f->profile.links.root_bytes_per_s, 60);
        }
}

/* Pairs are slower than two: fours, which get twice as much, are no root, and no larger group is tried, but
 * all are. */
RP_TEST_OF(all_gpus_are_measured_together_although_fewer_share_a_root, Fixture *f)
{
    machine.per_root = 2;
    machine.root_gb = 60;
    assert_true(measure(f, 8));
    const RpLinks *links = &f->profile.links;
    assert_int_equal(links->gpus_per_root, 2);
    assert_gb(links->root_bytes_per_s, 60);
    assert_gb(links->all_h2d_bytes_per_s, 4 * 60);
    assert_gb(links->all_d2h_bytes_per_s, 4 * 60);
    assert_gb(links->all_both_bytes_per_s, 4 * 120);
    assert_int_equal(n_runs_of(4, DIRECTION_UP), 1);
    assert_int_equal(n_runs_of(8, DIRECTION_UP), 1);
    assert_int_equal(n_runs_of(8, DIRECTION_DOWN), 1);
}

RP_TEST_OF(what_host_memory_leaves_all_gpus_is_told, Fixture *f)
{
    machine.host_gb = 170;
    assert_true(measure(f, 4));
    const RpLinks *links = &f->profile.links;
    assert_gb(links->all_h2d_bytes_per_s, 170);
    assert_gb(links->all_d2h_bytes_per_s, 160);
    assert_gb(links->all_both_bytes_per_s, 170);
    assert_gb(links->host_bytes_per_s, 170);
}

/* Nothing is measured twice, and measurements that are not needed are reported: progress comes to
 * its end. */
RP_TEST_OF(measures_are_as_many_as_were_announced, Fixture *f)
{
    for (guint gpus = 1; gpus <= MOST_DEVICES; gpus++)
        for (guint shared = 0; shared < 3; shared++) {
            machine.per_root = shared == 1 ? 2 : shared == 2 ? gpus : 0;
            machine.root_gb = 60;
            assert_true(measure(f, gpus));
            assert_int_equal(machine.n_runs + machine.n_skipped, RP_CUDA_LINK_MEASURES);
            for (guint r = 0; r < machine.n_runs; r++)
                if (machine.runs[r].devices > 0)
                    assert_int_equal(n_runs_of(machine.runs[r].devices, machine.runs[r].directions),
                                     1);
            assert_int_equal(n_runs_of(1, DIRECTION_UP | DIRECTION_DOWN), 1);
            assert_int_equal(n_runs_of(gpus, DIRECTION_UP | DIRECTION_DOWN), 1);
            assert_int_equal(n_runs_of(gpus, DIRECTION_UP), 1);
            assert_int_equal(machine.n_left, 0);
        }
}

/* Chunks of @bytes a direction, of which the measurement gets an eighth. */
static void
assert_chunks_of_their_own(Fixture *f, guint gpus, guint64 bytes, guint n_chunks)
{
    machine.available_bytes = 8 * gpus * N_DIRECTIONS * bytes;
    assert_true(measure(f, gpus));
    for (guint d = 0; d < gpus; d++)
        for (guint w = 0; w < N_DIRECTIONS; w++)
            if (machine.n_chunks[d][w] != n_chunks)
                fail_msg("%u GPUs, %" G_GUINT64_FORMAT
                         " bytes: device %u uses %u chunks in direction %u, expected %u",
                         gpus, bytes, d, machine.n_chunks[d][w], w, n_chunks);
}

/* The place of memory decides its speed: a direction uses as much as it may, and all of it. */
RP_TEST_OF(every_way_of_every_gpu_uses_all_chunks_of_its_own, Fixture *f)
{
    for (guint gpus = 1; gpus <= 8; gpus++) {
        assert_chunks_of_their_own(f, gpus, MOST_CHUNKS * CHUNK_BYTES, MOST_CHUNKS);
        assert_chunks_of_their_own(f, gpus, 100 * CHUNK_BYTES, MOST_CHUNKS);
        assert_chunks_of_their_own(f, gpus, 3 * CHUNK_BYTES, 3);
        assert_chunks_of_their_own(f, gpus, CHUNK_BYTES, 1);
        assert_chunks_of_their_own(f, gpus, CHUNK_BYTES / 2, 1);
    }
}

/* Copies go up only. */
RP_TEST_OF(copies_beside_the_optimizer_use_chunks_of_their_own, Fixture *f)
{
    RpProbe probe = {NULL};

    for (guint gpus = 1; gpus <= 4; gpus++) {
        double bytes_per_s = 0;

        machine.available_bytes = 8 * gpus * MOST_CHUNKS * CHUNK_BYTES;
        atomic_store(&n_copied, 0);
        gpointer copies = rp_must(rp_cuda_begin_copies, &probe, gpus);
        while (atomic_load(&n_copied) < MOST_CHUNKS * gpus)
            g_usleep(100);
        assert_true(rp_cuda_end_copies(&probe, copies, &bytes_per_s, &f->error));
        assert_true(bytes_per_s > 0);
        assert_chunks_are_nobody_elses();
        for (guint d = 0; d < gpus; d++) {
            assert_int_equal(machine.n_chunks[d][UP], MOST_CHUNKS);
            assert_int_equal(machine.n_chunks[d][DOWN], 0);
        }
        assert_int_equal(machine.n_left, 0);
    }
}

RP_TEST_OF(a_copy_that_fails_ends_the_measurement, Fixture *f)
{
    assert_true(measure(f, 3));
    const guint n = machine.n_calls;
    for (guint at = 1; at <= n; at++) {
        machine.fail_at = at;
        assert_false(measure(f, 3));
        rp_assert_error(&f->error, "cudaMemcpyAsync");
        assert_int_equal(machine.n_left, 0);
    }
    assert_true(n > 100);
}

RP_TEST_FIXTURE(set_up, tear_down)
