/*
 * The routers' auxiliary loss: what each layer adds to it, and the loss.
 *
 *   forward   counts = those before + choices, sums = those before + sum_t softmax(logits)   =
 *   loss      E sum (counts / N) (sums / N), and its gradient                                 =
 *
 * logits: [T,E]. Sums over E fp32 lanes, over T in partial sums of RP_PARTIAL_ROWS; the loss double.
 */
#include "exec/host/host-private.h"

size_t
rp_host_balance_forward_workspace(const RpBalanceArgs *args)
{
    return 0;
}

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
