/**
 * The machine that a plan runs on, as far as links, host memory and processors limit it.
 */
#pragma once

#include <math.h>

#include "core/profile/cards.h"

/* Host memory is touched so often for a byte that a server sends and one that comes in its place: to be
 * sent, to arrive, and of gradients to be added to a sum. */
#define RP_REDUCE_TOUCHES 4
#define RP_GATHER_TOUCHES 2

/* Rate between servers, alone; INFINITY: nothing is known of the network, which takes no time. */
static inline double
rp_network_bytes_per_s(const RpLinks *links, guint touches)
{
    const double network = links->network_bytes_per_s;
    const double host = links->host_bytes_per_s > 0 ? links->host_bytes_per_s / touches : INFINITY;

    return network > 0 ? MIN(network, host) : INFINITY;
}

/* The machine a plan runs on; bytes per second, 0 = no limit. */
typedef struct {
    RpLinks links;
    double optimizer_bytes_per_s; /* memory traffic of the CPU optimizer when alone */
    double optimizer_weight; /* of host memory it gets so many times what a device's copy gets, if
                                both want more than there is; 0 = 1 */
    double beside_optimizer_bytes_per_s; /* limit of a copy up while the optimizer runs; 0 = none */
    double beside_down_bytes_per_s;      /* the same, while its device copies down all the time */
    guint processors; /* that devices and host share; 0 = each device has its own */
    double
        alone_speed; /* of an action that no other device's is beside; <= 1: devices share no power */
    const RpProfile *cards; /* (nullable): whose cards have copy engines of their own; borrowed */
} RpMachine;

/* Whether how fast an action is depends on how many are at work. */
static inline gboolean
rp_machine_shares_actions(const RpMachine *machine)
{
    return machine->processors > 0 || machine->alone_speed > 1;
}

/* Rates and latency of @device. */
static inline const RpLinks *
rp_machine_links(const RpMachine *machine, guint device)
{
    return machine->cards != NULL ? &rp_profile_of(machine->cards, device)->links : &machine->links;
}
