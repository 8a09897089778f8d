/**
 * Times as distributions: gives the actions of a plan times drawn from the spreads of a profile.
 *
 * A layer and a micro-batch have one draw z, from a distribution like the normal one. The same
 * tokens take the same ways through the same experts each time they pass, so that z is that of the
 * forward, the recompute and the backward alike:
 *
 *   time = max(0, profile's time + z x spread / RP_DRAW_TENTH)
 *
 * of each of the three, z = 1 being a standard deviation. Draws of other layers, micro-batches,
 * iterations and seeds are independent. They are the same on every machine: whole numbers until
 * they are scaled.
 */
#pragma once

#include "core/plan/plan.h"
#include "core/profile/cards.h"

/* Where the 90th percentile of z is: a spread is half the range from the 10th to it. */
#define RP_DRAW_TENTH 1.2889976015515945

/* Times of a plan as it was made, and what they vary by. */
typedef struct _RpDraws RpDraws;

/**
 * rp_draws_new:
 * @plan: whose tasks all are there; its times are those of @profile
 * @profile: borrowed, like @plan
 */
RpDraws *rp_draws_new(RpPlan *plan, const RpProfile *profile);
void rp_draws_free(RpDraws *draws);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpDraws, rp_draws_free)

/**
 * rp_draws_set_noise:
 * @sigma: > 0
 *
 * In place of the profile's spreads every time of a layer and micro-batch is multiplied by
 * exp(sigma z - sigma^2 / 2): log-normal, of mean 1.
 */
void rp_draws_set_noise(RpDraws *draws, double sigma);

/**
 * rp_draws_set_slow:
 * @slow: (nullable) (array): of each device, whose actions take so many times as long; borrowed
 */
void rp_draws_set_slow(RpDraws *draws, const RpSlow *slow);

/* Makes the actions of each device take so many times as long as they are planned; @slow: as above. */
void rp_plan_slow(RpPlan *plan, const RpSlow *slow);

/* Whether any layer's time has a spread. */
gboolean rp_draws_has_spreads(const RpProfile *profile);

/* Gives the plan's actions the times of draw @draw. */
void rp_draws_apply(RpDraws *draws, guint64 seed, guint draw);

/* z: mean 0, variance 1, within 6 of 0: the sum of twelve numbers that are spread evenly. */
double rp_draws_normal(guint64 seed, guint draw, guint iteration, guint layer, guint micro_batch);

/* The distribution of a figure over many draws. */
typedef struct {
    double mean;
    double deviation; /* standard, of the draws as a sample; 0 of one draw */
    double low;       /* 10th percentile */
    double high;      /* 90th */
    double p5;        /* 5th, 50th and 95th */
    double p50;
    double p95;
} RpDrawn;

/* @values: (array length=n): n > 0; sorted on return */
RpDrawn rp_drawn_of(double *values, guint n);
