/**
 * Shared by the files of this folder.
 */
#pragma once

#include "core/json/json-record.h"
#include "core/json/json-write.h"
#include "core/profile/profile.h"

#define RP_PROFILE_MAX_FILE_BYTES ((gsize)64 << 20)
#define RP_PROFILE_MAX_MS 1e9                                  /* a layer's, and all layers' sum */
#define RP_PROFILE_MAX_BYTES (G_GUINT64_CONSTANT(1) << 50)     /* a layer's in one respect */
#define RP_PROFILE_MAX_SUM_BYTES (G_GUINT64_CONSTANT(1) << 53) /* all layers', in all respects */

/* The entry of `layers` that a layer comes from. */
typedef struct {
    guint index;
    const char *at; /* in the text */
} RpProfileEntry;

/* matmuls.c: a field whose member is the RpProfile. */
gboolean rp_profile_read_matmul_variants(RpJsonPull *pull, const RpJsonField *field,
                                         gpointer value);
void rp_profile_write_matmuls(RpJsonWriter *json, const RpProfile *profile);

/* The default of RpLayer.weight_gradient_ns. */
gint64 rp_profile_default_weight_gradient_ns(gint64 backward_ns);
/* All of a tied matrix, if the layer has as many gradient bytes. */
guint64 rp_profile_default_tied_gradient_bytes(const RpLayer *layer);

/**
 * rp_profile_check_layers:
 * @pull: the reader of the profile's text
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
