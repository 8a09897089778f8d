#include "tests/exec-model/tensor-fixture.h"

#include <math.h>

#include "exec/model/init.h"

static const RpModel tiny = {
    .architecture = RP_ARCHITECTURE_LLAMA,
    .hidden = 16,
    .blocks = 2,
    .heads = 4,
    .kv_heads = 2,
    .head_dim = 4,
    .intermediate = 24,
    .vocab = 33,
    .max_positions = 32,
    .rms_norm_eps = 1e-6,
    .initializer_range = 0.02,
    .rope = {.theta = 1e4},
    .attention_bias = TRUE,
    .mlp_bias = TRUE,
    .dtype = RP_DTYPE_BF16,
    .bos_id = RP_MODEL_NO_TOKEN,
    .pad_id = 5,
};

/* The known answers that are published with the generator (Random123, kat_vectors). */
RP_TEST(gives_the_known_answers_of_philox)
{
    static const struct {
        guint32 counter[4];
        guint32 key[2];
        guint32 words[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        guint32 words[4];
        rp_philox(cases[i].counter, cases[i].key, words);
        assert_memory_equal(words, cases[i].words, sizeof words);
    }
}

/* Against the error function of the C library. */
RP_TEST(inverts_the_normal_distribution)
{
    assert_true(rp_init_normal(0.5) == 0);
    for (double z = -6.3; z < 6.3; z += 0.01) {
        double p = erfc(-z / sqrt(2)) / 2;
        double slope = exp(-z * z / 2) / sqrt(2 * G_PI);
        double found = rp_init_normal(p);
        /* near 1 a double distinguishes fewer values */
        if (fabs(found - z) > 2e-7 * fabs(z) + 1e-16 / slope + 1e-12)
            fail_msg("at %g: %.17g", z, found);
    }
}

RP_TEST(gives_values_that_do_not_depend_on_order)
{
    g_autoptr(RpWeights) weights = rp_weights_new(&tiny);
    const RpWeight *q = rp_weights_nth(weights, (guint)rp_weights_find(weights, 1, RP_WEIGHT_Q));
    float whole[256], part[256];

    rp_init_fill(&tiny, q, 7, 0, whole, 256);
    for (guint step = 1; step < 9; step++) {
        for (guint first = 0; first < 256; first += step)
            rp_init_fill(&tiny, q, 7, first, part + first, MIN(step, 256 - first));
        assert_memory_equal(whole, part, sizeof whole);
    }
    rp_init_fill(&tiny, q, 8, 0, part, 256);
    assert_memory_not_equal(whole, part, sizeof whole);
    const RpWeight *other =
        rp_weights_nth(weights, (guint)rp_weights_find(weights, 2, RP_WEIGHT_Q));
    rp_init_fill(&tiny, other, 7, 0, part, 256);
    assert_memory_not_equal(whole, part, sizeof whole);
}

/* Groups of values against the two functions of one block and of one value. */
RP_TEST(gives_each_value_as_its_formula_has_it)
{
    const guint64 seed = G_GUINT64_CONSTANT(0x123456789abcdef0);
    const guint64 stream = G_GUINT64_CONSTANT(0xfedcba9876543210);
    const guint32 key[2] = {0x9abcdef0, 0x12345678};
    const guint64 first = ((guint64)1 << 34) - 1003; /* the counter's lower word runs over */
    float values[2000];

    rp_init_normals(seed, stream, 0.02, first, values, G_N_ELEMENTS(values));
    for (guint i = 0; i < G_N_ELEMENTS(values); i++) {
        guint64 index = (first + i) / 4;
        const guint32 counter[4] = {(guint32)index, (guint32)(index >> 32), (guint32)stream,
                                    (guint32)(stream >> 32)};
        guint32 words[4];
        rp_philox(counter, key, words);
        double p = ((double)words[(first + i) % 4] + 0.5) * 0x1p-32;
        float expected = (float)(0.02 * rp_init_normal(p));
        assert_memory_equal(&values[i], &expected, sizeof expected);
    }
}

RP_TEST(draws_from_the_normal_distribution)
{
    RpWeight weight = {.name = "x", .rank = 2, .elements = 1000000};
    g_autofree float *values = g_new(float, weight.elements);
    double moments[5] = {0};

    rp_init_fill(&tiny, &weight, 1, 0, values, weight.elements);
    for (gsize i = 0; i < weight.elements; i++)
        for (guint k = 1; k <= 4; k++)
            moments[k] += pow(values[i] / 0.02, k) / 1e6;
    /* four standard deviations of each estimate */
    assert_true(fabs(moments[1]) < 0.004);
    assert_true(fabs(moments[2] - 1) < 0.0057);
    assert_true(fabs(moments[3]) < 0.0155);
    assert_true(fabs(moments[4] - 3) < 0.04);
}

RP_TEST(starts_norms_at_one_and_biases_and_padding_at_zero)
{
    g_autoptr(RpWeights) weights = rp_weights_new(&tiny);
    float values[33 * 16];

    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        rp_init_fill(&tiny, weight, 0, 0, values, weight->elements);
        for (guint j = 0; j < weight->elements; j++) {
            gboolean padding = weight->kind == RP_WEIGHT_EMBEDDING && j / 16 == 5;
            if (weight->norm)
                assert_true(values[j] == 1);
            else
                assert_true((values[j] == 0) == (weight->rank == 1 || padding));
        }
    }
}

RP_TEST(starts_sinks_and_router_biases_of_gpt_oss_as_random_numbers)
{
    RpModel config = tiny;
    float values[8192];

    config.architecture = RP_ARCHITECTURE_GPT_OSS;
    config.experts = 3;
    config.active_experts = 2;
    config.attention_bias = config.mlp_bias = TRUE;
    g_autoptr(RpWeights) weights = rp_weights_new(&config);
    guint first;
    const guint n = rp_weights_layer(weights, 1, &first);

    for (guint i = first; i < first + n; i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        const gboolean bias = strstr(weight->name, "bias") != NULL;
        const gboolean zero = bias && weight->kind != RP_WEIGHT_ROUTER_BIAS;

        assert_true(weight->elements <= G_N_ELEMENTS(values));
        rp_init_fill(&config, weight, 0, 0, values, weight->elements);
        for (guint j = 0; j < weight->elements; j++)
            assert_true(weight->norm ? values[j] == 1 : (values[j] == 0) == zero);
    }
}

static gboolean
write_tiny(TensorFixture *f, const RpModel *config, guint64 seed, guint64 max_shard_bytes)
{
    RpInitOptions options = {.seed = seed, .max_shard_bytes = max_shard_bytes};

    g_clear_error(&f->error);
    return rp_init_write(config, f->directory, &options, &f->error);
}

static char *
checksum(TensorFixture *f)
{
    g_autoptr(GBytes) bytes = tensor_load(f, "model.safetensors");
    return g_compute_checksum_for_bytes(G_CHECKSUM_SHA256, bytes);
}

RP_TEST_OF(writes_a_checkpoint_that_binds_to_its_config, TensorFixture *f)
{
    static const guint64 shards[] = {0, 1000};

    for (guint tied = 0; tied < 2; tied++) {
        for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
            RpModel config = tiny;
            RpModel loaded;
            config.tied = (gboolean)tied;
            config.dtype = (RpDtype)dtype;
            assert_true(write_tiny(f, &config, 3, shards[tied]));
            assert_true(rp_hf_config_load(f->directory, &loaded, &f->error));
            assert_true(loaded.has_dtype && loaded.dtype == config.dtype);
            g_clear_pointer(&f->tensors, rp_safetensors_free);
            f->tensors = rp_must(rp_safetensors_open, f->directory);
            g_autoptr(RpWeights) weights = rp_weights_new(&loaded);
            gboolean bound = rp_must(rp_weights_bind, weights, f->tensors);
            assert_true(bound);
        }
    }
}

/* Every value, read in odd pieces, and the hash of the base: more than a piece of it. */
RP_TEST_OF(makes_the_values_of_a_file_without_it, TensorFixture *f)
{
    const RpLora lora = {.rank = 2, .alpha = 8};
    float expected[1000], found[1000];

    for (guint tied = 0; tied < 2; tied++)
        for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
            RpModel config = tiny;
            config.vocab = dtype == RP_DTYPE_BF16 ? 140000 : config.vocab;
            config.tied = (gboolean)tied;
            config.has_dtype = TRUE;
            config.dtype = (RpDtype)dtype;
            assert_true(write_tiny(f, &config, 3, 0));
            g_clear_pointer(&f->tensors, rp_safetensors_free);
            f->tensors = rp_must(rp_safetensors_open, f->directory);
            g_autoptr(RpWeights) file = rp_weights_new_adapted(&config, &lora);
            g_autoptr(RpWeights) made = rp_weights_new_adapted(&config, &lora);
            assert_true(rp_weights_bind(file, f->tensors, &f->error));
            rp_weights_bind_random(made, 3);
            assert_int_equal(rp_weights_dtype(made), config.dtype);
            for (guint i = 0; i < rp_weights_count(file); i++) {
                const guint64 elements = rp_weights_nth(file, i)->elements;
                for (guint64 first = elements > 4000 ? elements - 3999 : 0; first < elements;
                     first += G_N_ELEMENTS(found)) {
                    const gsize n = (gsize)MIN(G_N_ELEMENTS(found), elements - first);
                    rp_weights_read(file, i, first, expected, n);
                    rp_weights_read(made, i, first, found, n);
                    assert_memory_equal(expected, found, n * sizeof *found);
                }
            }
            assert_string_equal(rp_weights_base_hash(file), rp_weights_base_hash(made));
            assert_string_equal(rp_weights_base_values(file), rp_weights_base_values(made));
            rp_weights_bind_random(made, 4);
            assert_string_not_equal(rp_weights_base_hash(file), rp_weights_base_hash(made));
        }
}

/* The bytes are part of the format: who changes them changes every published run. */
RP_TEST_OF(writes_the_same_bytes_for_ever, TensorFixture *f)
{
    static const char *const sums[RP_N_DTYPES] = {
        [RP_DTYPE_FP32] = "6a41de1f7d7f1ce7aa8bccfb21eb4bb1cf723711e32968c54eb05b69a762f877",
        [RP_DTYPE_BF16] = "bd6c8d2acd12ca51f08a182f81a26652ef12c831d8f5676249d63c91a21d910b",
        [RP_DTYPE_FP16] = "82a208c737aff355ec7fcead00fcb5b2a8c204e22433900f093820feb7017468",
    };

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        RpModel config = tiny;
        config.dtype = (RpDtype)dtype;
        assert_true(write_tiny(f, &config, 42, 0));
        g_autofree char *first = checksum(f);
        assert_string_equal(first, sums[dtype]);
        assert_true(write_tiny(f, &config, 43, 0));
        g_autofree char *other = checksum(f);
        assert_string_not_equal(first, other);
    }
}

typedef struct {
    guint64 done;
    guint64 total;
    gboolean went_back;
} Seen;

static void
note_progress(guint64 done, guint64 total, gpointer user_data)
{
    Seen *seen = user_data;

    seen->went_back |= done <= seen->done;
    seen->done = done;
    seen->total = total;
}

/* Several pieces a thread, also with more threads than pieces at the end. */
RP_TEST_OF(writes_the_same_bytes_whatever_the_threads, TensorFixture *f)
{
    static const guint threads[] = {1, 2, 3, 7, 0};
    RpModel config = tiny;
    g_autofree char *expected = NULL;

    config.vocab = 50000;
    for (guint i = 0; i < G_N_ELEMENTS(threads); i++) {
        Seen seen = {0};
        RpInitOptions options = {
            .seed = 9, .threads = threads[i], .progress = note_progress, .user_data = &seen};
        assert_true(rp_init_write(&config, f->directory, &options, &f->error));
        g_autofree char *found = checksum(f);
        if (expected == NULL)
            expected = g_steal_pointer(&found);
        else
            assert_string_equal(found, expected);
        assert_false(seen.went_back);
        assert_int_equal(seen.done, seen.total);
        assert_true(seen.total > 2 * (guint64)config.vocab * config.hidden);
    }
}

RP_TEST_OF(says_where_it_cannot_write, TensorFixture *f)
{
    RpInitOptions options = {0};

    rp_refuses("cannot write \"/nowhere", rp_init_write, &tiny, "/nowhere", &options);
}

RP_TEST_FIXTURE(tensor_setup, tensor_teardown)
