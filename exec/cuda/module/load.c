/* Finds the module, and forwards calls to it. */
#include <dlfcn.h>
#include <string.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "exec/cuda/module/module.h"
#include "exec/device/error.h"
#include "exec/kernels/kernels.h"

/* The driver's own library. Where it is missing there are no GPUs. */
#define DRIVER "libcuda.so.1"

typedef struct {
    const RpCudaModule *module;
    char *problem; /* why there is none */
} Loaded;

/* Its symbols become everybody's: a library that was loaded before CUDA's finds theirs then. */
static void
open_module(Loaded *loaded, const char *path)
{
    static const gsize sizes[] = RP_CUDA_MODULE_SIZES;
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    void *symbol = library != NULL ? dlsym(library, RP_CUDA_MODULE_SYMBOL) : NULL;
    const RpCudaModule *(*table)(void);

    if (symbol == NULL) {
        const char *why = dlerror();

        loaded->problem = g_strdup_printf(
            "it cannot be loaded: %s; CUDA's libraries must be where the dynamic linker finds them",
            why != NULL ? why : path);
        return;
    }
    memcpy(&table, &symbol, sizeof table);
    if (memcmp(table()->sizes, sizes, sizeof sizes) == 0)
        loaded->module = table();
    else
        loaded->problem =
            g_strdup_printf("%s is of another build than the program: build both anew", path);
}

static const Loaded *
load(void)
{
    static Loaded loaded;
    static gsize ready;

    if (!g_once_init_enter(&ready))
        return &loaded;
    g_autofree char *directory = rp_file_own_directory();
    g_autofree char *path = rp_file_find_module("exec/cuda", RP_CUDA_MODULE_FILE);

    if (path != NULL)
        open_module(&loaded, path);
    else
        loaded.problem =
            g_strdup_printf(RP_CUDA_MODULE_FILE " is neither in %s nor in " RP_MODULE_DIR
                                                "; copy it beside the program",
                            directory);
    g_once_init_leave(&ready, 1);
    return &loaded;
}

static gboolean
has_driver(void)
{
    static gsize state; /* 1: no, 2: yes */

    if (g_once_init_enter(&state))
        g_once_init_leave(&state, dlopen(DRIVER, RTLD_LAZY) != NULL ? 2 : 1);
    return state == 2;
}

const RpDeviceOps *
rp_cuda_devices(void)
{
    const RpCudaModule *module = load()->module;

    return module != NULL ? module->devices() : NULL;
}

const char *
rp_cuda_missing_text(void)
{
    return load()->problem;
}

/* Without a driver, CUDA's libraries need not be loaded. */
guint
rp_cuda_device_count(void)
{
    return has_driver() && load()->module != NULL ? load()->module->device_count() : 0;
}

gboolean
rp_cuda_split_devices(const char *text, guint server, guint n, GError **error)
{
    if (has_driver() && load()->module != NULL)
        return load()->module->split_devices(text, server, n, error);
    return rp_fail(error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MISSING, "%s", rp_cuda_no_device_text());
}

const char *
rp_cuda_no_device_text(void)
{
    if (!has_driver())
        return "there is no driver (" DRIVER ")";
    return load()->module != NULL ? load()->module->no_device_text() : load()->problem;
}

gboolean
rp_cuda_device_info(guint device, RpCudaDeviceInfo *info, GError **error)
{
    if (has_driver() && load()->module != NULL)
        return load()->module->device_info(device, info, error);
    return rp_fail(error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MISSING, "%s", rp_cuda_no_device_text());
}
