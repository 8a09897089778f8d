/**
 * `roundpipe compare`: rows of profile x schedule, and how they are reported.
 */
#pragma once

#include "cli/reports/result.h"
#include "core/schedules/schedule.h"

typedef struct {
    RpScheduleArgs request;
    char *schedules;
    char *profiles_dir;
    char *csv;
    gboolean published; /* recompute and fused forward as the paper compares, not alike for all */
} RpCompareArgs;

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

/* @rows: (element-type RpCompareRow) */
void rp_compare_report(RpReport *report, const RpCompareArgs *args, const GArray *rows);
/* RpCliWrite; @user_data: the report */
gboolean rp_compare_write_csv(GOutputStream *stream, gpointer user_data, GError **error);
