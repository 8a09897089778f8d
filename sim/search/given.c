/*
 * Partitions for a dispatched order that is given: so many forward and backward slots. The fused stage
 * takes every number of blocks in turn; the others are split by their times, the larger parts first,
 * last or between; the plan itself judges.
 */
#include "sim/search/given.h"

#include "core/schedules/given.h"
#include "sim/simulate.h"

typedef struct {
    const RpProfile *profile;
    const RpPlanOptions *options;
    guint n_forward, n_backward;
    guint n_blocks;
    gint64 *forward_ns;        /* [block] */
    gint64 *backward_ns;       /* [block], the last first */
    guint *forward, *backward; /* block counts */
    RpPartition *best;
    gint64 best_ns;
} Search;

static void
judge(Search *search)
{
    RpPlanOptions options = *search->options;
    g_autoptr(RpPartition) partition =
        rp_partition_from_dispatched_blocks(search->profile, search->forward, search->n_forward,
                                            search->backward, search->n_backward, NULL);

    if (partition == NULL)
        return;
    options.fidelity = RP_FIDELITY_COMPUTE;
    const RpMachine machine = rp_machine_from_profile(search->profile);
    g_autoptr(RpPlan) plan = rp_plan_make(search->profile, partition, &options, 1, NULL);
    g_autoptr(RpTrace) trace = plan != NULL ? rp_simulate(plan, &machine, NULL) : NULL;

    if (trace == NULL || rp_trace_makespan_ns(trace) >= search->best_ns)
        return;
    search->best_ns = rp_trace_makespan_ns(trace);
    rp_partition_free(search->best);
    search->best = g_steal_pointer(&partition);
}

/* @fused: blocks of the fused stage */
static void
try_fused(Search *search, guint fused)
{
    const guint rest = search->n_blocks - fused, n_backward = search->n_backward - 1;

    if (rest < MAX(search->n_forward, n_backward) || (search->n_forward == 0) != (rest == 0) ||
        (n_backward == 0) != (rest == 0))
        return;
    search->backward[0] = fused;
    for (RpSplitOrder up = RP_SPLIT_SMALL_FIRST; up <= RP_SPLIT_EVEN; up++)
        for (RpSplitOrder down = RP_SPLIT_SMALL_FIRST; down <= RP_SPLIT_EVEN; down++) {
            if (rest > 0) {
                rp_partition_split(search->forward_ns, rest, search->n_forward, up,
                                   search->forward);
                rp_partition_split(search->backward_ns + fused, rest, n_backward, down,
                                   search->backward + 1);
            }
            judge(search);
            if (rest == 0)
                return;
        }
}

RpPartition *
rp_search_given(const RpProfile *profile, const RpPlanOptions *options, GError **error)
{
    const RpGivenOrders *given = options->schedule->given;
    const guint first = rp_profile_first_block(profile), n = rp_profile_n_blocks(profile);
    Search search = {
        .profile = profile,
        .options = options,
        .n_forward = given->forward_slots,
        .n_backward = given->stages - given->forward_slots,
        .n_blocks = n,
        .best_ns = G_MAXINT64,
    };
    g_autofree gint64 *forward_ns = g_new(gint64, n + 1), *backward_ns = g_new(gint64, n + 1);
    g_autofree guint *forward = g_new0(guint, search.n_forward + 1);
    g_autofree guint *backward = g_new0(guint, search.n_backward + 1);

    for (guint b = 0; b < n; b++) {
        const RpInterval layer = {first + b, 1}, from_end = {first + n - 1 - b, 1};

        forward_ns[b] = rp_stage_time_ns(profile, layer, RP_PHASE_FORWARD, NULL);
        backward_ns[b] = rp_stage_time_ns(profile, from_end, RP_PHASE_BACKWARD, NULL);
    }
    search.forward_ns = forward_ns;
    search.backward_ns = backward_ns;
    search.forward = forward;
    search.backward = backward;
    for (guint fused = 0; fused <= n; fused++)
        try_fused(&search, fused);
    if (search.best == NULL)
        g_set_error(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_IMPOSSIBLE,
                    "%u blocks are too few for the %u forward and %u backward stages of the "
                    "file's order",
                    n, search.n_forward, search.n_backward);
    return search.best;
}
