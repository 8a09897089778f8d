/**
 * The report of `roundpipe profile` (cli/commands/profile.c).
 */
#pragma once

#include "cli/report.h"
#include "core/profile/profile.h"
#include "exec/device/device.h"

/* GPU code, driver, and what was found when this was built. @gpus: (nullable) */
void rp_report_built(RpReport *report, const RpDeviceOps *gpus);
/* The first @n. @problems: (element-type utf8): a line is added for each that does not answer */
void rp_report_gpus(RpReport *report, guint n, GPtrArray *problems);

/* The measured model and device. @output: the file; @weights: "given" or "random" */
void rp_report_profile_subject(RpReport *report, const RpProfile *profile, const char *output,
                               const char *weights);
void rp_report_profile_layers(RpReport *report, const RpProfile *profile);
/* Copies, also those at once where they were measured. */
void rp_report_profile_links(RpReport *report, const RpLinks *links);
/* @threads: of the optimizer */
void rp_report_profile_optimizer(RpReport *report, const RpProfile *profile, guint threads);
