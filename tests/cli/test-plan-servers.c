/* roundpipe plan --servers: one is as without the word, networks by name or file, and what is refused. */
#include "tests/cli/run-cli.h"

#include <math.h>
#include <string.h>

#define PLAN "plan --model qwen3-1.7b --gpu rtx4090 --gpus 2 --schedules roundpipe "

RP_TEST(one_server_is_answered_as_without_the_word)
{
    static const char *const ways[] = {"", "--json"};

    for (gsize i = 0; i < G_N_ELEMENTS(ways); i++) {
        g_auto(RpCliRun) plain = rp_cli_run(PLAN "%s", ways[i]);
        g_auto(RpCliRun) one = rp_cli_run(PLAN "--servers 1 %s", ways[i]);
        g_auto(RpCliRun) beside = rp_cli_run(PLAN "--servers 1 --network 10GbE %s", ways[i]);

        assert_int_equal(plain.code, 0);
        assert_string_equal(plain.out, one.out);
        assert_string_equal(plain.out, beside.out);
    }
}

RP_TEST(several_servers_say_speed_memory_and_what_binds)
{
    g_auto(RpCliRun) text = rp_cli_run(PLAN "--servers 4 --network 10GbE --batch 128");
    g_auto(RpCliRun) slow = rp_cli_run(PLAN "--servers 4 --network 10GbE --batch 128 --json");
    g_auto(RpCliRun) fast = rp_cli_run(PLAN "--servers 4 --network IB400 --batch 128 --json");
    g_autoptr(RpTree) of_one = rp_cli_run_json(PLAN "--batch 32 --json");
    g_autoptr(RpTree) of_slow = rp_cli_json(&slow);
    g_autoptr(RpTree) of_fast = rp_cli_json(&fast);

    assert_int_equal(text.code, 0);
    assert_non_null(strstr(text.out, "tokens/s on 4 servers"));
    assert_non_null(strstr(text.out, "binds      network"));
    assert_non_null(strstr(text.out, "would hide it"));
    assert_non_null(strstr(slow.out, "\"binds\": \"network\""));
    assert_null(strstr(fast.out, "\"binds\": \"network\""));
    assert_true(rp_cli_number(of_slow, "servers.batch") == 128);
    assert_true(rp_cli_number(of_slow, "servers.hiding_batch") > 128);
    assert_true(rp_cli_number(of_slow, "servers.step_ms") >=
                rp_cli_number(of_slow, "servers.exchange_ms"));
    assert_true(rp_cli_number(of_fast, "servers.tokens_per_s") >
                rp_cli_number(of_slow, "servers.tokens_per_s"));
    assert_true(rp_cli_number(of_slow, "servers.host_peak_bytes") <
                rp_cli_number(of_one, "host.total"));
}

RP_TEST(the_batch_that_hides_the_network_does)
{
    if (RP_TEST_FEW) /* of values alone: the test before runs the same code */
        return;
    static const char plan[] = "plan --model qwen3-8b --gpu rtx4090 --gpus 4 --schedules roundpipe "
                               "--servers 4 --network 25GbE --json --batch";
    g_auto(RpCliRun) small = rp_cli_run("%s 64", plan);
    g_autoptr(RpTree) of_small = rp_cli_json(&small);
    const double hiding = rp_cli_number(of_small, "servers.hiding_batch");
    g_auto(RpCliRun) large = rp_cli_run("%s %.0f", plan, ceil(hiding / 64) * 64);
    g_autoptr(RpTree) of_large = rp_cli_json(&large);

    assert_true(hiding > 64);
    assert_non_null(strstr(small.out, "\"binds\": \"network\""));
    assert_null(strstr(large.out, "\"binds\": \"network\""));
    assert_true(rp_cli_number(of_large, "servers.step_ms") <=
                1.03 * rp_cli_number(of_large, "servers.alone_ms"));
}

RP_TEST(a_networks_file_is_as_its_row)
{
    g_auto(RpCliRun) named = rp_cli_run(PLAN "--servers 2 --network 25GbE");

    rp_cli_write("net.json", "{\"name\": \"25GbE\", \"gbit_per_s\": 25, \"latency_us\": 20,\n"
                             " \"efficiency\": 0.94}\n");
    g_auto(RpCliRun) file = rp_cli_run(PLAN "--servers 2 --network @T/net.json");

    assert_int_equal(file.code, 0);
    assert_string_equal(named.out, file.out);
}

RP_TEST(one_server_measures_no_network)
{
    rp_cli_must_refuse_all("plan-servers: one server measures no network");
}

RP_TEST(refuses_servers_and_networks_that_there_are_not)
{
    rp_cli_write("text.json", "{\"name\": \"n\",\n \"gbit_per_s\": \"25\"}");
    rp_cli_write("zero.json", "{\"name\": \"n\", \"gbit_per_s\": 25, \"latency_us\": 1, "
                              "\"efficiency\":  0}");
    rp_cli_write("other.json", "{\"speed\": 1}");
    rp_cli_write("less.json", "{\"name\": \"n\", \"gbit_per_s\": 25, \"efficiency\": 1}");
    rp_cli_must_refuse_all("plan-servers: refuses servers and networks that there are not");
}

RP_TEST_GROUP(rp_cli_setup, rp_cli_teardown)
