/* Refusals, and the readers of values of which few are taken. */
#include "exec/model/config/hf-config-private.h"

#include <string.h>

G_DEFINE_QUARK(rp_hf_config_error, rp_hf_config_error)

gboolean
rp_config_fail(const RpConfigReader *reader, RpHfConfigError code, const char *key,
               const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *text = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    g_set_error(reader->pull.error, RP_HF_CONFIG_ERROR, code, "%s: %s: %s", reader->pull.file, key,
                text);
    return FALSE;
}

gboolean
rp_config_fail_unsupported(RpJsonPull *pull, const char *expected)
{
    pull->code = RP_HF_CONFIG_ERROR_UNSUPPORTED;
    return rp_json_pull_fail_value(pull, expected);
}

/* No "did you mean": another name computes something else. */
gboolean
rp_config_read_choice(RpJsonPull *pull, const char *const *names, int *choice)
{
    g_autoptr(GString) text = g_string_new(NULL);

    if (!rp_json_pull_string(pull, text))
        return FALSE;
    for (*choice = 0; names[*choice] != NULL; (*choice)++)
        if (strcmp(names[*choice], text->str) == 0)
            return TRUE;
    g_autofree char *joined = g_strjoinv("\", \"", (char **)names);
    g_autofree char *expected =
        g_strdup_printf("%s\"%s\"", names[1] != NULL ? "one of " : "", joined);
    return rp_config_fail_unsupported(pull, expected);
}

/* Refuses the value at @start. */
static gboolean
fail_refused(RpJsonPull *pull, const RpJsonField *field, const char *start)
{
    g_autofree char *expected = g_strdup_printf("%s (%s)", field->expected, field->note);

    pull->value = start;
    return rp_config_fail_unsupported(pull, expected);
}

gboolean
rp_config_read_fixed(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_auto(GStrv) taken = g_strsplit(field->expected, " or ", -1);
    const char *start = pull->at;

    if (!rp_json_pull_skip(pull))
        return FALSE;
    g_autofree char *found = g_strndup(start, (gsize)(pull->at - start));
    return g_strv_contains((const char *const *)taken, found) || fail_refused(pull, field, start);
}

gboolean
rp_config_read_exactly(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    double number;

    return rp_json_pull_number(pull, &number) && (number == g_ascii_strtod(field->expected, NULL) ||
                                                  fail_refused(pull, field, pull->value));
}
