#include "tests/rp-test.h"

#include "core/plan/transfer.h"

static RpProfile *
new_random_profile(GRand *random, guint n_layers)
{
    RpProfile *profile = rp_profile_new(n_layers);

    for (guint l = 0; l < n_layers; l++) {
        guint n = (guint)g_rand_int_range(random, 0, 9);
        guint64 sizes[8];

        for (guint t = 0; t < n; t++)
            sizes[t] = (guint64)g_rand_int_range(random, 1, 2000000);
        if (n > 0)
            rp_profile_set_tensors(profile, l, sizes, n);
        else
            profile->layers[l].parameter_bytes = (guint64)g_rand_int_range(random, 1, 5000000);
        profile->layers[l].gradient_bytes =
            g_rand_boolean(random) ? profile->layers[l].parameter_bytes : 12345;
    }
    return profile;
}

static guint64
total_of(const RpProfile *profile, RpInterval layers, gboolean gradients)
{
    guint64 total = 0;

    for (guint l = layers.first; l < layers.first + layers.count; l++)
        total += gradients ? profile->layers[l].gradient_bytes : profile->layers[l].parameter_bytes;
    return total;
}

/* Marks the bytes of every segment; none may be marked twice, none may be left. */
static void
assert_every_byte_once(const RpProfile *profile, RpInterval layers, gboolean gradients,
                       const RpChunks *chunks)
{
    guint64 covered = 0;

    for (guint c = 0; c < chunks->n_chunks; c++) {
        guint64 bytes = 0;

        assert_true(chunks->first_segment[c] < chunks->first_segment[c + 1]);
        for (guint i = chunks->first_segment[c]; i < chunks->first_segment[c + 1]; i++) {
            const RpSegment *segment = &chunks->segments[i];

            assert_in_range(segment->layer, layers.first, layers.first + layers.count - 1);
            assert_true(segment->bytes > 0);
            assert_true(segment->offset + segment->bytes <=
                        (gradients ? profile->layers[segment->layer].gradient_bytes
                                   : profile->layers[segment->layer].parameter_bytes));
            for (guint j = 0; j < chunks->first_segment[chunks->n_chunks]; j++) {
                const RpSegment *other = &chunks->segments[j];

                if (j != i && other->layer == segment->layer)
                    assert_true(other->offset >= segment->offset + segment->bytes ||
                                segment->offset >= other->offset + other->bytes);
            }
            bytes += segment->bytes;
        }
        assert_int_equal(bytes, chunks->chunk_bytes[c]);
        covered += bytes;
    }
    assert_int_equal(covered, total_of(profile, layers, gradients));
}

/* The bytes of every chunk come before those of the next one, and cuts are at 256 bytes. */
static void
assert_in_order(const RpChunks *chunks)
{
    for (guint i = 1; i < chunks->first_segment[chunks->n_chunks]; i++) {
        const RpSegment *before = &chunks->segments[i - 1], *segment = &chunks->segments[i];

        assert_true(segment->layer > before->layer ||
                    segment->offset == before->offset + before->bytes);
        assert_int_equal(segment->offset % 256, 0);
    }
}

RP_TEST(packs_every_byte_once_and_evenly)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(11);

    for (guint round = 0; round < 400; round++) {
        guint n_layers = (guint)g_rand_int_range(random, 1, 5);
        g_autoptr(RpProfile) profile = new_random_profile(random, n_layers);
        RpInterval layers = {0, n_layers};
        guint windows = (guint)g_rand_int_range(random, 1, 20);
        gboolean gradients = g_rand_boolean(random);
        RpChunks chunks = rp_chunks_pack(profile, layers, gradients, windows, 0);
        guint64 share = total_of(profile, layers, gradients) / windows + 1;

        assert_true(chunks.n_chunks >= 1 && chunks.n_chunks <= windows);
        assert_every_byte_once(profile, layers, gradients, &chunks);
        assert_in_order(&chunks);
        for (guint c = 0; c < chunks.n_chunks; c++)
            assert_true(chunks.chunk_bytes[c] <= share + 256);
        rp_chunks_clear(&chunks);
    }
}

RP_TEST(splits_a_tensor_larger_than_a_window)
{
    g_autoptr(RpProfile) profile = rp_profile_new(1);
    const guint64 tensor = 1 << 20;
    RpChunks chunks;

    rp_profile_set_tensors(profile, 0, &tensor, 1);
    chunks = rp_chunks_pack(profile, (RpInterval){0, 1}, FALSE, 8, 0);
    assert_int_equal(chunks.n_chunks, 8);
    for (guint c = 0; c < 8; c++)
        assert_int_equal(chunks.chunk_bytes[c], tensor / 8);
    rp_chunks_clear(&chunks);
}

RP_TEST(takes_neighbours_in_few_copies)
{
    g_autoptr(RpProfile) profile = rp_profile_new(1);
    guint64 experts[384];
    RpChunks chunks;

    for (guint i = 0; i < G_N_ELEMENTS(experts); i++)
        experts[i] = 6291456;
    rp_profile_set_tensors(profile, 0, experts, G_N_ELEMENTS(experts));
    chunks = rp_chunks_pack(profile, (RpInterval){0, 1}, FALSE, 8, 0);
    assert_int_equal(chunks.n_chunks, 8);
    assert_int_equal(chunks.first_segment[8], 8); /* one layer: one run of bytes a chunk */
    assert_every_byte_once(profile, (RpInterval){0, 1}, FALSE, &chunks);
    rp_chunks_clear(&chunks);
}

/* The first chunk then does not wait for the update of a distant layer. */
RP_TEST(a_chunk_has_neighbouring_layers_only)
{
    g_autoptr(RpProfile) profile = rp_profile_new(8);
    RpChunks chunks;

    for (guint l = 0; l < 8; l++) {
        const guint64 tensors[] = {4096, 65536, 1024};

        rp_profile_set_tensors(profile, l, tensors, G_N_ELEMENTS(tensors));
    }
    chunks = rp_chunks_pack(profile, (RpInterval){0, 8}, FALSE, 4, 0);
    assert_int_equal(chunks.n_chunks, 4);
    for (guint c = 0; c < 4; c++) {
        assert_int_equal(chunks.first_segment[c + 1] - chunks.first_segment[c], 2);
        assert_int_equal(chunks.segments[chunks.first_segment[c]].layer, 2 * c);
        assert_int_equal(chunks.segments[chunks.first_segment[c] + 1].layer, 2 * c + 1);
    }
    rp_chunks_clear(&chunks);
}

RP_TEST(a_whole_stage_is_one_chunk)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(3);
    g_autoptr(RpProfile) profile = new_random_profile(random, 3);
    RpChunks chunks = rp_chunks_pack(profile, (RpInterval){1, 2}, RP_CHUNKS_PARAMETERS, 1, 0);

    assert_int_equal(chunks.n_chunks, 1);
    assert_every_byte_once(profile, (RpInterval){1, 2}, FALSE, &chunks);
    rp_chunks_clear(&chunks);
}

RP_TEST(a_stage_without_gradients_has_no_chunk)
{
    g_autoptr(RpProfile) profile = rp_profile_new(1);
    RpChunks chunks;

    profile->layers[0].parameter_bytes = 1000;
    chunks = rp_chunks_pack(profile, (RpInterval){0, 1}, TRUE, 4, 0);
    assert_int_equal(chunks.n_chunks, 0);
    rp_chunks_clear(&chunks);
}
