#include "exec/model/rope-table.h"

#include <math.h>

/* Computes torch's `scalar / tensor`, which rounds twice. */
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

    if (wavelength > (float)(positions / low))
        return frequency / factor;
    if (wavelength < (float)(positions / high))
        return frequency;
    float smooth = (scalar_over(positions, wavelength) - (float)low) / (float)(high - low);
    return (1.0f - smooth) * frequency / factor + smooth * frequency;
}

/* The base of a sequence of @tokens. */
static float
dynamic_base(const RpRope *rope, guint head_dim, guint tokens)
{
    const float longest = (float)rope->original_max_positions;
    const float stretch =
        (float)rope->factor * MAX((float)tokens, longest) / longest - (float)(rope->factor - 1);

    return powf(stretch, (float)((double)head_dim / (head_dim - 2.0))) * (float)rope->theta;
}

/* The pair of the head that rotates @turns times within the original positions. */
static double
yarn_pair(const RpRope *rope, guint head_dim, double turns)
{
    return head_dim * log(rope->original_max_positions / (turns * 2 * G_PI)) /
           (2 * log(rope->theta));
}

static void
yarn_frequencies(const RpRope *rope, guint head_dim, float *frequencies)
{
    double low = yarn_pair(rope, head_dim, rope->beta_fast);
    double high = yarn_pair(rope, head_dim, rope->beta_slow);

    if (rope->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = MAX(low, 0);
    high = MIN(high, head_dim - 1.0);
    if (low == high)
        high += 0.001;
    for (guint i = 0; i < head_dim / 2; i++) {
        const float power = powf((float)rope->theta, (float)(2 * i) / (float)head_dim);
        const float ramp = ((float)i - (float)low) / (float)(high - low);
        const float kept = 1.0f - CLAMP(ramp, 0.0f, 1.0f);

        frequencies[i] = 1.0f / ((float)rope->factor * power) * (1.0f - kept) + 1.0f / power * kept;
    }
}

static void
longrope_frequencies(const RpRope *rope, guint head_dim, guint tokens, float *frequencies)
{
    const float *factors =
        tokens > rope->original_max_positions ? rope->long_factor : rope->short_factor;

    for (guint i = 0; i < head_dim / 2; i++)
        frequencies[i] =
            1.0f / (factors[i] * powf((float)rope->theta, (float)(2 * i) / (float)head_dim));
}

void
rp_rope_frequencies(const RpRope *rope, guint head_dim, guint tokens, float *frequencies)
{
    g_return_if_fail(rope && frequencies && head_dim % 2 == 0);

    const float base = rope->type == RP_ROPE_DYNAMIC && tokens > rope->original_max_positions
                           ? dynamic_base(rope, head_dim, tokens)
                           : (float)rope->theta;

    if (rope->type == RP_ROPE_YARN) {
        yarn_frequencies(rope, head_dim, frequencies);
        return;
    }
    if (rope->type == RP_ROPE_LONGROPE) {
        longrope_frequencies(rope, head_dim, tokens, frequencies);
        return;
    }
    for (guint i = 0; i < head_dim / 2; i++) {
        const float exponent = (float)(2 * i) / (float)head_dim;
        const float frequency = 1.0f / powf(base, exponent);

        frequencies[i] = rope->type == RP_ROPE_LLAMA3   ? llama3_frequency(rope, frequency)
                         : rope->type == RP_ROPE_LINEAR ? frequency / (float)rope->factor
                                                        : frequency;
    }
}

void
rp_rope_table(const float *frequencies, guint head_dim, guint positions, float scale,
              float *cosines, float *sines)
{
    const size_t half = head_dim / 2;

    g_return_if_fail(frequencies && cosines && sines && head_dim % 2 == 0);

    for (size_t position = 0; position < positions; position++) {
        for (size_t i = 0; i < half; i++) {
            const float angle = (float)position * frequencies[i];

            cosines[position * half + i] = scale * cosf(angle);
            sines[position * half + i] = scale * sinf(angle);
        }
    }
}

void
rp_rope_scale_queries(const RpRope *rope, guint head_dim, guint positions, float *cosines,
                      float *sines)
{
    const size_t half = head_dim / 2;

    g_return_if_fail(rope && rope->original_max_positions > 0 && cosines && sines);

    for (size_t position = 0; position < positions; position++) {
        const float turns = floorf((float)position / (float)rope->original_max_positions);
        const float scale = 1.0f + (float)rope->query_beta * logf(1.0f + turns);

        for (size_t i = 0; i < half; i++) {
            cosines[position * half + i] *= scale;
            sines[position * half + i] *= scale;
        }
    }
}
