/* Steps of preferences in virtual time. */
#include "tests/rp-test.h"

#include "core/catalogue/cost/cost-model.h"
#include "sim/scored.h"

/* 4 x 128 tokens a micro-batch. */
static RpProfile *
make_profile(void)
{
    const RpWorkload workload = {.sequences = 4, .tokens_per_sequence = 128, .gpus = 2};

    return rp_cost_model_profile(rp_model_find("qwen3-0.6b", NULL), rp_gpu_find("rtx4090", NULL),
                                 &workload, NULL);
}

/* 512 tokens, of which half have a target. */
RP_TEST(times_logits_that_are_made_twice)
{
    static const struct {
        guint chunk;
        gboolean dispatched;
        gint64 backward_ns; /* of half the places, 500 forward and 1000 backward */
    } rows[] = {{0, TRUE, 1000}, {256, TRUE, 1000}, {255, TRUE, 1500}, {255, FALSE, 2000}};

    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autoptr(RpProfile) profile = make_profile();
        RpLayer *head = &profile->layers[profile->n_layers - 1];

        head->forward_ns = 1000;
        head->backward_ns = 2000;
        rp_place_head(profile, rows[i].dispatched, 0.5, rows[i].chunk);
        assert_int_equal(head->backward_ns, rows[i].backward_ns);
        assert_int_equal(head->forward_ns, rows[i].dispatched ? 500 : 0);
    }
}

RP_TEST(scores_as_many_steps_together_as_have_eight_batches)
{
    assert_int_equal(rp_scored_together(1), 8);
    assert_int_equal(rp_scored_together(3), 2);
    assert_int_equal(rp_scored_together(9), 1);
}

/* A step with its scoring takes a forward of all layers longer, as far as devices are busy. */
RP_TEST(a_scored_step_takes_a_forward_longer)
{
    g_autoptr(RpProfile) profile = make_profile();
    g_autoptr(RpPartition) partition = rp_partition_least(profile);
    const RpPlanOptions options = {.schedule = rp_schedule_find("roundpipe", NULL),
                                   .gpus = 2,
                                   .micro_batches = 8,
                                   .round = 8,
                                   .fidelity = RP_FIDELITY_FULL};
    gint64 forward_ns = 0, step_ns = 0;
    RpSteady scored;
    GError *error = NULL;

    for (guint l = 0; l < profile->n_layers; l++) {
        forward_ns += 8 / 2 * profile->layers[l].forward_ns;
        step_ns += 8 / 2 * (profile->layers[l].forward_ns + profile->layers[l].backward_ns);
    }
    assert_true(rp_simulate_scored(profile, profile, partition, &options, NULL, &scored, &error));
    rp_assert_no_error(error);
    assert_true(scored.iteration_ns > forward_ns + step_ns);
    assert_true(scored.ratio > 0 && scored.ratio < 1);
}
