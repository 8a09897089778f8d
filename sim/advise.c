/* What to recommend: micro-batches compared, schedules beside it, remedies that were tried. */
#include "sim/advise.h"

#include "core/cost-model.h"
#include "core/units.h"

G_DEFINE_QUARK(rp - advise - error - quark, rp_advise_error)

/* Micro-batch sizes that are looked at, from the largest that fits down, and those of them that are
 * worth simulating with all transfers: the fastest without. */
#define MAX_FITTED 24
#define MAX_TRIED 4
/* Values of M_R tried for one micro-batch, smallest first. */
#define MAX_ROUNDS 3
/* Partitions tried for one micro-batch, for the one chosen, and for a bound schedule. */
#define CANDIDATES 32
#define FINAL_CANDIDATES 160
#define BOUND_CANDIDATES 24
/* Smaller micro-batches tried for a bound schedule that does not fit. */
#define MAX_SMALLER 3
/* A larger M_R is not worth its host memory where so little is to be won. */
#define SMALL_BUBBLE 0.005
/* The more frugal of two runs wins unless it is slower than this share. */
#define CLEARLY_FASTER 1.001
/* More sequences in a batch, or GPUs in a machine, are a mistake. */
#define MAX_BATCH (1u << 20)
#define MAX_GPUS 256
/* Longest sequence that the cost model takes, tokens. */
#define MAX_TOKENS (1u << 24)
/* Where the search for the longest sequence begins, in RP_ADVISE_SEQUENCE_STEP. */
#define FIRST_STEPS 32

void
rp_advice_free(RpAdvice *advice)
{
    if (advice == NULL)
        return;
    rp_profile_free(advice->profile);
    g_clear_pointer(&advice->candidates, g_ptr_array_unref);
    g_clear_pointer(&advice->schedules, g_ptr_array_unref);
    g_clear_pointer(&advice->remedies, g_ptr_array_unref);
    rp_advise_run_free(advice->nearest);
    rp_advise_longest_clear(&advice->longest);
    g_free(advice);
}

void
rp_advise_longest_clear(RpAdviseLongest *longest)
{
    g_clear_pointer(&longest->forward_blocks, g_array_unref);
    g_clear_pointer(&longest->backward_blocks, g_array_unref);
}

static void
free_run(gpointer run)
{
    rp_advise_run_free(run);
}

static void
free_profile(gpointer profile)
{
    rp_profile_free(profile);
}

static void
free_remedy(gpointer data)
{
    RpAdviseRemedy *remedy = data;

    g_free(remedy->change);
    g_free(remedy);
}

static RpAdviseRun *
copy_run(const RpAdviseRun *run)
{
    RpAdviseRun *copy = g_memdup2(run, sizeof *run);

    copy->partition = run->partition != NULL ? rp_partition_copy(run->partition) : NULL;
    copy->problem = g_strdup(run->problem);
    return copy;
}

static const RpScheduleOps *
roundpipe(void)
{
    const RpScheduleOps *const *schedules = rp_schedules();

    while (!(*schedules)->dispatched)
        schedules++;
    return *schedules;
}

/* ---- the numbers of a query ---- */

static gboolean refuse(GError **error, const char *format, ...) G_GNUC_PRINTF(2, 3);

static gboolean
refuse(GError **error, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *message = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    g_set_error_literal(error, RP_ADVISE_ERROR, RP_ADVISE_ERROR_QUERY, message);
    return FALSE;
}

/* Batch, micro-batch and their number: what is given must divide, what follows is filled in. */
static gboolean
resolve_batch(RpAdviseQuery *query, GError **error)
{
    if (query->batch == 0 && query->micro_batch > 0 && query->micro_batches > 0 &&
        query->micro_batches <= G_MAXUINT / query->micro_batch)
        query->batch = query->micro_batch * query->micro_batches;
    if (query->batch == 0)
        return refuse(error, "the batch is missing: expected its number of sequences");
    if (query->batch > MAX_BATCH)
        return refuse(error, "a batch has at most %u sequences, found %u", MAX_BATCH, query->batch);
    if (query->micro_batches > 0 && query->batch % query->micro_batches != 0)
        return refuse(error, "a batch of %u sequences does not divide into %u micro-batches",
                      query->batch, query->micro_batches);
    if (query->micro_batch > 0 && query->batch % query->micro_batch != 0)
        return refuse(error,
                      "a batch of %u sequences does not divide into micro-batches of %u sequences",
                      query->batch, query->micro_batch);
    if (query->micro_batch == 0 && query->micro_batches > 0)
        query->micro_batch = query->batch / query->micro_batches;
    if (query->micro_batch > 0 && query->micro_batches > 0 &&
        query->batch / query->micro_batch != query->micro_batches)
        return refuse(error, "%u micro-batches of %u sequences are not a batch of %u sequences",
                      query->micro_batches, query->micro_batch, query->batch);
    if (query->micro_batch > 0)
        query->micro_batches = query->batch / query->micro_batch;
    return TRUE;
}

/* The smallest M_R that suits @micro_batches and is at least @least; 0 if there is none. */
static guint
next_round(const RpAdviseQuery *query, guint micro_batches, guint least)
{
    if (query->round != 0)
        return query->round >= least && micro_batches % query->round == 0 ? query->round : 0;
    for (guint round = MAX(least, query->gpus); round <= micro_batches; round++)
        if (micro_batches % round == 0)
            return round;
    return 0;
}

static gboolean
resolve(RpAdviseQuery *query, GError **error)
{
    if (query->gpus < 1 || query->gpus > MAX_GPUS)
        return refuse(error, "one machine has 1 to %d GPUs, found %u", MAX_GPUS, query->gpus);
    if (query->profile != NULL) {
        guint sequences = MAX(1, query->profile->sequences);

        if (!rp_profile_check_full(query->profile, error))
            return FALSE;
        if (query->micro_batch != 0 && query->micro_batch != sequences)
            return refuse(
                error, "the timing file is for micro-batches of %u sequences, found %u asked for",
                sequences, query->micro_batch);
        query->micro_batch = sequences;
    }
    if (!resolve_batch(query, error))
        return FALSE;
    query->gpus = MIN(query->gpus, query->micro_batches > 0 ? query->micro_batches : query->batch);
    if (query->round == 0)
        return TRUE;
    if (query->round < query->gpus)
        return refuse(error, "a round has at least one micro-batch per GPU, %u, found %u",
                      query->gpus, query->round);
    guint most = query->micro_batches > 0 ? query->micro_batches : query->batch;

    if (most % query->round != 0)
        return refuse(error, "%u micro-batches do not divide into rounds of %u", most,
                      query->round);
    return TRUE;
}

/* ---- memory alone ---- */

/* The plan of @query that needs least; with @profile_out by category. Returns: %NULL if the cost
 * model refuses the workload. */
static RpAdviseRun *
least_run(const RpAdviseQuery *query, RpProfile **profile_out, GError **error)
{
    guint sequences = MAX(1, query->micro_batch);
    guint micro_batches = query->batch / sequences;
    g_autoptr(RpProfile) profile = rp_advise_profile(query, sequences, error);

    if (profile == NULL)
        return NULL;
    RpAdviseRun *run = rp_advise_run_new(query, roundpipe(), sequences, micro_batches,
                                         next_round(query, micro_batches, 1));

    rp_advise_fit_least(query, profile, run);
    if (profile_out != NULL) {
        rp_advise_measure(query, profile, run);
        *profile_out = g_steal_pointer(&profile);
    }
    return run;
}

/* The plan of sequences of so many steps at micro-batch 1, M = M_R. */
static RpAdviseRun *
run_of_length(const RpAdviseQuery *query, guint steps, RpProfile **profile_out, GError **error)
{
    const RpAdviseSizes *sizes = query->sizes;
    g_autoptr(RpProfile) sized = NULL;
    RpAdviseQuery longer = *query;

    longer.tokens_per_sequence = steps * RP_ADVISE_SEQUENCE_STEP;
    longer.micro_batch = 1;
    longer.batch = MAX(query->round, query->gpus);
    longer.micro_batches = longer.batch;
    longer.round = longer.batch;
    if (sizes != NULL) {
        sized = sizes->make(longer.tokens_per_sequence, &longer.constant_bytes, sizes->user_data);
        longer.profile = sized;
    }
    return least_run(&longer, profile_out, error);
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

    if (query->gpus < 1 || query->gpus > MAX_GPUS)
        return refuse(error, "one machine has 1 to %d GPUs, found %u", MAX_GPUS, query->gpus);
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

/* ---- remedies ---- */

/* Adds the change if the query fits with it. */
static gboolean
try_remedy(const RpAdviseQuery *changed, char *change, GPtrArray *remedies)
{
    g_autoptr(RpAdviseRun) run = NULL;
    RpAdviseQuery query = *changed;

    if (resolve(&query, NULL))
        run = least_run(&query, NULL, NULL);
    if (run == NULL || run->problem != NULL) {
        g_free(change);
        return FALSE;
    }
    RpAdviseRemedy *remedy = g_new0(RpAdviseRemedy, 1);

    remedy->change = change;
    remedy->gpu_total = run->gpu.total;
    remedy->host_total = run->host.total;
    g_ptr_array_add(remedies, remedy);
    return TRUE;
}

/* The longest sequence at the query's own micro-batch, halving down from what does not fit. */
static guint
shorter_sequence(const RpAdviseQuery *query)
{
    RpAdviseQuery shorter = *query;
    guint low = 0, high = query->tokens_per_sequence / RP_ADVISE_SEQUENCE_STEP + 1;

    if (!resolve(&shorter, NULL))
        return 0;
    while (low + 1 < high) {
        guint middle = low + (high - low) / 2;

        shorter.tokens_per_sequence = middle * RP_ADVISE_SEQUENCE_STEP;
        g_autoptr(RpAdviseRun) run = least_run(&shorter, NULL, NULL);

        if (run != NULL && run->problem == NULL)
            low = middle;
        else
            high = middle;
    }
    return low * RP_ADVISE_SEQUENCE_STEP;
}

static void
try_shorter(const RpAdviseQuery *query, const char *with, GPtrArray *remedies)
{
    RpAdviseQuery shorter = *query;

    shorter.tokens_per_sequence = shorter_sequence(query);
    if (shorter.tokens_per_sequence > 0)
        try_remedy(&shorter, g_strdup_printf("%s--sequence %u", with, shorter.tokens_per_sequence),
                   remedies);
}

/* Adds what is missing, in whole GiB, after the options in @with. */
static void
try_more_host_memory(const RpAdviseQuery *query, const char *with, GPtrArray *remedies)
{
    RpAdviseQuery more = *query;

    if (!resolve(&more, NULL))
        return;
    g_autoptr(RpAdviseRun) run = least_run(&more, NULL, NULL);
    if (run == NULL || run->gpu_over_bytes > 0 || run->host_over_bytes == 0)
        return;
    more = *query;
    more.host_bytes = rp_align_up(run->host.total, RP_GIB);
    try_remedy(
        &more,
        g_strdup_printf("%s--host-memory %" G_GUINT64_FORMAT "GiB", with, more.host_bytes / RP_GIB),
        remedies);
}

static void
try_larger_gpu(const RpAdviseQuery *query, const char *with, GPtrArray *remedies)
{
    guint n_gpus;
    const RpGpu *gpus = rp_gpu_list(&n_gpus);
    const RpGpu *next = NULL;
    RpAdviseQuery larger = *query;

    for (guint i = 0; i < n_gpus; i++) {
        if (gpus[i].memory_bytes - RP_ADVISE_GPU_RESERVE_BYTES <= query->gpu_bytes)
            continue;
        larger.gpu = &gpus[i];
        larger.gpu_bytes = gpus[i].memory_bytes - RP_ADVISE_GPU_RESERVE_BYTES;
        g_autoptr(RpAdviseRun) run = NULL;
        RpAdviseQuery resolved = larger;

        if (resolve(&resolved, NULL))
            run = least_run(&resolved, NULL, NULL);
        if (run != NULL && run->problem == NULL &&
            (next == NULL || gpus[i].memory_bytes < next->memory_bytes))
            next = &gpus[i];
    }
    if (next == NULL)
        return;
    larger.gpu = next;
    larger.gpu_bytes = next->memory_bytes - RP_ADVISE_GPU_RESERVE_BYTES;
    try_remedy(&larger, g_strdup_printf("%s--gpu %s", with, next->name), remedies);
}

/* Options that cost no hardware, alone. Micro-batch and round only where they were asked for. */
static void
try_options(const RpAdviseQuery *query, GPtrArray *remedies)
{
    RpAdviseQuery changed = *query;

    if (query->round > query->gpus) {
        changed.round = 0;
        try_remedy(&changed, g_strdup("leave --round out"), remedies);
    }
    changed = *query;
    if (query->profile == NULL && (query->micro_batch > 1 || query->micro_batches > 0)) {
        changed.micro_batch = 1;
        changed.micro_batches = 0;
        try_remedy(&changed, g_strdup("--micro-batch 1"), remedies);
    }
    changed = *query;
    if (query->optimizer == RP_OPTIMIZER_FUSED) {
        changed.optimizer = RP_OPTIMIZER_LEAN;
        try_remedy(&changed, g_strdup("--optimizer lean"), remedies);
    }
    changed = *query;
    if (!query->sync) {
        changed.sync = TRUE;
        try_remedy(&changed, g_strdup("--sync"), remedies);
    }
    if (query->profile != NULL)
        return;
    changed = *query;
    if (query->lora_rank == 0) {
        changed.lora_rank = RP_ADVISE_LORA_RANK;
        try_remedy(&changed, g_strdup_printf("--lora-rank %u", changed.lora_rank), remedies);
    }
    try_shorter(query, "", remedies);
}

static void
try_hardware(const RpAdviseQuery *query, const char *with, GPtrArray *remedies)
{
    try_more_host_memory(query, with, remedies);
    if (query->profile == NULL && query->gpu_bytes != 0)
        try_larger_gpu(query, with, remedies);
}

static GPtrArray *
find_remedies(const RpAdviseQuery *query)
{
    GPtrArray *remedies = g_ptr_array_new_with_free_func(free_remedy);
    RpAdviseQuery lora = *query;

    try_options(query, remedies);
    guint n = remedies->len;

    lora.lora_rank = RP_ADVISE_LORA_RANK;
    if (n == 0 && query->profile == NULL && query->lora_rank == 0) {
        g_autofree char *with = g_strdup_printf("--lora-rank %u ", lora.lora_rank);

        try_shorter(&lora, with, remedies);
        try_hardware(&lora, with, remedies);
    }
    try_hardware(query, "", remedies);
    return remedies;
}

/* ---- micro-batches ---- */

/* Runs and their profiles, side by side. */
typedef struct {
    GPtrArray *runs;
    GPtrArray *profiles;
} Tried;

static void
tried_add(Tried *tried, RpAdviseRun *run, RpProfile *profile)
{
    g_ptr_array_add(tried->runs, run);
    g_ptr_array_add(tried->profiles, profile);
}

/* From the largest micro-batch down: those that fit, after the smallest that does not. */
static gboolean
find_fitting(const RpAdviseQuery *query, Tried *tried, GError **error)
{
    guint most = query->micro_batch != 0 ? query->micro_batch : query->batch / query->gpus;
    guint least = query->micro_batch != 0 ? query->micro_batch : 1;
    guint n_fitting = 0;

    for (guint b = most; b >= least && n_fitting < MAX_FITTED; b--) {
        guint micro_batches = query->batch / b;
        guint round = query->batch % b == 0 ? next_round(query, micro_batches, 1) : 0;

        if (round == 0)
            continue;
        RpProfile *profile = rp_advise_profile(query, b, error);
        if (profile == NULL)
            return FALSE;
        RpAdviseRun *run = rp_advise_run_new(query, roundpipe(), b, micro_batches, round);

        if (rp_advise_fit(query, profile, run)) {
            n_fitting++;
        } else if (n_fitting == 0) { /* the larger ones do not fit all the more */
            g_ptr_array_set_size(tried->runs, 0);
            g_ptr_array_set_size(tried->profiles, 0);
        }
        tried_add(tried, run, profile);
    }
    return TRUE;
}

/* Leaves the most promising ones, and what does not fit. Returns: how many it dropped. */
static guint
drop_slow(Tried *tried)
{
    guint before = tried->runs->len;
    guint n_fitting = 0;

    for (guint i = 0; i < before; i++)
        n_fitting += ((RpAdviseRun *)g_ptr_array_index(tried->runs, i))->problem == NULL;
    for (; n_fitting > MAX_TRIED; n_fitting--) {
        const RpAdviseRun *slowest = NULL;
        guint slowest_index = 0;

        for (guint i = 0; i < tried->runs->len; i++) {
            const RpAdviseRun *run = g_ptr_array_index(tried->runs, i);

            if (run->problem != NULL ||
                (slowest != NULL && run->bound_tokens_per_s >= slowest->bound_tokens_per_s))
                continue;
            slowest = run;
            slowest_index = i;
        }
        g_ptr_array_remove_index(tried->runs, slowest_index);
        g_ptr_array_remove_index(tried->profiles, slowest_index);
    }
    return before - tried->runs->len;
}

/* The same micro-batch in longer rounds: weights travel less often and stages need not be as even,
 * but more waits on the host. */
static gboolean
try_rounds(const RpAdviseQuery *query, const RpProfile *profile, GPtrArray *runs, guint i,
           GError **error)
{
    const RpAdviseRun *first = g_ptr_array_index(runs, i);
    guint round = first->options.round;

    for (guint n = 1; n < MAX_ROUNDS; n++) {
        RpAdviseRun *best = g_ptr_array_index(runs, i);

        if (best->bubble_ratio <= SMALL_BUBBLE)
            break;
        round = next_round(query, best->options.micro_batches, round + 1);
        if (round == 0)
            break;
        g_autoptr(RpAdviseRun) longer = copy_run(best);

        longer->options.round = round;
        if (!rp_advise_measure(query, profile, longer))
            break;
        rp_advise_improve(query, profile, longer, CANDIDATES);
        if (!rp_advise_simulate(profile, longer, TRUE, error))
            return FALSE;
        if (longer->tokens_per_s > CLEARLY_FASTER * best->tokens_per_s) {
            rp_advise_run_free(best);
            runs->pdata[i] = g_steal_pointer(&longer);
        }
    }
    return TRUE;
}

static gint
by_bound(gconstpointer a, gconstpointer b, gpointer user_data)
{
    const RpAdviseRun *const *runs = user_data;
    double x = runs[*(const guint *)a]->bound_tokens_per_s;
    double y = runs[*(const guint *)b]->bound_tokens_per_s;

    return (x < y) - (x > y);
}

/* Simulates the runs that fit, most promising first; those that cannot win are left alone.
 * Returns: the index of the fastest; -1 on error. */
static gint
simulate_fitting(const RpAdviseQuery *query, Tried *tried, GError **error)
{
    guint n = tried->runs->len;
    g_autofree guint *order = g_new(guint, n);
    gint best = -1;

    for (guint i = 0; i < n; i++) {
        RpAdviseRun *run = g_ptr_array_index(tried->runs, i);

        order[i] = i;
        if (run->problem == NULL)
            rp_advise_improve(query, g_ptr_array_index(tried->profiles, i), run, CANDIDATES);
    }
    g_qsort_with_data(order, (gint)n, sizeof *order, by_bound, tried->runs->pdata);
    for (guint k = 0; k < n; k++) {
        guint i = order[k];
        const RpProfile *profile = g_ptr_array_index(tried->profiles, i);
        RpAdviseRun *run = g_ptr_array_index(tried->runs, i);
        const RpAdviseRun *leader = best >= 0 ? g_ptr_array_index(tried->runs, best) : NULL;

        if (run->problem != NULL || (leader != NULL && run->bound_tokens_per_s > 0 &&
                                     run->bound_tokens_per_s < leader->tokens_per_s))
            continue;
        if (!rp_advise_simulate(profile, run, TRUE, error) ||
            !try_rounds(query, profile, tried->runs, i, error))
            return -1;
        run = g_ptr_array_index(tried->runs, i);
        if (leader == NULL || run->tokens_per_s > CLEARLY_FASTER * leader->tokens_per_s)
            best = (gint)i;
    }
    return best;
}

/* More partitions for the one that is recommended, and its full simulation. */
static gboolean
finish_best(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun **best,
            GError **error)
{
    g_autoptr(RpAdviseRun) better = copy_run(*best);

    rp_advise_improve(query, profile, better, FINAL_CANDIDATES);
    if (!rp_advise_simulate(profile, *best, FALSE, error))
        return FALSE;
    if (rp_partition_equal(better->partition, (*best)->partition))
        return TRUE;
    if (!rp_advise_simulate(profile, better, FALSE, error))
        return FALSE;
    if (better->step_ns < (*best)->step_ns) {
        rp_advise_run_free(*best);
        *best = g_steal_pointer(&better);
    }
    return TRUE;
}

static gint
by_sequences(gconstpointer a, gconstpointer b)
{
    const RpAdviseRun *x = *(const RpAdviseRun *const *)a;
    const RpAdviseRun *y = *(const RpAdviseRun *const *)b;

    return (x->sequences > y->sequences) - (x->sequences < y->sequences);
}

static gboolean
choose_micro_batch(RpAdvice *advice, Tried *tried, GError **error)
{
    const RpAdviseQuery *query = &advice->query;
    gint best;

    if (!find_fitting(query, tried, error))
        return FALSE;
    advice->untried = drop_slow(tried);
    const RpAdviseRun *last = g_ptr_array_index(tried->runs, tried->runs->len - 1);

    for (guint i = 0; i < tried->runs->len; i++) {
        RpAdviseRun *run = g_ptr_array_index(tried->runs, i);

        if (run->problem != NULL && run->partition != NULL)
            rp_advise_measure(query, g_ptr_array_index(tried->profiles, i), run);
    }
    if (last->problem != NULL) {
        advice->nearest = least_run(query, &advice->profile, error);
        return advice->nearest != NULL;
    }
    best = simulate_fitting(query, tried, error);
    if (best < 0)
        return FALSE;
    if (!finish_best(query, g_ptr_array_index(tried->profiles, best),
                     (RpAdviseRun **)&tried->runs->pdata[best], error))
        return FALSE;
    advice->profile = rp_profile_copy(g_ptr_array_index(tried->profiles, best));
    rp_advise_measure(query, advice->profile, g_ptr_array_index(tried->runs, best));
    advice->best = g_ptr_array_index(tried->runs, best);
    return TRUE;
}

/* ---- schedules ---- */

/* A bound schedule at the recommended micro-batch, or if it does not fit at a smaller one. */
static RpAdviseRun *
bound_row(const RpAdviseQuery *query, const RpScheduleOps *schedule, guint sequences,
          GError **error)
{
    RpAdviseRun *run = NULL;
    guint smaller = 0;

    for (guint b = sequences; b >= 1 && smaller <= MAX_SMALLER; b--) {
        if (query->batch % b != 0)
            continue;
        g_autoptr(RpProfile) profile = rp_advise_profile(query, b, error);
        g_autoptr(RpAdviseRun) other = run; /* the larger micro-batch's, unless it is kept */

        if (profile == NULL)
            return NULL;
        run = rp_advise_run_new(query, schedule, b, query->batch / b, 0);
        if (rp_advise_fit_bound(query, profile, run, BOUND_CANDIDATES)) {
            if (!rp_advise_simulate(profile, run, FALSE, error))
                g_clear_pointer(&run, rp_advise_run_free);
            return run;
        }
        if (run->weights_too_large || query->micro_batch != 0)
            break;
        smaller++;
    }
    return run;
}

/* Roundpipe with the other kind of optimizer step than the recommendation's. */
static RpAdviseRun *
roundpipe_row(const RpAdvice *advice, gboolean sync, GError **error)
{
    RpAdviseQuery query = advice->query;
    const RpAdviseRun *model = advice->best != NULL ? advice->best : advice->nearest;

    if (query.sync == sync)
        return copy_run(model);
    query.sync = sync;
    g_autoptr(RpAdviseRun) run =
        rp_advise_run_new(&query, model->options.schedule, model->sequences,
                          model->options.micro_batches, model->options.round);
    if (rp_advise_fit(&query, advice->profile, run)) {
        rp_advise_improve(&query, advice->profile, run, CANDIDATES);
        if (!rp_advise_simulate(advice->profile, run, FALSE, error))
            return NULL;
    } else if (run->partition != NULL) {
        rp_advise_measure(&query, advice->profile, run);
    }
    return g_steal_pointer(&run);
}

static gboolean
compare_schedules(RpAdvice *advice, const RpScheduleOps *const *schedules, GError **error)
{
    const RpAdviseRun *model = advice->best != NULL ? advice->best : advice->nearest;

    for (; *schedules != NULL; schedules++) {
        gboolean dispatched = (*schedules)->dispatched;
        RpAdviseRun *run = dispatched
                               ? roundpipe_row(advice, TRUE, error)
                               : bound_row(&advice->query, *schedules, model->sequences, error);

        if (run == NULL)
            return FALSE;
        g_ptr_array_add(advice->schedules, run);
        if (!dispatched)
            continue;
        run = roundpipe_row(advice, FALSE, error);
        if (run == NULL)
            return FALSE;
        g_ptr_array_add(advice->schedules, run);
    }
    return TRUE;
}

RpAdvice *
rp_advise(const RpAdviseQuery *query, const RpScheduleOps *const *schedules, GError **error)
{
    g_autoptr(RpAdvice) advice = g_new0(RpAdvice, 1);
    g_autoptr(GPtrArray) runs = g_ptr_array_new_with_free_func(free_run);
    g_autoptr(GPtrArray) profiles = g_ptr_array_new_with_free_func(free_profile);
    Tried tried = {runs, profiles};

    advice->query = *query;
    advice->gpus_asked = query->gpus;
    if (!resolve(&advice->query, error))
        return NULL;
    advice->candidates = g_ptr_array_ref(runs);
    advice->schedules = g_ptr_array_new_with_free_func(free_run);
    if (!choose_micro_batch(advice, &tried, error) ||
        !compare_schedules(advice, schedules, error) ||
        !rp_advise_longest(&advice->query, &advice->longest, error))
        return NULL;
    g_ptr_array_sort(runs, by_sequences);
    advice->remedies =
        advice->best == NULL ? find_remedies(query) : g_ptr_array_new_with_free_func(free_remedy);
    return g_steal_pointer(&advice);
}
