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

/* Rounds to bf16, in the upper halves of 32 bits. */
G_ALWAYS_INLINE static inline __m256i
round_to_bf16(Floats values)
{
    const __m256i bits = _mm256_castps_si256(values);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));

    return _mm256_blendv_epi8(rounded, quiet, is_nan);
}

/* The upper halves of 32 bits. */
G_ALWAYS_INLINE static inline __m256i
upper_halves(__m256i low, __m256i high)
{
    const __m256i mixed =
        _mm256_packus_epi32(_mm256_srli_epi32(low, 16), _mm256_srli_epi32(high, 16));

    return _mm256_permute4x64_epi64(mixed, _MM_SHUFFLE(3, 1, 2, 0));
}

/* Rounds 16 values to a 16-bit @dtype. */
G_ALWAYS_INLINE static inline __m256i
narrow(RpDtype dtype, Floats low, Floats high)
{
    if (dtype == RP_DTYPE_FP16)
        return _mm256_set_m128i(
            _mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
            _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    return upper_halves(round_to_bf16(low), round_to_bf16(high));
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

G_ALWAYS_INLINE static inline Floats
least(Floats a, Floats b)
{
    return _mm256_min_ps(a, b);
}

G_ALWAYS_INLINE static inline Bits
greatest(Bits a, Bits b)
{
    return (Bits)_mm256_max_epi32((__m256i)a, (__m256i)b);
}

/* Table of eight values, which lookup() finds by the low three bits of an index. */
G_ALWAYS_INLINE static inline Floats
table_of(const float *values)
{
    return _mm256_loadu_ps(values);
}

G_ALWAYS_INLINE static inline Floats
lookup(Floats table, Bits index)
{
    return _mm256_permutevar8x32_ps(table, (__m256i)index);
}

/* The upper halves of products of 16 bits. */
G_ALWAYS_INLINE static inline Words
multiply_upper(Words a, Words b)
{
    return (Words)_mm256_mulhi_epu16((__m256i)a, (__m256i)b);
}

/* @n, and one more where @a < @b. */
G_ALWAYS_INLINE static inline Bits
add_if_less(Bits n, Floats a, Floats b)
{
    return n - (Bits)(a < b);
}

/* @values where @d is not zero, else zero. */
G_ALWAYS_INLINE static inline Bits
zero_unless(Bits values, Bits d)
{
    return (Bits)_mm256_andnot_si256(_mm256_cmpeq_epi32((__m256i)d, _mm256_setzero_si256()),
                                     (__m256i)values);
}

/* Positive @values with the signs of @signs. */
G_ALWAYS_INLINE static inline Floats
with_sign(Floats values, Bits signs)
{
    return (Floats)((Bits)values | (signs & INT32_MIN));
}

/* Products of the low halves of 64 bits. */
G_ALWAYS_INLINE static inline Pairs
multiply(Pairs a, Pairs b)
{
    return (Pairs)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}

/* The low halves of 64 bits, of @even and @odd in turn. */
G_ALWAYS_INLINE static inline Words
interleave(Pairs even, Pairs odd)
{
    return (Words)_mm256_blend_epi32((__m256i)even, (__m256i)(odd << 32), 0xaa);
}

G_ALWAYS_INLINE static inline void
store_words(uint32_t *words, Words vector)
{
    _mm256_storeu_si256((void *)words, (__m256i)vector);
}

G_ALWAYS_INLINE static inline Words
load_words(const uint32_t *words)
{
    return (Words)_mm256_loadu_si256((const void *)words);
}

/* The bits of @values and @random, whose upper halves are bf16; NaNs stay NaNs. */
G_ALWAYS_INLINE static inline Bits
add_random(Floats values, Words random)
{
    const __m256i bits = _mm256_castps_si256(values);

    return (Bits)_mm256_blendv_ps(
        _mm256_castsi256_ps(_mm256_add_epi32(bits, (__m256i)random)),
        _mm256_castsi256_ps(_mm256_or_si256(bits, _mm256_set1_epi32(0x400000))),
        _mm256_cmp_ps(values, values, _CMP_UNORD_Q));
}

/* Writes the upper halves of 32 bits. */
G_ALWAYS_INLINE static inline void
keep_halves(uint16_t *halves, Bits low, Bits high)
{
    _mm256_storeu_si256((void *)halves, upper_halves((__m256i)low, (__m256i)high));
}

/* Writes 32 numbers as bytes, each with @more: those below zero as zero. */
G_ALWAYS_INLINE static inline void
keep_bytes(guint8 *bytes, Bits a, Bits b, Bits c, Bits d, gint16 more)
{
    const __m256i low = _mm256_packs_epi32((__m256i)a, (__m256i)b);
    const __m256i high = _mm256_packs_epi32((__m256i)c, (__m256i)d);
    const __m256i mixed = _mm256_packus_epi16(_mm256_add_epi16(low, _mm256_set1_epi16(more)),
                                              _mm256_add_epi16(high, _mm256_set1_epi16(more)));

    _mm256_storeu_si256((void *)bytes, _mm256_permutevar8x32_epi32(
                                           mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
}

G_ALWAYS_INLINE static inline Bits
widen_bytes(const guint8 *bytes)
{
    return (Bits)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)bytes));
}

#include "exec/optim/adamw/packed-turns.h"

#include "exec/optim/adamw/adamw-dispatch.h"
RP_ADAMW_VARIANT(avx2, step_packed);
