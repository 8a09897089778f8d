/* Profiles that are compared: those that are named, or all of a directory, small models first. */
#include "cli/reports/entries.h"

#include <string.h>

void
rp_cli_entry_free(gpointer data)
{
    RpCliEntry *entry = data;

    g_free(entry->path);
    g_free(entry->name);
    rp_profile_free(entry->profile);
    g_free(entry);
}

static gboolean
load_entry(const char *path, const RpArgs *args, GPtrArray *entries, GError **error)
{
    RpProfile *profile = rp_cli_load_profile(path, &args->box, args->run.plan.gpus, error);

    if (profile == NULL)
        return FALSE;
    RpCliEntry *entry = g_new0(RpCliEntry, 1);

    entry->profile = profile;
    entry->path = rp_cli_profile_path(path);
    entry->name = g_path_get_basename(path);
    if (g_str_has_suffix(entry->name, ".json"))
        entry->name[strlen(entry->name) - strlen(".json")] = '\0';
    g_ptr_array_add(entries, entry);
    return TRUE;
}

static gint64
model_time_ns(const RpProfile *profile)
{
    gint64 time_ns = 0;

    for (guint l = 0; l < profile->n_layers; l++)
        time_ns += profile->layers[l].forward_ns + profile->layers[l].backward_ns;
    return time_ns;
}

/* Small models first. */
static gint
compare_entries(gconstpointer a, gconstpointer b)
{
    const RpCliEntry *first = *(RpCliEntry *const *)a, *second = *(RpCliEntry *const *)b;
    gint64 first_ns = model_time_ns(first->profile), second_ns = model_time_ns(second->profile);

    if (first_ns != second_ns)
        return first_ns < second_ns ? -1 : 1;
    return strcmp(first->name, second->name);
}

static gboolean
load_directory(const char *directory, const RpArgs *args, GPtrArray *entries, GError **error)
{
    g_autoptr(GDir) files = g_dir_open(directory, 0, error);
    const char *name;

    if (files == NULL)
        return FALSE;
    while ((name = g_dir_read_name(files)) != NULL) {
        g_autofree char *path = g_build_filename(directory, name, NULL);

        if (g_str_has_suffix(name, ".json") && !load_entry(path, args, entries, error))
            return FALSE;
    }
    if (entries->len == 0) {
        g_set_error(error, G_FILE_ERROR, G_FILE_ERROR_NOENT,
                    "%s: expected profiles (*.json), found none", directory);
        return FALSE;
    }
    g_ptr_array_sort(entries, compare_entries);
    return TRUE;
}

gboolean
rp_cli_load_entries(char **paths, const char *profiles_dir, const RpArgs *args, GPtrArray *entries,
                    GError **error)
{
    g_autofree char *shipped = rp_cli_shipped_profiles("rtx4090");
    const char *directory = g_getenv("ROUNDPIPE_PROFILES");

    if (*paths != NULL && profiles_dir != NULL)
        return rp_cli_refuse(error, "--profiles: expected either a directory or files, found both");
    for (char **path = paths; *path != NULL; path++)
        if (!load_entry(*path, args, entries, error))
            return FALSE;
    if (entries->len > 0)
        return TRUE;
    if (profiles_dir != NULL)
        directory = profiles_dir;
    else if (directory == NULL || *directory == '\0')
        directory = shipped;
    return load_directory(directory, args, entries, error);
}
