#include "exec/optim/parameter-group.h"

#include <string.h>

gboolean
rp_parameter_decays(const char *name, guint n_dims)
{
    g_autofree char *lower = g_ascii_strdown(name, -1);

    if (n_dims <= 1 || strstr(lower, "bias") != NULL)
        return FALSE;
    g_auto(GStrv) parts = g_strsplit(lower, ".", -1);
    for (char **part = parts; *part != NULL; part++)
        if (g_str_has_suffix(*part, "norm"))
            return FALSE;
    return TRUE;
}
