/**
 * Orders by time in units of F = B, as waves run down and up over the devices. Private to
 * core/schedules/.
 */
#pragma once

#include "core/schedules/schedule.h"

/* Actions with their times, of one device: no two at the same time. */
GArray *rp_wave_new(void);

/**
 * rp_wave_add:
 * @n_stages: S, stages that these micro-batches pass
 * @unit: micro-batches that enter, one every second unit of time, before others find a gap
 *
 * F and B of @stage for micro-batches @first to @first + @count - 1. The k-th of the u-th @unit has
 * F at 2Su + s + 2k, and B at 2Su + 2S-1-s + 2k.
 */
void rp_wave_add(GArray *wave, guint stage, guint n_stages, guint unit, guint first, guint count);

/* Appends them to @order by time, and frees @wave. */
void rp_wave_push(GArray *wave, GArray *order);
