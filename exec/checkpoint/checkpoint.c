/* Finding the last checkpoint. */
#include "exec/checkpoint/private.h"

char *
rp_checkpoint_find_last(const char *output, char **skipped, GError **error)
{
    g_return_val_if_fail(output != NULL, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    g_autoptr(GString) passed = g_string_new(NULL);
    g_autoptr(GArray) steps = rp_checkpoint_list(output, error);
    char *found = NULL;

    if (skipped != NULL)
        *skipped = NULL;
    if (steps == NULL)
        return NULL;
    for (guint i = 0; i < steps->len && found == NULL; i++) {
        g_autofree char *path = rp_checkpoint_path(output, g_array_index(steps, guint64, i));
        g_autoptr(GError) reason = NULL;
        if (rp_checkpoint_verify(path, &reason))
            found = g_steal_pointer(&path);
        else
            g_string_append_printf(passed, "%s%s",
                                   passed->len > 0 ? "; " : "passed over: ", reason->message);
    }
    if (skipped != NULL && passed->len > 0)
        *skipped = g_strdup(passed->str);
    return found;
}
