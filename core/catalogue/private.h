/**
 * The tables behind core/catalogue/catalogue.h.
 */
#pragma once

#include "core/catalogue/catalogue.h"

extern const RpModel rp_catalogue_models[];
extern const guint rp_catalogue_n_models;
extern const RpGpu rp_catalogue_gpus[];
extern const guint rp_catalogue_n_gpus;
