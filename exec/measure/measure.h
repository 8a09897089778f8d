/**
 * Shared by the files of exec/measure/, and by probes that measure links.
 *
 *   profile.c           the kinds of layers, and the file made of their times
 *   layers.c            a layer that is run over and over; the faster attention
 *   buffers.c           its buffers; tokens that choose given experts
 *   matmuls.c           the fastest variant of each matmul
 *   optimizer.c         the optimizer, and its state formats in caches
 *   sample.c            median and spread of times; copies in the host's memory
 */
#pragma once

#include "exec/measure/profile.h"
#include "exec/system/pool.h"

/* Statistics of a repeated measurement. */
typedef struct {
    gint64 median_ns;
    gint64 mean_ns;
    gint64 spread_ns; /* half the range from the 10th to the 90th percentile */
    guint n;          /* without outliers */
} RpTimes;

/**
 * rp_times_of:
 * @values: (array length=n): durations, ns; sorted on return
 * @n: > 0
 *
 * Drops outliers first: values more than 1.5 interquartile ranges above the third quartile, as
 * interrupted runs are. No value is too short.
 *
 * Source: Tukey, Exploratory Data Analysis, 1977, §2C (outer side only)
 */
RpTimes rp_times_of(gint64 *values, guint n);

/* @amount per second, for these times. */
double rp_times_rate(const RpTimes *times, double amount);

typedef struct _RpMeasureWork RpMeasureWork;

#define RP_SETTLE 2.8 /* RpMeasurer.settle: 1.4 s where a measurement has the usual 0.5 s */

/* The times, and how far the whole has come. */
struct _RpMeasurer {
    const RpMeasureOptions *options; /* resolved */
    guint n_measures;                /* in all */
    guint measure;                   /* under way */
    /* network whose layers work while links are measured; or NULL */
    const RpNetwork *network;
    RpMeasureWork *work;   /* the work */
    gboolean over_swings;  /* take the probe's swing_seconds at least */
    double settle;         /* once: times options->seconds to run before any run counts */
    gboolean passes_alone; /* layers without recomputes of parts and without expansion */
};

/**
 * rp_measurer_run:
 * @probe: (nullable): times the work issued to its stream; %NULL: the calling thread is timed
 * @parts: (array length=n_parts): run one after the other, each timed by itself; at most
 *   RP_PROBE_MAX_PARTS
 * @times: (out) (array length=n_parts)
 *
 * Warm-up runs, for the probe's warm_up_seconds at most, then runs for options->seconds a part, at
 * least 5 (2, if they take 5 seconds) and at most options->max_runs, or until they have options->precision;
 * or, where it is to be over swings, up to 2,000 within the probe's swing_seconds.
 * Counts as one measurement.
 *
 * Errors: G_IO_ERROR_CANCELLED, the probe's
 */
gboolean rp_measurer_run(RpMeasurer *measurer, RpProbe *probe, const RpProbePart *parts,
                         guint n_parts, gpointer data, RpTimes *times,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Time of one run among many. Where clocks swing it is the mean, not the median. */
gint64 rp_probe_typical_ns(const RpProbe *probe, const RpTimes *times);

/* Measurements that are not needed. */
void rp_measurer_skip(RpMeasurer *measurer, guint n);

/* RpProbeOps.time on the calling thread: parts that are done when they return. */
void rp_time_on_host(const RpProbePart *parts, guint n_parts, guint repeats, gpointer data,
                     gint64 *ns);

/* Checks that the host has @bytes more to measure in, by all limits (exec/system/memory-limit.h): where memory is only
 * promised, the system kills a process that touches too much. Errors: G_IO_ERROR_NO_SPACE */
gboolean rp_measure_check_memory(guint64 bytes, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Memory of the host at a multiple of 256 bytes, untouched, on huge pages where the system has them
 * and it is large. Free with free(). Errors: G_IO_ERROR_NO_SPACE */
void *rp_measure_reserve(gsize bytes, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Memory of the host at a multiple of 256 bytes, on huge pages where the system has them, as a
 * run's is; all zero, and touched by the threads of @pool (or %NULL). Free with free(). Errors:
 * G_IO_ERROR_NO_SPACE */
void *rp_measure_take(RpPool *pool, gsize bytes, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Size of buffers that no cache holds: from 64 MiB to @most, but at most an eighth of the available
 * memory. */
gsize rp_measure_buffer_bytes(gsize most);

/**
 * rp_measure_layer:
 * @weights: (nullable): bound
 * @layer: of @profile, whose sizes are there and whose times are set
 */
gboolean rp_measure_layer(RpMeasurer *measurer, RpProbe *probe, const RpNetwork *network,
                          const RpWeights *weights, guint layer, RpProfile *profile,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_measure_work_begin:
 * @on_probe: on @probe as well, which nothing else may use meanwhile
 *
 * The layer runs over and over on the other parts of @probe's card, if it has parts, until
 * rp_measure_work_end().
 * Errors: the probe's
 */
RpMeasureWork *rp_measure_work_begin(const RpMeasurer *measurer, RpProbe *probe, gboolean on_probe,
                                     const RpNetwork *network, const RpWeights *weights,
                                     guint layer, const RpProfile *profile,
                                     GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* @work: (transfer full) (nullable). Returns: whether it ran */
gboolean rp_measure_work_end(RpMeasureWork *work, GError **error);

/* Before and after links are measured whose copies a run makes beside layers: these work meanwhile, where the
 * measurer has some (@network). Errors: the probe's */
gboolean rp_measurer_begin_work(RpMeasurer *measurer, RpProbe *probe, const RpProfile *profile,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean rp_measurer_end_work(RpMeasurer *measurer, GError **error);

/* Runs the layer's parts once, untimed: afterwards their kernels are loaded. Does nothing where its
 * memory cannot be had. */
gboolean rp_measure_run_once(RpProbe *probe, const RpNetwork *network, guint layer,
                             const RpProfile *profile, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- experts ---- */

/* The experts of token @token, active_experts different ones: expert 0 gets @skew times the mean of
 * all, the others alike. rp_measure_can_route() */
void rp_measure_choices(const RpModel *model, double skew, guint64 token, guint *choices);
/* Changes a hidden state, [hidden] of variance 1, to one that chooses them, ... */
void rp_measure_route_state(const RpModel *model, double skew, guint64 token, float *state);
/* ... with a router of these rows. */
void rp_measure_route_weight(const RpModel *model, guint expert, float *row);

/* Rate at which @threads copy at once within buffers of @bytes. It is one measurement. */
gboolean rp_measure_host_copies(RpMeasurer *measurer, gsize bytes, guint threads,
                                double *bytes_per_s, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * RpMeasureOptimizer:
 *
 * RpProfile.optimizer_parameters_per_s: one pass over gradients, state and weights, the fused mode, on the threads that
 * a run gives it; and the rates of the other passes: norm, sums of rounds, copies of gradients and of weights. One
 * measurement; and one more where devices copy beside it: RpLinks.beside_optimizer_bytes_per_s.
 */
typedef struct _RpMeasureOptimizer RpMeasureOptimizer;

/* @parameters of @dtype: of the model; @profile: borrowed; @at_once: on a thread that begins now, while a device
 * measures layers as it does in a run. */
RpMeasureOptimizer *rp_measure_optimizer_new(const RpMeasureOptions *options, RpDtype dtype,
                                             guint64 parameters, RpProfile *profile,
                                             gboolean at_once);
/* Until its thread has ended. */
void rp_measure_optimizer_wait(RpMeasureOptimizer *self);
/* Ends what runs. */
void rp_measure_optimizer_free(RpMeasureOptimizer *self);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpMeasureOptimizer, rp_measure_optimizer_free)

/* Once: waits for the thread, or runs the passes; then sets the rates of the profile, beside copies, too. Errors:
 * G_IO_ERROR_NO_SPACE, G_IO_ERROR_CANCELLED, those of threads, the probe's */
gboolean rp_measure_optimizer_finish(RpMeasureOptimizer *self, RpMeasurer *measurer, RpProbe *probe,
                                     GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_measure_optimizer_parameters:
 * @all: of the model, > 0
 * @element_bytes: of a gradient and of a weight
 * @available_bytes: of the host's memory
 *
 * Parameters that the optimizer is measured with: all, or as many as keep every thread's share out
 * of its caches, within 16 GiB and an eighth of the available memory; but not fewer than 64 MiB
 * hold.
 */
gsize rp_measure_optimizer_parameters(guint64 all, gsize element_bytes, guint n_threads,
                                      guint64 available_bytes);

/* Host memory that the optimizer's step moves for a parameter, bytes. */
gsize rp_measure_optimizer_traffic(const RpProfile *profile);

/*
 * A layer that is run over and over; run by exec/measure/layers.c in the buffers of buffers.c.
 */

/* Buffers that a call needs. */
enum {
    RP_MEASURE_CONSTANTS,
    RP_MEASURE_PARAMETERS,
    RP_MEASURE_UPLOAD, /* a layer's upload in a network with packed weights */
    RP_MEASURE_INPUT,
    RP_MEASURE_GRADIENT,
    RP_MEASURE_OUTPUT,
    RP_MEASURE_D_INPUT,
    RP_MEASURE_SUMS,
    RP_MEASURE_WORKSPACE,
    RP_MEASURE_SAVED, /* groups of a block's tensors, one after the other */
    RP_MEASURE_TARGETS,
    RP_MEASURE_LOSS,
    RP_N_MEASURE_BUFFERS
};

typedef struct {
    RpProbe *probe;
    const RpNetwork *network;
    gboolean has_fp8; /* as the layer reads its weights */
    guint boundary;
    RpStageCall call; /* with every pointer; parts take theirs */
    void *buffer[RP_N_MEASURE_BUFFERS];
    guint n_copies; /* copies of weights and sums, one after the other in their buffers; > 0 */
    guint copy;     /* the copy in use */
    gsize weights_bytes, sums_bytes; /* from one copy to the next */
    void *d_input;                   /* NULL of layer 0 */
    double routing;                  /* skew of tokens' experts; 0: as they come */
    /* tokens whose embeddings are a block's input; NULL: random states */
    const gint32 *tokens;
} RpMeasuredLayer;

/* for the layer @index of @profile; copies of weights and sums where its memory is the
 * processors'. Errors: the probe's; give_buffers() then gives back the buffers taken so far, too */
gboolean rp_measured_layer_take_buffers(RpMeasuredLayer *layer, const RpProfile *profile,
                                        guint index, GError **error) G_GNUC_WARN_UNUSED_RESULT;

void rp_measured_layer_give_buffers(RpMeasuredLayer *layer);

/* with @weights (nullable: random ones), and layer->call is made */
gboolean rp_measured_layer_fill_buffers(RpMeasuredLayer *layer, const RpWeights *weights,
                                        const RpProfile *profile, guint index,
                                        GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* other weights and sums for the next part, as a run's next layer has. */
void rp_measured_layer_take_next(RpMeasuredLayer *layer);

/* a part. @data: RpMeasuredLayer */
void rp_measured_layer_expand(gpointer data);
