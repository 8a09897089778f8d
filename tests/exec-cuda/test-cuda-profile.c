/* A profile measured on a GPU: that everything is there and fits together; how fast it is, is the
 * machine's business. Exits 77 without a device. */
#include "tests/rp-test.h"

#include <gio/gio.h>

#include "exec/cuda/backend.h"
#include "exec/cuda/runtime/device.h"
#include "exec/measure/profile.h"

typedef struct {
    RpProbe *probe;
    RpWeights *weights;
    RpNetwork *network;
    RpProfile *profile;
    GError *error;
    guint calls;
} Fixture;

static int
set_up(void **state)
{
    static const RpModel config = {.architecture = RP_ARCHITECTURE_QWEN3,
                                   .hidden = 256,
                                   .blocks = 2,
                                   .heads = 4,
                                   .kv_heads = 2,
                                   .head_dim = 64,
                                   .intermediate = 640,
                                   .vocab = 1000,
                                   .max_positions = 256,
                                   .rms_norm_eps = 1e-6,
                                   .initializer_range = 0.02,
                                   .rope = {.theta = 10000},
                                   .bos_id = RP_MODEL_NO_TOKEN,
                                   .pad_id = RP_MODEL_NO_TOKEN};
    static const RpNetworkOptions options = {
        .dtype = RP_DTYPE_BF16, .sequences = 2, .tokens = 256, .head_chunk = 128};
    Fixture *f = g_new0(Fixture, 1);

    f->weights = rp_weights_new(&config);
    f->network = rp_network_new(f->weights, rp_cuda_devices()->kernels(), &options);
    *state = f;
    return 0;
}

static int
tear_down(void **state)
{
    Fixture *f = *state;

    rp_probe_free(f->probe);
    rp_profile_free(f->profile);
    rp_network_free(f->network);
    rp_weights_free(f->weights);
    g_clear_error(&f->error);
    g_free(f);
    return 0;
}

/* Measured values vary; impossible ones are off by more. */
#define LEEWAY 1.25

/* One direction is no faster than both, and both are no faster than the sum of each by itself. */
static void
assert_both_directions(const char *who, double up, double down, double both)
{
    print_message("           %s: %.2f GB/s up, %.2f down, %.2f both ways\n", who, up / 1e9,
                  down / 1e9, both / 1e9);
    if (!(up > 0 && down > 0 && both * LEEWAY >= MAX(up, down) && both <= LEEWAY * (up + down)))
        fail_msg("%s: expected both ways between the faster one and the sum", who);
}

static void
assert_links(const RpLinks *links, guint devices)
{
    assert_both_directions("one GPU", links->h2d_bytes_per_s, links->d2h_bytes_per_s,
                           links->both_bytes_per_s);
    if (devices == 1) {
        assert_true(links->all_h2d_bytes_per_s == 0 && links->all_d2h_bytes_per_s == 0 &&
                    links->all_both_bytes_per_s == 0);
        return;
    }
    assert_both_directions("all GPUs", links->all_h2d_bytes_per_s, links->all_d2h_bytes_per_s,
                           links->all_both_bytes_per_s);
    assert_true(links->all_h2d_bytes_per_s <= LEEWAY * devices * links->h2d_bytes_per_s);
    assert_true(links->all_d2h_bytes_per_s <= LEEWAY * devices * links->d2h_bytes_per_s);
}

RP_TEST_OF(measures_layers_and_links, Fixture *f)
{
    const RpMeasureOptions options = {
        .devices = rp_cuda_device_count(), .seconds = 0.05, .optimizer_threads = 2};

    f->probe = rp_cuda_devices()->probe_new(0, &f->error);
    rp_assert_no_error(f->error);
    f->profile = rp_must(rp_measure_profile, f->probe, f->network, NULL, &options);

    const RpProfile *profile = f->profile;
    assert_int_equal(profile->processors, 0);
    assert_int_equal(profile->gpus, options.devices);
    assert_string_not_equal(profile->device, "");
    assert_true(profile->gpu_memory_bytes > 0);
    assert_true(rp_profile_check_full(profile, &f->error));
    for (guint l = 0; l < profile->n_layers; l++) {
        const RpLayer *layer = &profile->layers[l];

        assert_true(layer->forward_ns > 0);
        assert_true(layer->recompute_ns > 0);
        assert_true(layer->backward_ns > 0);
        assert_true(layer->recompute_last_ns <= layer->recompute_ns);
        print_message("           %s: forward %.1f +- %.1f us, recompute %.1f +- %.1f us\n",
                      layer->name, (double)layer->forward_ns / 1e3,
                      (double)layer->forward_spread_ns / 1e3, (double)layer->recompute_ns / 1e3,
                      (double)layer->recompute_spread_ns / 1e3);
        assert_true(layer->recompute_spread_ns >= 0);
        assert_true(layer->recompute_spread_ns < layer->recompute_ns);
        assert_true((layer->recompute_last_ns > 0) == (layer->kind == RP_LAYER_BLOCK));
    }
    assert_links(&profile->links, options.devices);
    assert_true(profile->links.copy_latency_ns > 0);
    assert_true(profile->links.host_bytes_per_s >= profile->links.h2d_bytes_per_s);
    assert_true(profile->links.host_bytes_per_s >= profile->links.d2h_bytes_per_s);
    assert_true((profile->links.root_bytes_per_s > 0) == (profile->links.gpus_per_root > 0));
    assert_true(profile->optimizer_parameters_per_s > 0);
}

/* Measures without a network. */
RP_TEST_OF(measures_the_box_alone, Fixture *f)
{
    const RpMeasureOptions options = {.devices = rp_cuda_device_count(), .optimizer_threads = 2};

    f->probe = rp_cuda_devices()->probe_new(0, &f->error);
    rp_assert_no_error(f->error);
    f->profile = rp_must(rp_measure_box, f->probe, &options);
    assert_int_equal(f->profile->n_layers, 0);
    assert_int_equal(f->profile->gpus, options.devices);
    assert_links(&f->profile->links, options.devices);
    assert_true(f->profile->optimizer_parameters_per_s > 0);
    assert_true(f->profile->links.beside_optimizer_bytes_per_s > 0);
}

static gboolean
stop(guint64 done, guint64 total, gpointer user_data)
{
    Fixture *f = user_data;

    return ++f->calls < 12;
}

RP_TEST_OF(ends_when_it_is_told_to, Fixture *f)
{
    const RpMeasureOptions options = {.seconds = 0.05, .progress = stop, .user_data = f};

    f->probe = rp_cuda_devices()->probe_new(0, &f->error);
    rp_assert_no_error(f->error);
    f->profile = rp_measure_profile(f->probe, f->network, NULL, &options, &f->error);
    assert_null(f->profile);
    assert_true(g_error_matches(f->error, G_IO_ERROR, G_IO_ERROR_CANCELLED));
}

RP_TEST_OF(names_a_device_that_is_not_there, Fixture *f)
{
    f->probe = rp_cuda_devices()->probe_new(rp_cuda_device_count(), &f->error);
    assert_null(f->probe);
    rp_assert_error_message_contains(f->error, "there is no device");
}

RP_TEST_FIXTURE(set_up, tear_down)
RP_TEST_NEEDS(rp_cuda_device_count() > 0)
