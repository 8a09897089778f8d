#include "exec/optim/sums.h"

/* Pieces end at so many values: whole pages, and enough work to wake a thread for. */
#define GRANULE ((gsize)16384)

/* So many sums stand in the nearest cache while all is added to them: measured, 1024 are 1.5 times
 * as fast as 16384, of which nothing is left there for the next array. */
#define TILE ((gsize)1024)

typedef struct {
    const RpAdamwOps *ops;
    const void *const *added;
    guint n_added;
    char *sum;
    RpNumber number;
} Sum;

static void
accumulate_share(gsize first, gsize n, gpointer data)
{
    const Sum *job = data;
    const gsize bytes = rp_number_bytes(job->number);

    for (gsize i = first; i < first + n; i += TILE)
        for (guint k = 0; k < job->n_added; k++)
            job->ops->accumulate(job->sum + i * bytes, (const char *)job->added[k] + i * bytes,
                                 job->number, MIN(TILE, first + n - i));
}

void
rp_sums_accumulate(RpPool *pool, const RpAdamwOps *ops, void *sum, const void *const *added,
                   guint n_added, RpNumber number, gsize n)
{
    Sum job = {.ops = ops, .added = added, .n_added = n_added, .sum = sum, .number = number};

    rp_pool_run(pool, 0, n, GRANULE, accumulate_share, &job);
}

typedef struct {
    const RpAdamwOps *ops;
    const char *from;
    float *to;
    RpNumber number;
} Copy;

static void
widen_share(gsize first, gsize n, gpointer data)
{
    const Copy *job = data;

    job->ops->widen(job->from + first * rp_number_bytes(job->number), job->number, job->to + first,
                    n);
}

void
rp_sums_widen(RpPool *pool, const RpAdamwOps *ops, const void *values, RpNumber number, float *wide,
              gsize n)
{
    Copy job = {.ops = ops, .from = values, .to = wide, .number = number};

    rp_pool_run(pool, 0, n, GRANULE, widen_share, &job);
}
