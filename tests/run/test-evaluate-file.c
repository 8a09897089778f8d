/* rp_train_evaluate_file() against transformers, peft: tests/exec-train/fixtures/evaluations.json. */
#include "tests/rp-test.h"

#include <glib/gstdio.h>
#include <math.h>

#include "core/base/file.h"
#include "run/train/job.h"
#include "tests/json-tree.h"

static const RpRunEvents events; /* nobody follows */

static void
add_numbers(GString *line, const char *key, const RpTree *numbers)
{
    g_string_append_printf(line, "\"%s\": [", key);
    for (guint i = 0; i < numbers->items->len; i++)
        g_string_append_printf(line, "%s%.0f", i > 0 ? ", " : "", rp_tree_nth(numbers, i)->number);
    g_string_append(line, "]");
}

/* As JSONL. (transfer full) */
static char *
write_samples(const char *directory, const RpTree *samples)
{
    g_autoptr(GString) text = g_string_new(NULL);
    char *path = g_build_filename(directory, "samples.jsonl", NULL);

    for (guint i = 0; i < samples->items->len; i++) {
        g_string_append(text, "{");
        add_numbers(text, "input_ids", rp_tree_find(rp_tree_nth(samples, i), "input_ids"));
        g_string_append(text, ", ");
        add_numbers(text, "labels", rp_tree_find(rp_tree_nth(samples, i), "labels"));
        g_string_append(text, "}\n");
    }
    assert_true(g_file_set_contents(path, text->str, -1, NULL));
    return path;
}

static char *
fixture(const char *name)
{
    g_autofree char *relative = g_build_filename("tests/exec-network/fixtures", name, NULL);

    return rp_test_source_path(relative);
}

static void
set(RpRunSpec *run, const char *key, const char *text)
{
    assert_true(rp_run_spec_set(run, rp_setting_find(key), text));
}

static void
check_model(const RpTree *from, const char *directory, guint devices)
{
    const RpTree *base = rp_tree_find(from, "base");
    const char *name = rp_tree_find(from, "name")->text;
    const gboolean adapted = base->type == RP_JSON_STRING;
    g_autofree char *model = fixture(adapted ? base->text : name);
    g_autofree char *adapter = adapted ? fixture(name) : NULL;
    g_autofree char *data = write_samples(directory, rp_tree_find(from, "samples"));
    const double expected = rp_tree_find(from, "loss")->number;

    g_auto(RpTrainEvaluated) evaluated = {0};
    RpRunSpec run = {0};
    GError *error = NULL;

    set(&run, "data", data);
    set(&run, "devices", devices == 1 ? "host:1" : "host:2");
    set(&run, "dtype", "fp32");
    set(&run, "sequence_length", "13");
    set(&run, "micro_batches", "3");
    if (!rp_train_evaluate_file(model, adapter, &run, &events, &evaluated, &error))
        fail_msg("%s: %s", name, error->message);
    if (!(fabs(evaluated.result.loss - expected) <= 1e-5 * expected))
        fail_msg("%s: %.9g, transformers %.9g", name, evaluated.result.loss, expected);
    assert_int_equal(evaluated.result.n_targets, (guint64)rp_tree_find(from, "targets")->number);
    assert_true(evaluated.job.evaluation.ns > 0);
}

RP_TEST(losses_are_those_of_transformers)
{
    g_autofree char *directory = g_dir_make_tmp("test-evaluate-XXXXXX", NULL);
    g_autofree char *path = rp_test_source_path("tests/exec-train/fixtures/evaluations.json");
    g_autofree char *text = NULL;

    assert_true(g_file_get_contents(path, &text, NULL, NULL));
    g_autoptr(RpTree) root = rp_tree_parse(text);
    const RpTree *models = rp_tree_find(root, "models");

    /* most time goes into measuring layers: each once, the first on one device and on two */
    check_model(rp_tree_nth(models, 0), directory, 1);
    for (guint i = 0; i < models->items->len; i++)
        check_model(rp_tree_nth(models, i), directory, 2 - i % 2);
    rp_file_remove_directory(directory);
}

RP_TEST(a_missing_file_is_told)
{
    g_autofree char *model = fixture("qwen3-tied");
    g_auto(RpTrainEvaluated) evaluated = {0};
    RpRunSpec run = {0};
    GError *error = NULL;

    set(&run, "data", "/nowhere.jsonl");
    set(&run, "sequence_length", "13");
    assert_false(rp_train_evaluate_file(model, NULL, &run, &events, &evaluated, &error));
    assert_non_null(strstr(error->message, "/nowhere.jsonl"));
    g_error_free(error);
}
