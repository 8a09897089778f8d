#include "run/profile-name.h"

#include <string.h>

#define MAX_NAME 128 /* of a model, bytes */

char *
rp_profile_text(const char *text, gsize most)
{
    g_autofree char *valid = g_utf8_make_valid(text, -1);
    char *end = valid;

    for (char *p = valid; *p != '\0' && (gsize)(g_utf8_next_char(p) - valid) <= most;
         p = g_utf8_next_char(p)) {
        if ((guchar)*p < 0x20 || *p == 0x7f)
            *p = ' ';
        end = g_utf8_next_char(p);
    }
    return g_strndup(valid, (gsize)(end - valid));
}

void
rp_profile_name_model(RpProfile *profile, const char *word)
{
    g_autofree char *path = g_canonicalize_filename(word, NULL);
    g_autofree char *base = g_path_get_basename(path);

    if (strcmp(base, G_DIR_SEPARATOR_S) == 0)
        return;
    rp_profile_take(&profile->model, rp_profile_text(base, MAX_NAME));
}
