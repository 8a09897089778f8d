/* Greedy answers of tiny models, against those of transformers. */
#include "tests/exec-generate/tiny.h"

static void
gives_the_tokens_of_transformers(void **state)
{
    rp_tiny_check_all(*state, rp_host_devices());
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(gives_the_tokens_of_transformers, rp_tiny_setup,
                                        rp_tiny_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
