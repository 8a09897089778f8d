/*
 * Chooses the engine of a plan, and makes the machine that a profile describes.
 */
#include "sim/simulate-private.h"

/* Memory traffic of one parameter's update in one fused pass (design.md §6): weight and moments,
 * read and written; its gradient and the weight that devices read come on top: 28 in 16 bits. */
#define OPTIMIZER_STATE_BYTES 24
#define LEAST_WEIGHT 0.01
#define MOST_WEIGHT 100.0

/* How much more host memory processors take than a device's copy: where there is too little for
 * all, neither waits for the other, each makes requests at its own pace. */
static double
optimizer_weight(const RpProfile *profile)
{
    const double copies = profile->links.beside_optimizer_bytes_per_s;
    const double rest = profile->links.host_bytes_per_s - copies;

    if (copies <= 0 || rest <= 0)
        return 0;
    return CLAMP(rest * MAX(profile->gpus, 1) / copies, LEAST_WEIGHT, MOST_WEIGHT);
}

/* Share of both directions together that is left for copies up. */
#define LEAST_UP 0.25

/* Copies down keep their rate, and those up get the rest: so it was measured on several boxes (sources
 * in sim/advise/range.c). */
static double
beside_down(const RpLinks *links)
{
    const double both = links->both_bytes_per_s;

    return both > 0 ? MAX(both - links->d2h_bytes_per_s, LEAST_UP * both) : 0;
}

static gboolean
have_links_of_their_own(const RpProfile *profile)
{
    for (guint c = 0; c < profile->n_cards; c++) {
        const RpLinks *links = &profile->cards[c]->links;

        if (links->h2d_bytes_per_s != profile->links.h2d_bytes_per_s ||
            links->d2h_bytes_per_s != profile->links.d2h_bytes_per_s ||
            links->copy_latency_ns != profile->links.copy_latency_ns)
            return TRUE;
    }
    return FALSE;
}

RpMachine
rp_machine_from_profile(const RpProfile *profile)
{
    RpMachine machine = {0};
    g_return_val_if_fail(profile != NULL, machine);

    machine.links = profile->links;
    machine.cards = have_links_of_their_own(profile) ? profile : NULL;
    machine.processors = profile->processors;
    machine.alone_speed = profile->alone_speed;
    machine.optimizer_weight = optimizer_weight(profile);
    machine.beside_optimizer_bytes_per_s =
        profile->links.beside_optimizer_bytes_per_s / MAX(profile->gpus, 1);
    machine.beside_down_bytes_per_s = beside_down(&profile->links);
    machine.optimizer_bytes_per_s = profile->optimizer_parameters_per_s *
                                    (OPTIMIZER_STATE_BYTES + 2 * rp_profile_element_bytes(profile));
    return machine;
}

/* Whether actions never share processors: in a `compute` plan nothing else needs one. */
static gboolean
have_a_processor_each(const RpPlan *plan, const RpMachine *machine)
{
    return machine == NULL || machine->processors == 0 || machine->processors >= rp_plan_gpus(plan);
}

RpTrace *
rp_simulate(const RpPlan *plan, const RpMachine *machine, GError **error)
{
    g_return_val_if_fail(plan != NULL, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    return rp_plan_fidelity(plan) == RP_FIDELITY_COMPUTE && have_a_processor_each(plan, machine)
               ? rp_simulate_compute_pass(plan, error)
               : rp_simulate_event_loop(plan, machine, error);
}
