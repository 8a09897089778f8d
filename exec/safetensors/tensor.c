/* Descriptions of a tensor or a file for messages. */
#include "exec/safetensors/private.h"

G_DEFINE_QUARK(rp_safetensors_error, rp_safetensors_error)

char *
rp_safetensor_describe(const char *dtype_name, const guint64 *shape, guint rank)
{
    GString *text = g_string_new(dtype_name);

    g_string_append(text, " [");
    for (guint i = 0; i < rank; i++)
        g_string_append_printf(text, "%s%" G_GUINT64_FORMAT, i > 0 ? ", " : "", shape[i]);
    g_string_append_c(text, ']');
    return g_string_free(text, FALSE);
}
