#include "exec/optim/optimizer.h"

/* Pieces end at multiples of this many values: whole pages, and enough work to wake a thread for. */
#define GRANULE ((gsize)16384)

/* This many sums stay in the L1 cache while all rounds are added to them: measured, 1024 are 1.5
 * times as fast as 16384, none of which is left there for the next array. */
#define TILE ((gsize)1024)

/* @sum = values [@first, @first + @n) of @gradient, which has several rounds. */
static void
add_rounds(const RpAdamwOps *ops, const RpGradient *gradient, RpDtype dtype, gsize first,
           float *sum, gsize n)
{
    const void *const *rounds = gradient->rounds;

    ops->add(rp_gradient_at(rounds[0], dtype, first), rp_gradient_at(rounds[1], dtype, first),
             dtype, sum, n);
    for (guint k = 2; k < RP_GRADIENT_MOST_ROUNDS && rounds[k] != NULL; k++)
        ops->accumulate(sum, rp_gradient_at(rounds[k], dtype, first), dtype, n);
}

void
rp_gradient_add(const RpAdamwOps *ops, const RpGradient *gradient, const RpGradient *added,
                RpDtype dtype, gsize first, float *sum, gsize n)
{
    float other[RP_GRADIENT_PIECE];

    if (gradient->rounds[1] == NULL) {
        ops->add(rp_gradient_at(gradient->rounds[0], dtype, first),
                 rp_gradient_at(added->rounds[0], dtype, first), dtype, sum, n);
        return;
    }
    add_rounds(ops, gradient, dtype, first, sum, n);
    if (added->rounds[0] == NULL)
        return;
    add_rounds(ops, added, dtype, first, other, n);
    ops->accumulate(sum, other, RP_DTYPE_FP32, n);
}

typedef struct {
    const RpAdamwOps *ops;
    const void *const *added;
    guint n_added;
    gboolean begin;
    float *sum;
    RpDtype dtype;
} Sum;

/* Values [@first, @first + @n) of addend @k. */
static const void *
added_at(const Sum *job, guint k, gsize first)
{
    return (const char *)job->added[k] + first * rp_dtype_size(job->dtype);
}

/* Begins the tile's sum. Returns: how many have been added */
static guint
begin_tile(const Sum *job, gsize first, gsize n)
{
    if (!job->begin)
        return 0;
    if (job->n_added == 1) {
        job->ops->widen(added_at(job, 0, first), job->dtype, job->sum + first, n);
        return 1;
    }
    job->ops->add(added_at(job, 0, first), added_at(job, 1, first), job->dtype, job->sum + first,
                  n);
    return 2;
}

static void
accumulate_share(gsize first, gsize n, gpointer data)
{
    const Sum *job = data;

    for (gsize i = first; i < first + n; i += TILE) {
        const gsize length = MIN(TILE, first + n - i);

        for (guint k = begin_tile(job, i, length); k < job->n_added; k++)
            job->ops->accumulate(job->sum + i, added_at(job, k, i), job->dtype, length);
    }
}

void
rp_sums_accumulate(RpPool *pool, const RpAdamwOps *ops, float *sum, const void *const *added,
                   guint n_added, RpDtype dtype, gboolean begin, gsize n)
{
    Sum job = {
        .ops = ops, .added = added, .n_added = n_added, .begin = begin, .sum = sum, .dtype = dtype};

    rp_pool_run(pool, 0, n, GRANULE, accumulate_share, &job);
}

typedef struct {
    const RpAdamwOps *ops;
    const char *from;
    float *to;
    RpDtype dtype;
} Copy;

static void
widen_share(gsize first, gsize n, gpointer data)
{
    const Copy *job = data;

    job->ops->widen(job->from + first * rp_dtype_size(job->dtype), job->dtype, job->to + first, n);
}

void
rp_sums_widen(RpPool *pool, const RpAdamwOps *ops, const void *values, RpDtype dtype, float *wide,
              gsize n)
{
    Copy job = {.ops = ops, .from = values, .to = wide, .dtype = dtype};

    rp_pool_run(pool, 0, n, GRANULE, widen_share, &job);
}
