/**
 * The tables of rotary position embedding, with the roundings of transformers: fp32 throughout.
 * For every backend: the host computes them, a GPU gets a copy.
 */
#pragma once

#include "exec/model/hf-config.h"

/**
 * rp_rope_frequencies:
 * @head_dim: D, even
 * @tokens: S, of a sequence; dynamic ropes and longropes depend on it
 * @frequencies: (out): [D/2], radians per position
 *
 * plain:   f[i] = theta^(-2i/D)
 * linear:  f / factor
 * dynamic: f of the base theta (factor S / P - (factor - 1))^(D/(D-2)), if S > P, P =
 *          original_max_positions
 * llama3:  with w = 2 pi / f, C = original_max_positions:
 *          w > C / low_freq_factor:   f / factor
 *          w < C / high_freq_factor:  f
 *          between:                   (1 - s) f / factor + s f,
 *                                     s = (C/w - low) / (high - low)
 * yarn:    f / factor r[i] + f (1 - r[i]), r a ramp from 0 at pair(beta_fast) to 1 at
 *          pair(beta_slow), pair(n) = D ln(C / (2 pi n)) / (2 ln theta)
 * longrope: f / short_factor[i], if S > C f / long_factor[i]
 *
 * Source: transformers modeling_rope_utils.py, ROPE_INIT_FUNCTIONS and _compute_default_rope_
 *   parameters, operation by operation; for a dynamic rope the values of a first call with S tokens
 */
void rp_rope_frequencies(const RpRope *rope, guint head_dim, guint tokens, float *frequencies);

/* Factor of cosines and sines. */
static inline float
rp_rope_scale(const RpRope *rope)
{
    return rope->attention_factor > 0 ? (float)rope->attention_factor : 1.0f;
}

/**
 * rp_rope_table:
 * @frequencies: [D/2]
 * @positions: rows to make, from position 0 up
 * @scale: rp_rope_scale()
 * @cosines, @sines: (out): [positions,D/2], of the fp32 angle position x frequency
 *
 * Source: transformers Qwen3RotaryEmbedding.forward; its second half repeats the first
 */
void rp_rope_table(const float *frequencies, guint head_dim, guint positions, float scale,
                   float *cosines, float *sines);

/**
 * rp_rope_scale_queries:
 * @cosines, @sines: (inout): of rp_rope_table(), for queries: rope is linear, so that their scale may be its tables'
 *
 *   1 + beta ln(1 + floor(position / C)), C = original_max_positions
 *
 * Source: transformers models/ministral3, get_llama_4_attn_scale()
 */
void rp_rope_scale_queries(const RpRope *rope, guint head_dim, guint positions, float *cosines,
                           float *sines);
