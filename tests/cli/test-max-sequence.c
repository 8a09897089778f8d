/* `roundpipe plan --max-sequence` beside what `roundpipe train` does. */
#include "tests/cli/train-files.h"

#define STEP 64 /* RP_ADVISE_SEQUENCE_STEP */
#define MEMORY "640KiB"
#define BYTES (640 << 10)
#define HOST_MEMORY "1750KB" /* less than devices of MEMORY need for their longest sequence */
#define POSITIONS 256        /* of the model `short` */

/* @model: in @T */
static RpTree *
plan_of_model(const char *model, guint devices, const char *more)
{
    g_auto(RpCliRun) run = rp_cli_run("plan @T/%s --max-sequence --devices host --gpus %u "
                                      "--gpu-memory " MEMORY " --json %s",
                                      model, devices, more);

    return rp_cli_json(&run);
}

static RpTree *
plan_of(guint devices, const char *more)
{
    return plan_of_model("model", devices, more);
}

static guint
tokens_of(RpTree *plan)
{
    return (guint)rp_cli_number(plan, "longest_sequence.tokens");
}

static RpCliRun
train(guint devices, guint tokens, const char *more)
{
    return rp_cli_run("train @T/run.yaml --set devices=host:%u --set micro_batches=%u "
                      "--set round=all --set sequence_length=%u --set device_memory=" MEMORY
                      " --set steps=2 --json %s",
                      devices, devices, tokens, more);
}

/* The stage lists of a plan as words for `train`. (transfer full) */
static char *
stages_of(RpTree *plan)
{
    g_autofree char *forward = rp_cli_list(plan, "longest_sequence.forward_stages");
    g_autofree char *backward = rp_cli_list(plan, "longest_sequence.backward_stages");

    return g_strdup_printf("--set forward_stages=%s --set backward_stages=%s "
                           "--set output=@T/by-hand",
                           forward, backward);
}

RP_TEST(train_takes_the_longest_sequence_and_not_one_step_more)
{
    for (guint devices = 1; devices <= 3; devices++) {
        g_autoptr(RpTree) plan = plan_of(devices, "");
        const guint tokens = tokens_of(plan);
        g_auto(RpCliRun) longest = train(devices, tokens, "--dry-run");
        g_auto(RpCliRun) longer = train(devices, tokens + STEP, "--dry-run");
        g_autoptr(RpTree) taken = rp_cli_json(&longest);

        assert_true(tokens > 0);
        assert_true(rp_cli_number(taken, "predicted.device_bytes.0") <= BYTES);
        if (longer.code != 1 || (strstr(longer.err, "no partition of") == NULL &&
                                 strstr(longer.err, " alone needs ") == NULL))
            fail_msg("%u devices, %u tokens: exit code %d: %s", devices, tokens + STEP, longer.code,
                     longer.err);
    }
}

static void
assert_bytes_as_told(const char *model, const char *plan_words, const char *train_words,
                     const char *name)
{
    for (guint devices = 1; devices <= 2; devices++) {
        g_autoptr(RpTree) plan = plan_of_model(model, devices, plan_words);
        g_autofree char *stages = stages_of(plan);
        g_autofree char *more = g_strdup_printf("%s-%s%u --set model=@T/%s %s", stages, name,
                                                devices, model, train_words);
        g_auto(RpCliRun) run = train(devices, tokens_of(plan), more);
        g_autoptr(RpTree) trained = rp_cli_json(&run);

        assert_int_equal(rp_cli_number(trained, "last_step"), 2);
        for (guint d = 0; d < devices; d++) {
            g_autofree char *member = g_strdup_printf("measured.device_bytes.%u", d);

            assert_int_equal(rp_cli_number(trained, member),
                             rp_cli_number(plan, "longest_sequence.gpu.total"));
        }
        assert_int_equal(rp_cli_number(trained, "measured.host_bytes"),
                         rp_cli_number(plan, "longest_sequence.host.total"));
        assert_int_equal(rp_cli_number(trained, "predicted.host_bytes"),
                         rp_cli_number(plan, "longest_sequence.host.total"));
    }
}

RP_TEST(a_run_of_it_takes_the_bytes_that_were_told)
{
    assert_bytes_as_told("model", "", "", "whole");
}

RP_TEST(a_run_beside_a_packed_base_takes_the_bytes_that_were_told)
{
    assert_bytes_as_told("model", "--lora-rank 3 --base nf4", "--set lora.rank=3 --set base=nf4",
                         "nf4");
    assert_bytes_as_told("model", "--lora-rank 3 --base fp8", "--set lora.rank=3 --set base=fp8",
                         "fp8");
}

/* Where no targets are given, both adapt attention, routers and experts. */
RP_TEST(a_mixture_with_adapters_takes_the_bytes_that_were_told)
{
    rp_cli_write("mixture.json",
                 "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\","
                 "\"hidden_size\":16,\"num_hidden_layers\":4,\"num_attention_heads\":4,"
                 "\"num_key_value_heads\":2,\"head_dim\":8,\"intermediate_size\":24,"
                 "\"moe_intermediate_size\":8,\"num_experts\":4,\"num_experts_per_tok\":2,"
                 "\"vocab_size\":33,\"torch_dtype\":\"bfloat16\"}");
    rp_cli_must_run("init @T/mixture.json -o @T/mixture");
    assert_bytes_as_told("mixture", "--lora-rank 3", "--set lora.rank=3", "all");
    assert_bytes_as_told("mixture", "--lora-rank 3 --lora-targets q_proj,experts.down_proj",
                         "--set lora.rank=3 "
                         "--set lora.targets=q_proj,experts.down_proj",
                         "some");
}

/* Stages of train's own choice: other bytes, but planned and taken are the same. */
RP_TEST(train_chooses_stages_that_fit_by_itself)
{
    g_autoptr(RpTree) plan = plan_of(2, "");
    g_auto(RpCliRun) run = train(2, tokens_of(plan), "--set output=@T/own");
    g_autoptr(RpTree) trained = rp_cli_json(&run);

    assert_true(rp_cli_number(trained, "measured.device_bytes.0") <= BYTES);
    assert_int_equal(rp_cli_number(trained, "measured.device_bytes.0"),
                     rp_cli_number(trained, "predicted.device_bytes.0"));
}

RP_TEST(sequences_beyond_the_positions_of_the_model_are_trained_with_a_warning)
{
    rp_cli_write("short.json",
                 "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\","
                 "\"hidden_size\":16,\"num_hidden_layers\":4,\"num_attention_heads\":4,"
                 "\"intermediate_size\":24,\"vocab_size\":33,\"max_position_embeddings\":256}");
    rp_cli_must_run("init @T/short.json -o @T/short --seed 1");
    g_autoptr(RpTree) plan = plan_of_model("short", 1, "");
    const guint tokens = tokens_of(plan);
    g_autofree char *number = g_strdup_printf("%u", tokens);

    assert_true(tokens > POSITIONS);
    assert_true(rp_cli_member(plan, "longest_sequence."
                                    "beyond_max_positions")
                    ->number);
    g_auto(RpCliRun) run = train(1, tokens, "--set model=@T/short --set output=@T/beyond");

    assert_int_equal(run.code, 0);
    if (strstr(run.err, "max_position_embeddings") == NULL || strstr(run.err, number) == NULL ||
        strstr(run.err, G_STRINGIFY(POSITIONS)) == NULL)
        fail_msg("expected a warning of %u tokens, found: %s", tokens, run.err);
}

/* Arenas of devices that are threads count there. */
RP_TEST(host_memory_limits_it_as_in_train)
{
    g_autoptr(RpTree) plan = plan_of(2, "--host-memory " HOST_MEMORY);
    const guint tokens = tokens_of(plan);
    g_autofree char *stages = stages_of(plan);
    g_autofree char *more =
        g_strdup_printf("%s --set host_memory=" HOST_MEMORY " --dry-run", stages);
    g_auto(RpCliRun) longest = train(2, tokens, more);
    g_auto(RpCliRun) longer = train(2, tokens + STEP, more);

    assert_string_equal(rp_cli_member(plan, "longest_sequence.limited_by")->text, "host");
    assert_true(tokens > 0);
    assert_int_equal(longest.code, 0);
    assert_int_equal(longer.code, 1);
    assert_non_null(strstr(longer.err, "host memory"));
}

RP_TEST(tells_what_to_write_into_a_run_file)
{
    g_autoptr(RpTree) plan = plan_of(1, "--sync --optimizer lean");
    g_auto(RpCliRun) run =
        rp_cli_run("plan @T/model --max-sequence --devices host --gpu-memory " MEMORY
                   " --sync --optimizer lean");
    g_autofree char *length = g_strdup_printf("sequence_length: %u\n", tokens_of(plan));

    assert_int_equal(run.code, 0);
    assert_non_null(strstr(run.out, length));
    assert_non_null(strstr(run.out, "forward_stages: 0,1*4\n"));
    assert_non_null(strstr(run.out, "backward_stages: 0,1*4,0\n"));
    assert_non_null(strstr(run.out, "async: false\n"));
    assert_non_null(strstr(run.out, "mode: lean"));
}

RP_TEST(refuses_what_does_not_go_together)
{
    rp_cli_must_refuse_all("max-sequence: what does not go together");
}

RP_TEST(a_model_that_fits_with_no_sequence_is_said_to)
{
    g_auto(RpCliRun) run =
        rp_cli_run("plan @T/model --max-sequence --devices host --gpu-memory 4KiB");

    assert_int_equal(run.code, 1);
    assert_non_null(strstr(run.out, "none, not even"));
}

RP_TEST_GROUP(rp_train_files_setup, rp_cli_teardown)
