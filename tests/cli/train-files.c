#include "tests/cli/train-files.h"

#define TINY_CONFIG                                                                                \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\","                          \
    "\"hidden_size\":16,\"num_hidden_layers\":4,"                                                  \
    "\"num_attention_heads\":4,\"intermediate_size\":24,\"vocab_size\":33}"

#define GPT_OSS_CONFIG                                                                             \
    "{\"architectures\":[\"GptOssForCausalLM\"],\"model_type\":\"gpt_oss\",\"hidden_size\":18,"    \
    "\"num_hidden_layers\":4,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":6,"  \
    "\"intermediate_size\":7,\"num_local_experts\":5,\"num_experts_per_tok\":2,"                   \
    "\"sliding_window\":5,\"swiglu_limit\":7.0,\"vocab_size\":33,\"torch_dtype\":\"bfloat16\","    \
    "\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":10000.0,\"factor\":4.0,"           \
    "\"beta_fast\":32.0,\"beta_slow\":1.0,\"truncate\":false,"                                     \
    "\"original_max_position_embeddings\":32}}"

/* Layer times, so that nothing needs to be measured. */
#define TIMES                                                                                      \
    "{\"format\":\"roundpipe-profile/1\",\"model\":\"tiny\",\"device\":\"host\",\"gpus\":2,"       \
    "\"dtype\":\"bf16\",\"accumulate\":\"fp32\",\"source\":\"predicted\",\"origin\":\"a test\","   \
    "\"date\":\"2026-01-01\",\"links\":{\"h2d_gb_per_s\":4.0,\"d2h_gb_per_s\":4.0},"               \
    "\"layers\":[{\"kind\":\"embedding\",\"forward_ms\":0.1,\"backward_ms\":0.1},"                 \
    "{\"kind\":\"block\",\"count\":4,\"forward_ms\":0.2,\"backward_ms\":0.4},"                     \
    "{\"kind\":\"head\",\"forward_ms\":0.2,\"backward_ms\":0.4}]}"

#define RUN                                                                                        \
    "model: %s/model\ndata: %s/data.jsonl\noutput: %s/out\nprofile: %s/times.json\n"               \
    "devices: host:2\nsequence_length: 16\nmicro_batches: 4\nround: 4\nsteps: 5\n"                 \
    "optimizer: {learning_rate: 1e-2}\n"

#define SAMPLES 40

static void
add_ids(GString *json, const char *key, GRand *rand, gint most)
{
    g_string_append_printf(json, "\"%s\":[%d", key, g_rand_int_range(rand, 0, 33));
    for (gint n = g_rand_int_range(rand, 0, most); n > 0; n--)
        g_string_append_printf(json, ",%d", g_rand_int_range(rand, 0, 33));
    g_string_append_c(json, ']');
}

/* Pairs of which both documents fit a sequence. */
static void
write_pairs(void)
{
    g_autoptr(GString) pairs = g_string_new(NULL);
    g_autoptr(GRand) rand = g_rand_new_with_seed(2);

    for (guint i = 0; i < SAMPLES; i++) {
        g_string_append_c(pairs, '{');
        add_ids(pairs, "prompt_ids", rand, 3);
        g_string_append_c(pairs, ',');
        add_ids(pairs, "chosen_ids", rand, 5);
        g_string_append_printf(pairs, ",\"rejected_ids\":[%u,%u", i % 33, i % 33);
        g_string_append(pairs, i % 2 == 0 ? ",9,8,7]}\n" : "]}\n");
    }
    rp_cli_write("pairs.jsonl", pairs->str);
}

int
rp_train_files_setup(void **state)
{
    g_autoptr(GString) data = g_string_new(NULL);
    g_autoptr(GRand) rand = g_rand_new_with_seed(1);

    if (rp_cli_setup(state) != 0)
        return 1;

    g_autofree char *root = rp_cli_temporary("");
    g_autofree char *run = g_strdup_printf(RUN, root, root, root, root);

    for (guint i = 0; i < SAMPLES; i++) {
        g_string_append(data, "{\"input_ids\":[1");
        for (gint n = g_rand_int_range(rand, 4, 24); n > 0; n--)
            g_string_append_printf(data, ",%d", g_rand_int_range(rand, 0, 33));
        g_string_append(data, "]}\n");
    }
    rp_cli_write("tiny.json", TINY_CONFIG);
    rp_cli_write("tiny-gpt-oss.json", GPT_OSS_CONFIG);
    rp_cli_write("data.jsonl", data->str);
    write_pairs();
    rp_cli_write("times.json", TIMES);
    rp_cli_write("run.yaml", run);

    g_auto(RpCliRun) init = rp_cli_run("init @T/tiny.json -o @T/model --seed 1");

    return init.code;
}

static gint
compare_names(gconstpointer a, gconstpointer b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

char *
rp_train_files_list(const char *name)
{
    g_autofree char *path = rp_cli_temporary(name);
    g_autoptr(GDir) directory = g_dir_open(path, 0, NULL);
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
    const char *entry;

    if (directory == NULL)
        fail_msg("no directory %s", path);
    while ((entry = g_dir_read_name(directory)) != NULL)
        if (strcmp(entry, ".lock") != 0)
            g_ptr_array_add(names, g_strdup(entry));
    g_ptr_array_sort(names, compare_names);
    g_ptr_array_add(names, NULL);
    return g_strjoinv(" ", (char **)names->pdata);
}

char *
rp_train_files_learned(const char *output)
{
    static const char *const times[] = {"step_ms",      "bubble_ratio",      "checkpoint_ms",
                                        "eval_runtime", "eval_bubble_ratio", NULL};
    g_autofree char *name = g_build_filename(output, "metrics.jsonl", NULL);
    g_autofree char *text = rp_cli_read(name);
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    g_autoptr(GString) learned = g_string_new(NULL);

    for (char **line = lines; *line != NULL && **line != '\0'; line++) {
        g_autoptr(RpTree) node = rp_tree_parse(*line);

        if (node == NULL)
            fail_msg("%s: not JSON: %s", name, *line);
        for (guint i = 0; i < node->items->len; i++) {
            const RpTree *item = rp_tree_nth(node, i);
            if (!g_strv_contains(times, item->key))
                g_string_append_printf(learned, "%s %s ", item->key, item->text);
        }
        g_string_append_c(learned, '\n');
    }
    return g_string_free(g_steal_pointer(&learned), FALSE);
}

static void
assert_same_file(const char *expected, const char *found, const char *name)
{
    g_autofree char *a = g_build_filename(expected, name, NULL);
    g_autofree char *b = g_build_filename(found, name, NULL);
    gsize a_bytes, b_bytes;
    g_autofree char *a_data = rp_cli_read_bytes(a, &a_bytes);
    g_autofree char *b_data = rp_cli_read_bytes(b, &b_bytes);

    if (a_bytes != b_bytes || memcmp(a_data, b_data, a_bytes) != 0)
        fail_msg("%s and %s differ", a, b);
}

void
rp_train_files_assert_same(const char *expected, const char *found)
{
    g_autofree char *names = rp_train_files_list(expected);
    g_autofree char *others = rp_train_files_list(found);
    g_auto(GStrv) each = g_strsplit(names, " ", -1);

    if (strcmp(names, others) != 0)
        fail_msg("%s has %s, %s has %s", expected, names, found, others);
    for (char **name = each; *name != NULL; name++)
        assert_same_file(expected, found, *name);
}

void
rp_train_files_train(const char *line)
{
    g_auto(RpCliRun) run = rp_cli_run("train @T/run.yaml %s", line);

    if (run.code != 0 || strstr(run.err, "CRITICAL") != NULL)
        fail_msg("%s: %s", line, run.err);
    if (strstr(run.out, "memory of host") != NULL)
        assert_non_null(strstr(run.out, "+0 bytes"));
}
