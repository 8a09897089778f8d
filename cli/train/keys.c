/* `train --keys`: the settings of a run file, with what each takes. */
#include "run/settings.h"

#include "cli/train/train.h"

void
rp_train_report_keys(RpReport *report)
{
    rp_report_table(report, NULL, "default", 0);
    for (const RpSetting *setting = rp_settings(); setting->key != NULL; setting++) {
        g_autofree char *expects = rp_setting_expects(setting);
        g_autofree char *meaning = rp_setting_meaning(setting);

        rp_report_object(report, NULL, NULL);
        rp_report_text(report, "key", setting->key, "<key");
        rp_report_bool(report, "required", setting->required, NULL);
        rp_report_text(report, "default", setting->initial, "<default");
        rp_report_show(report, "%s", rp_setting_default(setting));
        rp_report_text(report, "expects", expects, NULL);
        rp_report_text(report, "meaning", setting->help, "<meaning");
        rp_report_show(report, "%s", meaning);
        rp_report_end(report);
    }
    rp_report_end(report);
}
