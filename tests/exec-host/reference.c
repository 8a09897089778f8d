#include "tests/exec-host/reference.h"

#include <math.h>
#include <string.h>

void
reference_matmul(RpMatmulLayout form, size_t m, size_t n, size_t k, const double *a,
                 const double *b, double *c, gboolean accumulate)
{
    for (size_t i = 0; i < m; i++) {
        for (size_t j = 0; j < n; j++) {
            double sum = 0;

            for (size_t l = 0; l < k; l++) {
                const double left = form == RP_MATMUL_TN ? a[l * m + i] : a[i * k + l];
                const double right = form == RP_MATMUL_NT ? b[j * k + l] : b[l * n + j];

                sum += left * right;
            }
            c[i * n + j] = accumulate ? c[i * n + j] + sum : sum;
        }
    }
}

static double
root_mean_square(size_t n, double epsilon, const double *s)
{
    double squares = 0;

    for (size_t i = 0; i < n; i++)
        squares += s[i] * s[i];
    return sqrt(squares / (double)n + epsilon);
}

void
reference_rmsnorm(size_t rows, size_t n, double epsilon, const double *s, const double *weight,
                  double *y)
{
    for (size_t r = 0; r < rows; r++) {
        const double rms = root_mean_square(n, epsilon, s + r * n);

        for (size_t i = 0; i < n; i++)
            y[r * n + i] = weight[i] * s[r * n + i] / rms;
    }
}

/* d y[i] / d s[j] = weight[i] ([i = j] / rms - s[i] s[j] / (n rms^3)), element by element. */
void
reference_rmsnorm_backward(size_t rows, size_t n, double epsilon, const double *s,
                           const double *weight, const double *dy, double *dx, double *d_weight)
{
    memset(d_weight, 0, n * sizeof *d_weight);
    for (size_t r = 0; r < rows; r++) {
        const double *row = s + r * n;
        const double rms = root_mean_square(n, epsilon, row);

        for (size_t j = 0; j < n; j++) {
            double sum = 0;

            for (size_t i = 0; i < n; i++) {
                const double own = i == j ? 1 / rms : 0;
                const double common = row[i] * row[j] / ((double)n * rms * rms * rms);

                sum += dy[r * n + i] * weight[i] * (own - common);
            }
            dx[r * n + j] = sum;
            d_weight[j] += dy[r * n + j] * row[j] / rms;
        }
    }
}

void
reference_rope(size_t tokens, size_t heads, size_t head_size, const int32_t *positions,
               const double *frequencies, double direction, const double *x, double *y)
{
    const size_t half = head_size / 2;

    for (size_t t = 0; t < tokens; t++) {
        for (size_t h = 0; h < heads; h++) {
            const double *from = x + (t * heads + h) * head_size;
            double *to = y + (t * heads + h) * head_size;

            for (size_t i = 0; i < half; i++) {
                const double angle = direction * positions[t] * frequencies[i];
                const double first = from[i];
                const double second = from[i + half];

                to[i] = first * cos(angle) - second * sin(angle);
                to[i + half] = first * sin(angle) + second * cos(angle);
            }
        }
    }
}

static gboolean
sees(const RpAttentionArgs *shape, size_t i, size_t j)
{
    size_t s = 0;

    while ((size_t)shape->starts[s + 1] <= i)
        s++;
    const size_t start = (size_t)shape->starts[s];
    const size_t gap = shape->gaps != NULL ? start + (size_t)shape->gaps[2 * s] : 0;
    const size_t gap_end = shape->gaps != NULL ? start + (size_t)shape->gaps[2 * s + 1] : 0;

    return j <= i && j >= start && (shape->window == 0 || i - j < shape->window) &&
           !(j >= gap && j < gap_end && i >= gap_end);
}

static double
dot(const double *a, const double *b, size_t n)
{
    double sum = 0;

    for (size_t d = 0; d < n; d++)
        sum += a[d] * b[d];
    return sum;
}

/* Probabilities of query @i of head @h over all tokens; 0 where it sees nothing. Returns lse. */
static double
probabilities(const RpAttentionArgs *shape, const double *q, const double *k, size_t h, size_t i,
              double *p)
{
    const size_t D = shape->head_size;
    const size_t kv = h / (shape->heads / shape->kv_heads);
    double largest = -INFINITY;
    double sum = 0;

    for (size_t j = 0; j < shape->tokens; j++) {
        if (!sees(shape, i, j))
            continue;
        p[j] = (double)shape->scale *
               dot(q + (i * shape->heads + h) * D, k + (j * shape->kv_heads + kv) * D, D);
        largest = fmax(largest, p[j]);
    }
    for (size_t j = 0; j < shape->tokens; j++) {
        p[j] = sees(shape, i, j) ? exp(p[j] - largest) : 0;
        sum += p[j];
    }
    for (size_t j = 0; j < shape->tokens; j++)
        p[j] /= sum;
    return largest + log(sum);
}

void
reference_attention(const RpAttentionArgs *shape, const double *q, const double *k, const double *v,
                    double *out, double *lse)
{
    const size_t D = shape->head_size;
    g_autofree double *p = g_new0(double, shape->tokens);

    for (size_t h = 0; h < shape->heads; h++) {
        const size_t kv = h / (shape->heads / shape->kv_heads);

        for (size_t i = 0; i < shape->tokens; i++) {
            double *row = out + (i * shape->heads + h) * D;

            lse[h * shape->tokens + i] = probabilities(shape, q, k, h, i, p);
            memset(row, 0, D * sizeof *row);
            for (size_t j = 0; j < shape->tokens; j++)
                for (size_t d = 0; d < D; d++)
                    row[d] += p[j] * v[(j * shape->kv_heads + kv) * D + d];
        }
    }
}

void
reference_attention_backward(const RpAttentionArgs *shape, const double *q, const double *k,
                             const double *v, const double *d_out, double *dq, double *dk,
                             double *dv)
{
    const size_t T = shape->tokens;
    const size_t D = shape->head_size;
    g_autofree double *p = g_new0(double, T);
    g_autofree double *dp = g_new0(double, T);

    memset(dq, 0, T * shape->heads * D * sizeof *dq);
    memset(dk, 0, T * shape->kv_heads * D * sizeof *dk);
    memset(dv, 0, T * shape->kv_heads * D * sizeof *dv);
    for (size_t h = 0; h < shape->heads; h++) {
        const size_t kv = h / (shape->heads / shape->kv_heads);

        for (size_t i = 0; i < T; i++) {
            const size_t query = (i * shape->heads + h) * D;
            double mean = 0;

            probabilities(shape, q, k, h, i, p);
            for (size_t j = 0; j < T; j++) {
                dp[j] = dot(d_out + query, v + (j * shape->kv_heads + kv) * D, D);
                mean += p[j] * dp[j];
            }
            for (size_t j = 0; j < T; j++) {
                const size_t key = (j * shape->kv_heads + kv) * D;
                const double ds = (double)shape->scale * p[j] * (dp[j] - mean);

                for (size_t d = 0; d < D; d++) {
                    dv[key + d] += p[j] * d_out[query + d];
                    dq[query + d] += ds * k[key + d];
                    dk[key + d] += ds * q[query + d];
                }
            }
        }
    }
}

void
reference_swiglu(size_t n, const double *gate, const double *up, double *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
}

void
reference_swiglu_backward(size_t n, const double *gate, const double *up, const double *dy,
                          double *d_gate, double *d_up)
{
    for (size_t i = 0; i < n; i++) {
        const double e = exp(-gate[i]);

        /* (a / (1 + e))' = (1 + e + a e) / (1 + e)^2 */
        d_gate[i] = dy[i] * up[i] * (1 + e + gate[i] * e) / ((1 + e) * (1 + e));
        d_up[i] = dy[i] * gate[i] / (1 + e);
    }
}

double
reference_cross_entropy(size_t tokens, size_t vocabulary, const double *logits,
                        const int32_t *labels, double scale, double *gradient)
{
    double loss = 0;

    for (size_t t = 0; t < tokens; t++) {
        const double *row = logits + t * vocabulary;
        const gboolean masked = labels[t] == RP_LABEL_MASKED;
        double largest = -INFINITY;
        double sum = 0;

        for (size_t v = 0; v < vocabulary; v++)
            largest = fmax(largest, row[v]);
        for (size_t v = 0; v < vocabulary; v++)
            sum += exp(row[v] - largest);
        if (!masked)
            loss += largest + log(sum) - row[labels[t]];
        for (size_t v = 0; gradient != NULL && v < vocabulary; v++) {
            const double hit = (int32_t)v == labels[t] ? 1 : 0;

            gradient[t * vocabulary + v] = masked ? 0 : scale * (exp(row[v] - largest) / sum - hit);
        }
    }
    return loss;
}
