/**
 * MPI as a module: a shared library that a program loads when it is one of several servers, so that
 * nobody else waits for MPI's libraries.
 */
#pragma once

#include "exec/servers/transport.h"

#define RP_MPI_MODULE_FILE "roundpipe-mpi.so"
#define RP_MPI_MODULE_SYMBOL "rp_mpi_module"

/* The symbol that the module exports. */
const RpTransportOps *rp_mpi_module(void);
