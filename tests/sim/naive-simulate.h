/**
 * An independent simulator for the tests: no heap, no classes of flows, no bookkeeping that could
 * be out of date. At every moment it looks at every task again.
 */
#pragma once

#include "sim/simulate.h"

typedef struct {
    gint64 start_ns;
    gint64 end_ns; /* -1 if the task never ended */
} NaiveTimes;

/* Returns: (transfer full): the times of every task of @plan, which must not be retired */
NaiveTimes *naive_simulate(const RpPlan *plan, const RpMachine *machine);
