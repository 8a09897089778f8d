/**
 * Sums over a layer's weights for the cost model: tensors, trained parameters, packed uploads, and
 * the work of adapters.
 */
#pragma once

#include "core/catalogue/cost/cost-model.h"
#include "core/lowbit/lowbit.h"

typedef struct {
    double adapter_elements; /* that a token passes */
    double adapter_in;       /* elements of their inputs, and of their outputs, for a token */
    double adapter_out;
    double expand_bytes; /* packed ones read, 16-bit ones written */
    gboolean mlp_apart;  /* gate and up are not one matmul: biases, adapters, experts */
} RpCostWeights;

/* Sets tensors, parameter, gradient and upload bytes of layer @index. @workload: checked */
RpCostWeights rp_cost_weights(const RpModel *model, const RpWorkload *workload, RpProfile *profile,
                              guint index);

/* Whether LoRA's base is packed; @format: (out): how. @base: as RpWorkload's */
gboolean rp_cost_base_is_packed(const char *base, RpLowbit *format);
