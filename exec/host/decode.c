/*
 * Generating: keys and values in blocks, attention to them, the recurrent delta rule with its convolution, sampling.
 * Formulas and shapes: exec/kernels/decode-args.h. Every row is computed by itself, in an order that nothing beside it
 * changes.
 */
#include "exec/host/host-private.h"

#include "exec/kernels/sample.h"

/* ---- the cache ---- */

static void
copy_row(const RpCacheRowsArgs *args, size_t i, size_t stride, const void *from, void *to)
{
    const size_t element = rp_dtype_size(args->dtype);

    memcpy((char *)to + (size_t)args->rows[i] * args->width * element,
           (const char *)from + (size_t)args->tokens[i] * stride * element, args->width * element);
}

void
rp_host_cache_rows(RpKernelStream *stream, const RpCacheRowsArgs *args)
{
    for (size_t i = 0; i < args->n; i++) {
        copy_row(args, i, args->k_stride, args->k, args->keys);
        copy_row(args, i, args->v_stride, args->v, args->values);
    }
}

/* ---- attention ---- */

/* A sum over some keys: out = sum / weight, relative to exp(largest). */
typedef struct {
    float largest, weight;
    float *sum; /* [D] */
} Part;

size_t
rp_host_attention_cached_workspace(const RpCachedAttentionArgs *args)
{
    return rp_host_floats(args->head_size) * 4;
}

static size_t
row_of(const RpCachedAttentionArgs *args, size_t query, size_t key)
{
    const int32_t *table = args->tables + query * args->most_blocks;

    return (size_t)table[key / RP_CACHE_BLOCK] * RP_CACHE_BLOCK + key % RP_CACHE_BLOCK;
}

/* @buffer: [D] */
static const float *
load_key(const RpCachedAttentionArgs *args, const void *array, size_t query, size_t kv_head,
         size_t key, float *buffer)
{
    const size_t D = args->head_size;

    return rp_host_load(args->dtype, array,
                        (row_of(args, query, key) * args->kv_heads + kv_head) * D, D, buffer);
}

/* Keys @first to @end, at most RP_CACHE_PART of them. */
static void
attend_part(const RpCachedAttentionArgs *args, const float *q, size_t query, size_t kv_head,
            size_t first, size_t end, float *buffer, Part *part)
{
    const size_t D = args->head_size;
    float scores[RP_CACHE_PART];

    for (size_t j = first; j < end; j++)
        scores[j - first] =
            args->scale * rp_host_dot(q, load_key(args, args->keys, query, kv_head, j, buffer), D);
    part->largest = rp_host_max(scores, end - first, -INFINITY);
    part->weight = 0;
    memset(part->sum, 0, D * sizeof *part->sum);
    for (size_t j = first; j < end; j++) {
        const float p = rp_host_exp(scores[j - first] - part->largest);
        const float *v = load_key(args, args->values, query, kv_head, j, buffer);

        part->weight += p;
        for (size_t d = 0; d < D; d++)
            part->sum[d] += p * v[d];
    }
}

static void
add_part(Part *all, const Part *part, size_t D)
{
    const float largest = MAX(all->largest, part->largest);
    const float old = rp_host_exp(all->largest - largest);
    const float new = rp_host_exp(part->largest - largest);

    for (size_t d = 0; d < D; d++)
        all->sum[d] = all->sum[d] * old + part->sum[d] * new;
    all->weight = all->weight * old + part->weight * new;
    all->largest = largest;
}

static void
attend(const RpCachedAttentionArgs *args, size_t query, size_t head)
{
    const size_t D = args->head_size, kv_head = head / (args->heads / args->kv_heads);
    const size_t end = (size_t)args->positions[query] + 1;
    const size_t begin = args->window > 0 && end > args->window ? end - args->window : 0;
    const size_t at = (query * args->heads + head) * D;
    void *workspace = args->workspace;
    float *buffer = rp_host_take(&workspace, D), *q_buffer = rp_host_take(&workspace, D);
    Part all = {-INFINITY, 0, rp_host_take(&workspace, D)};
    Part part = {.sum = rp_host_take(&workspace, D)};
    const float *q = rp_host_load(args->dtype, args->q, at, D, q_buffer);

    memset(all.sum, 0, D * sizeof *all.sum);
    for (size_t first = begin / RP_CACHE_PART * RP_CACHE_PART; first < end;
         first += RP_CACHE_PART) {
        attend_part(args, q, query, kv_head, MAX(first, begin), MIN(first + RP_CACHE_PART, end),
                    buffer, &part);
        add_part(&all, &part, D);
    }
    for (size_t d = 0; d < D; d++)
        all.sum[d] /= all.weight;
    rp_host_store(args->dtype, args->out, at, D, all.sum);
    args->lse[head * args->queries + query] = all.largest + logf(all.weight);
}

void
rp_host_attention_cached(RpKernelStream *stream, const RpCachedAttentionArgs *args)
{
    for (size_t query = 0; query < args->queries; query++)
        for (size_t head = 0; head < args->heads; head++)
            attend(args, query, head);
}

/* ---- gated DeltaNet ---- */

/* One column of a range: the last K inputs in @x, the newest last. */
static void
convolve_column(const RpConvStepArgs *args, size_t range, size_t column)
{
    const size_t K = args->kernel;
    const size_t state = (size_t)args->slots[range] * (K - 1) * args->n + column;
    float taps[RP_MOST_CONV], x[RP_MOST_CONV] = {0};

    for (size_t k = 0; k < K; k++)
        taps[k] = rp_host_element(args->dtype, args->weight, column * K + k);
    for (size_t k = 1; k < K && !args->begins; k++)
        x[k] = rp_host_element(args->dtype, args->states, state + (k - 1) * args->n);
    for (size_t t = (size_t)args->firsts[range]; t < (size_t)args->ends[range]; t++) {
        float z = 0;

        memmove(x, x + 1, (K - 1) * sizeof *x);
        x[K - 1] = rp_host_element(args->dtype, args->x, t * args->n + column);
        for (size_t k = 0; k < K; k++)
            z += taps[k] * x[k];
        z *= rp_host_sigmoid(z);
        rp_host_store(args->dtype, args->y, t * args->n + column, 1, &z);
    }
    for (size_t k = 1; k < K; k++)
        rp_host_store(args->dtype, args->states, state + (k - 1) * args->n, 1, &x[k]);
}

void
rp_host_conv_step(RpKernelStream *stream, const RpConvStepArgs *args)
{
    g_assert(args->kernel <= RP_MOST_CONV);
    for (size_t range = 0; range < args->ranges; range++)
        for (size_t column = 0; column < args->n; column++)
            convolve_column(args, range, column);
}

/* q, k or v of a token: in @row, of length @length; 0: as it is. */
static void
load_row(const RpDeltaStepArgs *args, size_t at, size_t D, float length, float *row)
{
    rp_host_read(args->dtype, args->qkv, at, D, row);
    if (length == 0)
        return;
    length /= sqrtf(rp_host_dot(row, row, D) + RP_DELTA_EPSILON);
    for (size_t d = 0; d < D; d++)
        row[d] *= length;
}

/* Operands of one token and value head. */
typedef struct {
    float q[RP_TILE], k[RP_TILE], v[RP_TILE];
    float beta, decay;
} DeltaToken;

static void
load_token(const RpDeltaStepArgs *args, size_t token, size_t head, DeltaToken *of)
{
    const size_t Dk = args->key_dim, Dv = args->value_dim, H = args->value_heads;
    const size_t keys = args->key_heads * Dk, key = head / (H / args->key_heads) * Dk;
    const size_t at = token * (2 * keys + H * Dv);
    const float x = rp_host_element(args->dtype, args->a, token * H + head) +
                    rp_host_element(args->dtype, args->bias, head);

    load_row(args, at + key, Dk, 1.0f / sqrtf((float)Dk), of->q);
    load_row(args, at + keys + key, Dk, 1, of->k);
    load_row(args, at + 2 * keys + head * Dv, Dv, 0, of->v);
    of->beta = rp_host_sigmoid(rp_host_element(args->dtype, args->b, token * H + head));
    of->decay = rp_host_exp(-rp_host_exp(rp_host_element(args->dtype, args->log, head)) *
                            rp_host_softplus(x));
}

/* S = decay S + k u^T, where u = beta (v - decay S^T k); out = S^T q. @state: [Dk,Dv] */
static void
step_state(const RpDeltaStepArgs *args, const DeltaToken *of, float *state, float *out)
{
    const size_t Dk = args->key_dim, Dv = args->value_dim;
    float u[RP_TILE] = {0};

    for (size_t d = 0; d < Dk; d++)
        for (size_t e = 0; e < Dv; e++)
            u[e] += state[d * Dv + e] * of->k[d];
    for (size_t e = 0; e < Dv; e++)
        u[e] = of->beta * (of->v[e] - of->decay * u[e]);
    memset(out, 0, Dv * sizeof *out);
    for (size_t d = 0; d < Dk; d++)
        for (size_t e = 0; e < Dv; e++) {
            state[d * Dv + e] = of->decay * state[d * Dv + e] + of->k[d] * u[e];
            out[e] += state[d * Dv + e] * of->q[d];
        }
}

void
rp_host_delta_step(RpKernelStream *stream, const RpDeltaStepArgs *args)
{
    const size_t H = args->value_heads, Dv = args->value_dim, size = args->key_dim * Dv;
    DeltaToken of;
    float out[RP_TILE];

    g_assert(args->key_dim <= RP_TILE && Dv <= RP_TILE);
    for (size_t range = 0; range < args->ranges; range++)
        for (size_t head = 0; head < H; head++) {
            float *state = args->states + ((size_t)args->slots[range] * H + head) * size;

            if (args->begins)
                memset(state, 0, size * sizeof *state);
            for (size_t t = (size_t)args->firsts[range]; t < (size_t)args->ends[range]; t++) {
                load_token(args, t, head, &of);
                step_state(args, &of, state, out);
                rp_host_store(args->dtype, args->out, (t * H + head) * Dv, Dv, out);
            }
        }
}

/* ---- sampling ---- */

typedef struct {
    guint32 key;
    gint32 id;
} Candidate;

static int
compare(gconstpointer a, gconstpointer b)
{
    const Candidate *x = a, *y = b;

    if (x->key != y->key)
        return x->key > y->key ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static gint32
likeliest(const Candidate *candidates, size_t n)
{
    size_t best = 0;

    for (size_t v = 1; v < n; v++)
        if (candidates[v].key > candidates[best].key)
            best = v;
    return candidates[best].id;
}

/* @candidates: in falling order */
static gint32
draw(const RpSampleChoice *choice, const Candidate *candidates, size_t n)
{
    const guint32 largest = candidates[0].key;
    const size_t most = choice->top_k > 0 ? MIN(choice->top_k, n) : n;
    guint64 sum = 0, needed, target;
    size_t i = 0;

    for (size_t v = 0; v < most; v++)
        sum += rp_sample_weight(choice, candidates[v].key, largest);
    needed = rp_sample_needed(choice, sum);
    for (sum = 0; sum < needed; i++)
        sum += rp_sample_weight(choice, candidates[i].key, largest);
    target = rp_sample_target(choice, sum);
    for (sum = 0, i = 0;; i++) {
        sum += rp_sample_weight(choice, candidates[i].key, largest);
        if (sum > target)
            return candidates[i].id;
    }
}

void
rp_host_sample(RpKernelStream *stream, const RpSampleArgs *args)
{
    g_autofree Candidate *candidates = g_new(Candidate, args->vocabulary);

    for (size_t row = 0; row < args->rows; row++) {
        const RpSampleChoice *choice = &args->choices[row];

        for (size_t v = 0; v < args->vocabulary; v++)
            candidates[v] = (Candidate){rp_sample_key(rp_host_element(args->dtype, args->logits,
                                                                      row * args->vocabulary + v)),
                                        (gint32)v};
        if (rp_sample_is_greedy(choice)) {
            args->ids[row] = likeliest(candidates, args->vocabulary);
            continue;
        }
        qsort(candidates, args->vocabulary, sizeof *candidates, compare);
        args->ids[row] = draw(choice, candidates, args->vocabulary);
    }
}
