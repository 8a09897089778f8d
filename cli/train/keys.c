/* roundpipe train --keys: the settings of a run, common ones first. */
#include "cli/train/train.h"
#include "run/settings.h"

static void
report_keys(RpReport *report, gboolean expert)
{
    for (const RpSetting *setting = rp_settings(); setting->key != NULL; setting++) {
        g_autofree char *expects = rp_setting_expects(setting);
        g_autofree char *meaning = rp_setting_meaning(setting);

        if (setting->expert != expert)
            continue;
        rp_report_object(report, NULL, expert ? "for experts" : "common");
        rp_report_text(report, "key", setting->key, "<key");
        rp_report_bool(report, "required", setting->required, NULL);
        rp_report_bool(report, "expert", setting->expert, NULL);
        rp_report_text(report, "default", setting->initial, "<default");
        rp_report_show(report, "%s", rp_setting_default(setting));
        rp_report_text(report, "expects", expects, NULL);
        rp_report_text(report, "meaning", setting->help, "<meaning");
        rp_report_show(report, "%s", meaning);
        rp_report_end(report);
    }
}

void
rp_train_report_keys(RpReport *report)
{
    rp_report_table(report, NULL, "default", 0);
    report_keys(report, FALSE);
    report_keys(report, TRUE);
    rp_report_end(report);
}
