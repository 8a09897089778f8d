/* Run files: their values, and the errors of wrong ones. */
#include "tests/rp-test.h"

#include <stdio.h>

#include "core/plan/planner.h"
#include "core/schedules/schedule.h"
#include "run/run-file.h"
#include "run/settings.h"

#define LEAST "model: m\ndata: d.jsonl\noutput: o\nsequence_length: 64\nsteps: 10\n"

typedef struct {
    RpRunSpec *run;
    GError *error;
} Fixture;

static void
teardown(Fixture *fixture)
{
    rp_run_spec_free(fixture->run);
    g_clear_error(&fixture->error);
}

static const RpRunSpec *
parse(Fixture *fixture, const char *text, const char *const *sets)
{
    g_clear_pointer(&fixture->run, rp_run_spec_free);
    g_clear_error(&fixture->error);
    fixture->run = rp_run_file_parse("run.yaml", text, strlen(text), sets, &fixture->error);
    if ((fixture->run == NULL) != (fixture->error != NULL))
        fail_msg("result and error disagree: %s", text);
    return fixture->run;
}

/* A text that is refused with exactly @message, in which `*` stands for any text. */
static void
refuse(Fixture *fixture, const char *text, const char *set, const char *message)
{
    const char *sets[] = {set, NULL};

    if (parse(fixture, text, sets) != NULL)
        fail_msg("accepted: %s %s", text, set != NULL ? set : "");
    if (!g_pattern_match_simple(message, fixture->error->message))
        fail_msg("of %s\n  expected: %s\n  found:    %s", text, message, fixture->error->message);
    assert_int_equal(g_error_matches(fixture->error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE),
                     g_str_has_prefix(message, "--set"));
}

/* A pair of tests/run/messages.txt. */
static void
refuse_row(const char *words, char **expected, gpointer fixture)
{
    g_auto(GStrv) parts = g_strsplit(words, " --set ", 2);
    g_autofree char *text = g_strcompress(g_strchug(parts[0] + 1));
    g_autofree char *whole = g_strconcat(words[0] == '+' ? LEAST : "", text, NULL);

    refuse(fixture, whole, parts[1], *expected);
}

static void
refuse_all(Fixture *fixture, const char *section)
{
    rp_test_golden("tests/run/messages.txt", section, refuse_row, fixture);
}

RP_TEST(fills_in_every_default)
{
    const RpRunSpec *run = parse(*state, LEAST, NULL);

    rp_assert_no_error(((Fixture *)*state)->error);
    assert_string_equal(run->model, "m");
    assert_string_equal(run->data, "d.jsonl");
    assert_string_equal(run->output, "o");
    assert_int_equal(run->sequence_length, 64);
    assert_int_equal(run->steps, 10);
    assert_int_equal(run->n_devices, 1);
    assert_int_equal(run->dtype_choice, 0);
    assert_int_equal(run->micro_batch_size, 1);
    assert_int_equal(run->micro_batches, 8);
    assert_int_equal(run->gradient_accumulation_steps, 1);
    assert_int_equal(run->seed, 0);
    assert_true(run->shuffle);
    assert_string_equal(run->schedule, "roundpipe");
    assert_true(run->async);
    assert_int_equal(run->round, 8); /* all */
    assert_int_equal(run->partition_choice, 0);
    assert_false(run->given_stages);
    assert_null(run->stages);
    assert_int_equal(run->recompute_choice, RP_SETTING_RECOMPUTE(EARLY, AUTO));
    assert_int_equal(run->transfers, RP_TRANSFERS_WINDOWS);
    assert_int_equal(run->consistency, RP_CONSISTENCY_EVENTS);
    assert_true(run->device_memory_bytes == 0 && run->host_memory_bytes == 0);
    assert_int_equal(run->head_chunk, 0);
    assert_string_equal(run->profile, "auto");
    assert_null(run->trace);
    assert_false(run->plot_loss);
    assert_int_equal(run->optimizer.mode, RP_OPTIMIZER_FUSED);
    assert_true(run->optimizer.learning_rate == 1e-4);
    assert_int_equal(run->optimizer.schedule, RP_LEARNING_RATE_COSINE);
    assert_int_equal(run->optimizer.warmup_steps, 0);
    assert_true(run->optimizer.warmup_ratio == 0);
    assert_true(run->optimizer.weight_decay == 0.01);
    assert_true(run->optimizer.beta1 == 0.9 && run->optimizer.beta2 == 0.999);
    assert_true(run->optimizer.epsilon == 1e-8);
    assert_true(run->optimizer.max_grad_norm == 1.0);
    assert_int_equal(run->optimizer.threads, 0);
    assert_true(run->loss_scale.initial == 65536);
    assert_int_equal(run->loss_scale.max_skipped, 32);
    assert_int_equal(run->checkpoint.every, 0);
    assert_int_equal(run->checkpoint.keep, 3);
}

RP_TEST(reads_every_key)
{
    const RpRunSpec *run = parse(
        *state,
        LEAST "devices: host:4\nseed: 10\ndtype: bfloat16\nmicro_batch_size: 2\nmicro_batches: 16\n"
              "gradient_accumulation_steps: 3\nshuffle: no\nschedule: 1f1b\n"
              "async: yes\nstages: \"3,3,2\"\nrecompute: gated\ntransfers: naive\n"
              "consistency: blocking\ndevice_memory: 24 G\nhost_memory: 1.5GB\n"
              "head_chunk: 256\nprofile: times.json\ntrace: trace.json\nplot_loss: on\n"
              "optimizer: {mode: lean, learning_rate: 3.0e-4, schedule: linear,\n"
              "  warmup_steps: 5, weight_decay: 0.1, beta1: 0.8, beta2: 0.95,\n"
              "  epsilon: 1e-6, max_grad_norm: 0, threads: 2}\n"
              "loss_scale:\n  initial: 1024\n  growth_interval: 2000\n  max_skipped: 7\n"
              "checkpoint:\n  every: 50\n  keep: 0\n",
        NULL);

    rp_assert_no_error(((Fixture *)*state)->error);
    assert_int_equal(run->n_devices, 4);
    assert_int_equal(run->dtype_choice, RP_DTYPE_BF16 + 1);
    assert_int_equal(run->micro_batch_size, 2);
    assert_int_equal(run->micro_batches, 16);
    assert_int_equal(run->gradient_accumulation_steps, 3);
    assert_int_equal(run->seed, 10);
    assert_false(run->shuffle);
    assert_string_equal(run->schedule, "1f1b");
    assert_true(run->async);
    assert_true(run->given_stages);
    assert_string_equal(run->stages, "3,3,2");
    assert_int_equal(run->recompute_choice, RP_SETTING_RECOMPUTE(GATED, NOTHING));
    assert_int_equal(run->transfers, RP_TRANSFERS_NAIVE);
    assert_int_equal(run->consistency, RP_CONSISTENCY_BLOCKING);
    assert_true(run->device_memory_bytes == (guint64)24 << 30);
    assert_true(run->host_memory_bytes == 1500000000);
    assert_int_equal(run->head_chunk, 256);
    assert_string_equal(run->profile, "times.json");
    assert_string_equal(run->trace, "trace.json");
    assert_true(run->plot_loss);
    assert_int_equal(run->optimizer.mode, RP_OPTIMIZER_LEAN);
    assert_true(run->optimizer.learning_rate == 3e-4);
    assert_int_equal(run->optimizer.schedule, RP_LEARNING_RATE_LINEAR);
    assert_int_equal(run->optimizer.warmup_steps, 5);
    assert_true(run->optimizer.weight_decay == 0.1);
    assert_true(run->optimizer.beta1 == 0.8 && run->optimizer.beta2 == 0.95);
    assert_true(run->optimizer.epsilon == 1e-6);
    assert_true(run->optimizer.max_grad_norm == 0);
    assert_int_equal(run->optimizer.threads, 2);
    assert_true(run->loss_scale.initial == 1024);
    assert_int_equal(run->loss_scale.max_skipped, 7);
    assert_int_equal(run->checkpoint.every, 50);
    assert_int_equal(run->checkpoint.keep, 0);
}

RP_TEST(is_synchronous_by_default_only_where_stages_are_bound)
{
    static const struct {
        const char *text;
        gboolean async;
    } cases[] = {{LEAST "schedule: roundpipe\n", TRUE},
                 {LEAST "schedule: gpipe\n", FALSE},
                 {LEAST "schedule: interleaved-1f1b\n", FALSE},
                 {LEAST "schedule: looped-bfs\nasync: true\n", TRUE},
                 {LEAST "async: false\n", FALSE}};

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        const RpRunSpec *run = parse(*state, cases[i].text, NULL);

        rp_assert_no_error(((Fixture *)*state)->error);
        assert_int_equal(run->async, cases[i].async);
    }
}

RP_TEST(takes_a_list_of_stages_as_text_or_as_a_list)
{
    const RpRunSpec *run =
        parse(*state, LEAST "forward_stages: [3, 3]\nbackward_stages:\n  - 2\n  - 3*2\n", NULL);

    rp_assert_no_error(((Fixture *)*state)->error);
    assert_string_equal(run->forward_stages, "3,3");
    assert_string_equal(run->backward_stages, "2,3*2");
    run = parse(*state, LEAST "stages: []\ntrace: ~\nasync:\nshuffle: null\noptimizer:\n", NULL);
    rp_assert_no_error(((Fixture *)*state)->error);
    assert_null(run->stages);
    assert_null(run->trace);
    assert_true(run->async && run->shuffle);
    assert_true(run->optimizer.learning_rate == 1e-4);
}

RP_TEST(lets_the_command_line_win_and_the_last_word_of_it)
{
    const char *sets[] = {"steps=20",       "optimizer.learning_rate=1e-3",
                          "steps=30",       "output=a=b",
                          "trace=t.json",   "trace=",
                          "model=a: 'b' #", NULL};
    const RpRunSpec *run = parse(*state, LEAST "optimizer: {learning_rate: 5}\n", sets);

    rp_assert_no_error(((Fixture *)*state)->error);
    assert_int_equal(run->steps, 30);
    assert_true(run->optimizer.learning_rate == 1e-3);
    assert_string_equal(run->output, "a=b");
    assert_null(run->trace);
    assert_string_equal(run->model, "a: 'b' #");
}

RP_TEST_OF(names_an_unknown_key_its_place_and_the_nearest_one, Fixture *fixture)
{
    refuse_all(fixture, "names an unknown key its place and the nearest one");
}

RP_TEST(knows_what_other_tools_call_a_key)
{
    refuse_all(*state, "knows what other tools call a key");
}

RP_TEST_OF(refuses_rounds_that_do_not_divide_or_leave_devices_idle, Fixture *fixture)
{
    refuse(fixture, LEAST "micro_batches: 12\nround: 5\n", NULL,
           "run.yaml: line 7, column 8: round: roundpipe: 12 micro-batches need rounds of the same "
           "size, found rounds of 5, which does not divide them");
    assert_int_equal(rp_schedule_error_remedies(fixture->error)->one.part, RP_SHAPE_ROUND);
    assert_int_equal(rp_schedule_error_remedies(fixture->error)->one.number, 6);
    refuse_all(fixture, "refuses rounds that do not divide or leave devices idle");
    assert_non_null(parse(fixture, LEAST "devices: host:4\nround: 4\n", NULL));
    assert_int_equal(fixture->run->round, 4);
}

RP_TEST_OF(refuses_rounds_of_schedules_without_them, Fixture *fixture)
{
    static const char *const schedules[] = {"gpipe", "1f1b", "interleaved-1f1b", "looped-bfs",
                                            "mobius"};

    for (gsize i = 0; i < G_N_ELEMENTS(schedules); i++) {
        g_autofree char *text = g_strdup_printf(LEAST "schedule: %s\nround: 8\n", schedules[i]);
        g_autofree char *message = g_strdup_printf(
            "run.yaml: line 7, column 8: round: schedule %s runs all micro-batches as one round; "
            "expected all or auto, found 8; numbers are for roundpipe",
            schedules[i]);

        refuse(fixture, text, NULL, message);
    }
    refuse(fixture, LEAST "schedule: gpipe\n", "round=4",
           "--set round: schedule gpipe runs all micro-batches as one round; expected all or auto, "
           "found 4; numbers are for roundpipe");
    assert_non_null(parse(fixture, LEAST "schedule: gpipe\nround: auto\n", NULL));
    assert_non_null(parse(fixture, LEAST "schedule: gpipe\nround: all\n", NULL));
    assert_non_null(parse(fixture, LEAST "schedule: gpipe\n", NULL));
}

RP_TEST(refuses_deep_nesting_at_once)
{
    g_autofree char *lists = g_strnfill(100000, '[');
    g_autofree char *deep = g_strconcat("seed: ", lists, NULL);
    g_autofree char *dashes = g_strnfill(100000, '-');

    for (gsize i = 1; i < strlen(dashes); i += 2)
        dashes[i] = ' ';
    refuse(*state, deep, NULL, "run.yaml: line 1, column 7: seed: expected a value, found a list");
    refuse(*state, dashes, NULL,
           "run.yaml: line 1, column 1: expected keys such as \"model: DIRECTORY\", found "
           "something else");
    refuse_all(*state, "refuses deep nesting at once");
}

RP_TEST_OF(refuses_a_key_twice_or_none_where_one_is_needed, Fixture *fixture)
{
    refuse_all(fixture, "refuses a key twice or none where one is needed");
}

/* As a list of YAML or as one word, by the names that profiles have for them. */
RP_TEST(reads_lists_of_what_is_saved)
{
    static const char *const lists[] = {"recompute: [attention, mlp]\n",
                                        "recompute: attention,mlp\n"};
    const RpSetting *setting = rp_setting_find("recompute");
    const RpRunSpec *run;

    for (guint i = 0; i < G_N_ELEMENTS(lists); i++) {
        g_autofree char *text = g_strconcat(LEAST, lists[i], NULL);

        run = parse(*state, text, NULL);
        rp_assert_no_error(((Fixture *)*state)->error);
        assert_int_equal(rp_save_groups(RP_SETTING_RECOMPUTE_SAVE(run->recompute_choice)),
                         RP_SAVED(ATTENTION) | RP_SAVED(MLP));
    }
    for (guint g = 0; g < RP_N_SAVED_GROUPS; g++) {
        int value = 0;

        assert_true(rp_setting_choose(setting, rp_saved_group((RpSavedGroup)g)->name, &value));
        assert_int_equal(rp_save_groups(RP_SETTING_RECOMPUTE_SAVE(value)), 1u << g);
    }
    refuse(*state, LEAST "recompute: [qkv, mlps]\n", NULL,
           "run.yaml: line 6, column 12: recompute: expected one of auto, full, selective, none, "
           "early, gated; or a list of attention, qkv, residual, mlp, found \"qkv,mlps\"");
}

RP_TEST_OF(refuses_values_of_the_wrong_type, Fixture *fixture)
{
    refuse_all(fixture, "refuses values of the wrong type");
}

RP_TEST_OF(refuses_values_out_of_range, Fixture *fixture)
{
    refuse_all(fixture, "refuses values out of range");
}

RP_TEST_OF(refuses_keys_that_do_not_fit_the_objective, Fixture *fixture)
{
    refuse_all(fixture, "refuses keys that do not fit the objective");
}

/* Numbers that are not given are TRL's, and the reference is what the run has at hand. */
RP_TEST_OF(takes_numbers_of_the_objective, Fixture *fixture)
{
    const RpRunSpec *run = parse(fixture, LEAST "objective: dpo\nlabel_smoothing: 0.1\n", NULL);

    assert_int_equal(run->preference.objective, RP_OBJECTIVE_DPO);
    assert_true(run->preference.beta == 0.1);
    assert_true(run->preference.label_smoothing == 0.1 && run->label_smoothing == 0);
    assert_int_equal(run->preference.reference, RP_REFERENCE_PRECOMPUTED);
    run = parse(fixture, LEAST "objective: kto\nlora:\n  rank: 2\n", NULL);
    assert_int_equal(run->preference.reference, RP_REFERENCE_ADAPTERS);
    assert_true(run->preference.desirable_weight == 1);
    run = parse(fixture, LEAST "objective: kto\nlora:\n  rank: 2\n  save: norm\n", NULL);
    assert_int_equal(run->preference.reference, RP_REFERENCE_PRECOMPUTED);
    run = parse(fixture, LEAST "objective: orpo\nbeta: 0.5\n", NULL);
    assert_int_equal(run->preference.reference, RP_REFERENCE_NONE);
    assert_true(run->preference.beta == 0.5 && run->preference.sft_weight == 1);
    run = parse(fixture, LEAST "objective: orpo\nsft_weight: 0\n", NULL);
    assert_true(run->preference.sft_weight == 0);
}

RP_TEST_OF(refuses_what_is_not_a_run_file, Fixture *fixture)
{
    refuse_all(fixture, "refuses what is not a run file");
    if (parse(fixture, LEAST "a: \xff\n", NULL) != NULL)
        fail_msg("accepted a byte that is no UTF-8");
    rp_assert_error_message_contains(fixture->error, "run.yaml: byte");
    refuse(fixture, LEAST "seed: *m\n", NULL,
           "run.yaml: line 6, column 7: seed: expected a value, found an alias");
}

RP_TEST_OF(writes_a_run_that_reads_as_the_same_run, Fixture *fixture)
{
    const char *sets[] = {"optimizer.learning_rate=3e-4", "model=it's: \"here\"", "data=null",
                          "output=-x", NULL};
    const RpRunSpec *run =
        parse(fixture, LEAST "forward_stages: [7, 7*3]\nbackward_stages: 0,4*7\n", sets);

    rp_assert_no_error(fixture->error);
    g_autofree char *first = rp_run_file_of(run);

    run = parse(fixture, first, NULL);
    rp_assert_no_error(fixture->error);
    assert_string_equal(run->model, "it's: \"here\"");
    assert_string_equal(run->data, "null");
    assert_string_equal(run->output, "-x");
    assert_string_equal(run->forward_stages, "7,7*3");
    assert_true(run->optimizer.learning_rate == 3e-4);
    g_autofree char *again = rp_run_file_of(run);
    assert_string_equal(again, first);
}

/* docs/train.md's table of keys is made of the rows of the table of settings: this prints it. Ranges
 * of numbers, and no and yes, stand in `train --keys` alone. */
RP_TEST(is_described_in_the_docs_row_by_row)
{
    g_autofree char *path = rp_test_source_path("docs/train.md");
    g_autofree char *docs = NULL;
    g_autoptr(GString) table = g_string_new("| key | default | meaning |\n| --- | --- | --- |\n");

    assert_true(g_file_get_contents(path, &docs, NULL, NULL));
    for (const RpSetting *setting = rp_settings(); setting->key != NULL; setting++) {
        const gboolean brief = setting->type == RP_SETTING_WHOLE ||
                               setting->type == RP_SETTING_NUMBER || rp_setting_is_flag(setting);
        g_autofree char *meaning = brief ? g_strdup(setting->help) : rp_setting_meaning(setting);
        const char *tick = setting->initial != NULL ? "`" : "";

        g_string_append_printf(table, "| `%s` | %s%s%s | %s |\n", setting->key, tick,
                               rp_setting_default(setting), tick, meaning);
    }
    if (strstr(docs, table->str) != NULL)
        return;
    fputs(table->str, stdout);
    fail_msg("docs/train.md: expected the table above");
}

/* These hold for every row. */
RP_TEST(has_a_table_whose_defaults_and_other_names_make_sense)
{
    RpRunSpec *run = g_new0(RpRunSpec, 1);

    for (const RpSetting *setting = rp_settings(); setting->key != NULL; setting++) {
        g_auto(GStrv) others = g_strsplit(setting->others != NULL ? setting->others : "", " ", -1);

        if (setting->help == NULL || strchr(setting->help, '\n') != NULL)
            fail_msg("%s: help is no line", setting->key);
        if (rp_setting_find(setting->key) != setting)
            fail_msg("%s: there twice", setting->key);
        if (setting->initial != NULL && !rp_setting_store(setting, setting->initial, run))
            fail_msg("%s: refuses its default", setting->key);
        for (char **other = others; *other != NULL; other++) {
            g_autofree char *nearest = rp_setting_nearest(*other);

            if (rp_setting_find(*other) != NULL || g_strcmp0(nearest, setting->key) != 0)
                fail_msg("%s: %s leads to %s", setting->key, *other, nearest);
        }
    }
    rp_run_spec_free(run);
}

RP_TEST(takes_every_schedule_that_is_trained_and_no_other)
{
    guint taken = 0;

    for (const RpScheduleOps *const *schedule = rp_schedules(); *schedule != NULL; schedule++) {
        g_autofree char *text = g_strdup_printf(LEAST "schedule: %s\n", (*schedule)->name);
        const RpRunSpec *run = parse(*state, text, NULL);

        assert_int_equal(run != NULL, rp_schedule_is_trained(*schedule));
        if (run != NULL)
            assert_string_equal(run->schedule, (*schedule)->name);
        taken += run != NULL;
    }
    assert_true(taken >= 6);
}

RP_TEST_STATE(Fixture, rp_test_no_state, teardown)

/* Adapters if they can be switched off; else samples are scored once, and a copy where steps see fewer than all. */
RP_TEST(chooses_the_reference_that_costs_least)
{
    static const struct {
        const char *keys;
        double epochs;
        RpReference reference;
        const char *why;
    } rows[] = {
        {"", 0.5, RP_REFERENCE_NONE, "none"},
        {"objective: orpo\n", 0.5, RP_REFERENCE_NONE, "none"},
        {"objective: dpo\n", 0, RP_REFERENCE_PRECOMPUTED, "once"},
        {"objective: dpo\n", 0.99, RP_REFERENCE_COPY, "a part of the samples"},
        {"objective: ipo\n", 1, RP_REFERENCE_PRECOMPUTED, "once"},
        {"objective: kto\n", 3, RP_REFERENCE_PRECOMPUTED, "once"},
        {"objective: dpo\nreference: copy\n", 3, RP_REFERENCE_COPY, "given"},
        {"objective: dpo\nreference: auto\n", 0.5, RP_REFERENCE_COPY, "a part of the samples"},
        {"objective: dpo\nlora: {rank: 2}\n", 0.5, RP_REFERENCE_ADAPTERS, "adapters off"},
        {"objective: dpo\nlora: {rank: 2, save: norm}\n", 3, RP_REFERENCE_PRECOMPUTED, "once"},
        {"objective: dpo\nlora: {start: run}\n", 0.5, RP_REFERENCE_COPY, "a part of the samples"},
    };

    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autofree char *text = g_strconcat(LEAST, rows[i].keys, NULL);
        const RpRunSpec *run = parse(*state, text, NULL);
        const char *why;

        rp_assert_no_error(((Fixture *)*state)->error);
        assert_int_equal(rp_run_choose_reference(run, rows[i].epochs, &why), rows[i].reference);
        assert_non_null(strstr(why, rows[i].why));
    }
}
