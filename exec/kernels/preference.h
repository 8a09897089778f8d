/**
 * Losses of preferences and their gradients: formulas of core/catalogue/preference.h for a pair or an answer, which every
 * backend shares: whoever wants functions of another kind defines RP_SHARED before.
 *
 * All is in double, and finite wherever the log-probabilities are: log sigmoid neither overflows nor cancels, and the
 * log odds of ORPO take no mean log-probability above -RP_PREFERENCE_LEAST, behind which fp32 has no numbers but 0.
 */
#pragma once

#include <math.h>
#include <stdbool.h>

#include "exec/kernels/preference-args.h"

#ifndef RP_SHARED
#define RP_SHARED static inline
#endif

#define RP_PREFERENCE_LEAST 1e-7

RP_SHARED double
rp_log_sigmoid(double x)
{
    return x < 0 ? x - log1p(exp(x)) : -log1p(exp(-x));
}

RP_SHARED double
rp_sigmoid(double x)
{
    return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}

/* log(1 - exp(x)), x < 0 */
RP_SHARED double
rp_log_one_less_exp(double x)
{
    return x > -0.6931471805599453 ? log(-expm1(x)) : log1p(-exp(x));
}

RP_SHARED double
rp_document_mean(const RpPreferenceDocument *d)
{
    return d->n > 1 ? d->logp / d->n : d->logp;
}

/* Objectives of a reward's sign, which have @smoothing: of @robust the mean of both labels is taken out again. */
RP_SHARED double
rp_sigmoid_loss(double h, double smoothing, bool robust, double *by_h)
{
    const double e = robust ? -smoothing : smoothing;
    const double whole = robust ? 1 - 2 * smoothing : 1;

    *by_h = (e * rp_sigmoid(h) - (1 - smoothing) * rp_sigmoid(-h)) / whole;
    return (-(1 - smoothing) * rp_log_sigmoid(h) - e * rp_log_sigmoid(-h)) / whole;
}

/* ORPO: of means of log-probabilities. @by_chosen, @by_rejected: (out): gradient */
RP_SHARED double
rp_odds_loss(double beta, double chosen, double rejected, double *by_chosen, double *by_rejected)
{
    const double a = fmin(chosen, -RP_PREFERENCE_LEAST), b = fmin(rejected, -RP_PREFERENCE_LEAST);
    const double odds = (a - rp_log_one_less_exp(a)) - (b - rp_log_one_less_exp(b));
    const double by_odds = -beta * rp_sigmoid(-odds);

    *by_chosen = -by_odds / expm1(a);
    *by_rejected = by_odds / expm1(b);
    return -beta * rp_log_sigmoid(odds);
}

/**
 * rp_preference_pair:
 * @reference: [2]
 * @d: [2]: the chosen answer, the rejected one; gradients are (out)
 *
 * Returns: the pair's loss, which is added to @sums with its metrics
 */
RP_SHARED double
rp_preference_pair(const RpPreference *preference, const float *reference, RpPreferenceDocument *d,
                   RpPreferenceSums *sums)
{
    const double beta = preference->beta, e = preference->label_smoothing;
    const bool means =
        preference->objective == RP_OBJECTIVE_ORPO || preference->objective == RP_OBJECTIVE_SIMPO;
    /* log-probabilities that are shown, and beyond the reference */
    const double shown[2] = {means ? rp_document_mean(&d[0]) : d[0].logp,
                             means ? rp_document_mean(&d[1]) : d[1].logp};
    const double ratios[2] = {means ? shown[0] : shown[0] - (double)reference[0],
                              means ? shown[1] : shown[1] - (double)reference[1]};
    const double n[2] = {fmax(d[0].n, 1.0), fmax(d[1].n, 1.0)};
    double loss = 0, by[2] = {0, 0}, by_h;

    switch (preference->objective) {
    case RP_OBJECTIVE_IPO:
        by_h = ratios[0] / n[0] - ratios[1] / n[1] - 1 / (2 * beta);
        loss = by_h * by_h;
        by[0] = 2 * by_h / n[0];
        by[1] = -2 * by_h / n[1];
        break;
    case RP_OBJECTIVE_ORPO:
        loss = rp_odds_loss(beta, ratios[0], ratios[1], &by[0], &by[1]);
        by[0] /= n[0];
        by[1] /= n[1];
        break;
    case RP_OBJECTIVE_SIMPO:
        loss = rp_sigmoid_loss(beta * (ratios[0] - ratios[1]) - preference->gamma, e, false, &by_h);
        by[0] = beta * by_h / n[0];
        by[1] = -beta * by_h / n[1];
        break;
    default:
        loss = rp_sigmoid_loss(beta * (ratios[0] - ratios[1]), e, true, &by_h);
        by[0] = beta * by_h;
        by[1] = -beta * by_h;
    }
    d[0].gradient = by[0];
    d[1].gradient = by[1];
    sums->losses += loss;
    sums->n_chosen += 1;
    sums->n_rejected += 1;
    sums->rewards_chosen += beta * ratios[0];
    sums->rewards_rejected += beta * ratios[1];
    sums->n_right += ratios[0] > ratios[1] ? 1 : 0;
    sums->logps_chosen += shown[0];
    sums->logps_rejected += shown[1];
    return loss;
}

/* KTO: an answer of which z is the estimate of the KL term. */
RP_SHARED double
rp_preference_answer(const RpPreference *preference, bool desirable, float reference, double z,
                     RpPreferenceDocument *d, RpPreferenceSums *sums)
{
    const double beta = preference->beta, ratio = d->logp - (double)reference;
    const double sign = desirable ? 1 : -1;
    const double weight = desirable ? preference->desirable_weight : preference->undesirable_weight;
    const double h = sign * beta * (ratio - z);
    const double loss = weight * rp_sigmoid(-h);

    d->gradient = -weight * sign * beta * rp_sigmoid(h) * rp_sigmoid(-h);
    sums->losses += loss;
    *(desirable ? &sums->n_chosen : &sums->n_rejected) += 1;
    *(desirable ? &sums->rewards_chosen : &sums->rewards_rejected) += beta * ratio;
    *(desirable ? &sums->logps_chosen : &sums->logps_rejected) += d->logp;
    return loss;
}

/* One document, or a pair from its first on; others are looked at with the document before. @z: of KTO */
RP_SHARED double
rp_preference_document(const RpPreferenceArgs *args, double z, size_t i,
                       RpPreferenceDocument *documents, RpPreferenceSums *sums)
{
    const int32_t kind = args->answers[i];
    double loss = 0;

    if (kind == RP_ANSWER_CHOSEN && i + 1 < args->documents)
        loss = rp_preference_pair(&args->preference, args->references + i, documents + i, sums);
    else if (kind == RP_ANSWER_DESIRABLE || kind == RP_ANSWER_UNDESIRABLE)
        loss = rp_preference_answer(&args->preference, kind == RP_ANSWER_DESIRABLE,
                                    args->references[i], z, documents + i, sums);
    if (kind == RP_ANSWER_CHOSEN || kind == RP_ANSWER_DESIRABLE) {
        sums->nll -= documents[i].logp;
        sums->n_chosen_targets += documents[i].n;
        loss -= args->nll_scale * documents[i].logp;
        documents[i].gradient -= args->nll_scale;
    }
    return loss;
}

/* The weight of a document's rows. */
RP_SHARED float
rp_preference_weight(const RpPreferenceArgs *args, const RpPreferenceDocument *d)
{
    return (float)(-args->scale * d->gradient);
}
