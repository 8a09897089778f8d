/**
 * Lists of processors, or of memory nodes, as the kernel writes them: "0-3,8".
 */
#pragma once

#include <glib.h>
#include <sched.h>

/* Sets the numbers of @list; those of CPU_SETSIZE and above are no numbers. FALSE: it is no list. */
gboolean rp_cpu_list_parse(const char *list, cpu_set_t *set);
