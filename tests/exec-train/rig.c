#include "tests/exec-train/rig.h"

#include <glib/gstdio.h>
#include <sys/mman.h>

#include "exec/host/kernels.h"
#include "exec/model/init.h"
#include "exec/quantise/quantise.h"

static const RpModel tiny = {
    .architecture = RP_ARCHITECTURE_QWEN3,
    .hidden = 24,
    .blocks = RIG_BLOCKS,
    .heads = 4,
    .kv_heads = 2,
    .head_dim = 8,
    .intermediate = 40,
    .vocab = 50,
    .max_positions = 32,
    .rms_norm_eps = 1e-6,
    .initializer_range = 0.2,
    .rope = {.theta = 1e4},
    .has_dtype = TRUE,
    .bos_id = RP_MODEL_NO_TOKEN,
    .pad_id = RP_MODEL_NO_TOKEN,
};

int
rig_set_up(void **state)
{
    *state = g_new0(Rig, 1);
    return 0;
}

static void
remove_directory(char *directory)
{
    g_autoptr(GDir) files = g_dir_open(directory, 0, NULL);
    const char *name;

    while (files != NULL && (name = g_dir_read_name(files)) != NULL) {
        g_autofree char *path = g_build_filename(directory, name, NULL);
        g_unlink(path);
    }
    g_rmdir(directory);
    g_free(directory);
}

void
rig_clear(Rig *rig)
{
    g_clear_pointer(&rig->engine, rp_engine_free);
    g_clear_pointer(&rig->backend, rp_host_devices()->backend_free);
    g_clear_pointer(&rig->host_state, rp_host_state_free);
    g_clear_pointer(&rig->feed, rp_batch_feed_free);
    if (rig->memory != NULL)
        munmap(rig->memory, rig->memory_bytes);
    g_clear_pointer(&rig->batches, g_ptr_array_unref);
    g_clear_pointer(&rig->planner, rp_planner_free);
    g_clear_pointer(&rig->partition, rp_partition_free);
    g_clear_pointer(&rig->profile, rp_profile_free);
    g_clear_pointer(&rig->network, rp_network_free);
    g_clear_pointer(&rig->weights, rp_weights_free);
    g_clear_pointer(&rig->packed, rp_safetensors_free);
    g_clear_pointer(&rig->file, rp_safetensors_free);
    if (rig->directory != NULL)
        remove_directory(rig->directory);
    g_clear_error(&rig->error);
    *rig = (Rig){0};
}

int
rig_tear_down(void **state)
{
    rig_clear(*state);
    g_free(*state);
    return 0;
}

static void
freeze(Rig *rig)
{
    g_auto(GStrv) words =
        g_strsplit(rig->options.frozen != NULL ? rig->options.frozen : "", ",", -1);

    for (guint w = 0; words[w] != NULL; w++)
        for (guint i = 0; i < rp_weights_count(rig->weights); i++)
            if (strstr(rp_weights_nth(rig->weights, i)->name, words[w]) != NULL)
                rp_weights_freeze(rig->weights, i,
                                  rig->options.wide && strstr(rp_weights_nth(rig->weights, i)->name,
                                                              "proj.weight") != NULL
                                      ? RP_DTYPE_FP32
                                      : rig->options.dtype);
}

/* Overwrites each packed weight's 16-bit values by those of its packed form. */
static void
write_expanded(Rig *rig, RpLowbit format)
{
    g_autofree char *path = g_build_filename(rig->directory, "model.safetensors", NULL);
    g_autoptr(RpWeights) plain = rp_weights_new(&rig->config);
    g_autoptr(RpWeights) packed = rp_weights_new(&rig->config);
    g_autoptr(RpSafetensorsWriter) writer = rp_safetensors_writer_new(path, 0);
    const guint n = rp_weights_count(plain);

    assert_true(rp_weights_bind(plain, rig->file, NULL));
    for (guint i = 0; i < n; i++)
        rp_weights_freeze(packed, i, rig->options.dtype);
    rp_weights_pack_base(packed, format);
    assert_true(rp_weights_bind(packed, rig->packed, &rig->error));
    for (guint i = 0; i < n; i++)
        if (!rp_weights_nth(plain, i)->tied)
            rp_safetensors_writer_add(writer, rp_weights_nth(plain, i)->name, rig->options.dtype,
                                      rp_weights_nth(plain, i)->shape,
                                      rp_weights_nth(plain, i)->rank);
    assert_true(rp_safetensors_writer_begin(writer, NULL));
    for (guint i = 0, number = 0; i < n; i++) {
        const RpWeight *weight = rp_weights_nth(packed, i);
        const RpSafetensor *source = rp_weights_source(plain, i);
        g_autofree guint8 *bytes = g_memdup2(source->data, source->bytes);

        if (weight->tied)
            continue;
        if (weight->is_packed) { /* an expert's matrix is a piece of its expanded stack */
            const RpLowbitShape shape = rp_weight_lowbit_shape(weight);
            void *room = g_aligned_alloc0(1, rp_lowbit_layout(format, shape).total, 64);

            rp_lowbit_source_load(rp_weights_packed(packed, i), room, NULL);
            rp_lowbit_expand(format, shape, room, rig->options.dtype, weight->offset,
                             weight->elements, bytes);
            g_aligned_free(room);
        }
        assert_true(
            rp_safetensors_writer_write(writer, number++, bytes, source->bytes, &rig->error));
    }
    assert_true(rp_safetensors_writer_finish(writer, &rig->error));
    rp_safetensors_free(rig->file);
    rig->file = rp_must(rp_safetensors_open, rig->directory);
}

/* The base in few bits. */
static void
pack_base(Rig *rig)
{
    const RpQuantiseOptions options = {0};
    RpLowbit format = RP_LOWBIT_NF4;

    if (rig->options.base == NULL)
        return;
    assert_true(rp_lowbit_from_name(rig->options.base, &format));
    g_autofree char *path = rp_quantise_path(rig->file, format);
    assert_true(rp_quantise(&rig->config, rig->file, format, path, &options, &rig->error));
    rig->packed = rp_must(rp_safetensors_open, path);
    if (rig->options.expanded)
        write_expanded(rig, format);
}

static void
open_model(Rig *rig)
{
    const RpInitOptions init = {.seed = 1};
    const RpNetworkOptions options = {
        .dtype = rig->options.dtype, .sequences = RIG_SEQUENCES, .tokens = RIG_TOKENS};

    rig->config = tiny;
    rig->config.dtype = rig->options.dtype;
    rig->config.tied = rig->options.tied;
    if (rig->options.experts) {
        rig->config.architecture = RP_ARCHITECTURE_QWEN3_MOE;
        rig->config.dense_intermediate = rig->config.intermediate;
        rig->config.intermediate = 14;
        rig->config.experts = 5;
        rig->config.active_experts = 2;
        rig->config.norm_topk = TRUE;
    }
    rig->directory = rp_must(g_dir_make_tmp, "rp-rig-XXXXXX");
    assert_true(rp_init_write(&rig->config, rig->directory, &init, &rig->error));
    rig->file = rp_must(rp_safetensors_open, rig->directory);
    g_auto(RpLora) lora = {.rank = rig->options.lora_rank,
                           .alpha = RP_LORA_ALPHA,
                           .seed = 5,
                           .targets = rig->options.lora_targets != NULL
                                          ? g_strsplit(rig->options.lora_targets, ",", -1)
                                          : NULL};

    rig->weights = rp_weights_new_adapted(&rig->config, &lora);
    rp_weights_store_base(rig->weights, rig->options.dtype);
    pack_base(rig);
    const RpSafetensors *file =
        rig->packed != NULL && !rig->options.expanded ? rig->packed : rig->file;
    if (!rp_weights_adopt(rig->weights, file, &rig->error) ||
        !rp_weights_bind(rig->weights, file, &rig->error))
        rp_assert_no_error(rig->error);
    freeze(rig);
    rig->network = rp_network_new(rig->weights, rp_host_kernels(), &options);
    rig->profile = rp_network_profile(rig->network);
    rig->profile->links.h2d_bytes_per_s = rig->profile->links.d2h_bytes_per_s = 1e9;
    for (guint l = 0; l < rig->profile->n_layers; l++) {
        rig->profile->layers[l].forward_ns = rig->profile->layers[l].recompute_ns = 1000;
        rig->profile->layers[l].backward_ns = 2000;
    }
}

static void
open_partition(Rig *rig, gboolean dispatched)
{
    g_autoptr(GArray) forward = rig->options.forward[0] == '\0'
                                    ? g_array_new(FALSE, FALSE, sizeof(guint))
                                    : rp_partition_parse_list(rig->options.forward, &rig->error);
    const guint *counts = (const guint *)(void *)forward->data;

    if (dispatched) {
        g_autoptr(GArray) backward = rp_partition_parse_list(rig->options.backward, &rig->error);
        rig->partition = rp_partition_from_dispatched_blocks(rig->profile, counts, forward->len,
                                                             (const guint *)(void *)backward->data,
                                                             backward->len, &rig->error);
    } else {
        rig->partition = rp_partition_from_blocks(rig->profile, counts, forward->len, &rig->error);
    }
    rp_assert_no_error(rig->error);
}

static void
open_plan(Rig *rig, guint iterations)
{
    const RigOptions *options = &rig->options;
    const RpScheduleOps *schedule = rp_must(rp_schedule_find, options->schedule);
    const RpPlanOptions plan = {
        .schedule = schedule,
        .gpus = options->gpus,
        .micro_batches = options->micro_batches,
        .calls = options->calls,
        .round = options->round,
        .sum_rounds = TRUE, /* rounds apart: test-round-sums.c */
        .async = options->async,
        .fidelity = RP_FIDELITY_FULL,
        .step_at_once = options->max_grad_norm <= 0 && !options->scale_loss,
        .consistency = options->consistency,
        .optimizer = options->optimizer,
    };

    open_partition(rig, schedule->dispatched);
    rig->planner = rp_must(rp_planner_new, rig->profile, rig->partition, &plan);
    rig->plan = rp_planner_plan(rig->planner);
    for (guint i = 0; i < iterations; i++)
        assert_true(rp_planner_append_iteration(rig->planner, &rig->error));
    rp_planner_finish(rig->planner);
}

static RigOptions
with_defaults(const RigOptions *given)
{
    RigOptions options = *given;

    if (options.schedule == NULL)
        options.schedule = "roundpipe";
    if (options.forward == NULL)
        options.forward = "2,1";
    if (options.backward == NULL)
        options.backward = "1,1,2";
    options.gpus = MAX(1, options.gpus);
    options.micro_batches = MAX(1, options.micro_batches);
    options.calls = MAX(1, options.calls);
    return options;
}

void
rig_open(Rig *rig, const RigOptions *options, guint iterations)
{
    const RpAdamwOptions adamw = RP_ADAMW_OPTIONS_INIT;
    const RpLossScaleOptions loss_scale = RP_LOSS_SCALE_OPTIONS_INIT;

    rig_clear(rig);
    rig->options = with_defaults(options);
    open_model(rig);
    open_plan(rig, iterations);
    const RpUpdateOptions update = {
        .adamw = adamw,
        .learning_rate = {.kind = RP_LEARNING_RATE_LINEAR,
                          .peak = 0.01,
                          .warmup_steps = options->warmup,
                          .total_steps = 100},
        .max_grad_norm = options->max_grad_norm,
        .scale_loss = options->scale_loss,
        .loss_scale = loss_scale,
        .threads = options->threads,
        .nodes = options->nodes,
    };
    rig->host_state = rp_must(rp_host_state_new, rig->network, rig->plan, &update);
}

void
rig_attach(Rig *rig)
{
    rig->memory_bytes = rp_plan_arena_bytes(rig->plan, rig->options.gpus);
    rig->memory =
        mmap(NULL, rig->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(rig->memory != MAP_FAILED);
    rp_host_state_bind_numa(rig->host_state, rig->memory, rig->memory_bytes);
    assert_true(rp_host_state_attach(rig->host_state, rig->memory, rig->memory_bytes, &rig->error));
    rp_host_state_load(rig->host_state, rig->weights);
}

/* A micro-batch's tokens depend on nothing but its number, counted over the run. */
static void
fill_micro_batch(const Rig *rig, RpTokenBatch *batch, guint m, guint64 number)
{
    const guint n = RIG_SEQUENCES * RIG_TOKENS;
    const gint32 vocab = (gint32)rig->config.vocab;
    gint32 *ids = batch->input_ids + m * n;
    gint32 *targets = batch->targets + m * n;
    g_autoptr(GRand) random = g_rand_new_with_seed((guint32)number);

    for (guint i = 0; i < n; i++) {
        const gboolean last = i % RIG_TOKENS == RIG_TOKENS - 1;
        ids[i] = g_rand_int_range(random, 0, vocab);
        targets[i] = last ? RP_LABEL_MASKED : g_rand_int_range(random, 0, vocab);
        batch->n_targets += !last;
    }
}

static RpTokenBatch *
make_batch(Rig *rig, guint64 number)
{
    const RpBatcherOptions shape = {.micro_batches = rig->options.micro_batches,
                                    .sequences = RIG_SEQUENCES,
                                    .tokens = RIG_TOKENS};
    RpTokenBatch *batch = rp_token_batch_new(&shape);

    for (guint m = 0; m < shape.micro_batches; m++)
        fill_micro_batch(rig, batch, m, number * shape.micro_batches + m);
    g_ptr_array_add(rig->batches, batch);
    return batch;
}

void
rig_start(Rig *rig)
{
    const RpDeviceOptions options = {.memory_bytes = rig->options.device_memory_bytes};
    const guint n = rig->options.gpus + 1;
    g_autofree guint64 *bytes = g_new(guint64, n);

    rig->feed = rp_batch_feed_new(rig->options.micro_batches, rig->options.calls);
    rig->batches = g_ptr_array_new_with_free_func((GDestroyNotify)rp_token_batch_free);
    rig->backend = rp_host_devices()->backend_new(rig->plan, rig->network, rig->host_state,
                                                  rig->feed, &options, &rig->error);
    rp_assert_no_error(rig->error);
    for (guint i = 0; i < n; i++)
        bytes[i] = rp_plan_arena_bytes(rig->plan, i);
    if (!rig->backend->ops->open_arenas(rig->backend, bytes, n, &rig->error))
        return;
    rp_host_state_load(rig->host_state, rig->weights);
    rig->engine = rp_must(rp_engine_new, rig->plan, rig->backend, &(RpEngineOptions){0});
}

gboolean
rig_run(Rig *rig, guint iterations)
{
    for (guint i = 0; i < iterations; i++) {
        const guint64 iteration = rig->n_begun++;
        guint64 targets = 0;

        for (guint c = 0; c < rig->options.calls; c++) {
            const RpTokenBatch *batch = make_batch(rig, iteration * rig->options.calls + c);
            if (c == 0)
                rp_host_state_begin(rig->host_state, iteration, batch->n_targets);
            targets += batch->n_targets;
            rp_batch_feed_push(rig->feed, iteration, c, batch);
        }
        rp_host_state_set_targets(rig->host_state, iteration, targets);
    }
    return rp_engine_append(rig->engine, &rig->error) && rp_engine_finish(rig->engine, &rig->error);
}

float
rig_scale(const Rig *rig, guint64 iteration)
{
    const RpBuffer *buffer = rp_plan_buffer(rig->plan, rp_plan_decision(rig->plan, iteration));
    const RpBackendAccess access = {.offset = buffer->offset, .bytes = buffer->bytes};

    return rp_host_state_scale(rig->host_state, iteration,
                               rp_modes_wait_for_norm(rp_plan_modes(rig->plan)) ? &access : NULL);
}

GArray *
rig_masters(const Rig *rig)
{
    GArray *all = g_array_new(FALSE, FALSE, sizeof(float));

    for (guint l = 0; l < rp_network_n_layers(rig->network); l++) {
        const RpOptimizerState state = rp_host_state_layer_state(rig->host_state, l);
        g_array_append_vals(all, state.weight, (guint)state.n_parameters);
    }
    return all;
}

void
rig_poison(Rig *rig, guint layer, RpWeightKind kind, float value)
{
    const guint64 offset = rp_network_layout(rig->network, layer)->place[kind].byte;
    guint64 run;

    for (guint v = 0; v < (rp_modes_versions(rp_plan_modes(rig->plan)) == 2 ? 2 : 1); v++)
        rp_dtype_from_float(rig->options.dtype, &value,
                            rp_host_state_weights(rig->host_state, layer, v, offset, &run), 1);
}
