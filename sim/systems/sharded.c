/*
 * Systems whose GPUs all run the whole model, each on micro-batches of its own.
 *
 *   N = 2, g = 2       ZeRO-2: gradients after every micro-batch    FSDP: weights before each, and again
 *   GPU 0  compute     |F|B|    |F|B|        |step                  |F| |B|  |F| |B|    |step
 *          ring             |gg|     |gg|  |pp                    |p| |p|  |p| |p|  |gg|
 */
#include "sim/systems/private.h"

static gboolean
ring_time(const RpSystemJob *job, double bytes, double bytes_per_s, RpSystemTime *time)
{
    time->compute = rp_system_compute_s(job);
    time->link_bytes = bytes * rp_system_ring(job);
    time->collectives = time->link_bytes / bytes_per_s;
    return TRUE;
}

/* Weights whole; gradients whole while they are summed, fp32 weights and moments shared out. */
static RpSystemMemory
zero_2_memory(const RpSystemJob *job, double logit_bytes)
{
    const RpSystemModel *model = job->model;

    return (RpSystemMemory){.state = 2 * model->parameters +
                                     (2 + 12) * model->trained / job->server->gpus,
                            .activations = rp_system_activations(job, logit_bytes)};
}

/* g all-reduces of 16-bit gradients, then a gather of the weights. */
static gboolean
zero_2_time(const RpSystemJob *job, RpSystemTime *time, RpSystemMemory *memory, GError **error)
{
    const double turns = rp_system_turns(&rp_system_zero_2, job);

    (void)memory;
    (void)error;
    return ring_time(job, (turns * 2 * 2 + 2) * job->model->trained,
                     job->server->deepspeed_bytes_per_s, time);
}

const RpSystem rp_system_zero_2 = {
    .name = "zero-2",
    .title = "DeepSpeed ZeRO-2",
    .summary = "weights on every GPU; gradients and optimizer shared out",
    .own_batches = TRUE,
    .synchronous = TRUE,
    .logit_bytes = RP_SYSTEM_LOGIT_BYTES,
    .memory = zero_2_memory,
    .time = zero_2_time,
};

/* Blocks that are whole at once: one computes, the next arrives, the last leaves. */
#define FSDP_BLOCKS 3

/* fp32 weights, gradients and moments shared out. */
static double
fsdp_state(const RpSystemJob *job)
{
    const RpSystemModel *model = job->model;
    const double frozen = model->parameters - model->trained;
    const double whole = FSDP_BLOCKS * model->block + model->embedding + model->head - model->tied;

    return (4 * frozen + 16 * model->trained) / job->server->gpus + 2 * whole;
}

/* Whole 16-bit gradients while several micro-batches are summed without the others (no_sync), where there is
 * room for them: else each micro-batch scatters its own. */
static double
fsdp_sums(const RpSystemJob *job, double logit_bytes)
{
    const double sums = rp_system_turns(&rp_system_fsdp, job) > 1 ? 2 * job->model->trained : 0;
    const double all = fsdp_state(job) + sums + rp_system_activations(job, logit_bytes);

    return job->server->gpu_bytes == 0 || all <= (double)job->server->gpu_bytes ? sums : 0;
}

static RpSystemMemory
fsdp_memory(const RpSystemJob *job, double logit_bytes)
{
    return (RpSystemMemory){.state = fsdp_state(job) + fsdp_sums(job, logit_bytes),
                            .activations = rp_system_activations(job, logit_bytes)};
}

/* Two gathers a micro-batch, for forward and backward; one reduce-scatter, or one each. */
static gboolean
fsdp_time(const RpSystemJob *job, RpSystemTime *time, RpSystemMemory *memory, GError **error)
{
    const double turns = rp_system_turns(&rp_system_fsdp, job);
    const double scatters = fsdp_sums(job, rp_system_fsdp.logit_bytes) > 0 ? 1 : turns;

    (void)memory;
    (void)error;
    return ring_time(job,
                     turns * 2 * 2 * job->model->parameters + scatters * 2 * job->model->trained,
                     job->server->nccl_bytes_per_s, time);
}

const RpSystem rp_system_fsdp = {
    .name = "fsdp",
    .title = "PyTorch FSDP",
    .summary = "weights, gradients and optimizer shared out, gathered block by block",
    .own_batches = TRUE,
    .synchronous = TRUE,
    .logit_bytes = RP_SYSTEM_LOGIT_BYTES_IN_PLACE,
    .memory = fsdp_memory,
    .time = fsdp_time,
};

/* Blocks that are whole at once, and bytes of a trained parameter in host memory: 16-bit weights and
 * gradients, fp32 weights, moments, and half of a buffer. */
#define INFINITY_BLOCKS 2
#define INFINITY_HOST_BYTES 18

static RpSystemMemory
zero_infinity_memory(const RpSystemJob *job, double logit_bytes)
{
    const RpSystemModel *model = job->model;

    return (RpSystemMemory){
        .state = 2 * (INFINITY_BLOCKS * model->block + model->embedding + model->head),
        .activations = rp_system_activations(job, logit_bytes),
        .host = 2 * (model->parameters - model->trained) + INFINITY_HOST_BYTES * model->trained,
    };
}

/* Each micro-batch gathers twice and scatters once. Shards come up as often and go down once, each over
 * its own link, and the processors step at the end. */
static gboolean
zero_infinity_time(const RpSystemJob *job, RpSystemTime *time, RpSystemMemory *memory,
                   GError **error)
{
    const RpSystemModel *model = job->model;
    const RpSystemServer *server = job->server;
    const double turns = rp_system_turns(&rp_system_zero_infinity, job);

    (void)memory;
    (void)error;
    time->copies = turns *
                   (2 * 2 * model->parameters / server->h2d_bytes_per_s +
                    2 * model->trained / server->d2h_bytes_per_s) /
                   server->gpus;
    time->optimizer = model->trained / RP_SYSTEM_OPTIMIZER_PER_S;
    return ring_time(job, turns * 2 * (2 * model->parameters + model->trained),
                     server->deepspeed_bytes_per_s, time);
}

const RpSystem rp_system_zero_infinity = {
    .name = "zero-infinity",
    .title = "DeepSpeed ZeRO-Infinity",
    .summary = "all weights and the optimizer in host memory, shared out and gathered",
    .own_batches = TRUE,
    .synchronous = TRUE,
    .logit_bytes = RP_SYSTEM_LOGIT_BYTES,
    .memory = zero_infinity_memory,
    .time = zero_infinity_time,
};
