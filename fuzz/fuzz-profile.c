/**
 * Reading a profile neither crashes nor leaks, whatever the bytes; a refusal is one line; an
 * accepted profile can be written, read again, and is then written in the same bytes.
 */
#include "fuzz/harness.h"

#include "core/profile/profile.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(RpProfile) profile = rp_profile_parse("fuzz", (const char *)data, size, &error);

    if (!was_taken(profile != NULL, error))
        return 0;
    g_autofree char *text = rp_profile_to_json(profile);
    g_autoptr(RpProfile) again = rp_profile_parse("again", text, strlen(text), &error);
    g_assert_no_error(error);
    g_assert(again->n_layers == profile->n_layers);
    g_assert(again->has_sizes == profile->has_sizes);
    g_autofree char *same = rp_profile_to_json(again);
    g_assert_cmpstr(text, ==, same);
    return 0;
}
