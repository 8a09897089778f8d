#include "core/catalogue/preference.h"

static const RpObjectiveInfo infos[RP_N_OBJECTIVES] = {
    [RP_OBJECTIVE_SFT] = {.name = "sft"},
    [RP_OBJECTIVE_DPO] = {.name = "dpo",
                          .has_reference = TRUE,
                          .has_pairs = TRUE,
                          .has_smoothing = TRUE,
                          .beta = 0.1},
    [RP_OBJECTIVE_IPO] = {.name = "ipo", .has_reference = TRUE, .has_pairs = TRUE, .beta = 0.1},
    [RP_OBJECTIVE_ORPO] =
        {.name = "orpo", .has_pairs = TRUE, .has_means = TRUE, .beta = 0.1, .sft_weight = 1},
    [RP_OBJECTIVE_SIMPO] = {.name = "simpo",
                            .has_pairs = TRUE,
                            .has_smoothing = TRUE,
                            .has_means = TRUE,
                            .beta = 0.1,
                            .gamma = 0.5},
    [RP_OBJECTIVE_KTO] = {.name = "kto", .has_reference = TRUE, .beta = 0.1},
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

gboolean
rp_objective_from_name(const char *name, RpObjective *objective)
{
    for (guint i = 0; i < RP_N_OBJECTIVES; i++)
        if (g_strcmp0(infos[i].name, name) == 0) {
            *objective = (RpObjective)i;
            return TRUE;
        }
    return FALSE;
}

const char *
rp_reference_name(RpReference reference)
{
    g_return_val_if_fail(reference < RP_N_REFERENCES, NULL);

    return references[reference];
}

gboolean
rp_reference_from_name(const char *name, RpReference *reference)
{
    for (guint i = 0; i < RP_N_REFERENCES; i++)
        if (g_strcmp0(references[i], name) == 0) {
            *reference = (RpReference)i;
            return TRUE;
        }
    return FALSE;
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
