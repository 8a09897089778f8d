/*
 * The cache of Hugging Face's hub, as its own tools fill it:
 *
 *   models--Qwen--Qwen3-8B/refs/main            a commit, in text; other revisions beside it
 *                          snapshots/COMMIT/    config.json and the rest, links into blobs/
 */
#include "core/catalogue/catalogue.h"

#include <string.h>

#define MAX_HUB_NAME 96  /* bytes of each part, as the hub has it */
#define MAX_REVISION 128 /* bytes */
#define COMMIT_LENGTH 40
#define MAIN "main"

/* Letters, digits, and dots, hyphens and underscores between them, but no two dots in a row. */
static gboolean
is_part(const char *text, gsize length)
{
    if (length == 0 || length > MAX_HUB_NAME || !g_ascii_isalnum(text[length - 1]))
        return FALSE;
    for (gsize i = 0; i < length; i++)
        if (!g_ascii_isalnum(text[i]) &&
            (i == 0 || strchr("-_.", text[i]) == NULL || (text[i] == '.' && text[i - 1] == '.')))
            return FALSE;
    return TRUE;
}

/* A branch, a tag or a commit: parts between slashes, as of "refs/pr/1". */
static gboolean
is_revision(const char *text)
{
    g_auto(GStrv) parts = g_strsplit(text, "/", -1);

    for (char **part = parts; *part != NULL; part++)
        if (!is_part(*part, strlen(*part)))
            return FALSE;
    return *text != '\0' && strlen(text) <= MAX_REVISION;
}

char *
rp_model_hub_name(const char *word, char **revision)
{
    g_return_val_if_fail(word != NULL, NULL);

    const char *slash = strchr(word, '/');
    const char *at = slash != NULL ? strchr(slash, '@') : NULL;
    const gsize length = at != NULL ? (gsize)(at - word) : strlen(word);

    if (slash == NULL || !is_part(word, (gsize)(slash - word)) ||
        !is_part(slash + 1, length - (gsize)(slash + 1 - word)) ||
        (at != NULL && !is_revision(at + 1)) || g_str_has_suffix(word, ".json") ||
        g_str_has_suffix(word, ".safetensors") || g_file_test(word, G_FILE_TEST_EXISTS))
        return NULL;
    if (revision != NULL)
        *revision = at != NULL ? g_strdup(at + 1) : NULL;
    return g_strndup(word, length);
}

gboolean
rp_model_is_hub_name(const char *word)
{
    g_autofree char *name = rp_model_hub_name(word, NULL);

    return name != NULL;
}

/* (transfer full) */
static char *
hub_cache(void)
{
    const char *cache = g_getenv("HF_HUB_CACHE"), *home = g_getenv("HF_HOME");

    if (cache != NULL && *cache != '\0')
        return g_strdup(cache);
    return home != NULL && *home != '\0'
               ? g_build_filename(home, "hub", NULL)
               : g_build_filename(g_get_user_cache_dir(), "huggingface", "hub", NULL);
}

/* The snapshot that @repository's @revision is; %NULL: none is there. (transfer full) */
static char *
find_snapshot(const char *repository, const char *revision)
{
    g_autofree char *ref = g_build_filename(repository, "refs", revision, NULL);
    g_autofree char *commit = NULL;

    /* a commit has no file of its own */
    if (!g_file_get_contents(ref, &commit, NULL, NULL))
        commit = g_strdup(revision);
    g_strstrip(commit);
    if (strspn(commit, "0123456789abcdef") != COMMIT_LENGTH || commit[COMMIT_LENGTH] != '\0')
        return NULL;
    g_autofree char *snapshot = g_build_filename(repository, "snapshots", commit, NULL);

    return g_file_test(snapshot, G_FILE_TEST_IS_DIR) ? g_steal_pointer(&snapshot) : NULL;
}

char *
rp_model_hub_directory(const char *name)
{
    g_return_val_if_fail(name != NULL && strchr(name, '/') != NULL, NULL);

    g_autofree char *cache = hub_cache();
    g_auto(GStrv) parts = g_strsplit(name, "/", 2);
    g_autofree char *folder = g_strdup_printf("models--%s--%s", parts[0], parts[1]);

    return g_build_filename(cache, folder, NULL);
}

char *
rp_model_path(const char *word)
{
    g_return_val_if_fail(word != NULL, NULL);

    g_autofree char *base = g_path_get_basename(word);
    g_autofree char *revision = NULL;
    g_autofree char *name = rp_model_hub_name(word, &revision);
    g_autofree char *repository = NULL;

    if (g_str_has_prefix(base, "models--"))
        repository = g_strdup(word);
    else if (name != NULL)
        repository = rp_model_hub_directory(name);
    char *snapshot =
        repository != NULL ? find_snapshot(repository, revision != NULL ? revision : MAIN) : NULL;

    return snapshot != NULL ? snapshot : g_strdup(word);
}
