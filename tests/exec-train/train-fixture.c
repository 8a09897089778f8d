#include "tests/exec-train/train-fixture.h"

#include <glib/gstdio.h>

#include "core/base/hash.h"
#include "core/partition/partition.h"
#include "exec/host/kernels.h"
#include "exec/model/init.h"
#include "exec/quantise/quantise.h"

static const char config_text[] =
    "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"hidden_size\": 32,"
    " \"num_hidden_layers\": 5, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
    " \"head_dim\": 8, \"intermediate_size\": 48, \"vocab_size\": 61,"
    " \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0,"
    " \"hidden_act\": \"silu\", \"initializer_range\": 0.1, \"torch_dtype\": \"float32\","
    " \"tie_word_embeddings\": %s}";

static const char wide_text[] =
    "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"hidden_size\": 160,"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
    " \"head_dim\": 8, \"intermediate_size\": 640, \"vocab_size\": 1000,"
    " \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0,"
    " \"hidden_act\": \"silu\", \"initializer_range\": 0.1, \"torch_dtype\": \"float32\","
    " \"tie_word_embeddings\": %s}";

static const char experts_text[] =
    "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"model_type\": \"qwen3_moe\","
    " \"hidden_size\": 32, \"num_hidden_layers\": 5, \"num_attention_heads\": 4,"
    " \"num_key_value_heads\": 2, \"head_dim\": 8, \"intermediate_size\": 48, \"vocab_size\": 61,"
    " \"moe_intermediate_size\": 9, \"num_experts\": 5, \"num_experts_per_tok\": 2,"
    " \"norm_topk_prob\": true, \"initializer_range\": 0.1, \"torch_dtype\": \"float32\"}";

/* (transfer full) */
static RpTinyModel *
model_of(const char *text)
{
    RpTinyModel *model = g_new0(RpTinyModel, 1);
    const RpInitOptions options = {.seed = 7};
    GError *error = NULL;

    model->directory = g_dir_make_tmp("rp-train-XXXXXX", NULL);
    g_assert_true(rp_hf_config_parse("config", text, strlen(text), &model->config, &error));
    g_assert_true(rp_init_write(&model->config, model->directory, &options, &error));
    model->file = rp_safetensors_open(model->directory, &error);
    g_assert_no_error(error);
    model->weights = rp_weights_new(&model->config);
    g_assert_true(rp_weights_bind(model->weights, model->file, &error));
    return model;
}

RpTinyModel *
rp_tiny_model_new(gboolean tied)
{
    char text[sizeof config_text + 8];

    g_snprintf(text, sizeof text, config_text, tied ? "true" : "false");
    return model_of(text);
}

RpTinyModel *
rp_tiny_model_new_wide(gboolean tied)
{
    char text[sizeof wide_text + 8];

    g_snprintf(text, sizeof text, wide_text, tied ? "true" : "false");
    return model_of(text);
}

RpTinyModel *
rp_tiny_model_new_experts(void)
{
    return model_of(experts_text);
}

void
rp_tiny_model_adapt(RpTinyModel *model, guint rank, const char *target, RpDtype storage)
{
    char *targets[] = {(char *)target, NULL};
    const RpLora lora = {
        .rank = rank, .alpha = 2 * rank, .seed = 3, .targets = target != NULL ? targets : NULL};
    GError *error = NULL;

    rp_weights_free(model->weights);
    model->weights = rp_weights_new_adapted(&model->config, &lora);
    rp_weights_store_base(model->weights, storage);
    g_assert_true(rp_weights_bind(model->weights, model->file, &error));
}

void
rp_tiny_model_pack(RpTinyModel *model, RpLowbit format)
{
    const RpQuantiseOptions options = {0};
    g_autofree char *path = g_build_filename(model->directory, "packed.safetensors", NULL);
    GError *error = NULL;

    g_assert_true(rp_quantise(&model->config, model->file, format, path, &options, &error));
    g_clear_pointer(&model->packed, rp_safetensors_free);
    model->packed = rp_safetensors_open(path, &error);
    g_assert_no_error(error);
    g_assert_true(rp_weights_adopt(model->weights, model->packed, &error));
    g_assert_true(rp_weights_is_packed(model->weights));
    g_assert_true(rp_weights_bind(model->weights, model->packed, &error));
}

void
rp_tiny_model_free(RpTinyModel *model)
{
    static const char *const files[] = {"config.json", "model.safetensors", "packed.safetensors"};

    rp_weights_free(model->weights);
    rp_safetensors_free(model->packed);
    rp_safetensors_free(model->file);
    for (guint i = 0; i < G_N_ELEMENTS(files); i++) {
        g_autofree char *path = g_build_filename(model->directory, files[i], NULL);

        g_unlink(path);
    }
    g_rmdir(model->directory);
    g_free(model->directory);
    g_free(model);
}

/* Stages have equal numbers of blocks; the last one gets the rest. */
static RpPartition *
make_partition(const RpProfile *profile, const RpScheduleOps *schedule, const RpTinyRun *run)
{
    const guint blocks = rp_profile_n_blocks(profile);
    guint counts[16], forward[16];
    guint n = 0, n_forward = 0;

    if (!schedule->dispatched) {
        const guint stages = run->n_stages > 0 ? run->n_stages : run->devices;

        for (guint s = 0; s < stages; s++)
            counts[s] = blocks / stages + (s >= stages - blocks % stages ? 1 : 0);
        return rp_partition_from_blocks(profile, counts, stages, NULL);
    }
    const guint each = run->n_stages > 0 ? run->n_stages : 2;
    for (guint left = blocks; left > 0; left -= counts[n++])
        counts[n] = MIN(each, left);
    for (guint left = blocks - counts[0]; left > 0; left -= forward[n_forward++])
        forward[n_forward] = MIN(each + 1, left);
    return rp_partition_from_dispatched_blocks(profile, forward, n_forward, counts, n, NULL);
}

RpTrainer *
rp_tiny_trainer(const RpTinyModel *model, const RpTinyRun *run, GError **error)
{
    const RpScheduleOps *schedule = rp_schedule_find(run->schedule, NULL);
    const RpDeviceOps *backend = run->backend != NULL ? run->backend : rp_host_devices();
    RpTrainerOptions options = {
        .devices = backend,
        .evaluates = run->evaluates,
        .keep_trace = run->keep_trace,
        .weights = model->weights,
        .plan = {.schedule = schedule,
                 .gpus = run->devices,
                 .servers = run->servers != NULL ? rp_servers_count(run->servers) : 1,
                 .micro_batches = run->micro_batches,
                 .calls = run->calls,
                 .round = run->round,
                 .replicas = run->replicas,
                 .saved = {.groups = run->saved},
                 .reverse_backward = run->reverse,
                 .async = run->async,
                 .recompute = run->gated ? RP_RECOMPUTE_GATED : RP_RECOMPUTE_EARLY,
                 .transfers = run->naive ? RP_TRANSFERS_NAIVE : RP_TRANSFERS_WINDOWS,
                 .early_steps = run->early_steps ? RP_EARLY_ON : RP_EARLY_OFF,
                 .consistency = run->blocking ? RP_CONSISTENCY_BLOCKING : RP_CONSISTENCY_EVENTS,
                 .optimizer = run->lean ? RP_OPTIMIZER_LEAN : RP_OPTIMIZER_FUSED},
        .network = {.dtype = run->dtype,
                    .sequences = RP_TINY_SEQUENCES,
                    .tokens = RP_TINY_TOKENS,
                    .head_chunk = 8,
                    .packed_tokens = run->packed ? 4 : 0,
                    .preference = run->preference,
                    .aux_loss = run->aux_loss},
        .update = {.adamw = RP_ADAMW_OPTIONS_INIT,
                   .learning_rate = {.kind = RP_LEARNING_RATE_COSINE,
                                     .peak = 3e-3,
                                     .warmup_steps = 2,
                                     .total_steps = 40},
                   .max_grad_norm = run->max_grad_norm,
                   .scale_loss = run->dtype == RP_DTYPE_FP16,
                   .loss_scale = RP_LOSS_SCALE_OPTIONS_INIT,
                   .threads = run->threads,
                   .servers = run->servers},
        .device_memory_bytes = run->device_memory_bytes,
        .host_memory_bytes = run->host_memory_bytes,
        .done = run->done,
        .user_data = run->user_data,
    };
    if (run->max_skipped > 0)
        options.update.loss_scale.max_skipped = run->max_skipped;
    options.update.adamw.form = run->form;
    options.update.adamw.seed = 5;
    g_autoptr(RpNetwork) network =
        rp_network_new(model->weights, backend->kernels(), &options.network);
    g_autoptr(RpProfile) profile = rp_network_profile(network);

    for (guint l = 0; l < profile->n_layers; l++) {
        RpLayer *layer = &profile->layers[l];

        layer->forward_ns = layer->recompute_ns = 1000;
        layer->backward_ns = 2000;
    }
    profile->links.h2d_bytes_per_s = profile->links.d2h_bytes_per_s = 1e10;
    g_autoptr(RpPartition) partition = make_partition(profile, schedule, run);
    g_assert_nonnull(partition);
    options.profile = profile;
    options.partition = partition;
    return rp_trainer_new(&options, error);
}

RpTokenBatch *
rp_tiny_batch(guint64 step, guint first, guint n)
{
    const RpBatcherOptions options = {
        .micro_batches = n, .sequences = RP_TINY_SEQUENCES, .tokens = RP_TINY_TOKENS};
    RpTokenBatch *batch = rp_token_batch_new(&options);

    for (guint m = 0; m < n; m++) {
        g_autoptr(GRand) rand = g_rand_new_with_seed((guint32)(step * 1000 + first + m));

        for (guint i = 0; i < RP_TINY_SEQUENCES * RP_TINY_TOKENS; i++) {
            const guint at = m * RP_TINY_SEQUENCES * RP_TINY_TOKENS + i;
            const gboolean masked =
                i % RP_TINY_TOKENS == RP_TINY_TOKENS - 1 || g_rand_int_range(rand, 0, 5) == 0;

            batch->input_ids[at] = g_rand_int_range(rand, 0, 61);
            batch->targets[at] = masked ? RP_LABEL_MASKED : g_rand_int_range(rand, 0, 61);
            batch->n_micro_targets[m] += masked ? 0 : 1;
        }
        batch->n_targets += batch->n_micro_targets[m];
    }
    batch->n_tokens = (guint64)n * RP_TINY_SEQUENCES * RP_TINY_TOKENS;
    return batch;
}

/* The same tokens, divided into samples that share sequences. */
static RpTokenBatch *
pack_batch(RpTokenBatch *batch, guint64 seed)
{
    const RpBatcherOptions options = {.micro_batches = batch->micro_batches,
                                      .sequences = batch->sequences,
                                      .tokens = batch->tokens,
                                      .packing = TRUE};
    const gsize T = (gsize)batch->sequences * batch->tokens;
    RpTokenBatch *packed = rp_token_batch_new(&options);
    g_autoptr(GRand) rand = g_rand_new_with_seed((guint32)seed);

    memcpy(packed->input_ids, batch->input_ids, batch->micro_batches * T * sizeof(gint32));
    memcpy(packed->targets, batch->targets, batch->micro_batches * T * sizeof(gint32));
    packed->n_targets = batch->n_targets;
    packed->n_tokens = batch->n_tokens;
    for (guint m = 0; m < batch->micro_batches; m++) {
        gint32 *starts = packed->starts + m * (T + 1);
        guint n = 0;

        for (gint32 t = 0; t < (gint32)T; t++)
            if (t % RP_TINY_TOKENS == 0 || g_rand_int_range(rand, 0, 4) == 0)
                starts[n++] = t;
        starts[n] = (gint32)T;
        packed->n_starts[m] = n;
        for (guint i = 0; i < n; i++)
            packed->longest[m] = MAX(packed->longest[m], (guint32)(starts[i + 1] - starts[i]));
    }
    rp_token_batch_free(batch);
    return packed;
}

/* With several servers, makes this server's micro-batches, with the counts of all. */
static RpTokenBatch *
tiny_batch_of(const RpTinyRun *run, guint64 step, guint call)
{
    const guint n = run->micro_batches;
    const guint servers = run->servers != NULL ? rp_servers_count(run->servers) : 1;
    const guint rank = run->servers != NULL ? rp_servers_rank(run->servers) : 0;
    RpTokenBatch *batch = rp_tiny_batch(step, (call * servers + rank) * n, n);

    for (guint r = 0; r < servers; r++) {
        g_autoptr(RpTokenBatch) other = rp_tiny_batch(step, (call * servers + r) * n, n);

        batch->n_targets += r == rank ? 0 : other->n_targets;
        batch->n_tokens += r == rank ? 0 : other->n_tokens;
    }
    return batch;
}

void
rp_tiny_train(RpTrainer *trainer, const RpTinyRun *run, guint64 first_step, guint steps,
              double *losses)
{
    const guint calls = MAX(1, run->calls);
    g_autoptr(GPtrArray) batches =
        g_ptr_array_new_with_free_func((GDestroyNotify)rp_token_batch_free);
    GError *error = NULL;

    for (guint i = 0; i < steps; i++) {
        for (guint c = 0; c < calls; c++) {
            RpTokenBatch *batch = tiny_batch_of(run, first_step + i, c);

            if (run->packed)
                batch = pack_batch(batch, first_step + i);
            g_ptr_array_add(batches, batch);
            if (!rp_trainer_forward_backward(trainer, batch, losses != NULL ? &losses[i] : NULL,
                                             &error))
                fail_msg("%s", error->message);
        }
        if (!rp_trainer_step(trainer, &error))
            fail_msg("%s", error->message);
    }
    if (!rp_trainer_flush(trainer, &error))
        fail_msg("%s", error->message);
}

void
rp_tiny_train_overwriting(RpTrainer *trainer, const RpTinyRun *run, guint steps)
{
    const guint calls = MAX(1, run->calls);
    RpTokenBatch *batch = rp_tiny_batch(0, 0, run->micro_batches);
    RpTokenBatch *other = rp_tiny_batch(1000, 0, run->micro_batches);
    GError *error = NULL;
    gboolean done = TRUE;

    for (guint i = 0; i < steps && done; i++) {
        for (guint c = 0; c < calls && done; c++) {
            RpTokenBatch *next = rp_tiny_batch(i, c * run->micro_batches, run->micro_batches);

            rp_token_batch_copy(batch, next);
            done = rp_trainer_forward_backward(trainer, batch, NULL, &error);
            rp_token_batch_copy(batch, other);
            rp_token_batch_free(next);
        }
        done = done && rp_trainer_step(trainer, &error);
    }
    done = done && rp_trainer_flush(trainer, &error);
    rp_token_batch_free(other);
    rp_token_batch_free(batch);
    if (!done)
        fail_msg("%s", error->message);
}

static guint64
hash_moment(const RpOptimizerState *state, const void *moment, const float *scales, gsize n,
            guint64 hash)
{
    const gsize scale_bytes =
        rp_moment_scales(state->form.moments, state->first, n) * sizeof(float);

    hash = rp_hash64(moment, n * rp_moment_bytes(state->form.moments), hash);
    return scale_bytes > 0 ? rp_hash64(scales, scale_bytes, hash) : hash;
}

char *
rp_tiny_hash(RpTrainer *trainer)
{
    const RpWeights *weights = rp_network_weights(rp_trainer_network(trainer));
    const gsize element = rp_dtype_size(rp_network_options(rp_trainer_network(trainer))->dtype);
    guint64 hash = 0;

    for (guint w = 0; w < rp_weights_count(weights); w++) {
        const gsize n = rp_weights_nth(weights, w)->elements;

        if (!rp_weights_nth(weights, w)->trained)
            continue;
        const RpOptimizerState state = rp_trainer_weight_state(trainer, w);

        hash = rp_hash64(state.weight, n * rp_moment_bytes(state.form.master), hash);
        hash = hash_moment(&state, state.moment1, state.scale1, n, hash);
        if (state.moment2 != NULL)
            hash = hash_moment(&state, state.moment2, state.scale2, n, hash);
        hash = rp_hash64(rp_trainer_next_weight(trainer, w), n * element, hash);
    }
    return g_strdup_printf("%016" G_GINT64_MODIFIER "x", hash);
}

char *
rp_tiny_run_hash(const RpTinyModel *model, const RpTinyRun *run, guint steps)
{
    GError *error = NULL;
    RpTrainer *trainer = rp_tiny_trainer(model, run, &error);
    char *hash;

    if (trainer == NULL)
        fail_msg("%s on %u: %s", run->schedule, run->devices, error->message);
    rp_tiny_train(trainer, run, 0, steps, NULL);
    hash = rp_tiny_hash(trainer);
    rp_trainer_free(trainer);
    return hash;
}
