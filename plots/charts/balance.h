/**
 * How even a partition is: the time of every slot, with the longest one as a line.
 */
#pragma once

#include "core/partition/partition.h"
#include "plots/figure.h"

typedef struct {
    const RpPartition *partition;
    const char *title;
} RpBalancePanel;

/* @panels: (array length=n_panels): drawn below each other on a common axis. @style: (nullable) */
RpFigure *rp_balance_figure(const char *name, const char *title, const RpProfile *profile,
                            const RpBalancePanel *panels, guint n_panels,
                            const RpFigureStyle *style);
