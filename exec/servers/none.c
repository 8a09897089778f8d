/* In place of MPI where it is not built. */
#include "exec/servers/transport.h"

const RpTransportOps *
rp_transport_mpi(GError **error)
{
    g_set_error(error, RP_TRANSPORT_ERROR, RP_TRANSPORT_ERROR_MISSING,
                "this program was built without MPI (%s): build it anew where libopenmpi-dev or "
                "libmpich-dev is installed",
                rp_transport_built_text());
    return NULL;
}

const char *
rp_transport_built_text(void)
{
    return RP_MPI_WHY;
}
