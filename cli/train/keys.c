/* `train --keys`: the settings of a run file, with what each takes. */
#include "run/settings.h"

#include "cli/cli.h"
#include "cli/train/train.h"

void
rp_train_print_keys(void)
{
    static const char *const columns[] = {"<key", "<default", "<meaning", NULL};
    g_autoptr(RpCliTable) table = rp_cli_table_new(columns);

    for (const RpSetting *setting = rp_settings(); setting->key != NULL; setting++) {
        g_autofree char *meaning = rp_setting_meaning(setting);

        rp_cli_table_add(table, "%s", setting->key);
        rp_cli_table_add(table, "%s", rp_setting_default(setting));
        rp_cli_table_add(table, "%s", meaning);
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
