/* Errors, and finding the last checkpoint. */
#include "exec/checkpoint/private.h"

#include <errno.h>

#include "core/base/quote.h"

G_DEFINE_QUARK(rp - checkpoint - error - quark, rp_checkpoint_error)

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

char *
rp_checkpoint_find_last(const char *output, char **skipped, GError **error)
{
    g_return_val_if_fail(output, NULL);
    g_return_val_if_fail(!error || !*error, NULL);

    g_autoptr(GString) passed = g_string_new(NULL);
    g_autoptr(GArray) steps = rp_checkpoint_list(output, error);
    char *found = NULL;

    if (skipped)
        *skipped = NULL;
    if (!steps)
        return NULL;
    for (guint i = 0; i < steps->len && !found; i++) {
        g_autofree char *path = rp_checkpoint_path(output, g_array_index(steps, guint64, i));
        g_autoptr(GError) reason = NULL;
        if (rp_checkpoint_verify(path, &reason))
            found = g_steal_pointer(&path);
        else
            g_string_append_printf(passed, "%s%s",
                                   passed->len > 0 ? "; " : "passed over: ", reason->message);
    }
    if (skipped && passed->len > 0)
        *skipped = g_strdup(passed->str);
    return found;
}
