/* One card as several devices, over a CUDA of threads. A process splits its cards once: the order of tests matters. */
#include "tests/exec-train/train-fixture.h"

#include <stdlib.h>

#include "exec/cuda/backend.h"
#include "exec/cuda/runtime/device.h"
#include "tests/exec-cuda/soft-cuda.h"

static void
assert_refused(const char *split, guint server, const char *message)
{
    g_autoptr(GError) error = NULL;

    assert_false(rp_cuda_split_devices(split, server, 2, &error));
    if (strstr(error->message, message) == NULL)
        fail_msg("%s: %s", split, error->message);
    assert_int_equal(rp_cuda_device_count(), 2); /* whole cards, as before */
}

RP_TEST(refuses_what_no_card_is_split_into)
{
    static const char *const wrong[] = {"",     "four", "24,",  ",24", "0",    "-8",   "4x24",
                                        "24*0", "*24",  "17*8", "1e1", "4097", "8, 8", "equals"};

    for (gsize i = 0; i < G_N_ELEMENTS(wrong); i++)
        assert_refused(wrong[i], 0, "expected equal, or multiprocessors of each");
    assert_refused("32,32,32", 0, "64 multiprocessors, which do not divide into 3 times 32");
    assert_refused("2*12", 0, "which do not divide into 2 times 12"); /* parts have eights */
    assert_refused("2*16", 2, "server 2 of this machine is given parts 4 to 5, and there are 4");
    soft_cuda_age_driver(TRUE);
    assert_refused("32,32", 0, "no green contexts");
    soft_cuda_age_driver(FALSE);
}

/* The second server of a machine takes the second two parts. */
RP_TEST(makes_devices_of_one_card)
{
    g_autoptr(GError) error = NULL;
    RpCudaDeviceInfo whole, part;

    assert_true(rp_cuda_device_info(0, &whole, &error));
    assert_true(rp_cuda_split_devices("8,8,16,32", 1, 2, &error));
    assert_int_equal(rp_cuda_device_count(), 2);
    assert_true(rp_cuda_device_info(1, &part, &error));
    assert_string_equal(part.name, "threads (32 of 64 multiprocessors)");
    assert_int_equal(part.multiprocessors, 32);
    assert_int_equal(part.memory_bytes, whole.memory_bytes / 4);
    assert_int_equal(part.free_bytes, whole.free_bytes / 4);
    assert_true(rp_cuda_device_info(0, &part, &error));
    assert_string_equal(part.name, "threads (16 of 64 multiprocessors)");
    assert_string_equal(part.pci_address, whole.pci_address);
    assert_false(rp_cuda_device_info(2, &part, &error));
    assert_string_equal(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "16");
}

/* After the split: each part has its own streams, and the same bits. */
RP_TEST(trains_to_the_bits_of_the_host)
{
    RpTinyModel *model = rp_tiny_model_new(FALSE);
    RpTinyRun runs[] = {{"roundpipe", 2, 4, .backend = rp_cuda_devices(), .async = TRUE},
                        {"1f1b", 2, 4, .backend = rp_cuda_devices()}};

    for (guint i = 0; i < G_N_ELEMENTS(runs); i++) {
        g_autofree char *found = rp_tiny_run_hash(model, &runs[i], 4);

        runs[i].backend = NULL;
        g_autofree char *expected = rp_tiny_run_hash(model, &runs[i], 4);
        assert_string_equal(found, expected);
        assert_int_equal(soft_cuda_n_left(), 0);
    }
    rp_tiny_model_free(model);
}
