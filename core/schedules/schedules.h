/**
 * The schedules, one a file. Private to core/: everyone else uses core/schedules/schedule.h.
 *
 * An `order` may count on a shape that rp_schedule_check() accepts. A %NULL `check` has nothing to
 * add to the checks that hold for every schedule.
 */
#pragma once

#include "core/schedules/schedule.h"

/* In the order in which tables list them: rp_schedule_gpipe, ... */
#define RP_SCHEDULES(row)                                                                          \
    row(gpipe) row(1f1b) row(seq_1f1b) row(slimpipe) row(interleaved_1f1b) row(looped_bfs)         \
        row(zb_h1) row(zb_2p) row(interleaved_zb) row(zb_v) row(v_half) row(v_min) row(dualpipe_v) \
            row(dualpipe) row(chimera) row(hanayo) row(pipedream_2bw) row(mobius) row(roundpipe)   \
                row(roundpipe_split)

#define RP_DECLARE_SCHEDULE(name) extern const RpScheduleOps rp_schedule_##name;
RP_SCHEDULES(RP_DECLARE_SCHEDULE)
