/* Finds MPI's module. */
#include <dlfcn.h>
#include <string.h>

#include "core/base/file.h"
#include "exec/servers/transport.h"

/* Its symbols become everybody's: MPI loads parts of its own that look for them. */
const RpTransportOps *
rp_transport_mpi(GError **error)
{
    g_autofree char *path = rp_file_find_module("exec/servers", RP_MPI_MODULE_FILE);
    void *library = path != NULL ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;
    void *symbol = library != NULL ? dlsym(library, RP_MPI_MODULE_SYMBOL) : NULL;
    const RpTransportOps *(*table)(void);

    if (symbol != NULL) {
        memcpy(&table, &symbol, sizeof table);
        return table();
    }
    const char *why = path != NULL ? dlerror() : RP_MPI_MODULE_FILE " is not beside the program";

    g_set_error(
        error, RP_TRANSPORT_ERROR, RP_TRANSPORT_ERROR_MISSING,
        "MPI cannot be loaded: %s; its libraries must be where the dynamic linker finds them",
        why != NULL ? why : path);
    return NULL;
}

const char *
rp_transport_built_text(void)
{
    return RP_MPI_NAME;
}
