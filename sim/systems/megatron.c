/*
 * Megatron: tensor parallel with sequence parallel, and its pipeline, 1F1B on blocks dealt out so that the
 * stages with the embedding and the head have fewer.
 *
 *   26 to 32 blocks, N = 8     [e 1 to 2][5 or 4]...[5 or 4][1 to 2 h]
 */
#include "sim/systems/pipeline.h"

#include "core/base/quote.h"

/* Bytes of a trained parameter: 16-bit weight, fp32 gradient, weight and moments; of a frozen one. */
#define TRAINED_BYTES 18
#define FROZEN_BYTES 2

static double
state_bytes(double parameters, double trained)
{
    return FROZEN_BYTES * (parameters - trained) + TRAINED_BYTES * trained;
}

/* ---- tensor parallel ---- */

static gboolean
tp_takes(const RpSystemJob *job, GError **error)
{
    const RpModel *model = job->model->catalogue;
    const guint gpus = job->server->gpus;

    if (model == NULL || model->kv_heads % gpus == 0)
        return TRUE;
    return rp_fail(error, RP_SYSTEM_ERROR, RP_SYSTEM_ERROR_MODEL,
                   "%s has %u heads of keys and values, which %u GPUs cannot share out evenly: "
                   "use a number of GPUs that divides %u",
                   model->name, model->kv_heads, gpus, model->kv_heads);
}

static RpSystemMemory
tp_memory(const RpSystemJob *job, double logit_bytes)
{
    const double gpus = job->server->gpus;

    return (RpSystemMemory){.state =
                                state_bytes(job->model->parameters, job->model->trained) / gpus,
                            .activations = rp_system_activations(job, logit_bytes) / gpus};
}

/* Collectives of a block and micro-batch: four each in forward, recompute and backward. */
#define TP_COLLECTIVES 12

static gboolean
tp_time(const RpSystemJob *job, RpSystemTime *time, RpSystemMemory *memory, GError **error)
{
    (void)memory;
    (void)error;
    time->compute = rp_system_compute_s(job);
    time->link_bytes = rp_system_ring(job) * (double)job->batch * job->tokens * 2.0 *
                       job->model->hidden * job->model->blocks * TP_COLLECTIVES;
    time->collectives = time->link_bytes / job->server->nccl_bytes_per_s;
    return TRUE;
}

const RpSystem rp_system_megatron_tp = {
    .name = "megatron-tp",
    .title = "Megatron tensor parallel",
    .summary = "every matrix shared out over all GPUs, with sequence parallel",
    .synchronous = TRUE,
    .logit_bytes = RP_SYSTEM_LOGIT_BYTES,
    .takes = tp_takes,
    .memory = tp_memory,
    .time = tp_time,
};

/* ---- pipeline ---- */

void
rp_system_stages(guint blocks, guint gpus, guint *stages)
{
    guint middle = (blocks + 2 + gpus - 1) / gpus;

    while (gpus > 2 && middle > 1 && blocks < middle * (gpus - 2) + 2)
        middle--;
    const guint ends = gpus > 2 ? blocks - middle * (gpus - 2) : blocks;
    for (guint r = 0; r < gpus; r++)
        stages[r] = middle;
    stages[gpus - 1] = gpus > 1 ? ends / 2 : ends;
    if (gpus > 1)
        stages[0] = ends - ends / 2;
}

/* Micro-batches for each GPU that leave little of a pipeline empty. Source: GPipe (Huang et al. 2019) */
#define PP_TURNS 4

/* The fullest rank: rank r has inputs of up to N - r micro-batches in flight. */
static RpSystemMemory
pp_memory(const RpSystemJob *job, double logit_bytes)
{
    const RpSystemModel *model = job->model;
    const guint gpus = job->server->gpus;
    const double hidden = rp_system_tokens(job) * model->hidden;
    const guint turns = MAX(1, rp_system_turns(&rp_system_megatron_pp, job));
    g_autofree guint *stages = g_new(guint, gpus);
    RpSystemMemory fullest = {0};

    rp_system_stages(model->blocks, gpus, stages);
    for (guint r = 0; r < gpus; r++) {
        RpSystemMemory rank = {
            .state = stages[r] * state_bytes(model->block, model->block_trained),
            .activations =
                hidden * (2.0 * MIN(gpus - r, turns) * stages[r] + RP_SYSTEM_BLOCK_BYTES),
        };

        if (r == 0)
            rank.state += state_bytes(model->embedding, model->embedding_trained);
        if (r == gpus - 1) {
            /* a GPU alone has a tied matrix once */
            const double tied = gpus > 1 ? 0 : model->tied;

            rank.state += state_bytes(model->head - tied, MAX(0, model->head_trained - tied));
            rank.activations += rp_system_logits(job, logit_bytes);
        }
        if (rank.state + rank.activations > fullest.state + fullest.activations)
            fullest = rank;
    }
    return fullest;
}

static gboolean
pp_time(const RpSystemJob *job, RpSystemTime *time, RpSystemMemory *memory, GError **error)
{
    const guint gpus = job->server->gpus;
    g_autofree guint *stages = g_new(guint, gpus);

    (void)memory;
    rp_system_stages(job->model->blocks, gpus, stages);
    g_autoptr(RpProfile) profile = rp_system_scaled(job);
    g_autoptr(RpPartition) partition = rp_partition_from_blocks(profile, stages, gpus, error);

    if (partition == NULL ||
        !rp_system_pipeline(profile, "1f1b", partition, gpus,
                            rp_system_turns(&rp_system_megatron_pp, job), time, error))
        return FALSE;
    time->compute /= job->server->fp32_speed;
    time->wait /= job->server->fp32_speed;
    return TRUE;
}

const RpSystem rp_system_megatron_pp = {
    .name = "megatron-pp",
    .title = "Megatron pipeline",
    .summary = "a stage of blocks on each GPU, 1F1B",
    .synchronous = TRUE,
    .logit_bytes = RP_SYSTEM_LOGIT_BYTES_IN_PLACE,
    .least_turns = PP_TURNS,
    .takes = rp_system_takes_stages,
    .memory = pp_memory,
    .time = pp_time,
};
