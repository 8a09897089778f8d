/*
 * OpenBLAS's buffers: one of each thread that multiplies, mapped at its first matmul and kept.
 * Where that mapping fails OpenBLAS tries for ever. So the buffers are taken before there is
 * anything to lose, one after the other, each after a mapping of its size that is given back at
 * once:
 *
 *   |probe| |buffer 0|
 *            |probe|    |buffer 1|  ...            then all are OpenBLAS's own, and free
 */
#include "exec/host/kernels.h"

#include <sys/mman.h>

/* Exported by OpenBLAS, in no header of its own; another BLAS may lack them. */
extern void *blas_memory_alloc(int position) __attribute__((weak));
extern void blas_memory_free(void *buffer) __attribute__((weak));

static gboolean
there_is_room(void)
{
    void *memory = mmap(NULL, RP_HOST_MATMUL_BUFFER_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return FALSE;
    (void)munmap(memory, RP_HOST_MATMUL_BUFFER_BYTES);
    return TRUE;
}

guint
rp_host_reserve_matmul(guint threads)
{
    g_autofree void **buffers = g_new0(void *, MAX(1, threads));
    guint n = 0;

    if (blas_memory_alloc == NULL || blas_memory_free == NULL)
        return threads;
    (void)rp_host_kernels(); /* one thread from now on */
    while (n < threads && there_is_room() && (buffers[n] = blas_memory_alloc(0)) != NULL)
        n++;
    for (guint i = 0; i < n; i++)
        blas_memory_free(buffers[i]);
    return n;
}
