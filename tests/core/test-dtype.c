#include "tests/rp-test.h"

#include <math.h>

#include "core/base/dtype.h"

/* The nearest value in a format of @mantissa_bits and exponents from @min_exponent up, by
 * arithmetic: the nearest multiple of the unit in the last place, as rint() rounds in double. */
static double
nearest(double value, int mantissa_bits, int min_exponent, double largest)
{
    int exponent;

    if (value == 0 || isinf(value))
        return value;
    frexp(value, &exponent); /* value = 0.5 .. 1 x 2^exponent */
    double unit = ldexp(1, MAX(exponent - 1, min_exponent) - mantissa_bits);
    double rounded = rint(value / unit) * unit;
    return fabs(rounded) > largest ? copysign(INFINITY, value) : rounded;
}

#define BF16_LARGEST 0x1.fep127
#define FP16_LARGEST 65504.0

/* The value of 16 bits, by arithmetic. */
static double
value_of(guint16 bits, int mantissa_bits, int bias)
{
    int n_exponents = 1 << (15 - mantissa_bits);
    int exponent = (bits & 0x7fff) >> mantissa_bits;
    int mantissa = bits & ((1 << mantissa_bits) - 1);
    double sign = bits & 0x8000 ? -1 : 1;

    if (exponent == n_exponents - 1)
        return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

RP_TEST(widens_all_65536_patterns_exactly)
{
    for (guint i = 0; i <= G_MAXUINT16; i++) {
        double bf16 = value_of((guint16)i, 7, 127);
        double fp16 = value_of((guint16)i, 10, 15);
        float wide_bf16 = rp_float_from_bf16((guint16)i);
        float wide_fp16 = rp_float_from_fp16((guint16)i);

        if (isnan(bf16) ? !isnan(wide_bf16)
                        : wide_bf16 != bf16 || !signbit(wide_bf16) != !(i >> 15))
            fail_msg("bf16 %04x: %a, expected %a", i, wide_bf16, bf16);
        if (isnan(fp16) ? !isnan(wide_fp16)
                        : wide_fp16 != fp16 || !signbit(wide_fp16) != !(i >> 15))
            fail_msg("fp16 %04x: %a, expected %a", i, wide_fp16, fp16);
    }
}

RP_TEST(gives_all_65536_patterns_back)
{
    for (guint i = 0; i <= G_MAXUINT16; i++) {
        guint bf16 = rp_bf16_from_float(rp_float_from_bf16((guint16)i));
        guint fp16 = rp_fp16_from_float(rp_float_from_fp16((guint16)i));
        gboolean bf16_nan = (i & 0x7fff) > 0x7f80;
        gboolean fp16_nan = (i & 0x7fff) > 0x7c00;

        assert_int_equal(bf16, bf16_nan ? i | 0x40 : i); /* a NaN becomes a quiet one */
        assert_int_equal(fp16, fp16_nan ? i | 0x200 : i);
    }
}

static void
check_narrowing(guint32 bits)
{
    float value = rp_float_from_bits(bits);
    float bf16 = rp_float_from_bf16(rp_bf16_from_float(value));
    float fp16 = rp_float_from_fp16(rp_fp16_from_float(value));

    if (isnan(value)) {
        assert_true(isnan(bf16) && isnan(fp16));
    } else {
        if (bf16 != nearest(value, 7, -126, BF16_LARGEST))
            fail_msg("%a to bf16: %a, expected %a", value, bf16,
                     nearest(value, 7, -126, BF16_LARGEST));
        if (fp16 != nearest(value, 10, -14, FP16_LARGEST))
            fail_msg("%a to fp16: %a, expected %a", value, fp16,
                     nearest(value, 10, -14, FP16_LARGEST));
    }
    assert_int_equal(!signbit(bf16), !signbit(value));
    assert_int_equal(!signbit(fp16), !signbit(value));
}

RP_TEST(narrows_random_floats_to_the_nearest)
{
    guint64 random = 1;

    for (guint i = 0; i < 4000000; i++) {
        random = random * G_GUINT64_CONSTANT(6364136223846793005) + 1442695040888963407;
        guint32 bits = (guint32)(random >> 32);
        check_narrowing(bits);
        /* the same mantissa where fp16 has its normal and subnormal numbers */
        check_narrowing((bits & 0x807fffff) | (101 + (bits >> 23) % 44) << 23);
    }
}

RP_TEST(rounds_ties_to_even)
{
    /* between each number and the next, exactly half way and one unit beside */
    for (guint i = 0; i < 0x7c00; i++) {
        guint32 low = rp_float_bits(rp_float_from_fp16((guint16)i));
        double middle = ((double)rp_float_from_fp16((guint16)i) +
                         (i == 0x7bff ? 65536.0 : (double)rp_float_from_fp16((guint16)(i + 1)))) /
                        2;
        guint32 bits = rp_float_bits((float)middle);

        assert_true((double)rp_float_from_bits(bits) == middle && bits > low);
        assert_int_equal(rp_fp16_from_float(rp_float_from_bits(bits)), i + (i & 1));
        assert_int_equal(rp_fp16_from_float(rp_float_from_bits(bits - 1)), i);
        assert_int_equal(rp_fp16_from_float(rp_float_from_bits(bits + 1)), i + 1);
    }
    for (guint32 i = 0; i < 0x7f80; i++) {
        guint32 bits = i << 16 | 0x8000;

        assert_int_equal(rp_bf16_from_float(rp_float_from_bits(bits)), i + (i & 1));
        assert_int_equal(rp_bf16_from_float(rp_float_from_bits(bits - 1)), i);
        assert_int_equal(rp_bf16_from_float(rp_float_from_bits(bits + 1)), i + 1);
    }
}

RP_TEST(keeps_nans_and_infinities)
{
    /* quiet, and the upper bits of the mantissa kept */
    static const struct {
        guint32 fp32;
        guint16 bf16, fp16;
    } nans[] = {{0x7f800001, 0x7fc0, 0x7e00}, {0x7fffffff, 0x7fff, 0x7fff},
                {0xff800001, 0xffc0, 0xfe00}, {0x7fc00000, 0x7fc0, 0x7e00},
                {0x7f801fff, 0x7fc0, 0x7e00}, {0xffa34567, 0xffe3, 0xff1a}};

    for (gsize i = 0; i < G_N_ELEMENTS(nans); i++) {
        check_narrowing(nans[i].fp32);
        assert_int_equal(rp_bf16_from_float(rp_float_from_bits(nans[i].fp32)), nans[i].bf16);
        assert_int_equal(rp_fp16_from_float(rp_float_from_bits(nans[i].fp32)), nans[i].fp16);
    }
    assert_int_equal(rp_float_bits(rp_float_from_fp16(0xfd01)), 0xffe02000); /* becomes quiet */
    assert_int_equal(rp_float_bits(rp_float_from_bf16(0xffa3)), 0xffa30000);
    assert_int_equal(rp_bf16_from_float(INFINITY), 0x7f80);
    assert_int_equal(rp_bf16_from_float(-INFINITY), 0xff80);
    assert_int_equal(rp_fp16_from_float(INFINITY), 0x7c00);
    assert_int_equal(rp_fp16_from_float(65519.996f), 0x7bff);
    assert_int_equal(rp_fp16_from_float(65520.0f), 0x7c00);
    assert_int_equal(rp_fp16_from_float(-0x1p-25f), 0x8000);
    assert_int_equal(rp_fp16_from_float(0x1.000002p-25f), 0x0001);
}

RP_TEST(converts_arrays_at_any_address)
{
    float values[5] = {1.0f, -2.5f, 0.1f, 65504.0f, 0x1p-24f};
    float back[5];
    guint8 bytes[1 + sizeof values];

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        rp_dtype_from_float((RpDtype)dtype, values, bytes + 1, 5);
        rp_dtype_to_float((RpDtype)dtype, bytes + 1, back, 5);
        for (guint i = 0; i < 5; i++) {
            float expected = dtype == RP_DTYPE_FP32 ? values[i]
                             : dtype == RP_DTYPE_BF16
                                 ? rp_float_from_bf16(rp_bf16_from_float(values[i]))
                                 : rp_float_from_fp16(rp_fp16_from_float(values[i]));
            assert_true(back[i] == expected);
        }
    }
}

RP_TEST(arrays_hold_what_was_set)
{
    float fp32[2] = {0};
    guint16 half[2] = {0};

    rp_dtype_set(RP_DTYPE_FP32, fp32, 1, 0.1f);
    assert_true(rp_dtype_get(RP_DTYPE_FP32, fp32, 1) == 0.1f);
    rp_dtype_set(RP_DTYPE_BF16, half, 1, 1.5f);
    assert_int_equal(half[1], 0x3fc0);
    assert_true(rp_dtype_get(RP_DTYPE_BF16, half, 1) == 1.5f);
    rp_dtype_set(RP_DTYPE_FP16, half, 1, 1.5f);
    assert_int_equal(half[1], 0x3e00);
    assert_true(rp_dtype_get(RP_DTYPE_FP16, half, 1) == 1.5f);
    assert_int_equal(half[0], 0);
}

RP_TEST(knows_each_type_by_its_three_names)
{
    const char *(*const spellings[])(RpDtype) = {rp_dtype_name, rp_dtype_safetensors_name,
                                                 rp_dtype_torch_name};
    RpDtype dtype;

    for (guint i = 0; i < RP_N_DTYPES; i++)
        for (guint j = 0; j < G_N_ELEMENTS(spellings); j++) {
            assert_true(rp_dtype_parse(spellings[j]((RpDtype)i), spellings[j], &dtype));
            assert_int_equal(dtype, i);
        }
    assert_false(rp_dtype_parse("F64", rp_dtype_safetensors_name, &dtype));
    assert_int_equal(rp_dtype_size(RP_DTYPE_FP32), 4);
    assert_int_equal(rp_dtype_size(RP_DTYPE_BF16), 2);
}
