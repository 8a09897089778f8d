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

/* Rounds to bf16, in the upper halves of 32 bits. */
G_ALWAYS_INLINE static inline __m512i
round_to_bf16(Floats values)
{
    const __m512i bits = _mm512_castps_si512(values);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);

    return _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
}

/* The upper halves of 32 bits. */
G_ALWAYS_INLINE static inline __m512i
upper_halves(__m512i low, __m512i high)
{
    const __m512i odd =
        _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                         25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);

    return _mm512_permutex2var_epi16(low, odd, high);
}

/* Rounds 32 values to a 16-bit @dtype. */
G_ALWAYS_INLINE static inline __m512i
narrow(RpDtype dtype, Floats low, Floats high)
{
    if (dtype == RP_DTYPE_FP16)
        return _mm512_inserti64x4(
            _mm512_castsi256_si512(
                _mm512_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)),
            _mm512_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), 1);
    return upper_halves(round_to_bf16(low), round_to_bf16(high));
}

/* Writes 32 values to whole cache lines, around the caches. */
G_ALWAYS_INLINE static inline void
stream(RpDtype dtype, void *values, gsize i, Floats low, Floats high)
{
    if (dtype == RP_DTYPE_FP32) {
        _mm512_stream_ps((float *)values + i, low);
        _mm512_stream_ps((float *)values + i + 16, high);
    } else {
        _mm512_stream_si512((void *)((uint16_t *)values + i), narrow(dtype, low, high));
    }
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

G_ALWAYS_INLINE static inline Floats
least(Floats a, Floats b)
{
    return _mm512_min_ps(a, b);
}

G_ALWAYS_INLINE static inline Bits
greatest(Bits a, Bits b)
{
    return (Bits)_mm512_max_epi32((__m512i)a, (__m512i)b);
}

/* Table of eight values, which lookup() finds by the low three bits of an index. */
G_ALWAYS_INLINE static inline Floats
table_of(const float *values)
{
    return _mm512_broadcast_f32x8(_mm256_loadu_ps(values));
}

G_ALWAYS_INLINE static inline Floats
lookup(Floats table, Bits index)
{
    return _mm512_permutexvar_ps((__m512i)index, table);
}

/* The upper halves of products of 16 bits. */
G_ALWAYS_INLINE static inline Words
multiply_upper(Words a, Words b)
{
    return (Words)_mm512_mulhi_epu16((__m512i)a, (__m512i)b);
}

/* @n, and one more where @a < @b. */
G_ALWAYS_INLINE static inline Bits
add_if_less(Bits n, Floats a, Floats b)
{
    return (Bits)_mm512_mask_sub_epi32((__m512i)n, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), (__m512i)n,
                                       _mm512_set1_epi32(-1));
}

/* @values where @d is not zero, else zero. */
G_ALWAYS_INLINE static inline Bits
zero_unless(Bits values, Bits d)
{
    return (Bits)_mm512_maskz_mov_epi32(_mm512_test_epi32_mask((__m512i)d, (__m512i)d),
                                        (__m512i)values);
}

/* Positive @values with the signs of @signs. */
G_ALWAYS_INLINE static inline Floats
with_sign(Floats values, Bits signs)
{
    const __m512i sign = _mm512_set1_epi32(INT32_MIN);

    return (Floats)_mm512_ternarylogic_epi32((__m512i)values, (__m512i)signs, sign, 0xf8);
}

/* Products of the low halves of 64 bits. */
G_ALWAYS_INLINE static inline Pairs
multiply(Pairs a, Pairs b)
{
    return (Pairs)_mm512_mul_epu32((__m512i)a, (__m512i)b);
}

/* The low halves of 64 bits, of @even and @odd in turn. */
G_ALWAYS_INLINE static inline Words
interleave(Pairs even, Pairs odd)
{
    return (Words)_mm512_mask_shuffle_epi32((__m512i)even, 0xaaaa, (__m512i)odd,
                                            (_MM_PERM_ENUM)_MM_SHUFFLE(2, 2, 0, 0));
}

G_ALWAYS_INLINE static inline void
store_words(uint32_t *words, Words vector)
{
    _mm512_storeu_si512((void *)words, (__m512i)vector);
}

G_ALWAYS_INLINE static inline Words
load_words(const uint32_t *words)
{
    return (Words)_mm512_loadu_si512((const void *)words);
}

/* The bits of @values and @random, whose upper halves are bf16; NaNs stay NaNs. */
G_ALWAYS_INLINE static inline Bits
add_random(Floats values, Words random)
{
    const __m512i bits = _mm512_castps_si512(values);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);

    return (Bits)_mm512_mask_or_epi32(_mm512_add_epi32(bits, (__m512i)random), is_nan, bits,
                                      _mm512_set1_epi32(0x400000));
}

/* Writes the upper halves of 32 bits. */
G_ALWAYS_INLINE static inline void
keep_halves(uint16_t *halves, Bits low, Bits high)
{
    _mm512_storeu_si512((void *)halves, upper_halves((__m512i)low, (__m512i)high));
}

/* Writes 64 numbers as bytes, each with @more: those below zero as zero. */
G_ALWAYS_INLINE static inline void
keep_bytes(guint8 *bytes, Bits a, Bits b, Bits c, Bits d, gint16 more)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i low = _mm512_packs_epi32((__m512i)a, (__m512i)b);
    const __m512i high = _mm512_packs_epi32((__m512i)c, (__m512i)d);
    const __m512i mixed = _mm512_packus_epi16(_mm512_add_epi16(low, _mm512_set1_epi16(more)),
                                              _mm512_add_epi16(high, _mm512_set1_epi16(more)));

    _mm512_storeu_si512((void *)bytes, _mm512_permutexvar_epi32(order, mixed));
}

G_ALWAYS_INLINE static inline Bits
widen_bytes(const guint8 *bytes)
{
    return (Bits)_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)bytes));
}

#include "exec/optim/adamw/packed-turns.h"

#include "exec/optim/adamw/adamw-dispatch.h"
RP_ADAMW_VARIANT(avx512, step_packed);
