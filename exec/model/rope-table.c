#include "exec/model/rope-table.h"

#include <math.h>

/* What torch makes of `scalar / tensor`: two roundings. */
static float
scalar_over(double scalar, float value)
{
    const float reciprocal = 1.0f / value;

    return reciprocal * (float)scalar;
}

static float
llama3_frequency(const RpRope *rope, float frequency)
{
    const double positions = rope->original_max_positions;
    const double low = rope->low_freq_factor;
    const double high = rope->high_freq_factor;
    const float factor = (float)rope->factor;
    const float wavelength = scalar_over(2 * G_PI, frequency);
    float smooth;

    if (wavelength > (float)(positions / low))
        return frequency / factor;
    if (wavelength < (float)(positions / high))
        return frequency;
    smooth = (scalar_over(positions, wavelength) - (float)low) / (float)(high - low);
    return (1.0f - smooth) * frequency / factor + smooth * frequency;
}

void
rp_rope_frequencies(const RpRope *rope, guint head_dim, float *frequencies)
{
    g_return_if_fail(rope && frequencies && head_dim % 2 == 0);

    for (guint i = 0; i < head_dim / 2; i++) {
        const float exponent = (float)(2 * i) / (float)head_dim;
        const float frequency = 1.0f / powf((float)rope->theta, exponent);

        frequencies[i] =
            rope->type == RP_ROPE_LLAMA3 ? llama3_frequency(rope, frequency) : frequency;
    }
}

void
rp_rope_table(const float *frequencies, guint head_dim, guint positions, float *cosines,
              float *sines)
{
    const size_t half = head_dim / 2;

    g_return_if_fail(frequencies && cosines && sines && head_dim % 2 == 0);

    for (size_t position = 0; position < positions; position++) {
        for (size_t i = 0; i < half; i++) {
            const float angle = (float)position * frequencies[i];

            cosines[position * half + i] = cosf(angle);
            sines[position * half + i] = sinf(angle);
        }
    }
}
