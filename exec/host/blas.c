/* Finds OpenBLAS: among this program's modules, where the dynamic linker looks, then where it was at build time. */
#include "exec/host/blas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "exec/host/kernels.h"

#define LIBRARY "libopenblas.so.0"

typedef struct {
    RpBlas blas;
    char *problem; /* why it is not there */
} Loaded;

/* @function: the address of a pointer to a function. */
static gboolean
find(void *library, const char *name, gpointer function)
{
    void *symbol = dlsym(library, name);

    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

static void *
open_file(void)
{
    g_autofree char *own = rp_file_find_module("exec/host", LIBRARY);
    const char *const places[] = {own, LIBRARY, RP_OPENBLAS_PATH};
    void *library = NULL;

    for (guint i = 0; library == NULL && i < G_N_ELEMENTS(places); i++)
        library = places[i] != NULL ? dlopen(places[i], RTLD_NOW | RTLD_LOCAL) : NULL;
    return library;
}

/* The fastest of OpenBLAS's kernels that this processor has the instructions for. (nullable) */
static const char *
fastest_kernels(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return "SkylakeX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return "Haswell";
#endif
    return NULL;
}

/* OpenBLAS goes by the names of processors: for one that is newer than itself it takes Prescott's kernels, with a
 * third of the speed. Then it is loaded again with the right ones, unless the user has chosen. */
static void *
open_fast(void)
{
    char *(*chosen)(void);
    void *library = open_file();

    if (library == NULL || g_getenv("OPENBLAS_CORETYPE") != NULL || fastest_kernels() == NULL ||
        !find(library, "openblas_get_corename", &chosen) || strcmp(chosen(), "Prescott") != 0)
        return library;
    dlclose(library);
    g_setenv("OPENBLAS_CORETYPE", fastest_kernels(), TRUE);
    return open_file();
}

static void
open_library(Loaded *loaded)
{
    RpBlas *blas = &loaded->blas;
    void *library = open_fast();

    if (library == NULL || !find(library, "cblas_sgemm", &blas->sgemm) ||
        !find(library, "openblas_set_num_threads", &blas->set_num_threads)) {
        const char *why = dlerror();

        loaded->problem = g_strdup_printf(
            "matmuls on processors need OpenBLAS, which cannot be loaded (%s): install " LIBRARY
            " (Debian: libopenblas0), or raise the limit of memory (ulimit -v) if there is one",
            why != NULL ? why : LIBRARY);
        return;
    }
    if (!find(library, "blas_memory_alloc", &blas->memory_alloc) ||
        !find(library, "blas_memory_free", &blas->memory_free))
        blas->memory_alloc = NULL;
    blas->set_num_threads(1);
}

/* By a lock of the system's: a thread sanitizer sees nothing of those within GLib. */
static const Loaded *
load(void)
{
    static Loaded loaded;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static gint ready;

    if (g_atomic_int_get(&ready))
        return &loaded;
    pthread_mutex_lock(&lock);
    if (!g_atomic_int_get(&ready)) {
        g_setenv("OPENBLAS_NUM_THREADS", "1", TRUE);
        open_library(&loaded);
        g_atomic_int_set(&ready, TRUE);
    }
    pthread_mutex_unlock(&lock);
    return &loaded;
}

const RpBlas *
rp_host_blas(void)
{
    return rp_host_blas_problem() == NULL ? &load()->blas : NULL;
}

const char *
rp_host_blas_problem(void)
{
    return load()->problem;
}

/*
 * OpenBLAS's buffers: one of each thread that multiplies, mapped at its first matmul and kept.
 * Where that mapping fails OpenBLAS tries for ever. So the buffers are taken before there is
 * anything to lose, one after the other, each after a mapping of its size that is given back at
 * once:
 *
 *   |probe| |buffer 0|
 *            |probe|    |buffer 1|  ...            then all are OpenBLAS's own, and free
 */

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

    if (blas == NULL)
        return rp_fail(error, G_FILE_ERROR, G_FILE_ERROR_NOENT, "%s", rp_host_blas_problem());
    *n = reserve(blas, threads);
    return TRUE;
}
