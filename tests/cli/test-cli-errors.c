/* Messages of `roundpipe` when something is wrong: one line, and the exit code. */
#include "tests/cli/run-cli.h"

#include <glib/gstdio.h>
#include <unistd.h>

/* One line that contains @part, nothing on stdout. */
static void
check(const char *what, const RpCliRun *run, int code, const char *part)
{
    if (run->code != code)
        fail_msg("%s: exit code %d, expected %d: %s", what, run->code, code, run->err);
    if (strstr(run->err, part) == NULL)
        fail_msg("%s: expected \"%s\" in: %s", what, part, run->err);
    if (rp_cli_count_lines(run->err) != 1 || !g_str_has_prefix(run->err, "roundpipe"))
        fail_msg("%s: expected one line, found: %s", what, run->err);
    if (*run->out != '\0')
        fail_msg("%s: printed %.100s", what, run->out);
}

/* ---- the command line ---- */

#define SIMULATE "simulate @Q --gpus 8 --micro-batches 16 "

RP_TEST(refuses_wrong_words)
{
    rp_cli_must_refuse_all("cli-errors: refuses wrong words");
}

RP_TEST(refuses_wrong_numbers)
{
    rp_cli_write("slow.json",
                 "{\"format\":\"roundpipe-profile/1\",\"layers\":[{\"kind\":\"block\",\"count\":8,"
                 "\"forward_ms\":1e6,\"backward_ms\":2e6}]}");

    rp_cli_must_refuse_all("cli-errors: refuses wrong numbers");
}

#define ROUNDPIPE SIMULATE "--schedule roundpipe "

RP_TEST(refuses_options_that_have_no_effect)
{
    /* without --fidelity verify proves both; compare drops for each schedule what it lacks */
    static const char *const right[] = {
        "verify @Q --schedule roundpipe --gpus 4 --micro-batches 4 --transfers naive",
        "verify @Q --schedule roundpipe --gpus 4 --micro-batches 4 --optimizer lean --async",
        "compare @Q --schedules 1f1b,interleaved-1f1b,roundpipe --gpus 4 --micro-batches 8 "
        "--round 4 --group 4",
        ROUNDPIPE "--fidelity full --transfers naive --optimizer lean --published",
    };

    rp_cli_must_refuse_all("cli-errors: refuses options that have no effect");
    for (gsize i = RP_TEST_FEW ? 3 : 0; i < G_N_ELEMENTS(right); i++) {
        g_auto(RpCliRun) run = rp_cli_run("%s", right[i]);

        if (run.code != 0 || strstr(run.out, "cannot run") != NULL)
            fail_msg("%s: exit code %d: %s%s", right[i], run.code, run.err, run.out);
    }
}

RP_TEST(takes_models_of_the_catalogue_for_profiles)
{
    g_auto(RpCliRun) file = rp_cli_run(SIMULATE "--schedule 1f1b --json");
    g_auto(RpCliRun) name =
        rp_cli_run("simulate qwen3-1.7b --gpus 8 --micro-batches 16 --schedule 1f1b --json");
    g_auto(RpCliRun) made =
        rp_cli_run("simulate qwen3-8b --gpus 4 --micro-batches 8 --schedule 1f1b");
    g_auto(RpCliRun) compared =
        rp_cli_run("compare qwen3-8b --gpus 4 --micro-batches 8 --schedules 1f1b");
    rp_cli_must_run("partition qwen3-8b --gpus 4 --micro-batches 8 --schedule 1f1b");

    assert_int_equal(name.code, 0);
    assert_string_equal(file.out, name.out);
    assert_true(g_str_has_prefix(made.out, "1F1B, qwen3-8b on 4 x "));
    assert_non_null(strstr(made.out, "predicted layer times"));
    assert_non_null(strstr(compared.out, "qwen3-8b  1f1b"));
    rp_cli_must_refuse_all("cli-errors: takes models of the catalogue for profiles");
}

RP_TEST(says_when_a_profile_has_no_names)
{
    rp_cli_write("nameless.json",
                 "{\"format\":\"roundpipe-profile/1\",\"layers\":[{\"kind\":\"block\",\"count\":4,"
                 "\"forward_ms\":1,\"backward_ms\":2}]}");
    g_auto(RpCliRun) run =
        rp_cli_run("simulate @T/nameless.json --gpus 4 --micro-batches 8 --schedule 1f1b");
    g_auto(RpCliRun) divided =
        rp_cli_run("partition @T/nameless.json --gpus 4 --micro-batches 8 --schedule 1f1b");

    assert_true(g_str_has_prefix(run.out, "1F1B, a model without a name on 4 devices: predicted"));
    assert_true(g_str_has_prefix(divided.out, "1F1B of a model without a name, 4 GPUs"));
}

RP_TEST(refuses_wrong_stage_lists)
{
    rp_cli_must_refuse_all("cli-errors: refuses wrong stage lists");
}

/* ---- files ---- */

/* The tests of core have the words for every wrong profile and order. */
RP_TEST(refuses_files_that_cannot_be_read)
{
    rp_cli_write("profile.json", "{\"format\":\"roundpipe-profile/1\",\"layers\":[]}");
    rp_cli_write("order.csv", "0F0,0F1,0Q1\n");
    rp_cli_must_refuse_all("cli-errors: refuses files that cannot be read");
}

/* The commands that the README names. */
RP_TEST(tells_the_pytorch_examples_apart)
{
    g_auto(RpCliRun) right = rp_cli_run("verify --pytorch-csv @R/examples/pytorch/1f1b.csv");
    g_autoptr(RpTree) root =
        rp_cli_run_json("verify --pytorch-csv @R/examples/pytorch/1f1b.csv --json");
    g_auto(RpCliRun) wrong = rp_cli_run("verify --pytorch-csv @R/examples/pytorch/deadlock.csv");

    assert_int_equal(right.code, 0);
    assert_non_null(strstr(right.out, "36 sends and their receives, in one order on 3 pairs"));
    assert_true(rp_cli_number(root, "0.sends") == 36);
    check("deadlock.csv", &wrong, 1, "the order cannot run: `0RECV_B0` (row 1, cell 2) waits for");
}

/* A W of older names does what their B has done; BW is no word of today's. */
RP_TEST(says_how_files_of_older_pytorch_are_read)
{
    static const char *const texts[] = {"0F0,0B0,0W0\n", "0F0,0BW0\n"};
    g_autofree char *path = rp_cli_temporary("old.csv");

    for (guint i = 0; i < G_N_ELEMENTS(texts); i++) {
        g_autofree char *today = g_strdup_printf("verify --pytorch-csv %s", path);
        g_autofree char *older = g_strdup_printf("%s --old-names", today);

        assert_true(g_file_set_contents(path, texts[i], -1, NULL));
        g_auto(RpCliRun) refused = rp_cli_run(today);
        rp_cli_must_run(older);

        check("old.csv", &refused, 1, "files of older PyTorch are read with --old-names");
    }
}

RP_TEST(names_the_tasks_of_a_trace_that_breaks_its_plan)
{
    g_autofree char *path = rp_cli_temporary("trace.json");
    g_autofree char *text = NULL;
    rp_cli_must_run("simulate @Q --schedule 1f1b --gpus 4 --micro-batches 8 --trace @T/trace.json");
    g_auto(RpCliRun) run =
        rp_cli_run("verify @Q --schedule gpipe --gpus 4 --micro-batches 8 --trace @T/trace.json");

    check("another schedule's trace", &run, 1, "task");

    assert_true(g_file_get_contents(path, &text, NULL, NULL));
    *strstr(text, "\"dur\"") = '#';
    assert_true(g_file_set_contents(path, text, -1, NULL));
    g_auto(RpCliRun) damaged =
        rp_cli_run("verify @Q --schedule 1f1b --gpus 4 --micro-batches 8 --trace @T/trace.json");
    check("a damaged trace", &damaged, 1, "trace.json: line");
}

RP_TEST(refuses_to_write_where_it_cannot)
{
    rp_cli_must_refuse_all("cli-errors: refuses to write where it cannot");
}

/* Every command that writes: its own input, by another name too, and two outputs of one name. */
RP_TEST(writes_over_no_input_and_nothing_twice)
{
    static const char config[] =
        "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":16,"
        "\"num_hidden_layers\":4,"
        "\"num_attention_heads\":4,\"intermediate_size\":24,\"vocab_size\":33}";
    static const char *const kept[] = {"in.json", "in.png", "config.json", "run.yaml",
                                       "profiles/in.json"};
    g_auto(RpCliRun) made = rp_cli_shell(
        "mkdir @T/profiles && cp @Q @T/in.json && cp @Q @T/in.png && cp @Q @T/profiles/in.json && "
        "ln @T/in.json @T/hard.json && ln -s in.json @T/link.json && echo '%s' >@T/config.json && "
        "printf 'model: m\ndata: d.jsonl\noutput: o\ndevices: host:1\nsteps: 1\n"
        "sequence_length: 8\n' >@T/run.yaml && cd @T && sha256sum %s %s %s %s %s >sums",
        config, kept[0], kept[1], kept[2], kept[3], kept[4]);

    assert_string_equal(made.err, "");
    rp_cli_must_refuse_all("cli-errors: writes over no input and nothing twice");
    /* a device keeps nothing */
    rp_cli_must_run(SIMULATE "--schedule 1f1b --trace /dev/null --csv /dev/null");
    g_auto(RpCliRun) unchanged = rp_cli_shell("cd @T && sha256sum --quiet -c sums");
    assert_string_equal(unchanged.err, "");
    assert_int_equal(unchanged.code, 0);
    rp_cli_must_shell("rm -r @T/*");
}

RP_TEST(says_that_gnuplot_is_missing_before_long_work)
{
    g_auto(RpCliRun) figures = rp_cli_shell("PATH=@T \"$ROUNDPIPE\" figures -o @T");
    g_auto(RpCliRun) picture =
        rp_cli_shell("PATH=@T \"$ROUNDPIPE\" " SIMULATE "--schedule 1f1b --picture @T/x.png");

    check("figures", &figures, 1, "gnuplot");
    check("simulate --picture", &picture, 1, "gnuplot");
}

/* ---- standard output ---- */

RP_TEST(fails_when_nobody_takes_the_results)
{
    static const char *const lines[] = {
        "\"$ROUNDPIPE\" models --json >/dev/full",
        "\"$ROUNDPIPE\" simulate --help >/dev/full",
        "\"$ROUNDPIPE\" " SIMULATE "--schedule 1f1b >&-",
        "\"$ROUNDPIPE\" " SIMULATE "--schedule 1f1b --trace @T/closed.json >&-",
        "\"$ROUNDPIPE\" export --profile qwen3-8b --gpu rtx4090 -o - >/dev/full",
        "\"$ROUNDPIPE\" export @Q --schedule 1f1b --gpus 4 --micro-batches 4 --csv - >&-",
    };

    for (gsize i = 0; i < G_N_ELEMENTS(lines); i++) {
        g_auto(RpCliRun) run = rp_cli_shell("%s", lines[i]);

        check(lines[i], &run, 1, "write");
    }
}

/* As `| head` does. */
RP_TEST(ends_quietly_when_the_reader_leaves)
{
    static const char *const words[] = {
        "models --json",
        "simulate --help",
        "export --profile qwen3-8b --gpu rtx4090 -o -",
        SIMULATE "--schedule 1f1b --json",
    };

    for (gsize i = 0; i < G_N_ELEMENTS(words); i++) {
        g_auto(RpCliRun) run =
            rp_cli_shell("(sleep 0.2; \"$ROUNDPIPE\" %s; echo $? >@T/code) | true; sleep 0.6; "
                         "exit $(cat @T/code)",
                         words[i]);

        if (run.code != 141 || *run.err != '\0')
            fail_msg("%s: exit code %d, expected 141 and no word: %s", words[i], run.code, run.err);
    }
}

/* It was opened to see whether it is a model's, without a limit of time, and what was in it was lost. */
RP_TEST(waits_for_no_pipe_that_nobody_writes)
{
    g_auto(RpCliRun) run =
        rp_cli_shell("mkfifo @T/profile.json && timeout 30 $ROUNDPIPE simulate @T/profile.json");

    rp_cli_assert_refused(&run, "simulate", 1, "found no writer for 3 seconds");
}

/* Only an option that takes a schedule lists them, and every option has a description. */
static void
check_options(const char *command, const char *help)
{
    g_auto(GStrv) options = g_strsplit(help, "\n", -1);

    for (char **option = options; *option != NULL; option++) {
        const char *gap = g_str_has_prefix(*option, "  -") ? strstr(*option + 2, "  ") : "-";

        if (gap == NULL || *gap == '\0')
            fail_msg("%s --help: no description: %s", command, *option);
        if (g_str_has_prefix(gap + strspn(gap, " "), "gpipe, ") &&
            strstr(*option, "--schedule") == NULL && strstr(*option, "--reverse-backward") == NULL)
            fail_msg("%s --help: of schedules: %s", command, *option);
    }
}

RP_TEST(explains_every_command_and_option)
{
    g_auto(RpCliRun) help = rp_cli_run("--help");
    g_auto(RpCliRun) nothing = rp_cli_run("%s", "");
    g_auto(RpCliRun) version = rp_cli_run("--version");
    g_auto(GStrv) lines = g_strsplit(help.out, "\n", -1);
    guint n_commands = 0;

    assert_int_equal(help.code, 0);
    assert_int_equal(nothing.code, 2);
    assert_string_equal(nothing.err, help.out);
    assert_true(g_str_has_prefix(version.out, "roundpipe "));
    for (char **line = lines; *line != NULL; line++) {
        if (!g_str_has_prefix(*line, "  ") || (*line)[2] == '\0')
            continue;
        g_autofree char *command = g_strndup(*line + 2, strcspn(*line + 2, " "));
        g_autofree char *example = g_strdup_printf("  roundpipe %s", command);
        g_auto(RpCliRun) run = rp_cli_run("%s --help", command);
        g_auto(RpCliRun) asked = rp_cli_run("help %s", command);

        assert_int_equal(run.code, 0);
        assert_string_equal(asked.out, run.out);
        assert_string_equal(run.err, "");
        assert_non_null(strstr(run.out, "--json"));
        if (strstr(run.out, "xample") == NULL || strstr(run.out, example) == NULL)
            fail_msg("%s --help has no example", command);
        check_options(command, run.out);
        n_commands++;
    }
    assert_true(n_commands > 20);
}

RP_TEST(help_is_as_wide_as_the_terminal)
{
    g_setenv("COLUMNS", "80", TRUE);
    g_auto(RpCliRun) run = rp_cli_run("simulate --help");
    g_unsetenv("COLUMNS");
    g_auto(GStrv) lines = g_strsplit(run.out, "\n", -1);

    assert_int_equal(run.code, 0);
    for (char **line = lines; *line != NULL; line++)
        if (**line == ' ' && (*line)[2] != 'r' && g_utf8_strlen(*line, -1) > 80)
            fail_msg("%s", *line);
    assert_non_null(strstr(run.out, "\n                              "));
}

/* Things that people have in place of a model: each message has the way out. */
RP_TEST(says_what_stands_in_place_of_a_model)
{
    rp_cli_must_shell("cd @T && mkdir -p models--a--b/snapshots/0a1 gguf pickled && "
                      "touch gguf/x.gguf pickled/pytorch_model.bin");

    rp_cli_must_refuse_all("cli-errors: says what stands in place of a model");
}

RP_TEST_GROUP(rp_cli_setup, rp_cli_teardown)
