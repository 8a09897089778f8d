/**
 * The host arena: one mapping, with huge pages where the system has them. Several threads touch and
 * pin the parts that devices copy from and to, while the caller continues (loads weights);
 * optimizer state is left to the threads that work on it.
 *
 *   plan     |weights|grads|  optimizer  |weights|grads|  optimizer  |activations|
 *   pinned   |-piece-|-piece|            |----piece----|             |---piece---|
 *
 * Pieces end at pages, and no copy may reach from one into the next: CUDA takes a range of host
 * memory only if it lies in one pinned piece.
 */
#pragma once

#include <glib.h>

#include "exec/cuda/backend.h"

#define RP_CUDA_PIECE_BYTES (G_GUINT64_CONSTANT(512) << 20)

typedef struct {
    guint64 offset;
    guint64 bytes;
} RpCudaSpan;

/**
 * rp_cuda_pin_pieces:
 * @bytes: of the arena
 * @unpinned: (array length=n_unpinned): spans that are not pinned, by ascending offset
 * @page: a power of two; pieces begin and end there
 * @most: bytes of a piece; a multiple of @page
 *
 * Returns: (transfer full): RpCudaSpan, ascending and without overlap, over every
 * other byte; the last one ends at the first page boundary from @bytes on
 */
GArray *rp_cuda_pin_pieces(guint64 bytes, const RpCudaSpan *unpinned, guint n_unpinned,
                           guint64 page, guint64 most);

typedef struct _RpCudaHostArena RpCudaHostArena;

/* Chooses the NUMA nodes of memory that nobody has touched yet. */
typedef void (*RpCudaSettle)(const guint8 *memory, guint64 bytes, gpointer data);

/* Maps, lets @settle (nullable) place the memory, and begins. @device: any; becomes the calling
 * thread's where the lock limit (ulimit -l) is below the bytes to pin: a page more than it allows is
 * then pinned first, for a moment, or the first piece where that is smaller (which shows nothing: the
 * limit may allow it). Errors: RP_DEVICE_ERROR_MEMORY */
RpCudaHostArena *rp_cuda_host_arena_new(guint64 bytes, const RpCudaSpan *unpinned, guint n_unpinned,
                                        int device, RpCudaSettle settle, gpointer data,
                                        GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Waits for the threads, unpins and unmaps. */
void rp_cuda_host_arena_free(RpCudaHostArena *arena);

/* Zeros; page-aligned. */
guint8 *rp_cuda_host_arena_memory(const RpCudaHostArena *arena);

/* Waits until all is pinned; may be called again. Errors: RP_DEVICE_ERROR_MEMORY */
gboolean rp_cuda_host_arena_finish(RpCudaHostArena *arena,
                                   GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Once finished: bytes from @address on that one copy may take. */
guint64 rp_cuda_host_arena_run(const RpCudaHostArena *arena, const void *address);

/* Zeros until finished. */
RpPinnedMemory rp_cuda_host_arena_report(const RpCudaHostArena *arena);
