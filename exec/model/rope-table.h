/**
 * The tables of rotary position embedding, with the roundings of transformers: fp32 throughout.
 * For every backend: the host computes them, a GPU gets a copy.
 */
#pragma once

#include "exec/model/hf-config.h"

/**
 * rp_rope_frequencies:
 * @head_dim: D, even
 * @frequencies: (out): [D/2], radians per position
 *
 * plain:   f[i] = theta^(-2i/D)
 * llama3:  with w = 2 pi / f, C = original_max_positions:
 *          w > C / low_freq_factor:   f / factor
 *          w < C / high_freq_factor:  f
 *          between:                   (1 - s) f / factor + s f,
 *                                     s = (C/w - low) / (high - low)
 *
 * Source: transformers modeling_rope_utils.py, _compute_default_rope_parameters and
 *   _compute_llama3_parameters, operation by operation
 */
void rp_rope_frequencies(const RpRope *rope, guint head_dim, float *frequencies);

/**
 * rp_rope_table:
 * @frequencies: [D/2]
 * @positions: rows to make, from position 0 up
 * @cosines, @sines: (out): [positions,D/2], of the fp32 angle position x frequency
 *
 * Source: transformers Qwen3RotaryEmbedding.forward; its second half repeats the first
 */
void rp_rope_table(const float *frequencies, guint head_dim, guint positions, float *cosines,
                   float *sines);
