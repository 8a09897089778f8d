/*
 * OpenBLAS's buffers: one of each thread that multiplies, mapped at its first matmul and kept.
 * Where that mapping fails OpenBLAS tries for ever. So the buffers are taken before there is
 * anything to lose, one after the other, each after a mapping of its size that is given back at
 * once:
 *
 *   |probe| |buffer 0|
 *            |probe|    |buffer 1|  ...            then all are OpenBLAS's own, and free
 */
#include <sys/mman.h>

#include "exec/host/blas.h"
#include "exec/host/kernels.h"

static gboolean
there_is_space(void)
{
    void *memory = mmap(NULL, RP_HOST_MATMUL_BUFFER_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return FALSE;
    (void)munmap(memory, RP_HOST_MATMUL_BUFFER_BYTES);
    return TRUE;
}

static guint
reserve(const RpBlas *blas, guint threads)
{
    g_autofree void **buffers = g_new0(void *, MAX(1, threads));
    guint n = 0;

    if (blas->memory_alloc == NULL)
        return threads;
    while (n < threads && there_is_space() && (buffers[n] = blas->memory_alloc(0)) != NULL)
        n++;
    for (guint i = 0; i < n; i++)
        blas->memory_free(buffers[i]);
    return n;
}

gboolean
rp_host_reserve_matmul(guint threads, guint *n, GError **error)
{
    const RpBlas *blas = rp_host_blas();

    if (blas == NULL) {
        g_set_error_literal(error, G_FILE_ERROR, G_FILE_ERROR_NOENT, rp_host_blas_problem());
        return FALSE;
    }
    *n = reserve(blas, threads);
    return TRUE;
}
