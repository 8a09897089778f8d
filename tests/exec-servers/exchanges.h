/**
 * What every transport is held to: called on each of the servers.
 */
#pragma once

#include "exec/servers/servers.h"

/* All kinds of exchanges, with what each server must then have. @bytes: of the largest block. Returns:
 * (transfer full) (nullable): what is wrong */
char *exchanges_find_wrong(RpServers *servers, gsize bytes);
