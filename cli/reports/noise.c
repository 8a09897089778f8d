#include "cli/reports/noise.h"

#include <string.h>

#include "cli/reports/result.h"
#include "run/devices.h"

#define MOST_SIGMA 2.0

gboolean
rp_cli_noise_check(const RpArgs *args, guint gpus, GError **error)
{
    g_autofree RpSlow *each = NULL;

    if (args->draws > RP_CLI_MOST_DRAWS)
        return rp_cli_refuse(error, "--draws: expected at most %d, found %d", RP_CLI_MOST_DRAWS,
                             args->draws);
    if (args->seed != 0 && args->draws == 0)
        return rp_cli_refuse(error, "--seed: expected --draws beside it");
    if (args->noise != 0 && args->draws == 0)
        return rp_cli_refuse(error, "--noise: expected --draws beside it");
    if (!(args->noise >= 0 && args->noise <= MOST_SIGMA))
        return rp_cli_refuse(error, "--noise: expected a deviation of 0 to %.0f, found %g",
                             MOST_SIGMA, args->noise);
    if (args->run.host_slow == NULL ||
        (each = rp_run_parse_slow(args->run.host_slow, MAX(gpus, 1), error)) != NULL)
        return TRUE;
    g_prefix_error(error, "--slow: ");
    return FALSE;
}

void
rp_cli_noise_apply(const RpArgs *args, RpRequest *request)
{
    request->noise = args->noise;
}

gboolean
rp_cli_noise_draw(const RpArgs *args, const RpRequest *request, const RpProfile *profile,
                  RpRequestDrawn *drawn, gboolean *distributed, GError **error)
{
    *distributed = args->noise > 0 || rp_draws_has_spreads(profile);
    drawn->draws = 0;
    return args->draws == 0 || !*distributed ||
           rp_request_draw(request, profile, (guint)args->draws, (guint64)args->seed, drawn, error);
}

static void
add_slow(RpReport *report, const RpRequest *request, gboolean words)
{
    const guint gpus = request->options.gpus;
    g_autofree char *all = rp_run_describe_slow(request->slow, gpus);

    rp_report_object(report, "slow", NULL);
    for (guint g = 0; g < gpus; g++) {
        g_autofree char *gpu = g_strdup_printf("%u", g);
        g_autofree char *link = g_strdup_printf("link%u", g);

        if (request->slow[g].actions != 1)
            rp_report_real(report, gpu, request->slow[g].actions, 4, NULL);
        if (request->slow[g].link != 1)
            rp_report_real(report, link, request->slow[g].link, 4, NULL);
    }
    rp_report_end(report);
    if (words)
        rp_report_line(report, "slow", "%s: %s", all,
                       request->slowed != NULL ? "slots go to the GPU that is free first"
                                               : "the plan does not know of it");
}

void
rp_report_add_noise(RpReport *report, const RpArgs *args, const RpRequest *request,
                    const RpRequestDrawn *drawn, gboolean words)
{
    if (request->slow != NULL)
        add_slow(report, request, words);
    if (request->options.dispatch == RP_DISPATCH_FREE)
        rp_report_text(report, "dispatch", "free", NULL);
    if (drawn->draws == 0)
        return;
    rp_report_object(report, "drawn", NULL);
    rp_report_count(report, "draws", drawn->draws, words ? "draws" : NULL);
    rp_report_show(report, "%u of layers' times, seed %" G_GUINT64_FORMAT, drawn->draws,
                   drawn->seed);
    rp_report_count(report, "seed", (gint64)drawn->seed, NULL);
    if (args->noise > 0)
        rp_report_real(report, "noise", args->noise, 6, words ? "  log-normal" : NULL);
    rp_report_show(report, "sigma %g, mean as in the profile", args->noise);
    rp_report_add_drawn(report, "makespan_ms", &drawn->makespan_ns, TRUE,
                        words ? "  makespan" : NULL);
    rp_report_add_drawn(report, "iteration_ms", &drawn->iteration_ns, TRUE,
                        words ? "  iteration" : NULL);
    rp_report_add_drawn(report, "bubble_ratio", &drawn->bubble_ratio, FALSE,
                        words ? "  bubble ratio" : NULL);
    rp_report_end(report);
}
