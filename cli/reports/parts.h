/**
 * Parts of a sample, as a terminal shows them.
 */
#pragma once

#include <glib.h>

/* Nothing in it moves the cursor. (transfer full) */
char *rp_cli_harmless(const char *text);

/* A part that is learned, or is not: in a colour, or each line behind a + or a |. The middle of a long
 * one is left out. */
void rp_cli_append_part(GString *shown, const char *text, gboolean learned, gboolean colour);
