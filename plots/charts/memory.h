/**
 * Memory: bytes in use over time on every device and the host, by purpose.
 */
#pragma once

#include "core/plan/plan.h"
#include "core/trace/trace.h"
#include "plots/charts/bars.h"

/**
 * rp_memory_figure:
 * @plan: has `full` fidelity
 * @trace: that plan's
 * @gpu_bytes: memory of a device, drawn as a line if the arena is close to it; 0 = unknown
 *
 * One step curve per arena above each other, the size of the arena dashed.
 */
RpFigure *rp_memory_figure(const char *name, const char *title, const RpPlan *plan,
                           const RpTrace *trace, guint64 gpu_bytes, gint64 from_ns, gint64 end_ns,
                           const RpFigureStyle *style);

/* Arenas by buffer category, stacked. */
RpFigure *rp_memory_categories_figure(const char *name, const char *title, const RpPlan *plan,
                                      const RpFigureStyle *style);
