/**
 * roundpipe compare: rows of profile x schedule, and how they are printed (compare-print.c).
 */
#pragma once

#include "cli/reports/result.h"
#include "core/schedules/schedule.h"

typedef struct {
    char *path;
    char *name; /* of the file, without .json */
    RpProfile *profile;
} RpCompareEntry;

typedef struct {
    const RpCompareEntry *entry;
    const RpScheduleOps *schedule;
    gboolean async;
    RpRequest request;
    RpResult result;
    char *problem; /* why it cannot run; %NULL if it ran */
    gboolean fastest;
    gboolean least_bubble;
    gboolean least_memory;
} RpCompareRow;

/* What the rows have in common. */
typedef struct {
    const RpScheduleArgs *args;
    gboolean published; /* recompute and fused forward as the paper compares, not alike for all */
} RpCompareReport;

/* @rows: (element-type RpCompareRow) */
void rp_compare_print(const RpCompareReport *report, const GArray *rows);
void rp_compare_print_json(const RpCompareReport *report, const GArray *rows);
/* RpCliWrite; @user_data: the rows */
gboolean rp_compare_write_csv(GOutputStream *stream, gpointer user_data, GError **error);
