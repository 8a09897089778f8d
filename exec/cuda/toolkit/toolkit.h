/**
 * Whether GPU code was built into this program, as Meson found it: CUDA is not called for it.
 */
#pragma once

#include <glib.h>

gboolean rp_cuda_built(void);

/* "CUDA 13.0.88, for cards of compute capability 80, 90", or "not built in: there was no nvcc in
 * PATH (docs/gpu.md)". */
const char *rp_cuda_built_text(void);
