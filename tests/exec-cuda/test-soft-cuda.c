/* Tests the CUDA backend over a CUDA of threads, with faults that a GPU cannot be made to have. */
#include "tests/exec-train/overflow.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "exec/cuda/backend.h"
#include "exec/cuda/host-arena.h"
#include "tests/exec-cuda/soft-cuda.h"

typedef struct {
    RpTinyModel *model;
    RpTrainer *trainer;
    RpCudaHostArena *arena;
    struct rlimit lock_limit; /* before the test */
    guint n_left;             /* trainers that could not be freed at first */
    GError *error;
} Fixture;

static int
set_up(void **state)
{
    Fixture *f = g_new0(Fixture, 1);

    f->model = rp_tiny_model_new(FALSE);
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &f->lock_limit), 0);
    *state = f;
    return 0;
}

static int
tear_down(void **state)
{
    Fixture *f = *state;
    const struct rlimit lock_limit = f->lock_limit;

    rp_trainer_free(f->trainer);
    rp_cuda_host_arena_free(f->arena);
    g_clear_error(&f->error);
    rp_tiny_model_free(f->model);
    g_free(f);
    soft_cuda_fail_at(0);
    soft_cuda_answer(SOFT_CUDA_GIVES);
    soft_cuda_bound_queues(0, FALSE);
    soft_cuda_tell_late(0);
    soft_cuda_delay(0);
    soft_cuda_allow_pins(G_MAXUINT);
    return setrlimit(RLIMIT_MEMLOCK, &lock_limit);
}

static const RpTinyRun *
runs(void)
{
    static RpTinyRun table[2];

    table[0] = (RpTinyRun){"roundpipe", 2, 4, .backend = rp_cuda_devices(), .async = TRUE};
    table[1] = (RpTinyRun){"1f1b", 2, 4, .backend = rp_cuda_devices()};
    return table;
}

/* Bit for bit: the kernels are the host's. */
RP_TEST_OF(gives_the_bits_of_the_host, Fixture *f)
{
    for (guint i = 0; i < 2; i++) {
        RpTinyRun host = runs()[i];
        g_autofree char *found = rp_tiny_run_hash(f->model, &runs()[i], 4);

        host.backend = NULL;
        g_autofree char *expected = rp_tiny_run_hash(f->model, &host, 4);
        assert_string_equal(found, expected);
        assert_int_equal(soft_cuda_n_left(), 0);
    }
}

/* Saved values of forwards go down and up, and change no bit. */
RP_TEST_OF(saves_to_the_bits_of_the_host, Fixture *f)
{
    RpTinyRun run = runs()[0];

    run.saved = (1u << RP_N_SAVED_GROUPS) - 1;
    run.dtype = RP_DTYPE_BF16;
    run.n_stages = 1;
    g_autofree char *found = rp_tiny_run_hash(f->model, &run, 4);
    run.backend = NULL;
    run.saved = 0;
    g_autofree char *expected = rp_tiny_run_hash(f->model, &run, 4);
    assert_string_equal(found, expected);
    assert_int_equal(soft_cuda_n_left(), 0);
}

RP_TEST_OF(packs_samples_to_the_bits_of_the_host, Fixture *f)
{
    for (guint i = 0; i < 2; i++) {
        RpTinyRun cuda = runs()[i], host, unpacked;

        cuda.packed = TRUE;
        host = unpacked = cuda;
        host.backend = unpacked.backend = NULL;
        unpacked.packed = FALSE;
        g_autofree char *found = rp_tiny_run_hash(f->model, &cuda, 4);
        g_autofree char *expected = rp_tiny_run_hash(f->model, &host, 4);
        g_autofree char *other = rp_tiny_run_hash(f->model, &unpacked, 4);
        assert_string_equal(found, expected);
        assert_string_not_equal(found, other);
        assert_int_equal(soft_cuda_n_left(), 0);
    }
}

RP_TEST(trains_adapters_to_the_bits_of_the_host)
{
    static const RpDtype dtypes[] = {RP_DTYPE_FP32, RP_DTYPE_BF16, RP_DTYPE_FP16};
    Fixture *f = *state;

    for (guint d = RP_TEST_FEW ? 2 : 0; d < G_N_ELEMENTS(dtypes); d++) {
        rp_tiny_model_adapt(f->model, 3, NULL, dtypes[d]);
        for (guint i = 0; i < 2; i++) {
            RpTinyRun cuda = runs()[i], host;

            cuda.dtype = dtypes[d];
            host = cuda;
            host.backend = NULL;
            g_autofree char *found = rp_tiny_run_hash(f->model, &cuda, 4);
            g_autofree char *expected = rp_tiny_run_hash(f->model, &host, 4);
            assert_string_equal(found, expected);
            assert_int_equal(soft_cuda_n_left(), 0);
        }
    }
}

RP_TEST(expands_packed_weights_to_the_bits_of_the_host)
{
    static const RpDtype dtypes[] = {RP_DTYPE_FP32, RP_DTYPE_BF16, RP_DTYPE_FP16};
    Fixture *f = *state;

    for (guint format = 0; format < (RP_TEST_FEW ? 1 : RP_N_LOWBITS); format++) {
        const RpDtype dtype = dtypes[format % G_N_ELEMENTS(dtypes)];

        rp_tiny_model_adapt(f->model, 3, NULL, dtype);
        rp_tiny_model_pack(f->model, (RpLowbit)format);
        for (guint i = 0; i < 2; i++) {
            RpTinyRun cuda = runs()[i], host;

            cuda.dtype = dtype;
            host = cuda;
            host.backend = NULL;
            g_autofree char *found = rp_tiny_run_hash(f->model, &cuda, 4);
            g_autofree char *expected = rp_tiny_run_hash(f->model, &host, 4);
            assert_string_equal(found, expected);
            assert_int_equal(soft_cuda_n_left(), 0);
        }
    }
}

/* On the device where the next round of a stage follows there (one stage, one device), else on the
 * host. */
RP_TEST_OF(sums_rounds_to_the_bits_of_the_host, Fixture *f)
{
    for (guint devices = 1; devices <= 3; devices++) {
        RpTinyRun run = {"roundpipe",
                         devices,
                         12,
                         .round = 3,
                         .n_stages = 6,
                         .dtype = RP_DTYPE_BF16,
                         .async = devices != 2,
                         .backend = rp_cuda_shared_devices()};
        const guint steps = RP_TEST_FEW ? 2 : 4;
        g_autofree char *found = rp_tiny_run_hash(f->model, &run, steps);

        run.backend = NULL;
        g_autofree char *expected = rp_tiny_run_hash(f->model, &run, steps);
        assert_string_equal(found, expected);
    }
}

#define NS_PER_S G_GINT64_CONSTANT(1000000000)
#define STEPS 3
#define CALM_STEPS 6 /* until the engine issues nothing new */

/* @n steps of @batches, which are made; FALSE with the fixture's error where one fails. */
static gboolean
run_steps(Fixture *f, const RpTinyRun *run, RpTokenBatch **batches, guint n)
{
    gboolean done = TRUE;

    for (guint i = 0; i < n && done; i++) {
        batches[i] = rp_tiny_batch(i, 0, run->micro_batches);
        done = rp_trainer_forward_backward(f->trainer, batches[i], NULL, &f->error) &&
               rp_trainer_step(f->trainer, &f->error);
    }
    return done && rp_trainer_flush(f->trainer, &f->error);
}

static void
end(Fixture *f, RpTokenBatch **batches, guint n)
{
    if (!rp_trainer_free(f->trainer)) {
        f->n_left++;
        soft_cuda_fail_at(0); /* lets threads go */
        assert_true(rp_trainer_free(f->trainer));
    }
    f->trainer = NULL;
    for (guint i = 0; i < n; i++)
        rp_token_batch_free(batches[i]);
}

static gboolean
train(Fixture *f, const RpTinyRun *run)
{
    RpTokenBatch *batches[STEPS] = {NULL};
    gboolean done;

    f->trainer = rp_tiny_trainer(f->model, run, &f->error);
    done = f->trainer != NULL && run_steps(f, run, batches, STEPS);
    end(f, batches, STEPS);
    return done;
}

/* The same with steps before, in whose wake work @n of @device fails. */
static gboolean
train_until_failure(Fixture *f, const RpTinyRun *run, guint device, guint64 n, gboolean lose_events)
{
    RpTokenBatch *batches[CALM_STEPS + STEPS] = {NULL};
    gboolean done;

    soft_cuda_fail_at(0);
    f->trainer = rp_must(rp_tiny_trainer, f->model, run);
    done = run_steps(f, run, batches, CALM_STEPS);
    rp_assert_no_error(f->error);
    assert_true(done);
    soft_cuda_fail_device_at(device, n, lose_events);
    done = run_steps(f, run, batches + CALM_STEPS, STEPS);
    end(f, batches, CALM_STEPS + STEPS);
    return done;
}

RP_TEST_OF(ends_cleanly_whenever_cuda_fails, Fixture *f)
{
    for (guint i = 0; i < 2; i++)
        for (guint64 n = 1; n < 3000; n = RP_TEST_FEW ? n * 4 : n * 5 / 3 + 1) {
            soft_cuda_fail_at(n);
            assert_false(train(f, &runs()[i]));
            rp_assert_error_message_contains(f->error, "illegal memory access");
            rp_assert_error(&f->error, "device ");
            assert_int_equal(soft_cuda_n_left(), 0);
        }
}

/* The other device's worker, streams and memory end as well. */
RP_TEST_OF(names_the_one_device_that_fails, Fixture *f)
{
    for (guint i = 0; i < 2; i++)
        for (guint device = 0; device < 2; device++)
            for (guint64 n = 1; n < 1000; n = n * (RP_TEST_FEW ? 100 : 3) + 1) {
                g_autofree char *name = g_strdup_printf("device %u: ", device);

                assert_false(train_until_failure(f, &runs()[i], device, n, FALSE));
                rp_assert_error_message_contains(f->error, " lane: ");
                rp_assert_error_message_contains(f->error, name);
                rp_assert_error(&f->error, "illegal memory access");
                assert_int_equal(soft_cuda_n_left(), 0);
            }
}

RP_TEST_OF(says_that_a_device_is_busy, Fixture *f)
{
    soft_cuda_answer(SOFT_CUDA_IS_BUSY);
    assert_false(train(f, &runs()[0]));
    rp_assert_error_message_contains(f->error, "device 0: ");
    rp_assert_error_message_contains(f->error, "busy or unavailable");
    rp_assert_error_message_contains(f->error, "nvidia-smi");
    assert_int_equal(soft_cuda_n_left(), 0);
}

RP_TEST_OF(says_how_much_memory_is_wanted_and_free, Fixture *f)
{
    soft_cuda_answer(SOFT_CUDA_IS_FULL);
    assert_false(train(f, &runs()[0]));
    rp_assert_error_message_contains(f->error, "device 0: the plan needs ");
    rp_assert_error_message_contains(f->error, " bytes, of 1073741824 bytes 1073741824 are free");
    rp_assert_error_message_contains(f->error, "smaller micro-batches");
    assert_int_equal(soft_cuda_n_left(), 0);
}

/* ---- pinned memory ---- */

#define PIECES 5

/* An arena of @n pieces of a page. */
static guint64
make_arena(Fixture *f, guint n)
{
    const guint64 page = (guint64)sysconf(_SC_PAGESIZE);
    RpCudaSpan unpinned[PIECES];

    assert_true(n <= PIECES);
    for (guint i = 0; i < n; i++)
        unpinned[i] = (RpCudaSpan){.offset = (2 * i + 1) * page, .bytes = page};
    f->arena = rp_cuda_host_arena_new(2 * n * page, unpinned, n, 0, NULL, NULL, &f->error);
    return page;
}

/* FALSE where the system allows no such limit. */
static gboolean
limit_locks(const Fixture *f, guint64 bytes)
{
    const struct rlimit limit = {.rlim_cur = bytes, .rlim_max = f->lock_limit.rlim_max};

    return setrlimit(RLIMIT_MEMLOCK, &limit) == 0;
}

RP_TEST_OF(gives_up_at_once_where_the_lock_limit_binds, Fixture *f)
{
    if (!limit_locks(f, 4096))
        skip();
    soft_cuda_allow_pins(0);
    make_arena(f, PIECES);
    assert_null(f->arena);
    rp_assert_error_message_contains(f->error, "cannot pin host memory (");
    rp_assert_error_message_contains(f->error, " bytes at offset 0 of ");
    rp_assert_error_message_contains(f->error, "lock limit (ulimit -l): 4096 bytes; ");
    assert_int_equal(soft_cuda_n_pins(), 1);
    assert_int_equal(soft_cuda_n_left(), 0);
    assert_false(soft_cuda_error_is_left());
}

/* One page more than the limit allows. */
RP_TEST_OF(tries_to_pin_more_than_the_lock_limit, Fixture *f)
{
    const guint64 page = (guint64)sysconf(_SC_PAGESIZE);
    const guint64 cases[][2] = {/* limit, pinned */
                                {0, page},
                                {page - 1, page},
                                {page, 2 * page},
                                {3 * page, 4 * page},
                                {3 * page + 1, 4 * page}};

    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        if (!limit_locks(f, cases[i][0]))
            skip();
        soft_cuda_allow_pins(G_MAXUINT);
        f->arena = rp_must(rp_cuda_host_arena_new, 64 * page, NULL, 0, 0, NULL, NULL);
        assert_true(rp_cuda_host_arena_finish(f->arena, &f->error));
        assert_int_equal(soft_cuda_first_pin(), cases[i][1]);
        assert_int_equal(soft_cuda_n_pins(), 2);
        g_clear_pointer(&f->arena, rp_cuda_host_arena_free);
        assert_int_equal(soft_cuda_n_left(), 0);
    }
}

/* Memory between pieces is not to be pinned. */
RP_TEST_OF(tries_to_pin_no_more_than_the_first_piece, Fixture *f)
{
    const guint64 page = (guint64)sysconf(_SC_PAGESIZE);

    if (!limit_locks(f, 3 * page))
        skip();
    soft_cuda_allow_pins(G_MAXUINT);
    make_arena(f, PIECES);
    rp_assert_no_error(f->error);
    assert_true(rp_cuda_host_arena_finish(f->arena, &f->error));
    assert_int_equal(soft_cuda_first_pin(), page);
    assert_int_equal(soft_cuda_n_pins(), 1 + PIECES);
}

RP_TEST_OF(pins_all_where_the_lock_limit_does_not_bind, Fixture *f)
{
    assert_true(limit_locks(f, 0));
    for (guint n = 1; n <= PIECES; n += PIECES - 1) {
        soft_cuda_allow_pins(G_MAXUINT);
        const guint64 page = make_arena(f, n);
        rp_assert_no_error(f->error);
        assert_true(rp_cuda_host_arena_finish(f->arena, &f->error));
        assert_int_equal(soft_cuda_n_pins(), 1 + n); /* a trial, and each piece */
        assert_int_equal(rp_cuda_host_arena_report(f->arena).pinned_bytes, n * page);
        assert_true(rp_cuda_host_arena_report(f->arena).threads > 0);
        assert_true(rp_cuda_host_arena_report(f->arena).seconds > 0);
        g_clear_pointer(&f->arena, rp_cuda_host_arena_free);
        assert_int_equal(soft_cuda_n_left(), 0);
    }
}

RP_TEST_OF(goes_on_beside_the_caller_below_the_lock_limit, Fixture *f)
{
    if (!limit_locks(f, PIECES * (guint64)sysconf(_SC_PAGESIZE)))
        skip();
    soft_cuda_allow_pins(0);
    make_arena(f, PIECES);
    rp_assert_no_error(f->error);
    rp_refuses("cannot pin host memory (", rp_cuda_host_arena_finish, f->arena);
    g_clear_pointer(&f->arena, rp_cuda_host_arena_free);
    assert_int_equal(soft_cuda_n_left(), 0);
}

RP_TEST_OF(a_run_that_cannot_pin_its_memory_ends_cleanly, Fixture *f)
{
    assert_true(limit_locks(f, 0));
    for (guint n = 0; n < 2; n++) { /* the trial fails, or the first piece */
        soft_cuda_allow_pins(n);
        assert_false(train(f, &runs()[0]));
        rp_assert_error(&f->error, "cannot pin host memory (");
        assert_int_equal(soft_cuda_n_left(), 0);
    }
}

RP_TEST_OF(a_run_tells_what_was_pinned, Fixture *f)
{
    RpTinyRun run = runs()[0];

    f->trainer = rp_must(rp_tiny_trainer, f->model, &run);
    const RpPinnedMemory pinned = rp_trainer_pinned(f->trainer);
    assert_true(pinned.pinned_bytes > 0 && pinned.pinned_bytes < pinned.arena_bytes);
    assert_true(pinned.arena_bytes >= rp_trainer_arena_bytes(f->trainer, run.devices));
    assert_true(pinned.threads > 0 && pinned.seconds > 0);
    assert_true(pinned.touch_seconds > 0 && pinned.pin_seconds > 0);
    g_clear_pointer(&f->trainer, rp_trainer_free);
    run.backend = NULL; /* threads: nothing is */
    f->trainer = rp_must(rp_tiny_trainer, f->model, &run);
    assert_int_equal(rp_trainer_pinned(f->trainer).pinned_bytes, 0);
}

static void
sum_losses(gpointer user_data, const RpStepReport *report)
{
    *(double *)user_data += report->loss;
}

/* More micro-batches than there are slots for token ids and targets, whose copies are slow. */
RP_TEST_OF(waits_for_copies_and_losses_that_take_long, Fixture *f)
{
    double found = 0, expected = 0;
    RpTinyRun run = {
        "roundpipe",        2, 80, .backend = rp_cuda_devices(), .async = TRUE, .done = sum_losses,
        .user_data = &found};

    soft_cuda_delay(200000);
    assert_true(train(f, &run));
    soft_cuda_delay(0);
    run.backend = NULL;
    run.user_data = &expected;
    assert_true(train(f, &run));
    assert_true(found > 0 && found == expected);
}

/* Like tests/exec-train/test-trainer.c, with tokens that go up long after the call. */
RP_TEST_OF(has_read_a_batch_when_its_call_returns, Fixture *f)
{
    const RpTinyRun run = runs()[0];
    g_autofree char *expected = rp_tiny_run_hash(f->model, &run, 4);

    f->trainer = rp_must(rp_tiny_trainer, f->model, &run);
    soft_cuda_delay(2000000);
    rp_tiny_train_overwriting(f->trainer, &run, 4);
    soft_cuda_delay(0);
    g_autofree char *found = rp_tiny_hash(f->trainer);
    assert_string_equal(found, expected);
}

/* The bits of the host: a step is skipped or not by the same values. */
RP_TEST_OF(skips_a_step_whose_forward_overflows, Fixture *f)
{
    for (guint async = RP_TEST_FEW ? 1 : 0; async < 2; async++) {
        g_autofree char *expected =
            rp_overflow_check_skips(f->model, rp_host_devices(), async != 0);
        g_autofree char *found =
            rp_overflow_check_skips(f->model, rp_cuda_shared_devices(), async != 0);

        assert_string_equal(found, expected);
    }
}

RP_TEST_OF(gives_up_after_so_many_skipped_steps, Fixture *f)
{
    rp_overflow_check_gives_up(f->model, rp_cuda_shared_devices());
}

/* ---- the last ones: leave something behind ---- */

static gint64
clock_ns(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * NS_PER_S + time.tv_nsec;
}

/* Trains until work @n of device 1 fails, then frees, with limits of time for both. Returns:
 * whether threads were left, which then come back */
static gboolean
fail_in_time(Fixture *f, const RpTinyRun *run, guint64 n)
{
    RpTokenBatch *batches[CALM_STEPS + STEPS] = {NULL};
    gint64 failed_ns;
    gboolean left;

    f->trainer = rp_must(rp_tiny_trainer, f->model, run);
    assert_true(run_steps(f, run, batches, CALM_STEPS));
    soft_cuda_fail_device_at(1, n, TRUE);
    assert_false(run_steps(f, run, batches + CALM_STEPS, STEPS));
    failed_ns = soft_cuda_failed_ns();
    assert_true(clock_ns() - failed_ns < 2 * NS_PER_S);
    rp_assert_error_message_contains(f->error, "device 1: ");
    rp_assert_error(&f->error, "illegal memory access");
    left = !rp_trainer_free(f->trainer);
    assert_true(clock_ns() - failed_ns < 10 * NS_PER_S);
    if (left) {
        assert_true(soft_cuda_n_blocked() > 0);
        soft_cuda_fail_at(0);
        assert_true(rp_trainer_free(f->trainer));
    }
    f->trainer = NULL;
    for (guint i = 0; i < CALM_STEPS + STEPS; i++)
        rp_token_batch_free(batches[i]);
    return left;
}

/* Workers are inside a full queue of device 0, which waits for events of device 1 that never
 * come. */
RP_TEST_OF(tells_at_once_of_a_failure_that_keeps_threads_for_ever, Fixture *f)
{
    guint n_left = 0;

    soft_cuda_tell_late(NS_PER_S / 20);
    for (guint hold = 0; hold < 2; hold++)
        for (guint64 n = 20; n < 400; n += 330) {
            soft_cuda_bound_queues(96, hold == 1);
            n_left += (guint)fail_in_time(f, &runs()[hold], n);
            soft_cuda_fail_at(0);
        }
    assert_true(n_left > 0);
}

/* Streams of device 0 wait for events of device 1 that never come. Their memory is lost. */
RP_TEST_OF(ends_although_the_other_device_waits_for_ever, Fixture *f)
{
    soft_cuda_tell_late(NS_PER_S / 20);
    for (guint i = 0; i < 2; i++) {
        assert_false(train_until_failure(f, &runs()[i], 1, 400, TRUE));
        rp_assert_error_message_contains(f->error, "device 1: ");
        rp_assert_error(&f->error, "illegal memory access");
    }
    assert_true(f->n_left > 0 || soft_cuda_n_left() > 0); /* or none has waited */
}

RP_TEST_FIXTURE(set_up, tear_down)
