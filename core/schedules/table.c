/*
 * The table of schedules, and look-ups in it.
 */
#include "core/schedules/schedule.h"

#include <string.h>

#include "core/base/quote.h"
#include "core/schedules/given.h"
#include "core/schedules/schedules.h"

#define ADDRESS_OF(name) &rp_schedule_##name,
#define COUNT(name) +1
enum { N_OWN = RP_SCHEDULES(COUNT) };
static const RpScheduleOps *schedules[N_OWN + RP_MOST_ADDED + 1] = {RP_SCHEDULES(ADDRESS_OF)};

const RpScheduleOps *const *
rp_schedules(void)
{
    return schedules;
}

/* Returns: (nullable): what keeps it out of the table */
static const char *
find_fault(const RpScheduleOps *schedule)
{
    const char *name = schedule->name;

    if (name == NULL || *name == '\0' ||
        strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != strlen(name))
        return "expected a name of small letters, digits and hyphens";
    if (schedule->title == NULL || schedule->summary == NULL || schedule->order == NULL ||
        schedule->given != NULL)
        return "expected a title, a summary and a function for its order, and no orders that are "
               "given";
    if (schedule->dispatched || schedule->unflushed)
        return "expected stages that are bound to devices, and a flush behind each iteration";
    for (guint i = 0; schedules[i] != NULL; i++)
        if (g_str_equal(schedules[i]->name, name))
            return "expected a name that no other schedule has";
    return schedules[G_N_ELEMENTS(schedules) - 2] != NULL
               ? "expected 64 schedules of a program at most"
               : NULL;
}

gboolean
rp_schedule_add(const RpScheduleOps *schedule, GError **error)
{
    g_return_val_if_fail(schedule != NULL, FALSE);

    const char *fault = find_fault(schedule);
    guint end = 0;

    if (fault != NULL)
        return rp_fail(error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_OWN, "schedule \"%s\": %s",
                       schedule->name != NULL ? schedule->name : "", fault);
    while (schedules[end] != NULL)
        end++;
    schedules[end] = schedule;
    rp_schedule_distrust(schedule);
    return TRUE;
}

const RpScheduleOps *
rp_schedule_find(const char *name, GError **error)
{
    const char *names[G_N_ELEMENTS(schedules)] = {NULL};

    g_return_val_if_fail(name != NULL, NULL);

    for (guint i = 0; schedules[i] != NULL; i++) {
        if (g_str_equal(schedules[i]->name, name))
            return schedules[i];
        names[i] = schedules[i]->name;
    }

    const char *nearest = rp_nearest_name(name, names);
    if (nearest != NULL) {
        g_set_error(error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_UNKNOWN,
                    "no schedule is called \"%s\"; did you mean \"%s\"?", name, nearest);
    } else {
        g_autofree char *all = g_strjoinv(", ", (char **)names);
        g_set_error(error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_UNKNOWN,
                    "no schedule is called \"%s\"; there are %s", name, all);
    }
    return NULL;
}

gboolean
rp_schedule_is_rotated(const RpScheduleOps *schedule)
{
    return schedule->dispatched && schedule->given == NULL;
}

gboolean
rp_schedule_is_sliced(const RpScheduleOps *schedule)
{
    return schedule->sliced;
}

guint
rp_schedule_default_slices(const RpScheduleOps *schedule, guint gpus)
{
    return !schedule->sliced                       ? 1
           : schedule->slices == RP_SLICES_AS_GPUS ? MAX(1, gpus)
                                                   : MAX(1, schedule->slices);
}

gboolean
rp_schedule_is_dispatched(const RpScheduleOps *schedule)
{
    return schedule->dispatched;
}

gboolean
rp_schedule_is_grouped(const RpScheduleOps *schedule)
{
    return schedule->grouped;
}

gboolean
rp_schedule_is_limited(const RpScheduleOps *schedule)
{
    return schedule->limited;
}

gboolean
rp_schedule_is_reversible(const RpScheduleOps *schedule)
{
    return schedule->reversible;
}

gboolean
rp_schedule_has_full(const RpScheduleOps *schedule)
{
    return !schedule->mirrored && schedule->slices <= 1 && !schedule->unflushed;
}

gboolean
rp_schedule_is_trained(const RpScheduleOps *schedule)
{
    const RpGivenOrders *given = schedule->given;

    return rp_schedule_has_full(schedule) && !schedule->split_backward &&
           (given == NULL || !schedule->dispatched || given->in_turns);
}

char *
rp_schedule_names(RpScheduleHas has)
{
    GString *text = g_string_new(NULL);
    const char *last = NULL;

    for (guint i = 0; schedules[i] != NULL; i++) {
        if (has != NULL && !has(schedules[i]))
            continue;
        if (last != NULL)
            g_string_append_printf(text, "%s%s", text->len > 0 ? ", " : "", last);
        last = schedules[i]->name;
    }
    if (last != NULL)
        g_string_append_printf(text, "%s%s", text->len > 0 ? " or " : "", last);
    return g_string_free(text, FALSE);
}
