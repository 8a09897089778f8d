/**
 * A box with cards of several kinds: a profile that holds one for each kind.
 *
 *   --gpu rtx4090:2,rtx3090:2     cards     RTX 4090, RTX 3090
 *                                 card_of   0 0 1 1
 *
 * All are of one model and micro-batch. The box's own numbers are for questions without a device:
 * times with which devices alike would do as much together (harmonic means), the largest sizes, the
 * least memory and the slowest links. So a stage that may go to any device is as large as the
 * smallest one lets it be.
 */
#pragma once

#include "core/profile/profile.h"

/* How many times as long something takes on a device. */
typedef struct {
    double actions;
    double link; /* copies, and hops to and from it */
} RpSlow;

/* The profile of @device's card; @profile itself where all are alike. */
const RpProfile *rp_profile_of(const RpProfile *profile, guint device);
/* Its place among the cards. */
guint rp_profile_card(const RpProfile *profile, guint device);

static inline gboolean
rp_profile_is_mixed(const RpProfile *profile)
{
    return profile->n_cards > 0;
}

/**
 * rp_profile_box:
 * @cards: one for each number in @card_of; copied
 * @card_of: (array length=n_devices): 0 first, then in the order in which they come
 *
 * Returns: (transfer full): the box; the only profile, if there is one kind
 */
RpProfile *rp_profile_box(const RpProfile *const *cards, const guint *card_of, guint n_devices);

/**
 * rp_profile_slowed:
 * @slow: (array length=n_devices): all 1 or more
 *
 * Returns: (transfer full): the same box with devices that are slower than their cards
 */
RpProfile *rp_profile_slowed(const RpProfile *profile, const RpSlow *slow, guint n_devices);

/* Each time of @profile, times @own, gets the time of @other, of the same layers, times @others[kind of layer]. */
void rp_profile_mix_times(RpProfile *profile, double own, const RpProfile *other,
                          const double others[]);
