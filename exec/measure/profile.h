/**
 * Measures a network's layers on any device that has a kernel table and a probe: the timing file
 * that simulate, plan and train read.
 */
#pragma once

#include "core/base/moments.h"
#include "core/profile/profile.h"
#include "exec/measure/probe.h"
#include "exec/network/network.h"

/* @done of @total measurements. Returns: whether to continue */
typedef gboolean (*RpMeasureProgress)(guint64 done, guint64 total, gpointer user_data);

typedef struct {
    guint devices;  /* devices that the file is for; RpProfile.gpus. 0 = 1 */
    double seconds; /* spent on each kind of layer and direction; 0 = 0.5 */
    guint max_runs; /* runs of each; 0 = 100. Layers on GPUs: more (RpProbeOps) */
    /* relative error of a median: a measurement, unless it is one over a probe's swings, ends as soon as
     * all its parts have it, after 3 runs and a fifth of @seconds or more; 0 = after @seconds */
    double precision;
    guint optimizer_threads; /* threads that a run would give the optimizer; 0 = 1 */
    RpStateFormat form;      /* format of the state that it would keep */
    /* skew of experts: rows of the fullest over the mean, with random weights; 0 = as the router
     * takes them */
    double routing;
    /* (nullable): tokens of a micro-batch: with weights, blocks get their embeddings, as the model's
     * first block does; else random states */
    const gint32 *tokens;
    RpMeasureProgress progress; /* may be NULL */
    gpointer user_data;
} RpMeasureOptions;

/**
 * rp_measure_profile:
 * @probe: device to measure on
 * @network: over the device's kernels; equal layers are measured once
 * @weights: (nullable): bound; else random ones (the times do not depend on them)
 *
 * Forward, recompute and backward of each kind of layer on one device, alone: medians after
 * warm-up, spreads, outliers dropped; of packed weights their expansion; the links of all devices; the optimizer's rate. All sizes as
 * rp_network_profile(). `source` is "measured".
 *
 * Errors: G_IO_ERROR_CANCELLED, G_IO_ERROR_NO_SPACE, the probe's
 */
RpProfile *rp_measure_profile(RpProbe *probe, const RpNetwork *network, const RpWeights *weights,
                              const RpMeasureOptions *options,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_measure_box:
 * @options: devices, 0 to devices - 1 are measured; optimizer threads, 0: links alone; progress
 *
 * Links, host memory and optimizer of the machine, whatever is trained there: a profile without layers
 * (core/profile/box.h). Links are measured for a layer of 64 MiB.
 *
 * Returns: (transfer full)
 * Errors: G_IO_ERROR_CANCELLED, G_IO_ERROR_NO_SPACE, the probe's
 */
RpProfile *rp_measure_box(RpProbe *probe, const RpMeasureOptions *options,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_measure_attention:
 * @network: whose shape it is; its own choice of attention does not matter
 * @weights: (nullable): bound
 * @fastest: (out): set on success only. Nothing is measured if there is but one
 *
 * Errors: G_IO_ERROR_NO_SPACE, the probe's
 */
gboolean rp_measure_attention(RpProbe *probe, const RpNetwork *network, const RpWeights *weights,
                              RpAttentionChoice *fastest, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_measure_matmul_variants:
 * @network: (transfer full): network with the matmuls; its own variants do not matter
 * @options: progress alone, by shapes
 *
 * Times the proposals of the kernels' library for each shape on random numbers, those with the bits of the first: each
 * alone for up to 0.15 s, so that a card at its power limit gives it the clocks that its own power allows, and those
 * near the fastest once more. Where one takes less than 0.985 of the first's time, the shape gets it; shapes for which
 * the device has no memory keep the first.
 *
 * Returns: (transfer full): the same network with these variants; itself, where there is no such
 * library
 * Errors: G_IO_ERROR_CANCELLED, the probe's
 */
RpNetwork *rp_measure_matmul_variants(RpProbe *probe, RpNetwork *network,
                                      const RpMeasureOptions *options,
                                      GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_measure_matmul:
 * @shape: form, sizes and storages; its pointers are not read, its operands are random numbers
 * @seconds: RpMeasureOptions.seconds; on devices whose clocks swing at least as long as they do
 * @flops_per_s: (out): two for each term of a sum; set on success only
 *
 * Errors: G_IO_ERROR_NO_SPACE, the probe's
 */
gboolean rp_measure_matmul(RpProbe *probe, const RpKernels *kernels, const RpMatmulArgs *shape,
                           double seconds, double *flops_per_s,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_measure_memory:
 * @devices: that a run is for
 * @bytes: (out): of a device, that a plan may have; 0: no limit of its own
 *
 * Finds rp_measure_profile()'s gpu_memory_bytes without measuring times. Every kind of layer runs
 * once before, so that the device's kernels are loaded.
 *
 * Errors: G_IO_ERROR_NO_SPACE, the probe's
 */
gboolean rp_measure_memory(RpProbe *probe, const RpNetwork *network, guint devices, guint64 *bytes,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Device memory that a head's logits and their scratch buffers may take (RpNetworkOptions.head_memory): a sixteenth of
 * the whole GiB that a plan may have, or of @limit_bytes, if that is not 0. Returns: 0 if the device's memory is the
 * host's */
guint64 rp_measure_head_memory(RpProbe *probe, guint64 limit_bytes);

/* Whether tokens of @model can be made to choose their experts so: 1 is balanced. */
gboolean rp_measure_can_route(const RpModel *model, double skew);

/* Processors that the process may use. */
guint rp_usable_processors(void);
