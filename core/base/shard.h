/**
 * Shares of a layer's trained parameters: each of several servers keeps the optimizer's state of one, and
 * steps it. They begin and end with blocks, whose sums of squares are the same on any owner:
 *
 *   block      |  0  |  1  |  2  |  3  |  4  |  5  | 6|
 *   3 servers  |---- server 0 ---|-- server 1 --|- server 2 -|   the first ones have the odd blocks
 */
#pragma once

#include <stdint.h>

/* Parameters of a block. Blocks of moments (core/base/moments.h) lie whole within one. */
#define RP_SHARD_BLOCK 65536u
#define RP_SHARD_MOST_SERVERS 4096

typedef struct {
    uint64_t first;
    uint64_t n; /* 0: fewer blocks than servers */
} RpShard;

/* Blocks of @n parameters. */
static inline uint64_t
rp_shard_blocks(uint64_t n)
{
    return n / RP_SHARD_BLOCK + (n % RP_SHARD_BLOCK != 0);
}

/* The share of @server < @servers. */
static inline RpShard
rp_shard(uint64_t n, unsigned servers, unsigned server)
{
    const uint64_t blocks = rp_shard_blocks(n), each = blocks / servers, odd = blocks % servers;
    const uint64_t first = server * each + (server < odd ? server : odd);
    const uint64_t end = first + each + (server < odd);
    const uint64_t from = first * RP_SHARD_BLOCK, to = end * RP_SHARD_BLOCK;

    return (RpShard){from < n ? from : n, (to < n ? to : n) - (from < n ? from : n)};
}

/* Parameters of the largest share: the first; all if there is one server, or (0) none is said. */
static inline uint64_t
rp_shard_most(uint64_t n, unsigned servers)
{
    return servers > 1 ? rp_shard(n, servers, 0).n : n;
}
