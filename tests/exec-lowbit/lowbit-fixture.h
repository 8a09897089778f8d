/**
 * Tensors of the files in fixtures/, which make-lowbit.py makes.
 */
#pragma once

#include "tests/rp-test.h"

#include "core/lowbit/lowbit.h"
#include "exec/safetensors/safetensors.h"

#define LOWBIT_FIXTURES RP_SOURCE_ROOT "/tests/exec-lowbit/fixtures/"

RpSafetensors *lowbit_open(const char *file);
/* `NAME` `SUFFIX`, which must be there. */
const RpSafetensor *lowbit_find(const RpSafetensors *tensors, const char *name, const char *suffix);
/* All but the last two dimensions are matrices. */
RpLowbitShape lowbit_shape(const RpSafetensor *tensor);
/* Memory of exactly the bytes of a packed tensor, full of 0xa5. (transfer full) */
guint8 *lowbit_scratch(RpLowbit format, RpLowbitShape shape);
/* All strips of @source and their scales; must succeed. (transfer full) */
guint8 *lowbit_pack(RpLowbit format, const RpSafetensor *source);
/* Fails unless @part of @packed is the bytes of @want. */
void lowbit_assert_part(RpLowbit format, RpLowbitShape shape, const guint8 *packed,
                        RpLowbitPart part, const RpSafetensor *want);
/* Cuts a line of a table into its numbers, but the first line. (element-type double) */
GArray *lowbit_column(const char *file, guint column);
/* Value @i of make-lowbit.py's noise(), bits of bf16. */
guint16 lowbit_noise(guint64 i);
