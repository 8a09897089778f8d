#include "cli/reports/noise.h"

#include <string.h>

#include "cli/reports/result.h"

#define MOST_SIGMA 2.0
#define MOST_SLOW 100.0

/* Reads one "GPU=FACTOR" into @slow (nullable). */
static gboolean
read_one(const char *word, guint gpus, double *slow, GError **error)
{
    const char *equals = strchr(word, '=');
    char *end = NULL;
    guint64 gpu = 0;

    if (equals != NULL) {
        g_autofree char *number = g_strndup(word, (gsize)(equals - word));
        const double factor = g_ascii_strtod(equals + 1, &end);

        if (g_ascii_string_to_unsigned(number, 10, 0, gpus - 1, &gpu, NULL) && end != equals + 1 &&
            *end == '\0' && factor >= 1 && factor <= MOST_SLOW) {
            if (slow != NULL)
                slow[gpu] = factor;
            return TRUE;
        }
    }
    return rp_cli_refuse(error,
                         "--slow: expected GPU=FACTOR, a GPU of 0 to %u and a factor of 1 to %.0f "
                         "(actions only: links have no factor), found \"%s\"",
                         gpus - 1, MOST_SLOW, word);
}

static gboolean
read_slow(const char *list, guint gpus, double *slow, GError **error)
{
    g_auto(GStrv) words = g_strsplit(list, ",", -1);

    for (char **word = words; *word != NULL; word++)
        if (!read_one(*word, gpus, slow, error))
            return FALSE;
    return *words != NULL || read_one("", gpus, slow, error);
}

gboolean
rp_cli_noise_check(const RpCliNoise *noise, const char *dispatch, guint gpus, GError **error)
{
    if (g_strcmp0(dispatch, "free") == 0 && noise->slow == NULL)
        return rp_cli_refuse(error, "--dispatch: expected --slow beside free: GPUs that are alike "
                                    "take turns");
    if (noise->draws > RP_CLI_MOST_DRAWS)
        return rp_cli_refuse(error, "--draws: expected at most %d, found %d", RP_CLI_MOST_DRAWS,
                             noise->draws);
    if (noise->seed != 0 && noise->draws == 0)
        return rp_cli_refuse(error, "--seed: expected --draws beside it");
    if (noise->noise != 0 && noise->draws == 0)
        return rp_cli_refuse(error, "--noise: expected --draws beside it");
    if (!(noise->noise >= 0 && noise->noise <= MOST_SIGMA))
        return rp_cli_refuse(error, "--noise: expected a deviation of 0 to %.0f, found %g",
                             MOST_SIGMA, noise->noise);
    return noise->slow == NULL || read_slow(noise->slow, MAX(gpus, 1), NULL, error);
}

void
rp_cli_noise_apply(const RpCliNoise *noise, RpRequest *request)
{
    const guint gpus = request->options.gpus;

    request->noise = noise->noise;
    if (noise->slow == NULL)
        return;
    request->slow = g_new(double, gpus);
    for (guint g = 0; g < gpus; g++)
        request->slow[g] = 1;
    if (!read_slow(noise->slow, gpus, request->slow, NULL))
        g_assert_not_reached();
    if (request->options.dispatch == RP_DISPATCH_FREE)
        request->options.slow = request->slow;
}

gboolean
rp_cli_noise_draw(const RpCliNoise *noise, const RpRequest *request, const RpProfile *profile,
                  RpRequestDrawn *drawn, gboolean *distributed, GError **error)
{
    *distributed = noise->noise > 0 || rp_draws_has_spreads(profile);
    drawn->draws = 0;
    return noise->draws == 0 || !*distributed ||
           rp_request_draw(request, profile, (guint)noise->draws, (guint64)noise->seed, drawn,
                           error);
}

static void
add_slow(RpReport *report, const RpRequest *request, gboolean words)
{
    g_autoptr(GString) all = g_string_new(NULL);

    rp_report_object(report, "slow", NULL);
    for (guint g = 0; g < request->options.gpus; g++) {
        g_autofree char *gpu = g_strdup_printf("%u", g);

        if (request->slow[g] == 1)
            continue;
        rp_report_real(report, gpu, request->slow[g], 4, NULL);
        g_string_append_printf(all, "%sgpu %u x %g", all->len > 0 ? ", " : "", g, request->slow[g]);
    }
    rp_report_end(report);
    if (request->options.slow != NULL)
        rp_report_text(report, "dispatch", "free", NULL);
    if (words)
        rp_report_line(report, "slow", "%s: %s", all->str,
                       request->options.slow != NULL ? "slots go to the GPU that is free first"
                                                     : "the plan does not know of it");
}

void
rp_report_add_noise(RpReport *report, const RpCliNoise *noise, const RpRequest *request,
                    const RpRequestDrawn *drawn, gboolean words)
{
    if (request->slow != NULL)
        add_slow(report, request, words);
    if (drawn->draws == 0)
        return;
    rp_report_object(report, "drawn", NULL);
    rp_report_count(report, "draws", drawn->draws, words ? "draws" : NULL);
    rp_report_show(report, "%u of layers' times, seed %" G_GUINT64_FORMAT, drawn->draws,
                   drawn->seed);
    rp_report_count(report, "seed", (gint64)drawn->seed, NULL);
    if (noise->noise > 0)
        rp_report_real(report, "noise", noise->noise, 6, words ? "  log-normal" : NULL);
    rp_report_show(report, "sigma %g, mean as in the profile", noise->noise);
    rp_report_add_drawn(report, "makespan_ms", &drawn->makespan_ns, TRUE,
                        words ? "  makespan" : NULL);
    rp_report_add_drawn(report, "iteration_ms", &drawn->iteration_ns, TRUE,
                        words ? "  iteration" : NULL);
    rp_report_add_drawn(report, "bubble_ratio", &drawn->bubble_ratio, FALSE,
                        words ? "  bubble ratio" : NULL);
    rp_report_end(report);
}
