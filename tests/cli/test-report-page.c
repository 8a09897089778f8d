/* `roundpipe report`: what is in the page, what is refused; and, where there is Chromium, what a reader
 * gets of it. */
#include "tests/cli/train-files.h"

#include <math.h>
#include <string.h>

#define BOUND "@Q --schedule 1f1b --gpus 2 --micro-batches 4 --stages 14,14"
#define FULL "--schedule roundpipe --gpus 8 --micro-batches 16 --fidelity full"

static void
assert_has(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        print_error("expected \"%s\" in\n%.3000s\n", part, text);
    assert_non_null(strstr(text, part));
}

/* ---- the file ---- */

RP_TEST(a_page_is_one_file_that_loads_nothing)
{
    rp_cli_must_run("simulate " BOUND " --trace @T/bound.json");
    rp_cli_must_run("report @T/bound.json -o @T/bound.html");
    rp_cli_must_run("report @T/bound.json -o @T/again.html");
    g_autofree char *page = rp_cli_read("bound.html");
    g_autofree char *again = rp_cli_read("again.html");
    char *command = strstr(page, "<h2>Commands</h2>");

    assert_has(page, "default-src 'none'");
    assert_has(page, "<td>bubble ratio</td>");
    assert_null(strstr(page, "http://"));
    assert_null(strstr(page, "https://"));
    assert_null(strstr(page, " src="));
    assert_null(strstr(page, "@import"));
    /* the same bytes but for the command that names the other file */
    assert_non_null(command);
    assert_memory_equal(page, again, (gsize)(command - page));
}

RP_TEST(a_measured_run_stands_below_its_prediction)
{
    rp_cli_must_run("simulate " BOUND " --trace @T/predicted.json");
    rp_cli_must_run("replay " BOUND " --scale 0.5 --trace @T/measured.json");
    rp_cli_must_run("report @T/measured.json @T/predicted.json -o @T/both.html");
    g_autofree char *page = rp_cli_read("both.html");

    assert_has(page, "<th>predicted</th><th>measured</th>");
    assert_true(strstr(page, "\"name\":\"predicted\"") < strstr(page, "\"name\":\"measured\""));
    assert_has(page, "\"pair\":");
}

RP_TEST(text_of_files_stays_text)
{
    g_autofree char *from = rp_cli_temporary("bound.json");
    g_autofree char *to = rp_cli_temporary("<img src=x onerror=alert(1)>&.json");
    g_autofree char *text = NULL;

    assert_true(g_file_get_contents(from, &text, NULL, NULL));
    assert_true(g_file_set_contents(to, text, -1, NULL));
    rp_cli_must_shell(
        "cd @T && \"$ROUNDPIPE\" report '<img src=x onerror=alert(1)>&.json' -o odd.html");
    g_autofree char *page = rp_cli_read("odd.html");

    assert_null(strstr(page, "<img"));
    assert_has(page, "&lt;img src=x onerror=alert(1)&gt;&amp;.json");
}

/* ---- what is refused ---- */

RP_TEST(names_what_is_wrong_with_a_file)
{
    g_autofree char *whole = rp_cli_read("bound.json");
    g_autofree char *cut = rp_cli_temporary("cut.json");
    g_autofree char *other = rp_cli_temporary("other.json");

    assert_true(g_file_set_contents(cut, whole, (gssize)strlen(whole) / 2, NULL));
    assert_true(g_file_set_contents(other, "{\"model\": 3}\n", -1, NULL));
    rp_cli_must_refuse_all("report-page: names what is wrong with a file");
    g_autofree char *page = rp_cli_temporary("no.html");
    assert_false(g_file_test(page, G_FILE_TEST_EXISTS));
}

RP_TEST(refuses_traces_of_different_runs)
{
    rp_cli_must_run(
        "simulate @Q --schedule 1f1b --gpus 4 --micro-batches 4 --stages 7*4 --trace @T/four.json");
    rp_cli_must_run(
        "simulate @Q --schedule gpipe --gpus 2 --micro-batches 8 --stages 14,14 --trace "
        "@T/eight.json");
    rp_cli_must_refuse_all("report-page: refuses traces of different runs");
}

/* ---- runs ---- */

#define TRAIN "train @T/run.yaml --set steps=4 "

RP_TEST(a_run_has_its_steps_plan_and_both_traces)
{
    rp_cli_must_run(TRAIN "--set output=@T/whole --trace @T/whole.json");
    rp_cli_must_run("report @T/whole @T/whole.json -o @T/whole.html");
    g_autofree char *page = rp_cli_read("whole.html");

    assert_has(page, "<h1>whole: a run of roundpipe</h1>");
    assert_has(page, "<td>loss, last step</td>");
    assert_has(page, "\"title\":\"loss\"");
    assert_has(page, "<th>predicted</th><th>measured</th>");
    assert_has(page, "whole/run.yaml</td>"); /* the prediction is planned from it */
    assert_has(page, "<tr><td>schedule</td><td>RoundPipe");
    assert_has(page, "<tr><td>optimizer state</td>");
    assert_has(page, "<summary>The run file</summary>");
    assert_has(page, "<pre>roundpipe train ");
    assert_has(page, "micro_batches: 4");
    assert_has(page, "\"memory\":");
}

RP_TEST(a_trace_beside_the_metrics_is_found)
{
    rp_cli_must_run(TRAIN "--set output=@T/found");
    rp_cli_must_run(TRAIN "--set output=@T/other --trace @T/found/trace.json");
    rp_cli_must_run("report @T/found -o @T/found.html --iterations 1:3");
    g_autofree char *page = rp_cli_read("found.html");

    assert_has(page, "Iterations 1 to 2, which both traces have");
    assert_has(page, "found/trace.json</td>");
}

RP_TEST(a_run_file_alone_is_a_plan)
{
    rp_cli_must_run("report @T/run.yaml -o @T/plan.html");
    g_autofree char *page = rp_cli_read("plan.html");

    assert_has(page, "<tr><th></th><th>predicted</th></tr>");
    assert_has(page, "<tr><td>schedule</td><td>RoundPipe");
    assert_null(strstr(page, "<h2>Training</h2>"));
}

/* One number for a step, that of `train`; the timeline says why it is longer than its steps. */
RP_TEST(a_step_is_as_long_as_train_says)
{
#define STEP "<td>a step, steady</td><td>"
    static const char *const optimizers[] = {"true", "false"};

    for (gsize i = 0; i < G_N_ELEMENTS(optimizers); i++) {
        g_auto(RpCliRun) dry =
            rp_cli_run("train @T/run.yaml --dry-run --json --set async=%s", optimizers[i]);
        g_auto(RpCliRun) made = rp_cli_shell(
            "sed '$aasync: %s' @T/run.yaml >@T/step.yaml && $ROUNDPIPE report @T/step.yaml -o "
            "@T/step.html",
            optimizers[i]);
        g_autoptr(RpTree) json = rp_cli_json(&dry);
        g_autofree char *page = rp_cli_read("step.html");

        assert_int_equal(made.code + dry.code, 0);
        assert_has(page, STEP);
        const double step_ms = g_ascii_strtod(strstr(page, STEP) + strlen(STEP), NULL);

        if (fabs(step_ms - rp_cli_number(json, "predicted.step_ms")) > 0.051)
            fail_msg("%.300s\n%s", strstr(page, STEP), dry.out);
        assert_has(page, "<td>iterations</td><td>2, from ");
        assert_has(page, "<p>The timeline, predicted, has 2 iterations with a steady step of ");
        assert_has(page, "; copies and the optimizer&apos;s steps continue to ");
    }
#undef STEP
}

RP_TEST(a_run_without_its_model_shows_its_steps)
{
    rp_cli_must_run(TRAIN "--set output=@T/lone");
    g_auto(RpCliRun) moved = rp_cli_shell("mv @T/model @T/elsewhere");
    g_auto(RpCliRun) run = rp_cli_run("report @T/lone -o @T/lone.html");
    g_auto(RpCliRun) back = rp_cli_shell("mv @T/elsewhere @T/model");
    g_autofree char *page = rp_cli_read("lone.html");

    assert_int_equal(moved.code + back.code, 0);
    assert_int_equal(run.code, 0);
    assert_true(g_str_has_prefix(run.err, "roundpipe report: note: "));
    assert_has(page, "It could not be planned again here: ");
    assert_has(page, "<td>loss, last step</td>");
    assert_null(strstr(page, "<section id=\"timeline\">"));
}

RP_TEST(names_what_is_wrong_with_a_run)
{
    rp_cli_must_run(TRAIN "--set output=@T/good");
    rp_cli_must_shell(
        "mkdir @T/empty @T/torn && : >@T/torn/metrics.jsonl && echo 'steps: x' >@T/bad.yaml");

    rp_cli_must_refuse_all("report-page: names what is wrong with a run");
}

/* ---- in a browser ---- */

static char *
find_browser(void)
{
    static const char *const names[] = {"chromium-headless-shell", "chromium"};
    char *path = NULL;

    for (gsize i = 0; i < G_N_ELEMENTS(names) && path == NULL; i++)
        path = g_find_program_in_path(names[i]);
    return path;
}

/* Before anything that is freed at the end: skip() jumps past that. */
static void
skip_without_browser(void)
{
    g_autofree char *browser = find_browser();

    if (browser == NULL)
        skip();
}

/* The page @name with tests/cli/report-browser.js in it, once a browser has run it. Returns: what the
 * script has written. (transfer full) */
static char *
browse(const char *name)
{
    g_autofree char *browser = find_browser();
    g_autofree char *script = rp_test_source_path("tests/cli/report-browser.js");
    g_autofree char *text = NULL;
    g_autofree char *path = rp_cli_temporary("tested.html");

    assert_non_null(browser); /* skip_without_browser() came first */
    g_autofree char *page = rp_cli_read(name);
    GString *tested = g_string_new(page);

    assert_true(g_file_get_contents(script, &text, NULL, NULL));
    g_autofree char *last = g_strconcat("<script>", text, "</script>\n</body>", NULL);
    assert_int_equal(
        g_string_replace(
            tested, "<head>\n",
            "<head>\n<script>window.problems = []; addEventListener('error', (e) => "
            "problems.push(e.message)); addEventListener('securitypolicyviolation', (e) => "
            "problems.push(e.violatedDirective));</script>\n",
            1),
        1);
    assert_int_equal(g_string_replace(tested, "</body>", last, 1), 1);
    assert_true(g_file_set_contents(path, tested->str, -1, NULL));
    g_string_free(tested, TRUE);
    g_auto(RpCliRun) run =
        rp_cli_shell("timeout 120 %s --no-sandbox --disable-gpu --user-data-dir=@T/browser "
                     "--window-size=1400,1000 --dump-dom file://@T/tested.html",
                     browser);
    const char *result = strstr(run.out, "<pre id=\"result\">");

    if (result == NULL)
        print_error("%.2000s\n%.2000s\n", run.err, run.out);
    assert_non_null(result);
    char *copy = g_strdup(strchr(result, '>') + 1);
    *strstr(copy, "</pre>") = '\0';
    return copy;
}

static guint64
number_behind(const char *text, const char *key)
{
    const char *at = strstr(text, key);

    assert_non_null(at);
    return g_ascii_strtoull(at + strlen(key), NULL, 10);
}

RP_TEST(a_reader_sees_every_task)
{
    skip_without_browser();
    rp_cli_must_run("simulate " BOUND " --trace @T/bound.json");
    rp_cli_must_run("report @T/bound.json -o @T/bound.html");
    g_autofree char *result = browse("bound.html");

    assert_has(result, "problems: none\n");
    assert_has(result, "boxes: 16\n"); /* 2 GPUs x 4 micro-batches, forward and backward */
    assert_has(result, "tasks: 16\n");
    assert_has(result, "hover: forward of stage 0, micro-batch 0, iteration 0, round 0 | GPU 0 "
                       "compute, predicted:");
    assert_has(result, "left: true\n");
    assert_has(result, "chosen: forward of stage 0, micro-batch 0,");
    assert_has(result, "next: forward of stage 0, micro-batch 1,");
    assert_has(result, "waits for forward of stage 0, micro-batch 0 (before it on its lane,");
    assert_has(result, "below: forward of stage 1, micro-batch 0,");
    assert_has(result, "waits for forward of stage 0, micro-batch 0 (GPU 0 compute, done at");
    assert_has(result, "waited for: forward of stage 0, micro-batch 0,");
    assert_has(result, "zoomed: 1.500\nwheel: true\ndragged: true\nwhole: true\niteration: true\n");
    assert_has(result, "elements from files: 0\n");
}

RP_TEST(a_reader_sees_prediction_and_memory)
{
    skip_without_browser();
    rp_cli_must_run("simulate " BOUND " --trace @T/predicted.json");
    rp_cli_must_run("replay " BOUND " --scale 0.5 --trace @T/measured.json");
    rp_cli_must_run("report @T/predicted.json @T/measured.json -o @T/both.html");
    g_autofree char *both = browse("both.html");

    assert_has(both, "problems: none\n");
    assert_has(both, "boxes: 32\n");
    assert_has(both, "GPU 0 compute, measured:"); /* the row below */
    assert_has(both, " | predicted: ");

    rp_cli_must_run("simulate @Q " FULL " --trace @T/full.json");
    rp_cli_must_run("report @T/full.json -o @T/full.html");
    g_autofree char *full = browse("full.html");

    assert_has(full, "problems: none\n");
    assert_has(full, "curves: 9\n"); /* eight GPUs and the host */
    assert_has(full, "curve: GPU 0: ");
    assert_has(full, "rows without copies: 9\n");
}

RP_TEST(a_reader_sees_the_loss)
{
    skip_without_browser();
    rp_cli_must_run(TRAIN "--set output=@T/learned --trace @T/learned.json");
    rp_cli_must_run("report @T/learned @T/learned.json -o @T/learned.html");
    g_autofree char *result = browse("learned.html");

    assert_has(result, "problems: none\n");
    /* memory of two devices and the host as planned; loss, tokens/s, bubble ratio, norm, rate */
    assert_has(result, "curves: 8\n");
    assert_has(result, "curve: loss: ");
}

RP_TEST(twenty_five_thousand_tasks_are_smooth)
{
    rp_cli_must_run("simulate @Q " FULL " --iterations 11 --trace @T/many.json");
    rp_cli_must_run("report @T/many.json -o @T/many.html");
    char *page = rp_cli_read("many.html");
    const gsize length = strlen(page);

    g_free(page);
    assert_true(length < 2000000);
    skip_without_browser();
    g_autofree char *result = browse("many.html");
    assert_has(result, "problems: none\n");
    assert_true(number_behind(result, "tasks: ") >= 25000);
    /* the clock is the machine's, which others use, too: a few milliseconds on an idle one */
    assert_true(number_behind(result, "mean draw ms: ") < 100);
}

RP_TEST_GROUP(rp_train_files_setup, rp_cli_teardown)
