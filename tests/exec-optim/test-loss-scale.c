#include "tests/rp-test.h"

#include "exec/optim/rules.h"

RP_TEST(grows_after_2000_good_steps)
{
    const RpLossScaleOptions options = RP_LOSS_SCALE_OPTIONS_INIT;
    RpLossScale scale = RP_LOSS_SCALE_INIT;

    for (guint step = 0; step < 1999; step++)
        assert_true(rp_loss_scale_update(&scale, &options, TRUE));
    assert_true(scale.scale == 65536 && scale.good_steps == 1999);
    assert_true(rp_loss_scale_update(&scale, &options, TRUE));
    assert_true(scale.scale == 131072 && scale.good_steps == 0);
}

RP_TEST(halves_and_skips_at_a_bad_step)
{
    const RpLossScaleOptions options = RP_LOSS_SCALE_OPTIONS_INIT;
    RpLossScale scale = {.scale = 1024, .good_steps = 1999};

    assert_false(rp_loss_scale_update(&scale, &options, FALSE));
    assert_true(scale.scale == 512 && scale.good_steps == 0);
    assert_false(rp_loss_scale_update(&scale, &options, FALSE));
    assert_true(scale.scale == 256 && scale.good_steps == 0);
    assert_true(rp_loss_scale_update(&scale, &options, TRUE));
    assert_true(scale.scale == 256 && scale.good_steps == 1);
}

RP_TEST(does_not_grow_to_infinity)
{
    const RpLossScaleOptions options = {
        .growth_factor = 2, .backoff_factor = 0.5, .growth_interval = 1};
    RpLossScale scale = {.scale = 0x1p127f};

    assert_true(rp_loss_scale_update(&scale, &options, TRUE));
    assert_true(scale.scale == 0x1p127f && scale.good_steps == 0);
}

RP_TEST(goes_on_from_a_saved_state)
{
    const RpLossScaleOptions options = {
        .growth_factor = 2, .backoff_factor = 0.5, .growth_interval = 3};
    RpLossScale whole = RP_LOSS_SCALE_INIT, resumed = RP_LOSS_SCALE_INIT;

    for (guint step = 0; step < 40; step++) {
        char saved[sizeof(RpLossScale)];
        rp_loss_scale_update(&whole, &options, step % 7 != 6);
        memcpy(saved, &resumed, sizeof saved);
        memset(&resumed, 0, sizeof resumed);
        memcpy(&resumed, saved, sizeof saved);
        rp_loss_scale_update(&resumed, &options, step % 7 != 6);
        assert_memory_equal(&whole, &resumed, sizeof whole);
    }
}
