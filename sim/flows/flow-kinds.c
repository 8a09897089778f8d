#include "sim/flows/flow-kinds.h"

#include <math.h>

#include "core/base/units.h"

static double
limit(double bytes_per_s)
{
    return bytes_per_s > 0 ? bytes_per_s : INFINITY;
}

static gboolean
has_roots(const RpMachine *machine)
{
    return machine->links.gpus_per_root > 0 && machine->links.root_bytes_per_s > 0;
}

/* Rate of a flow that has its link to itself. */
static double
own_limit(const RpFlowKinds *kinds, const RpMachine *machine, guint k)
{
    const RpLinks *links = &machine->links;

    if (k == rp_flow_kind_host(kinds))
        return limit(machine->optimizer_bytes_per_s);
    if (k == rp_flow_kind_actions(kinds))
        return (double)RP_NS_PER_S * MAX(machine->alone_speed, 1);
    if (k > rp_flow_kind_actions(kinds))
        return rp_network_bytes_per_s(links, rp_flow_kind_touches(kinds, k));
    if (kinds->cards != NULL)
        links = &kinds->cards->cards[k / 2 % kinds->n_cards]->links;
    return limit(k % 2 == 0 ? links->h2d_bytes_per_s : links->d2h_bytes_per_s);
}

static void
init_kind(RpFlowKinds *kinds, const RpMachine *machine, guint k)
{
    RpFlowKind *kind = &kinds->kinds[k];
    const double host = limit(machine->links.host_bytes_per_s);
    const gboolean on_root = k < kinds->n_copies && has_roots(machine);
    const double root = on_root ? machine->links.root_bytes_per_s : INFINITY;

    *kind = (RpFlowKind){.alone_bytes_per_s = own_limit(kinds, machine, k),
                         .root_bytes_per_s = INFINITY,
                         .first_group = kinds->n_groups,
                         .n_groups = 1};
    if (on_root && kinds->cards == NULL) {
        kind->root_bytes_per_s = root;
        kind->n_groups = kinds->gpus_per_root;
    } else if (on_root) {
        kind->root_link = RP_FLOW_ROOTS + k / 2 / kinds->n_cards * 2 + k % 2;
    }
    /* nothing is oversubscribed at this point: from here on its own cap says it all */
    if (k < rp_flow_kind_actions(kinds))
        kind->alone_bytes_per_s = MIN(kind->alone_bytes_per_s, MIN(root, host));
    kind->cap_bytes_per_s = kind->alone_bytes_per_s;
    kinds->n_groups += kind->n_groups;
}

void
rp_flow_kinds_init(RpFlowKinds *kinds, const RpMachine *machine, guint gpus)
{
    *kinds = (RpFlowKinds){.cards = machine->cards, .n_cards = 1, .gpus_per_root = 1};
    if (kinds->cards != NULL)
        kinds->n_cards = kinds->cards->n_cards;
    if (has_roots(machine))
        kinds->gpus_per_root = MIN(machine->links.gpus_per_root, MAX(gpus, 1));
    kinds->n_roots = (gpus + kinds->gpus_per_root - 1) / kinds->gpus_per_root;
    kinds->n_copies = kinds->cards != NULL ? 2 * kinds->n_roots * kinds->n_cards : 2;
    kinds->kinds = g_new(RpFlowKind, kinds->n_copies + RP_FLOW_OTHERS);
    for (guint k = 0; k < kinds->n_copies + RP_FLOW_OTHERS; k++)
        init_kind(kinds, machine, k);
}

void
rp_flow_kinds_clear(RpFlowKinds *kinds)
{
    g_free(kinds->kinds);
}

double *
rp_flow_kinds_capacities(const RpFlowKinds *kinds, const RpMachine *machine, guint *n)
{
    *n = RP_FLOW_ROOTS + (kinds->cards != NULL ? 2 * kinds->n_roots : 0);
    double *capacities = g_new(double, *n);
    capacities[RP_FLOW_HOST] = limit(machine->links.host_bytes_per_s);
    capacities[RP_FLOW_TASKS] = kinds->kinds[rp_flow_kind_host(kinds)].alone_bytes_per_s;
    for (guint r = RP_FLOW_ROOTS; r < *n; r++)
        capacities[r] = has_roots(machine) ? machine->links.root_bytes_per_s : INFINITY;
    return capacities;
}

guint
rp_flow_kinds_place(const RpFlowKinds *kinds, guint device)
{
    const guint card = kinds->cards != NULL ? rp_profile_card(kinds->cards, device) : 0;

    return (device / kinds->gpus_per_root * kinds->n_cards + card) * 2;
}
