/**
 * What `roundpipe profile` has measured (cli/commands/profile.c).
 */
#pragma once

#include "cli/report.h"
#include "core/profile/profile.h"

/* Of what, and how. @output: the file; @weights: "given" or "random" */
void rp_report_profile_subject(RpReport *report, const RpProfile *profile, const char *output,
                               const char *weights);
void rp_report_profile_layers(RpReport *report, const RpProfile *profile);
/* Copies, also those at once where they were measured. */
void rp_report_profile_links(RpReport *report, const RpLinks *links);
/* @threads: of the optimizer */
void rp_report_profile_optimizer(RpReport *report, const RpProfile *profile, guint threads);
