#include "tests/rp-test.h"

#include <math.h>

#include "core/base/fp8.h"

typedef struct {
    const char *name;
    RpDtype dtype;
    int mantissa_bits, bias;
    double largest;
    float (*widen)(uint8_t code);
    uint8_t (*round)(float value);
} Format;

static const Format formats[] = {
    {"e4m3", RP_DTYPE_E4M3, 3, 7, 448, rp_float_from_e4m3, rp_e4m3_from_float},
    {"e5m2", RP_DTYPE_E5M2, 2, 15, 57344, rp_float_from_e5m2, rp_e5m2_from_float},
};

/* The number that an fp8 value stands for, by arithmetic. Source: OCP FP8 1.0, tables 1 and 2 */
static double
value_of(const Format *format, guint code)
{
    const int exponent = (int)(code & 0x7f) >> format->mantissa_bits;
    const int mantissa = (int)(code & ((1u << format->mantissa_bits) - 1));
    const double sign = code & 0x80 ? -1 : 1;

    if (format->dtype == RP_DTYPE_E4M3 && (code & 0x7f) == 0x7f)
        return NAN;
    if (format->dtype == RP_DTYPE_E5M2 && exponent == 31)
        return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - format->bias - format->mantissa_bits);
    return sign * ldexp(mantissa + (1 << format->mantissa_bits),
                        exponent - format->bias - format->mantissa_bits);
}

/* The nearest multiple of the unit in the last place, as rint() rounds in double. */
static double
nearest(const Format *format, double value)
{
    int exponent;

    if (value == 0)
        return value;
    frexp(value, &exponent); /* value = 0.5 .. 1 x 2^exponent */
    const double unit = ldexp(1, MAX(exponent - 1, 1 - format->bias) - format->mantissa_bits);
    return fmax(-format->largest, fmin(format->largest, rint(value / unit) * unit));
}

RP_TEST(widens_all_256_fp8_exactly)
{
    for (guint f = 0; f < G_N_ELEMENTS(formats); f++) {
        for (guint code = 0; code < 256; code++) {
            const double want = value_of(&formats[f], code);
            const float got = formats[f].widen((uint8_t)code);
            const uint8_t byte = (uint8_t)code;
            float converted;

            rp_dtype_to_float(formats[f].dtype, &byte, &converted, 1);
            if (isnan(want) ? !isnan(got) || !isnan(converted)
                            : (double)got != want || (double)converted != want ||
                                  !signbit(got) != !(code >> 7))
                fail_msg("%s %02x: %a, expected %a", formats[f].name, code, (double)got, want);
        }
    }
}

static void
check_rounding(const Format *format, float value)
{
    const uint8_t code = format->round(value);
    const double want = nearest(format, (double)value);

    if (value_of(format, code) != want || !(code >> 7) != !signbit(value))
        fail_msg("%s of %a: %02x, %a, expected %a", format->name, (double)value, code,
                 value_of(format, code), want);
}

/* Every value, the middle of each two, and neighbours of these. */
RP_TEST(rounds_to_the_nearest_and_ties_to_even)
{
    for (guint f = 0; f < G_N_ELEMENTS(formats); f++) {
        for (guint code = 0; code < 127; code++) {
            const double value = value_of(&formats[f], code);
            const double next = value_of(&formats[f], code + 1);
            const float middle = (float)((value + next) / 2);

            if (!(next <= formats[f].largest))
                continue;
            for (int sign = -1; sign <= 1; sign += 2) {
                check_rounding(&formats[f], (float)(sign * value));
                check_rounding(&formats[f], (float)sign * middle);
                check_rounding(&formats[f], (float)sign * nextafterf(middle, 0));
                check_rounding(&formats[f], (float)sign * nextafterf(middle, INFINITY));
            }
        }
    }
}

RP_TEST(keeps_what_is_too_large_and_breaks_what_is_broken)
{
    for (guint f = 0; f < G_N_ELEMENTS(formats); f++) {
        check_rounding(&formats[f], (float)formats[f].largest * 1.0001f);
        check_rounding(&formats[f], 3e38f);
        check_rounding(&formats[f], -3e38f);
        check_rounding(&formats[f], 1e-40f);
        assert_int_equal(formats[f].round(INFINITY), RP_FP8_NAN);
        assert_int_equal(formats[f].round(-INFINITY), RP_FP8_NAN);
        assert_int_equal(formats[f].round(NAN), RP_FP8_NAN);
    }
}

/* The least power of two with which the largest magnitude is no larger than the format has. */
RP_TEST(scales_the_largest_to_the_upper_half_of_the_range)
{
    static const float mantissas[] = {1, 1.2f, 1.75f, 1.7500001f, 1.99f};

    for (guint f = 0; f < G_N_ELEMENTS(formats); f++) {
        for (int exponent = -126; exponent < 128; exponent++) {
            for (guint m = 0; m < G_N_ELEMENTS(mantissas); m++) {
                const double largest = ldexp((double)mantissas[m], exponent);
                const double scale = (double)rp_fp8_scale(formats[f].dtype, (float)largest);
                const float factor = 1 / (float)scale;
                int e;

                assert_true(frexp(scale, &e) == 0.5);
                assert_true(largest / scale <= formats[f].largest);
                assert_true(largest / scale > formats[f].largest / 2 || scale == 0x1p-62);
                assert_true(scale * scale >= 0x1p-126 && isnormal(factor));
                assert_true(rp_float_bits(factor) ==
                            rp_fp8_factor_exponent(rp_float_bits((float)scale) >> 23) << 23);
            }
        }
        assert_true(rp_fp8_scale(formats[f].dtype, 0) == 1);
        assert_true(rp_fp8_scale(formats[f].dtype, INFINITY) == 1);
        assert_true(rp_fp8_scale(formats[f].dtype, NAN) == 1);
    }
}
