#pragma once

#include <glib.h>

/* Memory that the system can give without swapping, caches of files that it would drop included,
 * and within the limits of cgroups and of the process (memory-limit.h), bytes; 0: nothing says. */
guint64 rp_available_memory(void);
