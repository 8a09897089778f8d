/**
 * Shared by all systems. Private to sim/systems/.
 */
#pragma once

#include "sim/systems/systems.h"

/* In a ring over N GPUs, each moves (N - 1) / N of all bytes. */
double rp_system_ring(const RpSystemJob *job);

/* Micro-batches after each other on one GPU where each has its own, and of all together. */
guint rp_system_turns(const RpSystem *system, const RpSystemJob *job);

/* Tokens of a micro-batch. */
double rp_system_tokens(const RpSystemJob *job);

/* Inputs of all blocks (2ThL), one block's backward, and logits.
 * @logit_bytes: of one, where all are held */
double rp_system_activations(const RpSystemJob *job, double logit_bytes);
double rp_system_logits(const RpSystemJob *job, double logit_bytes);

/* Whether there is a block for each GPU. Errors: RP_SYSTEM_ERROR_MODEL */
gboolean rp_system_takes_stages(const RpSystemJob *job, GError **error);

/* Time of all layers on N GPUs, s. */
double rp_system_compute_s(const RpSystemJob *job);

/* The profile with times and activations of a micro-batch of job->sequences: both grow with tokens.
 * (transfer full) */
RpProfile *rp_system_scaled(const RpSystemJob *job);

extern const RpSystem rp_system_zero_2, rp_system_fsdp, rp_system_zero_infinity,
    rp_system_megatron_pp, rp_system_megatron_tp, rp_system_mobius, rp_system_roundpipe_sync,
    rp_system_roundpipe;
