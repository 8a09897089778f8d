/**
 * Steps of preferences: the head computes rows that have targets, some logits twice, and a reference may score the
 * batches of several steps before them.
 *
 *   devices   |score T, T+1|..|step T|step T+1|..|score T+2, T+3|..
 *
 * Devices run empty before a scoring, before the first of the steps, which waits for it, and behind the last.
 */
#pragma once

#include "core/plan/planner.h"
#include "core/trace/report.h"

/* Batches that are scored together. */
#define RP_SCORED_BATCHES 8

/**
 * rp_place_head:
 * @dispatched: whether the head runs in a fused stage
 * @share: share of the places that have a target; the head computes those alone
 * @chunk: of a preference, rows of the head's chunks (RpProfile.head_chunk): the logits of more are made twice;
 *   else 0
 *
 * Puts the head's time, which a profile has for places that all have a target, where the trainer runs it:
 *
 *   planned   [ F: blocks, head ]  ...  [ B: recompute, head, blocks ]
 *   run       [ F: blocks ]        ...  [ B: recompute, head forward and back, blocks ]
 *
 * In bound schedules the loss and its gradient are computed at once, when the head's stage goes backward.
 * RoundPipe runs the head in the fused stage, where both stand together anyway.
 */
void rp_place_head(RpProfile *profile, gboolean dispatched, double share, guint chunk);

/* Steps whose batches are scored together. @calls: of a step */
guint rp_scored_together(guint calls);

/**
 * rp_simulate_scored:
 * @forwards: @profile as it is for forwards alone
 * @options: of steps; full fidelity
 * @forwards_plan: (out) (optional): the plan of a scoring
 * @scored: (out): iteration_ns and ratio of a step with its scoring
 *
 * Errors: those of rp_plan_make() and rp_simulate()
 */
gboolean rp_simulate_scored(const RpProfile *profile, const RpProfile *forwards,
                            const RpPartition *partition, const RpPlanOptions *options,
                            RpPlan **forwards_plan, RpSteady *scored,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;
