/* Whether cuDNN is there. */
#include "exec/cuda/cudnn/cudnn.h"

#include <cudnn.h>
#include <dlfcn.h>

#define LEAST_VERSION 90600

/* Whether @name can be loaded, from @folder or where the loader looks. */
static gboolean
can_load(const char *folder, const char *name)
{
    g_autofree char *path = g_build_filename(folder, name, NULL);
    const int flags = RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE; /* cuDNN keeps them as well */
    void *library = dlopen(path, flags);

    if (library == NULL)
        library = dlopen(name, flags);
    if (library == NULL)
        return FALSE;
    dlclose(library);
    return TRUE;
}

/* The folder of the cuDNN that this process has loaded. */
static char *
find_folder(void)
{
    static const char first[] = "cudnnGetVersion";
    Dl_info info = {.dli_fname = NULL};
    void *symbol = dlsym(RTLD_DEFAULT, first);

    if (symbol != NULL && dladdr(symbol, &info) != 0 && info.dli_fname != NULL)
        return g_path_get_dirname(info.dli_fname);
    return g_strdup(".");
}

gboolean
rp_cudnn_available(void)
{
    /* libcudnn ends the process if one of these is missing */
    static const char *const parts[] = {
        "libcudnn_graph.so.9", "libcudnn_ops.so.9", "libcudnn_heuristic.so.9",
        "libcudnn_engines_precompiled.so.9", "libcudnn_engines_runtime_compiled.so.9"};
    g_autofree char *folder = find_folder();

    for (guint i = 0; i < G_N_ELEMENTS(parts); i++)
        if (!can_load(folder, parts[i]))
            return FALSE;
    return cudnnGetVersion() >= LEAST_VERSION && cudnnGetVersion() < 100000;
}
