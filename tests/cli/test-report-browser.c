/* Pages of `roundpipe report` where there is Chromium: what a reader gets of them. */
#include "tests/cli/train-files.h"

#include <string.h>

#define BOUND "@Q --schedule 1f1b --gpus 2 --micro-batches 4 --stages 14,14"
#define FULL "--schedule roundpipe --gpus 8 --micro-batches 16 --fidelity full"
#define TRAIN "train @T/run.yaml --set steps=4 "

static void
assert_has(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("expected \"%s\" in\n%.3000s\n", part, text);
}

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

#define RECORDED "@R/tests/cli/recorded/named-1f1b-"

RP_TEST(a_reader_sees_kernels_of_a_recording)
{
    skip_without_browser();
    rp_cli_must_run("report " RECORDED "0.json.gz " RECORDED "1.json.gz -o @T/recorded.html");
    g_autofree char *result = browse("recorded.html");

    assert_has(result, "problems: none\n");
    assert_has(result, "hover: nvjet_sm90_"); /* a matmul */
    assert_has(result, " | rank 0, gpu 0 compute, recorded: ");
    assert_has(result, "zoomed: 1.500\nwheel: true\ndragged: true\nwhole: true\n");
    assert_has(result, "rows without copies: 2\n");
    assert_has(result, "elements from files: 0\n");
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
