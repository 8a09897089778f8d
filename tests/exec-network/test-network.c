/*
 * Networks against themselves: storages, cuts, chunks, accumulation, sizes. Against transformers:
 * test-network-parity.c.
 */
#include "tests/exec-network/network-fixture.h"

#include <math.h>

#include "exec/device/batch-feed.h"

static RpNetworkOptions
options_of(RpDtype dtype)
{
    return (RpNetworkOptions){.dtype = dtype, .sequences = 3, .tokens = 11, .head_chunk = 7};
}

static Model *
model_of(RpArchitecture architecture, gboolean tied, RpDtype dtype)
{
    const RpModel config = network_config(architecture, tied);
    const RpNetworkOptions options = options_of(dtype);

    return network_random(&config, &options);
}

static RpInterval
all_layers(const Model *model)
{
    return (RpInterval){0, rp_network_n_layers(model->network)};
}

/* ---- layout and profile ---- */

RP_TEST(lays_out_each_weight_behind_the_one_before)
{
    Model *model = model_of(RP_ARCHITECTURE_LLAMA, TRUE, RP_DTYPE_BF16);

    for (guint l = 0; l < rp_network_n_layers(model->network); l++) {
        const RpLayerLayout *layout = rp_network_layout(model->network, l);
        guint64 end = 0;
        guint first;
        const guint n = rp_weights_layer(model->weights, l, &first);

        for (guint i = first; i < first + n; i++) {
            const RpWeight *weight = rp_weights_nth(model->weights, i);

            assert_int_equal(layout->place[weight->kind].element, end);
            assert_int_equal(layout->place[weight->kind].byte, 2 * end);
            end = (end + weight->elements + 63) / 64 * 64;
        }
        assert_int_equal(layout->elements, end);
        assert_true(layout->place[RP_WEIGHT_Q_NORM].byte == RP_LAYOUT_NONE);
    }
    network_free(model);
}

/* Trained ones come first, in both spaces; the frozen ones have bytes and no elements. */
RP_TEST(lays_out_frozen_weights_in_bytes_alone)
{
    RpModel config = network_config(RP_ARCHITECTURE_LLAMA, TRUE);
    g_autoptr(RpWeights) weights = rp_weights_new(&config);
    const RpLayerLayout all = rp_layer_layout(weights, 1, RP_DTYPE_BF16, NULL);
    const guint64 q = (guint64)(rp_weights_find(weights, 1, RP_WEIGHT_Q));
    const guint64 room = rp_layout_bytes_left(rp_weights_nth(weights, (guint)q));

    rp_weights_freeze(weights, (guint)q, RP_DTYPE_FP32);
    const RpLayerLayout some = rp_layer_layout(weights, 1, RP_DTYPE_BF16, &all);
    assert_int_equal(some.first_byte, all.bytes);
    assert_int_equal(some.first_element, all.elements);
    assert_int_equal(some.bytes, all.bytes + 2 * room);
    assert_int_equal(some.elements, all.elements - room);
    assert_int_equal(some.frozen_bytes, 4 * room);
    assert_int_equal(some.place[RP_WEIGHT_Q].byte, all.bytes - 2 * room);
    assert_int_equal(some.place[RP_WEIGHT_Q].storage, RP_DTYPE_FP32);
    assert_true(some.place[RP_WEIGHT_Q].element == RP_LAYOUT_NONE);
    assert_int_equal(some.place[RP_WEIGHT_DOWN].element, all.place[RP_WEIGHT_DOWN].element - room);

    rp_weights_freeze(weights, 0, RP_DTYPE_BF16);
    const RpLayerLayout head = rp_layer_layout(weights, 3, RP_DTYPE_BF16, NULL);
    assert_int_equal(head.tied_elements, 0);
    assert_int_equal(head.tied_bytes, rp_layer_layout(weights, 0, RP_DTYPE_BF16, NULL).bytes);
    assert_int_equal(head.frozen_bytes, 0);
    assert_int_equal(head.bytes, 2 * head.elements + head.tied_bytes); /* the norm is trained */
}

RP_TEST(puts_the_tied_matrix_last_and_as_large_as_the_embedding)
{
    Model *tied = model_of(RP_ARCHITECTURE_QWEN3, TRUE, RP_DTYPE_FP32);
    Model *own = model_of(RP_ARCHITECTURE_QWEN3, FALSE, RP_DTYPE_FP32);
    const guint head = rp_network_n_layers(tied->network) - 1;
    const RpLayerLayout *layout = rp_network_layout(tied->network, head);

    assert_int_equal(layout->tied_elements, rp_network_layout(tied->network, 0)->elements);
    assert_int_equal(layout->place[RP_WEIGHT_HEAD].element + layout->tied_elements,
                     layout->elements);
    assert_int_equal(tied->profile->layers[head].tied_bytes, 4 * layout->tied_elements);
    assert_int_equal(rp_network_layout(own->network, head)->tied_elements, 0);
    assert_int_equal(own->profile->layers[head].tied_bytes, 0);
    assert_int_equal(own->profile->layers[1].tied_bytes, 0);
    network_free(tied);
    network_free(own);
}

RP_TEST(writes_a_profile_that_reads_back)
{
    Model *model = model_of(RP_ARCHITECTURE_QWEN3, TRUE, RP_DTYPE_BF16);
    RpProfile *profile = model->profile;
    const guint n = profile->n_layers;
    char *json;
    RpProfile *back;

    for (guint l = 0; l < n; l++) {
        const RpLayer *layer = &profile->layers[l];

        assert_int_equal(layer->parameter_bytes,
                         2 * rp_network_layout(model->network, l)->elements);
        assert_int_equal(layer->gradient_bytes, layer->parameter_bytes);
        assert_int_equal(layer->input_bytes, l == 0 ? 4 * 33 : 2 * 33 * 18);
        assert_int_equal(layer->output_bytes, l == n - 1 ? 0 : 2 * 33 * 18);
        assert_int_equal(layer->activation_bytes % 256, 0);
        assert_int_equal(layer->forward_workspace_bytes % 256, 0);
        assert_int_equal(layer->backward_workspace_bytes % 256, 0);
    }
    assert_int_equal(rp_profile_n_blocks(profile), 2);
    json = rp_profile_to_json(profile);
    back = rp_must(rp_profile_parse, "profile", json, strlen(json));
    assert_true(back->has_sizes);
    assert_int_equal(back->n_layers, n);
    assert_int_equal(back->layers[n - 1].tied_bytes, profile->layers[n - 1].tied_bytes);
    assert_int_equal(back->layers[1].n_tensors, profile->layers[1].n_tensors);
    g_free(json);
    rp_profile_free(back);
    network_free(model);
}

/* ---- stages ---- */

RP_TEST(gives_the_same_bits_however_it_is_cut_in_any_storage)
{
    for (RpDtype dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (guint architecture = 0; architecture < 2; architecture++) {
            Model *model = model_of((RpArchitecture)architecture, FALSE, dtype);
            const Run whole = network_whole(model);

            for (guint cuts = 0; cuts < 8 * 8; cuts++) {
                const Run run = network_cut(model, cuts % 8, cuts / 8);

                assert_true(run.loss == whole.loss);
                assert_memory_equal(run.sums, whole.sums, model->elements * sizeof(float));
            }
            network_free(model);
        }
    }
}

/* Dense blocks; sinks, windows and experts; adapters that drop elements; fused matrices, without adapters and with. */
static Model *
saving_model(guint which)
{
    static const RpLora dropping = {.rank = 3, .alpha = 6, .dropout = 0.25};
    static const RpLora plain = {.rank = 4, .alpha = 6};
    const RpLora *lora = which == 2 ? &dropping : which == 4 ? &plain : NULL;
    RpModel config =
        network_config(which == 1 ? RP_ARCHITECTURE_GPT_OSS : RP_ARCHITECTURE_QWEN3, FALSE);
    const RpNetworkOptions options = options_of(RP_DTYPE_BF16);

    if (which >= 3)
        config = network_config_fused();
    config.blocks = 3;
    if (which == 1) {
        config.experts = 4;
        config.active_experts = 2;
        config.sliding_window = 4;
        config.sliding_period = 2;
        config.attention_bias = config.mlp_bias = TRUE;
    }
    Model *model = lora != NULL ? network_random_adapted(&config, lora, &options)
                                : network_random(&config, &options);

    model->drops = which == 2;
    return model;
}

/* Stages of one layer, and all but the head in one. */
RP_TEST(gives_the_same_bits_whatever_is_saved)
{
    for (guint which = 0; which < 5; which++) {
        Model *model = saving_model(which);
        const gsize bytes = model->elements * sizeof(float);
        const guint last = all_layers(model).count - 2;
        const Run whole = network_whole(model);

        for (guint groups = 0; groups < 1u << RP_N_SAVED_GROUPS; groups++) {
            model->saved = groups;
            rp_profile_choose_saved(model->profile, &(RpSavedChoice){.groups = groups});
            for (guint cut = 0; cut < 2; cut++) {
                const Run run = network_cut(model, 0xa, cut == 0 ? 1u << last : 0xff);

                assert_true(run.loss == whole.loss);
                assert_memory_equal(run.sums, whole.sums, bytes);
            }
        }
        network_free(model);
    }
}

/* The workspace needs no space for values that are saved. */
RP_TEST(needs_as_much_less_workspace_as_is_saved)
{
    Model *model = model_of(RP_ARCHITECTURE_QWEN3, FALSE, RP_DTYPE_BF16);
    const guint64 elements[RP_N_SAVED_GROUPS] = {
        [RP_SAVED_ATTENTION] = model->config.heads * model->config.head_dim,
        [RP_SAVED_QKV] =
            (model->config.heads + 2 * model->config.kv_heads) * model->config.head_dim,
        [RP_SAVED_RESIDUAL] = model->config.hidden,
        [RP_SAVED_MLP] = 2 * model->config.intermediate,
    };

    for (guint g = 0; g < RP_N_SAVED_GROUPS; g++) {
        const guint64 bytes = rp_network_saved_bytes(model->network, 1, 1u << g);
        const guint64 least =
            (2 * elements[g] + (g == RP_SAVED_ATTENTION ? 4 * model->config.heads : 0)) *
            model->tokens;

        assert_int_equal(model->profile->layers[1].saved[g].bytes, bytes);
        assert_in_range(bytes, least, least + 3 * 255);
        assert_int_equal(rp_network_saved_bytes(model->network, 0, 1u << g), 0);
    }
    network_free(model);
}

RP_TEST(adds_gradients_and_losses_up_over_micro_batches)
{
    Model *model = model_of(RP_ARCHITECTURE_LLAMA, FALSE, RP_DTYPE_FP32);
    const Run first = network_whole(model);
    Run second, both = network_run_new(model);

    network_stage(model, STAGE_FUSED, all_layers(model), NULL, 0, &both);
    network_random_batch(model, 2);
    second = network_whole(model);
    network_stage(model, STAGE_FUSED, all_layers(model), NULL, 0, &both);
    assert_true(fabs(both.loss - first.loss - second.loss) <= 1e-12 * both.loss);
    for (guint64 i = 0; i < model->elements; i++)
        first.sums[i] += second.sums[i];
    assert_true(network_error(both.sums, first.sums, model->elements) < 1e-6);
    assert_true(network_error(both.sums, second.sums, model->elements) > 0.1);
    network_free(model);
}

RP_TEST(leaves_gaps_between_sums_zero)
{
    Model *model = model_of(RP_ARCHITECTURE_LLAMA, TRUE, RP_DTYPE_FP32);
    const Run run = network_whole(model);
    guint64 gaps = 0;

    for (guint i = 0; i < rp_weights_count(model->weights); i++) {
        const guint64 n = rp_weights_nth(model->weights, i)->elements;
        const float *sum = network_gradient(model, &run, i);

        for (guint64 j = n; j < (n + 63) / 64 * 64; j++, gaps++)
            assert_true(sum[j] == 0);
    }
    assert_true(gaps > 500);
    network_free(model);
}

RP_TEST(stays_near_fp32_in_smaller_storages)
{
    /* a few roundings of 2^-9 and 2^-12, in each of a dozen arrays one after the other */
    static const double tolerance[] = {[RP_DTYPE_BF16] = 0.04, [RP_DTYPE_FP16] = 0.005};

    for (guint architecture = 0; architecture < 2; architecture++) {
        Model *exact = model_of((RpArchitecture)architecture, FALSE, RP_DTYPE_FP32);
        const Run expected = network_whole(exact);

        for (RpDtype dtype = RP_DTYPE_BF16; dtype <= RP_DTYPE_FP16; dtype++) {
            Model *rounded = model_of((RpArchitecture)architecture, FALSE, dtype);
            const Run run = network_whole(rounded);
            const double error = network_error(run.sums, expected.sums, exact->elements);

            if (!(error <= tolerance[dtype]))
                fail_msg("%s: gradients %.3g off", rp_dtype_name(dtype), error);
            assert_true(fabs(run.loss - expected.loss) <= 0.5 * tolerance[dtype] * expected.loss);
            network_free(rounded);
        }
        network_free(exact);
    }
}

RP_TEST(gives_the_padding_row_no_gradient)
{
    RpModel config = network_config(RP_ARCHITECTURE_QWEN3, FALSE);
    const RpNetworkOptions options = options_of(RP_DTYPE_FP32);

    for (config.pad_id = RP_MODEL_NO_TOKEN; config.pad_id <= 5; config.pad_id += 6) {
        Model *model = network_random(&config, &options);
        Run run;
        double row = 0;

        model->ids[4] = model->ids[20] = 5;
        run = network_whole(model);
        for (guint i = 0; i < config.hidden; i++)
            row += fabs((double)network_gradient(model, &run, 0)[5 * config.hidden + i]);
        assert_true((row == 0) == (config.pad_id == 5));
        network_free(model);
    }
}

/* Sequences of a micro-batch see nothing of each other. */
RP_TEST(equals_each_sequence_alone)
{
    Model *together = model_of(RP_ARCHITECTURE_QWEN3, FALSE, RP_DTYPE_FP32);
    const RpNetworkOptions options = {
        .dtype = RP_DTYPE_FP32, .sequences = 1, .tokens = 11, .head_chunk = 7};
    Model *alone = network_random(&together->config, &options);
    const Run expected = network_whole(together);
    Run sum = network_run_new(alone);

    alone->scale = together->scale;
    for (size_t b = 0; b < 3; b++) {
        memcpy(alone->ids, together->ids + 11 * b, 11 * sizeof(gint32));
        memcpy(alone->targets, together->targets + 11 * b, 11 * sizeof(gint32));
        network_stage(alone, STAGE_FUSED, all_layers(alone), NULL, 0, &sum);
    }
    assert_true(fabs(sum.loss - expected.loss) <= 1e-6 * expected.loss);
    assert_true(network_error(sum.sums, expected.sums, together->elements) < 2e-6);
    network_free(alone);
    network_free(together);
}

/* ---- the head ---- */

/* The head alone, on an input of its own. */
static Run
run_head(guint head_chunk, Model **model)
{
    const RpModel config = network_config(RP_ARCHITECTURE_QWEN3, FALSE);
    RpNetworkOptions options = options_of(RP_DTYPE_FP32);
    Run run;

    options.head_chunk = head_chunk;
    *model = network_random(&config, &options);
    run = network_run_new(*model);
    network_stage(*model, STAGE_FORWARD, (RpInterval){0, 3}, (guint[]){3}, 1, &run);
    network_stage(*model, STAGE_FUSED, (RpInterval){3, 1}, NULL, 0, &run);
    return run;
}

RP_TEST(takes_the_head_in_chunks_of_any_size)
{
    static const guint chunks[] = {1, 2, 7, 11, 32, 33, 500, 0};
    Model *one;
    const Run expected = run_head(33, &one);
    const gsize n = one->tokens * one->config.hidden;

    for (guint i = 0; i < G_N_ELEMENTS(chunks); i++) {
        Model *model;
        const Run run = run_head(chunks[i], &model);

        assert_true(network_error((float *)run.d_hidden[3], (float *)expected.d_hidden[3], n) <
                    1e-6);
        assert_true(network_error(run.sums, expected.sums, model->elements) < 1e-6);
        assert_true(fabs(run.loss - expected.loss) <= 1e-6 * expected.loss);
        network_free(model);
    }
    network_free(one);
}

RP_TEST(holds_the_logits_of_one_chunk_only)
{
    RpModel config = network_config(RP_ARCHITECTURE_QWEN3, FALSE);
    RpNetworkOptions options = options_of(RP_DTYPE_FP32);
    Model *small, *large;

    config.vocab = 1000;
    options.head_chunk = 4;
    small = network_new(&config, &options);
    options.head_chunk = 32;
    large = network_new(&config, &options);
    assert_true(small->profile->layers[3].backward_workspace_bytes < 33 * 1000 * 4 / 2);
    assert_true(large->profile->layers[3].backward_workspace_bytes > 32 * 1000 * 4);
    assert_int_equal(rp_network_options(small->network)->head_chunk, 4);
    network_free(small);
    network_free(large);
}

/* ---- the MLP ---- */

static void
check_tiles(const RpModel *config, guint tile)
{
    RpNetworkOptions options = options_of(RP_DTYPE_FP32);
    Model *whole = network_random(config, &options), *tiled;
    const gsize n = whole->tokens * config->hidden;

    options.mlp_tile = tile;
    tiled = network_random(config, &options);
    tiled->begins = TRUE;
    const Run expected = network_cut(whole, 7, 7), run = network_cut(tiled, 7, 7);
    const Run one = network_whole(tiled);

    assert_true(fabs(run.loss - expected.loss) <= 1e-6 * expected.loss);
    for (guint l = 1; l < rp_network_n_layers(tiled->network); l++) {
        assert_true(network_error((float *)run.hidden[l], (float *)expected.hidden[l], n) < 1e-6);
        assert_true(network_error((float *)run.d_hidden[l], (float *)expected.d_hidden[l], n) <
                    1e-6);
    }
    for (guint i = 0; i < rp_weights_count(tiled->weights); i++) {
        const gsize elements = rp_weights_nth(tiled->weights, i)->elements;
        const float *gradient = network_gradient(tiled, &run, i);

        assert_true(network_error(gradient, network_gradient(whole, &expected, i), elements) <
                    2e-6);
        assert_memory_equal(gradient, network_gradient(tiled, &one, i), elements * sizeof(float));
    }
    network_free(whole);
    network_free(tiled);
}

RP_TEST(takes_the_mlp_in_tiles_of_any_size)
{
    static const guint tiles[] = {1, 7, 32, 33, 500};
    const RpModel apart = network_config(RP_ARCHITECTURE_QWEN3, FALSE);
    const RpModel joined = network_config_fused();

    for (guint i = 0; i < G_N_ELEMENTS(tiles); i++) {
        check_tiles(&apart, tiles[i]);
        check_tiles(&joined, tiles[i]);
    }
}

/* A micro-batch is so long that gate and up would be larger than all else; only sizes are
 * computed. */
RP_TEST(holds_gate_and_up_of_one_tile_only)
{
    const RpModel *config = rp_model_find("qwen3-1.7b", NULL);
    const gsize more = RP_MLP_MOST_ROWS - 256, tile = RP_MLP_TILE_ROWS;
    g_autoptr(RpWeights) weights = rp_weights_new(config);
    gsize bytes[2], kept[2];

    for (guint i = 0; i < 2; i++) {
        const RpNetworkOptions options = {.dtype = RP_DTYPE_BF16,
                                          .sequences = 1,
                                          .tokens =
                                              i == 0 ? RP_MLP_MOST_ROWS : RP_MLP_MOST_ROWS + 256,
                                          .head_chunk = 1024};
        g_autoptr(RpNetwork) network = rp_network_new(weights, rp_host_kernels(), &options);
        g_autoptr(RpProfile) profile = rp_network_profile(network);
        const RpLayer *block = &profile->layers[1];

        kept[i] = block->activation_bytes;
        bytes[i] = block->activation_bytes + block->backward_workspace_bytes;
        assert_int_equal(block->saved[RP_SAVED_MLP].bytes > 0, i == 0);
        assert_true(block->saved[RP_SAVED_QKV].bytes > 0);
    }
    /* gate, up [T,2m] and the product [T,m]; gate and up are kept */
    assert_true(kept[0] > kept[1] + 2 * 2 * config->intermediate * more);
    assert_true(bytes[0] > bytes[1] + 2 * 2 * config->intermediate * (more - tile));
}

/* Sizes for 8192 tokens; nothing is computed. */
static guint64
head_workspace(RpModel *config, guint head_chunk, guint *chosen, guint64 *of_block)
{
    const RpNetworkOptions options = {
        .dtype = RP_DTYPE_BF16, .sequences = 8, .tokens = 1024, .head_chunk = head_chunk};
    Model *model = network_new(config, &options);
    const guint64 bytes = model->profile->layers[3].backward_workspace_bytes;

    *chosen = rp_network_options(model->network)->head_chunk;
    *of_block = model->profile->layers[1].backward_workspace_bytes;
    network_free(model);
    return bytes;
}

RP_TEST(chooses_the_largest_chunk_that_fits_where_blocks_do)
{
    RpModel config = network_config(RP_ARCHITECTURE_QWEN3, FALSE);
    guint seen = 0;

    for (config.vocab = 64; config.vocab <= 65536; config.vocab *= 2) {
        guint chosen, unused;
        guint64 block;
        const guint64 bytes = head_workspace(&config, 0, &chosen, &block);

        assert_true(chosen == 1024 || chosen == 2048 || chosen == 4096);
        assert_true(chosen == 1024 || bytes <= block);
        assert_true(chosen == 4096 || head_workspace(&config, 2 * chosen, &unused, &block) > block);
        seen |= chosen;
    }
    assert_int_equal(seen, 1024 | 2048 | 4096);
}

/* Twice as much is more than it may have, unless there are no more tokens, or kernels count no further. */
RP_TEST(chooses_larger_chunks_with_memory_of_their_own)
{
    RpModel config = network_config(RP_ARCHITECTURE_QWEN3, FALSE);
    guint seen = 0;

    for (guint i = 0; i < 4; i++) {
        const guint vocab[] = {4096, 4096, 4096, 1 << 18};
        const guint64 memory[] = {1 << 20, (guint64)40 << 20, (guint64)1 << 40, (guint64)1 << 40};
        const guint want[] = {1024, 4096, 8192, 4096};
        RpNetworkOptions options = {
            .dtype = RP_DTYPE_BF16, .sequences = 8, .tokens = 1024, .head_memory = memory[i]};

        config.vocab = vocab[i];
        Model *model = network_new(&config, &options);

        assert_int_equal(rp_network_options(model->network)->head_chunk, want[i]);
        seen |= want[i];
        network_free(model);
    }
    assert_int_equal(seen, 1024 | 4096 | 8192);
}

RP_TEST(computes_the_loss_alone_in_a_forward)
{
    Model *model = model_of(RP_ARCHITECTURE_LLAMA, TRUE, RP_DTYPE_FP32);
    const Run fused = network_whole(model);
    Run forward = network_run_new(model);

    network_stage(model, STAGE_FORWARD, all_layers(model), NULL, 0, &forward);
    assert_true(forward.loss == fused.loss);
    network_free(model);
}

/* ---- sizes ---- */

/* Bytes after the last one that a stage wrote: its workspace has them in vain. */
static void
check_end(const Model *model, StageVariant variant, RpInterval layers, Run *run)
{
    network_stage(model, variant, layers, (guint[]){layers.first + layers.count}, 1, run);
    if (run->workspace_unused > 1024)
        fail_msg("layers %u to %u: %zu bytes of workspace were not touched", layers.first,
                 layers.first + layers.count - 1, run->workspace_unused);
}

RP_TEST(uses_its_workspace_to_the_end)
{
    for (RpDtype dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (guint architecture = 0; architecture < 2; architecture++) {
            Model *model = model_of((RpArchitecture)architecture, FALSE, dtype);
            Run run = network_run_new(model);

            check_end(model, STAGE_FORWARD, (RpInterval){0, 1}, &run);
            check_end(model, STAGE_FORWARD, (RpInterval){1, 1}, &run);
            check_end(model, STAGE_FORWARD, (RpInterval){1, 2}, &run);
            check_end(model, STAGE_FUSED, (RpInterval){3, 1}, &run);
            run.d_hidden[2] = run.d_hidden[3];
            check_end(model, STAGE_BACKWARD, (RpInterval){1, 2}, &run);
            check_end(model, STAGE_BACKWARD, (RpInterval){1, 1}, &run);
            network_free(model);
        }
    }
}

/* ---- the observer ---- */

typedef struct {
    const Model *model;
    const Run *expected; /* hidden states */
    guint layers;        /* bit l: layer l was seen */
} Seen;

static void
note_layer(gpointer user_data, guint layer, const void *output)
{
    Seen *seen = user_data;

    assert_int_equal(seen->layers, (1u << layer) - 1);
    seen->layers |= 1u << layer;
    assert_memory_equal(output, seen->expected->hidden[layer + 1],
                        rp_network_hidden_bytes(seen->model->network));
}

RP_TEST(shows_the_output_of_each_layer_once)
{
    Model *model = model_of(RP_ARCHITECTURE_QWEN3, FALSE, RP_DTYPE_BF16);
    Run expected = network_run_new(model);
    Seen seen = {.model = model, .expected = &expected};

    network_stage(model, STAGE_FORWARD, (RpInterval){0, 3}, (guint[]){3, 1, 2}, 3, &expected);
    model->observe = note_layer;
    model->observe_data = &seen;
    network_whole(model);
    assert_int_equal(seen.layers, 7);
    seen.layers = 0;
    network_cut(model, 2, 4);
    assert_int_equal(seen.layers, 7);
    network_free(model);
}

/* Sums in another order, nothing else. */
RP_TEST(computes_the_same_without_the_tokens_that_are_masked)
{
    static const RpDtype dtypes[] = {RP_DTYPE_FP32, RP_DTYPE_BF16};
    static const double most[] = {2e-6, 2e-2};

    for (guint c = 0; c < 2 * G_N_ELEMENTS(dtypes); c++) {
        Model *model = model_of(RP_ARCHITECTURE_QWEN3, FALSE, dtypes[c / 2]);
        gint32 *rows = g_new(gint32, model->tokens);

        /* a chunk is 7 tokens: none, or less than one, or several of them are left */
        for (size_t t = 0; c % 2 == 1 && t < model->tokens; t++)
            if (t != 20)
                model->targets[t] = RP_LABEL_MASKED;
        const Run all = network_whole(model);
        guint n = 0;

        for (size_t t = 0; t < model->tokens; t++) {
            if (model->targets[t] == RP_LABEL_MASKED)
                continue;
            model->targets[n] = model->targets[t];
            rows[n++] = (gint32)t;
        }
        assert_in_range(n, 1, model->tokens - 1);
        model->rows = rows;
        model->n_rows = n;
        const Run packed = network_whole(model);

        assert_true(fabs(packed.loss - all.loss) <= 1e-6 * all.loss);
        assert_true(network_error(packed.sums, all.sums, model->elements) < most[c / 2]);
        g_free(rows);
        network_free(model);
    }
}

/* The head alone, from an input of its own, of targets that are packed. */
static Run
run_packed(Model *model, const gint32 *rows, guint n)
{
    Run run = network_run_new(model);

    model->rows = rows;
    model->n_rows = n;
    network_stage(model, STAGE_FORWARD, (RpInterval){0, 3}, (guint[]){3}, 1, &run);
    network_stage(model, STAGE_FUSED, (RpInterval){3, 1}, NULL, 0, &run);
    return run;
}

/* A chunk is 7 tokens: none, one, and several write the head's sums, or add to them. */
RP_TEST(begins_sums_of_a_head_with_any_number_of_rows)
{
    static const guint numbers[] = {0, 5, 20};

    for (guint i = 0; i < G_N_ELEMENTS(numbers); i++) {
        Model *model = model_of(RP_ARCHITECTURE_QWEN3, FALSE, RP_DTYPE_FP32);
        const RpLayerLayout *head = rp_network_layout(model->network, 3);
        gint32 *rows = host_bytes(model->tokens * sizeof *rows);

        for (guint t = 0; t < numbers[i]; t++) {
            rows[t] = (gint32)t;
            model->targets[t] = (gint32)t;
        }
        const Run added = run_packed(model, rows, numbers[i]);

        model->begins = TRUE;
        const Run begun = run_packed(model, rows, numbers[i]);

        assert_true(begun.loss == added.loss && (begun.loss == 0) == (numbers[i] == 0));
        for (guint64 e = 0; e < head->elements; e++) /* gaps too */
            assert_true(begun.sums[head->first_element + e] == added.sums[head->first_element + e]);
        network_free(model);
    }
}

static double
hidden_error(const Model *model, const guint8 *a, const guint8 *b)
{
    const RpDtype dtype = rp_network_options(model->network)->dtype;
    const gsize n = model->tokens * model->config.hidden;
    float *values = host_bytes(2 * n * sizeof *values);

    rp_dtype_to_float(dtype, a, values, n);
    rp_dtype_to_float(dtype, b, values + n, n);
    return network_error(values, values + n, n);
}

static gboolean
is_zero(const guint8 *memory, gsize bytes)
{
    for (gsize i = 0; i < bytes; i++)
        if (memory[i] != 0)
            return FALSE;
    return TRUE;
}

/* Rows of masked tokens behind the others, in the last chunk and in some of their own, add zeros.
 * But chunks have other sizes, and so sums another order. */
RP_TEST(is_not_changed_by_masked_rows_among_the_packed_ones)
{
    static const double most[] = {
        [RP_DTYPE_FP32] = 2e-6, [RP_DTYPE_BF16] = 2e-2, [RP_DTYPE_FP16] = 2e-3};

    for (RpDtype dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        Model *model = model_of(RP_ARCHITECTURE_QWEN3, FALSE, dtype);
        const size_t T = model->tokens;
        const gsize row_bytes = model->config.hidden * rp_dtype_size(dtype);
        gint32 *rows = host_bytes(T * sizeof *rows);
        gint32 *masked = host_bytes(T * sizeof *masked);
        guint n = 0, n_masked = 0;

        for (size_t t = 0; t < T; t++) {
            if (model->targets[t] == RP_LABEL_MASKED) {
                masked[n_masked++] = (gint32)t;
                continue;
            }
            model->targets[n] = model->targets[t];
            rows[n++] = (gint32)t;
        }
        assert_in_range(n_masked, 4, T - 8);
        for (guint i = 0; i < n_masked; i++) {
            model->targets[n + i] = RP_LABEL_MASKED;
            rows[n + i] = masked[n_masked - 1 - i]; /* in any order */
        }
        const Run expected = run_packed(model, rows, n);
        for (guint added = 1; added <= n_masked; added++) {
            const Run run = run_packed(model, rows, n + added);
            const double sums_error = network_error(run.sums, expected.sums, model->elements);
            const double dx_error = hidden_error(model, run.d_hidden[3], expected.d_hidden[3]);

            if (!(fabs(run.loss - expected.loss) <= 1e-6 * expected.loss) ||
                !(sums_error < most[dtype]) || !(dx_error < most[dtype]))
                fail_msg("%s, %u rows and %u masked ones: loss %.9g, expected %.9g; gradients of "
                         "weights %.3g off, of the input %.3g",
                         rp_dtype_name(dtype), n, added, run.loss, expected.loss, sums_error,
                         dx_error);
            for (guint i = 0; i < n_masked; i++)
                assert_true(is_zero(run.d_hidden[3] + (gsize)masked[i] * row_bytes, row_bytes));
        }
        network_free(model);
    }
}

/* The shapes that a backend would have to plan for. */
static GHashTable *shapes;

static void
note_shape(RpKernelStream *stream, const RpMatmulArgs *args)
{
    g_hash_table_add(shapes,
                     g_strdup_printf("%d %zu %zu %zu", (int)args->form, args->m, args->n, args->k));
    rp_host_kernels()->matmul(stream, args);
}

/* Counts the matmuls of @form whose weight is [@out,@in] in a block's forward and backward. */
static guint
count_of(RpMatmulLayout form, size_t out, size_t in)
{
    const size_t T = 33;
    g_autofree char *key = form == RP_MATMUL_NT   ? g_strdup_printf("0 %zu %zu %zu", T, out, in)
                           : form == RP_MATMUL_NN ? g_strdup_printf("1 %zu %zu %zu", T, in, out)
                                                  : g_strdup_printf("2 %zu %zu %zu", out, in, T);

    return GPOINTER_TO_UINT(g_hash_table_lookup(shapes, key));
}

static void
count_shape(RpKernelStream *stream, const RpMatmulArgs *args)
{
    char *key = g_strdup_printf("%d %zu %zu %zu", (int)args->form, args->m, args->n, args->k);
    const guint n = GPOINTER_TO_UINT(g_hash_table_lookup(shapes, key));

    g_hash_table_insert(shapes, key, GUINT_TO_POINTER(n + 1));
    rp_host_kernels()->matmul(stream, args);
}

/* One block, forward and backward at once. @lora: (nullable): beside q */
static void
count_matmuls(const RpModel *config, const RpLora *lora)
{
    const RpNetworkOptions options = options_of(RP_DTYPE_BF16);
    RpKernels counting = *rp_host_kernels();
    Model *model = lora != NULL ? network_random_adapted(config, lora, &options)
                                : network_random(config, &options);

    counting.matmul = count_shape;
    rp_network_free(model->network);
    model->network = rp_network_new(model->weights, &counting, &options);
    g_hash_table_remove_all(shapes);
    network_whole(model);
    network_free(model);
}

/* [64,16] of q, k and v; k, v and q alone have 16, 16 and 32 rows, down 40 columns. */
RP_TEST(multiplies_q_k_and_v_at_once_where_their_matrices_are_one)
{
    static const RpLora lora = {.rank = 3, .alpha = 6}, joined = {.rank = 4, .alpha = 6};
    RpModel config = network_config_fused();

    config.blocks = 1;
    shapes = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    count_matmuls(&config, NULL);
    for (RpMatmulLayout form = RP_MATMUL_NT; form <= RP_MATMUL_TN; form++) {
        assert_int_equal(count_of(form, 64, 16), 1);
        assert_int_equal(count_of(form, 16, 16), 0);
        assert_int_equal(count_of(form, 32, 16), 0);
    }
    count_matmuls(&config, &lora);
    assert_int_equal(count_of(RP_MATMUL_NT, 64, 16), 0);
    assert_int_equal(count_of(RP_MATMUL_NT, 16, 16), 2);
    /* A [3,16] has a gap behind it, A [4,16] has none: [12,16] of q, k and v, [8,16] of gate and up */
    assert_int_equal(count_of(RP_MATMUL_NT, 12, 16), 0);
    count_matmuls(&config, &joined);
    assert_int_equal(count_of(RP_MATMUL_NT, 64, 16), 1);
    assert_int_equal(count_of(RP_MATMUL_NT, 12, 16), 2);
    assert_int_equal(count_of(RP_MATMUL_TN, 12, 16), 1);
    assert_int_equal(count_of(RP_MATMUL_NT, 8, 16), 2);
    assert_int_equal(count_of(RP_MATMUL_NN, 80, 16), 1);
    assert_int_equal(count_of(RP_MATMUL_NN, 8, 16), 1);
    config.attention_bias = TRUE;
    count_matmuls(&config, NULL);
    assert_int_equal(count_of(RP_MATMUL_NT, 64, 16), 0);
    assert_int_equal(count_of(RP_MATMUL_TN, 16, 16), 2);
    config.attention_bias = FALSE;
    config.head_dim = 6; /* not whole packs: kernels that read columns take eight at a time */
    config.hidden = 32;
    count_matmuls(&config, NULL);
    assert_int_equal(count_of(RP_MATMUL_NT, 48, 32), 0);
    assert_int_equal(count_of(RP_MATMUL_NT, 12, 32), 2);
    g_hash_table_unref(shapes);
}

/* The head alone, of batches masked at random. */
static guint
count_shapes(gboolean packs_as_backends_do)
{
    const RpModel config = network_config(RP_ARCHITECTURE_QWEN3, FALSE);
    const RpNetworkOptions options = {
        .dtype = RP_DTYPE_FP32, .sequences = 8, .tokens = 256, .head_chunk = 512};
    Model *model = network_new(&config, &options);
    GRand *random = g_rand_new_with_seed(3);
    RpKernels counting = *rp_host_kernels();
    gint32 *targets = host_bytes(model->tokens * sizeof *targets);
    gint32 *rows = host_bytes(model->tokens * sizeof *rows);
    guint n_shapes;

    counting.matmul = note_shape;
    rp_network_free(model->network);
    model->network = rp_network_new(model->weights, &counting, &options);
    shapes = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    model->rows = rows;
    for (guint try = 0; try < 100; try++) {
        const guint mark = host_mark();
        const double share = g_rand_double_range(random, 0.1, 1);
        Run run = network_run_new(model);

        model->n_rows = 0;
        for (size_t t = 0; t < model->tokens; t++) {
            targets[t] = g_rand_double(random) < share ? RP_LABEL_MASKED : 1;
            if (targets[t] == RP_LABEL_MASKED)
                continue;
            model->targets[model->n_rows] = targets[t];
            rows[model->n_rows++] = (gint32)t;
        }
        if (packs_as_backends_do)
            model->n_rows = rp_targets_pack(targets, (guint)model->tokens, model->targets, rows);
        run.hidden[3] = host_bytes(rp_network_hidden_bytes(model->network));
        network_stage(model, STAGE_FUSED, (RpInterval){3, 1}, NULL, 0, &run);
        host_free_since(mark);
    }
    n_shapes = g_hash_table_size(shapes);
    g_hash_table_unref(shapes);
    g_rand_free(random);
    network_free(model);
    return n_shapes;
}

/* Chunks of 512 rows and a last one of 128, 256 or 384: three matmuls each. */
RP_TEST(has_few_shapes_of_matmuls_however_tokens_are_masked)
{
    assert_int_equal(count_shapes(TRUE), 3 * 4);
    assert_true(count_shapes(FALSE) > 3 * 50);
}

RP_TEST(wants_nothing_of_a_batch_without_targets)
{
    Model *model = model_of(RP_ARCHITECTURE_QWEN3, FALSE, RP_DTYPE_FP32);
    Run run;

    for (size_t t = 0; t < model->tokens; t++)
        model->targets[t] = RP_LABEL_MASKED;
    for (guint packed = 0; packed < 2; packed++) {
        model->rows = packed ? model->targets : NULL;
        run = network_whole(model);
        assert_true(run.loss == 0);
        for (guint64 i = 0; i < model->elements; i++)
            assert_true(run.sums[i] == 0);
    }
    network_free(model);
}

RP_TEST_FIXTURE(host_setup, host_teardown)
