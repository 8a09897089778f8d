/*
 * Messages about broken communications.
 */
#include "core/formats/import-communications-private.h"

#include "core/base/quote.h"

const RpAction *
rp_check_action(const RpCommunicationCheck *check, guint rank, guint i)
{
    return &g_array_index(check->orders->ranks[rank], RpAction, i);
}

const RpCommunication *
rp_check_communication(const RpCommunicationCheck *check, guint rank, guint i)
{
    return &g_array_index(check->orders->communications[rank], RpCommunication, i);
}

/* "`0SEND_F1` (row 1, cell 3)" */
char *
rp_check_describe(const RpCommunicationCheck *check, guint rank, guint i)
{
    const RpCommunication *communication = rp_check_communication(check, rank, i);
    GString *text = g_string_new("`");

    rp_communication_format(text, communication);
    g_string_append_printf(text, "` (row %u, cell %u)", rank + 1, communication->cell);
    return g_string_free(text, FALSE);
}

char *
rp_check_describe_action(const RpCommunicationCheck *check, guint rank, guint i)
{
    GString *text = g_string_new("`");

    rp_action_format(text, rp_check_action(check, rank, i));
    g_string_append_printf(text, "` (row %u, cell %u)", rank + 1,
                           g_array_index(check->orders->cells[rank], guint32, i));
    return g_string_free(text, FALSE);
}

/* Sets the error "<file>: <subject> <problem>". */
gboolean
rp_check_fail(const RpCommunicationCheck *check, const char *subject, const char *problem)
{
    g_autofree char *name = rp_display_name(check->orders->name);

    g_set_error(check->error, RP_IMPORT_ERROR, RP_IMPORT_ERROR_ORDER, "%s: %s %s", name, subject,
                problem);
    return FALSE;
}

gboolean
rp_check_fail_at(const RpCommunicationCheck *check, guint rank, guint i, const char *problem)
{
    g_autofree char *subject = rp_check_describe(check, rank, i);

    return rp_check_fail(check, subject, problem);
}
