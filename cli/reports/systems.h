/**
 * `compare --systems`: rows of profile x system.
 */
#pragma once

#include "cli/cli.h"
#include "sim/systems/systems.h"

/* The table of systems, for --help. */
void rp_cli_list_systems(RpReport *report);

/* Without --systems: that none of the others is there. Errors: RP_CLI_ERROR_USAGE */
gboolean rp_cli_check_no_systems(const RpArgs *args, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_cli_compare_systems:
 * @args: of it the box, GPUs, and micro-batches of the profile's size: the tokens of a step, of every system
 * @entries: (element-type RpCliEntry)
 *
 * A row that cannot run says why, and the others go on.
 * Errors: RP_CLI_ERROR_USAGE
 */
gboolean rp_cli_compare_systems(const RpArgs *args, const GPtrArray *entries, RpReport *report,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The rows of that report as CSV: an RpCliWrite. */
gboolean rp_cli_write_systems(GOutputStream *stream, gpointer report, GError **error);
