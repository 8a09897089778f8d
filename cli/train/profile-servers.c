/* roundpipe profile --servers: the network between servers, for plan and simulate. */
#include "cli/train/train.h"

#include "core/catalogue/server-network.h"
#include "run/train/train.h"

static void
report_speeds(RpReport *report, const RpServers *servers, const RpServersSpeed *speeds,
              const RpServerNetwork *network, const char *output)
{
    rp_report_table(report, "servers", NULL, 0);
    for (guint r = 0; r < rp_servers_count(servers); r++) {
        rp_report_object(report, NULL, NULL);
        rp_report_text(report, "name", rp_servers_name(servers, r), "<server");
        rp_report_real(report, "gb_per_s", speeds[r].bytes_per_s / 1e9, 6, "GB/s to the others");
        rp_report_show(report, "%.3g", speeds[r].bytes_per_s / 1e9);
        rp_report_real(report, "latency_us", (double)speeds[r].latency_ns / 1e3, 3, "us a message");
        rp_report_show(report, "%.1f", (double)speeds[r].latency_ns / 1e3);
        rp_report_end(report);
    }
    rp_report_end(report);
    rp_report_real(report, "gbit_per_s", network->gbit_per_s, 6, NULL);
    rp_report_real(report, "latency_us", network->latency_us, 3, NULL);
    rp_report_text(report, "output", output, NULL);
    rp_report_say(report,
                  "The slowest: %.3g Gbit/s each way while all send, %.1f us; written to %s for "
                  "plan --servers %u --network %s",
                  network->gbit_per_s, network->latency_us, output, rp_servers_count(servers),
                  output);
}

static gboolean
measure(RpServers *servers, const char *output, RpReport *report, GError **error)
{
    const guint n = rp_servers_count(servers);
    g_autofree RpServersSpeed *speeds = g_new0(RpServersSpeed, n);
    g_autofree char *name = g_strdup_printf("measured on %u servers", n);
    const RpCliFile file = {"--output", output, RP_CLI_WRITTEN};

    if (rp_train_is_first(servers) && !rp_cli_check_files(&file, 1, error))
        return FALSE;
    if (!rp_servers_measure(servers, RP_TRAIN_MEASURED_BYTES, speeds, error))
        return FALSE;
    const RpServersSpeed slowest = rp_servers_slowest(speeds, n);
    const RpServerNetwork network = {.name = name,
                                     .gbit_per_s = slowest.bytes_per_s * 8 / 1e9,
                                     .latency_us = (double)slowest.latency_ns / 1e3,
                                     .efficiency = 1};

    if (!rp_train_is_first(servers))
        return TRUE;
    g_autofree char *json = rp_server_network_to_json(&network);

    if (!rp_cli_write_text(output, json, error))
        return FALSE;
    report_speeds(report, servers, speeds, &network, output);
    rp_report_finish(report); /* before mpirun ends */
    return TRUE;
}

gboolean
rp_train_profile_servers(const char *model, const char *devices, const char *output,
                         RpReport *report, GError **error)
{
    RpServers *servers = NULL;
    gboolean done;

    if (model != NULL || devices != NULL)
        return rp_cli_refuse(error,
                             "--servers: expected no %s with it: only the network is "
                             "measured",
                             model != NULL ? "model" : "--devices");
    if (output == NULL)
        return rp_cli_refuse(error, "--output: expected a file, found nothing");
    if (!rp_train_join("profile", &servers, error))
        return FALSE;
    if (servers == NULL)
        return rp_cli_refuse(error, "--servers: expected several, as mpirun -n 4 roundpipe profile "
                                    "--servers starts them, found one");
    done = measure(servers, output, report, error) &&
           rp_servers_barrier(servers, RP_SERVERS_CONTROL, error); /* server 0 has written it */
    rp_train_part("profile", servers, done ? NULL : *error);
    return done;
}
