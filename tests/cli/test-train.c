/* `roundpipe train` as a user runs it. */
#include "tests/cli/train-files.h"

#include <math.h>
#include <stdio.h>

#define TRAIN "train @T/run.yaml --set output=@T/"

static char *
checksum(const char *name)
{
    g_autofree char *path = rp_cli_temporary(name);
    g_autofree char *data = NULL;
    gsize length = 0;

    if (!g_file_get_contents(path, &data, &length, NULL))
        fail_msg("cannot read %s", path);
    return g_compute_checksum_for_data(G_CHECKSUM_SHA256, (const guchar *)data, length);
}

/* Rounds are those that the schedule and the devices choose. */
static int
set_up(void **state)
{
    if (rp_train_files_setup(state) != 0)
        return 1;
    rp_cli_must_shell("sed -i '/^round:/d' @T/run.yaml");
    return 0;
}

/* Lines of a metrics.jsonl as JSON objects. (transfer full) */
static GPtrArray *
read_metrics(const char *output)
{
    g_autofree char *name = g_build_filename(output, "metrics.jsonl", NULL);
    g_autofree char *text = rp_cli_read(name);
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    GPtrArray *metrics = g_ptr_array_new_with_free_func((GDestroyNotify)rp_tree_free);

    for (char **line = lines; *line != NULL && **line != '\0'; line++) {
        RpTree *node = rp_tree_parse(*line);

        if (node == NULL)
            fail_msg("%s: not JSON: %s", name, *line);
        g_ptr_array_add(metrics, node);
    }
    return metrics;
}

/* The part of a line that does not differ from run to run. (transfer full) */
static char *
learned(const GPtrArray *metrics)
{
    GString *text = g_string_new(NULL);

    for (guint i = 0; i < metrics->len; i++) {
        RpTree *line = g_ptr_array_index(metrics, i);

        g_string_append_printf(text, "%.0f %.17g %.17g %.17g %.0f\n", rp_cli_number(line, "step"),
                               rp_cli_number(line, "loss"), rp_cli_number(line, "learning_rate"),
                               rp_cli_number(line, "grad_norm"), rp_cli_number(line, "tokens"));
    }
    return g_string_free(text, FALSE);
}

/* One line on stderr that contains @part, and the exit code. */
static void
refuse(const char *line, int code, const char *part)
{
    g_auto(RpCliRun) run = rp_cli_run("%s", line);

    if (run.code != code || strstr(run.err, part) == NULL)
        fail_msg("%s: exit code %d, expected %d with \"%s\": %s", line, run.code, code, part,
                 run.err);
    if (!g_str_has_prefix(run.err, "roundpipe train: ") ||
        strchr(run.err, '\n') != run.err + strlen(run.err) - 1)
        fail_msg("%s: expected one line, found: %s", line, run.err);
}

/* ---- plans ---- */

RP_TEST(plans_without_training_in_a_dry_run)
{
    g_auto(RpCliRun) run = rp_cli_run(TRAIN "dry --dry-run");
    g_autoptr(RpTree) root =
        rp_cli_run_json(TRAIN "dry --dry-run --json --trace @T/predicted.json");
    g_autofree char *output = rp_cli_temporary("dry");
    g_autofree char *trace = rp_cli_temporary("predicted.json");

    assert_int_equal(run.code, 0);
    assert_string_equal(run.err, "");
    assert_non_null(strstr(run.out, "forward stages"));
    assert_non_null(strstr(run.out, "optimizer state"));
    assert_non_null(strstr(run.out, "predicted"));
    assert_null(strstr(run.out, "measured"));
    assert_false(g_file_test(output, G_FILE_TEST_EXISTS));
    assert_true(g_file_test(trace, G_FILE_TEST_EXISTS));
    assert_true(rp_cli_number(root, "predicted.step_ms") > 0);
    assert_true(rp_cli_number(root, "predicted.host_categories.optimizer state") > 0);
}

RP_TEST(measures_the_layers_itself_unless_told_their_times)
{
    g_autoptr(RpTree) root = rp_cli_run_json(TRAIN "auto --set profile=auto --dry-run --json");

    assert_string_equal(rp_cli_member(root, "times")->text, "measured");
    assert_true(rp_cli_number(root, "predicted.step_ms") > 0);
}

/* If every time of a profile may be a tenth more or less, so may the step. */
RP_TEST(predicts_a_range_where_layer_times_have_spreads)
{
    static const struct {
        const char *from, *to;
    } spreads[] = {
        {"\"backward_ms\":0.1", "\"forward_spread_ms\":0.01,\"backward_spread_ms\":0.01"},
        {"\"backward_ms\":0.4", "\"forward_spread_ms\":0.02,\"backward_spread_ms\":0.04"},
    };
    static const char *const schedules[] = {"roundpipe", "gpipe"};
    g_autofree char *plain = rp_cli_read("times.json");
    g_autoptr(GString) times = g_string_new(plain);

    for (gsize i = 0; i < G_N_ELEMENTS(spreads); i++) {
        g_autofree char *both = g_strconcat(spreads[i].from, ",", spreads[i].to, NULL);

        assert_true(g_string_replace(times, spreads[i].from, both, 0) > 0);
    }
    rp_cli_write("spread.json", times->str);
    for (gsize i = 0; i < G_N_ELEMENTS(schedules); i++) {
        g_autofree char *line = g_strdup_printf(
            TRAIN "spread --set profile=@T/spread.json --set schedule=%s --dry-run", schedules[i]);
        g_auto(RpCliRun) text = rp_cli_run("%s", line);
        g_autoptr(RpTree) root = rp_cli_run_json("%s --json", line);
        const double step = rp_cli_number(root, "predicted.step_ms");
        const double least = rp_cli_number(root, "predicted.step_ms_range.least");
        const double most = rp_cli_number(root, "predicted.step_ms_range.most");
        g_autofree char *range = g_strdup_printf("%.3f to %.3f ms with every layer", least, most);

        /* transfers have no spread */
        if (!(least < step && least >= 0.9 * step - 1e-6 && most > step &&
              most <= 1.1 * step + 1e-6))
            fail_msg("%s: %g to %g, step %g", schedules[i], least, most, step);
        assert_non_null(strstr(text.out, range));
    }
    g_autoptr(RpTree) root = rp_cli_run_json(TRAIN "spread --dry-run --json");
    assert_false(rp_tree_find(rp_cli_member(root, "predicted"), "step_ms_range") != NULL);
}

static gint64
head_chunk_of(const RpCliRun *run)
{
    g_autoptr(RpTree) root = rp_cli_json(run);

    return (gint64)rp_cli_number(root, "head_chunk");
}

/* Replaces @from by @to in @T/@name. */
static void
edit(const char *name, const char *from, const char *to)
{
    g_autofree char *text = rp_cli_read(name);
    g_auto(GStrv) parts = g_strsplit(text, from, 2);

    assert_int_equal(g_strv_length(parts), 2);
    g_autofree char *edited = g_strjoinv(to, parts);
    rp_cli_write(name, edited);
}

RP_TEST(takes_the_chunk_of_the_head_that_layer_times_are_of)
{
    g_autofree char *times = rp_cli_read("times.json");

    rp_cli_write("chunk.json", times);
    edit("chunk.json", "\"dtype\"", "\"head_chunk\":5,\"dtype\"");
    g_auto(RpCliRun) taken = rp_cli_run(TRAIN "x --set profile=@T/chunk.json --dry-run --json");
    assert_int_equal(head_chunk_of(&taken), 5);
    assert_string_equal(taken.err, "");
    g_auto(RpCliRun) given =
        rp_cli_run(TRAIN "x --set profile=@T/chunk.json --set head_chunk=7 --dry-run --json");
    assert_int_equal(head_chunk_of(&given), 7);
    assert_non_null(strstr(given.err, "chunks of 5 tokens, the run's are of 7"));
}

/* A resumed run keeps its plan, though a later version or other devices would choose another. */
RP_TEST(keeps_the_chunk_of_the_head_that_a_run_began_with)
{
    g_auto(RpCliRun) run = rp_cli_run(TRAIN "chunks --set profile=auto --set steps=2 --json");
    g_autofree char *chosen =
        g_strdup_printf("\"head_chunk\": %" G_GINT64_FORMAT ",", head_chunk_of(&run));
    g_autofree char *measured = rp_cli_read("chunks/profile.json");

    if (strstr(measured, "\"model\": \"model\"") == NULL) /* the directory's name */
        fail_msg("%.400s", measured);

    edit("chunks/profile.json", chosen, "\"head_chunk\": 3,");
    g_auto(RpCliRun) on =
        rp_cli_run(TRAIN "chunks --set profile=auto --set steps=3 --resume --json");
    assert_int_equal(head_chunk_of(&on), 3);
    edit("chunks/profile.json", "\"head_chunk\": 3,", "");
    g_auto(RpCliRun) older =
        rp_cli_run(TRAIN "chunks --set profile=auto --set steps=4 --set devices=host:1 --resume "
                         "--json");
    assert_int_equal(head_chunk_of(&older), 1024); /* the default before files said so */
}

/* Times of the profile: a block 0.2 ms forward and again to recompute, 0.4 ms back; the head 0.2
 * and 0.4 ms. */
RP_TEST(plans_the_head_where_bound_schedules_run_it)
{
    /* samples that fill sequences: nearly all tokens have a target */
    rp_cli_must_shell(
        "ids=$(seq -s , 1 32); for i in 1 2 3 4; do echo \"{\\\"input_ids\\\":[$ids]}\"; done "
        "> @T/full.jsonl");
    rp_cli_must_run(TRAIN "head --dry-run --set schedule=gpipe --set stages=2,2 "
                          "--set data=@T/full.jsonl --set sequence_length=32 "
                          "--trace @T/gpipe.json");
    g_autofree char *text = rp_cli_read("gpipe.json");
    g_autoptr(RpTree) root = rp_tree_parse(text);
    guint found = 0;

    assert_non_null(root);
    const RpTree *events = rp_cli_member(root, "traceEvents");
    for (guint i = 0; i < events->items->len; i++) {
        const RpTree *event = rp_tree_nth(events, i);
        const RpTree *cat = rp_tree_find(event, "cat");
        const char *kind = cat != NULL ? cat->text : "";
        gboolean forward = strcmp(kind, "forward") == 0;

        if ((!forward && strcmp(kind, "backward") != 0) || rp_cli_number(event, "args.stage") != 1)
            continue;
        assert_float_equal(rp_cli_number(event, "dur"), forward ? 400 : 1800, 1e-6);
        found++;
    }
    assert_true(found >= 8);
}

RP_TEST(says_when_the_fused_stage_is_all_there_is)
{
    g_auto(RpCliRun) run = rp_cli_run(TRAIN "fused --dry-run --set devices=host:1");
    g_auto(RpCliRun) two = rp_cli_run(TRAIN "fused --dry-run --set forward_stages=2 "
                                            "--set backward_stages=2,2");

    assert_int_equal(run.code, 0);
    assert_non_null(
        strstr(run.out, "forward stages   none: the fused stage runs forward and backward\n"));
    assert_int_equal(two.code, 0);
    assert_null(strstr(two.out, "none"));
}

RP_TEST(takes_no_forward_stages_as_they_are_printed)
{
    g_auto(RpCliRun) fused = rp_cli_run(TRAIN "given --dry-run --set forward_stages=none "
                                              "--set backward_stages=4");

    assert_int_equal(fused.code, 0);
    assert_non_null(strstr(fused.out, "forward stages   none: "));
    assert_non_null(strstr(fused.out, "backward stages  4\n"));
    assert_non_null(strstr(fused.out, "partition        given\n"));
    rp_cli_must_refuse_all("train: takes no forward stages as they are printed");
}

/* ---- training ---- */

RP_TEST(trains_and_reports_every_step)
{
    static const char *const keys[] = {"step",   "loss",    "learning_rate", "grad_norm",
                                       "tokens", "step_ms", "bubble_ratio"};
    g_auto(RpCliRun) run = rp_cli_run(TRAIN "five --json");
    g_autoptr(RpTree) root = rp_cli_json(&run);
    g_autoptr(GPtrArray) metrics = read_metrics("five");
    g_autofree char *model = rp_cli_temporary("five/checkpoint-5/model.safetensors");
    g_autofree char *copy = rp_cli_read("five/run.yaml");

    assert_string_equal(run.err, "");
    assert_int_equal(metrics->len, 5);
    for (guint i = 0; i < metrics->len; i++) {
        RpTree *line = g_ptr_array_index(metrics, i);

        assert_int_equal(line->items->len, G_N_ELEMENTS(keys));
        for (guint k = 0; k < G_N_ELEMENTS(keys); k++)
            assert_string_equal(rp_tree_nth(line, k)->key, keys[k]);
        assert_int_equal(rp_cli_number(line, "step"), i + 1);
        assert_true(rp_cli_number(line, "loss") > 1 && rp_cli_number(line, "loss") < 8);
        assert_true(rp_cli_number(line, "tokens") > 0);
        assert_true(rp_cli_number(line, "step_ms") >= 0);
    }
    assert_true(g_file_test(model, G_FILE_TEST_EXISTS));
    assert_non_null(strstr(copy, "learning_rate: 1e-2\n"));
    assert_non_null(strstr(copy, "async: true\n"));
    assert_int_equal(rp_cli_number(root, "last_step"), 5);
    assert_int_equal(rp_cli_number(root, "measured.steady_steps"), 3);
    assert_true(rp_cli_number(root, "measured.host_bytes") ==
                rp_cli_number(root, "predicted.host_bytes"));
    /* devices that are threads copy from any memory */
    assert_false(rp_tree_find(rp_cli_member(root, "measured"), "pinned") != NULL);
    g_autofree char *planned = rp_cli_list(root, "predicted.device_bytes");
    g_autofree char *opened = rp_cli_list(root, "measured.device_bytes");
    assert_string_equal(planned, opened);
}

RP_TEST(sets_what_was_predicted_against_what_was_measured)
{
    g_auto(RpCliRun) run = rp_cli_run(TRAIN "text");

    assert_int_equal(run.code, 0);
    if (!g_regex_match_simple("predicted +measured +difference\nstep, ms +[0-9.]+ +[0-9.]+ +"
                              "([+-][0-9.]+ %|not compared)\n",
                              run.out, 0, 0))
        fail_msg("no table of step times: %s", run.out);
    assert_true(g_regex_match_simple("\nactions waited [0-9.]+ % of their time for a processor",
                                     run.out, 0, 0));
    assert_non_null(strstr(run.out, "memory of device 1"));
    assert_null(strstr(run.out, "pinned memory"));
    assert_non_null(strstr(run.out, "text/checkpoint-5"));
}

RP_TEST(scales_the_loss_of_fp16_only_and_accumulates_over_calls)
{
    rp_cli_must_run(TRAIN "fp16 --set dtype=fp16 --set loss_scale.initial=256 "
                          "--set gradient_accumulation_steps=3 --set steps=2");
    g_autoptr(GPtrArray) metrics = NULL;

    metrics = read_metrics("fp16");
    assert_int_equal(metrics->len, 2);
    assert_int_equal(rp_cli_number(g_ptr_array_index(metrics, 0), "loss_scale"), 256);
    assert_false(rp_cli_member(g_ptr_array_index(metrics, 0), "skipped")->number);
    assert_true(rp_cli_number(g_ptr_array_index(metrics, 0), "tokens") > 3 * 4 * 5);
}

RP_TEST(tells_on_a_resume_that_other_rounds_give_other_bits)
{
    static const char more[] = "--set async=false --set gradient_accumulation_steps=2";
    rp_cli_must_run(TRAIN "rounds %s --set steps=1", more);
    g_auto(RpCliRun) same = rp_cli_run(TRAIN "rounds %s --set steps=2 --resume", more);
    g_auto(RpCliRun) other =
        rp_cli_run(TRAIN "rounds %s --set steps=3 --set schedule=gpipe --resume", more);

    assert_int_equal(same.code, 0);
    assert_null(strstr(same.err, "summed"));
    assert_int_equal(other.code, 0);
    assert_non_null(strstr(other.err, "note: --resume: gradients of a step are summed in 1 round, "
                                      "in the checkpoint's run in 2: "));
}

/* Norm of the gradients in @T/@name; infinite if one of them is. */
static double
gradient_norm(const char *name)
{
    g_autofree char *path = rp_cli_temporary(name);
    g_autofree char *data = NULL;
    gsize length = 0;
    guint64 header = 0;
    double squares = 0;

    assert_true(g_file_get_contents(path, &data, &length, NULL));
    memcpy(&header, data, sizeof header);
    assert_non_null(
        g_strstr_len(data + 8, (gssize)header, "\"model.layers.3.mlp.up_proj.weight\""));
    assert_non_null(g_strstr_len(data + 8, (gssize)header, "\"F32\""));
    for (gsize at = 8 + (gsize)header; at + 4 <= length; at += 4) {
        float value;

        memcpy(&value, data + at, sizeof value);
        squares += (double)value * value;
    }
    return sqrt(squares);
}

RP_TEST(saves_gradients_whose_norm_is_that_of_the_first_step)
{
    rp_cli_must_run(TRAIN "grad --set dtype=fp32 --save-gradients @T/gradients.safetensors");
    g_auto(RpCliRun) train = rp_cli_run(TRAIN "grad --set dtype=fp32 --set steps=1");

    assert_int_equal(train.code, 0); /* nothing was left in the output directory */
    g_autoptr(GPtrArray) metrics = read_metrics("grad");
    assert_float_equal(gradient_norm("gradients.safetensors"),
                       rp_cli_number(g_ptr_array_index(metrics, 0), "grad_norm"), 1e-5);
}

RP_TEST(saves_finite_gradients_of_fp16_although_the_first_scale_overflows)
{
    const char *const modes[] = {"false", "true"};
    rp_cli_must_run(TRAIN "grad16 --set dtype=fp32 --save-gradients @T/exact.safetensors");
    double norm = gradient_norm("exact.safetensors");

    for (gsize i = 0; i < G_N_ELEMENTS(modes); i++) {
        g_auto(RpCliRun) run = rp_cli_run(
            TRAIN "grad16 --set dtype=fp16 --set async=%s --set loss_scale.initial=16777216 "
                  "--save-gradients @T/scaled.safetensors",
            modes[i]);
        assert_int_equal(run.code, 0);
        assert_non_null(
            strstr(run.err, "they overflow at a loss scale of 1.67772e+07; these were"));
        assert_float_equal(gradient_norm("scaled.safetensors"), norm, norm * 0.01);
    }
}

/* ---- the picture ---- */

static gboolean
is_png(const char *name)
{
    g_autofree char *path = rp_cli_temporary(name);
    g_autofree char *data = NULL;
    gsize length = 0;

    return g_file_get_contents(path, &data, &length, NULL) && length > 1000 &&
           memcmp(data, "\211PNG\r\n\032\n", 8) == 0;
}

RP_TEST(draws_the_loss_also_of_what_was_resumed_from)
{
    g_autofree char *gnuplot = g_find_program_in_path("gnuplot");

    if (gnuplot == NULL)
        skip();
    /* keeps what is drawn, then draws it */
    g_autofree char *spy = g_strdup_printf("#!/bin/sh\ncp *.dat @T/drawn.dat 2>/dev/null\n"
                                           "exec %s \"$@\"\n",
                                           gnuplot);
    rp_cli_must_shell("mkdir -p @T/bin && printf '%%s' '%s' >@T/bin/gnuplot && "
                      "chmod +x @T/bin/gnuplot",
                      spy);
    g_auto(RpCliRun) first = rp_cli_run(TRAIN "drawn --set plot_loss=true --set steps=3");
    assert_int_equal(first.code, 0);
    assert_string_equal(first.err, "");
    assert_non_null(strstr(first.out, "drawn/training_loss.png\n"));
    assert_true(is_png("drawn/training_loss.png"));
    g_auto(RpCliRun) second = rp_cli_shell("PATH=@T/bin:$PATH exec $ROUNDPIPE " TRAIN
                                           "drawn --set plot_loss=true --resume --json");
    g_autoptr(RpTree) root = rp_cli_json(&second);
    assert_true(
        g_str_has_suffix(rp_cli_member(root, "loss_picture")->text, "drawn/training_loss.png"));
    g_autoptr(GPtrArray) metrics = read_metrics("drawn");
    g_autofree char *drawn = rp_cli_read("drawn.dat");
    assert_int_equal(metrics->len, 5);
    for (guint i = 0; i < metrics->len; i++) {
        g_autofree char *line = g_strdup_printf(
            "\n%u %.9g ", i + 1, rp_cli_number(g_ptr_array_index(metrics, i), "loss"));

        if (strstr(drawn, line) == NULL)
            fail_msg("step %u is not drawn: expected %s in %s", i + 1, line, drawn);
    }
}

RP_TEST(draws_nothing_unless_it_is_told_to)
{
    g_autoptr(RpTree) root = rp_cli_run_json(TRAIN "plain --set steps=1 --json");
    g_autofree char *picture = rp_cli_temporary("plain/training_loss.png");

    assert_true(rp_cli_member(root, "loss_picture")->type == RP_JSON_NULL);
    assert_false(g_file_test(picture, G_FILE_TEST_EXISTS));
}

RP_TEST(trains_without_gnuplot_and_says_so_once)
{
    g_auto(RpCliRun) run =
        rp_cli_shell("PATH=/nowhere; $ROUNDPIPE " TRAIN "blind --set plot_loss=true --set steps=2");
    g_autoptr(GPtrArray) metrics = read_metrics("blind");

    assert_int_equal(run.code, 0);
    assert_int_equal(metrics->len, 2);
    assert_true(
        g_str_has_prefix(run.err, "roundpipe train: warning: plot_loss: gnuplot not found"));
    assert_ptr_equal(strchr(run.err, '\n'), run.err + strlen(run.err) - 1);
    assert_null(strstr(run.out, "loss curve"));
}

RP_TEST(draws_the_loss_of_a_run_that_was_interrupted)
{
    g_autofree char *gnuplot = g_find_program_in_path("gnuplot");

    if (gnuplot == NULL)
        skip();
    g_auto(RpCliRun) run = rp_cli_shell(
        "$ROUNDPIPE " TRAIN "cut --set steps=1000000 --set plot_loss=true & pid=$!; "
        "while [ $(cat @T/cut/metrics.jsonl 2>/dev/null | wc -l) -lt 5 ]; do sleep 0.02; done; "
        "kill -INT $pid; kill -TERM $pid; wait $pid");

    assert_true(run.code == 130 || run.code == 143);
    assert_true(is_png("cut/training_loss.png"));
}

/* ---- stopping and going on ---- */

#define WAIT_FOR_STEPS(output)                                                                     \
    "while [ $(cat @T/" output "/metrics.jsonl 2>/dev/null | wc -l) -lt 5 ]; do sleep 0.02; "      \
    "done; "

RP_TEST(goes_on_after_a_signal_as_if_it_had_never_stopped)
{
    rp_cli_must_run(TRAIN "whole --set steps=1000");
    g_auto(RpCliRun) stopped = rp_cli_shell(
        "$ROUNDPIPE " TRAIN
        "parts --set steps=1000 & pid=$!; " WAIT_FOR_STEPS("parts") "kill -TERM $pid; wait $pid");
    g_autoptr(GPtrArray) before = NULL, after = NULL, at_once = NULL;
    g_autofree char *one = NULL, *two = NULL;

    assert_int_equal(stopped.code, 143);
    before = read_metrics("parts");
    assert_in_range(before->len, 5, 999);
    rp_cli_must_run(TRAIN "parts --set steps=1000 --resume");
    at_once = read_metrics("whole");
    after = read_metrics("parts");
    one = learned(at_once);
    two = learned(after);
    assert_string_equal(one, two);
    g_autofree char *expected = checksum("whole/checkpoint-1000/model.safetensors");
    g_autofree char *found = checksum("parts/checkpoint-1000/model.safetensors");
    assert_string_equal(expected, found);
}

RP_TEST(drops_the_lines_of_steps_that_are_done_again)
{
    rp_cli_must_run(TRAIN "again --set checkpoint.every=2 --set checkpoint.keep=0");
    g_autoptr(GPtrArray) before = read_metrics("again");
    g_autofree char *torn = rp_cli_temporary("again/metrics.jsonl");
    g_autofree char *expected = learned(before);
    FILE *file = fopen(torn, "ae");

    assert_non_null(file);
    (void)fputs("{\"step\":6,\"lo", file); /* as if the process had died */
    (void)fclose(file);
    rp_cli_must_run(TRAIN "again --resume=@T/again/checkpoint-2");
    g_autoptr(GPtrArray) after = read_metrics("again");
    g_autofree char *found = learned(after);
    assert_string_equal(found, expected);
}

RP_TEST(saves_when_asked_by_a_signal_and_goes_on)
{
    rp_cli_must_shell("$ROUNDPIPE " TRAIN
                      "usr --set steps=1000 --set checkpoint.keep=0 & pid=$!; " WAIT_FOR_STEPS(
                          "usr") "kill -USR1 $pid; wait $pid");
    g_auto(RpCliRun) list = rp_cli_shell("ls @T/usr | grep -c checkpoint-");

    assert_string_equal(list.out, "2\n");
}

RP_TEST(keeps_training_when_a_checkpoint_cannot_be_saved)
{
    g_auto(RpCliRun) run =
        rp_cli_shell("ulimit -f 8; $ROUNDPIPE " TRAIN "full --set checkpoint.every=2");
    g_autoptr(GPtrArray) metrics = read_metrics("full");

    assert_int_equal(run.code, 1);
    assert_int_equal(metrics->len, 5);
    assert_non_null(strstr(run.err, "warning: no checkpoint of step 2: "));
    assert_non_null(strstr(run.err, "training goes on"));
    assert_non_null(strstr(run.err, "warning: no checkpoint of step 5: "));
}

RP_TEST(overwrites_no_run)
{
    rp_cli_must_run(TRAIN "kept --set steps=1");
    g_autofree char *before = checksum("kept/checkpoint-1/model.safetensors");

    refuse(TRAIN "kept", 1,
           "kept: expected no checkpoint there, found checkpoint-1; go on from "
           "the last with --resume");
    g_autofree char *after = checksum("kept/checkpoint-1/model.safetensors");
    assert_string_equal(before, after);
    rp_cli_must_refuse_all("train: overwrites no run");
}

RP_TEST(tells_where_a_loss_broke_and_what_is_left)
{
    refuse(TRAIN "broken --set optimizer.learning_rate=1000 --set steps=200 "
                 "--set checkpoint.every=5 --set optimizer.max_grad_norm=0",
           1, "; the last good checkpoint is ");
}

/* ---- what is refused before training ---- */

RP_TEST(refuses_what_cannot_be_trained)
{
    g_autofree char *output = rp_cli_temporary("x");

    rp_cli_write("bad.jsonl", "{\"input_ids\":[1,2]}\n{\"input_ids\":1}\n");
    rp_cli_write("large.jsonl", "{\"input_ids\":[1,33]}\n");
    rp_cli_must_shell("sed 's/\"count\":4/\"count\":5/' @T/times.json >@T/other.json");
    rp_cli_must_refuse_all("train: refuses what cannot be trained");
    assert_false(g_file_test(output, G_FILE_TEST_EXISTS));
}

/* Before the data are read and layers are measured: the data here are wrong too. */
RP_TEST(sees_an_output_that_cannot_be_written_before_long_work)
{
    g_autofree char *above = rp_cli_temporary("a");

    rp_cli_must_refuse_all("train: sees an output that cannot be written before long work");
    assert_false(g_file_test(above, G_FILE_TEST_EXISTS));
}

/* ---- keys ---- */

/* The row of @key that `train --keys --json` prints; fails if it is missing. */
static const RpTree *
described(const RpTree *keys, const char *key)
{
    for (guint i = 0; i < keys->items->len; i++)
        if (strcmp(rp_cli_member(rp_tree_nth(keys, i), "key")->text, key) == 0)
            return rp_tree_nth(keys, i);
    fail_msg("no key %s", key);
    return NULL;
}

RP_TEST(lists_the_keys_of_a_run_file)
{
    g_auto(RpCliRun) text = rp_cli_run("train --keys");
    g_autoptr(RpTree) json = rp_cli_run_json("train --keys --json");
    g_auto(RpCliRun) both = rp_cli_run("train --keys run.yaml");
    g_auto(RpCliRun) none = rp_cli_run("train");

    assert_int_equal(text.code, 0);
    assert_non_null(strstr(text.out, "\nmicro_batches                8 "));
    assert_non_null(strstr(text.out, "micro-batches of a call (a whole number from 1 to 1048576)"));
    assert_true(rp_cli_member(described(json, "model"), "required")->number);
    assert_true(rp_cli_member(described(json, "model"), "default")->type == RP_JSON_NULL);
    assert_string_equal(rp_cli_member(described(json, "micro_batches"), "default")->text, "8");
    assert_int_equal(both.code, 2);
    assert_string_equal(both.err,
                        "roundpipe train: --keys: expected no run file with it; see --help\n");
    assert_int_equal(none.code, 2);
    assert_string_equal(none.err, "roundpipe train: something is missing: expected RUN.yaml; see "
                                  "--help\n");
}

RP_TEST_GROUP(set_up, rp_cli_teardown)
