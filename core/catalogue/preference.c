#include "core/catalogue/preference.h"

#include <glib.h>
#include <math.h>

static const RpObjectiveInfo infos[RP_N_OBJECTIVES] = {
    [RP_OBJECTIVE_SFT] = {.name = "sft"},
    [RP_OBJECTIVE_DPO] = {.name = "dpo",
                          .has_reference = true,
                          .has_pairs = true,
                          .has_smoothing = true,
                          .beta = 0.1},
    [RP_OBJECTIVE_IPO] = {.name = "ipo", .has_reference = true, .has_pairs = true, .beta = 0.1},
    [RP_OBJECTIVE_ORPO] =
        {.name = "orpo", .has_pairs = true, .has_means = true, .beta = 0.1, .sft_weight = 1},
    [RP_OBJECTIVE_SIMPO] = {.name = "simpo",
                            .has_pairs = true,
                            .has_smoothing = true,
                            .has_means = true,
                            .beta = 0.1,
                            .gamma = 0.5},
    [RP_OBJECTIVE_KTO] = {.name = "kto", .has_reference = true, .beta = 0.1},
};

static const char *const references[RP_N_REFERENCES] = {
    [RP_REFERENCE_NONE] = "none",
    [RP_REFERENCE_ADAPTERS] = "adapters",
    [RP_REFERENCE_COPY] = "copy",
    [RP_REFERENCE_PRECOMPUTED] = "precomputed",
};

const RpObjectiveInfo *
rp_objective_info(RpObjective objective)
{
    g_return_val_if_fail(objective < RP_N_OBJECTIVES, NULL);

    return &infos[objective];
}

const char *
rp_reference_name(RpReference reference)
{
    g_return_val_if_fail(reference < RP_N_REFERENCES, NULL);

    return references[reference];
}

RpPreference
rp_preference_default(RpObjective objective)
{
    const RpObjectiveInfo *info = rp_objective_info(objective);

    return (RpPreference){.objective = objective,
                          .beta = info->beta,
                          .gamma = info->gamma,
                          .sft_weight = info->sft_weight,
                          .desirable_weight = 1,
                          .undesirable_weight = 1};
}

void
rp_preference_sums_add(RpPreferenceSums *sums, const RpPreferenceSums *more)
{
    double *to = (double *)sums;
    const double *from = (const double *)more;

    for (guint i = 0; i < RP_N_PREFERENCE_SUMS; i++)
        to[i] += from[i];
}

static const char *const metric_names[RP_N_PREFERENCE_METRICS] = {
    [RP_PREFERENCE_REWARDS_CHOSEN] = "rewards/chosen",
    [RP_PREFERENCE_REWARDS_REJECTED] = "rewards/rejected",
    [RP_PREFERENCE_REWARDS_ACCURACIES] = "rewards/accuracies",
    [RP_PREFERENCE_REWARDS_MARGINS] = "rewards/margins",
    [RP_PREFERENCE_LOGPS_CHOSEN] = "logps/chosen",
    [RP_PREFERENCE_LOGPS_REJECTED] = "logps/rejected",
    [RP_PREFERENCE_NLL_LOSS] = "nll_loss",
    [RP_PREFERENCE_KL] = "kl",
};

const char *
rp_preference_metric_name(RpPreferenceMetric metric)
{
    g_return_val_if_fail(metric < RP_N_PREFERENCE_METRICS, NULL);

    return metric_names[metric];
}

static double
mean(double sum, double n)
{
    return n > 0 ? sum / n : NAN;
}

double
rp_preference_measure(const RpPreference *preference, const RpPreferenceSums *sums, double *metrics)
{
    const bool pairs = infos[preference->objective].has_pairs;
    const bool has_nll = preference->sft_weight > 0 && sums->n_chosen_targets > 0;
    const double chosen = mean(sums->rewards_chosen, sums->n_chosen);
    const double rejected = mean(sums->rewards_rejected, sums->n_rejected);
    const double nll = has_nll ? sums->nll / sums->n_chosen_targets : NAN;
    const double loss =
        mean(sums->losses, pairs ? sums->n_chosen : sums->n_chosen + sums->n_rejected);

    metrics[RP_PREFERENCE_REWARDS_CHOSEN] = chosen;
    metrics[RP_PREFERENCE_REWARDS_REJECTED] = rejected;
    metrics[RP_PREFERENCE_REWARDS_ACCURACIES] = pairs ? mean(sums->n_right, sums->n_chosen) : NAN;
    metrics[RP_PREFERENCE_REWARDS_MARGINS] = chosen - rejected;
    metrics[RP_PREFERENCE_LOGPS_CHOSEN] = mean(sums->logps_chosen, sums->n_chosen);
    metrics[RP_PREFERENCE_LOGPS_REJECTED] = mean(sums->logps_rejected, sums->n_rejected);
    metrics[RP_PREFERENCE_NLL_LOSS] = nll;
    metrics[RP_PREFERENCE_KL] = mean(sums->kl, sums->n_kl);
    return has_nll ? loss + preference->sft_weight * nll : loss;
}
