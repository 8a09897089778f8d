/* Networks between servers. */
#include "core/catalogue/server-network.h"

#include <string.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/json/json-record.h"
#include "core/json/json-write.h"

#define MAX_FILE_BYTES (1u << 20)
#define MAX_TEXT 256

/*
 * Rates are those of the names, from IEEE 802.3 (ae, by, bj) and InfiniBand NDR with four lanes.
 *
 *   10GbE, 25GbE   efficiency: TCP's payload of 1,448 bytes in frames that take 1,538 on the wire
 *   100GbE         RoCE v2: 4,096 bytes of payload in frames of 4,178, with a margin
 *   IB400          4,096 bytes in packets of 4,126, with a margin
 *
 * Latencies, and the two margins of 5 %, are ASSUMED: nobody has measured them with this project.
 */
static const RpServerNetwork networks[] = {
    {"10GbE", 10, 30, 0.94},
    {"25GbE", 25, 20, 0.94},
    {"100GbE", 100, 5, 0.93},
    {"IB400", 400, 2, 0.94},
};

double
rp_server_network_bytes_per_s(const RpServerNetwork *network)
{
    return network->gbit_per_s * 1e9 / 8 * network->efficiency;
}

void
rp_server_network_free(RpServerNetwork *network)
{
    if (network == NULL)
        return;
    g_free((char *)network->name);
    g_free(network);
}

static const RpJsonField fields[] = {
    {"name", rp_json_read_text, G_STRUCT_OFFSET(RpServerNetwork, name), .max = MAX_TEXT,
     .required = TRUE},
    {"gbit_per_s", rp_json_read_number, G_STRUCT_OFFSET(RpServerNetwork, gbit_per_s), .min = 0.001,
     .max = 1e6, .required = TRUE, .expected = "Gbit/s of each server and direction, 0.001 to 1e6"},
    {"latency_us", rp_json_read_number, G_STRUCT_OFFSET(RpServerNetwork, latency_us), .min = 0,
     .max = 1e6, .required = TRUE, .expected = "microseconds of a message, 0 to 1e6"},
    {"efficiency", rp_json_read_number, G_STRUCT_OFFSET(RpServerNetwork, efficiency), .min = 0.01,
     .max = 1, .required = TRUE, .expected = "the payload's share of the rate, 0.01 to 1"},
};

RpServerNetwork *
rp_server_network_parse(const char *name, const char *text, gsize length, GError **error)
{
    g_autofree char *shown = rp_display_name(name);
    g_autoptr(RpServerNetwork) network = g_new0(RpServerNetwork, 1);
    RpJsonPull pull;

    return rp_json_pull_init(&pull, shown, text, length, RP_CATALOGUE_ERROR,
                             RP_CATALOGUE_ERROR_FILE, error) &&
                   rp_json_read_record(&pull, fields, G_N_ELEMENTS(fields), network, NULL) &&
                   rp_json_pull_end(&pull)
               ? g_steal_pointer(&network)
               : NULL;
}

static RpServerNetwork *
find(const char *word, GError **error)
{
    const char *names[G_N_ELEMENTS(networks) + 1] = {NULL};

    for (guint i = 0; i < G_N_ELEMENTS(networks); i++) {
        names[i] = networks[i].name;
        if (g_ascii_strcasecmp(word, names[i]) != 0)
            continue;
        RpServerNetwork *network = g_memdup2(&networks[i], sizeof networks[i]);

        network->name = g_strdup(names[i]);
        return network;
    }
    const char *nearest = rp_nearest_name(word, names);
    g_autofree char *known = g_strjoinv(", ", (char **)names);
    g_autofree char *shown = rp_display_name(word);

    return rp_null(rp_fail(error, RP_CATALOGUE_ERROR, RP_CATALOGUE_ERROR_FILE,
                           "unknown network \"%s\"%s%s%s; known: %s, or a FILE.json", shown,
                           nearest != NULL ? "; did you mean \"" : "",
                           nearest != NULL ? nearest : "", nearest != NULL ? "\"?" : "", known));
}

RpServerNetwork *
rp_server_network_open(const char *word, GError **error)
{
    g_autoptr(GError) problem = NULL;
    gsize length;

    if (strchr(word, G_DIR_SEPARATOR) == NULL && !g_str_has_suffix(word, ".json"))
        return find(word, error);
    g_autofree char *text = rp_file_read(word, MAX_FILE_BYTES, &length, &problem);

    if (text == NULL)
        return rp_null(
            rp_fail(error, RP_CATALOGUE_ERROR, RP_CATALOGUE_ERROR_FILE, "%s", problem->message));
    return rp_server_network_parse(word, text, length, error);
}

char *
rp_server_network_to_json(const RpServerNetwork *network)
{
    RpJsonWriter *json = rp_json_writer_new(RP_JSON_LINES);

    rp_json_object_as(json, NULL, RP_JSON_LINES);
    rp_json_string(json, "name", network->name);
    rp_json_double(json, "gbit_per_s", network->gbit_per_s, 6);
    rp_json_double(json, "latency_us", network->latency_us, 3);
    rp_json_double(json, "efficiency", network->efficiency, 6);
    rp_json_end(json);
    return rp_json_writer_finish(json);
}
