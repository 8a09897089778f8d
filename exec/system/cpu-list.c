#include "exec/system/cpu-list.h"

gboolean
rp_cpu_list_parse(const char *list, cpu_set_t *set)
{
    g_auto(GStrv) parts = g_strsplit(list, ",", -1);

    CPU_ZERO(set);
    for (char **part = parts; *part != NULL; part++) {
        g_auto(GStrv) ends = g_strsplit(g_strstrip(*part), "-", 2);
        guint64 from = 0, to = 0;

        if (ends[0] == NULL ||
            !g_ascii_string_to_unsigned(ends[0], 10, 0, CPU_SETSIZE - 1, &from, NULL) ||
            !g_ascii_string_to_unsigned(ends[1] != NULL ? ends[1] : ends[0], 10, from,
                                        CPU_SETSIZE - 1, &to, NULL))
            return FALSE;
        for (guint64 cpu = from; cpu <= to; cpu++)
            CPU_SET((int)cpu, set);
    }
    return TRUE;
}
