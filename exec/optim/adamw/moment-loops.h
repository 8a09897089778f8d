/**
 * Moments in 16 and 8 bits, of any length. Included by adamw-dispatch.h, and by nothing else, behind
 * round_blocks(), encode_block() and decode_block() of moment-plain.h or of moment-turns.h.
 */
#pragma once

G_ALWAYS_INLINE static inline void
widen_block(const guint16 *restrict packed, float *restrict values)
{
    for (gsize i = 0; i < BLOCK; i++)
        values[i] = rp_float_from_bits((uint32_t)packed[i] << 16);
}

static void
unpack_block(RpMoments moments, gboolean squares, const void *packed, const float *scale,
             float *values)
{
    if (moments == RP_MOMENTS_BF16)
        widen_block(packed, values);
    else if (squares)
        decode_block(TRUE, packed, *scale, values);
    else
        decode_block(FALSE, packed, *scale, values);
}

/* @n blocks. */
static void
pack_blocks(RpMoments moments, const RpDraw *draw, guint64 block, const float *values, void *packed,
            float *scales, gsize n)
{
    guint8 *codes = packed;

    if (moments == RP_MOMENTS_BF16)
        round_blocks(draw, block, values, packed, n);
    else if (draw->moment == 0)
        for (gsize i = 0; i < n; i++)
            encode_block(FALSE, values + i * BLOCK, codes + i * BLOCK, scales + i);
    else
        for (gsize i = 0; i < n; i++)
            encode_block(TRUE, values + i * BLOCK, codes + i * BLOCK, scales + i);
}

/* A last block that is shorter is one with zeros behind. */
static void
unpack(RpMoments moments, gboolean squares, const void *packed, const float *scales, float *values,
       gsize n)
{
    const gsize bytes = rp_moment_bytes(moments), a_scale = scales != NULL;
    const guint8 *from = packed;

    for (gsize i = 0; i < n; i += BLOCK) {
        guint16 rest[BLOCK] = {0};
        float wide[BLOCK];

        if (n - i >= BLOCK) {
            unpack_block(moments, squares, from + i * bytes, scales + i / BLOCK * a_scale,
                         values + i);
            continue;
        }
        memcpy(rest, from + i * bytes, (n - i) * bytes);
        unpack_block(moments, squares, rest, scales + i / BLOCK * a_scale, wide);
        memcpy(values + i, wide, (n - i) * sizeof(float));
    }
}

static void
pack(RpMoments moments, const RpDraw *draw, guint64 block, const float *values, void *packed,
     float *scales, gsize n)
{
    const gsize bytes = rp_moment_bytes(moments), n_whole = n / BLOCK, whole = n_whole * BLOCK;
    guint8 *to = packed;
    guint16 rest[BLOCK];
    float wide[BLOCK] = {0};

    pack_blocks(moments, draw, block, values, to, scales, n_whole);
    if (whole == n)
        return;
    memcpy(wide, values + whole, (n - whole) * sizeof(float));
    pack_blocks(moments, draw, block + n_whole, wide, rest,
                scales != NULL ? scales + n_whole : NULL, 1);
    memcpy(to + whole * bytes, rest, (n - whole) * bytes);
}

#undef BLOCK
#undef WORDS
#undef LANES
#undef DECADES
#undef EACH
#undef FIRST
#undef LAST
#undef BORDER
#undef SLOPE
#undef OFFSET
#undef END
#undef BEGIN
#undef STEP
