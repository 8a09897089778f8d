/* AdamW with AVX2 and F16C: 16 values a turn (adamw-turns.h). */
#include "exec/optim/adamw/adamw-private.h"

#include <cpuid.h>
#include <immintrin.h>

typedef __m256 Floats;
typedef __m256d Doubles;
typedef __m256i All;
typedef __m128i Half;
typedef int32_t Bits __attribute__((vector_size(sizeof(Floats))));
typedef uint32_t Words __attribute__((vector_size(sizeof(Floats))));
typedef uint64_t Pairs __attribute__((vector_size(sizeof(Floats))));
#define V(name) _mm256_##name
#define VI(name) _mm256_##name##_si256

static gboolean
supported(void)
{
    unsigned eax, ebx, ecx, edx; /* clang 14 knows no __builtin_cpu_supports("f16c") */
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) &&
           (ecx & bit_F16C) != 0;
}

G_ALWAYS_INLINE static inline Half
load_half(const uint16_t *values)
{
    return _mm_loadu_si128((const void *)values);
}

G_ALWAYS_INLINE static inline Bits
widen_bytes(const guint8 *bytes)
{
    return (Bits)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)bytes));
}

/* @usual, or @values made quiet where they are NaNs. */
G_ALWAYS_INLINE static inline Bits
keep_nan(Floats values, Bits usual)
{
    return (Bits)_mm256_blendv_ps((Floats)usual, (Floats)((Bits)values | 0x400000),
                                  _mm256_cmp_ps(values, values, _CMP_UNORD_Q));
}

/* The upper halves of 32 bits. */
G_ALWAYS_INLINE static inline Bits
upper_halves(Bits low, Bits high)
{
    const All mixed =
        _mm256_packus_epi32(_mm256_srli_epi32((All)low, 16), _mm256_srli_epi32((All)high, 16));

    return (Bits)_mm256_permute4x64_epi64(mixed, _MM_SHUFFLE(3, 1, 2, 0));
}

G_ALWAYS_INLINE static inline Bits
join(Half low, Half high)
{
    return (Bits)_mm256_set_m128i(high, low);
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

/* Table of eight values, which lookup() finds by the low three bits of an index. */
G_ALWAYS_INLINE static inline Floats
table_of(const float *values)
{
    return _mm256_loadu_ps(values);
}

G_ALWAYS_INLINE static inline Floats
lookup(Floats table, Bits index)
{
    return _mm256_permutevar8x32_ps(table, (All)index);
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
    return (Bits)_mm256_andnot_si256(_mm256_cmpeq_epi32((All)d, _mm256_setzero_si256()),
                                     (All)values);
}

/* Positive @values with the signs of @signs. */
G_ALWAYS_INLINE static inline Floats
with_sign(Floats values, Bits signs)
{
    return (Floats)((Bits)values | (signs & INT32_MIN));
}

/* The low halves of 64 bits, of @even and @odd in turn. */
G_ALWAYS_INLINE static inline Words
interleave(Pairs even, Pairs odd)
{
    return (Words)_mm256_blend_epi32((All)even, (All)(odd << 32), 0xaa);
}

/* Bytes that were packed in parts of 128 bits, as their numbers stood. */
G_ALWAYS_INLINE static inline All
in_order(All bytes)
{
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

#include "exec/optim/adamw/adamw-turns.h"
#include "exec/optim/adamw/packed-turns.h"

#include "exec/optim/adamw/adamw-dispatch.h"
RP_ADAMW_VARIANT(avx2, step_packed);
