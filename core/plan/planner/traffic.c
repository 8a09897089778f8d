/* Memory traffic of host tasks. Of one trained parameter, bytes (one pass 28, separate copies 40);
 * e is the size of a weight or gradient:
 *
 *   fused 24 + 2 e   lean 24 + e   blocking 24 + 4   copies 4 + e
 */
#include "core/plan/planner/protocol.h"

#define STATE_TRAFFIC 24 /* weight and moments read 12, written 12 */
#define FP32_BYTES 4
#define MOST_BYTES 0x1p62 /* of a task, whatever rates a file says */

/* Of a fused step that takes as long as a pass over @parameters at @parameters_per_s does. */
static guint64
bytes_at_rate(const RpPlanJob *job, guint64 parameters, double parameters_per_s)
{
    const double traffic = STATE_TRAFFIC + 2 * job->promises->element_bytes;
    const double bytes =
        (double)parameters * traffic * job->profile->optimizer_parameters_per_s / parameters_per_s;

    return (guint64)MIN(bytes, MOST_BYTES);
}

/* Of a pass that moves @each bytes a parameter; @rate was measured with @measured bytes, or is 0. */
static guint64
pass_bytes(const RpPlanJob *job, guint64 parameters, guint64 each, double rate, guint64 measured)
{
    return rate > 0 ? bytes_at_rate(job, parameters, rate * (double)measured / (double)each)
                    : each * parameters;
}

/* Of a parameter's gradients on the host. */
static guint64
gradient_element(const RpPlanJob *job)
{
    return rp_job_home_bytes(job, job->promises->element_bytes) *
           rp_plan_gradient_buffers(job->promises);
}

static guint64
gradients_of(const RpPlanJob *job, guint layer)
{
    return job->profile->layers[layer].gradient_bytes / job->promises->element_bytes;
}

/* Trained parameters that live with the layer: without a tied matrix. */
static guint64
parameters_of(const RpPlanJob *job, guint layer)
{
    const RpLayer *of = &job->profile->layers[layer];

    return (of->gradient_bytes - MIN(of->tied_bytes, of->gradient_bytes)) /
           job->promises->element_bytes;
}

/* Of adding @n rounds, from @first on, to a sum in fp32: each of them is read, the sum is written
 * and, unless it begins, read. A measured rate is that of one that is added. */
guint64
rp_traffic_accumulate(const RpPlanJob *job, guint64 gradient_bytes, guint first, guint n)
{
    const guint64 element = job->promises->element_bytes;

    return pass_bytes(job, gradient_bytes / element,
                      n * element + (first == 0 ? 1 : 2) * FP32_BYTES,
                      job->profile->sum_parameters_per_s, element + 2 * FP32_BYTES);
}

/* A matrix that is tied counts twice: two gradients are read. Without a rate it costs nothing. */
guint64
rp_traffic_norm(const RpPlanJob *job, guint layer)
{
    const double rate = job->profile->norm_parameters_per_s;

    return rate > 0 ? pass_bytes(job, gradients_of(job, layer), gradient_element(job), rate,
                                 job->promises->element_bytes)
                    : 0;
}

/* Measured with the network's storage, like that of gradients. */
guint64
rp_traffic_parameter_copy(const RpPlanJob *job, guint layer)
{
    const guint64 each = FP32_BYTES + job->promises->element_bytes;

    return pass_bytes(job, parameters_of(job, layer), each,
                      job->profile->parameter_copy_parameters_per_s, each);
}

guint64
rp_traffic_gradient_copy(const RpPlanJob *job, guint layer)
{
    return pass_bytes(job, gradients_of(job, layer), FP32_BYTES + gradient_element(job),
                      job->profile->gradient_copy_parameters_per_s,
                      FP32_BYTES + job->promises->element_bytes);
}

guint64
rp_traffic_step(const RpPlanJob *job, guint layer, guint tied)
{
    const RpPlanPromises *promises = job->promises;
    const guint64 gradient = promises->gradient_copies ? FP32_BYTES : gradient_element(job);
    const guint64 written = promises->parameter_copies ? 0 : promises->element_bytes;
    const guint64 tied_bytes = tied != RP_NONE ? job->profile->layers[tied].tied_bytes : 0;

    return (STATE_TRAFFIC + gradient + written) * parameters_of(job, layer) +
           gradient * (tied_bytes / promises->element_bytes) +
           (promises->gated ? 0 : rp_traffic_norm(job, layer));
}
