/*
 * The real engine and the real CUDA backend, on a model so small that only their own cost is left:
 * one block a stage, 16 tokens a micro-batch.
 *
 *   dispatch   |wait|record|launch|record| ...     host, per task of a device
 *   handover   last compute action ... norm ... steps ... upload ... first compute action
 *
 * Medians with p10 and p90; docs/lab/overheads.md explains the rows. A part that fails prints its error, and the
 * next one runs. Without a GPU the exit status is 77.
 *
 *   bench-cuda-overheads
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <glib.h>

#include "core/base/file.h"
#include "core/base/units.h"
#include "exec/cuda/backend-private.h"
#include "exec/cuda/runtime/check.h"
#include "exec/cuda/runtime/device.h"
#include "exec/model/init.h"
#include "exec/system/clock.h"
#include "exec/train/trainer.h"

#define NO_GPU 77 /* Meson: skipped */

#define WARM_UP 5 /* iterations: matmul plans are chosen, arrays grow */
#define SERIES 15
#define ITERATIONS 10 /* iterations of a series */
#define TURNS 60      /* from one iteration to the next */

/* ---- rows ---- */

static const char *running; /* the part that is */

static GArray *
new_values(void)
{
    return g_array_new(FALSE, FALSE, sizeof(double));
}

static void
note_value(GArray *values, double value)
{
    g_array_append_val(values, value);
}

static double
percentile(const GArray *values, guint percent)
{
    return g_array_index(values, double, (values->len - 1) * percent / 100);
}

/* One row: n, p10, median, p90. @values: (element-type double): one a repetition; sorted by this */
static void
add_row(const char *what, const char *unit, GArray *values, const char *remark)
{
    if (values->len == 0) {
        printf("%-9s %-58s nothing measured\n", running, what);
        return;
    }
    g_array_sort(values, rp_compare_doubles);
    const double low = percentile(values, 10), middle = percentile(values, 50);
    const double high = percentile(values, 90);

    printf("%-9s %-58s %6u %11.3f %11.3f %11.3f  %-10s %s\n", running, what, values->len, low,
           middle, high, unit, remark != NULL ? remark : "");
    (void)fflush(stdout);
}

/* ---- a backend that is watched: its table of operations is replaced by one that counts and times ---- */

#define MOST_SAMPLES (1 << 17)

typedef enum { OP_LAUNCH, OP_COPY, OP_RECORD, OP_WAIT, N_OPS } Op;

typedef struct {
    const RpBackendOps *real;
    RpBackendOps table; /* in its place */
    RpDeviceOps devices;
    const RpPlan *plan;
    gboolean timing;
    _Atomic guint n[N_OPS];
    _Atomic gint64 launch_ns; /* processor time of all launches */
    guint32 *samples[N_OPS];  /* [MOST_SAMPLES] ns */
    _Atomic gint64 host_cpu_ns[RP_HOST_LANES];
    _Atomic guint64 n_host_tasks;
} Watch;

/* Only one exists at a time, because operations get only the backend. */
static Watch watch;

static const char *const op_names[N_OPS] = {
    "launch: all kernels of a compute action",
    "copy: all pieces of a transfer",
    "record",
    "wait, in a stream",
};

static void
note(Op op, gint64 start_ns)
{
    const gint64 ns = rp_clock_ns() - start_ns;
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
    const gint64 start_cpu_ns = thread_cpu_ns(), start_ns = rp_clock_ns();
    const gboolean done = watch.real->launch(backend, lane, task, part, error);

    note(OP_LAUNCH, start_ns);
    atomic_fetch_add(&watch.launch_ns, thread_cpu_ns() - start_cpu_ns);
    return done;
}

#define WATCHED(operation, op, parameters, ...)                                                    \
    static gboolean watched_##operation parameters                                                 \
    {                                                                                              \
        const gint64 start_ns = rp_clock_ns();                                                     \
        const gboolean done = watch.real->operation(__VA_ARGS__);                                  \
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
    const gboolean done = watch.real->run_host(backend, kind, task, error);

    atomic_store(&watch.host_cpu_ns[kind], thread_cpu_ns());
    atomic_fetch_add(&watch.n_host_tasks, 1);
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

#define BLOCKS 4
#define TOKENS 16
#define VOCAB 64

typedef struct {
    guint gpus;
    gboolean async;
    RpConsistency consistency;
    gboolean keep_trace;
    gboolean timing;
} Run;

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
open_trainer(Tiny *tiny, const Run *options, GError **error)
{
    const guint ones[BLOCKS] = {1, 1, 1, 1};
    RpTrainerOptions trainer = {
        .devices = &watch.devices,
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
        rp_network_new(tiny->weights, watch.devices.kernels(), &trainer.network);
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
one_step(Tiny *tiny, GError **error)
{
    return rp_trainer_forward_backward(tiny->trainer, tiny->batch, NULL, error) &&
           rp_trainer_step(tiny->trainer, error);
}

static gboolean
steps_apart(Tiny *tiny, guint steps, GError **error)
{
    for (guint i = 0; i < steps; i++)
        if (!one_step(tiny, error) || !rp_trainer_flush(tiny->trainer, error))
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
        rp_file_remove_directory(tiny->directory);
    g_clear_pointer(&tiny->directory, g_free);
    close_watch();
    (void)cudaGetLastError(); /* clears the error of a part that failed */
}

static gboolean
open_tiny(Tiny *tiny, const Run *options, GError **error)
{
    *tiny = (Tiny){.directory = NULL};
    open_watch(options->timing);
    tiny->batch = make_batch(count_micro_batches(options->gpus));
    return open_model(tiny, error) && open_trainer(tiny, options, error) &&
           steps_apart(tiny, WARM_UP, error);
}

/* ---- dispatch ---- */

typedef struct {
    gint64 issue_ns; /* processor time of the threads that issue */
    gint64 wall_ns;
    gint64 launch_ns; /* time of the first launch, in launches; 0 if they are not timed */
    guint64 tasks;    /* tasks of devices */
} Costs;

static Costs
read_costs(const Tiny *tiny)
{
    const RpEngineCost cost = rp_trainer_cost(tiny->trainer);
    Costs costs = {.issue_ns = cost.worker_cpu_ns,
                   .wall_ns = rp_clock_ns(),
                   .launch_ns = atomic_load(&watch.launch_ns),
                   .tasks = cost.tasks - atomic_load(&watch.n_host_tasks)};

    for (guint lane = 0; lane < RP_HOST_LANES; lane++)
        costs.issue_ns -= atomic_load(&watch.host_cpu_ns[lane]);
    return costs;
}

/* Per task of a device, us: one value a series. */
typedef struct {
    GArray *issue, *wall, *rest;
    guint64 tasks; /* tasks of a step */
} Series;

static gboolean
run_series(Tiny *tiny, Series *series, GError **error)
{
    for (guint i = 0; i < SERIES; i++) {
        const Costs before = read_costs(tiny);

        if (!steps_apart(tiny, ITERATIONS, error))
            return FALSE;
        const Costs after = read_costs(tiny);
        const double tasks = (double)(after.tasks - before.tasks);
        const double issue_us = (double)(after.issue_ns - before.issue_ns) / 1e3;
        const double launch_us = (double)(after.launch_ns - before.launch_ns) / 1e3;

        series->tasks = (after.tasks - before.tasks) / ITERATIONS;
        note_value(series->issue, issue_us / tasks);
        note_value(series->rest, (issue_us - launch_us) / tasks);
        note_value(series->wall, (double)(after.wall_ns - before.wall_ns) / 1e3 / tasks);
    }
    return TRUE;
}

static char *
name_row(guint gpus, const char *what)
{
    return g_strdup_printf("%u GPU%s: %s", gpus, gpus == 1 ? "" : "s", what);
}

static void
add_op(guint gpus, Op op)
{
    g_autoptr(GArray) values = new_values();
    g_autofree char *name = name_row(gpus, op_names[op]);
    g_autofree char *remark =
        g_strdup_printf("%.1f a step", (double)atomic_load(&watch.n[op]) / (SERIES * ITERATIONS));
    const guint n = MIN(atomic_load(&watch.n[op]), MOST_SAMPLES);

    for (guint i = 0; i < n; i++)
        note_value(values, (double)watch.samples[op][i] / 1e3);
    add_row(name, "us", values, remark);
}

static void
add_series(const Run *options, Series *series)
{
    g_autofree char *whole = name_row(options->gpus, "a task, processor time");
    g_autofree char *wall = name_row(options->gpus, "a task, time that passes");
    g_autofree char *rest = name_row(options->gpus, "a task, less launching its kernels");
    g_autofree char *remark = g_strdup_printf(
        "figure to hold: 20; %" G_GUINT64_FORMAT " device tasks a step", series->tasks);

    if (options->timing) {
        add_row(rest, "us/task", series->rest, "the next four rows are timed");
        for (Op op = 0; op < N_OPS; op++)
            add_op(options->gpus, op);
    } else {
        add_row(whole, "us/task", series->issue, remark);
        add_row(wall, "us/task", series->wall, "steps one at a time; the devices' time is in it");
    }
}

static gboolean
measure_dispatch(guint gpus, gboolean timing, GError **error)
{
    const Run options = {.gpus = gpus, .timing = timing};
    g_autoptr(GArray) issue = new_values();
    g_autoptr(GArray) wall = new_values();
    g_autoptr(GArray) rest = new_values();
    Series series = {.issue = issue, .wall = wall, .rest = rest};
    Tiny tiny;
    gboolean done = open_tiny(&tiny, &options, error);

    for (Op op = 0; op < N_OPS; op++) /* the warm-up's */
        atomic_store(&watch.n[op], 0);
    done = done && run_series(&tiny, &series, error);
    if (done)
        add_series(&options, &series);
    close_tiny(&tiny);
    return done;
}

static gboolean
dispatch(GError **error)
{
    const guint all = rp_cuda_device_count();

    return measure_dispatch(1, FALSE, error) && measure_dispatch(1, TRUE, error) &&
           (all < 2 || (measure_dispatch(all, FALSE, error) && measure_dispatch(all, TRUE, error)));
}

/* ---- hand-over ---- */

/* Times of one iteration in the trace, ns; -1: not seen. */
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
add_turns(const Run *options, const RpTrace *trace)
{
    const gboolean blocking = options->consistency == RP_CONSISTENCY_BLOCKING;
    const char *mode = options->async ? "async" : "sync";
    const char *protocol = blocking ? "blocking" : "events";
    g_autoptr(GArray) turns = read_turns(trace);
    g_autoptr(GArray) idle_us = new_values();
    g_autoptr(GArray) handover_us = new_values();
    g_autoptr(GArray) update_us = new_values();
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
            note_value(idle_us, (double)(next->compute_start - turn->compute_end) / 1e3);
        if (ready >= 0 && next->upload_start >= 0)
            note_value(handover_us, (double)(next->upload_start - ready) / 1e3);
        if (turn->norm_end >= 0 && next->upload_start >= 0)
            note_value(update_us, (double)(next->upload_start - turn->norm_end) / 1e3);
    }
    add_row(idle, "us", idle_us, NULL);
    if (options->async)
        return; /* nothing waits for this iteration's update */
    add_row(handover, "us", handover_us, "host's clock to the device's: within the clocks' error");
    add_row(update, "us", update_us,
            blocking ? "all layers' copies and steps" : "steps of the layers it reads");
}

static gboolean
measure_turns(gboolean async, RpConsistency consistency, GError **error)
{
    const Run options = {.gpus = 1, .async = async, .consistency = consistency, .keep_trace = TRUE};
    Tiny tiny;
    gboolean done = open_tiny(&tiny, &options, error);

    for (guint i = 0; done && i < TURNS; i++)
        done = one_step(&tiny, error);
    done = done && rp_trainer_flush(tiny.trainer, error);
    if (done) {
        g_autoptr(RpTrace) trace = rp_trainer_steal_trace(tiny.trainer);

        add_turns(&options, trace);
    }
    close_tiny(&tiny);
    return done;
}

static gboolean
hand_over(GError **error)
{
    for (guint async = 0; async <= 1; async++)
        for (RpConsistency c = RP_CONSISTENCY_EVENTS; c <= RP_CONSISTENCY_BLOCKING; c++)
            if (!measure_turns(async == 1, c, error))
                return FALSE;
    return TRUE;
}

/* ---- all parts ---- */

static void
print_devices(guint gpus)
{
    for (guint g = 0; g < gpus; g++) {
        g_autoptr(GError) error = NULL;
        RpCudaDeviceInfo info;

        if (rp_cuda_device_info(g, &info, &error))
            printf("gpu %u: %s\n", g, info.name);
        else
            fprintf(stderr, "gpu %u: %s\n", g, error->message);
    }
    printf("%u processors\n\n", g_get_num_processors());
}

int
main(void)
{
    static const struct {
        const char *name;
        gboolean (*run)(GError **error);
    } parts[] = {{"dispatch", dispatch}, {"handover", hand_over}};
    const guint gpus = rp_cuda_device_count();
    gboolean failed = FALSE;

    print_devices(gpus);
    if (gpus == 0)
        return NO_GPU;
    printf("%-9s %-58s %6s %11s %11s %11s  %-10s %s\n", "part", "what", "n", "p10", "median", "p90",
           "unit", "note");
    for (guint i = 0; i < G_N_ELEMENTS(parts); i++) {
        g_autoptr(GError) error = NULL;

        running = parts[i].name;
        if (parts[i].run(&error))
            continue;
        fflush(stdout);
        fprintf(stderr, "bench-cuda-overheads: %s: %s\n", parts[i].name, error->message);
        failed = TRUE;
    }
    return failed;
}
