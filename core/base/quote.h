/**
 * Foreign text in messages: on one line, whatever a file or its name holds.
 */
#pragma once

#include <glib.h>

/* @text quoted, control characters and broken UTF-8 escaped, cut after 60 characters. (transfer
 * full) */
char *rp_quote(const char *text);

/* @name as it is where it is printable, quoted otherwise. (transfer full) */
char *rp_display_name(const char *name);
