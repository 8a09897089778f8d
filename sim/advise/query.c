/* The numbers of a query: what is given must divide, what follows is filled in. */
#include "sim/advise/private.h"

#include "core/base/quote.h"

/* More sequences in a batch are a mistake. */
#define MAX_BATCH (1u << 20)
/* Rounds of so many micro-batches a GPU are long, and so much of a batch is little. */
#define LONG_ROUND 4
#define BATCH_GROWTH 0.05

gboolean
rp_advise_refuse(GError **error, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *message = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    return rp_fail(error, RP_ADVISE_ERROR, RP_ADVISE_ERROR_QUERY, "%s", message);
}

/* Batch, micro-batch and their number: what is given must divide, what follows is filled in. */
static gboolean
resolve_batch(RpAdviseQuery *query, GError **error)
{
    if (query->batch == 0 && query->micro_batch > 0 && query->micro_batches > 0 &&
        query->micro_batches <= G_MAXUINT / query->micro_batch)
        query->batch = query->micro_batch * query->micro_batches;
    if (query->batch == 0)
        return rp_advise_refuse(error, "the batch is missing: expected its number of sequences");
    if (query->batch > MAX_BATCH)
        return rp_advise_refuse(error, "a batch has at most %u sequences, found %u", MAX_BATCH,
                                query->batch);
    if (query->micro_batches > 0 && query->batch % query->micro_batches != 0)
        return rp_advise_refuse(error,
                                "a batch of %u sequences does not divide into %u micro-batches",
                                query->batch, query->micro_batches);
    if (query->micro_batch > 0 && query->batch % query->micro_batch != 0)
        return rp_advise_refuse(
            error, "a batch of %u sequences does not divide into micro-batches of %u sequences",
            query->batch, query->micro_batch);
    if (query->micro_batch == 0 && query->micro_batches > 0)
        query->micro_batch = query->batch / query->micro_batches;
    if (query->micro_batch > 0 && query->micro_batches > 0 &&
        query->batch / query->micro_batch != query->micro_batches)
        return rp_advise_refuse(error,
                                "%u micro-batches of %u sequences are not a batch of %u sequences",
                                query->micro_batches, query->micro_batch, query->batch);
    if (query->micro_batch > 0)
        query->micro_batches = query->batch / query->micro_batch;
    return TRUE;
}

/* The smallest M_R that suits @micro_batches and is at least @least; 0 if there is none. */
guint
rp_advise_next_round(const RpAdviseQuery *query, guint micro_batches, guint least)
{
    if (query->round != 0)
        return query->round >= least && micro_batches % query->round == 0 ? query->round : 0;
    for (guint round = MAX(least, query->gpus); round <= micro_batches; round++)
        if (micro_batches % round == 0)
            return round;
    return 0;
}

/* The shortest round that any micro-batch allows; 0 if there is none. */
static guint
shortest_round(const RpAdviseQuery *query)
{
    guint most = query->micro_batch != 0 ? query->micro_batch : query->batch / query->gpus;
    guint shortest = 0;

    for (guint b = query->micro_batch != 0 ? query->micro_batch : 1; b <= most; b++) {
        guint round = query->batch % b == 0 ? rp_advise_next_round(query, query->batch / b, 1) : 0;

        if (round != 0 && (shortest == 0 || round < shortest))
            shortest = round;
    }
    return shortest;
}

/*
 * A batch that divides into nothing near N micro-batches - a prime - runs as one long round, whose
 * inputs all wait in host memory. A few sequences more make it a multiple of N: that is planned
 * instead, where it changes the batch by little.
 */
static void
round_batch(RpAdviseQuery *query)
{
    guint unit = query->gpus * MAX(1, query->micro_batch);
    guint more = unit - query->batch % unit;

    if (query->gpus < 2 || query->batch % unit == 0 ||
        (double)more > BATCH_GROWTH * (double)query->batch || query->batch + more > MAX_BATCH ||
        shortest_round(query) <= LONG_ROUND * query->gpus)
        return;
    query->batch += more;
    if (query->micro_batches != 0)
        query->micro_batches = query->batch / query->micro_batch;
}

/* Times are those of the file. */
static gboolean
check_micro_batch(const RpAdviseQuery *query, GError **error)
{
    const RpProfile *p = query->profile;

    if (p == NULL)
        return TRUE;
    g_autofree char *all = rp_profile_micro_batches(p);

    if (query->micro_batch != 0)
        return rp_profile_with_micro_batch(p, query->micro_batch) != NULL ||
               rp_advise_refuse(
                   error,
                   "the timing file is for micro-batches of %s sequences, found %u asked for", all,
                   query->micro_batch);
    while (p != NULL && query->batch % MAX(1, p->sequences) != 0)
        p = p->next;
    return p != NULL ||
           rp_advise_refuse(error,
                            "a batch of %u sequences does not divide into micro-batches of %s",
                            query->batch, all);
}

gboolean
rp_advise_resolve(RpAdviseQuery *query, GError **error)
{
    const gboolean chosen = query->micro_batches == 0 && query->round == 0;

    query->saved = (RpSavedChoice){.groups = rp_save_groups(query->save)};

    if (query->gpus < 1 || query->gpus > RP_ADVISE_MAX_GPUS)
        return rp_advise_refuse(error, "one machine has 1 to %d GPUs, found %u", RP_ADVISE_MAX_GPUS,
                                query->gpus);
    for (const RpProfile *p = query->profile; p != NULL; p = p->next)
        if (!rp_profile_check_full(p, error))
            return FALSE;
    if (query->profile != NULL && query->profile->next == NULL && query->micro_batch == 0)
        query->micro_batch = MAX(1, query->profile->sequences);
    if (!resolve_batch(query, error) || !check_micro_batch(query, error))
        return FALSE;
    if (chosen)
        round_batch(query);
    query->gpus = MIN(query->gpus, query->micro_batches > 0 ? query->micro_batches : query->batch);
    if (query->round == 0)
        return TRUE;
    if (query->round < query->gpus)
        return rp_advise_refuse(error, "a round has at least one micro-batch per GPU, %u, found %u",
                                query->gpus, query->round);
    guint most = query->micro_batches > 0 ? query->micro_batches : query->batch;

    if (most % query->round != 0)
        return rp_advise_refuse(error, "%u micro-batches do not divide into rounds of %u", most,
                                query->round);
    return TRUE;
}

G_DEFINE_QUARK(rp_advise_error, rp_advise_error)
