#include "bench/overheads/overheads.h"

#include <string.h>

#include "core/base/file.h"
#include "exec/model/init.h"

#define BLOCKS 4
#define TOKENS 16
#define VOCAB 64

/* ---- a backend that is watched ---- */

const char *const rp_overheads_op_names[N_OPS] = {
    "launch: all kernels of a compute action",
    "copy: all pieces of a transfer",
    "record",
    "wait, in a stream",
};

RpOverheadsWatch rp_overheads_watch;

static void
note(RpOverheadsOp op, gint64 start_ns)
{
    const gint64 ns = rp_clock_ns() - start_ns;
    const guint at = atomic_fetch_add(&rp_overheads_watch.n[op], 1);

    if (at < RP_OVERHEADS_MOST_SAMPLES)
        rp_overheads_watch.samples[op][at] = (guint32)MIN(ns, G_MAXUINT32);
}

static gint64
thread_cpu_ns(void)
{
    struct timespec time;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * G_GINT64_CONSTANT(1000000000) + time.tv_nsec;
}

static gboolean
watched_launch(RpBackend *backend, RpBackendLane *lane, const RpBackendTask *task, RpTaskPart part,
               GError **error)
{
    const gint64 start_cpu_ns = thread_cpu_ns(), start_ns = rp_clock_ns();
    const gboolean done = rp_overheads_watch.real->launch(backend, lane, task, part, error);

    note(OP_LAUNCH, start_ns);
    atomic_fetch_add(&rp_overheads_watch.launch_ns, thread_cpu_ns() - start_cpu_ns);
    return done;
}

#define WATCHED(operation, op, parameters, ...)                                                    \
    static gboolean watched_##operation parameters                                                 \
    {                                                                                              \
        const gint64 start_ns = rp_clock_ns();                                                     \
        const gboolean done = rp_overheads_watch.real->operation(__VA_ARGS__);                     \
                                                                                                   \
        note(op, start_ns);                                                                        \
        return done;                                                                               \
    }

WATCHED(copy, OP_COPY,
        (RpBackend * backend, RpBackendLane *lane, const RpBackendTask *task, GError **error),
        backend, lane, task, error)
WATCHED(record, OP_RECORD,
        (RpBackend * backend, RpBackendLane *lane, RpBackendEvent *event, GError **error), backend,
        lane, event, error)
WATCHED(wait, OP_WAIT,
        (RpBackend * backend, RpBackendLane *lane, RpBackendEvent *event, gint64 delay_ns,
         GError **error),
        backend, lane, event, delay_ns, error)

/* Host lanes have threads of their own, whose time is not that of issuing. */
static gboolean
watched_run_host(RpBackend *backend, RpHostLaneKind kind, const RpBackendTask *task, GError **error)
{
    const gboolean done = rp_overheads_watch.real->run_host(backend, kind, task, error);

    atomic_store(&rp_overheads_watch.host_cpu_ns[kind], thread_cpu_ns());
    atomic_fetch_add(&rp_overheads_watch.n_host_tasks, 1);
    return done;
}

static RpBackend *
watched_backend_new(const RpPlan *plan, const RpNetwork *network, RpHostState *host_state,
                    RpBatchFeed *feed, const RpDeviceOptions *options, GError **error)
{
    RpBackend *backend =
        rp_cuda_devices()->backend_new(plan, network, host_state, feed, options, error);

    if (backend == NULL)
        return NULL;
    rp_overheads_watch.real = backend->ops;
    rp_overheads_watch.table = *backend->ops;
    rp_overheads_watch.table.run_host = watched_run_host;
    if (rp_overheads_watch.timing) {
        rp_overheads_watch.table.launch = watched_launch;
        rp_overheads_watch.table.copy = watched_copy;
        rp_overheads_watch.table.record = watched_record;
        rp_overheads_watch.table.wait = watched_wait;
    }
    rp_overheads_watch.plan = plan;
    backend->ops = &rp_overheads_watch.table;
    return backend;
}

static void
open_watch(gboolean timing)
{
    rp_overheads_watch = (RpOverheadsWatch){.timing = timing, .devices = *rp_cuda_devices()};
    rp_overheads_watch.devices.backend_new = watched_backend_new;
    for (guint op = 0; op < N_OPS; op++)
        rp_overheads_watch.samples[op] = g_new(guint32, RP_OVERHEADS_MOST_SAMPLES);
}

static void
close_watch(void)
{
    for (guint op = 0; op < N_OPS; op++)
        g_free(rp_overheads_watch.samples[op]);
    rp_overheads_watch = (RpOverheadsWatch){.real = NULL};
}

/* ---- a tiny model in training ---- */

static const RpModel tiny_config = {
    .architecture = RP_ARCHITECTURE_QWEN3,
    .hidden = 32,
    .blocks = BLOCKS,
    .heads = 4,
    .kv_heads = 2,
    .head_dim = 8,
    .intermediate = 48,
    .vocab = VOCAB,
    .max_positions = TOKENS,
    .rms_norm_eps = 1e-6,
    .initializer_range = 0.02,
    .rope = {.theta = 1e4},
    .has_dtype = TRUE,
    .dtype = RP_DTYPE_BF16,
    .bos_id = RP_MODEL_NO_TOKEN,
    .pad_id = RP_MODEL_NO_TOKEN,
};

static gboolean
open_model(RpOverheadsModel *tiny, GError **error)
{
    const RpInitOptions init = {.seed = 1, .threads = 1};

    tiny->config = tiny_config;
    tiny->directory = g_dir_make_tmp("rp-overheads-XXXXXX", error);
    if (tiny->directory == NULL || !rp_init_write(&tiny->config, tiny->directory, &init, error))
        return FALSE;
    tiny->file = rp_safetensors_open(tiny->directory, error);
    if (tiny->file == NULL)
        return FALSE;
    tiny->weights = rp_weights_new(&tiny->config);
    return rp_weights_bind(tiny->weights, tiny->file, error);
}

static guint
count_micro_batches(guint gpus)
{
    return MAX(4, gpus);
}

static RpTokenBatch *
make_batch(guint micro_batches)
{
    const RpBatcherOptions shape = {
        .micro_batches = micro_batches, .sequences = 1, .tokens = TOKENS};
    RpTokenBatch *batch = rp_token_batch_new(&shape);

    for (guint i = 0; i < micro_batches * TOKENS; i++) {
        const gboolean last = i % TOKENS == TOKENS - 1;

        batch->input_ids[i] = (gint32)(i * 7 % VOCAB);
        batch->targets[i] = last ? RP_LABEL_MASKED : (gint32)((i + 1) * 7 % VOCAB);
        batch->n_micro_targets[i / TOKENS] += !last;
        batch->n_targets += !last;
    }
    batch->n_tokens = (guint64)micro_batches * TOKENS;
    return batch;
}

static gboolean
open_trainer(RpOverheadsModel *tiny, const RpOverheadsRun *options, GError **error)
{
    const guint ones[BLOCKS] = {1, 1, 1, 1};
    RpTrainerOptions trainer = {
        .devices = &rp_overheads_watch.devices,
        .keep_trace = options->keep_trace,
        .weights = tiny->weights,
        .plan = {.schedule = rp_schedule_find("roundpipe", NULL),
                 .gpus = options->gpus,
                 .micro_batches = count_micro_batches(options->gpus),
                 .async = options->async,
                 .consistency = options->consistency},
        .network = {.dtype = RP_DTYPE_BF16, .sequences = 1, .tokens = TOKENS},
        .update = {.adamw = RP_ADAMW_OPTIONS_INIT,
                   .learning_rate = {.kind = RP_LEARNING_RATE_CONSTANT,
                                     .peak = 1e-5,
                                     .total_steps = 1000},
                   .loss_scale = RP_LOSS_SCALE_OPTIONS_INIT,
                   .max_grad_norm = 1,
                   .threads = 1},
    };
    g_autoptr(RpNetwork) network =
        rp_network_new(tiny->weights, rp_overheads_watch.devices.kernels(), &trainer.network);
    g_autoptr(RpProfile) profile = rp_network_profile(network);

    for (guint l = 0; l < profile->n_layers; l++) {
        profile->layers[l].forward_ns = profile->layers[l].recompute_ns = 1000;
        profile->layers[l].backward_ns = 2000;
    }
    profile->links.h2d_bytes_per_s = profile->links.d2h_bytes_per_s = 1e10;
    g_autoptr(RpPartition) partition =
        rp_partition_from_dispatched_blocks(profile, ones, BLOCKS - 1, ones, BLOCKS, error);
    if (partition == NULL)
        return FALSE;
    trainer.profile = profile;
    trainer.partition = partition;
    tiny->trainer = rp_trainer_new(&trainer, error);
    return tiny->trainer != NULL;
}

gboolean
rp_overheads_step(RpOverheadsModel *tiny, GError **error)
{
    return rp_trainer_forward_backward(tiny->trainer, tiny->batch, NULL, error) &&
           rp_trainer_step(tiny->trainer, error);
}

gboolean
rp_overheads_steps_apart(RpOverheadsModel *tiny, guint steps, GError **error)
{
    for (guint i = 0; i < steps; i++)
        if (!rp_overheads_step(tiny, error) || !rp_trainer_flush(tiny->trainer, error))
            return FALSE;
    return TRUE;
}

void
rp_overheads_close(RpOverheadsModel *tiny)
{
    rp_trainer_free(tiny->trainer);
    rp_token_batch_free(tiny->batch);
    rp_weights_free(tiny->weights);
    rp_safetensors_free(tiny->file);
    if (tiny->directory != NULL)
        rp_file_remove_directory(tiny->directory);
    g_clear_pointer(&tiny->directory, g_free);
    close_watch();
    (void)cudaGetLastError(); /* clears the error of a part that failed */
}

gboolean
rp_overheads_open(RpOverheadsModel *tiny, const RpOverheadsRun *options, GError **error)
{
    *tiny = (RpOverheadsModel){.directory = NULL};
    open_watch(options->timing);
    tiny->batch = make_batch(count_micro_batches(options->gpus));
    return open_model(tiny, error) && open_trainer(tiny, options, error) &&
           rp_overheads_steps_apart(tiny, RP_OVERHEADS_WARM_UP, error);
}
