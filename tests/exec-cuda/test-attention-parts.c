#include "tests/rp-test.h"

#include "exec/cuda/cudnn/parts.h"

#define GIB ((size_t)1 << 30)

/* Whether each head of each sequence is in one part, its kv head with it, and each group's slices
 * are there, in order, and nothing else between them. */
static void
assert_covers(const RpAttentionParts *parts)
{
    const RpAttentionSize whole = parts->whole, part = parts->part;
    const size_t group = whole.heads / whole.kv_heads;
    g_autofree guint *seen = g_new0(guint, whole.sequences * whole.heads);
    size_t next_slice = 0, wrong = 0;

    for (size_t i = 0; i < parts->count; i++) {
        const RpAttentionPlace place = rp_attention_parts_place(parts, i);

        wrong += place.kv_head != place.head / group || place.slice != next_slice;
        wrong += parts->slices > 1 ? part.kv_heads != 1 : place.head % group != 0;
        next_slice = (next_slice + 1) % parts->slices;
        for (size_t s = 0; s < part.sequences; s++)
            for (size_t h = 0; h < part.heads; h++) {
                const size_t sequence = place.sequence + s, head = place.head + h;

                if (sequence < whole.sequences && head < whole.heads)
                    seen[sequence * whole.heads + head]++;
                else
                    wrong++;
                wrong += head / group >= place.kv_head + part.kv_heads;
            }
    }
    for (size_t i = 0; i < whole.sequences * whole.heads; i++)
        wrong += seen[i] != 1;
    if (parts->slices == 1)
        wrong += part.heads != part.kv_heads * group;
    assert_int_equal(wrong, 0);
    assert_int_equal(next_slice, 0);
}

static void
every_head_of_every_sequence_is_in_one_part_that_fits(void **state)
{
    static const size_t groups[] = {1, 2, 3, 4, 7, 8, 16}, kv_heads[] = {1, 2, 3, 4, 8};

    for (size_t g = 0; g < G_N_ELEMENTS(groups); g++)
        for (size_t k = 0; k < G_N_ELEMENTS(kv_heads); k++)
            for (size_t sequences = 1; sequences <= 7; sequences++)
                for (size_t most = 1; most <= sequences * kv_heads[k] * groups[g] + 1; most++) {
                    const RpAttentionSize whole = {sequences, kv_heads[k] * groups[g], kv_heads[k]};
                    RpAttentionParts parts;

                    assert_true(rp_attention_parts_choose(&whole, most, &parts));
                    assert_true(parts.part.sequences * parts.part.heads <= most);
                    assert_covers(&parts);
                }
}

static void
assert_parts(RpAttentionSize whole, size_t length, RpAttentionSize part, size_t slices)
{
    const size_t most = 2 * GIB / rp_attention_head_ds(length);
    RpAttentionParts parts;

    assert_true(rp_attention_parts_choose(&whole, most, &parts));
    assert_int_equal(parts.part.sequences, part.sequences);
    assert_int_equal(parts.part.heads, part.heads);
    assert_int_equal(parts.part.kv_heads, part.kv_heads);
    assert_int_equal(parts.slices, slices);
    assert_true(part.sequences * part.heads * rp_attention_head_ds(length) <= 2 * GIB);
    assert_covers(&parts);
}

static void
what_fits_stays_whole(void **state)
{
    assert_parts((RpAttentionSize){8, 16, 8}, 2048, (RpAttentionSize){8, 16, 8}, 1);
    assert_parts((RpAttentionSize){1, 16, 8}, 8192, (RpAttentionSize){1, 16, 8}, 1);
    assert_parts((RpAttentionSize){1, 1, 1}, 32768, (RpAttentionSize){1, 1, 1}, 1);
}

static void
parts_are_as_large_as_two_gib_of_ds_allow(void **state)
{
    assert_parts((RpAttentionSize){2, 16, 8}, 8192, (RpAttentionSize){1, 16, 8}, 1);
    assert_parts((RpAttentionSize){1, 16, 8}, 8193, (RpAttentionSize){1, 8, 4}, 1);
    assert_parts((RpAttentionSize){17, 16, 8}, 2048, (RpAttentionSize){17, 8, 4}, 1);
    assert_parts((RpAttentionSize){7, 16, 8}, 8192, (RpAttentionSize){1, 16, 8}, 1);
    assert_parts((RpAttentionSize){4, 8, 8}, 16384, (RpAttentionSize){1, 4, 4}, 1);
}

static void
a_group_that_is_too_large_is_cut_into_slices(void **state)
{
    assert_parts((RpAttentionSize){1, 16, 8}, 32768, (RpAttentionSize){1, 1, 1}, 2);
    assert_parts((RpAttentionSize){2, 64, 8}, 16384, (RpAttentionSize){1, 4, 1}, 2);
    assert_parts((RpAttentionSize){1, 28, 4}, 16384, (RpAttentionSize){1, 1, 1}, 7);
}

static void
a_head_that_is_too_large_is_refused(void **state)
{
    const RpAttentionSize whole = {1, 16, 8};
    RpAttentionParts parts;

    assert_true(rp_attention_head_ds(32768) <= 2 * GIB);
    assert_true(rp_attention_head_ds(32769) > 2 * GIB);
    assert_false(rp_attention_parts_choose(&whole, 0, &parts));
}

static void
ds_is_counted_in_whole_tiles(void **state)
{
    assert_int_equal(rp_attention_head_ds(128), 2 * 128 * 128);
    assert_int_equal(rp_attention_head_ds(129), 2 * 256 * 256);
    assert_true(rp_attention_head_ds((size_t)1 << 31) == (size_t)1 << 63);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_head_of_every_sequence_is_in_one_part_that_fits),
        cmocka_unit_test(what_fits_stays_whole),
        cmocka_unit_test(parts_are_as_large_as_two_gib_of_ds_allow),
        cmocka_unit_test(a_group_that_is_too_large_is_cut_into_slices),
        cmocka_unit_test(a_head_that_is_too_large_is_refused),
        cmocka_unit_test(ds_is_counted_in_whole_tiles),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
