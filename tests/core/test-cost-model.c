#include "tests/rp-test.h"

#include "core/base/units.h"
#include "core/catalogue/cost/cost-model.h"
#include "core/catalogue/cost/cost-parts.h"

typedef struct {
    RpProfile *profile;
    RpProfile *other;
    GError *error;
    char *text;
} Fixture;

static void
teardown(Fixture *f)
{
    rp_profile_free(f->profile);
    rp_profile_free(f->other);
    g_clear_error(&f->error);
    g_free(f->text);
}

static RpProfile *
predict(const char *model, const char *gpu, const RpWorkload *workload, GError **error)
{
    return rp_cost_model_profile(rp_model_find(model, NULL), rp_gpu_find(gpu, NULL), workload,
                                 error);
}

static gboolean
near(double value, double expected, double tolerance)
{
    if (ABS(value / expected - 1) <= tolerance)
        return TRUE;
    print_error("%.6g is %+.1f %% from %.6g\n", value, 100 * (value / expected - 1), expected);
    return FALSE;
}

/* LoRA targets of a mixture: without names its experts would have adapters, too. */
static char **
attention(void)
{
    static char *names[] = {(char *)"q_proj", (char *)"k_proj", (char *)"v_proj", (char *)"o_proj",
                            NULL};

    return names;
}

/*
 * Published times of reference layer-times.csv and how far the model is from them, in percent. The
 * model has five fitted constants for these twenty figures (docs/cost-model.md); the errors are
 * pinned here to half a percentage point so that a change of the model shows.
 */
static const struct {
    const char *model;
    guint lora_rank;
    double published_ms[4]; /* block forward, block backward, head forward, head backward */
    double error_pct[4];
} calibration[] = {
    {"qwen3-1.7b", 0, {7.429, 15.831, 22.0655, 43.707}, {-2.5, -3.9, 10.9, 5.4}},
    {"llama-3.1-8b", 0, {18.50370313, 41.20659375, 37.2255, 74.501}, {3.6, -0.7, -1.6, -1.6}},
    {"gpt-oss-20b", 0, {21.6445625, 81.780875, 44.2925, 86.264}, {-3.1, -38.9, -4.9, -5.0}},
    {"qwen3-32b", 0, {40.5610625, 91.17429688, 54.928, 108.294}, {2.4, -2.7, -4.5, -1.7}},
    {"qwen3-235b-a22b", 32, {43.016, 58.376, 42.444, 43.294}, {-0.5, 1.7, 1.7, 2.9}},
};

RP_TEST_OF(predicts_the_published_layer_times_as_documented, Fixture *f)
{
    gboolean good = TRUE;

    for (guint i = 0; i < G_N_ELEMENTS(calibration); i++) {
        RpWorkload workload = {.sequences = 4,
                               .tokens_per_sequence = 2048,
                               .dtype = "fp16",
                               .accumulate = "fp16",
                               .lora_rank = calibration[i].lora_rank,
                               .lora_targets = attention(),
                               .kernels = RP_COST_KERNELS_PYTORCH};
        double ms[4] = {0};

        rp_profile_free(f->profile);
        f->profile = rp_must(predict, calibration[i].model, "rtx4090", &workload);
        guint blocks = rp_profile_n_blocks(f->profile);
        for (guint j = 0; j < f->profile->n_layers; j++) {
            const RpLayer *layer = &f->profile->layers[j];
            guint at = layer->kind == RP_LAYER_HEAD ? 2 : 0;
            guint n = layer->kind == RP_LAYER_HEAD ? 1 : blocks;

            if (layer->kind == RP_LAYER_EMBEDDING)
                continue;
            ms[at] += rp_ms_from_ns(layer->forward_ns) / n;
            ms[at + 1] += rp_ms_from_ns(layer->backward_ns) / n;
        }
        for (guint j = 0; j < 4; j++) {
            double error_pct = 100 * (ms[j] / calibration[i].published_ms[j] - 1);
            if (ABS(error_pct - calibration[i].error_pct[j]) <= 0.5)
                continue;
            print_error("%s, time %u: %.3f ms, error %+.1f %%, documented %+.1f %%\n",
                        calibration[i].model, j, ms[j], error_pct, calibration[i].error_pct[j]);
            good = FALSE;
        }
    }
    assert_true(good);
}

/*
 * Times of this project's kernels, profiles/h200, and how far the model is from them, in percent.
 * Two constants are fitted to them, the rest is counted; pinned to half a percentage point. They were
 * timed before matmuls added residuals, which the counts have. The
 * head of Qwen3-4B was timed in chunks of 1,024 tokens, the others in 4,096.
 */
static const struct {
    const char *file;
    double error_pct[4]; /* block forward, block backward, recompute without output, head */
} measured[] = {
    {"qwen3-1.7b-8x2048-one-gpu", {-1.6, 0.8, -2.0, 2.3}},
    {"qwen3-1.7b-8x2048", {-1.4, 0.8, -2.7, 0.4}},
    {"qwen3-4b-8x2048-one-gpu", {0.3, -2.0, -0.4, -13.4}},
    {"qwen3-8b-4x2048", {2.0, 4.0, 1.4, 3.1}},
};

static void
times_of_layers(const RpProfile *profile, double ms[4])
{
    const RpLayer *block = &profile->layers[1];
    const RpLayer *head = &profile->layers[profile->n_layers - 1];

    ms[0] = rp_ms_from_ns(block->forward_ns);
    ms[1] = rp_ms_from_ns(block->backward_ns);
    ms[2] = rp_ms_from_ns(block->recompute_last_ns);
    ms[3] = rp_ms_from_ns(head->forward_ns + head->backward_ns);
}

RP_TEST_OF(predicts_the_layer_times_measured_on_an_h200_as_documented, Fixture *f)
{
    gboolean good = TRUE;

    for (guint i = 0; i < G_N_ELEMENTS(measured); i++) {
        g_autofree char *name = g_strdup_printf("profiles/h200/%s.json", measured[i].file);
        g_autofree char *path = rp_test_source_path(name);
        double found[4], predicted[4];

        rp_profile_free(f->other);
        f->other = rp_must(rp_profile_load, path);
        RpWorkload workload = {.sequences = f->other->sequences,
                               .tokens_per_sequence = f->other->tokens_per_sequence};

        rp_profile_free(f->profile);
        f->profile = rp_must(predict, f->other->model, "h200", &workload);
        times_of_layers(f->other, found);
        times_of_layers(f->profile, predicted);
        for (guint j = 0; j < 4; j++) {
            double error_pct = 100 * (predicted[j] / found[j] - 1);
            if (ABS(error_pct - measured[i].error_pct[j]) <= 0.5)
                continue;
            print_error("%s, time %u: %.3f ms, error %+.1f %%, documented %+.1f %%\n",
                        measured[i].file, j, predicted[j], error_pct, measured[i].error_pct[j]);
            good = FALSE;
        }
    }
    assert_true(good);
}

/* paper-figs/figure-13.csv, figure-14.csv, docs/lab/gpus.md (adapters): asynchronous, one GPU, one fused stage of all layers. At
 * longer sequences cuDNN reaches more than the model's share, which is that at 2,048 tokens. */
RP_TEST_OF(predicts_the_throughput_measured_on_an_h200, Fixture *f)
{
    static const struct {
        const char *model;
        guint sequences, tokens, lora_rank;
        double tokens_per_s, error_pct;
    } rows[] = {
        {"qwen3-1.7b", 8, 2048, 0, 49379, 3},  {"qwen3-4b", 8, 2048, 0, 20931, 4},
        {"qwen3-8b", 4, 2048, 0, 12567, 3},    {"qwen3-1.7b", 4, 4096, 0, 45130, 3},
        {"qwen3-1.7b", 1, 32768, 0, 20594, 8}, {"qwen3-1.7b", 8, 2048, 32, 57030, 2},
        {"qwen3-1.7b", 8, 2048, 16, 55191, 7}, {"qwen3-30b-a3b", 4, 2048, 32, 25579, 5},
    };

    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        RpWorkload workload = {.sequences = rows[i].sequences,
                               .tokens_per_sequence = rows[i].tokens,
                               .lora_rank = rows[i].lora_rank};
        gint64 total_ns = 0;

        if (rp_model_find(rows[i].model, NULL)->experts > 1)
            workload.lora_targets = attention();

        rp_profile_free(f->profile);
        f->profile = rp_must(predict, rows[i].model, "h200", &workload);
        for (guint j = 0; j < f->profile->n_layers; j++)
            total_ns += f->profile->layers[j].forward_ns + f->profile->layers[j].backward_ns;
        double tokens = (double)rows[i].sequences * rows[i].tokens;
        assert_true(
            near(tokens / ((double)total_ns / 1e9), rows[i].tokens_per_s, rows[i].error_pct / 100));
    }
}

RP_TEST(says_of_each_gpu_whether_it_was_measured)
{
    guint n;
    const RpGpu *gpus = rp_gpu_list(&n);

    for (guint i = 0; i < n; i++) {
        assert_non_null(gpus[i].basis);
        assert_int_equal(gpus[i].measured, g_str_equal(gpus[i].name, "h200"));
        assert_true(gpus[i].optimizer_parameters_per_s > 0);
    }
}

RP_TEST(predicts_the_published_hops)
{
    const RpGpu *gpu = rp_gpu_find("rtx4090", NULL);
    static const struct {
        double hidden;
        double hop_ms;
    } rows[] = {{2048, 1.6}, {2880, 2.25}, {4096, 3.2}, {5120, 4}};

    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        guint64 bytes = (guint64)(rows[i].hidden * 2 * 8192);
        assert_true(near(rp_ms_from_ns(rp_cost_model_hop_ns(gpu, bytes)), rows[i].hop_ms, 0.005));
    }
}

RP_TEST_OF(is_within_a_fifth_of_the_throughput_measured_on_an_h200, Fixture *f)
{
    RpWorkload workload = {
        .sequences = 8, .tokens_per_sequence = 2048, .kernels = RP_COST_KERNELS_PYTORCH};
    gint64 total_ns = 0;

    f->profile = rp_must(predict, "qwen3-1.7b", "h200", &workload);
    for (guint i = 0; i < f->profile->n_layers; i++) {
        const RpLayer *layer = &f->profile->layers[i];
        total_ns += layer->forward_ns + layer->backward_ns;
        if (layer->kind == RP_LAYER_BLOCK)
            total_ns += layer->recompute_ns;
    }
    /* never fitted to: 26,558 tokens/s measured with everything else that an iteration does */
    double tokens_per_s = 8 * 2048 / ((double)total_ns / 1e9);
    assert_true(near(tokens_per_s, 26558, 0.2));
}

RP_TEST_OF(serves_full_fidelity_for_every_model_and_gpu, Fixture *f)
{
    guint n_models, n_gpus;
    const RpModel *models = rp_model_list(&n_models);
    const RpGpu *gpus = rp_gpu_list(&n_gpus);

    for (guint i = 0; i < n_models; i++) {
        for (guint j = 0; j < n_gpus; j++) {
            for (guint rank = 0; rank <= 16; rank += 16) {
                RpWorkload workload = {
                    .sequences = 2, .tokens_per_sequence = 1000, .lora_rank = rank, .gpus = 4};

                rp_profile_free(f->profile);
                f->profile = rp_must(rp_cost_model_profile, &models[i], &gpus[j], &workload);
                assert_true(rp_profile_check_full(f->profile, &f->error));
                for (guint k = 0; k < f->profile->n_layers; k++) {
                    const RpLayer *layer = &f->profile->layers[k];
                    guint64 sum = 0;

                    for (guint t = 0; t < layer->n_tensors; t++)
                        sum += layer->tensor_bytes[t];
                    assert_int_equal(sum, layer->parameter_bytes);
                    assert_true(layer->forward_ns > 0);
                    assert_true(layer->weight_gradient_ns <= layer->backward_ns);
                    assert_true(layer->gradient_bytes <= layer->parameter_bytes);
                    assert_true(rank > 0 || layer->gradient_bytes == layer->parameter_bytes);
                }
            }
        }
    }
}

RP_TEST_OF(survives_a_round_trip_through_json, Fixture *f)
{
    RpWorkload workload = {.sequences = 4, .tokens_per_sequence = 2048, .gpus = 8};

    f->profile = rp_must(predict, "gpt-oss-20b", "rtx5090", &workload);
    f->text = rp_profile_to_json(f->profile);
    f->other = rp_must(rp_profile_parse, "t", f->text, strlen(f->text));
    g_free(f->text);
    f->text = rp_profile_to_json(f->other);
    char *first = rp_profile_to_json(f->profile);
    gboolean same = g_str_equal(first, f->text);
    g_free(first);
    assert_true(same);
    for (guint i = 0; i < f->profile->n_layers; i++)
        assert_int_equal(f->profile->layers[i].forward_ns, f->other->layers[i].forward_ns);
}

RP_TEST_OF(makes_sliding_blocks_cheaper, Fixture *f)
{
    RpWorkload workload = {.sequences = 1, .tokens_per_sequence = 8192};

    f->profile = rp_must(predict, "gpt-oss-20b", "h200", &workload);
    assert_true(f->profile->layers[1].forward_ns < f->profile->layers[2].forward_ns);
    assert_int_equal(f->profile->layers[1].forward_ns, f->profile->layers[3].forward_ns);
}

RP_TEST(counts_attended_pairs_exactly)
{
    const RpModel *oss = rp_model_find("gpt-oss-20b", NULL);
    const double s = 300;
    double full = 0, sliding = 0;

    for (guint q = 0; q < 300; q++) {
        full += q + 1;
        sliding += MIN(q + 1, 128);
    }
    double per_pair = 4.0 * oss->heads * oss->head_dim;
    assert_true(rp_cost_model_attention_flops(oss, 1, 1, s) == per_pair * full);
    assert_true(rp_cost_model_attention_flops(oss, 0, 1, s) == per_pair * sliding);
    assert_true(rp_cost_model_attention_flops(oss, 0, 1, 100) == per_pair * 5050);
}

/* With packed samples a block takes less time, by the attention that is not computed across
 * them. */
RP_TEST(attends_within_packed_samples)
{
    const RpModel *model = rp_model_find("qwen3-1.7b", NULL);
    RpWorkload workload = {.sequences = 4, .tokens_per_sequence = 2048};
    g_autoptr(RpProfile) whole = predict("qwen3-1.7b", "h200", &workload, NULL);

    workload.sample_tokens = 2048;
    g_autoptr(RpProfile) same = predict("qwen3-1.7b", "h200", &workload, NULL);
    workload.sample_tokens = 512;
    g_autoptr(RpProfile) packed = predict("qwen3-1.7b", "h200", &workload, NULL);
    assert_int_equal(same->layers[1].forward_ns, whole->layers[1].forward_ns);
    const double less = (double)(whole->layers[1].forward_ns - packed->layers[1].forward_ns);
    const double less_backward =
        (double)(whole->layers[1].backward_ns - packed->layers[1].backward_ns);
    const double flops = rp_cost_model_attention_flops(model, 0, 4, 2048) -
                         rp_cost_model_attention_flops(model, 0, 16, 512);
    const RpGpu *gpu = rp_gpu_find("h200", NULL);

    assert_true(near(less,
                     1e9 * flops / (gpu->fp32_accumulate_tflops * 1e12 * gpu->attention_efficiency),
                     1e-5));
    assert_true(less_backward > less);
    assert_int_equal(packed->layers[1].activation_bytes, whole->layers[1].activation_bytes);
}

/* Expected values for 8,192 tokens were counted apart from this model: TFLOP and GB of 16-bit
 * weights, gate and up beside down (reference/expert-gemm-shapes.csv). */
RP_TEST(counts_the_matmuls_of_experts)
{
    static const struct {
        const char *model;
        double tflop, weight_gb, rows_each;
    } rows[] = {
        {"gpt-oss-20b", 1.087 + 0.544, 1.062 + 0.531, 1024},
        {"qwen3-30b-a3b", 0.412 + 0.206, 0.805 + 0.403, 512},
        {"qwen3-235b-a22b", 1.649 + 0.825, 3.221 + 1.611, 512},
    };

    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        const RpModel *model = rp_model_find(rows[i].model, NULL);
        const RpCostExperts experts = rp_cost_experts(model, 8192);
        const double each = experts.rows / model->experts;

        assert_true(near(experts.flops / 1e12, rows[i].tflop, 1e-3));
        assert_true(near(experts.weight_bytes / 1e9, rows[i].weight_gb, 1e-3));
        assert_true(near(experts.down_flops * 3, experts.flops, 1e-12));
        assert_true(each == rows[i].rows_each);
        /* a tile of 128 rows is half empty for each expert */
        assert_true(near(rp_cost_experts_share(model, experts.rows), each / (each + 64), 1e-12));
    }
}

/* The published implementation issues each expert by itself; this project's kernels take all at
 * once, so that a block comes close to a dense one's share of the card's peak. */
RP_TEST_OF(computes_experts_about_as_fast_as_dense_blocks, Fixture *f)
{
    static const struct {
        const char *model;
        guint lora_rank;
        double published_ms, share; /* block forward; share of a dense block's FLOP/s */
    } rows[] = {{"gpt-oss-20b", 0, 21.6445625, 0.846}, {"qwen3-235b-a22b", 32, 43.016, 0.71}};
    RpWorkload workload = {
        .sequences = 4, .tokens_per_sequence = 2048, .dtype = "fp16", .accumulate = "fp16"};
    workload.lora_targets = attention();
    RpGpu slow = *rp_gpu_find("rtx4090", NULL);

    slow.expert_ns *= 100;
    f->profile = rp_must(predict, "qwen3-32b", "rtx4090", &workload);
    const RpModel *dense = rp_model_find("qwen3-32b", NULL);
    const double dense_rate =
        rp_cost_model_matmul_flops(dense, 4, 2048) / (double)f->profile->layers[1].forward_ns;

    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        const RpModel *model = rp_model_find(rows[i].model, NULL);

        workload.lora_rank = rows[i].lora_rank;
        rp_profile_free(f->profile);
        rp_profile_free(f->other);
        f->profile = rp_must(predict, rows[i].model, "rtx4090", &workload);
        f->other = rp_must(rp_cost_model_profile, model, &slow, &workload);
        const RpLayer *block = &f->profile->layers[1];
        const double rate = rp_cost_model_matmul_flops(model, 4, 2048) / (double)block->forward_ns;

        assert_true(near(rate / dense_rate, rows[i].share, 0.01));
        assert_true(rp_ms_from_ns(block->forward_ns) < 0.6 * rows[i].published_ms);
        assert_int_equal(block->forward_ns, f->other->layers[1].forward_ns);
        assert_int_equal(block->backward_ns, f->other->layers[1].backward_ns);
        /* a block whose output nobody needs does without its down projection */
        assert_true(block->recompute_last_ns < 9 * block->recompute_ns / 10);
    }
}

RP_TEST_OF(sizes_activations_and_head_scratch, Fixture *f)
{
    RpWorkload workload = {.sequences = 4, .tokens_per_sequence = 2048};

    f->profile = rp_must(predict, "qwen3-32b", "rtx4090", &workload);
    const RpLayer *block = &f->profile->layers[1];
    const RpLayer *head = &f->profile->layers[65];
    /* heads x head_size = 8192 is not hidden = 5120 */
    guint64 per_token = 2 * (4 * 5120 + 2 * 8192 + 2 * 1024 + 3 * 25600);
    assert_int_equal(block->activation_bytes, per_token * 8192);
    assert_int_equal(block->input_bytes, 2 * 5120 * 8192);
    assert_int_equal(head->forward_workspace_bytes,
                     RP_COST_MODEL_HEAD_CHUNK * G_GUINT64_CONSTANT(151936) * 6);
    assert_int_equal(head->output_bytes, 0);
    assert_int_equal(f->profile->layers[0].input_bytes, 4 * 8192);
}

RP_TEST_OF(needs_no_weight_gradient_with_lora, Fixture *f)
{
    RpWorkload workload = {.sequences = 4, .tokens_per_sequence = 2048};

    f->profile = rp_must(predict, "qwen3-8b", "rtx4090", &workload);
    workload.lora_rank = 16;
    f->other = rp_must(predict, "qwen3-8b", "rtx4090", &workload);
    const RpLayer *full = &f->profile->layers[1];
    const RpLayer *lora = &f->other->layers[1];
    assert_true(lora->parameter_bytes > full->parameter_bytes);
    assert_true(lora->gradient_bytes < full->gradient_bytes / 50);
    assert_true(lora->backward_ns < 7 * full->backward_ns / 10);
    assert_true(lora->weight_gradient_ns < full->weight_gradient_ns / 8);
    assert_int_equal(f->other->layers[37].gradient_bytes, 0);
    assert_int_equal(f->other->layers[0].backward_ns, 0);
}

/* GB of a layer as published, and of bitsandbytes' blocks: 4.127 bits a weight. */
RP_TEST_OF(uploads_packed_weights_as_they_are, Fixture *f)
{
    static const struct {
        const char *model, *base;
        double upload_gb, whole_gb;
    } rows[] = {
        {"gpt-oss-20b", "mxfp4", 0.477, 1.646},
        {"qwen3-235b-a22b", "nf4", 4.976 * 4.127 / 16, 4.976},
        {"qwen3-32b", "fp8", 0.5 * 0.975, 0.975},
    };
    RpWorkload workload = {.sequences = 4, .tokens_per_sequence = 2048, .lora_rank = 1};
    const RpGpu *gpu = rp_gpu_find("h200", NULL);

    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        rp_profile_free(f->profile);
        rp_profile_free(f->other);
        workload.base = NULL;
        f->other = rp_must(predict, rows[i].model, "h200", &workload);
        workload.base = rows[i].base;
        f->profile = rp_must(predict, rows[i].model, "h200", &workload);
        const RpLayer *packed = &f->profile->layers[1], *whole = &f->other->layers[1];
        const double moved = (double)(packed->upload_bytes + packed->parameter_bytes);

        assert_int_equal(whole->upload_bytes, 0);
        assert_int_equal(whole->expand_ns, 0);
        assert_int_equal(packed->parameter_bytes, whole->parameter_bytes);
        assert_int_equal(packed->forward_ns, whole->forward_ns);
        assert_true(near((double)whole->parameter_bytes / 1e9, rows[i].whole_gb, 0.01));
        assert_true(near((double)packed->upload_bytes / 1e9, rows[i].upload_gb, 0.01));
        /* both through the card's memory, but for unpacked tensors: GPT-OSS's attention */
        assert_true(near(rp_ms_from_ns(packed->expand_ns),
                         1e3 * moved / (gpu->memory_gb_per_s * 1e9 * gpu->memory_efficiency),
                         0.08));
        /* tensors that are not packed */
        assert_int_equal(f->profile->layers[0].upload_bytes, 0);
        assert_int_equal(f->profile->layers[f->profile->n_layers - 1].upload_bytes, 0);
        assert_int_equal(f->profile->layers[f->profile->n_layers - 1].expand_ns, 0);
    }
    f->text = rp_profile_to_json(f->profile);
    rp_profile_free(f->other);
    f->other = rp_must(rp_profile_parse, "t", f->text, strlen(f->text));
    assert_int_equal(f->other->layers[1].upload_bytes, f->profile->layers[1].upload_bytes);
}

RP_TEST_OF(adapts_only_what_is_named, Fixture *f)
{
    char q[] = "q_proj", *targets[] = {q, NULL};
    RpWorkload workload = {.sequences = 4, .tokens_per_sequence = 2048, .lora_rank = 32};

    f->other = rp_must(predict, "qwen3-8b", "rtx4090", &workload);
    workload.lora_targets = targets;
    f->profile = rp_must(predict, "qwen3-8b", "rtx4090", &workload);
    assert_int_equal(f->profile->layers[1].gradient_bytes, 2 * 32 * (4096 + 4096));
    assert_true(f->profile->layers[1].forward_ns < f->other->layers[1].forward_ns);
    assert_non_null(strstr(f->profile->origin, "LoRA rank 32 of q_proj"));
}

RP_TEST_OF(is_slower_with_fp32_accumulation_on_geforce_only, Fixture *f)
{
    static const char *const gpus[] = {"rtx4090", "h200"};

    for (guint i = 0; i < 2; i++) {
        RpWorkload workload = {
            .sequences = 4, .tokens_per_sequence = 2048, .dtype = "fp16", .accumulate = "fp16"};

        g_clear_pointer(&f->profile, rp_profile_free);
        g_clear_pointer(&f->other, rp_profile_free);
        f->profile = predict("qwen3-8b", gpus[i], &workload, &f->error);
        workload.accumulate = "fp32";
        f->other = rp_must(predict, "qwen3-8b", gpus[i], &workload);
        gint64 fp16_ns = f->profile->layers[1].forward_ns;
        gint64 fp32_ns = f->other->layers[1].forward_ns;
        assert_true(i == 0 ? fp32_ns > 3 * fp16_ns / 2 : fp32_ns == fp16_ns);
    }
}

/* docs/cost-model.md: TFLOP/s and GB/s of this project's kernels on cards that nobody has measured. */
RP_TEST(scales_measured_kernels_to_other_cards)
{
    static const struct {
        const char *gpu;
        double matmul[2], half_matmul[2], fp8[2], grouped[2], attention[2], backward[2];
        double memory[2];
    } rows[] = {
        {"rtx3090", {66, 71}, {122, 142}, {0, 0}, {62, 71}, {56, 71}, {41.5, 51}, {796, 870}},
        {"rtx4090",
         {153, 165},
         {284, 330},
         {284, 330},
         {145, 165},
         {131, 165},
         {96, 118},
         {857, 937}},
        {"rtx5090",
         {194, 209.5},
         {360, 419},
         {360, 419},
         {184, 209.5},
         {167, 209.5},
         {122, 150},
         {1379, 1509}},
        {"a100", {235, 312}, {235, 312}, {0, 0}, {201, 312}, {154, 303}, {118, 223}, {1554, 1700}},
    };
    static const RpCostEstimate estimates[] = {RP_COST_SLOW, RP_COST_FAST};

    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        const RpGpu *gpu = rp_gpu_find(rows[i].gpu, NULL);

        for (guint e = 0; e < G_N_ELEMENTS(estimates); e++) {
            const RpCostRates wide =
                rp_cost_rates(gpu, RP_COST_KERNELS_OWN, FALSE, FALSE, estimates[e]);
            const RpCostRates half =
                rp_cost_rates(gpu, RP_COST_KERNELS_OWN, TRUE, TRUE, estimates[e]);

            assert_true(near(wide.matmul / 1e12, rows[i].matmul[e], 0.01));
            assert_true(near(half.matmul / 1e12, rows[i].half_matmul[e], 0.01));
            assert_true(rows[i].fp8[e] > 0 ? near(wide.fp8 / 1e12, rows[i].fp8[e], 0.01)
                                           : wide.fp8 == 0);
            assert_true(near(wide.grouped / 1e12, rows[i].grouped[e], 0.01));
            assert_true(near(wide.attention / 1e12, rows[i].attention[e], 0.01));
            assert_true(near(wide.attention_backward / 1e12, rows[i].backward[e], 0.01));
            assert_true(near(wide.bandwidth / 1e9, rows[i].memory[e], 0.01));
            assert_true(half.attention == wide.attention);
            /* weights' gradients have fp32 sums, and cuBLASLt has no fp8 with fp16 sums */
            assert_true(half.weights == wide.matmul && half.grouped_weights == wide.grouped);
            assert_true(half.fp8 == wide.fp8);
        }
    }
}

static gint64
block_ns(const char *gpu, RpWorkload workload, RpCostEstimate estimate)
{
    workload.estimate = estimate;
    g_autoptr(RpProfile) profile = predict("qwen3-8b", gpu, &workload, NULL);

    assert_non_null(profile);
    return profile->layers[1].forward_ns + profile->layers[1].backward_ns;
}

/* The expected time lies in the middle of the range, for fp8 values, too, which cost one more
 * pass. */
RP_TEST(expects_the_mean_of_slow_and_fast)
{
    const RpWorkload plain = {.sequences = 4, .tokens_per_sequence = 2048};
    RpWorkload fp8 = plain;

    fp8.fp8 = TRUE;
    for (guint i = 0; i < 2; i++) {
        const RpWorkload workload = i == 0 ? plain : fp8;
        const double slow = (double)block_ns("rtx4090", workload, RP_COST_SLOW);
        const double fast = (double)block_ns("rtx4090", workload, RP_COST_FAST);

        assert_true(fast < slow);
        assert_true(
            near((double)block_ns("rtx4090", workload, RP_COST_EXPECTED), (slow + fast) / 2, 1e-6));
    }
    const double times = (double)block_ns("rtx4090", plain, RP_COST_EXPECTED) /
                         (double)block_ns("rtx4090", fp8, RP_COST_EXPECTED);

    assert_true(times > 1.4 && times < 2);
    assert_true(near((double)block_ns("h200", plain, RP_COST_SLOW),
                     1.05 * (double)block_ns("h200", plain, RP_COST_EXPECTED), 1e-6));
    assert_true(near((double)block_ns("h200", fp8, RP_COST_FAST),
                     0.93 * (double)block_ns("h200", fp8, RP_COST_EXPECTED), 1e-6));
}

/* Returns: the time of all layers, forward, recompute and backward. */
static gint64
model_ns(const RpModel *model, const RpGpu *gpu, RpWorkload workload)
{
    g_autoptr(RpProfile) profile = rp_cost_model_profile(model, gpu, &workload, NULL);
    gint64 ns = 0;

    assert_non_null(profile);
    for (guint i = 0; i < profile->n_layers; i++)
        ns += profile->layers[i].forward_ns + profile->layers[i].recompute_ns +
              profile->layers[i].backward_ns;
    return ns;
}

/* Each row is a combination that `train` takes: dtype, and sums of fewer bits. */
static const struct {
    const char *dtype, *plain, *fp8;
} arithmetics[] = {{"bf16", "fp32", "fp32"},
                   {"bf16", "fp32", "fp16"},
                   {"fp16", "fp32", "fp32"},
                   {"fp16", "fp16", "fp16"}};

/* Narrow models have few products for each number that is quantized, and experts multiply 16-bit numbers: these
 * may lose a little. */
RP_TEST(fp8_is_never_slower_for_dense_models_from_a_billion_parameters)
{
    guint n_gpus, n_models;
    const RpGpu *gpus = rp_gpu_list(&n_gpus);
    const RpModel *models = rp_model_list(&n_models);

    for (guint g = 0; g < n_gpus; g++)
        for (guint m = 0; gpus[g].fp8_tflops > 0 && m < n_models; m += RP_TEST_EVERY(3, 6))
            for (guint a = 0; a < G_N_ELEMENTS(arithmetics); a++) {
                RpWorkload workload = {.sequences = 8,
                                       .tokens_per_sequence = 2048,
                                       .dtype = arithmetics[a].dtype,
                                       .accumulate = arithmetics[a].plain};
                const gint64 plain_ns = model_ns(&models[m], &gpus[g], workload);

                workload.fp8 = TRUE;
                workload.accumulate = arithmetics[a].fp8;
                const gint64 fp8_ns = model_ns(&models[m], &gpus[g], workload);
                const gboolean may_lose =
                    models[m].experts > 1 || rp_model_parameters(&models[m]) < 1000000000;
                if ((double)fp8_ns > (double)plain_ns * (may_lose ? 1.06 : 1))
                    fail_msg("%s, %s, %s with %s sums: %+.1f %% in fp8", gpus[g].name,
                             models[m].name, arithmetics[a].dtype, arithmetics[a].fp8,
                             100 * ((double)fp8_ns / (double)plain_ns - 1));
            }
}

/* Frozen weights have no gradients, whose matmuls have fp32 sums: so fp8 values gain nothing on a
 * card whose 16-bit matmuls with fp16 sums are as fast as its fp8, and cost their quantization. */
RP_TEST(fp8_of_adapters_is_slower_only_where_fp16_sums_are_as_fast)
{
    const RpModel *model = rp_model_find("qwen3-8b", NULL);
    guint n;
    const RpGpu *gpus = rp_gpu_list(&n);

    for (guint g = 0; g < n; g++)
        for (guint a = 0; gpus[g].fp8_tflops > 0 && a < G_N_ELEMENTS(arithmetics); a++) {
            RpWorkload workload = {.sequences = 8,
                                   .tokens_per_sequence = 2048,
                                   .dtype = arithmetics[a].dtype,
                                   .accumulate = arithmetics[a].plain,
                                   .lora_rank = 16,
                                   .lora_targets = attention()};
            const double plain_ns = (double)model_ns(model, &gpus[g], workload);

            workload.fp8 = TRUE;
            workload.accumulate = arithmetics[a].fp8;
            const double fp8_ns = (double)model_ns(model, &gpus[g], workload);
            if (strcmp(arithmetics[a].plain, "fp16") == 0 &&
                gpus[g].fp16_accumulate_tflops >= gpus[g].fp8_tflops)
                assert_true(fp8_ns > plain_ns && fp8_ns < 1.15 * plain_ns);
            else
                assert_true(fp8_ns < plain_ns);
        }
}

/* docs/fp8.md: whole runs on an H200 are 1.038 and, with the head in fp8, 1.059 times as fast with fast sums. */
RP_TEST(fast_sums_of_fp8_gain_what_they_gained_on_an_h200)
{
    const RpModel *model = rp_model_find("qwen3-1.7b", NULL);
    RpWorkload workload = {.sequences = 8, .tokens_per_sequence = 2048, .fp8 = TRUE};

    for (guint head = 0; head < 2; head++) {
        const RpGpu *h200 = rp_gpu_find("h200", NULL);

        workload.fp8_head = head > 0;
        workload.accumulate = "fp32";
        const double wide_ns = (double)model_ns(model, h200, workload);
        workload.accumulate = "fp16";
        assert_true(near(wide_ns / (double)model_ns(model, h200, workload),
                         head > 0 ? 1.059 : 1.038, 0.015));
    }
}

RP_TEST_OF(refuses_workloads_that_cannot_be_run, Fixture *f)
{
    static const struct {
        RpWorkload workload;
        const char *message;
    } rows[] = {
        {{.sequences = 0, .tokens_per_sequence = 1}, "sequences"},
        {{.sequences = 1, .tokens_per_sequence = 0}, "tokens of a sequence"},
        {{.sequences = 1 << 20, .tokens_per_sequence = 1 << 20}, "tokens of a micro-batch"},
        {{.sequences = 1, .tokens_per_sequence = 1, .dtype = "fp8"}, "dtype"},
        {{.sequences = 1, .tokens_per_sequence = 1, .accumulate = "int"}, "accumulate"},
        {{.sequences = 1, .tokens_per_sequence = 1, .accumulate = "fp16"}, "unless matmul is fp8"},
        {{.sequences = 1, .tokens_per_sequence = 1, .lora_rank = 1 << 20}, "LoRA rank"},
        {{.sequences = 1, .tokens_per_sequence = 1, .base = "nf4"}, "packed ones are frozen"},
        {{.sequences = 1, .tokens_per_sequence = 1, .lora_rank = 1, .base = "int8"}, "base: exp"},
    };

    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_clear_error(&f->error);
        f->profile = predict("qwen3-8b", "h200", &rows[i].workload, &f->error);
        assert_null(f->profile);
        assert_true(g_error_matches(f->error, RP_COST_MODEL_ERROR, RP_COST_MODEL_ERROR_WORKLOAD));
        rp_assert_error_message_contains(f->error, rows[i].message);
    }
}

RP_TEST(reproduces_the_papers_equations)
{
    const RpModel *llama = rp_model_find("llama-3.1-8b", NULL);
    const RpModel *moe = rp_model_find("qwen3-235b-a22b", NULL);
    const RpGpu *gpu = rp_gpu_find("rtx4090", NULL);

    /* appendix B.1: 68 GB (of 2^30 bytes) for 32 layers at 16384 tokens */
    assert_true(near(32 * rp_paper_activation_bytes(llama, 1, 16384) / (double)RP_GIB, 68, 0.005));
    /* where heads x head_size = hidden, the corrected eq. 1 is the printed one */
    assert_true((double)rp_cost_model_activation_bytes(llama) ==
                rp_paper_activation_bytes(llama, 1, 1));
    /* and eq. 2 differs by the causal half of attention only */
    double attention = 4.0 * 2048 * 2048 * 4096;
    assert_true(near(rp_paper_forward_flops(llama, 1, 2048) - attention,
                     rp_cost_model_matmul_flops(llama, 1, 2048), 1e-12));
    assert_true(near(rp_cost_model_attention_flops(llama, 0, 1, 2048), attention / 2, 1e-3));
    double ridge = rp_paper_ridge_intensity(gpu);
    assert_true(near(ridge, 330e12 / 32e9, 1e-9));
    assert_true(rp_paper_forward_intensity(llama, 8, 2048) > ridge);
    assert_true(rp_paper_forward_intensity(moe, 8, 2048) < ridge);
    assert_true(rp_paper_forward_intensity(moe, 100, 2048) > ridge);
    /* §2.1: recomputing is faster than reloading */
    assert_true(rp_paper_recompute_s(llama, gpu, 4, 2048) < rp_paper_reload_s(llama, gpu, 4, 2048));
}

RP_TEST_STATE(Fixture, rp_test_no_state, teardown)
