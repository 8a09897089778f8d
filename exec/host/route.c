/*
 * Router, rows by expert, and the routers' auxiliary loss.
 *
 *   route     chosen = the k largest of E logits, largest first, then the lowest; weights = softmax  =
 *             d_logits = p (d_weights - sum p d_weights), by the chosen                             =
 *   balance   counts = those before + choices, sums = those before + sum_t softmax(logits)      =
 *             loss = E sum (counts / N) (sums / N), and its gradient                            =
 *   sort      a stable counting sort of T k assignments by expert                                   =
 *   gather    y[rows[t,j]] = x[t]                                                                   =
 *   combine   y[t] = residual[t] + sum_j weights[t,j] x[rows[t,j]]                                  =
 *
 * logits: [T,E], chosen, weights, rows: [T,k]. Sums over E fp32 lanes, over k one after the other, over
 * T in partial sums of RP_PARTIAL_ROWS; the loss double.
 */
#include "exec/host/host-private.h"

/* NaN is largest, as torch.topk has it. */
static gboolean
is_larger(float a, float b)
{
    return isnan(a) ? !isnan(b) : a > b;
}

/* The @k largest of @logits into @chosen; equal ones by index. */
static void
choose(const float *logits, size_t experts, size_t k, int32_t *chosen)
{
    size_t n = 0;

    for (size_t e = 0; e < experts; e++) {
        size_t place = n;

        while (place > 0 && is_larger(logits[e], logits[chosen[place - 1]]))
            place--;
        if (place == k)
            continue;
        n = MIN(n + 1, k);
        memmove(chosen + place + 1, chosen + place, (n - 1 - place) * sizeof *chosen);
        chosen[place] = (int32_t)e;
    }
}

/* exp(logits - the largest) / the sum over the chosen or over all: @of_chosen[j], @of_all[e]. */
static void
probabilities(const RpRouteArgs *args, const float *logits, const int32_t *chosen, float *of_chosen,
              float *of_all)
{
    const float largest = logits[chosen[0]];

    for (size_t e = 0; e < args->experts; e++)
        of_all[e] = rp_host_exp(logits[e] - largest);
    for (size_t j = 0; j < args->choices; j++)
        of_chosen[j] = of_all[chosen[j]];
    float sum = args->among_chosen ? rp_host_sum(of_chosen, args->choices)
                                   : rp_host_sum(of_all, args->experts);
    for (size_t j = 0; j < args->choices; j++)
        of_chosen[j] /= sum;
    for (size_t e = 0; e < args->experts; e++)
        of_all[e] /= sum;
}

void
rp_host_route_forward(RpKernelStream *stream, const RpRouteArgs *args)
{
    const size_t E = args->experts, k = args->choices;
    float buffer[RP_MOST_EXPERTS], all[RP_MOST_EXPERTS], p[RP_MOST_CHOICES];

    g_assert(E <= RP_MOST_EXPERTS && k <= MIN(E, RP_MOST_CHOICES));
    for (size_t t = 0; t < args->tokens && k > 0; t++) {
        const float *logits = rp_host_load(args->dtype, args->logits, t * E, E, buffer);
        int32_t *chosen = args->chosen + t * k;

        choose(logits, E, k, chosen);
        probabilities(args, logits, chosen, p, all);
        rp_host_store(args->dtype, args->weights, t * k, k, p);
    }
}

/* Adds the auxiliary loss's part to the gradient of a token's logits. */
static void
add_balance(const RpRouteArgs *args, const float *logits, float *gradient)
{
    const size_t E = args->experts;
    float p[RP_MOST_EXPERTS], dot;

    rp_host_softmax(logits, E, p);
    dot = rp_host_dot(p, args->d_sums, E);
    for (size_t e = 0; e < E; e++)
        gradient[e] += p[e] * (args->d_sums[e] - dot);
}

void
rp_host_route_backward(RpKernelStream *stream, const RpRouteArgs *args)
{
    const size_t E = args->experts, k = args->choices;
    float buffer[RP_MOST_EXPERTS], gradient[RP_MOST_EXPERTS], p[RP_MOST_CHOICES];

    g_assert(E <= RP_MOST_EXPERTS && k <= MIN(E, RP_MOST_CHOICES));
    for (size_t t = 0; t < args->tokens && k > 0; t++) {
        const float *logits = rp_host_load(args->dtype, args->logits, t * E, E, buffer);
        const int32_t *chosen = args->chosen + t * k;
        const float *d_weights = args->d_weights + t * k;

        probabilities(args, logits, chosen, p, gradient);
        float sum = rp_host_dot(p, d_weights, k);
        for (size_t e = 0; e < E; e++)
            gradient[e] = args->among_chosen ? 0 : -gradient[e] * sum;
        for (size_t j = 0; j < k; j++)
            gradient[chosen[j]] = p[j] * (d_weights[j] - sum);
        if (args->d_sums != NULL && t % args->sequence < (size_t)args->lengths[t / args->sequence])
            add_balance(args, logits, gradient);
        rp_host_store(args->dtype, args->d_logits, t * E, E, gradient);
    }
}

void
rp_host_sort_rows(RpKernelStream *stream, const RpSortRowsArgs *args)
{
    const size_t R = args->tokens * args->choices;
    int32_t next[RP_MOST_EXPERTS];

    g_assert(args->experts <= RP_MOST_EXPERTS && R <= G_MAXINT32);
    memset(args->offsets, 0, (args->experts + 1) * sizeof *args->offsets);
    for (size_t a = 0; a < R; a++)
        args->offsets[args->chosen[a] + 1]++;
    for (size_t e = 0; e < args->experts; e++) {
        next[e] = args->offsets[e];
        args->offsets[e + 1] += args->offsets[e];
    }
    for (size_t a = 0; a < R; a++) {
        args->rows[a] = next[args->chosen[a]]++;
        args->assigned[args->rows[a]] = (int32_t)a;
    }
}

void
rp_host_gather_rows(RpKernelStream *stream, const RpGatherRowsArgs *args)
{
    const size_t bytes = args->n * rp_dtype_size(args->dtype);

    for (size_t a = 0; a < args->tokens * args->choices; a++)
        memcpy((char *)args->y + (size_t)args->rows[a] * bytes,
               (const char *)args->x + a / args->choices * bytes, bytes);
}

void
rp_host_combine_rows(RpKernelStream *stream, const RpCombineRowsArgs *args)
{
    float buffer[RP_TILE], sums[RP_TILE];

    for (size_t t = 0; t < args->tokens; t++) {
        for (size_t first = 0; first < args->n; first += RP_TILE) {
            const size_t n = MIN(RP_TILE, args->n - first);

            memset(sums, 0, sizeof sums);
            if (args->residual != NULL)
                memcpy(sums,
                       rp_host_load(args->dtype, args->residual, t * args->n + first, n, buffer),
                       n * sizeof *sums);
            for (size_t a = t * args->choices; a < (t + 1) * args->choices; a++) {
                const float *x = rp_host_load(args->dtype, args->x,
                                              (size_t)args->rows[a] * args->n + first, n, buffer);
                const float weight =
                    args->weights != NULL ? rp_host_element(args->dtype, args->weights, a) : 1;

                for (size_t i = 0; i < n; i++)
                    sums[i] += weight * x[i];
            }
            rp_host_store(args->dtype, args->y, t * args->n + first, n, sums);
        }
    }
}

/* ---- the auxiliary loss ---- */

static gboolean
is_padding(const RpBalanceArgs *args, size_t t)
{
    return t % args->sequence >= (size_t)args->lengths[t / args->sequence];
}

/* Tokens from @first on, @n of them. */
static void
add_tokens(const RpBalanceArgs *args, size_t first, size_t n, float *sums)
{
    const size_t E = args->experts, k = args->choices;
    float buffer[RP_MOST_EXPERTS], p[RP_MOST_EXPERTS];

    for (size_t t = first; t < first + n; t++) {
        if (is_padding(args, t))
            continue;
        rp_host_softmax(rp_host_load(args->dtype, args->logits, t * E, E, buffer), E, p);
        for (size_t e = 0; e < E; e++)
            sums[e] += p[e];
        for (size_t j = 0; j < k; j++)
            args->counts[args->chosen[t * k + j]]++;
    }
}

void
rp_host_balance_forward(RpKernelStream *stream, const RpBalanceArgs *args)
{
    const size_t E = args->experts;
    float total[RP_MOST_EXPERTS] = {0};

    g_assert(E <= RP_MOST_EXPERTS);
    memcpy(args->counts, args->counts_before, E * sizeof *args->counts);
    for (size_t first = 0; first < args->tokens; first += RP_PARTIAL_ROWS) {
        float part[RP_MOST_EXPERTS] = {0};

        add_tokens(args, first, MIN(RP_PARTIAL_ROWS, args->tokens - first), part);
        for (size_t e = 0; e < E; e++)
            total[e] += part[e];
    }
    for (size_t e = 0; e < E; e++)
        args->sums[e] = args->sums_before[e] + total[e];
}

void
rp_host_balance_loss(RpKernelStream *stream, const RpBalanceLossArgs *args)
{
    const double E = (double)args->experts;
    double n = 0, sum = 0;

    for (size_t b = 0; b < args->sequences; b++)
        n += args->lengths[b];
    n *= (double)args->layers;
    for (size_t e = 0; e < args->experts; e++) {
        const double share = n > 0 ? args->counts[e] / n : 0;

        sum += n > 0 ? share * (args->sums[e] / n) : 0;
        args->d_sums[e] = n > 0 ? (float)(args->scale * E * share / n) : 0;
    }
    *args->loss = E * sum;
}
