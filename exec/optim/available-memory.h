#pragma once

#include <glib.h>

/* Memory that the system can give without swapping, caches of files that it would drop included,
 * bytes; 0: it does not say. */
guint64 rp_available_memory(void);
