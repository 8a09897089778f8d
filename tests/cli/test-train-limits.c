/* Commands under limits of memory: a run that does not fit is refused with the limit's name and
 * file, what computes nothing needs little, and none waits for ever. */
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

RP_TEST(arenas_beyond_the_address_space_are_refused_by_name)
{
    static const char *const parts[] = {"host memory", "RLIMIT_AS (/proc/self/limits)", NULL};
    const char *wide =
        "--set devices=host:2 --set sequence_length=2048 --set micro_batch_size=1024 "
        "--set micro_batches=16 --set round=16";

    refuse(wide, parts);
    refuse("--set devices=host:2 --set sequence_length=2048 --set micro_batch_size=1024 "
           "--set micro_batches=16 --set round=16 --set host_memory=100GiB",
           parts);
}

/* Arenas fit; the buffers of eight threads that multiply do not. */
RP_TEST(matmuls_without_room_are_refused_before_the_first_step)
{
    static const char *const many[] = {"matmuls of 24 devices need 24 x ", "use fewer devices",
                                       "RLIMIT_AS (/proc/self/limits)", NULL};

    refuse("--set devices=host:24 --set micro_batches=24 --set round=24", many);
}

RP_TEST(a_limit_that_leaves_room_is_no_reason_to_refuse)
{
    rp_cli_must_shell(
        "ulimit -v 8000000; exec $ROUNDPIPE train @T/run.yaml --set output=@T/yes --set steps=2");
}

/* OpenBLAS, which such commands do without, maps more than this when it is loaded. */
RP_TEST(commands_that_multiply_nothing_do_with_little)
{
    static const char *const commands[] = {
        "--version",
        "gpus",
        "models",
        "init @T/model/config.json -o @T/little",
        "plan --model qwen3-8b --gpu rtx4090 --gpus 4",
        "simulate @T/times.json --schedule roundpipe --gpus 2 --micro-batches 4",
    };

    for (guint i = 0; i < G_N_ELEMENTS(commands); i++)
        rp_cli_must_shell("ulimit -v 150000; exec timeout 20 $ROUNDPIPE %s", commands[i]);
}

static void
refuse_matmuls(const char *before, const char *part)
{
    g_auto(RpCliRun) run = rp_cli_shell(
        "%s exec timeout 20 $ROUNDPIPE train @T/run.yaml --set output=@T/no --set devices=host:1",
        before);

    if (run.code != 1 || strchr(run.err, '\n') != run.err + strlen(run.err) - 1 ||
        strstr(run.err, "matmuls ") == NULL || strstr(run.err, part) == NULL)
        fail_msg("%s exit code %d (124: it waits for ever): %s", before, run.code, run.err);
}

/* OpenBLAS is loaded, and has no room for a buffer. */
RP_TEST(matmuls_that_can_never_be_are_refused)
{
    refuse_matmuls("ulimit -v 90000;", "bytes of address space");
    refuse_matmuls("ulimit -v 150000;", "bytes of address space");
}

/* Another library in its place. */
RP_TEST(an_openblas_that_cannot_be_loaded_is_named)
{
    refuse_matmuls("mkdir @T/other; ln -s $(ldd $ROUNDPIPE | awk '/libm\\.so/ { print $3 }') "
                   "@T/other/libopenblas.so.0; LD_LIBRARY_PATH=@T/other",
                   "(Debian: libopenblas0)");
}

/* Plan and trace of 16 million actions: 3.6 GiB, told before they are made. */
RP_TEST(a_simulation_beyond_memory_is_refused_before_it_begins)
{
    g_auto(RpCliRun) run = rp_cli_shell(
        "ulimit -v %u; exec timeout 60 $ROUNDPIPE simulate @Q --schedule 1f1b --gpus 4 "
        "--micro-batches 2000000 --stages 7*4",
        room());
    rp_cli_must_shell(
        "ulimit -v %u; exec timeout 60 $ROUNDPIPE simulate @Q --schedule 1f1b --gpus 4 "
        "--micro-batches 20000 --stages 7*4",
        room());

    assert_int_equal(run.code, 2);
    if (strstr(run.err, "16000000 compute actions (8 slots x 2000000 micro-batches") == NULL ||
        strstr(run.err, "3.6 GiB of memory") == NULL ||
        strstr(run.err, "RLIMIT_AS (/proc/self/limits): expected fewer micro-batches") == NULL)
        fail_msg("%s", run.err);
}

RP_TEST_GROUP(rp_train_files_setup, rp_cli_teardown)
