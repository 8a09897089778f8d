/**
 * Objectives of a training: imitation of answers (sft), or preferences between them.
 *
 * A sample of a preference has two documents, one behind the other in one row: of pairs the chosen answer and the
 * rejected one, each behind the prompt; of KTO an answer that is labelled desirable or undesirable, and the same prompt
 * with another sample's answer, from which the KL term is estimated.
 *
 * With pi the log-probability of an answer's tokens, ref the reference's, n its tokens, + chosen and - rejected, and
 * h = (pi+ - ref+) - (pi- - ref-), e the label smoothing, the loss of a pair is:
 *
 *   dpo    (-(1 - e) log sigmoid(beta h) + e log sigmoid(-beta h)) / (1 - 2 e), which TRL calls robust where e > 0
 *   ipo    ((pi+ - ref+) / n+ - (pi- - ref-) / n- - 1 / (2 beta))^2
 *   orpo   -beta log sigmoid(o),  o = log odds(exp(pi+ / n+)) - log odds(exp(pi- / n-))
 *   simpo  -(1 - e) log sigmoid(s) - e log sigmoid(-s),  s = beta (pi+ / n+ - pi- / n-) - gamma
 *   kto    desirable: 1 - sigmoid(beta (pi - ref - z)); undesirable: 1 - sigmoid(beta (z - pi + ref)), times its weight;
 *          z = max(0, mean of pi - ref over the KL documents of the micro-batch)
 *
 * The loss of an iteration is their mean, and sft_weight times the mean NLL of the tokens of chosen (kto: desirable)
 * answers beside it. TRL's ORPO takes that NLL of the prompt, too; here prompts are masked as they are for imitation.
 *
 * Source: Rafailov et al. 2023 (DPO), Azar et al. 2023 (IPO), Hong et al. 2024 (ORPO), Meng et al. 2024 (SimPO),
 * Ethayarajh et al. 2024 (KTO); details are those of TRL 1.16
 *
 * Plain C that GPUs' code reads as well.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef enum {
    RP_OBJECTIVE_SFT,
    RP_OBJECTIVE_DPO,
    RP_OBJECTIVE_IPO,
    RP_OBJECTIVE_ORPO,
    RP_OBJECTIVE_SIMPO,
    RP_OBJECTIVE_KTO
} RpObjective;
#define RP_N_OBJECTIVES 6

/* Where the reference's log-probabilities come from. */
typedef enum {
    RP_REFERENCE_NONE,       /* the objective has none */
    RP_REFERENCE_ADAPTERS,   /* the model with its adapters off */
    RP_REFERENCE_COPY,       /* a frozen copy of the weights, in host memory */
    RP_REFERENCE_PRECOMPUTED /* the batches bring them */
} RpReference;
#define RP_N_REFERENCES 4

/* A document of a batch. */
typedef enum {
    RP_ANSWER_NONE,   /* padding */
    RP_ANSWER_CHOSEN, /* its partner is the next document: */
    RP_ANSWER_REJECTED,
    RP_ANSWER_DESIRABLE, /* the next document is of its KL term: */
    RP_ANSWER_UNDESIRABLE,
    RP_ANSWER_KL
} RpAnswerKind;

typedef struct {
    RpObjective objective;
    RpReference reference;
    double beta;            /* > 0 */
    double label_smoothing; /* dpo, simpo: 0 to 0.5, without it */
    double sft_weight;      /* of the NLL of chosen (kto: desirable) answers; 0 = none */
    double gamma;           /* simpo */
    double desirable_weight, undesirable_weight; /* kto */
} RpPreference;

/* A row of the table of objectives. */
typedef struct {
    const char *name;
    bool has_reference;
    bool has_pairs;     /* false of kto, whose answers are labelled, and of sft */
    bool has_smoothing; /* label_smoothing is that of preferences */
    bool has_means;     /* log-probabilities and rewards that are shown are means over tokens */
    double beta, gamma, sft_weight; /* defaults: those of TRL 1.16 */
} RpObjectiveInfo;

const RpObjectiveInfo *rp_objective_info(RpObjective objective);
/* "none", "adapters", "copy", "precomputed" */
const char *rp_reference_name(RpReference reference);
/* Whether it scores the batches of each step. */
static inline bool
rp_reference_is_scored(RpReference reference)
{
    return reference == RP_REFERENCE_ADAPTERS || reference == RP_REFERENCE_COPY;
}

/* Defaults of an objective; reference: %RP_REFERENCE_NONE. */
RpPreference rp_preference_default(RpObjective objective);

/* Whether a training has a preference; NULL has none. */
static inline bool
rp_preference_is_used(const RpPreference *preference)
{
    return preference != NULL && preference->objective != RP_OBJECTIVE_SFT;
}

/* Whether the answer is one that the model is drawn to. */
static inline bool
rp_answer_is_chosen(RpAnswerKind kind)
{
    return kind == RP_ANSWER_CHOSEN || kind == RP_ANSWER_DESIRABLE;
}

/* Sums over micro-batches, from which loss and metrics are made. Doubles alone: they travel as an array. */
typedef struct {
    double losses;               /* of pairs, or of labelled answers */
    double nll;                  /* of the targets of chosen answers */
    double n_chosen, n_rejected; /* answers; KTO: desirable and undesirable ones */
    double n_chosen_targets;     /* targets of chosen answers */
    double rewards_chosen, rewards_rejected;
    double n_right; /* pairs whose chosen answer has the larger reward */
    double logps_chosen, logps_rejected;
    double kl, n_kl; /* KTO: z of micro-batches, and their number */
} RpPreferenceSums;
#define RP_N_PREFERENCE_SUMS (sizeof(RpPreferenceSums) / sizeof(double))

void rp_preference_sums_add(RpPreferenceSums *sums, const RpPreferenceSums *more);

/* Metrics of a step or an evaluation, by TRL's names. */
typedef enum {
    RP_PREFERENCE_REWARDS_CHOSEN, /* beta (pi - ref), of some objectives beta pi / n */
    RP_PREFERENCE_REWARDS_REJECTED,
    RP_PREFERENCE_REWARDS_ACCURACIES, /* share of pairs whose chosen answer has the larger reward */
    RP_PREFERENCE_REWARDS_MARGINS,
    RP_PREFERENCE_LOGPS_CHOSEN,
    RP_PREFERENCE_LOGPS_REJECTED,
    RP_PREFERENCE_NLL_LOSS, /* of chosen answers, if it is part of the loss */
    RP_PREFERENCE_KL        /* KTO */
} RpPreferenceMetric;
#define RP_N_PREFERENCE_METRICS 8

/* "rewards/chosen" */
const char *rp_preference_metric_name(RpPreferenceMetric metric);

/**
 * rp_preference_measure:
 * @metrics: (out) (array length=RP_N_PREFERENCE_METRICS): NAN: the objective has none, or there was no such answer
 *
 * Returns: the loss; NAN without answers
 */
double rp_preference_measure(const RpPreference *preference, const RpPreferenceSums *sums,
                             double *metrics);
