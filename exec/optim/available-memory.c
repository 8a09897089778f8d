#include "exec/optim/available-memory.h"

#include <string.h>

guint64
rp_available_memory(void)
{
    g_autofree char *text = NULL;
    const char *line;

    if (!g_file_get_contents("/proc/meminfo", &text, NULL, NULL) ||
        (line = strstr(text, "MemAvailable:")) == NULL)
        return 0;
    return g_ascii_strtoull(line + strlen("MemAvailable:"), NULL, 10) * 1024;
}
