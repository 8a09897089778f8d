/**
 * Tests that every transport must pass; they are called on each of the servers.
 */
#pragma once

#include "exec/servers/servers.h"

/* Runs all kinds of exchanges and checks each server's results. @bytes: of the largest block.
 * Returns: (transfer full) (nullable): the first wrong result */
char *exchanges_find_wrong(RpServers *servers, gsize bytes);
