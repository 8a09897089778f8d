/**
 * Values that a run file and the command line set, before they are read: texts and their places. Private to
 * run/.
 */
#pragma once

#include "run/settings.h"

typedef struct {
    const RpSetting *setting;
    char *text;        /* as written; %NULL = not given */
    char *place;       /* "RUN.yaml: line 3, column 9: " or "--set "; %NULL: a default */
    gboolean from_set; /* the command line is to blame */
} RpRunValue;

/* (element-type RpRunValue): one of each setting, in the table's order */
typedef GArray RpRunValues;

/* Every setting, with its default. */
RpRunValues *rp_run_values_new(void);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpRunValues, g_array_unref)

/* Returns: (nullable): %NULL if there is no such key */
RpRunValue *rp_run_values_find(const RpRunValues *values, const char *key);

/* @text and @place are copied. */
void rp_run_value_set(RpRunValue *value, const char *text, const char *place, gboolean from_set);

/* Sets what YAML @text sets; null is "not given". @name: for messages. Errors:
 * RP_RUN_ERROR_SYNTAX, RP_RUN_ERROR_KEY, RP_RUN_ERROR_VALUE */
gboolean rp_run_values_read(RpRunValues *values, const char *name, const char *text, gsize length,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Sets what one `key=value` of the command line sets. Errors: RP_RUN_ERROR_USAGE */
gboolean rp_run_values_set(RpRunValues *values, const char *word,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* All values that are set, as YAML. (transfer full) */
char *rp_run_values_to_yaml(const RpRunValues *values);

/* "PLACE: KEY: MESSAGE", or RP_RUN_ERROR_USAGE and "--set KEY: MESSAGE". Returns: %FALSE */
gboolean rp_run_value_fail(const RpRunValue *value, GError **error, RpRunError code,
                           const char *format, ...) G_GNUC_PRINTF(4, 5);
