#include "tests/exec-cuda/soft-warps.h"

#include <functional>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>
#include <vector>

#include "exec/cuda/attention/backward.cu"

#define MOST_BYTES (99 * 1024)
#define STACK_BYTES (128 * 1024)

/* Threads that are here, and how often all were. */
struct Meeting {
    int here;
    long over;
};

struct Copy {
    uint32_t target, bytes;
    const void *source; /* NULL: zeros */
};

struct Thread {
    ucontext_t context;
    std::vector<char> stack;
    std::vector<Copy> copies;
    uint32_t words[8];
    bool ended;
};

static struct {
    Thread threads[THREADS];
    Meeting block, warps[THREADS / 32];
    alignas(16) unsigned char shared[MOST_BYTES];
    ucontext_t caller;
    std::function<void()> kernel;
    unsigned thread, number;
} soft;

void
soft_fail(const char *why)
{
    fprintf(stderr, "soft-warps: block %u, thread %u: %s\n", soft.number, soft.thread, why);
    abort();
}

SoftIndex
soft_thread()
{
    return {soft.thread, 0, 0};
}

SoftIndex
soft_block()
{
    return {soft.number, 0, 0};
}

static void
meet(Meeting *meeting, int count)
{
    const long over = meeting->over;

    if (++meeting->here == count) {
        meeting->here = 0;
        meeting->over++;
    }
    while (meeting->over == over)
        swapcontext(&soft.threads[soft.thread].context, &soft.caller);
}

void
soft_meet_block()
{
    meet(&soft.block, THREADS);
}

void
soft_meet_warp()
{
    meet(&soft.warps[soft.thread / 32], 32);
}

uint32_t *
soft_words(int lane)
{
    return soft.threads[soft.thread / 32 * 32 + (unsigned)lane].words;
}

unsigned char *
soft_shared(uint32_t address, uint32_t bytes)
{
    if (address + bytes > MOST_BYTES || address % bytes != 0)
        soft_fail("an address beyond shared memory, or at an odd place");
    return soft.shared + address;
}

void
soft_copy(uint32_t target, const void *source, uint32_t bytes, bool valid)
{
    memset(soft_shared(target, bytes), 0xff, bytes);
    soft.threads[soft.thread].copies.push_back({target, bytes, valid ? source : nullptr});
}

void
soft_copies_end()
{
    for (const Copy &copy : soft.threads[soft.thread].copies) {
        unsigned char *target = soft_shared(copy.target, copy.bytes);

        if (copy.source != nullptr)
            memcpy(target, copy.source, copy.bytes);
        else
            memset(target, 0, copy.bytes);
    }
    soft.threads[soft.thread].copies.clear();
}

static void
run_thread()
{
    Thread *thread = &soft.threads[soft.thread];

    soft.kernel();
    thread->ended = true;
    swapcontext(&thread->context, &soft.caller);
}

/* As far as it goes without others. Returns: whether one of its threads has not ended */
static bool
run_warp(int warp, bool backwards)
{
    bool more;
    long over;

    do {
        over = soft.warps[warp].over;
        more = false;
        for (int lane = 0; lane < 32; lane++) {
            soft.thread = (unsigned)(warp * 32 + (backwards ? 31 - lane : lane));
            if (soft.threads[soft.thread].ended)
                continue;
            more = true;
            swapcontext(&soft.caller, &soft.threads[soft.thread].context);
        }
    } while (soft.warps[warp].over != over);
    return more;
}

static void
run_block(unsigned number, bool backwards)
{
    bool more = true;

    soft.number = number;
    soft.block = {};
    memset(soft.warps, 0, sizeof soft.warps);
    memset(soft.shared, 0xff, sizeof soft.shared);
    for (Thread &thread : soft.threads) {
        thread.stack.resize(STACK_BYTES);
        thread.ended = false;
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack.data();
        thread.context.uc_stack.ss_size = thread.stack.size();
        makecontext(&thread.context, run_thread, 0);
    }
    while (more) {
        more = false;
        for (int i = 0; i < WARPS; i++)
            more = run_warp(backwards ? WARPS - 1 - i : i, backwards) || more;
    }
}

/* What backward.cu is linked with; nothing is launched here. */
bool
attention_has_wgmma(const RpAttentionArgs *args)
{
    return false;
}

cudaError_t
attention_backward_wgmma(const RpAttentionArgs *args, const AttentionGrid *grid,
                         const BackwardRoom *room, size_t first, unsigned *numbers,
                         cudaStream_t stream)
{
    return cudaErrorInvalidValue;
}

cudaError_t
attention_allow_shared(const void *kernel, int bytes, std::atomic<uint64_t> *done)
{
    return cudaErrorInvalidValue;
}

bool
attention_grid(const RpAttentionArgs *args, size_t heads, size_t rows, size_t unit_bytes,
               AttentionGrid *grid)
{
    return false;
}

extern "C" cudaError_t
cudaLaunchKernel(const void *kernel, dim3 blocks, dim3 threads, void **arguments, size_t bytes,
                 cudaStream_t stream)
{
    return cudaErrorInvalidValue;
}

template <typename T, int D>
static void
run_blocks(const RpAttentionArgs *args, const float *delta, bool backwards)
{
    std::vector<unsigned> counts(args->heads * args->tokens), numbers(1);
    std::vector<float> sums(args->heads * args->tokens * D, NAN);
    const BackwardRoom room = {(float *)delta, counts.data(), numbers.data(), sums.data()};
    AttentionGrid grid = {};

    grid.heads = (unsigned)args->kv_heads;
    grid.units = grid.swath = (unsigned)(args->sequences * args->kv_heads);
    grid.blocks = (unsigned)ceil_divide(args->max_length, KEYS);
    grid.window = args->window > 0 ? (int)args->window : INT_MAX;
    grid.scale_log2 = args->scale * LOG2_E;
    soft.kernel = [&] { differentiate_all<T, D>(*args, grid, room, numbers.data(), 0); };
    for (unsigned number = 0; number < grid.units * grid.blocks; number++)
        run_block(number, backwards);
}

void
soft_attention_backward(const RpAttentionArgs *args, const float *delta, bool backwards)
{
    if (args->dtype == RP_DTYPE_BF16 && args->head_size == 128)
        run_blocks<__nv_bfloat16, 128>(args, delta, backwards);
    else if (args->dtype == RP_DTYPE_BF16 && args->head_size == 64)
        run_blocks<__nv_bfloat16, 64>(args, delta, backwards);
    else if (args->dtype == RP_DTYPE_FP16 && args->head_size == 128)
        run_blocks<__half, 128>(args, delta, backwards);
    else if (args->dtype == RP_DTYPE_FP16 && args->head_size == 64)
        run_blocks<__half, 64>(args, delta, backwards);
    else
        soft_fail("not a type or head size of tensor cores");
}
