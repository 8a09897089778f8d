/**
 * Weight decay applies to weights, not to norms and biases.
 */
#pragma once

#include <glib.h>

/* Consecutive parameters of a layer that are treated alike, one tensor say. */
typedef struct {
    gsize n_parameters;
    gboolean decays; /* weight decay applies */
} RpParameterSpan;

/**
 * rp_parameter_decays:
 * @name: Hugging Face name, e.g. "model.layers.0.self_attn.q_norm.weight"
 * @n_dims: dimensions of the tensor
 *
 * Returns: %FALSE for tensors of one dimension, biases, and parts of a norm
 * Source: transformers, Trainer.get_decay_parameter_names, which lets attention sinks decay, though they
 *   are of one dimension
 */
gboolean rp_parameter_decays(const char *name, guint n_dims);
