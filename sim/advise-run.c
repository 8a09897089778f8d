/* One way to train: its profile and its options. */
#include "sim/advise-private.h"

#include "core/cost-model.h"

void
rp_advise_run_free(RpAdviseRun *run)
{
    if (run == NULL)
        return;
    rp_partition_free(run->partition);
    g_free(run->problem);
    g_free(run);
}

RpProfile *
rp_advise_profile(const RpAdviseQuery *query, guint sequences, GError **error)
{
    RpWorkload workload = {
        .sequences = sequences,
        .tokens_per_sequence = query->tokens_per_sequence,
        .dtype = query->dtype,
        .accumulate = query->accumulate,
        .lora_rank = query->lora_rank,
        .gpus = query->gpus,
    };

    if (query->profile != NULL)
        return rp_profile_copy(query->profile);
    return rp_cost_model_profile(query->model, query->gpu, &workload, error);
}

RpAdviseRun *
rp_advise_run_new(const RpAdviseQuery *query, const RpScheduleOps *schedule, guint sequences,
                  guint micro_batches, guint round)
{
    RpAdviseRun *run = g_new0(RpAdviseRun, 1);

    run->sequences = sequences;
    run->options = (RpPlanOptions){
        .schedule = schedule,
        .gpus = query->gpus,
        .micro_batches = micro_batches,
        .round = schedule->dispatched ? round : micro_batches,
        .async = schedule->dispatched && !query->sync,
        .fidelity = RP_FIDELITY_FULL,
        .optimizer = query->optimizer,
        .constant_bytes = query->constant_bytes,
    };
    return run;
}

RpAdviseRun *
rp_advise_run_copy(const RpAdviseRun *run)
{
    RpAdviseRun *copy = g_memdup2(run, sizeof *run);

    copy->partition = run->partition != NULL ? rp_partition_copy(run->partition) : NULL;
    copy->problem = g_strdup(run->problem);
    return copy;
}

const RpScheduleOps *
rp_advise_roundpipe(void)
{
    const RpScheduleOps *const *schedules = rp_schedules();

    while (!(*schedules)->dispatched)
        schedules++;
    return *schedules;
}

/* The plan of @query that needs least; with @profile_out by category. Returns: %NULL if the cost
 * model refuses the workload. */
RpAdviseRun *
rp_advise_least(const RpAdviseQuery *query, RpProfile **profile_out, GError **error)
{
    guint sequences = MAX(1, query->micro_batch);
    guint micro_batches = query->batch / sequences;
    g_autoptr(RpProfile) profile = rp_advise_profile(query, sequences, error);

    if (profile == NULL)
        return NULL;
    RpAdviseRun *run = rp_advise_run_new(query, rp_advise_roundpipe(), sequences, micro_batches,
                                         rp_advise_next_round(query, micro_batches, 1));

    rp_advise_fit_least(query, profile, run);
    if (profile_out != NULL) {
        rp_advise_measure(query, profile, run);
        *profile_out = g_steal_pointer(&profile);
    }
    return run;
}
