#include "tests/exec-lowbit/lowbit-fixture.h"

#include <math.h>

static const char *const storages[RP_N_DTYPES] = {".fp32", ".bf16", ".fp16"};

/* Bit for bit, but for NaNs, whose sign compilers choose. */
static void
assert_same_numbers(const char *name, RpDtype dtype, const guint8 *found, const guint8 *expected,
                    gsize n)
{
    const gsize size = rp_dtype_size(dtype);

    for (gsize i = 0; i < n; i++) {
        float a, b;

        if (memcmp(found + i * size, expected + i * size, size) == 0)
            continue;
        rp_dtype_to_float(dtype, found + i * size, &a, 1);
        rp_dtype_to_float(dtype, expected + i * size, &b, 1);
        if (!isnan(a) || !isnan(b))
            fail_msg("%s: element %zu is %.9g, expected %.9g", name, i, (double)a, (double)b);
    }
}

/* Expands @packed into every storage that @tensors has of @name, whole and in odd pieces. */
static void
assert_expands(RpLowbit format, RpLowbitShape shape, const guint8 *packed,
               const RpSafetensors *tensors, const char *name)
{
    const gsize n = rp_lowbit_elements(shape);

    for (guint d = 0; d < RP_N_DTYPES; d++) {
        g_autofree char *full = g_strconcat(name, storages[d], NULL);
        const RpSafetensor *want = rp_safetensors_find(tensors, full);
        const gsize size = rp_dtype_size((RpDtype)d);
        g_autofree guint8 *values = g_malloc(n * size);

        if (want == NULL) {
            assert_string_equal(full, "large.fp16");
            continue;
        }
        assert_int_equal(want->bytes, n * size);
        rp_lowbit_expand(format, shape, packed, (RpDtype)d, 0, n, values);
        assert_same_numbers(full, (RpDtype)d, values, want->data, n);
        memset(values, 0xff, n * size);
        for (gsize first = 0; first < n; first += 77)
            rp_lowbit_expand(format, shape, packed, (RpDtype)d, first, MIN(77, n - first),
                             values + first * size);
        assert_same_numbers(full, (RpDtype)d, values, want->data, n);
    }
}

/* Calls @check with each name that has a `.source`; at least @least. */
static void
for_sources(const RpSafetensors *tensors, guint least,
            void (*check)(const RpSafetensors *tensors, const char *name,
                          const RpSafetensor *source))
{
    guint n = 0;

    for (guint i = 0; i < rp_safetensors_count(tensors); i++) {
        const RpSafetensor *source = rp_safetensors_nth(tensors, i);

        if (!g_str_has_suffix(source->name, ".source"))
            continue;
        g_autofree char *name = g_strndup(source->name, strlen(source->name) - strlen(".source"));
        check(tensors, name, source);
        n++;
    }
    assert_true(n >= least);
}

static float
offset_of(const RpSafetensor *state)
{
    g_autofree char *text = g_strndup(state->data, state->bytes);
    const char *at = strstr(text, "\"nested_offset\": ");

    assert_non_null(at);
    return (float)g_ascii_strtod(at + strlen("\"nested_offset\": "), NULL);
}

static void
check_nf4(const RpSafetensors *tensors, const char *name, const RpSafetensor *source)
{
    const RpLowbitShape shape = lowbit_shape(source);
    g_autofree guint8 *packed = lowbit_pack(RP_LOWBIT_NF4, source);
    g_autofree guint8 *single = lowbit_pack(RP_LOWBIT_NF4_SINGLE, source);
    g_autofree char *plain = g_strconcat(name, "-single", NULL);
    const RpLowbitLayout layout = rp_lowbit_layout(RP_LOWBIT_NF4, shape);
    const float offset =
        offset_of(lowbit_find(tensors, name, ".weight.quant_state.bitsandbytes__nf4"));

    lowbit_assert_part(RP_LOWBIT_NF4_SINGLE, shape, single, RP_LOWBIT_QUANTIZED,
                       lowbit_find(tensors, plain, ".weight"));
    lowbit_assert_part(RP_LOWBIT_NF4_SINGLE, shape, single, RP_LOWBIT_SCALES,
                       lowbit_find(tensors, plain, ".weight.absmax"));
    assert_expands(RP_LOWBIT_NF4_SINGLE, shape, single, tensors, plain);

    lowbit_assert_part(RP_LOWBIT_NF4, shape, packed, RP_LOWBIT_QUANTIZED,
                       lowbit_find(tensors, name, ".weight"));
    assert_memory_equal(packed + layout.at[RP_LOWBIT_OFFSET], &offset, sizeof offset);
    lowbit_assert_part(RP_LOWBIT_NF4, shape, packed, RP_LOWBIT_NESTED_SCALES,
                       lowbit_find(tensors, name, ".weight.nested_absmax"));
    lowbit_assert_part(RP_LOWBIT_NF4, shape, packed, RP_LOWBIT_SCALES,
                       lowbit_find(tensors, name, ".weight.absmax"));
    lowbit_assert_part(RP_LOWBIT_NF4, shape, packed, RP_LOWBIT_NESTED_MAP,
                       lowbit_find(tensors, name, ".weight.nested_quant_map"));
    assert_expands(RP_LOWBIT_NF4, shape, packed, tensors, name);
}

RP_TEST(packs_and_expands_nf4_as_bitsandbytes)
{
    g_autoptr(RpSafetensors) tensors = lowbit_open("nf4.safetensors");

    for_sources(tensors, 11, check_nf4);
}

static void
check_mxfp4(const RpSafetensors *tensors, const char *name, const RpSafetensor *source)
{
    const RpLowbitShape shape = lowbit_shape(source);
    g_autofree guint8 *packed = lowbit_pack(RP_LOWBIT_MXFP4, source);

    lowbit_assert_part(RP_LOWBIT_MXFP4, shape, packed, RP_LOWBIT_SCALES,
                       lowbit_find(tensors, name, "_scales"));
    lowbit_assert_part(RP_LOWBIT_MXFP4, shape, packed, RP_LOWBIT_QUANTIZED,
                       lowbit_find(tensors, name, "_blocks"));
    assert_expands(RP_LOWBIT_MXFP4, shape, packed, tensors, name);
}

RP_TEST(packs_and_expands_mxfp4)
{
    g_autoptr(RpSafetensors) tensors = lowbit_open("mxfp4.safetensors");

    for_sources(tensors, 7, check_mxfp4);
}

static void
check_fp8(const RpSafetensors *tensors, const char *name, const RpSafetensor *source)
{
    const RpLowbitShape shape = lowbit_shape(source);
    g_autofree guint8 *packed = lowbit_pack(RP_LOWBIT_FP8, source);

    lowbit_assert_part(RP_LOWBIT_FP8, shape, packed, RP_LOWBIT_SCALES,
                       lowbit_find(tensors, name, ".weight_scale_inv"));
    lowbit_assert_part(RP_LOWBIT_FP8, shape, packed, RP_LOWBIT_QUANTIZED,
                       lowbit_find(tensors, name, ".weight"));
    assert_expands(RP_LOWBIT_FP8, shape, packed, tensors, name);
}

RP_TEST(packs_and_expands_fp8_as_torch)
{
    g_autoptr(RpSafetensors) tensors = lowbit_open("fp8.safetensors");

    for_sources(tensors, 4, check_fp8);
}

static void
assert_hash(const char *want, const void *data, gsize bytes)
{
    g_autofree char *got = g_compute_checksum_for_data(G_CHECKSUM_SHA256, data, bytes);

    assert_string_equal(got, want);
}

/* Sums of scales that go through every level of torch's cascade. */
RP_TEST(packs_large_tensors_as_bitsandbytes)
{
    g_autofree char *text = NULL;

    assert_true(g_file_get_contents(LOWBIT_FIXTURES "hashes.csv", &text, NULL, NULL));
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    assert_true(g_strv_length(lines) >= 5);
    for (guint i = 1; lines[i] != NULL && *lines[i]; i++) {
        g_auto(GStrv) cells = g_strsplit(lines[i], ",", -1);
        const gsize n = g_ascii_strtoull(cells[0], NULL, 10);
        const RpLowbitShape shape = {1, 1, n};
        const RpLowbitLayout layout = rp_lowbit_layout(RP_LOWBIT_NF4, shape);
        g_autofree guint16 *values = g_new(guint16, n);
        RpSafetensor source = {.dtype = RP_DTYPE_BF16, .rank = 1, .shape = {n}, .data = values};

        for (gsize k = 0; k < n; k++)
            values[k] = lowbit_noise(k);
        g_autofree guint8 *packed = lowbit_pack(RP_LOWBIT_NF4, &source);
        gint32 offset;
        memcpy(&offset, packed + layout.at[RP_LOWBIT_OFFSET], sizeof offset);
        assert_int_equal(offset, g_ascii_strtoll(cells[4], NULL, 10));
        assert_hash(cells[1], packed, layout.bytes[RP_LOWBIT_QUANTIZED]);
        assert_hash(cells[2], packed + layout.at[RP_LOWBIT_SCALES], layout.bytes[RP_LOWBIT_SCALES]);
        assert_hash(cells[3], packed + layout.at[RP_LOWBIT_NESTED_SCALES],
                    layout.bytes[RP_LOWBIT_NESTED_SCALES]);
        rp_lowbit_expand(RP_LOWBIT_NF4, shape, packed, RP_DTYPE_BF16, 0, n, values);
        assert_hash(cells[5], values, n * sizeof *values);
    }
}

static void
assert_table(const char *file, guint column, const float *values, guint n)
{
    g_autoptr(GArray) want = lowbit_column(file, column);

    assert_int_equal(want->len, n);
    for (guint i = 0; i < n; i++) {
        const float value = (float)g_array_index(want, double, i);

        assert_memory_equal(&values[i], &value, sizeof value);
    }
}

RP_TEST(has_the_published_tables)
{
    static const float nf4[] = {RP_NF4_VALUES};
    static const float mxfp4[] = {RP_MXFP4_VALUES};

    assert_table("nf4-table.csv", 1, nf4, 16);
    assert_table("mxfp4-table.csv", 1, mxfp4, 16);
    assert_table("nf4-double-quant-dynamic-map.csv", 1, rp_nf4_map(), RP_NF4_MAP);
}

/* Every code at a scale of 1. */
RP_TEST(expands_every_code_of_fp8)
{
    const RpLowbitShape shape = {1, 2, 128};
    const RpLowbitLayout layout = rp_lowbit_layout(RP_LOWBIT_FP8, shape);
    g_autofree guint8 *packed = lowbit_scratch(RP_LOWBIT_FP8, shape);
    float values[256];

    for (guint i = 0; i < 256; i++)
        packed[i] = (guint8)i;
    *(float *)(gpointer)(packed + layout.at[RP_LOWBIT_SCALES]) = 1;
    rp_lowbit_expand(RP_LOWBIT_FP8, shape, packed, RP_DTYPE_FP32, 0, 256, values);
    for (guint i = 0; i < 256; i++) {
        const int exponent = (int)(i >> 3 & 15), mantissa = (int)(i & 7);
        const double magnitude =
            exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10);

        if ((i & 127) == 127)
            assert_true(isnan(values[i]));
        else
            assert_true((double)values[i] == (i < 128 ? magnitude : -magnitude) &&
                        (signbit(values[i]) != 0) == (i >= 128));
    }
}

RP_TEST(tells_sizes)
{
    RpLowbitLayout layout = rp_lowbit_layout(RP_LOWBIT_NF4, (RpLowbitShape){1, 4096, 4096});

    assert_int_equal(layout.bytes[RP_LOWBIT_QUANTIZED], 8388608);
    assert_int_equal(layout.bytes[RP_LOWBIT_SCALES], 262144);
    assert_int_equal(layout.bytes[RP_LOWBIT_NESTED_SCALES], 4096);
    assert_int_equal(layout.total, 8388608 + 262144 + 4096 + 1024 + 64);
    layout = rp_lowbit_layout(RP_LOWBIT_NF4_SINGLE, (RpLowbitShape){1, 3, 43}); /* 129 */
    assert_int_equal(layout.bytes[RP_LOWBIT_QUANTIZED], 65);
    assert_int_equal(layout.bytes[RP_LOWBIT_SCALES], 12);
    assert_int_equal(layout.at[RP_LOWBIT_SCALES], 128);
    assert_int_equal(layout.total, 192);
    /* one layer's gate and up of GPT-OSS-20B */
    layout = rp_lowbit_layout(RP_LOWBIT_MXFP4, (RpLowbitShape){32, 5760, 2880});
    assert_int_equal(layout.bytes[RP_LOWBIT_QUANTIZED], 32 * 5760 * 1440);
    assert_int_equal(layout.bytes[RP_LOWBIT_SCALES], 32 * 5760 * 90);
    layout = rp_lowbit_layout(RP_LOWBIT_FP8, (RpLowbitShape){2, 129, 300});
    assert_int_equal(layout.bytes[RP_LOWBIT_QUANTIZED], 2 * 129 * 300);
    assert_int_equal(layout.bytes[RP_LOWBIT_SCALES], 2 * 2 * 3 * 4);
    for (guint i = 0; i < RP_N_LOWBITS; i++) {
        RpLowbit format;

        assert_true(rp_lowbit_from_name(rp_lowbit_name((RpLowbit)i), &format));
        assert_int_equal(format, i);
    }
}

/* Finds the first value that is not finite in a tensor of 3 x 260, in every format. */
RP_TEST(refuses_what_is_not_finite_by_its_index)
{
    static const guint16 bad[] = {0x7f80, 0xff80, 0x7fc0, 0xff81};
    static const gsize places[] = {0, 63, 64, 259, 260, 701, 779};
    const RpLowbitShape shape = {1, 3, 260};

    for (guint f = 0; f < RP_N_LOWBITS; f++) {
        const RpLowbit format = (RpLowbit)f;
        g_autofree guint8 *packed = lowbit_scratch(format, shape);
        g_autofree float *scales = g_new(float, rp_lowbit_pack_scales(format, shape));
        const gsize strips = rp_lowbit_strips(format, shape);

        for (guint b = 0; b < G_N_ELEMENTS(bad); b++) {
            for (guint p = 0; p < G_N_ELEMENTS(places); p++) {
                guint16 values[780];

                for (guint i = 0; i < 780; i++)
                    values[i] = lowbit_noise(i);
                assert_true(rp_lowbit_pack(format, shape, RP_DTYPE_BF16, values, 0, strips, packed,
                                           scales) == RP_LOWBIT_NONE);
                values[places[p]] = bad[b];
                assert_int_equal(
                    rp_lowbit_pack(format, shape, RP_DTYPE_BF16, values, 0, strips, packed, scales),
                    places[p]);
            }
        }
    }
}

RP_TEST(finds_scales_that_are_not_finite)
{
    const RpLowbitShape shape = {1, 2, 96};
    g_autofree guint8 *packed = lowbit_scratch(RP_LOWBIT_MXFP4, shape);
    const RpLowbitLayout layout = rp_lowbit_layout(RP_LOWBIT_MXFP4, shape);
    guint8 *scales = packed + layout.at[RP_LOWBIT_SCALES];

    memset(packed, 0x72, layout.bytes[RP_LOWBIT_QUANTIZED]); /* 1 and 6 */
    memset(scales, 127, layout.bytes[RP_LOWBIT_SCALES]);
    assert_true(rp_lowbit_find_broken(RP_LOWBIT_MXFP4, shape, packed, RP_DTYPE_FP16, 0, 192) ==
                RP_LOWBIT_NONE);
    scales[4] = 127 + 15; /* 6 x 2^15 is infinite in fp16 */
    assert_int_equal(rp_lowbit_find_broken(RP_LOWBIT_MXFP4, shape, packed, RP_DTYPE_FP16, 0, 192),
                     129);
    assert_true(rp_lowbit_find_broken(RP_LOWBIT_MXFP4, shape, packed, RP_DTYPE_BF16, 0, 192) ==
                RP_LOWBIT_NONE);
    scales[1] = 255;
    assert_int_equal(rp_lowbit_find_broken(RP_LOWBIT_MXFP4, shape, packed, RP_DTYPE_BF16, 0, 192),
                     32);
    assert_int_equal(rp_lowbit_find_broken(RP_LOWBIT_MXFP4, shape, packed, RP_DTYPE_BF16, 50, 142),
                     50);
    assert_true(rp_lowbit_find_broken(RP_LOWBIT_MXFP4, shape, packed, RP_DTYPE_BF16, 64, 64) ==
                RP_LOWBIT_NONE);
}
