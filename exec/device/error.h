/**
 * Errors of backends, whichever they are.
 */
#pragma once

#include <glib.h>

#define RP_DEVICE_ERROR (rp_device_error_quark())
GQuark rp_device_error_quark(void);
typedef enum {
    RP_DEVICE_ERROR_MISSING, /* no such device, or it is busy, or it has failed */
    RP_DEVICE_ERROR_MEMORY,  /* there is not enough, or the plan exceeds a device's limit */
    RP_DEVICE_ERROR_LAUNCH,  /* an operation could not be issued */
    RP_DEVICE_ERROR_PLAN     /* a task that no backend runs (split backward) */
} RpDeviceError;
