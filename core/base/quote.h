/**
 * Messages: errors of a user or a file in one line, and foreign text on one line, whatever a file or its name holds.
 *
 *   return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE, "steps: expected ..., found %s", text);
 */
#pragma once

#include <glib.h>

/* @text quoted, control characters and broken UTF-8 escaped, cut after 60 characters. (transfer
 * full) */
char *rp_quote(const char *text);

/* @name as it is where it is printable, quoted otherwise. (transfer full) */
char *rp_display_name(const char *name);

/*
 * "Did you mean": the known name nearest to a misspelt one.
 */

/**
 * rp_nearest_name:
 * @wrong: the word that was written
 * @names: (array zero-terminated=1): the known names
 *
 * The name with the fewest single-character insertions, deletions, replacements and swaps of
 * neighbours away from @wrong, letter case ignored. Ties go to the earlier name. A name counts as
 * similar when at most one third of the longer of the two differs: "t4" is not similar to "l4".
 *
 * Returns: (nullable): one of @names, or %NULL when nothing is close
 */
const char *rp_nearest_name(const char *wrong, const char *const *names);

/* Sets @error. Returns: %FALSE */
gboolean rp_fail(GError **error, GQuark domain, gint code, const char *format, ...)
    G_GNUC_PRINTF(4, 5);

/* The same behind "PATH: ", with @path as rp_display_name() shows it. */
gboolean rp_fail_in(GError **error, const char *path, GQuark domain, gint code, const char *format,
                    ...) G_GNUC_PRINTF(5, 6);

/* Puts words, such as "model: ", before the message of *@error. Returns: %FALSE */
gboolean rp_prefix_error(GError **error, const char *format, ...) G_GNUC_PRINTF(2, 3);

/* g_propagate_error(), in a statement that fails. Returns: %FALSE */
gboolean rp_propagate_error(GError **error, GError *problem);

/* For functions that return a pointer: return rp_null(rp_fail(error, ...)); */
static inline gpointer
rp_null(gboolean failed)
{
    (void)failed;
    return NULL;
}

/* The same as rp_fail() of a file, as G_FILE_ERROR of the errno @number, in whose words the message ends:
 * "cannot write x: No space left on device". */
gboolean rp_file_fail(GError **error, int number, const char *format, ...) G_GNUC_PRINTF(3, 4);
