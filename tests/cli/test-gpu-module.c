/*
 * GPU code is loaded when it is asked for: from beside the program, wherever that was copied to;
 * and where it cannot be, that is said. $CUDA_MODULE: roundpipe-cuda.so, built.
 */
#include "tests/cli/train-files.h"

#define COPY "mkdir -p @T/copy && cp $ROUNDPIPE @T/copy/ && "
#define TRAIN "@T/copy/roundpipe train @T/run.yaml --set devices=cuda:1"

static void
needs_none_of_cuda_s_libraries_to_start(void **state)
{
    g_auto(RpCliRun) run = rp_cli_shell("ldd $ROUNDPIPE");

    (void)state;
    assert_int_equal(run.code, 0);
    assert_non_null(strstr(run.out, "libc.so"));
    assert_null(strstr(run.out, "libcud"));
    assert_null(strstr(run.out, "libcublas"));
}

static void
says_that_the_module_is_missing(void **state)
{
    g_auto(RpCliRun) run = rp_cli_shell(COPY TRAIN);

    (void)state;
    assert_int_not_equal(run.code, 0);
    assert_non_null(
        strstr(run.err, "devices: GPU code is missing: roundpipe-cuda.so is neither in "));
    assert_non_null(strstr(run.err, "/copy nor in "));
    assert_non_null(strstr(run.err, "; copy it beside the program\n"));
}

static void
says_why_the_module_cannot_be_loaded(void **state)
{
    g_auto(RpCliRun) run = rp_cli_shell(COPY "echo no library >@T/copy/roundpipe-cuda.so; " TRAIN);

    (void)state;
    assert_int_not_equal(run.code, 0);
    assert_non_null(strstr(run.err, "devices: GPU code is missing: it cannot be loaded: "));
    assert_non_null(strstr(run.err, "/copy/roundpipe-cuda.so: "));
}

/* No machine has as many GPUs. */
static void
finds_the_module_beside_a_program_that_was_copied(void **state)
{
    g_auto(RpCliRun) run =
        rp_cli_shell(COPY "cp $CUDA_MODULE @T/copy/roundpipe-cuda.so && " TRAIN "096");

    (void)state;
    assert_int_not_equal(run.code, 0);
    assert_null(strstr(run.err, "missing"));
    assert_non_null(strstr(run.err, "devices: expected 1096 GPUs, CUDA finds "));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(needs_none_of_cuda_s_libraries_to_start),
        cmocka_unit_test(says_that_the_module_is_missing),
        cmocka_unit_test(says_why_the_module_cannot_be_loaded),
        cmocka_unit_test(finds_the_module_beside_a_program_that_was_copied),
    };

    return cmocka_run_group_tests(tests, rp_train_files_setup, rp_cli_teardown);
}
