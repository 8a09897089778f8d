/*
 * Whole models on GPUs against the host: the loss and the gradient of every weight, through the
 * trainer, from one step of several micro-batches. Models of the fixtures have heads that tensor
 * cores do not take; those with random weights have heads of 64 and 128, in groups, and sequences
 * longer than a block of queries. A GPU may stand for several devices of a plan. The same program
 * runs over a CUDA of threads (soft-cuda.h), where bits must be the host's. Exits 77 without a
 * device.
 */
#include "tests/rp-test.h"

#include <glib/gstdio.h>
#include <math.h>

#include "exec/adapter/adapter.h"
#include "exec/cuda/backend.h"
#include "exec/cuda/runtime/device.h"
#include "exec/model/init.h"
#include "exec/train/trainer.h"

#define MICRO_BATCHES 4
#define MLP_TILE 24   /* tokens: all micro-batches have several tiles */
#define HEAD_CHUNK 64 /* tokens: most micro-batches have several */

typedef struct {
    const char *name;
    gboolean fixture;   /* weights of tests/exec-network/fixtures; else random weights of @config */
    const char *config; /* with %s: the dtype of the weights */
    guint sequences, tokens;
    guint n_weights;  /* with a gradient: embedding, blocks x weights of one, final norm, head */
    const char *base; /* with adapters: the fixture that they are for */
    double aux_loss;
} Kind;

static const Kind kinds[] = {
    {"qwen3-tied", TRUE, NULL, 2, 13, 1 + 2 * 11 + 1},
    {"llama-bias", TRUE, NULL, 1, 37, 1 + 2 * 16 + 1 + 1},
    {"qwen3-heads-of-64", FALSE,
     "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"hidden_size\": 96,"
     " \"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
     " \"head_dim\": 64, \"intermediate_size\": 157, \"vocab_size\": 131,"
     " \"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0,"
     " \"hidden_act\": \"silu\", \"initializer_range\": 0.1, \"torch_dtype\": \"%s\","
     " \"tie_word_embeddings\": false}",
     2, 150, 1 + 3 * 11 + 1 + 1},
    {"llama-heads-of-128", FALSE,
     "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 80,"
     " \"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"num_key_value_heads\": 1,"
     " \"head_dim\": 128, \"intermediate_size\": 136, \"vocab_size\": 101,"
     " \"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0,"
     " \"hidden_act\": \"silu\", \"initializer_range\": 0.1, \"torch_dtype\": \"%s\","
     " \"tie_word_embeddings\": true}",
     1, 170, 1 + 3 * 9 + 1},
    {"qwen3-moe", TRUE, NULL, 2, 13, 1 + 2 * (9 + 3 * 5) + 1 + 1},
    {"qwen3-all-experts", FALSE, /* each token chooses all: another rounding chooses no other */
     "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"model_type\": \"qwen3_moe\","
     " \"hidden_size\": 96, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
     " \"num_key_value_heads\": 2, \"head_dim\": 64, \"intermediate_size\": 192,"
     " \"moe_intermediate_size\": 72, \"num_experts\": 4, \"num_experts_per_tok\": 4,"
     " \"norm_topk_prob\": true, \"vocab_size\": 131, \"max_position_embeddings\": 256,"
     " \"rope_theta\": 10000.0, \"initializer_range\": 0.1, \"torch_dtype\": \"%s\"}",
     2, 150, 1 + 2 * (9 + 3 * 4) + 1 + 1},
    {"qwen2", TRUE, NULL, 2, 11, 1 + 3 * 12 + 1 + 1},
    /* the second block has no rope, but a window */
    {"smollm3-heads-of-64", FALSE,
     "{\"architectures\": [\"SmolLM3ForCausalLM\"], \"model_type\": \"smollm3\","
     " \"hidden_size\": 256, \"num_hidden_layers\": 3, \"num_attention_heads\": 4,"
     " \"num_key_value_heads\": 2, \"intermediate_size\": 157, \"vocab_size\": 131,"
     " \"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0,"
     " \"no_rope_layer_interval\": 2, \"use_sliding_window\": true, \"sliding_window\": 70,"
     " \"pad_token_id\": null, \"initializer_range\": 0.1, \"torch_dtype\": \"%s\"}",
     2, 150, 1 + 3 * 9 + 1},
    {"gpt-oss", TRUE, NULL, 2, 17, 1 + 2 * 17 + 1 + 1},
    {"gpt-oss-all-experts", FALSE,
     "{\"architectures\": [\"GptOssForCausalLM\"], \"model_type\": \"gpt_oss\","
     " \"hidden_size\": 96, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
     " \"num_key_value_heads\": 2, \"head_dim\": 64, \"intermediate_size\": 72,"
     " \"num_local_experts\": 4, \"num_experts_per_tok\": 4, \"vocab_size\": 131,"
     " \"sliding_window\": 60, \"initializer_range\": 0.1, \"torch_dtype\": \"%s\","
     " \"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 10000.0, \"factor\": 4.0,"
     " \"beta_fast\": 32.0, \"beta_slow\": 1.0, \"truncate\": false,"
     " \"original_max_position_embeddings\": 64}}",
     2, 150, 1 + 2 * 17 + 1 + 1},
    /* number of a block's matrices that have A and B */
    {"llama-bias-dropout", TRUE, NULL, 1, 37, 2 * 10 + 1, "llama-bias"},
    {"qwen3-moe-lora", TRUE, NULL, 2, 13, 2 * 2 * 5, "qwen3-moe"},
    {"gpt-oss-lora", TRUE, NULL, 2, 17, 2 * 2 * 4, "gpt-oss"},
    {"qwen3-moe", TRUE, NULL, 2, 13, 1 + 2 * (9 + 3 * 5) + 1 + 1, .aux_loss = 0.75},
    {"ministral3", TRUE, NULL, 2, 17, 1 + 2 * 9 + 1 + 1},
    {"mellum", TRUE, NULL, 2, 15, 1 + 4 * (9 + 3 * 5) + 1 + 1},
    {"qwen3-5", TRUE, NULL, 2, 70, 1 + 2 * 14 + 11 + 1 + 1},
    {"qwen3-5-moe", TRUE, NULL, 2, 67, 1 + 2 * (11 + 5 + 3 * 5) + (8 + 5 + 3 * 5) + 1 + 1},
    {"qwen3-5-lora", TRUE, NULL, 2, 11, 28, "qwen3-5"},
    {"qwen3-5-moe-lora", TRUE, NULL, 2, 11, 28, "qwen3-5-moe"},
};
enum {
    QWEN3_TIED,
    LLAMA_BIAS,
    QWEN3_64,
    LLAMA_128,
    QWEN3_MOE,
    QWEN3_ALL_EXPERTS,
    QWEN2,
    SMOLLM3_64,
    GPT_OSS,
    GPT_OSS_ALL_EXPERTS,
    LLAMA_DROPOUT,
    QWEN3_MOE_LORA,
    GPT_OSS_LORA,
    QWEN3_MOE_AUX,
    MINISTRAL3,
    MELLUM,
    QWEN3_5,
    QWEN3_5_MOE,
    QWEN3_5_LORA,
    QWEN3_5_MOE_LORA
};

typedef struct {
    const char *schedule; /* roundpipe, or a bound one of two stages */
    guint devices;
    const RpDeviceOps *backend;
    gboolean saves; /* all that forwards can save */
    gboolean stays; /* frozen weights, on the devices */
    guint mlp_tile; /* 0: the MLP in one piece */
} Plan;

/* One model in one storage; leftovers of tests are freed with it. */
typedef struct {
    const Kind *kind;
    RpModel config;
    char *directory; /* directory of random weights; removed at the end */
    RpSafetensors *file, *adapters;
    RpLora lora; /* rank 0: none */
    RpWeights *weights;
    RpTrainer *trainer;
    RpTokenBatch *batch;
    GPtrArray *results; /* Gradients */
    GError *error;
} Fixture;

/* Results of one run. */
typedef struct {
    double loss;
    float **values; /* gradient of weight i; NULL: a tied head's, which is the embedding's */
    guint n;
} Gradients;

static void
free_gradients(gpointer data)
{
    Gradients *gradients = data;

    for (guint i = 0; i < gradients->n; i++)
        g_free(gradients->values[i]);
    g_free(gradients->values);
    g_free(gradients);
}

/* The fixture's. */
static Gradients *
new_gradients(Fixture *f)
{
    Gradients *gradients = g_new0(Gradients, 1);

    gradients->n = rp_weights_count(f->weights);
    gradients->values = g_new0(float *, gradients->n);
    for (guint i = 0; i < gradients->n; i++)
        if (rp_weight_has_state(rp_weights_nth(f->weights, i)))
            gradients->values[i] = g_new0(float, rp_weights_nth(f->weights, i)->elements);
    g_ptr_array_add(f->results, gradients);
    return gradients;
}

static Gradients *
copy_gradients(Fixture *f, const Gradients *from)
{
    Gradients *to = new_gradients(f);

    to->loss = from->loss;
    for (guint i = 0; i < to->n; i++)
        if (to->values[i] != NULL)
            memcpy(to->values[i], from->values[i],
                   rp_weights_nth(f->weights, i)->elements * sizeof(float));
    return to;
}

/* ---- models ---- */

static void
set_up(Fixture *f)
{
    f->results = g_ptr_array_new_with_free_func(free_gradients);
}

static void
close_model(Fixture *f)
{
    static const char *const files[] = {"config.json", "model.safetensors"};

    g_clear_pointer(&f->trainer, rp_trainer_free);
    g_clear_pointer(&f->batch, rp_token_batch_free);
    g_ptr_array_set_size(f->results, 0);
    g_clear_pointer(&f->weights, rp_weights_free);
    g_clear_pointer(&f->adapters, rp_safetensors_free);
    rp_lora_clear(&f->lora);
    f->lora = (RpLora){0};
    g_clear_pointer(&f->file, rp_safetensors_free);
    for (guint i = 0; f->directory != NULL && i < G_N_ELEMENTS(files); i++) {
        g_autofree char *path = g_build_filename(f->directory, files[i], NULL);

        g_unlink(path);
    }
    if (f->directory != NULL)
        g_rmdir(f->directory);
    g_clear_pointer(&f->directory, g_free);
}

static void
tear_down(Fixture *f)
{
    close_model(f);
    g_ptr_array_unref(f->results);
    g_clear_error(&f->error);
}

/* Random weights, rounded to @dtype: the same ones for every storage that they are computed in. */
static void
make_model(Fixture *f, RpDtype dtype)
{
    const RpInitOptions options = {.seed = 11};
    char text[1024];

    g_snprintf(text, sizeof text, f->kind->config, rp_dtype_torch_name(dtype));
    f->directory = rp_must(g_dir_make_tmp, "rp-gradients-XXXXXX");
    if (rp_hf_config_parse("config", text, strlen(text), &f->config, &f->error))
        (void)!rp_init_write(&f->config, f->directory, &options, &f->error);
    rp_assert_no_error(f->error);
    f->file = rp_safetensors_open(f->directory, &f->error);
}

static void
load_fixture(Fixture *f)
{
    const char *base = f->kind->base != NULL ? f->kind->base : f->kind->name;
    g_autofree char *relative = g_strconcat("tests/exec-network/fixtures/", base, NULL);
    g_autofree char *directory = rp_test_source_path(relative);
    g_autofree char *path = g_build_filename(directory, "model.safetensors", NULL);
    g_autofree char *beside = g_build_filename(directory, "..", f->kind->name, NULL);
    g_autofree char *adapters = g_build_filename(beside, RP_ADAPTER_TENSORS, NULL);

    if (rp_hf_config_load(directory, &f->config, &f->error))
        f->file = rp_safetensors_open(path, &f->error);
    if (f->kind->base != NULL && rp_adapter_config_load(beside, &f->lora, &f->error))
        f->adapters = rp_safetensors_open(adapters, &f->error);
}

static void
open_model(Fixture *f, guint kind, RpDtype dtype)
{
    close_model(f);
    f->kind = &kinds[kind];
    if (f->kind->fixture)
        load_fixture(f);
    else
        make_model(f, dtype);
    rp_assert_no_error(f->error);
    f->weights = rp_weights_new_adapted(&f->config, &f->lora);
    if (rp_weights_bind(f->weights, f->file, &f->error) && f->adapters != NULL)
        (void)!rp_adapter_bind(f->weights, f->adapters, &f->error);
    rp_weights_store_base(f->weights, RP_DTYPE_FP32); /* adapters are computed in fp32 alone */
    rp_assert_no_error(f->error);
}

/* ---- one step ---- */

/* Random tokens; a fifth of the targets is masked. */
static void
make_batch(Fixture *f)
{
    const RpBatcherOptions options = {
        .micro_batches = MICRO_BATCHES, .sequences = f->kind->sequences, .tokens = f->kind->tokens};
    const guint n = f->kind->sequences * f->kind->tokens;
    const gint32 vocabulary = (gint32)f->config.vocab;
    g_autoptr(GRand) rand = g_rand_new_with_seed(5);

    f->batch = rp_token_batch_new(&options);
    for (guint i = 0; i < MICRO_BATCHES * n; i++) {
        const gboolean masked =
            i % f->kind->tokens == f->kind->tokens - 1 || g_rand_int_range(rand, 0, 5) == 0;

        f->batch->input_ids[i] = g_rand_int_range(rand, 0, vocabulary);
        f->batch->targets[i] = masked ? RP_LABEL_MASKED : g_rand_int_range(rand, 0, vocabulary);
        f->batch->n_micro_targets[i / n] += masked ? 0 : 1;
        f->batch->n_targets += masked ? 0 : 1;
    }
    f->batch->n_tokens = MICRO_BATCHES * (guint64)n;
    for (guint row = 0; row < MICRO_BATCHES * f->kind->sequences; row++) /* some are padded */
        f->batch->lengths[row] = f->kind->tokens - row % 3;
}

/* A block a stage; bound: two stages. */
static RpPartition *
make_partition(const RpProfile *profile, const RpScheduleOps *schedule)
{
    const guint ones[] = {1, 1, 1, 1, 1};
    const guint blocks = rp_profile_n_blocks(profile);
    const guint bound[] = {blocks - 1, 1};

    g_assert(blocks <= G_N_ELEMENTS(ones));
    return schedule->dispatched
               ? rp_partition_from_dispatched_blocks(profile, ones, blocks - 1, ones, blocks, NULL)
               : rp_partition_from_blocks(profile, bound, 2, NULL);
}

static RpTrainer *
make_trainer(Fixture *f, RpDtype dtype, const Plan *plan)
{
    const RpScheduleOps *schedule = rp_schedule_find(plan->schedule, NULL);
    RpTrainerOptions options = {
        .devices = plan->backend,
        .weights = f->weights,
        .plan = {.schedule = schedule,
                 .gpus = plan->devices,
                 .micro_batches = MICRO_BATCHES,
                 .saved = {.groups = plan->saves ? (1u << RP_N_SAVED_GROUPS) - 1 : 0},
                 .resident_limit = plan->stays ? G_MAXUINT64 : 0},
        .network = {.dtype = dtype,
                    .sequences = f->kind->sequences,
                    .tokens = f->kind->tokens,
                    .head_chunk = HEAD_CHUNK,
                    .mlp_tile = plan->mlp_tile,
                    .aux_loss = f->kind->aux_loss},
        .update = {.adamw = RP_ADAMW_OPTIONS_INIT,
                   .learning_rate = {.peak = 1e-3, .total_steps = 10},
                   .scale_loss = dtype == RP_DTYPE_FP16,
                   .loss_scale = RP_LOSS_SCALE_OPTIONS_INIT},
    };
    g_autoptr(RpNetwork) network =
        rp_network_new(f->weights, plan->backend->kernels(), &options.network);
    g_autoptr(RpProfile) profile = rp_network_profile(network);

    for (guint l = 0; l < profile->n_layers; l++) {
        RpLayer *layer = &profile->layers[l];

        layer->forward_ns = layer->recompute_ns = 1000;
        layer->backward_ns = 2000;
    }
    profile->links.h2d_bytes_per_s = profile->links.d2h_bytes_per_s = 1e10;
    g_autoptr(RpPartition) partition = make_partition(profile, schedule);
    g_assert_nonnull(partition);
    options.profile = profile;
    options.partition = partition;
    return rp_trainer_new(&options, &f->error);
}

/* Loss and gradients of one step. (transfer none) */
static Gradients *
run(Fixture *f, RpDtype dtype, const Plan *plan)
{
    Gradients *gradients = new_gradients(f);

    if (f->batch == NULL)
        make_batch(f);
    f->trainer = make_trainer(f, dtype, plan);
    rp_assert_no_error(f->error);
    if (rp_trainer_forward_backward(f->trainer, f->batch, &gradients->loss, &f->error) &&
        rp_trainer_step(f->trainer, &f->error))
        (void)!rp_trainer_flush(f->trainer, &f->error);
    if (f->error != NULL)
        fail_msg("%s in %s, %s on %u devices: %s", f->kind->name, rp_dtype_name(dtype),
                 plan->schedule, plan->devices, f->error->message);
    for (guint i = 0; i < gradients->n; i++)
        if (gradients->values[i] != NULL)
            assert_true(rp_trainer_gradient(f->trainer, i, gradients->values[i], NULL));
    g_clear_pointer(&f->trainer, rp_trainer_free);
    return gradients;
}

static Gradients *
run_on_host(Fixture *f, RpDtype dtype)
{
    return run(f, dtype, &(Plan){"roundpipe", 1, rp_host_devices()});
}

/* ---- how close ---- */

/*
 * These values are rounded to the storage between the tokens and a gradient:
 *   a block forward    norm; q, k, v; q, k normed, with rope (4); P; out; its product with O; s;
 *                      norm; gate, up; swiglu; down; y: 18, and 7 with biases added
 *   a block backward   d swiglu; d gate, d up; d norm from up, and gate; ds; d out; P, dP; dq, dk,
 *                      dv; dq, dk back through rope and their norms (4); d norm from q, k and v
 *                      (3); dx: 20
 *   the ends           norm, logits and their gradients, dx of the head; the gradient, as it leaves
 * Each moves the values by at most u of their norm, u = 2^-24, 2^-8 or 2^-11; sums of n terms in
 * fp32 add sqrt(n) 2^-24. The errors are independent, so that R of them make sqrt(R);
 * host and device err alike:
 *
 *   |gradient - host's| <= sqrt(2 R) (u + sqrt(n) 2^-24) |host's|       (norms of a weight's)
 *
 * Most roundings are of less than u, 0.4 u in the root of their mean square: the rest is left for
 * the derivatives of norms and of softmax. A test below measures how close the host's own roundings
 * come to it.
 */
#define FORWARD_ROUNDINGS 25
#define BACKWARD_ROUNDINGS 20
#define END_ROUNDINGS 6

static double
longest_sum(const Fixture *f)
{
    const RpModel *config = &f->config;
    guint n = MICRO_BATCHES * f->kind->sequences * f->kind->tokens;

    n = MAX(n, config->hidden);
    n = MAX(n, config->intermediate);
    n = MAX(n, config->heads * config->head_dim);
    return MAX(n, config->vocab);
}

static double
tolerance_of(const Fixture *f, RpDtype dtype, double roundings)
{
    static const double units[RP_N_DTYPES] = {
        [RP_DTYPE_FP32] = 0x1p-24, [RP_DTYPE_BF16] = 0x1p-8, [RP_DTYPE_FP16] = 0x1p-11};

    return sqrt(2 * roundings) * (units[dtype] + sqrt(longest_sum(f)) * 0x1p-24);
}

/* Layer 0 is the embedding, the last the head. A sink has one value a head, a sum over tokens of
 * values of either sign: their roundings are of more than its u. DeltaNet divides by lengths of few elements. */
static double
gradient_tolerance(const Fixture *f, RpDtype dtype, const RpWeight *weight)
{
    const guint blocks = f->config.blocks;
    const guint backward = blocks + 1 - MAX(1, weight->layer); /* blocks that it came through */

    return (weight->kind == RP_WEIGHT_SINKS || strstr(weight->name, ".linear_attn.") != NULL ? 2
                                                                                             : 1) *
           tolerance_of(f, dtype,
                        END_ROUNDINGS + FORWARD_ROUNDINGS * blocks + BACKWARD_ROUNDINGS * backward);
}

/* The mean of this many losses, whose errors differ. */
static double
loss_tolerance(const Fixture *f, RpDtype dtype)
{
    return tolerance_of(f, dtype, END_ROUNDINGS + FORWARD_ROUNDINGS * f->config.blocks) /
           sqrt((double)f->batch->n_targets);
}

typedef struct {
    guint n_compared;
    double largest; /* error of a weight's, as a share of the tolerance */
    const char *worst;
    GString *text; /* a line for each that is too far off */
} Comparison;

/* Numbers, not all of them zero, with the same bits. */
static gboolean
are_the_same(const float *got, const float *want, guint64 n)
{
    guint32 any = 0;
    gboolean finite = TRUE;

    if (memcmp(got, want, n * sizeof *got) != 0)
        return FALSE;
    for (guint64 i = 0; i < n; i++) {
        const guint32 magnitude = rp_float_bits(want[i]) & 0x7fffffff;

        any |= magnitude;
        finite &= magnitude < 0x7f800000;
    }
    return any != 0 && finite;
}

/* Continues after a difference, so that a failure names them all. */
static void
compare_weight(const RpWeight *weight, double tolerance, const float *got, const float *want,
               Comparison *comparison)
{
    double difference = 0, norm = 0, got_norm = 0;

    comparison->n_compared++;
    if (are_the_same(got, want, weight->elements))
        return;
    for (guint64 i = 0; i < weight->elements; i++) {
        const double a = (double)got[i], b = (double)want[i];

        difference += (a - b) * (a - b);
        got_norm += a * a;
        norm += b * b;
    }
    if (sqrt(difference) > comparison->largest * tolerance * sqrt(norm)) {
        comparison->largest = sqrt(difference / norm) / tolerance;
        comparison->worst = weight->name;
    }
    /* nothing may be zero: these models leave no weight out */
    if (norm > 0 && sqrt(difference) <= tolerance * sqrt(norm))
        return;
    g_string_append_printf(
        comparison->text,
        "  %s: norm %.9g, the host's %.9g, of the difference %.3g; at most %.3g\n", weight->name,
        sqrt(got_norm), sqrt(norm), sqrt(difference), tolerance * sqrt(norm));
}

static void
compare_loss(const Fixture *f, RpDtype dtype, double got, double want, Comparison *comparison)
{
    const double tolerance = loss_tolerance(f, dtype) * want;

    if (!(fabs(got - want) <= tolerance))
        g_string_append_printf(comparison->text, "  loss: %.9g, the host's %.9g +- %.3g\n", got,
                               want, tolerance);
}

/* @dtype: of the less exact one. Free its text. */
static Comparison
compare(const Fixture *f, RpDtype dtype, const Gradients *got, const Gradients *want)
{
    Comparison comparison = {.worst = "none", .text = g_string_new(NULL)};

    compare_loss(f, dtype, got->loss, want->loss, &comparison);
    for (guint i = 0; i < want->n; i++) {
        const RpWeight *weight = rp_weights_nth(f->weights, i);

        if (rp_weight_has_state(weight))
            compare_weight(weight, gradient_tolerance(f, dtype, weight), got->values[i],
                           want->values[i], &comparison);
    }
    return comparison;
}

/* @what: name of the run. Returns: the largest error, as a share of the tolerance */
static double
assert_close(const Fixture *f, RpDtype dtype, const Gradients *got, const Gradients *want,
             const char *what)
{
    Comparison comparison = compare(f, dtype, got, want);
    char text[4096];

    g_strlcpy(text, comparison.text->str, sizeof text);
    g_string_free(comparison.text, TRUE);
    assert_int_equal(comparison.n_compared, f->kind->n_weights);
    if (text[0] != '\0')
        fail_msg("%s in %s, %s:\n%s", f->kind->name, rp_dtype_name(dtype), what, text);
    print_message("%s in %s, %s: loss off by %.1e; largest error %.2f of the tolerance, of %s\n",
                  f->kind->name, rp_dtype_name(dtype), what, got->loss / want->loss - 1,
                  comparison.largest, comparison.worst);
    return comparison.largest;
}

static void
assert_same_bits(const Fixture *f, const Gradients *got, const Gradients *want, const char *what)
{
    if (got->loss != want->loss)
        fail_msg("%s, %s: loss %.17g, before %.17g", f->kind->name, what, got->loss, want->loss);
    for (guint i = 0; i < want->n; i++) {
        const RpWeight *weight = rp_weights_nth(f->weights, i);

        if (rp_weight_has_state(weight) &&
            memcmp(got->values[i], want->values[i], weight->elements * sizeof(float)) != 0)
            fail_msg("%s, %s: other bits in the gradient of %s", f->kind->name, what, weight->name);
    }
}

/* ---- on GPUs ---- */

static void
check_model(Fixture *f, guint kind, RpDtype dtype)
{
    const RpDeviceOps *gpus = rp_cuda_shared_devices();
    const Plan plans[] = {{"roundpipe", 1, gpus},
                          {"roundpipe", 2, gpus},
                          {"1f1b", 2, gpus},
                          {"roundpipe", 1, gpus, .saves = TRUE},
                          {"roundpipe", 2, gpus, .stays = TRUE}};
    const Gradients *want, *first = NULL;

    open_model(f, kind, dtype);
    want = run_on_host(f, dtype);
    for (guint i = 0; i < G_N_ELEMENTS(plans) && (!plans[i].stays || f->lora.rank > 0); i++) {
        const Gradients *got = run(f, dtype, &plans[i]);
        char what[64];

        g_snprintf(what, sizeof what, "%s on %u devices%s%s", plans[i].schedule, plans[i].devices,
                   plans[i].saves ? ", saving" : "",
                   plans[i].stays ? ", frozen weights staying" : "");
        assert_close(f, dtype, got, want, what);
        if (first == NULL)
            first = got;
        assert_same_bits(f, got, first, what);
    }
    if (f->config.experts <= 1) {
        const Plan tiles = {"roundpipe", 1, gpus, .mlp_tile = MLP_TILE};

        assert_close(f, dtype, run(f, dtype, &tiles), want, "the MLP in tiles");
    }
}

RP_TEST(are_the_hosts_of_a_tied_qwen3)
{
    check_model(*state, QWEN3_TIED, RP_DTYPE_FP32);
}

RP_TEST(are_the_hosts_of_a_llama_with_biases)
{
    check_model(*state, LLAMA_BIAS, RP_DTYPE_FP32);
}

RP_TEST(are_the_hosts_of_a_qwen3_with_heads_of_64)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++)
        if (!RP_TEST_FEW || dtype == RP_DTYPE_BF16)
            check_model(*state, QWEN3_64, (RpDtype)dtype);
}

RP_TEST(are_the_hosts_of_a_llama_with_heads_of_128)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++)
        if (!RP_TEST_FEW || dtype == RP_DTYPE_FP16)
            check_model(*state, LLAMA_128, (RpDtype)dtype);
}

RP_TEST(are_the_hosts_of_experts)
{
    check_model(*state, QWEN3_MOE, RP_DTYPE_FP32);
    check_model(*state, QWEN3_MOE_AUX, RP_DTYPE_FP32);
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++)
        if (!RP_TEST_FEW || dtype == RP_DTYPE_BF16)
            check_model(*state, QWEN3_ALL_EXPERTS, (RpDtype)dtype);
}

RP_TEST(are_the_hosts_of_a_qwen2_with_windows)
{
    check_model(*state, QWEN2, RP_DTYPE_FP32);
}

RP_TEST(are_the_hosts_of_a_smollm3_without_rope_in_its_second_block)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++)
        if (!RP_TEST_FEW || dtype == RP_DTYPE_BF16)
            check_model(*state, SMOLLM3_64, (RpDtype)dtype);
}

/* Tables of scaled queries, and of each kind of block. */
RP_TEST(are_the_hosts_of_a_ministral3_and_a_mellum)
{
    check_model(*state, MINISTRAL3, RP_DTYPE_FP32);
    check_model(*state, MELLUM, RP_DTYPE_FP32);
}

RP_TEST(are_the_hosts_of_qwen3_5_and_its_mixture_whole_and_with_adapters)
{
    for (guint kind = QWEN3_5; kind <= QWEN3_5_MOE_LORA; kind++)
        check_model(*state, kind, RP_DTYPE_FP32);
}

RP_TEST(are_the_hosts_of_adapters_with_dropout_and_of_experts)
{
    check_model(*state, LLAMA_DROPOUT, RP_DTYPE_FP32);
    check_model(*state, QWEN3_MOE_LORA, RP_DTYPE_FP32);
    check_model(*state, GPT_OSS_LORA, RP_DTYPE_FP32);
}

RP_TEST(are_the_hosts_of_a_gpt_oss)
{
    check_model(*state, GPT_OSS, RP_DTYPE_FP32);
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++)
        if (!RP_TEST_FEW || dtype == RP_DTYPE_BF16)
            check_model(*state, GPT_OSS_ALL_EXPERTS, (RpDtype)dtype);
}

/* ---- the comparison itself, on the host ---- */

/* The host in 16 bits against the host in fp32, from the same weights: within the tolerance, which
 * is then no smaller than roundings are; and not far within, or it would let other things pass. */
RP_TEST(has_a_tolerance_of_the_size_of_roundings)
{
    static const RpDtype dtypes[] = {RP_DTYPE_BF16, RP_DTYPE_FP16};
    Fixture *f = *state;

    if (RP_TEST_FEW) /* it compares values alone */
        skip();
    static const guint random[] = {QWEN3_64, LLAMA_128, QWEN3_ALL_EXPERTS, GPT_OSS_ALL_EXPERTS};

    for (guint k = 0; k < G_N_ELEMENTS(random); k++)
        for (guint i = 0; i < G_N_ELEMENTS(dtypes); i++) {
            double largest;

            open_model(f, random[k], dtypes[i]);
            largest = assert_close(f, dtypes[i], run_on_host(f, dtypes[i]),
                                   run_on_host(f, RP_DTYPE_FP32), "the host against fp32");
            if (!(largest >= 0.1))
                fail_msg("%s in %s: no error is more than %.3f of the tolerance", f->kind->name,
                         rp_dtype_name(dtypes[i]), largest);
        }
}

/* @got, which differs in weight @index alone. */
static void
assert_found(const Fixture *f, RpDtype dtype, const Gradients *got, const Gradients *want,
             guint index, const char *what)
{
    const char *name = rp_weights_nth(f->weights, index)->name;
    g_autofree char *start = g_strdup_printf("  %s: ", name);
    Comparison comparison = compare(f, dtype, got, want);
    const gboolean named = g_str_has_prefix(comparison.text->str, start);
    const gboolean alone =
        strchr(comparison.text->str, '\n') == strrchr(comparison.text->str, '\n');

    g_string_free(comparison.text, TRUE);
    if (!named || !alone)
        fail_msg("%s in %s: the gradient of %s %s, which is %s", f->kind->name,
                 rp_dtype_name(dtype), name, what, named ? "not found alone" : "not found");
}

/* Each of them is left out, negated, made a little too long, or has one value that is no number. */
static void
check_changes(Fixture *f, RpDtype dtype, const Gradients *want)
{
    Gradients *got = copy_gradients(f, want);

    for (guint w = 0; w < want->n; w++) {
        const RpWeight *weight = rp_weights_nth(f->weights, w);
        const double tolerance = gradient_tolerance(f, dtype, weight);
        const float factors[] = {0, -1, (float)(1 + 1.01 * tolerance),
                                 (float)(1 - 1.01 * tolerance)};

        if (weight->tied)
            continue;
        for (guint k = 0; k < G_N_ELEMENTS(factors); k++) {
            for (guint64 i = 0; i < weight->elements; i++)
                got->values[w][i] = want->values[w][i] * factors[k];
            assert_found(f, dtype, got, want, w, "is left out, turned round or too long or short");
        }
        memcpy(got->values[w], want->values[w], weight->elements * sizeof(float));
        got->values[w][weight->elements - 1] = NAN;
        assert_found(f, dtype, got, want, w, "has a NaN at its end");
        got->values[w][weight->elements - 1] = want->values[w][weight->elements - 1];
    }
}

/* Each pair of one length: exchanged. Returns: how many there are */
static guint
check_exchanges(Fixture *f, RpDtype dtype, const Gradients *want)
{
    Gradients *got = copy_gradients(f, want);
    guint n = 0;

    for (guint a = 0; a < want->n; a++) {
        for (guint b = a + 1; b < want->n; b++) {
            const RpWeight *one = rp_weights_nth(f->weights, a);
            const RpWeight *other = rp_weights_nth(f->weights, b);
            float *kept = got->values[a];

            if (one->tied || other->tied || one->elements != other->elements)
                continue;
            got->values[a] = want->values[b];
            assert_found(f, dtype, got, want, a, "is another's");
            got->values[a] = kept;
            n++;
        }
    }
    return n;
}

RP_TEST_OF(are_compared_one_by_one, Fixture *f)
{
    if (RP_TEST_FEW) /* it compares values alone */
        skip();
    for (guint kind = 0; kind < LLAMA_DROPOUT; kind++) {
        for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
            const Gradients *want;
            Gradients *got;
            Comparison comparison;

            open_model(f, kind, RP_DTYPE_FP32);
            want = run_on_host(f, RP_DTYPE_FP32);
            check_changes(f, (RpDtype)dtype, want);
            assert_true(check_exchanges(f, (RpDtype)dtype, want) > 10);
            got = copy_gradients(f, want);
            got->loss *= 1 + 1.01 * loss_tolerance(f, (RpDtype)dtype);
            comparison = compare(f, (RpDtype)dtype, got, want);
            assert_true(g_str_has_prefix(comparison.text->str, "  loss: "));
            g_string_free(comparison.text, TRUE);
        }
    }
}

RP_TEST_STATE(Fixture, set_up, tear_down)
RP_TEST_NEEDS(rp_cuda_device_count() > 0)
