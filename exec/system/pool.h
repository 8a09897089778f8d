/**
 * A pool of threads, each pinned to one processor, that share the work on flat arrays.
 *
 * Each thread has a share, which depends on the range and on the number of threads only, so that a
 * thread meets the same memory every time. It works through it in pieces; one that has no piece
 * left takes some of the others', so that a thread that is late or slow holds up a run by about a
 * piece. Which thread does a piece is therefore not fixed: results must not depend on it.
 */
#pragma once

#include <glib.h>

#include "exec/system/nodes.h"

typedef enum {
    RP_POOL_ERROR_CPU_LIST, /* not a list like "0-3,8" */
    RP_POOL_ERROR_NO_CPU,   /* no processor is left to run on */
    RP_POOL_ERROR_THREAD    /* the system refused a thread */
} RpPoolError;

#define RP_POOL_ERROR (rp_pool_error_quark())
GQuark rp_pool_error_quark(void);

typedef struct {
    guint n_threads;      /* 0: one for each processor to use */
    const char *use;      /* processors to use, "0-3,8", or NULL: all that the process may use */
    const char *avoid;    /* processors to leave to others, or NULL or "": none */
    const RpNodes *nodes; /* nodes of the machine, or NULL: one; threads are spread over them */
} RpPoolOptions;

typedef struct _RpPool RpPool;

/**
 * rp_pool_new:
 * @options: how many threads, and where
 *
 * Starts the threads. With more threads than processors they share them evenly. The threads block
 * all signals.
 *
 * Between runs the threads sleep, as the caller does during one. If the process may use more
 * processors than there are threads, and no two of its threads share one, they wait awake for the
 * first 200 us, and yield to any thread that wants the processor.
 *
 * Returns: (transfer full): the pool, or %NULL
 * Errors: any of RpPoolError
 */
RpPool *rp_pool_new(const RpPoolOptions *options, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Ends the threads; NULL is no pool. */
void rp_pool_free(RpPool *pool);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpPool, rp_pool_free)

guint rp_pool_n_threads(const RpPool *pool);

/* The processor that thread @thread of @pool is pinned to. */
guint rp_pool_cpu(const RpPool *pool, guint thread);

/* Values [@begin, @end) that are @thread's share of a run of that range. */
void rp_pool_share(const RpPool *pool, guint thread, gsize first, gsize n, gsize granule,
                   gsize *begin, gsize *end);

/* Works on values [@first, @first + @n), n > 0. */
typedef void (*RpPoolFunc)(gsize first, gsize n, gpointer data);

/**
 * rp_pool_run:
 * @pool: or %NULL: everything in the caller's thread
 * @first: first value
 * @n: number of values
 * @granule: pieces begin and end at multiples of this many values, except at the range's ends; > 0
 * @func: called once for every piece, in the pool's threads, in any order; by each thread as often
 *   as it takes a piece, or never
 *
 * Splits the range evenly into shares, these into 16 to 32 pieces (fewer if a share has not as many
 * granules), and returns when all of it is done; @func and @data are not used after that. A range
 * of one granule at most is done in one call, in the caller's thread. One caller at a time.
 *
 *   granules   |..#|###|###|###|#..|
 *   share of    0   0   1   1   2
 */
void rp_pool_run(RpPool *pool, gsize first, gsize n, gsize granule, RpPoolFunc func, gpointer data);

/*
 * Memory that is NUMA-local to the threads of a pool that work on it.
 *
 *   values       |------ of the threads of node 0 ------|------ of node 1 ------|
 *   memory       |------------------- 0 ------------------|---------- 1 --------|   whole huge pages
 */

/* Nodes that threads of @pool run on. */
guint rp_numa_nodes(const RpPool *pool, const RpNodes *nodes);

/**
 * rp_numa_bind:
 * @array: of @n values of @each bytes, which nobody has touched
 * @granule: of the runs in which @pool works on them
 * @problem: (inout): set, if the system refuses; nothing is requested if it is set
 *
 * Requests memory on the node of the thread whose share a value is.
 *
 * Returns: bytes that were requested
 */
guint64 rp_numa_bind(const RpPool *pool, const RpNodes *nodes, const guint8 *array, gsize n,
                     gsize each, gsize granule, char **problem);
