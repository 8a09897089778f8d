/* The longest sequence whose plan fits. */
#include "sim/advise/private.h"

/* Longest sequence that the cost model takes, tokens. */
#define MAX_TOKENS (1u << 24)
/* Where the search for the longest sequence begins, in RP_ADVISE_SEQUENCE_STEP. */
#define FIRST_STEPS 32

void
rp_advise_longest_clear(RpAdviseLongest *longest)
{
    g_clear_pointer(&longest->forward_blocks, g_array_unref);
    g_clear_pointer(&longest->backward_blocks, g_array_unref);
}

/* The plan of sequences of so many steps at micro-batch 1, of the query's batch or M = M_R. */
static RpAdviseRun *
run_of_length(const RpAdviseQuery *query, guint steps, RpProfile **profile_out, GError **error)
{
    RpAdviseQuery longer = *query;

    longer.tokens_per_sequence = steps * RP_ADVISE_SEQUENCE_STEP;
    longer.micro_batch = 1;
    if (query->batch == 0) {
        longer.batch = MAX(query->round, query->gpus);
        longer.round = longer.batch;
    }
    longer.micro_batches = longer.batch;
    if (query->sizes != NULL)
        longer.gpu = NULL;
    return rp_advise_least(&longer, profile_out, error);
}

/* The longest that sizes are known of, in steps. */
static guint
most_steps(const RpAdviseQuery *query)
{
    return (query->sizes != NULL ? query->sizes->most_tokens : MAX_TOKENS) /
           RP_ADVISE_SEQUENCE_STEP;
}

/* The plan of the longest sequence, and what is full at one step more. */
static gboolean
explain_longest(const RpAdviseQuery *query, guint steps, RpAdviseLongest *longest, GError **error)
{
    g_autoptr(RpProfile) profile = NULL, longer_profile = NULL;
    g_autoptr(RpAdviseRun) run = NULL, longer = NULL;

    if (steps > 0) {
        run = run_of_length(query, steps, &profile, error);
        if (run == NULL)
            return FALSE;
        const RpPartition *partition = run->partition;

        longest->gpu = run->gpu;
        longest->host = run->host;
        longest->micro_batches = run->options.micro_batches;
        longest->forward_blocks =
            rp_partition_block_counts(profile, partition->forward, partition->n_forward);
        longest->backward_blocks =
            rp_partition_block_counts(profile, partition->backward, partition->n_backward);
    }
    longest->tokens = steps * RP_ADVISE_SEQUENCE_STEP;
    longest->unlimited = steps == most_steps(query);
    if (longest->unlimited)
        return TRUE;
    longer = run_of_length(query, steps + 1, &longer_profile, error);
    if (longer == NULL)
        return FALSE;
    longest->host_limited = longer->gpu_over_bytes == 0;
    longest->largest =
        rp_advise_largest_category(longest->host_limited ? &longer->host : &longer->gpu);
    return TRUE;
}

gboolean
rp_advise_longest(const RpAdviseQuery *query, RpAdviseLongest *longest, GError **error)
{
    guint low = 0, high = most_steps(query) + 1; /* fits, does not; in steps */
    gboolean met = FALSE;                        /* something that does not fit */
    g_auto(RpAdviseLongest) result = {.known = query->profile == NULL};

    if (query->gpus < 1 || query->gpus > RP_ADVISE_MAX_GPUS)
        return rp_advise_refuse(error, "one machine has 1 to %d GPUs, found %u", RP_ADVISE_MAX_GPUS,
                                query->gpus);
    for (guint steps = FIRST_STEPS; result.known && low + 1 < high;
         steps = met ? low + (high - low) / 2 : 2 * steps) {
        steps = MIN(steps, high - 1);
        g_autoptr(RpAdviseRun) run = run_of_length(query, steps, NULL, error);

        if (run == NULL)
            return FALSE;
        met = met || run->problem != NULL;
        if (run->problem == NULL)
            low = steps;
        else
            high = steps;
    }
    if (result.known && !explain_longest(query, low, &result, error))
        return FALSE;
    result.max_positions = query->sizes != NULL   ? query->sizes->max_positions
                           : query->model != NULL ? query->model->max_positions
                                                  : 0;
    *longest = result;
    result.forward_blocks = NULL;
    result.backward_blocks = NULL;
    return TRUE;
}
