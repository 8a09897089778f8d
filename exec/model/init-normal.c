/**
 * Random words and the normal distribution's inverse, in groups of counters: whole loops without a
 * branch, which compilers turn into vector code. Every operation is one that IEEE 754 defines, in
 * the order of rp_init_normal(): the same bits one by one or in groups.
 *
 *   counters     j    j+1  j+2  ...
 *   word 0       v0   v4   v8   ...
 *   word 1       v1   v5   v9   ...      made row by row, handed out column by column
 */
#include <math.h>
#include <string.h>

#include "exec/kernels/philox.h"
#include "exec/model/init.h"

#define WORDS 4 /* words of one Philox block */
#define COUNTERS 64
#define GROUP (WORDS * COUNTERS)

#define CENTRE 0.425 /* |p - 1/2| up to which a quotient in (p - 1/2)^2 serves */

/* ---- words ---- */

void
rp_philox(const guint32 counter[4], const guint32 key[2], guint32 words[4])
{
    memcpy(words, counter, WORDS * sizeof *words);
    rp_philox_stir(words, (guint64)key[1] << 32 | key[0]);
}

static void
philox_group(guint64 seed, guint64 stream, guint64 index, guint32 words[GROUP])
{
    guint32 *c[WORDS];

    for (guint row = 0; row < WORDS; row++)
        c[row] = words + row * COUNTERS;
    for (guint j = 0; j < COUNTERS; j++) {
        c[0][j] = (guint32)(index + j);
        c[1][j] = (guint32)((index + j) >> 32);
        c[2][j] = (guint32)stream;
        c[3][j] = (guint32)(stream >> 32);
    }
    for (guint32 round = 0; round < RP_PHILOX_ROUNDS; round++) {
        guint32 k0 = (guint32)seed + round * RP_PHILOX_W0;
        guint32 k1 = (guint32)(seed >> 32) + round * RP_PHILOX_W1;
        for (guint j = 0; j < COUNTERS; j++)
            rp_philox_round(&c[0][j], &c[1][j], &c[2][j], &c[3][j], k0, k1);
    }
}

/* ---- the inverse ---- */

/* ln(x) of a normal positive x, by + - x / alone: ln(m 2^e) = e ln 2 + 2 artanh((m - 1)/(m + 1)) */
static inline double
natural_log(double x)
{
    const double ln2 = 0x1.62e42fefa39efp-1;
    const double sqrt2 = 0x1.6a09e667f3bcdp+0;
    guint64 bits;
    double m;

    memcpy(&bits, &x, sizeof bits);
    gint32 exponent = (gint32)(bits >> 52) - 1023;
    bits = (bits & (((guint64)1 << 52) - 1)) | (guint64)1023 << 52;
    memcpy(&m, &bits, sizeof m);
    exponent += m > sqrt2;
    m = m > sqrt2 ? m / 2 : m;
    double z = (m - 1) / (m + 1); /* |z| < 0.172: z^23 / 23 is below half a unit of 2^-53 */
    double square = z * z;
    double sum = 1.0 / 21;
    sum = sum * square + 1.0 / 19;
    sum = sum * square + 1.0 / 17;
    sum = sum * square + 1.0 / 15;
    sum = sum * square + 1.0 / 13;
    sum = sum * square + 1.0 / 11;
    sum = sum * square + 1.0 / 9;
    sum = sum * square + 1.0 / 7;
    sum = sum * square + 1.0 / 5;
    sum = sum * square + 1.0 / 3;
    sum = sum * square + 1.0;
    return exponent * ln2 + 2 * z * sum;
}

/* @q: p - 1/2 */
static inline double
near_centre(double q)
{
    double r = 0.180625 - q * q;

    return q *
           (((5.9109374720e+01 * r + 1.5929113202e+02) * r + 5.0434271938e+01) * r +
            3.3871327179e+00) /
           (((6.7187563600e+01 * r + 7.8757757664e+01) * r + 1.7895169469e+01) * r + 1.0);
}

/* @r: square root of -ln(min(p, 1 - p)), up to 5 */
static inline double
in_tail(double r)
{
    r -= 1.6;
    return (((1.7023821103e-01 * r + 1.3067284816e+00) * r + 2.7568153900e+00) * r +
            1.4234372777e+00) /
           ((1.2021132975e-01 * r + 7.3700164250e-01) * r + 1.0);
}

/* The same above 5. */
static double
far_out(double r)
{
    r -= 5;
    return (((1.7337203997e-02 * r + 4.2868294337e-01) * r + 3.0812263860e+00) * r +
            6.6579051150e+00) /
           ((1.2258202635e-02 * r + 2.4197894225e-01) * r + 1.0);
}

double
rp_init_normal(double p)
{
    double q = p - 0.5;

    if (fabs(q) <= CENTRE)
        return near_centre(q);
    double r = sqrt(-natural_log(q < 0 ? p : 1 - p));
    double value = r <= 5 ? in_tail(r) : far_out(r);
    return q < 0 ? -value : value;
}

/* (word + 1/2) / 2^32, exactly: all processors convert signed numbers. */
static inline double
probability(guint32 word)
{
    return ((double)(gint32)(word ^ 0x80000000u) + 2147483648.5) * 0x1p-32;
}

/* @values: (out): normals of @words. None is far out: sqrt(-ln(2^-33)) is 4.8. */
static void
normal_group(const guint32 words[GROUP], double values[GROUP])
{
    guint32 tails[GROUP];
    guint16 places[GROUP];
    double tail_values[GROUP];
    guint n_tails = 0;

    for (guint i = 0; i < GROUP; i++)
        values[i] = near_centre(probability(words[i]) - 0.5);
    for (guint i = 0; i < GROUP; i++) {
        tails[n_tails] = words[i];
        places[n_tails] = (guint16)i;
        n_tails += fabs(probability(words[i]) - 0.5) > CENTRE;
    }
    for (guint i = 0; i < n_tails; i++) {
        double p = probability(tails[i]);
        double r = sqrt(-natural_log(p < 0.5 ? p : 1 - p));
        tail_values[i] = p < 0.5 ? -in_tail(r) : in_tail(r);
    }
    for (guint i = 0; i < n_tails; i++)
        values[places[i]] = tail_values[i];
}

void
rp_init_normals(guint64 seed, guint64 stream, double deviation, guint64 first, float *values,
                gsize n)
{
    guint32 words[GROUP];
    double normals[GROUP];
    float columns[GROUP];

    g_return_if_fail(values || n == 0);

    while (n > 0) {
        gsize skip = (gsize)(first % WORDS);
        gsize take = MIN(n, GROUP - skip);
        philox_group(seed, stream, first / WORDS, words);
        normal_group(words, normals);
        for (guint j = 0; j < COUNTERS; j++)
            for (guint word = 0; word < WORDS; word++)
                columns[j * WORDS + word] = (float)(deviation * normals[word * COUNTERS + j]);
        memcpy(values, columns + skip, take * sizeof *values);
        values += take;
        first += take;
        n -= take;
    }
}
