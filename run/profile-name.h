/**
 * Names in profiles that are measured.
 */
#pragma once

#include "core/profile/profile.h"

/* One line of valid text of at most so many bytes, as a profile may have. (transfer full) */
char *rp_profile_text(const char *text, gsize most);
/* A profile that was measured has the name of its model's directory, or of the catalogue: @word. */
void rp_profile_name_model(RpProfile *profile, const char *word);
