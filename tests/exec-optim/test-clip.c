#include "tests/rp-test.h"

#include <math.h>

#include "exec/optim/rules.h"

RP_TEST(norm_is_over_all_layers)
{
    const double sums[] = {9, 0, 16};
    RpClip clip = rp_clip_by_norm(sums, 3, 1, 0);
    assert_true(clip.norm == 5 && clip.coefficient == 1 && clip.finite);

    clip = rp_clip_by_norm(sums, 3, 0.5, 0); /* stored gradients are twice the true ones */
    assert_true(clip.norm == 2.5);
    clip = rp_clip_by_norm(NULL, 0, 1, 1);
    assert_true(clip.norm == 0 && clip.coefficient == 1 && clip.finite);
}

RP_TEST(clips_above_the_limit_only)
{
    const double sum = 25;
    assert_true(rp_clip_by_norm(&sum, 1, 1, 1).coefficient == 1 / (5 + 1e-6));
    assert_true(rp_clip_by_norm(&sum, 1, 1, 10).coefficient == 1);
    assert_true(rp_clip_by_norm(&sum, 1, 1, 5).coefficient == 5 / (5 + 1e-6)); /* as torch does */
    assert_true(rp_clip_by_norm(&sum, 1, 1, 5 + 1e-5).coefficient == 1);
    assert_true(rp_clip_by_norm(&sum, 1, 0.1, 1).coefficient == 1);
}

RP_TEST(tells_what_is_not_finite)
{
    const double sums[][2] = {{1, INFINITY}, {NAN, 1}, {INFINITY, NAN}};
    for (gsize i = 0; i < G_N_ELEMENTS(sums); i++) {
        assert_false(rp_clip_by_norm(sums[i], 2, 1, 1).finite);
        assert_false(rp_clip_by_norm(sums[i], 2, 0x1p-16, 0).finite);
    }
}

RP_TEST(norms_and_biases_do_not_decay)
{
    assert_true(rp_parameter_decays("model.embed_tokens.weight", 2));
    assert_true(rp_parameter_decays("model.layers.0.self_attn.q_proj.weight", 2));
    assert_true(rp_parameter_decays("lm_head.weight", 2));
    assert_false(rp_parameter_decays("model.layers.0.self_attn.q_proj.bias", 1));
    assert_false(rp_parameter_decays("model.layers.0.self_attn.q_norm.weight", 1));
    assert_false(rp_parameter_decays("model.layers.0.input_layernorm.weight", 1));
    assert_false(rp_parameter_decays("model.norm.weight", 1));
    assert_false(rp_parameter_decays("anything", 1));
    assert_false(rp_parameter_decays("model.norm.weight", 2));
    assert_false(rp_parameter_decays("block.LayerNorm.weight", 2));
    assert_false(rp_parameter_decays("block.attention.bias", 2));
    assert_true(rp_parameter_decays("block.normal.weight", 2));
}
