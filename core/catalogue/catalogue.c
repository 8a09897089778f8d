#include "core/catalogue/catalogue.h"

#include <string.h>

#include "core/base/quote.h"

G_DEFINE_QUARK(rp_catalogue_error, rp_catalogue_error)

/* `unknown model "quen3-8b"; did you mean "qwen3-8b"? known: …` */
static void
set_unknown(GError **error, RpCatalogueError code, const char *what, const char *name,
            const GPtrArray *names)
{
    const char *const *known = (const char *const *)names->pdata;
    const char *nearest = rp_nearest_name(name, known);
    g_autofree char *list = g_strjoinv(", ", (char **)names->pdata);
    g_autofree char *shown = g_utf8_make_valid(name, -1);

    g_strdelimit(shown, "\n\r\t", ' ');
    if (nearest != NULL)
        g_set_error(error, RP_CATALOGUE_ERROR, code,
                    "unknown %s \"%.60s\"; did you mean \"%s\"? known: %s", what, shown, nearest,
                    list);
    else
        g_set_error(error, RP_CATALOGUE_ERROR, code, "unknown %s \"%.60s\"; known: %s", what, shown,
                    list);
}

/* "unsloth/Qwen3-8B" has the shapes of Qwen/Qwen3-8B: who published it is no matter. */
static const char *
without_organisation(const char *name)
{
    const char *slash = strrchr(name, '/');

    return slash != NULL && slash[1] != '\0' ? slash + 1 : name;
}

const RpModel *
rp_model_find(const char *name, GError **error)
{
    g_return_val_if_fail(name != NULL, NULL);

    const char *last = without_organisation(name);
    g_autoptr(GPtrArray) names = g_ptr_array_new();
    guint n;
    const RpModel *models = rp_model_list(&n);

    for (guint i = 0; i < n; i++) {
        if (g_ascii_strcasecmp(last, models[i].name) == 0 ||
            g_ascii_strcasecmp(last, without_organisation(models[i].hf_name)) == 0)
            return &models[i];
        g_ptr_array_add(names, (gpointer)models[i].name);
    }
    g_ptr_array_add(names, NULL);
    set_unknown(error, RP_CATALOGUE_ERROR_MODEL, "model", last, names);
    return NULL;
}

/* The first name in @directory with @ending. (transfer full) (nullable) */
static char *
find_ending(const char *directory, const char *ending)
{
    g_autoptr(GDir) names = g_dir_open(directory, 0, NULL);
    const char *name = NULL;

    while (names != NULL && (name = g_dir_read_name(names)) != NULL)
        if (g_str_has_suffix(name, ending))
            break;
    return g_strdup(name);
}

char *
rp_model_hint(const char *path)
{
    g_return_val_if_fail(path != NULL, NULL);

    if (!g_file_test(path, G_FILE_TEST_EXISTS)) {
        const RpModel *model = rp_model_find(path, NULL);

        g_autofree char *revision = NULL;
        g_autofree char *name = rp_model_hub_name(path, &revision);

        if (name != NULL) {
            g_autofree char *cached = rp_model_hub_directory(name);

            return g_strdup_printf(
                "no such directory, and %s has no whole snapshot%s%s either; "
                "`hf download %s%s%s` fetches the model there",
                cached, revision != NULL ? " of " : "", revision != NULL ? revision : "", name,
                revision != NULL ? " --revision " : "", revision != NULL ? revision : "");
        }
        return model == NULL || strchr(path, '/') != NULL
                   ? NULL
                   : g_strdup_printf("no such directory; `hf download %s --local-dir %s` fetches "
                                     "the model there",
                                     model->hf_name, path);
    }
    if (g_str_has_suffix(path, ".gguf"))
        return g_strdup("GGUF is for inference alone; expected the model's directory with "
                        "config.json and safetensors, as `hf download` fetches it");
    g_autofree char *snapshots = g_build_filename(path, "snapshots", NULL);
    g_autofree char *snapshot = find_ending(snapshots, "");
    g_autofree char *gguf = find_ending(path, ".gguf");
    g_autofree char *pickled = find_ending(path, ".bin");

    if (snapshot != NULL)
        return g_strdup_printf("a folder of the hub's cache without refs/main; a model is in %s/%s",
                               snapshots, snapshot);
    if (gguf != NULL)
        return g_strdup_printf("%s is for inference alone; expected config.json and safetensors, "
                               "as `hf download` fetches them",
                               gguf);
    if (pickled == NULL)
        return NULL;
    return g_strdup_printf("%s is pickled by PyTorch; expected safetensors: "
                           "AutoModelForCausalLM.from_pretrained(\"%s\").save_pretrained(\"%s\") "
                           "of transformers writes them",
                           pickled, path, path);
}

/* A card's name without its makers' words: "NVIDIA GeForce RTX 4090", "rtx-4090" and "4090" are all
 * "4090". (transfer full) */
static char *
bare_name(const char *name)
{
    static const char *const words[] = {"nvidia", "geforce",  "quadro", "rtx", "tesla",
                                        "amd",    "instinct", "radeon", NULL};
    g_autofree char *lower = g_ascii_strdown(name, -1);
    GString *bare = g_string_new(NULL);

    for (const char *p = lower; *p != '\0';) {
        gsize length = strspn(p, " -");

        for (guint i = 0; length == 0 && words[i] != NULL; i++)
            if (g_str_has_prefix(p, words[i]))
                length = strlen(words[i]);
        if (length == 0)
            g_string_append_c(bare, *p++);
        p += length;
    }
    return g_string_free(bare, FALSE);
}

const RpGpu *
rp_gpu_find(const char *name, GError **error)
{
    g_return_val_if_fail(name != NULL, NULL);

    g_autoptr(GPtrArray) names = g_ptr_array_new();
    g_autofree char *bare = bare_name(name);
    guint n;
    const RpGpu *gpus = rp_gpu_list(&n);

    for (guint i = 0; i < n; i++) {
        g_autofree char *own = bare_name(gpus[i].name);
        g_autofree char *title = bare_name(gpus[i].title);

        if (*bare != '\0' && (strcmp(bare, own) == 0 || strcmp(bare, title) == 0))
            return &gpus[i];
        g_ptr_array_add(names, (gpointer)gpus[i].name);
    }
    g_ptr_array_add(names, NULL);
    set_unknown(error, RP_CATALOGUE_ERROR_GPU, "GPU", name, names);
    return NULL;
}
