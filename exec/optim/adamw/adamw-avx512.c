/*
 * AdamW with AVX-512 (F, BW, DQ, VL): 32 values a turn, so that the 16-bit weights of a turn fill a
 * cache line, which then goes to memory around the caches.
 *
 *           |-head-|------- turns of 32, published on a cache line -------|-tail-|
 *   masked  |  <32 |                     whole                            |  <32 |  masked
 *
 * Built without contraction to fused multiply-adds: see adamw.h.
 */
#include "exec/optim/adamw/adamw-private.h"

#include <immintrin.h>

#define TURN 32
#define LINE 64
#define AHEAD 512 /* values prefetched ahead: the hardware stops at page borders */

static gboolean
supported(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

/* Up to 16 values from @i on; 0 where @mask is 0. */
G_ALWAYS_INLINE static inline __m512
load(RpDtype dtype, const void *values, gsize i, __mmask16 mask)
{
    if (dtype == RP_DTYPE_FP32)
        return _mm512_maskz_loadu_ps(mask, (const float *)values + i);
    const __m256i half = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)values + i);
    if (dtype == RP_DTYPE_FP16)
        return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* Rounds to a 16-bit @dtype. */
G_ALWAYS_INLINE static inline __m256i
narrow(RpDtype dtype, __m512 values)
{
    if (dtype == RP_DTYPE_FP16)
        return _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512i bits = _mm512_castps_si512(values);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
    const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, is_nan, quiet));
}

/* Writes up to 32 values from @i on. */
G_ALWAYS_INLINE static inline void
store(RpDtype dtype, void *values, gsize i, __m512 low, __m512 high, __mmask32 mask)
{
    if (dtype == RP_DTYPE_FP32) {
        _mm512_mask_storeu_ps((float *)values + i, (__mmask16)mask, low);
        _mm512_mask_storeu_ps((float *)values + i + 16, (__mmask16)(mask >> 16), high);
        return;
    }
    const __m512i line =
        _mm512_inserti64x4(_mm512_castsi256_si512(narrow(dtype, low)), narrow(dtype, high), 1);
    _mm512_mask_storeu_epi16((uint16_t *)values + i, mask, line);
}

/* Writes 32 values to whole cache lines, around the caches. */
G_ALWAYS_INLINE static inline void
stream(RpDtype dtype, void *values, gsize i, __m512 low, __m512 high)
{
    if (dtype == RP_DTYPE_FP32) {
        _mm512_stream_ps((float *)values + i, low);
        _mm512_stream_ps((float *)values + i + 16, high);
        return;
    }
    const __m512i line =
        _mm512_inserti64x4(_mm512_castsi256_si512(narrow(dtype, low)), narrow(dtype, high), 1);
    _mm512_stream_si512((void *)((uint16_t *)values + i), line);
}

/* Values before @published[i] stands on a cache line; at most @n. */
static gsize
head_of(const void *published, RpDtype dtype, gsize n)
{
    const gsize past = (uintptr_t)published % LINE;
    return published == NULL ? 0 : MIN(n, (LINE - past) % LINE / rp_dtype_size(dtype));
}

static __mmask32
first_of(gsize n)
{
    return n >= TURN ? ~(__mmask32)0 : ((__mmask32)1 << n) - 1;
}

/* rp_adamw_update_one() of up to 16 values from @i on; returns the weights. */
G_ALWAYS_INLINE static inline __m512
update(const RpAdamwFactors *f, const RpAdamwArrays *a, gsize i, RpDtype gradient_dtype,
       __mmask16 mask)
{
    const __m512 g = load(gradient_dtype, a->gradient, i, mask) * f->gradient_scale;
    const __m512 m =
        f->beta1 * _mm512_maskz_loadu_ps(mask, a->moment1 + i) + f->one_minus_beta1 * g;
    const __m512 v =
        f->beta2 * _mm512_maskz_loadu_ps(mask, a->moment2 + i) + f->one_minus_beta2 * g * g;
    const __m512 w = _mm512_maskz_loadu_ps(mask, a->weight + i) * f->decay -
                     f->step_size * m / (_mm512_sqrt_ps(v) * f->root_correction + f->epsilon);
    _mm512_mask_storeu_ps(a->moment1 + i, mask, m);
    _mm512_mask_storeu_ps(a->moment2 + i, mask, v);
    _mm512_mask_storeu_ps(a->weight + i, mask, w);
    return w;
}

G_ALWAYS_INLINE static inline void
prefetch_two(const float *values)
{
    _mm_prefetch((const char *)values, _MM_HINT_T0);
    _mm_prefetch((const char *)(values + 16), _MM_HINT_T0);
}

/* Up to 32 values from @i on, whatever the alignment. */
G_ALWAYS_INLINE static inline void
step_part(const RpAdamwFactors *f, const RpAdamwArrays *a, gsize i, gsize n, RpDtype gradient_dtype,
          gboolean publish, RpDtype published_dtype)
{
    const __mmask32 mask = first_of(n);
    const __m512 low = update(f, a, i, gradient_dtype, (__mmask16)mask);
    const __m512 high = update(f, a, i + 16, gradient_dtype, (__mmask16)(mask >> 16));
    if (publish)
        store(published_dtype, a->published, i, low, high, mask);
}

/* With constant @gradient_dtype, @publish and @published_dtype. */
G_ALWAYS_INLINE static inline void
step_loop(RpDtype published_dtype, gboolean publish, RpDtype gradient_dtype,
          const RpAdamwFactors *factors, const RpAdamwArrays *arrays, gsize n)
{
    const RpAdamwFactors f = *factors;
    const RpAdamwArrays a = *arrays;
    const __mmask16 all = 0xffff;
    const gsize head = publish ? head_of(a.published, published_dtype, n) : 0;
    gsize i = head;

    if (head > 0)
        step_part(&f, &a, 0, head, gradient_dtype, publish, published_dtype);
    for (; i + TURN <= n; i += TURN) {
        prefetch_two(a.weight + i + AHEAD);
        prefetch_two(a.moment1 + i + AHEAD);
        prefetch_two(a.moment2 + i + AHEAD);
        const __m512 low = update(&f, &a, i, gradient_dtype, all);
        const __m512 high = update(&f, &a, i + 16, gradient_dtype, all);
        if (publish)
            stream(published_dtype, a.published, i, low, high);
    }
    if (i < n)
        step_part(&f, &a, i, n - i, gradient_dtype, publish, published_dtype);
    if (publish)
        _mm_sfence(); /* before whatever tells another thread that the weights are there */
}

/* With a constant @dtype. */
G_ALWAYS_INLINE static inline void
publish_part(const float *weight, void *published, gsize i, gsize n, RpDtype dtype)
{
    const __mmask32 mask = first_of(n);
    const __m512 low = _mm512_maskz_loadu_ps((__mmask16)mask, weight + i);
    const __m512 high = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), weight + i + 16);
    store(dtype, published, i, low, high, mask);
}

G_ALWAYS_INLINE static inline void
publish_loop(RpDtype dtype, const float *weight, void *published, gsize n)
{
    const gsize head = head_of(published, dtype, n);
    gsize i = head;

    if (head > 0)
        publish_part(weight, published, 0, head, dtype);
    for (; i + TURN <= n; i += TURN)
        stream(dtype, published, i, _mm512_loadu_ps(weight + i), _mm512_loadu_ps(weight + i + 16));
    if (i < n)
        publish_part(weight, published, i, n - i, dtype);
    _mm_sfence();
}

/* Adds the squares of 16 values to two accumulators of 8 lanes. */
G_ALWAYS_INLINE static inline void
square(__m512d sums[2], __m512 values)
{
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(values));
    const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(values, 1));
    sums[0] += low * low;
    sums[1] += high * high;
}

G_ALWAYS_INLINE static inline void
add_squares_loop(RpDtype dtype, double *lanes, const void *values, gsize n)
{
    __m512d sums[4];
    gsize i = 0;

    for (guint part = 0; part < 4; part++)
        sums[part] = _mm512_loadu_pd(&lanes[8 * part]);
    for (; i + TURN <= n; i += TURN) {
        square(&sums[0], load(dtype, values, i, 0xffff));
        square(&sums[2], load(dtype, values, i + 16, 0xffff));
    }
    if (i < n) { /* adding the square of 0 changes nothing */
        const __mmask32 mask = first_of(n - i);
        square(&sums[0], load(dtype, values, i, (__mmask16)mask));
        square(&sums[2], load(dtype, values, i + 16, (__mmask16)(mask >> 16)));
    }
    for (guint part = 0; part < 4; part++)
        _mm512_storeu_pd(&lanes[8 * part], sums[part]);
}

#include "exec/optim/adamw/adamw-dispatch.h"
RP_ADAMW_VARIANT(avx512);
