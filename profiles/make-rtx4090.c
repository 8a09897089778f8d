/**
 * Writes profiles/rtx4090/MODEL.json from the published layer times:
 *
 *   make-rtx4090 profiles/rtx4090
 */
#include <stdio.h>

#include "profiles/rtx4090.h"

static gboolean
make(const char *directory, GError **error)
{
    g_autofree char *csv = g_build_filename(directory, "layer-times.csv", NULL);
    g_autoptr(GPtrArray) profiles = rp_rtx4090_profiles(csv, error);

    if (profiles == NULL)
        return FALSE;
    for (guint i = 0; i < profiles->len; i++) {
        const RpProfile *profile = g_ptr_array_index(profiles, i);
        g_autofree char *name = g_strconcat(profile->model, ".json", NULL);
        g_autofree char *path = g_build_filename(directory, name, NULL);

        if (!rp_profile_save(profile, path, error))
            return FALSE;
        printf("%s\n", path);
    }
    return TRUE;
}

int
main(int argc, char **argv)
{
    g_autoptr(GError) error = NULL;

    if (argc != 2) {
        fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
        return 2;
    }
    if (make(argv[1], &error))
        return 0;
    fprintf(stderr, "%s: %s\n", argv[0], error->message);
    return 1;
}
