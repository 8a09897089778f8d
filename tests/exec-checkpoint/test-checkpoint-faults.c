/* Tests sudden ends and full disks: a complete checkpoint stays complete. */
#include "tests/exec-checkpoint/checkpoint-fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SKIP 77

/* The step that is found; checks that it verifies and holds the saved data. 0 = none. */
static guint64
found_step(CheckpointFixture *f)
{
    g_clear_pointer(&f->path, g_free);
    f->path = rp_must(rp_checkpoint_find_last, f->output, NULL);
    if (f->path == NULL)
        return 0;
    guint64 step = g_ascii_strtoull(strrchr(f->path, '-') + 1, NULL, 10);
    gboolean holds = checkpoint_holds(f, f->path, step);
    rp_assert_no_error(f->error);
    assert_true(holds);
    return step;
}

/* ---- ends ---- */

RP_TEST_OF(survives_being_killed_at_any_time, CheckpointFixture *f)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(1);
    guint64 last = 0;

    f->options.keep = 2;
    for (guint i = 0; i < 100; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            for (guint64 step = last + 1;; step++)
                for (guint again = 0; again < 2; again++) /* new, then replaced */
                    if (!checkpoint_try_save(f, step, NULL))
                        _exit(1);
        }
        g_usleep((gulong)g_rand_int_range(rand, 100, 40000));
        kill(child, SIGKILL);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        guint64 step = found_step(f);
        assert_true(step >= last);
        last = step;
    }
    assert_true(checkpoint_save_step(f, last + 1));
    f->text = checkpoint_list(f->output);
    assert_null(strstr(f->text, ".tmp"));
}

/* Runs @child under ptrace until it enters its @calls-th system call, and kills it there. Returns:
 * 1 killed, 0 it ended before, SKIP not allowed here. */
static int
run_calls(CheckpointFixture *f, guint64 step, guint calls)
{
    pid_t child = fork();
    int status;

    assert_true(child >= 0);
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(SKIP);
        raise(SIGSTOP);
        _exit(checkpoint_try_save(f, step, NULL) ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    for (guint stop = 0; WIFSTOPPED(status) && stop < 2 * calls; stop++) {
        if (ptrace(PTRACE_SYSCALL, child, NULL, NULL) != 0)
            break;
        assert_int_equal(waitpid(child, &status, 0), child);
    }
    if (WIFEXITED(status)) {
        assert_true(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == SKIP);
        return WEXITSTATUS(status);
    }
    kill(child, SIGKILL);
    while (waitpid(child, &status, 0) == child && !WIFSIGNALED(status) && !WIFEXITED(status))
        ;
    return 1;
}

/* Kills a save of @step in front of each of its system calls in turn; sanitizers: of every fifth. */
static void
kill_at_each_call(CheckpointFixture *f, guint64 step)
{
    int outcome = 1;
    guint calls = 1;

    for (; outcome == 1; calls += RP_TEST_FEW ? 5 : 1) {
        assert_true(checkpoint_save_step(f, 1));
        assert_true(checkpoint_save_step(f, 2));
        outcome = run_calls(f, step, calls);
        if (outcome == SKIP)
            skip();
        guint64 found = found_step(f);
        assert_true(outcome == 0 ? found == step : found == 2 || found == step);
        if (found == step && step > 2)
            checkpoint_remove_tree(f->path);
    }
    assert_true(calls > 50);
    f->text = checkpoint_list(f->output);
    assert_null(strstr(f->text, ".tmp"));
}

RP_TEST_OF(killed_at_each_system_call_of_a_save_it_has_the_old_or_the_new, CheckpointFixture *f)
{
    f->options.keep = 2;
    kill_at_each_call(f, 3);
}

RP_TEST_OF(killed_at_each_system_call_of_a_replacement_it_has_that_step, CheckpointFixture *f)
{
    f->options.keep = 2;
    kill_at_each_call(f, 2);
}

/* ---- full disks ---- */

/* In a child: the save must fail with @code, leave checkpoint-1 and no temporary directory.
 * Returns: an exit status, explained in the test's assert. */
static int
failing_save(CheckpointFixture *f, RpCheckpointError code, const char *part)
{
    g_autoptr(GError) error = NULL;

    if (checkpoint_try_save(f, 2, &error))
        return 10;
    if (!g_error_matches(error, RP_CHECKPOINT_ERROR, (gint)code) ||
        strstr(error->message, part) == NULL || strchr(error->message, '\n') != NULL) {
        print_error("%s\n", error->message);
        return 11;
    }
    g_autofree char *list = checkpoint_list(f->output);
    if (strcmp(list, "checkpoint-1") != 0) {
        print_error("%s\n", list);
        return 12;
    }
    g_autofree char *path = g_build_filename(f->output, "checkpoint-1", NULL);
    return rp_checkpoint_verify(path, NULL) ? 0 : 13;
}

static int
exit_status(pid_t child)
{
    int status;

    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Limits files to @limit bytes: larger ones fail with an error, not a signal. */
static int
save_with_limit(CheckpointFixture *f, rlim_t limit)
{
    pid_t child = fork();

    if (child == 0) {
        struct rlimit size = {limit, limit};
        signal(SIGXFSZ, SIG_IGN);
        if (setrlimit(RLIMIT_FSIZE, &size) != 0)
            _exit(SKIP);
        _exit(failing_save(f, RP_CHECKPOINT_ERROR_WRITE, "File too large"));
    }
    return exit_status(child);
}

RP_TEST_OF(a_file_that_cannot_be_written_leaves_what_was_there, CheckpointFixture *f)
{
    g_autofree char *large = g_strnfill(1000000, ' ');
    rlim_t limit;

    checkpoint_write_text(f->model_dir, "tokenizer.json", large);
    assert_true(checkpoint_save_step(f, 1));
    /* the largest file but one is the optimizer's: every file is the first to fail once */
    for (limit = 0; limit < 999999; limit = limit * 2 + 1) {
        int status = save_with_limit(f, limit);
        if (status == SKIP) {
            g_clear_pointer(&large, g_free); /* skip() jumps */
            skip();
        }
        assert_int_equal(status, 0);
    }
    assert_true(checkpoint_save_step(f, 2));
    assert_true(checkpoint_holds(f, f->path, 2));
}

static gboolean
write_line(const char *path, const char *line)
{
    int fd = open(path, O_WRONLY);
    gboolean good = fd >= 0 && write(fd, line, strlen(line)) == (gssize)strlen(line);

    if (fd >= 0)
        close(fd);
    return good;
}

/* A small disk of one's own at f->output: as root, or where users may have namespaces. */
static gboolean
mount_disk(CheckpointFixture *f, const char *options)
{
    g_autofree char *uids = g_strdup_printf("0 %u 1", (guint)getuid());
    g_autofree char *gids = g_strdup_printf("0 %u 1", (guint)getgid());

    if (unshare(CLONE_NEWNS) != 0) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 ||
            !write_line("/proc/self/setgroups", "deny") ||
            !write_line("/proc/self/uid_map", uids) || !write_line("/proc/self/gid_map", gids))
            return FALSE;
    }
    return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           g_mkdir_with_parents(f->output, 0777) == 0 &&
           mount("none", f->output, "tmpfs", 0, options) == 0;
}

/* Saves step 1 on a disk with @options, then lets step 2 fail for lack of space. @fill: bytes put
 * onto the disk in between. */
static int
save_on_disk(CheckpointFixture *f, const char *options, guint n_inodes, gsize fill)
{
    pid_t child = fork();

    if (child == 0) {
        g_autofree char *names = g_build_filename(f->output, "checkpoint-1", "filler", NULL);
        g_autofree char *bytes = g_strnfill(fill, ' ');
        g_autofree char *remount = g_strdup_printf("nr_inodes=%u", n_inodes);
        if (!mount_disk(f, options))
            _exit(SKIP);
        if (!checkpoint_try_save(f, 1, NULL))
            _exit(20);
        if (fill > 0 && !g_file_set_contents(names, bytes, (gssize)fill, NULL))
            _exit(21);
        if (n_inodes > 0 && mount("none", f->output, "tmpfs", MS_REMOUNT, remount) != 0)
            _exit(SKIP);
        _exit(failing_save(f, RP_CHECKPOINT_ERROR_NO_SPACE, "checkpoint-2\": no space left"));
    }
    return exit_status(child);
}

RP_TEST_OF(a_disk_that_is_too_small_is_named_with_needed_and_free_bytes, CheckpointFixture *f)
{
    int status = save_on_disk(f, "size=1m", 0, 900000);

    if (status == SKIP)
        skip();
    assert_int_equal(status, 0);
}

RP_TEST_OF(a_disk_that_fills_up_while_writing_leaves_what_was_there, CheckpointFixture *f)
{
    guint used = 0;

    /* bytes are plenty, names run out: 2 to 11 more than the first checkpoint takes */
    assert_true(checkpoint_save_step(f, 1));
    g_autofree char *list = checkpoint_list(f->path);
    for (const char *at = list; at != NULL; at = strchr(at + 1, ' '))
        used++;
    checkpoint_remove_tree(f->output);
    for (guint more = 0; more < used; more++) {
        /* the disk's root, checkpoint-1 and its files */
        int status = save_on_disk(f, "size=64m,nr_inodes=1000", 2 + used + more, 0);
        if (status == SKIP) {
            g_clear_pointer(&list, g_free); /* skip() jumps */
            skip();
        }
        if (status != 0)
            print_error("%u more names\n", more);
        assert_int_equal(status, 0);
    }
}

/* Bytes of the files of one checkpoint, as the disk counts them. */
static gsize
checkpoint_blocks(CheckpointFixture *f)
{
    gsize sum = 0;

    assert_true(checkpoint_save_step(f, 1));
    g_autofree char *list = checkpoint_list(f->path);
    g_auto(GStrv) names = g_strsplit(list, " ", -1);
    for (guint i = 0; names[i] != NULL; i++) {
        g_autofree char *path = g_build_filename(f->path, names[i], NULL);
        struct stat status;
        assert_int_equal(stat(path, &status), 0);
        sum += ((gsize)status.st_size + 4095) / 4096 * 4096;
    }
    checkpoint_remove_tree(f->output);
    return sum;
}

/* Runs @work in a child, on a disk of @bytes; its result is the exit status. */
static int
on_disk(CheckpointFixture *f, gsize bytes, int (*work)(CheckpointFixture *))
{
    pid_t child = fork();

    if (child == 0) {
        g_autofree char *options = g_strdup_printf("size=%zu", bytes);
        _exit(mount_disk(f, options) ? work(f) : SKIP);
    }
    return exit_status(child);
}

/* Saves @step; checks which checkpoints were removed for space, and which are there and whole. */
static int
save_and_list(CheckpointFixture *f, guint64 step, const char *removed, const char *list)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *gone = NULL;

    fake_trainer_go_to(f->trainer, step);
    f->data = checkpoint_data(step);
    g_autofree char *path = rp_checkpoint_save(&f->options, f->trainer, &f->data, &gone, &error);
    g_autofree char *found = checkpoint_list(f->output);
    if (g_strcmp0(gone, removed) == 0 && strcmp(found, list) == 0 &&
        (path == NULL || checkpoint_holds(f, path, step)))
        return 0;
    print_error("step %u: %s; removed %s; there are %s\n", (guint)step,
                error != NULL ? error->message : "saved", gone, found);
    return 1;
}

static int
make_room(CheckpointFixture *f)
{
    f->options.keep = 3;
    return save_and_list(f, 1, NULL, "checkpoint-1") ||
           save_and_list(f, 2, NULL, "checkpoint-1 checkpoint-2") ||
           save_and_list(f, 3, "checkpoint-1", "checkpoint-2 checkpoint-3") ||
           save_and_list(f, 4, "checkpoint-2", "checkpoint-3 checkpoint-4") ||
           /* saves the same step: the one that is replaced stays until then */
           save_and_list(f, 4, "checkpoint-3", "checkpoint-4");
}

static int
keep_all(CheckpointFixture *f)
{
    f->options.keep = 0;
    return save_and_list(f, 1, NULL, "checkpoint-1") ||
           save_and_list(f, 2, NULL, "checkpoint-1 checkpoint-2") ||
           save_and_list(f, 3, NULL, "checkpoint-1 checkpoint-2");
}

/* A tokenizer for which there is no space, whatever is removed. */
static int
remove_none_in_vain(CheckpointFixture *f)
{
    g_autofree char *large = g_build_filename(f->model_dir, "tokenizer.json", NULL);
    g_autofree char *bytes = g_strnfill(1 << 20, ' ');

    f->options.keep = 3;
    if (save_and_list(f, 1, NULL, "checkpoint-1") ||
        save_and_list(f, 2, NULL, "checkpoint-1 checkpoint-2") ||
        !g_file_set_contents(large, bytes, 1 << 20, NULL))
        return 2;
    return save_and_list(f, 3, NULL, "checkpoint-1 checkpoint-2");
}

RP_TEST_OF(the_oldest_make_room_on_a_full_disk_and_the_last_never_does, CheckpointFixture *f)
{
    gsize one = checkpoint_blocks(f);
    /* the requested space is a little more than the space taken */
    int status = on_disk(f, 2 * one + one / 4 + 150000, make_room);

    if (status == SKIP)
        skip();
    assert_int_equal(status, 0);
    assert_int_equal(on_disk(f, 2 * one + one / 4 + 150000, keep_all), 0);
    assert_int_equal(on_disk(f, 2 * one + one / 4 + 150000, remove_none_in_vain), 0);
}

/* ---- weights alone ---- */

static int
save_weights(CheckpointFixture *f)
{
    g_autoptr(GError) error = NULL;

    if (save_and_list(f, 1, NULL, "checkpoint-1") || save_and_list(f, 2, NULL, "checkpoint-1"))
        return 1;
    for (guint again = 0; again < 2; again++) { /* made, then replaced */
        g_autofree char *path = rp_checkpoint_save_weights(&f->options, f->trainer, &error);
        if (path == NULL || !g_str_has_suffix(path, "/weights-2")) {
            print_error("%s\n", error != NULL ? error->message : path);
            return 2;
        }
        g_autofree char *list = checkpoint_list(path);
        g_autofree char *all = checkpoint_list(f->output);
        if (strcmp(list, "config.json model.safetensors tokenizer.json") != 0 ||
            strcmp(all, "checkpoint-1 weights-2") != 0) {
            print_error("%s; %s\n", list, all);
            return 3;
        }
        g_autoptr(RpSafetensors) tensors = rp_safetensors_open(path, NULL);
        RpModel config;
        if (tensors == NULL || !rp_hf_config_load(path, &config, NULL))
            return 4;
        g_autoptr(RpWeights) weights = rp_weights_new(&config);
        if (!rp_weights_bind(weights, tensors, NULL))
            return 5;
        float value = rp_trainer_weight(f->trainer, 0)[7];
        guint16 bits = rp_bf16_from_float(value);
        if (memcmp((const guint8 *)rp_weights_source(weights, 0)->data + 14, &bits, 2) != 0)
            return 6;
    }
    g_autofree char *last = rp_checkpoint_find_last(f->output, NULL, NULL);
    return last != NULL && g_str_has_suffix(last, "/checkpoint-1") ? 0 : 7;
}

RP_TEST_OF(weights_alone_fit_where_a_checkpoint_does_not, CheckpointFixture *f)
{
    checkpoint_write_text(f->model_dir, "tokenizer.json", "{}");
    gsize one = checkpoint_blocks(f);
    int status = on_disk(f, one + one / 2 + 70000, save_weights);

    if (status == SKIP)
        skip();
    assert_int_equal(status, 0);
}

/* If several weights are bad, the largest is named, whatever the order in which threads meet them. */
RP_TEST_OF(the_largest_weight_that_is_not_finite_is_named, CheckpointFixture *f)
{
    const RpWeights *weights = rp_network_weights(rp_trainer_network(f->trainer));
    const RpWeight *largest = rp_weights_nth(weights, 1);

    assert_true(checkpoint_save_step(f, 1));
    fake_trainer_go_to(f->trainer, 2);
    for (guint i = 1; i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);

        if (weight->tied)
            continue;
        ((float *)rp_trainer_weight(f->trainer, i))[0] = (float)INFINITY;
        if (weight->elements > largest->elements)
            largest = weight;
    }
    for (guint repeat = 0; repeat < 20; repeat++) {
        g_clear_error(&f->error);
        assert_null(rp_checkpoint_save(&f->options, f->trainer, &f->data, NULL, &f->error));
        assert_true(g_error_matches(f->error, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_WRITE));
        g_autofree char *expected =
            g_strconcat(": ", largest->name, ": expected finite weights in bf16, found inf", NULL);
        rp_assert_error_message_contains(f->error, expected);
        g_autofree char *list = checkpoint_list(f->output);
        assert_string_equal(list, "checkpoint-1");
    }
}

RP_TEST_FIXTURE(checkpoint_setup, checkpoint_teardown)
