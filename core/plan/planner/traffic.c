/* Memory traffic of host tasks. Of one trained parameter, bytes (one pass 28, separate copies 40);
 * e is the size of a weight or gradient:
 *
 *   fused 24 + 2 e   lean 24 + e   blocking 24 + 4   copies 4 + e   early 12 + 2 e   late 24 + e
 *
 * These are AdamW's figures, with all state in fp32. Other optimizers move
 * rp_optimizer_state_bytes() in place of 12, and twice that in place of 24 (core/base/moments.h):
 * moments in bf16 8 and 16, in int8 6 and 12, and a little. Where processors round more slowly than
 * memory delivers, a task counts the bytes that memory would move in that time.
 */
#include "core/plan/planner/protocol.h"

#include "core/base/shard.h"

#define FP32_BYTES 4
#define MOST_BYTES 0x1p62 /* limit of a task, whatever rates a file gives */

/* Bytes of a fused step that takes as long as a pass over @parameters at @parameters_per_s. */
static guint64
bytes_at_rate(const RpPlanJob *job, guint64 parameters, double parameters_per_s)
{
    const double traffic = (double)rp_optimizer_state_traffic(RP_STATE_FORMAT_FP32, 1) +
                           2 * job->storage->element_bytes;
    const double bytes =
        (double)parameters * traffic * job->profile->optimizer_parameters_per_s / parameters_per_s;

    return (guint64)MIN(bytes, MOST_BYTES);
}

/* Bytes of a pass that moves @each bytes a parameter; @rate was measured with @measured bytes, or
 * is 0. */
static guint64
pass_bytes(const RpPlanJob *job, guint64 parameters, guint64 each, double rate, guint64 measured)
{
    return rate > 0 ? bytes_at_rate(job, parameters, rate * (double)measured / (double)each)
                    : each * parameters;
}

/* Bytes of gradients on the host for each parameter. */
static guint64
gradient_element(const RpPlanJob *job)
{
    if (job->modes->servers > 1)
        return FP32_BYTES; /* their sum */
    return rp_job_host_bytes(job, job->storage->element_bytes) *
           rp_modes_gradient_buffers(job->modes);
}

static guint64
gradients_of(const RpPlanJob *job, guint layer)
{
    return job->profile->layers[layer].gradient_bytes / job->storage->element_bytes;
}

/* Trained parameters that live with the layer, and are stepped here: without a tied matrix. */
static guint64
parameters_of(const RpPlanJob *job, guint layer)
{
    return rp_shard_most(rp_layer_own_gradient_bytes(&job->profile->layers[layer]) /
                             job->storage->element_bytes,
                         job->modes->servers);
}

/* The same of the matrix that is tied to the layer. */
static guint64
tied_parameters(const RpPlanJob *job, guint tied)
{
    return tied == RP_NONE ? 0
                           : rp_shard_most(job->profile->layers[tied].tied_gradient_bytes /
                                               job->storage->element_bytes,
                                           job->modes->servers);
}

/* Bytes of adding @n rounds, from @first on, to a sum in fp32: each round is read, and the sum is
 * written and, unless it begins here, read. The measured rate is that of adding one round. */
guint64
rp_traffic_accumulate(const RpPlanJob *job, guint64 gradient_bytes, guint first, guint n)
{
    const guint64 element = job->storage->element_bytes;

    return pass_bytes(job, gradient_bytes / element,
                      n * element + (first == 0 ? 1 : 2) * FP32_BYTES,
                      job->profile->sum_parameters_per_s, element + 2 * FP32_BYTES);
}

/* Whether gradients leave a device once an iteration, which then sums their squares. */
static gboolean
sums_on_devices(const RpPlanJob *job)
{
    if (job->modes->servers > 1)
        return FALSE;
    return rp_modes_leave_once(job->modes);
}

/* Bytes of reading the gradients that a layer's step reads, unless its device has summed their
 * squares: a tied matrix counts twice, since two gradients are read. Without a rate it costs
 * nothing. */
guint64
rp_traffic_squares(const RpPlanJob *job, guint layer)
{
    const double rate = job->profile->norm_parameters_per_s;
    const guint tied = rp_plan_tied_from(job->plan, layer);

    return rate > 0 && (tied != RP_NONE || !sums_on_devices(job))
               ? pass_bytes(job, parameters_of(job, layer) + tied_parameters(job, tied),
                            gradient_element(job), rate, job->storage->element_bytes)
               : 0;
}

/* Measured with the network's storage, like that of gradients. */
guint64
rp_traffic_parameter_copy(const RpPlanJob *job, guint layer)
{
    const guint64 element = job->storage->element_bytes;

    return pass_bytes(job, parameters_of(job, layer),
                      rp_moment_bytes(job->storage->form.master) + element,
                      job->profile->parameter_copy_parameters_per_s, FP32_BYTES + element);
}

guint64
rp_traffic_gradient_copy(const RpPlanJob *job, guint layer)
{
    return pass_bytes(job, gradients_of(job, layer), FP32_BYTES + gradient_element(job),
                      job->profile->gradient_copy_parameters_per_s,
                      FP32_BYTES + job->storage->element_bytes);
}

static guint64
state_traffic(const RpPlanJob *job, guint layer)
{
    return rp_optimizer_state_traffic(job->storage->form, parameters_of(job, layer));
}

/* Bytes of a pass over the layer's state, without the state itself: it reads @gradient bytes a
 * parameter of each gradient, and moves @each bytes a parameter beside it. */
static guint64
pass_over_state(const RpPlanJob *job, guint layer, guint tied, guint64 gradient, guint64 each)
{
    return (each + gradient) * parameters_of(job, layer) + gradient * tied_parameters(job, tied);
}

/* It reads as much as a step does, and writes the weights alone. If the host reads no faster than
 * the norm does, it takes as long as reading; and a third longer, since it steps a copy. */
guint64
rp_traffic_early_step(const RpPlanJob *job, guint layer)
{
    const guint64 element = job->storage->element_bytes;
    const double rate = job->profile->norm_parameters_per_s * (double)element;
    const guint64 read =
        rp_optimizer_state_read(job->storage->form, parameters_of(job, layer)) +
        pass_over_state(job, layer, rp_plan_tied_from(job->plan, layer), gradient_element(job), 0);
    const guint64 moved = read + element * parameters_of(job, layer);

    return (rate > 0 ? MAX(moved, bytes_at_rate(job, read, rate)) : moved) / 3 * 4;
}

/* @moved bytes of a step; more, if processors take longer than memory does: AdamW all in fp32 was measured
 * with both. */
static guint64
at_processors_rate(const RpPlanJob *job, guint layer, guint64 moved)
{
    const RpStateFormat form = job->storage->form;
    const double rate = job->profile->cached_parameters_per_s[form.rule][form.moments][form.master];

    if (!(rate > 0) || rp_state_format_equal(form, RP_STATE_FORMAT_FP32))
        return moved;
    return MAX(moved, bytes_at_rate(job, parameters_of(job, layer), rate));
}

/* The rest of the step: it does not write weights. */
guint64
rp_traffic_late_step(const RpPlanJob *job, guint layer)
{
    const guint64 gradient = gradient_element(job);

    return at_processors_rate(
        job, layer,
        state_traffic(job, layer) +
            pass_over_state(job, layer, rp_plan_tied_from(job->plan, layer), gradient, 0));
}

double
rp_traffic_rate(const RpPlanJob *job)
{
    return job->profile->optimizer_parameters_per_s *
           (double)(rp_optimizer_state_traffic(RP_STATE_FORMAT_FP32, 1) +
                    2 * job->storage->element_bytes);
}

guint64
rp_traffic_step(const RpPlanJob *job, guint layer, guint tied)
{
    const RpPlanModes *modes = job->modes;
    const guint64 gradient =
        modes->copies == RP_COPIES_BLOCKING ? FP32_BYTES : gradient_element(job);
    const guint64 written = modes->copies != RP_COPIES_FUSED ? 0 : job->storage->element_bytes;

    return at_processors_rate(job, layer,
                              state_traffic(job, layer) +
                                  pass_over_state(job, layer, tied, gradient, written)) +
           (rp_modes_wait_for_norm(modes) ? 0 : rp_traffic_squares(job, layer));
}
