/* `roundpipe generate`: which part of a line is the prompt, which answers are right, and what is
 * refused; how `train` on processors says whether its times can be compared. */
#include "tests/cli/train-files.h"

#include <stdio.h>

/* Its own answers, given back as those expected, are right; one changed token is not. */
RP_TEST(tells_right_answers_from_wrong_ones)
{
    rp_cli_write("ask.jsonl", "{\"input_ids\":[3,4,5]}\n{\"input_ids\":[6,7,8]}\n");

    g_autoptr(RpTree) first = rp_cli_run_json(
        "generate @T/model --prompts @T/ask.jsonl -o @T/said.jsonl --max-new-tokens 2 --json");
    g_autofree char *said = rp_cli_read("said.jsonl");
    int a, b, c, d;

    assert_int_equal(rp_cli_number(first, "expected"), 0);
    assert_int_equal(sscanf(said,
                            "{\"prompt\":[3,4,5],\"answer\":[%d,%d]}\n"
                            "{\"prompt\":[6,7,8],\"answer\":[%d,%d]}\n",
                            &a, &b, &c, &d),
                     4);
    g_autofree char *lines =
        g_strdup_printf("{\"input_ids\":[3,4,5,%d,%d],\"labels\":[-100,-100,-100,%d,%d]}\n"
                        "{\"input_ids\":[6,7,8,%d,%d],\"labels\":[-100,-100,-100,%d,%d]}\n",
                        a, b, a, b, c, (d + 1) % 33, c, (d + 1) % 33);
    rp_cli_write("know.jsonl", lines);

    g_autoptr(RpTree) second =
        rp_cli_run_json("generate @T/model --prompts @T/know.jsonl -o @T/said-2.jsonl --json");

    assert_int_equal(rp_cli_number(second, "prompts"), 2);
    assert_int_equal(rp_cli_number(second, "expected"), 2);
    assert_int_equal(rp_cli_number(second, "right"), 1);
    assert_int_equal(rp_cli_number(second, "max_new_tokens"), 2);
}

/* A tokenizer of 33 letters beside the model: id 0 is `a`. */
static void
write_tokenizer(void)
{
    g_autoptr(GString) json = g_string_new("{\"decoder\":{\"type\":\"Fuse\"},\"model\":{"
                                           "\"type\":\"BPE\",\"merges\":[],\"vocab\":{");

    for (guint i = 0; i < 33; i++)
        g_string_append_printf(json, "%s\"%c\":%u", i > 0 ? "," : "",
                               i < 26 ? 'a' + i : 'A' + i - 26, i);
    g_string_append(json, "}}}");
    rp_cli_write("model/tokenizer.json", json->str);
}

static char *
letters(const char *ids)
{
    g_auto(GStrv) words = g_strsplit(ids, ",", -1);
    GString *text = g_string_new(NULL);

    for (guint i = 0; words[i] != NULL; i++) {
        const int id = (int)g_ascii_strtoll(words[i], NULL, 10);

        g_string_append_c(text, (char)(id < 26 ? 'a' + id : 'A' + id - 26));
    }
    return g_string_free(text, FALSE);
}

/* A prompt of text gets the tokens that its ids get, as text. */
RP_TEST(answers_text_with_text)
{
    write_tokenizer();
    rp_cli_write("def.jsonl", "{\"input_ids\":[3,4,5]}\n");

    rp_cli_must_run(
        "generate @T/model --prompts @T/def.jsonl -o @T/said-3.jsonl --max-new-tokens 6");
    g_autoptr(RpTree) root = rp_cli_run_json("generate @T/model def --max-new-tokens 6 --json");
    g_auto(RpCliRun) text = rp_cli_run("generate @T/model def --max-new-tokens 6");
    g_autofree char *prompt = rp_cli_list(root, "prompt");
    g_autofree char *answer = rp_cli_list(root, "answer");
    g_autofree char *expected = letters(answer);
    g_autofree char *line = g_strdup_printf("%s\n", expected);
    g_autofree char *said = rp_cli_read("said-3.jsonl");
    g_autofree char *same = g_strdup_printf("{\"prompt\":[3,4,5],\"answer\":[%s]}\n", answer);

    assert_string_equal(prompt, "3,4,5");
    assert_string_equal(said, same);
    assert_string_equal(rp_cli_member(root, "text")->text, expected);
    assert_string_equal(text.out, line);
}

RP_TEST(throws_the_same_dice_with_the_same_seed)
{
    static const char warm[] =
        "generate @T/model def --max-new-tokens 12 --temperature 5 --seed %d";

    write_tokenizer();
    g_auto(RpCliRun) first = rp_cli_run(warm, 7);
    g_auto(RpCliRun) again = rp_cli_run(warm, 7);
    g_auto(RpCliRun) other = rp_cli_run(warm, 8);

    assert_int_equal(first.code, 0);
    assert_string_equal(first.out, again.out);
    assert_string_not_equal(first.out, other.out);
}

/* The template puts the role's first letter in front of each message, and an a before the answer. */
RP_TEST(asks_in_the_words_of_the_chat_template)
{
    write_tokenizer();
    rp_cli_write(
        "model/tokenizer_config.json",
        "{\"chat_template\": \"{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}a{% endif %}\"}");
    g_autoptr(RpTree) root =
        rp_cli_run_json("generate @T/model --chat de --max-new-tokens 3 --json");
    g_autoptr(RpTree) other =
        rp_cli_run_json("generate @T/model --chat de --system x --max-new-tokens 3 --json");
    g_auto(RpCliRun) text = rp_cli_run("generate @T/model udea --max-new-tokens 3");
    g_auto(RpCliRun) talk =
        rp_cli_shell("printf 'de\\n\\nfg\\n' | $ROUNDPIPE generate @T/model --chat "
                     "--max-new-tokens 3");
    g_autofree char *prompt = rp_cli_list(root, "prompt");
    g_autofree char *longer = rp_cli_list(other, "prompt");
    g_autofree char *answer = g_strdup_printf("%s\n", rp_cli_member(root, "text")->text);
    g_auto(GStrv) lines = g_strsplit(talk.out, "\n", -1);

    assert_string_equal(prompt, "20,3,4,0");
    assert_string_equal(longer, "18,23,20,3,4,0");
    assert_string_equal(text.out, answer);
    assert_int_equal(talk.code, 0);
    assert_int_equal(g_strv_length(lines), 3); /* two answers, and nothing behind them */
    assert_int_equal(strncmp(talk.out, text.out, strlen(text.out)), 0);

    /* the second question stands behind the first and its answer */
    g_autofree char *again =
        g_strdup_printf("generate @T/model ude%s%sufga --max-new-tokens 3", "a", lines[0]);
    g_auto(RpCliRun) second = rp_cli_run("%s", again);
    g_autofree char *last = g_strdup_printf("%s\n", lines[1]);

    assert_string_equal(second.out, last);
    rp_cli_must_refuse_all("generate: asks in the words of the chat template");
    rp_cli_write("model/tokenizer_config.json", "{}");
    rp_cli_must_refuse("generate @T/model --chat de", 1, "template");
}

RP_TEST(leaves_ids_out_that_the_tokenizer_has_not)
{
    g_autofree char *all = NULL, *few = NULL;

    for (guint i = 0; i < 2; i++) { /* the same dice; then three letters are tokens */
        write_tokenizer();
        if (i == 1)
            rp_cli_write("model/tokenizer.json",
                         "{\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"BPE\","
                         "\"merges\":[],\"vocab\":{\"a\":0,\"b\":1,\"c\":2}}}");
        g_autoptr(RpTree) root = rp_cli_run_json(
            "generate @T/model abc --max-new-tokens 12 --temperature 50 --seed 4 --json");

        *(i == 0 ? &all : &few) = g_strdup(rp_cli_member(root, "text")->text);
    }
    g_autoptr(GString) expected = g_string_new(NULL);

    for (const char *p = all; *p != '\0'; p++)
        if (*p <= 'c' && *p >= 'a')
            g_string_append_c(expected, *p);
    assert_true(expected->len < strlen(all));
    assert_string_equal(few, expected->str);
}

/* A chat is a prompt, and its last answer is expected. */
RP_TEST(compares_answers_with_those_of_chats)
{
    write_tokenizer();
    rp_cli_write(
        "model/tokenizer_config.json",
        "{\"chat_template\": \"{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}a{% endif %}\"}");
    g_autoptr(RpTree) root =
        rp_cli_run_json("generate @T/model --chat de --max-new-tokens 3 --json");
    g_autofree char *line = g_strdup_printf(
        "{\"messages\":[{\"role\":\"user\",\"content\":\"de\"},{\"role\":\"assistant\","
        "\"content\":\"%s\"}]}\n{\"messages\":[{\"role\":\"user\",\"content\":\"de\"},"
        "{\"role\":\"assistant\",\"content\":\"%s\"}]}\n",
        rp_cli_member(root, "text")->text,
        strcmp(rp_cli_member(root, "text")->text, "xyz") == 0 ? "zyx" : "xyz");

    rp_cli_write("chats.jsonl", line);
    g_autoptr(RpTree) figures =
        rp_cli_run_json("generate @T/model --prompts @T/chats.jsonl -o @T/said-4.jsonl --json");

    rp_cli_write("model/tokenizer_config.json", "{}");
    assert_int_equal(rp_cli_number(figures, "expected"), 2);
    assert_int_equal(rp_cli_number(figures, "right"), 1);
}

/* The output of a run is its best checkpoint. */
RP_TEST(takes_a_run_for_its_best_checkpoint)
{
    write_tokenizer();
    rp_cli_must_shell("mkdir @T/run && ln -s ../model @T/run/best");
    g_auto(RpCliRun) model = rp_cli_run("generate @T/model abc --max-new-tokens 4");
    g_auto(RpCliRun) run = rp_cli_run("generate @T/run abc --max-new-tokens 4");
    rp_cli_must_shell("rm -r @T/run");

    assert_int_equal(run.code, 0);
    assert_string_equal(run.out, model.out);
}

RP_TEST(says_what_is_wrong_with_a_prompt_of_text)
{
    write_tokenizer();
    rp_cli_must_refuse_all("generate: says what is wrong with a prompt of text");
    rp_cli_write("model/tokenizer.json", "{\"model\":{\"vocab\":{\"a\":33},\"merges\":[]}}");
    rp_cli_must_refuse("generate @T/model a", 1,
                       "expected ids below the model's vocabulary of 33, found 33");
}

RP_TEST(says_what_is_wrong)
{
    rp_cli_write("one.jsonl", "{\"input_ids\":[3,4,5]}\n");
    rp_cli_write("alien.jsonl", "{\"input_ids\":[3]}\n{\"input_ids\":[33]}\n");
    rp_cli_must_refuse_all("generate: says what is wrong");
}

/* Four devices of one processor wait for each other most of the time. */
RP_TEST(train_compares_times_only_if_processors_were_free)
{
    g_auto(RpCliRun) wide = rp_cli_shell(
        "taskset -c 0 $ROUNDPIPE train @T/run.yaml --set output=@T/waits --set devices=host:4 "
        "--set sequence_length=256 --set micro_batch_size=8 --set steps=12 --json");
    g_autoptr(RpTree) root = rp_cli_json(&wide);
    const double waited = rp_cli_number(root, "measured.processor_wait_ratio");

    if (waited <= 0.05 || waited >= 1)
        fail_msg("actions waited %g of their time", waited);
    assert_false(rp_cli_member(root, "measured.times_comparable")->number);
}

RP_TEST(version_tells_of_gpu_code)
{
    g_auto(RpCliRun) run = rp_cli_run("--version");

    assert_int_equal(run.code, 0);
    assert_true(strstr(run.out, "\nGPU code: CUDA 1") != NULL ||
                strstr(run.out, "\nGPU code: not built in: ") != NULL);
    assert_true(strstr(run.out, "not built in") == NULL || strstr(run.out, "docs/gpu.md") != NULL);
}

/* The tokenizer comes when the model is open and none of its weights were loaded. */
RP_TEST(ends_with_a_line_when_the_model_is_cut_while_it_is_read)
{
    rp_cli_write("config.json",
                 "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\","
                 "\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
                 "\"intermediate_size\":64,\"vocab_size\":999}");
    rp_cli_must_run("init @T/config.json -o @T/cut");
    write_tokenizer();
    g_auto(RpCliRun) run = rp_cli_shell(
        "cd @T && mkfifo cut/tokenizer.json; "
        "timeout 60 sh -c 'exec 3>cut/tokenizer.json; truncate -s 16384 cut/model.safetensors; "
        "cat model/tokenizer.json >&3' & exec timeout 60 $ROUNDPIPE generate @T/cut abc");

    rp_cli_assert_refused(&run, "generate", 1, "cut/model.safetensors: byte ");
    assert_non_null(strstr(run.err, "was cut short while it was read"));
}

#define SCALED(rope)                                                                               \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":16,"       \
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"intermediate_size\":24,"                  \
    "\"vocab_size\":33,\"max_position_embeddings\":8,\"eos_token_id\":null,"                       \
    "\"rope_scaling\":{\"factor\":4.0,\"rope_type\":\"" rope "\"}}"

/* As far as a rope is scaled, and what is answered does not depend on how much may be. */
RP_TEST(answers_beyond_the_original_positions_of_a_scaled_rope)
{
    static const char *const configs[] = {SCALED("dynamic"), SCALED("linear"), SCALED("yarn")};

    rp_cli_write("scaled.jsonl", "{\"input_ids\":[3,4,5]}\n{\"input_ids\":[6]}\n");
    for (guint i = 0; i < G_N_ELEMENTS(configs); i++) {
        rp_cli_write("scaled.json", configs[i]);
        g_auto(RpCliRun) init =
            rp_cli_run("init @T/scaled.json -o @T/scaled --seed 1 --dtype fp32 --force");
        g_auto(RpCliRun) few = rp_cli_run(
            "generate @T/scaled --prompts @T/scaled.jsonl --max-new-tokens 9 -o @T/few.jsonl");
        g_auto(RpCliRun) many = rp_cli_run(
            "generate @T/scaled --prompts @T/scaled.jsonl --max-new-tokens 29 -o @T/many.jsonl");

        if (init.code + few.code + many.code != 0)
            fail_msg("%s%s%s", init.err, few.err, many.err);
        rp_cli_must_refuse(
            "generate @T/scaled --prompts @T/scaled.jsonl --max-new-tokens 30 -o @T/x.jsonl", 2,
            "expected at most 29, which the model's 32 positions leave");
        g_autofree char *some = rp_cli_read("few.jsonl"), *more = rp_cli_read("many.jsonl");
        g_auto(GStrv) one = g_strsplit(some, "\n", -1), other = g_strsplit(more, "\n", -1);

        for (guint k = 0; k < 2; k++) { /* all but what closes it */
            const char *end = strchr(strstr(one[k], "answer"), ']');

            if (strncmp(one[k], other[k], (gsize)(end - one[k])) != 0)
                fail_msg("%s, %s", one[k], other[k]);
        }
    }
}

RP_TEST_GROUP(rp_train_files_setup, rp_cli_teardown)
