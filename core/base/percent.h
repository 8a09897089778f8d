/**
 * How many decimals a percentage is written with.
 */
#pragma once

#include <glib.h>
#include <math.h>

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
