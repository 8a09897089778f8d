/* One run of each class of layers before the first step, in memory that is left (exec/device). */
#include "tests/exec-network/network-fixture.h"

#include <math.h>

#include "exec/device/action.h"

#define MOST_BYTES ((gsize)4 << 20)
#define GUARD 4096

static Model *
small_model(RpArchitecture architecture)
{
    const RpModel config = network_config(architecture, FALSE);
    const RpNetworkOptions options = {
        .dtype = RP_DTYPE_FP32, .sequences = 2, .tokens = 12, .head_chunk = 8};

    return network_random(&config, &options);
}

/* Tests how much of memory full of NaN a rehearsal writes. */
static gsize
rehearsed_bytes(const Model *model, gsize bytes)
{
    const guint mark = host_mark();
    guint8 *memory = host_bytes(bytes + GUARD);
    gsize n = bytes + GUARD;

    memset(memory, 0xff, bytes + GUARD);
    rp_rehearse(model->network, NULL, model->constants, memory, bytes);
    while (n > 0 && memory[n - 1] == 0xff)
        n--;
    for (gsize i = 0; i < n / sizeof(float); i++)
        if (!isfinite(((const float *)(const void *)memory)[i]))
            fail_msg("number %zu of %zu is not finite", i, n / sizeof(float));
    host_free_since(mark);
    return n;
}

RP_TEST(runs_layers_on_zeros_within_its_memory)
{
    for (guint architecture = 0; architecture < 2; architecture++) {
        Model *model = small_model((RpArchitecture)architecture);
        const gsize all = rehearsed_bytes(model, MOST_BYTES);

        assert_in_range(all, 1, MOST_BYTES);
        for (gsize bytes = 0; bytes <= all + 1024; bytes += 1024)
            assert_true(rehearsed_bytes(model, bytes) <= bytes);
        network_free(model);
    }
}

RP_TEST(leaves_out_layers_without_room)
{
    Model *model = small_model(RP_ARCHITECTURE_QWEN3);
    const gsize all = rehearsed_bytes(model, MOST_BYTES);
    const gsize some = rehearsed_bytes(model, all / 2);

    assert_int_equal(rehearsed_bytes(model, 512), 0);
    assert_true(some > 0 && some < all);
    network_free(model);
}

RP_TEST_FIXTURE(host_setup, host_teardown)
