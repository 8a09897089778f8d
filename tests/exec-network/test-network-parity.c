/*
 * Whole models against transformers in fp32 (fixtures/make-models.py, make-families.py,
 * make-experts.py): loss and the gradient of every weight; and the same bits however the model is
 * cut into stages. With adapters: against peft (fixtures/make-adapters.py). With the auxiliary loss of
 * routers, of padded sequences: against transformers (fixtures/make-aux-losses.py).
 */
#include "tests/exec-network/network-fixture.h"

#include <math.h>

#include "exec/adapter/adapter.h"
#include "exec/safetensors/safetensors.h"

#define TOLERANCE 1e-5 /* norm-wise, each tensor */

typedef struct {
    const char *name;
    Model *model;
    RpSafetensors *batch;
} Case;

static RpSafetensors *
open_file(const char *directory, const char *file)
{
    g_autofree char *relative = g_strconcat("tests/exec-network/fixtures/", directory, file, NULL);
    char *path = rp_test_source_path(relative);
    GError *error = NULL;
    RpSafetensors *tensors = rp_safetensors_open(path, &error);

    g_free(path);
    rp_assert_no_error(error);
    return tensors;
}

static const RpSafetensor *
find(const Case *c, const char *name)
{
    const RpSafetensor *tensor = rp_safetensors_find(c->batch, name);

    if (tensor == NULL)
        fail_msg("%s: no tensor %s", c->name, name);
    return tensor;
}

static RpModel
load_config(const char *name)
{
    g_autofree char *relative = g_strconcat("tests/exec-network/fixtures/", name, NULL);
    char *path = rp_test_source_path(relative);
    GError *error = NULL;
    RpModel config;
    gboolean loaded = rp_hf_config_load(path, &config, &error);

    g_free(path);
    rp_assert_no_error(error);
    assert_true(loaded);
    return config;
}

/* @adapters: the directory that they are in, or NULL */
static void
load_weights(Model *model, const char *base, const char *adapters)
{
    RpSafetensors *file = open_file(base, "/model.safetensors");
    RpSafetensors *more = adapters != NULL ? open_file(adapters, "/" RP_ADAPTER_TENSORS) : NULL;
    GError *error = NULL;

    if (!rp_weights_bind(model->weights, file, &error) ||
        (more != NULL && !rp_adapter_bind(model->weights, more, &error)))
        rp_assert_no_error(error);
    for (guint i = 0; i < rp_weights_count(model->weights); i++) {
        const guint64 n = rp_weights_nth(model->weights, i)->elements;
        g_autofree float *values = g_new(float, n);

        rp_weights_read(model->weights, i, 0, values, n);
        network_set_weight(model, i, values);
    }
    rp_safetensors_free(more);
    rp_safetensors_free(file);
}

static RpLora
load_lora(const char *name)
{
    g_autofree char *relative = g_strconcat("tests/exec-network/fixtures/", name, NULL);
    g_autofree char *path = rp_test_source_path(relative);
    GError *error = NULL;
    RpLora lora = {0};

    if (!rp_adapter_config_load(path, &lora, &error))
        rp_assert_no_error(error);
    return lora;
}

/* Padding, which the auxiliary loss leaves out. */
static void
set_lengths(const Case *c)
{
    const guint32 *lengths = find(c, "lengths")->data;
    gint32 *places = host_bytes(rp_network_most_places(c->model->network) * sizeof *places);
    const gsize n = rp_network_places(c->model->network, lengths, NULL, NULL, 0, places);

    assert_int_equal(n, rp_network_options(c->model->network)->sequences);
    /* hidden states that cross borders are planned with the values behind them */
    for (guint l = 1; l < c->model->profile->n_layers; l++)
        assert_true(c->model->profile->layers[l].input_bytes >
                    rp_network_hidden_elements(c->model->network) * sizeof(float));
    memcpy(c->model->constants + rp_network_places_byte(c->model->network), places,
           n * sizeof *places);
}

/* @base: of a case of adapters or of an auxiliary loss; NULL: the case's own */
static Case
load_case(const char *name, const char *base)
{
    Case c = {.name = name, .batch = open_file(name, "/batch.safetensors")};
    const RpModel config = load_config(base != NULL ? base : name);
    const RpSafetensor *coefficient = rp_safetensors_find(c.batch, "coefficient");
    const char *adapters = base != NULL && coefficient == NULL ? name : NULL;
    RpLora lora = adapters != NULL ? load_lora(name) : (RpLora){0};
    const RpSafetensor *ids = find(&c, "input_ids");
    const RpSafetensor *targets = find(&c, "targets");
    guint n_targets = 0;

    c.model = network_new_adapted(
        &config, &lora,
        &(RpNetworkOptions){.dtype = RP_DTYPE_FP32,
                            .sequences = (guint)ids->shape[0],
                            .tokens = (guint)ids->shape[1],
                            .head_chunk = 5,
                            .aux_loss =
                                coefficient != NULL ? *(const float *)coefficient->data : 0});
    rp_lora_clear(&lora);
    load_weights(c.model, base != NULL ? base : name, adapters);
    if (coefficient != NULL)
        set_lengths(&c);
    memcpy(c.model->ids, ids->data, ids->bytes);
    memcpy(c.model->targets, targets->data, targets->bytes);
    c.model->drops = TRUE;
    for (size_t t = 0; t < c.model->tokens; t++)
        n_targets += c.model->targets[t] != RP_LABEL_MASKED;
    c.model->scale = 1.0f / (float)n_targets;
    c.model->aux_scale = 1;
    return c;
}

/* The embedding's gradient as transformers has it: of a tied matrix both uses together. */
static void
add_tied(const Case *c, Run *run)
{
    const guint last = rp_weights_count(c->model->weights) - 1;
    const RpWeight *head = rp_weights_nth(c->model->weights, last);
    const float *tied = network_gradient(c->model, run, last);
    float *embedding = network_gradient(c->model, run, 0);

    for (guint64 i = 0; head->tied && head->trained && i < head->elements; i++)
        embedding[i] += tied[i];
}

static void
check_gradients(const Case *c, Run *run)
{
    add_tied(c, run);
    for (guint i = 0; i < rp_weights_count(c->model->weights); i++) {
        const RpWeight *weight = rp_weights_nth(c->model->weights, i);
        g_autofree char *plain = rp_adapter_tensor_name(c->model->weights, i);
        g_autofree char *name = g_strconcat("grad.", plain + strlen("base_model.model."), NULL);
        float *buffer = host_bytes(weight->elements * sizeof *buffer);
        double error;

        if (!rp_weight_has_state(weight)) {
            assert_true(weight->tied || rp_safetensors_find(c->batch, name) == NULL);
            continue;
        }
        error = network_error(rp_adapter_to_file(weight, RP_DTYPE_FP32,
                                                 network_gradient(c->model, run, i), 0,
                                                 weight->elements, buffer),
                              find(c, name)->data, weight->elements);
        if (!(error <= TOLERANCE))
            print_error("%s: %s: relative error %.3g\n", c->name, name, error);
        assert_true(error <= TOLERANCE);
    }
}

static void
check_same(const Case *c, const Run *run, guint forward, guint backward)
{
    const Run cut = network_cut(c->model, forward, backward);

    if (cut.loss != run->loss || cut.aux_loss != run->aux_loss ||
        memcmp(cut.sums, run->sums, c->model->elements * sizeof(float)) != 0)
        fail_msg("%s: other bits when cut at 0x%x forward, 0x%x backward", c->name, forward,
                 backward);
}

static void
check_case(const char *name, const char *base)
{
    Case c = load_case(name, base);
    const guint all = 1u << (rp_network_n_layers(c.model->network) - 1);
    const guint step = RP_TEST_EVERY(1, 3);
    Run run = network_whole(c.model);
    const double expected = (double)*(const float *)find(&c, "loss")->data;
    const double loss = run.loss * (double)c.model->scale;

    for (guint backward = 0; backward < all; backward++) {
        for (guint forward = backward % step; forward < all; forward += step) {
            c.model->begins = forward % 2;
            check_same(&c, &run, forward, backward);
        }
    }
    if (!(fabs(loss - expected) <= 1e-5 * expected))
        fail_msg("%s: loss %.9g, expected %.9g", name, loss, expected);
    if (rp_safetensors_find(c.batch, "aux_loss") != NULL) {
        const double aux_loss = (double)*(const float *)find(&c, "aux_loss")->data;

        if (!(fabs(run.aux_loss - aux_loss) <= 1e-6 * aux_loss))
            fail_msg("%s: auxiliary loss %.9g, expected %.9g", name, run.aux_loss, aux_loss);
    }
    check_gradients(&c, &run);
    rp_safetensors_free(c.batch);
    network_free(c.model);
}

RP_TEST(equals_a_tied_qwen3_with_padding_and_wide_heads)
{
    check_case("qwen3-tied", NULL);
}

RP_TEST(equals_a_qwen3_with_biases_and_one_kv_head)
{
    check_case("qwen3-bias", NULL);
}

RP_TEST(equals_a_llama_with_all_biases_and_llama3_rope)
{
    check_case("llama-bias", NULL);
}

RP_TEST(equals_a_tied_llama_with_narrow_heads)
{
    check_case("llama-tied", NULL);
}

RP_TEST(equals_a_ministral3_whose_queries_are_scaled_by_their_positions)
{
    check_case("ministral3", NULL);
    check_case("ministral3-outer", NULL);
}

RP_TEST(equals_a_mellum_with_a_rope_for_each_kind_of_block)
{
    check_case("mellum", NULL);
}

RP_TEST(equals_a_qwen3_of_experts)
{
    check_case("qwen3-moe", NULL);
}

RP_TEST(equals_a_tied_qwen3_of_experts_whose_weights_do_not_sum_to_one)
{
    check_case("qwen3-moe-plain", NULL);
}

RP_TEST(equals_a_qwen2_with_windows_from_the_second_block_on)
{
    check_case("qwen2", NULL);
}

RP_TEST(equals_a_qwen3_with_joined_matrices_of_q_k_and_v_and_of_gate_and_up)
{
    check_case("qwen3-joined", NULL);
}

RP_TEST(equals_a_mistral_with_windows)
{
    check_case("mistral", NULL);
}

RP_TEST(equals_a_smollm3_whose_second_block_has_no_rope_but_a_window)
{
    check_case("smollm3", NULL);
}

RP_TEST(equals_llamas_with_every_other_rope)
{
    check_case("llama-linear", NULL);
    check_case("llama-dynamic", NULL);
    check_case("llama-yarn", NULL);
    check_case("llama-longrope", NULL);
    check_case("llama-longrope-long", NULL);
}

RP_TEST(equals_a_qwen3_5_with_more_than_a_chunk_of_tokens)
{
    check_case("qwen3-5", NULL);
}

RP_TEST(equals_a_qwen3_5_that_is_the_text_part_of_a_model_that_sees)
{
    check_case("qwen3-5-outer", NULL);
}

RP_TEST(equals_a_qwen3_5_with_experts_and_one_for_every_token)
{
    check_case("qwen3-5-moe", NULL);
}

RP_TEST(equals_a_qwen3_5_with_stacks_of_experts_in_a_model_that_sees)
{
    check_case("qwen3-5-moe-outer", NULL);
}

/* Matrices of DeltaNet's gates are one, and so are the adapters of its wide ones, and of q, k and v. */
RP_TEST(equals_a_qwen3_5_with_joined_matrices)
{
    check_case("qwen3-5-joined", NULL);
}

RP_TEST(equals_peft_with_adapters_of_a_qwen3_5_with_joined_matrices)
{
    check_case("qwen3-5-joined-lora", "qwen3-5-joined");
}

RP_TEST(equals_peft_with_adapters_of_a_qwen3_5)
{
    check_case("qwen3-5-lora", "qwen3-5");
}

RP_TEST(equals_peft_with_adapters_of_the_expert_that_every_token_has)
{
    check_case("qwen3-5-moe-lora", "qwen3-5-moe");
}

RP_TEST(equals_a_gpt_oss_with_sinks_windows_and_yarn)
{
    check_case("gpt-oss", NULL);
}

RP_TEST(equals_a_gpt_oss_of_which_all_tokens_choose_one_expert_and_none_another)
{
    check_case("gpt-oss-one", NULL);
}

RP_TEST(equals_a_gpt_oss_whose_experts_are_packed)
{
    check_case("gpt-oss-mxfp4", NULL);
}

RP_TEST(equals_the_auxiliary_loss_of_routers_without_padding)
{
    check_case("qwen3-moe-aux", "qwen3-moe");
    check_case("qwen3-moe-plain-aux", "qwen3-moe-plain");
    check_case("gpt-oss-aux", "gpt-oss");
}

RP_TEST(equals_peft_with_adapters_of_some_matrices)
{
    check_case("qwen3-tied-lora", "qwen3-tied");
}

RP_TEST(equals_peft_with_adapters_of_all_and_a_head_that_is_trained_whole)
{
    check_case("llama-bias-lora", "llama-bias");
}

RP_TEST(equals_peft_with_adapters_of_stacks_of_experts_and_of_a_router)
{
    check_case("qwen3-moe-lora", "qwen3-moe");
}

RP_TEST(equals_peft_with_adapters_of_stacks_whose_matrices_are_transposed)
{
    check_case("gpt-oss-lora", "gpt-oss");
}

RP_TEST(equals_peft_with_dropout_and_ranks_of_their_own)
{
    check_case("llama-bias-dropout", "llama-bias");
}

RP_TEST_FIXTURE(host_setup, host_teardown)
