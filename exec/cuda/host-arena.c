#include "exec/cuda/host-arena.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/base/quote.h"
#include "exec/cuda/runtime/runtime.h"
#include "exec/device/error.h"
#include "exec/system/clock.h"
#include "exec/system/memory-limit.h"

#define MAX_THREADS 16
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; others say EINVAL */
#endif

typedef struct {
    RpCudaHostArena *arena;
    pthread_t thread;
    gint64 touch_ns;
    gint64 pin_ns;
    gint64 end_ns;
} PinThread;

struct _RpCudaHostArena {
    guint8 *memory;
    guint64 bytes;
    guint64 page;
    int device;
    GArray *pieces;         /* RpCudaSpan */
    _Atomic guint *pinned;  /* per piece: whether */
    _Atomic guint next;     /* piece that nobody has taken */
    _Atomic guint n_failed; /* threads */
    PinThread threads[MAX_THREADS];
    guint n_threads; /* threads to be joined */
    pthread_mutex_t lock;
    GError *error; /* the first; under the lock */
    RpPinnedMemory report;
    gint64 start_ns;
};

/* ---- which pages ---- */

static void
add_pieces(GArray *pieces, guint64 start, guint64 end, guint64 most)
{
    while (start < end) {
        const RpCudaSpan piece = {.offset = start, .bytes = MIN(most, end - start)};

        g_array_append_val(pieces, piece);
        start += piece.bytes;
    }
}

GArray *
rp_cuda_pin_pieces(guint64 bytes, const RpCudaSpan *unpinned, guint n_unpinned, guint64 page,
                   guint64 most)
{
    GArray *pieces = g_array_new(FALSE, FALSE, sizeof(RpCudaSpan));
    guint64 start = 0, end = 0; /* run of pages that is being collected */
    guint64 at = 0;             /* everything before has been looked at */

    for (guint i = 0; i <= n_unpinned; i++) {
        const guint64 stop = i < n_unpinned ? unpinned[i].offset : bytes;

        if (stop > at) {
            const guint64 first = at / page * page;

            if (first > end) {
                add_pieces(pieces, start, end, most);
                start = first;
            }
            end = (stop + page - 1) / page * page;
        }
        if (i < n_unpinned)
            at = MAX(at, unpinned[i].offset + unpinned[i].bytes);
    }
    add_pieces(pieces, start, end, most);
    return pieces;
}

/* ---- touching and pinning ---- */

/* The owner may be filling the same pages with weights: nothing is changed. */
static void
touch(const RpCudaHostArena *arena, const RpCudaSpan *piece)
{
    guint8 *memory = arena->memory + piece->offset;

    if (madvise(memory, piece->bytes, MADV_POPULATE_WRITE) == 0)
        return;
    for (guint64 i = 0; i < piece->bytes; i += arena->page)
        __atomic_fetch_or(memory + i, 0, __ATOMIC_RELAXED);
}

static void
fail_pin(RpCudaHostArena *arena, const RpCudaSpan *piece, const char *problem)
{
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    g_autofree char *lock_limit = NULL;

    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    lock_limit = limit.rlim_cur == RLIM_INFINITY
                     ? g_strdup("none")
                     : g_strdup_printf("%" G_GUINT64_FORMAT " bytes", (guint64)limit.rlim_cur);
    pthread_mutex_lock(&arena->lock);
    if (arena->error == NULL)
        g_set_error(
            &arena->error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MEMORY,
            "cannot pin host memory (%" G_GUINT64_FORMAT " bytes at offset %" G_GUINT64_FORMAT
            " of %" G_GUINT64_FORMAT "): cudaHostRegister: %s; available: %" G_GUINT64_FORMAT
            " bytes, lock limit (ulimit -l): %s; free some memory or raise the limit",
            piece->bytes, piece->offset, arena->bytes, problem, rp_available_memory(), lock_limit);
    pthread_mutex_unlock(&arena->lock);
    atomic_fetch_add(&arena->n_failed, 1);
}

static gboolean
pin_piece(PinThread *thread, guint index)
{
    RpCudaHostArena *arena = thread->arena;
    const RpCudaSpan *piece = &g_array_index(arena->pieces, RpCudaSpan, index);
    const gint64 start_ns = rp_clock_ns();
    const char *problem;
    gint64 touched_ns;

    touch(arena, piece);
    touched_ns = rp_clock_ns();
    problem = rp_runtime_pin(arena->memory + piece->offset, piece->bytes);
    thread->touch_ns += touched_ns - start_ns;
    thread->pin_ns += rp_clock_ns() - touched_ns;
    if (problem != NULL) {
        fail_pin(arena, piece, problem);
        return FALSE;
    }
    atomic_store(&arena->pinned[index], 1);
    return TRUE;
}

static void *
pin_main(void *data)
{
    PinThread *thread = data;
    RpCudaHostArena *arena = thread->arena;
    guint index;

    (void)rp_runtime_use(&(RpRuntimeGpu){.physical = arena->device}, NULL);
    while (atomic_load(&arena->n_failed) == 0 &&
           (index = atomic_fetch_add(&arena->next, 1)) < arena->pieces->len)
        if (!pin_piece(thread, index))
            break;
    thread->end_ns = rp_clock_ns();
    return NULL;
}

static guint64
bytes_to_pin(const RpCudaHostArena *arena)
{
    guint64 bytes = 0;

    for (guint i = 0; i < arena->pieces->len; i++)
        bytes += g_array_index(arena->pieces, RpCudaSpan, i).bytes;
    return bytes;
}

/* The system's lock limit does not bind CUDA's driver everywhere. Whether it does, a page more than
 * it allows shows, as far as the first piece goes, before minutes go into touching all. */
static gboolean
try_lock_limit(RpCudaHostArena *arena, GError **error)
{
    struct rlimit limit;
    RpCudaSpan trial;
    const char *problem;

    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur >= bytes_to_pin(arena))
        return TRUE;
    trial = g_array_index(arena->pieces, RpCudaSpan, 0);
    trial.bytes = MIN(trial.bytes, (limit.rlim_cur / arena->page + 1) * arena->page);
    (void)rp_runtime_use(&(RpRuntimeGpu){.physical = arena->device}, NULL);
    touch(arena, &trial);
    problem = rp_runtime_pin(arena->memory + trial.offset, trial.bytes);
    if (problem == NULL)
        problem = rp_runtime_unpin(arena->memory + trial.offset);
    if (problem == NULL)
        return TRUE;
    fail_pin(arena, &trial, problem);
    g_propagate_error(error, g_steal_pointer(&arena->error));
    return FALSE;
}

static void
start_threads(RpCudaHostArena *arena)
{
    const guint most = MIN(MAX_THREADS, MAX(1, g_get_num_processors()));
    const guint wanted = MIN(most, arena->pieces->len);

    while (arena->n_threads < wanted) {
        PinThread *thread = &arena->threads[arena->n_threads];

        thread->arena = arena;
        if (pthread_create(&thread->thread, NULL, pin_main, thread) != 0)
            break;
        arena->n_threads++;
    }
    if (arena->n_threads == 0 && wanted > 0) { /* no more threads: here and now */
        arena->threads[0].arena = arena;
        pin_main(&arena->threads[0]);
    }
}

static void
join_threads(RpCudaHostArena *arena)
{
    gint64 end_ns = arena->start_ns;

    if (arena->report.threads > 0)
        return;
    for (guint i = 0; i < arena->n_threads; i++)
        pthread_join(arena->threads[i].thread, NULL);
    arena->report.arena_bytes = arena->bytes;
    for (guint i = 0; i < MAX(1, arena->n_threads); i++) {
        arena->report.touch_seconds += (double)arena->threads[i].touch_ns / 1e9;
        arena->report.pin_seconds += (double)arena->threads[i].pin_ns / 1e9;
        end_ns = MAX(end_ns, arena->threads[i].end_ns);
    }
    for (guint i = 0; i < arena->pieces->len; i++)
        if (atomic_load(&arena->pinned[i]))
            arena->report.pinned_bytes += g_array_index(arena->pieces, RpCudaSpan, i).bytes;
    arena->report.seconds = (double)(end_ns - arena->start_ns) / 1e9;
    arena->report.threads = MAX(1, arena->n_threads);
}

/* ---- life ---- */

static gboolean
check_memory(guint64 bytes, GError **error)
{
    g_auto(RpMemoryLimit) limit = rp_memory_limit("", FALSE);

    if (bytes <= limit.bytes)
        return TRUE;
    g_autofree char *what = rp_memory_limit_describe(&limit);

    return rp_fail(
        error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MEMORY,
        "host memory: %" G_GUINT64_FORMAT " bytes are needed, %" G_GUINT64_FORMAT
        " are available: use a smaller model or shorter sequences, or free some memory; the "
        "limit is %s",
        bytes, limit.bytes, what);
}

RpCudaHostArena *
rp_cuda_host_arena_new(guint64 bytes, const RpCudaSpan *unpinned, guint n_unpinned, int device,
                       RpCudaSettle settle, gpointer data, GError **error)
{
    const guint64 page = (guint64)sysconf(_SC_PAGESIZE);
    const guint64 mapped = (MAX(bytes, 1) + page - 1) / page * page;
    RpCudaHostArena *arena;
    void *memory;

    if (!check_memory(mapped, error))
        return NULL;
    memory = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        g_set_error(error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MEMORY,
                    "cannot get %" G_GUINT64_FORMAT " bytes of host memory: %s", mapped,
                    g_strerror(errno));
        return NULL;
    }
    (void)madvise(memory, mapped, MADV_HUGEPAGE); /* a system without them works as well */
    (void)madvise(memory, mapped, MADV_DONTFORK); /* pinned pages stay with their process */
    if (settle != NULL)
        settle(memory, bytes, data);
    arena = g_new0(RpCudaHostArena, 1);
    arena->memory = memory;
    arena->bytes = mapped;
    arena->page = page;
    arena->device = device;
    arena->start_ns = rp_clock_ns();
    arena->pieces = rp_cuda_pin_pieces(bytes, unpinned, n_unpinned, page, RP_CUDA_PIECE_BYTES);
    arena->pinned = g_new0(_Atomic guint, MAX(1, arena->pieces->len));
    pthread_mutex_init(&arena->lock, NULL);
    if (!try_lock_limit(arena, error)) {
        rp_cuda_host_arena_free(arena);
        return NULL;
    }
    start_threads(arena);
    return arena;
}

void
rp_cuda_host_arena_free(RpCudaHostArena *arena)
{
    if (arena == NULL)
        return;
    join_threads(arena);
    for (guint i = 0; i < arena->pieces->len; i++)
        if (atomic_load(&arena->pinned[i]))
            (void)rp_runtime_unpin(arena->memory +
                                   g_array_index(arena->pieces, RpCudaSpan, i).offset);
    munmap(arena->memory, arena->bytes);
    pthread_mutex_destroy(&arena->lock);
    g_clear_error(&arena->error);
    g_array_unref(arena->pieces);
    g_free(arena->pinned);
    g_free(arena);
}

guint8 *
rp_cuda_host_arena_memory(const RpCudaHostArena *arena)
{
    return arena->memory;
}

gboolean
rp_cuda_host_arena_finish(RpCudaHostArena *arena, GError **error)
{
    join_threads(arena);
    if (arena->error == NULL)
        return TRUE;
    g_propagate_error(error, g_error_copy(arena->error));
    return FALSE;
}

guint64
rp_cuda_host_arena_run(const RpCudaHostArena *arena, const void *address)
{
    const guint64 offset = (guint64)((const guint8 *)address - arena->memory);
    guint first = 0, end = arena->pieces->len; /* the piece that holds it is one of these */

    while (end - first > 1) {
        const guint middle = first + (end - first) / 2;

        if (g_array_index(arena->pieces, RpCudaSpan, middle).offset <= offset)
            first = middle;
        else
            end = middle;
    }
    const RpCudaSpan *piece = &g_array_index(arena->pieces, RpCudaSpan, first);
    g_assert(offset >= piece->offset && offset - piece->offset < piece->bytes);
    return piece->offset + piece->bytes - offset;
}

RpPinnedMemory
rp_cuda_host_arena_report(const RpCudaHostArena *arena)
{
    return arena == NULL ? (RpPinnedMemory){.threads = 0} : arena->report;
}
