/**
 * roundpipe profile: its table (profile-print.c).
 */
#pragma once

#include "cli/cli.h"

typedef struct {
    const RpProfile *profile;
    const char *output; /* the timing file */
    guint optimizer_threads;
    gboolean given_weights; /* else random */
    gboolean host_memory;   /* devices are threads */
} RpProfileReport;

void rp_profile_print(const RpProfileReport *report);
void rp_profile_print_json(const RpProfileReport *report);
