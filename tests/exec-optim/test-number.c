#include "tests/rp-test.h"

#include <math.h>

#include "exec/optim/adamw/number.h"

static void
every_fp16_goes_to_fp32_and_back(void **state)
{
    for (guint bits = 0; bits < 65536; bits++) {
        const float value = rp_number_from_fp16((uint16_t)bits);
        const guint exponent = bits >> 10 & 31, mantissa = bits & 1023;
        const float sign = bits & 0x8000 ? -1 : 1;

        if (exponent == 31 && mantissa != 0) {
            assert_true(isnan(value));
            assert_int_equal(rp_number_to_fp16(value), bits | 0x200); /* quiet */
            continue;
        }
        if (exponent == 31)
            assert_true(isinf(value) && value * sign > 0);
        else if (exponent == 0)
            assert_true(value == sign * ldexpf((float)mantissa, -24));
        else
            assert_true(value == sign * ldexpf((float)(1024 + mantissa), (int)exponent - 25));
        assert_int_equal(rp_number_to_fp16(value), bits);
    }
}

static void
every_bf16_goes_to_fp32_and_back(void **state)
{
    for (guint bits = 0; bits < 65536; bits++) {
        const float value = rp_number_from_bf16((uint16_t)bits);
        assert_int_equal(rp_float_bits(value), bits << 16);
        assert_int_equal(rp_number_to_bf16(value), isnan(value) ? 0x7fc0 : bits);
    }
}

/* Between two neighbours the middle goes to the even one, all else to the nearer. */
static void
rounds_to_nearest_even(void **state)
{
    for (guint bits = 0; bits < 0x7c00; bits++) {
        const float low = rp_number_from_fp16((uint16_t)bits);
        const float high = bits == 0x7bff ? 65536 : rp_number_from_fp16((uint16_t)(bits + 1));
        const float middle = (low + high) / 2; /* exact */
        assert_int_equal(rp_number_to_fp16(middle), bits + (bits & 1));
        assert_int_equal(rp_number_to_fp16(nextafterf(middle, 0)), bits);
        assert_int_equal(rp_number_to_fp16(nextafterf(middle, INFINITY)), bits + 1);
        assert_int_equal(rp_number_to_fp16(-middle), (bits + (bits & 1)) | 0x8000);
    }
    for (guint bits = 0; bits < 0x7f80; bits++) {
        const uint32_t middle = bits << 16 | 0x8000;
        assert_int_equal(rp_number_to_bf16(rp_float_from_bits(middle)), bits + (bits & 1));
        assert_int_equal(rp_number_to_bf16(rp_float_from_bits(middle - 1)), bits);
        assert_int_equal(rp_number_to_bf16(rp_float_from_bits(middle + 1)), bits + 1);
    }
}

static void
arrays_hold_what_was_set(void **state)
{
    float fp32[2] = {0};
    uint16_t half[2] = {0};

    rp_number_set(RP_NUMBER_FP32, fp32, 1, 0.1f);
    assert_true(rp_number_get(RP_NUMBER_FP32, fp32, 1) == 0.1f);
    rp_number_set(RP_NUMBER_BF16, half, 1, 1.5f);
    assert_int_equal(half[1], 0x3fc0);
    assert_true(rp_number_get(RP_NUMBER_BF16, half, 1) == 1.5f);
    rp_number_set(RP_NUMBER_FP16, half, 1, 1.5f);
    assert_int_equal(half[1], 0x3e00);
    assert_true(rp_number_get(RP_NUMBER_FP16, half, 1) == 1.5f);
    assert_int_equal(half[0], 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fp16_goes_to_fp32_and_back),
        cmocka_unit_test(every_bf16_goes_to_fp32_and_back),
        cmocka_unit_test(rounds_to_nearest_even),
        cmocka_unit_test(arrays_hold_what_was_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
