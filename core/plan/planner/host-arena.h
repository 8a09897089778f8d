/**
 * The host's arena: weights, gradients and optimizer state of every layer (rp_plan_layer()), and
 * the activations and gradients that wait between two stages, or, as saved tensors do, for their
 * backward.
 */
#pragma once

#include "core/plan/job/job.h"

typedef struct _RpHostArena RpHostArena;

/* Places the layers and decisions of the plan, and waiting values. */
RpHostArena *rp_host_arena_new(const RpPlanJob *job);

/* Input of @layer; RP_NONE of the first. */
guint32 rp_host_arena_activation(const RpHostArena *arena, guint32 layer, guint32 micro_batch);
/* The buffer of the tensors that @layer's forward saves; RP_NONE: it saves nothing. */
guint32 rp_host_arena_saved(const RpHostArena *arena, guint32 layer, guint32 micro_batch);
/* Gradient of its input that a backward of @stage makes. */
guint32 rp_host_arena_gradient(const RpHostArena *arena, guint32 stage, guint32 micro_batch);
