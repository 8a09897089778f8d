/* Tests networks whose linear layers read fp8 values: against themselves without, cuts, and parts that stay plain. */
#include "tests/exec-network/network-fixture.h"

#include <math.h>

static RpModel
config_of(guint heads)
{
    RpModel config = network_config(RP_ARCHITECTURE_QWEN3, FALSE);

    config.blocks = 3;
    config.vocab = 48;
    config.hidden = 64;
    config.heads = heads;
    config.kv_heads = 2;
    config.head_dim = 16;
    config.intermediate = 96;
    return config;
}

/* DeltaNet, then gated attention with half a head rotated, then DeltaNet. */
static RpModel
delta_config(void)
{
    RpModel config = config_of(4);

    config.architecture = RP_ARCHITECTURE_QWEN3_5;
    config.full_period = 2;
    config.rotary_dim = 8;
    config.delta_key_heads = 2;
    config.delta_value_heads = 4;
    config.delta_key_dim = 8;
    config.delta_value_dim = 12;
    config.delta_kernel = 4;
    return config;
}

static RpNetworkOptions
options_of(RpDtype dtype)
{
    return (RpNetworkOptions){.dtype = dtype,
                              .sequences = 2,
                              .tokens = 24,
                              .head_chunk = 16,
                              .fp8 = {.used = TRUE, .gradients = RP_DTYPE_E5M2}};
}

static RpLora
lora_of(double dropout)
{
    return (RpLora){.rank = 4, .alpha = 8, .dropout = dropout};
}

/* Covers every storage and both fp8 formats of gradients, whatever forwards save. */
RP_TEST(gives_the_same_bits_however_it_is_cut)
{
    static const RpDtype gradients[] = {RP_DTYPE_E5M2, RP_DTYPE_E4M3};
    const RpModel config = config_of(4);

    for (guint i = 0; i < 2 * RP_N_DTYPES; i++) {
        RpNetworkOptions options = options_of((RpDtype)(i / 2));

        options.fp8.gradients = gradients[i % 2];
        options.fp8.head = i % 3 == 0;
        Model *model = network_random(&config, &options);
        const Run whole = network_whole(model);

        for (guint cuts = 0; cuts < 16; cuts++) {
            model->saved = cuts; /* all sets of groups of tensors, too */
            rp_profile_choose_saved(model->profile, &(RpSavedChoice){.groups = cuts});
            const Run run = network_cut(model, cuts, cuts * 7 % 16);

            assert_true(run.loss == whole.loss);
            assert_memory_equal(run.sums, whole.sums, model->elements * sizeof(float));
        }
        network_free(model);
    }
}

/* ---- kernels that remember the values before rounding ---- */

static GHashTable *rounded; /* address of fp8 values -> the values before, as a matmul reads them */

static void
remember(const void *quantized, float *values)
{
    if (quantized != NULL)
        g_hash_table_insert(rounded, (gpointer)quantized, values);
    else
        g_free(values);
}

static void
quantise(RpKernelStream *stream, const RpQuantiseArgs *args)
{
    const size_t n = args->rows * args->columns;
    float *values = g_new(float, n), *transposed = g_new(float, n);

    rp_host_kernels()->quantise(stream, args);
    rp_dtype_to_float(args->dtype, args->x, values, n);
    for (size_t i = 0; i < n && args->dtype == RP_DTYPE_E4M3; i++)
        values[i] *= *args->largest;
    for (size_t i = 0; i < n; i++)
        transposed[i % args->columns * args->rows + i / args->columns] = values[i];
    remember(args->quantized, values);
    remember(args->transposed, transposed);
}

/* Multiplies fp8 values by the values that were quantized. */
static void
matmul(RpKernelStream *stream, const RpMatmulArgs *args)
{
    RpMatmulArgs plain = *args;

    if (args->a_dtype >= RP_N_DTYPES) {
        plain.a = g_hash_table_lookup(rounded, args->a);
        plain.b = g_hash_table_lookup(rounded, args->b);
        plain.a_dtype = plain.b_dtype = RP_DTYPE_FP32;
        plain.workspace = host_workspace(rp_host_kernels()->matmul_workspace(&plain));
        assert_non_null(plain.a);
        assert_non_null(plain.b);
    }
    rp_host_kernels()->matmul(stream, &plain);
}

/* Every operand is where its matmul reads it: but for rounding, the network is the plain one. */
RP_TEST(is_the_plain_network_but_for_rounding)
{
    const RpModel configs[] = {config_of(4), delta_config()};
    const RpLora lora = lora_of(0.2);
    gint32 rows[32];
    RpKernels kernels = *rp_host_kernels();

    kernels.quantise = quantise;
    kernels.matmul = matmul;
    rounded = g_hash_table_new_full(NULL, NULL, NULL, g_free);
    for (guint v = 0; v < 16; v++) {
        const guint variant = v % 8;
        const RpModel config = configs[v / 8];
        RpNetworkOptions options = options_of(variant % 2 == 0 ? RP_DTYPE_FP32 : RP_DTYPE_BF16);
        const RpLora *adapters = variant / 2 % 2 == 0 ? NULL : &lora;

        options.fp8.head = variant >= 4;
        Model *model = network_random_adapted(&config, adapters, &options);
        options.fp8.used = FALSE;
        Model *plain = network_random_adapted(&config, adapters, &options);
        for (gint32 i = 0; i < 32; i++)
            rows[i] = 47 - i;
        if (variant >= 6) { /* a head of two tokens of three */
            model->rows = plain->rows = rows;
            model->n_rows = plain->n_rows = 32;
        }
        model->drops = plain->drops = TRUE;
        network_use_kernels(model, &kernels);
        const Run run = network_whole(model), want = network_whole(plain);
        const double unit = variant % 2 == 0 ? 1e-5 : 0.03;

        assert_true(fabs(run.loss - want.loss) < unit * want.loss);
        for (guint w = 0; w < rp_weights_count(plain->weights); w++) {
            const RpWeight *weight = rp_weights_nth(plain->weights, w);
            const double error = !weight->trained ? 0
                                                  : network_error(network_gradient(model, &run, w),
                                                                  network_gradient(plain, &want, w),
                                                                  weight->elements);

            if (!(error < unit))
                fail_msg("%s: %g", weight->name, error);
        }
        network_free(model);
        network_free(plain);
        g_hash_table_remove_all(rounded);
    }
    g_clear_pointer(&rounded, g_hash_table_unref);
}

/* Rounding to 3 bits, and to 2 for gradients, in a network of random weights, whose attention is sharp. */
RP_TEST(stays_near_the_network_without_fp8)
{
    const RpModel config = config_of(4);

    for (guint i = 0; i < 4; i++) {
        RpNetworkOptions options = options_of(RP_DTYPE_BF16);

        options.fp8.gradients = i % 2 == 0 ? RP_DTYPE_E5M2 : RP_DTYPE_E4M3;
        options.fp8.head = i >= 2;
        Model *model = network_random(&config, &options);
        options.fp8.used = FALSE;
        Model *plain = network_random(&config, &options);
        const Run run = network_whole(model), want = network_whole(plain);

        assert_true(run.loss != want.loss);
        assert_true(fabs(run.loss - want.loss) < 0.03 * want.loss);
        for (guint w = 0; w < rp_weights_count(plain->weights); w++) {
            const RpWeight *weight = rp_weights_nth(plain->weights, w);
            const double error = network_error(network_gradient(model, &run, w),
                                               network_gradient(plain, &want, w), weight->elements);

            if (!(error < 0.5))
                fail_msg("%s: %.3f", weight->name, error);
        }
        network_free(model);
        network_free(plain);
    }
}

/* A block in fp8 has as many bytes of each matrix as in 16 bits, and space for its scale. */
RP_TEST(lays_fp8_out_where_matrices_stood)
{
    const RpModel config = config_of(4);
    const RpNetworkOptions options = options_of(RP_DTYPE_BF16);
    Model *model = network_random(&config, &options);
    const RpLayerLayout *block = rp_network_layout(model->network, 1);

    assert_true(rp_network_is_packed(model->network));
    assert_true(block->has_fp8 && block->trains_fp8);
    assert_int_equal(block->bytes, block->upload_bytes + 7 * RP_LAYOUT_SCALE_BYTES);
    assert_int_equal(model->profile->layers[1].parameter_bytes, block->bytes);
    assert_int_equal(model->profile->layers[1].upload_bytes, block->upload_bytes);
    assert_int_equal(block->place[RP_WEIGHT_Q].code_rows, (4 + 2 * 2) * 16); /* with k's and v's */
    assert_int_equal(block->place[RP_WEIGHT_K].code_rows, 0);
    assert_int_equal(block->place[RP_WEIGHT_V].code_rows, 0);
    assert_int_equal(block->place[RP_WEIGHT_O].code_rows, 64);
    assert_false(rp_network_layout(model->network, 0)->has_fp8);
    assert_false(rp_network_layout(model->network, 4)->has_fp8);
    assert_int_equal(rp_network_layer_class(model->network, 3), 1);
    network_free(model);
}

/* DeltaNet's wide matrices are read as fp8; b's and a's are not. */
RP_TEST(lays_the_wide_matrices_of_a_delta_net_out)
{
    const RpModel config = delta_config();
    const RpNetworkOptions options = options_of(RP_DTYPE_BF16);
    Model *model = network_random(&config, &options);
    const RpLayerLayout *block = rp_network_layout(model->network, 1);

    assert_true(block->has_fp8 && block->trains_fp8);
    assert_int_equal(block->bytes, block->upload_bytes + 6 * RP_LAYOUT_SCALE_BYTES);
    assert_int_equal(model->profile->layers[1].parameter_bytes, block->bytes);
    assert_true(block->place[RP_WEIGHT_DELTA_QKV].has_fp8);
    assert_true(block->place[RP_WEIGHT_DELTA_Z].has_fp8);
    assert_true(block->place[RP_WEIGHT_DELTA_OUT].has_fp8);
    assert_false(block->place[RP_WEIGHT_DELTA_B].has_fp8);
    assert_false(block->place[RP_WEIGHT_DELTA_A].has_fp8);
    network_free(model);
}

/* On request a head is a matrix like others: tied to the embedding, or with a size that is no
 * multiple of 16, which stays plain. */
RP_TEST(lays_a_head_of_fp8_out)
{
    for (guint variant = 0; variant < 3; variant++) {
        RpModel config = config_of(4);
        RpNetworkOptions options = options_of(RP_DTYPE_BF16);

        config.tied = variant == 1;
        config.vocab = variant == 2 ? 41 : config.vocab;
        options.fp8.head = TRUE;
        Model *model = network_random(&config, &options);
        const RpLayerLayout *head = rp_network_layout(model->network, 4);

        assert_true(rp_network_layout(model->network, 1)->has_fp8);
        assert_int_equal(head->has_fp8, variant < 2);
        assert_int_equal(head->trains_fp8, variant < 2);
        assert_int_equal(head->bytes,
                         head->upload_bytes + (variant < 2 ? RP_LAYOUT_SCALE_BYTES : 0));
        assert_int_equal(model->profile->layers[4].parameter_bytes, head->bytes);
        network_free(model);
    }
}

/* Blocks that stay plain, and blocks that cannot be in fp8, give the bits of a plain network. */
RP_TEST(leaves_blocks_plain_that_are_to_be_or_have_odd_sizes)
{
    for (guint variant = 0; variant < 3; variant++) {
        RpModel config = config_of(4);
        RpNetworkOptions options = options_of(RP_DTYPE_BF16);

        options.fp8.plain_first = variant == 0 ? 3 : variant == 1 ? 1 : 0;
        options.fp8.plain_last = variant == 1 ? 2 : 0;
        if (variant == 2)
            config.intermediate = 90;
        Model *model = network_random(&config, &options);
        options.fp8 = (RpNetworkFp8){0};
        Model *plain = network_random(&config, &options);
        const Run run = network_whole(model), want = network_whole(plain);

        assert_false(rp_network_is_packed(model->network));
        assert_true(run.loss == want.loss);
        assert_memory_equal(run.sums, want.sums, plain->elements * sizeof(float));
        network_free(model);
        network_free(plain);
    }
}

RP_TEST(has_a_class_of_plain_blocks_and_one_of_fp8)
{
    const RpModel config = config_of(4);
    RpNetworkOptions options = options_of(RP_DTYPE_BF16);

    options.fp8.plain_first = 1;
    options.fp8.plain_last = 1;
    Model *model = network_random(&config, &options);

    assert_int_equal(rp_network_layer_class(model->network, 1), 1);
    assert_int_equal(rp_network_layer_class(model->network, 2), 2);
    assert_int_equal(rp_network_layer_class(model->network, 3), 1);
    const Run whole = network_whole(model), cut = network_cut(model, 5, 10);
    assert_true(cut.loss == whole.loss);
    assert_memory_equal(cut.sums, whole.sums, model->elements * sizeof(float));
    network_free(model);
}

/* Tests frozen matrices in fp8 with adapters in bf16; with a packed base, too. */
RP_TEST(adapts_frozen_fp8)
{
    const RpModel configs[] = {config_of(4), delta_config()};
    const RpLora lora = lora_of(0);
    RpNetworkOptions options = options_of(RP_DTYPE_BF16);

    for (guint v = 0; v < 6; v++) {
        const RpModel config = configs[v / 3];
        const guint variant = v % 3;
        Model *model = variant == 0 ? network_random_adapted(&config, &lora, &options)
                       : variant == 1
                           ? network_random_packed(&config, &lora, RP_LOWBIT_FP8, &options)
                           : network_random_packed(&config, &lora, RP_LOWBIT_NF4, &options);
        options.fp8.used = FALSE;
        Model *plain = variant == 0 ? network_random_adapted(&config, &lora, &options)
                       : variant == 1
                           ? network_random_packed(&config, &lora, RP_LOWBIT_FP8, &options)
                           : network_random_packed(&config, &lora, RP_LOWBIT_NF4, &options);
        options.fp8.used = TRUE;
        const Run run = network_whole(model), cut = network_cut(model, 3, 9);
        const Run want = network_whole(plain);

        assert_false(rp_network_layout(model->network, 1)->trains_fp8);
        if (v < 3) /* alone: it has adapters */
            assert_int_equal(rp_network_layout(model->network, 1)->place[RP_WEIGHT_Q].code_rows,
                             4 * 16);
        assert_true(cut.loss == run.loss);
        assert_memory_equal(cut.sums, run.sums, model->elements * sizeof(float));
        assert_true(run.loss != want.loss);
        assert_true(fabs(run.loss - want.loss) < (v < 3 ? 0.03 : 0.1) * want.loss);
        /* norms around two make DeltaNet so sharp that its gradients are others */
        assert_true(v >= 3 || network_error(run.sums, want.sums, plain->elements) < 0.35);
        network_free(model);
        network_free(plain);
    }
}

/* A packed base in fp8 with one scale a tensor is multiplied as it is: not rounded again, and not expanded. */
RP_TEST(multiplies_fp8_values_of_a_base_as_they_are)
{
    const RpModel configs[] = {config_of(4), delta_config()};
    const RpLora lora = lora_of(0);
    RpKernels kernels = *rp_host_kernels();

    kernels.quantise = quantise;
    kernels.matmul = matmul;
    rounded = g_hash_table_new_full(NULL, NULL, NULL, g_free);
    for (guint i = 0; i < G_N_ELEMENTS(configs); i++) {
        RpNetworkOptions options = options_of(RP_DTYPE_FP32);
        Model *model = network_random_packed(&configs[i], &lora, RP_LOWBIT_FP8, &options);
        options.fp8.used = FALSE;
        Model *plain = network_random_packed(&configs[i], &lora, RP_LOWBIT_FP8, &options);
        const RpLayerLayout before = *rp_network_layout(model->network, 1);

        assert_true(before.scratch_bytes > 0);
        for (guint w = 0; w < rp_weights_count(model->weights); w++) /* of one block each */
            ((RpWeight *)(guintptr)rp_weights_nth(model->weights, w))->one_scale = TRUE;
        network_use_kernels(model, rp_host_kernels());
        const Run run = network_whole(model), cut = network_cut(model, 3, 9);
        const RpLayerLayout *block = rp_network_layout(model->network, 1);

        assert_int_equal(block->bytes, before.bytes - before.scratch_bytes);
        assert_int_equal(block->upload_bytes, before.upload_bytes);
        assert_true(cut.loss == run.loss);
        assert_memory_equal(cut.sums, run.sums, model->elements * sizeof(float));
        network_use_kernels(model, &kernels);
        const Run exact = network_whole(model), want = network_whole(plain);

        assert_true(run.loss != exact.loss); /* activations are rounded */
        assert_true(fabs(exact.loss - want.loss) < 1e-5 * want.loss);
        assert_true(network_error(exact.sums, want.sums, plain->elements) < 5e-5);
        network_free(model);
        network_free(plain);
        g_hash_table_remove_all(rounded);
    }
    g_clear_pointer(&rounded, g_hash_table_unref);
}

static gboolean
all_finite(const Model *model, const Run *run)
{
    for (guint64 i = 0; i < model->elements; i++)
        if (!isfinite(run->sums[i]))
            return FALSE;
    return isfinite(run->loss);
}

/* A weight that is not finite is one in the loss: the step is skipped, or the run ends, as without. */
RP_TEST(breaks_the_loss_where_a_weight_is_broken)
{
    static const float broken[] = {INFINITY, NAN};
    const RpModel config = config_of(4);
    const RpNetworkOptions options = options_of(RP_DTYPE_BF16);

    for (guint i = 0; i < G_N_ELEMENTS(broken); i++) {
        Model *model = network_random(&config, &options);
        const guint n = rp_weights_count(model->weights);
        Run run = network_whole(model);

        assert_true(all_finite(model, &run));
        for (guint w = 0; w < n; w++) {
            const RpWeight *weight = rp_weights_nth(model->weights, w);

            if (weight->layer != 2 || weight->kind != RP_WEIGHT_UP)
                continue;
            float *values = host_bytes(weight->elements * sizeof *values);

            for (guint64 j = 0; j < weight->elements; j++)
                values[j] = j == 100 ? broken[i] : 0.01f;
            network_set_weight(model, w, values);
        }
        run = network_whole(model);
        assert_false(isfinite(run.loss));
        assert_false(all_finite(model, &run));
        network_free(model);
    }
}

/* Biases without q/k norm; experts, whose matrices stay plain; sinks and windows; DeltaNet and gated attention. */
RP_TEST(gives_the_same_bits_for_every_kind_of_block)
{
    static const RpArchitecture architectures[] = {RP_ARCHITECTURE_LLAMA, RP_ARCHITECTURE_QWEN3_MOE,
                                                   RP_ARCHITECTURE_GPT_OSS, RP_ARCHITECTURE_QWEN3_5,
                                                   RP_ARCHITECTURE_QWEN3_5_MOE};

    for (guint i = 0; i < G_N_ELEMENTS(architectures); i++) {
        RpModel config = i < 3 ? config_of(4) : delta_config();
        RpNetworkOptions options = options_of(RP_DTYPE_BF16);

        config.architecture = architectures[i];
        config.attention_bias = i == 0 || i == 2;
        config.mlp_bias = i == 0;
        config.shared_intermediate = i == 4 ? 16 : 0;
        if (i == 1 || i == 2 || i == 4) {
            config.experts = 4;
            config.active_experts = 2;
            config.norm_topk = TRUE;
            config.intermediate = 24;
        }
        if (i == 2)
            config.sliding_window = 7;
        Model *model = network_random(&config, &options);
        options.fp8.used = FALSE;
        Model *plain = network_random(&config, &options);
        const Run whole = network_whole(model), want = network_whole(plain);

        assert_true(rp_network_layout(model->network, 1)->has_fp8);
        assert_true(whole.loss != want.loss && fabs(whole.loss - want.loss) < 0.03 * want.loss);
        for (guint cuts = 0; cuts < 16; cuts += 5) {
            const Run run = network_cut(model, cuts, 15 - cuts);

            assert_true(run.loss == whole.loss);
            assert_memory_equal(run.sums, whole.sums, model->elements * sizeof(float));
        }
        network_free(model);
        network_free(plain);
    }
}

/* Weights of zeros have scale 1, and so have their gradients. */
RP_TEST(takes_matrices_of_zeros)
{
    const RpModel config = config_of(4);
    const RpNetworkOptions options = options_of(RP_DTYPE_BF16);
    Model *model = network_random(&config, &options);

    for (guint w = 0; w < rp_weights_count(model->weights); w++) {
        const RpWeight *weight = rp_weights_nth(model->weights, w);

        if (weight->kind == RP_WEIGHT_DOWN || weight->kind == RP_WEIGHT_O) {
            float *values = host_bytes(weight->elements * sizeof *values);

            memset(values, 0, weight->elements * sizeof *values);
            network_set_weight(model, w, values);
        }
    }
    const Run run = network_whole(model);

    assert_true(all_finite(model, &run));
    network_free(model);
}

RP_TEST_FIXTURE(host_setup, host_teardown)
