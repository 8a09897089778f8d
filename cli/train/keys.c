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
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_LINES);

    rp_json_array(json, NULL);
    for (const RpSetting *setting = rp_settings(); setting->key != NULL; setting++) {
        g_autofree char *expects = rp_setting_expects(setting);

        rp_json_object(json, NULL);
        rp_json_string(json, "key", setting->key);
        rp_json_bool(json, "required", setting->required);
        rp_json_string(json, "default", setting->initial);
        rp_json_string(json, "expects", expects);
        rp_json_string(json, "meaning", setting->help);
        rp_json_end(json);
    }
    rp_json_end(json);
    rp_cli_print_json(json);
}
