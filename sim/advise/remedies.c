/*
 * Changes that make a query fit. Each is planned, and none can be left out of its remedy:
 *
 *   1  options that cost no hardware, alone; where none does, together
 *   2  a shorter sequence; where that alone does not do, with as few of these options as do
 *   3  more host memory, a larger GPU; where neither does, both
 */
#include "sim/advise/private.h"

#include "core/base/units.h"

/* Of the sequence that was asked for: a shorter one is another task. */
#define LEAST_SEQUENCE_SHARE 16
#define N_OPTIONS 4
#define N_SETS (1u << N_OPTIONS)

/* Options of sets, in the order in which they are told. */
static const RpAdviseChange options[N_OPTIONS] = {RP_ADVISE_CHANGE_ROUND,
                                                  RP_ADVISE_CHANGE_MICRO_BATCH,
                                                  RP_ADVISE_CHANGE_LEAN, RP_ADVISE_CHANGE_SYNC};

/* Options that @query does not have already. A synchronous step keeps one version of the weights
 * anyway. */
static guint
open_options(const RpAdviseQuery *query)
{
    guint changes = 0;

    if (query->round > query->gpus)
        changes |= RP_ADVISE_CHANGE_ROUND;
    if (query->profile == NULL && (query->micro_batch > 1 || query->micro_batches > 0))
        changes |= RP_ADVISE_CHANGE_MICRO_BATCH;
    if (query->optimizer == RP_OPTIMIZER_FUSED && !query->sync)
        changes |= RP_ADVISE_CHANGE_LEAN;
    if (!query->sync)
        changes |= RP_ADVISE_CHANGE_SYNC;
    return changes;
}

static RpAdviseQuery
with_options(const RpAdviseQuery *query, guint changes)
{
    RpAdviseQuery changed = *query;

    if (changes & RP_ADVISE_CHANGE_ROUND)
        changed.round = 0;
    if (changes & RP_ADVISE_CHANGE_MICRO_BATCH) {
        changed.micro_batch = 1;
        changed.micro_batches = 0;
    }
    if (changes & RP_ADVISE_CHANGE_LEAN)
        changed.optimizer = RP_OPTIMIZER_LEAN;
    if (changes & RP_ADVISE_CHANGE_SYNC)
        changed.sync = TRUE;
    return changed;
}

/* The plan of @query that needs least; %NULL if its numbers do not go together. */
static RpAdviseRun *
plan_least(const RpAdviseQuery *query)
{
    RpAdviseQuery resolved = *query;

    return rp_advise_resolve(&resolved, NULL) ? rp_advise_least(&resolved, NULL, NULL) : NULL;
}

/* Adds the changes, which are in @changed, if it fits. */
static gboolean
try_remedy(const RpAdviseQuery *changed, guint changes, GPtrArray *remedies)
{
    g_autoptr(RpAdviseRun) run = plan_least(changed);

    if (run == NULL || run->problem != NULL)
        return FALSE;
    RpAdviseRemedy *remedy = g_new0(RpAdviseRemedy, 1);

    *remedy = (RpAdviseRemedy){.changes = changes,
                               .round = run->options.round,
                               .sequence = changed->tokens_per_sequence,
                               .host_bytes = changed->host_bytes,
                               .gpu = changed->gpu,
                               .gpu_total = run->gpu.total,
                               .host_total = run->host.total};
    g_ptr_array_add(remedies, remedy);
    return TRUE;
}

/* ---- sets of options ---- */

static guint
count_bits(guint set)
{
    guint n = 0;

    for (; set != 0; set &= set - 1)
        n++;
    return n;
}

static guint
changes_of(guint set)
{
    guint changes = 0;

    for (guint i = 0; i < N_OPTIONS; i++)
        changes |= (set >> i & 1) != 0 ? options[i] : 0;
    return changes;
}

/* Whether a remedy that was found does with part of @changes. */
static gboolean
is_needless(const GPtrArray *remedies, guint changes)
{
    for (guint i = 0; i < remedies->len; i++) {
        const RpAdviseRemedy *remedy = g_ptr_array_index(remedies, i);

        if ((remedy->changes & ~changes) == 0)
            return TRUE;
    }
    return FALSE;
}

typedef gboolean (*Try)(const RpAdviseQuery *query, guint changes, GPtrArray *remedies);

/* Calls @try with the sets of @n open options that hold nothing needless. */
static void
try_sets_of(const RpAdviseQuery *query, guint n, Try try, GPtrArray *remedies)
{
    for (guint set = 0; set < N_SETS; set++) {
        guint changes = changes_of(set);
        RpAdviseQuery changed = with_options(query, changes);

        if (count_bits(set) == n && (changes & ~open_options(query)) == 0 &&
            !is_needless(remedies, changes))
            try(&changed, changes, remedies);
    }
}

/* With as few options as do. */
static void
try_fewest(const RpAdviseQuery *query, guint least, Try try, GPtrArray *remedies)
{
    guint before = remedies->len;

    for (guint n = least; n <= N_OPTIONS && remedies->len == before; n++)
        try_sets_of(query, n, try, remedies);
}

/* ---- a shorter sequence ---- */

/* The longest sequence at the query's own micro-batch, halving down from what does not fit. */
static guint
shorter_sequence(const RpAdviseQuery *query)
{
    RpAdviseQuery shorter = *query;
    guint low = 0, high = query->tokens_per_sequence / RP_ADVISE_SEQUENCE_STEP + 1;

    while (low + 1 < high) {
        guint middle = low + (high - low) / 2;

        shorter.tokens_per_sequence = middle * RP_ADVISE_SEQUENCE_STEP;
        g_autoptr(RpAdviseRun) run = plan_least(&shorter);

        if (run != NULL && run->problem == NULL)
            low = middle;
        else
            high = middle;
    }
    return low * RP_ADVISE_SEQUENCE_STEP;
}

static gboolean
try_shorter(const RpAdviseQuery *query, guint changes, GPtrArray *remedies)
{
    RpAdviseQuery shorter = *query;

    shorter.tokens_per_sequence = shorter_sequence(query);
    return shorter.tokens_per_sequence > query->tokens_per_sequence / LEAST_SEQUENCE_SHARE &&
           try_remedy(&shorter, changes | RP_ADVISE_CHANGE_SEQUENCE, remedies);
}

/* ---- hardware ---- */

/* What is missing, in whole GiB. */
static gboolean
try_more_host_memory(const RpAdviseQuery *query, guint changes, GPtrArray *remedies)
{
    g_autoptr(RpAdviseRun) run = plan_least(query);
    RpAdviseQuery more = *query;

    if (run == NULL || run->gpu_over_bytes > 0 || run->host_over_bytes == 0)
        return FALSE;
    more.host_bytes = rp_align_up(query->host_bytes + run->host_over_bytes, RP_GIB);
    return try_remedy(&more, changes | RP_ADVISE_CHANGE_HOST_MEMORY, remedies);
}

/* The GPU of the catalogue with the least memory that @try finds large enough. */
static gboolean
try_gpus(const RpAdviseQuery *query, guint changes, Try try, GPtrArray *remedies)
{
    guint n_gpus;
    const RpGpu *gpus = rp_gpu_list(&n_gpus);
    guint64 after = query->gpu_bytes;

    for (;;) {
        const RpGpu *next = NULL;
        RpAdviseQuery larger = *query;

        for (guint i = 0; i < n_gpus; i++)
            if (!gpus[i].foreign && gpus[i].memory_bytes - RP_ADVISE_GPU_RESERVE_BYTES > after &&
                (next == NULL || gpus[i].memory_bytes < next->memory_bytes))
                next = &gpus[i];
        if (next == NULL)
            return FALSE;
        larger.gpu = next;
        larger.gpu_bytes = next->memory_bytes - RP_ADVISE_GPU_RESERVE_BYTES;
        if (try(&larger, changes | RP_ADVISE_CHANGE_GPU, remedies))
            return TRUE;
        after = larger.gpu_bytes;
    }
}

static void
try_hardware(const RpAdviseQuery *query, GPtrArray *remedies)
{
    gboolean may_change_gpu =
        query->profile == NULL && query->cards == NULL && query->gpu_bytes != 0;
    gboolean found = try_more_host_memory(query, 0, remedies);

    if (may_change_gpu)
        found = try_gpus(query, 0, try_remedy, remedies) || found;
    if (!found && may_change_gpu && query->host_bytes != 0)
        try_gpus(query, 0, try_more_host_memory, remedies);
}

GPtrArray *
rp_advise_find_remedies(const RpAdviseQuery *query)
{
    GPtrArray *remedies = g_ptr_array_new_with_free_func(g_free);

    try_fewest(query, 1, try_remedy, remedies);
    if (query->profile == NULL && remedies->len > 0)
        try_shorter(query, 0, remedies);
    else if (query->profile == NULL)
        try_fewest(query, 0, try_shorter, remedies);
    try_hardware(query, remedies);
    return remedies;
}
