/* AdamW with AVX-512 (F, BW, DQ, VL): 32 values a turn (adamw-turns.h), so that their 16-bit weights
 * fill a cache line. */
#include "exec/optim/adamw/adamw-private.h"

#include <immintrin.h>

typedef __m512 Floats;
typedef __m512d Doubles;

static gboolean
supported(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

/* 16 values from @i on. */
G_ALWAYS_INLINE static inline Floats
load(RpDtype dtype, const void *values, gsize i)
{
    if (dtype == RP_DTYPE_FP32)
        return _mm512_loadu_ps((const float *)values + i);
    const __m256i half = _mm256_loadu_si256((const void *)((const uint16_t *)values + i));
    if (dtype == RP_DTYPE_FP16)
        return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* Rounds to a 16-bit @dtype. */
G_ALWAYS_INLINE static inline __m256i
narrow(RpDtype dtype, Floats values)
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

/* Writes 32 values to whole cache lines, around the caches. */
G_ALWAYS_INLINE static inline void
stream(RpDtype dtype, void *values, gsize i, Floats low, Floats high)
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

G_ALWAYS_INLINE static inline void
store(float *values, gsize i, Floats vector)
{
    _mm512_storeu_ps(values + i, vector);
}

G_ALWAYS_INLINE static inline Floats
root(Floats values)
{
    return _mm512_sqrt_ps(values);
}

G_ALWAYS_INLINE static inline Doubles
widen_low(Floats values)
{
    return _mm512_cvtps_pd(_mm512_castps512_ps256(values));
}

G_ALWAYS_INLINE static inline Doubles
widen_high(Floats values)
{
    return _mm512_cvtps_pd(_mm512_extractf32x8_ps(values, 1));
}

#include "exec/optim/adamw/adamw-turns.h"

#include "exec/optim/adamw/adamw-dispatch.h"
RP_ADAMW_VARIANT(avx512);
