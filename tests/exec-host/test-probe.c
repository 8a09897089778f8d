/* Tests measuring on any device: the requests to a probe, and the use of the times that it reports.
 * The probe here computes on the host, but its times are made up. */
#include "tests/rp-test.h"

#include <gio/gio.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "core/base/units.h"
#include "exec/host/kernels.h"
#include "exec/measure/measure.h"
#include "exec/model/hf-config.h"
#include "exec/safetensors/safetensors.h"
#include "exec/system/memory-limit.h"

#define MAX_ROOMS 64
#define ROOMS_OF_A_LAYER 10

typedef struct {
    RpProbe base;
    guint8 *rooms[MAX_ROOMS]; /* taken and not given back */
    gsize bytes[MAX_ROOMS];
    guint n_taken, n_given;
    guint fail_at;   /* call of take, upload or time that fails; 0 = none */
    guint calls;     /* number of calls */
    guint stray;     /* uploads beyond the buffers */
    guint unaligned; /* rooms */
    guint most_repeats;
    guint copying, n_begun, n_ended;
    gint64 last_ns;      /* time that a recompute as the last takes */
    gint64 swing_ns;     /* by which three runs of eight are longer */
    gint64 class_ns;     /* by which each layer that is measured takes longer than the one before */
    gboolean alternates; /* every other run is longer, part n of it by 2 (n + 1) */
    guint timed;         /* runs */
    RpWeights *weights;
    RpNetwork *network;
    RpProfile *profile;
    GError *error;
} Fixture;

static gboolean
fails(Fixture *f, GError **error)
{
    if (++f->calls != f->fail_at)
        return FALSE;
    g_set_error_literal(error, G_IO_ERROR, G_IO_ERROR_FAILED, "the probe failed");
    return TRUE;
}

static void *
take(RpProbe *probe, gsize bytes, GError **error)
{
    Fixture *f = (Fixture *)probe;

    if (fails(f, error))
        return NULL;
    assert_true(f->n_taken < MAX_ROOMS);
    void *memory = rp_measure_take(NULL, bytes, error);
    f->unaligned += (guintptr)memory % 256 != 0;
    f->rooms[f->n_taken] = memory;
    f->bytes[f->n_taken++] = bytes;
    return memory;
}

static void
give(RpProbe *probe, void *memory)
{
    Fixture *f = (Fixture *)probe;

    for (guint i = 0; memory != NULL && i < f->n_taken; i++) {
        if (f->rooms[i] != memory)
            continue;
        f->rooms[i] = NULL;
        f->n_given++;
        break;
    }
    free(memory);
}

static gboolean
upload(RpProbe *probe, void *to, const void *from, gsize bytes, GError **error)
{
    Fixture *f = (Fixture *)probe;
    guint inside = 0;

    if (fails(f, error))
        return FALSE;
    for (guint i = 0; i < f->n_taken; i++)
        inside += f->rooms[i] != NULL && (guint8 *)to >= f->rooms[i] &&
                  (guint8 *)to + bytes <= f->rooms[i] + f->bytes[i];
    f->stray += inside != 1;
    if (inside == 1)
        memcpy(to, from, bytes);
    return TRUE;
}

static RpKernelStream *
stream(RpProbe *probe)
{
    return NULL;
}

/* Times in a block's order: forward, recompute, recompute as the last, backward; else forward and
 * the other parts. */
static gboolean
time_parts(RpProbe *probe, const RpProbePart *parts, guint n_parts, guint repeats, gpointer data,
           gint64 *ns, GError **error)
{
    Fixture *f = (Fixture *)probe;
    const gint64 block[] = {100, 90, f->last_ns, 301}, ends[] = {10, 51};

    if (fails(f, error))
        return FALSE;
    f->most_repeats = MAX(f->most_repeats, repeats);
    for (guint i = 0; i < n_parts * repeats; i++) {
        if (i < n_parts)
            parts[i](data);
        ns[i] = n_parts == 4 ? block[i % 4] : ends[i % 2];
        ns[i] += f->class_ns * (f->n_taken / ROOMS_OF_A_LAYER);
        if ((f->timed + i / n_parts) % 8 >= 5)
            ns[i] += f->swing_ns;
        if (f->alternates && (f->timed + i / n_parts) % 2 == 1)
            ns[i] += 2 * (i % n_parts + 1);
    }
    f->timed += repeats;
    return TRUE;
}

static void
describe(RpProbe *probe, RpProfile *profile)
{
    rp_profile_take(&profile->device, g_strdup("paper"));
    profile->gpu_memory_bytes = 12345;
}

static gboolean
measure_links(RpProbe *probe, RpMeasurer *measurer, RpProfile *profile, GError **error)
{
    Fixture *f = (Fixture *)probe;

    if (fails(f, error))
        return FALSE;
    profile->links.h2d_bytes_per_s = 2e9;
    profile->links.d2h_bytes_per_s = 1e9;
    profile->links.copy_latency_ns = 7;
    profile->links.host_bytes_per_s = 1;
    rp_measurer_skip(measurer, probe->ops->n_link_measures);
    return TRUE;
}

static gpointer
begin_copies(RpProbe *probe, guint devices, GError **error)
{
    Fixture *f = (Fixture *)probe;

    if (fails(f, error))
        return NULL;
    f->copying = devices;
    f->n_begun++;
    return f;
}

static gboolean
end_copies(RpProbe *probe, gpointer copies, double *bytes_per_s, GError **error)
{
    Fixture *f = copies;

    f->n_ended++;
    if (fails(f, error))
        return FALSE;
    *bytes_per_s = 0.5e9;
    return TRUE;
}

static void
set_up(Fixture *f)
{
    static const RpProbeOps ops = {.name = "paper",
                                   .most_repeats = RP_PROBE_MAX_REPEATS,
                                   .n_link_measures = 2,
                                   .take = take,
                                   .give = give,
                                   .upload = upload,
                                   .stream = stream,
                                   .time = time_parts,
                                   .describe = describe,
                                   .measure_links = measure_links,
                                   .begin_copies = begin_copies,
                                   .end_copies = end_copies};
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

    f->base.ops = &ops;
    f->last_ns = 70;
    f->weights = rp_weights_new(&config);
    f->network = rp_network_new(f->weights, rp_host_kernels(), &options);
}

static void
tear_down(Fixture *f)
{
    rp_profile_free(f->profile);
    rp_network_free(f->network);
    rp_weights_free(f->weights);
    g_clear_error(&f->error);
    for (guint i = 0; i < f->n_taken; i++)
        free(f->rooms[i]);
}

static void
measure(Fixture *f)
{
    const RpMeasureOptions options = {.devices = 3, .seconds = 1e-3, .max_runs = 40};

    f->profile = rp_measure_profile(&f->base, f->network, NULL, &options, &f->error);
}

RP_TEST_OF(takes_the_times_that_the_device_tells, Fixture *f)
{
    measure(f);
    rp_assert_no_error(f->error);
    const RpLayer *layers = f->profile->layers;
    for (guint l = 1; l <= 3; l++) {
        assert_int_equal(layers[l].forward_ns, 100);
        assert_int_equal(layers[l].recompute_ns, 90);
        assert_int_equal(layers[l].recompute_last_ns, 70);
        assert_int_equal(layers[l].backward_ns, 301);
        assert_int_equal(layers[l].weight_gradient_ns, 150);
        assert_int_equal(layers[l].forward_spread_ns, 0);
    }
    assert_int_equal(layers[0].forward_ns, 10);
    assert_int_equal(layers[0].recompute_ns, 10);
    assert_int_equal(layers[0].backward_ns, 51);
    assert_int_equal(layers[4].forward_ns, 10);
    assert_int_equal(layers[4].backward_ns, 41); /* beyond the forward */
    assert_int_equal(layers[4].recompute_last_ns, 0);
}

RP_TEST_OF(tells_how_far_each_kind_of_time_spreads, Fixture *f)
{
    f->alternates = TRUE;
    measure(f);
    rp_assert_no_error(f->error);
    const RpLayer *layers = f->profile->layers;
    for (guint l = 0; l < 5; l++) {
        const gboolean block = layers[l].kind == RP_LAYER_BLOCK;

        assert_int_equal(layers[l].forward_spread_ns, 1);
        assert_int_equal(layers[l].recompute_spread_ns,
                         block ? 2 : 1); /* an end's: its forward's */
        assert_int_equal(layers[l].backward_spread_ns, block ? 4 : 2);
    }
}

/* A card at its power limit: some runs are longer, and a training run sees all of them. */
RP_TEST_OF(takes_means_where_clocks_swing, Fixture *f)
{
    RpProbeOps ops = *f->base.ops;

    f->swing_ns = 8;
    measure(f);
    rp_assert_no_error(f->error);
    /* the median */
    assert_int_equal(f->profile->layers[1].forward_ns % 4, 0);
    g_clear_pointer(&f->profile, rp_profile_free);
    f->n_taken = f->n_given = f->timed = 0;
    ops.swing_seconds = 0.5;
    f->base.ops = &ops;
    measure(f);
    rp_assert_no_error(f->error);
    assert_in_range(f->profile->layers[1].forward_ns, 102, 104);
    assert_in_range(f->profile->layers[1].backward_ns, 303, 305);
}

/* Runs of one length need not be many; but not where they take no time, nor, of a block and the head, over a card's
 * swings. */
RP_TEST_OF(ends_as_soon_as_times_are_precise, Fixture *f)
{
    static RpProbeOps ops;
    /* runs of embedding, block, block without saved tensors, head: each warms up once */
    static const struct {
        double precision, seconds, swing_seconds;
        guint timed;
    } cases[] = {{0, 1e-9, 0, 4 * (1 + 5)},
                 {0.01, 1e-9, 0, 4 * (1 + 3)},
                 {0.01, 1e-9, 1, 2 * (1 + 3) + 2 * (1 + 5)},
                 {0.01, 1, 0, 4 * (1 + 6)}};

    ops = *f->base.ops;
    ops.most_repeats = 1;
    f->base.ops = &ops;
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        const RpMeasureOptions options = {.devices = 3,
                                          .seconds = cases[i].seconds,
                                          .precision = cases[i].precision,
                                          .max_runs = 6};

        ops.swing_seconds = cases[i].swing_seconds;
        f->n_taken = f->n_given = f->timed = 0;
        f->profile = rp_must(rp_measure_profile, &f->base, f->network, NULL, &options);
        assert_int_equal(f->timed, cases[i].timed + 1); /* that fills what is saved */
        assert_int_equal(f->profile->layers[1].backward_ns, 301);
        g_clear_pointer(&f->profile, rp_profile_free);
    }
}

RP_TEST_OF(takes_links_and_memory_of_the_device, Fixture *f)
{
    measure(f);
    rp_assert_no_error(f->error);
    assert_string_equal(f->profile->device, "paper");
    assert_int_equal(f->profile->gpus, 3);
    assert_int_equal(f->profile->processors, 0);
    assert_int_equal(f->profile->gpu_memory_bytes, 12345);
    /* 256 bytes down at 1 byte/ns, up at 2 */
    assert_int_equal(rp_network_hidden_bytes(f->network), 256);
    assert_int_equal(f->profile->links.hop_ns, 2 * 7 + 256 + 128);
    /* at least the rate of a copy alone, or of the optimizer */
    assert_true(f->profile->links.host_bytes_per_s >= 2e9);
    assert_true(f->profile->links.host_bytes_per_s >=
                28 * f->profile->optimizer_parameters_per_s * (1 - 1e-9));
}

RP_TEST_OF(takes_what_copies_reach_beside_the_optimizer, Fixture *f)
{
    measure(f);
    rp_assert_no_error(f->error);
    assert_true(f->profile->links.beside_optimizer_bytes_per_s == 0.5e9);
    assert_int_equal(f->n_begun, 1);
    assert_int_equal(f->n_ended, 1);
    assert_int_equal(f->copying, 3);
}

/* Bytes of gradients, weights, a gradient's copy and the optimizer's state. */
RP_TEST(measures_the_optimizer_within_a_share_of_memory)
{
    static const struct {
        guint threads;
        guint64 available_gib;
        guint64 bytes;
    } cases[] = {{2, 1024, 512 * RP_MIB},
                 {256, 1024, 16 * RP_GIB},
                 {256, 80, 10 * RP_GIB},
                 {4, 6, 768 * RP_MIB},
                 {4, 0, 64 * RP_MIB}}; /* nobody knows how much there is */
    const guint64 many = G_GUINT64_CONSTANT(1) << 40;

    for (guint i = 0; i < G_N_ELEMENTS(cases); i++)
        for (guint size = 2; size <= 4; size += 2) {
            const gsize each = 12 + 4 + 2 * size;
            const gsize n = rp_measure_optimizer_parameters(many, size, cases[i].threads,
                                                            cases[i].available_gib * RP_GIB);

            assert_int_equal(n, cases[i].bytes / each);
            assert_int_equal(rp_measure_optimizer_parameters(n - 1, size, cases[i].threads,
                                                             cases[i].available_gib * RP_GIB),
                             n - 1);
        }
}

RP_TEST_OF(gives_back_what_it_takes_and_stays_inside, Fixture *f)
{
    measure(f);
    rp_assert_no_error(f->error);
    assert_true(f->n_taken > 0);
    assert_int_equal(f->n_taken, f->n_given);
    assert_int_equal(f->stray, 0);
    assert_int_equal(f->unaligned, 0);
    assert_true(f->most_repeats > 1);
    assert_true(f->most_repeats <= RP_PROBE_MAX_REPEATS);
}

RP_TEST_OF(a_last_recompute_is_never_longer, Fixture *f)
{
    f->last_ns = 93;
    measure(f);
    rp_assert_no_error(f->error);
    assert_int_equal(f->profile->layers[2].recompute_last_ns, 90);
    assert_int_equal(rp_layer_saving_ns(&f->profile->layers[2]), 0);
}

RP_TEST_OF(reports_a_failure_wherever_it_comes_from, Fixture *f)
{
    guint calls;

    measure(f);
    rp_assert_no_error(f->error);
    calls = f->calls;
    for (guint at = 1; at <= calls; at += 1 + at / 40) {
        g_clear_pointer(&f->profile, rp_profile_free);
        f->n_taken = f->n_given = f->calls = 0;
        f->fail_at = at;
        measure(f);
        if (f->profile != NULL) /* fewer runs than before */
            continue;
        assert_true(g_error_matches(f->error, G_IO_ERROR, G_IO_ERROR_FAILED));
        assert_int_equal(f->n_taken, f->n_given);
        assert_int_equal(f->n_begun, f->n_ended);
        g_clear_error(&f->error);
    }
    assert_true(calls > 40);
}

/* One expert in k of all gets this many times the mean; the others are alike to one row. */
RP_TEST(tokens_choose_experts_with_the_skew_that_is_asked_for)
{
    static const struct {
        guint experts, active;
        double skew;
    } rows[] = {{8, 2, 1}, {8, 2, 1.5}, {8, 2, 4}, {128, 8, 3}, {32, 4, 8}, {5, 3, 1.2}};
    const guint tokens = 960;

    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        const RpModel model = {
            .experts = rows[i].experts, .active_experts = rows[i].active, .hidden = 256};
        const double mean = (double)tokens * model.active_experts / model.experts;
        guint counts[128] = {0}, choices[8], least = G_MAXUINT, most = 0;

        assert_true(rp_measure_can_route(&model, rows[i].skew));
        for (guint t = 0; t < tokens; t++) {
            rp_measure_choices(&model, rows[i].skew, t, choices);
            for (guint j = 0; j < model.active_experts; j++) {
                assert_true(choices[j] < model.experts);
                counts[choices[j]]++;
                for (guint k = 0; k < j; k++)
                    assert_int_not_equal(choices[j], choices[k]);
            }
        }
        for (guint e = 1; e < model.experts; e++) {
            least = MIN(least, counts[e]);
            most = MAX(most, counts[e]);
        }
        assert_int_equal(counts[0], (guint)(rows[i].skew * mean + 1e-6));
        assert_true(most - least <= 1);
    }
    assert_false(
        rp_measure_can_route(&(RpModel){.experts = 8, .active_experts = 2, .hidden = 64}, 4.5));
    assert_false(
        rp_measure_can_route(&(RpModel){.experts = 1, .active_experts = 1, .hidden = 64}, 1));
}

/* Three blocks, of which the second attends to everything. */
RP_TEST_OF(measures_each_class_of_layers, Fixture *f)
{
    RpModel config = *rp_network_model(f->network);
    const RpNetworkOptions options = *rp_network_options(f->network);

    config.sliding_window = 4;
    config.sliding_period = 2;
    rp_network_free(f->network);
    rp_weights_free(f->weights);
    f->weights = rp_weights_new(&config);
    f->network = rp_network_new(f->weights, rp_host_kernels(), &options);
    f->class_ns = 1000;
    measure(f);
    rp_assert_no_error(f->error);
    const RpLayer *layers = f->profile->layers;

    assert_int_equal(layers[0].forward_ns, 1000 + 10);
    assert_int_equal(layers[1].forward_ns, 2000 + 100);
    assert_int_equal(layers[2].forward_ns, 3000 + 100);
    assert_int_equal(layers[3].forward_ns, layers[1].forward_ns);
    assert_int_equal(layers[3].backward_ns, layers[1].backward_ns);
    assert_int_equal(layers[4].forward_ns, 4000 + 10);
}

/* Rows of each expert, as the router of a block chose them, and how many tokens there were. */
static guint routed[8], routed_tokens;

static void
count_routes(RpKernelStream *stream, const RpRouteArgs *args)
{
    rp_host_kernels()->route_forward(stream, args);
    for (size_t i = 0; i < args->tokens * args->choices; i++)
        routed[args->chosen[i]]++;
    routed_tokens += (guint)args->tokens;
}

RP_TEST_OF(a_router_chooses_with_the_skew_that_is_asked_for, Fixture *f)
{
    static const double skews[] = {1, 2.5};
    RpModel config = *rp_network_model(f->network);
    RpNetworkOptions options = *rp_network_options(f->network);
    RpKernels kernels = *rp_host_kernels();

    config.architecture = RP_ARCHITECTURE_QWEN3_MOE;
    config.hidden = 64;
    config.experts = 8;
    config.active_experts = 2;
    config.max_positions = options.tokens = 160;
    kernels.route_forward = count_routes;
    rp_network_free(f->network);
    rp_weights_free(f->weights);
    f->weights = rp_weights_new(&config);
    f->network = rp_network_new(f->weights, &kernels, &options);
    for (guint i = 0; i < G_N_ELEMENTS(skews); i++) {
        const RpMeasureOptions how = {
            .devices = 1, .seconds = 1e-3, .max_runs = 5, .routing = skews[i]};

        g_clear_pointer(&f->profile, rp_profile_free);
        f->n_taken = f->n_given = routed_tokens = 0;
        memset(routed, 0, sizeof routed);
        f->profile = rp_must(rp_measure_profile, &f->base, f->network, NULL, &how);
        const double mean = routed_tokens * 2.0 / 8;

        assert_true(routed_tokens >= 160);
        assert_int_equal(f->stray, 0);
        /* a token may choose otherwise where attention has few others to look at */
        assert_true(fabs(routed[0] - skews[i] * mean) <= 0.02 * mean);
        for (guint e = 1; e < 8; e++)
            assert_true(fabs(routed[e] - (8 - skews[i]) / 7 * mean) <= 0.04 * mean);
    }
}

/* Tokens that are all the same take the same experts, as many as a token has. */
RP_TEST_OF(a_router_of_a_checkpoint_gets_the_embeddings_of_tokens, Fixture *f)
{
    g_autofree char *path = rp_test_source_path("tests/exec-network/fixtures/qwen3-moe");
    RpModel config;
    RpKernels kernels = *rp_host_kernels();
    gint32 tokens[12];
    guint taken = 0;

    assert_true(rp_hf_config_load(path, &config, &f->error));
    g_autoptr(RpSafetensors) checkpoint = rp_must(rp_safetensors_open, path);
    kernels.route_forward = count_routes;
    rp_network_free(f->network);
    rp_weights_free(f->weights);
    f->weights = rp_weights_new(&config);
    assert_true(rp_weights_bind(f->weights, checkpoint, &f->error));
    const RpNetworkOptions options = {.dtype = RP_DTYPE_FP32, .sequences = 1, .tokens = 12};

    f->network = rp_network_new(f->weights, &kernels, &options);
    for (guint t = 0; t < G_N_ELEMENTS(tokens); t++)
        tokens[t] = 3;
    const RpMeasureOptions how = {.seconds = 1e-3, .max_runs = 5, .tokens = tokens};

    routed_tokens = 0;
    memset(routed, 0, sizeof routed);
    f->profile = rp_must(rp_measure_profile, &f->base, f->network, f->weights, &how);
    assert_true(config.experts <= G_N_ELEMENTS(routed));
    for (guint e = 0; e < config.experts; e++) {
        assert_true(routed[e] == 0 || routed[e] == routed_tokens);
        taken += routed[e] > 0;
    }
    assert_int_equal(taken, config.active_experts);
    g_clear_pointer(&f->network, rp_network_free);
    g_clear_pointer(&f->weights, rp_weights_free);
}

/* More than there is would be given, and the process killed when it is touched. */
RP_TEST(takes_no_memory_that_there_is_not)
{
    const guint64 available = rp_available_memory();
    g_autoptr(GError) error = NULL;

    assert_true(available > 0);
    assert_null(rp_measure_reserve(available, &error));
    assert_true(g_error_matches(error, G_IO_ERROR, G_IO_ERROR_NO_SPACE));
    rp_assert_error_message_contains(error, "host memory: ");
    rp_assert_error_message_contains(error, "the limit is ");
    g_autofree void *some = rp_measure_reserve(RP_MIB, NULL);
    assert_non_null(some);
}

/* A small container measures in buffers that it has, and trains what fits into it. */
RP_TEST(measures_within_an_eighth_of_a_small_container)
{
    const gsize whole = rp_measure_buffer_bytes(256 * RP_MIB);
    g_autofree char *status = NULL;
    struct rlimit before;

    assert_int_equal(getrlimit(RLIMIT_DATA, &before), 0);
    assert_true(g_file_get_contents("/proc/self/status", &status, NULL, NULL));
    const char *data = strstr(status, "VmData:");
    assert_non_null(data);
    const guint64 used = g_ascii_strtoull(data + strlen("VmData:"), NULL, 10) * 1024;
    const struct rlimit small = {used + 80 * RP_MIB, before.rlim_max};

    assert_int_equal(setrlimit(RLIMIT_DATA, &small), 0);
    const gsize scarce = rp_measure_buffer_bytes(256 * RP_MIB);
    assert_int_equal(setrlimit(RLIMIT_DATA, &before), 0);
    assert_in_range(scarce, 65536, 10 * RP_MIB);
    assert_true(whole > scarce);
}

RP_TEST_STATE(Fixture, set_up, tear_down)
