/**
 * What a plan runs on, as far as links, host memory and processors limit it.
 */
#pragma once

#include "core/profile/cards.h"

/* The machine a plan runs on; bytes per second, 0 = no limit. */
typedef struct {
    RpLinks links;
    double optimizer_bytes_per_s; /* memory traffic of the CPU optimizer when alone */
    double optimizer_weight; /* of host memory it gets so many times what a device's copy gets, if
                                both want more than there is; 0 = 1 */
    double beside_optimizer_bytes_per_s; /* limit of a copy up while the optimizer runs; 0 = none */
    guint processors;       /* that devices and host share; 0 = each device has its own */
    const RpProfile *cards; /* (nullable): whose cards have copy engines of their own; borrowed */
} RpMachine;

/* Of @device: its rates and its latency. */
static inline const RpLinks *
rp_machine_links(const RpMachine *machine, guint device)
{
    return machine->cards != NULL ? &rp_profile_of(machine->cards, device)->links : &machine->links;
}
