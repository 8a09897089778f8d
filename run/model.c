#include "run/model.h"

#include <string.h>

#include "exec/model/hf-config.h"

#define RANDOM "random:"
#define MAX_NAME 128 /* of a model, bytes */

static gboolean
is_file(const char *word)
{
    return g_path_is_absolute(word) || *word == '.' || g_str_has_suffix(word, ".json") ||
           (rp_model_find(word, NULL) == NULL && g_file_test(word, G_FILE_TEST_EXISTS));
}

gboolean
rp_run_find_model(const char *word, RpModel *model, GError **error)
{
    if (is_file(word))
        return rp_hf_config_load(word, model, error);
    const RpModel *found = rp_model_find(word, error);

    if (found != NULL)
        *model = *found;
    return found != NULL;
}

char *
rp_run_find_directory(const char *word)
{
    g_autofree char *full = g_canonicalize_filename(word, NULL);

    if (!is_file(word))
        return NULL;
    return g_file_test(full, G_FILE_TEST_IS_DIR) ? g_steal_pointer(&full)
                                                 : g_path_get_dirname(full);
}

gboolean
rp_run_model_is_random(const char *model)
{
    return g_str_has_prefix(model, RANDOM);
}

char *
rp_run_model_directory(const char *model)
{
    return rp_run_model_is_random(model) ? rp_run_find_directory(model + strlen(RANDOM))
                                         : g_strdup(model);
}

const RpModel *
rp_run_model_named(const char *model)
{
    return is_file(model) || g_file_test(model, G_FILE_TEST_EXISTS) ? NULL
                                                                    : rp_model_find(model, NULL);
}

gboolean
rp_run_model_load(const char *model, RpModel *config, GError **error)
{
    if (!rp_run_model_is_random(model))
        return rp_hf_config_load(model, config, error);
    if (model[strlen(RANDOM)] != '\0')
        return rp_run_find_model(model + strlen(RANDOM), config, error) &&
               rp_hf_config_check_runs(config, error);
    g_set_error(error, RP_CATALOGUE_ERROR, RP_CATALOGUE_ERROR_MODEL,
                "expected a model of the catalogue (`roundpipe models`), or a config.json or its "
                "directory, behind " RANDOM ", found nothing");
    return FALSE;
}

/* ---- in profiles ---- */

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
