/**
 * Memory that is NUMA-local to the threads of a pool that work on it.
 *
 *   values       |------ of the threads of node 0 ------|------ of node 1 ------|
 *   memory       |------------------- 0 ------------------|---------- 1 --------|   whole huge pages
 */
#pragma once

#include "exec/system/pool.h"

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
