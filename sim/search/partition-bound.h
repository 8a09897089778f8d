/**
 * Times that no partition is faster than: how much a search may have left on the table.
 */
#pragma once

#include "sim/search/dispatched.h"

/**
 * rp_dispatched_bound_ns:
 *
 * A lower bound: of all partitions that fit, in rounds of any size that divides M (or the given one), no
 * iteration is faster, in `compute` fidelity:
 *
 *   N T >= M W + sum of what each device waits for before its first action
 *              + sum of what runs elsewhere after its last        (not asynchronous)
 *
 * W: all stages of one micro-batch; the more layers the fused stage holds, the fewer are
 * recomputed, as far as memory allows. A device that runs slot g first waits for g stages of one
 * layer at least.
 */
gint64 rp_dispatched_bound_ns(const RpDispatchedSearch *search);

/**
 * rp_bound_bound_ns:
 * @n_stages: 0 = any number that the schedule can have
 *
 * The same for a schedule that binds its stages. With one stage a device:
 *
 *   T >= least over all partitions of the largest of (what is in front of a stage, M times the
 *        stage, what is behind it)
 */
gint64 rp_bound_bound_ns(const RpProfile *profile, const RpPlanOptions *options, guint n_stages);
