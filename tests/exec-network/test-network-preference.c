/*
 * Networks whose head has losses of preferences: the same bits however they are cut and whichever rows the head takes,
 * within the workspace that was measured; heads in fp8; forwards without adapters. Values are held to TRL in
 * tests/exec-train/test-trainer-preference.c.
 */
#include "tests/exec-network/network-fixture.h"

#include <math.h>

#include "exec/device/batch-feed.h"

#define T 48
#define DOCUMENTS 5

static const gint32 firsts[DOCUMENTS + 1] = {0, 9, 21, 30, 34, T};
static const gint32 answers[DOCUMENTS] = {RP_ANSWER_CHOSEN, RP_ANSWER_REJECTED, RP_ANSWER_NONE,
                                          RP_ANSWER_CHOSEN, RP_ANSWER_REJECTED};
static const float references[DOCUMENTS] = {-20, -31, 0, -9, -40};

static RpModel
config_of(gboolean tied)
{
    RpModel config = network_config(RP_ARCHITECTURE_QWEN3, tied);

    config.blocks = 3;
    config.vocab = 48;
    config.hidden = 64;
    config.heads = 4;
    config.kv_heads = 2;
    config.head_dim = 16;
    config.intermediate = 96;
    return config;
}

static RpNetworkOptions
options_of(RpDtype dtype, guint head_chunk)
{
    RpNetworkOptions options = {.dtype = dtype,
                                .sequences = 2,
                                .tokens = T / 2,
                                .head_chunk = head_chunk,
                                .label_smoothing = 0.2, /* is not that of a preference */
                                .preference = rp_preference_default(RP_OBJECTIVE_DPO)};

    options.preference.beta = 0.5;
    return options;
}

/* Rows with a target of a model, and where documents begin among them. */
typedef struct {
    gint32 first[DOCUMENTS + 1], rows[T], targets[T];
    guint n;
} Packed;

static RpStageDocuments
documents_of(const gint32 *first)
{
    return (RpStageDocuments){.n = DOCUMENTS,
                              .first = first,
                              .answers = answers,
                              .references = references,
                              .nll_scale = 0.3};
}

/* All of padding is masked. */
static Model *
model_of(const RpModel *config, const RpLora *lora, const RpNetworkOptions *options)
{
    Model *model = lora != NULL ? network_random_adapted(config, lora, options)
                                : network_random(config, options);

    for (gint32 t = firsts[2]; t < firsts[3]; t++)
        model->targets[t] = RP_LABEL_MASKED;
    model->documents = documents_of(firsts);
    model->scale = 0.25F;
    return model;
}

static void
use_rows(Model *model, Packed *packed)
{
    gint32 row = 0;

    packed->n = rp_targets_pack(model->targets, T, packed->targets, packed->rows);
    assert_true(packed->n < T);
    for (guint d = 0, t = 0; d <= DOCUMENTS; d++) {
        for (; (gint32)t < firsts[d]; t++)
            row += model->targets[t] != RP_LABEL_MASKED;
        packed->first[d] = row;
    }
    memcpy(model->targets, packed->targets, packed->n * sizeof(gint32));
    model->rows = packed->rows;
    model->n_rows = packed->n;
    model->documents = documents_of(packed->first);
}

RP_TEST(gives_the_same_bits_however_it_is_cut)
{
    static const guint chunks[] = {7, 16, T};

    for (guint i = 0; i < RP_N_DTYPES * G_N_ELEMENTS(chunks); i++) {
        const RpModel config = config_of(i % 2 == 0);
        const RpNetworkOptions options =
            options_of((RpDtype)(i % RP_N_DTYPES), chunks[i / RP_N_DTYPES]);
        Model *model = model_of(&config, NULL, &options);
        Packed packed;

        if (i % 4 > 1)
            use_rows(model, &packed);
        const Run whole = network_whole(model);

        assert_true(isfinite(whole.loss));
        for (guint cuts = 0; cuts < 16; cuts += 3) {
            const Run run = network_cut(model, cuts, cuts * 7 % 16);

            assert_true(run.loss == whole.loss);
            assert_memory_equal(run.sums, whole.sums, model->elements * sizeof(float));
        }
        network_free(model);
    }
}

/* Chunks and rows change the order of sums alone. */
RP_TEST(has_the_same_loss_in_chunks_and_of_rows)
{
    const RpModel config = config_of(FALSE);
    const RpNetworkOptions one = options_of(RP_DTYPE_FP32, T), some = options_of(RP_DTYPE_FP32, 11);
    Model *model = model_of(&config, NULL, &one), *other = model_of(&config, NULL, &some);
    const Run want = network_whole(model), found = network_whole(other);
    Packed packed;

    use_rows(model, &packed);
    const Run rows = network_whole(model);

    assert_true(fabs(found.loss - want.loss) < 1e-6 * fabs(want.loss));
    assert_true(fabs(rows.loss - want.loss) < 1e-6 * fabs(want.loss));
    for (guint w = 0; w < rp_weights_count(model->weights); w++) {
        const guint64 n = rp_weights_nth(model->weights, w)->elements;
        const float *gradient = network_gradient(model, &want, w);

        assert_true(network_error(network_gradient(other, &found, w), gradient, n) < 1e-5);
        assert_true(network_error(network_gradient(model, &rows, w), gradient, n) < 1e-5);
    }
    network_free(model);
    network_free(other);
}

/* As with cross entropy, an fp8 head rounds to few bits; the scale of its gradient follows from the weights. */
RP_TEST(stays_near_the_head_without_fp8)
{
    const RpModel config = config_of(FALSE);

    for (guint chunk = 16; chunk <= T; chunk *= 3) {
        RpNetworkOptions options = options_of(RP_DTYPE_BF16, chunk);
        Model *plain = model_of(&config, NULL, &options);

        options.fp8 = (RpNetworkFp8){
            .used = TRUE, .gradients = RP_DTYPE_E5M2, .plain_first = config.blocks, .head = TRUE};
        Model *model = model_of(&config, NULL, &options);
        const Run run = network_whole(model), want = network_whole(plain);

        assert_true(run.loss != want.loss);
        assert_true(fabs(run.loss - want.loss) < 0.1 * fabs(want.loss));
        for (guint w = 0; w < rp_weights_count(plain->weights); w++)
            assert_true(network_error(network_gradient(model, &run, w),
                                      network_gradient(plain, &want, w),
                                      rp_weights_nth(plain->weights, w)->elements) < 0.6);
        network_free(model);
        network_free(plain);
    }
}

static double
forward_loss(Model *model, gboolean adapters_off)
{
    Run run = network_run_new(model);

    model->adapters_off = adapters_off;
    network_stage(model, STAGE_FORWARD, (RpInterval){0, rp_network_n_layers(model->network)}, NULL,
                  0, &run);
    return run.loss;
}

/* Adapters alone and fused ones, of dense blocks and of stacks of experts. */
RP_TEST(leaves_adapters_out)
{
    RpModel experts = config_of(FALSE);

    experts.architecture = RP_ARCHITECTURE_QWEN3_MOE;
    experts.experts = 5;
    experts.active_experts = 2;
    experts.norm_topk = TRUE;
    for (guint i = 0; i < 3; i++) {
        const RpModel config = i == 0 ? config_of(TRUE) : i == 1 ? network_config_fused() : experts;
        const RpLora one = {.rank = 3, .alpha = 7}, other = {.rank = 5, .alpha = 1};
        RpNetworkOptions options = options_of(RP_DTYPE_FP32, 16);
        Model *a = model_of(&config, &one, &options), *b = model_of(&config, &other, &options);

        /* weights are random one after the other: those of the base are made equal */
        for (guint w = 0, v = 0; w < rp_weights_count(a->weights); w++) {
            const RpWeight *weight = rp_weights_nth(a->weights, w);

            if (weight->trained)
                continue;
            while (rp_weights_nth(b->weights, v)->trained)
                v++;
            g_autofree float *values = g_new(float, weight->elements);

            for (guint64 n = 0; n < weight->elements; n++)
                values[n] = sinf((float)(n * (w + 3) % 1009)) * 0.2F;
            network_set_weight(a, w, values);
            network_set_weight(b, v++, values);
        }
        memcpy(b->ids, a->ids, T * sizeof(gint32));
        memcpy(b->targets, a->targets, T * sizeof(gint32));
        assert_true(forward_loss(a, TRUE) == forward_loss(b, TRUE));
        assert_true(forward_loss(a, FALSE) != forward_loss(a, TRUE));
        assert_true(forward_loss(b, FALSE) != forward_loss(b, TRUE));
        network_free(a);
        network_free(b);
    }
}

RP_TEST_FIXTURE(host_setup, host_teardown)
