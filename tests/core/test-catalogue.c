#include "tests/rp-test.h"

#include <math.h>

#include "core/catalogue/catalogue.h"
#include "core/catalogue/lora.h"

/* Parameter counts as published with the weights (sums over their files' tensors). */
static const struct {
    const char *name;
    guint64 parameters;
    double billions; /* as model cards and papers print it */
} published[] = {
    {"qwen3-0.6b", 596049920, 0.596},
    {"qwen3-1.7b", 1720574976, 1.72},
    {"qwen3-4b", 4022468096, 4.02},
    {"qwen3-8b", 8190735360, 8.19},
    {"qwen3-14b", 14768307200, 14.77},
    {"qwen3-32b", 32762123264, 32.76},
    {"qwen3-30b-a3b", 30532122624, 30.53},
    {"qwen3-235b-a22b", 235093634560, 235.09},
    {"llama-3.2-1b", 1235814400, 1.24},
    {"llama-3.1-8b", 8030261248, 8.03},
    {"llama-3.1-70b", 70553706496, 70.55},
    {"gpt-oss-20b", 20914757184, 20.91},
    {"qwen2.5-0.5b", 494032768, 0.494},
    {"qwen2.5-1.5b", 1543714304, 1.54},
    {"qwen2.5-3b", 3085938688, 3.09},
    {"qwen2.5-7b", 7615616512, 7.62},
    {"qwen2.5-14b", 14770033664, 14.77},
    {"qwen2.5-32b", 32763876352, 32.76},
    {"qwen2.5-72b", 72706203648, 72.71},
    {"mistral-7b-v0.1", 7241732096, 7.24},
    {"mistral-7b-v0.3", 7248023552, 7.25},
    {"smollm3-3b", 3075098624, 3.08},
    {"gpt-oss-120b", 116829156672, 116.83},
    {"qwen3.5-0.8b", 752393024, 0.752},
    {"qwen3.5-2b", 1881825088, 1.88},
    {"qwen3.5-4b", 4205751296, 4.21},
    {"qwen3.5-9b", 8953803264, 8.95},
    {"qwen3.5-27b", 26895998464, 26.9},
    {"qwen3.5-35b-a3b", 34660610688, 34.66},
    {"ministral-3-3b", 3429006336, 3.43},
    {"ministral-3-8b", 8489553920, 8.49},
    {"qwen3.5-122b-a10b", 122111526912, 122},
    {"mellum-2-12b-a2.5b", 12149923072, 12.15},
    {"ministral-3-14b", 13506073600, 13.5},
    {"qwen3.5-397b-a17b", 396346350336, 397},
};

RP_TEST(counts_the_published_parameters_of_every_model)
{
    guint n_models;
    rp_model_list(&n_models);
    assert_int_equal(n_models, G_N_ELEMENTS(published));
    for (guint i = 0; i < G_N_ELEMENTS(published); i++) {
        const RpModel *model = rp_model_find(published[i].name, NULL);

        assert_non_null(model);
        assert_int_equal(rp_model_parameters(model), published[i].parameters);
        assert_true(ABS((double)rp_model_parameters(model) / 1e9 / published[i].billions - 1) <
                    0.005);
    }
}

RP_TEST(has_the_shapes_of_the_papers_table_3)
{
    static const struct {
        const char *name;
        guint h, a, k, m, active, experts;
    } rows[] = {
        {"qwen3-1.7b", 2048, 16, 8, 6144, 1, 1},        {"llama-3.1-8b", 4096, 32, 8, 14336, 1, 1},
        {"gpt-oss-20b", 2880, 64, 8, 2880, 4, 32},      {"qwen3-32b", 5120, 64, 8, 25600, 1, 1},
        {"qwen3-235b-a22b", 4096, 64, 4, 1536, 8, 128},
    };

    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        const RpModel *model = rp_model_find(rows[i].name, NULL);

        assert_non_null(model);
        assert_int_equal(model->hidden, rows[i].h);
        assert_int_equal(model->heads, rows[i].a);
        assert_int_equal(model->kv_heads, rows[i].k);
        assert_int_equal(model->intermediate, rows[i].m);
        assert_int_equal(model->active_experts, rows[i].active);
        assert_int_equal(model->experts, rows[i].experts);
    }
}

RP_TEST(has_complete_and_consistent_rows)
{
    guint n;
    const RpModel *models = rp_model_list(&n);

    for (guint i = 0; i < n; i++) {
        const RpModel *m = &models[i];

        assert_true(m->blocks && m->hidden && m->heads && m->kv_heads && m->head_dim);
        assert_true(m->intermediate && m->vocab && m->max_positions && m->has_dtype);
        assert_true(m->experts >= m->active_experts && m->active_experts >= 1);
        assert_int_equal(m->heads % m->kv_heads, 0);
        assert_true(m->sliding_window > 0 || (m->sliding_period == 0 && m->sliding_from == 0));
        assert_true(m->hf_name && strchr(m->hf_name, '/'));
        assert_true(i == 0 || rp_model_parameters(m) > rp_model_parameters(m - 1));
    }
    const RpGpu *gpus = rp_gpu_list(&n);
    for (guint i = 0; i < n; i++) {
        const RpGpu *g = &gpus[i];

        assert_true(g->name && g->title && g->interconnect && g->memory_bytes > 0);
        assert_true(g->fp16_accumulate_tflops >= g->fp32_accumulate_tflops);
        assert_true(g->fp32_accumulate_tflops > 0 && g->memory_gb_per_s > 0);
        assert_true(g->h2d_gb_per_s > 0 && g->d2h_gb_per_s > 0 && g->host_gb_per_s > 0);
        assert_true(g->gpus_per_root > 0 && g->root_gb_per_s >= g->h2d_gb_per_s);
        assert_true(g->matmul_efficiency > 0 && g->matmul_efficiency <= 1);
        assert_true(g->attention_efficiency > 0 && g->attention_efficiency <= 1);
        assert_true(g->attention_backward_efficiency > 0);
        assert_true(g->memory_efficiency > 0 && g->memory_efficiency <= 1 && g->expert_ns > 0);
    }
}

/* 16 bits with fp32 and fp16 sums, fp8 with both: each at least as fast as the one before it. */
RP_TEST(four_rates_of_every_card_are_ordered_and_have_a_source)
{
    guint n;
    const RpGpu *gpus = rp_gpu_list(&n);

    for (guint i = 0; i < n; i++) {
        const RpGpu *g = &gpus[i];

        assert_non_null(g->rates_source);
        assert_true(g->fp16_accumulate_tflops >= g->fp32_accumulate_tflops);
        assert_true(g->fp8_fp16_accumulate_tflops >= g->fp8_tflops);
        assert_true(g->fp8_tflops == 0 || g->fp8_tflops >= g->fp16_accumulate_tflops);
        assert_true((g->fp8_tflops == 0) == (g->fp8_fp16_accumulate_tflops == 0));
        assert_true(g->copy_gb_per_s < g->memory_gb_per_s);
    }
    /* one card has a data sheet only, one has rates that users have shown */
    assert_null(strstr(rp_gpu_find("rtx4090", NULL)->rates_shown, "fp8"));
    assert_non_null(strstr(rp_gpu_find("rtx5090", NULL)->rates_shown, "692 of 838"));
}

/* A processor does a power of two of operations in a clock; some data sheets count with a lower clock
 * than the highest. */
RP_TEST(rates_are_processors_times_clock)
{
    guint n;
    const RpGpu *gpus = rp_gpu_list(&n);

    for (guint i = 0; i < n; i++) {
        const double each =
            gpus[i].fp16_accumulate_tflops * 1e3 / (gpus[i].processors * gpus[i].clock_ghz);
        const double share = each / exp2(round(log2(each)));

        if (share < 0.92 || share > 1.002)
            fail_msg("%s: %.1f operations of a processor in a clock", gpus[i].name, each);
    }
}

RP_TEST(has_the_gpus_of_the_papers_table_2)
{
    static const struct {
        const char *name;
        double tflops, gb_per_s;
    } rows[] = {{"rtx4090", 330, 32},
                {"rtx5090", 419, 64},
                {"a100", 312, 300},
                {"h100", 989.5, 450},
                {"a800", 312, 200}};

    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        const RpGpu *gpu = rp_gpu_find(rows[i].name, NULL);

        assert_non_null(gpu);
        assert_true(gpu->fp16_accumulate_tflops == rows[i].tflops);
        assert_true(gpu->interconnect_gb_per_s == rows[i].gb_per_s);
    }
}

RP_TEST(finds_by_any_name_and_suggests_the_nearest)
{
    GError *error = NULL;

    assert_string_equal(rp_model_find("Qwen/Qwen3-8B", NULL)->name, "qwen3-8b");
    assert_string_equal(rp_gpu_find("RTX 4090", NULL)->name, "rtx4090");
    assert_string_equal(rp_gpu_find("RTX-6000 ada", NULL)->name, "rtx6000ada");
    assert_string_equal(rp_gpu_find("RTX A6000", NULL)->name, "a6000");
    assert_string_equal(rp_gpu_find("3090", NULL)->name, "rtx3090");
    assert_string_equal(rp_gpu_find("NVIDIA GeForce RTX 4090", NULL)->name, "rtx4090");
    assert_string_equal(rp_gpu_find("NVIDIA H200", NULL)->name, "h200");
    assert_string_equal(rp_gpu_find("AMD Instinct MI300X", NULL)->name, "mi300x");
    assert_null(rp_gpu_find("NVIDIA RTX", NULL));
    assert_null(rp_gpu_find("t4", &error));
    assert_null(strstr(error->message, "did you mean")); /* it is another card than the L4 */
    g_clear_error(&error);
    assert_null(rp_model_find("quen3-8b", &error));
    assert_true(g_error_matches(error, RP_CATALOGUE_ERROR, RP_CATALOGUE_ERROR_MODEL));
    rp_assert_error(&error, "did you mean \"qwen3-8b\"? known: qwen");
    assert_null(rp_gpu_find("voodoo2\n", &error));
    assert_true(g_error_matches(error, RP_CATALOGUE_ERROR, RP_CATALOGUE_ERROR_GPU));
    rp_assert_error_message_contains(error, "known: rtx3090, rtx3060, ");
    assert_null(strchr(error->message, '\n'));
    g_clear_error(&error);
}

static RpGpu *
parse(const char *text, GError **error)
{
    return rp_gpu_parse("card.json", text, strlen(text), error);
}

RP_TEST(reads_a_card_that_is_like_another)
{
    g_autoptr(RpGpu) gpu =
        parse("{\"name\": \"mine\", \"h2d_gb_per_s\": 12.5, \"like\": \"rtx4090\"}", NULL);
    g_autoptr(RpGpu) listed = parse("[{\"like\": \"h200\"}]", NULL);
    const RpGpu *like = rp_gpu_find("rtx4090", NULL);

    assert_non_null(gpu);
    assert_string_equal(gpu->name, "mine");
    assert_string_equal(gpu->title, "mine");
    assert_true(gpu->h2d_gb_per_s == 12.5 && gpu->d2h_gb_per_s == like->d2h_gb_per_s);
    assert_true(gpu->memory_bytes == like->memory_bytes && gpu->scaled);
    assert_true(gpu->matmul_efficiency == like->matmul_efficiency);
    assert_non_null(listed);
    assert_string_equal(listed->title, "H200");
    assert_false(listed->measured); /* the file does not say so */
}

RP_TEST(rates_of_a_file_are_not_those_of_the_card_it_is_like)
{
    g_autoptr(RpGpu) same = parse("{\"like\": \"rtx5090\", \"name\": \"a\"}", NULL);
    g_autoptr(RpGpu) other = parse("{\"like\": \"rtx5090\", \"fp8_tflops\": 465,"
                                   " \"memory_gb_per_s\": 1500}",
                                   NULL);

    assert_non_null(same);
    assert_non_null(other);
    assert_true(same->fp8_fp16_accumulate_tflops == 838 && same->copy_gb_per_s == 1509);
    assert_non_null(same->rates_shown);
    assert_true(other->fp8_fp16_accumulate_tflops == 465 && other->copy_gb_per_s == 0);
    assert_string_equal(other->rates_source, "a file");
    assert_null(other->rates_shown);
}

static char *
refusal(const char *text, gpointer data)
{
    GError *error = NULL;

    (void)data;
    rp_gpu_free(parse(text, &error));
    return rp_test_refusal(&error);
}

RP_TEST(refuses_bad_cards_with_line_and_column)
{
    rp_test_lines("tests/core/messages.txt", "catalogue: bad cards", refusal, NULL);
}

RP_TEST(links_are_as_fast_as_their_lanes)
{
    assert_true(rp_pcie_gb_per_s(4, 16) == rp_gpu_find("rtx4090", NULL)->h2d_gb_per_s);
    assert_true(rp_pcie_gb_per_s(5, 16) == rp_gpu_find("rtx5090", NULL)->h2d_gb_per_s);
    assert_true(rp_pcie_gb_per_s(3, 16) == rp_pcie_gb_per_s(4, 8));
    assert_true(rp_pcie_gb_per_s(4, 3) == 0 && rp_pcie_gb_per_s(4, 32) == 0);
    assert_true(rp_pcie_gb_per_s(2, 16) == 0 && rp_pcie_gb_per_s(7, 16) == 0);
}

/* The tensors of one layer. */
typedef struct {
    GStringChunk *names;
    GArray *weights;
} Layer;

static int
setup(void **state)
{
    Layer *layer = g_new(Layer, 1);

    *layer = (Layer){g_string_chunk_new(4096), g_array_new(FALSE, FALSE, sizeof(RpWeight))};
    *state = layer;
    return 0;
}

static int
teardown(void **state)
{
    Layer *layer = *state;

    g_string_chunk_free(layer->names);
    g_array_unref(layer->weights);
    g_free(layer);
    return 0;
}

static void
list(Layer *of, const char *model, guint layer, guint lora_rank)
{
    const RpLora lora = {.rank = lora_rank, .alpha = RP_LORA_ALPHA};

    g_array_set_size(of->weights, 0);
    rp_model_add_weights(rp_model_find(model, NULL), layer, &lora, of->names, of->weights);
}

/* Rank and shape of the tensor called @name; rank 0: there is none. */
static void
expect(Layer *of, const char *name, guint rank, guint64 d0, guint64 d1, guint64 d2)
{
    for (guint i = 0; i < of->weights->len; i++) {
        const RpWeight *weight = &g_array_index(of->weights, RpWeight, i);

        if (!g_str_equal(weight->name, name))
            continue;
        assert_int_equal(weight->rank, rank);
        assert_int_equal(weight->shape[0], d0);
        assert_int_equal(weight->shape[1], d1);
        assert_int_equal(weight->shape[2], d2);
        assert_int_equal(weight->elements, d0 * d1 * d2);
        return;
    }
    if (rank > 0)
        fail_msg("no tensor %s", name);
}

RP_TEST_WITH(lists_the_tensors_of_each_layer, setup, teardown)
{
    list(*state, "qwen3-32b", 2, 0);
    expect(*state, "model.layers.1.self_attn.q_proj.weight", 2, 64 * 128, 5120, 1);
    expect(*state, "model.layers.1.self_attn.k_norm.weight", 1, 128, 1, 1);
    expect(*state, "model.layers.1.mlp.down_proj.weight", 2, 5120, 25600, 1);
    list(*state, "llama-3.1-8b", 1, 0);
    expect(*state, "model.layers.0.self_attn.k_norm.weight", 0, 0, 0, 0);
    list(*state, "qwen3-235b-a22b", 94, 0);
    expect(*state, "model.layers.93.mlp.gate.weight", 2, 128, 4096, 1);
    expect(*state, "model.layers.93.mlp.experts.127.down_proj.weight", 2, 4096, 1536, 1);
    list(*state, "gpt-oss-20b", 1, 0);
    expect(*state, "model.layers.0.mlp.experts.gate_up_proj", 3, 32, 2880, 5760);
    expect(*state, "model.layers.0.mlp.experts.down_proj_bias", 2, 32, 2880, 1);
    expect(*state, "model.layers.0.self_attn.sinks", 1, 64, 1, 1);
    expect(*state, "model.layers.0.mlp.router.bias", 1, 32, 1, 1);
    list(*state, "qwen3-1.7b", 29, 0);
    expect(*state, "lm_head.weight", 2, 151936, 2048, 1);
    list(*state, "qwen3-1.7b", 0, 0);
    expect(*state, "model.embed_tokens.weight", 2, 151936, 2048, 1);
}

RP_TEST(counts_a_tied_matrix_once)
{
    const RpModel *model = rp_model_find("qwen3-1.7b", NULL);
    guint64 matrix = G_GUINT64_CONSTANT(151936) * 2048;

    assert_int_equal(rp_model_layer_parameters(model, 0), matrix);
    assert_int_equal(rp_model_layer_parameters(model, 29), matrix + 2048);
    assert_int_equal(rp_model_layer_parameters(model, 28), 50336000);
    assert_int_equal(rp_model_parameters(model), matrix + 2048 + 28 * 50336000);
}

RP_TEST_WITH(trains_only_adapters_with_lora, setup, teardown)
{
    static const struct {
        const char *name;
        guint64 trained; /* one block's, rank 32 */
    } rows[] = {
        /* 32 x (in + out) of q, k, v, o, gate, up, down */
        {"qwen3-1.7b", 32 * (2 * (2048 + 2048) + 2 * (2048 + 1024) + 3 * (2048 + 6144))},
        /* the same of q, k, v, o, the router, and of 128 experts gate with up, which is twice 32, and down */
        {"qwen3-235b-a22b", 32 * (2 * (4096 + 8192) + 2 * (4096 + 512) + (4096 + 128) +
                                  128 * (2 * (4096 + 2 * 1536) + (1536 + 4096)))},
        /* q, k, v, o only: the rest are parameters, not linear layers */
        {"gpt-oss-20b", 32 * (2 * (2880 + 4096) + 2 * (2880 + 512))},
    };
    Layer *of = *state;

    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        guint64 elements[2] = {0}; /* frozen, trained */

        list(of, rows[i].name, 1, 32);
        for (guint j = 0; j < of->weights->len; j++) {
            const RpWeight *weight = &g_array_index(of->weights, RpWeight, j);

            elements[weight->trained] += weight->elements;
        }
        assert_int_equal(elements[TRUE], rows[i].trained);
        assert_int_equal(elements[FALSE],
                         rp_model_layer_parameters(rp_model_find(rows[i].name, NULL), 1));
    }
    list(of, "qwen3-1.7b", 1, 8);
    expect(of, "model.layers.0.self_attn.k_proj.lora_B.weight", 2, 1024, 8, 1);
}

/* Source: adapters that peft 0.21 makes of these models. */
RP_TEST_WITH(counts_adapters_as_peft_does, setup, teardown)
{
#define STACKS ",mlp.experts.gate_up_proj,mlp.experts.down_proj"
#define ATTENTION "q_proj,k_proj,v_proj,o_proj"
    static const struct {
        const char *model, *targets; /* NULL: all-linear */
        guint rank;
        guint64 adapters;
    } rows[] = {
        {"qwen3-30b-a3b", ATTENTION, 8, 6684672},
        {"qwen3-235b-a22b", ATTENTION, 32, 101646336},
        {"gpt-oss-20b", NULL, 8, 3981312},
        {"gpt-oss-20b", ATTENTION STACKS, 8, 92454912},
        /* transformers 4, and the zeros of fused B's: E x 2m x r a block */
        {"qwen3-30b-a3b", NULL, 32, 1691025408 + 48 * 128 * 2 * 768 * 32},
    };
    Layer *of = *state;

    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        const RpModel *model = rp_model_find(rows[i].model, NULL);
        g_auto(RpLora) lora = {.rank = rows[i].rank, .alpha = 1};
        guint64 adapters = 0;

        lora.targets = rows[i].targets != NULL ? g_strsplit(rows[i].targets, ",", -1) : NULL;
        assert_true(rp_lora_check(&lora, model, NULL));
        g_array_set_size(of->weights, 0);
        for (guint layer = 0; layer < rp_model_n_layers(model); layer++)
            rp_model_add_weights(model, layer, &lora, NULL, of->weights);
        for (guint j = 0; j < of->weights->len; j++) {
            const RpWeight *weight = &g_array_index(of->weights, RpWeight, j);

            adapters += weight->trained ? weight->elements : 0;
        }
        assert_int_equal(adapters, rows[i].adapters);
    }
}

RP_TEST(alternates_sliding_and_full_blocks)
{
    const RpModel *oss = rp_model_find("gpt-oss-20b", NULL);

    assert_true(rp_model_block_slides(oss, 0));
    assert_false(rp_model_block_slides(oss, 1));
    assert_false(rp_model_block_slides(oss, 23));
    assert_int_equal(rp_model_block_window(oss, 22), 128);
    assert_int_equal(rp_model_block_window(oss, 23), 0);
    assert_int_equal(rp_model_layer_class(oss, 23), 1);
    assert_int_equal(rp_model_layer_class(oss, 24), 2);
    assert_false(rp_model_block_slides(rp_model_find("qwen3-8b", NULL), 0));
    assert_int_equal(rp_model_block_window(rp_model_find("mistral-7b-v0.1", NULL), 31), 4096);
}

RP_TEST(leaves_rope_out_of_every_fourth_block_of_smollm3)
{
    const RpModel *smollm3 = rp_model_find("smollm3-3b", NULL);

    assert_true(rp_model_block_has_rope(smollm3, 2));
    assert_false(rp_model_block_has_rope(smollm3, 3));
    assert_int_equal(rp_model_layer_class(smollm3, 8), 4);
    assert_int_equal(rp_model_layer_class(smollm3, 9), 1);
}
