/**
 * What the files profile*.c share.
 */
#pragma once

#include "core/profile/profile.h"
#include "core/profile/section.h"

#define RP_PROFILE_MAX_FILE_BYTES ((gsize)64 << 20)
#define RP_PROFILE_MAX_DEPTH 16                                /* nested objects and arrays */
#define RP_PROFILE_MAX_KEYS 64                                 /* keys of one object */
#define RP_PROFILE_MAX_VALUES 4194304                          /* values of a whole file */
#define RP_PROFILE_MAX_MS 1e9                                  /* of a layer, and of all together */
#define RP_PROFILE_MAX_BYTES (G_GUINT64_CONSTANT(1) << 50)     /* of a layer in one respect */
#define RP_PROFILE_MAX_SUM_BYTES (G_GUINT64_CONSTANT(1) << 53) /* of all layers in all respects */

/**
 * rp_profile_scan:
 * @name: file name for messages
 * @text: @length bytes
 *
 * Whether @text is one JSON value exactly as RFC 8259 has it, in UTF-8, without a NUL, within the
 * limits above, and without a key twice in an object. json-glib alone is laxer: it takes comments,
 * `var x = …`, octal numbers and duplicate keys, and its depth is bounded by the stack only.
 *
 * Errors: RP_PROFILE_ERROR_SYNTAX with line and column
 */
gboolean rp_profile_scan(const char *name, const char *text, gsize length,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The default of RpLayer.weight_gradient_ns. */
gint64 rp_profile_default_weight_gradient_ns(gint64 backward_ns);

/**
 * rp_profile_check_sizes:
 * @entries: (array length=profile.n_layers): which entry of `layers` each layer comes from
 *
 * Whether the sizes of the layers go with one another; borders, gradients and tied weights only in
 * a profile that has all sizes.
 *
 * Errors: RP_PROFILE_ERROR_VALUE naming the key and both numbers
 */
gboolean rp_profile_check_sizes(const RpSection *top, const RpProfile *profile,
                                const guint *entries) G_GNUC_WARN_UNUSED_RESULT;
