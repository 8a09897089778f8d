#include "core/catalogue/catalogue.h"

#include <string.h>

#include "core/base/suggest.h"
#include "core/catalogue/private.h"

G_DEFINE_QUARK(rp_catalogue_error, rp_catalogue_error)

const RpModel *
rp_model_list(guint *n_models)
{
    g_return_val_if_fail(n_models, NULL);
    *n_models = rp_catalogue_n_models;
    return rp_catalogue_models;
}

const RpGpu *
rp_gpu_list(guint *n_gpus)
{
    g_return_val_if_fail(n_gpus, NULL);
    *n_gpus = rp_catalogue_n_gpus;
    return rp_catalogue_gpus;
}

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
    if (nearest)
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
    g_return_val_if_fail(name, NULL);

    const char *last = without_organisation(name);

    for (guint i = 0; i < rp_catalogue_n_models; i++) {
        const RpModel *model = &rp_catalogue_models[i];
        if (g_ascii_strcasecmp(last, model->name) == 0 ||
            g_ascii_strcasecmp(last, without_organisation(model->hf_name)) == 0)
            return model;
    }
    g_autoptr(GPtrArray) names = g_ptr_array_new();
    for (guint i = 0; i < rp_catalogue_n_models; i++)
        g_ptr_array_add(names, (gpointer)rp_catalogue_models[i].name);
    g_ptr_array_add(names, NULL);
    set_unknown(error, RP_CATALOGUE_ERROR_MODEL, "model", last, names);
    return NULL;
}

const RpGpu *
rp_gpu_find(const char *name, GError **error)
{
    g_return_val_if_fail(name, NULL);

    for (guint i = 0; i < rp_catalogue_n_gpus; i++) {
        const RpGpu *gpu = &rp_catalogue_gpus[i];
        if (g_ascii_strcasecmp(name, gpu->name) == 0 || g_ascii_strcasecmp(name, gpu->title) == 0)
            return gpu;
    }
    g_autoptr(GPtrArray) names = g_ptr_array_new();
    for (guint i = 0; i < rp_catalogue_n_gpus; i++)
        g_ptr_array_add(names, (gpointer)rp_catalogue_gpus[i].name);
    g_ptr_array_add(names, NULL);
    set_unknown(error, RP_CATALOGUE_ERROR_GPU, "GPU", name, names);
    return NULL;
}

gboolean
rp_model_block_slides(const RpModel *model, guint block)
{
    g_return_val_if_fail(model && block < model->blocks, FALSE);
    return model->sliding_window > 0 && (block + 1) % model->sliding_period != 0;
}
