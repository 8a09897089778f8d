/*
 * Kernels over the vocabulary: embedding, and cross-entropy of a chunk of logits.
 *
 *   embedding       y[t] = weight[ids[t]]                                                       =
 *                   d_weight[ids[t]] += dy[t], t ascending, not for the padding id             +=
 *   cross-entropy   loss += sum over unmasked t of log sum_v exp(logits[t,v]) - logits[t,label] +=
 *                   logits = scale (softmax(logits) - one-hot(label)), masked t: 0              =
 *                   smoothed by e: one-hot becomes (1 - e) one-hot + e / vocabulary, and the loss takes
 *                   the mean of the logits with weight e; with weights, scale is times that of t
 *
 * weight: [vocabulary,n], logits: [tokens,vocabulary]. Sums over the vocabulary: fp32 lanes in a
 * tile, tiles in double; over tokens: double.
 */
#include "exec/host/host-private.h"

void
rp_host_embedding_forward(RpKernelStream *stream, const RpEmbeddingArgs *args)
{
    const size_t bytes = args->n * rp_dtype_size(args->dtype);

    for (size_t t = 0; t < args->tokens; t++) {
        const size_t id = (size_t)args->ids[t];

        g_assert(id < args->vocabulary);
        memcpy((char *)args->y + t * bytes, (const char *)args->weight + id * bytes, bytes);
    }
}

void
rp_host_embedding_backward(RpKernelStream *stream, const RpEmbeddingArgs *args)
{
    float buffer[RP_TILE];

    for (size_t t = 0; t < args->tokens; t++) {
        const size_t id = (size_t)args->ids[t];
        float *target = args->d_weight + id * args->n;

        g_assert(id < args->vocabulary);
        if (args->ids[t] == args->padding_id)
            continue;
        for (size_t first = 0; first < args->n; first += RP_TILE) {
            const size_t n = MIN(RP_TILE, args->n - first);
            const float *dy = rp_host_load(args->dtype, args->dy, t * args->n + first, n, buffer);

            for (size_t i = 0; i < n; i++)
                target[first + i] += dy[i];
        }
    }
}

static float
largest_logit(const RpCrossEntropyArgs *args, size_t row)
{
    float buffer[RP_TILE];
    float largest = -INFINITY;

    for (size_t first = 0; first < args->vocabulary; first += RP_TILE) {
        const size_t n = MIN(RP_TILE, args->vocabulary - first);

        largest = rp_host_max(rp_host_load(args->dtype, args->logits, row + first, n, buffer), n,
                              largest);
    }
    return largest;
}

/* sum_v exp(logits - largest) */
static double
sum_of_exp(const RpCrossEntropyArgs *args, size_t row, float largest)
{
    float buffer[RP_TILE], e[RP_TILE];
    double sum = 0;

    for (size_t first = 0; first < args->vocabulary; first += RP_TILE) {
        const size_t n = MIN(RP_TILE, args->vocabulary - first);
        const float *logits = rp_host_load(args->dtype, args->logits, row + first, n, buffer);

        for (size_t i = 0; i < n; i++)
            e[i] = rp_host_exp(logits[i] - largest);
        sum += (double)rp_host_sum(e, n);
    }
    return sum;
}

static void
write_gradient(const RpCrossEntropyArgs *args, size_t t, size_t label, float largest, double sum)
{
    const size_t row = t * args->vocabulary;
    const float inverse = (float)(1.0 / sum);
    const float each = args->smoothing / (float)args->vocabulary;
    const float scale = args->weights != NULL ? args->scale * args->weights[t] : args->scale;
    float buffer[RP_TILE], gradient[RP_TILE];

    for (size_t first = 0; first < args->vocabulary; first += RP_TILE) {
        const size_t n = MIN(RP_TILE, args->vocabulary - first);
        const float *logits = rp_host_load(args->dtype, args->logits, row + first, n, buffer);

        for (size_t i = 0; i < n; i++)
            gradient[i] = rp_host_exp(logits[i] - largest) * inverse;
        if (label >= first && label - first < n)
            gradient[label - first] -= 1.0f - args->smoothing;
        for (size_t i = 0; i < n; i++)
            gradient[i] = (gradient[i] - each) * scale;
        rp_host_store(args->dtype, args->logits, row + first, n, gradient);
    }
}

static double
mean_logit(const RpCrossEntropyArgs *args, size_t row)
{
    float buffer[RP_TILE];
    double sum = 0;

    for (size_t first = 0; first < args->vocabulary; first += RP_TILE) {
        const size_t n = MIN(RP_TILE, args->vocabulary - first);

        sum +=
            (double)rp_host_sum(rp_host_load(args->dtype, args->logits, row + first, n, buffer), n);
    }
    return sum / (double)args->vocabulary;
}

/* One unmasked token. Returns its loss. */
static double
token_loss(const RpCrossEntropyArgs *args, size_t t)
{
    const size_t row = t * args->vocabulary;
    const size_t label = (size_t)args->labels[t];
    const float largest = largest_logit(args, row);
    const double sum = sum_of_exp(args, row, largest);
    const double e = (double)args->smoothing;

    g_assert(label < args->vocabulary);
    double at_label = (double)rp_host_element(args->dtype, args->logits, row + label);
    if (args->smoothing > 0)
        at_label = (1 - e) * at_label + e * mean_logit(args, row);
    if (args->gradient)
        write_gradient(args, t, label, largest, sum);
    return log(sum) + ((double)largest - at_label);
}

void
rp_host_cross_entropy(RpKernelStream *stream, const RpCrossEntropyArgs *args)
{
    const size_t row_bytes = args->vocabulary * rp_dtype_size(args->dtype);

    for (size_t t = 0; t < args->tokens; t++) {
        double loss = 0;

        if (args->labels[t] == RP_LABEL_MASKED) {
            if (args->gradient)
                memset((char *)args->logits + t * row_bytes, 0, row_bytes);
        } else {
            loss = token_loss(args, t);
            if (args->loss != NULL)
                *args->loss += loss;
        }
        if (args->losses != NULL)
            args->losses[t] = (float)loss;
    }
}
