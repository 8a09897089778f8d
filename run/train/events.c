#include "run/train/job.h"

void
rp_run_say(const RpRunEvents *events, const char *kind, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *text = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    events->say(events->user_data, kind, text);
}
