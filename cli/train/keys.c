/* `train --keys`: the settings of a run file, with what each takes. */
#include "run/settings.h"

#include "cli/cli.h"
#include "cli/train/train.h"

/* "required", the default, what holds without one, or "-". */
static const char *
shown_default(const RpSetting *setting)
{
    return setting->required          ? "required"
           : setting->initial != NULL ? setting->initial
           : setting->unset != NULL   ? setting->unset
                                      : "-";
}

void
rp_train_print_keys(void)
{
    static const char *const columns[] = {"<key", "<default", "<meaning", NULL};
    g_autoptr(RpCliTable) table = rp_cli_table_new(columns);

    for (const RpSetting *setting = rp_settings(); setting->key != NULL; setting++) {
        const gboolean is_text =
            setting->type == RP_SETTING_TEXT || setting->type == RP_SETTING_STAGES;
        g_autofree char *expects = rp_setting_expects(setting);

        rp_cli_table_add(table, "%s", setting->key);
        rp_cli_table_add(table, "%s", shown_default(setting));
        rp_cli_table_add(table, is_text ? "%s" : "%s (%s)", setting->help, expects);
    }
    rp_cli_table_print(table);
}

void
rp_train_print_keys_json(void)
{
    g_autoptr(JsonBuilder) json = json_builder_new();

    json_builder_begin_array(json);
    for (const RpSetting *setting = rp_settings(); setting->key != NULL; setting++) {
        g_autofree char *expects = rp_setting_expects(setting);

        json_builder_begin_object(json);
        rp_json_string(json, "key", setting->key);
        rp_json_bool(json, "required", setting->required);
        rp_json_string(json, "default", setting->initial);
        rp_json_string(json, "expects", expects);
        rp_json_string(json, "meaning", setting->help);
        json_builder_end_object(json);
    }
    json_builder_end_array(json);
    rp_cli_print_json(json);
}
