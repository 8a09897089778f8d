#include "exec/optim/sums.h"

/* Shares end at so many values: whole pages, and enough work to wake a thread for. */
#define GRANULE ((gsize)16384)

typedef struct {
    const RpAdamwOps *ops;
    const char *from;
    char *to;
    RpNumber number;
} Job;

static void
accumulate_share(gsize first, gsize n, gpointer data)
{
    const Job *job = data;
    const gsize offset = first * rp_number_bytes(job->number);

    job->ops->accumulate(job->to + offset, job->from + offset, job->number, n);
}

void
rp_sums_accumulate(RpPool *pool, const RpAdamwOps *ops, void *sum, const void *added,
                   RpNumber number, gsize n)
{
    Job job = {.ops = ops, .from = added, .to = sum, .number = number};

    rp_pool_run(pool, 0, n, GRANULE, accumulate_share, &job);
}

static void
widen_share(gsize first, gsize n, gpointer data)
{
    const Job *job = data;

    job->ops->widen(job->from + first * rp_number_bytes(job->number), job->number,
                    (float *)(void *)job->to + first, n);
}

void
rp_sums_widen(RpPool *pool, const RpAdamwOps *ops, const void *values, RpNumber number, float *wide,
              gsize n)
{
    Job job = {.ops = ops, .from = values, .to = (char *)(void *)wide, .number = number};

    rp_pool_run(pool, 0, n, GRANULE, widen_share, &job);
}
