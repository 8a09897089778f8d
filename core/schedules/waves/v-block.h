/**
 * Orders that repeat a building block in a V. Private to core/schedules/.
 */
#pragma once

#include "core/schedules/schedule.h"

/* Units of time of F, I and W. */
typedef struct {
    guint offsets[4]; /* from device to device: F down, F up, I down, I up */
    guint turns[3];   /* from one of these to the next, on one device */
} RpVBlock;

/**
 * rp_order_v_block:
 * @block: its four passes fall on different units of six on every device
 *
 * Every six units a micro-batch begins; W fill the two units that are left. Devices run the actions
 * in this order, each as soon as it can.
 *
 * Source: Qi et al., NeurIPS 2024, §3
 */
void rp_order_v_block(const RpShape *shape, guint gpu, const RpVBlock *block, GArray *order);
