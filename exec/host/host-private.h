/**
 * Shared by the host's kernels: rows in any storage, sums in a fixed order, exp.
 *
 * Kernels work in tiles of RP_TILE values on the stack; storage is converted on the way in and out.
 * Sums run in RP_LANES lanes, which a compiler can keep in vector registers of any width without
 * changing a bit, and which are then added pairwise.
 */
#pragma once

#include <math.h>
#include <string.h>

#include "exec/kernels/kernels.h"

#define RP_TILE 512 /* a multiple of RP_LANES */
#define RP_LANES 16
/* Rows whose gradients are added up apart before they join the total: shorter sums, less error. */
#define RP_PARTIAL_ROWS 64

/* The functions of the table, rp_host_<operation>(). */
#define RP_HOST_KERNEL(name, Args, words)                                                          \
    void rp_host_##name(RpKernelStream *stream, const Args *args);
#define RP_HOST_KERNELS(name, Args, words)                                                         \
    size_t rp_host_##name##_workspace(const Args *args);                                           \
    RP_HOST_KERNEL(name, Args, words)
RP_KERNELS(RP_HOST_KERNEL, RP_HOST_KERNELS)

/* Records the amax of an output; does nothing if @largest is NULL. */
void rp_host_note_largest(RpDtype dtype, const void *x, size_t n, float *largest);

/* Bytes of @n floats of a workspace, up to the next multiple of 64. */
static inline size_t
rp_host_floats(size_t n)
{
    return (n * sizeof(float) + 63) / 64 * 64;
}

/* Takes @n floats off the front of a workspace, which may be NULL if all that is taken is 0. */
static inline float *
rp_host_take(void **workspace, size_t n)
{
    float *values = *workspace;

    if (n > 0)
        *workspace = (char *)*workspace + rp_host_floats(n);
    return values;
}

static inline const void *
rp_host_at(RpDtype dtype, const void *array, size_t index)
{
    return (const char *)array + index * rp_dtype_size(dtype);
}

/* Elements [index, index + n) as floats: in place if they are, else in @buffer. */
static inline const float *
rp_host_load(RpDtype dtype, const void *array, size_t index, size_t n, float *buffer)
{
    const void *source = rp_host_at(dtype, array, index);

    if (dtype == RP_DTYPE_FP32)
        return source;
    rp_dtype_to_float(dtype, source, buffer, n);
    return buffer;
}

/* The same, always in @values. */
static inline void
rp_host_read(RpDtype dtype, const void *array, size_t index, size_t n, float *values)
{
    rp_dtype_to_float(dtype, rp_host_at(dtype, array, index), values, n);
}

static inline float
rp_host_element(RpDtype dtype, const void *array, size_t index)
{
    float value;

    rp_host_read(dtype, array, index, 1, &value);
    return value;
}

/* @values may be the place itself. */
static inline void
rp_host_store(RpDtype dtype, void *array, size_t index, size_t n, const float *values)
{
    char *target = (char *)array + index * rp_dtype_size(dtype);

    if (target != (const char *)values)
        rp_dtype_from_float(dtype, values, target, n);
}

/* Adds the lanes pairwise. */
static inline float
rp_host_add_lanes(float lanes[RP_LANES])
{
    for (size_t half = RP_LANES / 2; half > 0; half /= 2)
        for (size_t lane = 0; lane < half; lane++)
            lanes[lane] += lanes[lane + half];
    return lanes[0];
}

static inline float
rp_host_dot(const float *a, const float *b, size_t n)
{
    float lanes[RP_LANES] = {0};
    size_t i = 0;

    for (; i + RP_LANES <= n; i += RP_LANES)
        for (size_t lane = 0; lane < RP_LANES; lane++)
            lanes[lane] += a[i + lane] * b[i + lane];
    for (size_t lane = 0; i + lane < n; lane++)
        lanes[lane] += a[i + lane] * b[i + lane];
    return rp_host_add_lanes(lanes);
}

static inline float
rp_host_sum(const float *x, size_t n)
{
    float lanes[RP_LANES] = {0};
    size_t i = 0;

    for (; i + RP_LANES <= n; i += RP_LANES)
        for (size_t lane = 0; lane < RP_LANES; lane++)
            lanes[lane] += x[i + lane];
    for (size_t lane = 0; i + lane < n; lane++)
        lanes[lane] += x[i + lane];
    return rp_host_add_lanes(lanes);
}

/* The largest of @x and @least; NaNs are passed over. */
static inline float
rp_host_max(const float *x, size_t n, float least)
{
    float lanes[RP_LANES];
    size_t i = 0;

    for (size_t lane = 0; lane < RP_LANES; lane++)
        lanes[lane] = least;
    for (; i + RP_LANES <= n; i += RP_LANES)
        for (size_t lane = 0; lane < RP_LANES; lane++)
            lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
    for (size_t lane = 0; i + lane < n; lane++)
        lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
    for (size_t lane = 1; lane < RP_LANES; lane++)
        lanes[0] = lanes[lane] > lanes[0] ? lanes[lane] : lanes[0];
    return lanes[0];
}

/*
 * exp to 2 ulp, without branches so that loops over it vectorise, and the same on every machine,
 * which expf is not. 0 below -86.6 (exp = 2.5e-38), infinite above 88.72, NaN for NaN.
 *   x = n ln 2 + r, |r| <= ln 2 / 2;  exp x = 2^n exp r
 * Source: Moshier, Cephes expf: its polynomial and its two-part ln 2
 */
static inline float
rp_host_exp(float x)
{
    const float round = 12582912.0f; /* 1.5 x 2^23: n then stands in the lowest bits */
    const float shifted = x * 1.44269504f + round;
    const float n = shifted - round;
    const float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    uint32_t bits;
    float half;

    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 126u) << 23; /* 2^(n-1): 2^n may be too large although the result is not */
    memcpy(&half, &bits, sizeof half);
    p = p * half * 2.0f;
    p = x < -86.6f ? 0.0f : p;
    return x > 88.7228317f ? INFINITY : p;
}

static inline float
rp_host_sigmoid(float x)
{
    return 1.0f / (1.0f + rp_host_exp(-x));
}

/* ln(1 + exp(x)) */
static inline float
rp_host_softplus(float x)
{
    return (x > 0 ? x : 0) + log1pf(rp_host_exp(-fabsf(x)));
}

/* @p = exp(@x - the largest) / their sum; @p may be @x. NaN if one is. */
static inline void
rp_host_softmax(const float *x, size_t n, float *p)
{
    const float largest = rp_host_max(x, n, -INFINITY);
    float sum;

    for (size_t i = 0; i < n; i++)
        p[i] = rp_host_exp(x[i] - largest);
    sum = rp_host_sum(p, n);
    for (size_t i = 0; i < n; i++)
        p[i] /= sum;
}
