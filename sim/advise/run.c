/* One way to train: its profile and its options. */
#include "sim/advise/private.h"

#include <math.h>

#include "core/catalogue/cost/cost-model.h"
#include "core/profile/cards.h"
#include "sim/scored.h"

void
rp_advise_run_free(RpAdviseRun *run)
{
    if (run == NULL)
        return;
    rp_partition_free(run->partition);
    g_free(run->problem);
    g_free(run);
}

/* Times of the query's card, or of its cards. */
static RpProfile *
make_timed(const RpAdviseQuery *query, const RpWorkload *workload, GError **error)
{
    g_autoptr(GPtrArray) cards = g_ptr_array_new_with_free_func((GDestroyNotify)rp_profile_free);
    guint n = 0;

    if (query->cards == NULL)
        return rp_cost_model_profile(query->model, query->gpu, workload, error);
    for (guint g = 0; g < query->gpus; g++)
        n = MAX(n, query->card_of[g] + 1);
    for (guint c = 0; c < n; c++) {
        RpProfile *card = rp_cost_model_profile(query->model, query->cards[c], workload, error);

        if (card == NULL)
            return NULL;
        g_ptr_array_add(cards, card);
    }
    return rp_profile_box((const RpProfile *const *)(void *)cards->pdata, query->card_of,
                          query->gpus);
}

static RpProfile *
make_profile(const RpAdviseQuery *query, guint sequences, GError **error)
{
    const RpAdviseSizes *sizes = query->sizes;

    RpWorkload workload = {
        .sequences = sequences,
        .tokens_per_sequence = query->tokens_per_sequence,
        .sample_tokens = query->sample_tokens,
        .dtype = query->dtype,
        .accumulate = query->accumulate,
        .fp8 = query->fp8,
        .fp8_head = query->fp8_head,
        .lora_rank = query->lora_rank,
        .lora_targets = query->lora_targets,
        .base = query->base,
        .gpus = query->gpus,
        .estimate = query->estimate,
    };

    if (query->profile != NULL)
        return rp_profile_copy(rp_profile_with_micro_batch(query->profile, sequences));
    g_autoptr(RpProfile) timed = query->gpu != NULL ? make_timed(query, &workload, error) : NULL;

    if (sizes == NULL || (query->gpu != NULL && timed == NULL))
        return g_steal_pointer(&timed);
    g_autoptr(RpProfile) sized =
        sizes->make(sequences, query->tokens_per_sequence, sizes->user_data);

    if (timed == NULL)
        return g_steal_pointer(&sized);
    rp_profile_take_sizes(timed, sized);
    timed->head_chunk = sized->head_chunk;
    return g_steal_pointer(&timed);
}

gboolean
rp_advise_has_times(const RpAdviseQuery *query, guint sequences)
{
    return query->profile == NULL || rp_profile_with_micro_batch(query->profile, sequences) != NULL;
}

RpProfile *
rp_advise_profile(const RpAdviseQuery *query, guint sequences, GError **error)
{
    RpProfile *profile = make_profile(query, sequences, error);

    if (profile != NULL && query->measured_box != NULL)
        rp_profile_take_box(profile, query->measured_box);
    if (profile != NULL)
        rp_profile_choose_saved(profile, &query->saved);
    if (profile != NULL && rp_preference_is_used(&query->preference))
        rp_place_head(profile, TRUE, 1,
                      profile->head_chunk > 0 ? profile->head_chunk : RP_COST_MODEL_HEAD_CHUNK);
    if (profile != NULL && query->network != NULL) {
        profile->links.network_bytes_per_s = rp_server_network_bytes_per_s(query->network);
        profile->links.network_latency_ns = llround(query->network->latency_us * 1e3);
    }
    return profile;
}

/* Bytes of frozen weights, if the query has any. */
static guint64
resident_limit(const RpAdviseQuery *query)
{
    const gboolean frozen =
        query->profile != NULL ? rp_profile_has_frozen(query->profile) : query->lora_rank > 0;
    const gboolean host_devices = query->sizes != NULL && query->sizes->host_devices;

    return frozen ? rp_resident_limit(query->resident, host_devices, query->gpu_bytes) : 0;
}

RpAdviseRun *
rp_advise_run_new(const RpAdviseQuery *query, const RpScheduleOps *schedule, guint sequences,
                  guint micro_batches, guint round)
{
    RpAdviseRun *run = g_new0(RpAdviseRun, 1);

    run->sequences = sequences;
    run->saved = query->saved;
    run->scored = rp_reference_is_scored(query->preference.reference);
    run->options = (RpPlanOptions){
        .schedule = schedule,
        .gpus = query->gpus,
        .micro_batches = micro_batches,
        .round = schedule->dispatched ? round : micro_batches,
        .async = schedule->dispatched && !query->sync,
        .fidelity = RP_FIDELITY_FULL,
        .optimizer = query->optimizer,
        .servers = query->servers,
        .early_steps = RP_EARLY_AUTO,
        .form = query->form,
        .reference_copy = query->preference.reference == RP_REFERENCE_COPY,
        .resident_limit = resident_limit(query),
        .dispatch = query->cards != NULL && rp_schedule_is_rotated(schedule) ? RP_DISPATCH_FREE
                                                                             : RP_DISPATCH_ROTATION,
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

void
rp_advise_run_set(RpAdviseRun *run, const RpAdviseRun *other)
{
    RpAdviseRun *copy = rp_advise_run_copy(other);

    rp_partition_free(run->partition);
    g_free(run->problem);
    *run = *copy;
    g_free(copy);
}

const RpScheduleOps *
rp_advise_roundpipe(void)
{
    const RpScheduleOps *const *schedules = rp_schedules();

    while (!(*schedules)->dispatched)
        schedules++;
    return *schedules;
}

RpAdviseRun *
rp_advise_in_one_round(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun *run,
                       RpAdviseFit fit)
{
    fit(query, profile, run);
    if (run->problem == NULL || query->round != 0 ||
        run->options.round == run->options.micro_batches)
        return run;
    RpAdviseRun *one = rp_advise_run_copy(run);
    one->options.round = one->options.micro_batches;
    const gboolean fits = fit(query, profile, one);
    const gboolean better = fits || (one->gpu_over_bytes <= run->gpu_over_bytes &&
                                     one->host_over_bytes < run->host_over_bytes);
    rp_advise_run_free(better ? run : one);
    return better ? one : run;
}

const RpAdviseRun *
rp_advise_fastest(const GPtrArray *runs)
{
    const RpAdviseRun *fastest = NULL;

    for (guint i = 0; i < runs->len; i++) {
        const RpAdviseRun *run = g_ptr_array_index(runs, i);

        if (fastest == NULL || run->step_ns < fastest->step_ns)
            fastest = run;
    }
    return fastest;
}

const RpAdviseRun *
rp_advise_best(const GPtrArray *runs, guint sequences, guint64 host_bytes)
{
    g_autoptr(GPtrArray) eligible = g_ptr_array_new();
    const RpAdviseRun *best = NULL;
    double least = G_MAXDOUBLE;

    for (guint i = 0; i < runs->len; i++) {
        RpAdviseRun *run = g_ptr_array_index(runs, i);

        if ((sequences == 0 || run->sequences == sequences) &&
            (host_bytes == 0 || run->host.total <= host_bytes))
            g_ptr_array_add(eligible, run);
    }
    const RpAdviseRun *fastest = rp_advise_fastest(eligible);

    for (guint i = eligible->len; i > 0; i--) {
        const RpAdviseRun *run = g_ptr_array_index(eligible, i - 1);

        if (RP_ADVISE_AS_FAST * (double)run->step_ns > (double)fastest->step_ns)
            g_ptr_array_remove_index(eligible, i - 1);
        else
            least = MIN(least, (double)run->host.total);
    }
    for (guint i = 0; i < eligible->len; i++) {
        const RpAdviseRun *run = g_ptr_array_index(eligible, i);

        if (RP_ADVISE_AS_FEW * (double)run->host.total <= least &&
            (best == NULL || run->step_ns < best->step_ns ||
             (run->step_ns == best->step_ns && run->gpu.total < best->gpu.total)))
            best = run;
    }
    return best;
}

gboolean
rp_advise_is_same_choice(const RpAdviseRun *a, const RpAdviseRun *b)
{
    return a->sequences == b->sequences && a->options.round == b->options.round &&
           MAX(1, a->options.replicas) == MAX(1, b->options.replicas) &&
           a->options.resident_limit == b->options.resident_limit &&
           a->saved.groups == b->saved.groups && a->saved.first == b->saved.first &&
           a->saved.least_ns == b->saved.least_ns;
}

gboolean
rp_advise_may_be_faster(const RpAdviseRun *run, double gap, const GPtrArray *finalists)
{
    for (guint i = 0; run->bound_tokens_per_s > 0 && i < finalists->len; i++)
        if (gap * ((RpAdviseRun *)g_ptr_array_index(finalists, i))->tokens_per_s >=
            run->bound_tokens_per_s)
            return FALSE;
    return TRUE;
}
