/**
 * "Did you mean": the known name nearest to a misspelt one.
 */
#pragma once

#include <glib.h>

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
