/* Requests that are too large: refused before anything is searched for or allocated. */
#include "core/base/units.h"
#include "exec/system/memory-limit.h"
#include "run/request.h"

#define SECONDS_PER_YEAR (365.25 * 86400)
#define MOST_SECONDS (50 * SECONDS_PER_YEAR)
/* Bytes of plan and trace for a compute action, with its copies in `full`: measured, the largest
 * (docs/lab/speed.md). */
#define COMPUTE_BYTES 240
#define BOUND_BYTES 1400
#define DISPATCHED_BYTES 3300
/* Nobody has less. */
#define LITTLE_MEMORY (64.0 * (double)RP_MIB)

const char *
rp_run_spec_name(const RpRunSpec *run, const char *key)
{
    return run->trains ? key : rp_setting_option(rp_setting_find(key));
}

gboolean
rp_run_check_actions(const RpRunSpec *run, guint stages, guint calls, guint iterations,
                     GError **error)
{
    const RpPlanOptions *options = &run->plan;
    guint64 most =
        options->fidelity == RP_FIDELITY_FULL ? RP_RUN_MAX_FULL_ACTIONS : RP_RUN_MAX_ACTIONS;
    double actions = (double)stages * options->micro_batches * calls * iterations *
                     (options->schedule->dispatched ? 1 : 2);

    if (actions <= (double)most)
        return TRUE;
    g_autofree char *of_calls = calls > 1 ? g_strdup_printf(" x %u calls", calls) : g_strdup("");

    g_set_error(error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
                "%s, %s: expected at most %" G_GUINT64_FORMAT
                " compute actions in a run, found %.0f (%u stages x %u micro-batches%s x "
                "%u iterations)",
                rp_run_spec_name(run, "micro_batches"),
                run->trains ? "gradient_accumulation_steps" : "--iterations", most, actions, stages,
                options->micro_batches, of_calls, iterations);
    return FALSE;
}

/* RoundPipe may come down to its fused stage. Iterations are fewer where they are longer: with the
 * fewest stages, in the most rounds, there are the fewest actions. */
gboolean
rp_run_check_size(const RpRunSpec *run, GError **error)
{
    const RpPlanOptions *options = &run->plan;
    const guint stages = options->schedule->dispatched ? 1 : options->gpus;
    const guint rounds = !options->schedule->dispatched ? 1
                         : options->round > 0 ? MAX(1, options->micro_batches / options->round)
                                              : options->micro_batches;
    const guint64 slots =
        (guint64)stages * rounds * MAX(1, (guint)run->gradient_accumulation_steps);
    const RpSteadyWindow window =
        rp_steady_window(options->gpus, (guint)MIN(slots, (guint64)G_MAXUINT32));

    return rp_run_check_actions(run, stages, MAX(1, (guint)run->gradient_accumulation_steps),
                                window.iterations, error);
}

gboolean
rp_run_check_time(const RpRunSpec *run, const RpProfile *profile, guint iterations, GError **error)
{
    const RpPlanOptions *options = &run->plan;
    const double slowest =
        MIN(profile->links.h2d_bytes_per_s > 0 ? profile->links.h2d_bytes_per_s : G_MAXDOUBLE,
            profile->links.d2h_bytes_per_s > 0 ? profile->links.d2h_bytes_per_s : G_MAXDOUBLE);
    double seconds = 0, bytes = 0;

    for (guint l = 0; l < profile->n_layers; l++) {
        const RpLayer *layer = &profile->layers[l];

        seconds += ((double)layer->forward_ns + (double)layer->backward_ns +
                    (double)layer->recompute_ns + (double)profile->links.hop_ns) /
                   (double)RP_NS_PER_S;
        bytes += 2.0 * (double)layer->parameter_bytes + 2.0 * (double)layer->gradient_bytes +
                 2.0 * (double)layer->input_bytes + 2.0 * (double)layer->output_bytes;
    }
    if (options->fidelity == RP_FIDELITY_FULL)
        seconds += bytes / slowest;
    seconds *= (double)options->micro_batches * iterations;
    if (seconds <= MOST_SECONDS)
        return TRUE;
    g_set_error(error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
                "%s%s: expected a run of at most %.0f years, action after action, found %.0f",
                rp_run_spec_name(run, "micro_batches"), run->trains ? "" : ", --iterations",
                MOST_SECONDS / SECONDS_PER_YEAR, seconds / SECONDS_PER_YEAR);
    return FALSE;
}

guint64
rp_run_memory_now(void)
{
    g_auto(RpMemoryLimit) limit = rp_memory_limit("", FALSE);

    return limit.bytes;
}

gboolean
rp_request_check_memory(const RpRequest *request, GError **error)
{
    const RpPlanOptions *options = &request->options;
    const RpPartition *partition = request->partition;
    const guint64 slots = partition->dispatched ? partition->n_forward + partition->n_backward
                                                : 2 * partition->n_forward;
    const double actions = (double)slots * options->micro_batches * rp_plan_slices(options) *
                           MAX(1, options->calls) * request->iterations;
    const guint at_once = MAX(1, request->beside);
    const double bytes = actions * at_once *
                         (options->fidelity == RP_FIDELITY_COMPUTE ? COMPUTE_BYTES
                          : partition->dispatched                  ? DISPATCHED_BYTES
                                                                   : BOUND_BYTES);

    if (bytes < LITTLE_MEMORY)
        return TRUE;
    g_auto(RpMemoryLimit) limit = rp_memory_limit("", FALSE);

    if (request->memory_bytes > 0)
        limit.bytes = request->memory_bytes;
    if (bytes <= (double)limit.bytes)
        return TRUE;
    g_autofree char *what = rp_memory_limit_describe(&limit);
    g_autofree char *others =
        at_once > 1 ? g_strdup_printf(", %u such at once,", at_once) : g_strdup("");
    g_autofree char *rounds =
        options->async && partition->dispatched && options->round > options->gpus
            ? g_strdup_printf(" or shorter rounds than %u, of which fewer iterations are enough",
                              options->round)
            : g_strdup("");

    g_set_error(
        error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
        "a simulation of %.0f compute actions (%" G_GUINT64_FORMAT
        " slots x %u micro-batches x %u iterations)%s takes about %.1f GiB of memory, found "
        "%.1f of %s: expected fewer micro-batches or iterations%s",
        actions, slots, options->micro_batches, request->iterations, others, bytes / (double)RP_GIB,
        (double)limit.bytes / (double)RP_GIB, what, rounds);
    return FALSE;
}
