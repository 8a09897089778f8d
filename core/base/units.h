/**
 * Small shared arithmetic: rounding, alignment, units and order.
 */
#pragma once

#include <glib.h>
#include <math.h>

#define RP_NS_PER_MS G_GINT64_CONSTANT(1000000)
#define RP_NS_PER_S G_GINT64_CONSTANT(1000000000)
#define RP_GIB (G_GUINT64_CONSTANT(1) << 30)
#define RP_MIB (G_GUINT64_CONSTANT(1) << 20)

/* Milliseconds to nanoseconds, rounded to nearest. */
static inline gint64
rp_ns_from_ms(double ms)
{
    return (gint64)llround(ms * (double)RP_NS_PER_MS);
}

static inline double
rp_ms_from_ns(gint64 ns)
{
    return (double)ns / (double)RP_NS_PER_MS;
}

static inline guint64
rp_align_up(guint64 bytes, guint64 alignment)
{
    return (bytes + alignment - 1) / alignment * alignment;
}

/* The greatest common divisor of two numbers >= 0; if one is 0, the other one. */
static inline gint64
rp_greatest_common_divisor(gint64 a, gint64 b)
{
    while (b != 0) {
        const gint64 rest = a % b;

        a = b;
        b = rest;
    }
    return a;
}

/* Orders of numbers, for g_array_sort() and qsort(): the least first. */
int rp_compare_doubles(gconstpointer a, gconstpointer b);
int rp_compare_int64(gconstpointer a, gconstpointer b);
int rp_compare_uint64(gconstpointer a, gconstpointer b);

/* A size such as 24GiB, 800GB, 1.5TiB or plain bytes, up to 10^18. @bytes: (out). Returns: whether
 * @text is one */
gboolean rp_bytes_parse(const char *text, guint64 *bytes) G_GNUC_WARN_UNUSED_RESULT;

/* Decimals to write @percent with: @least, or as many more as show its first digit, so that "0.0"
 * is nothing at all; four at most. */
static inline guint
rp_percent_decimals(double percent, guint least)
{
    guint decimals = least;

    for (double half = 0.5 * pow(10, -(double)least);
         decimals < 4 && fabs(percent) > 0 && fabs(percent) < half; half /= 10)
        decimals++;
    return decimals;
}
