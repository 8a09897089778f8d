/*
 * The gated delta rule, forward and backward, in chunks: formulas and shapes in exec/kernels/delta-args.h.
 *
 * A sequence's chunks go one after the other for each value head, with its state S [Dk,Dv] in fp32:
 *
 *   forward    S = 0 |chunk 0: out| S |chunk 1: out| S ...
 *   backward   the states before each chunk first; then  ... |chunk 1| dS |chunk 0| dS = 0, last to first
 *
 * Sums over tokens of a chunk and over Dk and Dv: fp32, in the order of their index; of g and its gradient double. Heads that share a key add its
 * gradient in order. d_log and d_bias: fp32 sums over a sequence, which are added in order.
 */
#include "exec/host/host-private.h"

#define CHUNK RP_DELTA_CHUNK

/* One chunk of one value head, as floats; the matrices of its pairs of tokens are [i,j] at i CHUNK + j. */
typedef struct {
    size_t n;               /* tokens */
    float *q, *k, *v;       /* [n,Dk] normed, [n,Dk] normed, [n,Dv] */
    float *u, *x;           /* [n,Dv]: u, and k' S */
    float *pairs, *queries; /* A, P */
    float g[CHUNK], beta[CHUNK];
    double c[CHUNK]; /* differences of large sums are exact to a float's last digits */
    float q_scale[CHUNK], k_scale[CHUNK]; /* 1 / |x| */
} Chunk;

/* Gradients of it. */
typedef struct {
    float *q, *k; /* [n,Dk] */
    float *u, *x; /* [n,Dv]: of u, then of the right side; of k' S or q' S */
    float *pairs, *queries;
    float beta[CHUNK];
    double c[CHUNK];
} Gradients;

static float *
take(char **at, size_t n)
{
    float *values = (float *)(void *)*at;

    *at += rp_host_floats(n);
    return values;
}

static void
take_chunk(char **at, const RpDeltaArgs *args, Chunk *chunk)
{
    chunk->q = take(at, CHUNK * args->key_dim);
    chunk->k = take(at, CHUNK * args->key_dim);
    chunk->v = take(at, CHUNK * args->value_dim);
    chunk->u = take(at, CHUNK * args->value_dim);
    chunk->x = take(at, CHUNK * args->value_dim);
    chunk->pairs = take(at, CHUNK * CHUNK);
    chunk->queries = take(at, CHUNK * CHUNK);
}

static size_t
chunk_bytes(const RpDeltaArgs *args)
{
    return 2 * rp_host_floats(CHUNK * args->key_dim) + 3 * rp_host_floats(CHUNK * args->value_dim) +
           2 * rp_host_floats(CHUNK * CHUNK);
}

static size_t
state_floats(const RpDeltaArgs *args)
{
    return args->key_dim * args->value_dim;
}

/* exp of a difference of sums of g */
static float
decay_of(double difference)
{
    return rp_host_exp((float)difference);
}

/* @to += @factor @from */
static void
add_row(float *to, float factor, const float *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] += factor * from[i];
}

/* y[i] = sum_d x[i,d] S[d], of rows of S [D,n] */
static void
times_state(const float *x, const float *state, size_t rows, size_t D, size_t n, float *y)
{
    memset(y, 0, rows * n * sizeof *y);
    for (size_t i = 0; i < rows; i++)
        for (size_t d = 0; d < D; d++)
            add_row(y + i * n, x[i * D + d], state + d * n, n);
}

/* Rows of q, k or v; normed ones have the length @length. */
static void
load_rows(const RpDeltaArgs *args, size_t first, size_t n, size_t column, size_t D, float length,
          float *rows, float *scales)
{
    for (size_t i = 0; i < n; i++) {
        float *row = rows + i * D;
        const size_t at = (first + i) * rp_delta_columns(args) + column;

        rp_host_read(args->dtype, args->qkv, at, D, row);
        if (length == 0)
            continue;
        scales[i] = 1.0f / sqrtf(rp_host_dot(row, row, D) + RP_DELTA_EPSILON);
        for (size_t d = 0; d < D; d++)
            row[d] *= scales[i] * length;
    }
}

static float
length_of_queries(const RpDeltaArgs *args)
{
    return 1.0f / sqrtf((float)args->key_dim);
}

/* Loads @n tokens from @first on of value head @head, and makes what its state does not change. */
static void
load_chunk(const RpDeltaArgs *args, size_t head, size_t first, size_t n, Chunk *chunk)
{
    const size_t Dk = args->key_dim, Dv = args->value_dim, H = args->value_heads;
    const size_t key = head / (H / args->key_heads), keys = args->key_heads * Dk;
    const float rate = rp_host_exp(rp_host_element(args->dtype, args->log, head));
    const float bias = rp_host_element(args->dtype, args->bias, head);
    double sum = 0;

    chunk->n = n;
    load_rows(args, first, n, key * Dk, Dk, length_of_queries(args), chunk->q, chunk->q_scale);
    load_rows(args, first, n, keys + key * Dk, Dk, 1, chunk->k, chunk->k_scale);
    load_rows(args, first, n, 2 * keys + head * Dv, Dv, 0, chunk->v, NULL);
    for (size_t i = 0; i < n; i++) {
        const size_t at = (first + i) * args->gate_row + head;

        chunk->beta[i] = rp_host_sigmoid(rp_host_element(args->dtype, args->b, at));
        chunk->g[i] = -rate * rp_host_softplus(rp_host_element(args->dtype, args->a, at) + bias);
        chunk->c[i] = sum += (double)chunk->g[i];
    }
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++) {
            const float decay = decay_of(chunk->c[i] - chunk->c[j]);
            const float *k = chunk->k + j * Dk;

            chunk->queries[i * CHUNK + j] = rp_host_dot(chunk->q + i * Dk, k, Dk) * decay;
            chunk->pairs[i * CHUNK + j] =
                j < i ? chunk->beta[i] * rp_host_dot(chunk->k + i * Dk, k, Dk) * decay : 0;
        }
}

/* u, by forward substitution. */
static void
solve(const RpDeltaArgs *args, const float *state, Chunk *chunk)
{
    const size_t Dk = args->key_dim, Dv = args->value_dim;

    times_state(chunk->k, state, chunk->n, Dk, Dv, chunk->x);
    for (size_t i = 0; i < chunk->n; i++) {
        const float decay = decay_of(chunk->c[i]);
        float *u = chunk->u + i * Dv;

        for (size_t d = 0; d < Dv; d++)
            u[d] = chunk->beta[i] * (chunk->v[i * Dv + d] - decay * chunk->x[i * Dv + d]);
        for (size_t j = 0; j < i; j++)
            add_row(u, -chunk->pairs[i * CHUNK + j], chunk->u + j * Dv, Dv);
    }
}

/* The state behind the chunk. */
static void
advance(const RpDeltaArgs *args, const Chunk *chunk, float *state)
{
    const size_t Dk = args->key_dim, Dv = args->value_dim;
    const double last = chunk->c[chunk->n - 1];
    const float decay = decay_of(last);

    for (size_t i = 0; i < Dk * Dv; i++)
        state[i] *= decay;
    for (size_t i = 0; i < chunk->n; i++) {
        const float left = decay_of(last - chunk->c[i]);

        for (size_t d = 0; d < Dk; d++)
            add_row(state + d * Dv, left * chunk->k[i * Dk + d], chunk->u + i * Dv, Dv);
    }
}

static void
write_out(const RpDeltaArgs *args, size_t head, size_t first, const float *state, Chunk *chunk)
{
    const size_t Dk = args->key_dim, Dv = args->value_dim;

    times_state(chunk->q, state, chunk->n, Dk, Dv, chunk->x);
    for (size_t i = 0; i < chunk->n; i++) {
        const float decay = decay_of(chunk->c[i]);
        float *out = chunk->x + i * Dv;

        for (size_t d = 0; d < Dv; d++)
            out[d] *= decay;
        for (size_t j = 0; j <= i; j++)
            add_row(out, chunk->queries[i * CHUNK + j], chunk->u + j * Dv, Dv);
        rp_host_store(args->dtype, args->out, ((first + i) * args->value_heads + head) * Dv, Dv,
                      out);
    }
}

size_t
rp_host_delta_forward_workspace(const RpDeltaArgs *args)
{
    return rp_host_floats(state_floats(args)) + chunk_bytes(args);
}

void
rp_host_delta_forward(RpKernelStream *stream, const RpDeltaArgs *args)
{
    char *at = args->workspace;
    float *state = take(&at, state_floats(args));
    Chunk chunk;

    take_chunk(&at, args, &chunk);
    for (size_t s = 0; s < args->sequences; s++)
        for (size_t head = 0; head < args->value_heads; head++) {
            const size_t end = (size_t)args->starts[s + 1];

            memset(state, 0, state_floats(args) * sizeof *state);
            for (size_t first = (size_t)args->starts[s]; first < end; first += CHUNK) {
                load_chunk(args, head, first, MIN(CHUNK, end - first), &chunk);
                solve(args, state, &chunk);
                write_out(args, head, first, state, &chunk);
                advance(args, &chunk, state);
            }
        }
}

/* ---- backward ---- */

/* u's gradient: of out, whose gradient is @d_out, and of the next state, whose gradient is @d_state; and what the latter
 * is of k' and c. */
static void
differentiate_sums(const RpDeltaArgs *args, const Chunk *chunk, const float *state,
                   const float *d_out, const float *d_state, Gradients *d)
{
    const size_t Dk = args->key_dim, Dv = args->value_dim, n = chunk->n;
    const double last = chunk->c[n - 1];
    const float decay = decay_of(last);

    d->c[n - 1] += (double)decay * (double)rp_host_dot(state, d_state, Dk * Dv);
    times_state(chunk->k, d_state, n, Dk, Dv, d->u);
    for (size_t j = 0; j < n; j++) {
        const float left = decay_of(last - chunk->c[j]);
        const float *u = chunk->u + j * Dv;
        float *du = d->u + j * Dv;
        const float s = left * rp_host_dot(du, u, Dv);

        d->c[n - 1] += (double)s;
        d->c[j] -= (double)s;
        for (size_t e = 0; e < Dk; e++)
            d->k[j * Dk + e] += left * rp_host_dot(d_state + e * Dv, u, Dv);
        for (size_t e = 0; e < Dv; e++)
            du[e] *= left;
        for (size_t i = j; i < n; i++)
            add_row(du, chunk->queries[i * CHUNK + j], d_out + i * Dv, Dv);
    }
}

/* The gradient of the right side, in place of u's, by backward substitution; then those of v, beta and k' S. */
static void
differentiate_solution(const RpDeltaArgs *args, const Chunk *chunk, Gradients *d, float *d_v)
{
    const size_t Dv = args->value_dim, n = chunk->n;

    for (size_t i = n; i-- > 0;)
        for (size_t later = i + 1; later < n; later++)
            add_row(d->u + i * Dv, -chunk->pairs[later * CHUNK + i], d->u + later * Dv, Dv);
    for (size_t i = 0; i < n; i++) {
        const float decay = decay_of(chunk->c[i]), beta = chunk->beta[i];
        const float *r = d->u + i * Dv, *v = chunk->v + i * Dv, *x = chunk->x + i * Dv;

        d->beta[i] += rp_host_dot(r, v, Dv) - decay * rp_host_dot(r, x, Dv);
        for (size_t e = 0; e < Dv; e++) {
            d_v[i * Dv + e] = beta * r[e];
            d->x[i * Dv + e] = -beta * decay * r[e];
        }
        d->c[i] += (double)rp_host_dot(d->x + i * Dv, x, Dv);
    }
}

/* Differentiates y = x S, whose gradient is @dy: dx += dy S^T and d_state += x^T dy. */
static void
differentiate_product(const RpDeltaArgs *args, const float *x, const float *state, size_t n,
                      const float *dy, float *dx, float *d_state)
{
    const size_t Dk = args->key_dim, Dv = args->value_dim;

    for (size_t i = 0; i < n; i++)
        for (size_t e = 0; e < Dk; e++) {
            dx[i * Dk + e] += rp_host_dot(state + e * Dv, dy + i * Dv, Dv);
            add_row(d_state + e * Dv, x[i * Dk + e], dy + i * Dv, Dv);
        }
}

/* Differentiates the products of pairs of tokens. */
static void
differentiate_pairs(const RpDeltaArgs *args, const Chunk *chunk, const float *d_out, Gradients *d)
{
    const size_t Dk = args->key_dim, Dv = args->value_dim;

    for (size_t i = 0; i < chunk->n; i++)
        for (size_t j = 0; j <= i; j++) {
            const float *q = chunk->q + i * Dk, *k = chunk->k + i * Dk, *other = chunk->k + j * Dk;
            const float decay = decay_of(chunk->c[i] - chunk->c[j]);
            const float query = rp_host_dot(d_out + i * Dv, chunk->u + j * Dv, Dv);
            float change = query * chunk->queries[i * CHUNK + j];

            add_row(d->q + i * Dk, query * decay, other, Dk);
            add_row(d->k + j * Dk, query * decay, q, Dk);
            if (j < i) {
                const float pair = -rp_host_dot(d->u + i * Dv, chunk->u + j * Dv, Dv);
                const float scaled = pair * chunk->beta[i] * decay;

                change += pair * chunk->pairs[i * CHUNK + j];
                d->beta[i] += pair * decay * rp_host_dot(k, other, Dk);
                add_row(d->k + i * Dk, scaled, other, Dk);
                add_row(d->k + j * Dk, scaled, k, Dk);
            }
            d->c[i] += (double)change;
            d->c[j] -= (double)change;
        }
}

/* All of a head's chunk; @d_state: of the state behind it, then of the state before it. @next: as large as a state */
static void
differentiate_chunk(const RpDeltaArgs *args, Chunk *chunk, const float *state, float *d_out,
                    Gradients *d, float *d_v, float *d_state, float *next)
{
    const size_t Dk = args->key_dim, Dv = args->value_dim, n = chunk->n;
    const float decay = decay_of(chunk->c[n - 1]);

    memset(d->c, 0, sizeof d->c);
    memset(d->beta, 0, sizeof d->beta);
    differentiate_sums(args, chunk, state, d_out, d_state, d);
    for (size_t i = 0; i < Dk * Dv; i++)
        next[i] = decay * d_state[i];
    differentiate_solution(args, chunk, d, d_v);
    differentiate_product(args, chunk->k, state, n, d->x, d->k, next);
    differentiate_pairs(args, chunk, d_out, d);
    times_state(chunk->q, state, n, Dk, Dv, d->x);
    for (size_t i = 0; i < n; i++) {
        const float factor = decay_of(chunk->c[i]);

        for (size_t e = 0; e < Dv; e++)
            d_out[i * Dv + e] *= factor;
        d->c[i] += (double)rp_host_dot(d_out + i * Dv, d->x + i * Dv, Dv);
    }
    differentiate_product(args, chunk->q, state, n, d_out, d->q, next);
    memcpy(d_state, next, Dk * Dv * sizeof *d_state);
}

/* Writes the gradients of b and a, and adds to the sums of log and bias. */
static void
write_gates(const RpDeltaArgs *args, size_t head, size_t first, const Chunk *chunk,
            const Gradients *d, float sums[2])
{
    const float rate = rp_host_exp(rp_host_element(args->dtype, args->log, head));
    const float bias = rp_host_element(args->dtype, args->bias, head);
    double sum = 0;

    for (size_t i = chunk->n; i-- > 0;) {
        const size_t at = (first + i) * args->gate_row + head;
        const float beta = chunk->beta[i];
        const float db = d->beta[i] * beta * (1 - beta);

        sum += d->c[i];
        const float da =
            -(float)sum * rate * rp_host_sigmoid(rp_host_element(args->dtype, args->a, at) + bias);

        sums[0] += (float)sum * chunk->g[i];
        sums[1] += da;
        rp_host_store(args->dtype, args->d_b, at, 1, &db);
        rp_host_store(args->dtype, args->d_a, at, 1, &da);
    }
}

/* x' = x scale length: the gradient of x, in place of that of x' [n,D]. */
static void
write_normed(const RpDeltaArgs *args, size_t first, size_t n, size_t column, float length,
             const float *normed, const float *scales, float *d)
{
    const size_t D = args->key_dim;

    for (size_t i = 0; i < n; i++) {
        float *row = d + i * D;
        const float *x = normed + i * D;
        const float along = rp_host_dot(x, row, D) / (length * length);

        for (size_t e = 0; e < D; e++)
            row[e] = scales[i] * length * (row[e] - x[e] * along);
        rp_host_store(args->dtype, args->d_qkv, (first + i) * rp_delta_columns(args) + column, D,
                      row);
    }
}

/* Memory of the backward: states before each chunk of a sequence, gradients of its q and k, those of a chunk, and of the
 * state. */
typedef struct {
    float *states, *q, *k, *d_out, *d_v, *d_state, *next;
    Gradients d;
    Chunk chunk;
} Backward;

static size_t
padded(const RpDeltaArgs *args)
{
    return (args->max_length + CHUNK - 1) / CHUNK * CHUNK;
}

size_t
rp_host_delta_backward_workspace(const RpDeltaArgs *args)
{
    return rp_host_floats(padded(args) / CHUNK * state_floats(args)) +
           2 * rp_host_floats(padded(args) * args->key_dim) +
           4 * rp_host_floats(CHUNK * args->value_dim) + 2 * rp_host_floats(state_floats(args)) +
           chunk_bytes(args);
}

static Backward
take_backward(const RpDeltaArgs *args)
{
    char *at = args->workspace;
    Backward of = {.states = take(&at, padded(args) / CHUNK * state_floats(args)),
                   .q = take(&at, padded(args) * args->key_dim),
                   .k = take(&at, padded(args) * args->key_dim),
                   .d_out = take(&at, CHUNK * args->value_dim),
                   .d_v = take(&at, CHUNK * args->value_dim),
                   .d_state = take(&at, state_floats(args)),
                   .next = take(&at, state_floats(args))};

    of.d.u = take(&at, CHUNK * args->value_dim);
    of.d.x = take(&at, CHUNK * args->value_dim);
    take_chunk(&at, args, &of.chunk);
    return of;
}

/* One value head of a sequence; += the gradients of its key head. */
static void
backward_head(const RpDeltaArgs *args, Backward *of, size_t head, size_t begin, size_t end)
{
    const size_t Dk = args->key_dim, Dv = args->value_dim, size = state_floats(args);
    const size_t n_chunks = (end - begin + CHUNK - 1) / CHUNK;
    const size_t values = 2 * args->key_heads * Dk + head * Dv;
    float sums[2] = {0, 0};

    memset(of->states, 0, size * sizeof *of->states);
    for (size_t c = 0; c + 1 < n_chunks; c++) {
        float *state = of->states + (c + 1) * size;

        load_chunk(args, head, begin + c * CHUNK, CHUNK, &of->chunk);
        solve(args, state - size, &of->chunk);
        memcpy(state, state - size, size * sizeof *state);
        advance(args, &of->chunk, state);
    }
    memset(of->d_state, 0, size * sizeof *of->d_state);
    for (size_t c = n_chunks; c-- > 0;) {
        const size_t first = begin + c * CHUNK, n = MIN(CHUNK, end - first);
        const float *state = of->states + c * size;

        load_chunk(args, head, first, n, &of->chunk);
        solve(args, state, &of->chunk);
        for (size_t i = 0; i < n; i++)
            rp_host_read(args->dtype, args->d_out, ((first + i) * args->value_heads + head) * Dv,
                         Dv, of->d_out + i * Dv);
        of->d.q = of->q + c * CHUNK * Dk;
        of->d.k = of->k + c * CHUNK * Dk;
        differentiate_chunk(args, &of->chunk, state, of->d_out, &of->d, of->d_v, of->d_state,
                            of->next);
        write_gates(args, head, first, &of->chunk, &of->d, sums);
        for (size_t i = 0; i < n; i++)
            rp_host_store(args->dtype, args->d_qkv, (first + i) * rp_delta_columns(args) + values,
                          Dv, of->d_v + i * Dv);
    }
    if (args->d_log != NULL)
        args->d_log[head] += sums[0];
    if (args->d_bias != NULL)
        args->d_bias[head] += sums[1];
}

/* Writes the gradients of q and k, once all value heads that have them have added theirs. */
static void
write_key_head(const RpDeltaArgs *args, Backward *of, size_t key, size_t begin, size_t end)
{
    const size_t Dk = args->key_dim, keys = args->key_heads * Dk;
    Chunk *chunk = &of->chunk;

    for (size_t first = begin; first < end; first += CHUNK) {
        const size_t n = MIN(CHUNK, end - first), at = (first - begin) * Dk;
        const float length = length_of_queries(args);

        load_rows(args, first, n, key * Dk, Dk, length, chunk->q, chunk->q_scale);
        load_rows(args, first, n, keys + key * Dk, Dk, 1, chunk->k, chunk->k_scale);
        write_normed(args, first, n, key * Dk, length, chunk->q, chunk->q_scale, of->q + at);
        write_normed(args, first, n, keys + key * Dk, 1, chunk->k, chunk->k_scale, of->k + at);
    }
}

void
rp_host_delta_backward(RpKernelStream *stream, const RpDeltaArgs *args)
{
    const size_t group = args->value_heads / args->key_heads;
    Backward of = take_backward(args);

    for (size_t s = 0; s < args->sequences; s++)
        for (size_t key = 0; key < args->key_heads; key++) {
            const size_t begin = (size_t)args->starts[s], end = (size_t)args->starts[s + 1];

            memset(of.q, 0, (end - begin) * args->key_dim * sizeof *of.q);
            memset(of.k, 0, (end - begin) * args->key_dim * sizeof *of.k);
            for (size_t head = key * group; head < (key + 1) * group; head++)
                backward_head(args, &of, head, begin, end);
            write_key_head(args, &of, key, begin, end);
        }
}
