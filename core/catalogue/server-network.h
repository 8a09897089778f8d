/**
 * Networks between servers: rows of a table, or a JSON file with the members of one.
 */
#pragma once

#include "core/catalogue/catalogue.h"

/* The link of each server, both directions at once. A message of n bytes takes
 * latency + n / (gbit / 8 x efficiency). */
typedef struct {
    const char *name;
    double gbit_per_s; /* the link's, 1e9 bits, in each direction */
    double latency_us; /* time of a message, from one host's memory to another's */
    double efficiency; /* payload that arrives, as a share of gbit_per_s */
} RpServerNetwork;

/* Bytes of payload a second, in each direction. */
double rp_server_network_bytes_per_s(const RpServerNetwork *network);

void rp_server_network_free(RpServerNetwork *network);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpServerNetwork, rp_server_network_free)

/**
 * rp_server_network_open:
 * @word: a name, or a path: a word with a slash or that ends in ".json"
 *
 * Returns: (transfer full)
 * Errors: RP_CATALOGUE_ERROR_FILE, naming the file's line and column, or the names that are known
 */
RpServerNetwork *rp_server_network_open(const char *word, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The same of a file's text. */
RpServerNetwork *rp_server_network_parse(const char *name, const char *text, gsize length,
                                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* A file's text. (transfer full) */
char *rp_server_network_to_json(const RpServerNetwork *network);
