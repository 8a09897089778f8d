/**
 * Places of the elements of experts' adapters in tensors of a file: A [E,r,in] and B [E,out,r]
 * in one tensor of two dimensions each, or in tensors of each expert's matrices.
 */
#pragma once

#include "core/catalogue/model.h"
#include "exec/safetensors/safetensors.h"

/**
 * RpAdapterMap:
 * @stride: of one tensor: element (e, i, j) stands at e stride[0] + i stride[1] + j stride[2]
 * @parts: of tensors of experts: matrices that the stack joins (gate, up), each with as large a share
 *   of rows and of the rank; A's stand one below the other, and of B a part's rows are zeros but for
 *   its share of the rank:
 *
 *     A   |A of gate|       B   |B of gate|    0    |
 *         |A of up  |           |    0    |B of up  |
 *
 * @tensors: one, or @parts for each expert
 */
typedef struct {
    guint64 stride[RP_WEIGHT_MAX_RANK];
    guint parts; /* 0: one tensor */
    RpAdapterPart side;
    const RpSafetensor *tensors[];
} RpAdapterMap;
