/**
 * What the files exec/host/profile*.c share. Private to them and their test.
 *
 *   profile.c           which kinds of layers there are, and the file that comes of it
 *   profile-layers.c    a layer run over and over
 *   profile-memory.c    copies, and the optimizer
 *   profile-sample.c    times to a median and a spread
 */
#pragma once

#include "exec/host/profile.h"

#define RP_PROFILE_MAX_PARTS 3

/* Of what was measured so many times. */
typedef struct {
    gint64 median_ns;
    gint64 spread_ns; /* half the range from the 10th to the 90th percentile */
    guint n;          /* without outliers */
} RpTimes;

/**
 * rp_times_of:
 * @values: (array length=n): durations, ns; sorted on return
 * @n: > 0
 *
 * Drops outliers first: values more than 1.5 interquartile ranges above the third quartile, which
 * is what a run that was interrupted takes. No value is too short.
 *
 * Source: Tukey, Exploratory Data Analysis, 1977, §2C (outer side only)
 */
RpTimes rp_times_of(gint64 *values, guint n);

/* The times, and how far the whole has come. */
typedef struct {
    const RpHostProfileOptions *options; /* resolved */
    guint n_measures;                    /* in all */
    guint measure;                       /* under way */
} RpMeasurer;

/**
 * rp_measurer_run:
 * @parts: (array length=n_parts): run one after the other, each timed by itself
 * @times: (out) (array length=n_parts)
 *
 * A warm-up run, then runs for options->seconds a part, at least 5 and at most options->max_runs.
 * Counts as one measurement.
 *
 * Errors: G_IO_ERROR_CANCELLED
 */
typedef void (*RpMeasuredPart)(gpointer data);
gboolean rp_measurer_run(RpMeasurer *measurer, const RpMeasuredPart *parts, guint n_parts,
                         gpointer data, RpTimes *times, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Memory at a multiple of 64 bytes, all zero and touched. Free with free().
 * Errors: G_IO_ERROR_NO_SPACE */
void *rp_measurer_take(gsize bytes, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_measure_layer:
 * @weights: (nullable): bound
 * @layer: of @profile, whose sizes are there and whose times are set
 */
gboolean rp_measure_layer(RpMeasurer *measurer, const RpNetwork *network, const RpWeights *weights,
                          guint layer, RpProfile *profile,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Copies and optimizer: RpProfile.links, optimizer_parameters_per_s. So many measurements. */
#define RP_MEMORY_MEASURES 4
gboolean rp_measure_memory(RpMeasurer *measurer, const RpNetwork *network, RpProfile *profile,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;
