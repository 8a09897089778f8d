/**
 * Numbers of steps for TensorBoard: an event file, `events.out.tfevents.SECONDS.HOST`.
 *
 *   file    record, record, ...
 *   record  length u64 | masked CRC-32C of it u32 | data | masked CRC-32C of the data u32
 *   data    a protocol buffer, an Event: wall_time 1, step 2, and one of
 *             file_version 3, session_log 7 {status 1}, summary 5 {value 1 {tag 1, simple_value 2}}
 *   masked  c turned 15 bits to the right, + 0xa282ead8
 *
 * Numbers are little-endian. Source: tensorflow/core/util/event.proto, lib/hash/crc32c.h
 */
#pragma once

#include <glib.h>

typedef struct _RpTensorboard RpTensorboard;

typedef struct {
    const char *tag; /* "train/loss" */
    double value;
} RpTensorboardValue;

/**
 * rp_tensorboard_new:
 * @directory: exists
 * @next_step: more than 1: a run that is resumed, whose earlier files have values of that step and
 *   later ones which TensorBoard is to forget
 *
 * Errors: G_FILE_ERROR
 */
RpTensorboard *rp_tensorboard_new(const char *directory, guint64 next_step,
                                  GError **error) G_GNUC_WARN_UNUSED_RESULT;
void rp_tensorboard_free(RpTensorboard *board);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpTensorboard, rp_tensorboard_free)

/* One event with all values, in the file when this returns. Returns: whether it is */
gboolean rp_tensorboard_add(RpTensorboard *board, guint64 step, const RpTensorboardValue *values,
                            guint n);

/* CRC-32C (Castagnoli) of @n bytes. */
guint32 rp_tensorboard_crc(const void *bytes, gsize n);
