/* Greedy answers of tiny models, against those of transformers. */
#include "tests/exec-generate/tiny.h"

RP_TEST(gives_the_tokens_of_transformers)
{
    rp_tiny_check_all(*state, rp_host_devices());
}

RP_TEST(gives_the_same_answers_in_any_batch)
{
    rp_tiny_check_batches(*state, rp_host_devices());
}

RP_TEST(gives_the_same_answers_in_less_memory_than_the_model)
{
    rp_tiny_check_streamed(*state, rp_host_devices());
}

RP_TEST_FIXTURE(rp_tiny_setup, rp_tiny_teardown)
