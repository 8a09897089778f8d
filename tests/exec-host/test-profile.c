/* Tests how times become a median and a spread, and the progress that a caller sees. */
#include "tests/rp-test.h"

#include <gio/gio.h>

#include "core/base/units.h"
#include "exec/host/kernels.h"
#include "exec/measure/measure.h"
#include "exec/measure/profile.h"

RP_TEST(the_median_and_half_the_range_of_80_percent)
{
    gint64 eleven[] = {5, 11, 1, 2, 3, 4, 6, 7, 8, 9, 10};
    gint64 two[] = {30, 10};
    gint64 one[] = {7};
    RpTimes times = rp_times_of(eleven, G_N_ELEMENTS(eleven));

    assert_int_equal(times.median_ns, 6);
    assert_int_equal(times.spread_ns, 4); /* from 2 to 10 */
    assert_int_equal(times.n, 11);
    times = rp_times_of(two, 2);
    assert_int_equal(times.median_ns, 20);
    assert_int_equal(times.spread_ns, 8); /* from 12 to 28 */
    times = rp_times_of(one, 1);
    assert_int_equal(times.median_ns, 7);
    assert_int_equal(times.spread_ns, 0);
}

RP_TEST(drops_runs_that_took_far_too_long_and_no_others)
{
    gint64 interrupted[] = {100, 101, 5000, 102, 103, 104, 900, 99};
    gint64 short_one[] = {100, 101, 5, 102, 103, 104, 105, 99};
    RpTimes times = rp_times_of(interrupted, G_N_ELEMENTS(interrupted));

    /* quartiles 100.75 and 303: 900 is beyond 606, 5000, too */
    assert_int_equal(times.n, 6);
    assert_int_equal(times.median_ns, 102);
    times = rp_times_of(short_one, G_N_ELEMENTS(short_one));
    assert_int_equal(times.n, 8);
}

typedef struct {
    RpWeights *weights;
    RpNetwork *network;
    RpProfile *profile;
    GError *error;
    guint calls;
    guint stop_at; /* call that cancels; 0 = none */
    guint last, total;
    gboolean ascending;
} Fixture;

static void
set_up(Fixture *f)
{
    static const RpModel config = {.architecture = RP_ARCHITECTURE_QWEN3,
                                   .hidden = 16,
                                   .blocks = 3,
                                   .heads = 2,
                                   .kv_heads = 1,
                                   .head_dim = 8,
                                   .intermediate = 24,
                                   .vocab = 19,
                                   .max_positions = 8,
                                   .rms_norm_eps = 1e-6,
                                   .initializer_range = 0.02,
                                   .rope = {.theta = 10000},
                                   .bos_id = RP_MODEL_NO_TOKEN,
                                   .pad_id = RP_MODEL_NO_TOKEN};
    static const RpNetworkOptions options = {.dtype = RP_DTYPE_BF16, .sequences = 1, .tokens = 8};

    f->weights = rp_weights_new(&config);
    f->network = rp_network_new(f->weights, rp_host_kernels(), &options);
    f->ascending = TRUE;
}

static void
tear_down(Fixture *f)
{
    rp_profile_free(f->profile);
    rp_network_free(f->network);
    rp_weights_free(f->weights);
    g_clear_error(&f->error);
}

static gboolean
note(guint64 done, guint64 total, gpointer user_data)
{
    Fixture *f = user_data;

    f->ascending = f->ascending && done >= f->last && done <= total;
    f->last = done;
    f->total = total;
    return ++f->calls != f->stop_at;
}

static RpProfile *
measure(Fixture *f, const RpMeasureOptions *options)
{
    g_autoptr(RpProbe) probe = rp_host_probe_new(0, &f->error);

    return probe != NULL ? rp_measure_profile(probe, f->network, NULL, options, &f->error) : NULL;
}

RP_TEST_OF(measures_every_layer_and_tells_how_far_it_is, Fixture *f)
{
    const RpMeasureOptions options = {.devices = 5,
                                      .seconds = 1e-4,
                                      .max_runs = 7,
                                      .optimizer_threads = 2,
                                      .progress = note,
                                      .user_data = f};

    f->profile = measure(f, &options);
    rp_assert_no_error(f->error);
    assert_int_equal(f->profile->gpus, 5);
    assert_string_equal(f->profile->source, "measured");
    assert_true(rp_profile_check_full(f->profile, &f->error));
    for (guint l = 0; l < f->profile->n_layers; l++) {
        const RpLayer *layer = &f->profile->layers[l];

        assert_true(layer->forward_ns > 0);
        assert_true(layer->recompute_ns > 0);
        assert_true(layer->backward_ns > 0);
        assert_true(layer->weight_gradient_ns <= layer->backward_ns);
    }
    assert_true(f->ascending);
    assert_int_equal(f->last, f->total);
}

RP_TEST_OF(ends_when_it_is_told_to, Fixture *f)
{
    RpMeasureOptions options = {.devices = 1, .seconds = 1e-4, .progress = note, .user_data = f};

    for (f->stop_at = 1; f->stop_at < 40; f->stop_at += 6) {
        f->calls = f->last = 0;
        f->profile = measure(f, &options);
        assert_null(f->profile);
        assert_true(g_error_matches(f->error, G_IO_ERROR, G_IO_ERROR_CANCELLED));
        assert_int_equal(f->calls, f->stop_at);
        g_clear_error(&f->error);
    }
}

/* A card that loads the kernels of a part when it runs, into memory that is free until then. */
#define CARD_BYTES 1000000
#define KERNEL_BYTES 100

typedef struct {
    RpProbe base;
    guint64 loaded_bytes;
} Card;

static gboolean
run_on_card(RpProbe *probe, const RpProbePart *parts, guint n_parts, guint repeats, gpointer data,
            gint64 *ns, GError **error)
{
    ((Card *)probe)->loaded_bytes += n_parts * KERNEL_BYTES;
    rp_time_on_host(parts, n_parts, repeats, data, ns);
    return TRUE;
}

static void
describe_card(RpProbe *probe, RpProfile *profile)
{
    profile->gpu_memory_bytes = CARD_BYTES - ((Card *)probe)->loaded_bytes;
}

RP_TEST_OF(a_plan_may_have_what_is_free_when_all_kernels_are_loaded, Fixture *f)
{
    RpProbe *host = rp_host_probe_new(0, &f->error);
    RpProbeOps ops = *host->ops;
    Card card = {.base = {.ops = &ops}};
    guint64 bytes = 0;
    const RpMeasureOptions quick = {.devices = 2, .seconds = 0.001, .max_runs = 5};

    ops.time = run_on_card;
    ops.describe = describe_card;
    assert_true(rp_measure_memory(&card.base, f->network, 2, &bytes, &f->error));
    /* two parts of the embedding, four of a block, two of the head */
    assert_int_equal(bytes, CARD_BYTES - 8 * KERNEL_BYTES);
    f->profile = rp_must(rp_measure_profile, &card.base, f->network, NULL, &quick);
    assert_int_equal(f->profile->gpu_memory_bytes, CARD_BYTES - card.loaded_bytes);
    rp_probe_free(host);
}

/* A probe that counts requests for memory of one size. */
typedef struct {
    RpProbe base;
    gsize wanted;
    guint taken; /* pieces of that size */
} Counting;

static void *
take_and_note(RpProbe *probe, gsize bytes, GError **error)
{
    Counting *counting = (Counting *)probe;

    counting->taken += bytes == counting->wanted;
    return rp_measure_take(NULL, bytes, error);
}

static gpointer
begin_no_copies(RpProbe *probe, guint devices, GError **error)
{
    return NULL;
}

/* The three blocks have weights and sums of their own where processors' caches could hold one's. */
RP_TEST_OF(layers_alike_have_weights_of_their_own_where_memory_is_the_processors, Fixture *f)
{
    RpProbe *host = rp_host_probe_new(0, &f->error);
    RpProbeOps ops = *host->ops;
    Counting counting = {.base = {.ops = &ops}};
    const RpMeasureOptions options = {.devices = 1, .seconds = 1e-4, .max_runs = 5};
    RpMeasurer measurer = {.options = &options, .n_measures = 1};
    counting.wanted = 3 * (gsize)rp_align_up(rp_network_layout(f->network, 1)->elements * 4, 256);

    ops.take = take_and_note;
    f->profile = rp_network_profile(f->network);
    assert_true(
        rp_measure_layer(&measurer, &counting.base, f->network, NULL, 1, f->profile, &f->error));
    assert_int_equal(counting.taken, 1);
    ops.begin_copies = begin_no_copies;
    counting.taken = 0;
    assert_true(rp_measure_run_once(&counting.base, f->network, 1, f->profile, &f->error));
    assert_int_equal(counting.taken, 0);
    rp_probe_free(host);
}

RP_TEST_STATE(Fixture, set_up, tear_down)
