/*
 * GPU code is loaded when it is asked for: from beside the program, wherever that was copied to;
 * and where it cannot be, that is said. $CUDA_MODULE: roundpipe-cuda.so, built.
 */
#include "tests/cli/train-files.h"

#define COPY "mkdir -p @T/copy && cp $ROUNDPIPE @T/copy/ && "
#define TRAIN "@T/copy/roundpipe train @T/run.yaml --set devices=cuda:1"

RP_TEST(needs_none_of_cuda_s_libraries_to_start)
{
    g_auto(RpCliRun) run = rp_cli_shell("ldd $ROUNDPIPE");

    assert_int_equal(run.code, 0);
    assert_non_null(strstr(run.out, "libc.so"));
    assert_null(strstr(run.out, "libcud"));
    assert_null(strstr(run.out, "libcublas"));
}

RP_TEST(says_that_the_module_is_missing)
{
    g_auto(RpCliRun) run = rp_cli_shell(COPY TRAIN);

    assert_int_not_equal(run.code, 0);
    assert_non_null(
        strstr(run.err, "devices: GPU code is missing: roundpipe-cuda.so is neither in "));
    assert_non_null(strstr(run.err, "/copy nor in "));
    assert_non_null(strstr(run.err, "; copy it beside the program\n"));
}

RP_TEST(says_why_the_module_cannot_be_loaded)
{
    g_auto(RpCliRun) run = rp_cli_shell(COPY "echo no library >@T/copy/roundpipe-cuda.so; " TRAIN);

    assert_int_not_equal(run.code, 0);
    assert_non_null(strstr(run.err, "devices: GPU code is missing: it cannot be loaded: "));
    assert_non_null(strstr(run.err, "/copy/roundpipe-cuda.so: "));
}

/* No machine has as many GPUs. */
RP_TEST(finds_the_module_beside_a_program_that_was_copied)
{
    g_auto(RpCliRun) run =
        rp_cli_shell(COPY "cp $CUDA_MODULE @T/copy/roundpipe-cuda.so && " TRAIN "096");

    assert_int_not_equal(run.code, 0);
    assert_null(strstr(run.err, "missing"));
    assert_non_null(strstr(run.err, "devices: expected 1096 GPUs, CUDA finds "));
}

RP_TEST_GROUP(rp_train_files_setup, rp_cli_teardown)
