/*
 * Once its ring has been through, the engine allocates nothing, whatever thread.
 */
#include "tests/exec/engine-fixture.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "exec/replay/replay.h"

/* Under sanitizers, which bring their own, nothing is counted; the test itself may be built without them. */
#define COUNTS !RP_TEST_SMALL

static _Atomic gboolean counting;
static _Atomic guint n_allocations;
static _Thread_local gboolean exempt; /* this thread plans */

#if COUNTS
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *memory, size_t size);

static void
count(void)
{
    if (atomic_load(&counting) && !exempt)
        atomic_fetch_add(&n_allocations, 1);
}

void *
malloc(size_t size)
{
    count();
    return __libc_malloc(size);
}

void *
calloc(size_t n, size_t size)
{
    count();
    return __libc_calloc(n, size);
}

void *
realloc(void *memory, size_t size)
{
    count();
    return __libc_realloc(memory, size);
}
#endif

static void
run_iterations(Fixture *f, guint n)
{
    for (guint k = 0; k < n; k++) {
        exempt = TRUE;
        plan_iteration(f);
        exempt = FALSE;
        append_batch(f);
    }
}

RP_TEST_OF(allocates_nothing_in_steady_state, Fixture *f)
{
    for (guint async = 0; async < 2; async++) {
        const RpPlanOptions options = {
            .schedule = rp_schedule_find("roundpipe", NULL),
            .gpus = 3,
            .micro_batches = 6,
            .round = 3,
            .async = async != 0,
            .fidelity = RP_FIDELITY_FULL,
        };

        if (!COUNTS)
            skip();
        assert_true(make_planner(f, &options, 8));
        f->replay = rp_replay_new(3, &(RpReplayOptions){.scale = 0});
        plan_iteration(f);
        start_engine(f, &(RpEngineOptions){.retire = TRUE});
        run_iterations(f, 20);
        atomic_store(&n_allocations, 0);
        atomic_store(&counting, TRUE);
        run_iterations(f, 100);
        assert_true(rp_engine_finish(f->engine, &f->error));
        atomic_store(&counting, FALSE);
        assert_int_equal(atomic_load(&n_allocations), 0);
    }
}

RP_TEST_FIXTURE(set_up, tear_down)
