/**
 * Checks that every harness makes: a parser returns a value or an error, and the error is one line.
 */
#pragma once

#include <glib.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Either it was @taken, or @error says on one line why not. Returns: @taken */
static inline gboolean
was_taken(gboolean taken, const GError *error)
{
    g_assert(taken == (error == NULL));
    g_assert(taken || g_utf8_validate(error->message, -1, NULL));
    g_assert(taken || strchr(error->message, '\n') == NULL);
    return taken;
}
