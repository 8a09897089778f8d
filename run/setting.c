/* Lookups in the table of settings, and what options set. */
#include <errno.h>
#include <string.h>

#include "core/base/dtype.h"
#include "core/base/quote.h"
#include "core/base/units.h"
#include "core/schedules/schedule.h"
#include "run/spec.h"

/* No machine has more. */
#define MOST_GIB 65536

G_DEFINE_QUARK(rp_run_error, rp_run_error)

const RpSetting *
rp_setting_find(const char *key)
{
    for (const RpSetting *setting = rp_settings(); setting->key != NULL; setting++)
        if (strcmp(setting->key, key) == 0)
            return setting;
    return NULL;
}

static const char *
option_of_key(const char *key)
{
    g_autofree char *own = g_strconcat("--", key, NULL);

    return g_intern_string(g_strdelimit(own, "._", '-'));
}

const char *
rp_setting_option(const RpSetting *setting)
{
    return setting->flag != NULL ? setting->flag : option_of_key(setting->key);
}

const RpSetting *
rp_setting_of_option(const char *name)
{
    for (const RpSetting *setting = rp_settings(); setting->key != NULL; setting++)
        if (strcmp(rp_setting_option(setting) + strlen("--"), name) == 0 ||
            strcmp(option_of_key(setting->key) + strlen("--"), name) == 0)
            return setting;
    return NULL;
}

gboolean
rp_setting_is_flag(const RpSetting *setting)
{
    return setting->type == RP_SETTING_CHOICE && strcmp(setting->choices->name, "false") == 0;
}

/* Length of the group in @key: 9 of "optimizer.mode"; 0: none. */
static gsize
group_length(const char *key)
{
    const char *dot = strrchr(key, '.');

    return dot != NULL ? (gsize)(dot - key) : 0;
}

static const char *
own_word(const char *key)
{
    const gsize group = group_length(key);

    return group > 0 ? key + group + 1 : key;
}

gboolean
rp_setting_is_group(const char *key)
{
    const gsize length = strlen(key);

    for (const RpSetting *setting = rp_settings(); length > 0 && setting->key != NULL; setting++)
        if (group_length(setting->key) == length && strncmp(setting->key, key, length) == 0)
            return TRUE;
    return FALSE;
}

static gboolean
has_other_name(const RpSetting *setting, const char *word)
{
    g_auto(GStrv) others = g_strsplit(setting->others != NULL ? setting->others : "", " ", -1);

    return g_strv_contains((const char *const *)others, word);
}

char *
rp_setting_nearest(const char *key)
{
    g_autoptr(GPtrArray) siblings = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GPtrArray) all = g_ptr_array_new();
    const gsize group = group_length(key);
    const char *word = own_word(key), *same = NULL, *near;

    for (const RpSetting *setting = rp_settings(); setting->key != NULL; setting++) {
        const char *own = own_word(setting->key);
        const gsize own_group = group_length(setting->key);

        if (has_other_name(setting, word))
            return g_strdup(setting->key);
        g_ptr_array_add(all, (gpointer)setting->key);
        if (own_group == group && strncmp(setting->key, key, group) == 0)
            g_ptr_array_add(siblings, g_strdup(own));
        else if (group == 0 && own_group > 0)
            g_ptr_array_add(siblings, g_strndup(setting->key, own_group));
        if (same == NULL && strcmp(own, word) == 0)
            same = setting->key;
    }
    g_ptr_array_add(siblings, NULL);
    g_ptr_array_add(all, NULL);
    near = rp_nearest_name(word, (const char *const *)siblings->pdata);
    if (near != NULL)
        return g_strdup_printf("%.*s%s%s", (int)group, key, group > 0 ? "." : "", near);
    return g_strdup(same != NULL ? same : rp_nearest_name(key, (const char *const *)all->pdata));
}

const char *
rp_setting_value_name(const char *key, int value)
{
    const RpSettingChoice *choice = rp_setting_find(key)->choices;

    while (choice->name != NULL && choice->value != value)
        choice++;
    return choice->name;
}

static void
add_names(GPtrArray *names, const RpSettingChoice *choices)
{
    for (const RpSettingChoice *c = choices; c != NULL && c->name != NULL; c++)
        g_ptr_array_add(names, (gpointer)c->name);
}

const char **
rp_setting_names(const RpSetting *setting)
{
    GPtrArray *names = g_ptr_array_new();

    add_names(names, setting->choices);
    add_names(names, setting->parts);
    for (const RpScheduleOps *const *s = rp_schedules(); *s != NULL; s++)
        if (setting->type == RP_SETTING_SCHEDULE && rp_schedule_is_trained(*s))
            g_ptr_array_add(names, (gpointer)(*s)->name);
    g_ptr_array_add(names, NULL);
    return (const char **)g_ptr_array_free(names, FALSE);
}

static char *
join_names(const RpSetting *setting)
{
    g_autofree const char **names = rp_setting_names(setting);

    return g_strjoinv(", ", (char **)names);
}

char *
rp_setting_expects(const RpSetting *setting)
{
    const RpSetting alone = {.type = setting->type, .choices = setting->choices};
    const RpSetting listed = {.choices = setting->parts};
    g_autofree char *words = join_names(&alone);
    g_autofree char *parts = setting->parts != NULL ? join_names(&listed) : NULL;

    switch (setting->type) {
    case RP_SETTING_TEXT:
    case RP_SETTING_STAGES:
        return g_strdup_printf("text of 1 to %d bytes", RP_SETTING_MAX_TEXT);
    case RP_SETTING_BYTES:
        return g_strdup("a size such as 24GiB or 800GB");
    case RP_SETTING_CHOICE:
    case RP_SETTING_SCHEDULE:
        return parts == NULL ? g_strdup_printf("one of %s", words)
                             : g_strdup_printf("one of %s; or a list of %s", words, parts);
    case RP_SETTING_WHOLE:
    case RP_SETTING_NUMBER:
        break;
    }
    return g_strdup_printf("%s%sa %snumber from %.16g to %s%.16g", words,
                           *words != '\0' ? " or " : "",
                           setting->type == RP_SETTING_WHOLE ? "whole " : "", setting->least,
                           setting->below ? "less than " : "", setting->most);
}

const char *
rp_setting_default(const RpSetting *setting)
{
    return setting->required          ? "required"
           : setting->initial != NULL ? setting->initial
           : setting->unset != NULL   ? setting->unset
                                      : "-";
}

char *
rp_setting_meaning(const RpSetting *setting)
{
    g_autofree char *expects = rp_setting_expects(setting);

    return setting->type == RP_SETTING_TEXT || setting->type == RP_SETTING_STAGES
               ? g_strdup(setting->help)
               : g_strdup_printf("%s (%s)", setting->help, expects);
}

static gboolean
in_range(const RpSetting *setting, double number)
{
    return number >= setting->least && number <= setting->most && /* NaN is in no range */
           !(setting->below && number == setting->most);
}

static gboolean
store_number(const RpSetting *setting, const char *text, double *number)
{
    char *end = NULL;

    errno = 0;
    *number = g_ascii_strtod(text, &end);
    return end != text && *end == '\0' && errno == 0 && !g_ascii_isspace(*text) &&
           in_range(setting, *number);
}

static gboolean
store_schedule(const char *text, const char **name)
{
    const RpScheduleOps *schedule = rp_schedule_find(text, NULL);

    if (schedule == NULL || !rp_schedule_is_trained(schedule))
        return FALSE;
    *name = schedule->name;
    return TRUE;
}

static gboolean
store_text(const char *text, char **field)
{
    if (*text == '\0' || strlen(text) > RP_SETTING_MAX_TEXT)
        return FALSE;
    g_free(*field);
    *field = g_strdup(text);
    return TRUE;
}

/* The name that choices have for @text: "bf16" for "bfloat16"; @text itself if there is no other. */
static const char *
plain_word(const char *text)
{
    RpDtype dtype;

    return rp_dtype_parse(text, rp_dtype_torch_name, &dtype) ? rp_dtype_name(dtype) : text;
}

static const RpSettingChoice *
find_choice(const RpSettingChoice *choices, const char *name)
{
    for (const RpSettingChoice *c = choices; c != NULL && c->name != NULL; c++)
        if (strcmp(c->name, name) == 0)
            return c;
    return NULL;
}

gboolean
rp_setting_choose(const RpSetting *setting, const char *text, int *value)
{
    const RpSettingChoice *choice = find_choice(setting->choices, plain_word(text));
    g_auto(GStrv) names = choice == NULL ? g_strsplit(text, ",", -1) : NULL;
    int sum = choice != NULL ? choice->value : 0;

    for (char **name = names; name != NULL && *name != NULL; name++) {
        choice = find_choice(setting->parts, g_strstrip(*name));
        if (choice == NULL)
            return FALSE;
        sum |= choice->value;
    }
    if (choice != NULL)
        *value = sum;
    return choice != NULL;
}

gboolean
rp_setting_store(const RpSetting *setting, const char *text, void *run)
{
    void *field = (char *)run + setting->offset;
    int value;

    if (rp_setting_choose(setting, text, &value)) {
        if (setting->type == RP_SETTING_WHOLE)
            *(gint64 *)field = value;
        else
            *(int *)field = value;
        return TRUE;
    }
    switch (setting->type) {
    case RP_SETTING_TEXT:
    case RP_SETTING_STAGES:
        return store_text(text, field);
    case RP_SETTING_BYTES: /* a number alone that may be meant in GiB needs its unit */
        return rp_bytes_parse(text, field) &&
               (*(guint64 *)field > MOST_GIB || strcmp(text, "0") == 0 ||
                !g_ascii_isdigit(text[strlen(text) - 1]));
    case RP_SETTING_WHOLE:
        /* 010 is 8 in YAML 1.1 and 10 in YAML 1.2 */
        return !(text[0] == '0' && text[1] != '\0') &&
               g_ascii_string_to_signed(text, 10, G_MININT64, G_MAXINT64, field, NULL) &&
               in_range(setting, (double)*(gint64 *)field);
    case RP_SETTING_NUMBER:
        return store_number(setting, text, field);
    case RP_SETTING_SCHEDULE:
        return store_schedule(text, field);
    case RP_SETTING_CHOICE:
        break;
    }
    return FALSE;
}

void
rp_setting_clear(const RpSetting *setting, void *run)
{
    void *field = (char *)run + setting->offset;

    if (setting->type == RP_SETTING_TEXT || setting->type == RP_SETTING_STAGES)
        g_clear_pointer((char **)field, g_free);
}

/* ---- options ---- */

void
rp_run_spec_init(RpRunSpec *run)
{
    for (const RpSetting *setting = rp_settings(); setting->key != NULL; setting++)
        if (setting->type == RP_SETTING_CHOICE && setting->initial != NULL)
            (void)!rp_setting_store(setting, setting->initial, run);
}

gboolean
rp_run_spec_set(RpRunSpec *run, const RpSetting *setting, const char *text)
{
    const gsize place = (gsize)(setting - rp_settings());

    g_assert(place < RP_RUN_MOST_SETTINGS);
    run->given[place] = g_intern_string(text);
    if (setting->type == RP_SETTING_TEXT || setting->type == RP_SETTING_STAGES)
        *(const char **)(void *)((char *)run + setting->offset) = run->given[place];
    else
        return rp_setting_store(setting, text, run);
    return TRUE;
}

const char *
rp_run_spec_given(const RpRunSpec *run, const char *key)
{
    return run->given[rp_setting_find(key) - rp_settings()];
}

void
rp_run_spec_forget(RpRunSpec *run, const char *key)
{
    const RpSetting *setting = rp_setting_find(key);
    static const gsize sizes[] = {
        [RP_SETTING_TEXT] = sizeof(char *),     [RP_SETTING_STAGES] = sizeof(char *),
        [RP_SETTING_WHOLE] = sizeof(gint64),    [RP_SETTING_NUMBER] = sizeof(double),
        [RP_SETTING_BYTES] = sizeof(guint64),   [RP_SETTING_CHOICE] = sizeof(int),
        [RP_SETTING_SCHEDULE] = sizeof(char *),
    };

    run->given[setting - rp_settings()] = NULL;
    memset((char *)run + setting->offset, 0, sizes[setting->type]);
    if (setting->type == RP_SETTING_CHOICE && setting->initial != NULL)
        (void)!rp_setting_store(setting, setting->initial, run);
}

void
rp_run_spec_plan(RpRunSpec *run)
{
    RpPlanOptions *plan = &run->plan;

    plan->replicas = (guint)run->replicas;
    plan->recompute = RP_SETTING_RECOMPUTE_START(run->recompute_choice);
    plan->dispatch = (RpDispatch)run->dispatch;
    plan->transfers = (RpTransfers)run->transfers;
    plan->consistency = (RpConsistency)run->consistency;
    plan->optimizer = (RpOptimizerMode)run->optimizer.mode;
    plan->early_steps = (RpEarlySteps)run->optimizer.early;
    plan->form = rp_run_optimizer_form(&run->optimizer);
}
