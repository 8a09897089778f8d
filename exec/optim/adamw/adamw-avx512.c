/* AdamW with AVX-512 (F, BW, DQ, VL): 32 values a turn (adamw-turns.h), so that their 16-bit weights
 * fill a cache line. Functions are described in adamw-avx2.c. */
#include "exec/optim/adamw/adamw-private.h"

#include <immintrin.h>

typedef __m512 Floats;
typedef __m512d Doubles;
typedef __m512i All;
typedef __m256i Half;
typedef int32_t Bits __attribute__((vector_size(sizeof(Floats))));
typedef uint32_t Words __attribute__((vector_size(sizeof(Floats))));
typedef uint64_t Pairs __attribute__((vector_size(sizeof(Floats))));
#define V(name) _mm512_##name
#define VI(name) _mm512_##name##_si512

static gboolean
supported(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

G_ALWAYS_INLINE static inline Half
load_half(const uint16_t *values)
{
    return _mm256_loadu_si256((const void *)values);
}

G_ALWAYS_INLINE static inline Bits
widen_bytes(const guint8 *bytes)
{
    return (Bits)_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)bytes));
}

G_ALWAYS_INLINE static inline Bits
keep_nan(Floats values, Bits usual)
{
    return (Bits)_mm512_mask_or_epi32((All)usual, _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q),
                                      (All)values, _mm512_set1_epi32(0x400000));
}

G_ALWAYS_INLINE static inline Bits
upper_halves(Bits low, Bits high)
{
    const All odd = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33,
                                     31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);

    return (Bits)_mm512_permutex2var_epi16((All)low, odd, (All)high);
}

G_ALWAYS_INLINE static inline Bits
join(Half low, Half high)
{
    return (Bits)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
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

G_ALWAYS_INLINE static inline Floats
table_of(const float *values)
{
    return _mm512_broadcast_f32x8(_mm256_loadu_ps(values));
}

G_ALWAYS_INLINE static inline Floats
lookup(Floats table, Bits index)
{
    return _mm512_permutexvar_ps((All)index, table);
}

G_ALWAYS_INLINE static inline Bits
add_if_less(Bits n, Floats a, Floats b)
{
    return (Bits)_mm512_mask_sub_epi32((All)n, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), (All)n,
                                       _mm512_set1_epi32(-1));
}

G_ALWAYS_INLINE static inline Bits
zero_unless(Bits values, Bits d)
{
    return (Bits)_mm512_maskz_mov_epi32(_mm512_test_epi32_mask((All)d, (All)d), (All)values);
}

G_ALWAYS_INLINE static inline Floats
with_sign(Floats values, Bits signs)
{
    return (Floats)_mm512_ternarylogic_epi32((All)values, (All)signs, _mm512_set1_epi32(INT32_MIN),
                                             0xf8);
}

G_ALWAYS_INLINE static inline Words
interleave(Pairs even, Pairs odd)
{
    return (Words)_mm512_mask_shuffle_epi32((All)even, 0xaaaa, (All)odd,
                                            (_MM_PERM_ENUM)_MM_SHUFFLE(2, 2, 0, 0));
}

G_ALWAYS_INLINE static inline All
in_order(All bytes)
{
    return _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), bytes);
}

#include "exec/optim/adamw/adamw-turns.h"
#include "exec/optim/adamw/packed-turns.h"

#include "exec/optim/adamw/adamw-dispatch.h"
RP_ADAMW_VARIANT(avx512, step_packed);
