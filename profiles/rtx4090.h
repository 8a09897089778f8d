/**
 * The published RTX 4090 layer times as profiles.
 */
#pragma once

#include "core/profile/profile.h"

/**
 * rp_rtx4090_profiles:
 * @csv_path: profiles/rtx4090/layer-times.csv
 *
 * One profile a line: times and hop from the file; sizes, links and memory from the catalogue. The
 * embedding takes no time. The file does not split the backward pass: half of it is taken as weight
 * gradient, and none of it with LoRA, whose base weights have no gradient.
 *
 * Returns: (transfer full) (element-type RpProfile): the profiles, their `model` naming the file
 * Errors: G_FILE_ERROR, G_IO_ERROR_INVALID_DATA with the line, or those of the catalogue
 */
GPtrArray *rp_rtx4090_profiles(const char *csv_path, GError **error) G_GNUC_WARN_UNUSED_RESULT;
