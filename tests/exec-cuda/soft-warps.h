/**
 * Warps without a GPU: attention by mma.sync and the delta rule, compiled for the host as it is, over
 * functions of threads that take turns. Sums are read and written, as on RTX 3090 and 4090.
 *
 *   exec/cuda/attention/forward.cu, backward.cu, backward-wide.cu, backward-pairs.cu   the kernels
 *   exec/cuda/delta/heads.cu, recurrence.cuh            the delta rule's
 *   soft-warps/exec/cuda/...                            the instructions that they need, in place of headers
 *   soft-attention.cu, soft-attention-forward.cu, soft-attention-wide.cu, soft-attention-pairs.cu, soft-delta.cu
 *                                                       the kernels over these
 *   soft-warps.cu                                       threads, meetings, shared memory, copies
 *
 * Blocks run one after another, of each a warp as far as it goes without the others, first to last
 * or last to first: a meeting that is missing shows. Shared memory and copies under way are NaN
 * until they are written, and copies end only when a thread waits for its own: a read that is too
 * early shows. Addresses beyond a kernel's shared memory or at odd places abort.
 */
#pragma once

#include "exec/kernels/args.h"
#include "exec/kernels/delta-args.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Like rp_cuda_attention_forward(), of bf16 and fp16 and heads of 64, 128 and 256. */
void soft_attention_forward(const RpAttentionArgs *args);
/* Like rp_cuda_attention_backward(). @delta: [heads,tokens]: d_out . out; @backwards: the last warp
 * of a block comes first. bf16 and fp16, heads of 64 and 128. */
void soft_attention_backward(const RpAttentionArgs *args, const float *delta, bool backwards);
/* The same by blocks of 256 keys, heads of 64. */
void soft_attention_backward_wide(const RpAttentionArgs *args, const float *delta, bool backwards);
void soft_attention_backward_pairs(const RpAttentionArgs *args, const float *delta, bool backwards);
/* The delta rule of heads of 128 in bf16; @trains: its backward */
void soft_delta(const RpDeltaArgs *args, bool trains, bool backwards);
/* The same token by token, of any shape, in fp32 or bf16 */
void soft_delta_walk(const RpDeltaArgs *args, bool trains, bool backwards);

#ifdef __cplusplus
}

/* Functions that the emulated instructions call. */
struct SoftIndex {
    unsigned x, y, z;
};

SoftIndex soft_thread();
SoftIndex soft_block();
void soft_meet_block();
/* @waits: otherwise the thread only counts among @threads */
void soft_meet_some(int barrier, int threads, bool waits);
void soft_meet_warp();
/* The words that each lane of this warp hands over. They stay until the one after the next handing over: a thread has
 * read the last ones before another, which met it since, writes there again. */
uint32_t (*soft_words())[8];
/* This thread has read them. */
void soft_words_end();
/* @bytes at a multiple of @bytes. */
unsigned char *soft_shared(uint32_t address, uint32_t bytes);
void soft_copy(uint32_t target, const void *source, uint32_t bytes, bool valid);
/* Waits for the copies of this thread. */
void soft_copies_end();
[[noreturn]] void soft_fail(const char *why);

static inline int
soft_lane()
{
    return (int)soft_thread().x & 31;
}
#endif
