/**
 * A schedule as a file: a line a GPU, its actions in order.
 *
 *   # two GPUs, one micro-batch in flight more on the first
 *   F0.0 F0.1 B0.0 F0.2 B0.1 B0.2
 *   F1.0 B1.0 F1.1 B1.1 F1.2 B1.2
 *
 *   F3.0        forward of stage 3, micro-batch 0
 *   B3.0        its backward; or I3.0, the gradient of its input, and W3.0, that of its weights
 *   FB3.0       both as one action: the fused stage. Stages before it are forward slots, those behind it
 *               backward slots, on whichever GPU has them (RoundPipe)
 *   F0.7&B7.3   a forward and a backward as one action
 *   -           an idle step, or a GPU without actions
 *   # ...       a comment
 *   round 8     dispatched: micro-batches of a round, where the order does not show it
 *   weights offloaded   bound: weights are uploaded for each visit of a stage, as in Mobius
 *
 * A line that begins with '#' or holds nothing is left out. PyTorch's pipeline CSV
 * (core/formats/import-pytorch.h) is the other dialect: its cells begin with digits, so that one
 * looks at the first. A CSV of W without I has old names (RP_PYTORCH_OLD_NAMES): under new ones nothing
 * made its inputs.
 */
#pragma once

#include <gio/gio.h>

#include "core/formats/import-pytorch.h"
#include "core/schedules/given.h"

#define RP_SCHEDULE_FILE_MAX_BYTES ((gsize)64 << 20)

/**
 * rp_schedule_file_parse:
 * @name: the file's: its last part becomes the schedule's name
 *
 * Every action once, all of every stage on one GPU, in an order that can run; with fused actions, slot
 * after slot with whole rounds.
 *
 * Returns: (transfer full): rp_schedule_free_given()
 * Errors: RP_IMPORT_ERROR_*, RP_SCHEDULE_ERROR_DEADLOCK, with line and column (CSV: row and cell)
 */
RpScheduleOps *rp_schedule_file_parse(const char *name, const char *text, gsize length,
                                      GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Errors: also G_FILE_ERROR */
RpScheduleOps *rp_schedule_file_load(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Writes an iteration of any schedule. @comment: (nullable): one line. Errors: G_IO_ERROR */
gboolean rp_schedule_file_write(const RpScheduleOps *schedule, const RpShape *shape,
                                const char *comment, GOutputStream *stream,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* "F3.0", "F0.7&B7.3" (transfer none, into @text) */
void rp_schedule_file_format(GString *text, const RpAction *action);

/*
 * The text dialect of schedule files: its words, read and written. core/formats/schedule-file.h shows
 * it.
 */

/* Settings that a file gives beside its orders; lines count from 1, and 0 means that it does not
 * give it. */
typedef struct {
    guint round;
    guint round_line;
    guint offloaded_line;
} RpScheduleText;

/**
 * rp_orders_import_text:
 *
 * Reads lines of actions. Their cells are columns, from 1, and messages name lines.
 * Errors: RP_IMPORT_ERROR_SYNTAX, RP_IMPORT_ERROR_LIMIT
 */
RpOrders *rp_orders_import_text(const char *name, const char *text, gsize length,
                                RpScheduleText *words, GError **error) G_GNUC_WARN_UNUSED_RESULT;
