/*
 * Causal attention with grouped heads, packed sequences and an optional sliding window, in blocks
 * of RP_BLOCK queries x RP_BLOCK keys that start with each sequence:
 *
 *              keys ->            S = scale q k^T           out = P v, P = exp(S - lse)           =
 *   queries   | \ |   |   |       D = d_out . out  (row)    Z = scale P (d_out v^T - D)
 *      |      |###| \ |   |       dq = Z k                  dk = Z^T q, dv = P^T d_out            =
 *      v      |###|###| \ |
 *
 * q, out: [T,heads,D]; k, v: [T,kv_heads,D]; lse: [heads,T]. Forward keeps a running maximum and
 * sum per query (FlashAttention-2, algorithm 1). Backward adds up dq over key blocks in a block's
 * buffer, dk and dv over the heads of a group, then query blocks, in a sequence's buffer: fp32,
 * always in ascending order. Blocks are multiplied by OpenBLAS. Queries behind a gap begin a block, and its borders end
 * blocks of keys, so that a row sees columns of a block without a hole.
 */
#include "exec/host/host-private.h"

#include <limits.h>

#include "exec/host/blas.h"

#define RP_BLOCK 64

/* Rows of one head of an array, as sgemm takes them. */
typedef struct {
    const float *data;
    size_t stride;
} Rows;

/* One head of one sequence, and a block of queries and one of keys in it; tokens count from the
 * sequence's first. */
typedef struct {
    const RpAttentionArgs *args;
    size_t start, length; /* the sequence's first token, and its tokens */
    size_t gap, gap_end;  /* keys that no query from @gap_end on sees; both 0: none */
    size_t head, kv_head;
    size_t query, queries; /* first and number */
    size_t key, keys;
} Place;

static Rows
load_rows(const RpAttentionArgs *args, const void *array, size_t token, size_t n, size_t heads,
          size_t head, float *buffer)
{
    const size_t D = args->head_size;

    if (args->dtype == RP_DTYPE_FP32)
        return (Rows){(const float *)array + (token * heads + head) * D, heads * D};
    for (size_t r = 0; r < n; r++)
        rp_dtype_to_float(args->dtype,
                          rp_host_at(args->dtype, array, ((token + r) * heads + head) * D),
                          buffer + r * D, D);
    return (Rows){buffer, D};
}

static Rows
load_queries(const Place *place, const void *array, float *buffer)
{
    return load_rows(place->args, array, place->start + place->query, place->queries,
                     place->args->heads, place->head, buffer);
}

static Rows
load_keys(const Place *place, const void *array, float *buffer)
{
    return load_rows(place->args, array, place->start + place->key, place->keys,
                     place->args->kv_heads, place->kv_head, buffer);
}

/* From a token of v to the next, of dq, dk or dv; @heads: where there are no gaps. */
static size_t
row_heads(const RpAttentionArgs *args, size_t heads)
{
    return args->row_heads > 0 ? args->row_heads : heads;
}

static Rows
load_values(const Place *place, float *buffer)
{
    return load_rows(place->args, place->args->v, place->start + place->key, place->keys,
                     row_heads(place->args, place->args->kv_heads), place->kv_head, buffer);
}

static void
store_rows(const RpAttentionArgs *args, void *array, size_t token, size_t n, size_t heads,
           size_t head, const float *values)
{
    const size_t D = args->head_size;

    for (size_t r = 0; r < n; r++)
        rp_host_store(args->dtype, array, ((token + r) * heads + head) * D, D, values + r * D);
}

/* c[m,n] = or += alpha op(a) op(b) */
static void
multiply(RpMatmulLayout form, size_t m, size_t n, size_t k, float alpha, Rows a, Rows b, float beta,
         float *c, size_t stride)
{
    const RpBlas *blas = rp_host_blas();

    g_assert(blas != NULL);
    blas->sgemm(CblasRowMajor, form == RP_MATMUL_TN ? CblasTrans : CblasNoTrans,
                form == RP_MATMUL_NT ? CblasTrans : CblasNoTrans, (blasint)m, (blasint)n,
                (blasint)k, alpha, a.data, (blasint)a.stride, b.data, (blasint)b.stride, beta, c,
                (blasint)stride);
}

/* The first key block that a query block needs. */
static size_t
first_key(const RpAttentionArgs *args, size_t query)
{
    if (args->window == 0 || query + 1 <= args->window)
        return 0;
    return (query + 1 - args->window) / RP_BLOCK * RP_BLOCK;
}

/* Finds the block of queries from place->query on. Returns: whether there is one */
static gboolean
find_queries(Place *place)
{
    const size_t end = place->query < place->gap_end ? place->gap_end : place->length;

    place->queries = MIN(RP_BLOCK, end - place->query);
    return place->queries > 0;
}

/* Finds the block of keys from place->key on. Returns: whether there is one that a query of the block sees */
static gboolean
find_keys(Place *place)
{
    const gboolean behind = place->query >= place->gap_end;
    const size_t past = place->query + place->queries;

    if (behind && place->key == place->gap)
        place->key = MAX(place->key, place->gap_end);
    place->keys =
        MIN(RP_BLOCK, (behind && place->key < place->gap ? place->gap : past) - place->key);
    return place->keys > 0;
}

/* Finds the columns of the block that row @row sees: [*begin, *end), *begin <= *end. */
static void
visible(const Place *place, size_t row, size_t *begin, size_t *end)
{
    const size_t past = place->query + row + 1; /* the key after the last that it sees */
    const size_t window = place->args->window;
    const size_t first = window > 0 && past > window ? past - window : 0;

    *end = past > place->key ? MIN(past - place->key, place->keys) : 0;
    *begin = first > place->key ? MIN(first - place->key, *end) : 0;
}

/* Does @work for every kv head of every sequence. */
static void
for_each_kv_head(const RpAttentionArgs *args, void (*work)(Place *place, void *workspace))
{
    g_assert(args->head_size * args->heads <= INT_MAX && args->heads % args->kv_heads == 0);
    for (size_t s = 0; s < args->sequences; s++) {
        const size_t start = (size_t)args->starts[s];
        Place place = {.args = args, .start = start};

        place.length = (size_t)args->starts[s + 1] - start;
        if (args->gaps != NULL) {
            place.gap = (size_t)args->gaps[2 * s];
            place.gap_end = (size_t)args->gaps[2 * s + 1];
        }
        g_assert(place.length <= args->max_length);
        for (place.kv_head = 0; place.kv_head < args->kv_heads; place.kv_head++)
            work(&place, args->workspace);
    }
}

typedef struct {
    float *q, *k, *v; /* [RP_BLOCK,D], for storages other than fp32 */
    float *out;       /* [RP_BLOCK,D] */
    float *scores;    /* [RP_BLOCK,RP_BLOCK] */
    float *maximum;   /* [RP_BLOCK] */
    float *sum;       /* [RP_BLOCK] */
} Forward;

size_t
rp_host_attention_forward_workspace(const RpAttentionArgs *args)
{
    return 4 * rp_host_floats(RP_BLOCK * args->head_size) + rp_host_floats(RP_BLOCK * RP_BLOCK) +
           2 * rp_host_floats(RP_BLOCK);
}

static Forward
lay_out_forward(const RpAttentionArgs *args, void *workspace)
{
    Forward f;

    f.q = rp_host_take(&workspace, RP_BLOCK * args->head_size);
    f.k = rp_host_take(&workspace, RP_BLOCK * args->head_size);
    f.v = rp_host_take(&workspace, RP_BLOCK * args->head_size);
    f.out = rp_host_take(&workspace, RP_BLOCK * args->head_size);
    f.scores = rp_host_take(&workspace, RP_BLOCK * RP_BLOCK);
    f.maximum = rp_host_take(&workspace, RP_BLOCK);
    f.sum = rp_host_take(&workspace, RP_BLOCK);
    return f;
}

/* Scores become exp(score - maximum), unseen ones 0; sums and outputs follow the maximum. */
static void
soften(const Place *place, const Forward *f)
{
    const size_t D = place->args->head_size;

    for (size_t row = 0; row < place->queries; row++) {
        float *scores = f->scores + row * place->keys;
        float *out = f->out + row * D;
        size_t begin, end;
        float maximum, shrink;

        visible(place, row, &begin, &end);
        memset(scores, 0, begin * sizeof *scores);
        memset(scores + end, 0, (place->keys - end) * sizeof *scores);
        if (begin == end)
            continue;
        maximum = rp_host_max(scores + begin, end - begin, f->maximum[row]);
        for (size_t j = begin; j < end; j++)
            scores[j] = rp_host_exp(scores[j] - maximum);
        shrink = rp_host_exp(f->maximum[row] - maximum);
        f->sum[row] = f->sum[row] * shrink + rp_host_sum(scores + begin, end - begin);
        f->maximum[row] = maximum;
        for (size_t d = 0; d < D; d++)
            out[d] *= shrink;
    }
}

static void
forward_queries(Place *place, const Forward *f)
{
    const RpAttentionArgs *args = place->args;
    const size_t D = args->head_size;
    const Rows q = load_queries(place, args->q, f->q);

    memset(f->out, 0, place->queries * D * sizeof *f->out);
    for (size_t row = 0; row < place->queries; row++) {
        f->maximum[row] = -INFINITY;
        f->sum[row] = 0;
    }
    for (place->key = first_key(args, place->query); find_keys(place); place->key += place->keys) {
        const Rows k = load_keys(place, args->k, f->k);
        const Rows v = load_values(place, f->v);
        const Rows scores = {f->scores, place->keys};

        multiply(RP_MATMUL_NT, place->queries, place->keys, D, args->scale, q, k, 0.0f, f->scores,
                 place->keys);
        soften(place, f);
        multiply(RP_MATMUL_NN, place->queries, D, place->keys, 1.0f, scores, v, 1.0f, f->out, D);
    }
    for (size_t row = 0; row < place->queries; row++) {
        const float inverse = 1.0f / f->sum[row];

        for (size_t d = 0; d < D; d++)
            f->out[row * D + d] *= inverse;
        args->lse[place->head * args->tokens + place->start + place->query + row] =
            f->maximum[row] + logf(f->sum[row]);
    }
    store_rows(args, args->out, place->start + place->query, place->queries, args->heads,
               place->head, f->out);
}

static void
forward_kv_head(Place *place, void *workspace)
{
    const RpAttentionArgs *args = place->args;
    const size_t group = args->heads / args->kv_heads;
    const Forward f = lay_out_forward(args, workspace);

    for (size_t g = 0; g < group; g++) {
        place->head = place->kv_head * group + g;
        for (place->query = 0; find_queries(place); place->query += place->queries)
            forward_queries(place, &f);
    }
}

void
rp_host_attention_forward(RpKernelStream *stream, const RpAttentionArgs *args)
{
    for_each_kv_head(args, forward_kv_head);
}

typedef struct {
    float *q, *k, *v;        /* [RP_BLOCK,D], for storages other than fp32 */
    float *out, *d_out;      /* the same */
    float *dq;               /* [RP_BLOCK,D] */
    float *scores, *dscores; /* [RP_BLOCK,RP_BLOCK]: P and Z */
    float *delta;            /* [RP_BLOCK] */
    float *dk, *dv;          /* [max_length,D] */
} Backward;

size_t
rp_host_attention_backward_workspace(const RpAttentionArgs *args)
{
    return 6 * rp_host_floats(RP_BLOCK * args->head_size) +
           2 * rp_host_floats(RP_BLOCK * RP_BLOCK) + rp_host_floats(RP_BLOCK) +
           2 * rp_host_floats(args->max_length * args->head_size);
}

static Backward
lay_out_backward(const RpAttentionArgs *args, void *workspace)
{
    Backward b;

    b.q = rp_host_take(&workspace, RP_BLOCK * args->head_size);
    b.k = rp_host_take(&workspace, RP_BLOCK * args->head_size);
    b.v = rp_host_take(&workspace, RP_BLOCK * args->head_size);
    b.out = rp_host_take(&workspace, RP_BLOCK * args->head_size);
    b.d_out = rp_host_take(&workspace, RP_BLOCK * args->head_size);
    b.dq = rp_host_take(&workspace, RP_BLOCK * args->head_size);
    b.scores = rp_host_take(&workspace, RP_BLOCK * RP_BLOCK);
    b.dscores = rp_host_take(&workspace, RP_BLOCK * RP_BLOCK);
    b.delta = rp_host_take(&workspace, RP_BLOCK);
    b.dk = rp_host_take(&workspace, args->max_length * args->head_size);
    b.dv = rp_host_take(&workspace, args->max_length * args->head_size);
    return b;
}

/* Computes P and Z from S and d_out v^T. */
static void
differentiate(const Place *place, const Backward *b)
{
    const RpAttentionArgs *args = place->args;
    const float *lse = args->lse + place->head * args->tokens + place->start + place->query;

    for (size_t row = 0; row < place->queries; row++) {
        float *p = b->scores + row * place->keys;
        float *z = b->dscores + row * place->keys;
        const float delta = b->delta[row];
        size_t begin, end;

        visible(place, row, &begin, &end);
        memset(p, 0, begin * sizeof *p);
        memset(z, 0, begin * sizeof *z);
        memset(p + end, 0, (place->keys - end) * sizeof *p);
        memset(z + end, 0, (place->keys - end) * sizeof *z);
        for (size_t j = begin; j < end; j++) {
            p[j] = rp_host_exp(p[j] - lse[row]);
            z[j] = args->scale * p[j] * (z[j] - delta);
        }
    }
}

static void
backward_block(const Place *place, const Backward *b, Rows q, Rows d_out)
{
    const RpAttentionArgs *args = place->args;
    const size_t D = args->head_size;
    const size_t n = place->queries;
    const Rows k = load_keys(place, args->k, b->k);
    const Rows v = load_values(place, b->v);
    const Rows p = {b->scores, place->keys};
    const Rows z = {b->dscores, place->keys};

    multiply(RP_MATMUL_NT, n, place->keys, D, args->scale, q, k, 0.0f, b->scores, place->keys);
    multiply(RP_MATMUL_NT, n, place->keys, D, 1.0f, d_out, v, 0.0f, b->dscores, place->keys);
    differentiate(place, b);
    multiply(RP_MATMUL_NN, n, D, place->keys, 1.0f, z, k, 1.0f, b->dq, D);
    multiply(RP_MATMUL_TN, place->keys, D, n, 1.0f, z, q, 1.0f, b->dk + place->key * D, D);
    multiply(RP_MATMUL_TN, place->keys, D, n, 1.0f, p, d_out, 1.0f, b->dv + place->key * D, D);
}

static void
backward_queries(Place *place, const Backward *b)
{
    const RpAttentionArgs *args = place->args;
    const size_t D = args->head_size;
    const Rows q = load_queries(place, args->q, b->q);
    const Rows out = load_queries(place, args->out, b->out);
    const Rows d_out = load_queries(place, args->d_out, b->d_out);

    for (size_t row = 0; row < place->queries; row++)
        b->delta[row] =
            rp_host_dot(d_out.data + row * d_out.stride, out.data + row * out.stride, D);
    memset(b->dq, 0, place->queries * D * sizeof *b->dq);
    for (place->key = first_key(args, place->query); find_keys(place); place->key += place->keys)
        backward_block(place, b, q, d_out);
    store_rows(args, args->dq, place->start + place->query, place->queries,
               row_heads(args, args->heads), place->head, b->dq);
}

static void
backward_kv_head(Place *place, void *workspace)
{
    const RpAttentionArgs *args = place->args;
    const size_t group = args->heads / args->kv_heads;
    const size_t values = place->length * args->head_size;
    const Backward b = lay_out_backward(args, workspace);

    memset(b.dk, 0, values * sizeof *b.dk);
    memset(b.dv, 0, values * sizeof *b.dv);
    for (size_t g = 0; g < group; g++) {
        place->head = place->kv_head * group + g;
        for (place->query = 0; find_queries(place); place->query += place->queries)
            backward_queries(place, &b);
    }
    const size_t row = row_heads(args, args->kv_heads);

    store_rows(args, args->dk, place->start, place->length, row, place->kv_head, b.dk);
    store_rows(args, args->dv, place->start, place->length, row, place->kv_head, b.dv);
}

void
rp_host_attention_backward(RpKernelStream *stream, const RpAttentionArgs *args)
{
    for_each_kv_head(args, backward_kv_head);
}

/* ---- sinks ---- */

static float
sink_of(const RpSinkArgs *args, size_t head)
{
    float buffer;

    return *rp_host_load(args->dtype, args->sinks, head, 1, &buffer);
}

/* Returns: the share of the row that attention keeps. */
static float
join_sink(float sink, float *lse)
{
    const float before = *lse;
    /* the lesser of the two, as a share of the other */
    const float lesser = rp_host_exp(-fabsf(sink - before));

    *lse = MAX(sink, before) + logf(1.0f + lesser);
    return (sink > before ? lesser : 1.0f) / (1.0f + lesser);
}

void
rp_host_sink_forward(RpKernelStream *stream, const RpSinkArgs *args)
{
    float buffer[RP_TILE];

    for (size_t head = 0; head < args->heads; head++) {
        const float sink = sink_of(args, head);

        for (size_t t = 0; t < args->tokens; t++) {
            const float left = join_sink(sink, &args->lse[head * args->tokens + t]);
            const size_t row = (t * args->heads + head) * args->head_size;

            for (size_t first = 0; first < args->head_size; first += RP_TILE) {
                const size_t n = MIN(RP_TILE, args->head_size - first);
                const float *out = rp_host_load(args->dtype, args->out, row + first, n, buffer);

                for (size_t i = 0; i < n; i++)
                    buffer[i] = left * out[i];
                rp_host_store(args->dtype, args->out, row + first, n, buffer);
            }
        }
    }
}

size_t
rp_host_sink_backward_workspace(const RpSinkArgs *args)
{
    return 0;
}

/* d_out . out of a row */
static float
dot_of_row(const RpSinkArgs *args, size_t row)
{
    float out_buffer[RP_TILE], d_out_buffer[RP_TILE], sum = 0;

    for (size_t first = 0; first < args->head_size; first += RP_TILE) {
        const size_t n = MIN(RP_TILE, args->head_size - first);

        sum += rp_host_dot(rp_host_load(args->dtype, args->out, row + first, n, out_buffer),
                           rp_host_load(args->dtype, args->d_out, row + first, n, d_out_buffer), n);
    }
    return sum;
}

void
rp_host_sink_backward(RpKernelStream *stream, const RpSinkArgs *args)
{
    for (size_t head = 0; head < args->heads; head++) {
        const float sink = sink_of(args, head);
        double sum = 0;

        for (size_t t = 0; t < args->tokens; t++)
            sum += (double)(rp_host_exp(sink - args->lse[head * args->tokens + t]) *
                            dot_of_row(args, (t * args->heads + head) * args->head_size));
        args->d_sinks[head] -= (float)sum;
    }
}
