/* The box that commands are asked about: its card by name or file, its links, a model by name or config. */
#include "tests/cli/run-cli.h"

#include <math.h>
#include <string.h>

#define SHAPE " --schedule roundpipe --gpus 4 --micro-batches 8 --fidelity full --partition paper"

static double
iteration_ms(const char *words)
{
    g_autoptr(RpTree) root = rp_cli_run_json("simulate %s" SHAPE " --json", words);

    return rp_cli_number(root, "iteration_ms");
}

RP_TEST(a_model_by_name_runs_on_a_card_by_name)
{
    const double on_4090 = iteration_ms("qwen3-8b --gpu rtx4090");
    rp_cli_must_run("export --profile qwen3-8b --gpu rtx4090 --gpus 4 -o @T/qwen3-8b.json");

    assert_true(on_4090 == iteration_ms("@T/qwen3-8b.json"));
    assert_true(on_4090 < iteration_ms("qwen3-8b --gpu rtx3090"));
    assert_true(on_4090 > iteration_ms("qwen3-8b --gpu RTX-5090"));
    assert_true(on_4090 == iteration_ms("Qwen/Qwen3-8B --gpu rtx4090"));
    assert_true(iteration_ms("qwen3-1.7b") == iteration_ms("unsloth/Qwen3-1.7B"));
    /* shipped times without a card, the cost model's with one */
    assert_true(iteration_ms("qwen3-1.7b") == iteration_ms("@Q"));
    assert_true(iteration_ms("qwen3-1.7b") != iteration_ms("qwen3-1.7b --gpu rtx4090"));
}

RP_TEST(a_cards_file_is_an_object_of_gpus)
{
    rp_cli_must_shell("$ROUNDPIPE gpus --json rtx4090 >@T/whole.json");

    assert_true(iteration_ms("qwen3-8b --gpu @T/whole.json") ==
                iteration_ms("qwen3-8b --gpu rtx4090"));
    rp_cli_write("slow.json", "{\"like\": \"rtx4090\", \"name\": \"slow\", \"h2d_gb_per_s\": 12, "
                              "\"d2h_gb_per_s\": 12, \"root_gb_per_s\": 24}");
    assert_true(iteration_ms("qwen3-8b --gpu @T/slow.json") ==
                iteration_ms("qwen3-8b --gpu rtx4090 --pcie 12"));
    g_auto(RpCliRun) plan = rp_cli_run("plan --model qwen3-8b --gpu @T/slow.json --gpus 4");

    assert_int_equal(plan.code, 0);
    assert_non_null(strstr(plan.out, "4 x slow"));
    g_auto(RpCliRun) gpus = rp_cli_run("gpus @T/slow.json");

    assert_non_null(strstr(gpus.out, "12/12"));
    assert_null(strstr(gpus.out, "rtx3090"));
}

RP_TEST(links_may_differ_from_the_cards_usual_ones)
{
    assert_true(iteration_ms("qwen3-8b --gpu rtx4090 --pcie 4x16") ==
                iteration_ms("qwen3-8b --gpu rtx4090"));
    assert_true(iteration_ms("qwen3-8b --gpu rtx4090 --pcie 3x16") ==
                iteration_ms("qwen3-8b --gpu rtx4090 --pcie 4x8"));
    assert_true(iteration_ms("qwen3-8b --gpu rtx4090 --pcie 3x4") >
                iteration_ms("qwen3-8b --gpu rtx4090"));
    assert_true(iteration_ms("qwen3-8b --gpu rtx4090 --host-bandwidth 30") >
                iteration_ms("qwen3-8b --gpu rtx4090"));
    /* of a timing file, too */
    assert_true(iteration_ms("@Q --pcie 25") == iteration_ms("@Q"));
    assert_true(iteration_ms("@Q --pcie 3x4") > iteration_ms("@Q"));
    assert_true(iteration_ms("@Q --host-bandwidth 20") > iteration_ms("@Q"));
}

RP_TEST(a_model_by_its_config_runs_wherever_a_profile_does)
{
    static const char *const commands[] = {"simulate", "partition", "compare", "verify"};

    for (guint i = 0; i < G_N_ELEMENTS(commands); i++) {
        g_auto(RpCliRun) file =
            rp_cli_run("%s @R/examples/fine-tune/tiny/config.json --gpu l40s --gpus 1 "
                       "--micro-batches 4 %s",
                       commands[i], i == 2 ? "--schedules gpipe" : "--schedule gpipe");
        rp_cli_must_run("%s @R/examples/fine-tune/tiny --gpu l40s --gpus 1 "
                        "--micro-batches 4 %s",
                        commands[i], i == 2 ? "--schedules gpipe" : "--schedule gpipe");

        assert_int_equal(file.code, 0);
        assert_true(i == 3 || strstr(file.out, "tiny") != NULL ||
                    strstr(file.out, "config") != NULL);
    }
}

RP_TEST(a_foreign_card_says_so_and_has_no_range)
{
    g_auto(RpCliRun) foreign = rp_cli_run("plan --model qwen3-8b --gpu mi300x");
    g_auto(RpCliRun) own = rp_cli_run("plan --model qwen3-8b --gpu l40s --sequence 512");

    assert_non_null(strstr(foreign.out, "nothing of this project runs on it\n"));
    assert_null(strstr(foreign.out, "range "));
    assert_non_null(strstr(own.out, "range "));
    /* nor is it proposed where another card is too small */
    g_auto(RpCliRun) small =
        rp_cli_run("plan --model qwen3-8b --gpu rtx3060 --sequence 32768 --json");

    assert_null(strstr(small.out, "mi300x"));
    assert_null(strstr(small.out, "w7800"));
}

/* ---- a measured box ---- */

#define PLAN "plan --model qwen3-8b --gpu rtx4090 --gpus 4 --batch 8 --schedules roundpipe --json "
#define LINKS "\"h2d_gb_per_s\":20,\"d2h_gb_per_s\":20,\"root_gb_per_s\":40,\"gpus_per_root\":4"

/* Tokens/s, and its range; the unknown that matters most. */
typedef struct {
    double expected, slow, fast;
    char *most;
    guint n_open;
} Answer;

static Answer
plan_on(const char *box)
{
    g_autoptr(RpTree) root = rp_cli_run_json(PLAN "%s", box);
    const RpTree *unknowns = rp_cli_member(root, "unknowns");
    Answer answer = {rp_cli_number(root, "recommendation.tokens_per_s"),
                     rp_cli_number(root, "tokens_per_s_slow"),
                     rp_cli_number(root, "tokens_per_s_fast"),
                     g_strdup(rp_cli_member(root, "most_unknown")->text), 0};

    /* each alone is within the range of all, and the answer within each */
    for (; answer.n_open < unknowns->items->len; answer.n_open++) {
        const RpTree *unknown = rp_tree_nth(unknowns, answer.n_open);
        const double slow = rp_cli_number(unknown, "tokens_per_s_slow");
        const double fast = rp_cli_number(unknown, "tokens_per_s_fast");

        assert_true(slow <= answer.expected + 0.01 && answer.expected <= fast + 0.01);
        assert_true(answer.slow <= slow + 0.01 && fast <= answer.fast + 0.01);
    }
    return answer;
}

static void
write_box(const char *name, double host_gb, double both_gb)
{
    g_autofree char *text =
        g_strdup_printf("{\"format\":\"roundpipe-profile/1\",\"gpus\":4,\"links\":{" LINKS
                        ",\"both_gb_per_s\":%g,\"host_gb_per_s\":%g},"
                        "\"optimizer\":{\"parameters_per_s\":3e9}}",
                        both_gb, host_gb);

    rp_cli_write(name, text);
}

static double
short_ms(const char *box)
{
    g_autoptr(RpTree) root = rp_cli_run_json(
        "simulate qwen3-8b --gpu rtx4090 --sequence 256 --schedule roundpipe --gpus 2 "
        "--micro-batches 4 --fidelity full --partition paper --json --box %s",
        box);

    return rp_cli_number(root, "iteration_ms");
}

RP_TEST(a_measured_box_is_what_options_say_and_shrinks_the_range)
{
    write_box("same.json", 80, 40);
    const Answer unknown = plan_on("--pcie 20 --host-bandwidth 80"),
                 known = plan_on("--box @T/same.json");

    assert_true(unknown.expected == known.expected);
    assert_true(known.fast - known.slow < 0.5 * (unknown.fast - unknown.slow));
    assert_int_equal(unknown.n_open, 4); /* host memory was given */
    assert_int_equal(known.n_open, 1);
    assert_string_equal(known.most, "times");
    g_free(unknown.most);
    g_free(known.most);
    /* of commands that take a profile, too */
    assert_true(iteration_ms("qwen3-8b --gpu rtx4090 --box @T/same.json") ==
                iteration_ms("qwen3-8b --gpu rtx4090 --pcie 20 --host-bandwidth 80"));
    assert_true(iteration_ms("@Q --box @T/same.json") ==
                iteration_ms("@Q --pcie 20 --host-bandwidth 80"));
    /* a link that carries less both ways at once, where uploads are what devices wait for */
    write_box("narrow.json", 80, 25);
    assert_true(short_ms("@T/narrow.json") > 1.01 * short_ms("@T/same.json"));
}

/* Links of one card alone leave roots open, of the host alone both. */
RP_TEST(the_unknown_that_is_named_is_the_one_that_matters)
{
    rp_cli_write("host.json", "{\"format\":\"roundpipe-profile/1\",\"gpus\":1,\"links\":"
                              "{\"host_gb_per_s\":200},\"optimizer\":{\"parameters_per_s\":6e9}}");
    rp_cli_write("fast.json", "{\"format\":\"roundpipe-profile/1\",\"optimizer\":"
                              "{\"parameters_per_s\":6e9}}");
    const Answer plain = plan_on(""), host = plan_on("--box @T/host.json"),
                 fast = plan_on("--box @T/fast.json");

    assert_string_equal(plain.most, "optimizer");
    assert_string_equal(fast.most, "host"); /* 168 GB/s of the optimizer, 150 of memory */
    assert_true(strcmp(host.most, "host") != 0 && strcmp(host.most, "optimizer") != 0);
    assert_int_equal(host.n_open, 3);
    g_auto(RpCliRun) text = rp_cli_run("plan --model qwen3-8b --gpu rtx4090 --gpus 4 --batch 8 "
                                       "--schedules roundpipe --box @T/fast.json");

    assert_non_null(strstr(text.out, " tokens/s: `roundpipe doctor --box box.json` on the machine "
                                     "settles host memory\n"));
    assert_non_null(strstr(text.out, "\nNot known "));
    g_free(plain.most);
    g_free(host.most);
    g_free(fast.most);
}

RP_TEST(doctor_writes_a_box_that_plan_takes)
{
    g_autoptr(RpTree) root = rp_cli_run_json("doctor --devices host --box @T/measured.json --json");
    g_auto(RpCliRun) quick = rp_cli_run("doctor --devices host --quick --box @T/measured.json");

    assert_true(rp_cli_number(root, "optimizer_parameters_per_s") > 0);
    g_autoptr(RpTree) plan = rp_cli_run_json(PLAN "--box @T/measured.json");

    assert_true(rp_cli_member(plan, "box_measured")->number);
    assert_true(fabs(rp_cli_number(plan, "assumed.host_gb_per_s") /
                         rp_cli_number(root, "links.host_gb_per_s") -
                     1) < 0.001);
    /* host threads have no links: those of the card stay */
    assert_true(rp_cli_number(plan, "assumed.h2d_gb_per_s") == 25);
    assert_int_equal(quick.code, 2);
}

RP_TEST(refuses_boxes_that_there_are_not)
{
    rp_cli_write("bad.json", "{\"like\": \"l4\",\n \"h2d_gb_per_s\": \"3\"}");
    rp_cli_write("cut.json", "{\"format\":\"roundpipe-profile/1\",\"links\":{\"host_gb_");
    rp_cli_write("linkless.json",
                 "{\"format\":\"roundpipe-profile/1\",\"layers\":[{\"kind\":\"block\",\"count\":4,"
                 "\"forward_ms\":1,\"backward_ms\":2}]}");
    rp_cli_must_refuse_all("box: boxes that there are not");
}

RP_TEST_GROUP(rp_cli_setup, rp_cli_teardown)
