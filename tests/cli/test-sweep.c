/* `roundpipe sweep`: every combination once, in one file that a later call goes on with. */
#include "tests/cli/run-cli.h"

#include <glib/gstdio.h>
#include <math.h>
#include <string.h>

#define SMALL "sweep @Q --schedule 1f1b,gpipe --gpus 1..4 --micro-batches 4,8 "

/* Runs it; fails unless it simulated so many combinations. */
static void
must_simulate(const char *command, double simulated)
{
    g_auto(RpCliRun) run = rp_cli_run("%s --json", command);

    if (run.code != 0)
        print_error("%s: %s\n", command, run.err);
    g_autoptr(RpTree) root = rp_cli_json(&run);

    assert_true(rp_cli_number(root, "simulated") == simulated);
}

RP_TEST(a_row_is_what_simulate_says)
{
    must_simulate(SMALL "-o @T/a.csv", 12);
    g_autoptr(RpTree) rows = rp_cli_run_json(SMALL "-o @T/a.csv --json");

    assert_true(rp_cli_number(rows, "simulated") == 0);
    assert_int_equal(rp_cli_member(rows, "rows")->items->len, 12);
    /* the last row: gpipe, 4 GPUs, 8 micro-batches */
    assert_string_equal(rp_cli_member(rows, "rows.11.schedule")->text, "gpipe");
    assert_string_equal(rp_cli_member(rows, "rows.11.gpus")->text, "4");
    assert_string_equal(rp_cli_member(rows, "rows.11.micro-batches")->text, "8");
    g_autoptr(RpTree) one =
        rp_cli_run_json("simulate @Q --schedule gpipe --gpus 4 --micro-batches 8 --json");
    const double bubble = g_ascii_strtod(rp_cli_member(rows, "rows.11.bubble_pct")->text, NULL);
    const double ms = g_ascii_strtod(rp_cli_member(rows, "rows.11.iteration_ms")->text, NULL);

    assert_true(fabs(ms - rp_cli_number(one, "iteration_ms")) < 1e-5);
    assert_true(fabs(bubble - 100 * rp_cli_number(one, "bubble_ratio")) < 1e-5);
}

RP_TEST(the_same_sweep_gives_the_same_bytes)
{
    must_simulate(SMALL "-o @T/b.csv", 12);
    must_simulate(SMALL "-o @T/c.csv", 12);
    g_autofree char *b = rp_cli_read("b.csv");
    g_autofree char *c = rp_cli_read("c.csv");

    assert_string_equal(b, c);
    assert_int_equal(rp_cli_count_lines(b), 13);
    assert_true(g_str_has_prefix(b, "model,schedule,gpus,micro-batches,device,iteration_ms,"));
}

RP_TEST(a_killed_sweep_goes_on)
{
    must_simulate(SMALL "-o @T/whole.csv", 12);
    g_autofree char *whole = rp_cli_read("whole.csv");
    const char *fifth = whole;

    for (guint line = 0; line < 5; line++)
        fifth = strchr(fifth, '\n') + 1;
    /* four rows, and half of one */
    rp_cli_write_bytes("half.csv", whole, fifth - whole + 20);
    must_simulate(SMALL "-o @T/half.csv", 8);
    g_autofree char *done = rp_cli_read("half.csv");

    assert_string_equal(done, whole);
    /* not even the heading is whole */
    rp_cli_write_bytes("head.csv", whole, 9);
    must_simulate(SMALL "-o @T/head.csv", 12);
    g_autofree char *begun = rp_cli_read("head.csv");
    assert_string_equal(begun, whole);
}

RP_TEST(more_values_take_the_rows_that_are_there)
{
    must_simulate("sweep @Q --schedule 1f1b --gpus 2 --micro-batches 4,8 -o @T/more.csv", 2);
    must_simulate("sweep @Q --schedule 1f1b --gpus 2 --micro-batches 2..16 -o @T/more.csv", 2);
    must_simulate("sweep @Q --schedule 1f1b --gpus 2 --micro-batches 4 -o @T/more.csv", 0);
    g_autofree char *all = rp_cli_read("more.csv");

    assert_int_equal(rp_cli_count_lines(all), 5); /* a narrower sweep loses none */
}

RP_TEST(lists_and_ranges_name_values)
{
    must_simulate("sweep @Q --schedule 1f1b --gpus 2 --micro-batches 4..12+4,4 -o @T/add.csv", 3);
    must_simulate("sweep @Q --schedule 1f1b --gpus 2 --micro-batches 4 --stages '14,14;10,18' -o "
                  "@T/list.csv",
                  2);
    must_simulate("sweep @Q --schedule roundpipe --gpus 2 --micro-batches 4 --async=no,yes -o "
                  "@T/flag.csv",
                  2);
    g_autofree char *list = rp_cli_read("list.csv");

    assert_non_null(strstr(list, ",\"14,14\","));
}

RP_TEST(a_combination_that_cannot_run_says_why)
{
    must_simulate("sweep @Q --schedule 1f1b,roundpipe --gpus 2 --micro-batches 4 --round 4 -o "
                  "@T/why.csv",
                  2);
    g_autofree char *why = rp_cli_read("why.csv");
    g_auto(RpCliRun) run = rp_cli_run(
        "sweep @Q --schedule 1f1b,roundpipe --gpus 2 --micro-batches 4 --round 4 -o @T/why.csv");

    assert_non_null(strstr(why, "runs all micro-batches as one round"));
    assert_non_null(strstr(run.out, "cannot run: "));
    assert_int_equal(run.code, 0);
}

RP_TEST(prices_go_with_cards)
{
    must_simulate("sweep qwen3-1.7b --gpu rtx4090,rtx3090 --gpus 2 --micro-batches 4 --gpu-price "
                  "0.4,0.2 -o @T/price.csv",
                  2);
    g_autoptr(RpTree) root =
        rp_cli_run_json("sweep qwen3-1.7b --gpu rtx4090,rtx3090 --gpus 2 "
                        "--micro-batches 4 --gpu-price 0.4,0.2 -o @T/price.csv --json");

    for (guint i = 0; i < 2; i++) {
        g_autofree char *dollars = g_strdup_printf("rows.%u.dollars_per_billion_tokens", i);
        g_autofree char *speed = g_strdup_printf("rows.%u.tokens_per_s", i);
        const double found = g_ascii_strtod(rp_cli_member(root, dollars)->text, NULL);
        const double rate = g_ascii_strtod(rp_cli_member(root, speed)->text, NULL);

        assert_true(fabs(found - 2 * (i == 0 ? 0.4 : 0.2) / 3600 * 1e9 / rate) < 1e-4);
    }
}

RP_TEST(longer_sequences_are_swept)
{
    must_simulate("sweep qwen3-1.7b --gpu rtx4090 --gpus 2 --micro-batches 4 --sequence 2k..8k "
                  "--micro-batch 1 -o @T/sequence.csv",
                  3);
    g_autofree char *text = rp_cli_read("sequence.csv");

    assert_non_null(strstr(text, ",8192,"));
    assert_null(strstr(text, "cannot"));
}

RP_TEST(draws_a_front_and_lines)
{
    must_simulate(SMALL "-o @T/drawn.csv --picture @T/front.svg", 12);
    must_simulate(SMALL "-o @T/drawn.csv --picture @T/lines.svg --axes bubble_pct:micro-batches "
                        "--series schedule",
                  0);
    must_simulate(SMALL "-o @T/drawn.csv --picture @T/each.svg --axes bubble_pct:micro-batches", 0);
    g_autofree char *each = rp_cli_read("each.svg");
    g_autofree char *front = rp_cli_read("front.svg");
    g_autofree char *lines = rp_cli_read("lines.svg");

    assert_non_null(strstr(front, "none is better in both"));
    assert_non_null(strstr(front, "host memory, GiB"));
    assert_non_null(strstr(lines, ">gpipe"));
    assert_null(strstr(lines, "none is better in both"));
    /* points of other GPUs are other lines */
    assert_non_null(strstr(each, "1f1b, gpus 2"));
    assert_non_null(strstr(each, "gpipe, gpus 2"));
    assert_non_null(strstr(each, "gpipe, gpus 4"));
}

RP_TEST(names_what_is_wrong)
{
    rp_cli_write("other.csv", "a,b\n1,2\n");
    rp_cli_write("json.csv", "{\"a\": 3}");
    rp_cli_must_refuse_all("sweep: names what is wrong");
    g_autofree char *other = rp_cli_read("other.csv");
    g_autofree char *json = rp_cli_read("json.csv");

    assert_string_equal(other, "a,b\n1,2\n"); /* nothing is lost */
    assert_string_equal(json, "{\"a\": 3}");
}

RP_TEST_GROUP(rp_cli_setup, rp_cli_teardown)
