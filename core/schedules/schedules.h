/**
 * The schedules, one a file. Private to core/: everyone else uses core/schedules/schedule.h.
 *
 * An `order` may count on a shape that rp_schedule_check() accepts. A %NULL `check` has nothing to
 * add to the checks that hold for every schedule.
 */
#pragma once

#include "core/schedules/schedule.h"

extern const RpScheduleOps rp_schedule_gpipe;
extern const RpScheduleOps rp_schedule_1f1b;
extern const RpScheduleOps rp_schedule_interleaved_1f1b;
extern const RpScheduleOps rp_schedule_looped_bfs;
extern const RpScheduleOps rp_schedule_zb_h1;
extern const RpScheduleOps rp_schedule_interleaved_zb;
extern const RpScheduleOps rp_schedule_zb_v;
extern const RpScheduleOps rp_schedule_dualpipe_v;
extern const RpScheduleOps rp_schedule_mobius;
extern const RpScheduleOps rp_schedule_roundpipe;
