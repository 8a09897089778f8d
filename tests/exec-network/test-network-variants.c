/* Tests the choice of a kernel variant for each matmul of a network: measured by a probe whose times are made up, kept
 * in a profile, and taken by calls. */
#include "tests/exec-network/network-fixture.h"

#include <gio/gio.h>
#include <stdlib.h>

#include "exec/measure/profile.h"

#define OTHER_BITS 5 /* this variant's last bit of a product's first value is another */

/* The calls seen by the kernels and the probe here; kernels have no other place to leave them. */
static struct {
    RpMatmulLayout form;
    guint variants[3][RP_MATMUL_MAX_VARIANTS]; /* calls, of each form */
    guint variant, n_buffers, uploads, fail_at;
} seen;

static void
multiply(RpKernelStream *stream, const RpMatmulArgs *args)
{
    assert_true(args->variant < RP_MATMUL_MAX_VARIANTS);
    seen.form = args->form;
    seen.variant = args->variant;
    seen.variants[args->form][args->variant]++;
    rp_host_kernels()->matmul(stream, args);
    if (args->variant == OTHER_BITS)
        ((guint8 *)args->c)[0] ^= 1;
}

static char *
library(void)
{
    return g_strdup("paper 1");
}

static void *
take(RpProbe *probe, gsize bytes, GError **error)
{
    seen.n_buffers++;
    bytes = (bytes + 255) / 256 * 256;
    return memset(aligned_alloc(256, bytes), 0, bytes);
}

static void
give(RpProbe *probe, void *memory)
{
    seen.n_buffers -= memory != NULL;
    free(memory);
}

static gboolean
upload(RpProbe *probe, void *to, const void *from, gsize bytes, GError **error)
{
    if (++seen.uploads == seen.fail_at) {
        g_set_error_literal(error, G_IO_ERROR, G_IO_ERROR_FAILED, "the probe failed");
        return FALSE;
    }
    memcpy(to, from, bytes);
    return TRUE;
}

static RpKernelStream *
stream(RpProbe *probe)
{
    return NULL;
}

static gboolean
download(RpProbe *probe, void *to, const void *from, gsize bytes, GError **error)
{
    memcpy(to, from, bytes);
    return TRUE;
}

/* In 10 us. NT: one variant is hardly faster; NN: some are faster, of which one has other bits; TN: that one alone. */
static gboolean
time_parts(RpProbe *probe, const RpProbePart *parts, guint n_parts, guint repeats, gpointer data,
           gint64 *ns, GError **error)
{
    static const gint64 times[3][RP_MATMUL_MAX_VARIANTS] = {
        {1000, 990, 1300, 1300, 1300, 1300, 1300, 1300},
        {1000, 900, 800, 1300, 900, 700, 820, 1050},
        {1000, 1001, 1002, 1003, 1004, 900, 1010, 1100}};

    for (guint i = 0; i < n_parts * repeats; i++) {
        parts[i % n_parts](data);
        ns[i] = 10000 * times[seen.form][seen.variant];
    }
    return TRUE;
}

static const RpMeasureOptions silent;

typedef struct {
    RpProbe probe;
    RpKernels kernels;
    RpWeights *weights;
} Bench;

static RpNetwork *
network_of(Bench *bench, gboolean has_library)
{
    static const RpProbeOps ops = {.name = "paper",
                                   .most_repeats = RP_PROBE_MAX_REPEATS,
                                   .take = take,
                                   .give = give,
                                   .upload = upload,
                                   .download = download,
                                   .stream = stream,
                                   .time = time_parts};
    const RpNetworkOptions options = {
        .dtype = RP_DTYPE_BF16, .sequences = 3, .tokens = 11, .head_chunk = 16};
    const RpModel config = network_config_fused();

    memset(&seen, 0, sizeof seen);
    bench->probe.ops = &ops;
    bench->kernels = *rp_host_kernels();
    bench->kernels.matmul = multiply;
    bench->kernels.matmul_library = has_library ? library : NULL;
    bench->weights = rp_weights_new(&config);
    return rp_network_new(bench->weights, &bench->kernels, &options);
}

/* q, k and v; o; gate and up; down; the head's chunks of 16 rows and the last of one. Forward down reads a
 * product with gaps where nothing is kept. */
RP_TEST(lists_each_shape_once)
{
    Bench bench;
    RpNetwork *network = network_of(&bench, TRUE);
    guint n, forms[3] = {0}, gaps = 0;
    const RpMatmulVariant *variants = rp_network_matmuls(network, &n);

    for (guint i = 0; i < n; i++) {
        forms[variants[i].form]++;
        gaps += variants[i].a_stride > 0;
        assert_int_equal(variants[i].variant, 0);
        assert_int_equal(variants[i].c,
                         variants[i].form == RP_MATMUL_TN ? RP_DTYPE_FP32 : RP_DTYPE_BF16);
        for (guint j = 0; j < i; j++)
            assert_false(rp_matmul_variant_is_of(&variants[j], &variants[i]));
    }
    assert_int_equal(forms[RP_MATMUL_NN], 6);
    assert_int_equal(forms[RP_MATMUL_TN], 6);
    assert_int_equal(forms[RP_MATMUL_NT], 7);
    assert_int_equal(gaps, 1);
    rp_network_free(network);
    rp_weights_free(bench.weights);
}

/* In fp8 all matmuls are NT: q, k and v are fused; o, gate and up have one shape, and down; forward, for their input's
 * gradient and for their own. So is the head, if it is in fp8. */
RP_TEST(lists_shapes_of_fp8)
{
    RpModel config = network_config(RP_ARCHITECTURE_QWEN3, FALSE);

    config.vocab = 80;
    config.hidden = 64;
    config.heads = 4;
    config.kv_heads = 2;
    config.head_dim = 16;
    config.intermediate = 96;
    for (guint head = 0; head < 2; head++) {
        const RpNetworkOptions options = {
            .dtype = RP_DTYPE_BF16,
            .sequences = 2,
            .tokens = 24,
            .head_chunk = 16,
            .fp8 = {.used = TRUE, .head = head > 0, .gradients = RP_DTYPE_E5M2}};
        Model *model = network_random(&config, &options);
        guint n, quantized[RP_DTYPE_E5M2 + 1] = {0}, plain = 0, of_head = 0, of_qkv = 0;
        const RpMatmulVariant *variants = rp_network_matmuls(model->network, &n);

        for (guint i = 0; i < n; i++) {
            if (variants[i].a < RP_N_DTYPES) {
                plain++;
                continue;
            }
            assert_int_equal(variants[i].form, RP_MATMUL_NT);
            assert_int_equal(variants[i].b, RP_DTYPE_E4M3);
            quantized[variants[i].a]++;
            of_qkv += variants[i].m == 128 || variants[i].n == 128 || variants[i].k == 128;
            of_head += variants[i].m == config.vocab || variants[i].n == config.vocab ||
                       variants[i].k == config.vocab;
        }
        assert_int_equal(plain, head > 0 ? 0 : 3);
        assert_int_equal(of_qkv, 3);
        assert_int_equal(of_head, head > 0 ? 3 : 0);
        assert_int_equal(quantized[RP_DTYPE_E4M3], 4 + head);
        assert_int_equal(quantized[RP_DTYPE_E5M2], 2 * (4 + head));
        network_free(model);
    }
}

RP_TEST(takes_the_fastest_way_where_it_is_worth_it)
{
    Bench bench;
    RpNetwork *network =
        rp_must(rp_measure_matmul_variants, &bench.probe, network_of(&bench, TRUE), &silent);

    assert_int_equal(seen.n_buffers, 0);
    /* a product, a run that warms up and five of a look at each of 7 and 6 shapes; far behind or with other bits,
     * nothing else */
    assert_int_equal(seen.variants[RP_MATMUL_NT][2], 7 * 7);
    assert_int_equal(seen.variants[RP_MATMUL_NN][3], 6 * 7);
    assert_int_equal(seen.variants[RP_MATMUL_NN][OTHER_BITS], 6 * 7);
    assert_int_equal(seen.variants[RP_MATMUL_TN][OTHER_BITS], 6 * 7);
    /* near the fastest: forth and back; else forth */
    assert_true(seen.variants[RP_MATMUL_NN][4] > 6 * 7);
    assert_true(seen.variants[RP_MATMUL_NN][6] > seen.variants[RP_MATMUL_NN][4]);
    assert_true(seen.variants[RP_MATMUL_NN][2] > seen.variants[RP_MATMUL_NN][4]);

    RpProfile *profile = rp_network_profile(network);
    char *json = rp_profile_to_json(profile);
    RpProfile *back = rp_must(rp_profile_parse, "profile", json, strlen(json));

    assert_string_equal(back->matmul_library, "paper 1");
    assert_int_equal(back->n_matmul_variants, 6);
    for (guint i = 0; i < back->n_matmul_variants; i++) {
        assert_int_equal(back->matmul_variants[i].form, RP_MATMUL_NN);
        assert_int_equal(back->matmul_variants[i].variant, 2);
        assert_true(
            rp_matmul_variant_is_of(&back->matmul_variants[i], &profile->matmul_variants[i]));
    }
    g_free(json);
    rp_profile_free(back);
    rp_profile_free(profile);
    rp_network_free(network);
    rp_weights_free(bench.weights);
}

/* All but one shape, that of the head's last chunk: it takes the first variant. */
RP_TEST(multiplies_in_the_ways_of_its_options)
{
    RpModel config = network_config_fused();
    RpNetworkOptions options = {
        .dtype = RP_DTYPE_BF16, .sequences = 3, .tokens = 11, .head_chunk = 16};
    Model *model = network_random(&config, &options);
    const Run before = network_whole(model);
    RpKernels kernels = *rp_host_kernels();
    RpMatmulVariant variants[32];
    guint n;
    const RpMatmulVariant *shapes = rp_network_matmuls(model->network, &n);

    assert_in_range(n, 19, G_N_ELEMENTS(variants));
    memcpy(variants, shapes, n * sizeof *variants);
    for (guint i = 0; i < n; i++)
        variants[i].variant = variants[i].m == 1 || variants[i].k == 1 ? 0
                              : variants[i].form == RP_MATMUL_NN       ? 2
                              : variants[i].form == RP_MATMUL_TN       ? 7
                                                                       : 0;
    options.matmul_library = "paper 1";
    options.matmul_variants = variants;
    options.n_matmul_variants = n;
    kernels.matmul = multiply;
    rp_network_free(model->network);
    model->network = rp_network_new(model->weights, &kernels, &options);
    memset(variants, 0, sizeof variants); /* it has a copy */
    memset(&seen, 0, sizeof seen);
    const Run after = network_whole(model);

    /* two blocks of four matmuls, two chunks of the head and a last one */
    assert_int_equal(seen.variants[RP_MATMUL_NN][2], 2 * 4 + 2);
    assert_int_equal(seen.variants[RP_MATMUL_NN][0], 1);
    assert_int_equal(seen.variants[RP_MATMUL_TN][7], 2 * 4 + 2);
    assert_int_equal(seen.variants[RP_MATMUL_TN][0], 1);
    assert_true(after.loss == before.loss); /* the host has one variant */
    assert_memory_equal(after.sums, before.sums, model->elements * sizeof(float));
    network_free(model);
}

RP_TEST(leaves_networks_alone_whose_kernels_have_one_way)
{
    Bench bench;
    GError *error = NULL;
    RpNetwork *given = network_of(&bench, FALSE);
    RpNetwork *network = rp_measure_matmul_variants(&bench.probe, given, &silent, &error);
    RpProfile *profile;

    rp_assert_no_error(error);
    assert_ptr_equal(network, given);
    assert_int_equal(seen.uploads, 0);
    profile = rp_network_profile(network);
    assert_string_equal(profile->matmul_library, "");
    rp_profile_free(profile);
    rp_network_free(network);
    rp_weights_free(bench.weights);
}

RP_TEST(gives_back_what_it_took_when_the_probe_fails)
{
    for (guint at = 1; at <= 4; at++) {
        Bench bench;
        GError *error = NULL;
        RpNetwork *given = network_of(&bench, TRUE);

        seen.fail_at = at;
        assert_null(rp_measure_matmul_variants(&bench.probe, given, &silent, &error));
        assert_string_equal(error->message, "the probe failed");
        assert_int_equal(seen.n_buffers, 0);
        g_clear_error(&error);
        rp_weights_free(bench.weights);
    }
}

static gboolean
ends_at(guint64 done, guint64 total, gpointer last)
{
    assert_true(done < total);
    return done < *(const guint64 *)last;
}

RP_TEST(ends_when_it_is_cancelled)
{
    guint64 last = 2;
    Bench bench;
    GError *error = NULL;
    RpNetwork *given = network_of(&bench, TRUE);
    const RpMeasureOptions options = {.progress = ends_at, .user_data = &last};

    assert_null(rp_measure_matmul_variants(&bench.probe, given, &options, &error));
    assert_true(g_error_matches(error, G_IO_ERROR, G_IO_ERROR_CANCELLED));
    assert_int_equal(seen.n_buffers, 0);
    g_clear_error(&error);
    rp_weights_free(bench.weights);
}

RP_TEST_FIXTURE(host_setup, host_teardown)
