/* Checkpoints written beside training: from a copy, in a thread of their own. */
#include "tests/exec-checkpoint/checkpoint-fixture.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- a disk that takes as long as a test wants ---- */

/* not GLib's, of which the thread sanitizer knows nothing */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static gboolean closed; /* syncs wait */
static guint n_waiting; /* number of waiting threads */

int fsync(int fd);

int
fsync(int fd)
{
    pthread_mutex_lock(&mutex);
    n_waiting += closed;
    pthread_cond_broadcast(&changed);
    while (closed)
        pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
    return (int)syscall(SYS_fsync, fd);
}

static void
close_gate(void)
{
    pthread_mutex_lock(&mutex);
    closed = TRUE;
    n_waiting = 0;
    pthread_mutex_unlock(&mutex);
}

/* Waits until a sync waits. */
static void
wait_at_gate(void)
{
    pthread_mutex_lock(&mutex);
    while (n_waiting == 0)
        pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
}

static void
open_gate(void)
{
    pthread_mutex_lock(&mutex);
    closed = FALSE;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

/* ---- tests ---- */

static RpCheckpointBeside *
new_beside(CheckpointFixture *f)
{
    const RpNetwork *network = rp_trainer_network(f->trainer);

    return rp_checkpoint_beside_new(
        rp_checkpoint_copy_bytes(rp_network_weights(network), rp_network_options(network)->dtype,
                                 RP_STATE_FORMAT_FP32, rp_trainer_is_async(f->trainer), 1),
        &f->error);
}

/* The trainer goes to @step, and its checkpoint is begun. */
static void
begin(CheckpointFixture *f, RpCheckpointBeside *beside, guint64 step)
{
    const RpDataState data = checkpoint_data(step);

    fake_trainer_go_to(f->trainer, step);
    assert_true(rp_checkpoint_beside_begin(beside, &f->options, f->trainer, &data));
    assert_true(rp_checkpoint_beside_is_writing(beside));
}

static void
same_files(CheckpointFixture *f, const char *expected, const char *found)
{
    GHashTable *files;
    GHashTableIter each;
    gpointer name, bytes;

    checkpoint_load(f, expected);
    files = g_steal_pointer(&f->files);
    checkpoint_load(f, found);
    assert_int_equal(g_hash_table_size(files), g_hash_table_size(f->files));
    g_hash_table_iter_init(&each, files);
    while (g_hash_table_iter_next(&each, &name, &bytes)) {
        GBytes *other = g_hash_table_lookup(f->files, name);
        if (other == NULL || !g_bytes_equal(bytes, other))
            fail_msg("%s differs", (const char *)name);
    }
    g_hash_table_unref(files);
}

RP_TEST_OF(has_the_bytes_of_one_in_place_however_the_trainer_goes_on, CheckpointFixture *f)
{
    static const struct {
        RpDtype dtype;
        gboolean async, tied;
    } kinds[] = {{RP_DTYPE_BF16, TRUE, TRUE},
                 {RP_DTYPE_BF16, FALSE, FALSE},
                 {RP_DTYPE_FP32, TRUE, FALSE},
                 {RP_DTYPE_FP16, TRUE, TRUE}};

    for (gsize i = 0; i < G_N_ELEMENTS(kinds); i++) {
        RpModel config = checkpoint_config(kinds[i].tied);
        g_autofree char *place = g_strdup_printf("%s-place-%zu", f->output, i);
        g_autofree char *aside = g_strdup_printf("%s-beside-%zu", f->output, i);
        g_auto(RpCheckpointWritten) written = {0};

        fake_trainer_free(f->trainer);
        f->trainer = fake_trainer_new(&config, kinds[i].dtype, kinds[i].async);
        g_autoptr(RpCheckpointBeside) beside = new_beside(f);
        assert_non_null(beside);
        f->options.output = place;
        assert_true(checkpoint_save_step(f, 3));
        f->options.output = aside;
        close_gate();
        begin(f, beside, 3);
        fake_trainer_go_to(f->trainer, 4);
        wait_at_gate();
        fake_trainer_go_to(f->trainer, 5);
        assert_false(rp_checkpoint_beside_is_over(beside));
        open_gate();
        rp_checkpoint_beside_end(beside, &written);
        assert_null(written.error);
        assert_int_equal(written.step, 3);
        assert_true(written.seconds > 0);
        assert_true(g_str_has_suffix(written.path, "/checkpoint-3"));
        same_files(f, f->path, written.path);
        f->options.output = f->output;
    }
}

RP_TEST_OF(one_follows_another_into_the_same_memory, CheckpointFixture *f)
{
    g_autoptr(RpCheckpointBeside) beside = new_beside(f);

    f->options.keep = 2;
    for (guint64 step = 1; step <= 4; step++) {
        g_auto(RpCheckpointWritten) written = {0};

        begin(f, beside, step);
        fake_trainer_go_to(f->trainer, 100 + step);
        rp_checkpoint_beside_end(beside, &written);
        assert_false(rp_checkpoint_beside_is_writing(beside));
        assert_non_null(written.path);
        assert_true(checkpoint_holds(f, written.path, step));
    }
    f->text = checkpoint_list(f->output);
    assert_string_equal(f->text, "checkpoint-3 checkpoint-4");
}

RP_TEST_OF(tells_the_error_of_a_write_and_leaves_nothing_of_it, CheckpointFixture *f)
{
    g_autoptr(RpCheckpointBeside) beside = new_beside(f);
    g_autofree char *file = g_build_filename(f->directory, "file", NULL);
    g_auto(RpCheckpointWritten) refused = {0}, written = {0};

    checkpoint_write_text(f->directory, "file", "no directory");
    f->options.output = file;
    begin(f, beside, 1);
    rp_checkpoint_beside_end(beside, &refused);
    f->options.output = f->output;
    assert_null(refused.path);
    assert_true(g_error_matches(refused.error, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_WRITE));
    assert_non_null(strstr(refused.error->message, "/file"));
    /* and the next is written */
    begin(f, beside, 2);
    rp_checkpoint_beside_end(beside, &written);
    assert_null(written.error);
    assert_true(checkpoint_holds(f, written.path, 2));
}

RP_TEST_OF(is_over_when_it_is_freed, CheckpointFixture *f)
{
    RpCheckpointBeside *beside = new_beside(f);
    g_autofree char *path = g_build_filename(f->output, "checkpoint-7", NULL);

    begin(f, beside, 7);
    rp_checkpoint_beside_free(beside);
    assert_true(checkpoint_holds(f, path, 7));
}

RP_TEST_OF(refuses_memory_that_is_not_there, CheckpointFixture *f)
{
    RpCheckpointBeside *beside = rp_checkpoint_beside_new((guint64)1 << 62, &f->error);

    assert_null(beside);
    assert_true(g_error_matches(f->error, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_MEMORY));
    assert_non_null(strstr(f->error->message, "needs 4611686018427387904 bytes of host memory"));
}

RP_TEST_FIXTURE(checkpoint_setup, checkpoint_teardown)
