#include "tests/exec-cuda/soft-blocks.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <vector>

#define MOST_THREADS 512
#define MOST_BYTES (227 * 1024)
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
    unsigned handed; /* its next words to hand over */
    bool ended;
};

static struct {
    Thread threads[MOST_THREADS];
    uint32_t words[2][MOST_THREADS][8];
    Meeting block, warps[MOST_THREADS / 32], some[16];
    alignas(16) unsigned char shared[MOST_BYTES];
    uint32_t shared_bytes; /* shared memory of the kernel */
    ucontext_t caller;
    std::function<void()> kernel;
    unsigned thread, count; /* this one, and a block's threads */
    SoftIndex number;
    int turn; /* its number among 32 within a pass of a warp */
    bool backwards;
} soft;

void
soft_fail(const char *why)
{
    fprintf(stderr, "soft-warps: block %u %u %u, thread %u: %s\n", soft.number.x, soft.number.y, soft.number.z,
            soft.thread, why);
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
    return soft.number;
}

/* The next thread of @warp's pass, or the caller behind the last. */
static ucontext_t *
next_context(unsigned warp)
{
    while (++soft.turn < 32) {
        soft.thread = warp * 32 + (unsigned)(soft.backwards ? 31 - soft.turn : soft.turn);
        if (!soft.threads[soft.thread].ended)
            return &soft.threads[soft.thread].context;
    }
    return &soft.caller;
}

/* Switches straight to the next thread, as each change of stacks calls the system twice for
 * signals. */
static void
yield()
{
    ucontext_t *own = &soft.threads[soft.thread].context;

    swapcontext(own, next_context(soft.thread / 32));
}

static void
meet(Meeting *meeting, int count, bool waits = true)
{
    const long over = meeting->over;

    if (++meeting->here == count) {
        meeting->here = 0;
        meeting->over++;
    }
    while (waits && meeting->over == over)
        yield();
}

void
soft_meet_block()
{
    meet(&soft.block, (int)soft.count);
}

void
soft_meet_some(int barrier, int threads, bool waits)
{
    meet(&soft.some[barrier], threads, waits);
}

void
soft_meet_warp()
{
    meet(&soft.warps[soft.thread / 32], 32);
}

uint32_t (*soft_words())[8]
{
    return &soft.words[soft.threads[soft.thread].handed][soft.thread / 32 * 32];
}

void
soft_words_end()
{
    soft.threads[soft.thread].handed ^= 1;
}

unsigned char *
soft_shared(uint32_t address, uint32_t bytes)
{
    if (address + bytes > soft.shared_bytes || address % bytes != 0)
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
    yield();
}

/* Runs a warp as far as it goes without others. Returns: whether one of its threads has not ended */
static bool
run_warp(unsigned warp)
{
    const ucontext_t *first;
    long over;

    do {
        over = soft.warps[warp].over;
        soft.turn = -1;
        first = next_context(warp);
        if (first != &soft.caller)
            swapcontext(&soft.caller, first);
    } while (soft.warps[warp].over != over);
    return first != &soft.caller;
}

static void
run_block(SoftIndex number, unsigned threads, bool backwards)
{
    const unsigned warps = threads / 32;
    bool more = true;

    soft.number = number;
    soft.count = threads;
    soft.backwards = backwards;
    soft.block = {};
    memset(soft.warps, 0, sizeof soft.warps);
    memset(soft.some, 0, sizeof soft.some);
    memset(soft.shared, 0xff, sizeof soft.shared);
    for (unsigned i = 0; i < threads; i++) {
        Thread &thread = soft.threads[i];

        thread.stack.resize(STACK_BYTES);
        thread.ended = false;
        thread.handed = 0;
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack.data();
        thread.context.uc_stack.ss_size = thread.stack.size();
        makecontext(&thread.context, run_thread, 0);
    }
    while (more) {
        more = false;
        for (unsigned i = 0; i < warps; i++)
            more = run_warp(backwards ? warps - 1 - i : i) || more;
    }
}

/* One swath. */
bool
attention_grid(const RpAttentionArgs *args, size_t heads, size_t rows, size_t unit_bytes,
               AttentionGrid *grid)
{
    grid->heads = (unsigned)heads;
    grid->units = grid->swath = (unsigned)(args->sequences * heads);
    grid->blocks = (unsigned)((args->max_length + rows - 1) / rows);
    grid->window = args->window > 0 ? (int)args->window : INT_MAX;
    grid->scale_log2 = args->scale * (float)M_LOG2E;
    return true;
}

/* Symbols that the kernels are linked with; nothing is launched here. */
cudaError_t
attention_allow_shared(const void *kernel, int bytes, std::atomic<uint64_t> *done)
{
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t
cudaLaunchKernel(const void *kernel, dim3 blocks, dim3 threads, void **arguments, size_t bytes,
                 cudaStream_t stream)
{
    return cudaErrorInvalidValue;
}

void
soft_run(SoftIndex grid, unsigned threads, uint32_t shared_bytes, const std::function<void()> &kernel,
         bool backwards)
{
    if (shared_bytes > MOST_BYTES)
        soft_fail("more shared memory than a card has");
    soft.shared_bytes = shared_bytes;
    soft.kernel = kernel;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++)
                run_block({x, y, z}, threads, backwards);
}

void
soft_run_blocks(const RpAttentionArgs *args, const float *delta, const SoftKernel &kernel,
                bool backwards)
{
    std::vector<unsigned> counts(args->heads * args->tokens), numbers(1);
    std::vector<float> sums(args->heads * args->tokens * args->head_size, NAN);
    const BackwardScratch scratch = {(float *)delta, counts.data(), numbers.data(), sums.data()};
    AttentionGrid grid;

    attention_grid(args, args->kv_heads, kernel.keys, 0, &grid);
    soft_run({grid.units * grid.blocks, 1, 1}, 256, kernel.shared_bytes,
             [&] { kernel.run(*args, grid, scratch, numbers.data()); }, backwards);
}
