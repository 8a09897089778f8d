/**
 * The errors of templates: `NAME: line L, column C: MESSAGE`, lines and columns from 1, in bytes.
 */
#pragma once

#include <glib.h>

#define RP_TEMPLATE_ERROR (rp_template_error_quark())
GQuark rp_template_error_quark(void);

typedef enum {
    RP_TEMPLATE_ERROR_SYNTAX,
    RP_TEMPLATE_ERROR_RENDER,
    RP_TEMPLATE_ERROR_RAISED, /* by the template: raise_exception() */
    RP_TEMPLATE_ERROR_BOUND   /* too many steps, too much memory, depth or output */
} RpTemplateError;
