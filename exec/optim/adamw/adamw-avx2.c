/* AdamW with AVX2 and F16C: 16 values a turn (adamw-turns.h). */
#include "exec/optim/adamw/adamw-private.h"

#include <cpuid.h>
#include <immintrin.h>

typedef __m256 Floats;
typedef __m256d Doubles;

static gboolean
supported(void)
{
    unsigned eax, ebx, ecx, edx; /* clang 14 knows no __builtin_cpu_supports("f16c") */
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) &&
           (ecx & bit_F16C) != 0;
}

/* 8 values from @i on. */
G_ALWAYS_INLINE static inline Floats
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
round_to_bf16(Floats values)
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
narrow(RpDtype dtype, Floats low, Floats high)
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
stream(RpDtype dtype, void *values, gsize i, Floats low, Floats high)
{
    if (dtype == RP_DTYPE_FP32) {
        _mm256_stream_ps((float *)values + i, low);
        _mm256_stream_ps((float *)values + i + 8, high);
    } else {
        _mm256_stream_si256((void *)((uint16_t *)values + i), narrow(dtype, low, high));
    }
}

G_ALWAYS_INLINE static inline void
store(float *values, gsize i, Floats vector)
{
    _mm256_storeu_ps(values + i, vector);
}

G_ALWAYS_INLINE static inline Floats
root(Floats values)
{
    return _mm256_sqrt_ps(values);
}

G_ALWAYS_INLINE static inline Doubles
widen_low(Floats values)
{
    return _mm256_cvtps_pd(_mm256_castps256_ps128(values));
}

G_ALWAYS_INLINE static inline Doubles
widen_high(Floats values)
{
    return _mm256_cvtps_pd(_mm256_extractf128_ps(values, 1));
}

#include "exec/optim/adamw/adamw-turns.h"

#include "exec/optim/adamw/adamw-dispatch.h"
RP_ADAMW_VARIANT(avx2);
