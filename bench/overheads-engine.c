/*
 * The real engine and the real CUDA backend, on a model so small that what is left is their own
 * cost: one block a stage, 16 tokens a micro-batch.
 *
 *   dispatch   |wait|record|launch|record| ...     host, per task of a device
 *   waiting    event happens ........ the host goes on
 *   handover   last compute action ... norm ... steps ... upload ... first compute action
 *
 * The backend's table of operations is replaced by one that counts and times them.
 */
#include "bench/overheads.h"

#include <glib/gstdio.h>
#include <stdatomic.h>
#include <string.h>

#include "bench/overheads-gate.h"
#include "exec/cuda/backend-private.h"
#include "exec/cuda/base/launch.h"
#include "exec/model/init.h"
#include "exec/train/trainer.h"

#define BLOCKS 4
#define TOKENS 16
#define VOCAB 64
#define WARM_UP 5 /* iterations: matmul plans are chosen, arrays grow */
#define SERIES 15
#define ITERATIONS 10 /* of a series */
#define MOST_SAMPLES (1 << 17)

/* ---- a backend that is watched ---- */

typedef enum { OP_LAUNCH, OP_COPY, OP_RECORD, OP_WAIT, N_OPS } Op;

static const char *const op_names[N_OPS] = {
    "launch: all kernels of a compute action",
    "copy: all pieces of a transfer",
    "record",
    "wait, in a stream",
};

typedef struct {
    const RpBackendOps *real;
    RpBackendOps table; /* in its place */
    RpDeviceOps devices;
    RpBackend *backend;
    const RpPlan *plan;
    gboolean timing;
    _Atomic guint n[N_OPS];
    _Atomic gint64 launch_ns; /* processor time of all launches */
    guint32 *samples[N_OPS];  /* [MOST_SAMPLES] ns */
    _Atomic gint64 host_cpu_ns[RP_HOST_LANES];
    _Atomic guint64 n_host_tasks;
} Watch;

/* One at a time: operations are told the backend alone. */
static Watch watch;

static void
note(Op op, gint64 start_ns)
{
    const gint64 ns = rp_overheads_clock_ns() - start_ns;
    const guint at = atomic_fetch_add(&watch.n[op], 1);

    if (at < MOST_SAMPLES)
        watch.samples[op][at] = (guint32)MIN(ns, G_MAXUINT32);
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
    const gint64 start_cpu_ns = thread_cpu_ns(), start_ns = rp_overheads_clock_ns();
    const gboolean done = watch.real->launch(backend, lane, task, part, error);

    note(OP_LAUNCH, start_ns);
    atomic_fetch_add(&watch.launch_ns, thread_cpu_ns() - start_cpu_ns);
    return done;
}

static gboolean
watched_copy(RpBackend *backend, RpBackendLane *lane, const RpBackendTask *task, GError **error)
{
    const gint64 start_ns = rp_overheads_clock_ns();
    const gboolean done = watch.real->copy(backend, lane, task, error);

    note(OP_COPY, start_ns);
    return done;
}

static gboolean
watched_record(RpBackend *backend, RpBackendLane *lane, RpBackendEvent *event, GError **error)
{
    const gint64 start_ns = rp_overheads_clock_ns();
    const gboolean done = watch.real->record(backend, lane, event, error);

    note(OP_RECORD, start_ns);
    return done;
}

static gboolean
watched_wait(RpBackend *backend, RpBackendLane *lane, RpBackendEvent *event, gint64 delay_ns,
             GError **error)
{
    const gint64 start_ns = rp_overheads_clock_ns();
    const gboolean done = watch.real->wait(backend, lane, event, delay_ns, error);

    note(OP_WAIT, start_ns);
    return done;
}

/* Host lanes have threads of their own, whose time is not that of issuing. */
static gboolean
watched_run_host(RpBackend *backend, RpHostLaneKind kind, const RpBackendTask *task, GError **error)
{
    const gboolean done = watch.real->run_host(backend, kind, task, error);

    atomic_store(&watch.host_cpu_ns[kind], thread_cpu_ns());
    atomic_fetch_add(&watch.n_host_tasks, 1);
    return done;
}

static RpBackend *
watched_backend_new(const RpPlan *plan, const RpNetwork *network, RpHome *home, RpFeed *feed,
                    const RpDeviceOptions *options, GError **error)
{
    RpBackend *backend = rp_cuda_devices()->backend_new(plan, network, home, feed, options, error);

    if (backend == NULL)
        return NULL;
    watch.real = backend->ops;
    watch.table = *backend->ops;
    watch.table.run_host = watched_run_host;
    if (watch.timing) {
        watch.table.launch = watched_launch;
        watch.table.copy = watched_copy;
        watch.table.record = watched_record;
        watch.table.wait = watched_wait;
    }
    watch.plan = plan;
    watch.backend = backend;
    backend->ops = &watch.table;
    return backend;
}

static void
open_watch(gboolean timing)
{
    watch = (Watch){.timing = timing, .devices = *rp_cuda_devices()};
    watch.devices.backend_new = watched_backend_new;
    for (guint op = 0; op < N_OPS; op++)
        watch.samples[op] = g_new(guint32, MOST_SAMPLES);
}

static void
close_watch(void)
{
    for (guint op = 0; op < N_OPS; op++)
        g_free(watch.samples[op]);
    watch = (Watch){.real = NULL};
}

/* ---- a tiny model in training ---- */

typedef struct {
    guint gpus;
    gboolean async;
    RpConsistency consistency;
    gboolean keep_trace;
    gboolean timing;
} TinyOptions;

typedef struct {
    char *directory;
    RpModel config;
    RpSafetensors *file;
    RpWeights *weights;
    RpTrainer *trainer;
    RpTokenBatch *batch;
} Tiny;

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
open_model(Tiny *tiny, GError **error)
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

static void
remove_directory(char *directory)
{
    g_autoptr(GDir) files = g_dir_open(directory, 0, NULL);
    const char *name;

    while (files != NULL && (name = g_dir_read_name(files)) != NULL) {
        g_autofree char *path = g_build_filename(directory, name, NULL);

        (void)g_unlink(path);
    }
    (void)g_rmdir(directory);
    g_free(directory);
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
open_trainer(Tiny *tiny, const TinyOptions *options, GError **error)
{
    const guint ones[BLOCKS] = {1, 1, 1, 1};
    RpTrainerOptions trainer = {
        .devices = &watch.devices,
        .keep_trace = options->keep_trace,
        .weights = tiny->weights,
        .config = &tiny->config,
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
        rp_network_new(&tiny->config, tiny->weights, watch.devices.kernels(), &trainer.network);
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

static gboolean
run_step(Tiny *tiny, GError **error)
{
    return rp_trainer_forward_backward(tiny->trainer, tiny->batch, NULL, error) &&
           rp_trainer_step(tiny->trainer, error);
}

/* Each step by itself: no queue of a GPU is ever full. */
static gboolean
run_apart(Tiny *tiny, guint steps, GError **error)
{
    for (guint i = 0; i < steps; i++)
        if (!run_step(tiny, error) || !rp_trainer_flush(tiny->trainer, error))
            return FALSE;
    return TRUE;
}

static void
close_tiny(Tiny *tiny)
{
    rp_trainer_free(tiny->trainer);
    rp_token_batch_free(tiny->batch);
    rp_weights_free(tiny->weights);
    rp_safetensors_free(tiny->file);
    if (tiny->directory != NULL)
        remove_directory(tiny->directory);
    close_watch();
    (void)cudaGetLastError(); /* of a part that failed */
}

/* Also after it has failed: close_tiny(). */
static gboolean
open_tiny(Tiny *tiny, const TinyOptions *options, GError **error)
{
    *tiny = (Tiny){.directory = NULL};
    open_watch(options->timing);
    tiny->batch = make_batch(count_micro_batches(options->gpus));
    return open_model(tiny, error) && open_trainer(tiny, options, error) &&
           run_apart(tiny, WARM_UP, error);
}

/* ---- dispatch ---- */

typedef struct {
    gint64 issue_ns; /* processor time of the threads that issue */
    gint64 wall_ns;
    gint64 launch_ns; /* of the first, in launches; 0 if they are not timed */
    guint64 tasks;    /* of devices */
} Costs;

static Costs
read_costs(const Tiny *tiny)
{
    const RpEngineCost cost = rp_trainer_cost(tiny->trainer);
    Costs costs = {.issue_ns = cost.worker_cpu_ns,
                   .wall_ns = rp_overheads_clock_ns(),
                   .launch_ns = atomic_load(&watch.launch_ns),
                   .tasks = cost.tasks - atomic_load(&watch.n_host_tasks)};

    for (guint lane = 0; lane < RP_HOST_LANES; lane++)
        costs.issue_ns -= atomic_load(&watch.host_cpu_ns[lane]);
    return costs;
}

/* Per task of a device, us: one value a series. */
typedef struct {
    GArray *issue, *wall, *rest;
    guint64 tasks; /* of a step */
} Series;

static gboolean
run_series(Tiny *tiny, Series *series, GError **error)
{
    for (guint i = 0; i < SERIES; i++) {
        const Costs before = read_costs(tiny);

        if (!run_apart(tiny, ITERATIONS, error))
            return FALSE;
        const Costs after = read_costs(tiny);
        const double tasks = (double)(after.tasks - before.tasks);
        const double issue_us = (double)(after.issue_ns - before.issue_ns) / 1e3;
        const double launch_us = (double)(after.launch_ns - before.launch_ns) / 1e3;

        series->tasks = (after.tasks - before.tasks) / ITERATIONS;
        rp_overheads_note(series->issue, issue_us / tasks);
        rp_overheads_note(series->rest, (issue_us - launch_us) / tasks);
        rp_overheads_note(series->wall, (double)(after.wall_ns - before.wall_ns) / 1e3 / tasks);
    }
    return TRUE;
}

static char *
name_row(guint gpus, const char *what)
{
    return g_strdup_printf("%u GPU%s: %s", gpus, gpus == 1 ? "" : "s", what);
}

static void
add_op(const RpOverheads *overheads, guint gpus, Op op)
{
    g_autoptr(GArray) values = rp_overheads_values();
    g_autofree char *name = name_row(gpus, op_names[op]);
    g_autofree char *remark =
        g_strdup_printf("%.1f a step", (double)atomic_load(&watch.n[op]) / (SERIES * ITERATIONS));
    const guint n = MIN(atomic_load(&watch.n[op]), MOST_SAMPLES);

    for (guint i = 0; i < n; i++)
        rp_overheads_note(values, (double)watch.samples[op][i] / 1e3);
    rp_overheads_add(overheads, name, "us", values, remark);
}

static void
add_series(const RpOverheads *overheads, const TinyOptions *options, Series *series)
{
    g_autofree char *whole = name_row(options->gpus, "a task, processor time");
    g_autofree char *wall = name_row(options->gpus, "a task, time that passes");
    g_autofree char *rest = name_row(options->gpus, "a task, less launching its kernels");
    g_autofree char *remark = g_strdup_printf(
        "figure to hold: 20; %" G_GUINT64_FORMAT " device tasks a step", series->tasks);

    if (options->timing) {
        rp_overheads_add(overheads, rest, "us/task", series->rest, "the next four rows are timed");
        for (Op op = 0; op < N_OPS; op++)
            add_op(overheads, options->gpus, op);
    } else {
        rp_overheads_add(overheads, whole, "us/task", series->issue, remark);
        rp_overheads_add(overheads, wall, "us/task", series->wall,
                         "steps one at a time; the devices' time is in it");
    }
}

static gboolean
measure_dispatch(const RpOverheads *overheads, guint gpus, gboolean timing, GError **error)
{
    const TinyOptions options = {.gpus = gpus, .timing = timing};
    g_autoptr(GArray) issue = rp_overheads_values();
    g_autoptr(GArray) wall = rp_overheads_values();
    g_autoptr(GArray) rest = rp_overheads_values();
    Series series = {.issue = issue, .wall = wall, .rest = rest};
    Tiny tiny;
    gboolean done = open_tiny(&tiny, &options, error);

    for (Op op = 0; op < N_OPS; op++) /* the warm-up's */
        atomic_store(&watch.n[op], 0);
    done = done && run_series(&tiny, &series, error);
    if (done)
        add_series(overheads, &options, &series);
    close_tiny(&tiny);
    return done;
}

gboolean
rp_overheads_dispatch(const RpOverheads *overheads, GError **error)
{
    const guint all = overheads->gpus;

    return measure_dispatch(overheads, 1, FALSE, error) &&
           measure_dispatch(overheads, 1, TRUE, error) &&
           (all < 2 || (measure_dispatch(overheads, all, FALSE, error) &&
                        measure_dispatch(overheads, all, TRUE, error)));
}

/* ---- waiting ---- */

#define WAITS 60
#define HELD_NS 1000000 /* longer than the backend's naps grow */

typedef enum { WAIT_SPIN, WAIT_BACKEND, WAIT_SYNCHRONIZE, WAIT_CALLBACK, N_WAITS } Wait;

static const char *const wait_names[N_WAITS] = {
    "asking all the time (cudaEventQuery)",
    "as the backend: asking and naps of 2 to 100 us",
    "cudaEventSynchronize",
    "host function in the stream, as losses come home",
};

typedef struct {
    gint64 ns; /* when it was called */
} Callback;

static void CUDART_CB
hold_a_while(void *data)
{
    const gint64 end_ns = rp_overheads_clock_ns() + HELD_NS;

    while (rp_overheads_clock_ns() < end_ns)
        ;
}

static void CUDART_CB
note_time(void *data)
{
    ((Callback *)data)->ns = rp_overheads_clock_ns();
}

static cudaError_t
wait_by(Wait how, cudaStream_t stream, RpBackendEvent *event, Callback *callback, GError **error)
{
    cudaError_t status;

    switch (how) {
    case WAIT_SPIN:
        do
            status = rp_cuda_query_event(event->event);
        while (status == cudaErrorNotReady);
        return status;
    case WAIT_BACKEND:
        return watch.real->wait_host(watch.backend, event, error) ? cudaSuccess : cudaErrorUnknown;
    case WAIT_SYNCHRONIZE:
        return cudaEventSynchronize(event->event);
    default:
        status = cudaLaunchHostFunc(stream, note_time, callback);
        return status == cudaSuccess ? cudaStreamSynchronize(stream) : status;
    }
}

/* From when the event happened (by the device's clock) to when the host knows of it, us. */
static gboolean
time_wait(Wait how, RpBackendLane *lane, RpBackendEvent *event, void *memory, double *us,
          GError **error)
{
    Callback callback = {.ns = 0};
    gint64 told_ns;

    if (!rp_cuda_ok(cudaLaunchHostFunc(lane->stream, hold_a_while, NULL), "cudaLaunchHostFunc",
                    error) ||
        !rp_cuda_ok(rp_cuda_fill(RP_DTYPE_FP32, memory, 1, 0, lane->stream), "a kernel", error) ||
        !watch.real->record(watch.backend, lane, event, error))
        return FALSE;
    const cudaError_t status = wait_by(how, lane->stream, event, &callback, error);
    told_ns = how == WAIT_CALLBACK ? callback.ns : rp_overheads_clock_ns();
    if (error != NULL && *error != NULL)
        return FALSE;
    if (!rp_cuda_ok(status, wait_names[how], error))
        return FALSE;
    *us = (double)(told_ns - watch.real->event_ns(watch.backend, event)) / 1e3;
    return TRUE;
}

static gboolean
measure_wait(const RpOverheads *overheads, Wait how, RpBackendLane *lane, RpBackendEvent *event,
             void *memory, GError **error)
{
    g_autoptr(GArray) values = rp_overheads_values();
    g_autofree char *remark = NULL;

    for (guint i = 0; i <= WAITS; i++) {
        double us;

        if (!time_wait(how, lane, event, memory, &us, error))
            return FALSE;
        if (i > 0)
            rp_overheads_note(values, us);
    }
    remark = g_strdup_printf("clocks agree to %.1f us",
                             (double)rp_cuda_backend_clock_error_ns(watch.backend) / 1e3);
    rp_overheads_add(overheads, wait_names[how], "us", values, remark);
    return TRUE;
}

/* A lane of its own of the backend, whose trainer stands still meanwhile. */
static gboolean
measure_waits(const RpOverheads *overheads, GError **error)
{
    RpBackendLane *lane = watch.real->lane_new(watch.backend, 0, RP_LANE_ACTIVATION_DOWN, error);
    RpBackendEvent *event = NULL;
    void *memory = NULL;
    gboolean done = lane != NULL;

    if (done)
        event = watch.real->event_new(watch.backend, 0, error);
    done = event != NULL && rp_cuda_ok(cudaMalloc(&memory, 256), "cudaMalloc", error);
    for (Wait how = WAIT_SPIN; done && how < N_WAITS; how++)
        done = measure_wait(overheads, how, lane, event, memory, error);
    if (lane != NULL)
        watch.real->lane_free(watch.backend, lane);
    if (event != NULL)
        watch.real->event_free(watch.backend, event);
    (void)cudaFree(memory);
    return done;
}

gboolean
rp_overheads_waiting(const RpOverheads *overheads, GError **error)
{
    const TinyOptions options = {.gpus = 1};
    Tiny tiny;
    const gboolean done = open_tiny(&tiny, &options, error) && measure_waits(overheads, error);

    close_tiny(&tiny);
    return done;
}

/* ---- hand-over ---- */

#define TURNS 60 /* from one iteration to the next */

/* Of an iteration, ns of the trace; -1: not seen. */
typedef struct {
    gint64 compute_start, compute_end;
    gint64 upload_start; /* the first */
    gint64 norm_end;
    gint64 barrier_end;
    gint64 ready; /* the last step of a layer of which that upload reads */
} Turn;

/* Whether the first upload of an iteration reads @layer. */
static gboolean
is_first_to_go(guint layer)
{
    const RpChunks *chunks = &rp_plan_stage(watch.plan, 0)->parameters;

    for (guint i = 0; chunks->n_chunks > 0 && i < chunks->first_segment[1]; i++)
        if (chunks->segments[i].layer == layer)
            return TRUE;
    return FALSE;
}

static gint64
earliest(gint64 a, gint64 b)
{
    return a < 0 ? b : MIN(a, b);
}

static void
note_record(Turn *turn, const RpTraceRecord *record)
{
    if (record->kind <= RP_TASK_OVERLAP) {
        turn->compute_start = earliest(turn->compute_start, record->start_ns);
        turn->compute_end = MAX(turn->compute_end, record->end_ns);
    } else if (record->kind == RP_TASK_PARAMETER_UPLOAD) {
        turn->upload_start = earliest(turn->upload_start, record->start_ns);
    } else if (record->kind == RP_TASK_NORM) {
        turn->norm_end = record->end_ns;
    } else if (record->kind == RP_TASK_BARRIER) {
        turn->barrier_end = MAX(turn->barrier_end, record->end_ns);
    } else if (record->kind == RP_TASK_OPTIMIZER_STEP && is_first_to_go(record->layer)) {
        turn->ready = MAX(turn->ready, record->end_ns);
    }
}

/* (element-type Turn), by iteration */
static GArray *
read_turns(const RpTrace *trace)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    const Turn unseen = {-1, -1, -1, -1, -1, -1};
    GArray *turns = g_array_new(FALSE, FALSE, sizeof(Turn));

    for (gsize i = 0; i < rp_trace_n_records(trace); i++) {
        while (turns->len <= records[i].iteration)
            g_array_append_val(turns, unseen);
        note_record(&g_array_index(turns, Turn, records[i].iteration), &records[i]);
    }
    return turns;
}

static void
add_turns(const RpOverheads *overheads, const TinyOptions *options, const RpTrace *trace)
{
    const gboolean blocking = options->consistency == RP_CONSISTENCY_BLOCKING;
    const char *mode = options->async ? "async" : "sync";
    const char *protocol = blocking ? "blocking" : "events";
    g_autoptr(GArray) turns = read_turns(trace);
    g_autoptr(GArray) idle_us = rp_overheads_values();
    g_autoptr(GArray) handover_us = rp_overheads_values();
    g_autoptr(GArray) update_us = rp_overheads_values();
    g_autofree char *idle =
        g_strdup_printf("%s, %s: last compute action to the next first one", mode, protocol);
    g_autofree char *handover = g_strdup_printf("%s, %s: %s to upload", mode, protocol,
                                                blocking ? "barrier" : "layer's step");
    g_autofree char *update = g_strdup_printf("%s, %s: norm known to upload", mode, protocol);

    /* the first after the warm-up begins from a standstill, and the last ends in one */
    for (guint t = WARM_UP + 2; t + 1 < turns->len; t++) {
        const Turn *turn = &g_array_index(turns, Turn, t);
        const Turn *next = &g_array_index(turns, Turn, t + 1);
        const gint64 ready = blocking ? turn->barrier_end : turn->ready;

        if (turn->compute_end >= 0 && next->compute_start >= 0)
            rp_overheads_note(idle_us, (double)(next->compute_start - turn->compute_end) / 1e3);
        if (ready >= 0 && next->upload_start >= 0)
            rp_overheads_note(handover_us, (double)(next->upload_start - ready) / 1e3);
        if (turn->norm_end >= 0 && next->upload_start >= 0)
            rp_overheads_note(update_us, (double)(next->upload_start - turn->norm_end) / 1e3);
    }
    rp_overheads_add(overheads, idle, "us", idle_us, NULL);
    if (options->async)
        return; /* nothing waits for this iteration's update */
    rp_overheads_add(overheads, handover, "us", handover_us,
                     "host's clock to the device's: within the clocks' error");
    rp_overheads_add(overheads, update, "us", update_us,
                     blocking ? "all layers' copies and steps" : "steps of the layers it reads");
}

static gboolean
measure_turns(const RpOverheads *overheads, gboolean async, RpConsistency consistency,
              GError **error)
{
    const TinyOptions options = {
        .gpus = 1, .async = async, .consistency = consistency, .keep_trace = TRUE};
    Tiny tiny;
    gboolean done = open_tiny(&tiny, &options, error);

    for (guint i = 0; done && i < TURNS; i++)
        done = run_step(&tiny, error);
    done = done && rp_trainer_flush(tiny.trainer, error);
    if (done) {
        g_autoptr(RpTrace) trace = rp_trainer_steal_trace(tiny.trainer);

        add_turns(overheads, &options, trace);
    }
    close_tiny(&tiny);
    return done;
}

gboolean
rp_overheads_handover(const RpOverheads *overheads, GError **error)
{
    for (guint async = 0; async <= 1; async++)
        for (RpConsistency c = RP_CONSISTENCY_EVENTS; c <= RP_CONSISTENCY_BLOCKING; c++)
            if (!measure_turns(overheads, async == 1, c, error))
                return FALSE;
    return TRUE;
}
