/*
 * Changes that make a query fit. Each is planned, and none can be left out of its remedy:
 *
 *   1  options that cost no hardware, alone and in pairs; where none does, more together
 *   2  a shorter sequence; where that alone does not do, with as few of these options as do
 *   3  more host memory, a larger GPU; where neither does, both
 */
#include "sim/advise/private.h"

#include "core/base/threads.h"
#include "core/base/units.h"

/* The least share of the requested sequence: a shorter one is another task. */
#define LEAST_SEQUENCE_SHARE 16
/* Remedies whose speed is planned, each of which takes as long as an answer: so many, or of large models as
 * many as have these micro-batches of a layer. */
#define MOST_PRICED 6
#define PRICED_WORK 20000

/* The plan of @query that needs least; %NULL if its numbers do not go together. */
static RpAdviseRun *
plan_least(const RpAdviseQuery *query)
{
    RpAdviseQuery resolved = *query;

    return rp_advise_resolve(&resolved, NULL) ? rp_advise_least(&resolved, NULL, NULL) : NULL;
}

static gboolean
fits(const RpAdviseQuery *query)
{
    g_autoptr(RpAdviseRun) run = plan_least(query);

    return run != NULL && run->problem == NULL;
}

/* ---- options ---- */

static gboolean
has_long_rounds(const RpAdviseQuery *query)
{
    return query->round > query->gpus;
}

static void
choose_round(RpAdviseQuery *query)
{
    query->round = 0;
}

static gboolean
has_micro_batches(const RpAdviseQuery *query)
{
    return query->profile == NULL && (query->micro_batch > 1 || query->micro_batches > 0);
}

static void
take_single_sequences(RpAdviseQuery *query)
{
    query->micro_batch = 1;
    query->micro_batches = 0;
}

/* A synchronous step keeps one version of the weights anyway. */
static gboolean
has_two_versions(const RpAdviseQuery *query)
{
    return query->optimizer == RP_OPTIMIZER_FUSED && !query->sync;
}

static void
keep_one_version(RpAdviseQuery *query)
{
    query->optimizer = RP_OPTIMIZER_LEAN;
}

static gboolean
is_asynchronous(const RpAdviseQuery *query)
{
    return !query->sync;
}

static void
step_synchronously(RpAdviseQuery *query)
{
    query->sync = TRUE;
}

static gboolean
has_large_states(const RpAdviseQuery *query)
{
    return query->form.moments != RP_MOMENTS_INT8 || query->form.master != RP_MOMENTS_BF16;
}

static void
shrink_states(RpAdviseQuery *query)
{
    query->form.moments = RP_MOMENTS_INT8;
    query->form.master = RP_MOMENTS_BF16;
}

static gboolean
has_copy(const RpAdviseQuery *query)
{
    return query->preference.reference == RP_REFERENCE_COPY;
}

static void
score_before(RpAdviseQuery *query)
{
    query->preference.reference = RP_REFERENCE_PRECOMPUTED;
}

/* One micro-batch a GPU. */
static guint
least_batch(const RpAdviseQuery *query)
{
    return query->gpus *
           MAX(1, query->profile != NULL ? query->profile->sequences : query->micro_batch);
}

static gboolean
has_large_batch(const RpAdviseQuery *query)
{
    return query->micro_batches == 0 && query->batch >= 2 * least_batch(query);
}

/* Until it fits. */
static void
halve_batch(RpAdviseQuery *query)
{
    const guint least = least_batch(query);

    do
        query->batch = query->batch / 2 / least * least;
    while (query->batch >= 2 * least && !fits(query));
}

/* In the order in which they are applied. */
static const struct {
    RpAdviseChange change;
    gboolean (*is_open)(const RpAdviseQuery *query); /* it does not have it already */
    void (*apply)(RpAdviseQuery *query);
} options[] = {
    {RP_ADVISE_CHANGE_REFERENCE, has_copy, score_before},
    {RP_ADVISE_CHANGE_ROUND, has_long_rounds, choose_round},
    {RP_ADVISE_CHANGE_MICRO_BATCH, has_micro_batches, take_single_sequences},
    {RP_ADVISE_CHANGE_LEAN, has_two_versions, keep_one_version},
    {RP_ADVISE_CHANGE_SYNC, is_asynchronous, step_synchronously},
    {RP_ADVISE_CHANGE_STATES, has_large_states, shrink_states},
    {RP_ADVISE_CHANGE_BATCH, has_large_batch, halve_batch},
};

/* Adds the changes, which are in @changed, if it fits. */
static gboolean
try_remedy(const RpAdviseQuery *changed, guint changes, GPtrArray *remedies)
{
    g_autoptr(RpAdviseRun) run = plan_least(changed);

    if (run == NULL || run->problem != NULL)
        return FALSE;
    RpAdviseRemedy *remedy = g_new0(RpAdviseRemedy, 1);

    *remedy = (RpAdviseRemedy){.changes = changes,
                               .query = *changed,
                               .gpu_total = run->gpu.total,
                               .host_total = run->host.total};
    if (changes & RP_ADVISE_CHANGE_ROUND)
        remedy->query.round = run->options.round;
    g_ptr_array_add(remedies, remedy);
    return TRUE;
}

/* ---- sets of options ---- */

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

/* Calls @try with @query and the options of @set, if all are open and none is needless. */
static void
try_set(const RpAdviseQuery *query, guint set, Try try, GPtrArray *remedies)
{
    RpAdviseQuery changed = *query;
    guint changes = 0;

    for (guint i = 0; i < G_N_ELEMENTS(options); i++) {
        if ((set >> i & 1) == 0)
            continue;
        if (!options[i].is_open(query))
            return;
        changes |= options[i].change;
    }
    if (is_needless(remedies, changes))
        return;
    for (guint i = 0; i < G_N_ELEMENTS(options); i++)
        if (set >> i & 1)
            options[i].apply(&changed);
    try(&changed, changes, remedies);
}

/* With @least to @most of the first @n_options, and if none of these does with as few as do. */
static void
try_fewest(const RpAdviseQuery *query, guint n_options, guint least, guint most, Try try,
           GPtrArray *remedies)
{
    const guint before = remedies->len;

    for (guint n = least; n <= n_options && (n <= most || remedies->len == before); n++)
        for (guint set = 0; set < 1u << n_options; set++)
            if ((guint)__builtin_popcount(set) == n)
                try_set(query, set, try, remedies);
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
        if (fits(&shorter))
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

/* The missing memory, in whole GiB. */
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
            if (!gpus[i].foreign && rp_gpu_plan_bytes(gpus[i].memory_bytes) > after &&
                (next == NULL || gpus[i].memory_bytes < next->memory_bytes))
                next = &gpus[i];
        if (next == NULL)
            return FALSE;
        larger.gpu = next;
        larger.gpu_bytes = rp_gpu_plan_bytes(next->memory_bytes);
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

    try_fewest(query, G_N_ELEMENTS(options), 1, 2, try_remedy, remedies);
    if (query->profile == NULL && remedies->len > 0)
        try_shorter(query, 0, remedies);
    else if (query->profile == NULL) /* a smaller batch, the last option, is no longer sequence */
        try_fewest(query, G_N_ELEMENTS(options) - 1, 0, 0, try_shorter, remedies);
    try_hardware(query, remedies);
    return remedies;
}

/* ---- speed ---- */

static gint
by_speed(gconstpointer a, gconstpointer b)
{
    const RpAdviseRemedy *x = *(const RpAdviseRemedy *const *)a;
    const RpAdviseRemedy *y = *(const RpAdviseRemedy *const *)b;

    return (x->tokens_per_s < y->tokens_per_s) - (x->tokens_per_s > y->tokens_per_s);
}

static gboolean
price(guint i, gpointer remedies, GError **error)
{
    RpAdviseRemedy *remedy = g_ptr_array_index((GPtrArray *)remedies, i);
    g_autoptr(RpAdvice) changed = g_new0(RpAdvice, 1);

    changed->query = remedy->query;
    changed->query.quick = TRUE;
    if (!rp_advise_resolve(&changed->query, error) || !rp_advise_choose(changed, error))
        return FALSE;
    if (changed->best == NULL)
        return TRUE;
    remedy->tokens_per_s = changed->best->tokens_per_s * MAX(1, remedy->query.servers);
    remedy->gpu_total = changed->best->gpu.total;
    remedy->host_total = changed->best->host.total;
    return TRUE;
}

gboolean
rp_advise_price_remedies(RpAdvice *advice, GError **error)
{
    const RpAdviseQuery *query = &advice->query;
    const guint layers =
        query->profile != NULL ? query->profile->n_layers : MAX(1, query->model->blocks);
    const guint n = CLAMP(PRICED_WORK / layers / MAX(1, query->batch), 1, MOST_PRICED);

    if (!rp_run_pieces(MIN(advice->remedies->len, n), price, advice->remedies, error))
        return FALSE;
    g_ptr_array_sort(advice->remedies, by_speed);
    return TRUE;
}
