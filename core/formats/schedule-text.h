/**
 * The text dialect of schedule files: its words, read and written. core/formats/schedule-file.h shows
 * it.
 */
#pragma once

#include "core/formats/import-pytorch.h"

/* Settings that a file gives beside its orders; lines count from 1, and 0 means that it does not
 * give it. */
typedef struct {
    guint round;
    guint round_line;
    guint offloaded_line;
} RpScheduleText;

/**
 * rp_orders_import_text:
 *
 * Reads lines of actions. Their cells are columns, from 1, and messages name lines.
 * Errors: RP_IMPORT_ERROR_SYNTAX, RP_IMPORT_ERROR_LIMIT
 */
RpOrders *rp_orders_import_text(const char *name, const char *text, gsize length,
                                RpScheduleText *words, GError **error) G_GNUC_WARN_UNUSED_RESULT;
