/**
 * A box: rates of a machine's links, host memory and processors, whatever is trained there.
 * `roundpipe doctor --box FILE` measures it; its file is a timing file that may lack layers.
 */
#pragma once

#include "core/profile/profile.h"

/* A prediction needs these, and no card's sheet says them. The box has all but the times of layers. */
typedef enum {
    RP_UNKNOWN_TIMES,
    RP_UNKNOWN_BOTH,  /* copies up and down one link at once */
    RP_UNKNOWN_ROOTS, /* copies of cards behind one root complex */
    RP_UNKNOWN_HOST,  /* host memory */
    RP_UNKNOWN_OPTIMIZER,
    RP_N_UNKNOWNS
} RpUnknown;

/* Whether @profile says enough of a machine to be a box: a link's two directions, or one of the
 * host's rates. */
gboolean rp_profile_says_box(const RpProfile *profile);
/* Bits, 1 << RpUnknown, that @box settles. Roots are settled where several devices were measured. */
guint rp_profile_box_known(const RpProfile *box);
/* Replaces links, host memory and optimizer of @profile by @box's. If @box has no roots, @profile's
 * keep their proportion to the link. */
void rp_profile_take_box(RpProfile *profile, const RpProfile *box);
/* Leaves @profile, measured of a whole machine, one of its servers' shares: of host memory, and of links of root
 * complexes that @devices of each share. @processors: the optimizer's rates, too, which other threads measured. */
void rp_profile_share_machine(RpProfile *profile, guint servers, guint devices,
                              gboolean processors);
