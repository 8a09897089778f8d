/**
 * What the files of this folder share.
 */
#pragma once

#include "core/json/json-record.h"
#include "core/json/json-write.h"
#include "core/profile/profile.h"

#define RP_PROFILE_MAX_FILE_BYTES ((gsize)64 << 20)
#define RP_PROFILE_MAX_MS 1e9                                  /* of a layer, and of all together */
#define RP_PROFILE_MAX_BYTES (G_GUINT64_CONSTANT(1) << 50)     /* of a layer in one respect */
#define RP_PROFILE_MAX_SUM_BYTES (G_GUINT64_CONSTANT(1) << 53) /* of all layers in all respects */

/* The entry of `layers` that a layer comes from. */
typedef struct {
    guint index;
    const char *at; /* in the text */
} RpProfileEntry;

/* matmuls.c: of a field whose member is the RpProfile. */
gboolean rp_profile_read_matmul_ways(RpJsonPull *pull, const RpJsonField *field, gpointer value);
void rp_profile_write_matmuls(RpJsonWriter *json, const RpProfile *profile);

/* The default of RpLayer.weight_gradient_ns. */
gint64 rp_profile_default_weight_gradient_ns(gint64 backward_ns);
/* All of a tied matrix, if the layer has so many. */
guint64 rp_profile_default_tied_gradient_bytes(const RpLayer *layer);

/**
 * rp_profile_check_layers:
 * @pull: whose text the profile is from
 * @layers: where the array stands in the text
 * @entries: (array length=profile.n_layers):
 *
 * Whether there is a block, sums are within their limits, and the sizes of the layers go with one
 * another; borders, gradients and tied weights only in a profile that has all sizes.
 *
 * Errors: RP_PROFILE_ERROR_VALUE naming the key and both numbers
 */
gboolean rp_profile_check_layers(RpJsonPull *pull, const RpProfile *profile, const char *layers,
                                 const RpProfileEntry *entries) G_GNUC_WARN_UNUSED_RESULT;
