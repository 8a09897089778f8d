/**
 * Targets of a micro-batch without masked ones, which the head need not compute. Filled up
 * with some that are, to a multiple of a step, so that few sizes occur however many are masked: a
 * GPU has a plan for each size of a matmul.
 *
 *   targets   b  -100  d   e  -100       rows    0 2 3 |    1
 *                                        packed  b d e | -100     with a step of 2
 *
 * The step is the largest power of two that is at most a sixteenth of all, at most 128.
 */
#pragma once

#include <glib.h>

#define RP_TARGETS_ALL G_MAXUINT

/* Share of all tokens that the head computes where @share of them have a target. */
double rp_targets_share(double share);

/**
 * rp_targets_pack:
 * @targets: (array length=n): ids, or RP_LABEL_MASKED
 * @packed, @rows: (out) (array length=n): space for as many. Ids in their order, then as many
 *   masked ones as fill the step, the first of all; no row twice. If there are no ids nothing is
 *   added
 *
 * Does nothing where less than a sixteenth is masked, as where only the last token of each sequence
 * is: moving rows would cost more than they do.
 *
 * Returns: how many were packed, masked ones included, or %RP_TARGETS_ALL
 */
guint rp_targets_pack(const gint32 *targets, guint n, gint32 *packed, gint32 *rows);
