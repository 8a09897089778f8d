/**
 * Rows that paper-figs/measure wrote: figure-13.csv, figure-14.csv and figure-16.csv, all with the
 * same columns. The committed ones are built in. Private to plots/.
 */
#pragma once

#include "paper-figs/paper.h"

/* One run. Texts are owned. */
typedef struct {
    char *model;
    char *title; /* as it is drawn: "Qwen3-1.7B" */
    char *schedule;
    char *mode;        /* "async" or "sync" */
    char *consistency; /* "events" or "blocking" */
    char *device_memory;
    char *device;
    guint gpus;
    guint sequence;
    guint micro_batch; /* sequences */
    guint micro_batches;
    double tokens; /* in a step */
    double tokens_per_s;
    double predicted_tokens_per_s; /* NAN = not known */
} RpMeasured;

/**
 * rp_measured_parse:
 * @text: a file's
 * @file: its name, for messages
 *
 * If several rows have the same configuration, the last one counts.
 *
 * Returns: (element-type RpMeasured) (transfer full): not empty
 * Errors: RP_PLOT_ERROR_EMPTY without rows, RP_PLOT_ERROR_DATA naming row and column
 */
GPtrArray *rp_measured_parse(const char *text, const char *file,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* "Qwen3-1.7B, looped-bfs sync, 24GiB": the name of a line or a group. @several_devices: the name
 * includes theirs. (transfer full) */
char *rp_measured_title(const RpMeasured *row, gboolean several_devices);

/* Whether model, schedule, mode, limit and device are the same. */
gboolean rp_measured_alike(const RpMeasured *a, const RpMeasured *b);

/* Seconds of a step. */
double rp_measured_seconds(const RpMeasured *row);
double rp_measured_predicted_seconds(const RpMeasured *row);

/* The devices' names, if there is more than one; else %NULL. (transfer none) */
const char *rp_measured_one_device(const GPtrArray *rows);
