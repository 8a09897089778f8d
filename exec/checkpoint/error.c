/* Errors of checkpoints. */
#include "exec/checkpoint/private.h"

#include <errno.h>

#include "core/base/quote.h"

G_DEFINE_QUARK(rp_checkpoint_error, rp_checkpoint_error)

gboolean
rp_checkpoint_fail(GError **error, RpCheckpointError code, const char *path, const char *format,
                   ...)
{
    g_autofree char *shown = rp_display_name(path);
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *message = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    g_set_error(error, RP_CHECKPOINT_ERROR, code, "%s: %s", shown, message);
    return FALSE;
}

gboolean
rp_checkpoint_fail_errno(GError **error, const char *verb, const char *path, int number)
{
    g_autofree char *shown = rp_display_name(path);

    g_set_error(error, RP_CHECKPOINT_ERROR,
                number == ENOSPC || number == EDQUOT ? RP_CHECKPOINT_ERROR_NO_SPACE
                                                     : RP_CHECKPOINT_ERROR_WRITE,
                "cannot %s \"%s\": %s", verb, shown, g_strerror(number));
    return FALSE;
}

gboolean
rp_checkpoint_fail_as(GError **error, RpCheckpointError code, GError *cause)
{
    g_set_error_literal(error, RP_CHECKPOINT_ERROR, code, cause->message);
    g_error_free(cause);
    return FALSE;
}
