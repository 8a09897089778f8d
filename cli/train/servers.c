/* One of several servers, as mpirun and srun start them: of roundpipe train, and profile --servers. */
#include <stdio.h>

#include "cli/train/train.h"
#include "core/catalogue/server-network.h"
#include "run/devices.h"
#include "run/train/train.h"

/* How many processes were started together: what launchers tell those that they start. */
static const char *const counts[] = {
    "OMPI_COMM_WORLD_SIZE", /* Open MPI's mpirun */
    "PMI_SIZE",             /* MPICH's mpirun, srun --mpi=pmi2 */
};

static gboolean
read_count(const char *name, guint *count)
{
    const char *text = g_getenv(name);
    guint64 n = 0;

    if (text == NULL || !g_ascii_string_to_unsigned(text, 10, 1, G_MAXUINT16, &n, NULL))
        return FALSE;
    *count = (guint)n;
    return TRUE;
}

/* @count: (out): 1: this one alone. @told: (out): who says so. Errors: RP_CLI_ERROR: srun has started several that
 * know nothing of each other, and would write to the same places */
static gboolean
count_started(guint *count, const char **told, GError **error)
{
    for (guint i = 0; i < G_N_ELEMENTS(counts); i++) {
        *told = counts[i];
        if (read_count(counts[i], count))
            return TRUE;
    }
    *told = "SLURM_STEP_NUM_TASKS"; /* srun --mpi=pmix */
    if (!read_count(*told, count))
        *count = 1;
    if (*count == 1 || g_getenv("PMIX_RANK") != NULL)
        return TRUE;
    return rp_cli_refuse(
        error,
        "started by srun as one of %u tasks (%s) that know nothing of each other: expected "
        "srun --mpi=pmix or --mpi=pmi2 (of %s); for a run of its own in each task unset %s",
        *count, *told, rp_transport_built_text(), *told);
}

/* On the servers' thread. Server 0 tells, or the next if it is server 0 that is slow. */
static void
tell_slow(gpointer user_data, const RpServers *servers, guint rank, gint64 waited_ns)
{
    const char *command = user_data;

    if (rp_servers_rank(servers) == (rank == 0 ? 1 : 0))
        fprintf(stderr, "roundpipe %s: warning: %s is behind: the others have waited %.0f s\n",
                command, rp_servers_name(servers, rank), (double)waited_ns / 1e9);
}

static void
hush(FILE *stream)
{
    if (freopen("/dev/null", "w", stream) == NULL)
        (void)fclose(stream);
}

gboolean
rp_train_join(const char *command, RpServers **servers, GError **error)
{
    const RpServersOptions options = {.slow = tell_slow, .user_data = (gpointer)command};
    const char *told;
    guint n;

    *servers = NULL;
    if (!count_started(&n, &told, error))
        return FALSE;
    if (n == 1)
        return TRUE;
    const RpTransportOps *mpi = rp_transport_mpi(error);
    if (mpi == NULL)
        return rp_prefix_error(error, "started as one of %u servers (%s): ", n, told);
    rp_run_share_processors(); /* before MPI makes threads */
    *servers = rp_servers_new(mpi, NULL, &options, error);
    if (*servers == NULL)
        return FALSE;
    if (rp_servers_count(*servers) != n) {
        (void)rp_cli_refuse(error,
                            "started as one of %u servers (%s), but MPI finds %u: expected the "
                            "mpirun of %s, which this program was built with, or srun --mpi=pmix "
                            "or --mpi=pmi2, as it needs it",
                            n, told, rp_servers_count(*servers), rp_transport_built_text());
        rp_servers_free(g_steal_pointer(servers));
        return FALSE;
    }
    if (rp_servers_rank(*servers) > 0)
        hush(stdout);
    return TRUE;
}

void
rp_train_part(const char *command, RpServers *servers, const GError *error)
{
    const gboolean first = rp_train_is_first(servers);
    const gboolean told =
        error == NULL || g_error_matches(error, RP_CLI_ERROR, RP_CLI_ERROR_REPORTED);

    /* before the others hear of it, and end: mpirun then ends this one */
    if (!told && first)
        (void)rp_cli_fail(command, g_error_copy(error));
    if (!told && (!rp_train_fail_servers(servers, error) || first))
        hush(stderr);
    (void)fflush(NULL);
    if (error != NULL && !g_error_matches(error, RP_SERVERS_ERROR, RP_SERVERS_ERROR_DIFFERS))
        rp_cli_leave(); /* MPI's own end would wait for servers that are gone */
    rp_servers_free(servers);
}

static void
catch_stop(gpointer user_data, const RpPinnedMemory *pinned)
{
    (void)user_data;
    (void)pinned;
    rp_train_catch_stop(FALSE);
}

/* The others first: one of them may have told it already. */
static void
fail_quietly(gpointer user_data, GError **error)
{
    const RpTrainWords *words = user_data;

    if (!rp_train_fail_servers(words->job->servers, *error))
        hush(stderr);
    else
        g_prefix_error(error, "%s: ",
                       rp_servers_name(words->job->servers, rp_servers_rank(words->job->servers)));
    rp_cli_tell("train", error);
}

void
rp_train_quieten(RpRunEvents *events)
{
    events->say = NULL;
    events->progress = NULL;
    events->resumed = NULL;
    events->started = catch_stop;
    events->stepped = NULL;
    events->failed = fail_quietly;
}

/* roundpipe profile --servers: the network between servers, for plan and simulate. */

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
