/* The programs and data of examples/, run as their pages say. */
#include "tests/cli/run-cli.h"

#include <stdio.h>

/* Mean of the last column of lines @from .. @end - 1. */
static double
mean_loss(char **lines, guint from, guint end)
{
    double sum = 0;

    for (guint i = from; i < end; i++) {
        const char *loss = strstr(lines[i], ": loss ");

        if (loss == NULL)
            fail_msg("expected a step and its loss, found: %s", lines[i]);
        sum += g_ascii_strtod(loss + strlen(": loss "), NULL);
    }
    return sum / (end - from);
}

RP_TEST(the_data_are_additions_and_the_same_every_time)
{
    g_auto(RpCliRun) first = rp_cli_shell("@R/examples/arithmetic/make-data 200");
    g_auto(RpCliRun) second = rp_cli_shell("@R/examples/arithmetic/make-data 200");
    g_auto(GStrv) lines = g_strsplit(first.out, "\n", -1);

    assert_int_equal(first.code, 0);
    assert_string_equal(first.err, "");
    assert_string_equal(first.out, second.out);
    assert_int_equal(g_strv_length(lines), 201);
    for (guint i = 0; i < 200; i++) {
        g_autoptr(RpTree) root = rp_tree_parse(lines[i]);
        gint64 ids[10];

        assert_non_null(root);
        const RpTree *tokens = rp_cli_member(root, "input_ids");
        const RpTree *labels = rp_cli_member(root, "labels");
        assert_int_equal(tokens->items->len, 10);
        assert_int_equal(labels->items->len, 10);
        for (guint t = 0; t < 10; t++) {
            ids[t] = (gint64)rp_tree_nth(tokens, t)->number;
            assert_int_equal((gint64)rp_tree_nth(labels, t)->number, t < 6 ? -100 : ids[t]);
        }
        assert_true(ids[2] == 10 && ids[5] == 11 && ids[9] == 12);
        assert_int_equal(ids[0] + 10 * ids[1] + ids[3] + 10 * ids[4],
                         ids[6] + 10 * ids[7] + 100 * ids[8]);
    }
}

/* Numbers of an addition, the larger first: "85 47". */
static char *
numbers_of(const char *line)
{
    int a, b, c, d;

    assert_int_equal(sscanf(line, "{\"input_ids\":[%d,%d,10,%d,%d,11,", &a, &b, &c, &d), 4);
    const int x = a + 10 * b, y = c + 10 * d;

    return g_strdup_printf("%d %d", MAX(x, y), MIN(x, y));
}

RP_TEST(held_out_additions_are_none_of_those_trained)
{
    g_auto(RpCliRun) trained = rp_cli_shell("@R/examples/arithmetic/make-data");
    g_auto(RpCliRun) held = rp_cli_shell("@R/examples/arithmetic/make-data 8192 500");
    g_auto(RpCliRun) many = rp_cli_shell("@R/examples/arithmetic/make-data 8192 5000");
    g_autoptr(GHashTable) seen = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    g_autoptr(GHashTable) once = g_hash_table_new(g_str_hash, g_str_equal);
    g_auto(GStrv) lines = g_strsplit(trained.out, "\n", -1);
    g_auto(GStrv) others = g_strsplit(held.out, "\n", -1);

    assert_int_equal(held.code, 0);
    assert_int_equal(g_strv_length(lines), 8193);
    assert_int_equal(g_strv_length(others), 501);
    for (guint i = 0; i < 8192; i++)
        g_hash_table_add(seen, numbers_of(lines[i]));
    for (guint i = 0; i < 500; i++) {
        g_autofree char *numbers = numbers_of(others[i]);

        assert_false(g_hash_table_contains(seen, numbers));
        assert_true(g_hash_table_add(once, others[i]));
    }
    assert_int_equal(many.code, 2);
    assert_non_null(strstr(many.err, "expected at most 1945 held out, found 5000"));
}

RP_TEST(the_run_file_plans_for_its_model_and_data)
{
    rp_cli_must_shell("@R/examples/arithmetic/make-data >@T/additions.jsonl");
    rp_cli_must_run("init @R/examples/arithmetic/config.json -o @T/adder");
    g_auto(RpCliRun) run = rp_cli_run("train @R/examples/arithmetic/run.yaml --dry-run --json "
                                      "--set model=@T/adder --set data=@T/additions.jsonl");
    g_autoptr(RpTree) root = NULL;

    root = rp_cli_json(&run);
    assert_int_equal(rp_cli_number(root, "parameters"), 223232);
    assert_int_equal(rp_cli_number(root, "samples"), 8192);
    assert_int_equal(rp_cli_number(root, "truncated_samples"), 0);
    assert_int_equal(rp_cli_number(root, "devices"), 4);
}

RP_TEST(a_loop_of_ones_own_learns)
{
    rp_cli_must_shell("@R/examples/arithmetic/make-data 64 >@T/few.jsonl");
    rp_cli_must_run("init @R/examples/arithmetic/config.json -o @T/small --seed 1 --force");
    g_auto(RpCliRun) run = rp_cli_shell("$EXAMPLE_TRAIN @T/small @T/few.jsonl host:2 60");
    g_auto(GStrv) lines = g_strsplit(run.out, "\n", -1);

    assert_string_equal(run.err, "");
    assert_int_equal(run.code, 0);
    assert_int_equal(g_strv_length(lines), 61);
    assert_true(mean_loss(lines, 0, 5) > 2);
    assert_true(mean_loss(lines, 55, 60) < 0.75 * mean_loss(lines, 0, 5));
}

RP_TEST(a_loop_of_ones_own_says_what_is_wrong)
{
    g_auto(RpCliRun) words = rp_cli_shell("$EXAMPLE_TRAIN");
    g_auto(RpCliRun) model = rp_cli_shell("$EXAMPLE_TRAIN @T/nowhere @T/few.jsonl host:2 1");

    assert_int_equal(words.code, 2);
    assert_non_null(strstr(words.err, "usage: train MODEL_DIR"));
    assert_int_equal(model.code, 1);
    assert_true(g_str_has_prefix(model.err, "train: "));
    assert_non_null(strstr(model.err, "nowhere"));
}

/* ---- examples/fine-tune ---- */

/* A template that says who speaks, and a tokenizer whose ids are bytes; 256 ends a turn. */
static const char tokenizer_config[] =
    "{\"eos_token\":\"<end>\",\"chat_template\":\"{% for m in messages %}{{ m.role }}: "
    "{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}\"}";

/* As many blocks as Qwen3-1.7B, whose times are predicted with. */
static const char tiny_qwen3[] =
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\","
    "\"hidden_size\":16,\"intermediate_size\":24,"
    "\"num_hidden_layers\":28,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":8,"
    "\"vocab_size\":260,\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\"}";

#define CHATS "@R/examples/fine-tune/make-data"
#define FINE_TUNE                                                                                  \
    "train @R/examples/fine-tune/run.yaml --set model=@T/checkpoint --set data=@T/chats.jsonl "    \
    "--set output=@T/tuned "

/* As GPT-2's bytes are written: those that print stand for themselves. */
static char *
tokenizer_of_bytes(void)
{
    GString *json = g_string_new("{\"added_tokens\":[{\"id\":256,\"content\":\"<end>\","
                                 "\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                                 "\"normalized\":false,\"special\":true}],\"normalizer\":null,"
                                 "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":"
                                 "false,\"trim_offsets\":true,\"use_regex\":true},"
                                 "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},"
                                 "\"model\":{\"type\":\"BPE\",\"vocab\":{");

    for (guint byte = 0, other = 256; byte < 256; byte++) {
        const gboolean prints = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);

        g_string_append_printf(json, "%s\"\\u%04x\":%u", byte > 0 ? "," : "",
                               prints ? byte : other++, byte);
    }
    g_string_append(json, ",\"<end>\":256},\"merges\":[]}}");
    return g_string_free(json, FALSE);
}

static void
make_checkpoint_and_data(void)
{
    g_autofree char *tokenizer = tokenizer_of_bytes();

    rp_cli_write("tiny.json", tiny_qwen3);
    rp_cli_must_shell("\"$ROUNDPIPE\" init @T/tiny.json -o @T/checkpoint --force "
                      "&& " CHATS " 64 >@T/chats.jsonl");

    rp_cli_write("checkpoint/tokenizer.json", tokenizer);
    rp_cli_write("checkpoint/tokenizer_config.json", tokenizer_config);
}

/* The answer of a chat has a line for each sentence of the note, with its words. */
RP_TEST(notes_hold_what_their_csv_says)
{
    g_auto(RpCliRun) first = rp_cli_shell(CHATS " 100");
    g_auto(RpCliRun) second = rp_cli_shell(CHATS " 100");
    g_auto(GStrv) lines = g_strsplit(first.out, "\n", -1);

    assert_string_equal(first.out, second.out);
    assert_int_equal(g_strv_length(lines), 101);
    for (guint i = 0; i < 100; i++) {
        g_autoptr(RpTree) root = rp_tree_parse(lines[i]);

        assert_non_null(root);
        const char *note = rp_cli_member(root, "messages.0.content")->text;
        const char *csv = rp_cli_member(root, "messages.1.content")->text;
        g_auto(GStrv) rows = g_strsplit(csv, "\n", -1);

        assert_string_equal(rows[0], "date,amount,unit,item,place");
        assert_in_range(g_strv_length(rows), 5, 11);
        for (guint r = 1; rows[r] != NULL; r++) {
            g_auto(GStrv) cells = g_strsplit(rows[r], ",", -1);

            assert_int_equal(g_strv_length(cells), 5);
            assert_int_equal(strlen(cells[0]), strlen("2000-01-01"));
            for (guint c = 1; c < 5; c++)
                if (strstr(note, cells[c]) == NULL)
                    fail_msg("expected \"%s\" in the note, found: %s", cells[c], note);
        }
    }
}

RP_TEST(only_answers_are_learned)
{
    make_checkpoint_and_data();
    g_auto(RpCliRun) chats = rp_cli_shell("cat @T/chats.jsonl");
    g_autoptr(RpTree) root =
        rp_cli_run_json("inspect @T/chats.jsonl --model @T/checkpoint --samples 64 --json");
    g_auto(GStrv) texts = g_strsplit(chats.out, "\n", -1);

    assert_int_equal(rp_cli_number(root, "samples"), 64);
    for (guint i = 0; i < 64; i++) {
        g_autoptr(RpTree) text = rp_tree_parse(texts[i]);
        g_autofree char *question = g_strdup_printf("examples.%u.parts.0.text", i);
        g_autofree char *answer = g_strdup_printf("examples.%u.parts.1.text", i);
        g_autofree char *asked = g_strdup_printf("user: %s<end>assistant: ",
                                                 rp_cli_member(text, "messages.0.content")->text);
        g_autofree char *answered =
            g_strdup_printf("%s<end>", rp_cli_member(text, "messages.1.content")->text);

        assert_string_equal(rp_cli_member(root, question)->text, asked);
        assert_string_equal(rp_cli_member(root, answer)->text, answered);
    }
}

/* Only the first line of what it prints is read, as one may never end. */
static RpCliRun
shell_one_line(const char *words)
{
    return rp_cli_shell("{ %s; echo $? >@T/code; } | head -n 1; "
                        "exit $(cat @T/code)",
                        words);
}

RP_TEST(a_number_of_samples_is_whole_and_at_least_one)
{
    static const char *const numbers[] = {"abc", "10x", "3.5", "-5", "0", "1e3", "''", "' 7'"};

    for (guint i = 0; i < 2 * G_N_ELEMENTS(numbers); i++) {
        g_autofree char *words = g_strdup_printf(
            "@R/examples/%s/make-data %s", i % 2 == 0 ? "fine-tune" : "arithmetic", numbers[i / 2]);
        g_auto(RpCliRun) run = shell_one_line(words);

        rp_cli_assert_refused(&run, words, 2,
                              "make-data: expected a whole number of samples, at least 1");
        assert_string_equal(run.out, "");
    }
    g_auto(RpCliRun) one = rp_cli_shell(CHATS " 1 | wc -l");
    assert_int_equal(g_ascii_strtoull(one.out, NULL, 10), 1);
}

/* As the page says, on a machine without a GPU: only the number of devices changes. */
RP_TEST(the_fine_tuning_is_predicted_for_one_to_eight_cards)
{
    double before_ms = G_MAXDOUBLE;

    make_checkpoint_and_data();
    for (guint n = 1; n <= 8; n *= 2) {
        rp_cli_must_run("export --profile qwen3-1.7b --gpu rtx4090 "
                        "--sequences 4 --tokens 512 --gpus %u -o @T/cards.json",
                        n);
        g_autoptr(RpTree) root =
            rp_cli_run_json(FINE_TUNE "--dry-run --json --set devices=host:%u "
                                      "--set profile=@T/cards.json --set device_memory=23.4GiB",
                            n);
        const double ms = rp_cli_number(root, "predicted.step_ms");

        assert_int_equal(rp_cli_number(root, "devices"), n);
        assert_int_equal(rp_cli_number(root, "micro_batches"), 16);
        if (!(ms > 0 && ms < before_ms))
            fail_msg("%u cards: expected a step of less than %g ms, found %g", n, before_ms, ms);
        before_ms = ms;
    }
}

/* With less to do than the file says; bytes are more than a tokenizer's tokens. */
#define SMALL                                                                                      \
    "--set devices=host:1 --set profile=@T/cards.json --set micro_batch_size=1 "                   \
    "--set micro_batches=2 --set checkpoint.every=1 "                                              \
    "--set sequence_length=1024 "

RP_TEST(the_fine_tuning_trains_saves_and_goes_on)
{
    make_checkpoint_and_data();
    rp_cli_must_run("export --profile qwen3-1.7b --gpu rtx4090 --sequences 1 "
                    "--tokens 512 --gpus 1 -o @T/cards.json");
    g_auto(RpCliRun) first = rp_cli_run(FINE_TUNE SMALL "--set steps=2");
    g_auto(RpCliRun) rest = rp_cli_run(FINE_TUNE SMALL "--set steps=3 --resume");
    g_auto(RpCliRun) list = rp_cli_shell("cd @T/tuned && ls -d checkpoint-* && ls checkpoint-3 && "
                                         "wc -l <metrics.jsonl");

    if (first.code != 0 || rest.code != 0)
        fail_msg("exit codes %d and %d: %s%s", first.code, rest.code, first.err, rest.err);
    assert_string_equal(list.out,
                        "checkpoint-2\ncheckpoint-3\nREADME.md\nconfig.json\nmanifest.json\n"
                        "model.safetensors\nnext.safetensors\noptimizer.safetensors\n"
                        "tokenizer.json\ntokenizer_config.json\ntrainer_state.json\n3\n");
}

#define TINY "@R/examples/fine-tune/tiny/"

/* The walk itself is the test "walk". */
RP_TEST(held_out_notes_are_none_of_those_learned)
{
    g_auto(RpCliRun) both =
        rp_cli_shell(TINY "make-data held-out 100 | sort -u >@T/held && wc -l <@T/held && (" TINY
                          "make-data echo 4096; " TINY
                          "make-data row 2048) | cut -d '\"' -f 10 | sort -u >@T/asked && "
                          "cut -d '\"' -f 10 @T/held | grep -cxFf @T/asked");

    assert_string_equal(both.err, "");
    assert_string_equal(both.out, "100\n0\n");
}

RP_TEST_GROUP(rp_cli_setup, rp_cli_teardown)
