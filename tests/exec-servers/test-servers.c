/* Tests servers over a transport of threads: received messages, and servers named in errors. */
#include "tests/rp-test.h"

#include "exec/system/clock.h"
#include "tests/exec-servers/exchanges.h"
#include "tests/exec-servers/threads-transport.h"

#define MS (RP_NS_PER_S / 1000)

static void
exchange_everything(RpServers *servers, gpointer user_data)
{
    g_autofree char *wrong = exchanges_find_wrong(servers, 100000);

    (void)user_data;
    if (wrong != NULL)
        g_error("server %u: %s", rp_servers_rank(servers), wrong);
}

RP_TEST(every_block_arrives_where_it_belongs)
{
    const RpServersOptions options = {.piece_bytes = 4096};

    for (guint n = 1; n <= 5; n++) {
        ThreadsNet *net = threads_net_new(n);

        threads_run(net, n, &options, exchange_everything, NULL);
        threads_net_free(net);
    }
}

typedef struct {
    ThreadsNet *net;
    char *message[4];
    RpServersError code[4];
    gint64 seconds;
} Failure;

/* Server 1 fails, or stops, while the others wait for it. */
static void
meet(RpServers *servers, Failure *failure, void (*breaks)(RpServers *servers, Failure *failure))
{
    const guint rank = rp_servers_rank(servers);
    g_autoptr(GError) error = NULL;

    if (rank == 1)
        breaks(servers, failure);
    if (rp_servers_barrier(servers, RP_SERVERS_CONTROL, &error))
        g_error("server %u: the barrier held", rank);
    failure->message[rank] = g_strdup(error->message);
    failure->code[rank] = (RpServersError)error->code;
    g_assert(!rp_servers_barrier(servers, RP_SERVERS_NETWORK, NULL));
}

static void
tell(RpServers *servers, Failure *failure)
{
    (void)failure;
    rp_servers_fail(servers, "step 7: the disk is gone");
}

static void
stand_still(RpServers *servers, Failure *failure)
{
    (void)servers;
    threads_net_stop(failure->net, 1);
}

static void
meet_and_tell(RpServers *servers, gpointer failure)
{
    meet(servers, failure, tell);
}

static void
meet_and_stop(RpServers *servers, gpointer failure)
{
    meet(servers, failure, stand_still);
}

RP_TEST(a_server_that_fails_says_why)
{
    Failure failure = {.net = threads_net_new(4)};

    threads_run(failure.net, 4, NULL, meet_and_tell, &failure);
    for (guint r = 0; r < 4; r++) {
        g_autofree char *expected =
            r == 1 ? g_strdup("this server failed: step 7: the disk is gone")
                   : g_strdup_printf("server 1 (%s) failed: step 7: the disk is gone",
                                     g_get_host_name());

        assert_string_equal(failure.message[r], expected);
        assert_int_equal(failure.code[r], RP_SERVERS_ERROR_FAILED);
        g_free(failure.message[r]);
    }
    threads_net_free(failure.net);
}

RP_TEST(a_server_that_stands_still_is_named)
{
    const RpServersOptions options = {.silence_ns = 1500 * MS};
    Failure failure = {.net = threads_net_new(4)};
    g_autofree char *named =
        g_strdup_printf("server 1 (%s) has not been heard of for 2 s", g_get_host_name());

    threads_run(failure.net, 4, &options, meet_and_stop, &failure);
    for (guint r = 0; r < 4; r++) {
        if (r != 1)
            assert_true(g_str_has_prefix(failure.message[r], named));
        assert_int_equal(failure.code[r], RP_SERVERS_ERROR_LOST);
        g_free(failure.message[r]);
    }
    threads_net_free(failure.net);
}

/* Server 2 has sent server 1 a block, which is still in flight when server 0 fails. */
static void
fail_before_it_arrives(RpServers *servers, gpointer user_data)
{
    ThreadsNet *net = user_data;
    guint8 block[100];
    const RpServersBlock from = {2, block, sizeof block}, to = {1, block, sizeof block};

    memset(block, 'x', sizeof block);
    if (rp_servers_rank(servers) == 2)
        g_assert(rp_servers_exchange(servers, RP_SERVERS_NETWORK, &to, 1, NULL, 0, NULL));
    g_assert(rp_servers_barrier(servers, RP_SERVERS_CONTROL, NULL));
    if (rp_servers_rank(servers) == 0) {
        g_usleep(50000); /* server 1 waits for the block by now */
        rp_servers_fail(servers, "no luck");
    }
    if (rp_servers_rank(servers) != 1)
        return;
    g_assert(!rp_servers_exchange(servers, RP_SERVERS_NETWORK, NULL, 0, &from, 1, NULL));
    memset(block, 'y', sizeof block); /* it is somebody else's now */
    threads_net_hold(net, 2, 1, RP_SERVERS_NETWORK, FALSE);
    rp_servers_fail(servers, "what server 0 said");
    for (guint i = 0; i < sizeof block; i++)
        g_assert(block[i] == 'y');
}

RP_TEST(what_arrives_after_a_failure_is_written_nowhere)
{
    ThreadsNet *net = threads_net_new(3);

    threads_net_hold(net, 2, 1, RP_SERVERS_NETWORK, TRUE);
    threads_run(net, 3, NULL, fail_before_it_arrives, net);
    threads_net_free(net);
}

/* Server 0 records the slow servers that are named to it. */
static void
note_slow(gpointer user_data, const RpServers *servers, guint rank, gint64 waited_ns)
{
    guint *named = user_data;

    if (rp_servers_rank(servers) == 0 && waited_ns >= 100 * MS)
        *named = 10 * *named + rank;
}

static void
come_late(RpServers *servers, gpointer user_data)
{
    (void)user_data;
    if (rp_servers_rank(servers) == 2)
        g_usleep(400000);
    g_assert(rp_servers_barrier(servers, RP_SERVERS_NETWORK, NULL));
}

RP_TEST(a_server_that_falls_behind_is_named_once)
{
    guint named = 0;
    const RpServersOptions options = {
        .patience_ns = 100 * MS, .slow = note_slow, .user_data = &named};
    ThreadsNet *net = threads_net_new(3);

    threads_run(net, 3, &options, come_late, NULL);
    assert_int_equal(named, 2);
    threads_net_free(net);
}

#define SENT 3000000

static void
measure(RpServers *servers, gpointer speeds)
{
    RpServersSpeed all[3];
    const guint rank = rp_servers_rank(servers);

    g_assert(rp_servers_measure(servers, SENT, all, NULL));
    ((RpServersSpeed *)speeds)[rank] = rp_servers_slowest(all, rp_servers_count(servers));
    g_assert_cmpfloat(((RpServersSpeed *)speeds)[rank].bytes_per_s, <=, all[rank].bytes_per_s);
    g_assert_cmpint(((RpServersSpeed *)speeds)[rank].latency_ns, >=, all[rank].latency_ns);
}

RP_TEST(an_emulated_network_is_as_slow_as_it_should_be_and_all_say_so)
{
    const RpServersOptions options = {.bytes_per_s = 10000000, .piece_bytes = 50000};
    ThreadsNet *net = threads_net_new(3);
    RpServersSpeed speeds[3];

    threads_run(net, 3, &options, measure, speeds);
    threads_net_free(net);
    assert_true(speeds[0].bytes_per_s > 0 && speeds[0].bytes_per_s < 1.1e7);
    assert_true(speeds[0].latency_ns > 0);
    for (guint r = 1; r < 3; r++)
        assert_memory_equal(&speeds[r], &speeds[0], sizeof speeds[0]);
}

RP_TEST(the_slowest_is_the_slowest_in_each_respect)
{
    const RpServersSpeed all[] = {{3e9, 5}, {1e9, 2}, {2e9, 9}};
    const RpServersSpeed slowest = rp_servers_slowest(all, 3);

    assert_true(slowest.bytes_per_s == 1e9);
    assert_int_equal(slowest.latency_ns, 9);
}
