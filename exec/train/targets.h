/**
 * Targets of a micro-batch without those that are masked: what the head need not compute.
 *
 *   targets   b  -100  d   e  -100       rows  0 2 3
 *                                        packed  b d e
 */
#pragma once

#include <glib.h>

#define RP_TARGETS_ALL G_MAXUINT

/**
 * rp_targets_pack:
 * @targets: (array length=n): ids, or RP_LABEL_MASKED
 * @packed, @rows: (out) (array length=n): room for as many
 *
 * Does nothing where less than a sixteenth is masked, as where only the last token of each sequence
 * is: moving rows would cost more than they do.
 *
 * Returns: how many were packed, or %RP_TARGETS_ALL
 */
guint rp_targets_pack(const gint32 *targets, guint n, gint32 *packed, gint32 *rows);
