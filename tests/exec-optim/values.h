/**
 * values() of fixtures/make-moments.py and fixtures/make-forms.py: of both signs, over four decades.
 */
#pragma once

#include <glib.h>

static inline float
rp_value_at(guint step, gsize i)
{
    guint32 x = (guint32)(i + 1000003 * (gsize)step);

    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    x ^= x >> 16;
    return (float)((gint32)(x >> 8) - (1 << 23)) / (float)(1 << 23) / (float)(1 << (i % 13));
}

static inline void
rp_fill(float *values, guint step, gsize n)
{
    for (gsize i = 0; i < n; i++)
        values[i] = rp_value_at(step, i);
}
