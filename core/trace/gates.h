/**
 * Gates: which task each task of a trace waited for, the last of its predecessors to end.
 *
 *   gpu 0 |F0|F1|
 *   gpu 1    |F0|   |B0|        B0's gate is F0 of the next stage, on another device
 */
#pragma once

#include "core/trace/trace.h"

/**
 * rp_trace_gates:
 * @plan: (nullable): the trace's: its dependencies count; without it the ones that needs.h knows
 *
 * By index of a task the index of its gate, a predecessor on its lane or elsewhere; RP_NONE: none is
 * known. Where a predicted task starts later than these explain, its gate is a task that ended at that
 * very moment (a buffer, a copy engine, an update).
 * Returns: (array) (transfer full)
 */
guint32 *rp_trace_gates(const RpTrace *trace, const RpPlan *plan);
