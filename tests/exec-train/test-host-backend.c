#include "tests/exec-train/rig.h"

#include <math.h>

#include "exec/device/error.h"

#define ITERATIONS 4
#define FOUR .dtype = RP_DTYPE_BF16, .micro_batches = 4

/* Results of one run: weights of all layers, then the losses. */
static GArray *
train(Rig *rig, const RigOptions *options)
{
    rig_open(rig, options, ITERATIONS);
    rig_start(rig);
    rp_assert_no_error(rig->error);
    const gboolean done = rig_run(rig, ITERATIONS);
    rp_assert_no_error(rig->error);
    assert_true(done);

    GArray *result = rig_masters(rig);
    for (guint64 i = 0; i < ITERATIONS; i++)
        for (guint32 m = 0; m < rig->options.calls * rig->options.micro_batches; m++) {
            guint within;
            const RpBatchFeedCall *call = rp_batch_feed_find(rig->feed, i, m, &within);
            const float loss = (float)call->losses[within];
            assert_true(isfinite(loss) && loss > 0);
            g_array_append_val(result, loss);
        }
    return result;
}

static void
assert_same_training(Rig *rig, const RigOptions *cases, gsize n)
{
    g_autoptr(GArray) expected = train(rig, &cases[0]);

    for (gsize i = 1; i < n; i++) {
        g_autoptr(GArray) found = train(rig, &cases[i]);
        assert_int_equal(found->len, expected->len);
        if (memcmp(found->data, expected->data, expected->len * sizeof(float)) != 0)
            fail_msg("case %zu (%s on %u devices) differs from case 0", i, rig->options.schedule,
                     rig->options.gpus);
    }
}

RP_TEST(trains_to_the_same_bits_on_any_devices_and_schedule)
{
    static const RigOptions cases[] = {
        {FOUR},
        {FOUR, .gpus = 2},
        {FOUR, .gpus = 3},
        {FOUR, .gpus = 2, .forward = "3", .backward = "1,3"},
        {FOUR, .gpus = 2, .forward = "3", .backward = "1,1,1,1"},
        {FOUR, .gpus = 3, .forward = "1,1,1", .backward = "1,3"},
        {FOUR, .schedule = "gpipe", .forward = "4"},
        {FOUR, .gpus = 2, .schedule = "1f1b", .forward = "2,2"},
        {FOUR, .gpus = 3, .schedule = "1f1b", .forward = "2,1,1"},
        {FOUR, .gpus = 2, .schedule = "looped-bfs", .forward = "1,1,1,1"},
        {FOUR, .gpus = 2, .schedule = "interleaved-1f1b", .forward = "1,1,1,1"},
        {FOUR, .gpus = 2, .schedule = "mobius", .forward = "1,1,1,1"},
        {FOUR, .gpus = 2, .optimizer = RP_OPTIMIZER_LEAN},
        {FOUR, .gpus = 2, .consistency = RP_CONSISTENCY_BLOCKING},
    };

    assert_same_training(*state, cases, G_N_ELEMENTS(cases));
}

/* The embedding, all norms and whole blocks, so that stages train a part, or nothing. */
#define FROZEN FOUR, .frozen = "embed_tokens,norm,layers.1.,layers.3."

RP_TEST(trains_to_the_same_bits_with_frozen_weights)
{
    static const RigOptions cases[] = {
        {FROZEN},
        {FROZEN, .gpus = 2},
        {FROZEN, .gpus = 3, .forward = "1,1,1", .backward = "1,3"},
        {FROZEN, .gpus = 2, .forward = "3", .backward = "1,1,1,1"},
        {FROZEN, .gpus = 2, .schedule = "1f1b", .forward = "2,2"},
        {FROZEN, .gpus = 2, .optimizer = RP_OPTIMIZER_LEAN},
        {FROZEN, .gpus = 2, .wide = TRUE},
        {FROZEN, .gpus = 2, .consistency = RP_CONSISTENCY_BLOCKING},
    };
    static const RigOptions async[] = {
        {FROZEN, .async = TRUE},
        {FROZEN, .async = TRUE, .gpus = 3, .threads = 2},
    };

    assert_same_training(*state, cases, G_N_ELEMENTS(cases));
    assert_same_training(*state, async, G_N_ELEMENTS(async));
}

#define ADAPTED FOUR, .lora_rank = 3
#define HALF .dtype = RP_DTYPE_FP16, .micro_batches = 4, .lora_rank = 3
/* All layers but one are frozen as a whole, the head among them. */
#define ONE_ADAPTED FOUR, .lora_rank = 2, .lora_targets = "layers.1.self_attn.v_proj"

RP_TEST(trains_adapters_to_the_same_bits)
{
    static const RigOptions cases[] = {
        {ADAPTED},
        {ADAPTED, .gpus = 2},
        {ADAPTED, .gpus = 3, .forward = "1,1,1", .backward = "1,3"},
        {ADAPTED, .gpus = 4, .forward = "3", .backward = "1,1,1,1"},
        {ADAPTED, .gpus = 2, .schedule = "1f1b", .forward = "2,2"},
        {ADAPTED, .gpus = 2, .optimizer = RP_OPTIMIZER_LEAN},
        {ADAPTED, .gpus = 2, .consistency = RP_CONSISTENCY_BLOCKING},
    };
    static const RigOptions tied[] = {
        {ADAPTED, .tied = TRUE},
        {ADAPTED, .tied = TRUE, .gpus = 2, .schedule = "1f1b", .forward = "2,2"},
    };
    static const RigOptions async[] = {
        {ADAPTED, .async = TRUE},
        {ADAPTED, .async = TRUE, .gpus = 3, .threads = 2},
    };
    static const RigOptions one[] = {
        {ONE_ADAPTED},
        {ONE_ADAPTED, .gpus = 2, .schedule = "1f1b", .forward = "2,2"},
        {ONE_ADAPTED, .gpus = 4, .forward = "3", .backward = "1,1,1,1"},
    };
    static const RigOptions one_async[] = {
        {ONE_ADAPTED, .async = TRUE},
        {ONE_ADAPTED, .async = TRUE, .gpus = 4, .forward = "3", .backward = "1,1,1,1"},
    };

    assert_same_training(*state, cases, G_N_ELEMENTS(cases));
    assert_same_training(*state, tied, G_N_ELEMENTS(tied));
    assert_same_training(*state, async, G_N_ELEMENTS(async));
    assert_same_training(*state, one, G_N_ELEMENTS(one));
    assert_same_training(*state, one_async, G_N_ELEMENTS(one_async));
}

/* The stage of the head trains nothing: it is from the gradients before it that the norm sees. */
RP_TEST_OF(skips_steps_whose_loss_is_broken_in_a_stage_that_trains_nothing, Rig *rig)
{
    static const RigOptions cases[] = {
        {.dtype = RP_DTYPE_FP16,
         .micro_batches = 4,
         .lora_rank = 2,
         .scale_loss = TRUE,
         .gpus = 2,
         .lora_targets = "layers.1.self_attn.v_proj",
         .schedule = "1f1b",
         .forward = "2,2"},
        {.dtype = RP_DTYPE_FP16,
         .micro_batches = 4,
         .lora_rank = 2,
         .scale_loss = TRUE,
         .gpus = 2,
         .lora_targets = "layers.0.mlp.up_proj",
         .forward = "3",
         .backward = "1,1,2"},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++)
        for (guint broken = 0; broken < 2; broken++) {
            rig_open(rig, &cases[i], 2);
            rig_start(rig);
            if (broken)
                rig_poison(rig, RIG_LAYERS - 1, RP_WEIGHT_HEAD, 60000);
            assert_true(rig_run(rig, 2));
            for (guint64 step = 0; step < 2; step++)
                assert_int_equal(rp_host_state_report(rig->host_state, step).skipped, broken);
        }
}

/* Bytes of weight @index that devices read after one step from the file's weights. */
static GBytes *
after_one_step(Rig *rig, guint index)
{
    const RpWeight *weight = rp_weights_nth(rig->weights, index);
    const RpWeightPlace *place =
        &rp_network_layout(rig->network, weight->layer)->place[weight->kind];
    const guint version = rp_host_state_version(rig->host_state, 1);
    guint64 run;
    const guint8 *at =
        rp_host_state_weights(rig->host_state, weight->layer, version, place->byte, &run);

    return g_bytes_new(at, weight->elements * rp_dtype_size(place->storage));
}

/* One step without clipping: a weight's update follows from its own gradient alone. */
RP_TEST_OF(leaves_frozen_weights_as_they_are_and_steps_the_others_as_ever, Rig *rig)
{
    static const RigOptions all = {FOUR, .gpus = 2}, some = {FROZEN, .gpus = 2};
    g_autoptr(GPtrArray) stepped = g_ptr_array_new_with_free_func((GDestroyNotify)g_bytes_unref);
    guint n_frozen = 0;

    rig_open(rig, &all, 1);
    rig_start(rig);
    assert_true(rig_run(rig, 1));
    for (guint i = 0; i < rp_weights_count(rig->weights); i++)
        g_ptr_array_add(stepped, after_one_step(rig, i));
    rig_open(rig, &some, 1);
    rig_start(rig);
    assert_true(rig_run(rig, 1));
    for (guint i = 0; i < rp_weights_count(rig->weights); i++) {
        const RpSafetensor *source = rp_weights_source(rig->weights, i);
        const gboolean trained = rp_weights_nth(rig->weights, i)->trained;
        g_autoptr(GBytes) file = g_bytes_new(source->data, source->bytes);
        g_autoptr(GBytes) found = after_one_step(rig, i);

        n_frozen += !trained;
        assert_true(g_bytes_equal(found, trained ? stepped->pdata[i] : file));
        assert_false(g_bytes_equal(found, trained ? file : stepped->pdata[i]));
    }
    /* embedding, final norm, two blocks of 11 weights, two with four norms each */
    assert_int_equal(n_frozen, 2 + 2 * 11 + 2 * 4);
}

RP_TEST(trains_to_the_same_bits_asynchronously)
{
    static const RigOptions cases[] = {
        {FOUR, .async = TRUE},
        {FOUR, .async = TRUE, .gpus = 2},
        {FOUR, .async = TRUE, .gpus = 3, .threads = 2},
        {FOUR, .async = TRUE, .gpus = 2, .schedule = "1f1b", .forward = "2,2"},
        {FOUR, .async = TRUE, .gpus = 3, .optimizer = RP_OPTIMIZER_LEAN},
        {FOUR, .async = TRUE, .gpus = 2, .consistency = RP_CONSISTENCY_BLOCKING},
    };

    assert_same_training(*state, cases, G_N_ELEMENTS(cases));
}

RP_TEST(trains_a_tied_model_in_rounds_to_the_same_bits)
{
    static const RigOptions cases[] = {
        {.dtype = RP_DTYPE_BF16, .tied = TRUE, .micro_batches = 6, .round = 3},
        {.dtype = RP_DTYPE_BF16, .tied = TRUE, .micro_batches = 6, .round = 3, .gpus = 2},
        {.dtype = RP_DTYPE_BF16,
         .tied = TRUE,
         .micro_batches = 6,
         .round = 3,
         .gpus = 3,
         .threads = 2},
    };
    static const RigOptions async[] = {
        {.dtype = RP_DTYPE_BF16, .tied = TRUE, .async = TRUE, .micro_batches = 6, .round = 3},
        {.dtype = RP_DTYPE_BF16,
         .tied = TRUE,
         .async = TRUE,
         .micro_batches = 6,
         .round = 3,
         .gpus = 3},
    };

    assert_same_training(*state, cases, G_N_ELEMENTS(cases));
    assert_same_training(*state, async, G_N_ELEMENTS(async));
}

/* Each call has half of the targets: the gradients differ by a factor of two, exactly. */
RP_TEST(sums_two_calls_like_one)
{
    static const RigOptions bound[] = {
        {FOUR, .gpus = 2, .schedule = "1f1b", .forward = "2,2"},
        {.dtype = RP_DTYPE_BF16,
         .micro_batches = 2,
         .calls = 2,
         .gpus = 2,
         .schedule = "1f1b",
         .forward = "2,2"},
    };
    static const RigOptions dispatched[] = {
        {FOUR, .round = 2, .gpus = 2},
        {.dtype = RP_DTYPE_BF16, .micro_batches = 2, .calls = 2, .gpus = 2},
        {.dtype = RP_DTYPE_BF16, .micro_batches = 2, .calls = 2, .gpus = 1},
    };

    assert_same_training(*state, bound, G_N_ELEMENTS(bound));
    assert_same_training(*state, dispatched, G_N_ELEMENTS(dispatched));
}

/* In fp32 it hardly matters in which order gradients are summed. */
RP_TEST(sums_rounds_like_one_round)
{
    const RigOptions once = {
        .dtype = RP_DTYPE_FP32, .tied = TRUE, .micro_batches = 6, .round = 6, .gpus = 2};
    RigOptions twice = once;
    g_autoptr(GArray) expected = train(*state, &once);
    const guint n_losses = ITERATIONS * once.micro_batches;

    twice.round = 2;
    g_autoptr(GArray) found = train(*state, &twice);
    assert_int_equal(found->len, expected->len);
    for (guint i = found->len - n_losses; i < found->len; i++)
        assert_true(fabsf(g_array_index(found, float, i) / g_array_index(expected, float, i) - 1) <
                    1e-4f);
}

RP_TEST(trains_in_every_storage)
{
    static const RigOptions fp16[] = {
        {.dtype = RP_DTYPE_FP16, .scale_loss = TRUE, .micro_batches = 2},
        {.dtype = RP_DTYPE_FP16,
         .scale_loss = TRUE,
         .micro_batches = 2,
         .gpus = 2,
         .schedule = "1f1b",
         .forward = "2,2"},
    };
    static const RigOptions fp32[] = {
        {.dtype = RP_DTYPE_FP32, .tied = TRUE, .micro_batches = 2},
        {.dtype = RP_DTYPE_FP32,
         .tied = TRUE,
         .micro_batches = 2,
         .gpus = 2,
         .schedule = "1f1b",
         .forward = "2,2"},
    };

    assert_same_training(*state, fp16, G_N_ELEMENTS(fp16));
    assert_same_training(*state, fp32, G_N_ELEMENTS(fp32));
}

RP_TEST_OF(changes_the_weights_and_lowers_the_loss_of_what_it_has_seen, Rig *rig)
{
    RigOptions options = {.dtype = RP_DTYPE_BF16, .micro_batches = 2};
    g_autoptr(GArray) trained = train(rig, &options);
    const gsize n_losses = ITERATIONS * options.micro_batches;
    const float *before = (const float *)(void *)trained->data + trained->len - n_losses;
    float sum = 0;

    assert_true(before[0] > 0.5f * RIG_SEQUENCES * (RIG_TOKENS - 1));
    rig_open(rig, &options, 0);
    rig_attach(rig);
    g_autoptr(GArray) fresh = rig_masters(rig);
    for (guint i = 0; i < fresh->len; i++)
        sum += fabsf(g_array_index(fresh, float, i) - g_array_index(trained, float, i));
    /* each step moves a weight by about the learning rate */
    assert_true(sum > 0.002f * (float)fresh->len);
}

RP_TEST_OF(refuses_a_plan_that_exceeds_a_device, Rig *rig)
{
    g_autofree char *excess = NULL;

    rig_open(rig, &(RigOptions){.dtype = RP_DTYPE_BF16, .device_memory_bytes = 10000}, 1);
    rig_start(rig);
    assert_true(g_error_matches(rig->error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MEMORY));
    excess = g_strdup_printf("needs %" G_GUINT64_FORMAT " bytes, %" G_GUINT64_FORMAT " more",
                             rp_plan_arena_bytes(rig->plan, 0),
                             rp_plan_arena_bytes(rig->plan, 0) - 10000);
    rp_assert_error_message_contains(rig->error, "device 0");
    rp_assert_error_message_contains(rig->error, excess);
    rp_assert_error_message_contains(rig->error, "more stages");
}

RP_TEST_OF(is_content_with_open_arenas_unless_they_are_too_small, Rig *rig)
{
    rig_open(rig, &(RigOptions){.dtype = RP_DTYPE_BF16}, 1);
    rig_start(rig);
    guint64 bytes[2] = {rp_plan_arena_bytes(rig->plan, 0), rp_plan_arena_bytes(rig->plan, 1)};
    assert_true(rig->backend->ops->open_arenas(rig->backend, bytes, 2, &rig->error));
    bytes[1] += 512;
    assert_false(rig->backend->ops->open_arenas(rig->backend, bytes, 2, &rig->error));
    assert_true(g_error_matches(rig->error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MEMORY));
    rp_assert_error_message_contains(rig->error, "arena 1 has grown");
}

RP_TEST_OF(refuses_a_split_backward, Rig *rig)
{
    rig_open(rig, &(RigOptions){FOUR, .gpus = 2, .schedule = "zb-h1", .forward = "2,2"}, 1);
    rig_start(rig);
    rp_assert_no_error(rig->error);
    assert_false(rig_run(rig, 1));
    rp_assert_error_message_contains(rig->error, "input-gradient");
    rp_assert_error_message_contains(rig->error, "use a schedule");
}

static void
assert_blames(Rig *rig, const RigOptions *options, guint layer, RpWeightKind kind, float value,
              const char *where)
{
    rig_open(rig, options, 1);
    rig_start(rig);
    rp_assert_no_error(rig->error);
    rig_poison(rig, layer, kind, value);
    assert_false(rig_run(rig, 1));
    assert_true(g_error_matches(rig->error, RP_ENGINE_ERROR, RP_ENGINE_ERROR_TASK));
    rp_assert_error_message_contains(rig->error, "step 1: the loss is not a number (micro-batch ");
    rp_assert_error_message_contains(rig->error, where);
}

RP_TEST(names_the_layer_where_a_loss_breaks)
{
    const RigOptions dispatched = {FOUR, .gpus = 2};
    const RigOptions bound = {FOUR, .gpus = 2, .schedule = "1f1b", .forward = "2,2"};
    const RigOptions fp32 = {.dtype = RP_DTYPE_FP32, .gpus = 1};
    const RigOptions fp16 = {.dtype = RP_DTYPE_FP16}; /* with a loss scale the step is skipped */

    for (guint layer = 1; layer <= RIG_BLOCKS; layer++) {
        g_autofree char *where = g_strdup_printf(
            "first in the output of layer %u (model.layers.%u), sequence 0, token 0;", layer,
            layer - 1);
        assert_blames(*state, &dispatched, layer, RP_WEIGHT_Q, NAN, where);
        assert_blames(*state, &bound, layer, RP_WEIGHT_DOWN, INFINITY, where);
        assert_blames(*state, &fp32, layer, RP_WEIGHT_DOWN, -INFINITY, where);
        assert_blames(*state, &fp16, layer, RP_WEIGHT_INPUT_NORM, NAN, where);
    }
    assert_blames(*state, &dispatched, RIG_LAYERS - 1, RP_WEIGHT_FINAL_NORM, NAN,
                  "first in the head (lm_head)");
    assert_blames(*state, &bound, RIG_LAYERS - 1, RP_WEIGHT_HEAD, NAN,
                  "first in the head (lm_head)");
}

/* The base in few bits goes up packed and is expanded on devices: as if the file had held the
 * expanded values, in 16 bits. With mxfp4 only rows of 32 are packed here: o_proj's. */
RP_TEST(trains_adapters_of_a_packed_base_as_of_its_expanded_weights)
{
    static const char *const formats[] = {"nf4", "nf4-single", "mxfp4", "fp8"};

    for (guint i = 0; i < G_N_ELEMENTS(formats); i++) {
        const char *base = formats[i];
        const RigOptions cases[] = {
            {ADAPTED, .base = base, .expanded = TRUE},
            {ADAPTED, .base = base},
            {ADAPTED, .base = base, .gpus = 3, .forward = "1,1,1", .backward = "1,3"},
            {ADAPTED, .base = base, .gpus = 4, .forward = "3", .backward = "1,1,1,1"},
            {ADAPTED, .base = base, .gpus = 2, .schedule = "1f1b", .forward = "2,2"},
            {ADAPTED, .base = base, .gpus = 2, .schedule = "mobius", .forward = "1,1,1,1"},
            {ADAPTED, .base = base, .gpus = 2, .schedule = "interleaved-1f1b",
             .forward = "1,1,1,1"},
            {ADAPTED, .base = base, .gpus = 2, .optimizer = RP_OPTIMIZER_LEAN},
            {ADAPTED, .base = base, .gpus = 2, .consistency = RP_CONSISTENCY_BLOCKING},
        };
        const RigOptions others[] = {
            {ADAPTED, .base = base, .expanded = TRUE, .tied = TRUE, .async = TRUE},
            {ADAPTED, .base = base, .tied = TRUE, .async = TRUE},
            {ADAPTED, .base = base, .tied = TRUE, .async = TRUE, .gpus = 3, .threads = 2},
        };
        const RigOptions rounds[] = {
            {ADAPTED, .base = base, .expanded = TRUE, .round = 2},
            {ADAPTED, .base = base, .gpus = 2, .round = 2},
        };
        const RigOptions half[] = {
            {HALF, .base = base, .expanded = TRUE},
            {HALF, .base = base, .gpus = 2},
        };

        if (RP_TEST_FEW && i > 0) { /* formats differ in values, not in who waits for whom */
            assert_same_training(*state, cases, 3);
            continue;
        }
        assert_same_training(*state, cases, G_N_ELEMENTS(cases));
        assert_same_training(*state, others, G_N_ELEMENTS(others));
        const RigOptions experts[] = {
            {ADAPTED, .experts = TRUE, .base = base, .expanded = TRUE},
            {ADAPTED, .experts = TRUE, .base = base},
            {ADAPTED, .experts = TRUE, .base = base, .gpus = 3, .forward = "1,1,1",
             .backward = "1,3"},
            {ADAPTED, .experts = TRUE, .base = base, .gpus = 2, .schedule = "1f1b",
             .forward = "2,2"},
        };

        if (strcmp(base, "mxfp4") != 0) /* mxfp4 has no rows of 32 there */
            assert_same_training(*state, experts, G_N_ELEMENTS(experts));
        assert_same_training(*state, rounds, G_N_ELEMENTS(rounds));
        assert_same_training(*state, half, G_N_ELEMENTS(half));
    }
}

RP_TEST_FIXTURE(rig_set_up, rig_tear_down)
