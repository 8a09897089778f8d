/**
 * Errors of a user or a file, set and returned in one line:
 *
 *   return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE, "steps: expected ..., found %s", text);
 */
#pragma once

#include <glib.h>

/* Sets @error. Returns: %FALSE */
gboolean rp_fail(GError **error, GQuark domain, gint code, const char *format, ...)
    G_GNUC_PRINTF(4, 5);

/* The same of a file, as G_FILE_ERROR of the errno @number, in whose words the message ends:
 * "cannot write x: No space left on device". */
gboolean rp_file_fail(GError **error, int number, const char *format, ...) G_GNUC_PRINTF(3, 4);
