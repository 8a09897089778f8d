/*
 * AdamW with AVX2 and F16C: 16 values a turn; their 16-bit weights go to memory around the caches.
 *
 *           |-head-|------- turns of 16, published on 32 bytes -------|-tail-|
 *           | one by one |              whole                         | one by one
 *
 * Built without contraction to fused multiply-adds: see adamw.h.
 */
#include "exec/optim/adamw/adamw-private.h"

#include <cpuid.h>
#include <immintrin.h>

#define TURN 16
#define VECTOR 32 /* bytes */
#define AHEAD 512 /* values prefetched ahead: the hardware stops at page borders */

static gboolean
supported(void)
{
    unsigned eax, ebx, ecx, edx; /* clang 14 knows no __builtin_cpu_supports("f16c") */
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) &&
           (ecx & bit_F16C) != 0;
}

/* 8 values from @i on. */
G_ALWAYS_INLINE static inline __m256
load(RpDtype dtype, const void *values, gsize i)
{
    if (dtype == RP_DTYPE_FP32)
        return _mm256_loadu_ps((const float *)values + i);
    const __m128i half = _mm_loadu_si128((const void *)((const uint16_t *)values + i));
    if (dtype == RP_DTYPE_FP16)
        return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* Rounds to bf16, in the low halves of 32 bits. */
G_ALWAYS_INLINE static inline __m256i
round_to_bf16(__m256 values)
{
    const __m256i bits = _mm256_castps_si256(values);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, quiet, is_nan);
}

/* Rounds 16 values to a 16-bit @dtype. */
G_ALWAYS_INLINE static inline __m256i
narrow(RpDtype dtype, __m256 low, __m256 high)
{
    if (dtype == RP_DTYPE_FP16)
        return _mm256_set_m128i(
            _mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
            _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    const __m256i mixed = _mm256_packus_epi32(round_to_bf16(low), round_to_bf16(high));
    return _mm256_permute4x64_epi64(mixed, _MM_SHUFFLE(3, 1, 2, 0));
}

/* Writes 16 values to whole vectors, around the caches. */
G_ALWAYS_INLINE static inline void
stream(RpDtype dtype, void *values, gsize i, __m256 low, __m256 high)
{
    if (dtype == RP_DTYPE_FP32) {
        _mm256_stream_ps((float *)values + i, low);
        _mm256_stream_ps((float *)values + i + 8, high);
    } else {
        _mm256_stream_si256((void *)((uint16_t *)values + i), narrow(dtype, low, high));
    }
}

/* Values before @published[i] stands on a vector; at most @n. */
static gsize
head_of(const void *published, RpDtype dtype, gsize n)
{
    const gsize past = (uintptr_t)published % VECTOR;
    return MIN(n, (VECTOR - past) % VECTOR / rp_dtype_size(dtype));
}

/* rp_adamw_update_one() of 8 values from @i on; returns the weights. */
G_ALWAYS_INLINE static inline __m256
update(const RpAdamwFactors *f, const RpAdamwArrays *a, gsize i, RpDtype gradient_dtype)
{
    const __m256 g = load(gradient_dtype, a->gradient, i) * f->gradient_scale;
    const __m256 m = f->beta1 * _mm256_loadu_ps(a->moment1 + i) + f->one_minus_beta1 * g;
    const __m256 v = f->beta2 * _mm256_loadu_ps(a->moment2 + i) + f->one_minus_beta2 * g * g;
    const __m256 w = _mm256_loadu_ps(a->weight + i) * f->decay -
                     f->step_size * m / (_mm256_sqrt_ps(v) * f->root_correction + f->epsilon);
    _mm256_storeu_ps(a->moment1 + i, m);
    _mm256_storeu_ps(a->moment2 + i, v);
    _mm256_storeu_ps(a->weight + i, w);
    return w;
}

/* Values @i up to @end, one by one. */
G_ALWAYS_INLINE static inline void
step_part(const RpAdamwFactors *f, const RpAdamwArrays *a, gsize i, gsize end,
          RpDtype gradient_dtype, gboolean publish, RpDtype published_dtype)
{
    for (; i < end; i++) {
        const float w = rp_adamw_update_one(f, rp_dtype_get(gradient_dtype, a->gradient, i),
                                            &a->weight[i], &a->moment1[i], &a->moment2[i]);
        if (publish)
            rp_dtype_set(published_dtype, a->published, i, w);
    }
}

/* With constant @gradient_dtype, @publish and @published_dtype. */
G_ALWAYS_INLINE static inline void
step_loop(RpDtype published_dtype, gboolean publish, RpDtype gradient_dtype,
          const RpAdamwFactors *factors, const RpAdamwArrays *arrays, gsize n)
{
    const RpAdamwFactors f = *factors;
    const RpAdamwArrays a = *arrays;
    gsize i = publish ? head_of(a.published, published_dtype, n) : 0;

    step_part(factors, &a, 0, i, gradient_dtype, publish, published_dtype);
    for (; i + TURN <= n; i += TURN) {
        _mm_prefetch((const char *)(a.weight + i + AHEAD), _MM_HINT_T0);
        _mm_prefetch((const char *)(a.moment1 + i + AHEAD), _MM_HINT_T0);
        _mm_prefetch((const char *)(a.moment2 + i + AHEAD), _MM_HINT_T0);
        const __m256 low = update(&f, &a, i, gradient_dtype);
        const __m256 high = update(&f, &a, i + 8, gradient_dtype);
        if (publish)
            stream(published_dtype, a.published, i, low, high);
    }
    step_part(factors, &a, i, n, gradient_dtype, publish, published_dtype);
    if (publish)
        _mm_sfence(); /* before whatever tells another thread that the weights are there */
}

/* With a constant @dtype. */
G_ALWAYS_INLINE static inline void
publish_loop(RpDtype dtype, const float *weight, void *published, gsize n)
{
    const gsize head = head_of(published, dtype, n);
    gsize i;

    for (i = 0; i < head; i++)
        rp_dtype_set(dtype, published, i, weight[i]);
    for (; i + TURN <= n; i += TURN)
        stream(dtype, published, i, _mm256_loadu_ps(weight + i), _mm256_loadu_ps(weight + i + 8));
    for (; i < n; i++)
        rp_dtype_set(dtype, published, i, weight[i]);
    _mm_sfence();
}

/* Adds the squares of 8 values to two accumulators of 4 lanes. */
G_ALWAYS_INLINE static inline void
square(__m256d sums[2], __m256 values)
{
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(values));
    const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(values, 1));
    sums[0] += low * low;
    sums[1] += high * high;
}

G_ALWAYS_INLINE static inline void
add_squares_loop(RpDtype dtype, double *lanes, const void *values, gsize n)
{
    __m256d sums[RP_SUM_LANES / 4];
    gsize i = 0;

    for (guint part = 0; part < RP_SUM_LANES / 4; part++)
        sums[part] = _mm256_loadu_pd(&lanes[4 * part]);
    for (; i + RP_SUM_LANES <= n; i += RP_SUM_LANES)
        for (guint part = 0; part < RP_SUM_LANES / 8; part++)
            square(&sums[2 * part], load(dtype, values, i + 8 * part));
    for (guint part = 0; part < RP_SUM_LANES / 4; part++)
        _mm256_storeu_pd(&lanes[4 * part], sums[part]);
    for (guint lane = 0; i < n; i++, lane++) {
        const double value = rp_dtype_get(dtype, values, i);
        lanes[lane] += value * value;
    }
}

#include "exec/optim/adamw/adamw-dispatch.h"
RP_ADAMW_VARIANT(avx2);
