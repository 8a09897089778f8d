/* roundpipe plan: several servers. */
#include "cli/plan/plan.h"

#include "core/base/shard.h"
#include "core/base/units.h"

static gboolean
open_network(const char *word, RpPlanQuestion *question, GError **error)
{
    question->network_between = rp_server_network_open(word, error);
    if (question->network_between == NULL)
        g_prefix_error(error, "--network: ");
    return question->network_between != NULL;
}

/* Words that a plan of several servers has no answer to. */
static gboolean
check_beside(const RpArgs *args, GError **error)
{
    const struct {
        gboolean given;
        const char *option, *why;
    } others[] = {
        {args->max_sequence, "--max-sequence", "the longest sequence is that of one server"},
        {args->draws > 0, "--draws", "draws are of one server's steps"},
        {args->output != NULL, "--output", "no run has several servers yet"},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(others); i++)
        if (others[i].given)
            return rp_cli_refuse(error, "--servers: expected no %s beside it: %s", others[i].option,
                                 others[i].why);
    return TRUE;
}

gboolean
rp_plan_read_servers(const RpArgs *args, RpPlanQuestion *question, GError **error)
{
    const guint servers = MAX(1, args->run.plan.servers);
    RpAdviseQuery *query = &question->query;

    if (args->run.plan.servers > RP_SHARD_MOST_SERVERS)
        return rp_cli_refuse(error, "--servers: expected at most %d, found %d",
                             RP_SHARD_MOST_SERVERS, args->run.plan.servers);
    if (args->box.network != NULL && args->run.plan.servers == 0)
        return rp_cli_refuse(error, "--network: expected --servers beside it");
    if (args->box.network != NULL && !open_network(args->box.network, question, error))
        return FALSE;
    if (servers == 1)
        return TRUE;
    if (args->box.network == NULL)
        return rp_cli_refuse(error, "--servers: expected --network beside it: 10GbE, 25GbE, "
                                    "100GbE, IB400 or a FILE.json");
    if (!check_beside(args, error))
        return FALSE;
    if (args->batch % (int)servers != 0)
        return rp_cli_refuse(error,
                             "--batch: expected a multiple of the %u servers, found %d: each "
                             "trains on as many sequences",
                             servers, args->batch);
    query->servers = servers;
    query->network = question->network_between;
    if (args->batch != 0)
        query->batch /= servers;
    return TRUE;
}

/* Names the slowest resource of all. */
static const char *
binds(const RpAdviseServed *served, const RpAdviseRun *run)
{
    static const char *const names[] = {
        [RP_ADVISE_WAITS_LITTLE] = "compute",      [RP_ADVISE_WAITS_OPTIMIZER] = "optimizer",
        [RP_ADVISE_WAITS_SUMS] = "sums",           [RP_ADVISE_WAITS_UPLOADS] = "uploads",
        [RP_ADVISE_WAITS_DOWNLOADS] = "downloads", [RP_ADVISE_WAITS_STAGES] = "stages",
        [RP_ADVISE_WAITS_NETWORK] = "network",
    };

    return served->network ? "network" : names[run->waits];
}

static void
say_servers(RpReport *report, const RpAdviseServed *served, const RpServerNetwork *network,
            const char *bound)
{
    g_autofree char *sent = rp_cli_format_bytes(served->sent_bytes);

    rp_report_line(report, "servers", "%u, replicas of one plan; each steps 1/%u of every layer",
                   served->servers, served->servers);
    rp_report_line(report, "network", "%s: %s each way a step and server, %.2f s at %.2f GB/s%s",
                   network->name, sent, (double)served->exchange_ns / (double)RP_NS_PER_S,
                   served->bytes_per_s / 1e9,
                   served->host_limits ? ", which host memory allows" : "");
    rp_report_line(report, "binds", "%s; %.2f s a step if the network took no time", bound,
                   (double)served->alone_ns / (double)RP_NS_PER_S);
    if (served->hiding_batch > 0)
        rp_report_line(report, "", "about --batch %u would hide it", served->hiding_batch);
    rp_report_line(report, "", "below: one of them, beside the others");
}

void
rp_plan_report_servers(RpReport *report, const RpPlanQuestion *question, const RpAdvice *advice)
{
    const RpAdviseServed *served = &question->served;
    const RpServerNetwork *network = question->network_between;
    const RpAdviseRun *run = rp_plan_shown_run(advice);

    if (served->servers <= 1)
        return;
    const char *bound = binds(served, run);

    say_servers(report, served, network, bound);
    rp_report_object(report, "servers", NULL);
    rp_report_count(report, "servers", served->servers, NULL);
    rp_report_text(report, "network", network->name, NULL);
    rp_report_real(report, "gbit_per_s", network->gbit_per_s, 6, NULL);
    rp_report_real(report, "latency_us", network->latency_us, 6, NULL);
    rp_report_real(report, "efficiency", network->efficiency, 6, NULL);
    rp_report_rate(report, "bytes_per_s", served->bytes_per_s, NULL);
    rp_report_count(report, "batch", (gint64)advice->query.batch * served->servers, NULL);
    rp_report_rate(report, "tokens_per_s", served->tokens_per_s, NULL);
    rp_report_ms(report, "step_ms", served->step_ns, NULL);
    rp_report_ms(report, "alone_ms", served->alone_ns, NULL);
    rp_report_ms(report, "exchange_ms", served->exchange_ns, NULL);
    rp_report_bytes(report, "sent_bytes", served->sent_bytes, NULL);
    rp_report_bytes(report, "host_peak_bytes", run->host.total, NULL);
    rp_report_text(report, "binds", bound, NULL);
    if (served->hiding_batch > 0)
        rp_report_count(report, "hiding_batch", served->hiding_batch, NULL);
    rp_report_end(report);
}
