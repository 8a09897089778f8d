#include "tests/exec-host/delta-recurrence.h"

#include <math.h>

#define MOST_DIM 128
#define SEGMENT ((size_t)128) /* tokens whose states are kept at a time */

DeltaCase
delta_case(RpDtype dtype, const DeltaSizes *z, const gint32 *starts, size_t sequences)
{
    const size_t T = (size_t)starts[sequences], H = z->value_heads;
    const size_t n = 2 * z->key_heads * z->key_dim + H * z->value_dim;
    size_t longest = 0;

    for (size_t s = 0; s < sequences; s++)
        longest = MAX(longest, (size_t)(starts[s + 1] - starts[s]));
    DeltaCase c = {.qkv = host_random(dtype, T * n, 1),
                   .b = host_random(dtype, T * H, 2),
                   .a = host_random(dtype, T * H, 2),
                   .log = host_random(dtype, H, 2),
                   .bias = host_random(dtype, H, 1),
                   .d_out = host_random(dtype, T * H * z->value_dim, 1),
                   .out = host_output(dtype, T * H * z->value_dim),
                   .d_qkv = host_output(dtype, T * n),
                   .d_b = host_output(dtype, T * H),
                   .d_a = host_output(dtype, T * H),
                   .d_log = host_random(RP_DTYPE_FP32, H, 1),
                   .d_bias = host_random(RP_DTYPE_FP32, H, 1),
                   .want_out = host_doubles(T * H * z->value_dim),
                   .want_qkv = host_doubles(T * n),
                   .want_b = host_doubles(T * H),
                   .want_a = host_doubles(T * H),
                   .want_log = host_doubles(H),
                   .want_bias = host_doubles(H)};

    c.args = (RpDeltaArgs){.dtype = dtype,
                           .tokens = T,
                           .sequences = sequences,
                           .max_length = longest,
                           .key_heads = z->key_heads,
                           .value_heads = H,
                           .gate_row = H,
                           .key_dim = z->key_dim,
                           .value_dim = z->value_dim,
                           .starts = starts,
                           .qkv = c.qkv.data,
                           .b = c.b.data,
                           .a = c.a.data,
                           .log = c.log.data,
                           .bias = c.bias.data,
                           .out = c.out.data,
                           .d_out = c.d_out.data,
                           .d_qkv = c.d_qkv.data,
                           .d_b = c.d_b.data,
                           .d_a = c.d_a.data,
                           .d_log = c.d_log.data,
                           .d_bias = c.d_bias.data};
    memcpy(c.want_log, c.d_log.values, H * sizeof(double));
    memcpy(c.want_bias, c.d_bias.values, H * sizeof(double));
    memset(c.want_qkv, 0, T * n * sizeof(double));
    return c;
}

double
delta_dot(const double *x, const double *y, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

/* y = x / |x| scale; Returns: 1 / |x| */
static double
normed(const double *x, size_t n, double scale, double *y)
{
    const double r = 1 / sqrt(delta_dot(x, x, n) + 1e-6);

    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * r * scale;
    return r;
}

/* += the gradient of x, of y = normed(x). */
static void
add_normed(const double *y, double r, double scale, const double *dy, size_t n, double *dx)
{
    const double along = delta_dot(y, dy, n) / (scale * scale);

    for (size_t i = 0; i < n; i++)
        dx[i] += r * scale * (dy[i] - y[i] * along);
}

/* The numbers of one token. */
typedef struct {
    double q[MOST_DIM], k[MOST_DIM], u[MOST_DIM], e[MOST_DIM]; /* e = v - S'^T k */
    double q_r, k_r, beta, g;
    const double *v;
    size_t column[3]; /* of q, k and v, from the token's first */
} Token;

static Token
token_of(const DeltaCase *c, size_t t, size_t head)
{
    const RpDeltaArgs *z = &c->args;
    const size_t n = rp_delta_columns(z), key = head / (z->value_heads / z->key_heads);
    const size_t keys = z->key_heads * z->key_dim, at = t * z->value_heads + head;
    Token token = {.column = {t * n + key * z->key_dim, t * n + keys + key * z->key_dim,
                              t * n + 2 * keys + head * z->value_dim}};

    token.q_r =
        normed(c->qkv.values + token.column[0], z->key_dim, 1 / sqrt((double)z->key_dim), token.q);
    token.k_r = normed(c->qkv.values + token.column[1], z->key_dim, 1, token.k);
    token.v = c->qkv.values + token.column[2];
    token.beta = 1 / (1 + exp(-c->b.values[at]));
    token.g = -exp(c->log.values[head]) * log1p(exp(c->a.values[at] + c->bias.values[head]));
    return token;
}

/* @state: before the token; becomes that behind it. */
static void
step(const RpDeltaArgs *z, Token *token, double *state, double *out)
{
    const double kept = exp(token->g);

    memcpy(token->e, token->v, z->value_dim * sizeof *out);
    memset(out, 0, z->value_dim * sizeof *out);
    for (size_t i = 0; i < z->key_dim; i++)
        for (size_t j = 0; j < z->value_dim; j++) {
            state[i * z->value_dim + j] *= kept;
            token->e[j] -= state[i * z->value_dim + j] * token->k[i];
        }
    for (size_t j = 0; j < z->value_dim; j++)
        token->u[j] = token->beta * token->e[j];
    for (size_t i = 0; i < z->key_dim; i++)
        for (size_t j = 0; j < z->value_dim; j++) {
            state[i * z->value_dim + j] += token->k[i] * token->u[j];
            out[j] += state[i * z->value_dim + j] * token->q[i];
        }
}

/* @d: gradient of the state behind the token, without out's part; becomes that of the state before it, @before. */
static void
step_back(const DeltaCase *c, size_t t, size_t head, const double *before, const double *after,
          double *d)
{
    const RpDeltaArgs *z = &c->args;
    const size_t Dk = z->key_dim, Dv = z->value_dim, at = t * z->value_heads + head;
    const double *d_out = c->d_out.values + at * Dv;
    double dq[MOST_DIM] = {0}, dk[MOST_DIM] = {0}, du[MOST_DIM] = {0}, out[MOST_DIM];
    double decayed[MOST_DIM * MOST_DIM], dg = 0, d_beta = 0;
    Token token = token_of(c, t, head);
    const double keeps = exp(token.g);

    memcpy(decayed, before, Dk * Dv * sizeof *decayed);
    step(z, &token, decayed, out); /* for u and e */
    for (size_t i = 0; i < Dk; i++)
        for (size_t j = 0; j < Dv; j++) {
            dq[i] += after[i * Dv + j] * d_out[j];
            d[i * Dv + j] += token.q[i] * d_out[j];
            du[j] += d[i * Dv + j] * token.k[i];
            dk[i] += d[i * Dv + j] * token.u[j];
        }
    for (size_t j = 0; j < Dv; j++) {
        c->want_qkv[token.column[2] + j] = token.beta * du[j];
        d_beta += du[j] * token.e[j];
    }
    for (size_t i = 0; i < Dk; i++)
        for (size_t j = 0; j < Dv; j++) {
            const double kept = keeps * before[i * Dv + j];

            dk[i] -= kept * token.beta * du[j];
            d[i * Dv + j] -= token.k[i] * token.beta * du[j];
            dg += d[i * Dv + j] * kept;
            d[i * Dv + j] *= keeps;
        }
    add_normed(token.q, token.q_r, 1 / sqrt((double)Dk), dq, Dk, c->want_qkv + token.column[0]);
    add_normed(token.k, token.k_r, 1, dk, Dk, c->want_qkv + token.column[1]);
    const double x = c->a.values[at] + c->bias.values[head];
    const double da = -dg * exp(c->log.values[head]) / (1 + exp(-x));

    c->want_b[at] = d_beta * token.beta * (1 - token.beta);
    c->want_a[at] = da;
    c->want_bias[head] += da;
    c->want_log[head] += dg * token.g;
}

/* Tokens from @begin on, @n at most SEGMENT: states[t + 1] from states[t]. */
static void
run_segment(const DeltaCase *c, size_t begin, size_t n, size_t head, double *states)
{
    const RpDeltaArgs *z = &c->args;
    const size_t size = z->key_dim * z->value_dim;

    for (size_t t = 0; t < n; t++) {
        Token token = token_of(c, begin + t, head);

        memcpy(states + (t + 1) * size, states + t * size, size * sizeof *states);
        step(z, &token, states + (t + 1) * size,
             c->want_out + ((begin + t) * z->value_heads + head) * z->value_dim);
    }
}

static void
want_head(const DeltaCase *c, size_t begin, size_t n, size_t head)
{
    const size_t size = c->args.key_dim * c->args.value_dim, segments = (n + SEGMENT - 1) / SEGMENT;
    g_autofree double *starts = g_new0(double, (segments + 1) * size);
    g_autofree double *states = g_new(double, (SEGMENT + 1) * size);
    g_autofree double *d = g_new0(double, size);

    for (size_t s = 0; s < segments; s++) {
        const size_t length = MIN(SEGMENT, n - s * SEGMENT);

        memcpy(states, starts + s * size, size * sizeof *states);
        run_segment(c, begin + s * SEGMENT, length, head, states);
        memcpy(starts + (s + 1) * size, states + length * size, size * sizeof *states);
    }
    for (size_t s = segments; s-- > 0;) {
        const size_t first = begin + s * SEGMENT, length = MIN(SEGMENT, n - s * SEGMENT);

        memcpy(states, starts + s * size, size * sizeof *states);
        run_segment(c, first, length, head, states);
        for (size_t t = length; t-- > 0;)
            step_back(c, first + t, head, states + t * size, states + (t + 1) * size, d);
    }
}

void
delta_want(const DeltaCase *c)
{
    const RpDeltaArgs *z = &c->args;

    g_assert(z->key_dim <= MOST_DIM && z->value_dim <= MOST_DIM);
    for (size_t s = 0; s < z->sequences; s++)
        for (size_t head = 0; head < z->value_heads; head++)
            want_head(c, (size_t)z->starts[s], (size_t)(z->starts[s + 1] - z->starts[s]), head);
}
