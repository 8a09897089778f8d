/* A GPU gives the answers that transformers gives to tiny models. Exits 77 without a device. */
#include "tests/rp-test.h"

#include "exec/cuda/backend.h"
#include "exec/cuda/runtime/device.h"
#include "tests/exec-generate/tiny.h"

RP_TEST(gives_the_tokens_of_transformers)
{
    rp_tiny_check_all(*state, rp_cuda_devices());
}

RP_TEST(gives_the_same_answers_in_any_batch)
{
    rp_tiny_check_batches(*state, rp_cuda_devices());
}

RP_TEST(gives_the_same_answers_in_less_memory_than_the_model)
{
    rp_tiny_check_streamed(*state, rp_cuda_devices());
}

RP_TEST_FIXTURE(rp_tiny_setup, rp_tiny_teardown)
RP_TEST_NEEDS(rp_cuda_device_count() > 0)
