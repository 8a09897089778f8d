/* A GPU gives the answers that transformers gives to tiny models. Exits 77 without a device. */
#include "tests/rp-test.h"

#include "exec/cuda/backend.h"
#include "exec/cuda/runtime/device.h"
#include "tests/exec-generate/tiny.h"

static void
gives_the_tokens_of_transformers(void **state)
{
    rp_tiny_check_all(*state, rp_cuda_devices());
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(gives_the_tokens_of_transformers, rp_tiny_setup,
                                        rp_tiny_teardown),
    };

    if (rp_cuda_device_count() == 0)
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
