/**
 * Moments in 16 and 8 bits, of any length. Included by adamw-dispatch.h, and by nothing else, behind
 * widen_block(), round_blocks(), encode_block() and decode_block() of moment-plain.h or of moment-turns.h.
 */
#pragma once

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
    guint8 *quantized = packed;

    if (moments == RP_MOMENTS_BF16)
        round_blocks(draw, block, values, packed, n);
    else if (draw->moment == 0)
        for (gsize i = 0; i < n; i++)
            encode_block(FALSE, values + i * BLOCK, quantized + i * BLOCK, scales + i);
    else
        for (gsize i = 0; i < n; i++)
            encode_block(TRUE, values + i * BLOCK, quantized + i * BLOCK, scales + i);
}

/* A last block that is shorter is one with zeros behind. */
static void
unpack(RpMoments moments, gboolean squares, const void *packed, const float *scales, float *values,
       gsize n)
{
    const gsize bytes = rp_moment_bytes(moments), a_scale = scales != NULL;
    const gsize whole = n - n % BLOCK;
    const guint8 *from = packed;
    guint16 rest[BLOCK];
    float wide[BLOCK];

    for (gsize i = 0; i < whole; i += BLOCK)
        unpack_block(moments, squares, from + i * bytes, scales + i / BLOCK * a_scale, values + i);
    if (whole == n)
        return;
    memset(rest, 0, sizeof rest);
    memcpy(rest, from + whole * bytes, (n - whole) * bytes);
    unpack_block(moments, squares, rest, scales + whole / BLOCK * a_scale, wide);
    memcpy(values + whole, wide, (n - whole) * sizeof(float));
}

static void
pack(RpMoments moments, const RpDraw *draw, guint64 block, const float *values, void *packed,
     float *scales, gsize n)
{
    const gsize bytes = rp_moment_bytes(moments), n_whole = n / BLOCK, whole = n_whole * BLOCK;
    guint8 *to = packed;
    guint16 rest[BLOCK];
    float wide[BLOCK];

    pack_blocks(moments, draw, block, values, to, scales, n_whole);
    if (whole == n)
        return;
    memset(wide, 0, sizeof wide);
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
