/**
 * fp16 steps whose forward overflows, on any backend: a model one of whose tokens is too large for
 * 16 bits in the first block, and steps that hold it or not.
 */
#pragma once

#include "tests/exec-train/train-fixture.h"

/* Steps with an overflow are skipped and the others are applied, with the same bits on 1 to 3
 * devices. (transfer full): the bits of the weights, to be compared with another backend's. */
char *rp_overflow_check_skips(const RpTinyModel *model, const RpDeviceOps *backend, gboolean async);

/* Too many overflows in a row end the run; the message says where the overflow was, the step and a
 * remedy. */
void rp_overflow_check_gives_up(const RpTinyModel *model, const RpDeviceOps *backend);
