/* `roundpipe train` under limits of memory: a run that does not fit is refused with the limit's
 * name and file, and none waits for ever. */
#include "tests/cli/train-files.h"

/* Kilobytes of address space, as `ulimit -v` takes them, in which a run starts, and has room for a
 * few hundred megabytes: a program with GPU code maps CUDA's libraries, too. */
static guint
room(void)
{
    g_auto(RpCliRun) version = rp_cli_run("--version");

    return strstr(version.out, "GPU code: CUDA") != NULL ? 2400000 : 900000;
}

static void
refuse(const char *options, const char *const *parts)
{
    const guint kilobytes = room();
    g_auto(RpCliRun) run = rp_cli_shell(
        "ulimit -v %u; exec timeout 60 $ROUNDPIPE train @T/run.yaml --set output=@T/no %s",
        kilobytes, options);
    gboolean told = run.code == 1 && strchr(run.err, '\n') == run.err + strlen(run.err) - 1;

    for (; *parts != NULL; parts++)
        told = told && strstr(run.err, *parts) != NULL;
    if (!told)
        fail_msg("%s: exit code %d (124: it waits for ever): %s", options, run.code, run.err);
}

static void
arenas_beyond_the_address_space_are_refused_by_name(void **state)
{
    static const char *const parts[] = {"host memory", "RLIMIT_AS (/proc/self/limits)", NULL};
    const char *wide =
        "--set devices=host:2 --set sequence_length=2048 --set micro_batch_size=1024 "
        "--set micro_batches=16 --set round=16";

    (void)state;
    refuse(wide, parts);
    refuse("--set devices=host:2 --set sequence_length=2048 --set micro_batch_size=1024 "
           "--set micro_batches=16 --set round=16 --set host_memory=100GiB",
           parts);
}

/* Arenas fit; the buffers of eight threads that multiply do not. */
static void
matmuls_without_room_are_refused_before_the_first_step(void **state)
{
    static const char *const many[] = {"matmuls of 24 devices need 24 x ", "use fewer devices",
                                       "RLIMIT_AS (/proc/self/limits)", NULL};

    (void)state;
    refuse("--set devices=host:24 --set micro_batches=24 --set round=24", many);
}

static void
a_limit_that_leaves_room_is_no_reason_to_refuse(void **state)
{
    g_auto(RpCliRun) run = rp_cli_shell(
        "ulimit -v 8000000; exec $ROUNDPIPE train @T/run.yaml --set output=@T/yes --set steps=2");

    (void)state;
    if (run.code != 0)
        fail_msg("exit code %d: %s", run.code, run.err);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arenas_beyond_the_address_space_are_refused_by_name),
        cmocka_unit_test(matmuls_without_room_are_refused_before_the_first_step),
        cmocka_unit_test(a_limit_that_leaves_room_is_no_reason_to_refuse),
    };

    return cmocka_run_group_tests(tests, rp_train_files_setup, rp_train_files_teardown);
}
