#include "tests/exec-network/network-fixture.h"

#include <math.h>

#include "core/plan/device-layout.h"

#define GUARD 4096
#define POISON 0xff /* NaN in every storage */
#define GUARD_BYTE 0xa5

RpModel
network_config(RpArchitecture architecture, gboolean tied)
{
    const gboolean llama = architecture == RP_ARCHITECTURE_LLAMA;

    return (RpModel){.architecture = architecture,
                     .hidden = 18,
                     .blocks = 2,
                     .heads = 4,
                     .kv_heads = llama ? 1 : 2,
                     .head_dim = 6,
                     .intermediate = 23,
                     .vocab = 41,
                     .max_positions = 64,
                     .rms_norm_eps = 1e-6,
                     .rope = {.type = RP_ROPE_DEFAULT, .theta = 1e4},
                     .tied = tied,
                     .attention_bias = llama,
                     .mlp_bias = llama,
                     .bos_id = RP_MODEL_NO_TOKEN,
                     .pad_id = RP_MODEL_NO_TOKEN};
}

RpModel
network_config_fused(void)
{
    RpModel config = network_config(RP_ARCHITECTURE_QWEN3, FALSE);

    config.hidden = 16;
    config.head_dim = 8;
    config.intermediate = 40;
    return config;
}

RpModel
network_config_qwen3_5(void)
{
    RpModel config = network_config(RP_ARCHITECTURE_QWEN3_5, FALSE);

    config.full_period = 2;
    config.head_dim = 8;
    config.rotary_dim = 4;
    config.delta_key_heads = 2;
    config.delta_value_heads = 4;
    config.delta_key_dim = 6;
    config.delta_value_dim = 5;
    config.delta_kernel = 4;
    return config;
}

/* Poisoned memory with a guard behind it. */
static guint8 *
guarded(gsize bytes)
{
    guint8 *memory = host_bytes(bytes + GUARD);

    memset(memory + bytes, GUARD_BYTE, GUARD);
    return memory;
}

static void
check_guard(const guint8 *memory, gsize bytes, const char *what)
{
    for (gsize i = 0; i < GUARD; i++)
        if (memory[bytes + i] != GUARD_BYTE)
            fail_msg("%s of %zu bytes: byte %zu was written", what, bytes, bytes + i);
}

/* @packed: (nullable): of frozen matrices */
static Model *
new_model(const RpModel *config, const RpLora *lora, const RpLowbit *packed,
          const RpNetworkOptions *options)
{
    Model *model = g_new0(Model, 1);
    gsize constant_bytes;

    model->config = *config;
    model->weights = rp_weights_new_adapted(config, lora);
    rp_weights_store_base(model->weights, options->dtype);
    if (packed != NULL)
        rp_weights_pack_base(model->weights, *packed);
    model->network = rp_network_new(model->weights, rp_host_kernels(), options);
    assert_non_null(model->network);
    model->profile = rp_network_profile(model->network);
    model->tokens = (size_t)options->sequences * options->tokens;
    const RpInterval all = {0, rp_network_n_layers(model->network)};
    model->elements = rp_network_elements(model->network, all);
    model->parameters = guarded(rp_network_weight_bytes(model->network, all));
    if (rp_network_is_packed(model->network)) {
        const RpLayerLayout *last = rp_network_layout(model->network, all.count - 1);

        model->upload = host_bytes(last->first_upload + last->upload_bytes);
    }
    constant_bytes = rp_network_constant_bytes(model->network);
    model->constants = guarded(constant_bytes);
    rp_network_fill_constants(model->network, model->constants);
    check_guard(model->constants, constant_bytes, "constants");
    model->ids = host_bytes(model->tokens * sizeof(gint32));
    model->targets = host_bytes(model->tokens * sizeof(gint32));
    memset(model->ids, 0, model->tokens * sizeof(gint32));
    memset(model->targets, 0, model->tokens * sizeof(gint32));
    model->scale = 1;
    return model;
}

Model *
network_new(const RpModel *config, const RpNetworkOptions *options)
{
    return network_new_adapted(config, NULL, options);
}

Model *
network_new_adapted(const RpModel *config, const RpLora *lora, const RpNetworkOptions *options)
{
    return new_model(config, lora, NULL, options);
}

void
network_use_kernels(Model *model, const RpKernels *kernels)
{
    const RpNetworkOptions options = *rp_network_options(model->network);

    rp_network_free(model->network);
    model->network = rp_network_new(model->weights, kernels, &options);
}

void
network_free(Model *model)
{
    rp_profile_free(model->profile);
    rp_network_free(model->network);
    rp_weights_free(model->weights);
    g_free(model);
}

void
network_set_weight(Model *model, guint index, const float *values)
{
    const RpWeight *weight = rp_weights_nth(model->weights, index);
    const RpLayerLayout *layout = rp_network_layout(model->network, weight->layer);

    const RpWeightPlace place = rp_layout_place(layout, weight);
    guint8 *to = model->upload != NULL ? model->upload + layout->first_upload + place.upload
                                       : model->parameters + layout->first_byte + place.byte;
    float *scales;

    if (!place.is_packed) {
        rp_dtype_from_float(rp_network_options(model->network)->dtype, values, to,
                            weight->elements);
        return;
    }
    scales = host_bytes(rp_lowbit_pack_scales(place.format, place.packed_shape) * sizeof *scales);
    assert_true(rp_lowbit_pack(place.format, place.packed_shape, RP_DTYPE_FP32, values, 0,
                               rp_lowbit_strips(place.format, place.packed_shape), to,
                               scales) == RP_LOWBIT_NONE);
    rp_lowbit_pack_end(place.format, place.packed_shape, scales, to);
}

float *
network_gradient(const Model *model, const Run *run, guint index)
{
    const RpWeight *weight = rp_weights_nth(model->weights, index);
    const RpLayerLayout *layout = rp_network_layout(model->network, weight->layer);

    return run->sums + layout->first_element + rp_layout_place(layout, weight).element;
}

void
network_random_batch(Model *model, guint32 seed)
{
    GRand *random = g_rand_new_with_seed(seed);
    const gint32 vocab = (gint32)model->config.vocab;

    for (size_t t = 0; t < model->tokens; t++) {
        model->ids[t] = g_rand_int_range(random, 0, vocab);
        model->targets[t] = g_rand_int_range(random, 0, 4) == 0
                                ? RP_LABEL_MASKED
                                : g_rand_int_range(random, 0, vocab);
    }
    g_rand_free(random);
}

static Model *
fill_random(Model *model)
{
    GRand *random = g_rand_new_with_seed(20261120);

    for (guint i = 0; i < rp_weights_count(model->weights); i++) {
        const RpWeight *weight = rp_weights_nth(model->weights, i);
        float *values = host_bytes(weight->elements * sizeof *values);

        for (guint64 j = 0; j < weight->elements; j++)
            values[j] = (float)g_rand_double_range(random, -0.35, 0.35) + (weight->norm ? 1 : 0);
        network_set_weight(model, i, values);
    }
    g_rand_free(random);
    network_random_batch(model, 1);
    model->scale = 1.0f / (float)model->tokens;
    return model;
}

Model *
network_random(const RpModel *config, const RpNetworkOptions *options)
{
    return network_random_adapted(config, NULL, options);
}

Model *
network_random_adapted(const RpModel *config, const RpLora *lora, const RpNetworkOptions *options)
{
    return fill_random(network_new_adapted(config, lora, options));
}

Model *
network_random_packed(const RpModel *config, const RpLora *lora, RpLowbit format,
                      const RpNetworkOptions *options)
{
    return fill_random(new_model(config, lora, &format, options));
}

Run
network_run_new(const Model *model)
{
    const guint n = rp_network_n_layers(model->network);
    const gsize bytes = model->elements * sizeof(float);
    Run run = {.sums = (float *)guarded(bytes),
               .hidden = host_bytes(n * sizeof(guint8 *)),
               .d_hidden = host_bytes(n * sizeof(guint8 *)),
               .saved = host_bytes(n * sizeof(guint8 *))};

    if (model->upload != NULL)
        rp_network_expand(model->network, NULL, (RpInterval){0, n}, model->upload, (RpResidents){0},
                          model->parameters);
    if (model->begins)
        memset(run.sums, 0xff, bytes);
    else
        memset(run.sums, 0, bytes);
    memset(run.hidden, 0, n * sizeof *run.hidden);
    memset(run.d_hidden, 0, n * sizeof *run.d_hidden);
    memset(run.saved, 0, n * sizeof *run.saved);
    return run;
}

/* Size of the workspace, as the planner computes it. */
static gsize
workspace_bytes(const Model *model, StageVariant variant, RpInterval layers)
{
    const RpPartition none = {.dispatched = TRUE};
    RpLargest largest = {0};

    rp_largest_note(&largest, model->profile, &none, layers, variant == STAGE_FORWARD,
                    variant != STAGE_FORWARD);
    return largest
        .workspace[variant == STAGE_FORWARD ? RP_DIRECTION_FORWARD : RP_DIRECTION_BACKWARD];
}

static gsize
untouched_bytes(const guint8 *memory, gsize bytes)
{
    gsize n = 0;

    while (n < bytes && memory[bytes - 1 - n] == POISON)
        n++;
    return n;
}

/* Runs a prepared call in memory of exactly the size it may take. */
static void
run_call(const Model *model, StageVariant variant, RpStageCall *call, Run *run)
{
    const gsize bytes = workspace_bytes(model, variant, call->layers);
    guint8 *workspace = guarded(bytes);

    call->workspace = workspace;
    if (variant == STAGE_FORWARD) {
        rp_network_forward(model->network, call);
    } else if (variant == STAGE_FUSED) {
        rp_network_fused(model->network, call);
    } else {
        rp_network_recompute(model->network, call);
        rp_network_backward(model->network, call);
    }
    check_guard(workspace, bytes, "workspace");
    check_guard((guint8 *)run->sums, model->elements * sizeof(float), "sums");
    run->workspace_unused = untouched_bytes(workspace, bytes);
}

/* Place where the layers' forwards save values; the backward finds them there. */
static RpSavedPlace *
saved_places(const Model *model, RpInterval layers, Run *run)
{
    RpSavedPlace *places = host_bytes(layers.count * sizeof *places);

    for (guint i = 0; i < layers.count; i++) {
        const guint l = layers.first + i;

        if (run->saved[l] == NULL)
            run->saved[l] = guarded(rp_network_saved_bytes(model->network, l, model->saved));
        places[i] = (RpSavedPlace){model->saved, run->saved[l]};
    }
    return places;
}

static void
check_saved(const Model *model, RpInterval layers, const Run *run)
{
    for (guint l = layers.first; l < layers.first + layers.count; l++)
        check_guard(run->saved[l], rp_network_saved_bytes(model->network, l, model->saved),
                    "saved values");
}

void
network_stage(const Model *model, StageVariant variant, RpInterval layers, const guint *boundaries,
              guint n_boundaries, Run *run)
{
    const gsize hidden = rp_network_hidden_bytes(model->network);
    const guint end = layers.first + layers.count;
    const gboolean head = end == rp_network_n_layers(model->network);
    const gsize output_bytes =
        (variant == STAGE_FORWARD ? n_boundaries : layers.first > 0) * hidden;
    guint8 *output = guarded(output_bytes);
    const RpLayerLayout *layout = rp_network_layout(model->network, layers.first);
    double *loss = host_bytes(RP_STAGE_LOSSES * sizeof *loss);
    RpStageCall call = {.layers = layers,
                        .constants = model->constants,
                        .input = layers.first == 0 ? (const void *)model->ids
                                                   : run->hidden[layers.first],
                        .n_samples = model->n_samples,
                        .longest = model->longest,
                        .has_gaps = model->has_gaps,
                        .boundaries = boundaries,
                        .n_boundaries = n_boundaries,
                        .output = output_bytes > 0 ? output : NULL,
                        .drops = model->drops,
                        .padded = model->padded,
                        .adapters_off = model->adapters_off,
                        .step = 1,
                        .observe = model->observe,
                        .observe_data = model->observe_data};

    call.parameters = model->parameters + layout->first_byte;
    memset(loss, 0, RP_STAGE_LOSSES * sizeof *loss);
    loss[0] = run->loss;
    if (head) {
        call.targets = model->targets;
        call.rows = model->rows;
        call.n_rows = model->n_rows;
        call.scale = model->scale;
        call.aux_scale = model->aux_scale;
        call.documents = model->documents;
        call.loss = loss;
    }
    if (variant != STAGE_FORWARD) {
        call.sums = run->sums + layout->first_element;
        call.begins_sums = model->begins;
        call.gradient = head ? NULL : run->d_hidden[end];
    }
    if (model->saved != 0 && variant != STAGE_FUSED)
        call.saved = saved_places(model, layers, run);
    run_call(model, variant, &call, run);
    if (call.saved != NULL)
        check_saved(model, layers, run);
    check_guard(output, output_bytes, "output");
    run->loss = *loss;
    if (head && variant != STAGE_FORWARD)
        run->aux_loss = loss[1];
    for (guint i = 0; variant == STAGE_FORWARD && i < n_boundaries; i++)
        run->hidden[boundaries[i]] = output + i * hidden;
    if (variant != STAGE_FORWARD)
        run->d_hidden[layers.first] = call.output;
}

Run
network_whole(const Model *model)
{
    Run run = network_run_new(model);

    network_stage(model, STAGE_FUSED, (RpInterval){0, rp_network_n_layers(model->network)}, NULL, 0,
                  &run);
    return run;
}

static gboolean
begins(guint cuts, guint layer)
{
    return layer == 0 || (cuts >> (layer - 1) & 1);
}

Run
network_cut(const Model *model, guint forward, guint backward)
{
    const guint n = rp_network_n_layers(model->network);
    Run run = network_run_new(model);
    guint fused = n - 1;
    guint *boundaries = host_bytes((n + 1) * sizeof *boundaries);

    while (!begins(backward, fused))
        fused--;
    for (guint first = 0, end; first < fused; first = end) {
        guint n_boundaries = 1;

        for (end = first + 1; end < fused && !begins(forward, end); end++)
            if (begins(backward, end))
                boundaries[n_boundaries++] = end;
        boundaries[0] = end;
        network_stage(model, STAGE_FORWARD, (RpInterval){first, end - first}, boundaries,
                      n_boundaries, &run);
    }
    network_stage(model, STAGE_FUSED, (RpInterval){fused, n - fused}, NULL, 0, &run);
    for (guint end = fused, first; end > 0; end = first) {
        for (first = end - 1; !begins(backward, first);)
            first--;
        network_stage(model, STAGE_BACKWARD, (RpInterval){first, end - first}, NULL, 0, &run);
    }
    return run;
}

double
network_error(const float *a, const float *b, gsize n)
{
    double error = 0;
    double norm = 0;

    for (gsize i = 0; i < n; i++) {
        error += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return norm > 0 ? sqrt(error / norm) : sqrt(error);
}
