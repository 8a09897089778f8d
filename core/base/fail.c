#include "core/base/fail.h"

gboolean
rp_fail(GError **error, GQuark domain, gint code, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_propagate_error(error, g_error_new_valist(domain, code, format, arguments));
    va_end(arguments);
    return FALSE;
}

gboolean
rp_file_fail(GError **error, int number, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *message = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    return rp_fail(error, G_FILE_ERROR, (gint)g_file_error_from_errno(number), "%s: %s", message,
                   g_strerror(number));
}
