/* Finds MPI's module. Looked for in this order:
 *
 *   EXE/../exec/servers, EXE/../../exec/servers   a build folder, wherever it was copied to
 *   EXE                                           beside the program
 *   EXE/../LIBDIR/roundpipe, PREFIX/LIBDIR/roundpipe   installed
 */
#include <dlfcn.h>
#include <string.h>

#include "exec/servers/transport.h"

/* (transfer full) (nullable) */
static char *
find_module(void)
{
    static const char *const places[] = {"../exec/servers", "../../exec/servers", "",
                                         "../" RP_LIBDIR "/roundpipe"};
    g_autofree char *program = g_file_read_link("/proc/self/exe", NULL);
    g_autofree char *directory = g_path_get_dirname(program != NULL ? program : ".");

    for (gsize i = 0; i <= G_N_ELEMENTS(places); i++) {
        char *path = i < G_N_ELEMENTS(places)
                         ? g_build_filename(directory, places[i], RP_MPI_MODULE_FILE, NULL)
                         : g_build_filename(RP_MODULE_DIR, RP_MPI_MODULE_FILE, NULL);

        if (g_file_test(path, G_FILE_TEST_IS_REGULAR))
            return path;
        g_free(path);
    }
    return NULL;
}

/* Its symbols become everybody's: MPI loads parts of its own that look for them. */
const RpTransportOps *
rp_transport_mpi(GError **error)
{
    g_autofree char *path = find_module();
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
