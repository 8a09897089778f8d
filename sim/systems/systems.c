/* The table of systems, and what is asked of a row. */
#include "sim/systems/systems.h"

#include "core/base/quote.h"
#include "core/plan/planner.h"
#include "sim/systems/private.h"

/* Tokens of the longest sequence that is looked at. */
#define MOST_TOKENS (1u << 24)

static const RpSystem *const systems[] = {
    &rp_system_zero_2,         &rp_system_fsdp,        &rp_system_zero_infinity,
    &rp_system_megatron_pp,    &rp_system_megatron_tp, &rp_system_mobius,
    &rp_system_roundpipe_sync, &rp_system_roundpipe,   NULL,
};

const RpSystem *const *
rp_systems(void)
{
    return systems;
}

RpSystemMemory
rp_system_memory(const RpSystem *system, const RpSystemJob *job)
{
    RpSystemMemory memory = {0};

    g_return_val_if_fail(job->sequences > 0 && job->tokens > 0, memory);
    if (system->memory == NULL)
        return memory;
    memory = system->memory(job, system->logit_bytes);
    memory.gpu = memory.state + memory.activations;
    return memory;
}

static gboolean
fits(const RpSystemServer *server, const RpSystemMemory *memory)
{
    return server->gpu_bytes == 0 || memory->gpu <= (double)server->gpu_bytes;
}

/* The most sequences that fit and divide the step: fewer micro-batches cross the links less often, but
 * fill a pipeline less. */
static void
choose_sequences(const RpSystem *system, RpSystemJob *job)
{
    const guint shared = (guint)job->batch / job->server->gpus / MAX(1, system->least_turns);
    guint chosen = 1;

    for (guint sequences = 2; sequences <= shared && shared % sequences == 0; sequences *= 2) {
        job->sequences = sequences;
        const RpSystemMemory memory = rp_system_memory(system, job);

        if (fits(job->server, &memory))
            chosen = sequences;
    }
    job->sequences = system->memory != NULL ? chosen : job->model->profile->sequences;
}

static gboolean
check_batch(const RpSystem *system, const RpSystemJob *job, GError **error)
{
    const guint together = job->sequences * (system->own_batches ? job->server->gpus : 1);

    if (job->batch % together == 0 && job->batch > 0)
        return TRUE;
    return rp_fail(error, RP_SYSTEM_ERROR, RP_SYSTEM_ERROR_BATCH,
                   "a step of %" G_GUINT64_FORMAT
                   " sequences does not divide into micro-batches of %u%s",
                   job->batch, job->sequences, system->own_batches ? " on every GPU" : "");
}

static gboolean
check_size(const RpSystemJob *job, GError **error)
{
    if (job->server->gpus <= RP_SYSTEM_MOST_GPUS && job->batch <= RP_SYSTEM_MOST_BATCH)
        return TRUE;
    return rp_fail(error, RP_SYSTEM_ERROR, RP_SYSTEM_ERROR_BATCH,
                   "expected at most %d GPUs and %u sequences of a step, found %u and "
                   "%" G_GUINT64_FORMAT,
                   RP_SYSTEM_MOST_GPUS, RP_SYSTEM_MOST_BATCH, job->server->gpus, job->batch);
}

gboolean
rp_system_predict(const RpSystem *system, const RpSystemJob *asked, RpSystemPrediction *prediction,
                  GError **error)
{
    RpSystemJob job = *asked;
    RpSystemPrediction result = {0};
    RpSystemTime *time = &result.time;

    if (!check_size(&job, error) || (system->takes != NULL && !system->takes(&job, error)))
        return FALSE;
    if (job.sequences == 0 || system->memory == NULL)
        choose_sequences(system, &job);
    if (!check_batch(system, &job, error))
        return FALSE;
    result.memory = rp_system_memory(system, &job);
    if (!system->time(&job, time, &result.memory, error))
        return FALSE;
    time->step = time->compute + time->wait + time->collectives + time->copies + time->optimizer;
    result.sequences = job.sequences;
    result.in_turn = rp_system_turns(system, &job);
    result.fits = fits(job.server, &result.memory);
    result.tokens_per_s = (double)job.batch * job.tokens / time->step;
    *prediction = result;
    return TRUE;
}

/* Bytes of one sequence of @tokens. A plan's: those of the dispatched partition that needs least. */
static gboolean
one_fits(const RpSystem *system, const RpSystemJob *asked, guint tokens)
{
    RpSystemJob job = *asked;

    job.tokens = tokens;
    job.sequences = 1;
    job.batch = job.server->gpus;
    if (system->memory != NULL) {
        const RpSystemMemory memory = rp_system_memory(system, &job);

        return fits(job.server, &memory);
    }
    g_autoptr(RpProfile) profile = rp_system_scaled(&job);
    g_autoptr(RpPartition) least = rp_partition_least(profile);

    return rp_plan_dispatched_gpu_bytes(profile, least, FALSE, job.server->gpus) <=
           job.server->gpu_bytes;
}

gboolean
rp_system_longest(const RpSystem *system, const RpSystemJob *job, guint *tokens, GError **error)
{
    guint low = 0, high = MOST_TOKENS / RP_SYSTEM_STEP; /* fits, does not; in steps */

    if (!check_size(job, error) || (system->takes != NULL && !system->takes(job, error)))
        return FALSE;
    if (job->server->gpu_bytes == 0) {
        *tokens = G_MAXUINT;
        return TRUE;
    }
    while (low + 1 < high) {
        const guint middle = low + (high - low) / 2;

        if (one_fits(system, job, middle * RP_SYSTEM_STEP))
            low = middle;
        else
            high = middle;
    }
    *tokens = low * RP_SYSTEM_STEP;
    return TRUE;
}
