#include "core/base/units.h"

#include <string.h>

gboolean
rp_bytes_parse(const char *text, guint64 *bytes)
{
    static const struct {
        const char *suffix;
        double factor;
    } units[] = {{"", 1},
                 {"B", 1},
                 {"K", 1024}, /* as people say it of memory: "64G" is 64 GiB */
                 {"M", 1048576.0},
                 {"G", 1073741824.0},
                 {"T", 1099511627776.0},
                 {"KB", 1e3},
                 {"MB", 1e6},
                 {"GB", 1e9},
                 {"TB", 1e12},
                 {"KiB", 1024},
                 {"MiB", 1048576.0},
                 {"GiB", 1073741824.0},
                 {"TiB", 1099511627776.0}};
    char *end = NULL;
    const double value = g_ascii_strtod(text, &end);
    const char *unit = end + strspn(end, " ");

    for (gsize i = 0; end != text && i < G_N_ELEMENTS(units); i++) {
        const double total = value * units[i].factor;

        if (g_ascii_strcasecmp(unit, units[i].suffix) != 0)
            continue;
        if (!(total >= 0 && total <= 1e18)) /* also refuses NaN */
            return FALSE;
        *bytes = (guint64)total;
        return TRUE;
    }
    return FALSE;
}

int
rp_compare_doubles(gconstpointer a, gconstpointer b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

int
rp_compare_int64(gconstpointer a, gconstpointer b)
{
    const gint64 x = *(const gint64 *)a, y = *(const gint64 *)b;

    return (x > y) - (x < y);
}

int
rp_compare_uint64(gconstpointer a, gconstpointer b)
{
    const guint64 x = *(const guint64 *)a, y = *(const guint64 *)b;

    return (x > y) - (x < y);
}
