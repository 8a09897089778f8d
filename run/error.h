/**
 * What is wrong with the description of a run.
 */
#pragma once

#include <glib.h>

#define RP_RUN_ERROR (rp_run_error_quark())
GQuark rp_run_error_quark(void);
typedef enum {
    RP_RUN_ERROR_SYNTAX, /* not YAML, or not a mapping */
    RP_RUN_ERROR_KEY,    /* unknown, twice, or missing */
    RP_RUN_ERROR_VALUE,  /* of the wrong type, or out of range */
    RP_RUN_ERROR_USAGE   /* any of these on the command line */
} RpRunError;
