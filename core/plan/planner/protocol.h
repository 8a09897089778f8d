/**
 * The host's side of an iteration (§4.3): norm, steps and copies, by one of four protocols.
 *
 *   gated      events; all steps of an iteration wait for its norm
 *   early      events; a layer's weights are written as soon as its gradient is down, as they are
 *              unless the norm says otherwise; its state follows when the norm is known
 *   at once    events; a layer is stepped as soon as its gradient is down
 *   blocking   everything is copied between two iterations, while the devices wait
 *
 * Where steps do not write the 16-bit weights themselves (lean, blocking), copies do: with the
 * step, or one iteration late.
 */
#pragma once

#include "core/plan/job/job.h"

typedef struct _RpProtocol RpProtocol;

RpProtocol *rp_protocol_new(const RpPlanJob *job);

void rp_protocol_begin_iteration(RpProtocol *protocol);
void rp_protocol_end_iteration(RpProtocol *protocol);
/* The last copies. */
void rp_protocol_finish(RpProtocol *protocol);

/* Gradients of one round of @layers, of one stage, have left. Returns: whether they were the last */
gboolean rp_protocol_record_host_copy(RpProtocol *protocol, RpInterval layers, guint32 iteration);
/* All gradients of @layers are on the host and summed: steps that waited for them alone are
 * appended. */
void rp_protocol_append_host_copy(RpProtocol *protocol, RpInterval layers, guint32 iteration);

/* traffic.c: memory traffic of host tasks, bytes. A rate that the profile gives counts as the
 * traffic of a fused step that takes as long. */
guint64 rp_traffic_accumulate(const RpPlanJob *job, guint64 gradient_bytes, guint first, guint n);
guint64 rp_traffic_parameter_copy(const RpPlanJob *job, guint layer);
guint64 rp_traffic_gradient_copy(const RpPlanJob *job, guint layer);
/* An early step: its squares, the step that writes weights, and the late step that writes the
 * state. */
guint64 rp_traffic_squares(const RpPlanJob *job, guint layer);
guint64 rp_traffic_early_step(const RpPlanJob *job, guint layer);
guint64 rp_traffic_late_step(const RpPlanJob *job, guint layer);
/* Bytes of the host's tasks in a second, if nothing else moves any. */
double rp_traffic_rate(const RpPlanJob *job);
/* @tied: layer whose gradients of a tied matrix are added; RP_NONE */
guint64 rp_traffic_step(const RpPlanJob *job, guint layer, guint tied);
