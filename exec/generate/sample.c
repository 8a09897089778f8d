#include "exec/generate/sample.h"

#include <math.h>

#include "exec/kernels/philox.h"

typedef struct {
    float logit;
    gint32 id;
} Candidate;

static int
compare(gconstpointer a, gconstpointer b)
{
    const Candidate *x = a, *y = b;

    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static gint32
likeliest(const float *logits, guint n)
{
    guint best = 0;

    for (guint v = 1; v < n; v++)
        if (logits[v] > logits[best])
            best = v;
    return (gint32)best;
}

/* Returns a random number in [0,1). */
static double
drawn(const RpSampling *sampling, guint64 prompt, guint token)
{
    uint32_t words[4] = {token, (uint32_t)prompt, (uint32_t)(prompt >> 32), 0};

    rp_philox_stir(words, sampling->seed);
    return ldexp((double)(words[0] >> 5), -27) + ldexp((double)(words[1] >> 6), -53);
}

gint32
rp_sample(const RpSampling *sampling, const float *logits, guint n, guint64 prompt, guint token)
{
    if (sampling->temperature <= 0 || sampling->top_k == 1)
        return likeliest(logits, n);
    g_autofree Candidate *candidates = g_new(Candidate, n);
    g_autofree double *odds = g_new(double, n);
    guint kept = sampling->top_k > 0 ? MIN(sampling->top_k, n) : n;
    double sum = 0, reached = 0;

    for (guint v = 0; v < n; v++)
        candidates[v] = (Candidate){logits[v], (gint32)v};
    qsort(candidates, n, sizeof *candidates, compare);
    for (guint i = 0; i < kept; i++)
        sum += odds[i] = exp(((double)candidates[i].logit - (double)candidates[0].logit) /
                             sampling->temperature);
    for (guint i = 0; i < kept; i++) { /* the one that reaches P is among them */
        reached += odds[i];
        if (reached >= sampling->top_p * sum)
            kept = i + 1;
    }
    double rest = drawn(sampling, prompt, token) * reached;
    guint chosen = 0;

    while (chosen + 1 < kept && rest >= odds[chosen])
        rest -= odds[chosen++];
    return candidates[chosen].id;
}
